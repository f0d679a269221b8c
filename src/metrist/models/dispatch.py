"""Choose how to run a sequence-to-sequence model: the fastest path whose values match its own forward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from metrist.errors import ModelError
from metrist.models.batching import is_out_of_memory
from metrist.models.devices import Placement
from metrist.models.head import Head
from metrist.models.tokenization import Ids
from metrist.models.varlen import Encoded, VarlenDecoder, VarlenEncoder, choose_attention, to_device

Shift = Callable[[Ids], Ids]


def find_label_shift(model: Any, name: str) -> Shift:
    """Return how the model shifts labels to the decoder's inputs, found by probing it. Most models put their start
    token first, some (mBART) the label's last token, which marks the language."""
    own_shift = getattr(model, "prepare_decoder_input_ids_from_labels", None) or getattr(model, "_shift_right", None)
    start = model.config.decoder_start_token_id
    if own_shift is None or model.config.pad_token_id is None:
        if start is None:
            raise ModelError(f"{name}: its config.json must set decoder_start_token_id, the decoder's first input")
        return _shift_with_start(start)
    probes = [np.array(ids, dtype=np.int64) for ids in ((5, 6, 7, 8), (9, 5, 4), (3,))]
    try:
        shifted = [own_shift(torch.from_numpy(ids)[None])[0].numpy() for ids in probes]
    except (ValueError, TypeError) as fault:
        raise ModelError(f"{name}: its labels cannot be shifted ({fault})") from None
    for shift in (_shift_with_start(int(shifted[0][0])), _shift_with_last):
        if all(np.array_equal(shift(ids), expected) for ids, expected in zip(probes, shifted, strict=True)):
            return shift
    return lambda labels: own_shift(torch.from_numpy(labels)[None])[0].numpy().astype(np.int64)


def _shift_with_start(start: int) -> Shift:
    first = np.array([start], dtype=np.int64)
    return lambda labels: np.concatenate([first, labels[:-1]])


def _shift_with_last(labels: Ids) -> Ids:
    return np.concatenate([labels[-1:], labels[:-1]])


# ---- The padded path: any encoder-decoder through its own modules
#
# Each condition is encoded once. Its cross-attention keys and values are computed once if the model reads them from a
# transformers cache; otherwise only the encoder's states are shared.


class PaddedEncoder:
    """The model's encoder over conditions padded to the longest."""

    padded = True

    def __init__(self, model: Any, device: torch.device) -> None:
        self._encoder, self._device = model.get_encoder(), device

    def encode(self, conditions: Sequence[Ids]) -> Encoded:
        """Return the conditions' states without padding."""
        ids, mask, real = _pad(conditions, self._device)
        states = self._encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        # Some encoders round the length up to their window size.
        states = states[:, : ids.shape[1]].reshape(-1, states.shape[-1])
        return Encoded(states=states[real.to(states.device)], lengths=[len(ids) for ids in conditions])


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedMemory:
    """Padded states of conditions, with each layer's keys and values if they are shared."""

    states: Tensor
    mask: Tensor
    layers: list[tuple[Tensor, Tensor]] = field(default_factory=list)


