"""One request inside a simulated engine."""

from __future__ import annotations

from .pool import Digest, Run


class Sequence:
    """A request's progress. Lengths in tokens, times in simulated seconds (None: not yet).

    `order` is its place by arrival at this engine, unique there. `digests` names the full blocks of the prompt that
    others may share, in order. `target` is what must be computed before it samples: the prompt, and after a preemption
    what it had generated too; `computed` how much of it is. `blocks` counts its blocks while it computes its prompt.
    """

    __slots__ = (
        "arrival", "blocks", "cached_tokens", "computed", "digests", "doubles", "ends_at", "finished_at",
        "first_token_at", "generated", "joined", "names", "next_name", "order", "output", "phase", "prompt", "run",
        "started_at", "target",
    )  # fmt: skip

    def __init__(
        self, order: int, prompt: int, output: int, digests: tuple[Digest, ...] = (), arrival: float = 0.0
    ) -> None:
        self.order = order
        self.prompt = prompt
        self.output = output
        self.digests = digests
        self.arrival = arrival
        self.run: Run = (order,)
        self.target = prompt
        self.computed = 0
        self.generated = 0
        self.blocks = 0
        self.names: list[Digest] = []
        self.next_name = 0
        self.doubles = 0
        """Its blocks that hold what another block was published for: nobody will find them."""
        self.joined = 0
        """The engine's step at which it began to decode."""
        self.phase = 0
        """(tokens held - engine step) mod block size, the same as long as it decodes."""
        self.ends_at = 0
        self.cached_tokens = 0
        self.started_at: float | None = None
        self.first_token_at: float | None = None
        self.finished_at: float | None = None
