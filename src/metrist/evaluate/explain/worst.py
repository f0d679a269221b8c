"""`worst`: the outputs to look at first – the lowest scores, the largest differences between two systems, and the
largest disagreements between metrics, or of a metric with people."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from metrist.errors import MetristError, RunError, agree, did_you_mean, format_count, unknown_name
from metrist.evaluate.selection import (
    check_signatures,
    find_decimals,
    list_decimals,
    list_names,
    open_run,
    select_metrics,
    select_systems,
)
from metrist.grid import pair_outputs
from metrist.io.reader import RowProgress, check_keywords
from metrist.io.remote import is_remote
from metrist.metrics.base import Metric, PartMetric
from metrist.names import NameColumn, encode_names, list_distinct, select_names
from metrist.report.output_card import PEOPLE, OutputCard
from metrist.report.outputs import WorstEntry, WorstOutputs
from metrist.report.tables import format_number
from metrist.run.results import Results
from metrist.run.run import Run
from metrist.run.texts import OutputFacts, OutputTexts, take_scores
from metrist.scores import FailureKind
from metrist.settings import checks_types

By = Literal["score", "difference", "disagreement", "people"]
Order = Literal["losses", "gains", "both"]
_Floats = NDArray[np.float64]
_Rows = NDArray[np.intp]
#: The number of a run (1 for the other one of a difference) and the row of an output in it.
_Place = tuple[int, int]


@dataclass(slots=True, kw_only=True)
class _Side:
    """A run, its name in messages, and what its inputs and metrics say about the outputs that are shown, which are
    `labelled` with the run where there are two."""

    results: Results
    name: str
    labelled: bool = False
    facts: Mapping[int, OutputFacts] = field(default_factory=dict)
    #: Items are numbered in the order of their first use.
    items: NameColumn = field(init=False)

    def __post_init__(self) -> None:
        self.items = encode_names(self.results.items)

    def name_system(self, row: int) -> str:
        return f"{self.results.systems[row]} in {self.name}" if self.labelled else self.results.systems[row]

    def show(self, rows: Sequence[int]) -> dict[int, OutputCard]:
        """Outputs with all that is known about them."""
        results = self.results
        blocks = take_scores(results, rows)
        columns = {
            column.label: column.select(blocks[column.metric.label])
            if isinstance(column, PartMetric)
            else blocks[column.label]
            for column in results.columns
        }
        shown = {}
        for place, row in enumerate(rows):
            scores = {label: block[place] for label, block in columns.items()}
            for label in columns.keys() - blocks.keys():  # An aspect that an output does not have.
                if scores[label].failure:
                    del scores[label]
            known = self.facts.get(row) or OutputFacts()
            shown[row] = OutputCard(
                item=results.items[row],
                system=results.systems[row],
                scores=scores,
                record=known.record,
                ratings={aspect: (float(np.mean(values)), len(values)) for aspect, values in known.ratings.items()},
                errors=tuple(known.errors),
                run=self.name if self.labelled else None,
                number=int(self.items.codes[row]) + 1,
            )
        return shown


class _RankedPlaces(NamedTuple):
    """An output, or two of the same item, what it is ranked by, why in words, and the percentiles behind that."""

    places: tuple[_Place, ...]
    value: float
    reason: str = ""
    percentiles: Mapping[str, float] = {}


class _Ranking(NamedTuple):
    """The first of the ranked outputs, the worst first, and all those that could not be ranked."""

    title: str
    ranked: list[_RankedPlaces]
    failed: list[_Place]
    notes: list[str]


@checks_types
def worst(
    run: Results | str | os.PathLike[str],
    n: int = 10,
    metric: str | Sequence[str] | None = None,
    *,
    vs: Results | str | os.PathLike[str] | None = None,
    by: By | None = None,
    order: Order | None = None,
    systems: str | Sequence[str] | None = None,
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
    the run holds, or from `texts`: in any form that `read_records` takes, or `OutputTexts` that were opened before.
    Where they cannot be read, outputs are shown without, and a note says why. `progress` is called with the rows of
    files that were read and about how many there are, None if that is unknown.
    """
    from metrist.run.loading import fetch_flat

    check_keywords(worst, reading)
    by = _check_arguments(n, vs, by, order)
    names = list_names(metric) or []
    results = open_run(fetch_flat(run), names)
    two_runs = vs is not None and _is_run(vs, results)
    sides = [_Side(results=results, name=_name_run(run, "this run"), labelled=two_runs)]
    if two_runs:
        other = open_run(fetch_flat(vs), names)
        sides.append(_Side(results=other, name=_name_run(vs, "the other run"), labelled=True))
    chosen = _choose_metrics(results, names, by)
    signs = {m.label: -1.0 if m.higher_is_better is False or _is_named(m, lower_is_better) else 1.0 for m in chosen}
    if by == "people":
        texts = _open_texts(results, texts, progress, reading)
    rated = texts.ratings if by == "people" else ()
    _check_reversed(lower_is_better, chosen, rated)
    if by == "difference":
        ranking = _rank_by_difference(sides, chosen[0], signs[chosen[0].label], vs, systems, order, n)
    else:
        rows = select_names(encode_names(results.systems), set(select_systems(results.systems, systems)))
        if by == "people":
            ranking = _rank_by_people(results, texts, chosen[0], signs, rows, aspect, lower_is_better, n)
        elif by == "disagreement":
            ranking = _rank_by_disagreement(results, chosen, signs, rows, n)
        else:
            ranking = _rank_by_score(results, chosen[0], signs[chosen[0].label], rows, n)
    # Outputs that no metric failed on, but that it was not asked for yet, are told by a note of the run.
    failed = ranking.failed
    if failed:
        attempted = [_find_failed(side.results, chosen) for side in sides]
        failed = [(side, row) for side, row in failed if row in attempted[side]]
    listed = failed[:n]
    places = [*(place for entry in ranking.ranked for place in entry.places), *listed]
    notes = [*ranking.notes, *_read_texts(sides, places, texts, progress, reading)]
    if len(failed) > len(listed):
        notes.append(
            f"{format_count(len(failed), 'output was', 'outputs were')} not scored, "
            f"of which {len(listed):,} {agree(len(listed), 'is', 'are')} listed"
        )
    others = [m.label for m in results.metrics if m.label not in signs and m.higher_is_better is not None]
    if not names and others:
        is_first = results.metrics.index(chosen[0]) < min(map(results.metrics.index, map(results.metric, others)))
        why = "the first metric of the run" if is_first else "the first metric that was applied to all outputs"
        notes.append(f"by {chosen[0].label}, {why}; -m chooses another: {', '.join(others)}")
    cards = [
        side.show(list(dict.fromkeys(row for which, row in places if which == number)))
        for number, side in enumerate(sides)
    ]
    entries = []
    for entry in ranking.ranked:
        outputs = tuple(replace(cards[side][row], percentiles=entry.percentiles) for side, row in entry.places)
        entries.append(WorstEntry(outputs=outputs, value=entry.value, reason=entry.reason))
    return WorstOutputs(
        title=ranking.title,
        entries=entries,
        failures=[cards[side][row] for side, row in listed],
        notes=[*notes, *results.notes],
        decimals=list_decimals([side.results for side in sides]),
    )


