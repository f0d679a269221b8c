"""Results of `prefer`: win rates, strengths, flips, agreement with people, and the tables that show them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrist.errors import RunError, format_count
from metrist.io import atomic_write
from metrist.metrics.comparator import Comparator, Judgment
from metrist.metrics.llm_metric import describe_usage, merge_usage
from metrist.ratings import Choice
from metrist.records import Pair
from metrist.report.tables import Column, Count, Estimate, Number, Share, Table
from metrist.run.results import DRAWS, summarize_reasons
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
#: An item and two of its systems.
Key = tuple[str, str, str]
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


class ComparatorSummary(NamedTuple):
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


class HumanAgreement(NamedTuple):
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
class PreferenceResults:
    """The judgments of a call of `prefer`, by the comparator's label; one per pair of `keys` (item, first system,
    second system). `human` has what most people chose, by aspect, None where nobody chose."""

    keys: Sequence[Key]
    comparators: tuple[Comparator, ...]
    judgments: Mapping[str, Sequence[Judgment]]
    signatures: Mapping[str, str]
    human: Mapping[str, Sequence[Choice | None]]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.keys)

    def __repr__(self) -> str:
        return f"PreferenceResults({format_count(len(self), 'pair')}, comparators: {', '.join(self.judgments)})"

    @property
    def systems(self) -> tuple[str, ...]:
        """All systems of the pairs, in order of appearance."""
        return tuple(dict.fromkeys(system for _, *both in self.keys for system in both))

    def win_rates(self, draws: int = DRAWS, seed: int = 0, confidence: float = 0.95) -> list[WinRate]:
        """Each system's win rate by each comparator."""
        return [
            row
            for comparator in self.judgments
            for row in self._win_rates(comparator, draws, np.random.default_rng(seed), confidence)
        ]

    def summaries(self, draws: int = DRAWS, seed: int = 0, confidence: float = 0.95) -> list[ComparatorSummary]:
        """How each comparator chose."""
        return [self._summarize(text, draws, np.random.default_rng(seed), confidence) for text in self.judgments]

    def agreement(self, draws: int = DRAWS, seed: int = 0, confidence: float = 0.95) -> list[HumanAgreement]:
        """How often each comparator agreed with people, by each aspect that they chose by."""
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
        """How each comparator chose, and how often it agreed with people."""
        return comparator_table(self.summaries(draws, seed, confidence), self.agreement(draws, seed, confidence))

    def rows(self) -> Iterator[dict[str, Any]]:
        """One plain row per pair and comparator, in that order, as in a file of preferences."""
        for number, (item, first, second) in enumerate(self.keys):
            for text, judgments in self.judgments.items():
                yield {"item": item, "systems": [first, second], **judgment_row(text, judgments[number])}

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write a .jsonl file (.gz, .xz, .zst), whole or not at all."""
        with atomic_write(path) as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in self.rows())

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
        notes = [note for metric in self.comparators for note in metric.observations(self.judgments[metric.label])]
        by_label = {metric.label: metric for metric in self.comparators}
        for text, judgments in self.judgments.items():
            reasons = [judgment.failure for judgment in judgments if judgment.failure is not None]
            if reasons:
                summary = summarize_reasons(reasons)
                notes.append(f"{text}: {len(reasons):,} of {format_count(len(self), 'pair')} not judged, {summary}")
            notes += describe_usage(text, merge_usage(judgment.usage for judgment in judgments), by_label[text])
        return notes

    def _codes(self) -> tuple[_Codes, _Codes, _Codes]:
        """Item, first and second system of each pair, as numbers."""
        items = {item: i for i, item in enumerate(dict.fromkeys(item for item, *_ in self.keys))}
        systems = {system: i for i, system in enumerate(self.systems)}
        rows = [(items[item], systems[first], systems[second]) for item, first, second in self.keys]
        item, first, second = np.array(rows, dtype=np.intp).reshape(-1, 3).T
        return item, first, second

    def _win_rates(self, text: str, draws: int, rng: np.random.Generator, confidence: float) -> list[WinRate]:
        item, first, second = self._codes()
        choices = [judgment.preference for judgment in self.judgments[text]]
        at = np.array([i for i, choice in enumerate(choices) if choice is not None], dtype=np.intp)
        signs = np.array([_SIGNS[choice] for choice in choices if choice is not None], dtype=np.intp)
        preferences = Preferences.of(item[at], first[at], second[at], signs, len(self.systems))
        rates = win_rates(preferences, draws, rng, confidence)
        strength, error = _strengths(preferences)
        failed = np.delete(np.stack([first, second], axis=1), at, axis=0)
        lost = np.bincount(failed.ravel(), minlength=len(self.systems)).tolist()
        rows = []
        for code, system in enumerate(self.systems):
            as_first = preferences.choice[preferences.first == code]
            own = np.concatenate([as_first, -preferences.choice[preferences.second == code]])
            won, tied, beaten = (int(np.count_nonzero(own == sign)) for sign in (FIRST, TIE, SECOND))
            value, low, high = (float(column[code]) for column in (rates.value, rates.low, rates.high))
            points = won + tied / 2
            games = won + tied + beaten + lost[code] or math.nan
            rows.append(
                WinRate(
                    comparator=text,
                    system=system,
                    value=value,
                    low=low,
                    high=high,
                    won=won,
                    tied=tied,
                    lost=beaten,
                    failed=lost[code],
                    worst=points / games,
                    best=(points + lost[code]) / games,
                    strength=strength[code],
                    error=error[code],
                )
            )
        return rows

    def _summarize(self, text: str, draws: int, rng: np.random.Generator, confidence: float) -> ComparatorSummary:
        item, _, _ = self._codes()
        judgments = self.judgments[text]
        choices = [judgment.preference for judgment in judgments if judgment.preference is not None]
        known = [(i, judgment.flipped) for i, judgment in enumerate(judgments) if judgment.flipped is not None]
        flips = np.array([[flipped, 1.0] for _, flipped in known], dtype=np.float64).reshape(-1, 2)
        low, high = _by_item(flips, item[[i for i, _ in known]], draws, rng, confidence)
        return ComparatorSummary(
            comparator=text,
            pairs=len(self),
            judged=len(choices),
            ties=choices.count("tie") / len(choices) if choices else math.nan,
            flips=float(flips[:, 0].mean()) if len(flips) else math.nan,
            flips_low=low,
            flips_high=high,
            usage=merge_usage(judgment.usage for judgment in judgments),
        )

    def _agreement(
        self, text: str, aspect: str, draws: int, rng: np.random.Generator, confidence: float
    ) -> HumanAgreement:
        item, _, _ = self._codes()
        both = [
            (i, CHOICES.index(human), CHOICES.index(judgment.preference))
            for i, (human, judgment) in enumerate(zip(self.human[aspect], self.judgments[text], strict=True))
            if human is not None and judgment.preference is not None
        ]
        cells = np.zeros((len(both), 9))
        cells[np.arange(len(both)), [human * 3 + own for _, human, own in both]] = 1.0
        table = cells.sum(axis=0).reshape(1, 3, 3)

        def pool(sums: _Floats) -> _Floats:
            return accuracy(sums.reshape(*sums.shape[:-1], 3, 3))

        low, high = _by_item(cells, item[[i for i, *_ in both]], draws, rng, confidence, pool)
        shares = [float(share(table)[0]) for share in (accuracy, chance_accuracy, macro_f1)]
        return HumanAgreement(text, aspect, len(both), shares[0], low, high, *shares[1:])


def _strengths(preferences: Preferences) -> tuple[list[float], list[float]]:
    try:
        result = bradley_terry(preferences)
    except RunError:
        # A system that never lost has no finite strength.
        return [math.nan] * preferences.systems, [math.nan] * preferences.systems
    return result.strength.tolist(), result.error.tolist()


def _share(sums: _Floats) -> _Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        share: _Floats = sums[..., 0] / sums[..., 1]
    return share


def _by_item(
    rows: _Floats, item: _Codes, draws: int, rng: np.random.Generator, confidence: float, pool: Any = _share
) -> tuple[float, float]:
    """The bootstrap interval of pooled rows; the pairs of an item are drawn together."""
    if not len(rows):
        return math.nan, math.nan
    _, at = np.unique(item, return_inverse=True)
    summed = np.zeros((int(at.max()) + 1, rows.shape[1]))
    np.add.at(summed, at.reshape(-1), rows)
    return pooled_interval(summed, pool, draws, rng, confidence)


# ---- Tables ----


def system_table(rows: Sequence[WinRate], notes: Sequence[str]) -> Table:
    """One row per comparator and system."""
    with_failures = any(row.failed for row in rows)
    failed = ["failed", "if lost", "if won"] if with_failures else []
    names = ["won", "tied", "lost", *failed, "strength"]
    return Table(
        title="Win rates",
        columns=[Column("comparator"), Column("system"), *(Column(name, "right") for name in ("win rate", *names))],
        rows=[
            [
                *(row.comparator, row.system, Estimate(row.value, row.low, row.high)),
                *(Count(row.won), Count(row.tied), Count(row.lost)),
                *([Count(row.failed), Number(row.worst), Number(row.best)] if with_failures else []),
                None if math.isnan(row.strength) else f"{row.strength:+.2f} ± {row.error:.2f}",
            ]
            for row in rows
        ],
        notes=(
            "A tie is half a win. Strength is Bradley and Terry's with ties, on the log scale, ± its standard error.",
            *(
                f"{comparator}: strengths are not determined: "
                f"{_explain_strengths([row for row in rows if row.comparator == comparator])}"
                for comparator in dict.fromkeys(row.comparator for row in rows if math.isnan(row.strength))
            ),
            *notes,
        ),
    )


def _explain_strengths(rows: Sequence[WinRate]) -> str:
    """Why a comparator's strengths are not determined."""
    if any(row.won for row in rows):
        return "some systems never lost to others, or never won, ties aside"
    return "every comparison is a tie" if any(row.tied for row in rows) else "no pair was judged"


