"""Adapters in the engine's loop: loaded beside it, kept apart in the cache, let go when nobody uses them."""

import re
import threading
from pathlib import Path

import pytest

from octavo_engine.ipc.messages import AdapterFailed, AdapterLoaded, AdapterUnloaded
from octavo_engine.worker.adapters import AdapterTable
from octavo_engine.worker.backends.scripted import build_scripted
from tests.model.adapters import write_adapter
from tests.worker import harness
from tests.worker.backends import BACKENDS, random_llama_folder

PROMPT = list(range(40, 90))


def write(folder, seed):
    return write_adapter(folder / str(seed), Path(random_llama_folder().name), seed=seed)


@pytest.fixture(params=[1, 2])
def depth(request):
    return request.param


@pytest.fixture(params=["scripted", "cpu, float32", "cpu, int8"])
def executable(request):
    return BACKENDS[request.param]()


def texts(client, *asked):
    """Submit requests (number, adapter) at once and return their tokens."""
    for request, adapter in asked:
        client.submit(request, PROMPT, adapter=adapter)
    client.wait_finished(*((request, 0) for request, _ in asked))
    return [tuple(client.tokens[request, 0]) for request, _ in asked]


def test_each_request_has_its_own_adapters_text(executable, depth, tmp_path):
    with harness.engine(executable, 40, depth=depth) as client:
        alone = texts(client, (1, -1))
        for slot in (0, 1):
            assert isinstance(client.load(slot, write(tmp_path, slot)), AdapterLoaded)
            alone += texts(client, (2 + slot, slot))
        assert len(set(alone)) == 3
        # The same prompt three times over: blocks are shared with one's own kind only.
        together = texts(client, *((10 + n, n % 3 - 1) for n in range(9)))
        assert together == alone * 3
        client.until(lambda: client.snapshot.running == 0)
        client.scheduler.assert_idle()


def test_the_cache_knows_an_adapter_by_its_content(executable, tmp_path):
    with harness.engine(executable, 40) as client:
        first = client.load(0, write(tmp_path, 0))
        again = client.load(5, write(tmp_path / "again", 0))
        other = client.load(6, write(tmp_path, 1))
        assert first.digest == again.digest != other.digest
        texts(client, (1, 0))
        hits = client.snapshot.prefix_hit_tokens
        texts(client, (2, 6))
        assert client.snapshot.prefix_hit_tokens == hits
        assert texts(client, (3, 5)) == texts(client, (4, 0))
        client.until(lambda: client.snapshot.prefix_hit_tokens == hits + 2 * 48)


def test_an_adapter_goes_once_the_last_request_with_it_has_ended(depth, tmp_path):
    model = build_scripted("scripted://?eos=0&step=5ms")
    with harness.engine(model, 40, depth=depth) as client:
        client.load(3, write(tmp_path, 0))
        client.submit(1, PROMPT, max_tokens=60, adapter=3)
        client.submit(2, PROMPT, max_tokens=5, adapter=3)
        client.until(lambda: client.tokens.get((1, 0)))
        client.unload(3)
        client.submit(3, PROMPT, adapter=3)
        client.wait_finished((3, 0))
        assert (client.finish[3, 0], client.detail[3, 0]) == ("error", "The adapter is not loaded.")
        assert isinstance(client.wait_adapter(3), AdapterUnloaded)
        assert client.finish[1, 0] == "length"
        assert len(client.tokens[1, 0]) == 60
        # The slot is free for another one.
        assert isinstance(client.load(3, write(tmp_path, 1)), AdapterLoaded)
        assert client.load(3, tmp_path / "none").detail.startswith("There is no adapter_config.json")
        texts(client, (4, 3))


def test_an_adapter_whose_requests_were_aborted_goes_at_once(depth, tmp_path):
    model = build_scripted("scripted://?eos=0&step=5ms")
    with harness.engine(model, 40, depth=depth) as client:
        client.load(0, write(tmp_path, 0))
        client.submit(1, PROMPT, max_tokens=150, n=2, adapter=0)
        client.until(lambda: client.tokens.get((1, 1)))
        client.unload(0)
        client.abort(1)
        assert isinstance(client.wait_adapter(0), AdapterUnloaded)
        client.unload(0)
        assert isinstance(client.wait_adapter(0), AdapterUnloaded)


def test_what_cannot_be_loaded_is_said_and_harms_nobody(executable, tmp_path):
    with harness.engine(executable, 40) as client:
        failed = client.load(2, tmp_path)
        assert isinstance(failed, AdapterFailed)
        assert "adapter_config.json" in failed.detail
        client.submit(1, PROMPT, adapter=2)
        client.wait_finished((1, 0))
        assert client.finish[1, 0] == "error"
        assert len(texts(client, (2, -1))[0]) == 10


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            PermissionError(13, "Permission denied", "/a/b"),
            r"/a/b: Permission denied\); see that the engine may read it",
        ),
        (OSError("cut off"), "cut off"),
        (MemoryError(), "no memory left"),
        (KeyError("shape"), r"\(KeyError: 'shape'\); save it again"),
    ],
)
def test_whoever_asks_is_told_why_and_not_where_to_look(error, sentence, tmp_path):
    woken = threading.Event()

    def fail(_folder):
        raise error

    table = AdapterTable(fail, woken.set)
    table.load(4, tmp_path)
    assert woken.wait(20)
    (opened,) = table.opened()
    assert opened.slot == 4
    assert re.search(sentence, opened.error)
    assert str(tmp_path) in opened.error
    assert "log" not in opened.error.removeprefix(f"The adapter in {tmp_path}")
    table.close()


def test_an_adapter_without_room_harms_nobody(executable, tmp_path):
    with harness.engine(executable, 40) as client:
        (first,) = texts(client, (1, -1))

        def full(slot, adapter):
            raise MemoryError("The GPU has no room for it: unload others.")

        executable.set_adapter, set_adapter = full, executable.set_adapter
        assert client.load(0, write(tmp_path, 0)) == AdapterFailed(0, "The GPU has no room for it: unload others.")
        executable.set_adapter = set_adapter
        assert isinstance(client.load(0, write(tmp_path, 0)), AdapterLoaded)
        assert texts(client, (2, -1)) == [first]
