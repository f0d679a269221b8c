"""Fields of foreign JSON, taken with a check: an error names place and field, what was found and what was wanted."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from metrist.errors import InputError
from metrist.io.compression import BYTE_ORDER_MARK, open_bytes
from metrist.io.row_model import format_value
from metrist.io.rows import read_rows

Row = dict[str, Any]


def wrong(place: str, field: str, found: Any, wanted: str) -> NoReturn:
    """Refuse a field's value."""
    raise InputError(f"{place}: {field!r} must be {wanted}, got {format_value(found)}")


def text(place: str, holder: Mapping[str, Any], field: str) -> str:
    """A field that must be there and be a string."""
    if field not in holder:
        raise InputError(f"{place}: no field {field!r}; found {listed(holder)}")
    value = holder[field]
    if not isinstance(value, str):
        wrong(place, field, value, "a string")
    return value


def optional_text(place: str, holder: Mapping[str, Any], field: str) -> str | None:
    """A field that may be missing or null, and is a string otherwise."""
    return None if holder.get(field) is None else text(place, holder, field)


def texts(place: str, holder: Mapping[str, Any], field: str) -> list[str]:
    """A field that may be missing or null, and is a list of strings otherwise."""
    value = holder.get(field)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(element, str) for element in value):
        wrong(place, field, value, "a list of strings")
    return list(value)


def mapping(place: str, holder: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    """A field that may be missing or null, and is an object otherwise."""
    value = holder.get(field)
    if value is None:
        return {}
    if not isinstance(value, dict):
        wrong(place, field, value, "an object")
    return value


def number(place: str, field: str, value: Any) -> float | None:
    """A number, also one written as a string; None where null, 'None' or NaN say that it is missing."""
    if value is None or value == "None":
        return None
    try:
        found = math.inf if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.inf
    if math.isinf(found):
        wrong(place, field, value, "a finite number or None")
    return None if math.isnan(found) else found


def listed(names: Any) -> str:
    """Names for a message, the first few of them."""
    quoted = [format_value(name) for name in names]
    if not quoted:
        return "nothing"
    return ", ".join(quoted[:8]) + (f" and {len(quoted) - 8} more" if len(quoted) > 8 else "")


def filled(row: Mapping[str, Any]) -> Row:
    """The row without the fields that have nothing to say."""
    return {field: value for field, value in row.items() if value is not None and value != {} and value != []}


# JSON from strangers: a document, or a list or lines of objects, read without trusting it. Pickles are refused.


_PICKLE_SUFFIXES = {".pkl", ".pickle"}
_PICKLE_START = b"\x80"  # How pickles of protocol 2 and later begin; no UTF-8 text can.


def refuse_pickle(path: Path) -> None:
    """Opening a pickle runs whatever code its author put in, so that is left to the user, who knows the author."""
    with open_bytes(path) as file:
        pickled = file.read(1) == _PICKLE_START
    if pickled or _PICKLE_SUFFIXES & set(path.suffixes):
        raise InputError(
            f"{path}: is a pickle, and opening a pickle runs any code that is in it; if you trust where it came from, "
            'turn it into JSON first: python -c "import json, pickle, sys; json.dump(pickle.load(open(sys.argv[1], '
            f"'rb')), open(sys.argv[2], 'w'), default=float)\" {path.name} {path.name.split('.')[0]}.json"
        )


def check_json(path: Path) -> None:
    """Refuse what cannot be JSON by its first character, before a reader takes it for something else."""
    refuse_pickle(path)
    with open_bytes(path) as file:
        start = file.read(4096).removeprefix(BYTE_ORDER_MARK).lstrip().decode("utf-8", "replace")[:1]
    if start not in ("{", "["):
        found = format_value(start) if start else "nothing"
        raise InputError(
            f"{path}: wanted JSON, which begins with {{ or [, found {found}; plain line files are converted with "
            "--source, --reference and --output SYSTEM=FILE"
        )


def read_entries(path: Path) -> Iterator[tuple[str, Row]]:
    """The objects of a JSON list, or of a file with one object a line, each with its place."""
    check_json(path)
    entries = 0
    for place, row in read_rows(path):
        entries += 1
        yield str(place), row
    if not entries:
        raise InputError(f"{path}: wanted a list of objects or one object a line, found none")


def read_document(path: Path) -> Any:
    """The one JSON value that a file holds. It is read whole: an object cannot be checked before its end."""
    check_json(path)
    with open_bytes(path) as file:
        data = file.read()
    try:
        return json.loads(data.decode("utf-8-sig"), object_pairs_hook=_object)
    except UnicodeDecodeError as fault:
        raise InputError(
            f"{path}: not UTF-8 text: byte {data[fault.start]:#04x} at position {fault.start + 1}"
        ) from None
    except json.JSONDecodeError as fault:
        raise InputError(f"{path}:{fault.lineno}: not valid JSON: {fault.msg} at column {fault.colno}") from None
    except RecursionError:
        raise InputError(f"{path}: not readable JSON: it is nested too deeply") from None
    except ValueError as fault:
        raise InputError(f"{path}: not readable JSON: {fault}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # Python keeps the last of equal keys without a word; here it would lose a document or a system.
    found = dict(pairs)
    if len(found) < len(pairs):
        (twice, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {format_value(twice)} is there twice in one object")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """`system` names outputs that come without a name. `ratings` are the names of scores given by people. `references`
    are the names of the references to take, None for all."""

    system: str | None = None
    task: str | None = None
    language: str | None = None
    ratings: Collection[str] | None = None
    references: Collection[str] | None = None
