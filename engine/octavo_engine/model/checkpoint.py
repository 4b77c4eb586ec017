"""`Checkpoint`: a model on disk as spec + tensors by our names, whichever format it came in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from octavo_engine.model.pooling import Pooling
from octavo_engine.model.qtensor import QTensor, Stored
from octavo_engine.model.spec import ModelSpec, UnsupportedModelError


class Checkpoint(NamedTuple):
    """An opened model. `describe(name)` reads nothing of a tensor; `tensor(name)` maps it in, to be read when used.

    files: what the model digest covers. quantization: the kind most weights are stored in (`F32`, `BF16`, `Q4_1` …).
    eos_token_ids: the tokens that end a sequence, as the checkpoint says. pooling: how it makes embeddings.
    """

    spec: ModelSpec
    describe: Callable[[str], Stored]
    tensor: Callable[[str], QTensor]
    files: tuple[Path, ...]
    quantization: str
    eos_token_ids: tuple[int, ...]
    pooling: Pooling


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a GGUF file, a folder that holds exactly one, or a Hugging Face folder with safetensors.

    Raises FileNotFoundError or UnsupportedModelError, each with a sentence that says what to give instead.
    """
    try:
        return _open(path)
    except (UnsupportedModelError, OSError):
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # Metadata is read as what it should be: text where a number belongs, a list where there should be one value.
        raise UnsupportedModelError(
            f"What {path} says of itself is no model's ({type(error).__name__}: {error}); download the model again."
        ) from error


def _open(path: Path) -> Checkpoint:
    from octavo_engine.model.gguf import open_gguf
    from octavo_engine.model.safetensors import open_safetensors

    if not path.exists():
        raise FileNotFoundError(f"There is no model at {path}; give a GGUF file or a Hugging Face folder.")
    if path.is_file():
        if path.suffix == ".gguf":
            return open_gguf(path)
        raise UnsupportedModelError(f"{path} is not a .gguf file; give a GGUF file or a Hugging Face folder.")
    if (path / "config.json").is_file():
        return open_safetensors(path)
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1:
        return open_gguf(files[0])
    if files:
        raise UnsupportedModelError(f"{path} holds {len(files)} GGUF files; name one of them, such as {files[0]}.")
    raise UnsupportedModelError(f"{path} holds neither a config.json with safetensors nor a .gguf file.")
