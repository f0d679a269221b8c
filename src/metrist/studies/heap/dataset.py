"""The pairs of a study: read once, split by the file's own split or by one that keeps a context on one side."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from metrist.data.heap import read_heap_pairs
from metrist.data.pairs import GoodBad
from metrist.data.splits import DEFAULT_SHARES, assign_sides
from metrist.data.text_overlap import Unit
from metrist.errors import InputError
from metrist.io.writer import atomic_write
from metrist.studies.heap.jobs import SplitName


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """The pairs of a file, in its order."""

    path: Path
    sha256: str
    pairs: tuple[GoodBad, ...]

    @property
    def criteria(self) -> tuple[str, ...]:
        """The criteria that there are pairs of, in the order of the file."""
        return tuple(dict.fromkeys(pair.criterion for pair in self.pairs))

    @property
    def sizes(self) -> dict[str, int]:
        """All pairs of each criterion."""
        return dict(Counter(pair.criterion for pair in self.pairs))

    def described(self) -> dict[str, Any]:
        """The file, for a card."""
        return {"name": self.path.name, "pairs": len(self.pairs), "sha256": self.sha256}


def read(path: Path) -> Material:
    """Read a file of the suite's pairs."""
    return Material(path=path, sha256=_sha256(path), pairs=tuple(read_heap_pairs(path)))


def authors(material: Material) -> list[str | None]:
    """The split that the file has."""
    for number, pair in enumerate(material.pairs, 1):
        if pair.split is None:
            raise InputError(f"{material.path}: pair {number:,} has no 'split'; --split honest makes one")
    return [pair.split for pair in material.pairs]


def honest(material: Material) -> list[str | None]:
    """A split that keeps whatever shares a text, near-duplicates too, on one side; None for the pairs that stand
    between two sides, which are used nowhere. It is the same whoever asks."""
    # Texts inside longer ones came to be looked for after the published results, which rest on this split.
    return assign_sides([Unit.from_pair(pair) for pair in material.pairs], DEFAULT_SHARES, inside=0)


def splits_file(folder: Path, name: SplitName) -> Path:
    return folder / f"split-{name}.json"


def write_split(folder: Path, name: SplitName, material: Material) -> None:
    """Note where each pair of the file belongs: near-duplicates take a while to find, and all trainings must agree."""
    path = splits_file(folder, name)
    if path.is_file() and json.loads(path.read_text(encoding="utf-8"))["sha256"] == material.sha256:
        return
    sides = authors(material) if name == "authors" else honest(material)
    with atomic_write(path) as file:
        file.write(json.dumps({"sha256": material.sha256, "split": sides}) + "\n")


def split_material(folder: Path, name: SplitName, material: Material) -> list[GoodBad]:
    """The pairs, each on its side."""
    row = json.loads(splits_file(folder, name).read_text(encoding="utf-8"))
    if row["sha256"] != material.sha256:
        raise InputError(f"{material.path} has changed since {folder} was begun; give another --out")
    return [replace(pair, split=side) for pair, side in zip(material.pairs, row["split"], strict=True)]


def side(pairs: Sequence[GoodBad], name: str, criteria: Sequence[str]) -> list[GoodBad]:
    """The pairs of one side and of these criteria."""
    wanted = set(criteria)
    return [pair for pair in pairs if pair.split == name and pair.criterion in wanted]


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
