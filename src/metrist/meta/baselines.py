"""What a pairwise accuracy must be compared with, since a metric that knows nothing is right now and then too.

With T the share of pairs that humans tie (averaged as the accuracy is):

* all ties: calling every pair a tie is right with T.
* chance: a scorer that is independent of humans and ties a share t of the pairs expects t T + (1 - t)(1 - T)/2. That is
  linear in t, so at its best ε it ties everything or nothing, and expects max(T, (1 - T)/2).
* same ties: what the metric itself would expect at its ε if its scores were shuffled among the outputs of each group.
* shuffled: as before, with ε chosen anew for each shuffle. On small samples this is above chance, as the accuracy is,
  because the best of many thresholds flatters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from metrist.meta.grouping import Grouping
from metrist.meta.sample import Codes, Sample
from metrist.meta.threshold_search import best_threshold
from metrist.meta.tie_tally import Averages, Tally
from metrist.meta.ties import Average, Floats, groups_of, pairing

#: Ratings are nearly constant where humans tie at least this share of the pairs: a level that nine outputs in ten are
#: on already ties so many.
NEARLY_CONSTANT = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Baselines:
    """Accuracies that take no knowledge to reach, each defined in this module."""

    chance: float
    same_ties: float
    all_ties: float

    @property
    def warning(self) -> str | None:
        """In words, where ratings are so nearly constant that accuracies say little."""
        if not self.all_ties >= NEARLY_CONSTANT:
            return None
        return (
            f"ratings are nearly constant: humans tie {self.all_ties:.1%} of the pairs, "
            "so a metric that ties everything is right as often"
        )


def baselines(tally: Tally, averages: Averages) -> Baselines:
    """The baselines of an accuracy that is averaged over these groups."""
    ties = averages.over(tally.human_tied, tally)
    return Baselines(chance=chance(ties), same_ties=averages.over(tally.at_random(), tally), all_ties=ties)


def chance(human_tie_share: float) -> float:
    """The expected accuracy of a scorer that is independent of humans, at its best ε."""
    return math.nan if math.isnan(human_tie_share) else max(human_tie_share, (1 - human_tie_share) / 2)


def shuffled_accuracies(
    sample: Sample,
    grouping: Grouping | Codes = "none",
    *,
    draws: int,
    rng: np.random.Generator,
    average: Average = "macro",
) -> Floats:
    """Accuracies (draws,) of the metric's scores shuffled among the outputs of each group, ε chosen anew each time."""
    groups = groups_of(sample, grouping)
    apart = np.argsort(groups, kind="stable")
    accuracies = np.empty(draws)
    for draw in range(draws):
        metric = np.empty(len(sample))
        metric[apart] = sample.metric[np.lexsort((rng.random(len(sample)), groups))]
        paired = pairing(sample.human, metric, groups, average=average)
        accuracies[draw] = paired.share(best_threshold(paired).right)
    return accuracies
