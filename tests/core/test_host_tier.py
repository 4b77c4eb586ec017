"""The host tier: what is kept, in which order it is given up, and how the cache moves blocks to it and back."""

import pytest

from octavo_engine.core.config import CacheGroup, Request, SchedulerConfig
from octavo_engine.core.host_tier import NOWHERE, HostTier
from octavo_engine.core.scheduler import Scheduler
from octavo_engine.core.step import BlockTransfer, RowResult, StepPlan, StepResult
from octavo_engine.core.stop import StopRule

BLOCK = 4


def digest(n: int) -> bytes:
    return n.to_bytes(16, "big")


def turn(n: int) -> tuple[int, float, int]:
    return 0, float(n), n


def saved(tier: HostTier, *numbers: int) -> list[int]:
    return [tier.save(digest(n)) for n in numbers]


def findable(tier: HostTier, *numbers: int) -> list[int]:
    return [n for n in numbers if tier.find(digest(n)) != NOWHERE]


def test_the_first_saved_is_the_first_given_up():
    tier = HostTier(2)
    assert saved(tier, 1, 2, 3) == [0, 1, 0]
    assert findable(tier, 1, 2, 3) == [2, 3]
    assert (tier.num_used, tier.saved_blocks) == (2, 3)
    tier.check()


def test_what_is_there_is_not_written_again_and_stays_longest():
    tier = HostTier(2)
    assert saved(tier, 1, 2, 1, 3) == [0, 1, NOWHERE, 1]
    assert findable(tier, 1, 2, 3) == [1, 3]


def test_what_was_loaded_is_the_next_given_up_and_found_until_then():
    tier = HostTier(3)
    saved(tier, 1, 2, 3)
    assert tier.hold([digest(2), digest(3)]) == [1, 2]
    tier.loaded([digest(2), digest(3)])
    assert findable(tier, 1, 2, 3) == [1, 2, 3]
    # The tail of a prefix goes first: without it the rest is still worth something.
    assert saved(tier, 4, 5) == [2, 1]
    assert findable(tier, 1, 2, 3) == [1]
    assert tier.loaded_blocks == 2


def test_what_is_held_is_not_overwritten():
    tier = HostTier(1)
    saved(tier, 1)
    tier.hold([digest(1)])
    assert tier.save(digest(2)) == NOWHERE
    tier.loaded([digest(1)])
    assert tier.save(digest(2)) == 0
    tier.check()


def test_what_a_waiting_sequence_will_ask_for_outlasts_the_rest():
    tier = HostTier(2)
    saved(tier, 1, 2)
    tier.expect([digest(1), digest(9)], turn(5))
    assert saved(tier, 3, 4) == [1, 1]
    assert findable(tier, 1, 2, 3, 4) == [1, 4]
    assert saved(tier, 9) == [1]
    assert saved(tier, 5) == [NOWHERE], "nobody waits for it"
    tier.expect_no_more([digest(1), digest(9)], turn(5))
    assert saved(tier, 6) == [0]
    tier.check()


def test_what_is_asked_for_last_is_given_up_for_what_is_asked_for_sooner():
    tier = HostTier(2)
    for n in (1, 2, 3, 4):
        tier.expect([digest(n)], turn(n))
    assert saved(tier, 2, 3) == [0, 1]
    assert saved(tier, 4) == [NOWHERE]
    assert saved(tier, 1) == [1]
    assert findable(tier, 1, 2, 3, 4) == [1, 2]
    # The first one's turn has come; somebody else will ask for it, later than for all others.
    tier.expect([digest(1)], turn(9))
    tier.expect_no_more([digest(1)], turn(1))
    assert saved(tier, 3) == [1]
    assert findable(tier, 1, 2, 3, 4) == [2, 3]


def test_several_may_wait_for_the_same():
    tier = HostTier(1)
    tier.expect([digest(1)], turn(1))
    tier.expect([digest(1)], turn(2))
    saved(tier, 1)
    tier.expect_no_more([digest(1)], turn(1))
    assert saved(tier, 2) == [NOWHERE]
    tier.expect_no_more([digest(1)], turn(2))
    assert saved(tier, 2) == [0]


