"""What a training consists of: the task, its examples and objective, and the callbacks that follow it.

A new kind of metric that learns subclasses `TrainingTask`; `metrist.train.fit.fit` trains it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from metrist.models.devices import Options, Placement
from metrist.models.weights import Weights
from metrist.train.batches import Sampler
from metrist.train.recipe import Recipe

if TYPE_CHECKING:
    from torch import Tensor

    from metrist.train.loop import Trainer

Batch = Mapping[str, Any]


class Examples(Protocol):
    """What is learned from. `lengths` counts each example's tokens, `spaces` its tokens with its own padding, and
    `weights` its share of the mean loss: target tokens where the mean is over tokens, 1 where it is over examples."""

    @property
    def lengths(self) -> NDArray[np.int64]: ...

    @property
    def spaces(self) -> NDArray[np.int64]: ...

    @property
    def weights(self) -> NDArray[np.float64]: ...

    def __len__(self) -> int: ...

    def collate(self, chosen: NDArray[np.int64]) -> Mapping[str, Tensor]:
        """Return these examples as padded tensors on the CPU."""
        ...


class Objective(Protocol):
    """What is optimized. Randomness comes from torch's generators alone: the loop seeds them before each step."""

    @property
    def figure(self) -> str:
        """The name of what `judge` measures; more is better."""
        ...

    def loss(self, model: Any, batch: Batch) -> Tensor:
        """Return the sum of the examples' losses, each times its weight. The loop divides by the weights of all
        examples of the update, so the result does not depend on how many are computed at once."""
        ...

    def judge(self, model: Any, batch: Batch) -> Tensor:
        """Return one number per example; the development figure is their mean."""
        ...


class Learner(NamedTuple):
    """A model with its objective. `rates` are multiples of the recipe's learning rate for parameters whose names begin
    with the key."""

    model: Any
    objective: Objective
    rates: Mapping[str, float] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """Tokenized data, the order in which it is seen, and the number of updates."""

    train: Examples
    dev: Examples | None
    sampler: Sampler
    steps: int

    def remarks(self) -> list[str]:
        """What the user should know before training."""
        return []


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingTask(ABC):
    """A training that the user asks for: a base model, a recipe and an output folder; subclasses add the data."""

    kind: ClassVar[str]

    base: Options
    out: Path
    recipe: Recipe = field(default_factory=Recipe)
    resume: bool = False
    checkpoint_every: int = 500
    keep_checkpoints: bool = False

    @abstractmethod
    def load_data(self) -> Any:
        """Read the training and development data."""

    @abstractmethod
    def identity(self, weights: Weights, data: Any) -> dict[str, Any]:
        """Return all settings that decide the trained weights, as `training.json` stores them. File names do not, nor
        does how much is computed at once."""

    @abstractmethod
    def plan(self, weights: Weights, data: Any) -> TrainingPlan:
        """Tokenize the data; load no weights."""

    @abstractmethod
    def build(self, weights: Weights, plan: Any, placement: Placement) -> Learner:
        """Load the model to train."""

    @abstractmethod
    def publish(self, weights: Weights, data: Any, plan: Any, trainer: Trainer, folder: Any) -> dict[str, Any]:
        """Write the trained model into its folder; return the facts that only this kind of card has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The development figure after a number of steps."""

    step: int
    figure: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingProgress:
    """`loss` is the mean over the latest steps; `tokens` counts those learned from so far."""

    step: int
    steps: int
    loss: float
    lr: float
    tokens: int


class TrainingCallback(Protocol):
    """Receives the events of a training, in the process that trains."""

    def on_progress(self, progress: TrainingProgress) -> None: ...

    def on_evaluation(self, evaluation: Evaluation, name: str) -> None: ...

    def on_message(self, text: str) -> None: ...


class NoCallback:
    """Ignores all events."""

    def on_progress(self, progress: TrainingProgress) -> None:
        pass

    def on_evaluation(self, evaluation: Evaluation, name: str) -> None:
        pass

    def on_message(self, text: str) -> None:
        pass
