"""What the layers of an image hold, each packed once and kept by a key of what it is made from."""

from __future__ import annotations

import compileall
import fcntl
import hashlib
import json
import os
import py_compile
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from images import distributions, elf, oci

REPOSITORY = Path(__file__).resolve().parent.parent
TAG = f"python{sys.version_info.major}.{sys.version_info.minor}"
PYTHON = Path("opt/octavo/python")
SITE_PACKAGES = PYTHON / "lib" / TAG / "site-packages"
MODELS = Path("opt/octavo/models")
KEPT_SECONDS = 3600
_SOURCES = ("pyproject.toml", "CMakeLists.txt", "operator", "engine", "kernels", "images")
_COMMAND = """
import os
import signal

# The kernel drops a SIGTERM that a container's first process does not handle: a pod deleted in its first moments would
# stay for its whole grace period. The command's own handlers come with its imports, seconds later.
signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))

from octavo_engine.cli import main

main()
"""
_NOT_SHIPPED = shutil.ignore_patterns(
    "__pycache__", "site-packages", "test", "tests", "idlelib", "tkinter", "_tkinter*", "_test*.so", "turtledemo",
    "ensurepip", "lib2to3", "pydoc_data", "*.a", "config-*",
)  # fmt: skip


def cache_folder() -> Path:
    """Return the root of Octavo's caches on this machine."""
    base = os.environ.get("OCTAVO_CACHE")
    return Path(base) if base else Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "octavo"


@cache
def source_digest() -> str:
    """Return a digest of the sources an image is made from, taken once per process."""
    digest = hashlib.sha256()
    for root in _SOURCES:
        paths = [REPOSITORY / root] if (REPOSITORY / root).is_file() else sorted((REPOSITORY / root).rglob("*"))
        for path in paths:
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(str(path.relative_to(REPOSITORY)).encode() + b"\0" + path.read_bytes() + b"\0")
    digest.update("".join(_versions(["octavo[engine,operator]"])).encode() + sys.version.encode())
    return digest.hexdigest()[:12]


def _versions(requirements: list[str]) -> list[str]:
    return [f"{n}=={d.version}\n" for n, d in sorted(distributions.closure(requirements).items())]


def interpreter() -> oci.Layer:
    """Return the running interpreter and its standard library, compiled, without tests and tools."""
    return _kept("interpreter", [sys.version, sys.base_prefix], _fill_interpreter)


def packages(extra: str) -> oci.Layer:
    """Return the distributions that `octavo[extra]` requires, without Octavo itself."""
    wanted = distributions.closure([f"octavo[{extra}]"])

    def fill(root: Path) -> None:
        site = root / SITE_PACKAGES
        site.mkdir(parents=True)
        for name, dist in wanted.items():
            if name != "octavo":
                distributions.copy_distribution(dist, site)
        for compiled in list(site.rglob("__pycache__")):
            shutil.rmtree(compiled)
        _compile(site)

    return _kept(f"packages-{extra}", [sys.version, *_versions([f"octavo[{extra}]"])], fill)


def system() -> oci.Layer:
    """Return the system's shared libraries that all of it loads, the accounts and the certificates."""
    return _kept("system", [sys.version, *_versions(["octavo[engine,operator]"])], _fill_system)


def octavo() -> oci.Layer:
    """Return Octavo itself: its wheel, built from the working tree, and the `octavo` command."""
    return _kept("octavo", [source_digest()], _fill_octavo)


def models() -> oci.Layer:
    """Return the bundled model: pods have no way out."""
    from octavo_engine.model.pull import pull

    model = pull("bundled://smollm2-135m-instruct")

    def fill(root: Path) -> None:
        (root / MODELS).mkdir(parents=True)
        shutil.copytree(model.parent, root / MODELS / model.parent.name)

    return _kept("models", [f"{model.name} {model.stat().st_size} {model.parent.name}"], fill)


