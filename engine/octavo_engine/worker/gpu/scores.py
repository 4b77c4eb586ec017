"""Log-probabilities on the device: of tokens sampled and of prompts, on their way to the host once worked out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo_engine.sampling.records import record_type
from octavo_engine.worker.gpu.launched import Readback
from octavo_engine.worker.pooling import PromptPooling
from octavo_kernels.triton.logprobs import Logprobs, LogprobsWorkspace, logprobs, logprobs_workspace

NOT_FINITE: Final = "The model's logits are not finite for this request."
SCORED_AT_ONCE: Final = 64
"""Positions of a prompt whose logits exist at the same time."""


class Scores(NamedTuple):
    """Of n tokens: float32 [n] log-probabilities, int32 [n] ranks, and of their most probable alternatives, [n, k]."""

    logprobs: Tensor
    ranks: Tensor
    top_ids: Tensor
    top_logprobs: Tensor

    def records(self, first: int, last: int, alternatives: int) -> NDArray[Any]:
        """Return the records of tokens first … last - 1 with so many alternatives. The device must be done."""
        records = np.zeros(last - first, dtype=record_type(alternatives))
        records["logprob"] = self.logprobs[first:last].numpy()
        records["rank"] = self.ranks[first:last].numpy()
        if alternatives:
            records["top"]["id"] = self.top_ids[first:last, :alternatives].numpy()
            records["top"]["logprob"] = self.top_logprobs[first:last, :alternatives].numpy()
        return records


class Scorer:
    """Works out scores for up to `rows` tokens at once; what that takes is allocated when the first are wanted."""

    def __init__(self, rows: int, vocab_size: int, device: torch.device) -> None:
        """`rows`: at least SCORED_AT_ONCE."""
        self._rows, self._vocab_size, self._device = max(rows, SCORED_AT_ONCE), vocab_size, device
        self._space: LogprobsWorkspace | None = None

    def score(self, logits: Tensor, tokens: Tensor, alternatives: int, readback: Readback) -> Scores:
        """Return the scores of tokens int32 [n] under logits float32 [n, V]: there once the device is done."""
        if self._space is None:
            self._space = logprobs_workspace(self._rows, self._vocab_size, self._device)
        rows = len(tokens)
        found = Logprobs(
            torch.empty(rows, dtype=torch.float32, device=self._device),
            torch.empty(rows, dtype=torch.int32, device=self._device),
            torch.empty((rows, alternatives), dtype=torch.int32, device=self._device),
            torch.empty((rows, alternatives), dtype=torch.float32, device=self._device),
        )
        return Scores(*(readback.take(part) for part in logprobs(logits, tokens, found, self._space)))

    def sampled(self, logits: Tensor, sampled: Tensor, wanted: Sequence[int], readback: Readback) -> Scores | None:
        """Return the scores of sampled tokens, None if no row wants any. wanted: alternatives of each row, -1: none."""
        most = max(wanted)
        return None if most < 0 else self.score(logits, sampled[: len(wanted)], most, readback)


def prompt_records(scores: Sequence[Scores], alternatives: int) -> tuple[bytes, str]:
    """Return the records of a prompt's tokens, scored in pieces, or why there are none."""
    pieces = [each.records(0, len(each.logprobs), alternatives) for each in scores]
    if not all(np.isfinite(piece["logprob"]).all() for piece in pieces):
        return b"", NOT_FINITE
    return b"".join(piece.tobytes() for piece in pieces), ""


class Told:
    """What a step will tell beside its tokens, on its way to the host. Indices are those of the plan's rows."""

    def __init__(self, readback: Readback, prompt_tokens: Sequence[int]) -> None:
        """Nothing yet. prompt_tokens: of each row's prompt."""
        self.readback = readback
        self.prompt_tokens = prompt_tokens
        self.tokens = self.live = torch.empty(0)
        """int32 [rows]: each row's token, and whether it was computed for somebody."""
        self.sampled: Scores | None = None
        """Of the rows that sample, in their order; `wanted` alternatives of each, -1: none."""
        self.wanted: Sequence[int] = ()
        self.prompts: dict[int, list[Scores]] = {}
        """Of the prompt tokens that rows score, piece by piece; `alternatives` are told of each."""
        self.alternatives: dict[int, int] = {}
        self.hidden: dict[int, Tensor] = {}
        """Float32 [tokens, d]: what is pooled of rows, and `pooled` into what."""
        self.pooled: dict[int, PromptPooling] = {}
