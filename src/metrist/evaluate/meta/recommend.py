"""Which metric to trust where: the figures said in words, slice by slice.

Every sentence rests on a rule:

* A slice on which calling everything a tie (or guessing) does as well as the best metric has no metric to trust.
* `nothing passes` is said where the best metric stays below a floor: .6 for accuracies, .3 for correlations.
* A metric is level with the best where the test between the two, on the outputs that both scored, finds no difference.
  One that a test places below another is not the best, though it may have the largest value (on other outputs).
* Of the metrics that are level, the quickest is named, with its share of the best one's time and what it saves, where
  runs recorded that.
* A slice of fewer than 30 groups (items, say) is called small.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from metrist.evaluate.meta.analyses.cost import money_of, seconds_of
from metrist.evaluate.meta.result import HUMANS, Figure, MetaEvaluation, Tests
from metrist.report.cells import Number, fixed
from metrist.report.tables import Column, Table

_ACCURACIES = ("acc_eq", "pair_accuracy", "concordance", "accuracy", "f1", "spa")
_FLOORS = {True: 0.6, False: 0.3}
_FEW = 30
_NAMED = 4


def advice(evaluation: MetaEvaluation) -> list[str]:
    """A sentence or more per aspect, measure and slice."""
    places = _places(evaluation)
    several = len({place.key[:2] for place in places}) > 1
    return [(f"{', '.join(place.key[:2])}: " if several else "") + _sentence(evaluation, place) for place in places]


def advice_tables(evaluation: MetaEvaluation) -> list[Table]:
    """The best metric of each aspect, measure and slice, and below it the advice in words."""
    rows = [
        [*place.key, place.best.metric if place.best else None, Number(place.best.value if place.best else math.nan)]
        for place in _places(evaluation)
    ]
    head = [*(Column(name) for name in ("aspect", "measure", "slice", "best metric")), Column("value", "right")]
    return [Table(title="which metric to trust", columns=head, rows=rows, notes=advice(evaluation))]


@dataclass(frozen=True, slots=True)
class _Place:
    """One aspect, measure and slice, with the figures that stand there."""

    key: tuple[str, str, str]
    judged: Sequence[Figure]
    human: Figure | None
    tests: Tests | None

    @property
    def best(self) -> Figure | None:
        """The largest value of those that no test places below others; without tests, of all."""
        return min(self.judged, key=lambda figure: (figure.rank or math.inf, -figure.value), default=None)


def _places(evaluation: MetaEvaluation) -> list[_Place]:
    keys = dict.fromkeys((f.aspect, f.measure, f.slice) for f in evaluation.figures if not f.slice.endswith(" mean"))
    tests = {(made.aspect, made.measure, made.slice): made for made in evaluation.tests}
    places = []
    for key in keys:
        figures = [f for f in evaluation.figures if (f.aspect, f.measure, f.slice) == key]
        judged = [f for f in figures if f.metric != HUMANS and not math.isnan(f.value)]
        human = next((f for f in figures if f.metric == HUMANS), None)
        places.append(_Place(key, judged, human, tests.get(key)))
    return places


def _sentence(evaluation: MetaEvaluation, place: _Place) -> str:
    where = "On all outputs" if place.key[2] == "all" else f"On {place.key[2]}"
    best = place.best
    if best is None:
        return f"{where} the measure is undefined for every metric."
    level = _level(evaluation, best, place.judged, place.tests)
    return f"{_verdict(where, best)}{level}{_beside_humans(best, place.human)}{_small(best)}"


def _verdict(place: str, best: Figure) -> str:
    found = fixed(best.value, 3)
    baselines = {"guessing": best.chance, "calling every pair a tie": best.all_ties}
    known = {name: value for name, value in baselines.items() if not math.isnan(value)}
    if known:
        name, value = max(known.items(), key=lambda entry: entry[1])
        least = best.value if math.isnan(best.low) else best.low
        if least <= value:
            surely = f"{place} no metric is surely better than {name} ({fixed(value, 3)})"
            return f"{surely}; the best is {best.metric} with {found}."
    floor = _FLOORS[best.measure in _ACCURACIES]
    if best.value < floor:
        return f"{place} nothing passes {fixed(floor, 1).lstrip('0')}: the best is {best.metric} with {found}."
    return f"{place} {best.metric} is best with {found}."


def _level(evaluation: MetaEvaluation, best: Figure, judged: Sequence[Figure], tests: Tests | None) -> str:
    if tests is None or np.isnan(tests.adjusted).all():
        return ""
    top = tests.metrics.index(best.metric)
    found = zip(tests.metrics, tests.adjusted[top], tests.differences[top], strict=True)
    verdicts = {name: _verdict_between(p, difference, evaluation.plan.alpha) for name, p, difference in found}
    others = {f.metric: f for f in judged if f.metric != best.metric}
    by_verdict = {kind: [f for name, f in others.items() if verdicts[name] == kind] for kind in _VERDICTS}
    above = "".join(f" Yet {f.metric} does better on the outputs that both scored." for f in by_verdict["above"])
    level = by_verdict["level"]
    if not level:
        return (_sole(by_verdict["below"], by_verdict["untested"]) if not above else "") + above
    return _levels(evaluation, best, level) + above


_VERDICTS = ("below", "level", "above", "untested")


def _verdict_between(p: float, difference: float, alpha: float) -> str:
    """Where another metric stands beside the best, which lies above it by this difference."""
    if math.isnan(p):
        return "untested"
    if p > alpha:
        return "level"
    return "below" if difference > 0 else "above"


def _sole(below: Sequence[Figure], untested: Sequence[Figure]) -> str:
    if not below:
        return ""
    return f" It is significantly better than all others{' that could be tested' if untested else ''}."


def _levels(evaluation: MetaEvaluation, best: Figure, level: Sequence[Figure]) -> str:
    quickest = min([best, *level], key=lambda f: _seconds(evaluation, f.metric))
    share = _share(evaluation, quickest, best)
    if share:
        return f" {quickest.metric} ({fixed(quickest.value, 3)}) is level with it at {share}."
    ordered = sorted(level, key=lambda figure: -figure.value)
    names = ", ".join(f"{f.metric} ({fixed(f.value, 3)})" for f in ordered[:_NAMED])
    more = f" and {len(ordered) - _NAMED} more" if len(ordered) > _NAMED else ""
    return f" Level with it: {names}{more}."


def _seconds(evaluation: MetaEvaluation, metric: str) -> float:
    seconds = seconds_of(evaluation, metric)
    return math.inf if math.isnan(seconds) else seconds


def _share(evaluation: MetaEvaluation, quickest: Figure, best: Figure) -> str:
    """What one takes as a share of what the other takes: `1/1000 of its time`; empty where that is not known, or not
    much less."""
    less, more = seconds_of(evaluation, quickest.metric), seconds_of(evaluation, best.metric)
    if quickest is best or math.isnan(less + more) or less <= 0 or more < 2 * less:
        return ""
    ratio = more / less
    digits = 10 ** max(0, math.floor(math.log10(ratio)) - 1)
    time = f"1/{round(ratio / digits) * digits:g} of its time"
    saved = money_of(evaluation, best.metric) - money_of(evaluation, quickest.metric)
    return f"{time} and {saved:.2g} less per output" if saved > 0 else time


def _beside_humans(best: Figure, human: Figure | None) -> str:
    if human is None or math.isnan(human.value):
        return ""
    order = "above" if best.value >= human.value else "below"
    return f" One rater against the others reaches {fixed(human.value, 3)}: the best metric is {order} that."


def _small(best: Figure) -> str:
    return f" The slice is small ({best.groups} groups)." if 0 < best.groups < _FEW and best.group == "item" else ""
