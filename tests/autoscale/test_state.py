"""The autoscaler over time: hysteresis, restart, stale samples, what status says, and what must never happen."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_operator.autoscale import Held, Pod, PodSample, PodState, Policy, ServiceState, SteadyClock

from .fleet import BLOCKS, POLICY, T0, Fleet, pod, sample, spread


def test_noise_of_two_percent_around_either_threshold_makes_at_most_one_change_an_hour() -> None:
    for level in (2400, 1800, 800, 600):
        for seed in range(5):
            noise = random.Random(seed)
            fleet = Fleet(3)
            fleet.state.learned = replace(fleet.state.learned, cold_start_p50=120.0, cold_start_p90=180.0)
            changes = fleet.run(
                3600,
                lambda of, n, level=level, noise=noise: spread(
                    level * noise.uniform(0.98, 1.02), running=noise.randint(9, 11)
                )(of, n),
            )
            settled = [change for change in changes if change.time >= T0 + 180 + 60 * 3]
            assert len(settled) <= 1, [(c.replicas_from, c.replicas_to, c.reason) for c in settled]
            assert len({change.direction for change in changes}) <= 1


def test_load_takes_the_fleet_up_at_once_and_its_end_takes_it_down_one_by_one_to_zero() -> None:
    fleet = Fleet(1)
    fleet.run(60, spread(100))
    up = fleet.run(60, lambda of, n: sample(of, 950, running=20, waiting=30 // n, tokens=4000, oldest_millis=12_000))
    assert up[0].time == T0 + 60
    assert up[-1].replicas_to == 8
    down = fleet.run(1800, spread(0, running=0))
    assert [change.replicas_to for change in down] == [7, 6, 5, 4, 3, 2, 1, 0]
    assert all(later.time - former.time >= 60 for former, later in pairwise(down))
    assert down[0].time - up[-1].time >= 180
    assert (down[-2].branch, down[-1].branch) == ("Demand", "Idle")


def test_a_loop_that_stands_still_counts_as_no_data() -> None:
    """KV at 0.9, stuck: the collector refuses the sample, the last good one ages out, and the count is held."""
    fleet = Fleet(2)
    fleet.run(600, spread(1000, running=8))
    assert not fleet.run(3600, lambda of, n: "the engine's loop has stood still for 600 s")
    assert fleet.decisions[-1].branch == "MissingMetrics"
    assert fleet.state.desired == 2


@pytest.mark.parametrize("dark", [6, 5, 4, 1])
def test_silent_pods_freeze_the_count_and_never_shrink_it(dark: int) -> None:
    fleet = Fleet(6)
    fleet.run(600, spread(3000, running=9))
    count = fleet.state.desired
    silent = {f"uid-{number}" for number in range(dark)}
    assert not fleet.run(1800, lambda of, n: "TimeoutError" if of.uid in silent else sample(of, 10, running=1))
    assert fleet.state.desired == count == 6


def test_a_pod_that_is_gone_leaves_no_sample_behind() -> None:
    state = ServiceState(desired=2, now=T0)
    a, b = pod("a"), pod("b")
    state.observe([sample(a, 900, running=9), sample(b)], [a, b], T0)
    state.observe([], [replace(a, state=PodState.TERMINATING), b], T0 + 10)
    assert set(state.samples) == {b.uid}


def test_lost_scrapes_do_not_freeze_a_fleet() -> None:
    loss = random.Random(7)
    fleet = Fleet(4, replace(POLICY, min_replicas=1))
    fleet.run(1800, lambda of, n: "TimeoutError" if loss.random() < 0.2 else sample(of, 5, running=1))
    assert fleet.state.desired == 1


def test_a_restart_at_eight_replicas_causes_no_change_of_its_own() -> None:
    before = Fleet(8)
    before.run(3600, spread(4500, running=40))
    assert before.state.desired == 8
    after = Fleet(8, scaling=before.state.scaling_status)
    status = dict(after.state.scaling_status)
    assert not after.run(3600, spread(4500, running=40))
    assert after.state.scaling_status == status, "a restart alone writes nothing"


@pytest.mark.parametrize(
    ("scaling", "desired"),
    [
        ({"desiredReplicas": 2}, 2),  # the last leader's victim goes on
        ({"desiredReplicas": 3}, 3),  # a mark that no decision explains is taken back
        ({"desiredReplicas": 1}, 2),  # left from an earlier time
        ({"desiredReplicas": 8}, 3),
        ({}, 3),  # status lost: the live count
    ],
)
def test_a_restart_while_a_victim_finishes_neither_saves_nor_takes_another(
    scaling: dict[str, int], desired: int
) -> None:
    state = ServiceState(desired=3, now=T0, scaling=scaling)
    pods = [pod("a"), pod("b"), pod("c", cordoned=True, cordoned_at=T0 - 20)]
    scrapes = {one.uid: sample(one, 100, running=2) for one in pods}
    state.advance(POLICY, pods, scrapes, Held(), T0)
    assert state.desired == desired


def test_a_restart_while_idle_waits_for_a_full_window() -> None:
    fleet = Fleet(8)
    assert fleet.run(600, spread(0, running=0))[0].time >= T0 + 180


def test_an_idle_service_writes_no_status() -> None:
    fleet = Fleet(2, replace(POLICY, min_replicas=2))
    fleet.run(600, spread(0, running=0))
    written = fleet.state.scaling_status
    for _ in range(60):
        fleet.period(spread(0, running=0))
        assert fleet.state.scaling_status == written


def test_the_status_keeps_both_changes_of_a_load_that_came_and_went() -> None:
    fleet = Fleet(1, replace(POLICY, min_replicas=1, max_replicas=2))
    fleet.run(60, spread(100))
    fleet.run(300, spread(1100, running=8))
    fleet.run(900, spread(0, running=0))
    history = fleet.state.scaling_status["history"]
    assert len(history) <= 5
    assert [(r["from"], r["to"]) for r in history if r["direction"] != "Hold"] == [(1, 2), (2, 1)]
    assert not any(a["direction"] == b["direction"] == "Hold" for a, b in pairwise(history))
    assert fleet.state.scaling_status["lastDecision"] == history[-1]
    assert fleet.state.scaling_status["learned"]["blocksPerPod"] == BLOCKS


def test_a_dry_run_leaves_the_count_and_records_its_proposal_once() -> None:
    fleet = Fleet(3, replace(POLICY, dry_run=True))
    fleet.run(900, spread(0, running=0))
    assert fleet.state.desired == 3
    proposals = [decision for decision in fleet.state.decisions if decision.limited_by == "DryRun"]
    assert [(one.replicas_from, one.replicas_to) for one in proposals] == [(3, 2)]


def test_the_memory_is_bounded() -> None:
    fleet = Fleet(1, replace(POLICY, min_replicas=1))
    fleet.run(3 * 3600, spread(100))
    assert 360 <= len(fleet.state.moments) <= 362
    assert fleet.state.decisions.maxlen == 200


def test_an_idle_time_beyond_the_hour_is_still_reached() -> None:
    fleet = Fleet(1, replace(POLICY, idle_seconds=7200))
    changes = fleet.run(7400, spread(0, running=0))
    assert [(change.time - T0, change.replicas_to) for change in changes] == [(7200, 0)]


def test_cold_starts_are_learned_from_first_starts_only() -> None:
    state = ServiceState(desired=1, now=T0)

    def period(now: float, *pods: Pod) -> None:
        state.advance(POLICY, pods, {}, Held(), now)

    born = pod("a", PodState.STARTING, created_at=T0)
    up = replace(born, state=PodState.READY, ready_at=T0 + 42)
    period(T0, born, pod("old"))
    period(T0 + 50, up, pod("old", ready_at=T0 - 5000))
    assert state.learned.cold_starts == (42.0,)
    assert (state.learned.cold_start_p50, state.learned.cold_start_p90) == (42.0, 42.0)
    period(T0 + 60, replace(up, state=PodState.STARTING, ready_at=None, not_ready_since=T0 + 55))
    period(T0 + 70, replace(up, ready_at=T0 + 65))
    assert state.learned.cold_starts == (42.0,)
    assert state.scaling_status["learned"] == {"coldStartP50Seconds": 42, "coldStartP90Seconds": 42}
    restored = ServiceState(desired=1, now=T0, scaling=state.scaling_status)
    assert restored.learned.cold_start_p90 == 42


def test_the_clock_follows_the_monotonic_one() -> None:
    times = iter([T0, 5.0, 15.0])
    clock = SteadyClock(wall=lambda: next(times), monotonic=lambda: next(times))
    assert clock() == T0 + 10


# --- What must never happen, whatever the load -------------------------------------------------------------------
@st.composite
def _periods(draw: st.DrawFn) -> list[tuple[int, int, int, int]]:
    """Stretches of (periods, blocks per pod, waiting per pod, silent percent)."""
    stretch = st.tuples(
        st.integers(1, 40), st.integers(0, BLOCKS), st.integers(0, 30), st.sampled_from([0, 0, 0, 20, 60, 100])
    )
    return draw(st.lists(stretch, min_size=1, max_size=8))


@settings(max_examples=60, deadline=None)
@given(
    stretches=_periods(),
    start=st.integers(0, 10),
    bounds=st.tuples(st.integers(0, 3), st.integers(3, 9)),
    seed=st.integers(0, 1000),
)
def test_whatever_the_load(
    stretches: list[tuple[int, int, int, int]], start: int, bounds: tuple[int, int], seed: int
) -> None:
    policy = Policy(min_replicas=bounds[0], max_replicas=bounds[1])
    chance = random.Random(seed)
    fleet = Fleet(start, policy)
    complete: list[bool] = []
    for periods, blocks, waiting, silent in stretches:

        def load(
            of: Pod, _: int, blocks: int = blocks, waiting: int = waiting, silent: int = silent
        ) -> PodSample | str:
            if chance.random() * 100 < silent:
                return "TimeoutError"
            active = max(0, min(BLOCKS, blocks + chance.randint(-20, 20)))
            return sample(
                of, active, running=active // 50, waiting=waiting, tokens=waiting * 100, oldest_millis=waiting * 500
            )

        for _ in range(periods):
            fleet.period(load, Held(1, 5) if fleet.state.desired == 0 and chance.random() < 0.1 else Held())
            complete.append(fleet.state.moments[-1].estimate.complete)
    window = policy.scale_down.stabilization_seconds // 10
    last_up: float | None = None
    for index, decision in enumerate(fleet.decisions):
        assert policy.min_replicas <= decision.desired <= policy.max_replicas
        if decision.branch == "Bounds":
            continue
        if decision.direction == "Up":
            last_up = decision.time
        if decision.direction == "Down":
            assert index >= window, "before a full window was seen"
            assert all(complete[max(0, index - window) : index + 1]), "on partial data"
            assert last_up is None or decision.time - last_up >= 180, "both directions within a window"
            assert decision.replicas_from - decision.replicas_to == 1
        assert not (decision.direction == "Up" and decision.inputs.reporting_pods == 0 and decision.branch == "Demand")