class PaddedDecoder:
    """The model's decoder over targets padded to the longest, up to the head's input."""

    padded = True

    def __init__(self, model: Any, device: torch.device, *, share: bool) -> None:
        self._model, self._device, self._share = model, device, share

    def make_memory(self, encoded: Encoded) -> PaddedMemory:
        """Pad the states; compute keys and values by one step of the decoder if they are shared."""
        longest, lengths = max(encoded.lengths), encoded.lengths
        states = encoded.states.new_zeros((len(lengths), longest, encoded.states.shape[-1]))
        for row, part in zip(states, torch.split(encoded.states, lengths), strict=True):
            row[: len(part)] = part
        real = np.arange(longest)[None] < np.array(lengths)[:, None]
        mask = to_device(real.astype(np.int64), self._device)
        if not self._share:
            return PaddedMemory(states=states, mask=mask)
        step = torch.zeros((len(lengths), 1), dtype=torch.int64, device=self._device)
        cache = self._model.get_decoder()(
            input_ids=step, encoder_hidden_states=states, encoder_attention_mask=mask, use_cache=True
        ).past_key_values.cross_attention_cache
        return PaddedMemory(states=states, mask=mask, layers=[(layer.keys, layer.values) for layer in cache.layers])

    def states(self, memory: PaddedMemory, owners: Sequence[int], inputs: Sequence[Ids]) -> Tensor:
        """Return the head's inputs for all tokens of the inputs; input i belongs to condition `owners[i]`."""
        from transformers.modeling_outputs import BaseModelOutput

        ids, _, real = _pad(inputs, self._device)
        rows = torch.tensor(owners, device=self._device)
        arguments: dict[str, Any] = {"use_cache": False}
        if memory.layers:
            arguments = {"use_cache": True, "past_key_values": _expand_cache(memory, rows)}
        # With keys and values in the cache, only the shape of the states matters.
        states: Any = memory.states[:1].expand(len(rows), -1, -1) if memory.layers else memory.states[rows]
        hidden = self._run_to_head(
            attention_mask=memory.mask[rows],
            encoder_outputs=BaseModelOutput(last_hidden_state=states),
            decoder_input_ids=ids,
            **arguments,
        )
        return hidden.reshape(-1, hidden.shape[-1])[real.to(hidden.device)]

    def _run_to_head(self, **arguments: Any) -> Tensor:
        """Return the head's input, including what the model does after its decoder, such as T5's scaling."""
        captured: list[Tensor] = []

        def shorten(_head: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            captured.append(inputs[0])
            return (inputs[0][:, :1], *inputs[1:])

        hook = self._model.get_output_embeddings().register_forward_pre_hook(shorten)
        try:
            self._model(**arguments)
        finally:
            hook.remove()
        return captured[0]


def _expand_cache(memory: PaddedMemory, rows: Tensor) -> Any:
    from transformers import DynamicCache, EncoderDecoderCache

    cross_attention = DynamicCache()
    for at, (keys, values) in enumerate(memory.layers):
        cross_attention.update(
            keys.index_select(0, rows.to(keys.device)), values.index_select(0, rows.to(keys.device)), at
        )
    return EncoderDecoderCache(DynamicCache(), cross_attention)


def _pad(texts: Sequence[Ids], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return ids and mask padded on the right, and the positions of real tokens in the flattened batch. The padding's
    id does not matter: it is masked."""
    longest = max(len(ids) for ids in texts)
    ids = np.zeros((len(texts), longest), dtype=np.int64)
    mask = np.arange(longest)[None] < np.array([len(text) for text in texts])[:, None]
    ids[mask] = np.concatenate(texts)
    return to_device(ids, device), to_device(mask.astype(np.int64), device), to_device(np.flatnonzero(mask), device)


# ---- The choice of a path

#: The largest mean difference of a path's log-probabilities from the model's own; paths round differently.
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.05}


class PathEncoder(Protocol):
    """Turns conditions into states; `padded` says whether a batch costs its longest text times its size."""

    padded: bool

    def encode(self, conditions: Sequence[Ids]) -> Encoded: ...


class PathDecoder(Protocol):
    """Stores what it needs of conditions, then computes the states of all tokens of targets."""

    padded: bool

    def make_memory(self, encoded: Encoded) -> Any: ...

    def states(self, memory: Any, owners: Sequence[int], inputs: Sequence[Ids]) -> Tensor: ...


class ScoringPath:
    """An encoder, a decoder and a head that together score targets."""

    def __init__(
        self, encoder: PathEncoder, decoder: PathDecoder, head: Head, shift: Shift, device: torch.device
    ) -> None:
        self.encoder, self.decoder, self.head = encoder, decoder, head
        self._shift, self._device = shift, device

    def encode(self, conditions: Sequence[Ids]) -> Any:
        """Encode conditions for any number of targets."""
        return self.decoder.make_memory(self.encoder.encode(conditions))

    def log_probs(self, memory: Any, owners: Sequence[int], labels: Sequence[Ids]) -> Tensor:
        """Return the log-probabilities of all labels, concatenated, on the device."""
        states = self.decoder.states(memory, owners, [self._shift(ids) for ids in labels])
        return self.head.log_probs(states, to_device(np.concatenate(labels), self._device))


def choose_path(model: Any, name: str, shift: Shift, place: Placement) -> ScoringPath:
    """Return the first path that agrees with the model's own forward pass on a few tokens."""
    head = Head(model, place)
    expected = _score_by_reference(model, shift, place)
    faults: list[str] = []
    for make in _list_paths(model, place):
        try:
            path = ScoringPath(*make(), head, shift, place.device)
            logprobs = path.log_probs(path.encode(_CONDITIONS), _OWNERS, _LABELS)
            difference = float((logprobs.to(expected) - expected).abs().mean())
        except Exception as fault:
            if is_out_of_memory(fault):
                raise
            faults.append(str(fault))
            continue
        if difference <= _TOLERANCE[place.dtype]:
            return path
        faults.append(f"log-probabilities differ by {difference:.2g}")
    raise ModelError(
        f"{name} ({model.config.model_type}) computes its logits in a way that metrist does not support: {faults[-1]}"
    )


_CONDITIONS = [np.array(ids, dtype=np.int64) for ids in ((5, 9, 4, 7, 8, 3, 2), (6, 3, 8, 2))]
_LABELS = [np.array(ids, dtype=np.int64) for ids in ((3, 7, 5, 9, 2), (8, 2), (4, 6, 2))]
_OWNERS = [0, 0, 1]


def _list_paths(model: Any, place: Placement) -> Iterator[Callable[[], tuple[PathEncoder, PathDecoder]]]:
    padded = PaddedEncoder(model, place.device)
    if not place.spread:
        attention = choose_attention(place.device, place.dtype)
        encoder, decoder = model.get_encoder(), model.get_decoder()
        if VarlenDecoder.fits(decoder):
            if VarlenEncoder.fits(encoder):
                yield lambda: (VarlenEncoder(encoder, attention), VarlenDecoder(decoder, attention))
            yield lambda: (padded, VarlenDecoder(decoder, attention))
    yield lambda: (padded, PaddedDecoder(model, place.device, share=True))
    yield lambda: (padded, PaddedDecoder(model, place.device, share=False))


def _score_by_reference(model: Any, shift: Shift, place: Placement) -> Tensor:
    """Return the log-probabilities of the model's own forward pass, one pair at a time."""
    logprobs = []
    for owner, labels in zip(_OWNERS, _LABELS, strict=True):
        condition = torch.from_numpy(_CONDITIONS[owner])[None].to(place.device)
        inputs = torch.from_numpy(shift(labels))[None].to(place.device)
        logits = model(input_ids=condition, decoder_input_ids=inputs, use_cache=False).logits[0].float()
        columns = torch.from_numpy(labels).to(logits.device)[:, None]
        logprobs.append(logits.log_softmax(-1).gather(1, columns)[:, 0].cpu())
    return torch.cat(logprobs)
