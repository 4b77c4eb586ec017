"""Is greedy output in float32 that of `transformers`, token for token? `python -m tests.model.exactness` prints it.

Both sides read the same GGUF; transformers dequantises it and computes in float32, with its own tokenizer, attention
and cache.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from octavo_engine.model.pull import pull
from tests.model.building import build_in_cache
from tests.model.gemma import fetch_gemma
from tests.model.stepping import generate

MODELS: Final[dict[str, Callable[[], Path]]] = {
    "smollm2-135m-instruct": lambda: pull("bundled://smollm2-135m-instruct"),
    "gemma-3-270m": fetch_gemma,
}

PROMPTS = (
    "What is the capital of France?",
    "Write a short poem about the sea.",
    "Explain photosynthesis to a child of six.",
    "def fibonacci(n):\n    ",
    "List three reasons to learn a second language.",
    "Once upon a time, in a village at the foot of a mountain,",
    "Translate to German: The weather is nice today.",
    "Why is the sky blue?",
    "Give me a recipe for pancakes with exact amounts.",
    "1, 1, 2, 3, 5, 8, 13,",
    "What happened in 1969?",
    "Summarise: Kubernetes schedules containers onto nodes, restarts them when they fail, and routes traffic to them.",
    "Who wrote 'Pride and Prejudice', and when?",
    "If a train travels 60 km in 45 minutes, how fast is it?",
    "Écris une phrase sur l'hiver. ❄️ 冬天",
    "SELECT name, COUNT(*) FROM orders",
    "Describe the taste of an apple without the word 'sweet'.",
    "What is the difference between a list and a tuple in Python? " * 12,
    "The quick brown fox jumps over the lazy dog. " * 30,
    "Name five planets.",
)


class Figures(NamedTuple):
    """What a comparison gave; `largest_difference` is of logits, while the tokens agree."""

    prompts: int
    tokens: int
    equal_tokens: int
    equal_prompts: int
    largest_difference: float
    ours_seconds: float
    theirs_seconds: float


def transformers_model(path: Path) -> Any:
    """Load a GGUF as transformers does in `from_pretrained(gguf_file=…)`, which also wants accelerate installed."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    tensors = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)["tensors"]
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert not unexpected, unexpected
    assert set(missing) <= {"lm_head.weight"}, missing
    model.tie_weights()
    # The end of a sequence is not the subject here: both sides go on to the same length.
    model.generation_config.eos_token_id = None
    return model.eval()


def compare(num_prompts: int, num_tokens: int, model: str = "smollm2-135m-instruct") -> Figures:
    """Generate with both and count equal tokens; the longest prompts come last."""
    import torch
    from transformers import AutoTokenizer

    path = MODELS[model]()
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    prompts = [
        tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True)["input_ids"]
        if index % 2 == 0 and tokenizer.chat_template
        else tokenizer(text)["input_ids"]
        for index, text in enumerate(PROMPTS[:num_prompts])
    ]
    started = time.perf_counter()
    ours = generate(build_in_cache(path, dtype="float32"), prompts, num_tokens)
    halfway = time.perf_counter()
    theirs = transformers_model(path)
    equal, whole, largest = 0, 0, 0.0
    for index, prompt in enumerate(prompts):
        answer = theirs.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=num_tokens,
            do_sample=False,
            return_dict_in_generate=True,
            output_logits=True,
            pad_token_id=0,
        )
        expected = answer.sequences[0, len(prompt) :].tolist()
        got = ours.tokens[index]
        same = next((at for at in range(num_tokens) if got[at] != expected[at]), num_tokens)
        equal, whole = equal + same, whole + (same == num_tokens)
        logits = torch.cat(answer.logits).numpy()[: max(same, 1)]
        largest = max(largest, float(np.abs(logits - ours.logits[index][: len(logits)]).max()))
    return Figures(
        len(prompts), num_tokens * len(prompts), equal, whole, largest, halfway - started, time.perf_counter() - halfway
    )


def main() -> int:
    """Print the figures; exit 1 if a token differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=len(PROMPTS), help=f"1 to {len(PROMPTS)}")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--model", choices=MODELS, default="smollm2-135m-instruct")
    arguments = parser.parse_args()
    figures = compare(arguments.prompts, arguments.tokens, arguments.model)
    print(
        f"prompts equal to transformers: {figures.equal_prompts} of {figures.prompts}\n"
        f"tokens equal before a first difference: {figures.equal_tokens} of {figures.tokens}\n"
        f"largest difference of a logit: {figures.largest_difference:.2e}\n"
        f"seconds: {figures.ours_seconds:.1f} ours (one batch), {figures.theirs_seconds:.1f} transformers (one by one)"
    )
    return 0 if figures.equal_tokens == figures.tokens else 1


if __name__ == "__main__":
    sys.exit(main())
