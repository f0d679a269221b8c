"""Read JSON files of other tools, and check their fields: errors name the place, the field, what was found and what was
expected. Pickles are rejected."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from metrist.documents import build_object
from metrist.errors import InputError
from metrist.io.compression import BYTE_ORDER_MARK, open_bytes
from metrist.io.row_model import format_value
from metrist.io.rows import read_rows

Row = dict[str, Any]

_PICKLE_SUFFIXES = {".pkl", ".pickle"}
_PICKLE_START = b"\x80"  # The first byte of pickles of protocol 2 and later; no UTF-8 text begins with it.
_NAMES_SHOWN = 8
#: Bytes of a document that is read at once.
_LARGEST_DOCUMENT = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertOptions:
    """What the user adds to the files. `system` names outputs that have no system, `ratings` are the names of scores
    given by people, and `references` are the names of the references to use (None: all). `announce` gets what the user
    should know about the conversion. `read_analysis` reads a row of MetricInstruct; `systems` are files of predictions
    by system, and `limit` is the number of instances of a task, for Natural Instructions."""

    system: str | None = None
    task: str | None = None
    language: str | None = None
    ratings: Collection[str] | None = None
    references: Collection[str] | None = None
    announce: Callable[[str], None] | None = None
    read_analysis: Callable[[Row], Row] | None = None
    systems: Mapping[str, Path | str] = field(default_factory=dict)
    limit: int = 0

    def note(self, text: str) -> None:
        if self.announce is not None:
            self.announce(text)


def read_entries(path: Path) -> Iterator[tuple[str, Row]]:
    """Yield the objects of a JSON list, or of a file with one object per line, each with its place."""
    _check_is_json(path)
    count = 0
    for location, row in read_rows(path):
        count += 1
        yield str(location), row
    if not count:
        raise InputError(f"{path}: expected a list of objects or one object per line, found none", code="no_data")


def read_document(path: Path) -> Any:
    """Read the single JSON value of a file. It is read at once: an object cannot be checked before its end."""
    _check_is_json(path)
    with open_bytes(path) as file:
        data = file.read(_LARGEST_DOCUMENT + 1)
    if len(data) > _LARGEST_DOCUMENT:
        raise InputError(
            f"{path}: has more than {_LARGEST_DOCUMENT:,} bytes, which is too large for one JSON value",
            code="too_large",
        )
    try:
        return json.loads(data.decode("utf-8-sig"), object_pairs_hook=build_object)
    except UnicodeDecodeError as error:
        byte, position = data[error.start], error.start + 1
        raise InputError(f"{path}: not UTF-8 text: byte {byte:#04x} at position {position}") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{path}:{error.lineno}: not valid JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise InputError(f"{path}: not readable JSON: it is nested too deeply", code="too_large") from None
    except ValueError as error:
        raise InputError(f"{path}: not readable JSON: {error}") from None


def _check_is_json(path: Path) -> None:
    """Reject pickles, and files that cannot be JSON by their first character."""
    with open_bytes(path) as file:
        head = file.read(4096)
    # Opening a pickle runs any code in it. That decision belongs to the user, who may know the author.
    if head.startswith(_PICKLE_START) or _PICKLE_SUFFIXES & set(path.suffixes):
        raise InputError(
            f"{path}: is a pickle, and opening a pickle runs any code that is in it; if you trust its origin, convert "
            'it to JSON first: python -c "import json, pickle, sys; json.dump(pickle.load(open(sys.argv[1], '
            f"'rb')), open(sys.argv[2], 'w'), default=float)\" {path.name} {path.name.split('.')[0]}.json"
        )
    start = head.removeprefix(BYTE_ORDER_MARK).lstrip().decode("utf-8", "replace")[:1]
    if start not in ("{", "["):
        raise InputError(
            f"{path}: expected JSON, which begins with {{ or [, found {format_value(start) if start else 'nothing'}; "
            "`metrist convert --source FILE --reference FILE --output SYSTEM=FILE` converts plain line files",
            code="invalid_value",
        )


def reject(place: str, field: str, value: Any, expected: str) -> NoReturn:
    raise InputError(f"{place}: {field!r} must be {expected}, got {format_value(value)}", code="invalid_value")


def get_text(place: str, entry: Mapping[str, Any], field: str) -> str:
    if field not in entry:
        raise InputError(f"{place}: no field {field!r}; found {format_names(entry)}")
    value = entry[field]
    if not isinstance(value, str):
        reject(place, field, value, "a string")
    return value


def get_optional_text(place: str, entry: Mapping[str, Any], field: str) -> str | None:
    return None if entry.get(field) is None else get_text(place, entry, field)


def get_texts(place: str, entry: Mapping[str, Any], field: str) -> list[str]:
    value = entry.get(field)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(element, str) for element in value):
        reject(place, field, value, "a list of strings")
    return list(value)


def get_mapping(place: str, entry: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    value = entry.get(field)
    if value is None:
        return {}
    if not isinstance(value, dict):
        reject(place, field, value, "an object")
    return value


def parse_number(place: str, field: str, value: Any) -> float | None:
    """Return a number, which may be written as a string; None for null, 'None' and NaN, which mark missing ones."""
    if value is None or value == "None":
        return None
    try:
        number = math.inf if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.inf
    if math.isinf(number):
        reject(place, field, value, "a finite number or None")
    return None if math.isnan(number) else number


def format_names(names: Iterable[Any]) -> str:
    quoted = [format_value(name) for name in names]
    more = f" and {len(quoted) - _NAMES_SHOWN} more" if len(quoted) > _NAMES_SHOWN else ""
    return ", ".join(quoted[:_NAMES_SHOWN]) + more if quoted else "nothing"


def drop_empty(row: Mapping[str, Any]) -> Row:
    """Return the row without fields that are None, {} or []."""
    return {field: value for field, value in row.items() if value is not None and value != {} and value != []}
