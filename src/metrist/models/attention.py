"""Attention over packed sequences: tokens of many texts one after another, no padding, no mask.

Queries, keys and values are (tokens, heads, size of a head). A `Blocks` says which run of queries sees which run of
keys: a text its own tokens, or all targets of a source that source's tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

Attention = Callable[[Tensor, Tensor, Tensor, "Blocks", bool, float], Tensor]


class Blocks:
    """Runs of queries with the runs of keys that they see."""

    def __init__(self, queries: Sequence[int], keys: Sequence[int], device: torch.device) -> None:
        self.queries = _starts(queries)
        self.keys = self.queries if keys is queries else _starts(keys)
        self.most_queries = max(queries, default=0)
        self.most_keys = max(keys, default=0)
        self.query_starts = moved(self.queries.astype(np.int32), device)
        self.key_starts = self.query_starts if keys is queries else moved(self.keys.astype(np.int32), device)


def moved(array: NDArray[Any], device: torch.device) -> Tensor:
    """The array on the device, without waiting for it."""
    tensor = torch.from_numpy(array)
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def attention(device: torch.device, dtype: torch.dtype) -> Attention:
    """The fastest of the ways below that works on this device and agrees with the plainest."""
    if device.type == "cuda":
        way = _flash if dtype in (torch.bfloat16, torch.float16) else _efficient
        if _agrees(way, device, dtype):
            return way
    return looped


def looped(query: Tensor, key: Tensor, value: Tensor, blocks: Blocks, causal: bool, scale: float) -> Tensor:
    """Block by block: on a CPU the work in a block outweighs the loop."""
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    turned = [tensor.transpose(0, 1).unsqueeze(0) for tensor in (query, key, value)]
    queries, keys = blocks.queries.tolist(), blocks.keys.tolist()
    for a, b, c, d in zip(queries, queries[1:], keys, keys[1:], strict=False):
        q, k, v = turned[0][:, :, a:b], turned[1][:, :, c:d], turned[2][:, :, c:d]
        out[a:b] = scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)[0].transpose(0, 1)
    return out


def _flash(query: Tensor, key: Tensor, value: Tensor, blocks: Blocks, causal: bool, scale: float) -> Tensor:
    found: Tensor = torch.ops.aten._flash_attention_forward(
        query,
        key,
        value,
        blocks.query_starts,
        blocks.key_starts,
        blocks.most_queries,
        blocks.most_keys,
        0.0,
        causal,
        False,
        scale=scale,
    )[0]
    return found


def _efficient(query: Tensor, key: Tensor, value: Tensor, blocks: Blocks, causal: bool, scale: float) -> Tensor:
    found: Tensor = torch.ops.aten._efficient_attention_forward(
        query.unsqueeze(0),
        key.unsqueeze(0),
        value.unsqueeze(0),
        None,
        blocks.query_starts,
        blocks.key_starts,
        blocks.most_queries,
        blocks.most_keys,
        0.0,
        1 if causal else 0,
        False,
        scale=scale,
    )[0]
    return found.squeeze(0)


def _agrees(way: Attention, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether an operator that torch does not promise to keep is there and means what we think."""
    draw = torch.Generator().manual_seed(7)
    lengths, others = [5, 3, 40], [7, 64, 2]
    try:
        for queries, keys, causal in ((lengths, lengths, True), (lengths, lengths, False), (lengths, others, False)):
            q, k, v = (torch.randn(sum(n), 4, 64, generator=draw).to(device, dtype) for n in (queries, keys, keys))
            blocks = Blocks(queries, keys, device)
            apart = (way(q, k, v, blocks, causal, 0.125) - looped(q, k, v, blocks, causal, 0.125)).abs().max()
            if not apart < (1e-5 if dtype == torch.float32 else 0.05):
                return False
    except (RuntimeError, TypeError, AttributeError, IndexError):
        return False
    return True


def _starts(lengths: Sequence[int]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(np.asarray(lengths, dtype=np.int64))]).astype(np.int64)
