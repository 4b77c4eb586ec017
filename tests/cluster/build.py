"""Builds everything the cluster runs into a cache folder named by a hash of what it is built from.

Each file is finished under its final name or not there at all, and the folder gets its name last: a build that was
interrupted goes on where it stopped, and two at once take turns.
"""

import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import ClusterError, tail
from .image import Entry, Image, write_archive
from .layout import clusters_dir
from .progress import Step, Steps
from .versions import BINARIES, COREDNS_IMAGE, DEBIAN, PAUSE_IMAGE, PROBE_IMAGE, Binary

HERE = Path(__file__).parent
APPLETS = ("sh", "cat", "cp", "echo", "env", "grep", "id", "ls", "mkdir", "mv", "rm", "sleep", "tail", "test", "touch")


def cache_dir() -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("OCTAVO_CACHE") or home / "octavo") / "cluster"


def source_hash() -> str:
    """Of everything that is built."""
    return _hash([*(HERE / "go").rglob("*"), HERE / "versions.py", HERE / "image.py", HERE / "build.py"])


def configuration_hash() -> str:
    """Of everything that decides what a running cluster is: a test session does not reuse one of another hash."""
    tests = {*HERE.glob("test_*.py"), HERE / "fixture.py", HERE / "pytest_plugin.py", HERE / "README.md"}
    return _hash({path for path in HERE.rglob("*") if "__pycache__" not in path.parts} - tests)


def _hash(sources: Iterable[Path]) -> str:
    digest = hashlib.sha256(platform.machine().encode())
    for path in sorted(sources):
        if path.is_file():
            digest.update(f"{path.relative_to(HERE)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


class Built:
    """A finished build: its programs and the images its nodes start with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.binaries = folder / "bin"
        self.images = [folder / "base.tar", folder / "coredns.tar"]

    @property
    def path(self) -> str:
        system = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return f"{self.binaries}:{system}"


def ensure_built() -> Built:
    """The build for the present sources, made now if the cache lacks it."""
    if os.geteuid() != 0:
        raise ClusterError("the cluster needs root (namespaces, mounts, containers): run this again as root or by sudo")
    final = cache_dir() / source_hash()
    with Steps() as steps:
        install_debian_packages(steps)
        if not final.exists():
            with exclusive():
                if not final.exists():
                    build(final, steps)
    return Built(final)


@contextmanager
def exclusive() -> Iterator[None]:
    cache_dir().mkdir(parents=True, exist_ok=True)
    with (cache_dir() / "build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def install_debian_packages(steps: Steps) -> None:
    missing = sorted({package for path, package in DEBIAN.items() if not Path(path).exists()})
    if not missing:
        return
    if not shutil.which("apt-get"):
        raise ClusterError(f"these programs are missing and there is no apt-get; install them: {', '.join(missing)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing]
    with steps.step(f"installing {len(missing)} system packages", 2) as step:
        for command in (["apt-get", "update", "-qq"], install):
            finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if finished.returncode:
                raise ClusterError(f"'{' '.join(command)}' failed:\n{finished.stderr.strip()}")
            step.advance()
    absent = [path for path, package in DEBIAN.items() if not Path(path).exists()]
    if absent:
        raise ClusterError(f"installed {', '.join(missing)}, but {', '.join(absent)} did not come with it")


def build(final: Path, steps: Steps) -> None:
    partial = final.with_suffix(".partial")
    binaries = partial / "bin"
    binaries.mkdir(parents=True, exist_ok=True)
    go = shutil.which("go")
    if not go:
        raise ClusterError("Go is missing: install Go 1.26 or newer and put it on PATH")
    for binary in BINARIES:
        if not (binaries / binary.name).exists():
            with steps.step(f"building {binary.name}", binary.steps) as step:
                compile_go(go, binary, partial, step)
    kubectl = binaries / "kubectl"
    if not kubectl.is_symlink():
        kubectl.symlink_to("kube")
    with steps.step("packing images", 2) as step:
        write_archive(partial / "base.tar", base_images(binaries))
        step.advance()
        coredns = Entry("bin/coredns", (binaries / "coredns").read_bytes())
        write_archive(partial / "coredns.tar", [Image(COREDNS_IMAGE, [Entry("bin"), coredns], ["/bin/coredns"])])
    partial.rename(final)
    forget_old_builds(final)


def forget_old_builds(newest: Path) -> None:
    """Half a gigabyte each: all go but the newest and those that clusters run from."""
    in_use = {json.loads(state.read_text())["build"] for state in clusters_dir().glob("*/state.json")}
    for folder in newest.parent.iterdir():
        is_build = re.fullmatch(r"[0-9a-f]{16}(\.partial)?", folder.name)
        if is_build and folder != newest and str(folder) not in in_use:
            shutil.rmtree(folder)


def compile_go(go: str, binary: Binary, partial: Path, step: Step) -> None:
    """Go's own caches lie beside the builds: a changed source recompiles only itself, `make distclean` removes all."""
    output = partial / "out"
    environment = {
        "GOMODCACHE": str(cache_dir() / "go" / "mod"),
        "GOCACHE": str(cache_dir() / "go" / "build"),
        **os.environ,
        "CGO_ENABLED": "1" if binary.native else "0",
        "GOBIN": str(output),
        "GOFLAGS": "-modcacherw -trimpath -buildvcs=false",
        "GOTOOLCHAIN": "local",
    }
    verb = ["install"] if binary.version else ["build", "-o", str(output / binary.name)]
    flags = ["-v", "-ldflags", f"-s -w {binary.ldflags}".strip(), *(["-tags", binary.tags] if binary.tags else [])]
    log = partial / f"{binary.name}.log"
    command = [go, *verb, *flags, binary.target]
    with (
        log.open("w") as lines,
        subprocess.Popen(
            command,
            cwd=HERE / "go" / binary.module,
            env=environment,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        assert process.stdout
        try:
            for line in process.stdout:
                lines.write(line)
                step.advance()
        except BaseException:
            process.kill()
            raise
    code = process.returncode
    if code:
        raise ClusterError(f"building {binary.name} failed; {tail(log)}")
    (output / binary.name).rename(partial / "bin" / binary.name)


def base_images(binaries: Path) -> list[Image]:
    """`pause` holds a pod's namespaces; `probe` is what the cluster's tests run: its verbs (go/probe) and a shell."""
    probe = Entry("bin/probe", (binaries / "probe").read_bytes())
    shell = Entry("bin/busybox", Path("/usr/bin/busybox").read_bytes())
    links = [Entry(f"bin/{applet}", link="busybox") for applet in APPLETS]
    return [
        Image(PAUSE_IMAGE, [Entry("bin"), probe], ["/bin/probe", "pause"]),
        Image(PROBE_IMAGE, [Entry("bin"), Entry("tmp", mode=0o1777), probe, shell, *links], ["/bin/probe"]),
    ]