def comparator_table(rows: Sequence[ComparatorSummary], agreements: Sequence[HumanAgreement]) -> Table:
    """One row per comparator, with a column of accuracy for each aspect that people chose by."""
    aspects = list(dict.fromkeys(agreement.aspect for agreement in agreements))
    estimates = {(a.comparator, a.aspect): Estimate(a.value, a.low, a.high) for a in agreements}
    flips = "Flips: the share of pairs where the choice changed with the order of the two; such a pair is a tie."
    names = ["pairs", "judged", "ties", "flips", *(f"as people: {aspect}" for aspect in aspects)]
    cost = any("cost" in row.usage for row in rows)
    return Table(
        title="Comparators",
        columns=[
            Column("comparator"),
            *(Column(name, "right") for name in [*names, *(["US dollars"] if cost else [])]),
        ],
        rows=[
            [
                *(row.comparator, Count(row.pairs), Share(row.judged / row.pairs), Share(row.ties)),
                Estimate(row.flips, row.flips_low, row.flips_high),
                *(estimates[row.comparator, aspect] for aspect in aspects),
                *([row.usage.get("cost")] if cost else []),
            ]
            for row in rows
        ],
        notes=[
            *([flips] if any(not math.isnan(row.flips) for row in rows) else []),
            *(note for aspect in aspects for note in _agreement_notes(aspect, agreements)),
        ],
    )


