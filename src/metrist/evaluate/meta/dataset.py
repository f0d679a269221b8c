"""Outputs with their ratings, scores, choices and errors, joined by item and system: numbers and names, no texts; and
which of them a figure is about: conditions, slices, groups, systems."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from metrist.errors import RunError, did_you_mean, format_count
from metrist.evaluate.plans import LENGTH_UNITS
from metrist.evaluate.selection import list_some
from metrist.stats import Codes, Floats, Mask
from metrist.stats.gold import GOLDS, Ratings, mean_by_code, rater_gold
from metrist.stats.samples import CorpusStats, Sample

#: Derived columns: the number of characters of a text, or of another unit in `output_length:words`. `--slice` cuts
#: them into classes.
LENGTHS = ("output_length", "reference_length", "source_length")
_MAX_LISTED = 12
#: A task with more distinct references, or longer ones, has no closed set of answers.
MAX_LABELS = 20
_MAX_LABEL_LENGTH = 100
#: How many items each label needs on average.
_ITEMS_PER_LABEL = 2


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
    """Choices between two outputs each: 1 for the first, -1 for the second, 0 for a tie, NaN if unreadable. Where a
    judge says how sure it is, `graded` has that, from 1 to -1, and `choice` is NaN."""

    first: Codes
    second: Codes
    rater: Codes
    choice: Floats
    weight: Floats | None = None
    graded: Floats | None = None

    def take(self, mask: Mask | Codes) -> Choices:
        """Return some of the choices."""
        return Choices(
            first=self.first[mask],
            second=self.second[mask],
            rater=self.rater[mask],
            choice=self.choice[mask],
            weight=None if self.weight is None else self.weight[mask],
            graded=None if self.graded is None else self.graded[mask],
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ErrorSpans:
    """Errors in outputs, one entry each; start and end are -1 if an error has no position."""

    output: Codes
    start: Codes
    end: Codes
    severity: Labels
    on_output: Mask
    #: Who marked each; none for the errors of a metric.
    rater: Codes | None = None


class LabelSets:
    """Collects tasks whose answers come from a small closed set, such as "Plausible" and "Not plausible"."""

    def __init__(self) -> None:
        self._labels: dict[str, Counter[str] | None] = {}
        self._items: set[tuple[str, str]] = set()

    def add(self, records: pa.Table) -> None:
        """Count the references of each item once."""
        tasks = pc.fill_null(records["task"], "")
        if opened := [task for task, labels in self._labels.items() if labels is None]:
            others = pc.invert(pc.is_in(tasks, pa.array(opened)))
            tasks, records = tasks.filter(others), records.filter(others)
        names = tasks.to_pylist()
        columns = (records[name].to_pylist() for name in ("item", "references")) if names else ((), ())
        for task, item, references in zip(names, *columns, strict=True):
            labels = self._labels.setdefault(task, Counter())
            if labels is None or (task, item) in self._items:
                continue
            self._items.add((task, item))
            if len(references) == 1 and len(references[0]) <= _MAX_LABEL_LENGTH:
                labels[references[0]] += 1
            if len(references) != 1 or len(references[0]) > _MAX_LABEL_LENGTH or len(labels) > MAX_LABELS:
                self._labels[task] = None

    def closed(self) -> Mapping[str, Mapping[str, int]]:
        """Return, per task with a closed set, its labels and the number of items with each as the answer."""
        return {
            task: dict(labels)
            for task, labels in self._labels.items()
            if labels and len(labels) >= 2 and labels.total() >= _ITEMS_PER_LABEL * len(labels)
        }


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
        parts = [self._single_column(part) for part in name.split("+")]
        rows = np.stack([part.codes for part in parts])
        complete = np.flatnonzero((rows >= 0).all(axis=0))
        combined, inverse = np.unique(rows[:, complete], axis=1, return_inverse=True)
        codes = np.full(rows.shape[1], -1, dtype=np.intp)
        codes[complete] = inverse.reshape(-1)
        names = (" · ".join(p.names[c] for p, c in zip(parts, column, strict=True)) for column in combined.T)
        return Labels(codes=codes, names=tuple(names))

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
        return ["system", "item", *self.columns, *self.lengths]

    def _single_column(self, name: str) -> Labels:
        known = {"system": self.systems, "item": self.items, **self.columns}
        # `--where model=gpt` also works where the column `model` was read as the system.
        field_name = name if name in known else self.fields_by_column.get(name, name)
        if field_name not in known:
            raise RunError(describe_unknown("column", name, self.column_names()), code="unknown_name")
        return known[field_name]


def to_number(name: str) -> float:
    """Return the number that a name spells; NaN if none."""
    try:
        return float(name)
    except ValueError:
        return np.nan


def describe_unknown(kind: str, name: str, known: Sequence[str]) -> str:
    """Return the error message for a name that the data do not have."""
    listed = list_some(map(repr, known), _MAX_LISTED) or "none"
    return f"no {kind} {name!r} in the data, which has {listed}{did_you_mean(name, known)}"


def check_names(kind: str, names: Sequence[str], known: Sequence[str]) -> list[str]:
    """Return the distinct names; raise RunError for one that is not known."""
    for name in names:
        if name not in known:
            raise RunError(describe_unknown(kind, name, known), code="unknown_name")
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
        raise RunError(describe_unknown("aspect", aspect, list(dataset.ratings)), code="unknown_name")
    ratings = dataset.ratings[aspect]
    if method in GOLDS:
        return GOLDS[method](ratings)
    if method in dataset.raters:
        return rater_gold(ratings, dataset.raters.index(method))
    raise RunError(describe_unknown("gold or rater", method, [*GOLDS, *dataset.raters]), code="unknown_name")


# ---- Slices of the outputs

ALL = "all"
_CLASSES = re.compile(
    r"(?P<column>.+?)(?::(?P<count>\d+)|@(?P<limits>[-+.\d,eE]+))?"
    rf"(?P<unit>{'|'.join(f':{unit}' for unit in LENGTH_UNITS)})?(?::characters)?",
    re.DOTALL,
)
#: With fewer groups, resampling groups is less reliable than resampling the items within them.
_MIN_GROUPS = 30


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Slice:
    """Some of the outputs and the name of what they share; `column` is empty for the slice of all outputs."""

    name: str
    outputs: Codes
    column: str = ""
    value: str = ""


def make_slices(dataset: JudgedDataset, columns: Sequence[str], outputs: Codes) -> list[Slice]:
    """Return the slice of all these outputs, then one slice per value of each column.

    `output_length` makes two classes of a number, `output_length:4` four classes of equally many outputs,
    `output_length@80,200` classes that begin at these limits, `output_length@15,25:words` by another unit of length;
    `task+language` combines two columns.
    """
    slices = [Slice(name=ALL, outputs=outputs)]
    for column in columns:
        labels = resolve_column(dataset, column, outputs).at(outputs)
        if not (labels.codes >= 0).any():
            raise RunError(f"no output has a value in column {column!r}: there is nothing to slice by")
        for code, name in enumerate(labels.names):
            members = outputs[labels.codes == code]
            if len(members):
                slices.append(Slice(name=f"{column}={name}", outputs=members, column=column, value=name))
    return slices


def resolve_column(dataset: JudgedDataset, column: str, outputs: Codes) -> Labels:
    """Return a column to slice or group by; numbers are cut into classes with limits from these outputs."""
    match = _CLASSES.fullmatch(column) if column not in dataset.columns else None
    if match is None or not (match["count"] or match["limits"] or match["column"] in LENGTHS):
        return dataset.column(column)
    name = match["column"] + (match["unit"] or "")
    numbers = dataset.numbers(name)
    if match["limits"]:
        try:
            given = sorted({float(limit) for limit in match["limits"].split(",")})
        except ValueError:
            raise RunError(
                f"`slices='{column}'`: expected numbers after @, such as output_length@80,200", code="invalid_value"
            ) from None
        texts = [f"{limit:g}" for limit in given]
        between = [f"{low}–{high}" for low, high in pairwise(texts)]
        return _cut(numbers, given, (f"<{texts[0]}", *between, f"≥{texts[-1]}"), "right")
    count = int(match["count"] or 2)
    if count < 2:
        raise RunError(f"`slices='{column}'`: expected at least 2 classes, got {count}", code="invalid_value")
    known = numbers[outputs][~np.isnan(numbers[outputs])]
    if not len(known):
        raise RunError(f"no output has a value in column {name!r}: there is nothing to slice by")
    limits = np.unique(np.quantile(known, np.arange(1, count) / count, method="lower")).tolist()
    texts = [f"{limit:g}" for limit in limits]
    between = [f">{low}–{high}" for low, high in pairwise(texts)]
    return _cut(numbers, limits, (f"≤{texts[0]}", *between, f">{texts[-1]}"), "left")


def _cut(numbers: Floats, limits: Sequence[float], names: tuple[str, ...], side: Literal["left", "right"]) -> Labels:
    """Cut numbers into classes; a limit belongs to the class above it if `side` is right, else to the one below."""
    codes = np.searchsorted(limits, np.where(np.isnan(numbers), np.inf, numbers), side=side)
    return Labels(codes=np.where(np.isnan(numbers), -1, codes).astype(np.intp), names=names)


# ---- Rows and systems that take part


_CONDITION = re.compile(r"(?P<column>[^=!<>]+)(?P<operator>!=|<=|>=|=|<|>)(?P<value>.*)", re.DOTALL)


def filter_outputs(dataset: JudgedDataset, conditions: Sequence[str]) -> JudgedDataset:
    """Return the data of the outputs that meet all conditions, such as `language=en`, `task!=qa` or `output_length<80`,
    as if the others had never been read. Preferences need both outputs."""
    if not conditions:
        return dataset
    mask = np.ones(len(dataset), dtype=np.bool_)
    for number_before, condition in enumerate(conditions):
        match = _CONDITION.fullmatch(condition)
        if match is None:
            raise RunError(
                f"`where='{condition}'`: expected a column, one of = != < > <= >=, and a value: language=en",
                code="invalid_value",
            )
        name, operator, value = (match[group].strip() for group in ("column", "operator", "value"))
        name = name.removesuffix(":characters")
        mask &= _meets(dataset, name, operator, value)
        if not mask.any():
            earlier = f" that meet {' and '.join(conditions[:number_before])}" if number_before else ""
            known = ""
            if operator == "=" and name not in dataset.lengths:
                names = dataset.column(name).names
                known = f"; {name} is {list_some(map(repr, names), _MAX_LISTED)}{did_you_mean(value, names)}"
            raise RunError(f"`where='{condition}'`: none of the outputs{earlier} meets it{known}")
    note = f"Only outputs where {' and '.join(conditions)}: {mask.sum():,} of {len(mask):,}."
    number = np.cumsum(mask) - 1
    ratings = {}
    for aspect, column in dataset.ratings.items():
        inside = column.take(mask[column.output])
        if len(inside.output):
            ratings[aspect] = replace(inside, output=number[inside.output], outputs=int(mask.sum()))
    scores = {
        name: column.take(mask)
        for name, column in dataset.scores.items()
        if np.isfinite(column.values[mask]).any() or not np.isfinite(column.values).any()
    }
    columns = {name: column.take(mask) for name, column in dataset.columns.items()}
    tasks = set(columns["task"].names) if "task" in columns else {""}
    return replace(
        dataset,
        items=dataset.items.take(mask),
        systems=dataset.systems.take(mask),
        columns=columns,
        lengths={name: column[mask] for name, column in dataset.lengths.items()},
        weight=None if dataset.weight is None else dataset.weight[mask],
        ratings=ratings,
        scores=scores,
        preferences=_filter_choices(dataset.preferences, mask, number),
        choices=_filter_choices(dataset.choices, mask, number),
        errors=_filter_errors(dataset.errors, mask, number) if dataset.errors else None,
        metric_errors={name: _filter_errors(spans, mask, number) for name, spans in dataset.metric_errors.items()},
        label_sets={task: labels for task, labels in dataset.label_sets.items() if task in tasks},
        notes=(note, *dataset.notes),
    )


def _meets(dataset: JudgedDataset, name: str, operator: str, value: str) -> Mask:
    """Compare names as text, and numbers by value: 3 equals 3.0."""
    number = to_number(value)
    if operator in ("=", "!="):
        if name in dataset.lengths:
            equal: Mask = dataset.lengths[name] == number
        else:
            labels = dataset.column(name)
            codes = [code for code, known in enumerate(labels.names) if known == value or to_number(known) == number]
            equal = np.isin(labels.codes, codes)
        return equal if operator == "=" else ~equal
    if np.isnan(number):
        raise RunError(f"`where`: expected a number after {operator}, got {value!r}", code="invalid_value")
    compare = {"<": np.less, ">": np.greater, "<=": np.less_equal, ">=": np.greater_equal}[operator]
    with np.errstate(invalid="ignore"):
        compared: Mask = compare(dataset.numbers(name), number)
    return compared


def _filter_choices(choices: Mapping[str, Choices], mask: Mask, number: Codes) -> dict[str, Choices]:
    filtered = {}
    for name, column in choices.items():
        inside = column.take(mask[column.first] & mask[column.second])
        if len(inside.first):
            filtered[name] = replace(inside, first=number[inside.first], second=number[inside.second])
    return filtered


def _filter_errors(spans: ErrorSpans, mask: Mask, number: Codes) -> ErrorSpans:
    inside = mask[spans.output]
    return ErrorSpans(
        output=number[spans.output[inside]],
        start=spans.start[inside],
        end=spans.end[inside],
        severity=spans.severity.at(inside),
        on_output=spans.on_output[inside],
        rater=None if spans.rater is None else spans.rater[inside],
    )


def select_outputs(
    dataset: JudgedDataset, *, systems: Sequence[str] | None = None, exclude_systems: Sequence[str] = ()
) -> Codes:
    """Return the outputs of the systems that take part."""
    known = dataset.systems.names
    included = set(known if systems is None else check_names("system", systems, known))
    included -= set(check_names("system", exclude_systems, known))
    if not included:
        raise RunError(f"no system is left of {list_some(map(repr, known), _MAX_LISTED)}: keep at least one")
    mask: Mask = np.isin(dataset.systems.codes, [code for code, name in enumerate(known) if name in included])
    return np.flatnonzero(mask)


def system_means(dataset: JudgedDataset, values: Floats, outputs: Codes) -> Floats:
    """Return each system's mean over its outputs that have a value; NaN for a system without any."""
    known = outputs[~np.isnan(values[outputs])]
    return mean_by_code(values[known], dataset.systems.codes[known], len(dataset.systems.names))


