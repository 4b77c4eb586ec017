"""The real API application over a scripted engine: an endpoint that speaks the messages, for byte-level cases.

Everything but the engine process is the product's: application, protocol, text, routing. The model's vocabulary is
given as bytes per token, so that a token can hold half a character or half a stop string.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import math
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import uvicorn

from octavo_engine.ipc import messages as m
from octavo_engine.server.app import public_application
from octavo_engine.server.counters import Counters
from octavo_engine.server.engine_client import EngineClient
from octavo_engine.server.http_protocol import uvicorn_config
from octavo_engine.server.jobs import Answer, Job, Prepared, Refusal
from octavo_engine.server.lifecycle import Lifecycle
from octavo_engine.server.prepare import prepare
from octavo_engine.server.settings import ServerSettings
from octavo_engine.server.state import ServerState
from octavo_engine.server.tokenizer import TextModel, scripted
from octavo_engine.server.tokenizer.control import ControlTokens
from tests.server.launch import NO_TLS, free_port, wait_until

EOS = 256
FIRST_PIECE = 1000
"""Ids from here on are the test's own pieces; 0 to 255 are bytes, 256 to 258 control tokens."""


def text_model(pieces: Sequence[bytes], template: str = scripted.TEMPLATE, special: Sequence[bytes] = ()) -> TextModel:
    """Return a vocabulary of bytes, ChatML's control tokens, and `pieces` from FIRST_PIECE on, some of them special."""
    vocabulary = scripted.load("scripted://")
    table = [*vocabulary.token_bytes]
    table += [b""] * (FIRST_PIECE - len(table)) + list(pieces)
    ids = {piece.decode(): FIRST_PIECE + pieces.index(piece) for piece in special}
    control = ControlTokens({**vocabulary.control.ids, **ids})
    return TextModel(
        dataclasses.replace(
            vocabulary,
            backend=type(vocabulary.backend)(control),
            token_bytes=table,
            special=vocabulary.special | set(ids.values()),
            control=control,
            chat_template=template,
        )
    )


@dataclass
class Script:
    """What the engine does: for each Submit the steps it sends, each a list of (choice, tokens, finish)."""

    tokens: Sequence[int] = ()
    per_step: int = 1
    cached_tokens: int = 0
    refuse: str = ""
    hold: threading.Event | None = None
    """Wait for it before the first token."""
    logprobs: Sequence[float] = ()
    """Of the tokens; -1/8 each if there are none."""
    better_choices: bool = False
    """Each choice's tokens are more probable by 1 than those of the one before it."""
    fail_after: int = -1
    """Fail the request (an engine error) after so many tokens."""
    submits: list[m.Submit] = field(default_factory=list)
    aborts: list[m.Abort] = field(default_factory=list)


class ScriptedLink:
    """The engine's side of the pipes, on the server's own loop."""

    def __init__(self, script: Script, vocab_size: int, max_model_len: int, embeddings: m.Embeddings) -> None:
        self._script = script
        self._out: asyncio.Queue[m.ToServer] = asyncio.Queue()
        self._received = 0
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._out.put_nowait(
            m.Loaded(
                *(
                    "digest",
                    vocab_size,
                    max_model_len,
                    16,
                    max_model_len // 16 + 1,
                    8,
                    512,
                    "float32",
                    "none",
                    "double",
                ),
                embeddings=embeddings,
            )
        )
        self._width = embeddings.width

    def send(self, message: m.ToEngine) -> None:
        if isinstance(message, m.Submit):
            self._received += 1
            self._script.submits.append(message)
            if self._script.refuse:
                self._out.put_nowait(m.Refused(message.request, self._script.refuse, "refused by the script"))  # type: ignore[arg-type]
                self._step([])
                return
            self._step([])
            self._tasks[message.request] = asyncio.get_running_loop().create_task(self._run(message))
        elif isinstance(message, m.Abort):
            self._script.aborts.append(message)

    async def receive(self) -> m.ToServer:
        return await self._out.get()

    def _step(self, outputs: list[m.TokensOut]) -> None:
        snapshot = m.Snapshot(self._received, 0.0, 0, 0, 8, 0, 0, 0, 0.0, 0, 0, 0, 0, step_seconds=0.001)
        self._out.put_nowait(m.Step(tuple(outputs), snapshot))

    async def _run(self, submit: m.Submit) -> None:
        """Emit the script's tokens, choices interleaved, under the engine's own stop rule."""
        script, rule = self._script, submit.stop
        if script.hold is not None:
            await asyncio.to_thread(script.hold.wait)
        if submit.pooled:
            self._step([self._pooled(submit)])
            return
        done: set[int] = set()
        for start in range(0, max(len(script.tokens), 1), script.per_step):
            outputs = []
            for choice in range(submit.n):
                if choice in done:
                    continue
                out = self._output(submit, choice, start, rule)
                if out.finish:
                    done.add(choice)
                outputs.append(out)
            if outputs:
                self._step(outputs)
                await asyncio.sleep(0)

    def _pooled(self, submit: m.Submit) -> m.TokensOut:
        if self._script.fail_after == 0:
            return m.TokensOut(submit.request, 0, (), "error", "the numbers were not finite")
        vector = struct.pack(f"<{self._width}f", *pooled_vector(submit.prompt, self._width))
        return m.TokensOut(submit.request, 0, (), "stop", started=True, pooled=vector)

    def _output(self, submit: m.Submit, choice: int, start: int, rule: m.StopRule) -> m.TokensOut:
        script = self._script
        tokens: list[int] = []
        finish, reason, detail = "", -1, ""
        for index in range(start, min(start + script.per_step, len(script.tokens))):
            if index == script.fail_after:
                finish, detail = "error", "the logits were not finite"
                break
            token = script.tokens[index]
            tokens.append(token)
            if index + 1 >= rule.min_tokens and (
                (token == EOS and not rule.ignore_eos) or token in rule.stop_token_ids
            ):
                finish, reason = "stop", token if token in rule.stop_token_ids else -1
                break
            if index + 1 >= rule.max_tokens:
                finish = "length"
                break
        if not finish and start + script.per_step >= len(script.tokens):
            finish = "length"
        first = start == 0
        cached = script.cached_tokens if first else 0
        prompt_records, records = b"", b""
        if submit.prompt_logprobs >= 0 and choice == 0 and first and finish != "error":
            prompt = struct.unpack(f"<{len(submit.prompt) // 4}i", submit.prompt)
            prompt_records = b"".join([record(-i, token, submit.prompt_logprobs) for i, token in enumerate(prompt)][1:])
        if submit.sampling.logprobs >= 0:
            scores = script.logprobs or [-1 / 8] * len(script.tokens)
            shift = choice if script.better_choices else 0
            records = b"".join(
                [record(scores[start + i] + shift, token, submit.sampling.logprobs) for i, token in enumerate(tokens)]
            )
        return m.TokensOut(
            submit.request,
            choice,
            tuple(tokens),
            finish,
            detail,
            reason,
            first,
            cached,
            prompt_records,
            records,  # type: ignore[arg-type]
        )


