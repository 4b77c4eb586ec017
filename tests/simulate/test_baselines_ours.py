"""Octavo's autoscaler behind the simulator's interface: the same decisions as the operator's own state makes."""

from __future__ import annotations

from octavo_operator.autoscale import Held, KVBlocks, Policy, Queue, ServiceState
from octavo_operator.autoscale import PodSample as Scraped
from octavo_operator.autoscale.types import PodState
from octavo_operator.simulate.baselines.ours import Octavo
from octavo_operator.simulate.policy import FleetSample, Wanted

from .baselines_fleet import BLOCKS, fleet, last, metrics, pod

POLICY = Policy(min_replicas=0, max_replicas=8)


def steady(at: float, kv: float, pods: int, running: int = 1) -> FleetSample:
    """So many ready pods that hold this share of their blocks."""
    return fleet(at, [metrics(kv, at=at, running=running)] * pods)


def test_it_decides_as_the_operators_state_does() -> None:
    octavo, state = Octavo(POLICY), ServiceState(desired=2, now=0)
    shares = [0.3, 0.5, 0.7, 0.9, 0.95, 0.9, 0.6, 0.4] + [0.2] * 40
    for step, kv in enumerate(shares):
        at = 10.0 * step
        sample = steady(at, kv, 2, running=1 + step % 3)
        active = round(kv * BLOCKS)
        scraped = {
            pod.pod.uid: Scraped(pod.pod.uid, at, KVBlocks(active, 0, BLOCKS - active), Queue(1 + step % 3, 0, 0, 0))
            for pod in sample.pods
        }
        decision = state.advance(POLICY, [pod.pod for pod in sample.pods], scraped, Held(), at)
        assert octavo.desired(sample) == Wanted(decision.desired, decision.reason)
        assert octavo.last == decision
    assert octavo.learned == state.learned
    assert octavo.samples == state.samples


def test_it_grows_at_once_and_wakes_for_a_held_request() -> None:
    octavo = Octavo(POLICY)
    octavo.desired(steady(0, 0.5, 2))
    assert octavo.desired(steady(10, 1.0, 2, running=9)).replicas == 3
    octavo = Octavo(POLICY)
    assert octavo.desired(fleet(0, [])) == Wanted(0, "ScaledToZero")
    assert octavo.desired(fleet(3, [], held=1, held_blocks=4)).replicas == 1


def test_a_lost_scrape_is_a_failure_and_the_last_sample_stands_in_for_30_s() -> None:
    octavo = Octavo(POLICY)
    octavo.desired(steady(0, 0.5, 1))
    old = metrics(0.5, at=0, running=1)
    for at in (10, 20, 30):
        octavo.desired(fleet(at, [], others=[pod("ready-0", PodState.READY, old, age_seconds=at)]))
        assert set(octavo.samples) == {"uid-ready-0"}
    octavo.desired(fleet(40, [], others=[pod("ready-0", PodState.READY, old, age_seconds=40)]))
    assert not octavo.samples
    assert octavo.last is not None
    assert octavo.last.branch == "MissingMetrics"


def test_ghosts_are_no_pods() -> None:
    octavo = Octavo(POLICY)
    ghost = pod("ghost", PodState.READY, metrics(1.0, running=50), ghost=True)
    octavo.desired(fleet(0, [metrics(0.2, running=1)], others=[ghost]))
    assert octavo.last is not None
    assert octavo.last.inputs.ready_pods == 1
    assert octavo.last.inputs.demand_blocks == 200


def test_a_restart_keeps_what_status_keeps_and_takes_nothing_away_before_a_window_was_seen() -> None:
    octavo = Octavo(POLICY)
    last(octavo, [steady(at, 0.2, 3) for at in range(0, 100, 10)])
    again = octavo.restarted()
    assert last(again, [steady(at, 0.2, 3) for at in range(100, 280, 10)]).replicas == 3
    assert again.learned.total_blocks == BLOCKS
    assert again.desired(steady(280, 0.2, 3)).replicas == 2


def test_equal_samples_give_equal_answers() -> None:
    samples = [steady(10.0 * step, (step % 12) / 12, 1 + step % 3, running=step % 5) for step in range(120)]
    first, second = Octavo(POLICY), Octavo(POLICY)
    assert [first.desired(sample) for sample in samples] == [second.desired(sample) for sample in samples]
