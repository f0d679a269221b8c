"""Files of good and bad answers: one JSON object a line, the good answer and the bad one with their labelled fields."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable
from typing import Any

from metrist.data.good_bad import Fields, GoodBad
from metrist.errors import InputError, SpecError
from metrist.io.compression import uncompressed_name
from metrist.io.fields import as_name, as_number, as_optional_text
from metrist.io.row_model import Fault, shown
from metrist.io.rows import file_source
from metrist.io.table_rows import Cells
from metrist.io.writer import whole

SPLITS = ("train", "dev", "test")


def read_good_bad(path: str | os.PathLike[str]) -> list[GoodBad]:
    """All pairs of a file, plain or compressed; the first bad line is an error."""
    source = file_source(path)
    pairs = []
    for line, row in source.read():
        try:
            pairs.append(_pair(row))
        except Fault as fault:
            raise InputError(f"{source.place(line)}: {fault}") from None
    if not pairs:
        raise InputError(f"{source.name}: has no pairs; wanted lines with 'task', 'good' and 'bad'")
    return pairs


def write_good_bad(path: str | os.PathLike[str], pairs: Iterable[GoodBad]) -> None:
    """Write the pairs, numbered within each criterion; compressed where the file's name says so."""
    numbers: Counter[str] = Counter()
    with whole(path) as file:
        for pair in pairs:
            row = {"task": pair.criterion, "pair": numbers[pair.criterion], **_row(pair)}
            numbers[pair.criterion] += 1
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def _row(pair: GoodBad) -> dict[str, Any]:
    row: dict[str, Any] = {"split": pair.split} if pair.split else {}
    row |= {"good": [list(field) for field in pair.good], "bad": [list(field) for field in pair.bad]}
    ranks = {"good_rank": _short(pair.good_rating), "bad_rank": _short(pair.bad_rating)}
    row |= {name: rank for name, rank in ranks.items() if rank is not None}
    row |= {name: value for name in ("instruction", "item") if (value := getattr(pair, name))}
    if pair.certainty != 1:
        row["certainty"] = pair.certainty
    return row | ({"systems": list(pair.systems)} if pair.systems else {})


def _short(rating: float | None) -> float | None:
    """A rating as people write it: 4, not 4.0."""
    return int(rating) if rating is not None and float(rating).is_integer() else rating


def _pair(row: Any) -> GoodBad:
    if isinstance(row, Fault):
        raise row
    if not isinstance(row, dict) or type(row) is Cells:
        raise Fault("pairs are read from JSONL files only: a table's cell cannot hold labelled fields")
    missing = next((name for name in ("task", "good", "bad") if row.get(name) is None), None)
    if missing:
        raise Fault(f"{missing!r} is missing: a pair wants 'task', 'good' and 'bad'")
    return GoodBad(
        criterion=as_name("task", row["task"]),
        good=_fields("good", row["good"]),
        bad=_fields("bad", row["bad"]),
        instruction=as_optional_text("instruction", row.get("instruction")) or "",
        item="" if row.get("item") is None else as_name("item", row["item"]),
        split=_split(row.get("split")),
        certainty=_certainty(row.get("certainty")),
        good_rating=_rating("good_rank", row),
        bad_rating=_rating("bad_rank", row),
        systems=_systems(row.get("systems")),
    )


def _fields(name: str, value: Any) -> Fields:
    wanted = f"{name!r} must be a list of [label, text] with the answer last"
    if not isinstance(value, list) or not value:
        raise Fault(f"{wanted}, got {shown(value)}")
    for field in value:
        if not (isinstance(field, list) and len(field) == 2 and all(isinstance(part, str) for part in field)):
            raise Fault(f"{wanted}, got the field {shown(field)}")
    return tuple((label, text) for label, text in value)


def _split(value: Any) -> str | None:
    if value is not None and value not in SPLITS:
        raise Fault(f"'split' must be train, dev or test, got {shown(value)}")
    return value if value is None else str(value)


def _certainty(value: Any) -> float:
    if value is None:
        return 1.0
    number = as_number("'certainty'", value)
    if not 0.5 <= number <= 1:
        raise Fault(f"'certainty' must lie between 0.5 and 1, got {shown(value)}; below that, swap 'good' and 'bad'")
    return number


def _rating(name: str, row: dict[str, Any]) -> float | None:
    return None if row.get(name) is None else as_number(repr(name), row[name])


def _systems(value: Any) -> tuple[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2:
        raise Fault(f"'systems' must be a list of two names, got {shown(value)}")
    return as_name("systems", value[0]), as_name("systems", value[1])


def check_name(path: str | os.PathLike[str]) -> None:
    """Refuse a name under which the pairs could not be read again."""
    if not uncompressed_name(path).lower().endswith(".jsonl"):
        raise SpecError(f"cannot write pairs to {os.fspath(path)}: wanted a name that ends in .jsonl, or .jsonl.xz")