def _agreement_notes(aspect: str, agreements: Sequence[HumanAgreement]) -> list[str]:
    """The number of pairs and the accuracy of a coin, for each comparator where they judged different pairs."""
    shown = [agreement for agreement in agreements if agreement.aspect == aspect and agreement.pairs]
    if not shown:
        return []
    miss = "a tie is a miss where people prefer one"
    share = f"As people, {aspect} ({miss}): the share of pairs where the comparator chose as most people did"
    if len({(agreement.pairs, agreement.chance) for agreement in shown}) == 1:
        return [f"{share}, of {shown[0].pairs:,}; a coin would reach {shown[0].chance:.3f}."]
    each = ", ".join(f"{a.comparator} {a.pairs:,} and {a.chance:.3f}" for a in shown)
    return [f"{share}. Comparators judged different pairs; how many, and what a coin would reach on them: {each}."]


def pair_row(pair: Pair) -> dict[str, Any]:
    return {"item": pair.first.item, "systems": [pair.first.system, pair.second.system]}


def judgment_row(comparator: str, judgment: Judgment) -> dict[str, Any]:
    """A judgment as files of preferences have it, without the optional fields that are empty."""
    optional = {
        "flipped": judgment.flipped,
        "shown": list(judgment.shown) or None,
        "raws": list(judgment.raws) or None,
        "failure_kind": None if judgment.failure is None else judgment.failure.kind,
        "incomplete": judgment.incomplete or None,
    }
    return {
        "comparator": comparator,
        "choice": judgment.preference,
        "explanation": judgment.explanation,
        "failure": judgment.failure,
        **{name: value for name, value in optional.items() if value is not None},
    }
