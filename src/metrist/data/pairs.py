"""Pairs of a good and a bad answer, which preference models learn from, and files of them."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from metrist.errors import InputError, SpecError
from metrist.io.batches import Skipped
from metrist.io.compression import uncompressed_name
from metrist.io.fields import as_name, as_number, as_optional_text
from metrist.io.row_model import RowError, format_value
from metrist.io.rows import check_own, open_source
from metrist.io.table_rows import Cells
from metrist.io.writer import atomic_write
from metrist.records import CONTEXT_FIELDS, Record

#: (label, text) of each field: the context first, the answer last.
Fields = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodBad:
    """Two answers judged by one criterion. `good` has more of what the criterion asks for, which need not be desirable:
    under a criterion of offensiveness, the more offensive text is `good`.

    `certainty` is the probability that `good` is the better one: 1 if the raters agree, 0.5 for a tie kept as a soft
    label. The good rating is the higher one, or equal in a tie. `split` is train, dev or test, or None.
    """

    criterion: str
    good: Fields
    bad: Fields
    instruction: str = ""
    item: str = ""
    split: str | None = None
    certainty: float = 1.0
    good_rating: float | None = None
    bad_rating: float | None = None
    systems: tuple[str, str] | None = None

    @property
    def contexts(self) -> tuple[str, ...]:
        """The distinct context texts of both answers."""
        return tuple(dict.fromkeys(text for side in (self.good, self.bad) for _, text in side[:-1]))

    @property
    def answers(self) -> tuple[str, str]:
        """The good answer's text and the bad one's."""
        return self.good[-1][1], self.bad[-1][1]


_DEFAULT_LABELS = {"references": "reference"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Which fields of a record are shown to the judge, and under which labels: the context's fields in order, then the
    output. A context field is `source`, `references` (the first one), `instruction`, or any other column with text.
    `labels` renames fields, including `output`."""

    context: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)

    def lay_out(self, record: Record) -> Fields | None:
        """Return the record's fields, or None if a context field has no text."""
        fields = []
        for name in self.context:
            if name == "references":
                text = record.references[0] if record.references else None
            elif name in CONTEXT_FIELDS:
                text = getattr(record, name)
            else:
                text = record.extra.get(name)
            if not isinstance(text, str) or not text:
                return None
            fields.append((self.labels.get(name, _DEFAULT_LABELS.get(name, name)), text))
        return (*fields, (self.labels.get("output", "output"), record.output))


# Files of pairs: one JSON object a line, with the labelled fields of the good answer and of the bad one.

SPLITS = ("train", "dev", "test")


def read_good_bad(path: str | os.PathLike[str], skipped: Skipped | None = None) -> list[GoodBad]:
    """Read all pairs of a file, plain or compressed. The first bad line is an error, unless `skipped` counts them."""
    source = open_source(path)
    pairs = []
    for line, row in source.read():
        try:
            pairs.append(_parse_pair(row))
        except RowError as error:
            message = f"{source.location(line)}: {error}"
            if skipped is None:
                raise InputError(message) from None
            skipped.add(message)
    if not pairs:
        raise InputError(f"{source.name}: has no pairs; expected lines with 'task', 'good' and 'bad'", code="no_data")
    return pairs


def write_good_bad(path: str | os.PathLike[str], pairs: Iterable[GoodBad]) -> None:
    """Write the pairs, numbered within each criterion; the file's suffix selects the compression."""
    numbers: Counter[str] = Counter()
    with atomic_write(path) as file:
        for pair in pairs:
            row: dict[str, Any] = {"task": pair.criterion, "pair": numbers[pair.criterion]}
            numbers[pair.criterion] += 1
            if pair.split:
                row["split"] = pair.split
            row |= {"good": [list(field) for field in pair.good], "bad": [list(field) for field in pair.bad]}
            ranks = {"good_rank": _shorten(pair.good_rating), "bad_rank": _shorten(pair.bad_rating)}
            row |= {name: rank for name, rank in ranks.items() if rank is not None}
            row |= {name: value for name in ("instruction", "item") if (value := getattr(pair, name))}
            if pair.certainty != 1:
                row["certainty"] = pair.certainty
            if pair.systems:
                row["systems"] = list(pair.systems)
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def _shorten(rating: float | None) -> float | None:
    """Write a whole number as 4, not 4.0."""
    return int(rating) if rating is not None and float(rating).is_integer() else rating


def _parse_pair(row: Any) -> GoodBad:
    if isinstance(row, RowError):
        raise row
    if not isinstance(row, dict) or type(row) is Cells:
        raise RowError("pairs are read from JSONL files only: a table's cell cannot hold labelled fields")
    missing = next((name for name in ("task", "good", "bad") if row.get(name) is None), None)
    if missing:
        raise RowError(f"{missing!r} is missing: a pair needs 'task', 'good' and 'bad'")
    return GoodBad(
        criterion=as_name("task", row["task"]),
        good=_parse_fields("good", row["good"]),
        bad=_parse_fields("bad", row["bad"]),
        instruction=as_optional_text("instruction", row.get("instruction")) or "",
        item="" if row.get("item") is None else as_name("item", row["item"]),
        split=_parse_split(row.get("split")),
        certainty=_parse_certainty(row.get("certainty")),
        good_rating=_parse_rating("good_rank", row),
        bad_rating=_parse_rating("bad_rank", row),
        systems=_parse_systems(row.get("systems")),
    )


def _parse_fields(name: str, value: Any) -> Fields:
    expected = f"{name!r} must be a list of [label, text] with the answer last"
    if not isinstance(value, list) or not value:
        raise RowError(f"{expected}, got {format_value(value)}")
    for entry in value:
        if not (isinstance(entry, list) and len(entry) == 2 and all(isinstance(part, str) for part in entry)):
            raise RowError(f"{expected}, got the field {format_value(entry)}")
    return tuple((label, text) for label, text in value)


def _parse_split(value: Any) -> str | None:
    if value is not None and value not in SPLITS:
        raise RowError(f"'split' must be train, dev or test, got {format_value(value)}")
    return value if value is None else str(value)


def _parse_certainty(value: Any) -> float:
    if value is None:
        return 1.0
    number = as_number("'certainty'", value)
    if not 0.5 <= number <= 1:
        raise RowError(
            f"'certainty' must lie between 0.5 and 1, got {format_value(value)}; below that, swap 'good' and 'bad'"
        )
    return number


def _parse_rating(name: str, row: dict[str, Any]) -> float | None:
    return None if row.get(name) is None else as_number(repr(name), row[name])


def _parse_systems(value: Any) -> tuple[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2:
        raise RowError(f"'systems' must be a list of two names, got {format_value(value)}")
    return as_name("systems", value[0]), as_name("systems", value[1])


def check_pairs_path(path: str | os.PathLike[str]) -> None:
    """Raise an error if the pairs could not be read again under this name, or would replace another file."""
    if not uncompressed_name(path).lower().endswith(".jsonl"):
        raise SpecError(
            f"cannot write pairs to {os.fspath(path)}: expected a name that ends in .jsonl or .jsonl.xz",
            code="cannot_write",
        )
    check_own(Path(path), "pairs", columns=[{"task", "good", "bad"}])
