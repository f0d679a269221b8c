"""Any encoder-decoder through its own modules, over padded batches.

Each condition is encoded once. Its cross-attention keys and values are computed once where the model takes them from
a cache of transformers' kind; where it does not, the encoder's states alone are shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from metrist.models.attention import moved
from metrist.models.packed import Encoded
from metrist.models.tokenizing import Ids


class OwnEncoder:
    """The model's encoder over conditions padded to their longest."""

    padded = True

    def __init__(self, model: Any, device: torch.device) -> None:
        self._encoder, self._device = model.get_encoder(), device

    def encode(self, conditions: Sequence[Ids]) -> Encoded:
        """The conditions' states, with the padding taken out again."""
        ids, mask, real = _padded(conditions, self._device)
        states = self._encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        # Some encoders round the length up to their window's.
        states = states[:, : ids.shape[1]].reshape(-1, states.shape[-1])
        return Encoded(states=states[real.to(states.device)], lengths=[len(one) for one in conditions])


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnMemory:
    """Conditions padded again, with each layer's keys and values where they are shared."""

    states: Tensor
    mask: Tensor
    layers: list[tuple[Tensor, Tensor]] = field(default_factory=list)


class OwnDecoder:
    """The model's decoder over targets padded to their longest, up to the head's input."""

    padded = True

    def __init__(self, model: Any, device: torch.device, *, share: bool) -> None:
        self._model, self._device, self._share = model, device, share

    def remember(self, encoded: Encoded) -> OwnMemory:
        """The states and, from one step of the decoder, what it would keep of them."""
        longest, lengths = max(encoded.lengths), encoded.lengths
        states = encoded.states.new_zeros((len(lengths), longest, encoded.states.shape[-1]))
        for row, part in zip(states, torch.split(encoded.states, lengths), strict=True):
            row[: len(part)] = part
        real = np.arange(longest)[None] < np.array(lengths)[:, None]
        mask = moved(real.astype(np.int64), self._device)
        if not self._share:
            return OwnMemory(states=states, mask=mask)
        step = torch.zeros((len(lengths), 1), dtype=torch.int64, device=self._device)
        kept = self._model.get_decoder()(
            input_ids=step, encoder_hidden_states=states, encoder_attention_mask=mask, use_cache=True
        ).past_key_values.cross_attention_cache
        return OwnMemory(states=states, mask=mask, layers=[(layer.keys, layer.values) for layer in kept.layers])

    def states(self, memory: OwnMemory, owners: Sequence[int], inputs: Sequence[Ids]) -> Tensor:
        """What the head would be given, for all real tokens of the inputs; input i belongs to `owners[i]`."""
        ids, _, real = _padded(inputs, self._device)
        rows = torch.tensor(owners, device=self._device)
        asked: dict[str, Any] = {"use_cache": False}
        if memory.layers:
            asked = {"use_cache": True, "past_key_values": _cache(memory, rows)}
        # With keys and values at hand, the states serve for their shape only.
        states = memory.states[:1].expand(len(rows), -1, -1) if memory.layers else memory.states[rows]
        found = self._before_head(
            attention_mask=memory.mask[rows],
            encoder_outputs=_outputs(states),
            decoder_input_ids=ids,
            **asked,
        )
        return found.reshape(-1, found.shape[-1])[real.to(found.device)]

    def _before_head(self, **asked: Any) -> Tensor:
        """The head's input: what the model does to it after its decoder, such as T5's scaling, is done by itself."""
        seen: list[Tensor] = []

        def shorten(_head: Any, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            seen.append(given[0])
            return (given[0][:, :1], *given[1:])

        hook = self._model.get_output_embeddings().register_forward_pre_hook(shorten)
        try:
            self._model(**asked)
        finally:
            hook.remove()
        return seen[0]


def _outputs(states: Any) -> Any:
    from transformers.modeling_outputs import BaseModelOutput

    return BaseModelOutput(last_hidden_state=states)


def _cache(memory: OwnMemory, rows: Tensor) -> Any:
    from transformers import DynamicCache, EncoderDecoderCache

    crossing = DynamicCache()
    for at, (keys, values) in enumerate(memory.layers):
        crossing.update(keys.index_select(0, rows.to(keys.device)), values.index_select(0, rows.to(keys.device)), at)
    return EncoderDecoderCache(DynamicCache(), crossing)


def _padded(texts: Sequence[Ids], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Ids and mask padded on the right, and where the real tokens lie in the flattened batch. What the padding's id is
    makes no difference: nothing looks at it."""
    longest = max(len(ids) for ids in texts)
    ids = np.zeros((len(texts), longest), dtype=np.int64)
    mask = np.arange(longest)[None] < np.array([len(one) for one in texts])[:, None]
    ids[mask] = np.concatenate(texts)
    return moved(ids, device), moved(mask.astype(np.int64), device), moved(np.flatnonzero(mask), device)
