"""The headline's claims for people: tables, and bars of each claim with its mechanism off and on."""

from __future__ import annotations

from octavo_engine.bench.headline import Batching, Compound, Headline, Sharing, Utilization
from octavo_engine.bench.plot import Bar, Group, bars
from octavo_engine.bench.report import Table
from octavo_engine.bench.statistics import number


def tables(found: Headline) -> list[Table]:
    """Return the claims as tables."""
    columns = ("output tok/s", "continuous", "static", "static, unpadded", "÷ static", "÷ unpadded")
    cost = found.sharing_cost
    note = (
        f"Time that sharing costs where nothing can be shared: {cost.median:+.1%} "
        f"({cost.low:+.1%} to {cost.high:+.1%} in {cost.count} pairs). "
        f"Identical tokens in all configurations of each of {len(found.outputs)} workloads."
    )
    others = [*_utilization(found.utilization), *_sharing(found.sharing), *_compound(found.compound)]
    return [
        Table("Continuous against static batching", columns, [_batching(claim) for claim in found.batching]),
        Table("Paged blocks and shared prefixes", ("claim", "off", "on", ""), others, note),
    ]


def _batching(claim: Batching) -> tuple[str, ...]:
    speeds = (str(claim.continuous), str(claim.static), str(claim.unpadded))
    return (_name(claim), *speeds, f"{claim.ratio} ×", f"{claim.unpadded_ratio} ×")


def _name(claim: Batching) -> str:
    return f"{claim.workload}, --max-num-seqs {claim.max_num_seqs}"


def _utilization(use: Utilization) -> list[tuple[str, ...]]:
    flights = (number(use.contiguous_in_flight), number(use.paged_in_flight), f"{use.in_flight_ratio:.2f} ×")
    return [
        ("KV utilisation while anything waits", f"{use.contiguous:.1%}", f"{use.paged:.1%}", "contiguous → paged"),
        ("sequences in flight at equal memory", *flights),
    ]


def _sharing(share: Sharing) -> list[tuple[str, ...]]:
    fewer, sooner = share.blocks_without / share.blocks, 1 / share.ttft_ratio.median
    times = (number(share.ttft_without.median * 1e3), number(share.ttft.median * 1e3))
    return [
        ("shared prefix: most blocks held", f"{share.blocks_without:,}", f"{share.blocks:,}", f"1/{fewer:.1f}"),
        ("shared prefix: TTFT p50, ms", *times, f"1/{sooner:.1f}"),
    ]


def _compound(found: Compound) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name, value in (("paged alone", found.paged), ("shared alone", found.shared), ("both", found.both)):
        title = f"in flight at equal memory: neither → {name}"
        rows.append((title, number(found.neither), number(value), f"{value / found.neither:.2f} ×"))
    return rows


def plots(found: Headline, sentence: str) -> dict[str, str]:
    """Return SVG pictures by file name; `sentence` says of what and where they were taken."""
    batching = [
        Group(
            _name(claim),
            (
                Bar("static", claim.static),
                Bar("static, unpadded", claim.unpadded),
                Bar("continuous", claim.continuous),
            ),
        )
        for claim in found.batching
    ]
    use, compound, share = found.utilization, found.compound, found.sharing
    memory = [
        Group("KV utilisation, %", (Bar("contiguous", use.contiguous * 100), Bar("paged", use.paged * 100))),
        Group(
            "sequences in flight, shared system prompt",
            (
                Bar("neither", compound.neither),
                Bar("shared alone", compound.shared),
                Bar("paged alone", compound.paged),
                Bar("paged + shared", compound.both),
            ),
        ),
        Group(
            "blocks held, shared system prompt", (Bar("unshared", share.blocks_without), Bar("shared", share.blocks))
        ),
    ]
    title = "Continuous against static batching, output tokens a second"
    taken = f"Medians of {found.batching[0].continuous.count}, with the lowest and the highest. {sentence}"
    return {
        "headline-batching.svg": bars(title, batching, taken),
        "headline-memory.svg": bars("Paged blocks and shared prefixes at equal memory", memory, sentence),
    }
