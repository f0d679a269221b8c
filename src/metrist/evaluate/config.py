"""The layout of a settings file: which settings there are, and what each may hold."""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metrist.errors import InputError, did_you_mean
from metrist.evaluate.check import Report, check
from metrist.evaluate.compare import Comparison, compare
from metrist.evaluate.selection import find_metric, open_run
from metrist.io.reader import read_records
from metrist.io.writer import atomic_write
from metrist.metrics.base import Metric
from metrist.metrics.registry import build
from metrist.report.tables import Table
from metrist.run.tasks import Serial
from metrist.run.worker_pool import Processes
from metrist.runtime import Runtime

if TYPE_CHECKING:
    from metrist.run.executors import Executor
    from metrist.run.pipeline import Progress
    from metrist.run.results import Results


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


# A whole study from one TOML file: what to score, with which metrics, what to compare, what to check.
#
# Paths in the file are relative to the file. Metrics are named from the catalog; an import path (`my_module.Mine`) runs
# that module's code, so it is taken only when the caller allows it: a file cannot vouch for itself, and a settings file
# is easily taken over from someone else. The same goes for programs, models with code of their own, and LLMs that are
# sent what an environment variable holds.


_STANDARD_INPUT = "-"
#: Settings that are arguments of `score` by the same name.
_RUNNING = ("tokens", "device", "batch_tokens", "cache", "max_cost", "concurrency", "rpm", "tpm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A settings file, read and checked, its paths resolved. `running` is what `score` is told besides."""

    path: Path
    inputs: tuple[str, ...]
    metrics: tuple[str, ...]
    output: str | None = None
    executor: str | None = None
    workers: int | None = None
    running: Mapping[str, Any] = field(default_factory=dict)
    read: Mapping[str, Any] = field(default_factory=dict)
    check: Mapping[str, Any] | None = None
    compare: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outcome:
    """What a settings file led to."""

    results: Results
    comparison: Comparison | None = None
    report: Report | None = None
    skipped: int = 0

    @property
    def passed(self) -> bool:
        """Whether the check passed; a file without a check always passes."""
        return self.report is None or self.report.passed

    def tables(self) -> list[Table]:
        """Everything to show, in the order in which it was done."""
        asked = (self.results, self.comparison, self.report)
        return [part.table() for part in asked if part is not None]


def read_config(path: str | os.PathLike[str]) -> Config:
    """Read a settings file; whatever is wrong with it is told before anything is scored."""
    place = Path(path)
    settings = read_settings(place)
    top, check_table = settings[""], settings.get("check")
    if check_table is not None and not {"min", "max", "min_coverage", "against"} & check_table.keys():
        raise InputError(f"{place}: [check] has nothing to check: give min, max, min_coverage or against")
    if top.get("executor") == "serial" and top.get("workers", 1) > 1:
        raise InputError(f"{place}: workers must be 1 for the executor 'serial', got {top['workers']}")
    return Config(
        path=place,
        inputs=tuple(_resolved(place, one) for one in _several(top["input"])),
        metrics=tuple(_several(top["metrics"])),
        output=_resolved(place, top["output"]) if "output" in top else None,
        executor=top.get("executor"),
        workers=top.get("workers"),
        running=_with_paths(place, {key: top[key] for key in _RUNNING if key in top}, "cache"),
        read=_read_options(settings.get("read", {})),
        check=None if check_table is None else _with_paths(place, check_table, "against", "junit"),
        compare=settings.get("compare"),
    )


def run_config(
    path: str | os.PathLike[str], *, allow_import: bool = False, progress: Progress | None = None
) -> Outcome:
    """Do what a settings file says. `allow_import` lets it name metrics by import path and programs, which runs their
    code, and LLMs with the environment variable that holds their key."""
    from metrist.run import score

    config = read_config(path)
    metrics = [build(text, allow_import=allow_import) for text in config.metrics]
    _check_names(config, metrics)
    against = (config.check or {}).get("against")
    before = None if against is None else open_run(against, config.metrics if allow_import else ())
    reader = read_records(list(config.inputs) if len(config.inputs) > 1 else config.inputs[0], **config.read)
    running = {"executor": _executor(config), "out": config.output, **_cautious(config.running)}
    results = score(reader, metrics, progress=progress, **running)
    return Outcome(
        results=results,
        comparison=None if config.compare is None else compare(results, **config.compare),
        report=None if config.check is None else _checked(results, config.check, before),
        skipped=len(reader.skipped),
    )


def _check_names(config: Config, metrics: list[Metric]) -> None:
    """A misspelt metric in a threshold should not wait for the end of the scoring."""
    thresholds, compared = config.check or {}, config.compare or {}
    for name in (*thresholds.get("min", ()), *thresholds.get("max", ()), *compared.get("metrics", ())):
        find_metric(metrics, name)


def _checked(results: Results, settings: Mapping[str, Any], before: Results | None) -> Report:
    named = {"min": "minimum", "max": "maximum"}
    options = {named.get(key, key): value for key, value in settings.items() if key not in ("against", "junit")}
    report = check(results, against=before, **options)
    if "junit" in settings:
        with atomic_write(settings["junit"]) as file:
            file.write(report.junit())
    return report


def _executor(config: Config) -> str | Executor | None:
    if config.workers is None:
        return config.executor
    return Processes(config.workers) if config.workers > 1 else Serial()


def _cautious(running: Mapping[str, Any]) -> dict[str, Any]:
    """With the lower of two limits on cost: a file cannot raise the one that the user has set for all runs."""
    own, set_for_all = running.get("max_cost"), Runtime.current().max_cost
    if own is None or set_for_all is None:
        return dict(running)
    return {**running, "max_cost": min(own, set_for_all)}


def _read_options(table: Mapping[str, Any]) -> dict[str, Any]:
    options = dict(table)
    if "item_key" in options:
        options["item_key"] = tuple(_several(options["item_key"]))
    return options


def _with_paths(place: Path, table: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: _resolved(place, value) if key in keys else value for key, value in table.items()}


def _resolved(place: Path, text: str) -> str:
    # Joined as text: a trailing slash, which asks for a folder, must stay.
    return text if text == _STANDARD_INPUT else os.path.join(place.parent, text)


def _several(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value
