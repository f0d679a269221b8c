"""CSV files as they were published: cells by line, and rows by the names of a header.

Mechanical Turk's exports end with columns for the requester's verdict that the rows lack, and CommonGen's sheets have
no header at all; the room of files refuses both, rightly for what users write themselves.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, permutations
from typing import Any, TypeVar

from metrist import criteria
from metrist.data.pairs import Fields, GoodBad
from metrist.errors import InputError
from metrist.io.compression import BYTE_ORDER_MARK, decoded, display_name, open_bytes, uncompressed_name
from metrist.io.fields import as_number, as_text
from metrist.io.json_rows import unreadable
from metrist.io.row_model import RowError, format_value
from metrist.io.rows import read_rows

PathLike = str | os.PathLike[str]


def cells(path: PathLike) -> Iterator[tuple[int, list[str]]]:
    """The cells of each line that has any, with the line's number."""
    name = display_name(path)
    with open_bytes(path) as stream, io.TextIOWrapper(stream, encoding="utf-8-sig", newline="") as text:
        reader = csv.reader(text, strict=True)
        begin = 1
        try:
            for found in reader:
                if any(found):
                    yield begin, found
                begin = reader.line_num + 1
        except (csv.Error, UnicodeDecodeError) as error:
            raise InputError(f"{name}:{begin}: not readable as CSV: {error}") from None


def table(path: PathLike) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows below the header; cells missing at a row's end are absent."""
    lines = cells(path)
    _, header = next(lines, (1, []))
    for line, found in lines:
        if len(found) > len(header):
            raise InputError(
                f"{display_name(path)}:{line}: must have at most {len(header)} cells like the header, got {len(found)}"
            )
        yield line, dict(zip(header, found, strict=False))


# One row of a published file: values by name, or an error that names the file, the line and the field.


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Row:
    """A row and its place. A field inside others is named by the way to it: `row.text("situation", "title")`."""

    place: str
    values: Mapping[str, Any]

    def has(self, *way: str) -> bool:
        """Whether the field is there and not null."""
        return self._lookup(way) is not None

    def value(self, *way: str) -> Any:
        """Whatever the field holds."""
        found = self._lookup(way)
        if found is None:
            raise self.wrong(f"{_named(way)!r} is missing")
        return found

    def text(self, *way: str) -> str:
        """A text."""
        return self._with_location(lambda: as_text(_named(way), self.value(*way)))

    def number(self, *way: str) -> float:
        """A number, also one written as text."""
        return self._with_location(lambda: as_number(repr(_named(way)), self.value(*way)))

    def truth(self, *way: str) -> bool:
        """true or false, 1 or 0, yes or no."""
        number = self.number(*way)
        if number not in (0, 1):
            raise self.wrong(f"{_named(way)!r} must be true or false, got {format_value(self.value(*way))}")
        return number == 1

    def texts(self, *way: str) -> list[str]:
        """A list of texts, one at least."""
        return self._with_location(lambda: [as_text(_named(way), one) for one in self.listed(*way)])

    def numbers(self, *way: str) -> list[float]:
        """A list of numbers, one at least."""
        return self._with_location(lambda: [as_number(repr(_named(way)), one) for one in self.listed(*way)])

    def listed(self, *way: str) -> list[Any]:
        """A list, one value at least; a table's cell holds it as text: [2, 1, 1]."""
        found = self.value(*way)
        opened = _opened(found) if isinstance(found, str) else found
        if not isinstance(opened, list) or not opened:
            raise self.wrong(f"{_named(way)!r} must be a list that is not empty, got {format_value(found)}")
        return opened

    def names(self, *way: str) -> tuple[str, ...]:
        """The names inside an object."""
        found = self.value(*way)
        if not isinstance(found, dict):
            raise self.wrong(f"{_named(way)!r} must be an object, got {format_value(found)}")
        return tuple(found)

    def wrong(self, what: str) -> InputError:
        """What is wrong with this row, and where it stands."""
        return InputError(f"{self.place}: {what}")

    def _with_location(self, check: Callable[[], T]) -> T:
        try:
            return check()
        except RowError as fault:
            raise self.wrong(str(fault)) from None

    def _lookup(self, way: Sequence[str]) -> Any:
        found: Any = self.values
        for name in way:
            found = found.get(name) if isinstance(found, Mapping) else None
        return found


