"""Keys are asked for on every route but the probes, whatever the path looks like, and are read again (B21)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from starlette.routing import Route

from octavo_engine import contract
from octavo_engine.server.app import public_application
from octavo_engine.server.counters import Counters
from octavo_engine.server.engine_client import EngineClient
from octavo_engine.server.lifecycle import Lifecycle
from octavo_engine.server.settings import ServerSettings
from octavo_engine.server.state import ServerState
from tests.server.launch import Server, serving, wait_until
from tests.server.test_refusals import check_error

KEY = "sk-octavo-Sesame"
ODD_PATHS = (
    "//v1/models",
    "/V1/models",
    "/v1/models/",
    "/v1//models",
    "/health/",
    "/metrics/x",
    "/docs",
    "/redoc",
    "/",
)
WRONG: dict[str, list[tuple[str, str | bytes]]] = {
    "none": [],
    "empty": [("authorization", "")],
    "no key": [("authorization", "Bearer")],
    "another": [("authorization", "Bearer sk-octavo-sesame")],
    "a part of it": [("authorization", f"Bearer {KEY[:-1]}")],
    "more than it": [("authorization", f"Bearer {KEY}x")],
    "another scheme": [("authorization", f"Basic {KEY}")],
    "not ASCII": [("authorization", "Bearer schlüssel".encode())],
    "in another header": [("x-api-key-hint", KEY)],
    "two": [("authorization", "Bearer a"), ("authorization", f"Bearer {KEY}")],
}


def routes() -> list[tuple[str, str]]:
    """Return (method, path) of every route that the application has, so that a new one is covered."""
    counters = Counters()
    state = ServerState(ServerSettings(served_names=("m",)), EngineClient(counters, 30), counters, Lifecycle(0, 0))
    return [
        (method, route.path.replace("{name:path}", "scripted"))
        for route in public_application(state).routes  # type: ignore[attr-defined]
        if isinstance(route, Route)
        for method in sorted(route.methods or ())
    ]


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    folder = tmp_path_factory.mktemp("keyed")
    keys = folder / "keys"
    keys.write_text(f"{KEY}\n")
    with serving(folder, "scripted://?eos=0", "--api-keys-file", str(keys), "--drain-propagation", "0") as server:
        yield server, keys


@pytest.mark.parametrize("wrong", WRONG)
def test_b21_every_route_but_the_probes_asks_for_a_key(keyed: tuple[Server, Path], wrong: str) -> None:
    server, _ = keyed
    with server.client() as client:
        for method, path in routes():
            answer = client.request(method, path, headers=WRONG[wrong])
            if path in contract.PATHS_WITHOUT_KEY:
                assert answer.status_code == 200, (method, path)
                continue
            assert answer.status_code == 401, (method, path)
            assert answer.headers["www-authenticate"].startswith("Bearer"), (method, path)
            if method != "HEAD":
                check_error(answer, 401)


def test_b21_an_odd_path_opens_nothing(keyed: tuple[Server, Path]) -> None:
    server, _ = keyed
    with server.client() as client:
        for path in ODD_PATHS:
            # As it stands, not as a client would tidy it up.
            request = client.build_request("GET", "/")
            request.url = httpx.URL(server.url).copy_with(raw_path=path.encode())
            assert client.send(request).status_code == 401, path
        assert client.options("/v1/chat/completions", headers={"origin": "https://elsewhere"}).status_code == 401


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_b21_a_key_opens_whatever_the_scheme_s_letters(keyed: tuple[Server, Path], scheme: str) -> None:
    server, _ = keyed
    assert server.get(contract.PATH_MODELS, headers={"authorization": f"{scheme} {KEY}"}).status_code == 200


def test_b21_keys_are_read_again_and_never_logged(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"{KEY}\n")
    with serving(tmp_path, "scripted://?eos=0", "--api-keys-file", str(keys), "--drain-propagation", "0") as server:

        def opens(key: str) -> bool:
            answer = server.get(contract.PATH_MODELS, headers={"authorization": f"Bearer {key}"})
            return answer.status_code == 200

        assert opens(KEY)
        keys.write_text("another-key\n")
        wait_until(lambda: opens("another-key"), 10, "the new key opens")
        assert not opens(KEY)
        keys.write_text("")
        # A bad file leaves the old keys in force, and is told of once it has been read.
        wait_until(lambda: opens("another-key") and "holds no key" in server.text_log(), 10, "told of")
        log = server.text_log()
    assert KEY not in log
    assert "another-key" not in log
