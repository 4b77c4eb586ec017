"""What the routes share: one object per API process."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from octavo_engine.server import admission
from octavo_engine.server.counters import Counters
from octavo_engine.server.engine_client import EngineClient
from octavo_engine.server.errors import unavailable
from octavo_engine.server.exchange import BodyBudget
from octavo_engine.server.jobs import Answer, Job, Limits, Prepared
from octavo_engine.server.lifecycle import Lifecycle
from octavo_engine.server.settings import ServerSettings
from octavo_engine.server.tokenizer import TextModel


class JobRunner(Protocol):
    """Reads request bodies (`TokenizePool`)."""

    @property
    def answers(self) -> bool:
        """Whether a job would be done now."""
        ...

    async def run(self, job: Job) -> Prepared | Answer:
        """Do one job. Raises ApiError."""
        ...


@dataclass
class ServerState:
    """The API process: its engine, its tokenisers, its drain. `text_model` and `jobs` come once they have loaded."""

    settings: ServerSettings
    client: EngineClient
    counters: Counters
    lifecycle: Lifecycle
    jobs: JobRunner | None = None
    text_model: TextModel | None = None
    created: int = field(default_factory=lambda: int(time.time()))
    clock: Callable[[], float] = time.monotonic
    budget: BodyBudget = field(default_factory=BodyBudget)

    @property
    def ready(self) -> bool:
        """Whether a request sent now would be worked on."""
        return self.client.ready and self.jobs is not None and self.jobs.answers and not self.lifecycle.draining

    def check_accepts(self) -> None:
        """Raise the ApiError (503, nothing began) of a process that takes no requests now."""
        if not self.lifecycle.accepts(self.clock()):
            raise unavailable("This server is shutting down. Retry elsewhere.", close=True)
        self.client.check_ready()
        if self.jobs is None or self.text_model is None:
            raise unavailable("The tokenizer is still loading.")

    def check_queue(self, sequences: int, tokens: int) -> None:
        """Raise the ApiError (429, nothing began) of so much more if the queue does not take it."""
        settings = self.settings
        error = admission.refuse(
            self.client.load(), sequences, tokens, settings.max_queue_requests, settings.max_queue_tokens
        )
        if error is not None:
            raise error

    def limits(self) -> Limits:
        """Return what the loaded model allows."""
        loaded = self.client.check_ready()
        return Limits(
            self.settings.served_names,
            loaded.max_model_len,
            loaded.vocab_size,
            loaded.num_blocks * loaded.block_size,
            self.settings.tool_call_parser,
            self.client.adapters.names,
            loaded.embeddings,
        )
