"""Label pairs with the probabilities of larger models, so that a small one learns how certain a preference is.

    python preference_soften.py PAIRS OUT TEACHER ...      TEACHER: a folder of `metrist train preference`

A training pair's label becomes a mixture of the human label and the teachers' probability, which can weaken it but
never reverse it: if people and teachers disagree, people are right. Only the teachers label the new pairs of
`preference_new_pairs.py`.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from preference_new_pairs import new_pairs

from metrist.data.pairs import GoodBad, read_good_bad, write_good_bad
from metrist.models import loading
from metrist.models.devices import Options
from metrist.models.protocols import RewardScorer
from metrist.train.examples import score_pairs

SEED = 1
#: The number of new pairs, and of all pairs to label: four minutes on an H200.
NEW, LABELLED = 120_000, 160_000
SHARE = 0.7
#: The lowest certainty of a pair that people labelled.
LEAST = 0.65
#: A trained model's rewards are overconfident: they are divided by this first.
_COOLING = 2.0


def to_label(pairs: Sequence[GoodBad]) -> tuple[list[GoodBad], list[GoodBad]]:
    """Draw the training pairs and new pairs to label."""
    rng = random.Random(SEED)
    learned = [pair for pair in pairs if pair.split == "train"]
    both = [*learned, *new_pairs(learned, NEW, rng)]
    order = list(range(len(both)))
    rng.shuffle(order)
    drawn = sorted(order[:LABELLED])
    return (
        [both[at] for at in drawn if at < len(learned)],
        [both[at] for at in drawn if at >= len(learned)],
    )


def probabilities(pairs: Sequence[GoodBad], teachers: Sequence[RewardScorer]) -> NDArray[np.float64]:
    """Return the probability that the good answer is better, by the teachers' mean reward."""
    scores = [score_pairs(teacher, pairs) for teacher in teachers]
    leads = np.mean([score.good - score.bad for score in scores], axis=0)
    certainty: NDArray[np.float64] = 1 / (1 + np.exp(-leads / _COOLING))
    return certainty


def soften(pair: GoodBad, probability: float) -> GoodBad:
    return replace(pair, certainty=max(LEAST, (1 - SHARE) * pair.certainty + SHARE * probability))


def orient(pair: GoodBad, probability: float) -> GoodBad:
    """Make the better side of a new pair the good one."""
    if probability >= 0.5:
        return replace(pair, certainty=probability)
    return replace(pair, good=pair.bad, bad=pair.good, certainty=1 - probability)


def main() -> None:
    pairs, out, *folders = sys.argv[1:]
    read = read_good_bad(Path(pairs))
    old, new = to_label(read)
    teachers = [loading.load_reward(Options(model=folder, dtype="bfloat16")) for folder in folders]
    certainty = [float(probability) for probability in probabilities([*old, *new], teachers)]
    labelled = [
        *map(soften, old, certainty),
        *map(orient, new, certainty[len(old) :]),
    ]
    write_good_bad(Path(out), [*labelled, *(pair for pair in read if pair.split != "train")])


if __name__ == "__main__":
    main()
