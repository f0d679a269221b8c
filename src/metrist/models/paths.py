"""Which way a model is run: the fastest whose values are those of the model's own forward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from metrist.errors import ModelError
from metrist.models.attention import attention, moved
from metrist.models.batching import out_of_memory
from metrist.models.devices import Place
from metrist.models.head import Head
from metrist.models.packed import Encoded, PackedDecoder, PackedEncoder
from metrist.models.shifting import Shift
from metrist.models.tokenizing import Ids
from metrist.models.unpacked import OwnDecoder, OwnEncoder

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


class Path:
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
        return self.head.log_probs(states, moved(np.concatenate(labels), self._device))


def choose(model: Any, name: str, shift: Shift, place: Place) -> Path:
    """The first way that agrees with the model's own forward pass on a few tokens."""
    head = Head(model, place)
    wanted = _own(model, shift, place)
    faults: list[str] = []
    for make in _ways(model, place):
        try:
            path = Path(*make(), head, shift, place.device)
            found = path.log_probs(path.remember(_CONDITIONS), _OWNERS, _LABELS)
            apart = float((found.to(wanted) - wanted).abs().mean())
        except Exception as fault:
            if out_of_memory(fault):
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


def _ways(model: Any, place: Place) -> Iterator[Callable[[], tuple[Encoder, Decoder]]]:
    own = OwnEncoder(model, place.device)
    if not place.spread:
        way = attention(place.device, place.dtype)
        encoder, decoder = model.get_encoder(), model.get_decoder()
        if PackedDecoder.fits(decoder):
            if PackedEncoder.fits(encoder):
                yield lambda: (PackedEncoder(encoder, way), PackedDecoder(decoder, way))
            yield lambda: (own, PackedDecoder(decoder, way))
    yield lambda: (own, OwnDecoder(model, place.device, share=True))
    yield lambda: (own, OwnDecoder(model, place.device, share=False))


def _own(model: Any, shift: Shift, place: Place) -> Tensor:
    """The log-probabilities as the model's forward pass gives them, a pair at a time."""
    found = []
    for owner, labels in zip(_OWNERS, _LABELS, strict=True):
        asked = torch.from_numpy(_CONDITIONS[owner])[None].to(place.device)
        given = torch.from_numpy(shift(labels))[None].to(place.device)
        logits = model(input_ids=asked, decoder_input_ids=given, use_cache=False).logits[0].float()
        wanted = torch.from_numpy(labels).to(logits.device)[:, None]
        found.append(logits.log_softmax(-1).gather(1, wanted)[:, 0].cpu())
    return torch.cat(found)
