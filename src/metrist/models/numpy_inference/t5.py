"""T5 in numpy: encoder, decoder, and the log-probability of every target token. float32 throughout.

Texts lie one behind the other as rows of one matrix, so that the large products are few and large whatever the texts'
lengths, and nothing is padded. Only attention goes text by text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrist.models.numpy_inference.quantization import Floats

Ids = NDArray[np.int64]
#: Rows that go through the vocabulary at a time: their logits stay in the processor's cache, more or less.
_HEAD_ROWS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes of a T5, under the names that its own configuration uses."""

    d_model: int
    d_kv: int
    d_ff: int
    num_layers: int
    num_decoder_layers: int
    num_heads: int
    vocab_size: int
    relative_attention_num_buckets: int
    relative_attention_max_distance: int
    layer_norm_epsilon: float
    decoder_start_token_id: int

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Sizes:
        """The sizes in a configuration; a missing one is a KeyError that names it."""
        return cls(**{name: config[name] for name in cls.__dataclass_fields__})


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    """One layer's matrices, those with the same input joined into one. An encoder's layer has no `cross` ones."""

    self_norm: Floats
    self_in: Floats
    self_out: Floats
    feed_norm: Floats
    feed_in: Floats
    feed_out: Floats
    cross_norm: Floats | None = None
    cross_query: Floats | None = None
    cross_memory: Floats | None = None
    cross_out: Floats | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """What the decoder sees of encoded conditions: keys and values of each layer, and where each condition lies."""

    layers: list[tuple[Floats, Floats]]
    starts: Ids


