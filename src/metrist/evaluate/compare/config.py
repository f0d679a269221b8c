"""`metrist run`: score, compare and check as one TOML file says.

Paths in the file are relative to the file. Metrics come from the catalog. An import path (`my_module.Mine`) runs that
module's code, so it needs the caller's permission: a file cannot vouch for itself, and settings files are passed on.
The same holds for programs, models with their own code, and LLMs that are sent the value of an environment variable.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metrist.documents import is_below, read_toml
from metrist.errors import InputError, RunError, did_you_mean
from metrist.evaluate.compare.check import CheckReport, check
from metrist.evaluate.compare.comparison import compare
from metrist.evaluate.compare.results import Comparison
from metrist.evaluate.plans import CheckSettings, ComparisonSettings
from metrist.evaluate.selection import find_metric, open_run
from metrist.io.reader import read_records
from metrist.io.remote import is_remote
from metrist.io.writer import atomic_write
from metrist.metrics.base import Metric, PartMetric
from metrist.metrics.registry import build_all
from metrist.report.tables import Table
from metrist.run.executors import resolve_executor
from metrist.runtime import Runtime
from metrist.settings import (
    MAX_DRAWS,
    InputSettings,
    LLMLimits,
    ModelSettings,
    SettingField,
    check_table,
    describe_value,
    find_settings,
    setting,
)

if TYPE_CHECKING:
    from metrist.io.reader import Reader
    from metrist.report.progress import Progress
    from metrist.run.results import Results


@dataclass(frozen=True, kw_only=True)
class FileSettings(ModelSettings, LLMLimits):
    """What is scored, and how: the top of a settings file."""

    input: str | tuple[str, ...] = setting(..., "The records.")
    metrics: str | tuple[str, ...] | Mapping[str, str] = setting(..., "The metrics; a table gives them short names.")
    output: str | None = setting(None, "A run folder, or a file of scores.")
    executor: str | None = setting(None, "Where to score.")
    workers: int | None = setting(None, "Processes to score with.", min=1)
    tokens: bool = setting(False, "Store scores of single tokens.")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckTable(CheckSettings):
    """The table [check]. CI may be in a hurry: the command line wants more draws."""

    draws: int = setting(10_000, "Resamples behind each p-value.", min=2, max=MAX_DRAWS)
    junit: str | None = setting(None, "Where to write JUnit XML.")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareTable(ComparisonSettings):
    """The table [compare]."""

    draws: int = setting(10_000, "Resamples behind each p-value.", min=2, max=MAX_DRAWS)


#: Keys of a file that are not the names of arguments.
_ARGUMENTS = {"min": "minimum", "max": "maximum"}
_KEYS = {argument: key for key, argument in _ARGUMENTS.items()}
#: Settings by table; "" is the top of the file.
LAYOUT: Mapping[str, Mapping[str, SettingField]] = {
    "": find_settings(FileSettings),
    "read": find_settings(InputSettings),
    "check": {_KEYS.get(name, name): option for name, option in find_settings(CheckTable).items()},
    "compare": find_settings(CompareTable),
}
#: Bytes of a settings file.
_LARGEST = 1 << 20
_STANDARD_INPUT = "-"
#: Settings that are arguments of `score` by the same name.
_SCORE_OPTIONS = ("tokens", *find_settings(ModelSettings), *find_settings(LLMLimits))


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A validated settings file with resolved paths. `score_options` are further arguments of `score`. What it checks
    against is as in the file: a path, or a system of the input."""

    path: Path
    inputs: tuple[str, ...]
    metrics: tuple[str, ...]
    output: str | None = None
    executor: str | None = None
    workers: int | None = None
    score_options: Mapping[str, Any] = field(default_factory=dict)
    read: Mapping[str, Any] = field(default_factory=dict)
    check: Mapping[str, Any] | None = None
    compare: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ConfigResult:
    """The results of running a settings file; `skipped` counts bad rows."""

    results: Results
    comparison: Comparison | None = None
    report: CheckReport | None = None
    skipped: int = 0

    @property
    def passed(self) -> bool:
        """Whether the check passed; a file without a check always passes."""
        return self.report is None or self.report.passed

    def tables(self) -> list[Table]:
        """The tables of all results, in the order of the work. Remarks and signatures of several are in the first."""
        parts = (self.results, self.comparison, self.report)
        tables, told = list[Table](), set[object]()
        for table in (part.table() for part in parts if part is not None):
            remarks = [text for text in table.remarks if text not in told]
            signatures = [signature for signature in table.signatures if signature not in told]
            tables.append(replace(table, remarks=remarks, signatures=signatures))
            told.update(table.remarks, table.signatures)
        return tables


