"""Training data: pairs of texts for likelihood metrics, good and bad answers for preference metrics.

Both kinds are read from files and divided into training and development data.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from metrist import criteria
from metrist.data.build import build_pairs
from metrist.data.judgments import CHOSEN, read_judgments
from metrist.data.leaks import leaks
from metrist.data.pairs import GoodBad, Shape, read_good_bad
from metrist.data.rules import Aim, Rules
from metrist.data.splits import split_pairs
from metrist.errors import InputError, agree, format_count
from metrist.io.batches import Skipped
from metrist.io.compression import STANDARD_INPUT
from metrist.io.fields import as_text, as_texts
from metrist.io.row_model import RowError, format_value
from metrist.io.rows import RowSource, open_source
from metrist.io.table_rows import Cells, parse_cells
from metrist.models.weights import file_digest

#: (condition, target)
TextPair = tuple[str, str]

_EXPECTED_FIELDS = (
    "'text' and 'summary', 'source' and 'target', 'first' and 'second' (paraphrases), or 'source' and 'references'"
)
_SHOWN_FIELDS = 8


# ---- Pairs of texts


@dataclass(frozen=True, slots=True, kw_only=True)
class PairFile:
    """The distinct pairs of a file. `repeated` counts the duplicates; `sha256` is the hash of the file as stored."""

    name: str
    sha256: str
    rows: int
    pairs: tuple[TextPair, ...]
    repeated: int
    skipped: Skipped

    def describe(self) -> dict[str, Any]:
        """Return the file's entry in a card."""
        return {
            "file": Path(self.name).name,
            "sha256": self.sha256,
            "rows": self.rows,
            "pairs": len(self.pairs),
            "repeated": self.repeated,
            "skipped": self.skipped.count,
        }


def read_pairs(path: str | os.PathLike[str], *, skip_bad: bool = False) -> PairFile:
    """Read JSONL, CSV, TSV or Parquet, also compressed. A paraphrase gives a pair in each direction, a record one pair
    per reference. The first bad row is an error unless `skip_bad` is set; then bad rows are skipped and counted."""
    if os.fspath(path) == STANDARD_INPUT:
        raise InputError("training data must be a file, not standard input: a resumed training reads it again")
    source, skipped = open_source(path), Skipped()
    pairs: dict[TextPair, None] = {}
    rows = count = 0
    for row_pairs in _read_rows(source, skipped if skip_bad else None):
        rows, count = rows + 1, count + len(row_pairs)
        pairs.update(dict.fromkeys(row_pairs))
    if not pairs:
        raise InputError(f"{source.name}: has no pairs to learn from; expected rows with {_EXPECTED_FIELDS}")
    with open(path, "rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return PairFile(
        name=str(source.name),
        sha256=sha256,
        rows=rows,
        pairs=tuple(pairs),
        repeated=count - len(pairs),
        skipped=skipped,
    )


def _read_rows(source: RowSource, skipped: Skipped | None) -> Iterator[list[TextPair]]:
    for line, row in source.read():
        try:
            if isinstance(row, RowError):
                raise row
            yield _parse_row(row)
        except RowError as fault:
            message = f"{source.location(line)}: {fault}"
            if skipped is None:
                raise InputError(message) from None
            skipped.add(message)


def _parse_row(row: Any) -> list[TextPair]:
    if type(row) is Cells:
        row = parse_cells(row)
    if "text" in row and "summary" in row:
        return [(_get_text("text", row), _get_text("summary", row))]
    if "source" in row and "target" in row:
        return [(_get_text("source", row), _get_text("target", row))]
    if "first" in row and "second" in row:
        first, second = _get_text("first", row), _get_text("second", row)
        return [(first, second), (second, first)]
    if "source" in row and ("references" in row or "reference" in row):
        return [(_get_text("source", row), reference) for reference in _get_references(row)]
    names = ", ".join(map(format_value, list(row)[:_SHOWN_FIELDS])) + (", …" if len(row) > _SHOWN_FIELDS else "")
    raise RowError(f"has no pair of texts: expected {_EXPECTED_FIELDS}; its fields are {names or 'none'}")


def _get_references(row: dict[str, Any]) -> tuple[str, ...]:
    if row.get("references") is None:
        return (_get_text("reference", row),)
    references = as_texts("references", row["references"])
    if not references:
        raise RowError("'references' is empty: there is nothing to learn from")
    if not all(text.strip() for text in references):
        raise RowError("'references' has an empty text: training needs text on both sides")
    return references


