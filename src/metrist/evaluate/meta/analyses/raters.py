"""Analyses of what raters answer differently: the characters that they mark, and the outputs that they dispute."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from metrist.errors import RunError, format_count
from metrist.evaluate.meta.analyses import judgments
from metrist.evaluate.meta.dataset import JudgedDataset
from metrist.evaluate.meta.results import MetaEvaluation
from metrist.report.tables import Count, Number, Table, name_columns
from metrist.stats.error_spans import compare_marks
from metrist.stats.gold import UNKNOWN

#: Outputs in the list of disputes.
_MAX_DISPUTES = 50
#: What raters are said to disagree about where they marked errors: the aspect of their sums of penalties.
MARKED = "errors"
#: The characters that each rater of an output marks; raters who looked and marked nothing have none.
_MarksByRater = dict[int, Counter[Hashable]]


def error_tables(evaluation: MetaEvaluation) -> list[Table]:
    """How the errors that metrics report agree with people's or, without such metrics, how raters agree with each
    other on the characters that they mark."""
    if evaluation.dataset.errors is None or evaluation.dataset.metric_errors:
        return judgments.error_tables(evaluation)
    distances: dict[tuple[int, int], list[float]] = defaultdict(list)
    for marks in _collect_marks(evaluation).values():
        # Where neither marks anything, there is nothing to agree on.
        for first, second in ((a, b) for a, b in combinations(sorted(marks), 2) if marks[a] or marks[b]):
            distances[first, second].append(compare_marks(marks[first], marks[second]))
    if not distances:
        raise RunError(
            "no metric reports errors, and no two named raters marked the same output: give the run folder of a metric "
            "that does, or say who marked what",
            code="no_data",
        )
    names = evaluation.dataset.raters
    rows: list[list[Any]] = [
        [f"{names[first]} and {names[second]}", Number(1 - float(np.mean(own)), 3), Count(len(own))]
        for (first, second), own in distances.items()
    ]
    every = [1 - distance for own in distances.values() for distance in own]
    if len(rows) > 1:
        rows.append(["all pairs", Number(float(np.mean(every)), 3), Count(len(every))])
    note = (
        "Dice: twice the characters that both raters mark in an output, as a share of those that either marks, summed; "
        "the mean over outputs that both looked at and one of them marked."
    )
    head = name_columns("raters", right=("Dice", "outputs"))
    return [Table(title="agreement of raters on marked characters", columns=head, rows=rows, notes=[note])]


def dispute_tables(evaluation: MetaEvaluation) -> list[Table]:
    """The outputs that raters judge differently, most disputed first, with what each of them said."""
    dataset = evaluation.dataset
    found: list[tuple[float, int, str, str]] = []
    by_output = _collect_marks(evaluation)
    for aspect, outputs in evaluation.outputs.items():
        ratings = dataset.ratings[aspect]
        width = float(np.ptp(ratings.value)) if len(ratings.value) else 0.0
        sign = -1.0 if aspect in dataset.reversed_aspects else 1.0
        answers: dict[int, list[tuple[int, float]]] = defaultdict(list)
        for row in np.flatnonzero(np.isin(ratings.output, outputs)).tolist():
            answers[int(ratings.output[row])].append((int(ratings.rater[row]), sign * float(ratings.value[row])))
        for output, own in answers.items():
            if aspect == MARKED and output in by_output:
                continue  # The characters say more than their number.
            disagreement = _mean_distance([value for _, value in own], lambda one, other: abs(one - other))
            if disagreement:
                said = [(rater, f"{value:g}") for rater, value in own]
                found.append((disagreement / width, output, aspect, _describe_answers(dataset, said)))
    for output, marks in by_output.items():
        disagreement = _mean_distance([marks[rater] for rater in sorted(marks)], compare_marks)
        if disagreement:
            counts = [(rater, sum(bits.bit_count() for bits in marks[rater].values())) for rater in sorted(marks)]
            said = [(rater, format_count(count, "character")) for rater, count in counts]
            found.append((disagreement, output, MARKED, _describe_answers(dataset, said)))
    found.sort(key=lambda dispute: -dispute[0])
    rows: list[list[Any]] = [
        [
            dataset.items.names[dataset.items.codes[output]],
            dataset.systems.names[dataset.systems.codes[output]],
            aspect,
            Number(disagreement, 3),
            said,
        ]
        for disagreement, output, aspect, said in found[:_MAX_DISPUTES]
    ]
    notes = [
        "Disagreement: the mean distance of two raters' answers from 0 to 1; of grades as a share of the range that "
        "raters use, of marked errors one minus Dice's coefficient of their characters."
    ]
    if len(found) > len(rows):
        notes.append(f"The {len(rows)} most disputed of {len(found):,} answers.")
    head = [*name_columns("item", "system", "aspect", right=("disagreement",)), *name_columns("raters said")]
    return [Table(title="outputs that raters dispute", columns=head, rows=rows, notes=notes)]


def _collect_marks(evaluation: MetaEvaluation) -> dict[int, _MarksByRater]:
    """The characters that named raters mark, by output; a rater who rated an output looked at it."""
    dataset, errors = evaluation.dataset, evaluation.dataset.errors
    marks: dict[int, _MarksByRater] = defaultdict(lambda: defaultdict(Counter))
    if errors is None or errors.rater is None:
        return {}
    wanted = {int(output) for outputs in evaluation.outputs.values() for output in outputs}
    for row in np.flatnonzero((errors.rater != UNKNOWN) & (errors.start >= 0)).tolist():
        if (output := int(errors.output[row])) in wanted:
            span = (1 << int(errors.end[row])) - (1 << int(errors.start[row]))
            marks[output][int(errors.rater[row])][bool(errors.on_output[row])] |= span
    for ratings in dataset.ratings.values():
        for output, rater in zip(ratings.output.tolist(), ratings.rater.tolist(), strict=True):
            if rater != UNKNOWN and output in marks:
                _ = marks[output][rater]
    return marks


def _mean_distance(answers: Sequence[Any], distance: Callable[[Any, Any], float]) -> float:
    pairs = list(combinations(answers, 2))
    return sum(distance(one, other) for one, other in pairs) / len(pairs) if pairs else 0.0


def _describe_answers(dataset: JudgedDataset, said: Sequence[tuple[int, str]]) -> str:
    return ", ".join(answer if rater == UNKNOWN else f"{dataset.raters[rater]} {answer}" for rater, answer in said)
