"""Pairs as a sequence-to-sequence model takes them: tokens, cut where the model has no room."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrist.errors import ModelError
from metrist.models.tokenization import TokenizerSide, token_limit
from metrist.train.dataset import TextPair

if TYPE_CHECKING:
    from torch import Tensor
from collections import Counter
from typing import TYPE_CHECKING

from metrist.data.pairs import GoodBad
from metrist.models.protocols import RewardScorer
from metrist.models.reward_layout import Encode, RewardInput, RewardSettings, build_rows

#: Labels that transformers leaves out of the loss.
IGNORED = -100
_CHUNK = 1_000
#: Where neither model nor tokenizer knows a limit, texts are cut here unless the user says otherwise.
_ENOUGH = 2_048


class LengthLimits(NamedTuple):
    """How many tokens a condition and a target may have."""

    condition: int
    target: int


class TokenCut(NamedTuple):
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
    cut: TokenCut

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


def length_limits(config: Any, tokenizer: Any, max_length: int | None) -> LengthLimits:
    """As many tokens as scoring takes: a table of positions is a limit that nothing lifts, others only advise."""
    positions = getattr(config, "max_position_embeddings", None)
    tables = (
        getattr(config, "max_encoder_position_embeddings", positions),
        getattr(config, "max_decoder_position_embeddings", positions),
    )
    said = max_length or token_limit(tokenizer) or getattr(config, "n_positions", None)
    return LengthLimits(*(min(said or table or _ENOUGH, table or sys.maxsize) for table in tables))


def encode_text_pairs(
    tokenizer: Any, config: Any, pairs: Sequence[TextPair], max_length: int | None = None
) -> TokenPairs:
    """Tokenise both sides as scoring does."""
    room = length_limits(config, tokenizer, max_length)
    conditions, cut_conditions, left = _tokens(TokenizerSide(tokenizer), [one for one, _ in pairs], room.condition)
    targets, cut_targets, left_too = _tokens(
        TokenizerSide(tokenizer, target=True), [one for _, one in pairs], room.target
    )
    weights = np.array([len(one) for one in targets], np.float64)
    return TokenPairs(
        conditions=conditions,
        targets=targets,
        lengths=np.array([len(one) for one in conditions], np.int64) + weights.astype(np.int64),
        weights=weights,
        pad=_pad(tokenizer, config),
        cut=TokenCut(cut_conditions, cut_targets, left + left_too),
    )


def _tokens(side: TokenizerSide, texts: Sequence[str], room: int) -> tuple[list[NDArray[np.int32]], int, int]:
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


# Good and bad answers as a reward model takes them: tokens, the two answers of a pair side by side.


Row = NDArray[np.int32]
Floats = NDArray[np.float64]


class AnswerCut(NamedTuple):
    """What did not fit: answers whose row lost tokens, and how many tokens."""

    answers: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AnswerPairs:
    """Examples for the loop: a pair is one, and all count the same. `starts` say where the good and the bad answers
    begin in their rows (2 × pairs); `shares` are what a pair counts in the figure that is a mean over criteria;
    `ratings` are what people gave, in standard units of the criterion (NaN: unknown)."""

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

    def collate(self, chosen: NDArray[np.int64]) -> dict[str, Tensor]:
        """All good answers, then all bad ones, as one table: one pass through the model covers both."""
        import torch

        from metrist.models.reward_model import pad_rows

        ids, mask = pad_rows([side[number] for side in (self.good, self.bad) for number in chosen], self.pad)
        numbers = {"certainty": self.certainty, "ratings": self.ratings.T, "shares": self.shares}
        return {
            "input_ids": torch.from_numpy(ids),
            "attention_mask": torch.from_numpy(mask),
            "starts": torch.from_numpy(self.starts[:, chosen].ravel()),
            **{name: torch.from_numpy(row[..., chosen].astype(np.float32)) for name, row in numbers.items()},
        }

    def padded_tokens(self, part: NDArray[np.int64]) -> int:
        """How many tokens a part is computed as, padding included."""
        return 2 * len(part) * max(max(len(self.good[at]), len(self.bad[at])) for at in part)


def reward_inputs(pair: GoodBad) -> tuple[RewardInput, RewardInput]:
    """A pair's good and bad answer, as a model is asked about them."""
    return RewardInput(pair.instruction, pair.good), RewardInput(pair.instruction, pair.bad)


