"""What comparators said of pairs, and what it comes to: win rates, strengths, flips, agreement with people."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrist.errors import RunError
from metrist.metrics.comparator import Comparator, Judgment
from metrist.metrics.llm_metric import spent_together
from metrist.ratings import Choice
from metrist.report.tables import Table
from metrist.run.pairing import Key
from metrist.run.preferred_tables import comparator_table, system_table
from metrist.run.store.shards import INCOMPLETE, KIND
from metrist.run.summary import DRAWS, usual_reason
from metrist.stats.preferences import (
    CHOICES,
    FIRST,
    SECOND,
    TIE,
    Preferences,
    accuracy,
    bradley_terry,
    chance_accuracy,
    macro_f1,
    win_rates,
)
from metrist.stats.resampling import pooled_interval

_SIGNS: Mapping[Choice, int] = {"first": FIRST, "second": SECOND, "tie": TIE}
_Floats = NDArray[np.float64]
_Codes = NDArray[np.intp]


class WinRate(NamedTuple):
    """A system's share of its judged pairs that it won, a tie being half a win, with its interval over items. `worst`
    and `best` are what it would be if the system had lost or won all pairs that failed. `strength` is Bradley and
    Terry's, on the log scale, with its standard error; NaN where the choices do not determine it."""

    comparator: str
    system: str
    value: float
    low: float
    high: float
    won: int
    tied: int
    lost: int
    failed: int
    worst: float
    best: float
    strength: float
    error: float


class Comparing(NamedTuple):
    """How a comparator chose: shares of the pairs that it judged. `flips` are choices that changed with the order in
    which the two were shown, NaN for a comparator that does not know."""

    comparator: str
    pairs: int
    judged: int
    ties: float
    flips: float
    flips_low: float
    flips_high: float
    usage: Mapping[str, Any]


