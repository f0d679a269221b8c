"""Pairs with what a larger model thinks of them: the small one learns how sure to be, not only which is better.

    python preference_soften.py PAIRS TEACHER OUT [SHARE]      TEACHER: a folder of `metrist train preference`

The label of a training pair becomes (1 - SHARE) times what it was and SHARE times the teacher's probability (half of
each unless said otherwise). Where that makes the other answer the better one, the two change places.
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

SHARE = 0.5
#: Rewards of a trained model are surer than it is right: they are divided by this first.
_COOLING = 2.0


def softened(pairs: Sequence[GoodBad], teacher: Reward, share: float) -> list[GoodBad]:
    """The training pairs with mixed labels, all others as they are."""
    learned = [at for at, pair in enumerate(pairs) if pair.split == "train"]
    rewards = teacher.rewards([one for at in learned for one in judged(pairs[at])]).values.reshape(-1, 2)
    sure = 1 / (1 + np.exp((rewards[:, 1] - rewards[:, 0]) / _COOLING))
    found = list(pairs)
    for at, probability in zip(learned, sure, strict=True):
        found[at] = _mixed(pairs[at], (1 - share) * pairs[at].certainty + share * float(probability))
    return found


def _mixed(pair: GoodBad, certainty: float) -> GoodBad:
    if certainty >= 0.5:
        return replace(pair, certainty=certainty)
    return replace(
        pair,
        good=pair.bad,
        bad=pair.good,
        certainty=1 - certainty,
        good_rating=None,
        bad_rating=None,
        systems=pair.systems and pair.systems[::-1],
    )


def main() -> None:
    pairs, teacher, out, *share = sys.argv[1:]
    network = reward.load(Options(model=teacher))
    write_good_bad(Path(out), softened(read_good_bad(Path(pairs)), network, float(share[0]) if share else SHARE))


if __name__ == "__main__":
    main()