def _get_text(field: str, row: dict[str, Any]) -> str:
    text = as_text(field, row[field])
    if not text.strip():
        raise RowError(f"{field!r} is empty: training needs text on both sides")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPairData:
    """Training and development pairs. `dev_file` is None if the development pairs were split off the training data.
    `not_drawn` counts training pairs left out of the sample; `shared` counts development pairs that have a text in
    common with the training pairs."""

    files: tuple[PairFile, ...]
    train: tuple[TextPair, ...]
    dev: tuple[TextPair, ...] = ()
    dev_file: PairFile | None = None
    not_drawn: int = 0
    shared: int = 0

    def remarks(self) -> list[str]:
        """Return what the user should know about the data before training."""
        remarks = []
        for file in (*self.files, *((self.dev_file,) if self.dev_file else ())):
            remarks += [f"skipped: {message}" for message in file.skipped.messages]
            if file.skipped.count:
                remarks.append(f"{file.name}: skipped {format_count(file.skipped.count, 'bad row')} in total")
            if file.repeated:
                remarks.append(f"{file.name}: {file.repeated:,} duplicate pairs are ignored")
        if self.not_drawn:
            remarks.append(
                f"{format_count(len(self.train), 'pair is', 'pairs are')} drawn at random, {self.not_drawn:,} "
                f"{agree(self.not_drawn, 'is', 'are')} left out (--pairs 0 uses all)"
            )
        if self.shared:
            remarks.append(
                f"{self.shared:,} of {len(self.dev):,} development pairs share a text with the training data"
            )
        return remarks


def load_text_pairs(data: Sequence[Path], dev: str | None, *, count: int, seed: int, skip_bad: bool) -> TextPairData:
    """Read the training pairs, split off a share of them for development or read it from another file, and draw at most
    `count` of the rest. The split comes first, so that `count` does not change the development pairs."""
    files = tuple(read_pairs(path, skip_bad=skip_bad) for path in data)
    pairs: list[TextPair] = list(dict.fromkeys(pair for file in files for pair in file.pairs))
    dev_pairs: list[TextPair] = []
    dev_file = None
    share = parse_share(dev)
    if share is not None:
        pairs, dev_pairs = split_text_pairs(pairs, share, seed)
    elif dev is not None:
        dev_file = read_pairs(dev, skip_bad=skip_bad)
        dev_pairs = list(dev_file.pairs)
    if not pairs:
        raise InputError("nothing is left to train on after the development split; give more pairs")
    drawn = sample_pairs(pairs, count, seed)
    return TextPairData(
        files=files,
        train=tuple(drawn),
        dev=tuple(dev_pairs),
        dev_file=dev_file,
        not_drawn=len(pairs) - len(drawn),
        shared=count_shared_texts(drawn, dev_pairs),
    )


def parse_share(dev: str | None) -> float | None:
    """Return the share that `dev` names; None if it is a file name or None."""
    try:
        share = float(dev) if dev is not None else math.nan
    except ValueError:
        return None
    if math.isnan(share):
        return None
    if not 0 < share < 1:
        raise InputError(f"`dev` must be a file or a share of the pairs between 0 and 1, such as 0.05, got {dev}")
    return share


def split_text_pairs(pairs: Sequence[TextPair], share: float, seed: int) -> tuple[list[TextPair], list[TextPair]]:
    """Split into training and development pairs, in their original order. Pairs that share a text on either side stay
    together, so no development text occurs in training; the share is reached as closely as that allows."""
    groups: dict[int, list[int]] = {}
    for number, group in enumerate(group_by_shared_texts(pairs)):
        groups.setdefault(group, []).append(number)
    members = list(groups.values())
    target = max(1, round(share * len(pairs)))
    chosen: set[int] = set()
    for at in np.random.default_rng([seed, 1]).permutation(len(members)):
        if len(chosen) + len(members[at]) <= target:
            chosen.update(members[at])
    if not chosen:
        smallest = min(map(len, members))
        raise InputError(
            f"cannot split off {target:,} of {len(pairs):,} pairs: the smallest group of pairs that share a text "
            f"has {smallest:,}; give separate development data (`dev`) or a larger share"
        )
    train = [pair for number, pair in enumerate(pairs) if number not in chosen]
    return train, [pairs[number] for number in sorted(chosen)]


