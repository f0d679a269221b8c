"""Transformers of BART's build run over packed tokens: every matrix product sees real tokens only.

BART, mBART, Marian, PEGASUS and LED's decoder have the same parts under the same names, with the norms after each
part (post) or before it (pre). What else a model may do is not known here, so the engine takes this path only after
its values have been compared with the model's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import linear

from metrist.models.attention import Attention, Blocks, moved
from metrist.models.tokenizing import Ids

_ENCODER_LAYER = {"self_attn", "self_attn_layer_norm", "fc1", "fc2", "final_layer_norm", "activation_fn"}
_DECODER_LAYER = _ENCODER_LAYER | {"encoder_attn", "encoder_attn_layer_norm"}
_ATTENTION = {"q_proj", "k_proj", "v_proj", "out_proj"}
_STACK = {"embed_tokens", "embed_positions", "layers", "layernorm_embedding", "layer_norm"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """Conditions after the encoder, packed: condition c has `lengths[c]` rows of `states`."""

    states: Tensor
    lengths: list[int]


class PackedEncoder:
    """The encoder, over packed conditions."""

    padded = False

    def __init__(self, stack: Any, way: Attention) -> None:
        self._stack, self._way = stack, way
        self._inputs = [_fused([a.q_proj, a.k_proj, a.v_proj]) for a in (layer.self_attn for layer in stack.layers)]

    @staticmethod
    def fits(stack: Any) -> bool:
        """Whether the encoder has just the parts that are known here."""
        return _known(stack, _ENCODER_LAYER)

    def encode(self, conditions: Sequence[Ids]) -> Encoded:
        """The conditions' states."""
        lengths = [len(ids) for ids in conditions]
        states = _embedded(self._stack, conditions)
        blocks = Blocks(lengths, lengths, states.device)
        for layer, joined in zip(self._stack.layers, self._inputs, strict=True):
            states = self._layer(layer, joined, states, blocks)
        return Encoded(states=_last(self._stack, states), lengths=lengths)

    def _layer(self, layer: Any, joined: _Joined, states: Tensor, blocks: Blocks) -> Tensor:
        pre = _pre(self._stack)
        inner = layer.self_attn_layer_norm(states) if pre else states
        states = states + _attended(self._way, layer.self_attn, joined, inner, blocks, causal=False)
        states = states if pre else layer.self_attn_layer_norm(states)
        states = _fed_forward(layer, states, pre)
        if states.dtype == torch.float16:
            # As the models do when a sum leaves the format's range.
            most = torch.finfo(torch.float16).max - 1000
            states = states.clamp(-most, most)
        return states


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedMemory:
    """Cross-attention keys and values of all layers: (tokens, layers, 2, heads, size of a head)."""

    pairs: Tensor
    lengths: list[int]
    starts: NDArray[np.int64]


class PackedDecoder:
    """The decoder, over packed targets. All targets of a condition are one run of queries over its keys."""

    padded = False

    def __init__(self, stack: Any, way: Attention) -> None:
        self._stack, self._way = stack, way
        self._inputs = [_fused([a.q_proj, a.k_proj, a.v_proj]) for a in (layer.self_attn for layer in stack.layers)]
        crossing = [layer.encoder_attn for layer in stack.layers]
        self._memory = _fused([part for a in crossing for part in (a.k_proj, a.v_proj)])

    @staticmethod
    def fits(stack: Any) -> bool:
        """Whether the decoder has just the parts that are known here."""
        return _known(stack, _DECODER_LAYER) and all(_plain(layer.encoder_attn) for layer in stack.layers)

    def remember(self, encoded: Encoded) -> PackedMemory:
        """Keys and values of every layer, by one matrix product."""
        first = self._stack.layers[0].encoder_attn
        pairs = linear(encoded.states, *self._memory)
        shape = (len(pairs), len(self._stack.layers), 2, first.num_heads, first.head_dim)
        starts = np.concatenate([[0], np.cumsum(encoded.lengths)]).astype(np.int64)
        return PackedMemory(pairs=pairs.view(shape), lengths=encoded.lengths, starts=starts)

    def states(self, memory: PackedMemory, owners: Sequence[int], inputs: Sequence[Ids]) -> Tensor:
        """The last layer's states for all tokens of the inputs; input i belongs to condition `owners[i]`, which rises
        from input to input."""
        first, last = owners[0], owners[-1] + 1
        queries = [0] * (last - first)
        for owner, ids in zip(owners, inputs, strict=True):
            queries[owner - first] += len(ids)
        states = _embedded(self._stack, inputs)
        own = [len(ids) for ids in inputs]
        within = Blocks(own, own, states.device)
        across = Blocks(queries, memory.lengths[first:last], states.device)
        pairs = memory.pairs[memory.starts[first] : memory.starts[last]]
        for at, layer in enumerate(self._stack.layers):
            states = self._layer(layer, self._inputs[at], states, pairs[:, at], within, across)
        return _last(self._stack, states)

    def _layer(
        self, layer: Any, joined: _Joined, states: Tensor, pairs: Tensor, within: Blocks, across: Blocks
    ) -> Tensor:
        pre = _pre(self._stack)
        inner = layer.self_attn_layer_norm(states) if pre else states
        states = states + _attended(self._way, layer.self_attn, joined, inner, within, causal=True)
        states = states if pre else layer.self_attn_layer_norm(states)
        inner = layer.encoder_attn_layer_norm(states) if pre else states
        states = states + self._crossed(layer.encoder_attn, inner, pairs, across)
        states = states if pre else layer.encoder_attn_layer_norm(states)
        return _fed_forward(layer, states, pre)

    def _crossed(self, part: Any, states: Tensor, pairs: Tensor, blocks: Blocks) -> Tensor:
        query = part.q_proj(states).view(len(states), part.num_heads, part.head_dim)
        found = self._way(query, pairs[:, 0], pairs[:, 1], blocks, False, part.scaling)
        crossed: Tensor = part.out_proj(found.reshape(len(states), -1))
        return crossed


