"""Which outputs a figure is about: slices, groups, systems that take part, and the units that are resampled."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from metrist.errors import RunError, did_you_mean
from metrist.evaluate.meta.dataset import (
    LENGTHS,
    Choices,
    ErrorSpans,
    JudgedDataset,
    Labels,
    SelectedSample,
    check_names,
    to_number,
)
from metrist.stats import Codes, Floats, Mask
from metrist.stats.gold import mean_by_code
from metrist.stats.samples import GROUPINGS, CorpusStats, Grouping

ALL = "all"
_CLASSES = re.compile(r"(?P<column>.+?)(?::(?P<count>\d+)|@(?P<limits>[-+.\d,eE]+))")
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
    `output_length@80,200` classes with these limits; `task+language` combines two columns.
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
    if match is None and column not in LENGTHS:
        return dataset.column(column)
    name = match["column"] if match else column
    numbers = dataset.numbers(name)
    if match and match["limits"]:
        return _cut(numbers, _parse_limits(column, match["limits"]))
    count = int(match["count"]) if match else 2
    if count < 2:
        raise RunError(f"`slices='{column}'`: expected at least 2 classes, got {count}")
    known = numbers[outputs][~np.isnan(numbers[outputs])]
    if not len(known):
        raise RunError(f"no output has a value in column {name!r}: there is nothing to slice by")
    return _cut(numbers, np.unique(np.quantile(known, np.arange(1, count) / count, method="lower")).tolist())


def _parse_limits(column: str, text: str) -> list[float]:
    try:
        return sorted({float(limit) for limit in text.split(",")})
    except ValueError:
        raise RunError(f"`slices='{column}'`: expected numbers after @, such as output_length@80,200") from None


def _cut(numbers: Floats, limits: Sequence[float]) -> Labels:
    """Cut numbers into classes; each limit belongs to the class below it."""
    codes = np.searchsorted(limits, np.where(np.isnan(numbers), np.inf, numbers), side="left")
    texts = [f"{limit:g}" for limit in limits]
    between = [f">{low}–{high}" for low, high in pairwise(texts)]
    names = (f"≤{texts[0]}", *between, f">{texts[-1]}")
    return Labels(codes=np.where(np.isnan(numbers), -1, codes).astype(np.intp), names=names)


# ---- Rows and systems that take part


_CONDITION = re.compile(r"(?P<column>[^=!<>]+)(?P<operator>!=|<=|>=|=|<|>)(?P<value>.*)", re.DOTALL)
_MAX_LISTED = 8


def filter_outputs(dataset: JudgedDataset, conditions: Sequence[str]) -> JudgedDataset:
    """Return the data of the outputs that meet all conditions, such as `language=en`, `task!=qa` or `output_length<80`,
    as if the others had never been read. Preferences need both outputs."""
    if not conditions:
        return dataset
    mask = np.ones(len(dataset), dtype=np.bool_)
    for number_before, condition in enumerate(conditions):
        mask &= _meets(dataset, condition)
        if not mask.any():
            earlier = f" that meet {' and '.join(conditions[:number_before])}" if number_before else ""
            known = _known_values(dataset, condition)
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


def _meets(dataset: JudgedDataset, condition: str) -> Mask:
    match = _CONDITION.fullmatch(condition)
    if match is None:
        raise RunError(f"`where='{condition}'`: expected a column, one of = != < > <= >=, and a value: language=en")
    name, operator, value = match["column"].strip(), match["operator"], match["value"].strip()
    if operator in ("=", "!="):
        equal = _equals(dataset, name, value)
        return equal if operator == "=" else ~equal
    try:
        limit = float(value)
    except ValueError:
        raise RunError(f"`where='{condition}'`: expected a number after {operator}, got {value!r}") from None
    numbers = dataset.numbers(name)
    with np.errstate(invalid="ignore"):
        compared = {
            "<": numbers < limit,
            ">": numbers > limit,
            "<=": numbers <= limit,
            ">=": numbers >= limit,
        }
    met: Mask = compared[operator]
    return met


def _equals(dataset: JudgedDataset, name: str, value: str) -> Mask:
    """Compare names as text, and numbers by value: 3 equals 3.0."""
    try:
        number = float(value)
    except ValueError:
        number = np.nan
    if name in dataset.lengths:
        same: Mask = dataset.lengths[name] == number
        return same
    labels = dataset.column(name)
    codes = [
        code
        for code, known in enumerate(labels.names)
        if known == value or (number == number and to_number(known) == number)
    ]
    equal: Mask = np.isin(labels.codes, codes)
    return equal


def _known_values(dataset: JudgedDataset, condition: str) -> str:
    match = _CONDITION.fullmatch(condition)
    if match is None or match["operator"] != "=" or match["column"].strip() in dataset.lengths:
        return ""
    names = dataset.column(match["column"].strip()).names
    more = f" and {len(names) - _MAX_LISTED} more" * (len(names) > _MAX_LISTED)
    return (
        f"; {match['column'].strip()} is {', '.join(map(repr, names[:_MAX_LISTED]))}{more}"
        f"{did_you_mean(match['value'].strip(), names)}"
    )


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
        rater=spans.rater[inside],
        severity=spans.severity.at(inside),
        aspect=spans.aspect.at(inside),
        on_output=spans.on_output[inside],
    )


def select_outputs(
    dataset: JudgedDataset, *, systems: Sequence[str] | None = None, exclude_systems: Sequence[str] = ()
) -> Codes:
    """Return the outputs of the systems that take part."""
    known = dataset.systems.names
    included = set(known if systems is None else check_names("system", systems, known))
    included -= set(check_names("system", exclude_systems, known))
    if not included:
        raise RunError(f"no system is left of {', '.join(map(repr, known[:12]))}: keep at least one")
    mask: Mask = np.isin(dataset.systems.codes, [code for code, name in enumerate(known) if name in included])
    return np.flatnonzero(mask)


def select_top_systems(dataset: JudgedDataset, gold: Floats, outputs: Codes, count: int) -> Codes:
    """Return the outputs of the `count` systems that humans rate highest on average (of equal systems, the first)."""
    means = system_means(dataset, gold, outputs)
    ranked = [code for code in np.argsort(-means, kind="stable") if not np.isnan(means[code])]
    if not 1 <= count <= len(ranked):
        raise RunError(
            f"`top_k={count}`: {len(ranked)} systems have ratings; expected a number from 1 to {len(ranked)}"
        )
    return outputs[np.isin(dataset.systems.codes[outputs], ranked[:count])]


def system_means(dataset: JudgedDataset, values: Floats, outputs: Codes) -> Floats:
    """Return each system's mean over its outputs that have a value; NaN for a system without any."""
    known = outputs[~np.isnan(values[outputs])]
    return mean_by_code(values[known], dataset.systems.codes[known], len(dataset.systems.names))


def pool_systems(dataset: JudgedDataset, corpus: CorpusStats, outputs: Codes) -> Floats:
    """Return each system's score, pooled from the statistics of these outputs; NaN for a system without any."""
    sums = np.zeros((len(dataset.systems.names), corpus.rows.shape[1]))
    np.add.at(sums, dataset.systems.codes[outputs], corpus.rows[outputs])
    present = np.bincount(dataset.systems.codes[outputs], minlength=len(sums)) > 0
    return np.where(present, corpus.scores(sums), np.nan)


# ---- Groups: one of the built-in groupings, or any column


def resolve_grouping(dataset: JudgedDataset, group: str, selected: SelectedSample) -> Grouping | Codes:
    """Return the name of a built-in grouping, or a code per output of the sample."""
    for known in GROUPINGS:
        if group == known:
            return known
    return group_codes(dataset, group, selected)


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