def encode_answer_pairs(tokens: Encode, settings: RewardSettings, pad: int, pairs: Sequence[GoodBad]) -> AnswerPairs:
    """Tokenise all pairs as scoring does."""
    both = [one for pair in pairs for one in reward_inputs(pair)]
    laid = build_rows(tokens, settings.frame, settings.layout, both)
    lengths = np.array([len(row) for row in laid.ids], np.int64).reshape(-1, 2)
    return AnswerPairs(
        good=laid.ids[::2],
        bad=laid.ids[1::2],
        starts=np.array(laid.starts, np.int64).reshape(-1, 2).T,
        criteria=tuple(pair.criterion for pair in pairs),
        certainty=np.array([pair.certainty for pair in pairs], np.float64),
        ratings=standardize_ratings(pairs),
        shares=macro_shares([pair.criterion for pair in pairs]),
        lengths=lengths.sum(1),
        # Both answers stand in one table, so the shorter one is padded to the longer one.
        spaces=2 * lengths.max(1, initial=0),
        weights=np.ones(len(pairs)),
        pad=pad,
        cut=AnswerCut(sum(cut > 0 for cut in laid.cut), sum(laid.cut)),
    )


def macro_shares(criteria: Sequence[str]) -> Floats:
    """What each pair counts, so that the mean over pairs is the mean over criteria of their means."""
    counts = Counter(criteria)
    return np.array([len(criteria) / (len(counts) * counts[one]) for one in criteria], np.float64)


def standardize_ratings(pairs: Sequence[GoodBad]) -> Floats:
    """Ratings of the good and the bad answers (pair × 2): their criterion's mean becomes 0, its standard deviation 1,
    and more is what good answers have more of. NaN where there is none, or where all are the same."""
    raw = np.array([[_number(pair.good_rating), _number(pair.bad_rating)] for pair in pairs], np.float64).reshape(-1, 2)
    found = np.full_like(raw, np.nan)
    criteria = np.array([pair.criterion for pair in pairs], object)
    for name in dict.fromkeys(criteria):
        of = np.flatnonzero(criteria == name)
        known = raw[of][~np.isnan(raw[of])]
        rises = np.nansum(raw[of, 0] - raw[of, 1])
        if len(known) and known.std() > 0 and rises:
            found[of] = np.sign(rises) * (raw[of] - known.mean()) / known.std()
    return found


def _number(rating: float | None) -> float:
    return np.nan if rating is None else rating


# How well a reward model tells good answers from bad ones.


class PairScores(NamedTuple):
    """The rewards of the good and the bad answers, pair by pair."""

    good: NDArray[np.float64]
    bad: NDArray[np.float64]

    @property
    def won(self) -> NDArray[np.bool_]:
        """Whether the good answer has the higher reward; equal ones have not."""
        found: NDArray[np.bool_] = self.good > self.bad
        return found


def score_pairs(reward: RewardScorer, pairs: Sequence[GoodBad]) -> PairScores:
    """The model's rewards for both answers of each pair; answers that several pairs share are judged once."""
    values = reward.rewards([one for pair in pairs for one in reward_inputs(pair)]).values
    return PairScores(values[::2], values[1::2])


def accuracy_by_criterion(pairs: Sequence[GoodBad], scores: PairScores) -> dict[str, float]:
    """The share of pairs whose good answer has the higher reward, by criterion."""
    won: dict[str, list[bool]] = {}
    for pair, right in zip(pairs, scores.won.tolist(), strict=True):
        won.setdefault(pair.criterion, []).append(right)
    return {criterion: sum(some) / len(some) for criterion, some in won.items()}