def rows(paths: Iterable[PathLike]) -> Iterator[Row]:
    """The rows of CSV, JSON and JSONL files, file after file."""
    for path in paths:
        if uncompressed_name(path).lower().endswith(".csv"):
            yield from (Row(f"{display_name(path)}:{line}", values) for line, values in table(path))
        else:
            yield from (Row(str(place), values) for place, values in read_rows(path))


def entries(paths: Iterable[PathLike]) -> Iterator[tuple[str, Row]]:
    """The entries of JSON files that hold one object, with their names; a row's place names its entry."""
    for path in paths:
        name = display_name(path)
        found = _json_file(path, name)
        if not isinstance(found, dict):
            raise InputError(f"{name}: must hold one JSON object of named entries, got {format_value(found)}")
        for entry, values in found.items():
            if not isinstance(values, dict):
                raise InputError(f"{name}: {entry!r} must be an object, got {format_value(values)}")
            yield entry, Row(f"{name}: {entry!r}", values)


def _json_file(path: PathLike, name: str) -> Any:
    with open_bytes(path) as stream:
        data = stream.read().removeprefix(BYTE_ORDER_MARK)
    try:
        return json.loads(decoded(data))
    except json.JSONDecodeError as error:
        raise InputError(f"{name}:{error.lineno}: {unreadable(error)}") from None
    except (RowError, RecursionError) as error:
        raise InputError(f"{name}: {error}") from None


def _opened(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _named(way: Sequence[str]) -> str:
    return ".".join(way)


# From ratings to pairs: what two answers to the same question need in order to become a good and a bad one.


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A judged text. `rank` orders it among others; `rating` is kept in the pairs, where people gave one."""

    text: str
    rank: float = 0.0
    rating: float | None = None
    system: str | None = None


def rated(text: str, rating: float, system: str | None = None) -> Answer:
    """An answer that its rating orders."""
    return Answer(text=text, rank=rating, rating=rating, system=system)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a criterion's answers are judged in: the texts of its context fields, in the criterion's order."""

    code: str
    context: tuple[str, ...]
    item: str

    def pair(self, good: Answer, bad: Answer) -> GoodBad:
        """The pair of these two."""
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
        return tuple(zip(_labels(self.code), (*self.context, answer), strict=True))


@cache
def _labels(code: str) -> tuple[str, ...]:
    return criteria.suite("heap").criterion(code).fields


def winners_first(question: Question, answers: Sequence[Answer]) -> Iterator[GoodBad]:
    """The first answer's victories, then the second's, and so on; equal ranks make no pair."""
    for good, bad in permutations(answers, 2):
        if good.rank > bad.rank:
            yield question.pair(good, bad)


def two_by_two(question: Question, answers: Sequence[Answer]) -> Iterator[GoodBad]:
    """Each two answers once, in the order in which they stand; equal ranks make no pair."""
    for one, other in combinations(answers, 2):
        if one.rank != other.rank:
            yield question.pair(one, other) if one.rank > other.rank else question.pair(other, one)


def floor_mean(ratings: Sequence[float]) -> float:
    """HEAP's way to make one rating of several: the mean, rounded down."""
    return float(math.floor(sum(ratings) / len(ratings)))


def grouped(keyed: Iterable[tuple[Hashable, T]]) -> list[list[T]]:
    """Values of one key together, in the order in which keys and values first come."""
    groups: dict[Hashable, list[T]] = {}
    for key, value in keyed:
        groups.setdefault(key, []).append(value)
    return list(groups.values())
