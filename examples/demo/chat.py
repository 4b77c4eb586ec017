"""One streamed chat over the service's URL, printed as it comes."""

from __future__ import annotations

import json
import sys

import httpx


def ask(url: str, model: str, question: str, *, max_tokens: int = 64) -> str:
    """Return the answer to one question; its tokens appear on stderr as they are made."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
    }
    answer = []
    with httpx.stream("POST", f"{url}/chat/completions", json=body, timeout=120) as response:
        if response.status_code != httpx.codes.OK:
            response.read()
            raise RuntimeError(f"{url} answered {response.status_code}: {response.text[:500]}")
        for line in response.iter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            for choice in json.loads(line.removeprefix("data: "))["choices"]:
                text = choice["delta"].get("content") or ""
                answer.append(text)
                sys.stderr.write(text)
                sys.stderr.flush()
    sys.stderr.write("\n")
    return "".join(answer)