# --- The scheduler over it ----------------------------------------------------------------------------------------
def scheduler(num_blocks: int = 4, places: int = 4, window: int = 0, **changes: object) -> Scheduler:
    values = {
        "groups": (CacheGroup(num_blocks, window, places),),
        "max_model_len": num_blocks * BLOCK,
        "block_size": BLOCK,
        "max_num_seqs": 2,
        "max_num_batched_tokens": 64,
        "watermark": 0.0,
        "max_plans_in_flight": 1,
    }
    return Scheduler(SchedulerConfig(**(values | changes)))  # type: ignore[arg-type]


def prompt(first: int, length: int) -> tuple[int, ...]:
    return tuple(range(first, first + length))


def ended(core: Scheduler, sequence: int, tokens: tuple[int, ...]) -> StepPlan:
    """Let a sequence write one token after its prompt; return its plan."""
    assert core.submit(Request((sequence,), tokens, StopRule(1, ignore_eos=True), arrival=float(sequence))) is None
    plan = core.schedule()
    assert plan is not None
    core.commit(plan, StepResult(plan.number, tuple(RowResult((7,)) for _ in plan.rows)))
    return plan


def test_evicted_blocks_are_saved_and_a_hit_loads_them():
    core, first, second = scheduler(), prompt(100, 13), prompt(200, 13)
    assert ended(core, 1, first).transfers == ()
    evicting = ended(core, 2, second)
    assert evicting.transfers == (
        BlockTransfer(0, 2, 0, True),
        BlockTransfer(0, 1, 1, True),
        BlockTransfer(0, 0, 2, True),
    )
    plan = ended(core, 3, first)
    assert plan.rows[0].start == 12, "three blocks are hits"
    blocks = plan.admitted[0].blocks[0]
    assert [move for move in plan.transfers if not move.saves] == [
        BlockTransfer(0, block, place, False) for block, place in zip(blocks[:3], (2, 1, 0), strict=True)
    ]
    moved = [(move.block, move.saves) for move in plan.transfers]
    overwritten = [block for block in blocks[:3] if (block, True) in moved]
    assert overwritten
    assert all(moved.index((block, True)) < moved.index((block, False)) for block in overwritten)
    core.assert_idle()


def test_blocks_that_were_loaded_are_shared_by_whoever_comes_next():
    core, first = scheduler(num_blocks=8), prompt(100, 9)
    ended(core, 1, first)
    ended(core, 2, prompt(200, 29))
    for sequence in (3, 4):
        core.submit(Request((sequence,), first, StopRule(2, ignore_eos=True), arrival=float(sequence)))
    plan = core.schedule()
    assert plan is not None
    assert [row.start for row in plan.rows] == [8, 8]
    one, other = (admission.blocks[0][:2] for admission in plan.admitted)
    assert one == other
    assert sum(not move.saves for move in plan.transfers) == 2


def test_a_hit_in_host_memory_needs_blocks_of_the_cache():
    core, first = scheduler(num_blocks=4), prompt(100, 13)
    ended(core, 1, first)
    ended(core, 2, prompt(200, 13))
    core.submit(Request((3,), prompt(300, 8), StopRule(4, ignore_eos=True), arrival=3.0))
    core.submit(Request((4,), first, StopRule(1, ignore_eos=True), arrival=4.0))
    plan = core.schedule()
    assert plan is not None
    assert [admission.sequence for admission in plan.admitted] == [3], "two blocks are left, four are needed"


def test_totals_are_told():
    core = scheduler()
    for sequence, first in enumerate((100, 200, 100)):
        ended(core, sequence, prompt(first, 13))
    now = core.snapshot(0.0)
    assert (now.host_places, now.host_saved_blocks, now.host_loaded_blocks) == (4, 6, 3)
    assert now.host_blocks == 4


@pytest.mark.parametrize("changes", [{"kv_allocation": "contiguous"}, {"prefix_sharing": False}])
def test_a_tier_that_nothing_could_hit_is_refused(changes):
    with pytest.raises(ValueError, match="--kv-offload-memory"):
        scheduler(**changes)
