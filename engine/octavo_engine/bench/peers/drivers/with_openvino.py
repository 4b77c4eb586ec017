"""OpenVINO GenAI's continuous batching, in its own interpreter."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np
import openvino as ov  # type: ignore[import-not-found, unused-ignore]
import openvino_genai as genai  # type: ignore[import-not-found, unused-ignore]

Run = Callable[[list[dict[str, Any]]], dict[str, Any]]


def start(settings: dict[str, Any]) -> tuple[dict[str, str], Run]:
    """Load `model`; `max_num_seqs`, `max_num_batched_tokens` and `cache_gib` as OpenVINO's scheduler takes them."""
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = settings["cache_gib"]
    scheduler.max_num_seqs = settings["max_num_seqs"]
    scheduler.max_num_batched_tokens = settings["max_num_batched_tokens"]
    scheduler.dynamic_split_fuse = True
    scheduler.enable_prefix_caching = True
    threads = {"INFERENCE_NUM_THREADS": settings["threads"]}
    pipeline = genai.ContinuousBatchingPipeline(settings["model"], scheduler, "CPU", threads)
    ids = itertools.count()
    return {"openvino-genai": version("openvino-genai")}, lambda requests: run(pipeline, ids, requests)


def run(pipeline: Any, ids: itertools.count[int], requests: list[dict[str, Any]]) -> dict[str, Any]:
    """Submit every request at once and step until all have ended: greedy, past any end-of-sequence token."""
    begun = time.perf_counter()
    handles = [
        pipeline.add_request(next(ids), ov.Tensor(np.array([request["prompt"]], dtype=np.int64)), greedy(request))
        for request in requests
    ]
    first: float | None = None
    while pipeline.has_non_finished_requests():
        pipeline.step()
        if first is None and handles[0].can_read():
            first = time.perf_counter() - begun
    seconds = time.perf_counter() - begun
    outputs = sum(len(part.generated_ids) for handle in handles for part in handle.read_all())
    return {
        "seconds": seconds,
        "output_tokens": outputs,
        "first_token_seconds": first,
        "decode_tokens": outputs - len(requests),
    }


def greedy(request: dict[str, Any]) -> Any:
    """Return the settings of one request."""
    config = genai.GenerationConfig()
    config.max_new_tokens = request["max_tokens"]
    config.ignore_eos = True
    config.do_sample = False
    return config
