"""llama.cpp, built for this machine from the source that the sdist of `llama-cpp-python` carries."""

from __future__ import annotations

import os
import shutil
import tarfile
from functools import partial
from pathlib import Path
from typing import Final

from octavo_engine.bench.peers.contender import Contender, ServerCommand, Settings
from octavo_engine.bench.peers.driver import DriverProcess
from octavo_engine.bench.peers.environment import Environment
from octavo_engine.bench.peers.errors import PeerError
from octavo_engine.bench.peers.model_files import ModelFiles
from octavo_engine.bench.peers.pins import PINS
from octavo_engine.bench.peers.point import BATCH, DECODE, PREFILL_512

_TARGETS: Final = ("llama-batched-bench", "llama-server", "llama-quantize")
_CMAKE: Final = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_CURL=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_TOOLS=ON",
    "-DLLAMA_BUILD_SERVER=ON",
)
_WITH_AMX: Final = "-DCMAKE_CXX_FLAGS=-fno-tree-dse -fno-dse"
"""GCC 12 takes a tile configuration's stores for dead (its `_tile_loadconfig` says it reads eight bytes of 64), and the
program dies at its first product."""
_BUILD_TOOLS: Final = ("cmake", "ninja", "scikit-build-core")
_OTHER_KINDS: Final = ("Q8_0", "BF16")
_READY_SECONDS: Final = 120.0
_SERVER_KIND: Final = "Q8_0"


class LlamaCpp:
    """Its `llama-batched-bench`, and `llama-server`."""

    name: Final = "llamacpp"
    title: Final = "llama.cpp"

    def install(self, environment: Environment) -> dict[str, str]:
        """Build its tools. Minutes; needs a C++ compiler."""
        pin = PINS[self.name]
        environment.step(f"installing {', '.join(_BUILD_TOOLS)}")
        environment.pip("install", *_BUILD_TOOLS)
        sdist, source = environment.folder / "sdist", environment.folder / "source"
        environment.step(f"fetching the source in {pin.requirement}")
        only = ("--no-deps", "--no-binary", ":all:", "--no-build-isolation")
        environment.pip("download", *only, "--dest", str(sdist), pin.requirement)
        (archive,) = sdist.glob("*.tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(source, filter="data")
        found = sorted(source.glob("*/vendor/llama.cpp/CMakeLists.txt"))
        if not found:
            raise PeerError(f"{self.name} cannot be installed: {archive.name} carries no source of llama.cpp any more.")
        tools = environment.venv / "bin"
        build = environment.folder / "build"
        cmake = str(tools / "cmake")
        options = [*_CMAKE, _WITH_AMX] if "amx_tile" in cpu_flags() else _CMAKE
        environment.step("configuring")
        environment.call(cmake, "-G", "Ninja", "-S", str(found[0].parent), "-B", str(build), *options)
        jobs = str(len(os.sched_getaffinity(0)))
        environment.step(f"building {', '.join(_TARGETS)}")
        environment.call(cmake, "--build", str(build), "--parallel", jobs, "--target", *_TARGETS)
        for name in _TARGETS:
            shutil.copy2(build / "bin" / name, tools / name)
        for folder in (sdist, source, build):
            shutil.rmtree(folder)
        return {pin.distribution: archive.name.removesuffix(".tar.gz").rpartition("-")[2]}

    def contenders(self, environment: Environment, files: ModelFiles, settings: Settings) -> list[Contender]:
        """Measure the file itself, and at one stream and in a prefill the formats that may be faster there."""
        single = frozenset({DECODE.name, PREFILL_512.name})
        models = {"file": files.gguf, **{kind: self._requantized(environment, files, kind) for kind in _OTHER_KINDS}}
        found = []
        for form, model in models.items():
            title = f"{self.title}, {form}"
            told = {
                "binary": str(environment.venv / "bin" / "llama-batched-bench"),
                "model": str(model),
                "threads": settings.threads,
                "versions": environment.versions() or {},
            }
            points = single | {BATCH.name} if form == "file" else single
            start = partial(DriverProcess, title, environment, "with_llamacpp", told)
            found.append(Contender(f"{self.name}:{form}", title, points, start))
        return found

    def _requantized(self, environment: Environment, files: ModelFiles, kind: str) -> Path:
        target = files.requantized(kind)
        if not target.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            partial_file = target.with_suffix(".partial")
            quantize = str(environment.venv / "bin" / "llama-quantize")
            environment.call(quantize, "--allow-requantize", str(files.gguf), str(partial_file), kind)
            partial_file.rename(target)
        return target

    def server(
        self, environment: Environment, files: ModelFiles, settings: Settings, port: int
    ) -> ServerCommand | None:
        """Serve Q8_0, its fastest format under load, with one cache for all slots."""
        binary = str(environment.venv / "bin" / "llama-server")
        model = self._requantized(environment, files, _SERVER_KIND)
        context = settings.max_num_seqs * 1024
        command = [binary, "-m", str(model), "--host", "127.0.0.1", "--port", str(port), "-kvu", "--no-webui"]
        command += ["-t", str(settings.threads), "-np", str(settings.max_num_seqs), "-c", str(context)]
        return ServerCommand(f"llama-server, {_SERVER_KIND}", command, {}, self.name, _READY_SECONDS)


def cpu_flags() -> set[str]:
    """Return what the processor says it can do, in the kernel's words; nothing where the kernel does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return {flag for line in lines if line.startswith(("flags", "Features")) for flag in line.split()}
