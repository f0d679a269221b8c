"""The human ceiling: how well one rater does, as if it were a metric, against the gold of all others.

Each rater in turn is left out of the gold and judged by it, on the outputs that this rater and at least one other
rated. The mean over raters stands as a row beside the metrics. It is a little hard on humans: the gold lacks one rater
whom the metrics' gold has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from metrist.errors import RunError
from metrist.stats.gold import gold
from metrist.stats.raters import Codes, Floats, Ratings
from metrist.stats.sample import Sample


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LeftOut:
    """One rater against the others: `outputs` are the codes of the sample's outputs."""

    rater: int
    outputs: Codes
    sample: Sample


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ceiling:
    """The mean over raters, one value per draw; `raters` had a value at the first draw, `undefined` had none."""

    values: Floats
    raters: int
    undefined: int


def leave_one_out(ratings: Ratings, item: Codes, system: Codes, how: str = "mean") -> list[LeftOut]:
    """A sample per rater; `item` and `system` have one code per output, kept as they are."""
    ratings.check_named("the leave-one-rater-out ceiling")
    if len(ratings.raters) < 2:
        raise RunError(f"the leave-one-rater-out ceiling needs at least two raters, found {len(ratings.raters)}")
    return [_left_out(ratings, int(rater), item, system, how) for rater in ratings.raters]


def mean_over_raters(samples: list[LeftOut], estimate: Callable[[LeftOut], Floats]) -> Ceiling:
    """The ceiling under any estimate that gives values (draws,) for one rater. Raters without a value are skipped."""
    values = np.stack([estimate(sample) for sample in samples])
    defined = ~np.isnan(values)
    counts = defined.sum(axis=0)
    mean = np.divide(np.nan_to_num(values).sum(axis=0), counts, out=np.full(counts.shape, np.nan), where=counts > 0)
    return Ceiling(values=mean, raters=int(defined[:, 0].sum()), undefined=int((~defined[:, 0]).sum()))


def _left_out(ratings: Ratings, rater: int, item: Codes, system: Codes, how: str) -> LeftOut:
    own = ratings.chosen(ratings.rater == rater)
    others = gold(ratings.chosen(ratings.rater != rater), how).value
    both = ~np.isnan(others[own.output])
    outputs = own.output[both]
    sample = Sample(human=others[outputs], metric=own.value[both], item=item[outputs], system=system[outputs])
    return LeftOut(rater=rater, outputs=outputs, sample=sample)