def group_by_shared_texts(rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the group number of each row of texts. Rows connected by a chain of shared texts form a group
    (union-find)."""
    numbers: dict[str, int] = {}
    parent: list[int] = []

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = node = parent[parent[node]]
        return node

    for texts in rows:
        ends = []
        for text in texts:
            if text not in numbers:
                numbers[text] = len(parent)
                parent.append(len(parent))
            ends.append(root(numbers[text]))
        for end in ends:
            parent[end] = min(ends)
    return [root(numbers[texts[0]]) for texts in rows]


def count_shared_texts(pairs: Sequence[TextPair], dev: Sequence[TextPair]) -> int:
    """Count the development pairs that have a text in common with the training pairs."""
    seen = {text for pair in pairs for text in pair}
    return sum(bool(seen.intersection(pair)) for pair in dev)


def sample_pairs(pairs: Sequence[TextPair], count: int, seed: int) -> list[TextPair]:
    """Draw at most `count` pairs at random, in their original order; all of them if `count` is 0."""
    if not count or len(pairs) <= count:
        return list(pairs)
    drawn = np.random.default_rng([seed, 2]).choice(len(pairs), size=count, replace=False)
    return [pairs[number] for number in np.sort(drawn)]


# ---- Good and bad answers


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
        """Return what the user should know about the data before training."""
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
        """Return what a card says about the files."""
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
) -> PreferenceData:
    """Read the pairs, or make them from judgments (see `read_preferences`).

    Development pairs are those with the split 'dev', those of another file, or a share of the training pairs that has
    no text in common with the rest; `default_dev` is that share if there are no others. Pairs with the split 'test' are
    never used. `learned` maps criteria to the instructions that the base knows. `criterion` is that of files that name
    none.
    """
    reading: list[str] = []
    read = {path: read_preferences(path, reading, criterion) for path in data}
    pairs = [pair for file_pairs in read.values() for pair in file_pairs]
    train, dev_pairs = _select(pairs, None, "train"), _select(pairs, "dev")
    if dev is None and not dev_pairs:
        dev = default_dev
    share, straddling = parse_share(dev), 0
    if share is not None:
        if dev_pairs:
            raise InputError(f"the data already has {len(dev_pairs):,} development pairs; leave out `dev={share}`")
        train, dev_pairs, straddling = _split_off(train, share, seed)
    elif dev is not None:
        if any(Path(dev).resolve() == path.resolve() for path in read):
            raise InputError(
                f"`dev='{dev}'` is also `data`: its pairs with the split 'dev' are used anyway; leave out `dev`"
            )
        read[Path(dev)] = others = read_preferences(Path(dev), reading, criterion)
        dev_pairs = _select(others, "dev") or _select(others, None)
        if not dev_pairs:
            raise InputError(f"{dev}: none of its {len(others):,} pairs has the split 'dev'; give development pairs")
    if not train:
        raise InputError(f"{', '.join(map(str, data))}: no pair is left to train on; all belong to other splits")
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


#: The criterion of pairs from a file that names none.
_DEFAULT_CRITERION = "overall"


def read_preferences(path: Path, notes: list[str], criterion: str | None = None) -> list[GoodBad]:
    """Read a file of pairs as `metrist build pairs` writes it, or any file of ratings, preferences or choices, from
    which pairs are made as by that command's defaults. `criterion` is that of a file with a single aspect which metrist
    does not know, such as 'preference'. What was made of the file is appended to `notes`."""
    first = next((row for _, row in open_source(path).read()), None)
    if first is None or (type(first) is dict and ("good" in first or "bad" in first)):
        return read_good_bad(path)
    try:
        judgments = read_judgments([path])
    except InputError as fault:
        raise InputError(
            f"{fault}. Training reads 'prompt', 'chosen' and 'rejected', or ratings; `metrist build pairs` has options "
            "for other columns, and writes pairs to train on"
        ) from fault
    aims = [
        Aim(aspect=aspect, criterion=_choose_criterion(aspect, judgments.aspects, criterion), choice=aspect == CHOSEN)
        for aspect in judgments.aspects
    ]
    records = judgments.records.values()
    context = tuple(name for name in ("instruction", "source") if any(getattr(record, name) for record in records))
    # Ties are kept here: the training drops them or learns from them.
    pairs = build_pairs(judgments, aims, Rules(ties="soft"), Shape(context=context)).pairs
    counts = Counter(pair.criterion for pair in pairs)
    made = ", ".join(f"{count:,} pair{'' if count == 1 else 's'} of {name!r}" for name, count in counts.items())
    notes += judgments.remarks
    notes.append(f"{path}: {made}; context: {' and '.join(context) or 'none'}")
    return pairs


def _choose_criterion(aspect: str, aspects: Sequence[str], named: str | None) -> str:
    if len(aspects) > 1:
        return aspect
    return named or (aspect if criteria.known(aspect) else _DEFAULT_CRITERION)


def _select(pairs: Iterable[GoodBad], *splits: str | None) -> list[GoodBad]:
    return [pair for pair in pairs if pair.split in splits]


def _split_off(train: list[GoodBad], share: float, seed: int) -> tuple[list[GoodBad], list[GoodBad], int]:
    try:
        split = split_pairs(train, (1 - share, share, 0.0), seed=seed)
    except InputError as fault:
        raise InputError(
            f"cannot split off a share of the {len(train):,} pairs: too many are connected by shared texts; "
            "give separate development data (`dev`)"
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