def read_config(path: str | os.PathLike[str]) -> Config:
    """Read and validate a settings file."""
    config_path = Path(path)
    settings = _read_settings(config_path)
    top, checks = settings[""], settings.get("check")
    if checks is not None and not {"min", "max", "min_coverage", "against"} & checks.keys():
        raise InputError(
            f"{config_path}: [check] has nothing to check: give min, max, min_coverage or against", code="no_data"
        )
    try:
        resolve_executor(top.get("executor"), top.get("workers"))
    except RunError as error:
        raise InputError(f"{config_path}: {error}") from None
    read_options = dict(settings.get("read", {}))
    if "item_key" in read_options:
        read_options["item_key"] = tuple(_as_list(read_options["item_key"]))
    score_options = {key: top[key] for key in _SCORE_OPTIONS if key in top}
    for table, key in ((score_options, "cache"), (checks or {}, "junit")):
        if key in table:
            table[key] = os.path.join(config_path.parent, table[key])
    metrics = top["metrics"]
    metrics = [f"{name}={text}" for name, text in metrics.items()] if isinstance(metrics, dict) else _as_list(metrics)
    return Config(
        path=config_path,
        inputs=tuple(_resolve_place(config_path, name) for name in _as_list(top["input"])),
        metrics=tuple(metrics),
        output=_resolve_place(config_path, top["output"]) if "output" in top else None,
        executor=top.get("executor"),
        workers=top.get("workers"),
        score_options=score_options,
        read=read_options,
        check=checks,
        compare=settings.get("compare"),
    )


def _read_settings(path: Path) -> dict[str, dict[str, Any]]:
    """The file's validated settings by table; `read`, `check` and `compare` only if the file has them."""
    document = read_toml(path, InputError, largest=_LARGEST)
    tables = {name: table for name, table in document.items() if name in LAYOUT}
    top = {key: value for key, value in document.items() if key not in tables}
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise InputError(f"{path}: [{name}] must be a table, got {table!r}", code="invalid_value")
    settings = {"": top, **tables}
    for name, table in settings.items():
        place = f"{path}: [{name}]" if name else f"{path}:"
        check_table(LAYOUT[name], table, place, tables=() if name else [name for name in LAYOUT if name])
    for key in ("input", "metrics"):
        if key not in top:
            raise InputError(
                f"{path}: {key!r} is missing: it must be {describe_value(LAYOUT[''][key])}", code="invalid_value"
            )
    return settings


def _resolve_place(config_path: Path, text: str) -> str:
    """Resolve a path, unless it is standard input or the URL of a file or folder."""
    # os.path.join keeps a trailing slash, which requests a run folder.
    return text if text == _STANDARD_INPUT or is_remote(text) else os.path.join(config_path.parent, text)