class T5:
    """The model. Conditions are given as rows of ids, targets with the number of their condition."""

    def __init__(self, arrays: Mapping[str, Floats], sizes: Sizes) -> None:
        self.sizes = sizes
        self._embeddings = arrays["shared.weight"]
        self._head = arrays["lm_head.weight"]
        self._ends = [arrays[f"{side}.final_layer_norm.weight"] for side in ("encoder", "decoder")]
        bias = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        self._biases = [arrays[f"{side}.{bias}"] for side in ("encoder", "decoder")]
        self._encoder = [_encoder_layer(arrays, n) for n in range(sizes.num_layers)]
        self._decoder = [_decoder_layer(arrays, n) for n in range(sizes.num_decoder_layers)]

    def encode(self, conditions: Sequence[Ids]) -> Memory:
        """Each condition through the encoder once, and its keys and values for every layer of the decoder."""
        starts = _starts(conditions)
        states = self._embeddings[np.concatenate(conditions)]
        longest = max(map(len, conditions))
        bias = _by_position(self._biases[0], longest, self._bucket(longest, both_ways=True))
        for layer in self._encoder:
            states += self._self_attention(layer, states, starts, bias)
            states += self._feed_forward(layer, states)
        states = self._norm(states, self._ends[0])
        return Memory([self._memory(layer, states) for layer in self._decoder], starts)

    def log_probs(self, memory: Memory, targets: Sequence[Ids], conditions: Sequence[int]) -> list[Floats]:
        """The log-probability of each token of each target. `conditions` says which condition of the memory a target
        has, in rising order, so that targets of one condition meet it in one product."""
        starts = _starts(targets)
        states = self._embeddings[np.concatenate([self._shifted(target) for target in targets])]
        longest = max(map(len, targets))
        bias = _by_position(self._biases[1], longest, self._bucket(longest, both_ways=False))
        bias = np.where(np.tri(longest, dtype=bool), bias, np.float32(-np.inf))
        shared = _runs(conditions, starts)
        for number, layer in enumerate(self._decoder):
            states += self._self_attention(layer, states, starts, bias)
            states += self._cross_attention(layer, states, shared, memory, number)
            states += self._feed_forward(layer, states)
        found = self._through_head(self._norm(states, self._ends[1]), np.concatenate(targets))
        return [found[starts[n] : starts[n + 1]] for n in range(len(targets))]

    def _shifted(self, target: Ids) -> Ids:
        return np.concatenate([[self.sizes.decoder_start_token_id], target[:-1]])

    def _norm(self, states: Floats, weight: Floats) -> Floats:
        square = np.einsum("ij,ij->i", states, states)[:, None] / np.float32(states.shape[1])
        scaled: Floats = states * (1 / np.sqrt(square + np.float32(self.sizes.layer_norm_epsilon)))
        scaled *= weight
        return scaled

    def _self_attention(self, layer: _Layer, states: Floats, starts: Ids, bias: Floats) -> Floats:
        joined = self._norm(states, layer.self_norm) @ layer.self_in.T
        inner = joined.shape[1] // 3
        query, key, value = (self._by_head(joined[:, n * inner : (n + 1) * inner]) for n in range(3))
        mixed = np.empty((len(states), inner), np.float32)
        for first, last in pairwise(starts.tolist()):
            length = last - first
            weights = query[:, first:last] @ key[:, first:last].transpose(0, 2, 1)
            weights += bias[:, :length, :length]
            self._mix(weights, value[:, first:last], mixed[first:last])
        return mixed @ layer.self_out.T

    def _memory(self, layer: _Layer, states: Floats) -> tuple[Floats, Floats]:
        assert layer.cross_memory is not None
        joined = states @ layer.cross_memory.T
        inner = joined.shape[1] // 2
        return self._by_head(joined[:, :inner]), self._by_head(joined[:, inner:])

    def _cross_attention(
        self, layer: _Layer, states: Floats, shared: list[tuple[int, int, int]], memory: Memory, number: int
    ) -> Floats:
        assert layer.cross_norm is not None
        assert layer.cross_query is not None
        assert layer.cross_out is not None
        query = self._by_head(self._norm(states, layer.cross_norm) @ layer.cross_query.T)
        mixed = np.empty((len(states), layer.cross_query.shape[0]), np.float32)
        keys, values = memory.layers[number]
        for condition, first, last in shared:
            seen = slice(memory.starts[condition], memory.starts[condition + 1])
            weights = query[:, first:last] @ keys[:, seen].transpose(0, 2, 1)
            self._mix(weights, values[:, seen], mixed[first:last])
        return mixed @ layer.cross_out.T

    def _by_head(self, rows: Floats) -> Floats:
        """[rows, heads x width] as [heads, rows, width], each head's rows in one piece of memory."""
        return np.ascontiguousarray(rows.reshape(len(rows), self.sizes.num_heads, -1).transpose(1, 0, 2))

    def _mix(self, weights: Floats, values: Floats, mixed: Floats) -> None:
        """The values, weighed by the softmax of the weights (overwritten), into the rows of `mixed`."""
        weights -= weights.max(-1, keepdims=True)
        np.exp(weights, out=weights)
        total = weights.sum(-1, keepdims=True)
        heads = weights @ values
        heads /= total
        mixed.reshape(len(mixed), len(heads), -1)[:] = heads.transpose(1, 0, 2)

    def _feed_forward(self, layer: _Layer, states: Floats) -> Floats:
        joined = self._norm(states, layer.feed_norm) @ layer.feed_in.T
        inner = joined.shape[1] // 2
        return (_gelu(joined[:, :inner]) * joined[:, inner:]) @ layer.feed_out.T

    def _through_head(self, states: Floats, targets: Ids) -> Floats:
        found = np.empty(len(states), np.float32)
        for first in range(0, len(states), _HEAD_ROWS):
            rows = slice(first, first + _HEAD_ROWS)
            logits = states[rows] @ self._head.T
            logits -= logits.max(1, keepdims=True)
            chosen = np.take_along_axis(logits, targets[rows, None], 1)[:, 0]
            found[rows] = chosen - np.log(np.exp(logits, out=logits).sum(1))
        return found

    def _bucket(self, longest: int, *, both_ways: bool) -> Ids:
        """The bucket of each distance from -(longest - 1), far back, to longest - 1, far ahead."""
        distance = np.arange(1 - longest, longest)
        buckets = self.sizes.relative_attention_num_buckets
        ahead = np.zeros_like(distance)
        if both_ways:
            buckets //= 2
            ahead = np.where(distance > 0, buckets, 0)
            back = np.abs(distance)
        else:
            back = np.maximum(-distance, 0)
        exact = buckets // 2
        # Beyond the exact ones, buckets widen with the logarithm of the distance, in float32 as in training.
        ratio = np.log(np.maximum(back, 1).astype(np.float32) / np.float32(exact))
        wide = ratio / np.float32(np.log(self.sizes.relative_attention_max_distance / exact))
        far = exact + (wide * np.float32(buckets - exact)).astype(np.int64)
        return ahead + np.where(back < exact, back, np.minimum(far, buckets - 1))


