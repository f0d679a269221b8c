"""Do a metric's errors lie where humans mark theirs? And what does it take off outputs that are right?"""

from __future__ import annotations

from typing import Any

import numpy as np

from metrist.errors import RunError
from metrist.evaluate.meta.judged import Codes, Judged, Spans
from metrist.evaluate.meta.result import MetaEvaluation
from metrist.evaluate.meta.slices import chosen_outputs
from metrist.report.cells import Count, Estimate, Share
from metrist.report.tables import Column, Table
from metrist.stats.reductions import reduction_shares
from metrist.stats.spans import UNSTATED, ErrorAgreement, Errors, Figures, error_agreement

#: From mild to grave; a severity of another name counts as unstated.
SEVERITIES = ("neutral", "minor", "major", "critical")


def error_tables(evaluation: MetaEvaluation) -> list[Table]:
    """Precision, recall and F1 by characters of each metric's errors against the humans', overall and by severity."""
    judged = evaluation.judged
    if judged.errors is None:
        raise RunError("the data hold no human 'errors' to agree with")
    if not judged.metric_errors:
        raise RunError("no metric reports errors: give the run folder of a metric that does")
    outputs = _taking_part(evaluation)
    kept = {name: _looked_at(judged, name, outputs) for name in judged.metric_errors}
    found = {name: _agreement(evaluation, spans, kept[name]) for name, spans in judged.metric_errors.items()}
    rows = [row for name, one in found.items() for row in _rows(name, one, len(kept[name]))]
    head = [
        Column("metric"),
        Column("severity"),
        *(Column(n, "right") for n in ("precision", "recall", "F1", "outputs")),
    ]
    notes = [
        "By characters of the output, over all outputs that the metric scored and humans looked at (they marked an "
        "error in it or rated it); a character of another severity earns half.",
        *(note for name, one in found.items() for note in _unplaced(name, one)),
    ]
    return [Table(title="agreement on errors", columns=head, rows=rows, notes=notes)]


def examined(judged: Judged) -> Codes:
    """The outputs that humans looked at: those with an error, and those with a rating."""
    seen = np.zeros(len(judged), dtype=np.bool_)
    if judged.errors is not None:
        seen[judged.errors.output] = True
    for ratings in judged.ratings.values():
        seen[ratings.output] = True
    return np.flatnonzero(seen)


def _taking_part(evaluation: MetaEvaluation) -> Codes:
    """The outputs of any aspect, or, without aspects, those of the systems that take part."""
    plan = evaluation.plan
    if evaluation.outputs:
        return np.unique(np.concatenate(list(evaluation.outputs.values())))
    return chosen_outputs(evaluation.judged, systems=plan.systems, exclude_systems=plan.exclude_systems)


def _looked_at(judged: Judged, metric: str, outputs: Codes) -> Codes:
    """The outputs that humans and the metric both looked at."""
    scored = np.flatnonzero(np.isfinite(judged.scores[metric].values)) if metric in judged.scores else outputs
    return np.intersect1d(np.intersect1d(examined(judged), outputs), scored)


def _agreement(evaluation: MetaEvaluation, spans: Spans, kept: Codes) -> ErrorAgreement:
    judged, plan = evaluation.judged, evaluation.plan
    assert judged.errors is not None
    return error_agreement(
        _errors(judged.errors, kept, len(judged)),
        _errors(spans, kept, len(judged)),
        judged.items.codes[kept],
        plan.draws,
        np.random.default_rng(plan.seed),
        confidence=plan.confidence,
    )


def _rows(metric: str, found: ErrorAgreement, outputs: int) -> list[list[Any]]:
    rows = [[metric, "all", *_cells(found.overall), Count(outputs)]]
    rows += [[metric, SEVERITIES[code], *_cells(one), Count(outputs)] for code, one in found.by_severity.items()]
    return rows


def _unplaced(metric: str, found: ErrorAgreement) -> list[str]:
    if not found.human_unplaced and not found.predicted_unplaced:
        return []
    return [
        f"{metric}: errors that say not where in the output they lie, or cover nothing, are left out: "
        f"{found.human_unplaced:,} of the humans', {found.predicted_unplaced:,} of the metric's."
    ]


def _cells(figures: Figures) -> list[Estimate]:
    return [Estimate(one.value, one.low, one.high) for one in (figures.precision, figures.recall, figures.f1)]


def _errors(spans: Spans, kept: Codes, outputs: int) -> Errors:
    """The errors on the text of these outputs, numbered as they stand in `kept`."""
    place = np.full(outputs, -1, dtype=np.intp)
    place[kept] = np.arange(len(kept))
    here = np.flatnonzero((place[spans.output] >= 0) & spans.on_output)
    code = np.array([SEVERITIES.index(n) if n in SEVERITIES else UNSTATED for n in spans.severity.names] + [UNSTATED])
    return Errors.of(
        place[spans.output[here]],
        spans.start[here],
        spans.end[here],
        code[spans.severity.codes[here]],
    )


def reduction_tables(evaluation: MetaEvaluation) -> list[Table]:
    """Per metric and system: how often nothing, less than 2, or at most 1 was taken off. Meant for outputs that are the
    references themselves (paper 001, Table 21)."""
    judged, outputs = evaluation.judged, _taking_part(evaluation)
    rows: list[list[Any]] = []
    for metric in evaluation.metrics():
        for code in np.unique(judged.systems.codes[outputs]):
            system = judged.systems.names[code]
            values = judged.scores[metric].signed()[outputs[judged.systems.codes[outputs] == code]]
            given = values[np.isfinite(values)]
            if len(given) and given.max() <= 0:
                found = reduction_shares(np.where(np.isfinite(values), values, np.nan))
                shares = (found.unreduced, found.above_minus_two, found.at_most_one)
                rows.append([metric, system, *map(Share, shares), Count(found.scored)])
    if not rows:
        raise RunError("no metric takes points off (scores of 0 and below): there are no reductions to show")
    head = [Column("metric"), Column("system")]
    head += [Column(name, "right") for name in ("nothing off", "above -2", "at most 1 off", "scored")]
    return [Table(title="score reductions", columns=head, rows=rows)]
