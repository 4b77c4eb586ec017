"""What paged, continuous batching is for, each claim with its mechanism off and on: same weights, same KV memory.

Every pair generates the same tokens; a run that does not ends the bench. Baselines are the engine's own switches
(`--scheduler static`, `--kv-allocation contiguous`, `--no-prefix-sharing`), and static batching once more without the
padding of prompts, which is kinder than `transformers.generate` is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from octavo_engine.bench.harness import BenchError, Harness, RunResult, Tell
from octavo_engine.bench.statistics import Spread, percentile, spread
from octavo_engine.bench.workload import Item, fixed, mixed, shared_prefix, skewed
from octavo_engine.core.sequence import Sequence
from octavo_engine.core.static import StaticScheduler
from octavo_engine.worker.sizing import PoolError, StartError
from octavo_engine.worker.start import Engine

BATCHING_MODEL_LEN: Final = 640
"""Holds every request of the mixed and of the skewed workload: contiguous memory is not what batching is about."""
MODEL_LEN: Final = 512
"""`--max-model-len` of the utilisation claims, and of what contiguous allocation reserves."""
SYSTEM_TOKENS: Final = 512
SHARED_MODEL_LEN: Final = 640
"""The shortest multiple of 64 that holds system prompt, own tokens and output."""
SHARED_BATCHED_TOKENS: Final = 2048
"""A step's budget in the shared-prefix claim: all requests are then in flight together, with and without sharing."""


class Sizes(msgspec.Struct, frozen=True):
    """How much is run. The defaults are the stated form; a shorter one proves the same with less certainty."""

    skewed: int = 256
    mixed: int = 64
    crowded: int = 192
    """Requests of the utilisation claim: many times what fits at once."""
    crowded_slots: int = 16
    """Longest sequences that the KV memory of the utilisation claim holds."""
    shared: int = 64
    compound: int = 256
    compound_slots: int = 8
    batches: tuple[int, ...] = (16, 32)
    repeat: int = 5
    pairs: int = 9


SHORT: Final = Sizes(
    skewed=32,
    mixed=8,
    crowded=24,
    crowded_slots=2,
    shared=8,
    compound=12,
    compound_slots=2,
    batches=(8,),
    repeat=1,
    pairs=2,
)


class Batching(msgspec.Struct, frozen=True):
    """Output tokens a second under three schedulers, and continuous ÷ static of each repetition."""

    workload: str
    max_num_seqs: int
    continuous: Spread
    static: Spread
    unpadded: Spread
    ratio: Spread
    unpadded_ratio: Spread


class Utilization(msgspec.Struct, frozen=True):
    """Tokens stored ÷ slots reserved, and sequences in flight, while anything waits, at equal memory."""

    paged: float
    contiguous: float
    paged_in_flight: float
    contiguous_in_flight: float

    @property
    def in_flight_ratio(self) -> float:
        """Sequences in flight, paged ÷ contiguous."""
        return self.paged_in_flight / self.contiguous_in_flight


class Sharing(msgspec.Struct, frozen=True):
    """Requests with one system prompt: most blocks held, and the median time to the first token."""

    blocks: int
    blocks_without: int
    ttft: Spread
    ttft_without: Spread
    ttft_ratio: Spread


class Compound(msgspec.Struct, frozen=True):
    """Sequences in flight at equal memory."""

    neither: float
    paged: float
    shared: float
    both: float


class Headline(msgspec.Struct, frozen=True):
    """All claims. `sharing_cost` is the time with sharing ÷ without, minus one, where nothing can be shared."""

    batching: list[Batching]
    utilization: Utilization
    sharing: Sharing
    compound: Compound
    sharing_cost: Spread
    outputs: dict[str, str]
    """The digest of the generated tokens of each workload: one per workload, whatever the configuration."""


class UnpaddedStatic(StaticScheduler):
    """Static batching that pads no prompt. A finished row is computed until its batch ends, as ever."""

    def _chunk(self, sequence: Sequence) -> tuple[int, int]:
        count, _ = super()._chunk(sequence)
        return count, 0


