"""How a checkpoint makes embeddings of its final hidden states, as sentence-transformers and llama.cpp write it down.

Where nothing is written they are the mean. A way that is not served is no reason to refuse the model: who asks for an
embedding is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec

Kind = Literal["mean", "last"]
"""Over all tokens, or of the last one."""


class Pooling(NamedTuple):
    """One vector of a prompt's hidden states.

    shortens: the model was trained so that the vector's beginning serves as well (Matryoshka), to one of `lengths`, any
    if none are listed. refusal: why its embeddings are not served, a sentence.
    """

    kind: Kind = "mean"
    shortens: bool = False
    lengths: tuple[int, ...] = ()
    refusal: str = ""


_KINDS: Final[dict[str, Kind]] = {
    "mean": "mean",
    # The same direction as the mean, and vectors are normalised.
    "mean_sqrt_len_tokens": "mean",
    "lasttoken": "last",
}
_GGUF_KINDS: Final = {0: "mean", 1: "mean", 2: "cls", 3: "lasttoken", 4: "rank"}
"""llama.cpp's numbers; 0 is none, which says nothing of prompts."""
_SERVED_MODULES: Final = frozenset({"Transformer", "Pooling", "Normalize"})
_BOTH_WAYS: Final = "This model attends to what follows too, which is not served: it has no embeddings here."


class _Module(msgspec.Struct):
    """One entry of `modules.json`."""

    type: str
    path: str = ""

    @property
    def name(self) -> str:
        return self.type.rpartition(".")[2]


class _PoolingConfig(msgspec.Struct):
    """The pooling module's `config.json`: one field in newer ones, a flag for each way in older ones."""

    pooling_mode: str | list[str] = []
    pooling_mode_cls_token: bool = False
    pooling_mode_max_tokens: bool = False
    pooling_mode_mean_tokens: bool = False
    pooling_mode_mean_sqrt_len_tokens: bool = False
    pooling_mode_weightedmean_tokens: bool = False
    pooling_mode_lasttoken: bool = False

    @property
    def ways(self) -> list[str]:
        """Every way of pooling that is asked for; several are joined into one long vector."""
        if self.pooling_mode:
            return [self.pooling_mode] if isinstance(self.pooling_mode, str) else self.pooling_mode
        flags = {
            "cls": self.pooling_mode_cls_token,
            "max": self.pooling_mode_max_tokens,
            "mean": self.pooling_mode_mean_tokens,
            "mean_sqrt_len_tokens": self.pooling_mode_mean_sqrt_len_tokens,
            "weightedmean": self.pooling_mode_weightedmean_tokens,
            "lasttoken": self.pooling_mode_lasttoken,
        }
        return [way for way, wanted in flags.items() if wanted] or ["mean"]


def pooling_from_folder(folder: Path, config: Mapping[str, Any]) -> Pooling:
    """Return the pooling of a Hugging Face folder whose `config.json` is `config`."""
    if config.get("use_bidirectional_attention") or config.get("is_causal") is False:
        return Pooling(refusal=_BOTH_WAYS)
    try:
        pooling = _of_modules(folder)
    except (OSError, msgspec.DecodeError) as error:
        return Pooling(refusal=f"What this model's folder says about its embeddings cannot be read ({error}).")
    lengths = config.get("matryoshka_dimensions")
    if isinstance(lengths, list) and lengths and all(type(length) is int and length > 0 for length in lengths):
        return pooling._replace(shortens=True, lengths=tuple(sorted(set(lengths))))
    return pooling._replace(shortens=config.get("is_matryoshka") is True)


def pooling_from_gguf(keys: Mapping[str, Any]) -> Pooling:
    """Return the pooling of a GGUF file's metadata."""
    architecture = keys.get("general.architecture")
    if keys.get(f"{architecture}.attention.causal") is False:
        return Pooling(refusal=_BOTH_WAYS)
    number = keys.get(f"{architecture}.pooling_type", 0)
    return _of_way(_GGUF_KINDS.get(number, f"type {number}"))


def _of_modules(folder: Path) -> Pooling:
    """Read the modules behind the model, and the pooling among them. Raises OSError, DecodeError."""
    where, modules = "1_Pooling", folder / "modules.json"
    if modules.is_file():
        paths = {module.name: module.path for module in msgspec.json.decode(modules.read_bytes(), type=list[_Module])}
        if others := sorted(paths.keys() - _SERVED_MODULES):
            return Pooling(refusal=f"This model's embeddings pass through a {others[0]} layer, which is not served.")
        if "Pooling" not in paths:
            return Pooling()
        where = paths["Pooling"]
        if Path(where).name != where:
            return Pooling(refusal="This model's modules.json names a folder elsewhere; download the model again.")
    path = folder / where / "config.json"
    if not path.is_file():
        return Pooling()
    ways = msgspec.json.decode(path.read_bytes(), type=_PoolingConfig).ways
    return _of_way(" and ".join(ways))


def _of_way(way: str) -> Pooling:
    if way in _KINDS:
        return Pooling(_KINDS[way])
    served = "the mean and the last token's"
    return Pooling(refusal=f"This model's embeddings are pooled by {way}, which is not served; {served} are.")
