"""The step contract: what the scheduler plans, what the runner answers.

`plan = scheduler.schedule()`, `scheduler.commit(plan, result)`. A plan is immutable and serialisable (ints and tuples
only): it is what a rank in another process receives. Up to two plans may be in flight; plans run in order, so a block
freed at commit may be reused by a later plan, and a token sampled by plan N is known to the runner when plan N+1 runs.
"""

from __future__ import annotations

from typing import NamedTuple

NO_ADAPTER = -1


class Admission(NamedTuple):
    """A sequence takes a slot of the runner's persistent batch: first time, or again after a preemption.

    `tokens` are all tokens known so far (prompt, then generated). The worker finds the sequence's sampling
    parameters by
    `sequence`. `blocks` holds one block table per KV group, prefix hits included.
    """

    slot: int
    sequence: int
    tokens: tuple[int, ...]
    num_prompt_tokens: int
    blocks: tuple[tuple[int, ...], ...]


class BlockAppend(NamedTuple):
    """Blocks appended to one slot's block table in one KV group."""

    slot: int
    group: int
    first: int
    blocks: tuple[int, ...]


class BlockCopy(NamedTuple):
    """Copy one whole block, all layers of its group, before the step computes (contiguous allocation's prefix hits)."""

    group: int
    source: int
    target: int


class BlockTransfer(NamedTuple):
    """Copy one whole block, all layers of its group, out of the cache into a place of the host tier, or back."""

    group: int
    block: int
    place: int
    saves: bool


class Row(NamedTuple):
    """One sequence's share of a step: positions `start … start + num_tokens - 1`, the last `len(drafts)` of them
    drafts.

    Input tokens are the slot's own (admitted or sampled earlier), drafts those given here. If `samples`, the row
    reaches
    the end of the known tokens and the result carries one token more than the drafts accepted. `padding` is the number
    of dummy tokens computed with the row and thrown away; `discard` says that what the row samples is thrown away too
    (both only in static batching). `scored` is empty, or (first, last): the log-probabilities of the prompt's tokens
    first to last - 1 are wanted, each from the position before it. `pooled` says that its positions' hidden states go
    into the sequence's embedding, which the row that reaches the end of the prompt gives; such a row never samples.
    """

    slot: int
    sequence: int
    start: int
    num_tokens: int
    samples: bool
    drafts: tuple[int, ...] = ()
    adapter: int = NO_ADAPTER
    padding: int = 0
    discard: bool = False
    scored: tuple[int, ...] = ()
    pooled: bool = False


class StepPlan(NamedTuple):
    """One step.

    The runner applies, in this order: `released`, `admitted`, `appended`, `transfers` (in order: a block may be saved
    before it is loaded over, a place be loaded before it is saved over), `copies`, then computes `rows`.
    """

    number: int
    released: tuple[int, ...]
    admitted: tuple[Admission, ...]
    appended: tuple[BlockAppend, ...]
    copies: tuple[BlockCopy, ...]
    rows: tuple[Row, ...]
    transfers: tuple[BlockTransfer, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens computed by this step, padding included."""
        return sum(row.num_tokens + row.padding for row in self.rows)


class RowResult(NamedTuple):
    """What one row gave: accepted drafts followed by one sampled token; empty if it did not sample.

    `failed` names why this row alone failed (its logits were not finite), else it is empty. `logprobs` are records of
    equal size, one for each of `tokens` or none at all; `prompt_logprobs` are those that the row's `scored` asks for.
    `complete` says that the last token ends what the sequence's grammar describes: there is nothing more to say.
    `pooled` is the embedding of a prompt that has been computed to its end, opaque here.
    """

    tokens: tuple[int, ...] = ()
    failed: str = ""
    logprobs: bytes = b""
    prompt_logprobs: bytes = b""
    complete: bool = False
    pooled: bytes = b""


class StepResult(NamedTuple):
    """The results of a plan's rows, in the plan's order."""

    number: int
    rows: tuple[RowResult, ...]
