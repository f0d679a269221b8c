"""Training examples as tensors: text pairs for sequence-to-sequence models, answer pairs for reward models."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrist.data.pairs import GoodBad
from metrist.errors import ModelError
from metrist.models.protocols import RewardScorer
from metrist.models.reward_layout import Encode, RewardInput, RewardSettings, build_rows
from metrist.models.tokenization import TokenizerSide, token_limit
from metrist.train.dataset import TextPair

if TYPE_CHECKING:
    from torch import Tensor

#: The label that transformers excludes from the loss.
IGNORED = -100
_CHUNK = 1_000
#: Texts are cut here if neither the model nor the tokenizer has a limit and the user sets none.
_DEFAULT_MAX_LENGTH = 2_048
Row = NDArray[np.int32]
Floats = NDArray[np.float64]


# ---- Text pairs, for likelihood metrics


class LengthLimits(NamedTuple):
    """The largest numbers of tokens of a condition and of a target."""

    condition: int
    target: int


class TokenCut(NamedTuple):
    """The numbers of truncated conditions and targets, and of the tokens removed from them."""

    conditions: int
    targets: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenPairs:
    """Examples for the training loop. An example's weight is the length of its target: the loss is a mean over
    tokens."""

    conditions: list[Row]
    targets: list[Row]
    lengths: NDArray[np.int64]
    weights: Floats
    pad: int
    cut: TokenCut

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def spaces(self) -> NDArray[np.int64]:
        return self.lengths

    def collate(self, indices: NDArray[np.int64]) -> dict[str, Tensor]:
        import torch

        conditions = [self.conditions[number] for number in indices]
        ids = _pad_table(conditions, self.pad)
        mask = np.arange(ids.shape[1]) < np.array([[len(condition)] for condition in conditions])
        labels = _pad_table([self.targets[number] for number in indices], IGNORED)
        return {
            "input_ids": torch.from_numpy(ids),
            "attention_mask": torch.from_numpy(mask.astype(np.int64)),
            "labels": torch.from_numpy(labels),
        }


def encode_text_pairs(
    tokenizer: Any, config: Any, pairs: Sequence[TextPair], max_length: int | None = None
) -> TokenPairs:
    """Tokenize both sides as scoring does."""
    limits = _length_limits(config, tokenizer, max_length)
    conditions, cut_conditions, removed = _encode_side(
        TokenizerSide(tokenizer), [condition for condition, _ in pairs], limits.condition
    )
    targets, cut_targets, removed_from_targets = _encode_side(
        TokenizerSide(tokenizer, target=True), [target for _, target in pairs], limits.target
    )
    weights = np.array([len(target) for target in targets], np.float64)
    return TokenPairs(
        conditions=conditions,
        targets=targets,
        lengths=np.array([len(condition) for condition in conditions], np.int64) + weights.astype(np.int64),
        weights=weights,
        pad=_find_padding_id(tokenizer, config),
        cut=TokenCut(cut_conditions, cut_targets, removed + removed_from_targets),
    )


def _length_limits(config: Any, tokenizer: Any, max_length: int | None) -> LengthLimits:
    """Return the limits that scoring uses. A position table is a hard limit; other values are recommendations."""
    positions = getattr(config, "max_position_embeddings", None)
    tables = (
        getattr(config, "max_encoder_position_embeddings", positions),
        getattr(config, "max_decoder_position_embeddings", positions),
    )
    limit = max_length or token_limit(tokenizer) or getattr(config, "n_positions", None)
    return LengthLimits(*(min(limit or table or _DEFAULT_MAX_LENGTH, table or sys.maxsize) for table in tables))


def _encode_side(side: TokenizerSide, texts: Sequence[str], limit: int) -> tuple[list[Row], int, int]:
    """Return each text's tokens, the number of truncated texts and the number of removed tokens."""
    rows: list[Row] = []
    cut = removed = 0
    for start in range(0, len(texts), _CHUNK):
        for ids in side.ids(texts[start : start + _CHUNK]):
            cut, removed = cut + (len(ids) > limit), removed + max(0, len(ids) - limit)
            rows.append(side.cut(ids, limit).astype(np.int32))
    return rows, cut, removed


def _pad_table(rows: Sequence[Row], fill: int) -> NDArray[np.int64]:
    table = np.full((len(rows), max(map(len, rows))), fill, np.int64)
    for line, row in zip(table, rows, strict=True):
        line[: len(row)] = row
    return table


def _find_padding_id(tokenizer: Any, config: Any) -> int:
    for pad in (tokenizer.pad_token_id, getattr(config, "pad_token_id", None)):
        if pad is not None:
            return int(pad)
    raise ModelError("the base model has no padding token: neither its tokenizer nor config.json sets 'pad_token_id'")


# ---- Answer pairs, for preference metrics


