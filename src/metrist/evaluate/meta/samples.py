"""From joined data to what a measure looks at. The one policy for missing values is stated, and counted, here:

an output takes part where it has both a gold value and a score; whatever lacks either is left out and counted. A NaN
never becomes a number.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from metrist.errors import RunError
from metrist.evaluate.meta.judged import Codes, Floats, Judged, unknown
from metrist.stats.gold import GOLDS, gold, rater_gold
from metrist.stats.sample import Sample


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Taken:
    """The outputs of a slice that take part, as a sample, and what they are part of: `rated` outputs have a gold value,
    `scored` ones a score."""

    sample: Sample
    outputs: Codes
    rated: int
    scored: int

    @property
    def coverage(self) -> float:
        """The share of outputs with a gold value that also have a score."""
        return len(self.outputs) / self.rated if self.rated else np.nan


def taken(judged: Judged, human: Floats, metric: Floats, outputs: Codes) -> Taken:
    """The sample of these outputs; both columns have one value per output of the data, larger being better."""
    has_gold, has_score = np.isfinite(human[outputs]), np.isfinite(metric[outputs])
    both = outputs[has_gold & has_score]
    sample = Sample(
        human=human[both], metric=metric[both], item=judged.items.codes[both], system=judged.systems.codes[both]
    )
    return Taken(sample=sample, outputs=both, rated=int(has_gold.sum()), scored=int(has_score.sum()))


def gold_of(judged: Judged, aspect: str, how: str) -> Floats:
    """The gold value of each output under one aspect: `how` is one of mean, median, majority, z, or a rater's name."""
    if aspect not in judged.ratings:
        raise RunError(unknown("aspect", aspect, list(judged.ratings)))
    ratings = judged.ratings[aspect]
    if how in GOLDS:
        return gold(ratings, how).value
    if how in judged.raters:
        return rater_gold(ratings, judged.raters.index(how)).value
    raise RunError(unknown("gold or rater", how, [*GOLDS, *judged.raters]))
