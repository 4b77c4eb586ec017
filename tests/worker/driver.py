"""Drives a runner by plans written by hand: what a test wants to happen, no scheduler's opinion in between."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from octavo_engine.core.step import Admission, BlockAppend, BlockCopy, Row, StepPlan
from octavo_engine.ipc.scores import read_scores
from octavo_engine.sampling.settings import prepare
from octavo_engine.worker.gpu.compute import RunnerSizes
from octavo_engine.worker.gpu.host_store import GpuHostStore
from octavo_engine.worker.gpu.model import GpuModel
from octavo_engine.worker.gpu.runner import GpuRunner
from octavo_engine.worker.grammar import GrammarRows
from octavo_engine.worker.host_store import HostStore
from octavo_engine.worker.runner import Runner

NUM_BLOCKS = 64
MAX_MODEL_LEN = 128
MAX_NUM_SEQS = 8


@dataclass
class Live:
    """One sequence: its slot, its tokens so far, its blocks, and how many tokens are computed."""

    sequence: int
    slot: int
    tokens: list[int]
    prompt: int
    blocks: list[int]
    computed: int = 0
    failed: str = ""
    scores: bool = False
    logprobs: bytes = b""
    prompt_logprobs: list[float] = field(default_factory=list)

    @property
    def text(self):
        return self.tokens[self.prompt :]


@dataclass
class Driver:
    """A runner over a fresh pool, the executable's own kind of runner, and who holds what.

    pooling: how embeddings are made. places: of a host tier. invariant, graph_sizes: of a GPU's runner.
    """

    executable: object
    runner: Runner | GpuRunner = None
    pooling: str = "mean"
    places: int = 0
    invariant: bool = False
    graph_sizes: tuple[int, ...] = ()
    released: list[int] = field(default_factory=list)
    numbers: object = field(default_factory=itertools.count)
    sequences: object = field(default_factory=itertools.count)

    def __post_init__(self):
        self.groups = range(len(self.executable.layout.groups))
        self.executable.layout.allocate([NUM_BLOCKS for _ in self.groups])
        self.gpu = isinstance(self.executable, GpuModel)
        self.runner = self._make_gpu() if self.gpu else self._make()
        self.size = self.executable.layout.block_size

    def _make(self):
        layout = self.executable.layout
        host = HostStore(layout, [self.places for _ in self.groups]) if self.places else None
        sizes = {"max_num_seqs": MAX_NUM_SEQS, "max_model_len": MAX_MODEL_LEN}
        return Runner(self.executable, pooling=self.pooling, host=host, **sizes)

    def _make_gpu(self):
        model = self.executable
        host = GpuHostStore(model.layout, [self.places for _ in self.groups]) if self.places else None
        sizes = RunnerSizes(MAX_NUM_SEQS, MAX_MODEL_LEN, model.max_tokens)
        options = {"invariant": self.invariant, "graph_sizes": self.graph_sizes, "pooling": self.pooling, "host": host}
        return GpuRunner(model, sizes, grammars=GrammarRows(model.vocab_size, 1), **options)

    def register(self, sequence, grammar=None, **settings):
        """Register a sequence's settings, by default a seed alone, with whichever runner."""
        prepared = prepare(self.executable.vocab_size, **({"seed": 7} | settings))
        self.runner.register(sequence, prepared.parameters if self.gpu else prepared, grammar)

    def live(self, prompt, *, slot=0, first_block=0, grammar=None, **settings):
        """Register a sequence that will take `slot` and the blocks from `first_block` on."""
        sequence = next(self.sequences)
        self.register(sequence, grammar, **settings)
        count = -(-MAX_MODEL_LEN // self.size)
        return Live(sequence, slot, list(prompt), len(prompt), list(range(first_block, first_block + count)))

    def admission(self, live, blocks=None):
        table = live.blocks if blocks is None else blocks
        return Admission(
            live.slot, live.sequence, tuple(live.tokens), live.prompt, tuple(tuple(table) for _ in self.groups)
        )

    def row(self, live, count=None, drafts=(), **more):
        """The row of the next `count` known tokens, by default all, with drafts behind them."""
        missing = len(live.tokens) - live.computed
        if live.scores and live.computed < live.prompt - 1:
            end = live.computed + (missing if count is None else min(count, missing))
            more["scored"] = (live.computed + 1, min(end + 1, live.prompt))
        count = missing if count is None else min(count, missing)
        return Row(
            live.slot, live.sequence, live.computed, count + len(drafts), count == missing, tuple(drafts), **more
        )

    def plan(self, rows=(), *, admitted=(), appended=(), copies=(), released=(), transfers=()):
        deltas = (tuple(each) for each in (released, admitted, appended, copies, rows, transfers))
        return StepPlan(next(self.numbers), *deltas)

    def step(self, pairs, **deltas):
        """Run one step of (live, row) pairs and take its results in."""
        plan = self.plan([row for _, row in pairs], **deltas)
        return self.take(plan, pairs, self.runner.execute(plan))

    def take(self, plan, pairs, result):
        """Take in the results of a plan of (live, row) pairs."""
        assert result.number == plan.number
        for (live, row), row_result in zip(pairs, result.rows, strict=True):
            live.failed = live.failed or row_result.failed
            if not row.discard:
                rejected = len(row.drafts) + 1 - len(row_result.tokens) if row.drafts else 0
                live.computed += row.num_tokens - rejected
                live.tokens += row_result.tokens
                live.logprobs += row_result.logprobs
                live.prompt_logprobs += [score.logprob for score in read_scores(row_result.prompt_logprobs, 0)]
        return result

    def generate(self, live, count, *, chunk=None, admit=True):
        """Admit `live` alone and decode until it has `count` tokens more; returns its text."""
        admitted, wanted = [self.admission(live)] if admit else [], len(live.tokens) + count
        while len(live.tokens) < wanted:
            self.step([(live, self.row(live, chunk))], admitted=admitted)
            admitted = []
        return live.text


__all__ = ["MAX_MODEL_LEN", "MAX_NUM_SEQS", "NUM_BLOCKS", "BlockAppend", "BlockCopy", "Driver", "Live"]
