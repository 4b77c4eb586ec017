"""`octavo chat`: talk to any server that speaks OpenAI's chat protocol."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any, Final

import httpx

_CONNECT_SECONDS: Final = 10.0
_FOREIGN: Final = "The answer is not in OpenAI's format: is this the address of an inference server?"


class ChatError(Exception):
    """The server cannot be talked to; the message is one sentence."""


class Conversation:
    """A conversation with one model of one server; remembers what was said."""

    def __init__(self, url: str, model: str | None, system: str | None, api_key: str) -> None:
        """Open the conversation. Raises ChatError if the server does not answer or names no model."""
        base = url.rstrip("/")
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        timeout = httpx.Timeout(None, connect=_CONNECT_SECONDS)
        try:
            self._http = httpx.Client(base_url=base.removesuffix("/v1") + "/v1/", headers=headers, timeout=timeout)
        except httpx.InvalidURL as error:
            raise ChatError(f"{url} is no URL ({error}): give one such as http://127.0.0.1:8000.") from error
        self.model = model or self._first_model()
        self._messages: list[dict[str, str]] = [{"role": "system", "content": system}] if system else []

    def _first_model(self) -> str:
        try:
            answer = self._http.get("models")
            if answer.status_code == 200:
                return str(answer.json()["data"][0]["id"])
        except httpx.HTTPError as error:
            raise ChatError(f"{self._http.base_url} does not answer ({error}).") from error
        except (ValueError, LookupError, TypeError) as error:
            raise ChatError(f"What answers at {self._http.base_url} names no model as OpenAI's API does.") from error
        raise ChatError(_message(answer.content, answer.status_code))

    def say(self, text: str) -> Iterator[str]:
        """Say something and yield the answer as it comes. Raises ChatError."""
        messages = [*self._messages, {"role": "user", "content": text}]
        pieces: list[str] = []
        body = {"model": self.model, "messages": messages, "stream": True}
        try:
            with self._http.stream("POST", "chat/completions", json=body) as answer:
                if answer.status_code != 200:
                    raise ChatError(_message(answer.read(), answer.status_code))
                for event in _events(answer.iter_lines()):
                    for piece in _texts(event):
                        pieces.append(piece)
                        yield piece
        except httpx.HTTPError as error:
            raise ChatError(f"The connection broke ({error}).") from error
        self._messages = [*messages, {"role": "assistant", "content": "".join(pieces)}]


def _events(lines: Iterator[str]) -> Iterator[Any]:
    for line in lines:
        if not line.startswith("data: "):
            continue
        if line == "data: [DONE]":
            return
        try:
            event = json.loads(line[len("data: ") :])
        except ValueError:
            raise ChatError(_FOREIGN) from None
        if isinstance(event, dict) and "error" in event:
            error = event["error"]
            raise ChatError(str(error.get("message", error) if isinstance(error, dict) else error))
        yield event
    raise ChatError("The answer broke off.")


def _texts(event: Any) -> list[str]:
    """Return what an event adds to the answer. Raises ChatError if it is none of OpenAI's."""
    try:
        return [str(choice["delta"].get("content") or "") for choice in event.get("choices", [])]
    except (AttributeError, LookupError, TypeError):
        raise ChatError(_FOREIGN) from None


def _message(body: bytes, status: int) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return f"The server answered {status}."


def chat(url: str, model: str | None, system: str | None, api_key: str, prompt: str | None) -> int:
    """Talk until the input ends, or say `prompt` once. Returns the exit code."""
    try:
        conversation = Conversation(url, model, system, api_key)
        if prompt is not None:
            _print(conversation.say(prompt))
            return 0
        print(f"Talking to {conversation.model}. Ctrl-D ends.", file=sys.stderr)
        return _loop(conversation)
    except ChatError as error:
        print(f"octavo chat: {error}", file=sys.stderr)
        return 1


def _loop(conversation: Conversation) -> int:
    while True:
        try:
            text = input("> ")
        except (EOFError, KeyboardInterrupt):
            print()
            return 0
        if not text.strip():
            continue
        try:
            _print(conversation.say(text))
        except KeyboardInterrupt:
            print()
        except ChatError as error:
            print(f"octavo chat: {error}", file=sys.stderr)


def _print(pieces: Iterator[str]) -> None:
    for piece in pieces:
        print(piece, end="", flush=True)
    print()
