"""Perplexity by the engine's own prompt log-probabilities: what a faster arithmetic costs in quality.

Each window is a prompt of its own: its first token has no probability, every other one counts. Perplexity is
exp(-mean log-probability). The path is the one that serves: chunks, cache and kernels of the running configuration.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple, get_args

import msgspec

from octavo_engine.bench.harness import BenchError, Harness, Tell
from octavo_engine.bench.machine import Machine
from octavo_engine.bench.report import Table
from octavo_engine.bench.statistics import number
from octavo_engine.bench.workload import Item
from octavo_engine.ipc.config import DType, EngineConfig, KVCacheDType, Quantization
from octavo_engine.model.source import resolve
from octavo_engine.server.tokenizer import EncodingError, TokenizerError, load_tokenizer
from octavo_engine.worker.load import SCRIPTED_SCHEME
from octavo_engine.worker.sizing import ContextError, StartError

BUILT_IN_TEXT: Final = "pydoc_data.topics"
"""Python's own reference texts: the same on every machine of a Python version."""
WINDOW: Final = 1024


class Text(NamedTuple):
    """A text cut into windows of token ids."""

    name: str
    windows: list[tuple[int, ...]]


class Quality(msgspec.Struct, frozen=True):
    """One configuration on one text: `excess` is its perplexity over the reference's, minus one."""

    configuration: str
    text: str
    perplexity: float
    excess: float
    worst_window_excess: float
    tokens: int


class QualityError(ValueError):
    """The text or the configuration cannot be used; the message is one sentence with the remedy."""


class Beside(msgspec.Struct, frozen=True):
    """The perplexity told beside a speed: of `windows` windows of `text`, or why it was not measured."""

    text: str
    windows: int
    perplexity: float | None
    why_not: str = ""

    def row(self) -> tuple[str, str]:
        """Return it as a row of a table; `note` belongs below."""
        title = f"perplexity of this configuration on {self.text}"
        if self.perplexity is None:
            return title, "not measured"
        return title, number(self.perplexity)

    @property
    def note(self) -> str:
        """Why it was not measured, in a sentence; empty if it was."""
        return f"No perplexity: {self.why_not}" if self.why_not else ""


