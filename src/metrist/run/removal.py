"""Delete parts of a run: inputs, metrics, systems, or scores that no record needs any more."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from metrist.errors import RunError, did_you_mean, format_count
from metrist.run.flat_file import encodable
from metrist.run.run import Run, open_run
from metrist.run.store import MANIFEST, Input, Manifest, Part, Store, StoredMetric, Version
from metrist.run.stored_scores import HashIndex
from metrist.run.stores import is_run, open_store
from metrist.run.tables import read_hashes

#: The rows of parts that stay, by the folder and the file of the part; parts of which all stay are not there.
Kept = dict[tuple[str, str], NDArray[np.bool_]]


@dataclass(frozen=True, kw_only=True)
class Removal:
    """What would be deleted, in words, and `apply` to delete it."""

    messages: list[str]
    delete: Callable[[], None]

    @property
    def deletes(self) -> bool:
        """Whether there is anything to delete."""
        return bool(self.messages)

    def apply(self) -> None:
        """Delete it. Whatever else is in the folder stays; a killed removal can be repeated."""
        if self.messages:
            self.delete()


def plan_removal(
    run: str | os.PathLike[str],
    *,
    inputs: Sequence[str] = (),
    metrics: Sequence[str] = (),
    systems: Sequence[str] = (),
    unused: bool = False,
) -> Removal:
    """What is to be deleted from a run folder: the records of some inputs and systems with the scores that only they
    need, the scores by some metrics, and with `unused` all scores that no record of the run has. With none of them, the
    whole run. Nothing is deleted before `Removal.apply`."""
    if not is_run(run):
        raise RunError(f"{run} is not a run folder: it has no {MANIFEST}")
    # What deletes opens the run again: as long as this one is open, no part is deleted.
    opened = open_run(run)
    if not (inputs or metrics or systems or unused):
        labels = ", ".join(metric.text for metric in opened.manifest.metrics) or "no metric"
        count = len(opened.view)
        about = f" of {format_count(count, 'record')}" if count else ""
        return Removal(
            messages=[f"the whole run {opened.name}: scores by {labels}{about}"],
            delete=lambda: _delete(open_store(run)),
        )
    choice = _Choice(inputs=inputs, metrics=metrics, systems=systems, unused=unused)
    messages = choice.find(opened).messages
    if unused:
        listed = set(opened.manifest.list_parts())
        left = [name for name in opened.store.list_written() if name not in listed]
        messages += [f"{format_count(len(left), 'file')} that the run no longer uses"] if left else []
    return Removal(messages=messages, delete=lambda: choice.remove(open_store(run)))


def _delete(store: Store) -> None:
    """Delete a whole run."""
    manifest = store.read_manifest() or Manifest()
    store.delete(_export_name(metric) for metric in manifest.metrics if metric.compares)
    store.delete_run()


def _export_name(metric: StoredMetric) -> str:
    return f"preferences/{metric.folder}.jsonl"


@dataclass(eq=False)
class _Deletion:
    """What a choice comes to in a run."""

    metrics: frozenset[str]
    kept: Kept = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)

    def keep(self, folder: str, part: Part, rows: NDArray[np.bool_]) -> int:
        """Keep only these rows of a part; returns how many go."""
        count = int((~rows).sum())
        if count:
            self.kept[folder, part.file] = rows
        return count


class _Remaining(Run):
    """A run without the rows that are to be deleted."""

    def __init__(self, run: Run, kept: Kept) -> None:
        super().__init__(run.store, run.manifest)
        self._rows = kept

    def read_part(
        self, folder: str, part: Part, columns: Sequence[str] | None = None, encoded: Sequence[str] = ()
    ) -> pa.Table:
        table, rows = super().read_part(folder, part, columns, encoded), self._rows.get((folder, part.file))
        return table if rows is None else table.filter(pa.array(rows))


@dataclass(frozen=True, kw_only=True)
class _Choice:
    """What the user wants to delete."""

    inputs: Sequence[str]
    metrics: Sequence[str]
    systems: Sequence[str]
    unused: bool

    def find(self, run: Run) -> _Deletion:
        """The rows of a run that are to be deleted."""
        found = _Deletion(frozenset(_find_metric(run, name).text for name in self.metrics))
        if self.inputs or self.systems:
            self._find_records(run, found)
        remaining = _Remaining(run, found.kept).read_hashes()
        wanted = HashIndex(remaining)
        if self.unused:
            gone = None
        else:
            before = run.read_hashes()
            gone = HashIndex(before[wanted.find(before) < 0])
        for metric in run.manifest.metrics:
            if metric.text in found.metrics:
                count = sum(part.rows for version in metric.versions for part in version.parts)
                found.messages.append(f"{format_count(count, 'score')} by {metric.label}, all that it has")
            elif count := self._find_scores(run, metric, found, wanted, gone):
                found.messages.append(f"{format_count(count, 'score')} by {metric.label}")
        return found

    def _find_records(self, run: Run, found: _Deletion) -> None:
        chosen = {one.number for name in self.inputs for one in _find_inputs(run, name)}
        known = dict.fromkeys([*run.view.systems.names, *_list_compared(run)])
        for system in self.systems:
            if system not in known:
                hint = did_you_mean(system, known)
                raise RunError(f"{run.name} has no system {system!r}{hint}; it has {', '.join(known)}")
        for one in run.manifest.inputs:
            count = 0
            for folder, parts in one.tables.items():
                for part in parts:
                    is_chosen = one.number in chosen
                    rows = np.zeros(part.rows, np.bool_) if is_chosen else self._keep_systems(run, folder, part)
                    removed = found.keep(folder, part, rows)
                    count += removed if folder == "records" else 0
            if count:
                records = format_count(count, "record")
                found.messages.append(f"{records} of {run.describe_input(one)}; the file itself stays")

    def _keep_systems(self, run: Run, folder: str, part: Part) -> NDArray[np.bool_]:
        """The rows of a part that are about none of the chosen systems."""
        table = run.read_part(folder, part, ["system", "first", "second"])
        names = pa.array([encodable(system) for system in self.systems], pa.string())
        rows = np.ones(part.rows, np.bool_)
        for column in table.columns:
            rows &= ~pc.is_in(column, names).to_numpy()
        return rows

    def _find_scores(
        self, run: Run, metric: StoredMetric, found: _Deletion, wanted: HashIndex, gone: HashIndex | None
    ) -> int:
        """Find a metric's scores of records that are `gone`; None: of all that are not wanted, and of earlier versions.
        Choices between two outputs are found by the names of their systems."""
        count = 0
        current = _list_current(metric)
        for version in metric.versions:
            for part in version.parts:
                if self.unused and version not in current:
                    rows = np.zeros(part.rows, np.bool_)
                elif metric.compares:
                    rows = self._keep_systems(run, metric.place, part)
                else:
                    hashes = read_hashes(run.read_part(metric.place, part, ["record"])["record"])
                    rows = wanted.find(hashes) >= 0 if gone is None else gone.find(hashes) < 0
                count += found.keep(metric.place, part, rows)
        return count

    def remove(self, store: Store) -> None:
        """Write the parts that are left, then the manifest that lists them, then delete the others."""
        listed = set[str]()
        exports = dict[str, bytes | None]()

        def change(manifest: Manifest) -> Manifest:
            run = Run(store, manifest)
            found = self.find(run)
            listed.update(manifest.list_parts())
            exports.update(self._filter_exports(run, found.metrics))
            return _replace_parts(_Remaining(run, found.kept), found)

        with store.write():
            manifest = store.update(change)
            store.delete(listed - set(manifest.list_parts()))
            store.delete(name for name, data in exports.items() if data is None)
            for name, data in exports.items():
                if data is not None:
                    store.write_bytes(name, data)

    def _filter_exports(self, run: Run, metrics: frozenset[str]) -> Mapping[str, bytes | None]:
        """What is left of the files with a comparator's choices; None: nothing."""
        exports = dict[str, bytes | None]()
        for metric in run.manifest.metrics:
            name = _export_name(metric)
            data = run.store.read_bytes(name) if metric.compares else None
            if data is None:
                continue
            if metric.text in metrics:
                exports[name] = None
            elif self.systems:
                lines = data.splitlines(keepends=True)
                kept = [line for line in lines if not set(self.systems) & set(json.loads(line)["systems"])]
                if len(kept) < len(lines):
                    exports[name] = b"".join(kept) or None
        return exports