class AnswerCut(NamedTuple):
    """The number of answers whose row was truncated, and of the tokens removed."""

    answers: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AnswerPairs:
    """Examples for the training loop: each pair is one example of weight 1.

    `starts` are the positions at which the good and the bad answers begin in their rows (2 × pairs). `shares` are the
    weights of pairs in the development figure, a mean over criteria. `ratings` are standardized by criterion; NaN means
    unknown."""

    good: list[Row]
    bad: list[Row]
    starts: NDArray[np.int64]
    criteria: tuple[str, ...]
    certainty: Floats
    ratings: Floats
    shares: Floats
    lengths: NDArray[np.int64]
    spaces: NDArray[np.int64]
    weights: Floats
    pad: int
    cut: AnswerCut

    def __len__(self) -> int:
        return len(self.good)

    def collate(self, indices: NDArray[np.int64]) -> dict[str, Tensor]:
        """Stack all good answers and then all bad ones: one pass through the model covers both."""
        import torch

        from metrist.models.reward_model import pad_rows

        ids, mask = pad_rows([side[number] for side in (self.good, self.bad) for number in indices], self.pad)
        numbers = {"certainty": self.certainty, "ratings": self.ratings.T, "shares": self.shares}
        return {
            "input_ids": torch.from_numpy(ids),
            "attention_mask": torch.from_numpy(mask),
            "starts": torch.from_numpy(self.starts[:, indices].ravel()),
            **{name: torch.from_numpy(row[..., indices].astype(np.float32)) for name, row in numbers.items()},
        }

    def padded_tokens(self, part: NDArray[np.int64]) -> int:
        """Return the number of tokens that a part is computed as, padding included."""
        return 2 * len(part) * max(max(len(self.good[at]), len(self.bad[at])) for at in part)


def encode_answer_pairs(encode: Encode, settings: RewardSettings, pad: int, pairs: Sequence[GoodBad]) -> AnswerPairs:
    """Tokenize all pairs as scoring does."""
    inputs = [answer for pair in pairs for answer in _reward_inputs(pair)]
    rows = build_rows(encode, settings.frame, settings.layout, inputs)
    lengths = np.array([len(row) for row in rows.ids], np.int64).reshape(-1, 2)
    return AnswerPairs(
        good=rows.ids[::2],
        bad=rows.ids[1::2],
        starts=np.array(rows.starts, np.int64).reshape(-1, 2).T,
        criteria=tuple(pair.criterion for pair in pairs),
        certainty=np.array([pair.certainty for pair in pairs], np.float64),
        ratings=standardize_ratings(pairs),
        shares=macro_shares([pair.criterion for pair in pairs]),
        lengths=lengths.sum(1),
        # Both answers are in one table, so the shorter is padded to the longer.
        spaces=2 * lengths.max(1, initial=0),
        weights=np.ones(len(pairs)),
        pad=pad,
        cut=AnswerCut(sum(cut > 0 for cut in rows.cut), sum(rows.cut)),
    )


def _reward_inputs(pair: GoodBad) -> tuple[RewardInput, RewardInput]:
    return RewardInput(pair.instruction, pair.good), RewardInput(pair.instruction, pair.bad)


def macro_shares(criteria: Sequence[str]) -> Floats:
    """Return weights of pairs such that the mean over pairs is the mean over criteria of their means."""
    counts = Counter(criteria)
    return np.array([len(criteria) / (len(counts) * counts[name]) for name in criteria], np.float64)


def standardize_ratings(pairs: Sequence[GoodBad]) -> Floats:
    """Return the ratings of good and bad answers (pair × 2), standardized by criterion, with a sign such that good
    answers are rated higher. NaN if there is no rating, or if all ratings of the criterion are equal."""
    raw = np.array([[pair.good_rating, pair.bad_rating] for pair in pairs], np.float64).reshape(-1, 2)
    ratings = np.full_like(raw, np.nan)
    criteria = np.array([pair.criterion for pair in pairs], object)
    for name in dict.fromkeys(criteria):
        rows = np.flatnonzero(criteria == name)
        known = raw[rows][~np.isnan(raw[rows])]
        direction = np.nansum(raw[rows, 0] - raw[rows, 1])
        if len(known) and known.std() > 0 and direction:
            ratings[rows] = np.sign(direction) * (raw[rows] - known.mean()) / known.std()
    return ratings


# ---- Accuracy of a reward model


class PairRewards(NamedTuple):
    """The rewards of the good and the bad answers of pairs."""

    good: Floats
    bad: Floats

    @property
    def won(self) -> NDArray[np.bool_]:
        """Whether the good answer has the higher reward; a tie is a loss."""
        won: NDArray[np.bool_] = self.good > self.bad
        return won


def score_pairs(reward: RewardScorer, pairs: Sequence[GoodBad]) -> PairRewards:
    """Compute the rewards of both answers of each pair; an answer that several pairs share is scored once."""
    values = reward.rewards([answer for pair in pairs for answer in _reward_inputs(pair)]).values
    return PairRewards(values[::2], values[1::2])


def accuracy_by_criterion(pairs: Sequence[GoodBad], scores: PairRewards) -> dict[str, float]:
    """Return the share of pairs whose good answer has the higher reward, by criterion."""
    won: dict[str, list[bool]] = {}
    for pair, correct in zip(pairs, scores.won.tolist(), strict=True):
        won.setdefault(pair.criterion, []).append(correct)
    return {criterion: sum(results) / len(results) for criterion, results in won.items()}
