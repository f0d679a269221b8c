"""Tasks whose answers come from a small closed set, such as "Plausible" and "Not plausible"."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from metrist.errors import InputError
from metrist.evaluate.meta.dataset import LENGTHS, Compared, Labels, Scored, Spans
from metrist.io import ParsedRow, StoredScore
from metrist.ratings import Error
from metrist.records import Record
from metrist.stats import Codes, Floats
from metrist.stats.gold import UNKNOWN, Ratings

#: A task with more distinct references, or longer ones, is no choice from a set.
MOST_LABELS = 20
_LONGEST = 100
#: How many items there must be, on average, with each label.
_ITEMS_PER_LABEL = 2


class LabelSets:
    """Gathers the references of each task as long as they can still be a closed set."""

    def __init__(self) -> None:
        self._labels: dict[str, Counter[str] | None] = {}
        self._items: set[tuple[str, str]] = set()

    def add(self, record: Record) -> None:
        """Count the record's reference, once for each item."""
        task = record.task or ""
        labels = self._labels.setdefault(task, Counter())
        if labels is None or (task, record.item) in self._items:
            return
        self._items.add((task, record.item))
        if len(record.references) != 1 or len(record.references[0]) > _LONGEST:
            self._labels[task] = None
            return
        labels[record.references[0]] += 1
        if len(labels) > MOST_LABELS:
            self._labels[task] = None

    def closed(self) -> Mapping[str, Mapping[str, int]]:
        """Per task with a closed set, its labels and how many items have each for an answer."""
        return {
            task: dict(labels)
            for task, labels in self._labels.items()
            if labels and len(labels) >= 2 and labels.total() >= _ITEMS_PER_LABEL * len(labels)
        }


# Rows become columns while they stream by: each output gets a number, each text only its length.


_CHOICES: Mapping[str | None, float] = {"first": 1.0, "second": -1.0, "tie": 0.0, None: np.nan}
#: A column whose values are longer holds texts, not names to slice by.
_LONGEST_NAME = 200


class _Names:
    """Numbers names in the order they come."""

    def __init__(self) -> None:
        self.number: dict[str, int] = {}

    def __call__(self, name: str | None) -> int:
        return UNKNOWN if name is None else self.number.setdefault(name, len(self.number))


class _Column:
    """A column of codes that grows with the outputs; those passed over have none."""

    def __init__(self) -> None:
        self.names = _Names()
        self._codes = array("i")

    def put(self, output: int, name: str) -> None:
        self._codes.extend([-1] * (output + 1 - len(self._codes)))
        self._codes[output] = self.names(name)

    def labels(self, outputs: int) -> Labels:
        codes = np.full(outputs, -1, dtype=np.intp)
        codes[: len(self._codes)] = self._codes
        return Labels(codes=codes, names=tuple(self.names.number))


class _Values:
    """A column of numbers that grows with the outputs; NaN where none was given."""

    def __init__(self) -> None:
        self._values = array("d")

    def replaced(self, output: int, value: float) -> float:
        """Put a value in its place; what stood there before is given back."""
        values = self._values
        # Outputs mostly come in order, each once.
        if output == len(values):
            values.append(value)
            return np.nan
        values.extend([np.nan] * (output + 1 - len(values)))
        before, values[output] = values[output], value
        return before

    def column(self, outputs: int) -> Floats:
        values = np.full(outputs, np.nan)
        values[: len(self._values)] = self._values
        return values


