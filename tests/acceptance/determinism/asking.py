"""The requests: of every kind, seeded, of mixed lengths, some with the same beginnings. Equal seeds, equal requests."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from octavo_engine.ipc.messages import SamplingParams, StopRule, Submit
from octavo_engine.server.grammar import serialised
from octavo_engine.server.protocol.constraints import read_regex, read_schema

MAX_MODEL_LEN: Final = 256
SHORTEST_ANSWER: Final = 8
LONGEST_ANSWER: Final = 24
"""Tokens. Long enough to be preempted three times."""
_PROMPTS: Final = ((1, 15), (16, 16), (17, 70), (71, 180))
_SYSTEM_PROMPTS, _SYSTEM_TOKENS = 4, 37
ADAPTERS: Final = 3
"""In the slots from 0 on."""


class Ids(NamedTuple):
    """Token ids a request may hold, first and last, and one that ends texts."""

    first: int
    last: int
    eos: int


class Asked(NamedTuple):
    """A request, and what is special about it."""

    kind: str
    submit: Submit

    @property
    def prompt_tokens(self) -> int:
        """Tokens of its prompt."""
        return len(self.submit.prompt) // 4

    @property
    def longest(self) -> int:
        """Tokens of prompt and answer at the most."""
        return self.prompt_tokens + self.submit.stop.max_tokens


_AGES: Final = {"type": "array", "maxItems": 4, "items": {"type": "integer", "minimum": 0, "maximum": 120}}
GRAMMARS: Final = (
    serialised(read_regex(r"([a-z]{1,7}, ){5,9}[a-z]{2,5}")),
    serialised(
        read_schema(
            {
                "type": "object",
                "properties": {"name": {"type": "string", "maxLength": 12}, "ages": _AGES},
                "required": ["name", "ages"],
                "additionalProperties": False,
            }
        )
    ),
)


def _biased(draw: random.Random, ids: Ids) -> dict[str, Any]:
    chosen = draw.sample(range(ids.first, ids.last + 1), 60)
    return {
        "temperature": 1.0,
        "logit_bias": {token: draw.uniform(-5, 5) for token in chosen[:20]},
        "allowed_token_ids": tuple(sorted({*chosen, ids.eos})),
        "logprobs": 1,
        "stop": {"stop_token_ids": tuple(chosen[:2]), "min_tokens": SHORTEST_ANSWER},
    }


KINDS: Final[dict[str, Callable[[random.Random, Ids], dict[str, Any]]]] = {
    "greedy": lambda draw, ids: {"temperature": 0.0, "logprobs": 0},
    "seeded": lambda draw, ids: {"temperature": 0.8},
    "filtered": lambda draw, ids: {"temperature": 1.3, "top_p": 0.9, "top_k": 40, "min_p": 0.02, "logprobs": 0},
    "choices": lambda draw, ids: {"temperature": 1.0, "n": draw.choice([2, 3, 4]), "logprobs": 3},
    "penalties": lambda draw, ids: {
        "temperature": draw.choice([0.0, 0.9]),
        "presence_penalty": 0.6,
        "frequency_penalty": 0.4,
        "repetition_penalty": 1.2,
        "logprobs": 1,
    },
    "grammar": lambda draw, ids: {"temperature": 1.0, "grammar": draw.choice(GRAMMARS), "logprobs": 2},
    "scored": lambda draw, ids: {"temperature": 0.0, "logprobs": 20, "prompt_logprobs": 2},
    "biased": _biased,
    "adapted": lambda draw, ids: {
        "temperature": draw.choice([0.0, 1.0]),
        "adapter": draw.randrange(ADAPTERS),
        "logprobs": 1,
    },
}
"""What a request of each kind asks for beside prompt and length: sampling, `n`, scores, `adapter`, `stop`."""


def make(count: int, seed: int, ids: Ids) -> list[Asked]:
    """Return `count` requests, their kinds in turn."""
    draw = random.Random(seed)
    systems = [_tokens(draw, _SYSTEM_TOKENS, ids) for _ in range(_SYSTEM_PROMPTS)]
    names = list(KINDS)
    return [_ask(index, names[index % len(names)], draw, systems, ids) for index in range(count)]


def _ask(index: int, kind: str, draw: random.Random, systems: Sequence[list[int]], ids: Ids) -> Asked:
    prompt = _tokens(draw, draw.randint(*draw.choice(_PROMPTS)), ids)
    if draw.random() < 0.5:
        prompt = draw.choice(systems) + prompt
    fields = KINDS[kind](draw, ids)
    stop = {"ignore_eos": draw.random() < 0.5, "min_tokens": SHORTEST_ANSWER} | fields.pop("stop", {})
    if "grammar" in fields:
        stop = {}  # it says itself when the text may end
    submit = Submit(
        request=index,
        prompt=np.array(prompt, dtype="<i4").tobytes(),
        n=fields.pop("n", 1),
        prompt_logprobs=fields.pop("prompt_logprobs", -1),
        adapter=fields.pop("adapter", -1),
        stop=StopRule(max_tokens=draw.randint(SHORTEST_ANSWER, LONGEST_ANSWER), **stop),
        sampling=SamplingParams(seed=draw.getrandbits(64), **fields),
    )
    return Asked(kind, submit)


def _tokens(draw: random.Random, count: int, ids: Ids) -> list[int]:
    return [draw.randint(ids.first, ids.last) for _ in range(count)]


def working_set_blocks(asked: Sequence[Asked], at_once: int, block_size: int) -> int:
    """Return the blocks of the `at_once` longest sequences together, each for itself."""
    lengths = [each.longest for each in asked for _ in range(each.submit.n)]
    return sum(-(-length // block_size) for length in sorted(lengths)[-at_once:])
