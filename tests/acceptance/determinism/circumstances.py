"""The circumstances: what is the matter around a request, each with the proof that it was so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from octavo_engine.ipc.messages import Snapshot

AT_ONCE: Final = 64
LONGEST_STEP: Final = 2048


@dataclass(frozen=True)
class Circumstance:
    """`changes` are those of the engine's configuration, over BASE.

    at_once: requests open at the same time, 0 for all. passes: how often all are asked, the last time counts.
    pool_share: the pool is this part of what AT_ONCE sequences take; 0: ample. preempted: by the test's own scheduler.
    drafts: the true continuation, with errors. killed: in the engine process, started again after a SIGKILL. proof:
    totals of the snapshot that must not be 0 for it to have been so. short: whether the short form has it.
    """

    name: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    at_once: int = 0
    passes: int = 1
    pool_share: int = 0
    preempted: bool = False
    drafts: bool = False
    killed: bool = False
    proof: tuple[str, ...] = ()
    short: bool = True

    def unproven(self, snapshot: Snapshot) -> str:
        """Say which of the proofs is missing."""
        missing = [name for name in self.proof if not getattr(snapshot, name)]
        return f"it was not so: no {' and no '.join(missing)}" if missing else ""


BASE: Final[dict[str, Any]] = {
    "max_num_seqs": AT_ONCE,
    "max_num_batched_tokens": LONGEST_STEP,
    "prefix_sharing": True,
    "speculation": "off",
    "plans_in_flight": 1,
}
_HITS: Final = ("prefix_hit_tokens",)
_PREEMPTED: Final = ("preemptions", "recomputed_tokens")
_DRAFTED: Final = ("drafted_tokens", "accepted_tokens")

REFERENCE: Final = Circumstance("alone", {"prefix_sharing": False}, at_once=1)
CIRCUMSTANCES: Final[tuple[Circumstance, ...]] = (
    REFERENCE,
    Circumstance("batched 64", proof=_HITS),
    Circumstance("budget 64", {"max_num_batched_tokens": 64}, proof=_HITS, short=False),
    Circumstance("budget 16", {"max_num_batched_tokens": 16, "max_num_seqs": 16}, proof=_HITS),
    Circumstance("cache off", {"prefix_sharing": False}),
    Circumstance("cache warm", passes=2, proof=_HITS),
    Circumstance("preempted", preempted=True, proof=_PREEMPTED),
    Circumstance("pool 1/8", pool_share=8, proof=_PREEMPTED),
    Circumstance("drafts", drafts=True, proof=_DRAFTED),
    Circumstance("n-grams", {"speculation": "ngram"}, at_once=1, short=False),
    Circumstance("two plans", {"plans_in_flight": 2}),
    Circumstance(
        "all of it",
        {"plans_in_flight": 2, "max_num_batched_tokens": 64},
        pool_share=8, preempted=True, drafts=True, proof=(*_HITS, *_PREEMPTED, *_DRAFTED),
    ),
    Circumstance("restarted", killed=True),
)  # fmt: skip
