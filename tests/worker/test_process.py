"""The engine process itself: started as the API process starts it, over the real pipes."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from octavo_engine.ipc.config import EngineConfig
from octavo_engine.ipc.launch import launch_engine
from octavo_engine.ipc.messages import Failed, Loaded, Progress, SamplingParams, Shutdown, Step, StopRule, Submit
from octavo_engine.ipc.transport import ServerEndpoint
from octavo_engine.worker.sizing import MIN_BATCHED_TOKENS
from tests.worker.backends import BACKENDS, write_random_llama
from tests.worker.driver import Driver

SCRIPTED = "scripted://?eos=0&blocks=32"


@contextmanager
def engine(model=SCRIPTED, **config):
    """Start an engine; yields its process, its endpoint, and a function that returns the next message."""
    endpoint = ServerEndpoint()
    process = launch_engine(EngineConfig(model=model, socket_folder=str(endpoint.folder), **config))
    runner = asyncio.Runner()
    try:
        yield process, endpoint, lambda: runner.run(asyncio.wait_for(endpoint.receive(), 30))
    finally:
        process.kill()
        process.wait()
        runner.close()
        endpoint.close()


def until(receive, kind):
    while not isinstance(message := receive(), kind):
        assert not isinstance(message, Failed), message.detail
    return message


def submit(endpoint, request, prompt, max_tokens=8):
    data = np.array(prompt, dtype="<i4").tobytes()
    endpoint.send(Submit(request, data, SamplingParams(seed=1, temperature=0.0), StopRule(max_tokens=max_tokens)))


def answer(receive, request):
    """Return the tokens of a request once it has ended."""
    tokens = []
    while True:
        for out in until(receive, Step).outputs:
            tokens += out.tokens if out.request == request else ()
            if out.request == request and out.finish:
                return tokens


def test_it_loads_answers_and_leaves():
    with engine() as (process, endpoint, receive):
        assert isinstance(receive(), Progress)
        loaded = until(receive, Loaded)
        assert (loaded.backend, loaded.num_blocks, loaded.block_size) == ("scripted", 32, 16)
        assert loaded.max_model_len == 512  # what the pool holds of the model's 8192
        submit(endpoint, 1, [1, 2, 3])
        assert len(answer(receive, 1)) == 8
        endpoint.send(Shutdown())
        assert process.wait(timeout=10) == 0


def test_a_real_model_answers_as_its_runner_does_alone(tmp_path):
    write_random_llama(tmp_path)
    driver = Driver(BACKENDS["cpu, float32"]())
    text = driver.generate(driver.live([1, 2, 3], seed=1, temperature=0.0), 8)
    with engine(str(tmp_path), kv_cache_memory=1 << 20, max_num_seqs=4, dtype="float32") as (_, endpoint, receive):
        loaded = until(receive, Loaded)
        assert (loaded.backend, loaded.dtype, loaded.quantization) == ("cpu", "float32", "F32")
        # 2 layers of keys and values, 2 heads of 16 float32 for each of 16 tokens
        assert loaded.num_blocks == (1 << 20) // (2 * 2 * 2 * 16 * 4 * 16)
        assert loaded.max_model_len == 256
        assert loaded.eos_token_ids == (2,)
        submit(endpoint, 1, [1, 2, 3])
        assert answer(receive, 1) == text


@pytest.mark.parametrize(("speculation", "drafts"), [("auto", False), ("ngram", True), ("off", False)])
def test_a_scripted_model_is_speculated_on_only_if_that_is_asked_for(speculation, drafts):
    script = ",".join(["97,98,99,100"] * 40)
    with engine(f"scripted://?blocks=32&step=5ms&script={script}", speculation=speculation) as (_, endpoint, receive):
        until(receive, Loaded)
        submit(endpoint, 1, [1, 2, 3], max_tokens=120)
        assert answer(receive, 1) == [97, 98, 99, 100] * 30
        while (last := until(receive, Step).snapshot).running:
            pass
        assert (last.drafted_tokens > 0, last.accepted_tokens > 0) == (drafts, drafts)
        assert last.busy_seconds >= last.kernel_seconds > 0


def test_it_never_loads_torch_with_the_scripted_model():
    with engine() as (process, endpoint, receive):
        until(receive, Loaded)
        submit(endpoint, 1, [1, 2, 3])
        answer(receive, 1)
        assert "torch" not in Path(f"/proc/{process.pid}/maps").read_text()
        probe = "import sys, octavo_engine.worker.start; raise SystemExit('torch' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", probe], check=False).returncode == 0


def test_its_arguments_name_no_model_and_no_folder():
    with engine() as (process, endpoint, receive):
        until(receive, Loaded)
        arguments = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        assert b"scripted" not in arguments
        assert str(endpoint.folder).encode() not in arguments


def test_signals_are_the_api_process_business():
    with engine() as (process, endpoint, receive):
        until(receive, Loaded)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        submit(endpoint, 1, [1, 2, 3])
        assert len(answer(receive, 1)) == 8
        assert process.poll() is None


@pytest.mark.parametrize(
    ("model", "config", "sentence"),
    [
        ("scripted://?speed=9", {}, "has no option 'speed'"),
        (SCRIPTED, {"max_model_len": 513}, "Use --max-model-len 512 or less"),
        (SCRIPTED, {"max_model_len": 9999}, "use 8192 or less"),
        (SCRIPTED, {"max_num_batched_tokens": 4, "max_num_seqs": 8}, "--max-num-batched-tokens"),
        (SCRIPTED, {"block_size": 32}, "write block_size=32"),
        (SCRIPTED, {"tensor_parallel_size": 2}, "--tensor-parallel-size"),
        ("/nowhere/model.gguf", {}, "There is no model at /nowhere/model.gguf"),
        ("LLAMA", {"dtype": "float16"}, "use bfloat16"),
        ("LLAMA", {"quantization": "fp8"}, "use int8"),
        ("LLAMA", {"dtype": "float32", "quantization": "int8"}, "leave one of the two out"),
        ("LLAMA", {"kv_cache_dtype": "float16"}, "use bfloat16, float32, int8 or auto"),
        ("LLAMA", {"block_size": 32}, "use --block-size 16"),
        ("LLAMA", {"max_model_len": 257}, "use 256 or less"),
        ("LLAMA", {"kv_cache_memory": 1 << 50}, "--kv-cache-memory 1048576.00Gi does not fit"),
    ],
)
def test_a_start_that_cannot_be_ends_with_a_sentence(model, config, sentence, tmp_path):
    if model == "LLAMA":
        write_random_llama(tmp_path)
        model = str(tmp_path)
    with engine(model, **config) as (process, _, receive):
        while isinstance(message := receive(), Progress):
            pass
        assert isinstance(message, Failed)
        assert sentence in message.detail
        assert "Traceback" not in message.detail
        assert process.wait(timeout=10) == 1


def test_a_step_that_hangs_ends_the_engine_with_a_sentence():
    with engine("scripted://?hang=77", step_timeout_seconds=1.0) as (process, endpoint, receive):
        until(receive, Loaded)
        submit(endpoint, 1, [1, 77])
        while isinstance(message := receive(), Step):
            pass
        assert isinstance(message, Failed)
        assert "has not ended after 1 s" in message.detail
        assert process.wait(timeout=10) == 1


def test_the_step_size_is_measured_on_a_cpu():
    """A step that takes too long whatever is in it leaves the least size, however busy the machine is."""
    with engine("scripted://?step=200ms", max_num_seqs=8) as (_, _, receive):
        assert until(receive, Loaded).max_num_batched_tokens == MIN_BATCHED_TOKENS


def test_the_engine_dies_with_the_process_that_started_it():
    program = textwrap.dedent(
        f"""
        import sys, time
        from octavo_engine.ipc.config import EngineConfig
        from octavo_engine.ipc.launch import launch_engine
        from octavo_engine.ipc.transport import ServerEndpoint
        endpoint = ServerEndpoint()
        print(launch_engine(EngineConfig(model={SCRIPTED!r}, socket_folder=str(endpoint.folder))).pid, flush=True)
        print(endpoint.folder, flush=True)
        time.sleep(60)
        """
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        pid, folder = int(parent.stdout.readline()), Path(parent.stdout.readline().strip())
        assert Path(f"/proc/{pid}").exists()
        parent.kill()
        parent.wait()
    for left in folder.iterdir():
        left.unlink()
    folder.rmdir()
    deadline = time.monotonic() + 10
    while _alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_it_is_started_from_the_main_thread_only():
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool, pytest.raises(RuntimeError, match="main thread"):
        pool.submit(launch_engine, EngineConfig(model=SCRIPTED, socket_folder=os.devnull)).result()