def show_outputs(results: Results, facts: Mapping[int, OutputFacts]) -> list[OutputCard]:
    """Some outputs of a run with all that is known about them."""
    return list(_Side(results=results, name="this run", facts=facts).show(list(facts)).values())


def _check_arguments(n: int, vs: Any, by: By | None, order: Order | None) -> By:
    if n < 1:
        raise RunError(f"n must be at least 1, got {n}", code="invalid_value")
    by = by or ("score" if vs is None else "difference")
    for name, value, known in (("order", order, get_args(Order)), ("by", by, get_args(By))):
        if value is not None and value not in known:
            raise unknown_name(name, value, known)
    if order is not None and by != "difference":
        raise RunError("an order is one of differences: name the other system or run with `vs`", code="missing_value")
    if vs is not None and by != "difference":
        raise RunError(f"vs shows differences between two systems: leave out either vs or by={by!r}", code="conflict")
    return by


def _choose_metrics(results: Results, names: Sequence[str], by: By) -> list[Metric]:
    with_direction = [metric for metric in results.metrics if metric.higher_is_better is not None]
    chosen = select_metrics(results.metrics, names, results.unfinished) if names else with_direction
    if by == "disagreement":
        # A metric that scored nothing disagrees with nobody.
        able = [metric for metric in chosen if not np.isnan(results[metric].values).all()]
        if len(able) < 2:
            listed = ", ".join(metric.label for metric in able) or "none"
            raise RunError(
                f"a disagreement takes two metrics that can rank outputs, got {listed}", code="invalid_value"
            )
        return able
    if not chosen:
        listed = ", ".join(metric.label for metric in results.metrics)
        raise RunError(
            f"no metric of the run says whether higher is better ({listed}): name one with -m", code="missing_value"
        )
    if names and len(chosen) > 1:
        raise RunError(
            f"one metric ranks outputs, got {', '.join(metric.label for metric in chosen)}: name one",
            code="missing_value",
        )
    # A metric that was added for some of the inputs ranks only if there is no other.
    return [min(chosen, key=lambda metric: results[metric].scores.pending)]


