"""What a training was asked to learn from, read and set apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metrist.errors import InputError
from metrist.train.split import sample, shared_texts, split
from metrist.train.text_pairs import PairFile, TextPair, read_pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """Pairs to train on and to judge by. `dev_file` is None where they were set apart from the training data, of which
    `left_out` pairs were not drawn; `shared` development pairs have a text that training sees too."""

    files: tuple[PairFile, ...]
    train: tuple[TextPair, ...]
    dev: tuple[TextPair, ...] = ()
    dev_file: PairFile | None = None
    left_out: int = 0
    shared: int = 0

    def remarks(self) -> list[str]:
        """What the user should know of the data before it is trained on."""
        said = []
        for file in (*self.files, *((self.dev_file,) if self.dev_file else ())):
            said += [f"skipped: {message}" for message in file.skipped.messages]
            if file.skipped.count:
                said.append(f"{file.name}: skipped {file.skipped.count:,} bad rows in all")
            if file.repeated:
                said.append(f"{file.name}: {file.repeated:,} pairs came more than once and are taken once")
        if self.left_out:
            said.append(
                f"{len(self.train):,} pairs are drawn at random, {self.left_out:,} left out (--pairs 0 takes all)"
            )
        if self.shared:
            said.append(f"{self.shared:,} of {len(self.dev):,} development pairs share a text with the training data")
        return said


def gather(data: Sequence[Path], dev: str | None, *, count: int, seed: int, skip_bad: bool) -> Material:
    """Read the pairs; set a share of them apart for development, or read another file for it; draw at most `count` of
    the rest. Development pairs are set apart first, so that `count` does not change them."""
    files = tuple(read_pairs(path, skip_bad=skip_bad) for path in data)
    pairs: list[TextPair] = list(dict.fromkeys(pair for file in files for pair in file.pairs))
    apart: list[TextPair] = []
    dev_file = None
    share = share_of(dev)
    if share is not None:
        pairs, apart = split(pairs, share, seed)
    elif dev is not None:
        dev_file = read_pairs(dev, skip_bad=skip_bad)
        apart = list(dev_file.pairs)
    if not pairs:
        raise InputError("nothing is left to train on after the development pairs were set apart; give more pairs")
    drawn = sample(pairs, count, seed)
    return Material(
        files=files,
        train=tuple(drawn),
        dev=tuple(apart),
        dev_file=dev_file,
        left_out=len(pairs) - len(drawn),
        shared=shared_texts(drawn, apart),
    )


def share_of(dev: str | None) -> float | None:
    """The share that `dev` names; None where it names a file, or nothing."""
    try:
        share = float(dev) if dev is not None else math.nan
    except ValueError:
        return None
    if math.isnan(share):
        return None
    if not 0 < share < 1:
        raise InputError(f"--dev must be a file or a share of the pairs between 0 and 1, such as 0.05, got {dev}")
    return share


def described(file: PairFile) -> dict[str, Any]:
    """A file as cards list it."""
    return {
        "file": Path(file.name).name,
        "sha256": file.sha256,
        "rows": file.rows,
        "pairs": len(file.pairs),
        "repeated": file.repeated,
        "skipped": file.skipped.count,
    }
