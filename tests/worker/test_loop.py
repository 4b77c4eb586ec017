"""The engine loop over the real scheduler, runner and scripted model; only the pipes are queues of this process."""

import time

import numpy as np
import pytest

from octavo_engine.core.speculation import PromptLookup
from octavo_engine.sampling.sampler import NOT_FINITE
from octavo_engine.worker.backends.scripted import build_scripted
from octavo_engine.worker.loop import STEP_FAILED, EngineBrokenError
from tests.worker import harness
from tests.worker.backends import Faulty
from tests.worker.driver import Driver

NAN, RAISE = 250, 251
URI = f"scripted://?eos=0&nan={NAN}&raise={RAISE}"


def engine(uri=URI, **config):
    executable = build_scripted(uri)
    return harness.engine(executable, executable.num_blocks[0], **config)


def prompt_of(seed, length=40):
    return np.random.default_rng(seed).integers(0, 200, length).tolist()


def alone(prompt, count, **settings):
    driver = Driver(build_scripted(URI))
    return driver.generate(driver.live(prompt, **({"seed": 3, "temperature": 0.0} | settings)), count)


@pytest.fixture(params=[1, 2])
def depth(request):
    return request.param


def test_requests_get_the_text_they_would_get_alone(depth):
    with engine(depth=depth) as client:
        lengths = [5, 17, 40, 90, 33, 16, 64, 20, 55, 70, 12, 48]
        for request, length in enumerate(lengths):
            client.submit(request, prompt_of(request, length), max_tokens=10 + request)
        client.wait_finished(*((request, 0) for request in range(len(lengths))))
        for request, length in enumerate(lengths):
            assert client.tokens[request, 0] == alone(prompt_of(request, length), 10 + request)
            assert client.finish[request, 0] == "length"
            assert client.started[request, 0] == 1
        client.until(lambda: client.snapshot.running == 0)
        assert client.snapshot.received == len(lengths)
        assert client.snapshot.blocks_active == 0
        client.scheduler.assert_idle()


def test_choices_are_drawn_each_on_their_own(depth):
    with engine(depth=depth) as client:
        client.submit(1, prompt_of(1), n=3, temperature=1.5)
        client.wait_finished((1, 0), (1, 1), (1, 2))
        for choice in range(3):
            assert client.tokens[1, choice] == alone(prompt_of(1), 10, temperature=1.5, choice=choice)


def test_ended_sequences_leave_nothing_behind(depth):
    with engine(depth=depth) as client:
        for request in range(20):
            client.submit(request, prompt_of(request), n=2)
        client.abort(3)
        client.wait_finished(*((request, choice) for request in range(20) for choice in range(2)))
        client.submit(20, prompt_of(20), max_tokens=1)
        client.wait_finished((20, 0))
        client.submit(21, prompt_of(20), max_tokens=1)
        client.wait_finished((21, 0))
        assert len(client.runner._settings) <= 1


def test_prompt_logprobs_are_told_once_each_by_the_first_choice(depth):
    driver = Driver(build_scripted(URI))
    live = driver.live(prompt_of(1, 100))
    live.scores = True
    driver.generate(live, 1)
    with engine(depth=depth, max_num_batched_tokens=24) as client:
        client.submit(1, prompt_of(1, 100), n=2, prompt_logprobs=0)
        client.submit(2, prompt_of(1, 100))
        client.wait_finished((1, 0), (1, 1), (2, 0))
        assert client.prompt_logprobs[1, 0] == live.prompt_logprobs
        assert len(live.prompt_logprobs) == 99
        assert client.prompt_logprobs[1, 1] == client.prompt_logprobs[2, 0] == []


# --- waiting ----------------------------------------------------------------------------------------------------
def test_an_idle_engine_ticks_and_does_not_spin():
    with engine() as client:
        client.receive()
        before, polls = time.time(), client.pipes.polls
        client.until(lambda: client.snapshot.time > before + 2)
        assert client.steps >= 3  # at least one a second
        assert client.pipes.polls - polls < 20


