"""Pairs of texts to learn from: what a model is given, and what it should find likely then."""

from __future__ import annotations

import hashlib
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from metrist import criteria
from metrist.data.leaks import leaks
from metrist.data.pairs import GoodBad, read_good_bad
from metrist.data.splits import split_pairs
from metrist.errors import InputError
from metrist.io.compression import STANDARD_INPUT
from metrist.io.fields import as_text, as_texts
from metrist.io.reader import Skipped
from metrist.io.row_model import RowError, format_value
from metrist.io.rows import RowSource, open_source
from metrist.io.table_rows import Cells, parse_cells
from metrist.models.weights import file_digest

#: (condition, target)
TextPair = tuple[str, str]

_WANTED = (
    "'text' and 'summary', 'source' and 'target', 'first' and 'second' (paraphrases), or 'source' and 'references'"
)
_SHOWN_FIELDS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PairFile:
    """A file's pairs, equal ones once. `repeated` counts those that came again, `sha256` is of the file as it lies."""

    name: str
    sha256: str
    rows: int
    pairs: tuple[TextPair, ...]
    repeated: int
    skipped: Skipped


def read_pairs(path: str | os.PathLike[str], *, skip_bad: bool = False) -> PairFile:
    """Read JSONL, CSV, TSV or Parquet, also compressed. A paraphrase gives a pair each way, a record one per reference.

    The first bad row is an error, unless bad rows are to be skipped and counted.
    """
    if os.fspath(path) == STANDARD_INPUT:
        raise InputError("training data must be a file: a training that goes on after a stop reads it again")
    source, skipped = open_source(path), Skipped()
    pairs: dict[TextPair, None] = {}
    rows = given = 0
    for found in _each_row(source, skipped if skip_bad else None):
        rows, given = rows + 1, given + len(found)
        pairs.update(dict.fromkeys(found))
    if not pairs:
        raise InputError(f"{source.name}: has no pairs to learn from; wanted rows with {_WANTED}")
    return PairFile(
        name=str(source.name),
        sha256=_sha256(path),
        rows=rows,
        pairs=tuple(pairs),
        repeated=given - len(pairs),
        skipped=skipped,
    )


def _each_row(source: RowSource, skipped: Skipped | None) -> Iterator[list[TextPair]]:
    for line, row in source.read():
        try:
            if isinstance(row, RowError):
                raise row
            yield _pairs(row)
        except RowError as fault:
            message = f"{source.location(line)}: {fault}"
            if skipped is None:
                raise InputError(message) from None
            skipped.add(message)


def _pairs(row: Any) -> list[TextPair]:
    if type(row) is Cells:
        row = parse_cells(row)
    if "text" in row and "summary" in row:
        return [(_filled("text", row), _filled("summary", row))]
    if "source" in row and "target" in row:
        return [(_filled("source", row), _filled("target", row))]
    if "first" in row and "second" in row:
        first, second = _filled("first", row), _filled("second", row)
        return [(first, second), (second, first)]
    if "source" in row and ("references" in row or "reference" in row):
        return [(_filled("source", row), reference) for reference in _references(row)]
    names = ", ".join(map(format_value, list(row)[:_SHOWN_FIELDS])) + (", …" if len(row) > _SHOWN_FIELDS else "")
    raise RowError(f"has no pair of texts: wanted {_WANTED}; its fields are {names or 'none'}")


def _references(row: dict[str, Any]) -> tuple[str, ...]:
    if row.get("references") is None:
        return (_filled("reference", row),)
    found = as_texts("references", row["references"])
    if not found:
        raise RowError("'references' is empty: there is nothing to learn from it")
    if not all(text.strip() for text in found):
        raise RowError("'references' has an empty text: training needs text on both sides")
    return found


def _filled(field: str, row: dict[str, Any]) -> str:
    text = as_text(field, row[field])
    if not text.strip():
        raise RowError(f"{field!r} is empty: training needs text on both sides")
    return text


def _sha256(path: str | os.PathLike[str]) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# Development data set apart from training data, with equal texts on one side.


def split_text_pairs(pairs: Sequence[TextPair], share: float, seed: int) -> tuple[list[TextPair], list[TextPair]]:
    """Training and development pairs, each in the order given. Pairs that share a text, on whichever side, stay
    together, so that no development text was seen in training; the share is reached as nearly as that allows."""
    together: dict[int, list[int]] = {}
    for number, group in enumerate(_groups(pairs)):
        together.setdefault(group, []).append(number)
    members = list(together.values())
    wanted = max(1, round(share * len(pairs)))
    chosen: set[int] = set()
    for at in np.random.default_rng([seed, 1]).permutation(len(members)):
        if len(chosen) + len(members[at]) <= wanted:
            chosen.update(members[at])
    if not chosen:
        least = min(map(len, members))
        raise InputError(
            f"{wanted:,} of {len(pairs):,} pairs cannot be set apart: the smallest group of pairs that share a text "
            f"has {least:,}; give development data of its own (--dev FILE) or a larger share"
        )
    kept = [pair for number, pair in enumerate(pairs) if number not in chosen]
    return kept, [pairs[number] for number in sorted(chosen)]


