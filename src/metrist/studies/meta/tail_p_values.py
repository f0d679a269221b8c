from __future__ import annotations

import numpy as np

from metrist.meta import tail_p_values
from metrist.meta.between import exchange_rows
from metrist.meta.panel import Pairs
from metrist.meta.resample import Pool
from metrist.studies.meta.judged import Floats


def exchange_p_values(rows: Floats, pairs: Pairs, pool: Pool, draws: int, rng: np.random.Generator) -> Floats:
    """The p-value of each pair of metrics, rows (metrics, items, k): items change hands by the toss of a coin."""
    return tail_p_values.exchange_p_values(exchange_rows(rows, pool, pairs, draws=draws, rng=rng))
