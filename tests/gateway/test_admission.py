"""From a request to a service and a tenant, or to a refusal in OpenAI's shape."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_engine import contract
from octavo_operator.gateway.admission import Admitted, Door, Incoming, routed, without_stripped
from octavo_operator.gateway.body import read
from octavo_operator.gateway.limits import Limiter, Limits
from octavo_operator.gateway.models import Arm, Models, Service, choose
from octavo_operator.gateway.refusal import Refusal, picker_gone
from octavo_operator.gateway.tenants import ANYONE, Keys

OPEN = Service("team-a", "assistant", "u1", "2026-01-01T00:00:00Z", aliases=("gpt",))
LOCKED = Service("team-b", "writer", "u2", "2026-02-01T00:00:00Z", served_name="prose", needs_key=True)
YOUNGER = Service("team-c", "assistant", "u3", "2026-03-01T00:00:00Z", aliases=("prose", "own"), needs_key=True)


def door(**changes: Any) -> Door:
    """Return a picker's door with three services, two of them with keys."""
    values: dict[str, Any] = {
        "models": Models([YOUNGER, LOCKED, OPEN]),
        "keys": {
            LOCKED.full_name: Keys({"red": b"key-red\n", "blue": b"key-blue"}),
            YOUNGER.full_name: Keys({"red": b"other-red"}),
        },
        "informed": True,
    } | changes
    return Door(**values)


def ask(
    model: Any = "assistant", key: str | None = None, path: str = contract.PATH_CHAT_COMPLETIONS, **more: Any
) -> Incoming:
    """Return a chat request."""
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}]} | more
    return Incoming("r1", path, key and f"Bearer {key}", json.dumps(body).encode())


def refused(answer: Admitted | Refusal | tuple[str, ...]) -> Refusal:
    """Return the refusal, whose body must be OpenAI's error object."""
    assert isinstance(answer, Refusal)
    error = json.loads(answer.body())["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"].endswith((".", ".)"))
    assert answer.headers()[contract.HEADER_NOT_STARTED] == "1"
    assert ("retry-after" in answer.headers()) == (answer.status == 503 or answer.code == "rate_limit_exceeded")
    return answer


@pytest.mark.parametrize(
    ("incoming", "status", "code"),
    [
        (ask(path="/health"), 404, "unknown_path"),
        (ask(path="/metrics"), 404, "unknown_path"),
        (ask(path="/v1/../metrics"), 404, "unknown_path"),
        (ask(path="/v1/%2e%2e/metrics"), 404, "unknown_path"),
        (ask(path=contract.PATH_LOAD_ADAPTER), 404, "unknown_path"),
        (ask("nobody"), 404, "model_not_found"),
        (ask("team-b/assistant"), 404, "model_not_found"),
        (ask(None), 400, "invalid_body"),
        (ask(7), 400, "invalid_body"),
        (ask("prose"), 401, "missing_api_key"),
        (ask("prose", "wrong"), 401, "invalid_api_key"),
        (ask("prose", "other-red"), 401, "invalid_api_key"),
        (ask("team-c/assistant", "key-red"), 401, "invalid_api_key"),
        (Incoming("r", "/v1/completions", "Basic a2V5", b'{"model":"prose"}'), 401, "missing_api_key"),
        (Incoming("r", "/v1/completions", None, b""), 400, "invalid_body"),
        (Incoming("r", "/v1/completions", None, b"[]"), 400, "invalid_body"),
        (Incoming("r", "/v1/completions", None, b'{"model":"assistant","prompt":NaN}'), 400, "invalid_body"),
        (Incoming("r", "/v1/completions", None, b'{"model":"\xff"}'), 400, "invalid_body"),
        (Incoming("r", "/v1/completions", None, b'{"model":' + b"[" * 100_000), 400, "invalid_body"),
        (Incoming("r", "/v1/completions", None, b" " * (contract.MAX_BODY_BYTES + 1)), 413, "request_too_large"),
    ],
)
def test_what_can_be_refused_is_refused_in_openai_s_shape(incoming: Incoming, status: int, code: str) -> None:
    answer = refused(door().admit(incoming, 0.0))
    assert (answer.status, answer.code) == (status, code)


