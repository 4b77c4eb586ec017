"""The texts of one request's choices as they grow, each with its prompt before it if that was asked for."""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator, Sequence
from typing import Any

from octavo_engine.ipc.scores import TokenScore, read_scores, record_bytes
from octavo_engine.server.jobs import Prepared
from octavo_engine.server.protocol import logprobs
from octavo_engine.server.protocol.answers import Delta, Usage, usage
from octavo_engine.server.text_choice import TextChoice
from octavo_engine.server.ticket import Output, Ticket
from octavo_engine.server.tokenizer import TextModel
from octavo_engine.server.tool_calls.choice import ChoiceCalls, Told
from octavo_engine.server.tool_calls.formats import TAGS

_CONTEXT_TOKENS = 16
"""Enough of the prompt for a detokenizer to see an unfinished character."""


class Texts:
    """Choice i belongs to prompt i // n."""

    def __init__(self, text_model: TextModel, prepared: Prepared, ticket: Ticket) -> None:
        """Begin all choices of a request that the engine has taken."""
        self._prepared = prepared
        self._ticket = ticket
        self._prompts = [_ids(prompt) for prompt in prepared.prompts]
        self._prompt_records = [bytearray() for _ in self._prompts]
        self._waiting: dict[int, Output] = {}
        """Outputs of choices whose prompt is not scored to its end."""
        self.token_bytes = text_model.token_bytes
        use = prepared.tool_use
        tags = text_model.special_among(TAGS[use.format]) if use else ()
        stop = prepared.stop_strings, prepared.include_stop, prepared.stop.min_tokens
        rule = (*stop, prepared.sampling.logprobs, tags, prepared.constrained_by)
        self._choices = [
            TextChoice(text_model, () if prepared.echo else prompt[-_CONTEXT_TOKENS:], *rule)
            for prompt in self._prompts
            for _ in range(prepared.n)
        ]
        self._calls = [ChoiceCalls(use, tags) for _ in self._choices] if use else []
        self._to_echo = set(range(len(self._choices))) if prepared.echo else set()

    async def deltas(self) -> AsyncIterator[list[Delta]]:
        """Yield new text until every choice has ended: exactly one delta of each carries a finish."""
        going = len(self._choices)
        while going:
            deltas = []
            for index, output in sorted(self._ready(await self._ticket.take()).items()):
                choice = self._choices[index]
                if choice.finish_reason is not None:
                    continue
                text = self._echo(index) + choice.take(self._generated(output))
                if choice.stopped_by_text:
                    self._ticket.end_choice(index)
                if choice.finish_reason is not None:
                    going -= 1
                scored = choice.take_scored() if self._prepared.logprobs >= 0 else []
                told = self._told(index, text)
                if told.text or told.events or scored or told.finish is not None:
                    deltas.append(Delta(index, told.text, told.finish, choice.stop_reason, scored, told.events))
            if deltas:
                yield deltas

    def _told(self, index: int, text: str) -> Told:
        """Return what new text of a choice is: content, unless tool calls are looked for."""
        choice = self._choices[index]
        if not self._calls:
            return Told(text, (), choice.finish_reason)
        return self._calls[index].take(text, choice.finish_reason, choice.stopped_by_text)

    def usage(self) -> Usage:
        """Return the totals so far."""
        completion = sum(choice.completion_tokens for choice in self._choices)
        return usage(self._prepared.prompt_tokens, completion, self._ticket.cached_tokens)

    def best_choices(self) -> list[int]:
        """Return the choices to answer: of each prompt those with the largest mean log-probability of their tokens."""
        n, best = self._prepared.n, self._prepared.best
        if best == n:
            return list(range(len(self._choices)))

        def mean(index: int) -> float:
            choice = self._choices[index]
            return choice.logprob / max(1, choice.completion_tokens)

        chosen = []
        for first in range(0, len(self._choices), n):
            ranked = sorted(range(first, first + n), key=lambda index: (-mean(index), index))
            chosen += ranked[:best]
        return chosen

    def prompt_logprobs(self, choices: Sequence[int]) -> list[Any] | None:
        """Return what is told of the prompts of these choices, None if nothing was asked for."""
        alternatives = self._prepared.prompt_logprobs
        if alternatives < 0:
            return None
        told = [
            logprobs.of_prompt(prompt, self._scores(index), self.token_bytes, alternatives)
            for index, prompt in enumerate(self._prompts)
        ]
        return [told[choice // self._prepared.n] for choice in choices]

    def _ready(self, outputs: dict[int, Output]) -> dict[int, Output]:
        """Return the outputs that may be told now: all of them, unless they wait for their prompt's scores."""
        if self._prepared.prompt_alternatives < 0:
            return outputs
        for index, output in outputs.items():
            self._prompt_records[index // self._prepared.n] += output.prompt_logprobs
            if index in self._waiting:
                self._waiting[index].extend(output)
            else:
                self._waiting[index] = output
        ready = [index for index in self._waiting if self._is_ready(index)]
        return {index: self._waiting.pop(index) for index in ready}

    def _is_ready(self, index: int) -> bool:
        prompt = index // self._prepared.n
        wanted = (len(self._prompts[prompt]) - 1) * record_bytes(self._prepared.prompt_alternatives)
        return len(self._prompt_records[prompt]) >= wanted or self._waiting[index].finish in ("error", "abort")

    def _echo(self, index: int) -> str:
        if index not in self._to_echo:
            return ""
        self._to_echo.remove(index)
        prompt = index // self._prepared.n
        scores = self._scores(prompt) if self._prepared.logprobs >= 0 else ()
        return self._choices[index].echo(self._prompts[prompt], scores)

    def _scores(self, prompt: int) -> list[TokenScore]:
        return read_scores(bytes(self._prompt_records[prompt]), self._prepared.prompt_alternatives)

    def _generated(self, output: Output) -> Output:
        """Return what counts of an output: of a request that only echoes, whose one token nobody asked for, the end."""
        if not self._prepared.only_echo or output.finish in ("error", "abort"):
            return output
        return Output(finish="length" if output.finish else "")


def _ids(prompt: bytes) -> array[int]:
    ids = array("i")
    ids.frombytes(prompt)
    return ids
