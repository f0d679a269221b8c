"""Pairs as a sequence-to-sequence model takes them: tokens, cut where the model has no room."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrist.errors import ModelError
from metrist.models.tokenizing import Side, limit
from metrist.train.text_pairs import TextPair

if TYPE_CHECKING:
    from torch import Tensor

#: Labels that transformers leaves out of the loss.
IGNORED = -100
_CHUNK = 1_000
#: Where neither model nor tokenizer knows a limit, texts are cut here unless the user says otherwise.
_ENOUGH = 2_048


class Room(NamedTuple):
    """How many tokens a condition and a target may have."""

    condition: int
    target: int


class Cut(NamedTuple):
    """What did not fit: texts that were cut, and the tokens left out of them."""

    conditions: int
    targets: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenPairs:
    """Examples for the loop. An example counts by its target's tokens, so the loss is a mean over tokens."""

    conditions: list[NDArray[np.int32]]
    targets: list[NDArray[np.int32]]
    lengths: NDArray[np.int64]
    weights: NDArray[np.float64]
    pad: int
    cut: Cut

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def spaces(self) -> NDArray[np.int64]:
        return self.lengths

    def collate(self, chosen: NDArray[np.int64]) -> dict[str, Tensor]:
        import torch

        given = [self.conditions[number] for number in chosen]
        ids = _padded(given, self.pad)
        mask = np.arange(ids.shape[1]) < np.array([[len(one)] for one in given])
        labels = _padded([self.targets[number] for number in chosen], IGNORED)
        return {
            "input_ids": torch.from_numpy(ids),
            "attention_mask": torch.from_numpy(mask.astype(np.int64)),
            "labels": torch.from_numpy(labels),
        }


def room_of(config: Any, tokenizer: Any, max_length: int | None) -> Room:
    """As many tokens as scoring takes: a table of positions is a limit that nothing lifts, others only advise."""
    positions = getattr(config, "max_position_embeddings", None)
    tables = (
        getattr(config, "max_encoder_position_embeddings", positions),
        getattr(config, "max_decoder_position_embeddings", positions),
    )
    said = max_length or limit(tokenizer) or getattr(config, "n_positions", None)
    return Room(*(min(said or table or _ENOUGH, table or sys.maxsize) for table in tables))


def encode(tokenizer: Any, config: Any, pairs: Sequence[TextPair], max_length: int | None = None) -> TokenPairs:
    """Tokenise both sides as scoring does."""
    room = room_of(config, tokenizer, max_length)
    conditions, cut_conditions, left = _tokens(Side(tokenizer), [one for one, _ in pairs], room.condition)
    targets, cut_targets, left_too = _tokens(Side(tokenizer, target=True), [one for _, one in pairs], room.target)
    weights = np.array([len(one) for one in targets], np.float64)
    return TokenPairs(
        conditions=conditions,
        targets=targets,
        lengths=np.array([len(one) for one in conditions], np.int64) + weights.astype(np.int64),
        weights=weights,
        pad=_pad(tokenizer, config),
        cut=Cut(cut_conditions, cut_targets, left + left_too),
    )


def _tokens(side: Side, texts: Sequence[str], room: int) -> tuple[list[NDArray[np.int32]], int, int]:
    """Each text's tokens, how many texts were cut, and how many tokens were left out."""
    found: list[NDArray[np.int32]] = []
    cut = left = 0
    for start in range(0, len(texts), _CHUNK):
        for ids in side.ids(texts[start : start + _CHUNK]):
            cut, left = cut + (len(ids) > room), left + max(0, len(ids) - room)
            found.append(side.cut(ids, room).astype(np.int32))
    return found, cut, left


def _padded(rows: Sequence[NDArray[np.int32]], fill: int) -> NDArray[np.int64]:
    table = np.full((len(rows), max(map(len, rows))), fill, np.int64)
    for line, row in zip(table, rows, strict=True):
        line[: len(row)] = row
    return table


def _pad(tokenizer: Any, config: Any) -> int:
    for pad in (tokenizer.pad_token_id, getattr(config, "pad_token_id", None)):
        if pad is not None:
            return int(pad)
    raise ModelError("the base model names no padding token, in its tokenizer or config.json ('pad_token_id')")
