"""What the loop is told: examples to learn from, and what is to be learned. A new kind of metric writes these two."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor
from dataclasses import dataclass

Batch = Mapping[str, Any]


class Examples(Protocol):
    """What is learned from. `lengths` has the tokens that each example costs, `spaces` those with the padding that it
    brings along by itself; `weights` how much it counts in the mean loss: its target tokens where the mean is over
    tokens, 1 where it is over examples."""

    @property
    def lengths(self) -> NDArray[np.int64]: ...

    @property
    def spaces(self) -> NDArray[np.int64]: ...

    @property
    def weights(self) -> NDArray[np.float64]: ...

    def collate(self, chosen: NDArray[np.int64]) -> Mapping[str, Tensor]:
        """These examples as padded tensors on the CPU."""
        ...


class Objective(Protocol):
    """What is learned. Chance comes from torch's generators alone: the loop seeds them before each step."""

    @property
    def figure(self) -> str:
        """What `judge` measures, in words; more is better."""
        ...

    def loss(self, model: Any, batch: Batch) -> Tensor:
        """The losses of the examples, each times its weight, summed. The loop divides by the weights of all examples
        of the update, so that what is learned does not depend on how many are computed at once."""
        ...

    def judge(self, model: Any, batch: Batch) -> Tensor:
        """One number per example; the development figure is their mean."""
        ...


# What a training tells whoever watches it.


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The development figure after so many steps."""

    step: int
    figure: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingProgress:
    """How far it has come. `loss` is the mean over the latest steps, `tokens` counts those learned from so far."""

    step: int
    steps: int
    loss: float
    lr: float
    tokens: int


class TrainingCallback(Protocol):
    """Told of what happens, in the process that trains."""

    def moved(self, progress: TrainingProgress) -> None: ...

    def evaluated(self, evaluation: Evaluation, name: str) -> None: ...

    def message(self, remark: str) -> None: ...


class NoCallback:
    """Watches nothing."""

    def moved(self, progress: TrainingProgress) -> None:
        pass

    def evaluated(self, evaluation: Evaluation, name: str) -> None:
        pass

    def message(self, remark: str) -> None:
        pass