def test_a_key_is_a_tenant_and_the_tenant_a_salt() -> None:
    red, blue = (door().admit(ask("prose", f"key-{who}"), 0.0) for who in ("red", "blue"))
    assert isinstance(red, Admitted)
    assert isinstance(blue, Admitted)
    assert red.headers() == {
        contract.HEADER_MODEL: "prose",
        contract.HEADER_SALT: "tenant:red",
        contract.HEADER_REQUEST_ID: "r1",
    }
    assert blue.tenant == "blue"
    text = "long enough to fill a chunk " * 20
    digests = [
        admitted.wanted.digests
        for who in ("red", "blue")
        if isinstance(admitted := door().admit(ask("prose", f"key-{who}", prompt=text, messages=None), 0.0), Admitted)
    ]
    assert len(digests[0]) == len(digests[1]) == 2
    assert set(digests[0]).isdisjoint(digests[1])


def test_a_service_without_keys_takes_anyone_and_any_key() -> None:
    for key in (None, "whatever"):
        admitted = door().admit(ask("assistant", key), 0.0)
        assert isinstance(admitted, Admitted)
        assert (admitted.tenant, admitted.service) == (ANYONE, OPEN)


def test_a_service_whose_secret_is_missing_or_empty_takes_nobody() -> None:
    assert refused(door(keys={}).admit(ask("prose", "key-red"), 0.0)).status == 401
    assert refused(door(keys={LOCKED.full_name: Keys({})}).admit(ask("prose", ""), 0.0)).status == 401
    keys = Keys({"empty": b" \n", "wide": "schlüssel".encode(), "a": b"same", "b": b"same"})
    assert [keys.tenant(key) for key in ("", " ", "schlüssel", "same")] == [None, None, None, "a"]
    assert len(keys.faults) == 3


def test_a_picker_that_knows_no_services_yet_says_so_instead_of_404() -> None:
    answer = refused(Door().admit(ask(), 0.0))
    assert (answer.status, answer.code) == (503, "starting")
    assert refused(Door().usable(None)).status == 503


def test_a_bare_name_is_the_oldest_claimant_s_and_the_full_name_always_works() -> None:
    for order in ([OPEN, LOCKED, YOUNGER], [YOUNGER, LOCKED, OPEN]):
        models = Models(order)
        assert models.resolve("assistant") is OPEN
        assert models.resolve("prose") is LOCKED
        assert models.resolve("own") is YOUNGER
        assert models.resolve("gpt") is OPEN
        assert models.resolve("team-c/assistant") is YOUNGER
        assert {(c.name, c.owner, c.loser) for c in models.conflicts} == {
            ("assistant", "team-a/assistant", "team-c/assistant"),
            ("prose", "team-b/writer", "team-c/assistant"),
        }
        assert all("team-c/assistant" in conflict.message() for conflict in models.conflicts)


def test_the_list_of_models_is_what_the_key_may_use() -> None:
    assert door().usable(None) == ("assistant", "gpt", "team-a/assistant")
    assert door().usable("Bearer key-blue") == ("assistant", "gpt", "prose", "team-a/assistant", "team-b/writer")
    assert door().usable("Bearer other-red") == ("assistant", "gpt", "own", "team-a/assistant", "team-c/assistant")
    assert refused(door().usable("Bearer nonsense")).status == 401
    assert refused(door(models=Models([LOCKED])).usable(None)).status == 401
    assert door(models=Models([])).usable(None) == ()


def test_a_split_follows_the_weights_stays_with_a_conversation_and_outlives_its_canary() -> None:
    main = replace(OPEN, split=(Arm("canary", 20),))
    canary = Service("team-a", "canary", "u9", "2026-05-01T00:00:00Z")
    models = Models([main, canary])
    keys = [f"user {number}".encode() for number in range(5000)]
    taken = {key: models.arm(main, key).name for key in keys}
    assert 0.18 < Counter(taken.values())["canary"] / 5000 < 0.22
    more = Models([replace(main, split=(Arm("canary", 40),)), canary])
    later = {key: more.arm(more.resolve("assistant") or main, key).name for key in keys}
    assert all(later[key] == "canary" for key in keys if taken[key] == "canary")
    assert all(Models([main]).arm(main, key) is main for key in keys[:100])
    all_over = replace(main, split=(Arm("canary", 100),))
    assert all(Models([all_over, canary]).arm(all_over, key) is canary for key in keys[:100])


@given(st.dictionaries(st.text(min_size=1, max_size=5), st.integers(0, 100), min_size=1, max_size=5), st.binary())
def test_a_choice_is_stable_and_never_one_of_weight_zero(weights: dict[str, int], key: bytes) -> None:
    if any(weights.values()):
        assert weights[choose(weights, key)] > 0
        assert choose(dict(reversed(weights.items())), key) == choose(weights, key)


