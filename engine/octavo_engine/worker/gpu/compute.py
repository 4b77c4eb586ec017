"""One step on the device, from a plan's rows to the residual stream: eager, or by replaying a captured graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from octavo_engine.worker.gpu.assemble import Assembled, padded
from octavo_engine.worker.gpu.attention import AttentionPlanner, GroupAttention
from octavo_engine.worker.gpu.graphs import Captured, DecodeGraphs
from octavo_engine.worker.gpu.model import GpuModel, GpuStep
from octavo_engine.worker.gpu.staging import Staging
from octavo_engine.worker.gpu.state import DeviceBatch
from octavo_kernels.triton.grouped import GroupPlan
from octavo_kernels.triton.step import ROW_FIELDS, prepare_step


class RunnerSizes(NamedTuple):
    """What a runner allocates for: slots, tokens of a sequence, tokens of a step."""

    max_num_seqs: int
    max_model_len: int
    max_num_batched_tokens: int


class Computed(NamedTuple):
    """A step's rows on the device (int32 [R, 8]), which of them are live (int32 [R]), and x behind the last layer.

    logits: float32 [at least L, vocabulary], where they were computed on the way. All of it is valid until the next
    step.
    """

    table: Tensor
    live: Tensor
    x: Tensor
    logits: Tensor | None


class StepComputer:
    """The model over a batch: fixed tensors for a step's inputs, its attention planned on the host."""

    def __init__(
        self,
        model: GpuModel,
        batch: DeviceBatch,
        sizes: RunnerSizes,
        *,
        invariant: bool,
        graph_sizes: Sequence[int] = (),
    ) -> None:
        """Allocate, and capture graphs of decode steps of `graph_sizes` rows. The model's cache must be allocated."""
        self.model, self.batch, self.sizes = model, batch, sizes
        self._invariant = invariant
        groups, device = len(model.layout.groups), model.device
        tokens, rows = sizes.max_num_batched_tokens, sizes.max_num_seqs + 1
        self.staging = Staging(
            {
                "rows": ((rows, ROW_FIELDS), torch.int32),
                "logit_tokens": ((max(tokens, rows),), torch.int32),
            },
            device,
        )
        self._tokens, self._positions, self._adapters = (
            torch.zeros(tokens, dtype=torch.int32, device=device) for _ in range(3)
        )
        self._slots = torch.full((groups, tokens), -1, dtype=torch.int64, device=device)
        self._live = torch.zeros(rows, dtype=torch.int32, device=device)
        self._every_token = torch.arange(tokens, dtype=torch.int32, device=device)
        self._planner = self._make_planner(tokens, sizes.max_num_seqs)
        self._graphs = DecodeGraphs()
        # One for all graphs: each keeps what it writes, and logits of every size would be gigabytes.
        most = max(graph_sizes, default=0)
        self._logits = torch.empty((most, model.vocab_size), dtype=torch.float32, device=device)
        # The largest first: the others then fit into the memory it took.
        for size in sorted(set(graph_sizes), reverse=True):
            self._capture(size)

    def forward(self, step: Assembled) -> Computed:
        """Queue a step. Raises ValueError if it is larger than what was allocated."""
        if step.tokens > len(self._tokens):
            raise ValueError(f"A step of {step.tokens} tokens: there is room for {len(self._tokens)}.")
        graph = self._graphs.find(len(step.slots)) if step.decodes and not _adapted(step) else None
        self.staging.begin()
        try:
            return self._eager(step) if graph is None else self._replay(graph, step)
        finally:
            self.staging.end()

    def logits(self, computed: Computed, step: Assembled, first: int, last: int) -> Tensor:
        """Return the logits of the step's `logit_tokens[first:last]`, float32 [last - first, vocabulary]."""
        if computed.logits is not None:
            return computed.logits[first:last]
        return self.model.logits(computed.x, self.staging.tensors["logit_tokens"][first:last])

    def _eager(self, step: Assembled) -> Computed:
        table = self.staging.write("rows", step.table)
        self.staging.write("logit_tokens", step.logit_tokens)
        live = self._prepare(table, step.tokens, step.longest)
        adapters = self._group_adapters(step.tokens) if _adapted(step) else None
        x = self.model.forward(self._step(step.tokens, self._planner.plan(step, self.batch.host_tables), adapters))
        return Computed(table, live, x, None)

    def _group_adapters(self, tokens: int) -> GroupPlan:
        return self.model.products.group_adapters(self._adapters[:tokens], self.model.bank.slots)

    def _replay(self, graph: Captured, step: Assembled) -> Computed:
        table = self.staging.write("rows", padded(step, graph.size).table)
        graph.planner.plan(step, self.batch.host_tables)
        graph.replay()
        return Computed(table, self._live[: graph.size], graph.x, graph.logits)

    def _capture(self, size: int) -> None:
        planner = self._make_planner(size, size, fixed=True)
        table = self.staging.tensors["rows"][:size]
        # Nobody's rows: what is computed while capturing is written nowhere.
        table.copy_(torch.from_numpy(padded(_empty_step(), size).table))
        work = planner.plan(_empty_step(), self.batch.host_tables)

        def compute() -> tuple[Tensor, Tensor]:
            self._prepare(table, size, 1)
            x = self.model.forward(self._step(size, work, None))
            return x, self.model.logits(x, self._every_token[:size], self._logits[:size])

        self._graphs.capture(size, planner, compute)

    def _prepare(self, table: Tensor, tokens: int, longest: int) -> Tensor:
        live = self._live[: len(table)]
        prepare_step(
            table,
            self.batch.tokens,
            self.batch.lengths,
            self.batch.tables,
            tokens=self._tokens[:tokens],
            positions=self._positions[:tokens],
            slots=self._slots[:, :tokens],
            adapters=self._adapters[:tokens],
            live=live,
            max_position=self.model.max_position,
            longest=longest,
        )
        return live

    def _step(self, tokens: int, attention: Sequence[GroupAttention], adapters: GroupPlan | None) -> GpuStep:
        return GpuStep(
            self._tokens[:tokens],
            self._positions[:tokens],
            self._slots[:, :tokens],
            attention,
            self.batch.tables,
            adapters,
        )

    def _make_planner(self, tokens: int, rows: int, *, fixed: bool = False) -> AttentionPlanner:
        return AttentionPlanner(
            self.model.layout,
            self.model.products.configurations,
            max_tokens=tokens,
            max_rows=rows,
            max_context=self.sizes.max_model_len,
            invariant=self._invariant,
            workspace=self._planner.workspace if fixed else None,
            fixed=fixed,
        )


def _adapted(step: Assembled) -> bool:
    return bool((step.table[:, 4] >= 0).any())


def _empty_step() -> Assembled:
    """Return a decode step of one row of nobody's."""
    table = np.zeros((1, ROW_FIELDS), dtype=np.int32)
    table[0, [0, 2, 4]] = -1, 1, -1
    one = np.ones(1, dtype=np.int32)
    return Assembled(table, np.array([0, 1], dtype=np.int32), one, np.zeros(1, np.int64), one - 1, 1, 1, 1)
