"""`worst`: the outputs to look at first – the lowest scores, the largest differences between two systems, and the
largest disagreements between metrics, or of a metric with people."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from metrist.errors import MetristError, RunError, agree, did_you_mean, format_count
from metrist.evaluate.selection import (
    check_signatures,
    choose_decimals,
    has_metric,
    list_names,
    open_run,
    select_metrics,
    select_systems,
)
from metrist.io import Reader, read_records
from metrist.io.reader import RowProgress, check_keywords
from metrist.io.remote import is_remote
from metrist.metrics.base import Metric, PartMetric
from metrist.names import NameColumn, encode_names, list_distinct, select_names
from metrist.ratings import Error
from metrist.records import Record
from metrist.report.tables import format_number
from metrist.report.worst import PEOPLE, ScoredOutput, WorstEntry, WorstOutputs
from metrist.scores import FailureKind, Score

if TYPE_CHECKING:
    from metrist.run.results import Results

By = Literal["score", "difference", "disagreement", "people"]
Order = Literal["losses", "gains", "both"]
_BY: tuple[str, ...] = get_args(By)
_ORDERS: tuple[str, ...] = get_args(Order)
DEFAULT_COUNT = 10
_Floats = NDArray[np.float64]
_Key = tuple[str, str]
#: The number of a run (1 for the other one of a difference) and the row of an output in it.
_Place = tuple[int, int]
_Pair = tuple[_Place, _Place]


@dataclass(slots=True)
class TextBudget:
    """How many outputs may be kept with their texts, and how many characters these may have together. The source and
    the references of an item count once."""

    outputs: int
    characters: int
    exceeded: bool = False
    _items: set[str] = field(default_factory=set)

    def take(self, record: Record) -> None:
        """Count a record; once the budget is exceeded it stays so."""
        self.outputs -= 1
        self.characters -= len(record.output)
        if record.item not in self._items:
            self._items.add(record.item)
            self.characters -= len(record.source or "") + sum(map(len, record.references))
        self.exceeded = self.exceeded or self.outputs < 0 or self.characters < 0


@dataclass(slots=True)
class Judgments:
    """What the input files of a run hold about its outputs: texts, ratings by aspect, and errors that people marked.
    `seen` are the outputs that have a text in the files, whether or not it was kept."""

    records: dict[_Key, Record] = field(default_factory=dict)
    ratings: dict[str, dict[_Key, list[float]]] = field(default_factory=dict)
    errors: dict[_Key, list[Error]] = field(default_factory=dict)
    seen: set[_Key] = field(default_factory=set)

    @staticmethod
    def read(
        reader: Reader,
        known: Container[_Key],
        rename: Callable[[str], str] = str,
        budget: TextBudget | None = None,
        progress: RowProgress | None = None,
    ) -> Judgments:
        """What a reader's rows say about the known outputs, whose systems may have been given other names. No texts are
        kept once a budget is exceeded."""
        judgments = Judgments()
        for entry in reader.entries(progress):
            for record in entry.records:
                if (key := (record.item, rename(record.system))) not in known or key in judgments.seen:
                    continue
                judgments.seen.add(key)
                if budget is not None and not budget.exceeded:
                    budget.take(record)
                if budget is None or not budget.exceeded:
                    judgments.records[key] = record
                else:
                    judgments.records.clear()
            for rating in entry.ratings:
                if (key := (rating.item, rename(rating.system))) in known:
                    judgments.ratings.setdefault(rating.aspect, {}).setdefault(key, []).append(rating.value)
            for stored in entry.errors:
                if (key := (stored.item, rename(stored.system))) in known:
                    judgments.errors.setdefault(key, []).append(stored.error)
        return judgments

    def add(self, other: Judgments) -> None:
        """Add what other files hold."""
        self.records.update(other.records)
        self.seen |= other.seen
        for aspect, ratings in other.ratings.items():
            self.ratings.setdefault(aspect, {}).update(ratings)
        self.errors.update(other.errors)


@dataclass(slots=True, kw_only=True)
class _Side:
    """A run, where it came from, its name in messages, and what its files say about its outputs."""

    source: Any
    results: Results
    name: str
    judgments: Judgments = field(default_factory=Judgments)
    #: Called with the rows of its files that were read.
    progress: RowProgress | None = None
    #: What is to be told about its files.
    remarks: list[str] = field(default_factory=list)
    #: Items are numbered in the order of their first use.
    _items: NameColumn = field(init=False)

    def __post_init__(self) -> None:
        self._items = encode_names(self.results.items)

    def read(self, texts: Any, reading: Mapping[str, Any], wanted: set[_Key] | None) -> None:
        """Read what the run's files, or `texts`, hold about the wanted outputs; about all if None."""
        from metrist.run import read_inputs

        if isinstance(texts, Judgments):
            self.judgments = texts
            return
        known = set(zip(self.results.items, self.results.systems, strict=True)) if wanted is None else wanted
        run = self.source if isinstance(self.source, str | os.PathLike) else self.results.inputs
        if isinstance(run, str | os.PathLike):
            names = [texts] if isinstance(texts, str | os.PathLike) else texts
            if texts is None or (
                isinstance(names, list | tuple) and all(isinstance(n, str | os.PathLike) for n in names)
            ):
                reader: Reader = read_inputs(run, names or (), **reading)
            else:
                reader = read_records(texts, **reading)
        elif run is None and texts is None:
            raise RunError(
                "the results hold no texts, and their records could be read only once or were not stored with them: "
                "pass the records with texts=RECORDS"
            )
        else:
            reader = self.results.read_inputs(texts, **reading)
        self.judgments = Judgments.read(reader, known, progress=self.progress)
        self.remarks = reader.remarks

    def _list_scores(self, row: int) -> dict[str, Score]:
        """The scores by all metrics, and by their aspects where they have one."""
        columns = [(metric, self.results[metric][row]) for metric in self.results.columns]
        return {metric.label: s for metric, s in columns if not (isinstance(metric, PartMetric) and s.failure)}

    def show(self, row: int, percentiles: Mapping[str, float], *, labelled: bool) -> ScoredOutput:
        """One output with all that is known about it; `labelled` names its run."""
        key, known = (self.results.items[row], self.results.systems[row]), self.judgments
        rated = {aspect: ratings[key] for aspect, ratings in known.ratings.items() if key in ratings}
        return ScoredOutput(
            item=key[0],
            system=key[1],
            scores=self._list_scores(row),
            record=known.records.get(key),
            percentiles=percentiles,
            ratings={aspect: (float(np.mean(values)), len(values)) for aspect, values in rated.items()},
            errors=tuple(known.errors.get(key, ())),
            run=self.name if labelled else None,
            number=int(self._items.codes[row]) + 1,
        )