class _Long:
    """Long-form rows of numbers, kept flat."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._cells = array("d")

    def add(self, *cells: float) -> None:
        self._cells.extend(cells)

    def columns(self) -> Floats:
        table: Floats = np.array(self._cells, dtype=np.float64).reshape(-1, self._width).T
        return table


class ErrorColumns:
    """Errors of one finder (people, or one metric) as they come."""

    def __init__(self, raters: _Names) -> None:
        self._rows = _Long(7)
        self._raters, self._severities, self._aspects = raters, _Names(), _Names()

    def add(self, output: int, error: Error) -> None:
        placed = error.start is not None and error.end is not None
        self._rows.add(
            output,
            error.start if error.start is not None and placed else -1,
            error.end if error.end is not None and placed else -1,
            self._raters(error.rater),
            self._severities(error.severity),
            self._aspects(error.aspect),
            error.side == "output",
        )

    def spans(self) -> Spans:
        output, start, end, rater, severity, aspect, side = self._rows.columns()
        return Spans(
            output=_codes(output),
            start=_codes(start),
            end=_codes(end),
            rater=_codes(rater),
            severity=Labels(codes=_codes(severity), names=tuple(self._severities.number)),
            aspect=Labels(codes=_codes(aspect), names=tuple(self._aspects.number)),
            on_output=side > 0,
        )


class Gathering:
    """All that was read so far. Rows of one output meet under its (item, system)."""

    def __init__(self) -> None:
        self.outputs: dict[tuple[str, str], int] = {}
        self.raters = _Names()
        self.labels = LabelSets()
        self._names: dict[str, str] = {}
        self._columns: dict[str, _Column] = {}
        self._lengths = {name: _Values() for name in LENGTHS}
        self._ratings: dict[str, _Long] = {}
        self._scores: dict[str, _Values] = {}
        self._score_origins: dict[str, str] = {}
        self._preferences: dict[str, _Long] = {}
        self._choices: dict[str, _Long] = {}
        self._errors: ErrorColumns | None = None
        self._row = 0

    def number(self, item: str, system: str) -> int:
        """The output's number; an output not met before gets the next one."""
        key = (self._names.setdefault(item, item), self._names.setdefault(system, system))
        return self.outputs.setdefault(key, len(self.outputs))

    def add(self, entry: ParsedRow) -> None:
        """Take in all that one row says."""
        self._row += 1
        for record in entry.new:
            self._describe(self.number(record.item, record.system), record)
        for key in entry.keys:
            self._put_columns(self.number(*key), entry.columns)
        for rating in entry.ratings:
            rows = self._ratings.setdefault(rating.aspect, _Long(4))
            output = self.number(rating.item, rating.system)
            rows.add(output, self.raters(rating.rater), rating.value, self._row)
        if entry.scores:
            self._score(entry)
        for found in entry.errors:
            self._errors = self._errors or ErrorColumns(self.raters)
            self._errors.add(self.number(found.item, found.system), found.error)
        self._compare(entry)

    def _describe(self, output: int, record: Record) -> None:
        self.labels.add(record)
        self._put_columns(output, {"task": record.task, "language": record.language, **record.extra})
        self._lengths["output_length"].replaced(output, len(record.output))
        if record.references:
            mean = sum(map(len, record.references)) / len(record.references)
            self._lengths["reference_length"].replaced(output, mean)
        if record.source is not None:
            self._lengths["source_length"].replaced(output, len(record.source))

    def _put_columns(self, output: int, columns: Mapping[str, Any]) -> None:
        for column, value in columns.items():
            name = _as_name(value)
            if name is not None:
                self._columns.setdefault(column, _Column()).put(output, name)

    def _score(self, entry: ParsedRow) -> None:
        output = self.number(*entry.keys[0])
        for score in entry.scores:
            column = self._scores.get(score.metric)
            if column is None:
                column = self._scores[score.metric] = _Values()
                self._score_origins[score.metric] = entry.location.file or "the data"
            before = column.replaced(output, score.value)
            if before == before and before != score.value:
                raise InputError(_two_scores(entry, score, before))

    def _compare(self, entry: ParsedRow) -> None:
        for one in entry.preferences:
            rows = self._preferences.setdefault(one.aspect, _Long(5))
            first, second = self.number(one.item, one.first), self.number(one.item, one.second)
            rows.add(first, second, self.raters(one.rater), _CHOICES[one.choice], self._row)
        for made in entry.choices:
            rows = self._choices.setdefault(made.metric, _Long(4))
            first, second = self.number(made.item, made.first), self.number(made.item, made.second)
            rows.add(first, second, UNKNOWN, _CHOICES[made.choice])

    def items(self) -> Labels:
        return Labels.of(item for item, _ in self.outputs)

    def systems(self) -> Labels:
        return Labels.of(system for _, system in self.outputs)

    def columns(self) -> dict[str, Labels]:
        return {name: column.labels(len(self.outputs)) for name, column in self._columns.items()}

    def lengths(self) -> dict[str, Floats]:
        found = {name: values.column(len(self.outputs)) for name, values in self._lengths.items()}
        return {name: column for name, column in found.items() if not np.isnan(column).all()}

    def ratings(self) -> dict[str, Ratings]:
        made = {}
        for aspect, rows in self._ratings.items():
            output, rater, value, _ = rows.columns()
            made[aspect] = Ratings.of(_codes(output), _codes(rater), value, len(self.outputs))
        return made

    def scores(self) -> dict[str, Scored]:
        size = len(self.outputs)
        return {
            name: Scored(name=name, values=values.column(size), origin=self._score_origins[name])
            for name, values in self._scores.items()
        }

    def preferences(self) -> dict[str, Compared]:
        return {aspect: _compared(rows.columns()[:4]) for aspect, rows in self._preferences.items()}

    def choices(self) -> dict[str, Compared]:
        return {metric: _compared(rows.columns()) for metric, rows in self._choices.items()}

    def repeats(self) -> list[str]:
        """Notes on judgments that may have been read twice: by one rater, or by raters without a name, in two rows."""
        aspects: dict[str, list[str]] = {}
        for aspect, rows in self._ratings.items():
            output, rater, _, row = rows.columns()
            aspects.setdefault(_repeated("outputs are rated", output, rater, row), []).append(aspect)
        for aspect, rows in self._preferences.items():
            first, second, rater, _, row = rows.columns()
            pair = np.minimum(first, second) * len(self.outputs) + np.maximum(first, second)
            aspects.setdefault(_repeated("pairs are judged", pair, rater, row), []).append(aspect)
        return [f"{', '.join(listed)}: {what}" for what, listed in aspects.items() if what]

    def errors(self) -> Spans | None:
        return self._errors.spans() if self._errors else None


