"""Longest common subsequences, bit-parallel (Hyyrö 2004).

Row j of the table is kept as one integer: bit i is 0 where the length grows from the reference's first i tokens to its
first i + 1, so that a whole row takes four operations on integers and the length is the number of zeros.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from metrist.kernels.tokens import Tokens


def lcs_lengths(tokens: Tokens, outputs: NDArray[np.int32], references: NDArray[np.int32]) -> NDArray[np.int64]:
    lengths = np.zeros(len(outputs), np.int64)
    for pair, (output, reference) in enumerate(zip(outputs.tolist(), references.tolist(), strict=True)):
        row = full = (1 << len(tokens.listed(reference))) - 1
        for row in _rows(_masks(tokens.listed(reference)), tokens.listed(output), full, full):
            pass
        lengths[pair] = (full & ~row).bit_count()
    return lengths


def union_lcs_hits(
    tokens: Tokens, line_starts: NDArray[np.int64], outputs: NDArray[np.int32], references: NDArray[np.int32]
) -> NDArray[np.int64]:
    def lines(text: int) -> list[list[int]]:
        return [tokens.listed(line) for line in range(int(line_starts[text]), int(line_starts[text + 1]))]

    pairs = zip(outputs.tolist(), references.tolist(), strict=True)
    return np.array([_union_hits(lines(output), lines(reference)) for output, reference in pairs], np.int64)


def _union_hits(output: list[list[int]], reference: list[list[int]]) -> int:
    """Tokens of the reference's lines that lie on a common subsequence with some line of the output, each counted at
    most as often as it occurs on either side."""
    left = Counter(token for line in output for token in line) & Counter(token for line in reference for token in line)
    hits = 0
    distinct = {tuple(line) for line in output}
    for line in reference:
        masks = _masks(line)
        for i in sorted(set().union(*(_common(line, masks, other) for other in distinct))):
            if left[line[i]] > 0:
                left[line[i]] -= 1
                hits += 1
    return hits


def _common(line: list[int], masks: dict[int, int], other: Sequence[int]) -> Iterator[int]:
    """The positions in `line` of that one longest common subsequence which rouge-score reads out of its table: from
    the end, equal tokens are taken, otherwise `line` is stepped back unless this would lose length."""
    full = (1 << len(line)) - 1
    # Only every k-th row is kept, the rows between are computed again: a megabyte against a megabyte still fits.
    step = isqrt(len(other)) + 1
    kept = [full, *(row for j, row in enumerate(_rows(masks, other, full, full), 1) if j % step == 0)]
    i = len(line) - 1
    for block in reversed(range(len(kept))):
        part = other[block * step : (block + 1) * step]
        rows = list(_rows(masks, part, kept[block], full))
        j = len(part) - 1
        while i >= 0 and j >= 0:
            if line[i] == part[j]:
                yield i
                i, j = i - 1, j - 1
            elif rows[j] >> i & 1:
                i -= 1
            else:
                j -= 1


def _rows(masks: dict[int, int], other: Sequence[int], row: int, full: int) -> Iterator[int]:
    for token in other:
        shared = row & masks.get(token, 0)
        row = ((row + shared) | (row - shared)) & full
        yield row


def _masks(line: list[int]) -> dict[int, int]:
    positions: dict[int, list[int]] = {}
    for i, token in enumerate(line):
        positions.setdefault(token, []).append(i)
    return {token: _bits(found) for token, found in positions.items()}


def _bits(positions: list[int]) -> int:
    bits = bytearray(positions[-1] // 8 + 1)
    for i in positions:
        bits[i // 8] |= 1 << i % 8
    return int.from_bytes(bits, "little")
