"""Good and bad answers as a reward model takes them: tokens, the two answers of a pair side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrist.data.pairs import GoodBad
from metrist.models.reward_layout import Encode, Judged, lay_out
from metrist.models.reward_settings import RewardSettings

if TYPE_CHECKING:
    from torch import Tensor

Row = NDArray[np.int32]
Floats = NDArray[np.float64]


class Cut(NamedTuple):
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
    cut: Cut

    def __len__(self) -> int:
        return len(self.good)

    def collate(self, chosen: NDArray[np.int64]) -> dict[str, Tensor]:
        """All good answers, then all bad ones, as one table: one pass through the model covers both."""
        import torch

        from metrist.models.reward_torch import padded

        ids, mask = padded([side[number] for side in (self.good, self.bad) for number in chosen], self.pad)
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


def judged(pair: GoodBad) -> tuple[Judged, Judged]:
    """A pair's good and bad answer, as a model is asked about them."""
    return Judged(pair.instruction, pair.good), Judged(pair.instruction, pair.bad)


def encode(tokens: Encode, settings: RewardSettings, pad: int, pairs: Sequence[GoodBad]) -> AnswerPairs:
    """Tokenise all pairs as scoring does."""
    both = [one for pair in pairs for one in judged(pair)]
    laid = lay_out(tokens, settings.frame, settings.layout, both)
    lengths = np.array([len(row) for row in laid.ids], np.int64).reshape(-1, 2)
    return AnswerPairs(
        good=laid.ids[::2],
        bad=laid.ids[1::2],
        starts=np.array(laid.starts, np.int64).reshape(-1, 2).T,
        criteria=tuple(pair.criterion for pair in pairs),
        certainty=np.array([pair.certainty for pair in pairs], np.float64),
        ratings=standard_ratings(pairs),
        shares=macro_shares([pair.criterion for pair in pairs]),
        lengths=lengths.sum(1),
        # Both answers stand in one table, so the shorter one is padded to the longer one.
        spaces=2 * lengths.max(1, initial=0),
        weights=np.ones(len(pairs)),
        pad=pad,
        cut=Cut(sum(cut > 0 for cut in laid.cut), sum(laid.cut)),
    )


def macro_shares(criteria: Sequence[str]) -> Floats:
    """What each pair counts, so that the mean over pairs is the mean over criteria of their means."""
    counts = Counter(criteria)
    return np.array([len(criteria) / (len(counts) * counts[one]) for one in criteria], np.float64)


def standard_ratings(pairs: Sequence[GoodBad]) -> Floats:
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
