"""Rows of published files, and the pairs that their answers make.

`metrist.io` rejects two kinds of CSV files that are read here: Mechanical Turk's exports, whose header ends with
columns that the rows lack, and CommonGen's sheets, which have no header.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import combinations, permutations
from typing import Any, TypeVar

from metrist import criteria
from metrist.data.pairs import Fields, GoodBad
from metrist.errors import InputError
from metrist.io.compression import BYTE_ORDER_MARK, decode_line, display_name, open_bytes, uncompressed_name
from metrist.io.fields import as_number, as_text
from metrist.io.row_model import RowError, describe_json_error, format_value
from metrist.io.rows import read_rows

PathLike = str | os.PathLike[str]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """A row and its location. A nested field is named by its path: `row.text("situation", "title")`. Errors name the
    file, the line and the field."""

    location: str
    values: Mapping[str, Any]

    def has(self, *path: str) -> bool:
        """Return whether the field exists and is not null."""
        return self._lookup(path) is not None

    def value(self, *path: str) -> Any:
        value = self._lookup(path)
        if value is None:
            raise self.error(f"{_join(path)!r} is missing")
        return value

    def text(self, *path: str) -> str:
        return self._convert(as_text, _join(path), self.value(*path))

    def number(self, *path: str) -> float:
        """Return a number, which may be written as text."""
        return self._convert(as_number, repr(_join(path)), self.value(*path))

    def boolean(self, *path: str) -> bool:
        """Return true or false, also written as 1 or 0, yes or no."""
        number = self.number(*path)
        if number not in (0, 1):
            raise self.error(f"{_join(path)!r} must be true or false, got {format_value(self.value(*path))}")
        return number == 1

    def texts(self, *path: str) -> list[str]:
        return [self._convert(as_text, _join(path), element) for element in self.elements(*path)]

    def numbers(self, *path: str) -> list[float]:
        return [self._convert(as_number, repr(_join(path)), element) for element in self.elements(*path)]

    def elements(self, *path: str) -> list[Any]:
        """Return a list that is not empty; a table's cell has it as text: [2, 1, 1]."""
        elements = value = self.value(*path)
        if isinstance(value, str):
            with suppress(ValueError, RecursionError):
                elements = json.loads(value)
        if not isinstance(elements, list) or not elements:
            raise self.error(f"{_join(path)!r} must be a list that is not empty, got {format_value(value)}")
        return elements

    def names(self, *path: str) -> tuple[str, ...]:
        """Return the names in an object."""
        value = self.value(*path)
        if not isinstance(value, dict):
            raise self.error(f"{_join(path)!r} must be an object, got {format_value(value)}")
        return tuple(value)

    def error(self, message: str) -> InputError:
        return InputError(f"{self.location}: {message}")

    def _convert(self, convert: Callable[[str, Any], T], name: str, value: Any) -> T:
        try:
            return convert(name, value)
        except RowError as error:
            raise self.error(str(error)) from None

    def _lookup(self, path: Sequence[str]) -> Any:
        value: Any = self.values
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        return value


def _join(path: Sequence[str]) -> str:
    return ".".join(path)


def read_published_rows(paths: Iterable[PathLike]) -> Iterator[PublishedRow]:
    """Read the rows of CSV, JSON and JSONL files, file after file. Cells missing at the end of a CSV row are absent."""
    for path in paths:
        if uncompressed_name(path).lower().endswith(".csv"):
            name = display_name(path)
            lines = read_cells(path)
            _, header = next(lines, (1, []))
            for line, cells in lines:
                if len(cells) > len(header):
                    raise InputError(
                        f"{name}:{line}: must have at most {len(header)} cells like the header, got {len(cells)}",
                        code="invalid_value",
                    )
                yield PublishedRow(f"{name}:{line}", dict(zip(header, cells, strict=False)))
        else:
            yield from (PublishedRow(str(location), values) for location, values in read_rows(path))


