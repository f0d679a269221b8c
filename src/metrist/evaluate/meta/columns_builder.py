"""Collect rows into columns while they are read: each output gets a number, and only the lengths of texts are kept."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import eq
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrist.columns import encode_names, move_to_disk, release_pages
from metrist.errors import InputError, label_item
from metrist.evaluate.meta.dataset import (
    LENGTHS,
    Choices,
    ErrorSpans,
    Labels,
    MetricScores,
)
from metrist.io import ParsedRow, StoredScore
from metrist.io.dedup import DigestIndex
from metrist.ratings import Error
from metrist.records import Record
from metrist.stats import Codes, Floats
from metrist.stats.gold import UNKNOWN, Ratings
from metrist.stats.samples import whole_weights

#: A task with more distinct references, or longer ones, has no closed set of answers.
MAX_LABELS = 20
_MAX_LABEL_LENGTH = 100
#: How many items each label needs on average.
_ITEMS_PER_LABEL = 2
_CHOICES: Mapping[str | None, float] = {"first": 1.0, "second": -1.0, "tie": 0.0, None: np.nan}
_NONE: Counter[str] = Counter()
#: A column with longer values holds texts, not names to slice by.
_MAX_NAME_LENGTH = 200


class LabelSets:
    """Collects tasks whose answers come from a small closed set, such as "Plausible" and "Not plausible"."""

    def __init__(self) -> None:
        self._labels: dict[str, Counter[str] | None] = {}
        self._items: set[tuple[str, str]] = set()

    def add(self, record: Record) -> None:
        """Count the record's reference, once per item."""
        task = record.task or ""
        labels = self._labels.get(task, _NONE)
        if labels is None or (task, record.item) in self._items:
            return
        if labels is _NONE:
            labels = self._labels[task] = Counter()
        self._items.add((task, record.item))
        if len(record.references) != 1 or len(record.references[0]) > _MAX_LABEL_LENGTH:
            self._labels[task] = None
            return
        labels[record.references[0]] += 1
        if len(labels) > MAX_LABELS:
            self._labels[task] = None

    def closed(self) -> Mapping[str, Mapping[str, int]]:
        """Return, per task with a closed set, its labels and the number of items with each as the answer."""
        return {
            task: dict(labels)
            for task, labels in self._labels.items()
            if labels and len(labels) >= 2 and labels.total() >= _ITEMS_PER_LABEL * len(labels)
        }


class _Names:
    """Numbers names in the order of their first appearance."""

    def __init__(self) -> None:
        self.number: dict[str, int] = {}

    def __call__(self, name: str | None) -> int:
        return UNKNOWN if name is None else self.number.setdefault(name, len(self.number))


class _Column:
    """A growing column of codes; -1 for outputs without a value."""

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
    """A growing column of numbers; NaN for outputs without a value."""

    def __init__(self) -> None:
        self._values = array("d")

    def replace(self, output: int, value: float) -> float:
        """Set a value and return the previous one."""
        values = self._values
        # Fast path: outputs mostly come in order, each once.
        if output == len(values):
            values.append(value)
            return np.nan
        values.extend([np.nan] * (output + 1 - len(values)))
        previous, values[output] = values[output], value
        return previous

    def column(self, outputs: int) -> Floats:
        if len(self._values) == outputs:
            return np.asarray(self._values)
        values = np.full(outputs, np.nan)
        values[: len(self._values)] = self._values
        return values


class _LongTable:
    """Long-form rows of numbers, stored as one array for each column; `types` are those of `array`."""

    def __init__(self, types: str) -> None:
        self._columns = [array(type_code) for type_code in types]

    def add(self, *cells: float) -> None:
        for column, cell in zip(self._columns, cells, strict=True):
            column.append(cell)  # type: ignore[arg-type]

    def columns(self) -> list[NDArray[Any]]:
        """Return the columns, which are not copied: nothing can be added from now on."""
        return [np.asarray(column) for column in self._columns]


