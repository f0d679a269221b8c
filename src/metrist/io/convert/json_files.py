"""JSON from strangers: a document, or a list or lines of objects, read without trusting it. Pickles are refused."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from metrist.errors import InputError
from metrist.io.compression import open_bytes
from metrist.io.convert.fields import Row
from metrist.io.place import shown
from metrist.io.rows import open_rows
from metrist.io.text_lines import BYTE_ORDER_MARK

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
        found = shown(start) if start else "nothing"
        raise InputError(
            f"{path}: wanted JSON, which begins with {{ or [, found {found}; plain line files are converted with "
            "--source, --reference and --output SYSTEM=FILE"
        )


def read_entries(path: Path) -> Iterator[tuple[str, Row]]:
    """The objects of a JSON list, or of a file with one object a line, each with its place."""
    check_json(path)
    entries = 0
    for place, row in open_rows(path):
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
        raise ValueError(f"the key {shown(twice)} is there twice in one object")
    return found