def read_cells(path: PathLike) -> Iterator[tuple[int, list[str]]]:
    """Read the number and the cells of each line of a CSV file that is not empty."""
    name = display_name(path)
    with open_bytes(path) as stream, io.TextIOWrapper(stream, encoding="utf-8-sig", newline="") as text:
        reader = csv.reader(text, strict=True)
        begin = 1
        try:
            for cells in reader:
                if any(cells):
                    yield begin, cells
                begin = reader.line_num + 1
        except (csv.Error, UnicodeDecodeError) as error:
            raise InputError(f"{name}:{begin}: not readable as CSV: {error}") from None


def read_entries(paths: Iterable[PathLike]) -> Iterator[tuple[str, PublishedRow]]:
    """Read the named entries of JSON files that hold one object; a row's location names its entry."""
    for path in paths:
        name = display_name(path)
        with open_bytes(path) as stream:
            data = stream.read().removeprefix(BYTE_ORDER_MARK)
        try:
            entries = json.loads(decode_line(data))
        except json.JSONDecodeError as error:
            raise InputError(f"{name}:{error.lineno}: {describe_json_error(error)}") from None
        except (RowError, RecursionError) as error:
            raise InputError(f"{name}: {error}") from None
        if not isinstance(entries, dict):
            raise InputError(
                f"{name}: must hold one JSON object of named entries, got {format_value(entries)}", code="invalid_value"
            )
        for entry, values in entries.items():
            if not isinstance(values, dict):
                raise InputError(
                    f"{name}: {entry!r} must be an object, got {format_value(values)}", code="invalid_value"
                )
            yield entry, PublishedRow(f"{name}: {entry!r}", values)


# Pairs of the answers to one question.


@dataclass(frozen=True, slots=True, kw_only=True)
class HeapAnswer:
    """A judged text. `rank` orders it among others; `rating` is written into the pairs, if there is one."""

    text: str
    rank: float = 0.0
    rating: float | None = None
    system: str | None = None


def rated_answer(text: str, rating: float, system: str | None = None) -> HeapAnswer:
    """Return an answer ranked by its rating."""
    return HeapAnswer(text=text, rank=rating, rating=rating, system=system)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeapQuestion:
    """What the answers of a criterion respond to: the texts of its context fields, in the criterion's order."""

    code: str
    context: tuple[str, ...]
    item: str

    def pair(self, good: HeapAnswer, bad: HeapAnswer) -> GoodBad:
        return GoodBad(
            criterion=self.code,
            good=self._fields(good.text),
            bad=self._fields(bad.text),
            item=self.item,
            good_rating=good.rating,
            bad_rating=bad.rating,
            systems=(good.system, bad.system) if good.system and bad.system else None,
        )

    def _fields(self, answer: str) -> Fields:
        return tuple(zip(_field_labels(self.code), (*self.context, answer), strict=True))


@cache
def _field_labels(code: str) -> tuple[str, ...]:
    return criteria.suite("heap").criterion(code).fields


def pair_by_winner(question: HeapQuestion, answers: Sequence[HeapAnswer]) -> Iterator[GoodBad]:
    """Yield the pairs that the first answer wins, then those that the second wins, and so on; equal ranks make none."""
    for good, bad in permutations(answers, 2):
        if good.rank > bad.rank:
            yield question.pair(good, bad)


def pair_in_order(question: HeapQuestion, answers: Sequence[HeapAnswer]) -> Iterator[GoodBad]:
    """Yield the pair of each two answers in their order; equal ranks make none."""
    for first, second in combinations(answers, 2):
        if first.rank != second.rank:
            yield question.pair(first, second) if first.rank > second.rank else question.pair(second, first)


def floor_mean(ratings: Sequence[float]) -> float:
    """Combine several ratings as HEAP does: the mean, rounded down."""
    return float(math.floor(sum(ratings) / len(ratings)))


def group_by_key(values: Iterable[T], key: Callable[[T], Hashable]) -> list[list[T]]:
    """Group values with the same key, in order of first appearance."""
    groups: dict[Hashable, list[T]] = {}
    for value in values:
        groups.setdefault(key(value), []).append(value)
    return list(groups.values())
