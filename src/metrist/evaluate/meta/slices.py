"""Which outputs a figure is about: slices by a column or by classes of a number, and the systems that take part."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from metrist.errors import RunError
from metrist.evaluate.meta.dataset import LENGTHS, Judged, Labels, Taken, chosen
from metrist.stats import Codes, Floats, Mask
from metrist.stats.samples import GROUPINGS, Grouping

ALL = "all"
_CLASSES = re.compile(r"(?P<column>.+?)(?::(?P<count>\d+)|@(?P<limits>[-+.\d,eE]+))")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Slice:
    """Some of the outputs, and the name of what they share; `column` is empty for all of them."""

    name: str
    outputs: Codes
    column: str = ""
    value: str = ""


def slices_of(judged: Judged, columns: Sequence[str], outputs: Codes) -> list[Slice]:
    """All of these outputs, then one slice per value of each column.

    `output_length` makes two classes of a number, `output_length:4` four classes of equally many outputs,
    `output_length@80,200` classes with these limits; `task+language` takes both columns together.
    """
    found = [Slice(name=ALL, outputs=outputs)]
    for column in columns:
        labels = column_of(judged, column, outputs).at(outputs)
        made = [
            Slice(name=f"{column}={name}", outputs=outputs[labels.codes == code], column=column, value=name)
            for code, name in enumerate(labels.names)
        ]
        there = [one for one in made if len(one.outputs)]
        if not there:
            raise RunError(f"no output has a value in column {column!r}: there is nothing to slice by")
        found += there
    return found


def column_of(judged: Judged, column: str, outputs: Codes) -> Labels:
    """A column to slice or group by; numbers are cut into classes, whose limits are taken from these outputs."""
    match = _CLASSES.fullmatch(column) if column not in judged.columns else None
    if match is None and column not in LENGTHS:
        return judged.column(column)
    name = match["column"] if match else column
    numbers = judged.numbers(name)
    if match and match["limits"]:
        return _classes(numbers, _limits(column, match["limits"]))
    count = int(match["count"]) if match else 2
    if count < 2:
        raise RunError(f"--slice {column}: wanted at least 2 classes, got {count}")
    there = numbers[outputs][~np.isnan(numbers[outputs])]
    if not len(there):
        raise RunError(f"no output has a value in column {name!r}: there is nothing to slice by")
    return _classes(numbers, np.unique(np.quantile(there, np.arange(1, count) / count, method="lower")).tolist())


def _limits(column: str, text: str) -> list[float]:
    try:
        return sorted({float(limit) for limit in text.split(",")})
    except ValueError:
        raise RunError(f"--slice {column}: wanted numbers after @, such as output_length@80,200") from None


def _classes(numbers: Floats, limits: Sequence[float]) -> Labels:
    """Classes that end at these limits, the limit itself included."""
    codes = np.searchsorted(limits, np.where(np.isnan(numbers), np.inf, numbers), side="left")
    return Labels(codes=np.where(np.isnan(numbers), -1, codes).astype(np.intp), names=_class_names(limits))


def _class_names(limits: Sequence[float]) -> tuple[str, ...]:
    shown = [f"{limit:g}" for limit in limits]
    between = [f"{low}–{high}" for low, high in pairwise(shown)]
    return (f"≤{shown[0]}", *(f">{pair}" for pair in between), f">{shown[-1]}")


def chosen_outputs(
    judged: Judged, *, systems: Sequence[str] | None = None, exclude_systems: Sequence[str] = ()
) -> Codes:
    """The outputs of the systems that take part."""
    known = judged.systems.names
    kept = set(known if systems is None else chosen("system", systems, known))
    kept -= set(chosen("system", exclude_systems, known))
    if not kept:
        raise RunError(f"no system is left of {', '.join(map(repr, known[:12]))}: leave some in")
    mask: Mask = np.isin(judged.systems.codes, [code for code, name in enumerate(known) if name in kept])
    return np.flatnonzero(mask)


def top_systems(judged: Judged, gold: Floats, outputs: Codes, count: int) -> Codes:
    """The outputs of the `count` systems that humans rate highest on average (of equal ones, the first)."""
    means = system_means(judged, gold, outputs)
    ranked = [code for code in np.argsort(-means, kind="stable") if not np.isnan(means[code])]
    if not 1 <= count <= len(ranked):
        raise RunError(f"--top-k {count}: humans rated {len(ranked)} systems; wanted a number from 1 to {len(ranked)}")
    return outputs[np.isin(judged.systems.codes[outputs], ranked[:count])]


def system_means(judged: Judged, values: Floats, outputs: Codes) -> Floats:
    """The mean value of each system over its outputs that have one; NaN for a system without."""
    there = outputs[~np.isnan(values[outputs])]
    size = len(judged.systems.names)
    counts = np.bincount(judged.systems.codes[there], minlength=size)
    sums = np.bincount(judged.systems.codes[there], weights=values[there], minlength=size)
    means: Floats = np.divide(sums, counts, out=np.full(size, np.nan), where=counts > 0)
    return means


# What outputs are grouped by: one of meta's own groupings, or any column of the data.


def grouping_of(judged: Judged, group: str, part: Taken) -> Grouping | Codes:
    """The grouping as meta takes it: by name, or a code per output of the sample."""
    for known in GROUPINGS:
        if group == known:
            return known
    return _column_codes(judged, group, part)


def group_codes(judged: Judged, group: str, part: Taken) -> Codes:
    """A code per output of the sample: outputs are paired where these are equal."""
    match group:
        case "none" | "system-level":
            return np.zeros(len(part.outputs), dtype=np.intp)
        case "item":
            return part.sample.item
        case "system":
            return part.sample.system
    return _column_codes(judged, group, part)


def _column_codes(judged: Judged, group: str, part: Taken) -> Codes:
    codes = column_of(judged, group, part.outputs).codes[part.outputs]
    # Outputs without a value in the column belong to no group: each stands alone and forms no pair.
    alone = codes < 0
    return np.where(alone, codes.max(initial=-1) + 1 + np.cumsum(alone), codes)


# What is resampled where outputs are grouped by a column such as the document.


#: With fewer groups than this, resampling them says less than resampling the items within them.
_ENOUGH = 30


def with_whole_groups(judged: Judged, group: str, outputs: Codes) -> Judged:
    """The data with the groups for items, where every item lies within one group and there are many of them.

    An item drawn twice would meet its own copies within its group, as no item of other data would: of groups with two
    or three items each, most resamples would then be unlike the data. Whole groups have no such copies.
    """
    column = judged.columns.get(group)
    if column is None:
        return judged
    codes, items = column.codes[outputs], judged.items.codes[outputs]
    groups, of_items = len(np.unique(codes)), len(np.unique(items))
    nested = len(np.unique(np.stack([items, codes]), axis=1).T) == of_items
    if (codes < 0).any() or not nested or not _ENOUGH <= groups < of_items:
        return judged
    note = f"Items lie whole within {group}: its {groups:,} values are what is resampled."
    # Outputs outside the evaluation may have no group; they are never drawn.
    return replace(judged, items=Labels(codes=column.codes, names=column.names), notes=(note, *judged.notes))