def _find_failed(results: Results, metrics: Sequence[Metric]) -> set[int]:
    """The rows on which a metric failed, without those that it was not asked for yet."""
    failures = (entry for metric in metrics for entry in results[metric].scores.failures.items())
    return {row for row, failure in failures if failure.kind is not FailureKind.pending}


def _is_named(metric: Metric, names: Sequence[str]) -> bool:
    return any(name in (metric.label, metric.text, metric.name) for name in names)


def _check_reversed(lower_is_better: Sequence[str], metrics: Sequence[Metric], rated: Collection[str]) -> None:
    """Raise an error for a name in `lower_is_better` that is neither a metric nor an aspect of the ranking."""
    for name in lower_is_better:
        if name not in rated and not any(_is_named(metric, [name]) for metric in metrics):
            known = ", ".join([*(metric.label for metric in metrics), *rated])
            raise RunError(f"lower_is_better names {name!r}; the outputs are ranked by {known}", code="conflict")


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
        f"no system {vs!r} in the run, which has {', '.join(known)}, and no run of that name{did_you_mean(vs, known)}",
        code="unknown_name",
    )


def _name_run(run: Any, otherwise: str) -> str:
    return os.fspath(run).rstrip("/") if isinstance(run, str | os.PathLike) else otherwise


# ---- Rankings


def percentile_ranks(values: _Floats) -> _Floats:
    """Each value's percentile among all: the share of smaller ones and half the share of equal ones, in percent. NaN
    has none and counts for nobody."""
    ranks = np.full(len(values), np.nan)
    order = np.argsort(values)[: np.count_nonzero(~np.isnan(values))]
    ordered = values[order]
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)])
    ends = np.append(starts[1:], len(ordered))
    ranks[order] = np.repeat(50.0 * (starts + ends) / max(len(ordered), 1), ends - starts)
    return ranks


def find_smallest(keys: _Floats, n: int) -> _Rows:
    """The positions of the n smallest of many numbers, in their order; equal ones in the order of the input."""
    if n < len(keys):
        near = np.flatnonzero(keys <= np.partition(keys, n - 1)[n - 1])
        return near[np.argsort(keys[near], kind="stable")][:n]
    return np.argsort(keys, kind="stable")


def _describe_direction(metric: Metric, sign: float) -> list[str]:
    if metric.higher_is_better is None:
        return [
            f"{metric.label} has no better side: the {'highest' if sign < 0 else 'lowest'} scores count as the worst"
        ]
    return [f"lower is better: {metric.label}"] if sign < 0 else []


def _rank_by_score(results: Results, metric: Metric, sign: float, rows: _Rows, n: int) -> _Ranking:
    values = results[metric].values
    failed = np.isnan(values[rows])
    scored = rows[~failed]
    worst = scored[find_smallest(sign * values[scored], n)]
    return _Ranking(
        title=f"The worst of {format_count(len(rows), 'output')} by {metric.label}",
        ranked=[_RankedPlaces(((0, row),), float(values[row])) for row in worst.tolist()],
        failed=[(0, row) for row in rows[failed].tolist()],
        notes=_describe_direction(metric, sign),
    )


