"""Prefix routing on the Mooncake trace: hits against one cache of the same size, and how even the load stays.

    python -m tests.acceptance.prefix_routing --trace conversation_trace.jsonl [--seeds 5] [--json FILE]

Eight simulated pods of 1,000 blocks of 512 tokens, 8,000 prefill tokens a second, 20 ms an output token, behind the
gateway's own picker. The trace's clock ticks every three seconds; its arrivals are spread over the tick, evenly and by
seeds, and all of these runs together are judged. What comes of a tick's requests all at once is printed beside it:
there even a picker that looks at nothing but load does not stay below the bound.

Exits 1 if `PrefixAware` misses a bound.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from octavo_operator.gateway.policies import Consistent, LeastLoad, RoundRobin
from octavo_operator.gateway.prefix_aware import PrefixAware
from octavo_operator.gateway.types import Policy
from tests.acceptance.prefix_simulation import (
    BLOCK_TOKENS,
    Arrival,
    Result,
    Scenario,
    Simulation,
    one_cache,
    read_trace,
    spread,
)

LEAST_HITS: Final = 0.92
MOST_SPREAD: Final = 1.4
DETECTED_SECONDS: Final = 15.0
"""By then a pod that says nothing, or lies, is known: what it got before is not judged, what it gets after is."""

POLICIES: Final[dict[str, Callable[[], Policy]]] = {
    "PrefixAware": lambda: PrefixAware(unit_tokens=BLOCK_TOKENS),
    "LeastLoad": LeastLoad,
    "RoundRobin": RoundRobin,
    "Consistent": Consistent,
}
CHANGES: Final = ((600.0, 9), (1200.0, 7))
JUDGED: Final = (
    Scenario("8 pods"),
    Scenario("8, 9, then 7 pods", changes=CHANGES),
    Scenario("metrics 5 s old", metrics_age=5.0),
)
BESIDE: Final = (
    Scenario("two pickers", pickers=2),
    Scenario("two pickers, metrics 5 s old", pickers=2, metrics_age=5.0),
    Scenario("two pickers that talk", pickers=2, news=0.1),
    Scenario("two that talk, metrics 5 s old", pickers=2, news=0.1, metrics_age=5.0),
)
SICK: Final = (
    Scenario("silent", silent=frozenset({2})),
    Scenario("frozen at idle", frozen=frozenset({2})),
    Scenario("idle by its word", lying=frozenset({2})),
    Scenario("fails at once", failing=frozenset({2})),
)


@dataclass(frozen=True)
class Line:
    """One row of the table: of all runs together, and of each way the arrivals were spread, in one order."""

    scenario: str
    policy: str
    arrivals: str
    pooled_hits: float
    pooled_spread: float
    hits: tuple[float, ...]
    spreads: tuple[float, ...]

    @property
    def passes(self) -> bool:
        """Return whether all runs together keep both bounds."""
        return self.pooled_hits >= LEAST_HITS and self.pooled_spread <= MOST_SPREAD

    def text(self) -> str:
        """Return the row."""
        return (
            f"{self.scenario:32} {self.policy:12} {self.arrivals:12} {self.pooled_hits:6.3f} "
            f"({min(self.hits):.3f}–{max(self.hits):.3f}) {self.pooled_spread:7.3f} "
            f"({min(self.spreads):.3f}–{max(self.spreads):.3f})"
        )

    def record(self) -> dict[str, Any]:
        """Return the row for `--json`."""
        return {
            "scenario": self.scenario,
            "policy": self.policy,
            "arrivals": self.arrivals,
            "hits_of_one_cache": self.pooled_hits,
            "spread_p99": self.pooled_spread,
            "hits_each": self.hits,
            "spread_each": self.spreads,
        }


def measure(scenario: Scenario, policy: str, runs: list[list[Arrival]], arrivals: str) -> Line:
    """Run a scenario under a policy on each of the arrivals."""
    results = [Simulation(scenario, POLICIES[policy], run).run() for run in runs]
    best = [one_cache(scenario, run) for run in runs]
    together = Result()
    for result in results:
        together.hit_tokens += result.hit_tokens
        together.spreads += result.spreads
    return Line(
        scenario.name,
        policy,
        arrivals,
        together.hit_tokens / sum(best),
        together.spread_p99(),
        tuple(result.hit_tokens / most for result, most in zip(results, best, strict=True)),
        tuple(result.spread_p99() for result in results),
    )


def sick_share(scenario: Scenario, policy: str, run: list[Arrival]) -> float:
    """Return the picks that a sick pod got once it was known, as a share of what an eighth would be."""
    picks = [index for at, index in Simulation(scenario, POLICIES[policy], run).run().picks if at >= DETECTED_SECONDS]
    sick = scenario.silent | scenario.frozen | scenario.lying | scenario.failing
    return sum(index in sick for index in picks) / (len(picks) / scenario.pods)


def main() -> None:
    """Run everything, print the table, and exit 1 on a miss."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trace", type=Path, required=True, help="a Mooncake trace (JSON lines)")
    parser.add_argument("--seeds", type=int, default=5, help="random spreads beside the even one")
    parser.add_argument("--json", type=Path, help="write the rows there")
    options = parser.parse_args()
    recorded = read_trace(options.trace)
    runs = [spread(recorded, seed) for seed in (None, *range(1, options.seeds + 1))]
    print(f"{'scenario':32} {'policy':12} {'arrivals':12} {'hits / one cache':22} {'p99 of max / mean in flight'}")
    lines: list[Line] = []
    missed = False

    def show(line: Line, judged: bool = False) -> None:
        nonlocal missed
        missed |= judged and not line.passes
        lines.append(line)
        print(line.text() + ("" if not judged else "  ok" if line.passes else "  MISSED"), flush=True)

    for scenario in JUDGED:
        show(measure(scenario, "PrefixAware", runs, "spread"), judged=True)
        for policy in ("LeastLoad", "RoundRobin", "Consistent"):
            show(measure(scenario, policy, runs[:1], "spread"))
    for policy in POLICIES:
        show(measure(JUDGED[0], policy, [recorded], "as recorded"))
    for scenario in BESIDE:
        show(measure(scenario, "PrefixAware", runs[:1], "spread"))
    shares = {}
    for scenario in SICK:
        for policy in POLICIES:
            share = shares[f"{scenario.name}, {policy}"] = sick_share(scenario, policy, runs[0])
            missed |= share > 0.05
            print(f"sick pod: {scenario.name:22} {policy:12} {share:8.2%} of an even share once it is known")
    if options.json:
        options.json.write_text(json.dumps({"rows": [line.record() for line in lines], "sick": shares}, indent=1))
    sys.exit(missed)


if __name__ == "__main__":
    main()
