"""What a format leaves unsaid and the user may add."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Literal, get_args

from metrist.errors import InputError, did_you_mean
from metrist.io.convert import alpaca_eval, bartscore, mt_metrics_eval
from metrist.io.convert.foreign_json import Options, Row, listed, read_document, read_entries
from metrist.io.row_model import format_value

# Which format is it? Detection looks at the first of what is there; conversion then checks all of it.


Kind = Literal["bartscore", "alpaca_eval", "mt_metrics_eval"]
KINDS: tuple[Kind, ...] = get_args(Kind)


def detect(path: Path | str) -> Kind:
    """The format of a file or folder; an error that says what is there when it is none of them."""
    path = _existing(path)
    if path.is_dir():
        if mt_metrics_eval.looks_alike(path):
            return "mt_metrics_eval"
        inside = listed(sorted(child.name for child in path.iterdir()))
        raise InputError(f"{path}: wanted a folder with sources/ and system-outputs/ (mt-metrics-eval), found {inside}")
    return _kind_of(path, _first_value(path))


def convert(
    *paths: Path | str,
    kind: Kind | None = None,
    system: str | None = None,
    task: str | None = None,
    language: str | None = None,
    ratings: Collection[str] | None = None,
    references: Collection[str] | None = None,
) -> Iterator[Row]:
    """Rows of metrist's form from files of one format, which is detected unless `kind` names it.

    `system` names outputs that come without a name, `task` and `language` fill these fields. `ratings` lists the names
    of BARTScore's scores that people gave; `references` the references of mt-metrics-eval to take.
    """
    if not paths:
        raise InputError("nothing to convert: name at least one file or folder")
    if kind is not None and kind not in KINDS:
        raise InputError(f"no format named {kind!r}{did_you_mean(kind, KINDS)}; there are {', '.join(KINDS)}")
    found = [_existing(path) for path in paths]
    options = Options(system=system, task=task, language=language, ratings=ratings, references=references)
    return _rows(kind or _agreed(found), found, options)


def _rows(kind: Kind, paths: list[Path], options: Options) -> Iterator[Row]:
    if kind == "alpaca_eval":
        return alpaca_eval.rows(paths, options)
    reader = bartscore.rows if kind == "bartscore" else mt_metrics_eval.rows
    return chain.from_iterable(reader(path, options) for path in paths)


def _agreed(paths: list[Path]) -> Kind:
    kinds = [detect(path) for path in paths]
    for path, kind in zip(paths, kinds, strict=True):
        if kind != kinds[0]:
            raise InputError(f"{path} is of the format {kind}, but {paths[0]} is {kinds[0]}; convert them one by one")
    return kinds[0]


def _existing(path: Path | str) -> Path:
    path = Path(path)
    if not path.exists():
        raise InputError(f"{path}: no such file or folder")
    return path


def _first_value(path: Path) -> Any:
    """The first element of a list, the first line's value, or the whole document where it is laid out over lines."""
    try:
        return next(entry for _, entry in read_entries(path))
    except InputError:
        return read_document(path)


def _kind_of(path: Path, value: Any) -> Kind:
    if bartscore.looks_alike(value):
        return "bartscore"
    if alpaca_eval.looks_alike(value):
        return "alpaca_eval"
    if isinstance(value, dict) and "item" in value:
        raise InputError(f"{path}: is already in metrist's form and can be read as it is; found {listed(value)}")
    found = f"an object with {listed(value)}" if isinstance(value, dict) else format_value(value)
    raise InputError(f"{path}: is none of {', '.join(KINDS)}; it begins with {found}")
