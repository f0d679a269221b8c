"""Read documents that a stranger may have written: settings, rubrics, configurations, pages of run folders.

A document is small and has no code. What a parser would choke on is refused with one line that names the file: more
than `largest` bytes, other text than UTF-8, more levels than `DEPTH`, numbers that no float can hold, one key twice
in an object. A named pipe, which would block, is read only where the shell made it (`<(…)`, /dev/stdin).
"""

from __future__ import annotations

import json
import os
import stat
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from metrist.errors import MetristError

#: Bytes of a document. The largest that metrist itself writes are calibrations and annotation projects.
LARGEST = 64 << 20
#: Levels of tables and lists within each other.
DEPTH = 100
#: Digits of a whole number; a float holds 308.
_DIGITS = 300


def read_json(path: Path, fault: type[MetristError]) -> Any:
    """The value in a JSON file. What is wrong with the file is raised as `fault`."""
    return parse_json(read_text(path, fault), str(path), fault)


def read_toml(path: Path, fault: type[MetristError], *, largest: int = LARGEST) -> dict[str, Any]:
    """The table in a TOML file. What is wrong with the file is raised as `fault`."""
    return parse_toml(read_text(path, fault, largest=largest), str(path), fault)


def read_text(path: Path, fault: type[MetristError], *, largest: int = LARGEST) -> str:
    """The text of a file in UTF-8, with or without a byte order mark."""
    try:
        data = read_bytes(path, largest=largest)
    except OSError as error:
        raise fault(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise fault(f"{path}: {error}") from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise fault(f"{path}: is not UTF-8 text: byte {data[error.start]:#04x} at position {error.start + 1}") from None


def read_bytes(path: Path, *, largest: int = LARGEST) -> bytes:
    """The bytes of a file; OSError if it cannot be read, ValueError with the reason if it is refused."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(handle, "rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if stat.S_ISDIR(mode):
            raise ValueError("is a folder, expected a file")
        if not stat.S_ISREG(mode) and not str(path).startswith("/dev/"):
            raise ValueError("is a named pipe or a device, expected a file")
        if hasattr(os, "set_blocking"):
            os.set_blocking(file.fileno(), True)
        data = file.read(largest + 1)
    if len(data) > largest:
        raise ValueError(f"is larger than {largest:,} bytes, which is too large for what it should hold")
    return data


def is_below(path: str, folder: str) -> bool:
    """Whether an absolute path is a folder or leads into it."""
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def check_folder(folder: Path, names: Iterable[str], fault: type[MetristError]) -> None:
    """Refuse links, pipes and devices among these entries of a folder and all that is below them: what is read there
    could come from elsewhere, and what is written there could go elsewhere. The folder itself may be a link."""
    pending = [folder]
    wanted = frozenset(names)
    while pending:
        place = pending.pop()
        with os.scandir(place) as entries:
            for entry in entries:
                if place is folder and entry.name not in wanted:
                    continue
                if entry.is_symlink():
                    raise fault(
                        f"{entry.path} is a symbolic link, and may lead anywhere: what belongs to {folder} must be in "
                        "it (the folder itself may be a link; `cp -rL` copies what links lead to)"
                    )
                if entry.is_dir():
                    pending.append(Path(entry.path))
                elif not entry.is_file():
                    raise fault(f"{entry.path} is a named pipe or a device, expected a file")


def parse_json(text: str | bytes, place: str, fault: type[MetristError]) -> Any:
    """The value of a JSON text; `place` names it in messages."""
    return _parse(lambda: json.loads(text, object_pairs_hook=build_object), "JSON", place, fault)


def parse_toml(text: str, place: str, fault: type[MetristError]) -> dict[str, Any]:
    """The table of a TOML text; `place` names it in messages."""
    document: dict[str, Any] = _parse(lambda: tomllib.loads(text), "TOML", place, fault)
    return document


def _parse(load: Callable[[], Any], kind: str, place: str, fault: type[MetristError]) -> Any:
    try:
        document = load()
        _check_values(document)
    except RecursionError:
        raise fault(f"{place}: cannot be used: it is nested too deeply") from None
    except (json.JSONDecodeError, tomllib.TOMLDecodeError) as error:
        raise fault(f"{place}: is not {kind}: {error}") from None
    except ValueError as error:  # int() itself refuses thousands of digits.
        raise fault(f"{place}: cannot be used: {error}") from None
    return document


def read_json_object(path: Path, fault: type[MetristError]) -> dict[str, Any]:
    """The object that a JSON file holds."""
    content = read_json(path, fault)
    if not isinstance(content, dict):
        raise fault(f"{path} must hold a JSON object, got {type(content).__name__}")
    return content


def build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of a JSON text, for `object_pairs_hook`; ValueError if a key occurs twice. Of equal keys Python keeps
    the last and other readers the first: a file could say one thing to each of them."""
    value = dict(pairs)
    if len(value) < len(pairs):
        (repeated, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"the key {repeated!r:.60} occurs twice in one object")
    return value


def _check_values(document: Any) -> None:
    """Refuse depth and numbers that later code would choke on. Without recursion: dotted keys of TOML build tables of
    any depth."""
    level: Iterable[Any] = [document]
    for _ in range(DEPTH):
        inner = list[Any]()
        for value in level:
            if isinstance(value, dict):
                inner += value.values()
            elif isinstance(value, list):
                inner += value
            elif isinstance(value, int) and value.bit_length() > _DIGITS * 3.3219:
                raise ValueError(f"it has a number of more than {_DIGITS} digits")
        if not inner:
            return
        level = inner
    raise ValueError(f"it is nested too deeply (more than {DEPTH} levels)")