class OutputNumbers:
    """Numbers outputs, by item and system, in the order in which they come: arrays of codes, which take a tenth of the
    memory of a dict."""

    def __init__(self) -> None:
        self.items, self.systems = _Names(), _Names()
        self._item_codes, self._system_codes = array("i"), array("i")
        self._index = DigestIndex()
        self._last: tuple[str, str, int] = ("", "", -1)

    def __len__(self) -> int:
        return len(self._item_codes)

    def number(self, item: str, system: str) -> int:
        """Return the output's number; a new output gets the next one."""
        last_item, last_system, number = self._last
        if number >= 0 and item == last_item and system == last_system:
            return number
        codes = self.items(item), self.systems(system)
        number = self._index.number(hash(codes), codes[0] << 32 | codes[1])
        if number == len(self._item_codes):
            self._item_codes.append(codes[0])
            self._system_codes.append(codes[1])
        self._last = item, system, number
        return number

    def name(self, number: int) -> tuple[str, str]:
        """Return the item and the system of an output."""
        items, systems = list(self.items.number), list(self.systems.number)
        return items[self._item_codes[number]], systems[self._system_codes[number]]

    def labels(self) -> tuple[Labels, Labels]:
        """Return the items and the systems of all outputs. None can be added from now on."""
        self._index = DigestIndex()
        columns = ((self._item_codes, self.items), (self._system_codes, self.systems))
        items, systems = (
            Labels(codes=np.asarray(codes).astype(np.intp), names=tuple(names.number)) for codes, names in columns
        )
        return items, systems

    def has_same_order(self, items: Sequence[str], systems: Sequence[str]) -> bool:
        """Whether these are the items and systems of all outputs, in their order."""
        if len(items) != len(self):
            return False
        for column, codes, names in (
            (items, self._item_codes, self.items),
            (systems, self._system_codes, self.systems),
        ):
            # Both number names in the order of their first use.
            encoded = encode_names(column)
            if len(encoded.names) != len(names.number) or not np.array_equal(encoded.codes, np.asarray(codes)):
                return False
            if not all(map(eq, encoded.names, names.number)):
                return False
            release_pages(encoded.codes)
        return True


class ErrorColumns:
    """Collects the errors that raters, or one metric, marked."""

    def __init__(self, raters: _Names) -> None:
        self._rows = _LongTable("qqqiiib")
        self._raters, self._severities, self._aspects = raters, _Names(), _Names()

    def add(self, output: int, error: Error) -> None:
        start, end = (-1, -1) if error.start is None or error.end is None else (error.start, error.end)
        self._rows.add(
            output,
            start,
            end,
            self._raters(error.rater),
            self._severities(error.severity),
            self._aspects(error.aspect),
            error.side == "output",
        )

    def spans(self) -> ErrorSpans:
        output, start, end, rater, severity, aspect, side = self._rows.columns()
        return ErrorSpans(
            output=_codes(output),
            start=_codes(start),
            end=_codes(end),
            rater=_codes(rater),
            severity=Labels(codes=_codes(severity), names=tuple(self._severities.number)),
            aspect=Labels(codes=_codes(aspect), names=tuple(self._aspects.number)),
            on_output=side > 0,
        )


