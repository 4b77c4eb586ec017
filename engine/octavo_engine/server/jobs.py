"""What the API process asks its tokenising processes, and what they answer (msgspec structs, one frame each)."""

from __future__ import annotations

from typing import Literal

import msgspec

from octavo_engine.ipc.messages import Embeddings, SamplingParams, StopRule
from octavo_engine.server.errors import ApiError
from octavo_engine.server.tool_calls.formats import Setting, ToolUse

Route = Literal["completions", "chat", "responses", "embeddings", "tokenize", "detokenize"]


class Limits(msgspec.Struct, frozen=True):
    """What the loaded model allows, and the settings a request is read under.

    `pool_tokens` is the size of the KV pool in tokens; `adapters` are the names of those that are loaded.
    """

    served_names: tuple[str, ...]
    max_model_len: int
    vocab_size: int
    pool_tokens: int
    tool_call_parser: Setting = "auto"
    adapters: tuple[str, ...] = ()
    embeddings: Embeddings = Embeddings()


class Job(msgspec.Struct, frozen=True):
    """One request body to read. `model`, if the gateway resolved the name, replaces the body's."""

    route: Route
    body: bytes
    limits: Limits
    model: str = ""


class EmbeddingForm(msgspec.Struct, frozen=True):
    """How an embedding is answered: `dimensions` numbers of it (0: all), in base64 or one by one."""

    dimensions: int = 0
    base64: bool = False


class Prepared(msgspec.Struct, frozen=True, tag="prepared"):
    """A generation request, checked and tokenised. `prompts` are int32 token ids, little endian.

    Of the `n` choices that are generated for each prompt the `best` ones are answered. `logprobs` and `prompt_logprobs`
    are how many alternatives the answer tells beside each token's log-probability, -1 for none of both. With `echo` the
    text begins with the prompt; with `only_echo` nothing is generated behind it. `tool_use`: how tool calls are read in
    the answers, if there can be any. `adapter`: the name of the LoRA adapter that was asked for, or "".
    `constrained_by`: the field to name if nothing can follow what was asked for.
    `repeated`: what a response says of its request, a JSON object. `embedding`: the prompts are pooled and nothing is
    generated.
    """

    model: str
    prompts: tuple[bytes, ...]
    sampling: SamplingParams
    stop: StopRule
    n: int
    stop_strings: tuple[str, ...]
    include_stop: bool
    stream: bool
    include_usage: bool
    priority: int
    cache_salt: str
    best: int = 1
    logprobs: int = -1
    prompt_logprobs: int = -1
    echo: bool = False
    only_echo: bool = False
    tool_use: ToolUse | None = None
    adapter: str = ""
    constrained_by: str = ""
    repeated: bytes = b""
    embedding: EmbeddingForm | None = None

    @property
    def prompt_alternatives(self) -> int:
        """How many alternatives the engine tells of the prompt's tokens, -1 for nothing."""
        return max(self.prompt_logprobs, self.logprobs if self.echo else -1)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(len(prompt) for prompt in self.prompts) // 4

    def salt_within(self, salt: str) -> str:
        """Return the cache salt of a caller that has `salt`: the request's own is one within it."""
        return f"{salt}\0{self.cache_salt}" if self.cache_salt else salt


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    """A finished JSON answer (`/tokenize`, `/detokenize`)."""

    body: bytes


class Refusal(msgspec.Struct, frozen=True, tag="refusal"):
    """An ApiError on its way from a tokenising process."""

    status: int
    message: str
    kind: str
    param: str | None
    code: str | None

    def error(self) -> ApiError:
        """Return the error to raise."""
        return ApiError(self.status, self.message, self.kind, self.param, self.code)


JobResult = Prepared | Answer | Refusal
