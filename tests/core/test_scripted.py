"""The scripted model: its URI, its text, and that every slot it reads matters."""

import subprocess
import sys
import time
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_engine.core.step import Admission, Row, StepPlan
from octavo_engine.sampling.settings import prepare
from octavo_engine.worker.backends.scripted import EOS_TOKEN, ScriptedExecutable, build_scripted
from octavo_engine.worker.backends.scripted_uri import ScriptedOptions, ScriptedUriError, parse_scripted_uri
from octavo_engine.worker.executable import ModelStep
from octavo_engine.worker.failures import StepError
from octavo_engine.worker.runner import Runner

SIZE = 4


@pytest.mark.parametrize(
    ("uri", "options"),
    [
        ("scripted://", {}),
        ("scripted://?prefill=8000&step=20ms&blocks=512", {"prefill": 8000.0, "step": 0.02, "blocks": 512}),
        ("scripted://?step=500us", {"step": 0.0005}),
        ("scripted://?step=1.5s", {"step": 1.5}),
        ("scripted://?script=72,105", {"script": (72, 105)}),
        ("scripted://?nan=1&raise=2&hang=3", {"nan_token": 1, "raise_token": 2, "hang_token": 3}),
        ("scripted://?vocab=300&max_len=64&eos=0.5&seed=7", {"vocab": 300, "max_len": 64, "eos": 0.5, "seed": 7}),
        ("scripted://?window=64&block_size=8", {"window": 64, "block_size": 8}),
    ],
)
def test_what_a_uri_says(uri, options):
    assert parse_scripted_uri(uri) == ScriptedOptions(**options)


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("script://", "write scripted://"),
        ("scripted://host/path", "write scripted://"),
        ("scripted://?speed=9", "no option 'speed'; it has prefill, step"),
        ("scripted://?step", "not key=value"),
        ("scripted://?step=20", "a time such as 20ms"),
        ("scripted://?step=-1ms", "a time such as 20ms"),
        ("scripted://?prefill=fast", "tokens per second"),
        ("scripted://?blocks=0", "at least 1"),
        ("scripted://?blocks=1&blocks=2", "given twice"),
        ("scripted://?eos=1.5", "from 0 to 1"),
        ("scripted://?eos=nan", "from 0 to 1"),
        ("scripted://?vocab=256", "at least 259"),
        ("scripted://?script=1,,2", "separated by commas"),
        ("scripted://?script=400", "ids go from 0 to 258"),
        ("scripted://?nan=259", "ids go from 0 to 258"),
        ("scripted://?seed=²", "a number from 0"),
        ("scripted://?window=1", "use 2 or more"),
    ],
)
def test_a_bad_uri_is_refused_with_the_remedy(uri, message):
    with pytest.raises(ScriptedUriError, match=message):
        build_scripted(uri)


@settings(deadline=None)
@given(st.text(max_size=60))
def test_any_text_is_parsed_or_refused(text):
    with suppress(ScriptedUriError):
        assert parse_scripted_uri("scripted://?" + text).blocks >= 1


def model(uri: str = "scripted://?eos=0", blocks: int = 40) -> ScriptedExecutable:
    executable = build_scripted(f"{uri}&block_size={SIZE}")
    executable.layout.allocate([blocks] * len(executable.layout.groups))
    return executable


def write(executable: ScriptedExecutable, prompt, count: int, temperature: float = 0.0, seed: int = 1):
    """The next `count` tokens, from one sequence in consecutive blocks."""
    runner = Runner(executable, max_num_seqs=1, max_model_len=128)
    runner.register(1, prepare(executable.vocab_size, seed=seed, temperature=temperature))
    groups = len(executable.layout.groups)
    admission = Admission(0, 1, tuple(prompt), len(prompt), (tuple(range(32)),) * groups)
    start, text = 0, []
    for number in range(count):
        row = Row(0, 1, start, len(prompt) + len(text) - start, True)
        plan = StepPlan(number, (), (admission,) if number == 0 else (), (), (), (row,))
        start += row.num_tokens
        text += runner.execute(plan).rows[0].tokens
    return text


def test_text_is_printable_depends_on_the_prompt_and_is_the_same_every_time():
    prompts = [b"hello", b"hellp", b"Hello", b"hello "]
    texts = [bytes(write(model(), prompt, 30)) for prompt in prompts]
    assert all(text.replace(b"\n", b" ").decode("ascii").isprintable() for text in texts)
    assert len(set(texts)) == 4
    assert bytes(write(model(), b"hello", 30)) == texts[0]
    assert bytes(write(model("scripted://?eos=0&seed=2"), b"hello", 30)) != texts[0]


def test_temperature_draws_other_tokens_by_seed():
    texts = {tuple(write(model(), b"hello", 30, temperature=1.5, seed=seed)) for seed in range(4)}
    assert len(texts) == 4


@pytest.mark.parametrize("eos", [0.0, 0.1, 1.0])
def test_eos_comes_as_often_as_it_is_told(eos):
    executable = model(f"scripted://?eos={eos}")
    ends = sum(write(executable, b"prompt %d" % n, 1) == [EOS_TOKEN] for n in range(400))
    assert abs(ends / 400 - eos) < 0.06


def test_a_script_is_written_to_the_letter_and_then_eos():
    script = (97, 97, 98, 97, 97, 99, 258)
    executable = model("scripted://?script=" + ",".join(map(str, script)))
    assert write(executable, b"say it", len(script) + 1) == [*script, EOS_TOKEN]
    assert write(executable, b"say it", len(script) + 1, temperature=0.3, seed=9) == [*script, EOS_TOKEN]


