"""Attention and BART-like transformers over packed sequences: the tokens of many texts concatenated, without padding.

Queries, keys and values are (tokens, heads, head size). `AttentionBlocks` say which run of queries attends to which run
of keys: a text to its own tokens, or all targets of a source to that source's tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention

from metrist.models.tokenization import Ids

Attention = Callable[[Tensor, Tensor, Tensor, "AttentionBlocks", bool, float], Tensor]


class AttentionBlocks:
    """Runs of queries and the runs of keys that they attend to."""

    def __init__(self, queries: Sequence[int], keys: Sequence[int], device: torch.device) -> None:
        self.queries = _starts(queries)
        self.keys = self.queries if keys is queries else _starts(keys)
        self.most_queries = max(queries, default=0)
        self.most_keys = max(keys, default=0)
        self.query_starts = to_device(self.queries.astype(np.int32), device)
        self.key_starts = self.query_starts if keys is queries else to_device(self.keys.astype(np.int32), device)


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """Copy an array to the device without waiting for it."""
    tensor = torch.from_numpy(array)
    if device.type == "cuda":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def choose_attention(device: torch.device, dtype: torch.dtype) -> Attention:
    """Return the fastest attention that works on this device and agrees with `loop_attention`."""
    if device.type == "cuda":
        attention = _flash if dtype in (torch.bfloat16, torch.float16) else _efficient
        if _agrees(attention, device, dtype):
            return attention
    return loop_attention


def loop_attention(
    query: Tensor, key: Tensor, value: Tensor, blocks: AttentionBlocks, causal: bool, scale: float
) -> Tensor:
    """Compute attention block by block: on a CPU the work in a block outweighs the loop."""
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    by_head = [tensor.transpose(0, 1).unsqueeze(0) for tensor in (query, key, value)]
    queries, keys = blocks.queries.tolist(), blocks.keys.tolist()
    for a, b, c, d in zip(queries, queries[1:], keys, keys[1:], strict=False):
        q, k, v = by_head[0][:, :, a:b], by_head[1][:, :, c:d], by_head[2][:, :, c:d]
        out[a:b] = scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale)[0].transpose(0, 1)
    return out


def _flash(query: Tensor, key: Tensor, value: Tensor, blocks: AttentionBlocks, causal: bool, scale: float) -> Tensor:
    starts = blocks.query_starts, blocks.key_starts, blocks.most_queries, blocks.most_keys
    forward = torch.ops.aten._flash_attention_forward
    output: Tensor = forward(query, key, value, *starts, 0.0, causal, False, scale=scale)[0]
    return output


def _efficient(
    query: Tensor, key: Tensor, value: Tensor, blocks: AttentionBlocks, causal: bool, scale: float
) -> Tensor:
    query, key, value = (tensor.unsqueeze(0) for tensor in (query, key, value))
    starts = blocks.query_starts, blocks.key_starts, blocks.most_queries, blocks.most_keys
    forward = torch.ops.aten._efficient_attention_forward
    output: Tensor = forward(query, key, value, None, *starts, 0.0, 1 if causal else 0, False, scale=scale)[0]
    return output.squeeze(0)


def _agrees(attention: Attention, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether a private operator of torch exists and computes what we expect."""
    generator = torch.Generator().manual_seed(7)
    lengths, others = [5, 3, 40], [7, 64, 2]
    try:
        for queries, keys, causal in ((lengths, lengths, True), (lengths, lengths, False), (lengths, others, False)):
            q, k, v = (torch.randn(sum(n), 4, 64, generator=generator).to(device, dtype) for n in (queries, keys, keys))
            blocks = AttentionBlocks(queries, keys, device)
            expected = loop_attention(q, k, v, blocks, causal, 0.125)
            difference = (attention(q, k, v, blocks, causal, 0.125) - expected).abs().max()
            if not difference < (1e-5 if dtype == torch.float32 else 0.05):
                return False
    except (RuntimeError, TypeError, AttributeError, IndexError):
        return False
    return True


def _starts(lengths: Sequence[int]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(np.asarray(lengths, dtype=np.int64))]).astype(np.int64)