def shared_texts(pairs: Sequence[TextPair], dev: Sequence[TextPair]) -> int:
    """How many development pairs have a text that training sees too."""
    seen = {text for pair in pairs for text in pair}
    return sum(bool(seen.intersection(pair)) for pair in dev)


def sample_pairs(pairs: Sequence[TextPair], count: int, seed: int) -> list[TextPair]:
    """At most so many pairs, drawn at random, in the order given; all of them for 0."""
    if not count or len(pairs) <= count:
        return list(pairs)
    drawn = np.random.default_rng([seed, 2]).choice(len(pairs), size=count, replace=False)
    return [pairs[number] for number in np.sort(drawn)]


def _groups(pairs: Sequence[TextPair]) -> list[int]:
    """For each pair, the number of its group: pairs are together if a chain of shared texts joins them."""
    numbers: dict[str, int] = {}
    parent: list[int] = []

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = node = parent[parent[node]]
        return node

    for pair in pairs:
        ends = []
        for text in pair:
            if text not in numbers:
                numbers[text] = len(parent)
                parent.append(len(parent))
            ends.append(root(numbers[text]))
        parent[max(ends)] = min(ends)
    return [root(numbers[condition]) for condition, _ in pairs]


# What a training was asked to learn from, read and set apart.


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPairData:
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


def load_text_pairs(data: Sequence[Path], dev: str | None, *, count: int, seed: int, skip_bad: bool) -> TextPairData:
    """Read the pairs; set a share of them apart for development, or read another file for it; draw at most `count` of
    the rest. Development pairs are set apart first, so that `count` does not change them."""
    files = tuple(read_pairs(path, skip_bad=skip_bad) for path in data)
    pairs: list[TextPair] = list(dict.fromkeys(pair for file in files for pair in file.pairs))
    apart: list[TextPair] = []
    dev_file = None
    share = parse_share(dev)
    if share is not None:
        pairs, apart = split_text_pairs(pairs, share, seed)
    elif dev is not None:
        dev_file = read_pairs(dev, skip_bad=skip_bad)
        apart = list(dev_file.pairs)
    if not pairs:
        raise InputError("nothing is left to train on after the development pairs were set apart; give more pairs")
    drawn = sample_pairs(pairs, count, seed)
    return TextPairData(
        files=files,
        train=tuple(drawn),
        dev=tuple(apart),
        dev_file=dev_file,
        left_out=len(pairs) - len(drawn),
        shared=shared_texts(drawn, apart),
    )


def parse_share(dev: str | None) -> float | None:
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


def describe_file(file: PairFile) -> dict[str, Any]:
    """A file as cards list it."""
    return {
        "file": Path(file.name).name,
        "sha256": file.sha256,
        "rows": file.rows,
        "pairs": len(file.pairs),
        "repeated": file.repeated,
        "skipped": file.skipped.count,
    }


# Files of good and bad answers, as a training was asked to use them.


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceData:
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


def load_preference_pairs(data: Sequence[Path], dev: str | None, *, seed: int) -> PreferenceData:
    """Read the pairs and set some apart for development: those that the files call 'dev', those of another file, or a
    share of what is trained on, in which no text is seen in training. Pairs that the files call 'test' are left
    alone."""
    read = {path: read_good_bad(path) for path in data}
    pairs = [pair for some in read.values() for pair in some]
    train, judged = _called(pairs, None, "train"), _called(pairs, "dev")
    share, between = parse_share(dev), 0
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
    filled = fill_instructions([*_sided(train, "train"), *_sided(judged, "dev")])
    return PreferenceData(
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


def fill_instructions(pairs: Iterable[GoodBad]) -> list[GoodBad]:
    """The pairs, with their criterion's instruction where they have none and metrist knows one."""
    filled = []
    for pair in pairs:
        known = None if pair.instruction else criteria.known(pair.criterion)
        filled.append(replace(pair, instruction=known.instruction) if known else pair)
    return filled


def _file(path: Path, pairs: Sequence[GoodBad]) -> dict[str, Any]:
    counts = Counter(pair.split or "unsplit" for pair in pairs)
    sides = {name: counts[name] for name in ("train", "dev", "test", "unsplit")}
    return {"file": path.name, "sha256": file_digest(path), "pairs": len(pairs), **sides}
