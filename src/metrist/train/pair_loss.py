"""What a preference metric learns: to give the better of two answers the higher reward."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from metrist.models.reward_model import RewardModel
from metrist.train.objective import Batch


class Learner(torch.nn.Module):
    """A reward model, and, where ratings are learned too, the line that turns a reward into a rating."""

    def __init__(self, reward: RewardModel, *, ratings: bool) -> None:
        super().__init__()
        reward.learn()
        self.reward = reward
        self.line = torch.nn.Parameter(torch.tensor([1.0, 0.0])) if ratings else None

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Rewards of the good and of the bad answers."""
        found = self.reward(batch["input_ids"], batch["attention_mask"], batch["starts"])
        good, bad = found.view(2, -1)
        return good, bad


class PairLoss:
    """-log sigmoid(r_good - r_bad) where people were certain, its expectation where they were not. `regression` weighs
    the mean squared error of ratings beside it. Judged by the share of pairs whose good answer has the higher reward;
    equal rewards count as wrong."""

    def __init__(self, *, regression: float = 0.0, criteria: int = 1) -> None:
        self.regression = regression
        self.figure = "accuracy" if criteria == 1 else f"mean accuracy over {criteria} criteria"

    def loss(self, model: Learner, batch: Batch) -> Tensor:
        good, bad = model(batch)
        certainty = batch["certainty"]
        losses = certainty * softplus(bad - good) + (1 - certainty) * softplus(good - bad)
        if model.line is not None:
            losses = losses + self.regression * _squared_errors(model.line, torch.stack([good, bad]), batch["ratings"])
        total: Tensor = losses.sum()
        return total

    def judge(self, model: Learner, batch: Batch) -> Tensor:
        good, bad = model(batch)
        won: Tensor = (good > bad) * batch["shares"]
        return won


def _squared_errors(line: Tensor, rewards: Tensor, ratings: Tensor) -> Tensor:
    """For each pair, the mean over its two answers; an answer without a rating has no error."""
    known = ~ratings.isnan()
    errors = torch.where(known, line[0] * rewards + line[1] - ratings.nan_to_num(), 0.0)
    return (errors**2).mean(0)
