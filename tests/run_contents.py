"""Files of rows, and what a run folder holds, whatever its parts: equal for runs that computed the same."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from metrist.run.manifest import Manifest
from metrist.run.run import open_run
from metrist.run.store import Store

#: What may differ between two runs of the same command: seconds and money.
_VARYING = ("usage",)


def write_rows(path: Path, rows: Iterable[Any]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def contents(folder: Path) -> dict[str, Any]:
    """The manifest without its lists of parts, and the rows of all tables. A score that is there twice is listed
    twice."""
    run = open_run(folder)
    facts = msgspec.to_builtins(run.manifest)
    for one in facts["inputs"]:
        one.pop("tables", None)
    rows: dict[str, Any] = {"records": run.records().to_pylist(), "ratings": run.ratings().to_pylist()}
    rows |= {"preferences": run.preferences().to_pylist(), "errors": run.errors().to_pylist()}
    for metric, stored in zip(run.manifest.metrics, facts["metrics"], strict=True):
        for version in metric.versions:
            tables = [run.read_part(metric.place, part) for part in version.parts]
            listed = [row for table in tables for row in table.drop_columns(list(_VARYING)).to_pylist()]
            key = "pair" if metric.compares else "record"
            rows[f"{metric.text} {version.signature}"] = sorted(listed, key=lambda row: row[key])
        for version in stored["versions"]:
            version.pop("parts", None)
    return {"manifest": facts, **rows}


def written(folder: Path) -> dict[str, int]:
    """When each part of the scores was written."""
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in (folder / "scores").rglob("*.parquet")}


def count_scores(folder: Path, text: str) -> int:
    """How many scores of a metric the folder lists."""
    manifest = Store(folder).read_manifest()
    metric = manifest and manifest.metric(text)
    return sum(part.rows for version in metric.versions for part in version.parts) if metric else 0


def list_scored(folder: Path, text: str) -> set[str]:
    """The items whose score by a metric is on disk, in a listed part or in the log of a killed run."""
    with TemporaryDirectory() as name:
        copy = Path(name, "run")
        shutil.copytree(folder, copy)
        with Store(copy).write():  # Puts into parts what is in the log.
            pass
        run = open_run(copy)
        items = dict(zip(*(run.records()[name].to_pylist() for name in ("record", "item")), strict=True))
        metric = run.manifest.metric(text)
        parts = [part for version in metric.versions for part in version.parts] if metric else []
        tables = [run.read_part(metric.place, part) for part in parts] if metric else []
        return {items[record] for table in tables for record in table["record"].to_pylist()}


def unfinish(folder: Path, text: str) -> None:
    """Leave a metric as a run does that is killed just before it finishes it."""

    def change(manifest: Manifest) -> Manifest:
        metric = manifest.metric(text)
        assert metric is not None
        versions = tuple(msgspec.structs.replace(version, finished=False) for version in metric.versions)
        return manifest.replace_metric(msgspec.structs.replace(metric, versions=versions))

    Store(folder).update(change)