def test_the_turns_of_a_conversation_share_their_key_and_their_prefix() -> None:
    turns = [{"role": "system", "content": "be kind " * 200}]
    keys, digests = set(), []
    for turn in range(4):
        turns.append({"role": "user", "content": f"question {turn} " * 50})
        admitted = door().admit(ask("assistant", messages=turns), 0.0)
        assert isinstance(admitted, Admitted)
        keys.add(admitted.wanted.key)
        digests.append(admitted.wanted.digests)
        turns.append({"role": "assistant", "content": f"answer {turn} " * 50})
    assert len(keys) == 1
    assert all(later[: len(earlier)] == earlier for earlier, later in pairwise(digests))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"messages": [{"role": "user", "content": "hi"}]}, {"messages": [{"content": "hi", "role": "user"}]}, True),
        (
            {"messages": [{"role": "user", "content": "hi"}]},
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]},
            True,
        ),
        ({"messages": [{"role": "user", "content": "hi"}]}, {"messages": [{"role": "system", "content": "hi"}]}, False),
        ({"prompt": "hi"}, {"prompt": "hi", "temperature": 1}, True),
        ({"prompt": [1, 23]}, {"prompt": [12, 3]}, False),
        ({"prompt": "hi"}, {"prompt": "hi", "tools": [{"type": "function"}]}, False),
    ],
)
def test_the_canonical_text_is_the_prompt_s(one: dict[str, Any], other: dict[str, Any], same: bool) -> None:
    texts = [read(json.dumps({"model": "m"} | body).encode()) for body in (one, other)]
    assert not any(isinstance(text, Refusal) for text in texts)
    assert (texts[0].text == texts[1].text) == same  # type: ignore[union-attr]


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ),
    st.sampled_from(["messages", "prompt", "input", "tools", "n", "max_tokens", "user", "stream"]),
)
def test_no_field_whatever_it_holds_breaks_the_reading(value: Any, field: str) -> None:
    body = json.dumps({"model": "assistant", field: value}).encode()
    assert isinstance(door().admit(Incoming("r", "/v1/chat/completions", None, body), 0.0), Admitted)


def test_a_limit_is_the_addressed_service_s_and_refusals_are_not_charged() -> None:
    limited = door(limiters={LOCKED.full_name: Limiter({"red": Limits(requests_per_minute=2)})})
    for _ in range(5):
        refused(limited.admit(ask("prose", "wrong"), 0.0))
    assert isinstance(limited.admit(ask("prose", "key-red"), 0.0), Admitted)
    assert isinstance(limited.admit(ask("team-b/writer", "key-red"), 0.0), Admitted)
    assert refused(limited.admit(ask("prose", "key-red"), 0.0)).status == 429
    assert isinstance(limited.admit(ask("prose", "key-blue"), 0.0), Admitted)


def test_nobody_there_means_wait_or_a_refusal_that_says_why() -> None:
    here = door()
    admitted = here.admit(ask(), 0.0)
    assert isinstance(admitted, Admitted)
    assert here.nobody(admitted, 0.0, 100, 1, expected=True) is None
    assert len(here.holds[OPEN.full_name]) == 1
    assert refused(here.nobody(admitted, 0.0, 100, 1, expected=False) or ()).code == "no_replica"
    asleep = admitted._replace(service=replace(OPEN, suspended=True))
    assert refused(here.nobody(asleep, 0.0, 100, 1, expected=True) or ()).code == "no_replica"
    assert refused(picker_gone()).status == 503


def test_only_the_open_paths_are_routed_and_clients_headers_of_ours_are_removed() -> None:
    assert all(routed(path) for path in ("/v1/completions", "/v1/responses", "/tokenize", "/detokenize"))
    assert not any(
        routed(path) for path in ("/", "/v1", "/ready", "/drain", "/tokenize/x", "/v1//x", "/v2/x", "/debug/blocks")
    )
    names = {
        "X-Octavo-Salt": "",
        "x-gateway-destination-endpoint": "",
        "X-ENVOY-retry-on": "",
        "accept": "",
        "x-other": "",
    }
    assert without_stripped(names) == ["X-Octavo-Salt", "x-gateway-destination-endpoint", "X-ENVOY-retry-on"]
