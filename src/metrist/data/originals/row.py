"""One row of a published file: values by name, or an error that names the file, the line and the field."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from metrist.data.originals.table import PathLike, table
from metrist.errors import InputError
from metrist.io.compression import BYTE_ORDER_MARK, decoded, display_name, open_bytes, uncompressed_name
from metrist.io.fields import as_number, as_text
from metrist.io.json_rows import unreadable
from metrist.io.row_model import Fault, shown
from metrist.io.rows import open_rows

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Row:
    """A row and its place. A field inside others is named by the way to it: `row.text("situation", "title")`."""

    place: str
    values: Mapping[str, Any]

    def has(self, *way: str) -> bool:
        """Whether the field is there and not null."""
        return self._found(way) is not None

    def value(self, *way: str) -> Any:
        """Whatever the field holds."""
        found = self._found(way)
        if found is None:
            raise self.wrong(f"{_named(way)!r} is missing")
        return found

    def text(self, *way: str) -> str:
        """A text."""
        return self._told(lambda: as_text(_named(way), self.value(*way)))

    def number(self, *way: str) -> float:
        """A number, also one written as text."""
        return self._told(lambda: as_number(repr(_named(way)), self.value(*way)))

    def truth(self, *way: str) -> bool:
        """true or false, 1 or 0, yes or no."""
        number = self.number(*way)
        if number not in (0, 1):
            raise self.wrong(f"{_named(way)!r} must be true or false, got {shown(self.value(*way))}")
        return number == 1

    def texts(self, *way: str) -> list[str]:
        """A list of texts, one at least."""
        return self._told(lambda: [as_text(_named(way), one) for one in self.listed(*way)])

    def numbers(self, *way: str) -> list[float]:
        """A list of numbers, one at least."""
        return self._told(lambda: [as_number(repr(_named(way)), one) for one in self.listed(*way)])

    def listed(self, *way: str) -> list[Any]:
        """A list, one value at least; a table's cell holds it as text: [2, 1, 1]."""
        found = self.value(*way)
        opened = _opened(found) if isinstance(found, str) else found
        if not isinstance(opened, list) or not opened:
            raise self.wrong(f"{_named(way)!r} must be a list that is not empty, got {shown(found)}")
        return opened

    def names(self, *way: str) -> tuple[str, ...]:
        """The names inside an object."""
        found = self.value(*way)
        if not isinstance(found, dict):
            raise self.wrong(f"{_named(way)!r} must be an object, got {shown(found)}")
        return tuple(found)

    def wrong(self, what: str) -> InputError:
        """What is wrong with this row, and where it stands."""
        return InputError(f"{self.place}: {what}")

    def _told(self, check: Callable[[], T]) -> T:
        try:
            return check()
        except Fault as fault:
            raise self.wrong(str(fault)) from None

    def _found(self, way: Sequence[str]) -> Any:
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
            yield from (Row(str(place), values) for place, values in open_rows(path))


def entries(paths: Iterable[PathLike]) -> Iterator[tuple[str, Row]]:
    """The entries of JSON files that hold one object, with their names; a row's place names its entry."""
    for path in paths:
        name = display_name(path)
        found = _json_file(path, name)
        if not isinstance(found, dict):
            raise InputError(f"{name}: must hold one JSON object of named entries, got {shown(found)}")
        for entry, values in found.items():
            if not isinstance(values, dict):
                raise InputError(f"{name}: {entry!r} must be an object, got {shown(values)}")
            yield entry, Row(f"{name}: {entry!r}", values)


def _json_file(path: PathLike, name: str) -> Any:
    with open_bytes(path) as stream:
        data = stream.read().removeprefix(BYTE_ORDER_MARK)
    try:
        return json.loads(decoded(data))
    except json.JSONDecodeError as error:
        raise InputError(f"{name}:{error.lineno}: {unreadable(error)}") from None
    except (Fault, RecursionError) as error:
        raise InputError(f"{name}: {error}") from None


def _opened(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _named(way: Sequence[str]) -> str:
    return ".".join(way)