def _encoder_layer(arrays: Mapping[str, Floats], number: int) -> _Layer:
    name = f"encoder.block.{number}.layer"
    return _Layer(*_self_parts(arrays, f"{name}.0"), *_feed_parts(arrays, f"{name}.1"))


def _decoder_layer(arrays: Mapping[str, Floats], number: int) -> _Layer:
    name = f"decoder.block.{number}.layer"
    cross = f"{name}.1.EncDecAttention"
    return _Layer(
        *_self_parts(arrays, f"{name}.0"),
        *_feed_parts(arrays, f"{name}.2"),
        cross_norm=arrays[f"{name}.1.layer_norm.weight"],
        cross_query=arrays[f"{cross}.q.weight"],
        cross_memory=np.concatenate([arrays[f"{cross}.{one}.weight"] for one in "kv"]),
        cross_out=arrays[f"{cross}.o.weight"],
    )


def _self_parts(arrays: Mapping[str, Floats], name: str) -> tuple[Floats, Floats, Floats]:
    joined = np.concatenate([arrays[f"{name}.SelfAttention.{one}.weight"] for one in "qkv"])
    return arrays[f"{name}.layer_norm.weight"], joined, arrays[f"{name}.SelfAttention.o.weight"]


def _feed_parts(arrays: Mapping[str, Floats], name: str) -> tuple[Floats, Floats, Floats]:
    joined = np.concatenate([arrays[f"{name}.DenseReluDense.{one}.weight"] for one in ("wi_0", "wi_1")])
    return arrays[f"{name}.layer_norm.weight"], joined, arrays[f"{name}.DenseReluDense.wo.weight"]


def _gelu(rows: Floats) -> Floats:
    """The approximation by tanh that T5 was trained with."""
    inner = rows * rows
    inner *= np.float32(0.044715)
    inner += 1
    inner *= rows
    inner *= np.float32(np.sqrt(2 / np.pi))
    np.tanh(inner, out=inner)
    inner += 1
    inner *= rows
    inner *= np.float32(0.5)
    return inner


def _by_position(table: Floats, longest: int, buckets: Ids) -> Floats:
    """[heads, query, key] of the bias that belongs to each pair's distance, as a view: no copy per pair."""
    by_distance = np.ascontiguousarray(table[buckets].T)
    windows = np.lib.stride_tricks.sliding_window_view(by_distance, longest, axis=1)
    # Window w begins at distance w - (longest - 1), where query longest - 1 - w has its first key.
    return windows[:, ::-1]


def _starts(texts: Sequence[Ids]) -> Ids:
    return np.cumsum([0, *map(len, texts)])


def _runs(conditions: Sequence[int], starts: Ids) -> list[tuple[int, int, int]]:
    """(condition, first row, end of its rows) for each run of targets of one condition."""
    changes = [n for n in range(len(conditions)) if n == 0 or conditions[n] != conditions[n - 1]]
    ends = [*changes[1:], len(conditions)]
    return [(conditions[n], int(starts[n]), int(starts[end])) for n, end in zip(changes, ends, strict=True)]
