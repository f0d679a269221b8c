"""What a decoder is given to predict its labels from: the labels, one place to the right."""

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
    """How the model itself shifts labels: found by trying it. Most put their start token first, some (mBART) the
    label's last token, which says the language."""
    own = getattr(model, "prepare_decoder_input_ids_from_labels", None) or getattr(model, "_shift_right", None)
    start = model.config.decoder_start_token_id
    if own is None or model.config.pad_token_id is None:
        if start is None:
            raise ModelError(f"{name}: its config.json must name a decoder_start_token_id, which a decoder begins with")
        return _beginning_with(start)
    tries = [np.array(ids, dtype=np.int64) for ids in ((5, 6, 7, 8), (9, 5, 4), (3,))]
    try:
        found = [own(torch.from_numpy(ids)[None])[0].numpy() for ids in tries]
    except (ValueError, TypeError) as fault:
        raise ModelError(f"{name}: its labels cannot be shifted ({fault})") from None
    for shift in (_beginning_with(int(found[0][0])), _last_first):
        if all(np.array_equal(shift(ids), wanted) for ids, wanted in zip(tries, found, strict=True)):
            return shift
    return _as_the_model(own)


def _beginning_with(start: int) -> Shift:
    first = np.array([start], dtype=np.int64)
    return lambda labels: np.concatenate([first, labels[:-1]])


def _as_the_model(own: Callable[[torch.Tensor], torch.Tensor]) -> Shift:
    return lambda labels: own(torch.from_numpy(labels)[None])[0].numpy().astype(np.int64)


def _last_first(labels: Ids) -> Ids:
    return np.concatenate([labels[-1:], labels[:-1]])


# Any encoder-decoder through its own modules, over padded batches.
#
# Each condition is encoded once. Its cross-attention keys and values are computed once where the model takes them from
# a cache of transformers' kind; where it does not, the encoder's states alone are shared.


class PaddedEncoder:
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
class PaddedMemory:
    """Conditions padded again, with each layer's keys and values where they are shared."""

    states: Tensor
    mask: Tensor
    layers: list[tuple[Tensor, Tensor]] = field(default_factory=list)


class PaddedDecoder:
    """The model's decoder over targets padded to their longest, up to the head's input."""

    padded = True

    def __init__(self, model: Any, device: torch.device, *, share: bool) -> None:
        self._model, self._device, self._share = model, device, share

    def remember(self, encoded: Encoded) -> PaddedMemory:
        """The states and, from one step of the decoder, what it would keep of them."""
        longest, lengths = max(encoded.lengths), encoded.lengths
        states = encoded.states.new_zeros((len(lengths), longest, encoded.states.shape[-1]))
        for row, part in zip(states, torch.split(encoded.states, lengths), strict=True):
            row[: len(part)] = part
        real = np.arange(longest)[None] < np.array(lengths)[:, None]
        mask = to_device(real.astype(np.int64), self._device)
        if not self._share:
            return PaddedMemory(states=states, mask=mask)
        step = torch.zeros((len(lengths), 1), dtype=torch.int64, device=self._device)
        kept = self._model.get_decoder()(
            input_ids=step, encoder_hidden_states=states, encoder_attention_mask=mask, use_cache=True
        ).past_key_values.cross_attention_cache
        return PaddedMemory(states=states, mask=mask, layers=[(layer.keys, layer.values) for layer in kept.layers])

    def states(self, memory: PaddedMemory, owners: Sequence[int], inputs: Sequence[Ids]) -> Tensor:
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


def _cache(memory: PaddedMemory, rows: Tensor) -> Any:
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
    return to_device(ids, device), to_device(mask.astype(np.int64), device), to_device(np.flatnonzero(mask), device)


# Which way a model is run: the fastest whose values are those of the model's own forward pass.


#: How far log-probabilities of a try may lie from the model's own, on average; two ways round differently.
_APART = {torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.05}


