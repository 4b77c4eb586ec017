"""LoRA adapters as the CPU kernels want them: of each layer one adapter for each of its products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo_engine.model.adapter import Adapter, AdapterPart
from octavo_engine.model.spec import LayerSpec, ModelSpec
from octavo_kernels.cpu import LayerLora, Lora
from octavo_kernels.cpu.weights import panel_columns

Columns = NDArray[np.intp]


class CpuAdapter(NamedTuple):
    """An adapter in memory of its own, layer after layer."""

    digest: str
    layers: Sequence[LayerLora]


def build_adapter(adapter: Adapter, spec: ModelSpec) -> CpuAdapter:
    """Copy an adapter out of its files."""
    return CpuAdapter(adapter.digest, [_layer(adapter, index, layer) for index, layer in enumerate(spec.layers)])


def _layer(adapter: Adapter, index: int, layer: LayerSpec) -> LayerLora:
    attention = layer.attention
    q, kv, inner = attention.q_size, attention.kv_size, layer.mlp.intermediate_size
    gate, panels = panel_columns(inner)

    def part(name: str) -> AdapterPart | None:
        return adapter.parts.get(f"layers.{index}.{name}")

    def whole(name: str) -> Lora | None:
        found = part(name)
        return None if found is None else _join([(found, np.arange(found.b.shape[0]))], found.b.shape[0])

    qkv = [("q", np.arange(q)), ("k", q + np.arange(kv)), ("v", q + kv + np.arange(kv))]
    gate_up = [("gate", gate), ("up", gate + 16)]
    return LayerLora(
        qkv=_join([(found, columns) for name, columns in qkv if (found := part(name))], q + 2 * kv),
        output=whole("o"),
        gate_up=_join([(found, columns) for name, columns in gate_up if (found := part(name))], panels),
        down=whole("down"),
    )


def _join(parts: Sequence[tuple[AdapterPart, Columns]], columns: int) -> Lora | None:
    """Join the adapters of projections that are one product: their ranks side by side, each in its own columns."""
    if not parts:
        return None
    # The greatest, so that none has to be multiplied by more than one: an alpha may be 0.
    scale = max((part.scale for part, _ in parts), key=abs)
    same = all(part.scale == scale for part, _ in parts)
    bf16 = same and all(factor.kind == "BF16" for part, _ in parts for factor in (part.a, part.b))
    a: NDArray[Any] = np.concatenate([part.a.planes[0] if bf16 else part.a.dequantize() for part, _ in parts])
    b: NDArray[Any] = np.zeros((columns, len(a)), np.uint16 if bf16 else np.float32)
    begin = 0
    for part, at in parts:
        values = part.b.planes[0] if bf16 else part.b.dequantize()
        b[at, begin : begin + part.rank] = values if same else values * np.float32(part.scale / scale)
        begin += part.rank
    return Lora(np.ascontiguousarray(a), b, scale)
