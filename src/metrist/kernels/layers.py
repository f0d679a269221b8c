"""What the layers of a text encoder share: the compiled kernels and their numpy twins take and return it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Singles = NDArray[np.float32]
Integers = NDArray[np.int8]

#: Widths of layers, blocks and attention heads are multiples of this.
UNIT = 16
#: The largest weight: sums of two products with 8-bit integers fit into 16 bits, which x86 processors need.
LARGEST = 63
#: The widest attention head: its products are converted to floats in a way that takes integers below 2**22.
WIDEST_HEAD = 256


class PackedLinear(NamedTuple):
    """A linear layer with its weights arranged for the kernels, which alone know how."""

    weights: NDArray[Any]
    scales: Singles
    bias: Singles | None
    inputs: int
    outputs: int
    block: int
