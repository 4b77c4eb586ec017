"""The simulation behind the acceptance line on prefix routing, on a trace made here: small, with conversations."""

from __future__ import annotations

from random import Random

import pytest

from tests.acceptance.prefix_routing import POLICIES, SICK, sick_share
from tests.acceptance.prefix_simulation import BLOCK_TOKENS, Arrival, Scenario, Simulation, one_cache, spread


def conversations(seed: int, count: int = 160) -> list[Arrival]:
    """Return arrivals of conversations that grow turn by turn, in ticks of three seconds."""
    draw = Random(seed)
    arrivals = []
    for conversation in range(count):
        begun = draw.uniform(0, 240)
        turns = draw.randint(1, 5)
        for turn in range(turns):
            blocks = tuple(b"%d %d" % (conversation, block) for block in range(6 * (turn + 1)))
            at = 3.0 * round((begun + 20 * turn) / 3)
            arrivals.append((at, len(blocks) * BLOCK_TOKENS + 7, draw.randint(50, 600), blocks))
    arrivals.sort(key=lambda arrival: arrival[0])
    return [Arrival(at, number, prompt, output, blocks) for number, (at, prompt, output, blocks) in enumerate(arrivals)]


def test_prefixes_are_found_nearly_as_in_one_cache_and_least_load_finds_few() -> None:
    arrivals = spread(conversations(1), None)
    best = one_cache(Scenario("8 pods"), arrivals)
    aware = Simulation(Scenario("8 pods"), POLICIES["PrefixAware"], arrivals).run()
    least = Simulation(Scenario("8 pods"), POLICIES["LeastLoad"], arrivals).run()
    assert aware.hit_tokens > 0.9 * best
    assert least.hit_tokens < 0.5 * best
    assert aware.prompt_tokens == least.prompt_tokens == sum(arrival.prompt for arrival in arrivals)


def test_old_metrics_change_nothing_for_a_picker_that_is_alone() -> None:
    arrivals = conversations(2)
    fresh = Simulation(Scenario("fresh"), POLICIES["PrefixAware"], arrivals).run()
    old = Simulation(Scenario("old", metrics_age=5.0), POLICIES["PrefixAware"], arrivals).run()
    assert (fresh.hit_tokens, fresh.picks) == (old.hit_tokens, old.picks)


def test_pickers_that_tell_each_other_find_what_the_other_sent() -> None:
    arrivals = spread(conversations(3), None)
    alone = Simulation(Scenario("two", pickers=2), POLICIES["PrefixAware"], arrivals).run()
    told = Simulation(Scenario("two", pickers=2, news=0.1), POLICIES["PrefixAware"], arrivals).run()
    assert told.hit_tokens > 1.2 * alone.hit_tokens


def test_all_that_was_begun_has_ended_everywhere() -> None:
    simulation = Simulation(
        Scenario("two", pickers=2, news=0.1, changes=((60.0, 9), (120.0, 7))), POLICIES["PrefixAware"], conversations(4)
    )
    simulation.run()
    assert [len(fleet.in_flight) for fleet in simulation.fleets] == [0, 0]
    assert all(pod.in_flight == pod.generated_blocks == 0 for pod in simulation.pods.values())
    late = {index for at, index in simulation.result.picks if at > 121}
    assert late <= set(range(7))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("scenario", SICK, ids=lambda scenario: scenario.name)
def test_b58_a_sick_pod_attracts_no_traffic(scenario: Scenario, policy: str) -> None:
    arrivals = conversations(5)
    allowed = 3 + 7 if scenario.failing else 0  # three failures, and a try after 2, 4, 8 … 128 seconds out
    assert sick_share(scenario, policy, arrivals) * len(arrivals) / scenario.pods <= allowed
