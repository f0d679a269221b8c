"""The kernels compiled from native/*.c: this module allocates the arrays that they fill."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metrist.kernels import _native
from metrist.kernels.columns import (
    Counts,
    Floats,
    Places,
    Ranked,
    Stretch,
    arrange,
    check_columns,
    check_weights,
    levels_in_group,
)
from metrist.kernels.layers import UNIT, Integers, PackedLinear, Singles
from metrist.kernels.reference import encoder as numpy_encoder
from metrist.kernels.reference.text import SYMBOLS_13A, clean_13a
from metrist.kernels.tokens import SEPARATOR, SINGLE, WORD, CharClasses, TextColumn, Tokens, Value


def scan(texts: Sequence[str], classes: CharClasses) -> Tokens:
    return _tokens(_native.scan(tuple(texts), classes, classes.case == "lower"))


def scan_13a(texts: Sequence[str]) -> Tokens:
    return _tokens(_native.scan_13a(tuple(texts), _classes_13a(), clean_13a))


def scan_chrf_words(texts: Sequence[str]) -> Tokens:
    return _tokens(_native.scan_chrf_words(tuple(texts), _whitespace()))


def characters(texts: Sequence[str]) -> Tokens:
    return _tokens(_native.characters(tuple(texts)))


def json_arrays(columns: Sequence[Sequence[Value]]) -> tuple[bytes, NDArray[np.int64]]:
    starts = np.zeros(len(columns[0]) + 1, np.int64)
    return _native.json_arrays(tuple(map(list, columns)), starts), starts


def join_columns(columns: Sequence[TextColumn], rows: int, write: Callable[[memoryview], object]) -> None:
    _native.join_columns(tuple(columns), rows, _powers_of_ten(), write)


@cache
def _powers_of_ten() -> NDArray[np.uint64]:
    """From 10^-292 to 10^324, each as 128 bits of which the uppermost is one, rounded up: two numbers of 64 bits."""
    halves = []
    for exponent in range(-292, 325):
        shift = 127 - (exponent * 1741647 >> 19)  # Less the logarithm to base 2.
        numerator = 10 ** max(exponent, 0) << max(shift, 0)
        denominator = 10 ** max(-exponent, 0) << max(-shift, 0)
        bits = -(-numerator // denominator)
        halves += [bits >> 64, bits & (1 << 64) - 1]
    return np.array(halves, np.uint64)


def clipped_matches(
    tokens: Tokens,
    outputs: NDArray[np.int32],
    references: NDArray[np.int32],
    max_order: int,
    starts: NDArray[np.int64] | None = None,
) -> NDArray[np.int64]:
    starts = np.arange(len(references) + 1) if starts is None else starts
    matches = np.zeros((len(starts) - 1, max_order), np.int64)
    _native.clipped_matches(*_pairs(tokens, outputs, references), matches, _as_int64(starts), max_order)
    return matches


def lcs_lengths(tokens: Tokens, outputs: NDArray[np.int32], references: NDArray[np.int32]) -> NDArray[np.int64]:
    lengths = np.zeros(len(outputs), np.int64)
    _native.lcs_lengths(*_pairs(tokens, outputs, references), lengths)
    return lengths


def union_lcs_hits(
    tokens: Tokens, line_starts: NDArray[np.int64], outputs: NDArray[np.int32], references: NDArray[np.int32]
) -> NDArray[np.int64]:
    hits = np.zeros(len(outputs), np.int64)
    _native.union_lcs_hits(*_pairs(tokens, outputs, references), hits, _as_int64(line_starts))
    return hits


def ter_edits(tokens: Tokens, outputs: NDArray[np.int32], references: NDArray[np.int32]) -> NDArray[np.int64]:
    edits = np.zeros(len(outputs), np.int64)
    _native.ter_edits(*_pairs(tokens, outputs, references), edits)
    return edits


def pair_counts_grouped(
    human: NDArray[np.float64],
    metric: NDArray[np.float64],
    weights: NDArray[np.float64],
    starts: NDArray[np.int64],
    epsilon: float = 0.0,
) -> NDArray[np.int64]:
    outputs = arrange(human, metric, starts, epsilon)
    check_weights(weights, len(human))
    counts = np.zeros((len(weights), len(starts) - 1, 5), np.int64)
    order, levels, lows, places = outputs
    _native.pair_counts(
        _as_int64(order),
        levels,
        _as_int64(lows),
        places,
        np.ascontiguousarray(weights, np.float64),
        counts,
        len(weights),
    )
    return counts


def rank_comoments_grouped(
    human: NDArray[np.float64], metric: NDArray[np.float64], weights: NDArray[np.float64], starts: NDArray[np.int64]
) -> NDArray[np.float64]:
    check_columns(human, metric, starts)
    check_weights(weights, len(human))
    comoments = np.zeros((len(weights), len(starts) - 1, 5))
    levels = levels_in_group(human, starts), levels_in_group(metric, starts)
    _native.rank_comoments(
        *levels, _as_int64(starts), np.ascontiguousarray(weights, np.float64), comoments, len(weights)
    )
    return comoments


def beyond_counts(ranked: Ranked, epsilons: Floats) -> Counts:
    counts = np.zeros((len(epsilons), len(ranked.starts) - 1, 3), np.int64)
    _native.beyond_counts(*ranked, np.ascontiguousarray(epsilons), counts)
    return counts


def gap_histogram(ranked: Ranked, units: Counts, stretch: Stretch, buckets: int) -> Counts:
    table = np.zeros((buckets, 3), np.int64)
    _native.gap_histogram(*ranked, units, *stretch, table)
    return table


def gaps_kept(
    ranked: Ranked, units: Counts, stretch: Stretch, keep: NDArray[np.bool_], room: int
) -> tuple[Floats, Counts] | None:
    gaps, gains = np.empty(room), np.empty(room, np.int64)
    count = _native.gaps_kept(*ranked, units, *stretch, np.ascontiguousarray(keep), gaps, gains)
    return (gaps[:count], gains[:count]) if count <= room else None


def best_prefixes(gains: Floats, groups: NDArray[np.int32], lasts: Counts, weights: Floats) -> tuple[Floats, Counts]:
    best, at = np.empty(len(weights)), np.empty(len(weights), np.int64)
    _native.best_prefixes(gains, groups, lasts, np.ascontiguousarray(weights), best, at)
    return best, at


# ---- Layers of a text encoder: in numpy on processors that lack the instructions

#: Stands for an array that is not there.
_NONE = np.empty(0, np.float32)
#: 1: the layers of text encoders; 2: linear layers with two digits of 8 bits, too; 3: and attention.
_LEVEL: int = _native.encoder_level()
has_encoder: bool = _LEVEL > 0
#: Bytes of a line of the cache, and the width of a head that attention with two digits takes.
_LINE, _FINE_HEAD = 64, 64


def pack_linear(integers: Integers, scales: Singles, bias: Singles | None, *, fine: bool = False) -> PackedLinear:
    if not has_encoder or (fine and _LEVEL < 2):
        return numpy_encoder.pack_linear(integers, scales, bias)
    outputs, inputs = integers.shape
    # Four consecutive weights of each of 16 outputs lie together; they move as one number of 32 bits.
    fours = np.ascontiguousarray(integers, np.int8).view(np.int32).reshape(-1, UNIT, inputs // 4)
    # Numbers that are read together begin where a line of the cache does.
    room = np.empty(integers.size + _LINE, np.int8)
    weights = room[-room.ctypes.data % _LINE :][: integers.size].reshape(-1, inputs // 4, UNIT * 4)
    weights.view(np.int32)[:] = fours.transpose(0, 2, 1)
    panels = np.ascontiguousarray(scales, np.float32).reshape(-1, UNIT, scales.shape[1]).transpose(0, 2, 1)
    return PackedLinear(weights, np.ascontiguousarray(panels), bias, inputs, outputs, inputs // scales.shape[1])


def apply_linear(linear: PackedLinear, rows: Singles, *, gelu: bool = False, fine: bool = False) -> Singles:
    if linear.weights.dtype != np.int8:
        return numpy_encoder.apply_linear(linear, rows, gelu=gelu, fine=fine)
    result = np.empty((len(rows), linear.outputs), np.float32)
    bias = _NONE if linear.bias is None else linear.bias
    sizes = linear.inputs, linear.outputs, linear.block
    _native.apply_linear(linear.weights, linear.scales, bias, rows, result, *sizes, 1 + fine, gelu)
    return result


def attend(joined: Singles, starts: Places, heads: int, turns: Singles | None) -> Singles:
    if not has_encoder:
        return numpy_encoder.attend(joined, starts, heads, turns)
    hidden = joined.shape[1] // 3
    result = np.empty((len(joined), hidden), np.float32)
    _native.attend(joined, starts, _NONE if turns is None else turns, result, heads, hidden // heads)
    return result


def attend_finely(
    queries: Singles, memory: Singles, spans: Places, bias: Singles | None, heads: int, width: int, exact: bool = False
) -> Singles:
    if exact or _LEVEL < 3 or width != _FINE_HEAD:
        return numpy_encoder.attend_finely(queries, memory, spans, bias, heads, width, exponentiate=exponentiate_rows)
    result = np.empty((len(queries), heads * width), np.float32)
    sizes = heads, queries.shape[1], memory.shape[1]
    _native.attend_finely(queries, memory, spans, _NONE if bias is None else bias, result, *sizes)
    return result


def add_and_normalize(rows: Singles, more: Singles | None, weight: Singles, bias: Singles, epsilon: float) -> None:
    if not has_encoder:
        return numpy_encoder.add_and_normalize(rows, more, weight, bias, epsilon)
    return _native.add_and_normalize(rows, _NONE if more is None else more, weight, bias, epsilon)


def gate_rows(joined: Singles) -> Singles:
    if not has_encoder:
        return numpy_encoder.gate_rows(joined)
    result = np.empty((len(joined), joined.shape[1] // 2), np.float32)
    _native.gate_rows(joined, result, result.shape[1])
    return result


def gate_by_gelu(joined: Singles) -> Singles:
    if not has_encoder or joined.shape[1] % (2 * UNIT):
        return numpy_encoder.gate_by_gelu(joined)
    result = np.empty((len(joined), joined.shape[1] // 2), np.float32)
    _native.gate_by_gelu(joined, result, result.shape[1])
    return result


def exponentiate_rows(rows: Singles) -> tuple[Singles, Singles]:
    if not has_encoder:
        return numpy_encoder.exponentiate_rows(rows)
    largest, sums = np.empty(rows.shape[:-1], np.float32), np.empty(rows.shape[:-1], np.float32)
    _native.exponentiate_rows(rows, largest, sums)
    return largest, sums


_Pairs = tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32], NDArray[np.int32]]


def _pairs(tokens: Tokens, outputs: ArrayLike, references: ArrayLike) -> _Pairs:
    return (
        np.ascontiguousarray(tokens.ids, np.int32),
        np.ascontiguousarray(tokens.starts, np.int64),
        np.ascontiguousarray(outputs, np.int32),
        np.ascontiguousarray(references, np.int32),
    )


def _as_int64(array: ArrayLike) -> NDArray[np.int64]:
    return np.ascontiguousarray(array, np.int64)


def _tokens(scanned: tuple[bytearray, bytearray, list[str]]) -> Tokens:
    ids, starts, words = scanned
    return Tokens(np.frombuffer(ids, np.int32), np.frombuffer(starts, np.int64), words)


@cache
def _classes_13a() -> CharClasses:
    def classify(character: str) -> int:
        return SEPARATOR if character.isspace() else SINGLE if character in SYMBOLS_13A else WORD

    return CharClasses(classify)


@cache
def _whitespace() -> CharClasses:
    return CharClasses(lambda character: SEPARATOR if character.isspace() else WORD)