def pooled_vector(prompt: bytes, width: int) -> list[float]:
    """Return what the double embeds a prompt as: its first token, its number of tokens, and the ordinals."""
    tokens = struct.unpack(f"<{len(prompt) // 4}i", prompt)
    return [float(number) for number in (tokens[0], len(tokens), *range(2, width))]


def record(logprob: float, token: int, alternatives: int) -> bytes:
    """Return a token's record: it is the most probable, the next ids follow, each half as probable as the last."""
    top = [(token + i, logprob - i * math.log(2)) for i in range(alternatives)]
    return struct.pack("<fi" + "if" * alternatives, logprob, 1, *itertools.chain.from_iterable(top))


class _InProcessJobs:
    """Reads bodies on the loop: the double is not about isolation."""

    def __init__(self, model: TextModel) -> None:
        self._model = model
        self.answers = True

    async def run(self, job: Job) -> Prepared | Answer:
        result = prepare(job, self._model)
        if isinstance(result, Refusal):
            raise result.error()
        return result


class Double:
    """A served application: its address, its script, its state."""

    def __init__(self, port: int, script: Script, state: ServerState) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.script = script
        self.state = state

    def post(self, path: str, body: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=20, verify=NO_TLS)

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=20, verify=NO_TLS)


@contextmanager
def double(
    script: Script,
    pieces: Sequence[bytes] = (),
    template: str = scripted.TEMPLATE,
    max_model_len: int = 256,
    special: Sequence[bytes] = (),
    wrap: Callable[[Any], Any] = lambda application: application,
    embeddings: m.Embeddings = m.Embeddings(width=4),
    **settings: Any,
) -> Iterator[Double]:
    """Serve the application over `script` on a thread of its own."""
    port = free_port()
    model = text_model(pieces, template, special)
    holder: dict[str, Any] = {}

    async def main() -> None:
        counters = Counters()
        link = ScriptedLink(script, model.vocab_size, max_model_len, embeddings)
        client = EngineClient(counters, 30.0)
        client.connect(link)
        chosen = ServerSettings(served_names=("double",), host="127.0.0.1", port=port, **settings)
        state = ServerState(chosen, client, counters, Lifecycle(0, 10), _InProcessJobs(model), model)
        application = wrap(public_application(state))
        config = uvicorn_config(application, host="127.0.0.1", port=port, timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        holder.update(state=state, server=server, loop=asyncio.get_running_loop(), main=asyncio.current_task())
        receiving = asyncio.create_task(client.run())
        try:
            await server.serve()
        finally:
            receiving.cancel()
            for listening in server.servers:
                listening.close()

    def run() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(main())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    wait_until(lambda: "server" in holder and holder["server"].started, 10, "the double's start")
    wait_until(lambda: holder["state"].client.loaded, 10, "the double's model")
    try:
        yield Double(port, script, holder["state"])
    finally:
        if script.hold is not None:
            script.hold.set()
        # uvicorn's own end waits for its clock; every client of the double has gone by now.
        holder["loop"].call_soon_threadsafe(holder["main"].cancel)
        thread.join(10)