class ColumnsBuilder:
    """Everything read so far. Rows about the same output are joined by (item, system)."""

    def __init__(self) -> None:
        self.outputs = OutputNumbers()
        self.raters = _Names()
        self.labels = LabelSets()
        self._columns: dict[str, _Column] = {}
        self._lengths = {name: _Values() for name in LENGTHS}
        self._ratings: dict[str, _LongTable] = {}
        self._scores: dict[str, _Values] = {}
        self._score_origins: dict[str, str] = {}
        self._preferences: dict[str, _LongTable] = {}
        self._choices: dict[str, _LongTable] = {}
        self._errors: ErrorColumns | None = None
        self._weights: _Values | None = None
        self._row = 0

    def number(self, item: str, system: str) -> int:
        """Return the output's number; a new output gets the next one."""
        return self.outputs.number(item, system)

    def add(self, entry: ParsedRow) -> None:
        """Add everything that one row holds."""
        self._row += 1
        for record in entry.new:
            self._describe(self.number(record.item, record.system), record)
        for key in entry.keys:
            self._put_columns(self.number(*key), entry.columns)
        for rating in entry.ratings:
            rows = self._ratings.get(rating.aspect)
            if rows is None:
                rows = self._ratings[rating.aspect] = _LongTable("iidq")
            output = self.number(rating.item, rating.system)
            rows.add(output, self.raters(rating.rater), rating.value, self._row)
        if entry.weight is not None and len(entry.keys) == 1:
            self._weights = self._weights or _Values()
            self._weights.replace(self.number(*entry.keys[0]), entry.weight)
        if entry.scores:
            self._add_scores(entry)
        for located in entry.errors:
            self._errors = self._errors or ErrorColumns(self.raters)
            self._errors.add(self.number(located.item, located.system), located.error)
        self._add_choices(entry)

    def _describe(self, output: int, record: Record) -> None:
        self.labels.add(record)
        if record.task or record.language or record.extra:
            self._put_columns(output, {"task": record.task, "language": record.language, **record.extra})
        self._lengths["output_length"].replace(output, len(record.output))
        if record.references:
            mean = sum(map(len, record.references)) / len(record.references)
            self._lengths["reference_length"].replace(output, mean)
        if record.source is not None:
            self._lengths["source_length"].replace(output, len(record.source))

    def _put_columns(self, output: int, columns: Mapping[str, Any]) -> None:
        for column, value in columns.items():
            name = _to_name(value)
            if name is not None:
                self._columns.setdefault(column, _Column()).put(output, name)

    def _add_scores(self, entry: ParsedRow) -> None:
        output = self.number(*entry.keys[0])
        for score in entry.scores:
            column = self._scores.get(score.metric)
            if column is None:
                column = self._scores[score.metric] = _Values()
                self._score_origins[score.metric] = entry.location.file or "the data"
            previous = column.replace(output, score.value)
            if previous == previous and previous != score.value:
                raise InputError(_describe_conflict(entry, score, previous))

    def _add_choices(self, entry: ParsedRow) -> None:
        for preference in entry.preferences:
            rows = self._preferences.setdefault(preference.aspect, _LongTable("iiidqd"))
            first = self.number(preference.item, preference.first)
            second = self.number(preference.item, preference.second)
            choice = _CHOICES[preference.choice]
            rows.add(first, second, self.raters(preference.rater), choice, self._row, entry.weight or 1.0)
        for stored in entry.choices:
            rows = self._choices.setdefault(stored.metric, _LongTable("iiid"))
            first, second = self.number(stored.item, stored.first), self.number(stored.item, stored.second)
            rows.add(first, second, UNKNOWN, _CHOICES[stored.choice])

    def columns(self) -> dict[str, Labels]:
        return {name: column.labels(len(self.outputs)) for name, column in self._columns.items()}

    def take_lengths(self) -> dict[str, Floats]:
        """Return the lengths of texts and forget them."""
        lengths = {}
        for name in LENGTHS:
            column = self._lengths.pop(name).column(len(self.outputs))
            if not np.isnan(column).all():
                lengths[name] = move_to_disk(column)
        return lengths

    def take_ratings(self) -> dict[str, Ratings]:
        """Return the ratings and forget them."""
        ratings = {}
        for aspect in list(self._ratings):
            output, rater, value, _ = self._ratings.pop(aspect).columns()
            column = Ratings.of(output, rater, value, len(self.outputs))
            ratings[aspect] = replace(
                column,
                output=move_to_disk(column.output),
                rater=move_to_disk(column.rater),
                value=move_to_disk(column.value),
            )
        return ratings

    def scores(self) -> dict[str, MetricScores]:
        size = len(self.outputs)
        return {
            name: MetricScores(name=name, values=values.column(size), origin=self._score_origins[name])
            for name, values in self._scores.items()
        }

    def preferences(self) -> dict[str, Choices]:
        preferences = {}
        for aspect, rows in self._preferences.items():
            columns = rows.columns()
            preferences[aspect] = replace(_make_choices(columns[:4]), weight=whole_weights(columns[5]))
        return preferences

    def weight(self) -> Floats | None:
        """Return the sampling weights of the outputs; a rated one without stands for itself, and those that nobody
        rated have none."""
        if self._weights is None:
            return None
        given = self._weights.column(len(self.outputs))
        rated = ~np.isnan(given)
        for rows in self._ratings.values():
            rated[rows.columns()[0].astype(np.intp)] = True
        whole = whole_weights(np.nan_to_num(given[rated], nan=1.0))
        if whole is None:
            return None
        weight = np.ones(len(given))
        weight[rated] = whole
        return weight

    def choices(self) -> dict[str, Choices]:
        return {metric: _make_choices(rows.columns()) for metric, rows in self._choices.items()}

    def repeats(self) -> list[str]:
        """Return notes on judgments that may have been read twice: in two rows by one rater, or by unnamed raters."""
        aspects: dict[str, list[str]] = {}
        for aspect, rows in self._ratings.items():
            output, rater, _, row = rows.columns()
            aspects.setdefault(_describe_repeats("outputs are rated", output, rater, row), []).append(aspect)
        for aspect, rows in self._preferences.items():
            first, second, rater, _, row, _ = rows.columns()
            pair = np.minimum(first, second).astype(np.int64) * len(self.outputs) + np.maximum(first, second)
            aspects.setdefault(_describe_repeats("pairs are judged", pair, rater, row), []).append(aspect)
        return [f"{', '.join(listed)}: {note}" for note, listed in aspects.items() if note]

    def errors(self) -> ErrorSpans | None:
        return self._errors.spans() if self._errors else None


