"""The layout of a settings file: which settings there are, and what each may hold."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metrist.errors import InputError, did_you_mean


@dataclass(frozen=True, slots=True)
class Kind:
    """What a setting may hold, in words for the user and as a test."""

    words: str
    fits: Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_list_of_texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_text, value))


def _is_table_of(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and bool(value) and all(map(fits, value.values()))


def _whole(least: int) -> Kind:
    def fits(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and value >= least

    return Kind(f"a whole number, at least {least}", fits)


def _one_of(*choices: str) -> Kind:
    return Kind(f"one of {', '.join(map(repr, choices))}", lambda value: value in choices)


_TEXT = Kind("a string", _is_text)
_TEXTS = Kind("a list of strings", _is_list_of_texts)
_TEXT_OR_TEXTS = Kind("a string or a list of strings", lambda value: _is_text(value) or _is_list_of_texts(value))
_FLAG = Kind("true or false", lambda value: isinstance(value, bool))
_SHARE = Kind("a number from 0 to 1", lambda value: _is_number(value) and 0 <= value <= 1)
_ALPHA = Kind("a number between 0 and 1", lambda value: _is_number(value) and 0 < value < 1)
_THRESHOLDS = Kind("a table of numbers by metric, such as {rougeL = 0.3}", _is_table_of(_is_number))
_AMOUNT = Kind("an amount in US dollars such as 2.50", lambda value: _is_number(value) and value >= 0)
_NAMES = Kind('a table of strings, such as {output = "prediction"}', _is_table_of(_is_text))

#: Every setting by its table; "" is the top of the file.
LAYOUT: Mapping[str, Mapping[str, Kind]] = {
    "": {
        "input": _TEXT_OR_TEXTS,
        "metrics": _TEXT_OR_TEXTS,
        "output": _TEXT,
        "executor": _one_of("serial", "processes"),
        "workers": _whole(1),
        "tokens": _FLAG,
        "device": _TEXT,
        "batch_tokens": _whole(1),
        "cache": _TEXT,
        "max_cost": _AMOUNT,
        "concurrency": _whole(1),
        "rpm": _whole(1),
        "tpm": _whole(1),
    },
    "read": {"item_key": _TEXT_OR_TEXTS, "fields": _NAMES, "skip_bad": _FLAG, "system": _TEXT},
    "check": {
        "min": _THRESHOLDS,
        "max": _THRESHOLDS,
        "min_coverage": _SHARE,
        "against": _TEXT,
        "systems": _TEXTS,
        "alpha": _ALPHA,
        "draws": _whole(1),
        "seed": _whole(0),
        "junit": _TEXT,
    },
    "compare": {
        "systems": _TEXTS,
        "metrics": _TEXTS,
        "baseline": _TEXT,
        "test": _one_of("both", "bootstrap", "randomisation"),
        "alpha": _ALPHA,
        "draws": _whole(1),
        "seed": _whole(0),
    },
}
_REQUIRED = ("input", "metrics")


def read_settings(path: Path) -> dict[str, dict[str, Any]]:
    """The file's settings by table, each known and of its kind; `check` and `compare` only where the file has them."""
    document = _parsed(path)
    tables = {name: found for name, found in document.items() if name in LAYOUT}
    top = {key: value for key, value in document.items() if key not in tables}
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise InputError(f"{path}: [{name}] must be a table, got {table!r}")
    settings = {"": top, **tables}
    for name, table in settings.items():
        _check(path, name, table)
    for key in _REQUIRED:
        if key not in top:
            raise InputError(f"{path}: {key!r} is missing: wanted {LAYOUT[''][key].words}")
    return settings


def _parsed(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8"))
    except OSError as fault:
        raise InputError(f"{path}: cannot be read: {fault.strerror}") from None
    except UnicodeDecodeError as fault:
        raise InputError(f"{path}: is not UTF-8 text (byte {fault.start})") from None
    except (tomllib.TOMLDecodeError, RecursionError) as fault:
        raise InputError(f"{path}: is not TOML: {fault}") from None


def _check(path: Path, name: str, table: Mapping[str, Any]) -> None:
    place = f"{path}: [{name}]" if name else f"{path}:"
    known = LAYOUT[name]
    for key, value in table.items():
        if key not in known:
            names = known if name else {**known, **{table: None for table in LAYOUT if table}}
            hint = did_you_mean(key, names) or f"; known are {', '.join(names)}"
            raise InputError(f"{place} unknown setting {key!r}{hint}")
        if not known[key].fits(value):
            raise InputError(f"{place} {key} must be {known[key].words}, got {value!r}")