def _rank_by_disagreement(
    results: Results, metrics: Sequence[Metric], signs: Mapping[str, float], rows: _Rows, n: int
) -> _Ranking:
    """By the distance between the highest and the lowest percentile, among the outputs that all metrics scored."""
    columns = np.stack([signs[m.label] * results[m].values[rows] for m in metrics])
    failed = np.isnan(columns).any(axis=0)
    ranks = np.stack([percentile_ranks(column[~failed]) for column in columns])
    listed = " and ".join(m.label for m in metrics) if len(metrics) == 2 else f"{len(metrics)} metrics"
    which = f"that {'both' if len(metrics) == 2 else 'all'} metrics scored"
    return _Ranking(
        title=f"Of {format_count(len(rows), 'output')}, those on which {listed} disagree most",
        ranked=_rank_by_distance(rows[~failed], dict(zip((m.label for m in metrics), ranks, strict=True)), n),
        failed=[(0, int(row)) for row in rows[failed]],
        notes=[
            *(note for m in metrics for note in _describe_direction(m, signs[m.label])),
            f"percentiles are ranks among the {format_count(int((~failed).sum()), 'output')} {which}; 100 is the best",
        ],
    )


def _rank_by_people(
    results: Results,
    texts: OutputTexts,
    metric: Metric,
    signs: Mapping[str, float],
    rows: _Rows,
    aspect: str | None,
    lower_is_better: Sequence[str],
    n: int,
) -> _Ranking:
    """By the distance between the two percentiles, among the outputs that have a score and a rating."""
    ratings = texts.ratings
    if not ratings:
        raise RunError(
            "there are no ratings by people in the files that the run read: name files that hold some", code="no_data"
        )
    if aspect is not None and aspect not in ratings:
        raise unknown_name("ratings of", aspect, ratings)
    aspects = [aspect] if aspect is not None else list(ratings)
    means = np.stack(
        [(-1 if name in lower_is_better else 1) * ratings[name].mean(len(results))[rows] for name in aspects]
    )
    values = signs[metric.label] * results[metric].values[rows]
    rated = ~np.isnan(means).all(axis=0)
    both = rated & ~np.isnan(values)
    if not both.any():
        raise RunError(f"no output has both a score by {metric.label} and a rating by people", code="no_data")
    # Aspects may have different scales, so their ranks are averaged, not their ratings.
    opinion = means[0, both] if len(aspects) == 1 else np.nanmean([percentile_ranks(m[both]) for m in means], axis=0)
    ranks = {metric.label: percentile_ranks(values[both]), PEOPLE: percentile_ranks(opinion)}
    what = f"the mean rating of {aspects[0]}" if len(aspects) == 1 else f"the mean rank over {', '.join(aspects)}"
    unrated = len(rows) - int(rated.sum())
    return _Ranking(
        title=f"Of {format_count(len(rows), 'output')}, those on which {metric.label} and people disagree most",
        ranked=_rank_by_distance(rows[both], ranks, n),
        failed=[(0, int(row)) for row in rows[rated & np.isnan(values)]],
        notes=[
            *_describe_direction(metric, signs[metric.label]),
            f"percentiles are ranks among {format_count(int(both.sum()), 'output')} with score and rating; 100 is the "
            "best",
            f"people: {what}",
            *([f"left out: {format_count(unrated, 'output')} without a rating"] if unrated else []),
        ],
    )


def _rank_by_distance(rows: _Rows, ranks: Mapping[str, _Floats], n: int) -> list[_RankedPlaces]:
    """The outputs with the largest distance between the highest and the lowest of several percentiles."""
    distance = np.ptp(np.stack(list(ranks.values())), axis=0)
    ranked = []
    for position in find_smallest(-distance, n):
        percentiles = {name: float(column[position]) for name, column in ranks.items()}
        high, low = max(percentiles, key=percentiles.__getitem__), min(percentiles, key=percentiles.__getitem__)
        points = f"{distance[position]:.0f} points higher than {low}"
        verb = "rank" if high == PEOPLE else "ranks"
        reason = f"{high} {verb} it {points}: percentile {percentiles[high]:.0f} against {percentiles[low]:.0f}"
        ranked.append(_RankedPlaces(((0, int(rows[position])),), float(distance[position]), reason, percentiles))
    return ranked


