"""Good and bad answers that preference metrics learn from: read from files, divided, and as tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrist import criteria
from metrist.data.build import build_pairs
from metrist.data.judgments import CHOSEN, read_judgments
from metrist.data.leaks import leaks
from metrist.data.pairs import GoodBad, Shape, read_good_bad
from metrist.data.rules import Aim, Rules
from metrist.data.splits import parse_share, split_pairs
from metrist.errors import InputError, agree, format_count
from metrist.io.batches import Skipped
from metrist.io.rows import open_source
from metrist.models.batching import pad_rows
from metrist.models.protocols import RewardScorer
from metrist.models.reward_layout import Encode, RewardInput, RewardSettings, build_rows
from metrist.models.weights import file_digest
from metrist.train.task import Examples

if TYPE_CHECKING:
    from torch import Tensor

Row = NDArray[np.int32]
Floats = NDArray[np.float64]
#: The criterion of pairs from a file that names none.
_DEFAULT_CRITERION = "overall"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceData:
    """Training and development pairs. `other_splits` counts the pairs of splits that are not used; `straddling` those
    left out because they share texts with both sides of the development split; `leaking` the development pairs that
    have a text, or nearly the same text, in training. `no_instruction` names the criteria for which neither the file
    nor the table of criteria has an instruction. `reading` says how files of judgments were read as pairs."""

    train: tuple[GoodBad, ...]
    dev: tuple[GoodBad, ...]
    files: tuple[dict[str, Any], ...]
    other_splits: int
    straddling: int
    no_instruction: tuple[str, ...]
    leaking: int
    reading: tuple[str, ...] = ()

    def remarks(self) -> list[str]:
        remarks = list(self.reading)
        if self.other_splits:
            remarks.append(
                f"{format_count(self.other_splits, 'pair of another split is', 'pairs of other splits are')} not used"
            )
        if self.straddling:
            remarks.append(
                f"{format_count(self.straddling, 'pair shares', 'pairs share')} texts with both training "
                f"and development data and {agree(self.straddling, 'is', 'are')} left out"
            )
        if self.no_instruction:
            names = ", ".join(map(repr, self.no_instruction))
            remarks.append(f"no instruction is known for {names}; the model gets none")
        if self.leaking:
            remarks.append(
                f"{self.leaking:,} of {len(self.dev):,} development pairs share a text with the training data"
            )
        return remarks

    def describe(self) -> dict[str, Any]:
        return {
            "files": list(self.files),
            "pairs_that_share_texts_with_both_sides": self.straddling,
            "development_pairs_that_share_a_text": self.leaking,
        }


def load_preference_pairs(
    data: Sequence[Path],
    dev: str | None,
    *,
    seed: int,
    learned: Mapping[str, str] | None = None,
    default_dev: str | None = None,
    criterion: str | None = None,
    **options: Any,
) -> PreferenceData:
    """Read the pairs, or make them from judgments (see `read_preferences`).

    Development pairs are those with the split 'dev', those of another file, or a share of the training pairs that has
    no text in common with the rest; `default_dev` is that share if there are no others. Pairs with the split 'test' are
    never used. `learned` maps criteria to the instructions that the base knows. `criterion` is that of files that name
    none. `options` are those of `metrist.read_records`.
    """
    reading: list[str] = []
    read = {path: read_preferences(path, reading, criterion, **options) for path in data}
    pairs = [pair for file_pairs in read.values() for pair in file_pairs]
    train, dev_pairs = _select(pairs, None, "train"), _select(pairs, "dev")
    if dev is None and not dev_pairs:
        dev = default_dev
    share, straddling = parse_share(dev), 0
    if share is not None:
        if dev_pairs:
            raise InputError(
                f"the data already has {len(dev_pairs):,} development pairs; leave out `dev={share}`", code="conflict"
            )
        train, dev_pairs, straddling = _split_off(train, share, seed)
    elif dev is not None:
        if any(Path(dev).resolve() == path.resolve() for path in read):
            raise InputError(
                f"`dev='{dev}'` is also `data`: its pairs with the split 'dev' are used anyway; leave out `dev`",
                code="conflict",
            )
        read[Path(dev)] = others = read_preferences(Path(dev), reading, criterion, **options)
        dev_pairs = _select(others, "dev") or _select(others, None)
        if not dev_pairs:
            raise InputError(f"{dev}: none of its {len(others):,} pairs has the split 'dev'; give development pairs")
    if not train:
        raise InputError(
            f"{', '.join(map(str, data))}: no pair is left to train on; all belong to other splits",
            code="too_little_data",
        )
    sides = [*((pair, "train") for pair in train), *((pair, "dev") for pair in dev_pairs)]
    filled = fill_instructions((replace(pair, split=split) for pair, split in sides), learned)
    return PreferenceData(
        train=tuple(filled[: len(train)]),
        dev=tuple(filled[len(train) :]),
        files=tuple(_describe_file(path, file_pairs) for path, file_pairs in read.items()),
        other_splits=sum(map(len, read.values())) - len(filled) - straddling,
        straddling=straddling,
        no_instruction=tuple(dict.fromkeys(pair.criterion for pair in filled if not pair.instruction)),
        leaking=sum(leak.elsewhere for leak in leaks(filled)) if dev_pairs else 0,
        reading=tuple(reading),
    )


def read_preferences(path: Path, notes: list[str], criterion: str | None = None, **options: Any) -> list[GoodBad]:
    """Read a file of pairs as `metrist build pairs` writes it, or any file of ratings, preferences or choices, from
    which pairs are made as by that command's defaults. `criterion` is that of a file with a single aspect which metrist
    does not know, such as 'preference'. `options` are those of `metrist.read_records`. What was made of the file is
    appended to `notes`."""
    # Columns of other names and tables have ratings.
    is_plain = not any(value for name, value in options.items() if name != "skip_bad")
    first = next((row for _, row in open_source(path).read()), None) if is_plain else {}
    if first is None or (type(first) is dict and ("good" in first or "bad" in first)):
        skipped = Skipped() if options.get("skip_bad") else None
        pairs = read_good_bad(path, skipped)
        notes += skipped.describe() if skipped else []
        return pairs
    try:
        judgments = read_judgments([path], **options)
    except InputError as fault:
        if fault.code == "unknown_name":
            raise
        raise InputError(
            f"{fault}. Training reads 'prompt', 'chosen' and 'rejected', or ratings; `metrist build pairs` has options "
            "for other columns, and writes pairs to train on"
        ) from fault
    aims = []
    for aspect in judgments.aspects:
        name = aspect
        if len(judgments.aspects) == 1:
            name = criterion or (aspect if criteria.known(aspect) else _DEFAULT_CRITERION)
        aims.append(Aim(aspect=aspect, criterion=name, choice=aspect == CHOSEN))
    records = judgments.records.values()
    context = tuple(name for name in ("instruction", "source") if any(getattr(record, name) for record in records))
    # Ties are kept here: the training drops them or learns from them.
    pairs = build_pairs(judgments, aims, Rules(ties="soft"), Shape(context=context)).pairs
    counts = Counter(pair.criterion for pair in pairs)
    made = ", ".join(f"{count:,} pair{'' if count == 1 else 's'} of {name!r}" for name, count in counts.items())
    notes += judgments.remarks
    if judgments.skipped:
        notes.append(f"{path}: {format_count(judgments.skipped, 'bad row')} skipped")
    notes.append(f"{path}: {made}; context: {' and '.join(context) or 'none'}")
    return pairs


def _select(pairs: Iterable[GoodBad], *splits: str | None) -> list[GoodBad]:
    return [pair for pair in pairs if pair.split in splits]


def _split_off(train: list[GoodBad], share: float, seed: int) -> tuple[list[GoodBad], list[GoodBad], int]:
    try:
        split = split_pairs(train, (1 - share, share, 0.0), seed=seed)
    except InputError as fault:
        raise InputError(
            f"cannot split off a share of {len(train):,} pairs: too many share texts; give a file as `dev`",
            code="too_little_data",
        ) from fault
    return split.side("train"), split.side("dev"), len(split.left_out)


def fill_instructions(pairs: Iterable[GoodBad], learned: Mapping[str, str] | None = None) -> list[GoodBad]:
    """Give pairs without an instruction that of their criterion, if the base has `learned` it or metrist knows it."""
    filled = []
    for pair in pairs:
        instruction = pair.instruction or (learned or {}).get(pair.criterion, "")
        if not instruction and (known := criteria.known(pair.criterion)):
            instruction = known.instruction
        filled.append(replace(pair, instruction=instruction) if instruction != pair.instruction else pair)
    return filled


def _describe_file(path: Path, pairs: Sequence[GoodBad]) -> dict[str, Any]:
    counts = Counter(pair.split or "unsplit" for pair in pairs)
    sides = {name: counts[name] for name in ("train", "dev", "test", "unsplit")}
    return {"file": path.name, "sha256": file_digest(path), "pairs": len(pairs), **sides}


# ---- Tokens


class AnswerCut(NamedTuple):
    """The number of answers whose row was truncated, and of the tokens removed."""

    answers: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AnswerPairs(Examples):
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

    def collate(self, indices: NDArray[np.int64]) -> dict[str, Tensor]:
        """Stack all good answers and then all bad ones: one pass through the model covers both."""
        import torch

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