@dataclass(frozen=True, slots=True)
class _Ranked:
    """An output, or two of the same item, what it is ranked by, why in words, and the percentiles behind that."""

    places: tuple[_Place, ...]
    value: float
    reason: str = ""
    percentiles: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class _Ranking:
    """The first of the ranked outputs, the worst first, and all those that could not be ranked."""

    title: str
    ranked: list[_Ranked]
    failed: list[_Place]
    notes: list[str]


def worst(
    run: Results | str | os.PathLike[str],
    n: int = DEFAULT_COUNT,
    metric: str | Sequence[str] | None = None,
    *,
    vs: Results | str | os.PathLike[str] | None = None,
    by: By | None = None,
    order: Order | None = None,
    systems: Sequence[str] | None = None,
    aspect: str | None = None,
    lower_is_better: Sequence[str] = (),
    texts: Any = None,
    progress: RowProgress | None = None,
    **reading: Any,
) -> WorstOutputs:
    """Return the `n` outputs of a run to look at first, with texts, scores and reasons.

    `by` says what ranks them: "score" (the worst by a metric), "difference" (items where two systems differ most;
    implied by `vs`, another system or another run), "disagreement" (outputs that two or more metrics rank most
    differently) or "people" (outputs that a metric and people's ratings rank most differently). Ranks are percentiles
    among the outputs concerned, 100 being the best; equal scores share the middle of their ranks.

    `order` says which differences are shown: "losses", where the first system is worse than `vs` (the default),
    "gains", where it is better, or "both", which is the default for a metric that has no better side.

    `metric` defaults to the first that has a better side, or for "disagreement" to all of these; `systems` restricts
    the outputs. Metrics and aspects in `lower_is_better` are reversed. Texts and ratings are read from the files that
    the run read, or from `texts`: in any form that `read_records` takes, or `Judgments` that were read before. Where
    they cannot be read, outputs are shown without, and a note says why. `progress` is called with the rows of these
    files that were read and about how many there are, None if that is unknown.
    """
    from metrist.run.loading import fetch_flat

    check_keywords(worst, reading)
    by = _check_arguments(n, vs, by, order)
    names = list_names(metric) or []
    source = fetch_flat(run)
    sides = [_Side(source=source, results=open_run(source, names), name=_name_run(run, "this run"), progress=progress)]
    results = sides[0].results
    if vs is not None and _is_run(vs, results):
        source = fetch_flat(vs)
        other = _name_run(vs, "the other run")
        sides.append(_Side(source=source, results=open_run(source, names), name=other, progress=progress))
    chosen = _choose_metrics(results, names, by)
    signs = {m.label: -1.0 if m.higher_is_better is False or _is_named(m, lower_is_better) else 1.0 for m in chosen}
    notes: list[str] = []
    if by == "people":
        sides[0].read(texts, reading, None)  # The ratings of all outputs decide, so they are read first.
        ranking = _rank_by_people(sides[0], chosen[0], signs, systems, aspect, lower_is_better, n)
    else:
        if unknown := [name for name in lower_is_better if not any(_is_named(m, [name]) for m in chosen)]:
            listed = ", ".join(m.label for m in chosen)
            raise RunError(f"lower_is_better names {unknown[0]!r}, but the outputs are ranked by {listed}")
        if by == "disagreement":
            ranking = _rank_by_disagreement(results, chosen, signs, systems, n)
        elif by == "difference":
            ranking = _rank_by_difference(sides, chosen[0], signs, vs, systems, order, n)
        else:
            ranking = _rank_by_score(results, chosen[0], signs, systems, n)
    # Outputs that no metric failed on, but that it was not asked for yet, are told by a note of the run.
    if ranking.failed:
        attempted = [_find_failed(side.results, chosen) for side in sides]
        ranking.failed = [(side, row) for side, row in ranking.failed if row in attempted[side]]
    failed = ranking.failed[:n]
    if by != "people":
        shown = [place for entry in ranking.ranked for place in entry.places]
        notes = _read_texts(sides, [*shown, *failed], texts, reading)
    notes += [remark for side in sides for remark in side.remarks]
    if len(ranking.failed) > len(failed):
        notes.append(
            f"{format_count(len(ranking.failed), 'output was', 'outputs were')} not scored, "
            f"of which {len(failed):,} {agree(len(failed), 'is', 'are')} listed"
        )
    others = [m.label for m in results.metrics if m.label not in signs and m.higher_is_better is not None]
    if not names and others:
        is_first = results.metrics.index(chosen[0]) < min(map(results.metrics.index, map(results.metric, others)))
        why = "the first metric of the run" if is_first else "the first metric that was applied to all outputs"
        notes.append(f"by {chosen[0].label}, {why}; -m chooses another: {', '.join(others)}")
    labelled = len(sides) > 1
    return WorstOutputs(
        title=ranking.title,
        entries=[
            WorstEntry(
                outputs=tuple(
                    sides[side].show(row, entry.percentiles, labelled=labelled) for side, row in entry.places
                ),
                value=entry.value,
                reason=entry.reason,
            )
            for entry in ranking.ranked
        ],
        failures=[sides[side].show(row, {}, labelled=labelled) for side, row in failed],
        notes=[*ranking.notes, *notes, *results.notes],
        decimals={m.label: _choose_decimals(m, sides) for m in results.columns},
    )