def test_a_long_step_does_not_stop_the_ticks():
    with engine("scripted://?eos=0&step=1500ms") as client:
        client.submit(1, prompt_of(1), max_tokens=2)
        client.wait_finished((1, 0))
        assert client.steps >= 4
        assert abs(client.snapshot.time - time.time()) < 1


def test_handing_over_a_plan_may_take_long_and_does_not_stop_the_ticks():
    with engine() as client:
        executor = client.loop._executor
        submit = executor.submit

        def slow(plan):
            time.sleep(1.5)
            return submit(plan)

        executor.submit = slow
        before = client.steps
        client.submit(1, prompt_of(1), max_tokens=1)
        client.wait_finished((1, 0))
        assert client.steps - before >= 3


def test_a_message_wakes_an_idle_engine_at_once():
    waits = []
    with engine() as client:
        for request in range(5):
            client.until(lambda: client.snapshot and client.snapshot.running == 0)
            started = time.monotonic()
            client.submit(request, prompt_of(request), max_tokens=1)
            client.wait_finished((request, 0))
            waits.append(time.monotonic() - started)
    assert min(waits) < 0.1  # a tick would have woken it after up to 0.5 s


def test_a_flood_of_long_prompts_does_not_hold_up_a_running_stream():
    with engine(max_model_len=8192, max_queue_requests=400) as client:
        client.submit(0, prompt_of(0), max_tokens=4000)
        client.until(lambda: client.tokens.get((0, 0)))
        for request in range(1, 301):
            client.submit(request, prompt_of(request, 7000), max_tokens=1)
        client.until(lambda: client.snapshot.received > 1)
        before = len(client.tokens[0, 0])
        client.until(lambda: client.snapshot.received == 301)
        assert len(client.tokens[0, 0]) - before >= 5
        client.abort(0)
        for request in range(1, 301):
            client.abort(request)
        client.wait_finished(*((request, 0) for request in range(301)))


# --- speculation ------------------------------------------------------------------------------------------------
REPEATING = [97 + n % 26 for n in range(12)] * 12


class FreeRows(PromptLookup):
    """Prompt lookup on a machine that is never busy with anything else: a step takes 2 ms, whatever it computes."""

    def measured(self, tokens, drafted, seconds):
        super().measured(tokens, drafted, 0.002 if seconds else 0.0)


@pytest.mark.parametrize("temperature", [0.0, 0.3])
def test_speculation_saves_steps_and_changes_nothing(depth, temperature):
    script = ",".join(map(str, REPEATING))
    uri = f"scripted://?script={script}&step=2ms"
    texts, steps = [], []
    for drafts in (None, FreeRows(8)):
        with engine(uri, depth=depth, drafts=drafts) as client:
            for request in (1, 2, 3):
                client.submit(request, prompt_of(request, 20), max_tokens=100, temperature=temperature)
            client.wait_finished((1, 0), (2, 0), (3, 0))
            client.until(lambda: client.snapshot.running == 0)
            texts.append([client.tokens[request, 0] for request in (1, 2, 3)])
            steps.append(client.steps)
            drafted, accepted = client.snapshot.drafted_tokens, client.snapshot.accepted_tokens
            client.scheduler.assert_idle()
    assert texts[0] == texts[1]
    assert steps[1] < 0.6 * steps[0]
    assert 0 < accepted <= drafted


# --- ending -----------------------------------------------------------------------------------------------------
def test_aborts_end_one_choice_or_all_and_unknown_ones_are_no_error(depth):
    with engine("scripted://?eos=0&step=5ms", depth=depth) as client:
        client.submit(1, prompt_of(1), max_tokens=200, n=2)
        client.submit(2, prompt_of(2), max_tokens=40)
        client.until(lambda: len(client.tokens.get((1, 1), ())) > 3)
        client.abort(1, 0)
        client.abort(99)
        client.wait_finished((1, 0))
        assert (1, 1) not in client.finish
        client.abort(1)
        client.abort(1)
        client.wait_finished((1, 1), (2, 0))
        assert [client.finish[key] for key in ((1, 0), (1, 1), (2, 0))] == ["abort", "abort", "length"]
        assert client.tokens[2, 0] == alone(prompt_of(2), 40)


