"""Outputs and all that was said of them, joined by item and system: numbers and names, no texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from metrist.errors import RunError, did_you_mean
from metrist.stats import Codes, Floats, Mask
from metrist.stats.gold import GOLDS, Ratings, gold, rater_gold
from metrist.stats.samples import Sample

#: Derived columns: how many characters a text has. `--slice` cuts them into classes.
LENGTHS = ("output_length", "reference_length", "source_length")
_LISTED = 12


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Labels:
    """A column of names, kept as codes into the distinct ones; -1 where an output has none."""

    codes: Codes
    names: tuple[str, ...]

    @staticmethod
    def of(values: Iterable[str]) -> Labels:
        """The column of these names, numbered in the order in which they first appear."""
        number: dict[str, int] = {}
        codes = np.fromiter((number.setdefault(value, len(number)) for value in values), dtype=np.intp)
        return Labels(codes=codes, names=tuple(number))

    def at(self, mask: Mask | Codes) -> Labels:
        """The same names for some of the outputs."""
        return Labels(codes=self.codes[mask], names=self.names)

    def numbers(self) -> Floats:
        """The names read as numbers, NaN for a name that is none."""
        return np.append([_number(name) for name in self.names], np.nan)[self.codes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a metric took per output, as its run recorded it; NaN where it did not."""

    seconds: float = np.nan
    money: float = np.nan


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scored:
    """One metric's scores of all outputs, NaN where it gave none. `higher_is_better` is None where nobody said."""

    name: str
    values: Floats
    higher_is_better: bool | None = None
    origin: str = ""
    cost: Cost = field(default_factory=Cost)

    def signed(self) -> Floats:
        """The scores turned so that larger is better."""
        return -self.values if self.higher_is_better is False else self.values


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Compared:
    """Choices between two outputs each: 1 the first, -1 the second, 0 a tie, NaN none that could be read."""

    first: Codes
    second: Codes
    rater: Codes
    choice: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Spans:
    """Errors found in outputs, one entry each; start and end are -1 where an error could not be placed."""

    output: Codes
    start: Codes
    end: Codes
    rater: Codes
    severity: Labels
    aspect: Labels
    on_output: Mask


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Judged:
    """One entry per output in `items`, `systems` and each column; ratings and errors point to outputs by number."""

    items: Labels
    systems: Labels
    columns: Mapping[str, Labels]
    lengths: Mapping[str, Floats]
    raters: tuple[str, ...]
    ratings: Mapping[str, Ratings]
    scores: Mapping[str, Scored]
    preferences: Mapping[str, Compared] = field(default_factory=dict)
    choices: Mapping[str, Compared] = field(default_factory=dict)
    errors: Spans | None = None
    metric_errors: Mapping[str, Spans] = field(default_factory=dict)
    label_sets: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.items.codes)

    def __repr__(self) -> str:
        return (
            f"Judged({len(self):,} outputs, {len(self.items.names):,} items, {len(self.systems.names)} systems, "
            f"aspects: {', '.join({**self.ratings, **self.preferences}) or 'none'}, {len(self.scores)} metrics)"
        )

    def column(self, name: str) -> Labels:
        """A column by name; `a+b` is the column of both names together."""
        parts = [self._single_column(part) for part in name.split("+")] if name not in self.columns else []
        return _crossed(parts) if len(parts) > 1 else self._single_column(name)

    def numbers(self, name: str) -> Floats:
        """A column read as numbers."""
        if name in self.lengths:
            return self.lengths[name]
        found = self._single_column(name).numbers()
        if np.isnan(found).all():
            raise RunError(f"column {name!r} holds no numbers to cut into classes")
        return found

    def column_names(self) -> list[str]:
        """What outputs can be sliced and grouped by."""
        return ["system", "item", *self.columns, *(name for name in LENGTHS if name in self.lengths)]

    def _single_column(self, name: str) -> Labels:
        known = {"system": self.systems, "item": self.items, **self.columns}
        if name not in known:
            raise RunError(unknown("column", name, self.column_names()))
        return known[name]


def unknown(what: str, name: str, known: Sequence[str]) -> str:
    """What to say of a name that is not there."""
    listed = ", ".join(map(repr, known[:_LISTED])) + (f" and {len(known) - _LISTED} more" * (len(known) > _LISTED))
    return f"no {what} {name!r} in the data, which has {listed or 'none'}{did_you_mean(name, known)}"


def chosen(what: str, wanted: Sequence[str], known: Sequence[str]) -> list[str]:
    """The names asked for, each of which must be known."""
    for name in wanted:
        if name not in known:
            raise RunError(unknown(what, name, known))
    return list(dict.fromkeys(wanted))


def _crossed(parts: Sequence[Labels]) -> Labels:
    rows = np.stack([part.codes for part in parts])
    there = np.flatnonzero((rows >= 0).all(axis=0))
    combined, found = np.unique(rows[:, there], axis=1, return_inverse=True)
    codes = np.full(rows.shape[1], -1, dtype=np.intp)
    codes[there] = found.reshape(-1)
    names = tuple(" · ".join(p.names[c] for p, c in zip(parts, column, strict=True)) for column in combined.T)
    return Labels(codes=codes, names=names)


def _number(name: str) -> float:
    try:
        return float(name)
    except ValueError:
        return np.nan


# From joined data to what a measure looks at. The one policy for missing values is stated, and counted, here:
#
# an output takes part where it has both a gold value and a score; whatever lacks either is left out and counted. A NaN
# never becomes a number.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Taken:
    """The outputs of a slice that take part, as a sample, and what they are part of: `rated` outputs have a gold value,
    `scored` ones a score."""

    sample: Sample
    outputs: Codes
    rated: int
    scored: int

    @property
    def coverage(self) -> float:
        """The share of outputs with a gold value that also have a score."""
        return len(self.outputs) / self.rated if self.rated else np.nan


def taken(judged: Judged, human: Floats, metric: Floats, outputs: Codes) -> Taken:
    """The sample of these outputs; both columns have one value per output of the data, larger being better."""
    has_gold, has_score = np.isfinite(human[outputs]), np.isfinite(metric[outputs])
    both = outputs[has_gold & has_score]
    sample = Sample(
        human=human[both], metric=metric[both], item=judged.items.codes[both], system=judged.systems.codes[both]
    )
    return Taken(sample=sample, outputs=both, rated=int(has_gold.sum()), scored=int(has_score.sum()))


def gold_of(judged: Judged, aspect: str, how: str) -> Floats:
    """The gold value of each output under one aspect: `how` is one of mean, median, majority, z, or a rater's name."""
    if aspect not in judged.ratings:
        raise RunError(unknown("aspect", aspect, list(judged.ratings)))
    ratings = judged.ratings[aspect]
    if how in GOLDS:
        return gold(ratings, how).value
    if how in judged.raters:
        return rater_gold(ratings, judged.raters.index(how)).value
    raise RunError(unknown("gold or rater", how, [*GOLDS, *judged.raters]))
