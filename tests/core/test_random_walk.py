"""The whole core at random: everything ends idle, and every survivor's text is what it writes alone."""

import pytest

from tests.core.random_walk import CASES, Case, Figures, Walk, identical_cold_prompts

OPERATIONS = 400
"""Per case and seed: more than 10,000 over all cases."""


def name(case: Case) -> str:
    return "-".join(
        [
            case.policy,
            f"{case.depth} in flight",
            case.allocation,
            *(["drafts"] if case.drafts else []),
            *(["window"] if case.window else []),
            *([] if case.sharing else ["unshared"]),
            *([f"{case.places} host places"] if case.places else []),
        ]
    )


@pytest.mark.parametrize("case", CASES, ids=name)
def test_survivors_write_what_they_write_alone_and_nothing_is_left(case):
    figures = Walk(case, seed=CASES.index(case)).run(OPERATIONS)
    assert figures.survivors > 20
    assert {"submit", "step", "abort", "preempt", "unblock"} <= set(figures.operations)
    assert not case.drafts or 0 < figures.accepted < figures.drafted
    assert not case.sharing or figures.hits > 0
    assert not case.places or figures.loaded > 0
    assert case.depth == 1 or figures.overlapped > 0


def test_the_walk_meets_everything_it_is_there_for():
    figures = Figures()
    for index in (0, 8, 9):
        figures.add(Walk(CASES[index], seed=100 + index).run(OPERATIONS))
    assert set(figures.endings) == {"stop", "length", "abort", "error"}
    assert min(figures.refused, figures.recomputed, figures.held_back, figures.scored, figures.grammars) > 0
    assert figures.pooled > 0
    assert figures.preemptions > figures.forced > 0


def test_64_identical_cold_prompts_compute_once_on_the_real_runner():
    assert identical_cold_prompts() <= 512 + 64 * 16
