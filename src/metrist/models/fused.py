"""Log-probabilities of labels in one pass over the logits, compiled for GPUs by Triton.

Plain torch reads and writes the logits several times, which takes longer than the matrix product that computes them.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

triton: Any = importlib.import_module("triton")
tl: Any = importlib.import_module("triton.language")

_WIDTH = tl.constexpr(4096)
#: Lower than any logit but finite, so that the difference of two of them is 0 and not NaN.
_LOWEST = tl.constexpr(-1.0e30)


def _label_log_probs(logits, labels, out, width, stride):  # type: ignore[no-untyped-def]
    """One program per row: a running maximum and sum per lane, combined at the end."""
    row = tl.program_id(0).to(tl.int64)
    start_of_row = logits + row * stride
    lanes = tl.arange(0, _WIDTH)
    highest = tl.full([_WIDTH], _LOWEST, tl.float32)
    total = tl.zeros([_WIDTH], tl.float32)
    for start in range(0, width, _WIDTH):
        at = start + lanes
        some = tl.load(start_of_row + at, mask=at < width, other=_LOWEST).to(tl.float32)
        higher = tl.maximum(highest, some)
        total = total * tl.exp(highest - higher) + tl.exp(some - higher)
        highest = higher
    top = tl.max(highest, 0)
    total_of_row = tl.sum(total * tl.exp(highest - top), 0)
    chosen = tl.load(start_of_row + tl.load(labels + row)).to(tl.float32)
    tl.store(out + row, (chosen - top) - tl.log(total_of_row))


_KERNEL = triton.jit(_label_log_probs)


def label_log_probs(logits: Tensor, labels: Tensor) -> Tensor:
    out = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    # Triton starts kernels on the current GPU, which need not be the one with the logits.
    cuda: Any = torch.cuda
    with cuda.device_of(logits):
        _KERNEL[(len(logits),)](logits, labels, out, logits.shape[1], logits.stride(0), num_warps=8)
    return out