class Agreement(NamedTuple):
    """How often a comparator chose as most people did, on the pairs that both judged; `chance` is a coin's accuracy."""

    comparator: str
    aspect: str
    pairs: int
    value: float
    low: float
    high: float
    chance: float
    f1: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Preferred:
    """The judgments of a call of `prefer`, by the comparator's text; one per pair of `keys` (item, first system, second
    system). `human` has what most people chose, by aspect, None where nobody was asked."""

    keys: Sequence[Key]
    comparators: tuple[Comparator, ...]
    judgments: Mapping[str, Sequence[Judgment]]
    signatures: Mapping[str, str]
    human: Mapping[str, Sequence[Choice | None]]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.keys)

    def __repr__(self) -> str:
        return f"Preferred({len(self):,} pairs, comparators: {', '.join(self.judgments)})"

    @property
    def systems(self) -> tuple[str, ...]:
        """All systems of the pairs, as they come."""
        return tuple(dict.fromkeys(system for _, *both in self.keys for system in both))

    def win_rates(self, draws: int = DRAWS, seed: int = 0, confidence: float = 0.95) -> list[WinRate]:
        """Each system's win rate by each comparator."""
        return [
            row
            for comparator in self.judgments
            for row in self._win_rates(comparator, draws, np.random.default_rng(seed), confidence)
        ]

    def comparing(self, draws: int = DRAWS, seed: int = 0, confidence: float = 0.95) -> list[Comparing]:
        """How each comparator chose."""
        return [self._comparing(text, draws, np.random.default_rng(seed), confidence) for text in self.judgments]

    def agreement(self, draws: int = DRAWS, seed: int = 0, confidence: float = 0.95) -> list[Agreement]:
        """How far each comparator chose as people did, by each aspect that they chose by."""
        return [
            self._agreement(text, aspect, draws, np.random.default_rng(seed), confidence)
            for text in self.judgments
            for aspect in self.human
        ]

    def table(self, draws: int = DRAWS, seed: int = 0, confidence: float = 0.95) -> Table:
        """Win rates of systems."""
        about = f"{confidence:.0%} intervals: {draws:,} bootstrap resamples of the items, seed {seed}"
        return system_table(self.win_rates(draws, seed, confidence), (about, *self.notes, *self._observations()))

    def comparator_table(self, draws: int = DRAWS, seed: int = 0, confidence: float = 0.95) -> Table:
        """How each comparator chose, and how far as people did."""
        return comparator_table(self.comparing(draws, seed, confidence), self.agreement(draws, seed, confidence))

    def rows(self) -> Iterator[dict[str, Any]]:
        """One plain row per pair and comparator, in that order, as in a file of preferences."""
        for number, (item, first, second) in enumerate(self.keys):
            for text, judgments in self.judgments.items():
                yield {"item": item, "systems": [first, second], **as_row(text, judgments[number])}

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write a .jsonl file (.gz, .xz, .zst), whole or not at all."""
        from metrist.run.preference_files import write_rows

        write_rows(path, self.rows())

    def to_pandas(self) -> Any:
        """The rows as a pandas DataFrame."""
        try:
            import pandas
        except ImportError:
            raise RunError("to_pandas() needs pandas: pip install pandas") from None
        return pandas.DataFrame(list(self.rows()))

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()

    def _observations(self) -> list[str]:
        said = [remark for one in self.comparators for remark in one.observations(self.judgments[one.text])]
        return [*said, *(note for text in self.judgments for note in self._failures(text))]

    def _failures(self, comparator: str) -> list[str]:
        reasons = [found.failure for found in self.judgments[comparator] if found.failure is not None]
        if not reasons:
            return []
        return [f"{comparator}: {len(reasons):,} of {len(self):,} pairs not judged, {usual_reason(reasons)}"]

    def _judged(self, comparator: str) -> tuple[_Codes, list[Choice]]:
        """The numbers of the pairs that it judged, and its choices."""
        found = [(i, one.preference) for i, one in enumerate(self.judgments[comparator]) if one.preference is not None]
        return np.array([i for i, _ in found], dtype=np.intp), [choice for _, choice in found]

    def _codes(self) -> tuple[_Codes, _Codes, _Codes]:
        """Item, first and second system of each pair, as numbers."""
        items = {item: i for i, item in enumerate(dict.fromkeys(item for item, *_ in self.keys))}
        systems = {system: i for i, system in enumerate(self.systems)}
        rows = [(items[item], systems[first], systems[second]) for item, first, second in self.keys]
        item, first, second = np.array(rows, dtype=np.intp).reshape(-1, 3).T
        return item, first, second

    def _win_rates(self, text: str, draws: int, rng: np.random.Generator, confidence: float) -> list[WinRate]:
        item, first, second = self._codes()
        at, choices = self._judged(text)
        signs = np.array([_SIGNS[choice] for choice in choices], dtype=np.intp)
        chosen = Preferences.of(item[at], first[at], second[at], signs, len(self.systems))
        rates = win_rates(chosen, draws, rng, confidence)
        strength, error = _strengths(chosen)
        failed = np.delete(np.stack([first, second], axis=1), at, axis=0)
        lost = np.bincount(failed.ravel(), minlength=len(self.systems)).tolist()
        rows = []
        for code, system in enumerate(self.systems):
            won, tied, beaten = _record(chosen, code)
            value, low, high = (float(column[code]) for column in (rates.value, rates.low, rates.high))
            ends = _ends(won + tied / 2, won + tied + beaten, lost[code])
            counts = (won, tied, beaten, lost[code])
            rows.append(WinRate(text, system, value, low, high, *counts, *ends, strength[code], error[code]))
        return rows

    def _comparing(self, text: str, draws: int, rng: np.random.Generator, confidence: float) -> Comparing:
        item, _, _ = self._codes()
        judgments = self.judgments[text]
        judged = [one for one in judgments if one.preference is not None]
        known = [(i, one.flipped) for i, one in enumerate(judgments) if one.flipped is not None]
        flips = np.array([[flipped, 1.0] for _, flipped in known], dtype=np.float64).reshape(-1, 2)
        low, high = _by_item(flips, item[[i for i, _ in known]], draws, rng, confidence)
        return Comparing(
            comparator=text,
            pairs=len(self),
            judged=len(judged),
            ties=sum(one.preference == "tie" for one in judged) / len(judged) if judged else math.nan,
            flips=float(flips[:, 0].mean()) if len(flips) else math.nan,
            flips_low=low,
            flips_high=high,
            usage=spent_together(one.usage for one in judgments),
        )

    def _agreement(self, text: str, aspect: str, draws: int, rng: np.random.Generator, confidence: float) -> Agreement:
        item, _, _ = self._codes()
        both = [
            (i, CHOICES.index(human), CHOICES.index(one.preference))
            for i, (human, one) in enumerate(zip(self.human[aspect], self.judgments[text], strict=True))
            if human is not None and one.preference is not None
        ]
        cells = np.zeros((len(both), 9))
        cells[np.arange(len(both)), [human * 3 + own for _, human, own in both]] = 1.0
        table = cells.sum(axis=0).reshape(1, 3, 3)
        low, high = _by_item(cells, item[[i for i, *_ in both]], draws, rng, confidence, _accuracy)
        shares = [float(share(table)[0]) for share in (accuracy, chance_accuracy, macro_f1)]
        return Agreement(text, aspect, len(both), shares[0], low, high, *shares[1:])


def as_row(comparator: str, judgment: Judgment) -> dict[str, Any]:
    """A judgment as a file has it; what few judgments have is left out where it is not there."""
    few = {
        "flipped": judgment.flipped,
        "shown": list(judgment.shown) or None,
        "raws": list(judgment.raws) or None,
        KIND: None if judgment.failure is None else judgment.failure.kind,
        INCOMPLETE: judgment.incomplete or None,
    }
    return {
        "comparator": comparator,
        "choice": judgment.preference,
        "explanation": judgment.explanation,
        "failure": judgment.failure,
        **{name: value for name, value in few.items() if value is not None},
    }


def _record(chosen: Preferences, system: int) -> tuple[int, int, int]:
    """How often a system won, tied and lost."""
    own = np.concatenate([chosen.choice[chosen.first == system], -chosen.choice[chosen.second == system]])
    won, tied, lost = (int(np.count_nonzero(own == sign)) for sign in (FIRST, TIE, SECOND))
    return won, tied, lost


def _ends(points: float, games: int, failed: int) -> tuple[float, float]:
    whole = games + failed
    return (points / whole, (points + failed) / whole) if whole else (math.nan, math.nan)


def _strengths(chosen: Preferences) -> tuple[list[float], list[float]]:
    try:
        found = bradley_terry(chosen)
    except RunError:
        # A system that never lost has no finite strength; the win rates say all there is.
        return [math.nan] * chosen.systems, [math.nan] * chosen.systems
    return found.strength.tolist(), found.error.tolist()


def _share(sums: _Floats) -> _Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        share: _Floats = sums[..., 0] / sums[..., 1]
    return share


def _accuracy(sums: _Floats) -> _Floats:
    return accuracy(sums.reshape(*sums.shape[:-1], 3, 3))


def _by_item(
    rows: _Floats, item: _Codes, draws: int, rng: np.random.Generator, confidence: float, pool: Any = _share
) -> tuple[float, float]:
    """The interval of what rows pool to; the pairs of an item are drawn together."""
    if not len(rows):
        return math.nan, math.nan
    _, at = np.unique(item, return_inverse=True)
    summed = np.zeros((int(at.max()) + 1, rows.shape[1]))
    np.add.at(summed, at.reshape(-1), rows)
    return pooled_interval(summed, pool, draws, rng, confidence)