def without_padding(engine: Engine) -> Engine:
    """Return the engine with prompts of a static batch at their own lengths."""
    return engine._replace(scheduler=UnpaddedStatic(engine.scheduler.config))


class Bench:
    """Runs the claims one after the other on one model."""

    def __init__(self, harness: Harness, sizes: Sizes, tell: Callable[[str], Tell | None]) -> None:
        """`tell` gives the progress of a run by its name."""
        self._harness = harness
        self._sizes = sizes
        self._tell = tell
        self._outputs: dict[str, str] = {}

    def run(self) -> Headline:
        """Return all claims. Raises BenchError as soon as two configurations write different tokens."""
        vocab, sizes = self._harness.vocab, self._sizes
        self._check_model()
        workloads: dict[str, Callable[[int], list[Item]]] = {
            "skewed": lambda seed: skewed(sizes.skewed, seed, vocab),
            "mixed": lambda seed: mixed(sizes.mixed, seed, vocab),
        }
        self._harness.run(fixed(4, 32, 8, 0, vocab))
        return Headline(
            batching=[self.batching(name, make, size) for name, make in workloads.items() for size in sizes.batches],
            utilization=self.utilization(),
            sharing=self.sharing(),
            compound=self.compound(),
            sharing_cost=self.sharing_cost(),
            outputs=self._outputs,
        )

    def batching(self, name: str, make: Callable[[int], list[Item]], max_num_seqs: int) -> Batching:
        """Continuous against static batching, by turns."""
        rates: dict[str, list[float]] = {"continuous": [], "static": [], "unpadded": []}
        memory = self._memory(max_num_seqs, BATCHING_MODEL_LEN)
        for repetition in range(self._sizes.repeat):
            items = make(repetition)
            common = {
                "max_model_len": BATCHING_MODEL_LEN,
                "max_num_seqs": max_num_seqs,
                "kv_cache_memory": memory,
                "prefix_sharing": False,
            }
            label = f"{name} {repetition + 1}, --max-num-seqs {max_num_seqs}"
            for kind, found in (
                ("continuous", self._go(f"continuous, {label}", items, common)),
                ("static", self._go(f"static, {label}", items, {**common, "scheduler": "static"})),
                (
                    "unpadded",
                    self._go(
                        f"static without padding, {label}", items, {**common, "scheduler": "static"}, unpadded=True
                    ),
                ),
            ):
                rates[kind].append(found.output_rate)
                self._same(f"{name} {repetition}", found)
        ratios = {
            kind: spread([ours / theirs for ours, theirs in zip(rates["continuous"], rates[kind], strict=True)])
            for kind in ("static", "unpadded")
        }
        spreads = {kind: spread(values) for kind, values in rates.items()}
        return Batching(name, max_num_seqs, **spreads, ratio=ratios["static"], unpadded_ratio=ratios["unpadded"])

    def utilization(self) -> Utilization:
        """Paged against contiguous allocation in memory for a few longest sequences."""
        items = mixed(self._sizes.crowded, 0, self._harness.vocab)
        common = {
            "max_model_len": MODEL_LEN,
            "max_num_seqs": 256,
            "max_num_batched_tokens": self._budget(256),
            "kv_cache_memory": self._memory(self._sizes.crowded_slots, MODEL_LEN),
            "prefix_sharing": False,
        }
        paged = self._go("paged", items, common)
        contiguous = self._go("contiguous", items, {**common, "kv_allocation": "contiguous"})
        self._same("utilisation", paged, contiguous)
        return Utilization(
            paged=paged.observed.kv_utilization,
            contiguous=contiguous.observed.kv_utilization,
            paged_in_flight=paged.observed.in_flight,
            contiguous_in_flight=contiguous.observed.in_flight,
        )

    def sharing(self) -> Sharing:
        """One system prompt, computed and held once, against once for each request."""
        times: dict[bool, list[float]] = {True: [], False: []}
        blocks: dict[bool, int] = {True: 0, False: 0}
        sizes = self._sizes
        for repetition in range(sizes.repeat):
            items = shared_prefix(sizes.shared, repetition, self._harness.vocab, SYSTEM_TOKENS)
            for sharing in (True, False):
                common = {
                    "max_model_len": SHARED_MODEL_LEN,
                    "max_num_seqs": sizes.shared,
                    "max_num_batched_tokens": SHARED_BATCHED_TOKENS,
                    "kv_cache_memory": self._memory(sizes.shared, SHARED_MODEL_LEN),
                    "prefix_sharing": sharing,
                }
                found = self._go(f"{'shared' if sharing else 'unshared'} prefix {repetition + 1}", items, common)
                self._same(f"shared prefix {repetition}", found)
                times[sharing].append(percentile(found.ttft, 50))
                blocks[sharing] = max(blocks[sharing], found.observed.peak_blocks)
        ratios = [ours / theirs for ours, theirs in zip(times[True], times[False], strict=True)]
        return Sharing(blocks[True], blocks[False], spread(times[True]), spread(times[False]), spread(ratios))

    def compound(self) -> Compound:
        """Paging and sharing, each alone, both and neither, in memory for a few longest sequences."""
        items = shared_prefix(self._sizes.compound, 0, self._harness.vocab, SYSTEM_TOKENS)
        common = {
            "max_model_len": SHARED_MODEL_LEN,
            "max_num_seqs": 256,
            "max_num_batched_tokens": self._budget(256),
            "kv_cache_memory": self._memory(self._sizes.compound_slots, SHARED_MODEL_LEN),
        }
        found: dict[str, RunResult] = {}
        for name, allocation, sharing in (
            ("neither", "contiguous", False),
            ("paged", "paged", False),
            ("shared", "contiguous", True),
            ("both", "paged", True),
        ):
            changes = {**common, "kv_allocation": allocation, "prefix_sharing": sharing}
            found[name] = self._go(f"compound: {name}", items, changes)
        self._same("compound", *found.values())
        return Compound(**{name: run.observed.in_flight for name, run in found.items()})

    def sharing_cost(self) -> Spread:
        """The same workload with and without sharing by turns, no two prompts alike."""
        costs = []
        for pair in range(self._sizes.pairs):
            items = mixed(self._sizes.mixed, pair, self._harness.vocab)
            order = (True, False) if pair % 2 else (False, True)
            found = {
                sharing: self._go(
                    f"cost of sharing, pair {pair + 1}", items, {"prefix_sharing": sharing, "max_num_seqs": 64}
                )
                for sharing in order
            }
            self._same(f"mixed {pair}", *found.values())
            costs.append(found[True].seconds / found[False].seconds - 1)
        return spread(costs)

    def _go(self, name: str, items: list[Item], changes: Mapping[str, Any], *, unpadded: bool = False) -> RunResult:
        adapt = without_padding if unpadded else None
        try:
            return self._harness.run(items, self._tell(name), adapt, **changes)
        except PoolError as error:
            size = changes["kv_cache_memory"] / 2**30
            raise BenchError(
                f"The claims need {size:.2f}Gi for the KV cache, which this machine does not have beside the weights: "
                "take a smaller model, or --short."
            ) from error

    def _same(self, workload: str, *runs: RunResult) -> None:
        """Raise BenchError unless all runs of a workload, these and those before, wrote the same tokens."""
        for run in runs:
            if self._outputs.setdefault(workload, run.digest) != run.digest:
                raise BenchError(f"Two configurations wrote different tokens for the same requests ({workload}).")

    def _memory(self, slots: int, length: int) -> int:
        """Return the bytes of a KV pool for so many sequences of that length."""
        layout = self._harness.model.executable.layout
        blocks = slots * -(-length // layout.block_size)
        return blocks * sum(group.bytes_per_block for group in layout.groups)

    def _budget(self, max_num_seqs: int) -> int:
        return max(self._harness.config.max_num_batched_tokens, max_num_seqs)

    def _check_model(self) -> None:
        longest = self._harness.model.max_model_len
        if longest < SHARED_MODEL_LEN:
            raise StartError(f"The claims need a context of {SHARED_MODEL_LEN} tokens, this model has {longest}.")