# ---- BART-like encoders and decoders over packed tokens
#
# BART, mBART, Marian, PEGASUS and LED's decoder have the same parts under the same names, with norms after each part
# (post) or before it (pre). A model may still differ elsewhere, so `metrist.models.seq2seq` uses this path only after
# comparing its values with the model's own.


ENCODER_LAYER = {"self_attn", "self_attn_layer_norm", "fc1", "fc2", "final_layer_norm", "activation_fn"}
DECODER_LAYER = ENCODER_LAYER | {"encoder_attn", "encoder_attn_layer_norm"}
_ATTENTION = {"q_proj", "k_proj", "v_proj", "out_proj"}
_STACK = {"embed_tokens", "embed_positions", "layers", "layernorm_embedding", "layer_norm"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """Encoded conditions, packed: condition c has `lengths[c]` rows of `states`."""

    states: Tensor
    lengths: list[int]


class VarlenEncoder:
    """The encoder over packed conditions."""

    padded = False

    def __init__(self, stack: Any, attention: Attention) -> None:
        self._stack, self._attention = stack, attention
        self._inputs = [
            _join_linear([a.q_proj, a.k_proj, a.v_proj]) for a in (layer.self_attn for layer in stack.layers)
        ]

    def encode(self, conditions: Sequence[Ids]) -> Encoded:
        lengths = [len(ids) for ids in conditions]
        states = _embed(self._stack, conditions)
        blocks = AttentionBlocks(lengths, lengths, states.device)
        pre = _is_pre_norm(self._stack)
        for layer, joined in zip(self._stack.layers, self._inputs, strict=True):
            inner = layer.self_attn_layer_norm(states) if pre else states
            states = states + _self_attention(self._attention, layer.self_attn, joined, inner, blocks, causal=False)
            states = states if pre else layer.self_attn_layer_norm(states)
            states = _feed_forward(layer, states, pre)
            if states.dtype == torch.float16:
                # As transformers does against overflow.
                limit = torch.finfo(torch.float16).max - 1000
                states = states.clamp(-limit, limit)
        return Encoded(states=self._stack.layer_norm(states) if pre else states, lengths=lengths)


@dataclass(frozen=True, slots=True, kw_only=True)
class VarlenMemory:
    """Cross-attention keys and values of all layers: (tokens, layers, 2, heads, head size)."""

    pairs: Tensor
    lengths: list[int]
    starts: NDArray[np.int64]


class VarlenDecoder:
    """The decoder over packed targets. All targets of a condition form one run of queries over its keys."""

    padded = False

    def __init__(self, stack: Any, attention: Attention) -> None:
        self._stack, self._attention = stack, attention
        self._inputs = [
            _join_linear([a.q_proj, a.k_proj, a.v_proj]) for a in (layer.self_attn for layer in stack.layers)
        ]
        cross_attentions = [layer.encoder_attn for layer in stack.layers]
        self._memory = _join_linear([part for a in cross_attentions for part in (a.k_proj, a.v_proj)])

    def make_memory(self, encoded: Encoded) -> VarlenMemory:
        """Compute the keys and values of every layer by one matrix product."""
        first = self._stack.layers[0].encoder_attn
        pairs = linear(encoded.states, *self._memory)
        shape = (len(pairs), len(self._stack.layers), 2, first.num_heads, first.head_dim)
        starts = np.concatenate([[0], np.cumsum(encoded.lengths)]).astype(np.int64)
        return VarlenMemory(pairs=pairs.view(shape), lengths=encoded.lengths, starts=starts)

    def states(self, memory: VarlenMemory, owners: Sequence[int], inputs: Sequence[Ids]) -> Tensor:
        """Return the last layer's states of all input tokens; input i belongs to condition `owners[i]`, in ascending
        order."""
        first, last = owners[0], owners[-1] + 1
        queries = [0] * (last - first)
        for owner, ids in zip(owners, inputs, strict=True):
            queries[owner - first] += len(ids)
        states = _embed(self._stack, inputs)
        lengths = [len(ids) for ids in inputs]
        within = AttentionBlocks(lengths, lengths, states.device)
        across = AttentionBlocks(queries, memory.lengths[first:last], states.device)
        pairs = memory.pairs[memory.starts[first] : memory.starts[last]]
        pre = _is_pre_norm(self._stack)
        for at, layer in enumerate(self._stack.layers):
            inner = layer.self_attn_layer_norm(states) if pre else states
            states = states + _self_attention(
                self._attention, layer.self_attn, self._inputs[at], inner, within, causal=True
            )
            states = states if pre else layer.self_attn_layer_norm(states)
            inner = layer.encoder_attn_layer_norm(states) if pre else states
            part = layer.encoder_attn
            query = part.q_proj(inner).view(len(inner), part.num_heads, part.head_dim)
            mixed = self._attention(query, pairs[:, at, 0], pairs[:, at, 1], across, False, part.scaling)
            states = states + part.out_proj(mixed.reshape(len(inner), -1))
            states = states if pre else layer.encoder_attn_layer_norm(states)
            states = _feed_forward(layer, states, pre)
        return self._stack.layer_norm(states) if pre else states


_Joined = tuple[Tensor, Tensor | None]


def _join_linear(parts: list[Any]) -> _Joined:
    """Join linear layers with the same input into one matrix. The layers keep views of it, to save memory."""
    weight = torch.cat([part.weight for part in parts])
    bias = None if parts[0].bias is None else torch.cat([part.bias for part in parts])
    rows = [len(part.weight) for part in parts]
    for part, view in zip(parts, torch.split(weight, rows), strict=True):
        part.weight.data = view
    return weight, bias


def _self_attention(
    attention: Attention, part: Any, joined: _Joined, states: Tensor, blocks: AttentionBlocks, *, causal: bool
) -> Tensor:
    projected = linear(states, *joined).view(len(states), 3, part.num_heads, part.head_dim)
    mixed = attention(projected[:, 0], projected[:, 1], projected[:, 2], blocks, causal, part.scaling)
    output: Tensor = part.out_proj(mixed.reshape(len(states), -1))
    return output


def _feed_forward(layer: Any, states: Tensor, pre: bool) -> Tensor:
    inner = layer.final_layer_norm(states) if pre else states
    states = states + layer.fc2(layer.activation_fn(layer.fc1(inner)))
    return states if pre else layer.final_layer_norm(states)


def _embed(stack: Any, texts: Sequence[Ids]) -> Tensor:
    device = stack.embed_tokens.weight.device
    ids = to_device(np.concatenate(texts), device)
    positions = to_device(np.concatenate([np.arange(len(ids)) for ids in texts]), device)
    table = stack.embed_positions.weight[getattr(stack.embed_positions, "offset", 0) :]
    # Some stacks scale the embeddings in a separate module and have no scale themselves.
    states: Tensor = stack.embed_tokens(ids) * getattr(stack, "embed_scale", 1.0) + table[positions]
    norm = getattr(stack, "layernorm_embedding", None)
    return states if norm is None else norm(states)


def _is_pre_norm(stack: Any) -> bool:
    """Only pre-norm stacks have a norm after the last layer."""
    return getattr(stack, "layer_norm", None) is not None


def has_parts(stack: Any, parts: set[str]) -> bool:
    """Whether an encoder or a decoder has exactly the supported parts, with these in each layer."""
    if not {name for name, _ in stack.named_children()} <= _STACK or not hasattr(stack, "embed_positions"):
        return False
    if not isinstance(getattr(stack.embed_positions, "weight", None), Tensor):
        return False
    layers = list(getattr(stack, "layers", ()))
    for layer in layers:
        if {name for name, _ in layer.named_children()} | {"activation_fn"} != parts:
            return False
        for attention in (getattr(layer, name) for name in ("self_attn", "encoder_attn") if name in parts):
            if {name for name, _ in attention.named_children()} != _ATTENTION:
                return False
            if not all(hasattr(attention, name) for name in ("num_heads", "head_dim", "scaling")):
                return False
    return bool(layers)
