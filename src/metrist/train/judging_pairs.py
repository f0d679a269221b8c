"""How well a reward model tells good answers from bad ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrist.data.pairs import GoodBad
from metrist.models.rewards import Reward
from metrist.train.answer_pairs import judged


class PairScores(NamedTuple):
    """The rewards of the good and the bad answers, pair by pair."""

    good: NDArray[np.float64]
    bad: NDArray[np.float64]

    @property
    def won(self) -> NDArray[np.bool_]:
        """Whether the good answer has the higher reward; equal ones have not."""
        found: NDArray[np.bool_] = self.good > self.bad
        return found


def score_pairs(reward: Reward, pairs: Sequence[GoodBad]) -> PairScores:
    """The model's rewards for both answers of each pair; answers that several pairs share are judged once."""
    values = reward.rewards([one for pair in pairs for one in judged(pair)]).values
    return PairScores(values[::2], values[1::2])


def accuracy(pairs: Sequence[GoodBad], scores: PairScores) -> dict[str, float]:
    """The share of pairs whose good answer has the higher reward, by criterion."""
    won: dict[str, list[bool]] = {}
    for pair, right in zip(pairs, scores.won.tolist(), strict=True):
        won.setdefault(pair.criterion, []).append(right)
    return {criterion: sum(some) / len(some) for criterion, some in won.items()}
