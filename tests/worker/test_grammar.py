"""Requests with a grammar through the engine's loop: what they write, in any company, and what their faults cost."""

import itertools
import json
import re
import threading

import numpy as np
import pytest
from llguidance import LLParserLimits

from octavo_engine.core.step import RowResult
from octavo_engine.ipc.scores import read_scores
from octavo_engine.ipc.vocabulary import Vocabulary, read_vocabulary, write_vocabulary
from octavo_engine.server.grammar import serialised
from octavo_engine.server.protocol.constraints import read_choice, read_grammar, read_regex, read_schema
from octavo_engine.worker import grammar_compiler
from octavo_engine.worker.backends.scripted import build_scripted
from octavo_engine.worker.grammar_compiler import GrammarCompiler
from tests.core.drive import Guesses
from tests.worker import harness
from tests.worker.backends import BACKENDS
from tests.worker.driver import Driver

EOS = 256
PIECES = [b'{"', b'": ', b'", "', b'"}', b'": "', b"name", b"na", b"age", b'"name": "', b"true", b"12", b" ", b"\n  "]
WORDS = [bytes([first, second]) for first in b"aeiou" for second in b"bcdfgst"]
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 999}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
CODE = r"[a-c]{3}-[0-9]{2,4}(;[d-f]+)?"


def tokens():
    data = [*(bytes([byte]) for byte in range(256)), b"<|end|>", b"<|a|>", b"<|b|>", *PIECES, *WORDS]
    return Vocabulary(data, (256, 257, 258))


BYTES = tokens().tokens


def engine(backend="scripted", blocks=512, **config):
    return harness.engine(BACKENDS[backend](), blocks, **({"tokens": tokens} | config))


def text_of(ids):
    return b"".join(b"" if token in (256, 257, 258) else BYTES[token] for token in ids).decode()


def schema(value):
    return serialised(read_schema(value))


def regex(value):
    return serialised(read_regex(value))


def prompt_of(seed, length=40):
    return np.random.default_rng(seed).integers(0, 200, length).tolist()