def error_spans(found: Iterable[tuple[int, Error]]) -> Spans:
    """Errors that a metric found, as columns."""
    columns = ErrorColumns(_Names())
    for output, error in found:
        columns.add(output, error)
    return columns.spans()


def _two_scores(entry: ParsedRow, score: StoredScore, before: float) -> str:
    return (
        f"{entry.location}: {score.metric} gives item {score.item!r} of system {score.system!r} {score.value:g}, "
        f"an earlier row gives it {before:g}; keep one of the two, or give the metrics two names"
    )


def _repeated(what: str, judged: Floats, rater: Floats, row: Floats) -> str:
    """How many were judged again in another row; nothing where none was."""
    # A list of unnamed ratings within one row is by several people.
    by_row = np.unique(np.stack([judged, rater, row]), axis=1)
    by_rater, rows = np.unique(by_row[:2], axis=1, return_counts=True)
    again = len(np.unique(by_rater[0][rows > 1]))
    if not again:
        return ""
    return (
        f"{again:,} of {len(np.unique(judged)):,} {what} in more than one row by the same rater, or by raters who are "
        "not named: if a file was given twice, its ratings count twice."
    )


def _compared(columns: Floats) -> Compared:
    first, second, rater, choice = columns
    return Compared(first=_codes(first), second=_codes(second), rater=_codes(rater), choice=choice)


def _codes(column: Floats) -> Codes:
    return column.astype(np.intp)


def _as_name(value: Any) -> str | None:
    """A cell as a name to slice by; None for a cell that is empty, holds a structure or a text."""
    if isinstance(value, bool | int | float):
        return str(value)
    return value if isinstance(value, str) and 0 < len(value) <= _LONGEST_NAME else None
