"""Longest common subsequences, bit-parallel (Hyyrö 2004).

A row of the table is kept as one integer: bit i is 0 where the length grows from the pattern's first i tokens to its
first i + 1, so that a whole row takes four operations on integers and the length is the number of zeros. Long patterns
go in blocks, each taking at every row the carry of the block before: else the masks of a megabyte would not fit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from metrist.kernels.tokens import Tokens

_WIDTH = 1 << 14


def lcs_lengths(tokens: Tokens, outputs: NDArray[np.int32], references: NDArray[np.int32]) -> NDArray[np.int64]:
    pairs = zip(outputs.tolist(), references.tolist(), strict=True)
    return np.array([_length(tokens.listed(a), tokens.listed(b)) for a, b in pairs], np.int64)


def union_lcs_hits(
    tokens: Tokens, line_starts: NDArray[np.int64], outputs: NDArray[np.int32], references: NDArray[np.int32]
) -> NDArray[np.int64]:
    def lines(text: int) -> list[list[int]]:
        return [tokens.listed(line) for line in range(int(line_starts[text]), int(line_starts[text + 1]))]

    pairs = zip(outputs.tolist(), references.tolist(), strict=True)
    return np.array([_union_hits(lines(output), lines(reference)) for output, reference in pairs], np.int64)


class _Block:
    """A piece of the pattern, and the rows that it makes of another text."""

    def __init__(self, pattern: Sequence[int]) -> None:
        self.pattern = pattern
        self.full = (1 << len(pattern)) - 1
        self._masks: dict[int, int] = {}
        for i, token in enumerate(pattern):
            self._masks[token] = self._masks.get(token, 0) | 1 << i

    def rows(self, other: Sequence[int], carries: bytearray, row: int) -> Iterator[int]:
        """Each next row. Takes the carries from the block before, leaves its own in their place."""
        for j, token in enumerate(other):
            shared = row & self._masks.get(token, 0)
            total = row + shared + carries[j]
            carries[j] = total > self.full
            row = (total | (row - shared)) & self.full
            yield row


def _blocks(pattern: Sequence[int]) -> list[Sequence[int]]:
    return [pattern[i : i + _WIDTH] for i in range(0, len(pattern), _WIDTH)]


def _length(a: Sequence[int], b: Sequence[int]) -> int:
    pattern, other = sorted((a, b), key=len)
    carries = bytearray(len(other))
    length = 0
    for piece in _blocks(pattern):
        block = _Block(piece)
        row = block.full
        for last in block.rows(other, carries, row):
            row = last
        length += (block.full & ~row).bit_count()
    return length


def _union_hits(output: list[list[int]], reference: list[list[int]]) -> int:
    """Tokens of the reference's lines that lie on a common subsequence with some line of the output, each counted at
    most as often as it occurs on either side."""
    left = Counter(token for line in output for token in line) & Counter(token for line in reference for token in line)
    hits = 0
    for line in reference:
        shared = set(line)
        others = {tuple(other) for other in output if not shared.isdisjoint(other)}
        for i in sorted(set().union(*(_common(line, other) for other in others))):
            if left[line[i]] > 0:
                left[line[i]] -= 1
                hits += 1
    return hits


def _common(line: Sequence[int], other: Sequence[int]) -> Iterator[int]:
    """The positions in `line` of that one longest common subsequence which rouge-score reads out of its table: from
    the end, equal tokens are taken, otherwise `line` is stepped back unless this would lose length."""
    pieces = _blocks(line)
    carries = [bytearray(len(other))]
    for piece in pieces[:-1]:
        carries.append(carries[-1].copy())
        for _ in _Block(piece).rows(other, carries[-1], (1 << len(piece)) - 1):
            pass
    for number in reversed(range(len(pieces))):
        taken, j = _walk(_Block(pieces[number]), other, carries[number])
        other = other[:j]
        yield from (number * _WIDTH + i for i in taken)


def _walk(block: _Block, other: Sequence[int], carries: bytearray) -> tuple[list[int], int]:
    """What the walk takes of one block, and how much of `other` it leaves to the block before. Only every k-th row is
    kept, the rows between are computed again when the walk gets there."""
    step = isqrt(len(other)) + 1
    rows = block.rows(other, carries.copy(), block.full)
    kept = [block.full, *(row for j, row in enumerate(rows, 1) if j % step == 0)]
    taken: list[int] = []
    i, j = len(block.pattern) - 1, len(other) - 1
    while i >= 0 and j >= 0:
        start = j - j % step
        near = list(block.rows(other[start : j + 1], carries[start : j + 1], kept[start // step]))
        while i >= 0 and j >= start:
            if block.pattern[i] == other[j]:
                taken.append(i)
                i, j = i - 1, j - 1
            elif near[j - start] >> i & 1:
                i -= 1
            else:
                j -= 1
    return taken, j + 1