def show_outputs(results: Results, judgments: Judgments, rows: Sequence[int]) -> list[ScoredOutput]:
    """These outputs of a run with all that is known about them."""
    side = _Side(source=results, results=results, name="this run", judgments=judgments)
    return [side.show(row, {}, labelled=False) for row in rows]


def list_decimals(results: Results) -> dict[str, int]:
    """How precisely each metric's scores are shown."""
    side = _Side(source=results, results=results, name="this run")
    return {metric.label: _choose_decimals(metric, [side]) for metric in results.columns}


def _check_arguments(n: int, vs: Any, by: By | None, order: Order | None) -> By:
    if n < 1:
        raise RunError(f"n must be at least 1, got {n}")
    if order is not None and order not in _ORDERS:
        raise RunError(f"order must be one of {', '.join(_ORDERS)}, got {order!r}{did_you_mean(order, _ORDERS)}")
    if by is None:
        by = "score" if vs is None else "difference"
    if by not in _BY:
        raise RunError(f"by must be one of {', '.join(_BY)}, got {by!r}{did_you_mean(by, _BY)}")
    if order is not None and by != "difference":
        raise RunError("an order is one of differences between two systems: name the other system or run with --vs")
    if vs is not None and by != "difference":
        raise RunError(f"vs shows differences between two systems: leave out either vs or by={by!r}")
    return by