def read_text(name: str, model: str, count: int, window: int = WINDOW, flag: str = "--windows") -> Text:
    """Return `count` windows of a text (0: all), spread evenly over it. `name` is a path or the built-in text's name.

    `flag` is the option that `count` comes from. Raises QualityError.
    """
    if name == BUILT_IN_TEXT:
        from pydoc_data.topics import topics

        content = "\n".join(topics[key] for key in sorted(topics))
    else:
        try:
            content = Path(name).read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise QualityError(f"{name} cannot be read ({error.strerror}): give a text file.") from error
    source = model if model.startswith(SCRIPTED_SCHEME) else resolve(model)
    try:
        ids = load_tokenizer(source).encode(content, control=False, add_special=False)
    except (TokenizerError, EncodingError, OSError) as error:
        raise QualityError(f"The model cannot read a text: {error}") from error
    whole = len(ids) // window
    if whole < max(1, count):
        raise QualityError(f"{name} has {whole} windows of {window} tokens: give a longer text or a smaller {flag}.")
    chosen = [index * whole // count for index in range(count)] if count else range(whole)
    return Text(name, [tuple(ids[index * window : (index + 1) * window]) for index in chosen])


def log_probabilities(harness: Harness, text: Text, tell: Tell | None = None) -> list[float]:
    """Return each window's summed log-probability. Raises BenchError if the engine gives another number of them."""
    run = harness.run([Item(window, 1) for window in text.windows], tell, score=True)
    for window, found in zip(text.windows, run.logprobs, strict=True):
        if len(found) != len(window) - 1:
            raise BenchError(f"A window of {len(window)} tokens was answered with {len(found)} log-probabilities.")
        if not all(map(math.isfinite, found)):
            raise BenchError("A token of a window has no finite log-probability: are the model's files damaged?")
    return [math.fsum(found) for found in run.logprobs]


def perplexity(sums: Sequence[float], text: Text) -> float:
    """Return exp(-mean log-probability) of the windows."""
    return _exp(-math.fsum(sums) / scored_tokens(text))


def scored_tokens(text: Text) -> int:
    """Return how many tokens of a text have a probability."""
    return sum(len(window) - 1 for window in text.windows)


def compare(configuration: str, text: Text, sums: Sequence[float], reference: Sequence[float]) -> Quality:
    """Return a configuration's quality on a text, beside the reference's sums on it."""
    found = perplexity(sums, text)
    excesses = [
        _exp((before - after) / (len(window) - 1)) - 1
        for window, after, before in zip(text.windows, sums, reference, strict=True)
    ]
    # By the difference of the logarithms: two perplexities that no float holds still have a ratio.
    excess = _exp((math.fsum(reference) - math.fsum(sums)) / scored_tokens(text)) - 1
    return Quality(configuration, text.name, found, excess, max(excesses), scored_tokens(text))


def _exp(exponent: float) -> float:
    """Return the exponential function, infinite where a float ends: damaged weights score as badly as that."""
    try:
        return math.exp(exponent)
    except OverflowError:
        return math.inf


class BesideSpeed:
    """Takes the perplexity beside a speed. What can be wrong with it is found before anything is measured.

    A perplexity that cannot be had costs no other figure: it is told as not measured, with the reason.
    """

    def __init__(self, harness: Harness, windows: int) -> None:
        """Read `windows` windows of the built-in text."""
        self._harness = harness
        self._windows = windows
        self._text: Text | None = None
        self._why_not = ""
        try:
            context = harness.config.max_model_len
            if context <= WINDOW:
                raise QualityError(
                    f"a window of {WINDOW:,} tokens needs a context of one more, this one has {context:,}."
                )
            self._text = read_text(BUILT_IN_TEXT, harness.config.model, windows, flag="--perplexity-windows")
        except QualityError as error:
            self._why_not = str(error)

    def measure(self, tell: Callable[[str], Tell]) -> Beside:
        """Score the windows."""
        value = None
        if self._text is not None:
            try:
                value = perplexity(log_probabilities(self._harness, self._text, tell("perplexity")), self._text)
            except (BenchError, StartError) as error:
                self._why_not = str(error)
        return Beside(BUILT_IN_TEXT, self._windows, value, self._why_not)


def measure(
    base: EngineConfig,
    reference: str,
    configurations: Sequence[str],
    texts: Sequence[Text],
    load: Callable[[EngineConfig], Harness],
    telling: Callable[[str], Tell],
) -> tuple[list[Quality], Machine]:
    """Return each configuration's quality on each text, the reference's own first, and the machine they ran on."""
    window = max(len(window) for text in texts for window in text.windows)
    found: list[Quality] = []
    sums: dict[tuple[str, int], list[float]] = {}
    """By configuration and the text's place: two texts may have one name."""
    names = dict.fromkeys((reference, *configurations))
    # All of them first: a typing error must not cost the runs before it.
    configs = {name: parse_configuration(name, base) for name in names}
    for name, config in configs.items():
        try:
            harness = load(msgspec.structs.replace(config, max_model_len=window + 1))
        except ContextError as error:
            raise QualityError(
                f"Windows of {window:,} tokens do not fit, each needs one more: use --window {error.fits - 1} or less."
            ) from error
        machine = harness.machine
        for place, text in enumerate(texts):
            sums[name, place] = log_probabilities(harness, text, telling(f"{name} on {text.name}"))
            found.append(compare(name, text, sums[name, place], sums[reference, place]))
        harness.unload()
    return found, machine


def table(found: Sequence[Quality], reference: str) -> Table:
    """Return the qualities as a table."""
    rows = [
        (
            quality.configuration,
            quality.text,
            f"{quality.perplexity:.3f}",
            "—" if quality.configuration == reference else f"{quality.excess:+.2%}",
            "—" if quality.configuration == reference else f"{quality.worst_window_excess:+.2%}",
            f"{quality.tokens:,}",
        )
        for quality in found
    ]
    columns = ("dtype/quantisation/KV dtype", "text", "perplexity", f"over {reference}", "worst window", "tokens")
    return Table("Perplexity by the engine's prompt log-probabilities", columns, rows)


def parse_configuration(text: str, base: EngineConfig) -> EngineConfig:
    """Return `base` changed by `DTYPE[/QUANTIZATION[/KV-DTYPE]]`, such as `auto`, `bfloat16/int8` or `auto/auto/int8`.

    Raises QualityError.
    """
    parts = [part.strip() or "auto" for part in text.split("/")]
    dtype, quantization, kv = (*parts, "auto", "auto")[:3]
    allowed = (get_args(DType), get_args(Quantization), get_args(KVCacheDType))
    if len(parts) > 3 or any(part not in each for part, each in zip((dtype, quantization, kv), allowed, strict=True)):
        raise QualityError(
            f"'{text}' is no configuration: write DTYPE, DTYPE/QUANTIZATION or DTYPE/QUANTIZATION/KV-DTYPE with "
            f"{'; '.join(', '.join(each) for each in allowed)}, such as auto/auto/int8."
        )
    changed: EngineConfig = msgspec.convert(
        {**msgspec.to_builtins(base), "dtype": dtype, "quantization": quantization, "kv_cache_dtype": kv}, EngineConfig
    )
    return changed