def _replace_parts(run: _Remaining, found: _Deletion) -> Manifest:
    """The manifest of what remains, whose parts are written."""
    store = run.store

    def rewrite(folder: str, parts: Sequence[Part]) -> tuple[Part, ...]:
        left = list[Part]()
        for part in parts:
            rows = found.kept.get((folder, part.file))
            if rows is None:
                left.append(part)
            elif rows.any():
                facts = store.read_facts(folder, part)
                table = run.read_part(folder, part).replace_schema_metadata()
                left.append(store.write_part(folder, table, facts, tokens=part.tokens))
        return tuple(left)

    def rewrite_input(one: Input) -> Input:
        tables = {folder: left for folder, parts in one.tables.items() if (left := rewrite(folder, parts))}
        records = sum(part.rows for part in tables.get("records", ()))
        return msgspec.structs.replace(one, tables=tables, records=records)

    def rewrite_metric(metric: StoredMetric) -> StoredMetric:
        versions = [msgspec.structs.replace(v, parts=rewrite(metric.place, v.parts)) for v in metric.versions]
        emptied = [bool(old.parts and not new.parts) for old, new in zip(metric.versions, versions, strict=True)]
        left = tuple(version for version, gone in zip(versions, emptied, strict=True) if not gone)
        return msgspec.structs.replace(metric, versions=left)

    return msgspec.structs.replace(
        run.manifest,
        inputs=tuple(left for one in run.manifest.inputs if (left := rewrite_input(one)).records),
        metrics=tuple(rewrite_metric(m) for m in run.manifest.metrics if m.text not in found.metrics),
    )


