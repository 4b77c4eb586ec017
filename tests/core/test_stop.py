"""Token-level stops: EOS, stop ids, lengths, and which of them wins."""

import pytest

from octavo_engine.core.step import RowResult, StepResult
from octavo_engine.core.stop import Stop, StopRule, check_stop
from tests.core.drive import EOS, Drive, continuation, next_token

A, B = 5, 6


@pytest.mark.parametrize(
    ("rule", "token", "generated", "total", "expected"),
    [
        (StopRule(10), A, 1, 11, None),
        (StopRule(10), EOS, 1, 11, Stop("stop")),
        (StopRule(10, ignore_eos=True), EOS, 1, 11, None),
        (StopRule(10, ignore_eos=True, stop_token_ids=(EOS,)), EOS, 1, 11, Stop("stop", EOS)),
        (StopRule(10, stop_token_ids=(A,)), A, 1, 11, Stop("stop", A)),
        (StopRule(10, stop_token_ids=(A,)), B, 1, 11, None),
        (StopRule(10, min_tokens=3), EOS, 2, 12, None),
        (StopRule(10, min_tokens=3), EOS, 3, 13, Stop("stop")),
        (StopRule(10, min_tokens=3, stop_token_ids=(A,)), A, 2, 12, None),
        (StopRule(10), A, 10, 20, Stop("length")),
        (StopRule(10), EOS, 10, 20, Stop("stop")),
        (StopRule(10, stop_token_ids=(A,)), A, 10, 20, Stop("stop", A)),
        (StopRule(100), A, 30, 64, Stop("length")),
        (StopRule(100), EOS, 30, 64, Stop("stop")),
        (StopRule(100, min_tokens=50), EOS, 30, 64, Stop("length")),
        (StopRule(100), A, 30, 63, None),
    ],
)
def test_which_token_ends_a_sequence(rule, token, generated, total, expected):
    assert check_stop(rule, (EOS,), token, generated, total, 64) == expected


@pytest.mark.parametrize("depth", [1, 2])
def test_the_stop_token_is_the_last_one_told_and_nothing_follows_it(depth):
    prompt = (1, 2, 3)
    text = continuation(prompt, 6)
    drive = Drive(max_plans_in_flight=depth)
    sequence = drive.submit(prompt, stop=StopRule(20, stop_token_ids=(text[3],)))
    drive.finish(depth)
    end = text.index(text[3]) + 1
    assert drive.text(sequence) == text[:end]
    assert (drive.end(sequence).finish, drive.end(sequence).stop_reason) == ("stop", text[3])


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(("prompt", "max_tokens", "written"), [(3, 5, 5), (60, 50, 4), (63, 50, 1), (3, 1, 1)])
def test_lengths_end_a_sequence_exactly(depth, prompt, max_tokens, written):
    drive = Drive(max_plans_in_flight=depth)
    sequence = drive.submit(range(prompt), max_tokens)
    drive.finish(depth)
    assert drive.text(sequence) == continuation(range(prompt), written)
    assert drive.end(sequence).finish == "length"


@pytest.mark.parametrize("depth", [1, 2])
def test_no_step_is_planned_past_a_length(depth):
    drive = Drive(max_plans_in_flight=depth)
    drive.submit(range(5), 3)
    drive.finish(depth)
    assert len(drive.plans) == 3


def test_eos_inside_accepted_drafts_ends_the_sequence_there():
    prompt = (1, 2, 3)
    text = continuation(prompt, 4)

    def writes(tokens):
        return EOS if len(tokens) == 5 else next_token(tokens)

    drive = Drive(propose=lambda tokens: [text[1], EOS, 3, 4] if len(tokens) == 4 else (), writes=writes)
    sequence = drive.submit(prompt, 20)
    drive.finish()
    assert drive.text(sequence) == (text[0], text[1], EOS)
    assert drive.end(sequence).finish == "stop"


@pytest.mark.parametrize(("max_tokens", "count"), [(20, 3), (3, 3), (2, 2)])
def test_a_complete_text_is_a_stop_even_on_the_last_permitted_token(max_tokens, count):
    drive = Drive()
    sequence = drive.submit(range(4), max_tokens)
    for _ in range(count):
        plan = drive.scheduler.schedule()
        done = len(drive.text(sequence)) == 2
        result = StepResult(plan.number, (RowResult((7,), complete=done),))
        drive.events += drive.scheduler.commit(plan, result)
    assert drive.text(sequence) == (7,) * count
    assert drive.end(sequence).finish == ("stop" if count == 3 else "length")
    drive.scheduler.assert_idle()


def test_a_stop_token_before_the_text_was_complete_ends_it_there():
    drive = Drive()
    sequence = drive.submit(range(4), stop=StopRule(20, stop_token_ids=(8,)))
    plan = drive.scheduler.schedule()
    drive.events += drive.scheduler.commit(plan, StepResult(plan.number, (RowResult((8, 9), complete=True),)))
    assert drive.text(sequence) == (8,)
    assert drive.end(sequence).stop_reason == 8
