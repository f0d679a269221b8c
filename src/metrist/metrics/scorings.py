"""The scorings behind a shard's scores: each pair of texts, with each prompt, in each window of a long condition.

A cell is one pair with one prompt; it has one scoring, or several where its condition is read in windows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from metrist.metrics.asking import Answers, TextPair
from metrist.metrics.directions import Asked
from metrist.metrics.prompts import Side, prompted

Numbers = NDArray[np.float64]
Counts = NDArray[np.int64]
#: What to do with a condition that is too long: cut it, or read it in windows and take the best or the mean of them.
Long = Literal["truncate", "max", "mean"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What stands around the texts of a pair. `windows` gives the pieces in which a condition is read, from the
    condition and what will be put around it."""

    phrases: tuple[str, ...]
    side: Side
    condition_prefix: str
    target_prefix: str
    windows: Callable[[str, str], Sequence[str]]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Scorings:
    """All scorings, cell after cell: way after way, in it pair after pair, in it prompt after prompt. Cell c has the
    scorings `starts[c]:starts[c + 1]`."""

    asked: Asked
    phrases: tuple[str, ...]
    texts: list[TextPair]
    starts: Counts

    def cells(self, answers: Answers, long: Long) -> Numbers:
        """The cells' values, of shape (ways, pairs, prompts); 0 where a scoring failed."""
        shape = len(self.asked.ways), self.asked.size, len(self.phrases)
        values = np.nan_to_num(answers.values)
        counts = np.diff(self.starts)
        if len(counts) and counts.max() > 1:
            put_together = np.maximum if long == "max" else np.add
            values = put_together.reduceat(values, self.starts[:-1])
            values = values if long == "max" else values / counts
        return values.reshape(shape)

    def failures(self, answers: Answers) -> dict[int, str]:
        """Why records could not be scored, by their place in `asked.able`; of several reasons the first."""
        owners = self._owners()
        return {int(owners[i]): answers.failures[i] for i in sorted(answers.failures, reverse=True)}

    def cut(self, answers: Answers) -> Numbers:
        """Per record in `asked.able`, the tokens left out of its texts, each text counted once."""
        most: dict[tuple[int, str], int] = {}
        owners, pairs = self._owners(), [pair for listed in self.asked.pairs for pair in listed]
        cells = np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))
        for side, counts in enumerate((answers.condition_cut, answers.target_cut)):
            for i in np.flatnonzero(counts).tolist():
                text = pairs[cells[i] // len(self.phrases)][side]
                key = int(owners[i]), text
                most[key] = max(most.get(key, 0), int(counts[i]))
        found = np.zeros(len(self.asked.able))
        for (record, _), count in most.items():
            found[record] += count
        return found

    def most_windows(self) -> Numbers:
        """Per record in `asked.able`, in how many windows its longest condition is read."""
        found = np.zeros(len(self.asked.able))
        np.maximum.at(found, self._owners_of_cells(), np.diff(self.starts))
        return found

    def readings(self, answers: Answers) -> Mapping[int, list[dict[str, Any]]]:
        """Per record in `asked.able`, every scoring's tokens with their log-probabilities."""
        found: dict[int, list[dict[str, Any]]] = {}
        owners = self._owners_of_cells()
        for cell in range(len(self.starts) - 1):
            way, rest = divmod(cell, self.asked.size * len(self.phrases))
            pair, prompt = divmod(rest, len(self.phrases))
            for number, i in enumerate(range(self.starts[cell], self.starts[cell + 1])):
                said = {**self._names(way, pair, prompt), **({"window": number + 1} if self._split(cell) else {})}
                pieces, logprobs = answers.readings[i]
                found.setdefault(int(owners[cell]), []).append({**said, "pieces": pieces, "logprobs": logprobs})
        return found

    def _names(self, way: int, pair: int, prompt: int) -> dict[str, Any]:
        names: dict[str, Any] = self.asked.ways[way]._asdict()
        record = int(np.searchsorted(self.asked.starts, pair, side="right")) - 1
        if self.asked.starts[record + 1] - self.asked.starts[record] > 1:
            names["reference"] = int(pair - self.asked.starts[record]) + 1
        return {**names, "prompt": self.phrases[prompt]} if self.phrases[prompt] else names

    def _split(self, cell: int) -> bool:
        return bool(self.starts[cell + 1] - self.starts[cell] > 1)

    def _owners_of_cells(self) -> Counts:
        pairs = np.tile(self.asked.records_of_pairs(), len(self.asked.ways))
        return np.repeat(pairs, len(self.phrases))

    def _owners(self) -> Counts:
        """For each scoring, which of the records in `asked.able` it belongs to."""
        return np.repeat(self._owners_of_cells(), np.diff(self.starts))


def lay_out(asked: Asked, frame: Frame) -> Scorings:
    """The scorings of all pairs."""
    texts: list[TextPair] = []
    starts = [0]
    # What a prompt and a prefix add to an empty condition is what they take from the room of a window.
    added = [(phrase, frame.condition_prefix + prompted("", "", phrase, frame.side)[0]) for phrase in frame.phrases]
    for condition, target in (pair for listed in asked.pairs for pair in listed):
        for phrase, around in added:
            for window in frame.windows(condition, around):
                given, wanted = prompted(window, target, phrase, frame.side)
                texts.append((frame.condition_prefix + given, frame.target_prefix + wanted))
            starts.append(len(texts))
    return Scorings(asked=asked, phrases=frame.phrases, texts=texts, starts=np.array(starts, np.int64))
