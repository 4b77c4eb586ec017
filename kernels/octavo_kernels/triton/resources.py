"""What a compiled kernel takes of a GPU: registers, spilled bytes and shared memory, from the compilers' own tools."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import triton


class Resources(NamedTuple):
    """Of one compiled kernel."""

    registers: int
    """Of one thread; on AMD's GPUs vector registers, the accumulating ones among them."""
    spilled: int
    """Bytes of one thread that do not fit into registers and live in memory."""
    shared: int
    """Bytes of one block."""


def resources_of(compiled: Any) -> Resources:
    """Return what a `triton.compiler.CompiledKernel` takes.

    Shared memory is the compiler's own figure: it is given at launch, and the binary does not state all of it.
    """
    shared = int(compiled.metadata.shared)
    if "cubin" in compiled.asm:
        return parse_cuobjdump(_cuobjdump(compiled.asm["cubin"]), shared)
    return parse_amdgcn(compiled.asm["amdgcn"], shared)


def parse_cuobjdump(text: str, shared: int) -> Resources:
    """Read `cuobjdump -res-usage`. Spilled registers are on the stack there, and LOCAL has what a kernel indexes.

    Raises ValueError for a text without a function.
    """
    found = [dict(re.findall(r"\b([A-Z]+):(\d+)", line)) for line in text.splitlines() if "REG:" in line]
    if not found:
        raise ValueError(f"cuobjdump -res-usage says nothing of registers: {text.strip()[:200]!r}.")
    return Resources(
        max(int(function["REG"]) for function in found),
        max(int(function["STACK"]) + int(function["LOCAL"]) for function in found),
        max(shared, *(int(function["SHARED"]) for function in found)),
    )


def parse_amdgcn(text: str, shared: int) -> Resources:
    """Read the metadata at the end of AMD's assembly.

    Spilled vector registers are in the private segment, which has all of a thread's memory; spilled scalar registers go
    to vector registers, or there too. Raises ValueError for a text without metadata.
    """
    values = {name: int(value) for name, value in re.findall(r"^\s*(?:- )?\.(\w+):\s+(\d+)\s*$", text, re.MULTILINE)}
    if "vgpr_count" not in values:
        raise ValueError("the amdgcn assembly has no metadata of its registers: it is not the text of a kernel.")
    spilled = max(values["private_segment_fixed_size"], 4 * values["vgpr_spill_count"])
    return Resources(values["vgpr_count"], spilled, max(shared, values["group_segment_fixed_size"]))


def _cuobjdump(binary: bytes) -> str:
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        ran = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True)
    return ran.stdout