GRAMMARS = [
    regex(CODE),
    schema(PERSON),
    serialised(read_choice(["yes", "yes, but", "no"])),
    "",
    serialised(read_grammar('root ::= "(" root ")" | "x" | root2\nroot2 ::= [ab] root2 | "!"')),
    schema({"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 5}),
]


def submit_all(client):
    for request, grammar in enumerate(GRAMMARS * 2):
        sampling = {"temperature": 1.0} if request % 3 else {"repetition_penalty": 1.1, "logprobs": 1}
        client.submit(
            request, prompt_of(request, 20 + 3 * request), max_tokens=40, n=1 + request % 2, grammar=grammar, **sampling
        )


KEYS = [(request, choice) for request in range(2 * len(GRAMMARS)) for choice in range(1 + request % 2)]


@pytest.fixture(scope="module", params=["scripted", "cpu, float32"])
def backend(request):
    return request.param


@pytest.fixture(scope="module")
def quiet(backend):
    """What each of the requests gets when nobody else is there."""
    tokens_of, finish, logprobs = {}, {}, {}
    for wanted in range(2 * len(GRAMMARS)):
        with engine(backend) as client:
            client.pipes, pipes = harness.Pipes(), client.pipes
            submit_all(client)
            messages = [client.pipes.down.get_nowait() for _ in range(2 * len(GRAMMARS))]
            client.pipes = pipes
            pipes.down.put(next(message for message in messages if message.request == wanted))
            keys = [key for key in KEYS if key[0] == wanted]
            client.wait_finished(*keys)
            for key in keys:
                tokens_of[key], finish[key], logprobs[key] = (
                    client.tokens[key],
                    client.finish[key],
                    client.logprobs[key],
                )
    return tokens_of, finish, logprobs


def require_same(client, quiet):
    client.wait_finished(*KEYS)
    assert not {key: detail for key, detail in client.detail.items() if detail}
    for key in KEYS:
        assert (client.tokens[key], client.finish[key], client.logprobs[key]) == tuple(told[key] for told in quiet)
    # A plan behind the one that ended the last of them may still be computed.
    client.until(lambda: not client.scheduler.has_work)
    client.scheduler.assert_idle()


def test_what_is_written_is_what_the_grammar_describes(backend, quiet):
    tokens_of, finish, _ = quiet
    ended = 0
    for (request, choice), ids in tokens_of.items():
        kind = request % len(GRAMMARS)
        if finish[request, choice] == "length" or not GRAMMARS[kind]:
            continue
        text = text_of(ids)
        ended += 1
        if kind == 0:
            assert re.fullmatch(CODE, text)
        elif kind == 1:
            person = json.loads(text)
            assert list(person) == ["name", "age"]
            assert len(person["name"]) <= 12
            assert person["age"] <= 999
        elif kind == 2:
            assert text in ("yes", "yes, but", "no")
        elif kind == 4:
            assert re.fullmatch(r"(\(*)([ab]*!|x)\)*", text)
            assert text.count("(") == text.count(")")
        elif kind == 5:
            assert 2 <= len(json.loads(text)) <= 5
    assert ended > len(tokens_of) / 3
    if backend == "scripted":
        assert all(finish[key] == "stop" for key in KEYS if key[0] % len(GRAMMARS) in (0, 2, 5))


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("budget", [16, 64])
def test_company_changes_nothing(backend, quiet, depth, budget):
    with engine(backend, depth=depth, max_num_batched_tokens=budget) as client:
        submit_all(client)
        require_same(client, quiet)


def test_static_batching_changes_nothing(backend, quiet):
    with engine(backend, policy="static", max_num_seqs=4) as client:
        submit_all(client)
        require_same(client, quiet)


@pytest.mark.parametrize("depth", [1, 2])
def test_preemption_changes_nothing(backend, quiet, depth):
    def preempt_all_now_and_then(scheduler):
        plan, turns = scheduler.schedule, itertools.count()

        def schedule():
            if next(turns) % 5 == 4:
                for sequence in list(scheduler.running):
                    scheduler.preempt(sequence.id)
            return plan()

        scheduler.schedule = schedule

    with engine(backend, depth=depth, max_num_batched_tokens=2048, max_num_seqs=32) as client:
        preempt_all_now_and_then(client.scheduler)
        submit_all(client)
        require_same(client, quiet)
        assert client.snapshot.preemptions > 3 * len(KEYS)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_small_pool_changes_nothing(backend, quiet, depth):
    with engine(backend, blocks=9, max_model_len=128, depth=depth, watermark=0.0) as client:
        submit_all(client)
        require_same(client, quiet)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("blocks", [16, 512])
def test_drafts_change_nothing(backend, quiet, depth, blocks):
    texts = {tuple(prompt_of(key[0], 20 + 3 * key[0])): ids for key, ids in quiet[0].items() if key[1] == 0}

    def propose(known):
        """What will be written, what a grammar forbids among it now and then, and more behind its end."""
        prompt = next(prompt for prompt in texts if tuple(known[: len(prompt)]) == prompt)
        ahead = [*texts[prompt][len(known) - len(prompt) :], 65, 66, 67][:5]
        return [*ahead[:2], 64, *ahead[2:]] if len(known) % 5 == 0 else ahead

    with engine(backend, blocks=blocks, max_model_len=128, depth=depth, drafts=Guesses(propose)) as client:
        submit_all(client)
        require_same(client, quiet)
        assert client.snapshot.accepted_tokens > 20
        assert client.snapshot.accepted_tokens < client.snapshot.drafted_tokens


@pytest.mark.parametrize("depth", [1, 2])
def test_nothing_is_left_of_ended_sequences(depth):
    with engine(depth=depth) as client:
        submit_all(client)
        client.abort(1)
        client.wait_finished(*KEYS)
        client.submit(100, prompt_of(1), max_tokens=1)
        client.wait_finished((100, 0))
        client.submit(101, prompt_of(1), max_tokens=1)
        client.wait_finished((101, 0))
        assert not client.runner._grammars
        assert all(grammar is None for grammar in client.runner.batch.grammars)


def test_a_grammar_s_end_ends_the_text_whatever_min_tokens_says():
    with engine() as client:
        client.submit(1, prompt_of(1), min_tokens=8, max_tokens=20, grammar=serialised(read_choice(["ab"])))
        client.submit(2, prompt_of(2), min_tokens=8, max_tokens=20, grammar=regex("a+"))
        client.wait_finished((1, 0), (2, 0))
        assert (text_of(client.tokens[1, 0]), client.finish[1, 0]) == ("ab", "stop")
        assert len(text_of(client.tokens[2, 0])) >= 8 - 1


def test_the_last_permitted_token_may_end_the_text():
    with engine() as client:
        client.submit(1, prompt_of(1), max_tokens=2, grammar=serialised(read_choice(["ab"])))
        client.submit(2, prompt_of(1), max_tokens=1, grammar=serialised(read_choice(["ab"])))
        client.wait_finished((1, 0), (2, 0))
        assert (client.finish[1, 0], client.finish[2, 0]) == ("stop", "length")


# --- the runner, by plans written by hand -----------------------------------------------------------------------
def driven(grammar_text, **settings):
    """A driver, a sequence in it that has sampled its first token, and its grammar."""
    driver = Driver(build_scripted("scripted://?eos=0"))
    live = driver.live(prompt_of(1), temperature=0.0, **settings)
    (grammar,) = GrammarCompiler(tokens, driver.executable.vocab_size, (EOS,)).compile(grammar_text, 1)
    driver.runner.register(live.sequence, driver.runner._settings[live.sequence], grammar)
    driver.step([(live, driver.row(live))], admitted=[driver.admission(live)])
    return driver, live, grammar


def test_a_grammar_follows_sampled_tokens_not_planned_ones():
    driver, live, grammar = driven(serialised(read_choice(["abcd"])))
    assert grammar._tokens == live.text == [97]
    row = driver.row(live)
    ahead = row._replace(start=row.start + 2)
    results = driver.runner.execute(driver.plan([ahead])).rows
    assert results == (RowResult(),), "it was planned on tokens that never came"
    assert grammar._tokens == [97]
    driver.step([(live, row._replace(discard=True))])
    assert grammar._tokens == [97], "what is discarded is nobody's text"
    live.computed = row.start
    driver.step([(live, driver.row(live))])
    assert grammar._tokens == live.text == [97, 98]


def test_only_accepted_drafts_advance_a_grammar():
    driver, live, grammar = driven(serialised(read_choice(["abcdefgh"])))
    driver.step([(live, driver.row(live, drafts=[98, 99, 65, 101]))])
    assert grammar._tokens == live.text == list(b"abcd")


def test_drafts_behind_a_grammar_s_end_never_happened():
    driver, live, grammar = driven(serialised(read_choice(["abc"])), logprobs=0)
    row = driver.row(live, drafts=[98, 99, 100, 101])
    (result,) = driver.runner.execute(driver.plan([row])).rows
    assert (result.tokens, result.complete) == ((98, 99), True)
    assert len(read_scores(result.logprobs, 0)) == 2
    behind = row._replace(start=row.start + 3, num_tokens=1, drafts=())
    assert driver.runner.execute(driver.plan([behind])).rows == (RowResult(),)
    assert grammar.complete
    assert not grammar.failure


def test_a_grammar_resumes_wherever_its_sequence_is():
    driver, live, grammar = driven(serialised(read_choice(["abcdefgh"])))
    driver.step([(live, driver.row(live, drafts=[98, 99]))])
    for known in (4, 2, 3, 0):
        tokens_known = list(b"abcdefgh"[:known])
        grammar.resume(tokens_known)
        assert grammar._tokens == tokens_known
        grammar.accept(list(b"abcdefgh"[known:]))
        assert grammar.complete
        assert not grammar.failure


# --- waiting for a grammar --------------------------------------------------------------------------------------
@pytest.mark.parametrize("depth", [1, 2])
def test_others_go_on_while_a_grammar_is_compiled(depth):
    may_read = threading.Event()

    def read():
        assert may_read.wait(20)
        return tokens()

    with engine(depth=depth, tokens=read) as client:
        client.submit(1, prompt_of(1), grammar=regex("[ab]{3}"), n=2)
        client.submit(2, prompt_of(2), grammar=regex("[ab]{3}"))
        client.submit(3, prompt_of(3), max_tokens=20)
        client.wait_finished((3, 0))
        assert client.finish[3, 0] == "length"
        client.until(lambda: client.snapshot.running == 0)
        assert client.snapshot.waiting == 3
        client.abort(1, 0)
        client.abort(2)
        client.wait_finished((1, 0), (2, 0))
        assert client.snapshot.waiting == 1
        may_read.set()
        client.wait_finished((1, 1))
        assert re.fullmatch("[ab]{3}", text_of(client.tokens[1, 1]))
        client.until(lambda: not client.scheduler.has_work)
        client.scheduler.assert_idle()


def test_the_end_of_a_compilation_wakes_an_idle_engine():
    with engine() as client:
        client.submit(1, prompt_of(1), grammar=regex("[ab]{3}"))
        client.wait_finished((1, 0))
        polls = client.pipes.polls
        client.submit(2, prompt_of(1), grammar=regex("[ab]{3}"))
        client.wait_finished((2, 0))
        assert client.pipes.polls - polls < 20, "it waits, and does not look again and again"


def test_a_grammar_that_cannot_be_compiled_ends_its_request_alone():
    with engine() as client:
        client.submit(1, prompt_of(1), grammar='{"grammars": [{"lark_grammar": "start: /a[$/"}]}', n=2)
        client.submit(2, prompt_of(2), max_tokens=5)
        client.wait_finished((1, 0), (1, 1), (2, 0))
        assert client.finish[1, 0] == client.finish[1, 1] == "error"
        assert "cannot be compiled" in client.detail[1, 0]
        assert client.finish[2, 0] == "length"


def test_without_the_model_s_tokens_a_grammar_is_an_error_with_a_reason():
    def missing():
        raise FileNotFoundError("no such file")

    for read in (None, missing):
        with engine(tokens=read) as client:
            client.submit(1, prompt_of(1), grammar=regex("a"))
            client.submit(2, prompt_of(2), max_tokens=5)
            client.wait_finished((1, 0), (2, 0))
            assert client.finish[1, 0] == "error"
            assert "model's tokens" in client.detail[1, 0]
            assert client.finish[2, 0] == "length"


@pytest.mark.parametrize("depth", [1, 2])
def test_a_grammar_that_becomes_too_costly_ends_its_request_alone(depth, monkeypatch):
    limits = LLParserLimits(step_lexer_fuel=1, verbose_errors=False)
    monkeypatch.setattr(grammar_compiler, "parser_limits", lambda: limits)
    with engine(depth=depth) as client:
        client.submit(1, prompt_of(1), grammar=schema(PERSON))
        client.submit(2, prompt_of(2), max_tokens=5)
        client.wait_finished((1, 0), (2, 0))
        assert client.finish[1, 0] == "error"
        assert "cannot be followed" in client.detail[1, 0]
        assert client.finish[2, 0] == "length"


def test_special_tokens_never_stand_in_a_text():
    executable = build_scripted("scripted://?eos=0")
    with harness.engine(executable, 64, tokens=tokens) as client:
        for seed in range(6):
            wanted = {"seed": seed, "temperature": 2.0, "logit_bias": {257: 100.0, 258: 100.0}}
            client.submit(seed, prompt_of(seed), max_tokens=60, grammar=regex("(?s:.{20,})"), **wanted)
        client.wait_finished(*((seed, 0) for seed in range(6)))
        assert not any({257, 258} & set(client.tokens[seed, 0]) for seed in range(6))


def test_the_model_s_tokens_come_through_their_file(tmp_path):
    path = tmp_path / "vocabulary"
    write_vocabulary(path, tokens())
    assert read_vocabulary(path) == tokens()
    assert list(tmp_path.iterdir()) == [path]
    path.write_bytes(path.read_bytes()[:-1])
    with harness.engine(build_scripted("scripted://?eos=0"), 64, tokens=lambda: read_vocabulary(path)) as client:
        client.submit(1, prompt_of(1), grammar=regex("a"))
        client.wait_finished((1, 0))
        assert "cannot be read" in client.detail[1, 0]