def _choose_metrics(results: Results, names: Sequence[str], by: By) -> list[Metric]:
    with_direction = [metric for metric in results.metrics if metric.higher_is_better is not None]
    chosen = select_metrics(results.metrics, names, results.unfinished) if names else with_direction
    if by == "disagreement":
        # A metric that scored nothing disagrees with nobody.
        able = [metric for metric in chosen if not np.isnan(results[metric].values).all()]
        if len(able) < 2:
            listed = ", ".join(metric.label for metric in able) or "none"
            raise RunError(f"a disagreement takes two metrics that can rank outputs, got {listed}")
        return able
    if not chosen:
        listed = ", ".join(metric.label for metric in results.metrics)
        raise RunError(f"no metric of the run says whether higher is better ({listed}): name one with -m")
    if names and len(chosen) > 1:
        raise RunError(f"one metric ranks outputs, got {', '.join(metric.label for metric in chosen)}: name one")
    # A metric that was added for some of the inputs ranks only if there is no other.
    return [min(chosen, key=lambda metric: len(_find_pending(results, metric)))]


def _find_failed(results: Results, metrics: Sequence[Metric]) -> set[int]:
    """The rows on which a metric failed, without those that it was not asked for yet."""
    failures = (entry for metric in metrics for entry in results[metric].scores.failures.items())
    return {row for row, failure in failures if failure.kind is not FailureKind.pending}


def _find_pending(results: Results, metric: Metric) -> list[int]:
    """The rows that a metric was not asked for yet."""
    failures = results[metric].scores.failures.items()
    return [row for row, failure in failures if failure.kind is FailureKind.pending]


def _is_named(metric: Metric, names: Sequence[str]) -> bool:
    return any(name in (metric.label, metric.text, metric.name) for name in names)


def _is_run(vs: Any, results: Results) -> bool:
    """Whether `vs` is another run; otherwise it must be a system of this one."""
    if not isinstance(vs, str):
        return True
    if vs in results.systems:
        return False
    if is_remote(vs) or Path(vs).exists():
        return True
    known = list_distinct(results.systems)
    raise RunError(
        f"no system {vs!r} in the run, which has {', '.join(known)}, and no run of that name{did_you_mean(vs, known)}"
    )


def _name_run(run: Any, otherwise: str) -> str:
    return os.fspath(run).rstrip("/") if isinstance(run, str | os.PathLike) else otherwise


# ---- Rankings


def percentile_ranks(values: _Floats) -> _Floats:
    """Each value's percentile among all: the share of smaller ones and half the share of equal ones, in percent. NaN
    has none and counts for nobody."""
    ordered = np.sort(values[~np.isnan(values)])
    below, up_to = np.searchsorted(ordered, values, "left"), np.searchsorted(ordered, values, "right")
    ranks: _Floats = np.where(np.isnan(values), np.nan, 50.0 * (below + up_to) / max(len(ordered), 1))
    return ranks


def _select_rows(results: Results, systems: Sequence[str] | None) -> NDArray[np.intp]:
    return select_names(encode_names(results.systems), set(select_systems(results.systems, systems)))


def _describe_direction(metric: Metric, sign: float) -> list[str]:
    if metric.higher_is_better is None:
        return [
            f"{metric.label} has no better side: the {'highest' if sign < 0 else 'lowest'} scores count as the worst"
        ]
    return [f"lower is better: {metric.label}"] if sign < 0 else []


def _rank_by_score(
    results: Results, metric: Metric, signs: Mapping[str, float], systems: Sequence[str] | None, n: int
) -> _Ranking:
    sign, values = signs[metric.label], results[metric].values
    rows = _select_rows(results, systems)
    failed = np.isnan(values[rows])
    scored = rows[~failed]
    scored = scored[np.argsort(sign * values[scored], kind="stable")]  # Equal scores stay in the input's order.
    return _Ranking(
        title=f"The worst of {_count(len(rows), 'output')} by {metric.label}",
        ranked=[_Ranked(places=((0, row),), value=float(values[row])) for row in scored[:n].tolist()],
        failed=[(0, row) for row in rows[failed].tolist()],
        notes=_describe_direction(metric, sign),
    )


