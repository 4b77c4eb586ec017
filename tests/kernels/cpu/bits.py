"""What "the same bits" means for results of the kernels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def bits(values: NDArray[np.float32]) -> NDArray[np.uint32]:
    """Return the bit patterns of float32 values, with one pattern for all that is not a number.

    Equal results are equal bit for bit, infinities and the signs of zeros included. Of a NaN it is promised only that
    it is one in both: of two NaN operands a processor passes on the first, and which that is, is the compiler's choice,
    in each variant and for each height of a tile.
    """
    return np.where(np.isnan(values), np.float32(np.nan), values).view(np.uint32)
