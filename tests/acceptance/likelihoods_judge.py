"""Runs in lm-eval's own environment: scores pairs over HTTP and by `transformers`, and prints both as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.models.openai_completions import LocalCompletionsAPI


def likelihoods(model: Any, pairs: list[list[str]]) -> list[list[Any]]:
    """Return [log-likelihood, is greedy] of each pair."""
    requests = [
        Instance(request_type="loglikelihood", doc={}, arguments=(context, continuation), idx=index)
        for index, (context, continuation) in enumerate(pairs)
    ]
    return [[float(logprob), bool(greedy)] for logprob, greedy in model.loglikelihood(requests, disable_tqdm=True)]


def main() -> None:
    """Read what to do from standard input."""
    asked = json.load(sys.stdin)
    served = LocalCompletionsAPI(
        base_url=asked["url"],
        model="model",
        tokenizer=asked["folder"],
        tokenizer_backend="huggingface",
        num_concurrent=4,
        max_length=2048,
    )
    found = {"served": likelihoods(served, asked["pairs"])}
    theirs = HFLM(pretrained=asked["folder"], dtype="float32", device="cpu", batch_size=1)
    found["expected"] = likelihoods(theirs, asked["pairs"])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