def _rank_by_disagreement(
    results: Results, metrics: Sequence[Metric], signs: Mapping[str, float], systems: Sequence[str] | None, n: int
) -> _Ranking:
    """By the distance between the highest and the lowest percentile, among the outputs that all metrics scored."""
    rows = _select_rows(results, systems)
    columns = np.stack([signs[m.label] * results[m].values[rows] for m in metrics])
    failed = np.isnan(columns).any(axis=0)
    ranks = np.stack([percentile_ranks(column[~failed]) for column in columns])
    listed = " and ".join(m.label for m in metrics) if len(metrics) == 2 else f"{len(metrics)} metrics"
    which = f"that {'both' if len(metrics) == 2 else 'all'} metrics scored"
    return _Ranking(
        title=f"Of {_count(len(rows), 'output')}, those on which {listed} disagree most",
        ranked=_rank_by_distance(rows[~failed], dict(zip((m.label for m in metrics), ranks, strict=True)), n),
        failed=[(0, int(row)) for row in rows[failed]],
        notes=[
            *(note for m in metrics for note in _describe_direction(m, signs[m.label])),
            f"percentiles are ranks among the {_count(int((~failed).sum()), 'output')} {which}; 100 is the best",
        ],
    )


def _rank_by_people(
    side: _Side,
    metric: Metric,
    signs: Mapping[str, float],
    systems: Sequence[str] | None,
    aspect: str | None,
    lower_is_better: Sequence[str],
    n: int,
) -> _Ranking:
    """By the distance between the two percentiles, among the outputs that have a score and a rating."""
    results, ratings = side.results, side.judgments.ratings
    if not ratings:
        raise RunError("there are no ratings by people in the files that the run read: name files that hold some")
    if aspect is not None and aspect not in ratings:
        listed = ", ".join(ratings)
        raise RunError(f"no ratings of {aspect!r}; there are ratings of {listed}{did_you_mean(aspect, ratings)}")
    if unknown := [name for name in lower_is_better if name not in ratings and not _is_named(metric, [name])]:
        raise RunError(f"lower_is_better names {unknown[0]!r}, which is neither {metric.label} nor a rated aspect")
    aspects = [aspect] if aspect is not None else list(ratings)
    rows = _select_rows(results, systems)
    keys = [(results.items[row], results.systems[row]) for row in rows]
    means = np.full((len(aspects), len(rows)), np.nan)
    for line, name in enumerate(aspects):
        sign = -1 if name in lower_is_better else 1
        means[line] = [sign * np.mean(ratings[name][key]) if key in ratings[name] else np.nan for key in keys]
    values = signs[metric.label] * results[metric].values[rows]
    rated = ~np.isnan(means).all(axis=0)
    both = rated & ~np.isnan(values)
    if not both.any():
        raise RunError(f"no output has both a score by {metric.label} and a rating by people")
    # Aspects may have different scales, so their ranks are averaged, not their ratings.
    opinion = means[0, both] if len(aspects) == 1 else np.nanmean([percentile_ranks(m[both]) for m in means], axis=0)
    ranks = {metric.label: percentile_ranks(values[both]), PEOPLE: percentile_ranks(opinion)}
    what = f"the mean rating of {aspects[0]}" if len(aspects) == 1 else f"the mean rank over {', '.join(aspects)}"
    unrated = len(rows) - int(rated.sum())
    return _Ranking(
        title=f"Of {_count(len(rows), 'output')}, those on which {metric.label} and people disagree most",
        ranked=_rank_by_distance(rows[both], ranks, n),
        failed=[(0, int(row)) for row in rows[rated & np.isnan(values)]],
        notes=[
            *_describe_direction(metric, signs[metric.label]),
            f"percentiles are ranks among {_count(int(both.sum()), 'output')} with score and rating; 100 is the best",
            f"people: {what}",
            *([f"left out: {_count(unrated, 'output')} without a rating"] if unrated else []),
        ],
    )