class Encoder(Protocol):
    """Turns conditions into states; `padded` says whether their number is bounded by the longest times their count."""

    padded: bool

    def encode(self, conditions: Sequence[Ids]) -> Encoded: ...


class Decoder(Protocol):
    """Keeps what it needs of conditions, then gives the states of targets, token after token."""

    padded: bool

    def remember(self, encoded: Encoded) -> Any: ...

    def states(self, memory: Any, owners: Sequence[int], inputs: Sequence[Ids]) -> Tensor: ...


class ScoringPath:
    """An encoder, a decoder and a head that together score targets."""

    def __init__(self, encoder: Encoder, decoder: Decoder, head: Head, shift: Shift, device: torch.device) -> None:
        self.encoder, self.decoder, self.head = encoder, decoder, head
        self._shift, self._device = shift, device

    def remember(self, conditions: Sequence[Ids]) -> Any:
        """The conditions, ready for any number of targets."""
        return self.decoder.remember(self.encoder.encode(conditions))

    def log_probs(self, memory: Any, owners: Sequence[int], labels: Sequence[Ids]) -> Tensor:
        """Log-probabilities of all labels, one after another, on the device."""
        states = self.decoder.states(memory, owners, [self._shift(ids) for ids in labels])
        return self.head.log_probs(states, to_device(np.concatenate(labels), self._device))


def choose_path(model: Any, name: str, shift: Shift, place: Placement) -> ScoringPath:
    """The first way that agrees with the model's own forward pass on a few tokens."""
    head = Head(model, place)
    wanted = _own(model, shift, place)
    faults: list[str] = []
    for make in _ways(model, place):
        try:
            path = ScoringPath(*make(), head, shift, place.device)
            found = path.log_probs(path.remember(_CONDITIONS), _OWNERS, _LABELS)
            apart = float((found.to(wanted) - wanted).abs().mean())
        except Exception as fault:
            if is_out_of_memory(fault):
                raise
            faults.append(str(fault))
            continue
        if apart <= _APART[place.dtype]:
            return path
        faults.append(f"values are {apart:.2g} apart")
    raise ModelError(f"{name} ({model.config.model_type}) computes its logits in a way of its own: {faults[-1]}")


_CONDITIONS = [np.array(ids, dtype=np.int64) for ids in ((5, 9, 4, 7, 8, 3, 2), (6, 3, 8, 2))]
_LABELS = [np.array(ids, dtype=np.int64) for ids in ((3, 7, 5, 9, 2), (8, 2), (4, 6, 2))]
_OWNERS = [0, 0, 1]


def _ways(model: Any, place: Placement) -> Iterator[Callable[[], tuple[Encoder, Decoder]]]:
    own = PaddedEncoder(model, place.device)
    if not place.spread:
        way = choose_attention(place.device, place.dtype)
        encoder, decoder = model.get_encoder(), model.get_decoder()
        if VarlenDecoder.fits(decoder):
            if VarlenEncoder.fits(encoder):
                yield lambda: (VarlenEncoder(encoder, way), VarlenDecoder(decoder, way))
            yield lambda: (own, VarlenDecoder(decoder, way))
    yield lambda: (own, PaddedDecoder(model, place.device, share=True))
    yield lambda: (own, PaddedDecoder(model, place.device, share=False))


def _own(model: Any, shift: Shift, place: Placement) -> Tensor:
    """The log-probabilities as the model's forward pass gives them, a pair at a time."""
    found = []
    for owner, labels in zip(_OWNERS, _LABELS, strict=True):
        asked = torch.from_numpy(_CONDITIONS[owner])[None].to(place.device)
        given = torch.from_numpy(shift(labels))[None].to(place.device)
        logits = model(input_ids=asked, decoder_input_ids=given, use_cache=False).logits[0].float()
        wanted = torch.from_numpy(labels).to(logits.device)[:, None]
        found.append(logits.log_softmax(-1).gather(1, wanted)[:, 0].cpu())
    return torch.cat(found)
