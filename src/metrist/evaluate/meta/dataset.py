"""Outputs with their ratings, scores, choices and errors, joined by item and system: numbers and names, no texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrist.errors import RunError, did_you_mean, format_count
from metrist.stats import Codes, Floats, Mask
from metrist.stats.gold import GOLDS, Ratings, gold, rater_gold
from metrist.stats.samples import CorpusStats, Sample

#: Derived columns: the number of characters of a text. `--slice` cuts them into classes.
LENGTHS = ("output_length", "reference_length", "source_length")
_MAX_LISTED = 12


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Labels:
    """A column of names, stored as codes into the distinct names; -1 if an output has no value."""

    codes: Codes
    names: tuple[str, ...]

    @staticmethod
    def of(values: Iterable[str | None]) -> Labels:
        """Encode names in the order in which they first appear."""
        number: dict[str, int] = {}
        codes = np.fromiter((-1 if v is None else number.setdefault(v, len(number)) for v in values), dtype=np.intp)
        return Labels(codes=codes, names=tuple(number))

    def at(self, mask: Mask | Codes) -> Labels:
        """Return the labels of some of the outputs."""
        return Labels(codes=self.codes[mask], names=self.names)

    def take(self, mask: Mask) -> Labels:
        """Return the labels of some of the outputs, with only the names that these have."""
        used, codes = np.unique(self.codes[mask], return_inverse=True)
        present = used[used >= 0]
        return Labels(
            codes=codes.reshape(-1) - (len(used) - len(present)), names=tuple(self.names[code] for code in present)
        )

    def numbers(self) -> Floats:
        """Parse the names as numbers; NaN for a name that is not a number."""
        return np.append([to_number(name) for name in self.names], np.nan)[self.codes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a metric cost per output, as its run recorded it; NaN if it did not."""

    seconds: float = np.nan
    money: float = np.nan


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MetricScores:
    """One metric's scores of all outputs, NaN where it gave none. `higher_is_better` is None if unknown."""

    name: str
    values: Floats
    higher_is_better: bool | None = None
    origin: str = ""
    cost: Cost = field(default_factory=Cost)
    #: The metric's text, where a run has given it a short name.
    text: str | None = None
    #: How the run signs the metric, and in the form of a package which readers know.
    signature: str = ""
    peer_signature: str = ""
    #: For a metric whose system score is not the mean of its scores.
    corpus: CorpusStats | None = None

    def signed(self) -> Floats:
        """The scores, negated if lower is better, so that larger is better."""
        return -self.values if self.higher_is_better is False else self.values

    def signed_corpus(self) -> CorpusStats | None:
        """The statistics whose pooled scores are negated if lower is better."""
        return self.corpus and replace(self.corpus, sign=-1.0 if self.higher_is_better is False else 1.0)

    def take(self, mask: Mask) -> MetricScores:
        """Return the scores of some of the outputs."""
        return replace(self, values=self.values[mask], corpus=self.corpus and self.corpus.take(mask))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Choices:
    """Choices between two outputs each: 1 for the first, -1 for the second, 0 for a tie, NaN if unreadable."""

    first: Codes
    second: Codes
    rater: Codes
    choice: Floats
    weight: Floats | None = None

    def take(self, mask: Mask | Codes) -> Choices:
        """Return some of the choices."""
        return Choices(
            first=self.first[mask],
            second=self.second[mask],
            rater=self.rater[mask],
            choice=self.choice[mask],
            weight=None if self.weight is None else self.weight[mask],
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ErrorSpans:
    """Errors in outputs, one entry each; start and end are -1 if an error has no position."""

    output: Codes
    start: Codes
    end: Codes
    rater: Codes
    severity: Labels
    aspect: Labels
    on_output: Mask


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JudgedDataset:
    """One entry per output in `items`, `systems` and each column; ratings and errors refer to outputs by number."""

    items: Labels
    systems: Labels
    columns: Mapping[str, Labels]
    lengths: Mapping[str, Floats]
    raters: tuple[str, ...]
    ratings: Mapping[str, Ratings]
    scores: Mapping[str, MetricScores]
    preferences: Mapping[str, Choices] = field(default_factory=dict)
    choices: Mapping[str, Choices] = field(default_factory=dict)
    errors: ErrorSpans | None = None
    metric_errors: Mapping[str, ErrorSpans] = field(default_factory=dict)
    label_sets: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    #: Those of the notes that are about files and rows, for whoever gives them rather than for readers of a table.
    reading_notes: tuple[str, ...] = ()
    #: Aspects where lower is better: their ratings are stored negated.
    reversed_aspects: tuple[str, ...] = ()
    #: The columns of the files that were read as another field, such as `model` as `system`.
    fields_by_column: Mapping[str, str] = field(default_factory=dict)
    #: Sampling weights of the outputs as whole numbers, None if all are equal.
    weight: Floats | None = None

    def without_weights(self) -> JudgedDataset:
        """Return the data as if all outputs and pairs had been equally likely to be judged."""
        preferences = {aspect: replace(choices, weight=None) for aspect, choices in self.preferences.items()}
        return replace(self, weight=None, preferences=preferences)

    def __len__(self) -> int:
        return len(self.items.codes)

    def __repr__(self) -> str:
        return (
            f"JudgedDataset({format_count(len(self), 'output')}, {format_count(len(self.items.names), 'item')}, "
            f"{format_count(len(self.systems.names), 'system')}, "
            f"aspects: {', '.join({**self.ratings, **self.preferences}) or 'none'}, "
            f"{format_count(len(self.scores), 'metric')})"
        )

    def column(self, name: str) -> Labels:
        """Return a column by name; `a+b` combines two columns."""
        if name in self.columns or "+" not in name:
            return self._single_column(name)
        return _cross([self._single_column(part) for part in name.split("+")])

    def numbers(self, name: str) -> Floats:
        """Return a column as numbers."""
        if name in self.lengths:
            return self.lengths[name].astype(np.float64)
        numbers = self._single_column(name).numbers()
        if np.isnan(numbers).all():
            raise RunError(f"column {name!r} holds no numbers to cut into classes")
        return numbers

    def column_names(self) -> list[str]:
        """The columns to slice and group by."""
        return ["system", "item", *self.columns, *(name for name in LENGTHS if name in self.lengths)]

    def _single_column(self, name: str) -> Labels:
        known = {"system": self.systems, "item": self.items, **self.columns}
        # `--where model=gpt` also works where the column `model` was read as the system.
        field_name = name if name in known else self.fields_by_column.get(name, name)
        if field_name not in known:
            raise RunError(describe_unknown("column", name, self.column_names()))
        return known[field_name]


def _cross(parts: Sequence[Labels]) -> Labels:
    rows = np.stack([part.codes for part in parts])
    complete = np.flatnonzero((rows >= 0).all(axis=0))
    combined, inverse = np.unique(rows[:, complete], axis=1, return_inverse=True)
    codes = np.full(rows.shape[1], -1, dtype=np.intp)
    codes[complete] = inverse.reshape(-1)
    names = tuple(" · ".join(p.names[c] for p, c in zip(parts, column, strict=True)) for column in combined.T)
    return Labels(codes=codes, names=names)


def to_number(name: str) -> float:
    """Return the number that a name spells; NaN if none."""
    try:
        return float(name)
    except ValueError:
        return np.nan


def describe_unknown(kind: str, name: str, known: Sequence[str]) -> str:
    """Return the error message for a name that the data do not have."""
    more = f" and {len(known) - _MAX_LISTED} more" * (len(known) > _MAX_LISTED)
    listed = ", ".join(map(repr, known[:_MAX_LISTED])) + more
    return f"no {kind} {name!r} in the data, which has {listed or 'none'}{did_you_mean(name, known)}"


def check_names(kind: str, names: Sequence[str], known: Sequence[str]) -> list[str]:
    """Return the distinct names; raise RunError for one that is not known."""
    for name in names:
        if name not in known:
            raise RunError(describe_unknown(kind, name, known))
    return list(dict.fromkeys(names))


# ---- From columns to samples. The only policy for missing values is here: an output takes part if it has both a gold
# value and a score; all others are left out and counted. A NaN never becomes a number.


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SelectedSample:
    """The outputs that have both a gold value and a score, as a sample; `rated` counts those with a gold value."""

    sample: Sample
    outputs: Codes
    rated: int

    @property
    def coverage(self) -> float:
        """The share of outputs with a gold value that also have a score."""
        return len(self.outputs) / self.rated if self.rated else np.nan


def select_sample(
    dataset: JudgedDataset, human: Floats, metric: Floats, outputs: Codes, corpus: CorpusStats | None = None
) -> SelectedSample:
    """Return the sample of these outputs; both columns hold one value per output of the data, larger being better."""
    has_gold, has_both = (np.isfinite(take_outputs(column, outputs)) for column in (human, metric))
    has_both &= has_gold
    both = outputs if has_both.all() else outputs[has_both]
    # Whole columns are shared, not copied.
    sample = Sample(
        human=take_outputs(human, both),
        metric=take_outputs(metric, both),
        item=take_outputs(dataset.items.codes, both),
        system=take_outputs(dataset.systems.codes, both),
        corpus=corpus and (corpus if are_all(both, len(dataset)) else corpus.take(both)),
        weight=None if dataset.weight is None else take_outputs(dataset.weight, both),
    )
    return SelectedSample(sample=sample, outputs=both, rated=int(has_gold.sum()))


def take_outputs(column: NDArray[Any], outputs: Codes) -> NDArray[Any]:
    """Return the values of these outputs; the column itself, not a copy, if they are all outputs in order."""
    return column if are_all(outputs, len(column)) else column[outputs]


def are_all(outputs: Codes, size: int) -> bool:
    """Whether these are all outputs of the data in order."""
    return len(outputs) == size and bool((outputs[1:] > outputs[:-1]).all())


def compute_gold(dataset: JudgedDataset, aspect: str, method: str) -> Floats:
    """Return the gold value of each output; `method` is mean, median, majority, z, or a rater's name."""
    if aspect not in dataset.ratings:
        raise RunError(describe_unknown("aspect", aspect, list(dataset.ratings)))
    ratings = dataset.ratings[aspect]
    if method in GOLDS:
        return gold(ratings, method).value
    if method in dataset.raters:
        return rater_gold(ratings, dataset.raters.index(method)).value
    raise RunError(describe_unknown("gold or rater", method, [*GOLDS, *dataset.raters]))