def _rank_by_distance(rows: NDArray[np.intp], ranks: Mapping[str, _Floats], n: int) -> list[_Ranked]:
    """The outputs with the largest distance between the highest and the lowest of several percentiles."""
    distance = np.ptp(np.stack(list(ranks.values())), axis=0)
    ranked = []
    for position in np.argsort(-distance, kind="stable")[:n]:
        percentiles = {name: float(column[position]) for name, column in ranks.items()}
        high, low = max(percentiles, key=percentiles.__getitem__), min(percentiles, key=percentiles.__getitem__)
        points = f"{distance[position]:.0f} points higher than {low}"
        verb = "rank" if high == PEOPLE else "ranks"
        reason = f"{high} {verb} it {points}: percentile {percentiles[high]:.0f} against {percentiles[low]:.0f}"
        ranked.append(_Ranked(((0, int(rows[position])),), float(distance[position]), reason, percentiles))
    return ranked


def _rank_by_difference(
    sides: Sequence[_Side],
    metric: Metric,
    signs: Mapping[str, float],
    vs: Any,
    systems: Sequence[str] | None,
    order: Order | None,
    n: int,
) -> _Ranking:
    """By the size of the difference, among the items that both systems have a score for. The sign of a value says which
    is better: positive, the first."""
    # --lower-is-better gives a side to a metric that has none.
    has_side = metric.higher_is_better is not None or signs[metric.label] < 0
    order = order or ("losses" if has_side else "both")
    if not has_side and order != "both":
        raise RunError(
            f"{metric.label} has no better side, so that nothing is lost or gained: leave out the order ({order}), or "
            "name the metric with --lower-is-better"
        )
    if len(sides) == 2:
        sides[1].results.metric(metric)
        check_signatures(metric, {f"run {number} ({side.name})": side.results for number, side in enumerate(sides, 1)})
        pairs, left_out = _pair_runs(sides[0], sides[1], systems)
    else:
        pairs, left_out = _pair_systems(sides[0].results, vs, systems)

    def name(place: _Place) -> str:
        system = sides[place[0]].results.systems[place[1]]
        return f"{system} in {sides[place[0]].name}" if len(sides) > 1 else system

    columns = [side.results[metric].values for side in sides]
    values = np.array([[columns[side][row] for side, row in pair] for pair in pairs])
    differences = signs[metric.label] * (values[:, 0] - values[:, 1])
    scored = np.flatnonzero(~np.isnan(differences))
    decimals = _choose_decimals(metric, sides)
    shown = {"losses": scored[differences[scored] < 0], "gains": scored[differences[scored] > 0], "both": scored}[order]
    ranked = []
    for position in shown[np.argsort(-np.abs(differences[shown]), kind="stable")][:n]:
        first, second = map(name, pairs[position])
        difference = float(differences[position])
        by = f"by {format_number(abs(difference), decimals)} ({metric.label})"
        if not has_side or not difference:
            reason = f"{first} and {second} differ {by}"
        else:
            reason = f"{first if difference > 0 else second} is better than {second if difference > 0 else first} {by}"
        ranked.append(_Ranked(pairs[position], difference, reason))
    notes = _describe_direction(metric, signs[metric.label]) if has_side else []
    single = len({name(first) for first, _ in pairs}) == 1
    first, second = map(name, pairs[0]) if single else (side.name for side in sides)
    if has_side and single:
        wins, losses = int((differences > 0).sum()), int((differences < 0).sum())
        notes.append(
            f"over all {_count(len(scored), 'item')}: {first} is better on {wins:,}, {second} on {losses:,}, equal on "
            f"{len(scored) - wins - losses:,}"
        )
    if not len(shown) and len(scored) and order != "both":
        other = "gains" if order == "losses" else "losses"
        better = f"is {'worse' if order == 'losses' else 'better'} than {second}"
        notes.append(f"{first} {better} on no item; --order {other} and --order both show the others")
    if left_out:
        notes.append(f"left out: {_count(left_out, 'output')} without a counterpart")
    items = len({sides[side].results.items[row] for (side, row), _ in pairs})
    systems_shown = len({sides[side].results.systems[row] for (side, row), _ in pairs})
    number = _count(items, "item") + (f" × {_count(systems_shown, 'system')}" if systems_shown > 1 else "")
    what = "that differ most"
    if order != "both":
        what = f"where {first} {'loses' if order == 'losses' else 'gains'} most against {second}"
    return _Ranking(
        title=f"Of {number}, those {what} by {metric.label}",
        ranked=ranked,
        failed=[
            place
            for position in np.flatnonzero(np.isnan(differences))
            for place in pairs[position]
            if np.isnan(columns[place[0]][place[1]])
        ],
        notes=notes,
    )