def collect_error_spans(errors: Iterable[tuple[int, Error]]) -> ErrorSpans:
    """Return the errors that a metric reported as columns."""
    columns = ErrorColumns(_Names())
    for output, error in errors:
        columns.add(output, error)
    return columns.spans()


def _describe_conflict(entry: ParsedRow, score: StoredScore, previous: float) -> str:
    return (
        f"{entry.location}: {score.metric} gives item {label_item(score.item)!r} of system {score.system!r} "
        f"{score.value:g}, an earlier row gives it {previous:g}; keep one of the two, or give the metrics different "
        "names"
    )


def _describe_repeats(judgments: str, target: Codes, rater: Codes, row: Codes) -> str:
    """Say how many were judged again in another row; empty if none."""
    if (target[1:] > target[:-1]).all():
        return ""
    distinct = len(np.unique(target))
    if distinct == len(target):
        return ""
    order = np.lexsort((row, rater, target))
    # Several unnamed ratings within one row come from different raters.
    same = np.diff(target[order]) == 0
    same &= np.diff(rater[order]) == 0
    same &= np.diff(row[order]) != 0
    again = len(np.unique(target[order[1:][same]]))
    if not again:
        return ""
    return (
        f"{again:,} of {distinct:,} {judgments} in more than one row by the same rater, or by unnamed "
        "raters: if a file was given twice, its ratings count twice."
    )


def _make_choices(columns: Sequence[NDArray[Any]]) -> Choices:
    first, second, rater, choice = columns
    return Choices(first=_codes(first), second=_codes(second), rater=_codes(rater), choice=choice)


def _codes(column: NDArray[Any]) -> Codes:
    return column.astype(np.intp)


def _to_name(value: Any) -> str | None:
    """Return a cell as a name to slice by; None if it is empty, a structure or a long text."""
    if isinstance(value, bool | int | float):
        return str(value)
    return value if isinstance(value, str) and 0 < len(value) <= _MAX_NAME_LENGTH else None
