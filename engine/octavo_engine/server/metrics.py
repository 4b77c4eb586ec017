"""`/metrics`: the engine's last snapshot and the API process's own counts, in Prometheus' text format.

A scrape reads numbers that are already here: it waits on nobody and is right with no traffic too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from itertools import accumulate
from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from octavo_engine import contract
from octavo_engine.server.counters import Counters, Distribution
from octavo_engine.server.engine_client import EngineClient

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST


class EngineMetrics(Collector):
    """Every series of `contract.METRICS`, their `vllm:` aliases, and the `vllm:` series without a twin."""

    def __init__(self, client: EngineClient, counters: Counters, model_name: str) -> None:
        """Read from `client` and `counters`; `model_name` labels the `vllm:` series."""
        self._client = client
        self._counters = counters
        self._model_name = model_name

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families."""
        for metric in contract.METRICS:
            yield from self._families(metric)
        yield from self._vllm_only()

    def _families(self, metric: contract.Metric) -> Iterator[Metric]:
        """Yield a metric under its own name and, with the model's name as a label, under its alias."""
        for name, labels, values in ((metric.name, (), ()), (metric.alias, ("model_name",), (self._model_name,))):
            if name is None:
                continue
            if metric.kind == "histogram":
                family: Metric = _histogram(name, metric.help, labels, values, self._distribution(metric))
            else:
                family = _family(metric.kind, name, metric.help, (*labels, *metric.labels))
                for own, value in self._samples(metric):
                    _add(family, (*values, *own), value)
            yield family

    def _distribution(self, metric: contract.Metric) -> Distribution:
        counters = self._counters
        return {
            contract.TIME_TO_FIRST_TOKEN.name: counters.time_to_first_token,
            contract.INTER_TOKEN.name: counters.inter_token,
            contract.REQUEST_SECONDS.name: counters.request_seconds,
            contract.STEP_SECONDS.name: counters.step_seconds,
        }[metric.name]

    def _samples(self, metric: contract.Metric) -> list[tuple[tuple[str, ...], float]]:
        """Return (label values, value) of a gauge or counter. Before the first snapshot all is zero."""
        return [(labels, read()) for labels, read in self._readers()[metric.name]]

    def _readers(self) -> dict[str, list[tuple[tuple[str, ...], Callable[[], float]]]]:
        counters, snapshot = self._counters, self._client.snapshot
        loaded = self._client.loaded

        def of(name: str) -> Callable[[], float]:
            return lambda: 0.0 if snapshot is None else float(getattr(snapshot, name))

        def utilization() -> float:
            total = 0 if snapshot is None else snapshot.blocks_active + snapshot.blocks_cached + snapshot.blocks_free
            return snapshot.blocks_active / total if snapshot is not None and total else 0.0

        def free() -> float:
            if snapshot is None:
                return float(loaded.num_blocks) if loaded is not None else 0.0
            return float(snapshot.blocks_free)

        def host_free() -> float:
            return 0.0 if snapshot is None else float(snapshot.host_places - snapshot.host_blocks)

        return {
            contract.KV_BLOCKS.name: [
                (("active",), of("blocks_active")), (("cached",), of("blocks_cached")), (("free",), free),
            ],
            contract.KV_BLOCK_UTILIZATION.name: [((), utilization)],
            contract.QUEUE_DEPTH.name: [((), lambda: float(self._client.load().sequences))],
            contract.QUEUE_TOKENS.name: [((), lambda: float(self._client.load().tokens))],
            contract.QUEUE_OLDEST_SECONDS.name: [((), of("oldest_wait_seconds"))],
            contract.REQUESTS_RUNNING.name: [((), of("running"))],
            contract.KV_HOST_BLOCKS.name: [(("used",), of("host_blocks")), (("free",), host_free)],
            contract.KV_HOST_SAVED.name: [((), of("host_saved_blocks"))],
            contract.KV_HOST_LOADED.name: [((), of("host_loaded_blocks"))],
            contract.PREFIX_TOKENS.name: [(("hit",), of("prefix_hit_tokens")), (("miss",), of("prefix_miss_tokens"))],
            contract.PREEMPTIONS.name: [((), of("preemptions"))],
            contract.RECOMPUTED_TOKENS.name: [((), of("recomputed_tokens"))],
            contract.DRAFT_TOKENS.name: [((), of("drafted_tokens"))],
            contract.ACCEPTED_TOKENS.name: [((), of("accepted_tokens"))],
            contract.STATIC_BATCHES.name: [((), of("static_batches"))],
            contract.RESERVED_SLOTS.name: [((), of("reserved_slots"))],
            contract.PROMPT_TOKENS.name: [((), lambda: float(counters.prompt_tokens))],
            contract.GENERATED_TOKENS.name: [((), lambda: float(counters.generated_tokens))],
            contract.ADMITTED.name: [((), lambda: float(counters.admitted))],
            contract.REQUESTS.name: [
                ((outcome,), partial(float, count)) for outcome, count in counters.outcomes.items()
            ],
            contract.BUSY_SECONDS.name: [((), of("busy_seconds"))],
            contract.KERNEL_SECONDS.name: [((), of("kernel_seconds"))],
            contract.LAST_STEP_TIMESTAMP.name: [((), of("time"))],
        }  # fmt: skip

    def _vllm_only(self) -> Iterator[Metric]:
        model = (self._model_name,)
        snapshot = self._client.snapshot
        hits = 0 if snapshot is None else snapshot.prefix_hit_tokens
        misses = 0 if snapshot is None else snapshot.prefix_miss_tokens
        queries = CounterMetricFamily(
            contract.VLLM_PREFIX_QUERIES, "Prompt tokens looked up in the prefix cache", labels=("model_name",)
        )
        queries.add_metric(model, hits + misses)
        yield queries
        found = CounterMetricFamily(
            contract.VLLM_PREFIX_HITS, "Prompt tokens found in the prefix cache", labels=("model_name",)
        )
        found.add_metric(model, hits)
        yield found
        success = CounterMetricFamily(
            contract.VLLM_REQUEST_SUCCESS, "Sequences ended, by reason", labels=("model_name", "finished_reason")
        )
        for outcome in ("stop", "length", "abort", "error"):
            success.add_metric((*model, outcome), self._counters.outcomes[outcome])
        yield success
        loaded = self._client.loaded
        info = GaugeMetricFamily(
            contract.VLLM_CACHE_CONFIG_INFO, "The KV cache", labels=("model_name", "block_size", "num_gpu_blocks")
        )
        if loaded is not None:
            info.add_metric((*model, str(loaded.block_size), str(loaded.num_blocks)), 1)
        yield info