def _kept(name: str, key: list[str], fill: Callable[[Path], None]) -> oci.Layer:
    """Return the layer kept under this key, packed by `fill` if there is none; older ones of the name go."""
    folder = cache_folder() / "images" / "layers"
    folder.mkdir(parents=True, exist_ok=True)
    tar = folder / f"{name}-{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:12]}.tar"
    described = tar.with_suffix(".json")
    if not described.exists():
        with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=folder) as scratch:
            fill(Path(scratch))
            layer = oci.write_layer(Path(scratch), tar)
        described.write_text(json.dumps({"digest": layer.digest, "size": layer.size}))
        discard_old(folder, f"{name}-*", keep=tar.stem)
    return oci.Layer(tar, **json.loads(described.read_text()))


@contextmanager
def exclusive() -> Iterator[None]:
    """Hold the cache's lock: two checkouts that build at once take turns."""
    lock = cache_folder() / "images" / "lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def discard_old(folder: Path, pattern: str, *, keep: str) -> None:
    """Remove files of the pattern that nobody can be importing any more: not `keep`, and written an hour ago."""
    for path in folder.glob(pattern):
        if path.is_file() and path.stem != keep and time.time() - path.stat().st_mtime > KEPT_SECONDS:
            path.unlink(missing_ok=True)


def _fill_interpreter(root: Path) -> None:
    prefix = Path(sys.base_prefix)
    (root / PYTHON / "bin").mkdir(parents=True)
    shutil.copy2((prefix / "bin" / TAG).resolve(), root / PYTHON / "bin" / TAG)
    (root / PYTHON / "bin/python3").symlink_to(TAG)
    shutil.copytree(prefix / "lib" / TAG, root / PYTHON / "lib" / TAG, ignore=_NOT_SHIPPED, symlinks=True)
    _compile(root / PYTHON / "lib" / TAG)


def _fill_system(root: Path) -> None:
    prefix = Path(sys.base_prefix)
    site = Path(str(distributions.closure(["numpy"])["numpy"].locate_file("")))
    objects = [(prefix / "bin" / TAG).resolve()]
    objects += [path for path in elf.shared_objects(prefix / "lib" / TAG / "lib-dynload") if "tkinter" not in path.name]
    for dist in distributions.closure(["octavo[engine,operator]"]).values():
        files = [Path(str(dist.locate_file(file))) for file in dist.files or () if ".so" in file.name]
        objects += [path for path in files if path.is_file()]
    for library in elf.system_libraries(objects, inside=[site, prefix / "lib" / TAG]):
        place = library if "ld-linux" in library.name else Path("/usr/lib/x86_64-linux-gnu") / library.name
        target = root / str(place).lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(library.resolve(), target)
    (root / "etc").mkdir(parents=True, exist_ok=True)
    (root / "etc/passwd").write_text("root:x:0:0::/:/sbin/nologin\noctavo:x:65532:65532::/tmp:/sbin/nologin\n")
    (root / "etc/group").write_text("root:x:0:\noctavo:x:65532:\n")
    (root / "etc/nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files dns\n")
    certificates = Path("/etc/ssl/certs/ca-certificates.crt")
    if certificates.exists():
        (root / "etc/ssl/certs").mkdir(parents=True)
        shutil.copy2(certificates, root / str(certificates).lstrip("/"))
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)


def _fill_octavo(root: Path) -> None:
    site = root / SITE_PACKAGES
    site.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="octavo-wheel-") as scratch:
        # Its own build folder: the editable installation's belongs to the development environment.
        command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", scratch]
        subprocess.run([*command, "-C", f"build-dir={scratch}/build", str(REPOSITORY)], check=True)
        with zipfile.ZipFile(next(Path(scratch).glob("*.whl"))) as archive:
            archive.extractall(site)
    _compile(site)
    command_file = root / "usr/bin/octavo"
    command_file.parent.mkdir(parents=True)
    command_file.write_text(f"#!/{PYTHON}/bin/{TAG}\n{_COMMAND}")
    command_file.chmod(0o755)


def _compile(folder: Path) -> None:
    """Compile to bytecode that is valid whatever the files' times are: a layer's times are all zero."""
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(str(folder), quiet=2, workers=0, invalidation_mode=mode, stripdir=str(folder), force=True)