def _as_list(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def run_config(
    path: str | os.PathLike[str], *, allow_import: bool = False, progress: Progress | None = None
) -> ConfigResult:
    """Score, compare and check as a settings file says. `allow_import` permits what the file of a stranger must not
    decide: metrics by import path and programs, which run code; LLMs that name the environment variable with their key
    or a server beyond this machine; and results outside of the file's folder and the current one."""
    from metrist.run import score

    config = read_config(path)
    if not allow_import:
        _refuse_reach(config)
    metrics = build_all(config.metrics, allow_import=allow_import)
    _check_metric_names(config, metrics)
    reader = _read_input(config)
    baseline = _open_baseline(config, config.metrics if allow_import else ())
    options = dict(config.score_options)
    user_limit = Runtime.current().max_cost
    if user_limit is not None and options.get("max_cost") is not None:
        # A file cannot raise the limit that the user has set for all runs.
        options["max_cost"] = min(options["max_cost"], user_limit)
    executor = resolve_executor(config.executor, config.workers)
    results = score(reader, metrics, progress=progress, executor=executor, out=config.output, **options)
    # The comparison comes first: where its settings are wrong, no report is written.
    comparison = None if config.compare is None else compare(results, **config.compare)
    report = None if config.check is None else _run_check(results, config.check, baseline)
    return ConfigResult(results=results, comparison=comparison, report=report, skipped=reader.skipped.count)


def _refuse_reach(config: Config) -> None:
    """Refuse what a stranger's file must not reach: addresses of stores, and of Ray clusters, which are sent texts and
    code; and places to write that are not below its folder or the current one. Links are followed."""
    kind, _, cluster = (config.executor or "").partition(":")
    baseline = (config.check or {}).get("against")
    addresses = {
        "input": next(filter(is_remote, config.inputs), None),
        "output": config.output if is_remote(config.output) else None,
        "[check] against": baseline if is_remote(baseline) else None,
        "executor": config.executor if kind == "ray" and cluster not in ("", "auto", "local") else None,
    }
    for name, address in addresses.items():
        if address is not None:
            raise InputError(
                f"{config.path}: {name} = {address!r} is an address, which a settings file may name only with "
                "`allow_import`",
                code="untrusted",
            )
    places = [os.path.realpath(place) for place in (config.path.parent, os.curdir)]
    targets = {
        "output": config.output,
        "cache": config.score_options.get("cache"),
        "[check] junit": (config.check or {}).get("junit"),
    }
    for name, target in targets.items():
        if target is None or any(is_below(os.path.realpath(target), place) for place in places):
            continue
        raise InputError(
            f"{config.path}: {name} = {target!r} is outside of the file's folder and the current one, accepted only "
            "with `allow_import`",
            code="untrusted",
        )


def _read_input(config: Config) -> Reader:
    return read_records(list(config.inputs) if len(config.inputs) > 1 else config.inputs[0], **config.read)


def _open_baseline(config: Config, metrics: Sequence[str]) -> Results | str | None:
    """What is checked against: a run, or, where there is none, the name of a system, which must be in the input: a
    misspelt name is reported before the scoring."""
    name = (config.check or {}).get("against")
    if name is None:
        return None
    path = _resolve_place(config.path, name)
    if os.path.exists(path) or "/" in name or os.sep in name:
        return open_run(path, metrics)
    if os.path.exists(name):  # The check would refuse it, after the scoring.
        raise RunError(
            f"{config.path}: [check] against: there is no run at {path}, and for a system of the input {name!r} is "
            "ambiguous, because the current folder has a file or folder of that name: work in another folder",
            code="unknown_name",
        )
    if _STANDARD_INPUT in config.inputs:
        return str(name)  # It can be read only once: the check itself reports an unknown name.
    systems = dict[str, None]()
    for record in _read_input(config):
        systems[record.system] = None
        if name in systems:
            return str(name)
    raise RunError(
        f"{config.path}: [check] against: there is no run at {path}, and no system of that name in the input, "
        f"which has {', '.join(map(repr, list(systems)[:10]))}{did_you_mean(name, systems)}",
        code="unknown_name",
    )


def _check_metric_names(config: Config, metrics: Sequence[Metric]) -> None:
    checks, comparison = config.check or {}, config.compare or {}
    covered = checks.get("min_coverage")
    covered = [name for name in covered if name != "*"] if isinstance(covered, dict) else []
    for name in (*checks.get("min", ()), *checks.get("max", ()), *covered, *comparison.get("metrics", ())):
        metric = find_metric(metrics, name)
        known = metric.metric.aspect_parts if isinstance(metric, PartMetric) else {}
        if isinstance(metric, PartMetric) and metric.part not in known and (hint := did_you_mean(metric.part, known)):
            raise RunError(f"{metric.metric.label} has no aspect {metric.part!r}{hint}", code="unknown_name")


def _run_check(results: Results, settings: Mapping[str, Any], baseline: Results | str | None) -> CheckReport:
    options = {_ARGUMENTS.get(key, key): value for key, value in settings.items() if key not in ("against", "junit")}
    report = check(results, against=baseline, **options)
    if "junit" in settings:
        with atomic_write(settings["junit"]) as file:
            file.write(report.junit())
    return report
