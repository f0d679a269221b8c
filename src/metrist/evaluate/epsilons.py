"""Tie thresholds that users give: a number per metric, or a table of numbers per value of the column of
`epsilon_over`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

from metrist.documents import read_json_object, read_toml
from metrist.errors import RunError, SpecError, format_count
from metrist.settings import parse_numbers


def parse_epsilons(texts: Sequence[str]) -> dict[str, Any]:
    """Parse `["rougeL=.06", "epsilons.toml"]`: thresholds, and files of them."""
    epsilons: dict[str, Any] = {}
    for text in texts:
        try:
            given: dict[str, Any] = parse_numbers([text])
        except SpecError:
            if not Path(text).exists():
                raise
            given = read_epsilons(Path(text))
        if repeated := [name for name in given if name in epsilons]:
            raise SpecError(f"is given twice for {repeated[0]!r}")
        epsilons |= given
    return epsilons


def read_epsilons(path: Path) -> dict[str, Any]:
    """Read TOML, or JSON, perhaps of `metrist meta --json`, whose metrics must have one threshold each."""
    document = read_toml(path, RunError) if path.suffix == ".toml" else read_json_object(path, RunError)
    if not isinstance(document.get("rows"), list):
        return document
    found: dict[str, set[float]] = {}
    for row in document["rows"]:
        if isinstance(row, dict) and isinstance(row.get("epsilon"), int | float):
            found.setdefault(str(row.get("metric")), set()).add(row["epsilon"])
    for metric, values in found.items():
        if len(values) > 1:
            raise RunError(
                f"{path}: {metric} has {format_count(len(values), 'threshold')}: write the file with "
                "`epsilon_over='all'` and one aspect, or give a number",
                code="conflict",
            )
    if not found:
        raise RunError(f"{path}: none of its rows has a threshold: write it with `measures='acc_eq'`", code="no_data")
    return {metric: values.pop() for metric, values in found.items()}


def check_epsilons(epsilons: Mapping[str, Any], column: str | None) -> dict[str, Any]:
    """Return the thresholds as plain numbers; raise RunError for one that is none, and for a table without a column."""
    checked: dict[str, Any] = {}
    for metric, given in epsilons.items():
        if isinstance(given, Mapping):
            if column is None:
                raise RunError(
                    f"`epsilon` of {metric!r} is a table: name its column, `epsilon_over='language'`", code="conflict"
                )
            checked[metric] = check_epsilons(given, None)
        elif not isinstance(given, bool) and isinstance(given, Real) and 0 <= float(given) < math.inf:
            checked[metric] = float(given)
        else:
            raise RunError(
                f"`epsilon` of {metric!r} must be a number of at least 0, got {given!r}", code="invalid_value"
            )
    return checked
