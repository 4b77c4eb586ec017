"""The API process's pure parts: drain phases, heartbeat, admission, keys, counters, sizes, bodies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_engine import contract
from octavo_engine.commands.sizes import parse_size
from octavo_engine.core import limits
from octavo_engine.core.config import CacheGroup, Request, SchedulerConfig
from octavo_engine.core.sequence import Sequence
from octavo_engine.core.stop import StopRule
from octavo_engine.core.waiting import WaitingQueue
from octavo_engine.server import admission
from octavo_engine.server.counters import Distribution
from octavo_engine.server.engine_client import Load
from octavo_engine.server.errors import ApiError
from octavo_engine.server.heartbeat import Heartbeat
from octavo_engine.server.keys import KeyFile, KeyFileError
from octavo_engine.server.lifecycle import Lifecycle, Phase
from octavo_engine.server.protocol.answers import Delta, Style, usage
from octavo_engine.server.protocol.json_body import parse_object
from octavo_engine.server.protocol.responses.shape import ResponseShape


def test_the_phases_of_a_drain() -> None:
    life = Lifecycle(5, 60)
    life.enter()
    assert (life.phase(0), life.draining, life.seconds_to_next(0)) == (Phase.SERVING, False, None)
    life.drain(10)
    life.drain(14)
    assert (life.phase(14.9), life.accepts(14.9), life.seconds_to_next(14)) == (Phase.PROPAGATING, True, 1)
    assert (life.phase(15), life.accepts(15), life.seconds_to_next(15)) == (Phase.DRAINING, False, 60)
    assert life.phase(75) is Phase.ENDED, "the time-out counts from the end of the propagation"
    life.leave()
    assert life.phase(16) is Phase.ENDED


def test_an_empty_server_still_waits_for_endpoints_to_spread() -> None:
    life = Lifecycle(5, 60)
    life.drain(0)
    assert life.phase(4) is Phase.PROPAGATING
    assert life.phase(5) is Phase.ENDED


def test_ending_at_once() -> None:
    life = Lifecycle(5, 60)
    life.abort()
    assert life.phase(0) is Phase.ENDED
    assert not life.accepts(0)


def test_a_heartbeat_before_the_first_tick_is_alive_for_ever() -> None:
    assert Heartbeat(30).alive(1e9)


def test_a_heartbeat_allows_the_longest_step_on_top() -> None:
    heart = Heartbeat(30)
    heart.tick(0, 12)
    heart.tick(100, 0)
    assert heart.alive(142)
    assert not heart.alive(142.1)


def test_a_hang_is_told_within_30_seconds() -> None:
    """Of an engine whose steps take less than ten."""
    heart = Heartbeat(contract.HEALTH_TIMEOUT_SECONDS)
    heart.tick(0, 9.5)
    assert not heart.alive(30)


@pytest.mark.parametrize(
    ("load", "sequences", "tokens", "refused"),
    [
        (Load(0, 0), 8, 10**9, False),
        (Load(0, 0), 9, 1, True),
        (Load(7, 10), 1, 90, False),
        (Load(8, 10), 1, 1, True),
        (Load(1, 10), 1, 91, True),
    ],
)
def test_admission(load: Load, sequences: int, tokens: int, refused: bool) -> None:
    error = admission.refuse(load, sequences, tokens, max_requests=8, max_tokens=100)
    assert (error is not None) == refused
    if error is not None:
        assert (error.status, error.headers[contract.HEADER_NOT_STARTED]) == (429, "1")


@pytest.mark.parametrize(
    ("prompts", "n", "tokens", "param"),
    [
        (8, 1, 100, None),
        (1, 8, 10**9, None),
        (9, 1, 9, "prompt"),
        (1, 9, 9, "n"),
        (2, 5, 10, "n"),
        (2, 1, 101, "prompt"),
    ],
)
def test_what_an_empty_queue_would_not_take_is_never_told_to_retry(
    prompts: int, n: int, tokens: int, param: str | None
) -> None:
    error = admission.refuse_for_ever(prompts, n, tokens, max_requests=8, max_tokens=100)
    assert (None if error is None else error.param) == param
    if error is not None:
        assert error.status == 400
        assert "never be admitted" in error.message
        assert "Retry" not in error.message
    assert admission.refuse_for_ever(prompts, n, tokens, max_requests=0, max_tokens=0) is None


@pytest.mark.parametrize(("sequences", "prompts"), [(8, 1), (9, 1), (8, 3), (9, 3), (200, 200)])
@pytest.mark.parametrize("length", [1, 12, 90])
def test_the_engine_and_the_server_agree_on_what_an_empty_queue_takes(
    sequences: int, prompts: int, length: int
) -> None:
    """Submit one by one to the engine's own rule, as the server does; nothing is scheduled in between."""
    n, spare = divmod(sequences, prompts)
    n += bool(spare)
    waiting = WaitingQueue()
    config = SchedulerConfig(
        groups=(CacheGroup(num_blocks=64),), max_num_seqs=4, max_num_batched_tokens=64, max_model_len=128,
        max_queue_requests=8, max_queue_tokens=100,
    )  # fmt: skip
    taken = True
    for index in range(prompts):
        ids = tuple(range(index * n, index * n + n))
        prompt = tuple(range(length))
        taken = taken and limits.refuse(Request(ids, prompt, StopRule(max_tokens=1)), waiting, config) is None
        for one in ids:
            waiting.add(
                Sequence(one, (0, 0.0, one), list(prompt), length, StopRule(max_tokens=1), 128, -1, True, b"", [])
            )
    hopeless = admission.refuse_for_ever(prompts, n, length * prompts * n, max_requests=8, max_tokens=100)
    assert taken == (hopeless is None)


