"""The text encoder of `metrist.models.text_encoder` in torch, to train it further: the same arrays under the same
names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from metrist.models.batching import pad_rows
from metrist.models.numpy_inference import storage
from metrist.models.numpy_inference.encoder_network import HEAD, EncoderSizes
from metrist.models.numpy_inference.export import export_text_encoder
from metrist.models.reward_layout import Pooling
from metrist.models.text_encoder import EncoderReward

_ROTARY_BASE = 1000.0
#: The standard deviation of the weights of a new head.
_INITIAL_STD = 0.02


class TrainableEncoder(torch.nn.Module):
    """A stack of post-norm layers with linear heads."""

    def __init__(self, sizes: EncoderSizes, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
        super().__init__()
        self.sizes = sizes
        # Names of parameters must not have dots.
        self._names = {name: name.replace(".", "/") for name in arrays}
        for name, array in arrays.items():
            self.register_parameter(self._names[name], torch.nn.Parameter(torch.from_numpy(np.array(array))))

    @staticmethod
    def load(folder: Path, head: str, seed: int = 0) -> TrainableEncoder:
        """Load a model of metrist's own format with one of its heads, or with a random head if it has none of that
        name. Its other heads are left out: what is trained below them makes their numbers wrong."""
        config = storage.read_config(folder, storage.TEXT_ENCODER)
        sizes = EncoderSizes.from_config(config)
        stored = storage.read_arrays(folder / storage.WEIGHTS)
        names = (f"{HEAD}{head}.weight", f"{HEAD}{head}.bias")
        arrays = {name: array for name, array in stored.items() if not name.startswith(HEAD) or name in names}
        if names[0] not in arrays:
            weight = np.random.default_rng(seed).normal(0, _INITIAL_STD, (1, sizes.hidden))
            arrays |= {names[0]: weight.astype(np.float32), names[1]: np.zeros(1, np.float32)}
        return TrainableEncoder(sizes, arrays)

    def export(self, base: Path, out: Path, bits: int) -> None:
        """Write the model in metrist's own format, with the configuration and tokenizer of its base.

        Matrices that the base has in as many bits, and the table of words, keep its scales: see
        `storage.Quantized.requantize`."""
        config = storage.read_config(base, storage.TEXT_ENCODER)
        facts = {name: value for name, value in config.items() if name not in ("metrist_format", "architecture")}
        stored = storage.read_quantized(base / storage.WEIGHTS)
        rng = np.random.default_rng(0)
        arrays: dict[str, np.ndarray[Any, Any] | storage.Quantized] = {}
        for name in self._names:
            arrays[name] = array = self._array(name).detach().float().cpu().numpy()
            before = stored.get(name)
            if isinstance(before, storage.Quantized) and (name == "words.weight" or before.bits == bits):
                arrays[name] = before.requantize(array, rng)
        export_text_encoder(arrays, facts, base / storage.TOKENIZER, out, bits=bits)

    def forward(self, ids: Tensor, mask: Tensor, second: Tensor, layers: int | None = None) -> Tensor:
        """The states after so many layers (None: all), [texts, tokens, width]. Padding is on the right; `second` marks
        the tokens of the second text."""
        sizes = self.sizes
        bert = sizes.kind == "bert"
        states = functional.embedding(ids, self._array("words.weight"))
        states = states + functional.embedding(
            second if bert else torch.zeros_like(second), self._array("types.weight")
        )
        turns = None
        if bert:
            states = states + self._array("places.weight")[: ids.shape[1]]
        else:
            head = sizes.hidden // sizes.attention_heads
            speeds = _ROTARY_BASE ** (-torch.arange(0, head, 2, device=ids.device).float() / head)
            angles = torch.arange(ids.shape[1], device=ids.device).float()[:, None] * speeds
            turns = angles.cos(), angles.sin()
        states = self._normalize(states, "norm")
        allowed = mask[:, None, None, :].bool()
        texts, tokens, width = states.shape
        for number in range(layers or sizes.layers):
            name = f"blocks.{number}."
            joined = self._linear(states, f"{name}qkv").view(texts, tokens, 3, sizes.attention_heads, -1)
            query, key, value = joined.permute(2, 0, 3, 1, 4)
            if turns is not None:
                query, key = _rotate(query, turns), _rotate(key, turns)
            mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=allowed)
            mixed = mixed.transpose(1, 2).reshape(texts, tokens, width)
            states = self._normalize(states + self._linear(mixed, f"{name}out"), f"{name}norm1")
            inner = self._linear(states, f"{name}up")
            inner = functional.gelu(inner) if bert else inner * functional.silu(self._linear(states, f"{name}gate"))
            states = self._normalize(states + self._linear(inner, f"{name}down"), f"{name}norm2")
        return states

    def score_spans(self, head: str, states: Tensor, rows: Tensor, starts: Tensor, ends: Tensor) -> Tensor:
        """The first output of a head on the mean over each span of each row."""
        with torch.autocast(states.device.type, enabled=False):
            sums = functional.pad(states.float().cumsum(1), (0, 0, 1, 0))
            means = (sums[rows, ends] - sums[rows, starts]) / (ends - starts)[:, None]
            return self._linear(means, f"{HEAD}{head}")[:, 0]

    def _array(self, name: str) -> Tensor:
        return self.get_parameter(self._names[name])

    def _linear(self, states: Tensor, name: str) -> Tensor:
        bias = self._array(f"{name}.bias") if f"{name}.bias" in self._names else None
        return functional.linear(states, self._array(f"{name}.weight"), bias)

    def _normalize(self, states: Tensor, name: str) -> Tensor:
        weight, bias = self._array(f"{name}.weight"), self._array(f"{name}.bias")
        return functional.layer_norm(states, (self.sizes.hidden,), weight, bias, self.sizes.epsilon)


class TrainableReward(torch.nn.Module):
    """The preference head of a text encoder, used as a `RewardModel` is."""

    #: The prefix of the head's parameters.
    HEAD = f"encoder.{HEAD.replace('.', '/')}{EncoderReward.HEAD}/"

    def __init__(self, encoder: TrainableEncoder, pooling: Pooling) -> None:
        super().__init__()
        self.encoder = encoder
        self.pooling = pooling

    def forward(self, input_ids: Tensor, attention_mask: Tensor, starts: Tensor) -> Tensor:
        """Return the reward of each row; padding is on the right, and the answers begin at `starts`."""
        states = self.encoder(input_ids, attention_mask, torch.zeros_like(input_ids))
        ends = attention_mask.sum(1)
        zeros = torch.zeros_like(ends)
        spans = {"answer": (starts, ends), "mean": (zeros, ends), "first": (zeros, zeros + 1), "last": (ends - 1, ends)}
        rows = torch.arange(len(input_ids), device=input_ids.device)
        return self.encoder.score_spans(EncoderReward.HEAD, states, rows, *spans[self.pooling])

    def learn(self) -> None:
        self.requires_grad_(True)


def collate_sequences(sequences: Sequence[tuple[np.ndarray[Any, Any], int]]) -> tuple[Tensor, Tensor, Tensor]:
    """Ids, mask and marks of the second text of sequences, padded on the right with token 0, which is masked."""
    ids, mask = pad_rows([ids for ids, _ in sequences], 0)
    second = mask * (np.arange(mask.shape[1]) >= np.array([[first] for _, first in sequences]))
    return torch.from_numpy(ids), torch.from_numpy(mask), torch.from_numpy(second)


def _rotate(vectors: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    cosine, sine = turns
    first, second = vectors.chunk(2, -1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), -1).to(vectors.dtype)
