"""How Triton's interpreter rounds."""

from __future__ import annotations

import torch


def rounded(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return float32 values in `dtype`: to nearest, but the interpreter cuts bfloat16's lower half off."""
    if dtype == torch.bfloat16:
        values = (values.contiguous().view(torch.int32) & -65536).view(torch.float32)
    return values.to(dtype)
