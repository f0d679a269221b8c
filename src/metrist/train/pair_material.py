"""Files of good and bad answers, as a training was asked to use them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from metrist import criteria
from metrist.data.leaks import leaks
from metrist.data.pairs import GoodBad, read_good_bad
from metrist.data.splits import split_pairs
from metrist.errors import InputError
from metrist.models.weights import digest_of
from metrist.train.material import share_of


@dataclass(frozen=True, slots=True, kw_only=True)
class PairMaterial:
    """Pairs to train on and to judge by. `left_alone` pairs are of other splits; `between` were left out as they share
    texts with both sides of the share that was set apart; `unasked` criteria have no instruction, as neither the file
    nor the table of criteria has one; `leaking` development pairs have a text, or almost, that training sees too."""

    train: tuple[GoodBad, ...]
    dev: tuple[GoodBad, ...]
    files: tuple[dict[str, Any], ...]
    left_alone: int
    between: int
    unasked: tuple[str, ...]
    leaking: int

    def remarks(self) -> list[str]:
        """What the user should know of the data before it is trained on."""
        said = []
        if self.left_alone:
            said.append(f"{self.left_alone:,} pairs of other splits are left alone")
        if self.between:
            said.append(f"{self.between:,} pairs share texts with both training and development and are left out")
        if self.unasked:
            said.append(f"no instruction is known for {', '.join(map(repr, self.unasked))}; the model is given none")
        if self.leaking:
            said.append(f"{self.leaking:,} of {len(self.dev):,} development pairs share a text with the training data")
        return said

    def described(self) -> dict[str, Any]:
        """What a card says of the files."""
        return {
            "files": list(self.files),
            "pairs_that_share_texts_with_both_sides": self.between,
            "development_pairs_that_share_a_text": self.leaking,
        }


def gather_pairs(data: Sequence[Path], dev: str | None, *, seed: int) -> PairMaterial:
    """Read the pairs and set some apart for development: those that the files call 'dev', those of another file, or a
    share of what is trained on, in which no text is seen in training. Pairs that the files call 'test' are left
    alone."""
    read = {path: read_good_bad(path) for path in data}
    pairs = [pair for some in read.values() for pair in some]
    train, judged = _called(pairs, None, "train"), _called(pairs, "dev")
    share, between = share_of(dev), 0
    if share is not None:
        train, judged, between = _share(train, judged, share, seed)
    elif dev is not None:
        if any(Path(dev).resolve() == path.resolve() for path in read):
            raise InputError(f"--dev {dev} is also --data: its pairs called 'dev' judge without it; leave --dev out")
        read[Path(dev)] = others = read_good_bad(dev)
        judged = _called(others, "dev") or _called(others, None)
        if not judged:
            raise InputError(f"{dev}: none of its {len(others):,} pairs is called 'dev'; give pairs to judge by")
    if not train:
        raise InputError(f"{', '.join(map(str, data))}: no pair is left to train on; all are of other splits")
    filled = with_missing_instructions([*_sided(train, "train"), *_sided(judged, "dev")])
    return PairMaterial(
        train=tuple(filled[: len(train)]),
        dev=tuple(filled[len(train) :]),
        files=tuple(_file(path, some) for path, some in read.items()),
        left_alone=sum(map(len, read.values())) - len(filled) - between,
        between=between,
        unasked=tuple(dict.fromkeys(pair.criterion for pair in filled if not pair.instruction)),
        leaking=sum(leak.elsewhere for leak in leaks(filled)) if judged else 0,
    )


def _called(pairs: Iterable[GoodBad], *splits: str | None) -> list[GoodBad]:
    return [pair for pair in pairs if pair.split in splits]


def _sided(pairs: Iterable[GoodBad], split: str) -> list[GoodBad]:
    return [replace(pair, split=split) for pair in pairs]


def _share(
    train: list[GoodBad], own: list[GoodBad], share: float, seed: int
) -> tuple[list[GoodBad], list[GoodBad], int]:
    if own:
        raise InputError(f"the data has {len(own):,} development pairs of its own; leave --dev {share} out")
    try:
        found = split_pairs(train, (1 - share, share, 0.0), seed=seed)
    except InputError as fault:
        raise InputError(
            f"no share of the {len(train):,} pairs can be set apart, as too many are joined by texts that they share; "
            "give development data of its own (--dev FILE)"
        ) from fault
    return found.side("train"), found.side("dev"), len(found.left_out)


def with_missing_instructions(pairs: Iterable[GoodBad]) -> list[GoodBad]:
    """The pairs, with their criterion's instruction where they have none and metrist knows one."""
    filled = []
    for pair in pairs:
        known = None if pair.instruction else criteria.known(pair.criterion)
        filled.append(replace(pair, instruction=known.instruction) if known else pair)
    return filled


def _file(path: Path, pairs: Sequence[GoodBad]) -> dict[str, Any]:
    counts = Counter(pair.split or "unsplit" for pair in pairs)
    sides = {name: counts[name] for name in ("train", "dev", "test", "unsplit")}
    return {"file": path.name, "sha256": digest_of(path), "pairs": len(pairs), **sides}
