"""What holds of `decide` for any estimate and history: bounds, monotony, running work, determinism, scale, rest."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from octavo_operator.autoscale import Decision, Estimate, History, Policy, ScaleDown, ScaleUp, ServiceState, decide

from .fleet import BLOCKS, T0, Fleet, moment, past, sample, spread

SETTINGS = settings(max_examples=100, deadline=None)


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    low = draw(st.integers(0, 4))
    target = draw(st.integers(40, 100))
    return Policy(
        min_replicas=low,
        max_replicas=draw(st.integers(max(low, 1), 40)),
        target_utilization_percent=target,
        target_queue_depth=draw(st.integers(1, 10)),
        scale_up=ScaleUp(max_percent=draw(st.integers(0, 200)), max_pods=draw(st.integers(1, 8))),
        scale_down=ScaleDown(
            utilization_percent=draw(st.integers(10, target - 1)),
            stabilization_seconds=draw(st.sampled_from([0, 60, 180])),
            max_pods=draw(st.integers(1, 6)),
        ),
    )


@st.composite
def estimates(draw: st.DrawFn, *, complete: bool = False) -> Estimate:
    """Any moment of a fleet, consistent in itself."""
    ready, starting, unschedulable = (draw(st.integers(0, most)) for most in (20, 6, 6))
    reporting = ready if complete else draw(st.integers(0, ready))
    running, queued, held = draw(st.integers(0, 300)), draw(st.integers(0, 300)), draw(st.integers(0, 50))
    demand = draw(st.integers(0, 30_000)) if ready + held else 0
    waits = queued + held > 0
    return moment(
        demand_blocks=demand,
        growth_blocks=draw(st.integers(0, demand)),
        running_requests=running if ready else 0,
        queued_requests=queued if ready else 0,
        held_requests=held,
        oldest_queue_millis=draw(st.integers(0, 100_000)) if queued and ready else 0,
        pressing_requests=draw(st.none() | st.integers(0, 600)) if waits else None,
        blocks_per_pod=draw(st.sampled_from([0, 1000, 1000, 1000])),
        ready_pods=ready,
        starting_pods=starting,
        starting_credit=starting * draw(st.sampled_from([0.0, 0.5, 1.0])),
        unschedulable_pods=unschedulable,
        passed_over_pods=draw(st.integers(0, unschedulable)),
        unplaced_seconds=float(draw(st.integers(0, 600))),
        reporting_pods=reporting,
        queue_pods=draw(st.integers(reporting, ready)),
    )


def count(point: Estimate) -> int:
    return point.ready_pods + point.starting_pods + point.unschedulable_pods


@st.composite
def cases(draw: st.DrawFn) -> tuple[Policy, Estimate, History]:
    """A policy, a moment, and a past that looked like it or like a quieter one, seen for long or not."""
    point = draw(estimates())
    before = draw(st.sampled_from([point, replace(point, running_requests=max(0, point.running_requests - 5))]))
    seconds = draw(st.sampled_from([10, 60, 400, 3600]))
    desired = draw(st.sampled_from([count(point), count(point), draw(st.integers(0, 45))]))
    return draw(policies()), point, past(before, seconds, desired=desired)


def answer(policy: Policy, point: Estimate, history: History) -> Decision:
    return decide(policy, point, history, point.at)


@SETTINGS
@given(case=cases())
def test_the_count_goes_into_the_bounds_and_stays_there(case: tuple[Policy, Estimate, History]) -> None:
    policy, point, history = case
    decision = answer(policy, point, history)
    assert policy.min_replicas <= decision.replicas_to <= policy.max_replicas
    step = max(policy.scale_up.max_pods, history.desired * policy.scale_up.max_percent // 100)
    if decision.branch != "Bounds":
        assert decision.replicas_to - decision.replicas_from <= step
        assert decision.replicas_from - decision.replicas_to <= policy.scale_down.max_pods


@SETTINGS
@given(
    case=cases(),
    more=st.fixed_dictionaries(
        {},
        optional={
            name: st.integers(0, 20_000)
            for name in ("demand_blocks", "growth_blocks", "queued_requests", "held_requests", "oldest_queue_millis")
        },
    ),
)
def test_more_demand_never_means_fewer_replicas(case: tuple[Policy, Estimate, History], more: dict[str, int]) -> None:
    policy, point, history = case
    # What runs cannot change without the queue and the blocks; a queue has requests.
    assume(point.ready_pods or not more.get("queued_requests"))
    larger = replace(point, **{name: getattr(point, name) + by for name, by in more.items()})
    assert answer(policy, larger, history).replicas_to >= answer(policy, point, history).replicas_to


@SETTINGS
@given(case=cases())
def test_what_runs_keeps_its_pods(case: tuple[Policy, Estimate, History]) -> None:
    """Nothing is taken away below what running requests hold, nor the last pod while anything is in flight."""
    policy, point, history = case
    decision = answer(policy, point, history)
    if decision.direction == "Down" and decision.branch != "Bounds":
        assert point.complete
        assert not point.queue_stands
        assert point.demand_blocks <= decision.replicas_to * point.blocks_per_pod
        assert decision.replicas_to > 0 or point.requests == 0


@SETTINGS
@given(case=cases(), k=st.integers(1, 1000))
def test_larger_blocks_all_over_change_nothing(case: tuple[Policy, Estimate, History], k: int) -> None:
    policy, point, history = case

    def scaled(one: Estimate) -> Estimate:
        names = ("demand_blocks", "load_blocks", "growth_blocks", "blocks_per_pod")
        return replace(one, **{name: k * getattr(one, name) for name in names})

    assume(point.blocks_per_pod > 0)
    plain = answer(policy, point, history)
    many = answer(policy, scaled(point), replace(history, points=tuple(map(scaled, history.points))))
    assert (many.replicas_to, many.branch, many.reason) == (plain.replicas_to, plain.branch, plain.reason)


@SETTINGS
@given(case=cases(), shift=st.integers(-(10**6), 10**6))
def test_equal_inputs_give_equal_decisions_at_any_time(case: tuple[Policy, Estimate, History], shift: int) -> None:
    policy, point, history = case
    decision = answer(policy, point, history)
    assert answer(policy, point, history) == decision
    later = history.__class__(
        history.started_at + shift,
        history.desired,
        tuple(replace(one, at=one.at + shift) for one in history.points),
    )
    moved = answer(policy, replace(point, at=point.at + shift), later)
    assert replace(moved, time=decision.time) == decision


@settings(max_examples=20, deadline=None)
@given(
    replicas=st.integers(1, 8),
    blocks=st.integers(0, 7000),
    running=st.integers(0, 20),
    waiting=st.integers(0, 20),
    before=st.integers(6, 60),
)
def test_a_restart_over_the_same_load_ends_at_the_same_count(
    replicas: int, blocks: int, running: int, waiting: int, before: int
) -> None:
    """And itself takes nothing away: the window is seen anew, then the decisions are those of the former process."""
    policy = Policy(min_replicas=1, max_replicas=12)
    load = spread(blocks, running=running, waiting=waiting, tokens=waiting * 300, oldest_millis=waiting * 300)
    one = Fleet(replicas, policy)
    one.run(10 * before, load)
    two = Fleet(one.state.desired, policy, scaling=one.state.scaling_status)
    two.now = one.now
    two.state = ServiceState(desired=one.state.desired, now=one.now, scaling=one.state.scaling_status)
    changes = two.run(180, load)
    assert not [change for change in changes if change.direction == "Down"]
    one.run(3600, load)
    two.run(3600, load)
    assert two.state.desired == one.state.desired


@settings(max_examples=25, deadline=None)
@given(
    replicas=st.integers(1, 8),
    blocks=st.integers(0, 12_000),
    running=st.integers(0, 20),
    target=st.integers(40, 95),
    gap=st.integers(5, 30),
)
def test_a_constant_demand_comes_to_rest_without_turning(
    replicas: int, blocks: int, running: int, target: int, gap: int
) -> None:
    """Requests come and go at a constant level; the count moves in one direction only, then never again."""
    policy = Policy(
        min_replicas=1,
        max_replicas=20,
        target_utilization_percent=target,
        scale_down=ScaleDown(utilization_percent=target - gap),
    )
    fleet = Fleet(replicas, policy)
    beat = iter(range(10**6))

    def load(of: object, pods: int) -> object:
        return sample(of, min(BLOCKS, round(blocks / pods)), running=running + next(beat) // pods % 2)  # type: ignore[arg-type]

    changes = fleet.run(3600, load)  # type: ignore[arg-type]
    assert len({change.direction for change in changes}) <= 1
    assert not fleet.run(1800, load)  # type: ignore[arg-type]
    assert fleet.decisions[0].time == T0
