"""`calibrate --good`: limits on a metric, chosen by how people rated the outputs that pass them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from metrist.errors import RunError, SpecError
from metrist.evaluate.meta.dataset import check_names
from metrist.evaluate.meta.join import has_runs, join
from metrist.report.tables import Count, Share, Table, name_columns
from metrist.run import score
from metrist.stats import Floats, Mask
from metrist.stats.gold import mean_gold

#: Shares of passing outputs that are good, to choose limits for.
_PRECISIONS = (0.8, 0.9, 0.95, 0.99)
#: Digits of a limit: it is printed as it was tried.
_DIGITS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A check such as `consistency>=0.5`. Precision is the share of the outputs that pass it which are good, recall the
    share of the good outputs that pass."""

    check: str
    purpose: str
    precision: float
    recall: float
    passed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RatedLimits:
    """Limits on a metric, from outputs that have a score and ratings."""

    metric: str
    limits: tuple[Limit, ...]
    notes: tuple[str, ...]

    def table(self) -> Table:
        return Table(
            title=f"Limits on {self.metric}",
            columns=name_columns("check", "chosen for", right=("precision", "recall", "passed")),
            rows=[
                [limit.check, limit.purpose, Share(limit.precision), Share(limit.recall), Count(limit.passed)]
                for limit in self.limits
            ],
            notes=list(self.notes),
        )


def choose_limits(data: Any, good: float, metric: str | None = None, aspect: str | None = None) -> RatedLimits:
    """Choose limits on a metric for outputs whose mean rating is at least `good`, or at most, where lower is better.
    `data` is whatever `metrist meta` reads. Records without scores of the metric are scored first."""
    dataset = join(data)
    if metric is not None and metric not in dataset.scores and not has_runs(data):
        try:
            results = score(data, metric)
        except SpecError:  # Perhaps a misspelt name of the data's own scores.
            if not dataset.scores:
                raise
        else:
            dataset, metric = join(results), results.metrics[0].label
    metric, aspect = _choose("metric", metric, list(dataset.scores)), _choose("aspect", aspect, list(dataset.ratings))
    scores, gold = dataset.scores[metric].values, mean_gold(dataset.ratings[aspect])
    weights = np.ones(len(scores)) if dataset.weight is None else dataset.weight
    known = ~(np.isnan(scores) | np.isnan(gold))
    scores, gold, weights = scores[known], gold[known], weights[known]
    is_good = gold >= (-good if aspect in dataset.reversed_aspects else good)
    count = len(scores)
    share = float(np.average(is_good, weights=weights)) if count else 0.0
    if not 0 < share < 1:
        raise RunError(
            f"{'all' if share else 'none'} of the {count:,} outputs with a score and a rating of {aspect!r} are good: "
            "limits need good ones and others; name another rating as `good`",
            code="no_data",
        )
    sign = -1 if dataset.scores[metric].higher_is_better is False else 1
    limits, missed = _find_limits(metric, sign * scores, is_good, weights, sign)
    compared = "at most" if aspect in dataset.reversed_aspects else "at least"
    notes = [
        f"{share:.0%} of {count:,} outputs are good: their mean rating of {aspect!r} is {compared} {good:g}.",
        "The figures are those of the outputs that chose the limits: try a limit on others.",
    ]
    if missed:
        notes.append(f"No limit reaches a precision of {', '.join(f'{precision:.0%}' for precision in missed)}.")
    return RatedLimits(metric=metric, limits=tuple(limits), notes=tuple(notes))


def _choose(kind: str, name: str | None, known: list[str]) -> str:
    """The name, or the only one that is known."""
    if not known:
        missing = "scores" if kind == "metric" else "ratings"
        raise RunError(f"the data hold no {missing}: limits need outputs with scores and ratings", code="no_data")
    if name is None and len(known) > 1:
        article = "an" if kind == "aspect" else "a"
        raise RunError(f"choose {article} {kind}: {', '.join(known)}", code="missing_value")
    (chosen,) = check_names(kind, known if name is None else [name], known)
    return chosen


def _find_limits(
    metric: str, scores: Floats, is_good: Mask, weights: Floats, sign: int
) -> tuple[list[Limit], list[float]]:
    """The limits that balance precision and recall, and that reach each precision with the largest recall; and the
    precisions that none reaches. Larger scores are better here."""
    candidates = np.array(sorted({float(f"{score:.{_DIGITS}g}") for score in scores.tolist()}))
    order = np.argsort(-scores, kind="stable")
    passed = np.searchsorted(-scores[order], -candidates, side="right")
    candidates, passed = candidates[passed > 0], passed[passed > 0]
    good_weights = weights * is_good
    hits = np.cumsum(good_weights[order])[passed - 1]
    total = np.cumsum(weights[order])[passed - 1]
    precision, recall = hits / total, hits / float(good_weights.sum())
    balance = 2 * precision * recall / np.maximum(precision + recall, 1e-300)

    def make(number: int, purpose: str) -> Limit:
        limit = sign * candidates[number]
        return Limit(
            check=f"{metric}{'>=' if sign > 0 else '<='}{limit:.{_DIGITS}g}",
            purpose=purpose,
            precision=float(precision[number]),
            recall=float(recall[number]),
            passed=int(passed[number]),
        )

    limits = [make(int(np.argmax(balance)), "both alike (F1)")]
    missed = []
    for least in _PRECISIONS:
        reached = np.flatnonzero((precision >= least) & (hits > 0))
        if len(reached):
            limits.append(make(int(reached[np.argmax(recall[reached])]), f"precision of {least:.0%}"))
        else:
            missed.append(least)
    return limits, missed
