"""What every reward model gives, and what it must be able to do, whatever computes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from metrist.models.reward_layout import Judged
from metrist.models.reward_settings import RewardSettings


class Rewards(NamedTuple):
    """A reward for each answer, how many tokens its row had to leave out, and how many of the answer's tokens the model
    can read: where there are none, the reward says nothing of the answer."""

    values: NDArray[np.float64]
    cut: NDArray[np.int64]
    read: NDArray[np.int64]


class Reward(Protocol):
    """A model that was trained on preferences. `facts` go into signatures."""

    @property
    def settings(self) -> RewardSettings: ...

    @property
    def facts(self) -> Mapping[str, str]: ...

    def rewards(self, judged: Sequence[Judged]) -> Rewards:
        """One reward per answer, in the order given, the same within rounding whatever else is judged with it."""
        ...
