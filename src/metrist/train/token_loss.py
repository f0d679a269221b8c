"""What a likelihood metric learns: to find the tokens of targets likely, given their conditions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from metrist.train.objective import Batch
from metrist.train.token_pairs import IGNORED

if TYPE_CHECKING:
    from torch import Tensor


class TokenLoss:
    """The mean cross-entropy of target tokens, as transformers computes it from labels; judged by the mean over pairs
    of what the metric itself will say: the mean log-probability of a target's tokens."""

    figure = "mean log-probability"

    def loss(self, model: Any, batch: Batch) -> Tensor:
        summed: Tensor = model(**batch, use_cache=False).loss * (batch["labels"] != IGNORED).sum()
        return summed

    def judge(self, model: Any, batch: Batch) -> Tensor:
        from torch.nn.functional import cross_entropy

        labels: Tensor = batch["labels"]
        logits = model(**batch, use_cache=False).logits
        losses = cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED, reduction="none")
        return -losses.view_as(labels).sum(1) / (labels != IGNORED).sum(1)
