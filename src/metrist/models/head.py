"""From a decoder's states to the labels' log-probabilities, without ever holding all logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from metrist.models.devices import Placement

#: Logits that are held at a time: on a CPU as many as stay in its cache, on a card enough to keep it busy.
_CPU_LOGITS = 1 << 22
_CARD_LOGITS = 1 << 28
#: A card multiplies matrices fast only where their sides are multiples of this.
_SIDE = 64

#: Logits and labels to log-probabilities, row by row.
Reduction = Callable[[Tensor, Tensor], Tensor]


class Head:
    """The vocabulary projection of a model, with the bias that some add after it."""

    def __init__(self, model: Any, place: Placement) -> None:
        self._project = model.get_output_embeddings()
        self._words = int(self._project.weight.shape[0])
        bias = getattr(model, "final_logits_bias", None)
        # Nearly all models have a bias of zeros, which is not worth a pass over the logits.
        self._bias = bias.reshape(-1) if bias is not None and bool(bias.any()) else None
        self._rows = max(64, (_CPU_LOGITS if place.device.type == "cpu" else _CARD_LOGITS) // self._words)
        self._reduce: Reduction = plainly
        if place.device.type == "cuda" and not place.spread:
            self._for_card()

    def log_probs(self, states: Tensor, labels: Tensor) -> Tensor:
        """For each row of states, the log-probability of its label, in float32."""
        parts = zip(torch.split(states, self._rows), torch.split(labels.to(states.device), self._rows), strict=True)
        return torch.cat([self._part(some, wanted) for some, wanted in parts])

    def _part(self, states: Tensor, labels: Tensor) -> Tensor:
        logits = self._project(states)[:, : self._words]
        if self._bias is not None:
            logits = logits + self._bias.to(logits)
        return self._reduce(logits, labels.to(logits.device)).to(states.device)

    def _for_card(self) -> None:
        """Sides that suit the card, logits in float32 from half-precision factors, one reading of the logits."""
        if type(self._project) is torch.nn.Linear:
            self._project = _CardProduct(self._project)
        self._rows = max(_SIDE, self._rows // _SIDE * _SIDE)
        self._reduce = _reduction(self._project.weight.device)


def plainly(logits: Tensor, labels: Tensor) -> Tensor:
    """Compute the log-probabilities of the labels with plain torch."""
    return logits.float().log_softmax(1).gather(1, labels.unsqueeze(1)).squeeze(1)


class _CardProduct:
    """A linear map with its outputs padded to a multiple of `_SIDE`; what is padded means nothing."""

    def __init__(self, project: torch.nn.Linear) -> None:
        missing = -len(project.weight) % _SIDE
        self.weight = pad(project.weight, (0, 0, 0, missing))
        self._bias = None if project.bias is None else pad(project.bias, (0, missing)).float()
        self._wide = _widens(self.weight)

    def __call__(self, states: Tensor) -> Tensor:
        if self._wide:
            logits: Tensor = torch.mm(states, self.weight.t(), out_dtype=torch.float32)
        else:
            logits = torch.mm(states, self.weight.t()).float()
        return logits if self._bias is None else logits.add_(self._bias)


def _widens(weight: Tensor) -> bool:
    """Whether torch can multiply half-precision matrices into a float32 one: it keeps all digits of the sums."""
    if weight.dtype == torch.float32:
        return False
    try:
        torch.mm(weight[:_SIDE], weight[:_SIDE].t(), out_dtype=torch.float32)
    except (RuntimeError, TypeError):
        return False
    return True


def _reduction(device: torch.device) -> Reduction:
    """The compiled reduction where it can be had and agrees with the plain one."""
    try:
        from metrist.models.fused import label_log_probs

        logits = 10 * torch.randn(7, 5000, generator=torch.Generator().manual_seed(7)).to(device)
        labels = torch.arange(7, device=device) * 700
        # Rows are longer than what is read of them where sides were padded.
        apart = label_log_probs(logits[:, :4990], labels) - plainly(logits[:, :4990], labels)
        return label_log_probs if bool(apart.abs().max() < 1e-4) else plainly
    except Exception:
        # No Triton, no compiler, or a card that it does not know: each has faults of its own kind.
        return plainly