def _rank_by_difference(
    sides: Sequence[_Side],
    metric: Metric,
    sign: float,
    vs: Any,
    systems: Sequence[str] | None,
    order: Order | None,
    n: int,
) -> _Ranking:
    """By the size of the difference, among the items that both systems have a score for. The sign of a value says which
    is better: positive, the first."""
    # `lower_is_better` gives a side to a metric that has none.
    has_side = metric.higher_is_better is not None or sign < 0
    order = order or ("losses" if has_side else "both")
    if not has_side and order != "both":
        raise RunError(
            f"{metric.label} has no better side, so that nothing is lost or gained: leave out the order ({order}), or "
            "name the metric in `lower_is_better`",
            code="conflict",
        )
    one, other = sides[0], sides[-1]
    if one is not other:
        other.results.metric(metric)
        check_signatures(metric, {f"run {number} ({side.name})": side.results for number, side in enumerate(sides, 1)})
    match = _match_systems(one.results, vs, systems) if one is other else _match_runs(one, other, systems)
    rows, counterparts, left_out = _pair_rows(one, other, match)
    own, theirs = one.results[metric].values[rows], other.results[metric].values[counterparts]
    differences = sign * (own - theirs)
    scored = np.flatnonzero(~np.isnan(differences))
    shown = {"losses": scored[differences[scored] < 0], "gains": scored[differences[scored] > 0], "both": scored}[order]
    decimals = find_decimals(metric, [side.results for side in sides])
    second_side = len(sides) - 1
    ranked = []
    for position in shown[find_smallest(-np.abs(differences[shown]), n)].tolist():
        row = int(rows[position])
        counterpart = int(counterparts[position])
        difference = float(differences[position])
        names = [one.name_system(row), other.name_system(counterpart)]
        by = f"by {format_number(abs(difference), decimals)} ({metric.label})"
        if has_side and difference:
            better, worse = names if difference > 0 else names[::-1]
            reason = f"{better} is better than {worse} {by}"
        else:
            reason = f"{names[0]} and {names[1]} differ {by}"
        ranked.append(_RankedPlaces(((0, row), (second_side, counterpart)), difference, reason))
    count = len(np.unique(encode_names(one.results.systems).codes[rows]))
    first, second = one.name, other.name
    if count == 1:
        first, second = one.name_system(int(rows[0])), other.name_system(int(counterparts[0]))
    notes = _describe_direction(metric, sign) if has_side else []
    if has_side and count == 1:
        wins, losses = int((differences > 0).sum()), int((differences < 0).sum())
        notes.append(
            f"over all {format_count(len(scored), 'item')}: {first} is better on {wins:,}, {second} on {losses:,}, "
            f"equal on {len(scored) - wins - losses:,}"
        )
    if not len(shown) and len(scored) and order != "both":
        side, opposite = ("worse", "gains") if order == "losses" else ("better", "losses")
        notes.append(f"{first} is {side} than {second} on no item; `order={opposite}` and `order=both` show the others")
    if left_out:
        notes.append(f"left out: {format_count(left_out, 'output')} without a counterpart")
    number = format_count(len(np.unique(one.items.codes[rows])), "item")
    number += f" × {format_count(count, 'system')}" if count > 1 else ""
    what = "that differ most"
    if order != "both":
        what = f"where {first} {'loses' if order == 'losses' else 'gains'} most against {second}"
    failed: list[_Place] = []
    for position in np.flatnonzero(np.isnan(differences)).tolist():
        failed += [(0, int(rows[position]))] if np.isnan(own[position]) else []
        failed += [(second_side, int(counterparts[position]))] if np.isnan(theirs[position]) else []
    title = f"Of {number}, those {what} by {metric.label}"
    return _Ranking(title, ranked, failed, notes)


