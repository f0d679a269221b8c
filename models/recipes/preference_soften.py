"""Pairs with what a larger model thinks of them: the small one learns how sure to be, not only which is better.

    python preference_soften.py PAIRS TEACHER OUT      TEACHER: a folder of `metrist train preference`

The label of a training pair becomes part what it was and part the teacher's probability. The teacher may make it
doubtful, and never turns it round: where people and the teacher disagree, people are asked.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from metrist.data.good_bad import GoodBad
from metrist.data.pairs_file import read_good_bad, write_good_bad
from metrist.models import reward
from metrist.models.options import Options
from metrist.models.rewards import Reward
from metrist.train.answer_pairs import judged

SHARE = 0.7
#: No label is less sure than this.
LEAST = 0.65
#: Rewards of a trained model are surer than it is right: they are divided by this first.
_COOLING = 2.0


def softened(pairs: Sequence[GoodBad], teacher: Reward) -> list[GoodBad]:
    """The training pairs with mixed labels, all others as they are."""
    learned = [at for at, pair in enumerate(pairs) if pair.split == "train"]
    rewards = teacher.rewards([one for at in learned for one in judged(pairs[at])]).values.reshape(-1, 2)
    sure = 1 / (1 + np.exp((rewards[:, 1] - rewards[:, 0]) / _COOLING))
    found = list(pairs)
    for at, probability in zip(learned, sure, strict=True):
        mixed = (1 - SHARE) * pairs[at].certainty + SHARE * float(probability)
        found[at] = replace(pairs[at], certainty=max(LEAST, mixed))
    return found


def main() -> None:
    pairs, teacher, out = sys.argv[1:]
    write_good_bad(Path(out), softened(read_good_bad(Path(pairs)), reward.load(Options(model=teacher))))


if __name__ == "__main__":
    main()