def test_a_step_that_raises_ends_its_requests_and_the_engine_goes_on(depth, caplog):
    with engine(depth=depth, max_num_batched_tokens=20) as client:
        client.submit(1, [*prompt_of(1, 50), RAISE, *prompt_of(2, 10)])
        client.wait_finished((1, 0))
        assert (client.finish[1, 0], client.detail[1, 0]) == ("error", STEP_FAILED)
        client.submit(2, prompt_of(2))
        client.wait_finished((2, 0))
        assert client.tokens[2, 0] == alone(prompt_of(2), 10)
        client.until(lambda: client.snapshot.running == 0)
        client.scheduler.assert_idle()
    assert "sequence 0 at 40+20 in slot 0" in caplog.text


def test_a_backend_that_computes_nothing_any_more_ends_the_loop(depth):
    executable = Faulty(build_scripted(URI))
    with harness.engine(executable, 64, depth=depth) as client:
        client.submit(1, prompt_of(1))
        client.wait_finished((1, 0))
        executable.error = ZeroDivisionError("a kernel's mistake")
        client.submit(2, prompt_of(2))
        with pytest.raises(EngineBrokenError, match="nothing can be computed any more: a kernel's mistake"):
            client.wait_finished((2, 0))


def test_a_row_that_is_not_finite_ends_its_own_request_only(depth):
    with engine(depth=depth) as client:
        client.submit(1, prompt_of(1))
        client.submit(2, [NAN, *prompt_of(2)])
        client.submit(3, prompt_of(3))
        client.wait_finished((1, 0), (2, 0), (3, 0))
        assert (client.finish[2, 0], client.detail[2, 0]) == ("error", NOT_FINITE)
        assert client.tokens[1, 0] == alone(prompt_of(1), 10)
        assert client.tokens[3, 0] == alone(prompt_of(3), 10)


def test_stop_ids_and_min_tokens(depth):
    text = alone(prompt_of(1), 20)
    stop = text[8]
    first = text.index(stop)
    with engine(depth=depth) as client:
        client.submit(1, prompt_of(1), max_tokens=20, stop_token_ids=(stop,))
        client.submit(2, prompt_of(1), max_tokens=20, stop_token_ids=(stop,), min_tokens=first + 3)
        client.wait_finished((1, 0), (2, 0))
        assert (client.tokens[1, 0], client.finish[1, 0]) == (text[: first + 1], "stop")
        assert client.tokens[2, 0][: first + 3].count(stop) == 0


# --- refusals ---------------------------------------------------------------------------------------------------
def test_what_never_fits_and_what_finds_the_queue_full_is_refused():
    with engine("scripted://?eos=0&step=50ms", max_queue_requests=2, max_num_seqs=1) as client:
        client.submit(1, prompt_of(1, 256))
        client.until(lambda: 1 in client.refused)
        assert client.refused[1].reason == "never_fits"
        client.submit(2, prompt_of(2), max_tokens=50)
        client.until(lambda: (2, 0) in client.started)
        for request in (3, 4, 5):
            client.submit(request, prompt_of(request), max_tokens=1)
        client.until(lambda: 5 in client.refused)
        assert client.refused[5].reason == "queue_full"
        client.abort(2)
        client.wait_finished((2, 0), (3, 0), (4, 0))
        assert client.snapshot.received == 5


@pytest.mark.parametrize("prompt", [[5, 9999], [-1], []])
def test_a_prompt_that_is_none_ends_with_an_error_and_harms_nobody(prompt):
    with engine() as client:
        client.submit(1, prompt)
        client.submit(2, prompt_of(2))
        client.wait_finished((1, 0), (2, 0))
        assert client.finish[1, 0] == "error"
        assert client.tokens[2, 0] == alone(prompt_of(2), 10)
