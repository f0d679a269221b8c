"""Votes: choices between the outputs of two systems for an item, of people, of comparators, or by the scores of a
metric, whose better output wins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from metrist.errors import RunError, format_count, unknown_name
from metrist.evaluate.meta.dataset import (
    LENGTHS,
    JudgedDataset,
    Labels,
    check_names,
    compute_gold,
    filter_outputs,
    resolve_column,
)
from metrist.io.fields import SAMPLING_WEIGHT
from metrist.stats import Codes, Floats, Mask


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Votes:
    """One entry per vote: the codes of its item and of both systems, and the choice from 1 (the first) to -1 (the
    second).

    `weight` is in proportion to how many votes each stands for, None if all stand for equally many. `columns` are what
    votes are sliced by; `covariates` are differences between the first and the second output, such as that of their
    lengths.
    """

    item: Codes
    first: Codes
    second: Codes
    choice: Floats
    systems: tuple[str, ...]
    items: tuple[str, ...]
    rater: Labels
    by: str = ""
    weight: Floats | None = None
    columns: Mapping[str, Labels] = field(default_factory=dict)
    covariates: Mapping[str, Floats] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.choice)

    def take(self, mask: Mask) -> Votes:
        """Return some of the votes, and the systems that these are about."""
        both = np.stack([self.first, self.second])[:, mask]
        present, codes = np.unique(both, return_inverse=True)
        first, second = codes.reshape(both.shape)
        return replace(
            self,
            item=self.item[mask],
            first=first,
            second=second,
            choice=self.choice[mask],
            systems=tuple(self.systems[code] for code in present),
            rater=self.rater.at(mask),
            weight=None if self.weight is None else self.weight[mask],
            columns={name: column.at(mask) for name, column in self.columns.items()},
            covariates={name: values[mask] for name, values in self.covariates.items()},
        )

    def select(self, systems: Sequence[str] | None) -> Votes:
        """Return the votes between these systems."""
        if systems is None:
            return self
        chosen = [self.systems.index(name) for name in check_names("system", systems, self.systems)]
        return self.take(np.isin(self.first, chosen) & np.isin(self.second, chosen))


def collect_votes(
    dataset: JudgedDataset,
    by: str | None = None,
    *,
    categories: Sequence[str] = (),
    control: Sequence[str] = (),
    where: Sequence[str] = (),
) -> Votes:
    """Return the votes by an aspect of people's preferences, a comparator, a metric or an aspect of ratings."""
    dataset = filter_outputs(dataset, where)
    kinds = {
        "preferences": dataset.preferences,
        "choices": dataset.choices,
        "scores": dataset.scores,
        "ratings": dataset.ratings,
    }
    name = _choose_judge(kinds, by)
    kind = next(kind for kind, known in kinds.items() if name in known)
    weight, notes = None, list(dataset.notes)
    if kind in ("preferences", "choices"):
        chosen = {**dataset.choices, **dataset.preferences}[name]
        values = chosen.choice if chosen.graded is None else chosen.graded
        chosen, choice = chosen.take(~np.isnan(values)), values[~np.isnan(values)]
        first, second, rater, weight = chosen.first, chosen.second, chosen.rater, chosen.weight
        if weight is not None:
            ratio = weight.max() / weight.min()
            notes.append(f"Pairs count by their {SAMPLING_WEIGHT}, up to {ratio:.1f} times each other.")
    else:
        scores = dataset.scores[name].signed() if kind == "scores" else compute_gold(dataset, name, "mean")
        first, second = _pair_outputs(dataset.items.codes, scores)
        choice = np.sign(scores[first] - scores[second])
        rater = np.full(len(choice), -1)
    if not len(choice):
        raise RunError(f"no item has outputs of two systems that are judged by {name!r}", code="no_data")
    systems = dataset.systems.codes
    columns = {}
    for category in categories:
        # What both outputs of a vote have in the column; none where they differ.
        labels = resolve_column(dataset, category, np.arange(len(dataset)))
        codes = np.where(labels.codes[first] == labels.codes[second], labels.codes[first], -1)
        columns[category] = Labels(codes=codes, names=labels.names)
    votes = Votes(
        item=dataset.items.codes[first],
        first=systems[first],
        second=systems[second],
        choice=choice,
        systems=dataset.systems.names,
        items=dataset.items.names,
        rater=Labels(codes=rater, names=dataset.raters),
        by=name,
        weight=weight,
        columns=columns,
        covariates={own: _subtract(dataset, own, first, second) for own in control},
        notes=tuple(notes),
    )
    return votes.take(np.ones(len(choice), np.bool_))


def _choose_judge(kinds: Mapping[str, Mapping[str, Any]], by: str | None) -> str:
    """Return whose judgments make the leaderboard: the named ones, or those of the first kind that the data have."""
    known = [name for names in kinds.values() for name in names]
    if not known:
        raise RunError("the data hold no preferences, choices, scores or ratings", code="no_data")
    if by is not None:
        if by not in known:
            raise unknown_name("preference, comparator, metric or rating", by, known)
        return by
    names = list(next(names for names in kinds.values() if names))
    if len(names) > 1:
        raise RunError(f"judged by several: choose `by` as one of {', '.join(names)}", code="missing_value")
    return names[0]


def _pair_outputs(items: Codes, values: Floats) -> tuple[Codes, Codes]:
    """Return all pairs of outputs of an item that both have a value."""
    known = np.flatnonzero(np.isfinite(values))
    known = known[np.argsort(items[known], kind="stable")]
    _, starts, sizes = np.unique(items[known], return_index=True, return_counts=True)
    firsts, seconds = [np.empty(0, np.intp)], [np.empty(0, np.intp)]
    for size in np.unique(sizes):  # All items with as many outputs at once.
        outputs = known[starts[sizes == size][:, None] + np.arange(size)]
        one, other = np.triu_indices(int(size), 1)
        firsts.append(outputs[:, one].ravel())
        seconds.append(outputs[:, other].ravel())
    return np.concatenate(firsts), np.concatenate(seconds)


def _subtract(dataset: JudgedDataset, name: str, first: Codes, second: Codes) -> Floats:
    """Return the differences of a length, a number in a column, or a metric's score."""
    if name in dataset.scores:
        values = dataset.scores[name].values
    elif name.partition(":")[0] in LENGTHS:
        values = dataset.lengths.get(name, np.full(len(dataset), np.nan))
    else:
        values = dataset.numbers(name)
    differences: Floats = values[first] - values[second]
    missing = int(np.count_nonzero(~np.isfinite(differences)))
    if missing:
        raise RunError(
            f"`control={name!r}`: {format_count(missing, 'vote')} of {len(first):,} have no value for both outputs; "
            "give the files with the texts, or the run that scored them",
            code="missing_field",
        )
    return differences
