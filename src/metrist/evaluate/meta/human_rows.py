"""The human ceiling as a row beside the metrics: each rater taken for a metric, judged by the gold of the others, with
tie thresholds chosen as the metrics' are."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from metrist.evaluate.meta.analyses.raters import are_named
from metrist.evaluate.meta.figures import SOFT
from metrist.evaluate.meta.judged import Codes
from metrist.evaluate.meta.result import HUMANS, Figure
from metrist.evaluate.meta.slices import Slice
from metrist.evaluate.meta.trials import Resampled, Scorer, mean_of, resampled, trial
from metrist.evaluate.meta.work import Work
from metrist.stats.ceiling import LeftOut
from metrist.stats.gold import GOLDS


def has_ceiling(work: Work) -> bool:
    """Whether one rater can be judged by the others: raters are named, and the gold is made of all of them."""
    return work.plan.gold in GOLDS and are_named(work.judged.ratings[work.aspect])


def ceiling_figure(work: Work, one: Slice, name: str) -> Figure | None:
    """How well a rater who is left out of the gold agrees with the gold of the others, averaged over raters; None for
    soft pairwise accuracy, which is of systems."""
    if name == SOFT:
        return None
    trials = [trial(work, scorer, one, name) for scorer in rater_scorers(work)]
    return human_figure(work, name, one.name, resampled(work, trials, one.outputs), one.outputs)


def rater_scorers(work: Work) -> list[Scorer]:
    """Each rater as if it were a metric."""
    return [_scorer(work, rater) for rater in work.left_out]


def human_figure(work: Work, name: str, where: str, raters: Sequence[Resampled], outputs: Codes) -> Figure:
    """The row that averages over raters, where these outputs were resampled."""
    found = mean_of(raters)
    low, high = found.interval(work, outputs)
    undefined = sum(math.isnan(one.value) for one in raters)
    return Figure(
        metric=HUMANS,
        aspect=work.aspect,
        measure=name,
        group=work.plan.group,
        slice=where,
        value=found.value,
        low=low,
        high=high,
        n=found.n,
        groups=len(raters) - undefined,
        undefined=undefined,
    )


def _scorer(work: Work, rater: LeftOut) -> Scorer:
    human, values = np.full((2, len(work.judged)), np.nan)
    human[rater.outputs], values[rater.outputs] = rater.sample.human, rater.sample.metric
    return Scorer(name=f"{HUMANS} {rater.rater}", human=human, values=values)
