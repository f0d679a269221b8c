"""The parts of a training: the task, its examples and objective, and callbacks.

A new kind of metric that learns subclasses `TrainingTask`; `metrist.train.fit.fit` trains it.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from metrist.errors import agree
from metrist.models.devices import Options, Placement
from metrist.models.weights import Weights, find_weights
from metrist.train.batches import Balanced, Sampler, Shuffled
from metrist.train.recipe import Recipe

if TYPE_CHECKING:
    from torch import Tensor


Batch = Mapping[str, Any]
#: The label of a token that does not count in the loss, as transformers has it.
IGNORED = -100


class Examples(ABC):
    """Training or development data. `lengths` are the examples' numbers of tokens, and `weights` their weights in the
    mean loss: target tokens for a mean over tokens, 1 for a mean over examples."""

    lengths: NDArray[np.int64]
    weights: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def spaces(self) -> NDArray[np.int64]:
        """The numbers of tokens with padding inside an example."""
        return self.lengths

    @abstractmethod
    def collate(self, indices: NDArray[np.int64]) -> Mapping[str, Tensor]:
        """Return these examples as padded tensors on the CPU."""


class Objective(Protocol):
    """The loss and the development figure. Use only torch's random generators: the loop seeds them before each step."""

    @property
    def figure(self) -> str:
        """The name of what `judge` measures; higher is better."""

    def loss(self, model: Any, batch: Batch) -> Tensor:
        """Return the weighted sum of the examples' losses. The loop divides it by the total weight of the update, so
        the result does not depend on how many examples are computed at once."""

    def judge(self, model: Any, batch: Batch) -> Tensor:
        """Return one number per example; the development figure is their mean."""


class Learner(NamedTuple):
    """A model with its objective. `rates` maps prefixes of parameter names to multiples of the recipe's learning
    rate."""

    model: Any
    objective: Objective
    rates: Mapping[str, float] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """Tokenized data and its sampler. `left_out_heads` are heads of the base that the trained
    model does not have: training changes the layers below them, and with these their numbers."""

    train: Examples
    dev: Examples | None
    sampler: Sampler
    left_out_heads: tuple[str, ...] = ()

    def remarks(self) -> list[str]:
        """Return what the user should know before training."""
        if not self.left_out_heads:
            return []
        heads = agree(len(self.left_out_heads), "head", "heads")
        return [
            f"the trained model will be without the {heads} {', '.join(self.left_out_heads)} of its base, as training "
            "changes the layers below"
        ]


def describe_heads(plan: TrainingPlan) -> dict[str, str]:
    """Return what the card says about heads of the base that were left out."""
    return {"left_out_heads": ", ".join(plan.left_out_heads)} if plan.left_out_heads else {}


def hash_rows(rows: Iterable[object]) -> str:
    """Hash all that training reads of its data."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(repr(row).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingTask(ABC):
    """A training to run: a base model, a recipe and an output folder; subclasses add the data."""

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

    def identity(self, weights: Weights, data: Any) -> dict[str, Any]:
        """Return all that decides the trained weights, as `training.json` stores it."""
        own = self.own_identity(weights, data)
        return {"kind": self.kind, "base": weights.fingerprint, **own, **self.recipe.identity()}

    @abstractmethod
    def own_identity(self, weights: Weights, data: Any) -> dict[str, Any]:
        """Return the data and the settings besides the recipe that decide the trained weights. These exclude file
        names."""

    def make_sampler(self, train: Examples, groups: Sequence[str] | None = None, balance: float = 1.0) -> Sampler:
        """Return the sampler of the recipe; with groups of examples, one that balances them."""
        recipe = self.recipe
        settings: dict[str, Any] = {"batch": recipe.batch, "seed": recipe.seed, "bucket": recipe.bucket}
        if groups is None:
            return Shuffled(lengths=train.lengths, **settings)
        return Balanced(lengths=train.lengths, groups=groups, balance=balance, **settings)

    @abstractmethod
    def plan(self, weights: Weights, data: Any) -> TrainingPlan:
        """Tokenize the data; load no weights."""

    @abstractmethod
    def build(self, weights: Weights, plan: Any, placement: Placement) -> Learner:
        """Load the model to train."""

    @abstractmethod
    def publish(self, weights: Weights, data: Any, plan: Any, trainer: Any, folder: Any) -> dict[str, Any]:
        """Write the trained model into its folder; return the facts that only this kind of card has."""

    def fingerprint(self) -> str:
        return find_weights(Options(model=str(self.out))).fingerprint


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The development figure after a number of steps."""

    step: int
    figure: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingProgress:
    """`loss` is the mean over the latest steps; `tokens` counts all training tokens so far."""

    step: int
    steps: int
    loss: float
    lr: float
    tokens: int


class TrainingCallback(Protocol):
    """Receives the events of a training, in the training process."""

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