def _family(kind: str, name: str, text: str, labels: tuple[str, ...]) -> CounterMetricFamily | GaugeMetricFamily:
    if kind == "counter":
        return CounterMetricFamily(name, text, labels=labels)
    return GaugeMetricFamily(name, text, labels=labels)


def _add(family: Metric, labels: tuple[str, ...], value: float) -> None:
    if isinstance(family, CounterMetricFamily | GaugeMetricFamily):
        family.add_metric(labels, value)


def _histogram(
    name: str, text: str, labels: tuple[str, ...], values: tuple[str, ...], distribution: Distribution
) -> HistogramMetricFamily:
    family = HistogramMetricFamily(name, text, labels=labels)
    bounds = [*map(str, distribution.bounds), "+Inf"]
    counts = accumulate(distribution.counts)
    family.add_metric(values, list(zip(bounds, map(float, counts), strict=True)), distribution.sum)
    return family


class _Chosen(Collector):
    """The families that were asked for by `name[]`."""

    def __init__(self, families: Iterable[Metric], names: Collection[str]) -> None:
        self._families = families
        self._names = names

    def collect(self) -> Iterator[Metric]:
        """Yield the families whose own name, or one of whose samples, was named."""
        for family in self._families:
            if family.name in self._names or any(sample.name in self._names for sample in family.samples):
                yield family


def render(collector: Collector, names: Collection[str] = ()) -> bytes:
    """Return the exposition of all series, or of those named."""
    return generate_latest(_Chosen(collector.collect(), names) if names else collector)