def _match_systems(results: Results, vs: str | None, systems: Sequence[str] | None) -> dict[str, str]:
    present = select_systems(results.systems, None)
    named = select_systems(results.systems, systems) if systems else []
    if vs is not None:
        named = [*(name for name in named if name != vs), vs]
    if len(named) == 1:
        named = [*(name for name in present if name != named[0]), named[0]]
    two = named or present
    if len(two) != 2:
        raise RunError(
            f"a difference takes two systems, got {', '.join(two)}: name them with `systems`", code="missing_value"
        )
    return {two[0]: two[1]}


def _match_runs(one: _Side, other: _Side, systems: Sequence[str] | None) -> dict[str, str]:
    """The systems that two runs share. Where they share none, the one system of each, which `systems` may name."""
    present = [select_systems(side.results.systems, None) for side in (one, other)]
    if systems:
        select_systems([*present[0], *present[1]], systems)
        if len(systems) == 2 and systems[0] in present[0] and systems[1] in present[1]:
            present = [[systems[0]], [systems[1]]]
        else:
            present = [[name for name in own if name in systems] for own in present]
    if common := [name for name in present[0] if name in present[1]]:
        return {name: name for name in common}
    if len(present[0]) == len(present[1]) == 1:
        return {present[0][0]: present[1][0]}
    first, second = (", ".join(names) or "none of those" for names in present)
    raise RunError(
        f"{one.name} and {other.name} share no system: name one of each with `systems` (the first has {first}, "
        f"the second {second})",
        code="missing_value",
    )


def _pair_rows(one: _Side, other: _Side, match: Mapping[str, str]) -> tuple[_Rows, _Rows, int]:
    """The rows of outputs of the same items, and how many outputs have no counterpart."""
    columns = [encode_names(side.results.systems) for side in (one, other)]
    counterparts = pair_outputs(one.items, columns[0], other.items, columns[1], match)
    paired = np.flatnonzero(counterparts >= 0)
    if not len(paired):
        names = (one.name, other.name) if one is not other else next(iter(match.items()))
        raise RunError(f"{' and '.join(names)} have no item in common", code="too_little_data")
    total = len(select_names(columns[0], match)) + len(select_names(columns[1], set(match.values())))
    return paired, counterparts[paired], total - 2 * len(paired)


# ---- What is shown


def _open_texts(results: Results, texts: Any, progress: RowProgress | None, reading: Mapping[str, Any]) -> OutputTexts:
    if isinstance(texts, OutputTexts):
        return texts
    if texts is None and results.inputs is None:
        raise RunError("the results hold no texts: pass the records with texts=RECORDS", code="no_data")
    try:
        return OutputTexts.open(results, texts, progress=progress, **reading)
    except MetristError as error:
        run = results.inputs
        if texts is not None or not isinstance(run, Run) or run.has_texts:
            raise
        # What people said is in the run even if its texts are not.
        return OutputTexts(run, results.items, results.systems, [f"texts are not shown: {error}"])


def _read_texts(
    sides: Sequence[_Side],
    places: Sequence[_Place],
    texts: Any,
    progress: RowProgress | None,
    reading: Mapping[str, Any],
) -> list[str]:
    """Read what is known about these outputs; returns notes on the files, and on texts that could not be read. Files
    that the caller named must be readable."""
    notes, remarks = list[str](), list[str]()
    for number, side in enumerate(sides):
        rows = list(dict.fromkeys(row for which, row in places if which == number))
        # Outputs of one name in both runs have different texts: those of the second run are in its own files.
        own = number > 0 and not set(list_distinct(side.results.systems)).isdisjoint(
            list_distinct(sides[0].results.systems)
        )
        try:
            opened = _open_texts(side.results, None if own else texts, progress, reading)
            side.facts = opened.read(rows)
        except MetristError as error:
            if texts is not None and not own:
                raise
            notes.append(f"texts are not shown: {error}")
            continue
        remarks += opened.remarks
        missing = sum(facts.record is None for facts in side.facts.values())
        if missing and opened.stores_texts:
            outputs = f"{missing:,} of {format_count(len(rows), 'output')} {agree(missing, 'has', 'have')}"
            notes.append(f"{outputs} no texts in the files that were read")
    return [*dict.fromkeys(notes), *remarks]
