"""Python's share of a step: the engine process's wall less the time a step is stated to take in native code.

    python benchmarks/engine_loop.py --streams 1,64 --step-ms 3,35 [--vocab 49152] [--profile]

The engine process is real (loop, scheduler, runner, sampler, messages) over a model whose steps sleep; its messages
are received and read here, and that is all. The CPU time is the engine process's, its start excluded: on a busy
machine it says more than the wall. With --profile the loop is profiled and the heaviest functions printed (their sum is
too high).
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import os
import pstats
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo_engine.ipc.config import EngineConfig
from octavo_engine.ipc.messages import Loaded, Refused, SamplingParams, Shutdown, Snapshot, Step, StopRule, Submit
from octavo_engine.ipc.transport import EngineEndpoint, ServerEndpoint
from octavo_engine.model.spec import UnsupportedModelError
from octavo_engine.worker.backends.scripted import ScriptedKV
from octavo_engine.worker.executable import ALL, ModelStep, OpenedAdapter
from octavo_engine.worker.load import LoadedModel
from octavo_engine.worker.start import build_engine

BLOCKS = 16384


class StatedModel:
    """`Executable` that computes nothing: it sleeps for the stated time, as kernels release the interpreter's lock.

    Every row's logits are the same.
    """

    max_position = 4096

    def __init__(self, seconds: float, vocab: int) -> None:
        self.layout = ScriptedKV(16, (0,))
        self.vocab_size, self._seconds = vocab, seconds
        self._inside = 0.0
        rows = np.random.default_rng(0).standard_normal((256, vocab)).astype(np.float32)
        self._logits: NDArray[np.float32] = rows

    def kernel_seconds(self) -> float:
        return self._inside

    def open_adapter(self, folder: Path) -> OpenedAdapter:
        raise UnsupportedModelError("This model computes nothing, and has no adapters.")

    def set_adapter(self, slot: int, adapter: OpenedAdapter | None) -> None:
        """There is none."""

    def plan(self, step: ModelStep) -> ModelStep:
        return step

    def embed(self, plan: ModelStep) -> None:
        return None

    def forward(self, plan: ModelStep, x: None) -> None:
        started = time.perf_counter()
        if self._seconds:
            time.sleep(self._seconds)
        self._inside += time.perf_counter() - started

    def logits(self, plan: ModelStep, x: None, wanted: slice = ALL) -> NDArray[np.float32]:
        return self._logits[: len(plan.logit_tokens[wanted])]


def run_engine(folder: str, options: argparse.Namespace) -> None:
    """The engine process."""
    model = LoadedModel(
        StatedModel(options.seconds, options.vocab),
        4096, "benchmark", "none", "none", "none", "benchmark", "cpu", (), (BLOCKS,),
    )  # fmt: skip
    config = EngineConfig(
        "benchmark", folder, max_num_seqs=256, max_num_batched_tokens=4096, speculation=options.speculation
    )
    with EngineEndpoint(folder) as endpoint:
        engine = build_engine(model, config, lambda stage, fraction: None)
        endpoint.send(Loaded("benchmark", options.vocab, 4096, 16, BLOCKS, 256, 4096, "none", "none", "benchmark"))
        executor = engine.executor()
        profile = cProfile.Profile()
        if options.profile:
            profile.enable()
        loop, before = engine.loop(config, executor, endpoint), time.process_time()
        loop.run()
        used = time.process_time() - before
        print(f"engine process: {1000 * used / max(1, options.steps):.3f} ms CPU a step", flush=True)
        if options.profile:
            profile.disable()
            pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(40)
        executor.close()


async def drive(streams: int, tokens: int, options: argparse.Namespace) -> dict[str, Any]:
    """Let `streams` requests decode `tokens` each; return the figures of the middle of the run."""
    link = ServerEndpoint()
    arguments = [sys.executable, __file__, "--engine", str(link.folder), "--seconds", str(options.seconds)]
    arguments += [
        "--steps",
        str(options.steps),
        "--vocab",
        str(options.vocab),
        "--speculation",
        options.speculation,
    ]
    process = subprocess.Popen(arguments + (["--profile"] if options.profile else []))  # noqa: ASYNC220
    snapshots: list[Snapshot] = []
    try:
        while not isinstance(await link.receive(), Loaded):
            pass
        prompt = np.random.default_rng(1).integers(3, 200, (streams, 64)).astype("<i4")
        for request in range(streams):
            sampling = SamplingParams(seed=request, temperature=options.temperature)
            link.send(Submit(request, prompt[request].tobytes(), sampling, StopRule(tokens, ignore_eos=True)))
        open_requests = streams
        while open_requests:
            message = await link.receive()
            if isinstance(message, Refused):
                raise RuntimeError(message.detail)
            if isinstance(message, Step):
                open_requests -= sum(bool(out.finish) for out in message.outputs)
                if message.snapshot.running == streams and message.snapshot.step_seconds:
                    snapshots.append(message.snapshot)
        link.send(Shutdown())
        process.wait(timeout=20)
    finally:
        process.kill()
        link.close()
    first, last = snapshots[len(snapshots) // 5], snapshots[-2]
    steps = snapshots.index(last) - snapshots.index(first)
    busy = last.busy_seconds - first.busy_seconds
    kernel = last.kernel_seconds - first.kernel_seconds
    return {
        "streams": streams,
        "step ms": 1000 * busy / steps,
        "outside kernels ms": 1000 * (busy - kernel) / steps,
        "share": 1 - kernel / busy,
    }


def main() -> None:
    """Run what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", default="1,64")
    parser.add_argument("--step-ms", default="3,35", help="native milliseconds of a step, for each number of streams")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--vocab", type=int, default=512)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--speculation", default="off")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.engine:
        run_engine(options.engine, options)
        return
    print(f"load {os.getloadavg()[0]:.1f}")
    for streams, milliseconds in zip(options.streams.split(","), options.step_ms.split(","), strict=True):
        options.seconds = float(milliseconds) / 1000
        figures = asyncio.run(drive(int(streams), options.steps, options))
        print(
            f"{figures['streams']:4d} streams: step {figures['step ms']:.2f} ms, outside kernels "
            f"{figures['outside kernels ms']:.3f} ms, share {figures['share']:.1%}"
        )


if __name__ == "__main__":
    main()
