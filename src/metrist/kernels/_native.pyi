from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrist.kernels.tokens import CharClasses

_Scanned = tuple[bytearray, bytearray, list[str]]
_Numbers = NDArray[np.int32]
_Places = NDArray[np.int64]
_Floats = NDArray[np.float64]
_Singles = NDArray[np.float32]

def scan(texts: tuple[str, ...], classes: CharClasses, lower: bool, /) -> _Scanned: ...
def scan_13a(texts: tuple[str, ...], classes: CharClasses, cleaned: Callable[[str], str], /) -> _Scanned: ...
def scan_chrf_words(texts: tuple[str, ...], classes: CharClasses, /) -> _Scanned: ...
def characters(texts: tuple[str, ...], /) -> _Scanned: ...
def json_arrays(columns: tuple[list[Any], ...], starts: _Places, /) -> bytes: ...
def join_columns(
    columns: tuple[Any, ...], rows: int, powers: NDArray[np.uint64], write: Callable[[memoryview], object], /
) -> None: ...
def clipped_matches(
    ids: _Numbers,
    starts: _Places,
    outputs: _Numbers,
    references: _Numbers,
    result: _Places,
    groups: _Places,
    max_order: int,
    /,
) -> None: ...
def lcs_lengths(
    ids: _Numbers, starts: _Places, outputs: _Numbers, references: _Numbers, result: _Places, /
) -> None: ...
def union_lcs_hits(
    ids: _Numbers, starts: _Places, outputs: _Numbers, references: _Numbers, result: _Places, lines: _Places, /
) -> None: ...
def pair_counts(
    order: _Places,
    levels: _Numbers,
    lows: _Places,
    starts: _Places,
    weights: NDArray[np.float64],
    result: _Places,
    draws: int,
    /,
) -> None: ...
def rank_comoments(
    human: _Numbers,
    metric: _Numbers,
    starts: _Places,
    weights: NDArray[np.float64],
    result: NDArray[np.float64],
    draws: int,
    /,
) -> None: ...
def ter_edits(ids: _Numbers, starts: _Places, outputs: _Numbers, references: _Numbers, result: _Places, /) -> None: ...
def beyond_counts(
    scores: _Floats, levels: _Numbers, weights: _Places, starts: _Places, epsilons: _Floats, result: _Places, /
) -> None: ...
def gap_histogram(
    scores: _Floats,
    levels: _Numbers,
    weights: _Places,
    starts: _Places,
    units: _Places,
    low: float,
    high: float,
    origin: float,
    scale: float,
    result: _Places,
    /,
) -> None: ...
def gaps_kept(
    scores: _Floats,
    levels: _Numbers,
    weights: _Places,
    starts: _Places,
    units: _Places,
    low: float,
    high: float,
    origin: float,
    scale: float,
    keep: NDArray[np.bool_],
    gaps: _Floats,
    gains: _Places,
    /,
) -> int: ...
def best_prefixes(
    gains: _Floats, groups: _Numbers, lasts: _Places, weights: _Floats, best: _Floats, at: _Places, /
) -> None: ...
def encoder_level() -> int: ...
def limit_encoder(without: int, /) -> bool: ...
def apply_linear(
    weights: NDArray[np.int8],
    scales: _Singles,
    bias: _Singles,
    rows: _Singles,
    result: _Singles,
    inputs: int,
    outputs: int,
    block: int,
    digits: int,
    gelu: bool,
    /,
) -> None: ...
def attend(joined: _Singles, starts: _Places, turns: _Singles, result: _Singles, heads: int, width: int, /) -> None: ...
def attend_finely(
    queries: _Singles, memory: _Singles, spans: _Places, bias: _Singles, result: _Singles, /, *sizes: int
) -> None: ...
def add_and_normalize(rows: _Singles, more: _Singles, weight: _Singles, bias: _Singles, epsilon: float, /) -> None: ...
def gate_rows(joined: _Singles, result: _Singles, width: int, /) -> None: ...
def gate_by_gelu(joined: _Singles, result: _Singles, width: int, /) -> None: ...
def exponentiate_rows(rows: _Singles, largest: _Singles, sums: _Singles, /) -> None: ...
