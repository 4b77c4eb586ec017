"""llama.cpp's own `llama-batched-bench`: requests of one length each, so no mixed workload.

Its process per workload loads the model anew; what it reports excludes that.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

Run = Callable[[list[dict[str, Any]]], dict[str, Any]]


def start(settings: dict[str, Any]) -> tuple[dict[str, str], Run]:
    """Take `binary`, `model`, `threads` and the `versions` that the build wrote down."""
    return settings["versions"], lambda requests: run(settings, requests)


def run(settings: dict[str, Any], requests: list[dict[str, Any]]) -> dict[str, Any]:
    """Run the benchmark at this batch size and these lengths. The tokens are its own: their values cost the same."""
    shapes = {(len(request["prompt"]), request["max_tokens"]) for request in requests}
    if len(shapes) != 1:
        raise ValueError("llama-batched-bench runs requests of one length only")
    prompt, output = shapes.pop()
    count = len(requests)
    found = bench(settings, count, prompt, output)
    return {
        "seconds": found["t_pp"] + found["t_tg"],
        "output_tokens": count * output,
        "first_token_seconds": found["t_pp"],
        "decode_tokens": count * output,
    }


def bench(settings: dict[str, Any], count: int, prompt: int, output: int) -> dict[str, Any]:
    """Return the benchmark's own line. One KV cache for all sequences (`-kvu`) is its fastest arrangement."""
    command = [settings["binary"], "-m", settings["model"], "-t", str(settings["threads"]), "-kvu"]
    command += ["-npp", str(prompt), "-ntg", str(output), "-npl", str(count), "-c", str(count * (prompt + output) + 64)]
    command += ["--output-format", "jsonl"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in ended.stdout.splitlines() if line.startswith("{")]
    if ended.returncode or not lines:
        raise RuntimeError(f"llama-batched-bench ended with {ended.returncode}: {ended.stderr.strip()[-300:]}")
    answer: dict[str, Any] = json.loads(lines[-1])
    return answer