def test_admission_without_bounds_refuses_nobody() -> None:
    assert admission.refuse(Load(10**6, 10**9), 1, 1, 0, 0) is None


def test_keys_are_read_again_when_their_file_changes(tmp_path: Path) -> None:
    now = [0.0]
    path = tmp_path / "keys"
    path.write_text("# tenants\nalpha\n\nbeta\n")
    keys = KeyFile(path, lambda: now[0])
    assert keys.accepts("alpha")
    assert keys.accepts("beta")
    assert not keys.accepts("# tenants")
    path.write_text("gamma\n")
    now[0] = 2
    assert keys.accepts("gamma")
    assert not keys.accepts("alpha")
    path.write_text("")
    now[0] = 4
    assert keys.accepts("gamma"), "a broken file leaves the old keys in force"


def test_keys_in_a_folder_as_a_mounted_secret_has_them(tmp_path: Path) -> None:
    (tmp_path / "tenant-a").write_text("alpha")
    (tmp_path / ".hidden").write_text("no")
    keys = KeyFile(tmp_path)
    assert keys.accepts("alpha")
    assert not keys.accepts("no")


@pytest.mark.parametrize("key", ["schl\u00fcssel", "two words", "tab\tbed", "\ufeffmarked"])
def test_a_key_that_no_header_carries_is_refused_and_not_quoted(tmp_path: Path, key: str) -> None:
    (tmp_path / "keys").write_text(f"good\n{key}\n")
    with pytest.raises(KeyFileError, match="visible ASCII") as refused:
        KeyFile(tmp_path / "keys")
    assert key not in str(refused.value)


def test_a_file_in_a_folder_may_hold_several_keys(tmp_path: Path) -> None:
    (tmp_path / "team").write_text("# ours\none\ntwo\n")
    keys = KeyFile(tmp_path)
    assert [keys.accepts(key) for key in ("one", "two", "one\ntwo", "# ours")] == [True, True, False, False]


def test_a_key_file_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="one key a line"):
        KeyFile(tmp_path / "nowhere")


@pytest.mark.parametrize("value", [-1.0, 0.0, 0.01, 61.0, 700.0, 1800.0, 10**9])
def test_an_observation_lands_in_one_bucket(value: float) -> None:
    for metric in contract.METRICS:
        if metric.kind == "histogram":
            distribution = Distribution(metric.buckets)
            distribution.observe(value)
            assert sum(distribution.counts) == 1
            assert distribution.sum >= 0
    requests = Distribution(contract.REQUEST_SECONDS.buckets)
    requests.observe(min(value, 1800))
    assert requests.counts[-1] == 0, "half an hour is below the last bound"


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0), ("4G", 4 * 10**9), ("4Gi", 4 * 2**30), ("512Mi", 512 * 2**20), ("1k", 1000), ("1Ki", 1024),
        ("1.5G", 15 * 10**8), ("123", 123), (" 2 GiB ", 2 * 2**30), ("1M", 10**6),
    ],
)  # fmt: skip
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "G", "4X", "-1", "1e9", "4 G i", "0x10", "ki", "1ki"])
def test_what_is_no_size_is_refused_with_the_remedy(text: str) -> None:
    with pytest.raises(ValueError, match="such as 4G"):
        parse_size(text)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), JSON, max_size=5), st.booleans())
def test_every_json_object_is_read_as_it_is(body: dict[str, object], escaped: bool) -> None:
    text = json.dumps(body, ensure_ascii=escaped)
    assert parse_object(text.encode("utf-8", "surrogatepass")) == body


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    refused: ApiError | None = None
    try:
        assert isinstance(parse_object(data), dict)
    except ApiError as error:
        refused = error
    if refused is not None:
        assert refused.status == 400
        json.loads(refused.body())


@pytest.mark.parametrize("kind", ["completions", "chat"])
@pytest.mark.parametrize("include_usage", [False, True])
def test_a_chunk_that_only_brings_text_is_put_together_as_any_other_is_encoded(kind: str, include_usage: bool) -> None:
    style = Style("chat" if kind == "chat" else "completions", 'a "model" 100%d', include_usage)
    first = style.chunks([Delta(3, "Hello", None)])
    for text in ("wörld\n", 'a "quoted" \\ %s', "\u2028\x00"):
        event = style.chunks([Delta(3, text, None)])
        body = json.loads(event.removeprefix(b"data: "))
        same = json.loads(first.removeprefix(b"data: "))
        choice = same["choices"][0]
        if kind == "chat":
            choice["delta"] = {"content": text}
        else:
            choice["text"] = text
        assert body == same
        assert list(body) == list(same)
        assert event.endswith(b"\n\n")


def test_a_response_s_event_that_only_brings_text_is_put_together_as_any_other_is_encoded() -> None:
    shape = ResponseShape("m", b'{"store":false}')
    first = shape.chunks([Delta(0, "Hello", None)]).split(b"\n\n")[-2]
    for number, text in enumerate(("wörld\n", 'a "quoted" \\ %s', "\u2028\x00"), 3):
        event = shape.chunks([Delta(0, text, None)])
        name, data = event.removesuffix(b"\n\n").split(b"\n")
        assert name == first.split(b"\n")[0]
        body, same = json.loads(data.removeprefix(b"data: ")), json.loads(first.split(b"data: ")[1])
        assert body == {**same, "delta": text, "sequence_number": number}
        assert list(body) == list(same)
    whole = json.loads(shape.whole([Delta(0, "", "stop")], usage(1, 1, 0)))
    assert whole["output"][0]["content"][0]["text"] == 'Hellowörld\na "quoted" \\ %s\u2028\x00'
