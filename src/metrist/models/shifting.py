"""What a decoder is given to predict its labels from: the labels, one place to the right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from metrist.errors import ModelError
from metrist.models.tokenizing import Ids

Shift = Callable[[Ids], Ids]


def shift_of(model: Any, name: str) -> Shift:
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