def step_of(tokens, start, tables, windows=1):
    """One row of `tokens` from position `start`, logits for its last token."""
    positions = np.arange(start, start + len(tokens), dtype=np.int32)
    slots = np.array([tables[p // SIZE] * SIZE + p % SIZE for p in positions], dtype=np.int64)
    return ModelStep(
        tokens=np.array(tokens, dtype=np.int32),
        positions=positions,
        row_offsets=np.array([0, len(tokens)], dtype=np.int32),
        context_lengths=np.array([start + len(tokens)], dtype=np.int32),
        block_tables=(np.array([tables], dtype=np.int32),) * windows,
        slots=(slots,) * windows,
        logit_tokens=np.array([len(tokens) - 1], dtype=np.int32),
        adapters=np.array([-1], dtype=np.int32),
    )


def logits(executable, step):
    plan = executable.plan(step)
    return executable.logits(plan, executable.forward(plan, executable.embed(plan)))[0]


TOKENS = list(b"the quick brown fox")


@pytest.mark.parametrize("position", range(18))
def test_every_slot_of_the_context_matters(position):
    table = [7, 3, 9, 1, 5]
    executable = model()
    right = logits(executable, step_of(TOKENS, 0, table))
    executable.layout.slots[0].digests[table[position // SIZE], position % SIZE] ^= np.uint64(1 << 40)
    spoilt = logits(executable, step_of(TOKENS[18:], 18, table))
    assert (right != spoilt).any()


@pytest.mark.parametrize("window", [2, 5, 8])
def test_in_a_window_group_every_slot_of_the_window_matters_and_no_other(window):
    for position in range(18):
        table = [7, 3, 9, 1, 5]
        executable = model(f"scripted://?window={window}")
        right = logits(executable, step_of(TOKENS, 0, table, windows=2))
        executable.layout.slots[1].digests[table[position // SIZE], position % SIZE] ^= np.uint64(1 << 40)
        spoilt = logits(executable, step_of(TOKENS[18:], 18, table, windows=2))
        assert (right != spoilt).any() == (position > 18 - window)


def test_a_wrong_position_or_block_changes_the_logits():
    executable = model()
    right = logits(executable, step_of(TOKENS, 0, [7, 3, 9, 1, 5]))
    swapped = step_of(TOKENS[18:], 18, [3, 7, 9, 1, 5])
    assert (logits(executable, swapped) != right).any()
    later = step_of(TOKENS[18:], 19, [7, 3, 9, 1, 5])
    assert (logits(executable, later) != right).any()


@pytest.mark.parametrize("cuts", [(), (4,), (1, 2, 3), (5, 11, 18)])
def test_chunks_write_what_a_whole_prompt_writes(cuts):
    table = [7, 3, 9, 1, 5]
    whole, chunked = model("scripted://?window=6"), model("scripted://?window=6")
    right = logits(whole, step_of(TOKENS, 0, table, windows=2))
    for start, end in zip((0, *cuts), (*cuts, len(TOKENS)), strict=True):
        last = logits(chunked, step_of(TOKENS[start:end], start, table, windows=2))
    assert (last == right).all()


def test_padding_is_written_nowhere_and_changes_nothing():
    plain, padded = model(), model()
    step = step_of(TOKENS[:9], 0, [2, 4, 6])
    right = logits(plain, step)
    wide = step._replace(
        tokens=np.append(step.tokens, [0, 0]).astype(np.int32),
        positions=np.append(step.positions, [9, 10]).astype(np.int32),
        row_offsets=np.array([0, 11], dtype=np.int32),
        slots=(np.append(step.slots[0], [-1, -1]),),
    )
    assert (logits(padded, wide) == right).all()
    assert (plain.layout.slots[0].digests == padded.layout.slots[0].digests).all()


def test_blocks_are_copied_exported_and_imported_with_all_they_hold():
    executable = model("scripted://?nan=113&script=120,121")
    step_logits = logits(executable, step_of(TOKENS[:16], 0, [0, 1, 2, 3]))
    assert np.isnan(step_logits).all()
    executable.layout.copy_blocks(0, [(0, 20), (1, 21)])
    executable.layout.import_block(0, 22, executable.layout.export_block(0, 2))
    assert np.isnan(logits(executable, step_of(TOKENS[15:16], 15, [20, 21, 22, 3]))).all()
    for plane in executable.layout.slots[0]:
        assert (plane[:3] == plane[20:23]).all()
    data = executable.layout.export_block(0, 0)
    assert len(data) == executable.layout.groups[0].bytes_per_block


def test_poison_spoils_its_own_sequence_whoever_computes_it():
    executable = model("scripted://?nan=120")
    assert np.isnan(logits(executable, step_of(list(b"axbcdefg"), 0, [0, 1]))).all()
    assert np.isfinite(logits(executable, step_of(list(b"aabcdefg"), 0, [2, 3]))).all()


def test_a_step_told_to_fail_fails():
    with pytest.raises(StepError, match="told to fail on token 120"):
        write(model("scripted://?raise=120"), b"abx", 1)


def test_a_step_takes_the_time_it_is_told():
    executable = model("scripted://?step=30ms&prefill=1000")
    started = time.monotonic()
    logits(executable, step_of(TOKENS, 0, [0, 1, 2, 3, 4]))
    seconds = time.monotonic() - started
    assert seconds >= 0.030 + len(TOKENS) / 1000


def test_it_is_made_without_torch():
    code = (
        "import sys, octavo_engine.worker.backends.scripted, octavo_engine.core.scheduler;"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