_Joined = tuple[Tensor, Tensor | None]


def _fused(parts: list[Any]) -> _Joined:
    """Weights of several maps of one input as one matrix. The parts keep views of it, so that memory does not grow."""
    weight = torch.cat([part.weight for part in parts])
    bias = None if parts[0].bias is None else torch.cat([part.bias for part in parts])
    rows = [len(part.weight) for part in parts]
    for part, view in zip(parts, torch.split(weight, rows), strict=True):
        part.weight.data = view
    return weight, bias


def _attended(way: Attention, part: Any, joined: _Joined, states: Tensor, blocks: Blocks, *, causal: bool) -> Tensor:
    joint = linear(states, *joined).view(len(states), 3, part.num_heads, part.head_dim)
    found = way(joint[:, 0], joint[:, 1], joint[:, 2], blocks, causal, part.scaling)
    attended: Tensor = part.out_proj(found.reshape(len(states), -1))
    return attended


def _fed_forward(layer: Any, states: Tensor, pre: bool) -> Tensor:
    inner = layer.final_layer_norm(states) if pre else states
    states = states + layer.fc2(layer.activation_fn(layer.fc1(inner)))
    return states if pre else layer.final_layer_norm(states)


def _embedded(stack: Any, texts: Sequence[Ids]) -> Tensor:
    device = stack.embed_tokens.weight.device
    ids = moved(np.concatenate(texts), device)
    places = moved(np.concatenate([np.arange(len(ids)) for ids in texts]), device)
    table = stack.embed_positions.weight[getattr(stack.embed_positions, "offset", 0) :]
    # Some stacks scale the embeddings in a module of their own and have no scale themselves.
    states: Tensor = stack.embed_tokens(ids) * getattr(stack, "embed_scale", 1.0) + table[places]
    norm = getattr(stack, "layernorm_embedding", None)
    return states if norm is None else norm(states)


def _last(stack: Any, states: Tensor) -> Tensor:
    return stack.layer_norm(states) if _pre(stack) else states


def _pre(stack: Any) -> bool:
    """Only stacks that norm before each part need a norm after the last."""
    return getattr(stack, "layer_norm", None) is not None


def _known(stack: Any, parts: set[str]) -> bool:
    if not {name for name, _ in stack.named_children()} <= _STACK or not hasattr(stack, "embed_positions"):
        return False
    if not isinstance(getattr(stack.embed_positions, "weight", None), Tensor):
        return False
    layers = list(getattr(stack, "layers", ()))
    return bool(layers) and all(
        {name for name, _ in layer.named_children()} | {"activation_fn"} == parts and _plain(layer.self_attn)
        for layer in layers
    )


def _plain(part: Any) -> bool:
    children = {name for name, _ in part.named_children()}
    return children == _ATTENTION and all(hasattr(part, name) for name in ("num_heads", "head_dim", "scaling"))
