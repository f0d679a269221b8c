"""Translation edit rate: edits that turn an output into its reference, where moving a run of words is one edit.

Finding the fewest edits with moves is NP-hard. Tercom's greedy search is the common definition; this follows
sacrebleu's version of it, with the same limits and the same order among equals.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrist.kernels.tokens import Tokens

_LONGEST_MOVE = 10
_FARTHEST_MOVE = 50
_BEAM = 25
_MOST_CANDIDATES = 1000
_NEVER = 1 << 50
_KEEP, _SUBSTITUTE, _DROP, _ADD = range(4)


def ter_edits(tokens: Tokens, outputs: NDArray[np.int32], references: NDArray[np.int32]) -> NDArray[np.int64]:
    """Count translation edits (insertions, deletions, substitutions, moves) per pair, by sacrebleu's Tercom search."""
    pairs = zip(outputs.tolist(), references.tolist(), strict=True)
    return np.array([_edits(tokens.listed(output), tokens.listed(reference)) for output, reference in pairs], np.int64)


def _edits(output: list[int], reference: list[int]) -> int:
    if not reference:
        return len(output)
    table = _Table(reference, len(output))
    moves = tried = 0
    table.load(output)
    while True:
        best, tried = _best_move(output, reference, table, tried)
        # At the limit the search ends at once: even a good move is not made.
        if tried >= _MOST_CANDIDATES or best is None or best.gain <= 0:
            return moves + table.distance
        output = best.apply(output)
        moves += 1
        table.load(output)


class _Move(NamedTuple):
    """A move of `length` words from `-minus_start` to `-minus_target`. The largest tuple is the best move: the largest
    gain, then the longest, the earliest, and the target nearest to the beginning."""

    gain: int
    length: int
    minus_start: int
    minus_target: int

    def apply(self, words: list[int]) -> list[int]:
        return _move_words(words, -self.minus_start, self.length, -self.minus_target)


def _move_words(words: list[int], start: int, length: int, target: int) -> list[int]:
    end = start + length
    if target < start:
        return words[:target] + words[start:end] + words[target:start] + words[end:]
    # A target inside the moved run counts from the run's end.
    stop = target if target > end else target + length
    return words[:start] + words[end:stop] + words[start:end] + words[stop:]


def _best_move(output: list[int], reference: list[int], table: _Table, tried: int) -> tuple[_Move | None, int]:
    aligned, wrong_output, wrong_reference = table.alignment()
    best: _Move | None = None
    for start, match, length in _common_runs(output, reference):
        out_of_place = any(wrong_output[start : start + length]) and any(wrong_reference[match : match + length])
        if not out_of_place or start <= aligned[match] < start + length:
            continue
        for target in _targets(aligned, match, length):
            gain = table.distance - table.compute_distance(
                _move_words(output, start, length, target), min(start, target)
            )
            move = _Move(gain, length, -start, -target)
            best = move if best is None else max(best, move)
            tried += 1
        if tried >= _MOST_CANDIDATES:
            break
    return best, tried


def _common_runs(output: list[int], reference: list[int]) -> Iterator[tuple[int, int, int]]:
    """Yield where a run of the output occurs in the reference, not too far away: start, match and each length."""
    for start in range(len(output)):
        for match in range(max(0, start - _FARTHEST_MOVE), min(len(reference), start + _FARTHEST_MOVE + 1)):
            longest = min(_LONGEST_MOVE, len(output) - start, len(reference) - match)
            for length in range(1, longest + 1):
                if output[start + length - 1] != reference[match + length - 1]:
                    break
                yield start, match, length


def _targets(aligned: list[int], match: int, length: int) -> Iterator[int]:
    """Yield the targets of a run: behind the words aligned with the reference words around its match."""
    previous = -1
    for position in range(match - 1, match + length):
        target = 0 if position == -1 else aligned[position] + 1
        if target != previous:
            yield target
        previous = target


class _Table:
    """Edit distances from prefixes of an output to prefixes of the reference, within a beam around the diagonal.

    Stores the table of the loaded output; a candidate differs from it only from some row on, and starts there.
    """

    def __init__(self, reference: list[int], output_length: int) -> None:
        self._reference = reference
        self._beams = _beams(output_length, len(reference))
        self._words: list[int] = []
        self._costs = [list(range(len(reference) + 1))]
        self._choices: list[list[int]] = [[_ADD] * (len(reference) + 1)]

    def load(self, words: list[int]) -> None:
        """Set the output that candidates are compared with."""
        del self._costs[1:], self._choices[1:]
        self._words = words
        for i in range(1, len(words) + 1):
            costs, choices = self._row(i, words[i - 1], self._costs[-1])
            self._costs.append(costs)
            self._choices.append(choices)

    @property
    def distance(self) -> int:
        return self._costs[-1][-1]

    def compute_distance(self, words: list[int], changed: int) -> int:
        """Return the distance of an output of the same length as the loaded one and equal to it before `changed`."""
        costs = self._costs[changed]
        last = next((i for i in range(len(words), changed, -1) if words[i - 1] != self._words[i - 1]), changed)
        for i in range(changed + 1, len(words) + 1):
            costs, _ = self._row(i, words[i - 1], costs)
            difference = costs[0] - self._costs[i][0]
            # Behind the last change, a row that differs by a constant keeps doing so.
            if i >= last and all(a - b == difference for a, b in zip(costs, self._costs[i], strict=True)):
                return self.distance + difference
        return costs[-1]

    def _row(self, i: int, word: int, above: list[int]) -> tuple[list[int], list[int]]:
        low, high = self._beams[i]
        above_low = self._beams[i - 1][0]
        costs: list[int] = []
        choices: list[int] = []
        left = _NEVER
        for j in range(low, high):
            keeps = j > 0 and word == self._reference[j - 1]
            diagonal = _at(above, j - 1 - above_low) + (not keeps)
            up, left = _at(above, j - above_low) + 1, left + 1
            # Among equals: keep or substitute, then drop, then add.
            choice = _ADD if left < min(diagonal, up) else _DROP if up < diagonal else _KEEP if keeps else _SUBSTITUTE
            left = min(diagonal, up, left)
            costs.append(left)
            choices.append(choice)
        return costs, choices

    def alignment(self) -> tuple[list[int], list[bool], list[bool]]:
        """Return, for each reference word, the output word that it is aligned with (or the last before it, -1 for
        none), and whether each word of the output and of the reference is wrong."""
        i, j = len(self._words), len(self._reference)
        aligned, wrong_output, wrong_reference = [0] * j, [True] * i, [True] * j
        while i > 0 or j > 0:
            choice = self._choices[i][j - self._beams[i][0]]
            if choice != _DROP:
                aligned[j - 1] = i - 1
            if choice == _KEEP:
                wrong_output[i - 1] = wrong_reference[j - 1] = False
            i -= choice != _ADD
            j -= choice != _DROP
        return aligned, wrong_output, wrong_reference


def _beams(output_length: int, reference_length: int) -> list[tuple[int, int]]:
    """Return the columns of each row to compute. The last row goes to the end of the reference."""
    ratio = reference_length / output_length if output_length else 1.0
    width = math.ceil(ratio / 2 + _BEAM) if ratio / 2 > _BEAM else _BEAM
    end = reference_length + 1
    diagonals = [math.floor(i * ratio) for i in range(1, output_length + 1)]
    beams = [(0, end), *((max(0, d - width), min(end, d + width)) for d in diagonals)]
    beams[-1] = (beams[-1][0], end)
    return beams


def _at(costs: list[int], index: int) -> int:
    return costs[index] if 0 <= index < len(costs) else _NEVER