def _pair_systems(results: Results, vs: str | None, systems: Sequence[str] | None) -> tuple[list[_Pair], int]:
    """The rows of two systems of a run, by item, and how many have no counterpart."""
    present = select_systems(results.systems, None)
    named = select_systems(results.systems, systems) if systems else []
    if vs is not None:
        named = [*(name for name in named if name != vs), vs]
    if len(named) == 1:
        named = [*(name for name in present if name != named[0]), named[0]]
    two = named or present
    if len(two) != 2:
        raise RunError(f"a difference takes two systems, got {', '.join(two)}: name them with --systems A B")
    rows: list[dict[str, int]] = [{}, {}]
    for row, (item, system) in enumerate(zip(results.items, results.systems, strict=True)):
        if system in two:
            rows[two.index(system)][item] = row
    pairs: list[_Pair] = [((0, row), (0, rows[1][item])) for item, row in rows[0].items() if item in rows[1]]
    if not pairs:
        raise RunError(f"{two[0]} and {two[1]} have no item in common")
    return pairs, len(rows[0]) + len(rows[1]) - 2 * len(pairs)


def _pair_runs(one: _Side, other: _Side, systems: Sequence[str] | None) -> tuple[list[_Pair], int]:
    """The outputs of the same system for the same item in two runs, and how many have no counterpart. Where the runs
    share no system, the one system of each, which `systems` may name."""
    present = [select_systems(side.results.systems, None) for side in (one, other)]
    if systems:
        select_systems([*present[0], *present[1]], systems)
        if len(systems) == 2 and systems[0] in present[0] and systems[1] in present[1]:
            present = [[systems[0]], [systems[1]]]
        else:
            present = [[name for name in own if name in systems] for own in present]
    if common := [name for name in present[0] if name in present[1]]:
        match = {name: name for name in common}
    elif len(present[0]) == len(present[1]) == 1:
        match = {present[0][0]: present[1][0]}
    else:
        first, second = (", ".join(names) or "none of those" for names in present)
        raise RunError(
            f"{one.name} and {other.name} share no system: name one of each with --systems A B (the first has {first}, "
            f"the second {second})"
        )
    wanted = set(match.values())
    rows = enumerate(zip(other.results.items, other.results.systems, strict=True))
    counterparts = {key: row for row, key in rows if key[1] in wanted}
    pairs: list[_Pair] = []
    total = len(counterparts)
    for row, (item, system) in enumerate(zip(one.results.items, one.results.systems, strict=True)):
        if system in match:
            total += 1
            if (counterpart := counterparts.get((item, match[system]))) is not None:
                pairs.append(((0, row), (1, counterpart)))
    if not pairs:
        raise RunError(f"{one.name} and {other.name} have no item in common")
    return pairs, total - 2 * len(pairs)


# ---- What is shown


def _read_texts(sides: Sequence[_Side], places: Sequence[_Place], texts: Any, reading: Mapping[str, Any]) -> list[str]:
    """Read the texts of these outputs; returns notes on those that could not be read. Files that the caller named must
    be readable."""
    notes = []
    for number, side in enumerate(sides):
        wanted = {(side.results.items[row], side.results.systems[row]) for which, row in places if which == number}
        # Outputs of one name in both runs have different texts: those of the second run are in its own files.
        own = number > 0 and not set(list_distinct(side.results.systems)).isdisjoint(
            list_distinct(sides[0].results.systems)
        )
        try:
            side.read(None if own else texts, reading, wanted)
        except MetristError as error:
            if texts is not None and not own:
                raise
            notes.append(f"texts are not shown: {error}")
        else:
            if missing := len(wanted - side.judgments.records.keys()):
                outputs = f"{missing:,} of {_count(len(wanted), 'output')} {agree(missing, 'has', 'have')}"
                notes.append(f"{outputs} no texts in the files that were read")
    return list(dict.fromkeys(notes))


def _choose_decimals(metric: Metric, sides: Sequence[_Side]) -> int:
    columns = [side.results[metric].values for side in sides if has_metric(side.results, metric)]
    values = np.concatenate(columns)
    finite = values[np.isfinite(values)]
    return choose_decimals(metric, float(finite.min()), float(finite.max())) if len(finite) else 3


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