def _list_current(metric: StoredMetric) -> Sequence[Version]:
    """The version whose scores are shown, and those that were begun after it."""
    finished = metric.finished
    return metric.versions[metric.versions.index(finished) :] if finished else metric.versions[-1:]


def _list_compared(run: Run) -> Iterable[str]:
    """The systems whose outputs were compared."""
    for metric in run.manifest.metrics:
        for part in (part for version in metric.versions for part in version.parts if metric.compares):
            table = run.read_part(metric.place, part, ["first", "second"])
            yield from dict.fromkeys([*table["first"].unique().to_pylist(), *table["second"].unique().to_pylist()])


def _find_metric(run: Run, name: str) -> StoredMetric:
    names = {text: metric for metric in run.manifest.metrics for text in (metric.text, metric.label)}
    if name not in names:
        raise RunError(f"{run.name} has no metric {name!r}{did_you_mean(name, names)}; it has {', '.join(names)}")
    return names[name]


def _find_inputs(run: Run, name: str) -> list[Input]:
    """The inputs that were read from a file; a name that files of several folders had must say which."""
    place = os.path.realpath(name)
    inputs = run.manifest.inputs
    for known in (
        [one for one in inputs if one.path and os.path.realpath(Path(run.store.path) / one.path) == place],
        [one for one in inputs if name == (one.name or run.describe_input(one))],
    ):
        if len({one.path for one in known}) > 1:
            listed = ", ".join(run.describe_input(one) for one in known)
            raise RunError(f"{run.name} has several inputs {name!r}: name one of {listed}")
        if known:
            return known
    labels = dict.fromkeys(run.describe_input(one) for one in inputs)
    raise RunError(f"{run.name} has no input {name!r}{did_you_mean(name, labels)}; it has {', '.join(labels)}")
