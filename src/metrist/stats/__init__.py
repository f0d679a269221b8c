"""Statistics of meta-evaluation: arrays in, numbers out.

Nothing here reads files or sees texts. Items, systems, raters and groups are whole-number codes; a value that does not
exist is NaN; a larger value is the better one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Codes = NDArray[np.intp]
Counts = NDArray[np.int64]
Mask = NDArray[np.bool_]
#: From summed rows of statistics (..., k) to values (...).
Pool = Callable[[Floats], Floats]
