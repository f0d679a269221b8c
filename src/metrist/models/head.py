"""The vocabulary head: from a decoder's states to the log-probabilities of labels, without storing all logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from metrist.models.devices import Placement

#: Logits computed at a time: on a CPU as many as fit into its cache, on a GPU enough to keep it busy.
_CPU_LOGITS = 1 << 22
_GPU_LOGITS = 1 << 28
#: GPUs multiply matrices fast only if their sizes are multiples of this.
_ALIGNMENT = 64

#: Computes log-probabilities from logits and labels, row by row.
Reduction = Callable[[Tensor, Tensor], Tensor]


class Head:
    """A model's vocabulary projection, with the bias that some models add after it."""

    def __init__(self, model: Any, place: Placement) -> None:
        self._project = model.get_output_embeddings()
        self._words = int(self._project.weight.shape[0])
        bias = getattr(model, "final_logits_bias", None)
        # Nearly all models have a bias of zeros; skip it to save a pass over the logits.
        self._bias = bias.reshape(-1) if bias is not None and bool(bias.any()) else None
        self._rows = max(64, (_CPU_LOGITS if place.device.type == "cpu" else _GPU_LOGITS) // self._words)
        self._reduce: Reduction = reduce_logits
        if place.device.type == "cuda" and not place.spread:
            self._optimize_for_gpu()

    def log_probs(self, states: Tensor, labels: Tensor) -> Tensor:
        """Return the log-probability of each row's label, in float32."""
        parts = zip(torch.split(states, self._rows), torch.split(labels.to(states.device), self._rows), strict=True)
        results = []
        for some_states, some_labels in parts:
            logits = self._project(some_states)[:, : self._words]
            if self._bias is not None:
                logits = logits + self._bias.to(logits)
            results.append(self._reduce(logits, some_labels.to(logits.device)).to(states.device))
        return torch.cat(results)

    def _optimize_for_gpu(self) -> None:
        """Align sizes, compute float32 logits from half-precision factors, and read the logits once."""
        if type(self._project) is torch.nn.Linear:
            self._project = _AlignedLinear(self._project)
        self._rows = max(_ALIGNMENT, self._rows // _ALIGNMENT * _ALIGNMENT)
        self._reduce = _choose_reduction(self._project.weight.device)


def reduce_logits(logits: Tensor, labels: Tensor) -> Tensor:
    return logits.float().log_softmax(1).gather(1, labels.unsqueeze(1)).squeeze(1)


class _AlignedLinear:
    """A linear layer whose outputs are padded to a multiple of `_ALIGNMENT`; the padding has no meaning."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        missing = -len(linear.weight) % _ALIGNMENT
        self.weight = pad(linear.weight, (0, 0, 0, missing))
        self._bias = None if linear.bias is None else pad(linear.bias, (0, missing)).float()
        # Whether torch can multiply half-precision matrices into a float32 one, which keeps all digits of the sums.
        self._float32_output = self.weight.dtype != torch.float32
        if self._float32_output:
            try:
                torch.mm(self.weight[:_ALIGNMENT], self.weight[:_ALIGNMENT].t(), out_dtype=torch.float32)
            except (RuntimeError, TypeError):
                self._float32_output = False

    def __call__(self, states: Tensor) -> Tensor:
        if self._float32_output:
            logits: Tensor = torch.mm(states, self.weight.t(), out_dtype=torch.float32)
        else:
            logits = torch.mm(states, self.weight.t()).float()
        return logits if self._bias is None else logits.add_(self._bias)


def _choose_reduction(device: torch.device) -> Reduction:
    """Return the compiled reduction if it is available and agrees with `reduce_logits`, else the latter."""
    try:
        from metrist.models.fused import label_log_probs

        logits = 10 * torch.randn(7, 5000, generator=torch.Generator().manual_seed(7)).to(device)
        labels = torch.arange(7, device=device) * 700
        # Test rows longer than what is read of them, as with padded sizes.
        difference = label_log_probs(logits[:, :4990], labels) - reduce_logits(logits[:, :4990], labels)
        return label_log_probs if bool(difference.abs().max() < 1e-4) else reduce_logits
    except Exception:
        # Triton or a compiler is missing, or the GPU is not supported; each raises different errors.
        return reduce_logits
