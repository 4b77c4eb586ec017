"""Rows under a grammar on the GPU: what the CPU's runner lets them say, also with two plans in flight."""

from __future__ import annotations

from llguidance import LLParserLimits

from octavo_engine.core.step import Row, RowResult
from octavo_engine.ipc.vocabulary import Vocabulary
from octavo_engine.server.grammar import serialised
from octavo_engine.server.protocol.constraints import read_choice, read_regex
from octavo_engine.worker import grammar_compiler
from octavo_engine.worker.grammar import CANNOT_FOLLOW
from octavo_engine.worker.grammar_compiler import GrammarCompiler
from tests.worker.driver import Driver
from tests.worker.gpu.both import GREEDY, SAMPLED, VOCAB, cpu, gpu, prompt_of, require_same

EOS = 256
SPECIAL = (256, 257, 258)
PIECES = [b"aa", b"ab", b"ba", b"bb", b"ca", b"cb", b"-1", b"-2", b"11", b"12", b"21", b"22", b"; "]


def vocabulary():
    words = [*(bytes([byte]) for byte in range(256)), b"<|end|>", b"<|a|>", b"<|b|>", *PIECES]
    assert len(words) == VOCAB
    return Vocabulary(words, SPECIAL)


def compiled(text):
    (grammar,) = GrammarCompiler(vocabulary, VOCAB, (EOS,)).compile(text, 1)
    return grammar


def choice(*texts):
    return compiled(serialised(read_choice(list(texts))))


def regex(text):
    return compiled(serialised(read_regex(text)))


def ahead(live, by):
    """The row of a token that is not known yet when it is planned."""
    return Row(live.slot, live.sequence, live.computed + by, 1, True)


def test_rows_with_and_without_a_grammar_say_what_the_cpu_lets_them_say():
    def scenario(driver):
        code, plain, limited = (
            driver.live(prompt_of(1, 20), grammar=regex("[a-c]{3}-[0-9]{2,4}"), logprobs=0, **SAMPLED),
            driver.live(prompt_of(2, 17), slot=1, first_block=8, **SAMPLED),
            driver.live(
                prompt_of(3, 5),
                slot=2,
                first_block=16,
                grammar=choice("yes", "no"),
                logit_bias={ord("n"): -50.0, ord("y"): 5.0},
                allowed_token_ids=[*b"yesno", EOS],
                min_tokens=3,
                held_back_ids=[EOS],
                **GREEDY,
            ),
        )
        lives, told = [code, plain, limited], []
        for step in range(4):
            admitted = [] if step else [driver.admission(live) for live in lives]
            going = [live for live in lives if not any(live is each and done for each, done in told)]
            results = driver.step([(live, driver.row(live)) for live in going], admitted=admitted).rows
            told += [(live, result.complete) for live, result in zip(going, results, strict=True)]
        return [live.text for live in lives], [complete for _, complete in told], len(code.logprobs)

    (code, _, limited), complete, size = require_same(scenario)
    assert bytes(limited) == b"yes"
    assert complete.count(True) == 1
    assert size == 8 * len(code)


def test_a_plan_in_flight_behind_the_end_of_a_grammar_is_void():
    driver = Driver(gpu())
    grammar = choice("ab")
    live = driver.live(prompt_of(1, 20), grammar=grammar, **GREEDY)
    other = driver.live(prompt_of(2, 20), slot=1, first_block=8, **SAMPLED)
    admitted = [driver.admission(live), driver.admission(other)]
    plans = [driver.plan([driver.row(live), driver.row(other)], admitted=admitted)]
    plans += [driver.plan([ahead(live, 20 + step), ahead(other, 20 + step)]) for step in range(3)]
    results, launched = [], [driver.runner.launch(plans[0])]
    for plan in plans[1:]:
        launched.append(driver.runner.launch(plan))
        results.append(launched.pop(0).result())
    results.append(launched.pop().result())
    own = [result.rows[0] for result in results]
    said = next(index for index, row in enumerate(own) if row.complete)
    text = b"".join(PIECES[t - 259] if t >= 259 else bytes([t]) for row in own for t in row.tokens)
    assert text == b"ab"
    assert all(row == RowResult() for row in own[said + 1 :])
    assert said < 3
    assert grammar.complete
    alone = Driver(cpu())
    expected = alone.generate(alone.live(prompt_of(2, 20), **SAMPLED), 4)
    assert [result.rows[1].tokens[0] for result in results] == expected


def test_a_grammar_follows_its_sequence_and_not_what_is_planned_or_discarded():
    driver = Driver(gpu())
    grammar = choice("cccc")
    live = driver.live(prompt_of(1, 20), grammar=grammar, **GREEDY)
    driver.step([(live, driver.row(live))], admitted=[driver.admission(live)])
    assert live.text == grammar._tokens == [ord("c")]
    row = driver.row(live)
    assert driver.runner.execute(driver.plan([row._replace(start=row.start + 2)])).rows == (RowResult(),)
    driver.step([(live, row._replace(discard=True))])
    assert grammar._tokens == [ord("c")]
    # Preempted while a plan of it is in flight, and admitted again elsewhere.
    launched = driver.runner.launch(driver.plan([row]))
    live.computed, live.slot = 0, 3
    again = driver.plan([driver.row(live)], admitted=[driver.admission(live)], released=[0])
    behind = driver.runner.launch(again)
    assert launched.result().rows[0].tokens == behind.result().rows[0].tokens == (ord("c"),)
    assert grammar._tokens == [ord("c")] * 2


def test_a_grammar_that_cannot_be_followed_fails_its_row_alone(monkeypatch):
    driver = Driver(gpu())
    limits = LLParserLimits(step_lexer_fuel=1, verbose_errors=False)
    monkeypatch.setattr(grammar_compiler, "parser_limits", lambda: limits)
    live = driver.live(prompt_of(1, 20), grammar=regex("(a[bc]{2,9}d|[b-x]{3,40}e)*"), **GREEDY)
    other = driver.live(prompt_of(2, 20), slot=1, first_block=8, **GREEDY)
    admitted = [driver.admission(live), driver.admission(other)]
    plans = [driver.plan([driver.row(live), driver.row(other)], admitted=admitted)]
    plans += [driver.plan([ahead(live, 20 + step), ahead(other, 20 + step)]) for step in range(2)]
    results = [launched.result() for launched in [driver.runner.launch(plan) for plan in plans]]
    own = [result.rows[0] for result in results]
    failed = next(index for index, row in enumerate(own) if row.failed)
    assert own[failed].failed.startswith(CANNOT_FOLLOW)
    assert own[failed + 1 :] == [RowResult()] * (2 - failed)
    assert all(len(result.rows[1].tokens) == 1 for result in results)
