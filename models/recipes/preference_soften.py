"""Pairs with what larger models think of them: the small one learns how sure to be, not only which is better.

    python preference_soften.py PAIRS OUT TEACHER ...      TEACHER: a folder of `metrist train preference`

The label of a training pair becomes part what it was and part the teachers' probability. They may make it doubtful, and
never turn it round: where people and teachers disagree, people are asked. Beside these stand new pairs
(`preference_asked.py`), which the teachers alone label.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from preference_asked import new_pairs

from metrist.data.pairs import GoodBad, read_good_bad, write_good_bad
from metrist.models import loading
from metrist.models.devices import Options
from metrist.models.protocols import RewardScorer
from metrist.train.examples import score_pairs

SEED = 1
#: How many pairs are new, and how many of all are labelled: four minutes of an H200.
NEW, LABELLED = 120_000, 160_000
SHARE = 0.7
#: No label of an old pair is less sure than this.
LEAST = 0.65
#: Rewards of a trained model are surer than it is right: they are divided by this first.
_COOLING = 2.0


def to_label(pairs: Sequence[GoodBad]) -> tuple[list[GoodBad], list[GoodBad]]:
    """Training pairs and new ones, as many as are labelled, drawn out of all."""
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
    """How probable it is that the good one is better, by the teachers' mean opinion."""
    scores = [score_pairs(teacher, pairs) for teacher in teachers]
    leads = np.mean([one.good - one.bad for one in scores], axis=0)
    sure: NDArray[np.float64] = 1 / (1 + np.exp(-leads / _COOLING))
    return sure


def softened(pair: GoodBad, probability: float) -> GoodBad:
    return replace(pair, certainty=max(LEAST, (1 - SHARE) * pair.certainty + SHARE * probability))


def turned(pair: GoodBad, probability: float) -> GoodBad:
    """A new pair with its better side as the good one."""
    if probability >= 0.5:
        return replace(pair, certainty=probability)
    return replace(pair, good=pair.bad, bad=pair.good, certainty=1 - probability)


def main() -> None:
    pairs, out, *folders = sys.argv[1:]
    read = read_good_bad(Path(pairs))
    old, new = to_label(read)
    teachers = [loading.load_reward(Options(model=folder, dtype="bfloat16")) for folder in folders]
    sure = [float(one) for one in probabilities([*old, *new], teachers)]
    labelled = [
        *map(softened, old, sure),
        *map(turned, new, sure[len(old) :]),
    ]
    write_good_bad(Path(out), [*labelled, *(pair for pair in read if pair.split != "train")])


if __name__ == "__main__":
    main()