# ---- Groups: one of the built-in groupings, or any column


def group_codes(dataset: JudgedDataset, group: str, selected: SelectedSample) -> Codes:
    """Return a code per output of the sample: outputs with equal codes are paired."""
    match group:
        case "none" | "system-level":
            return np.zeros(len(selected.outputs), dtype=np.intp)
        case "item":
            return selected.sample.item
        case "system":
            return selected.sample.system
    codes = resolve_column(dataset, group, selected.outputs).codes[selected.outputs]
    # An output without a value in the column belongs to no group: it gets a group of its own and forms no pair.
    missing = codes < 0
    return np.where(missing, codes.max(initial=-1) + 1 + np.cumsum(missing), codes)


def resample_whole_groups(dataset: JudgedDataset, group: str, outputs: Codes) -> JudgedDataset:
    """Return the data with groups in the place of items, if every item lies within one group and there are many groups.

    An item drawn twice would be paired with its own copies within its group, which never happens in real data: with two
    or three items per group, most resamples would be unlike the data. Whole groups have no such copies.
    """
    column = dataset.columns.get(group)
    if column is None:
        return dataset
    codes, items = column.codes[outputs], dataset.items.codes[outputs]
    groups, item_count = len(np.unique(codes)), len(np.unique(items))
    nested = len(np.unique(np.stack([items, codes]), axis=1).T) == item_count
    if (codes < 0).any() or not nested or not _MIN_GROUPS <= groups < item_count:
        return dataset
    note = f"Every item belongs to one {group}: the {groups:,} values of {group} are resampled instead of items."
    # Outputs outside the evaluation may have no group; they are never drawn.
    return replace(dataset, items=Labels(codes=column.codes, names=column.names), notes=(note, *dataset.notes))
