"""Delete parts of a run: inputs, metrics, systems, or scores that no record needs any more."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from metrist.errors import RunError, did_you_mean, format_count, quote_word
from metrist.io.writer import encodable
from metrist.records import Hashes
from metrist.run.manifest import Input, Manifest, Part, StoredMetric, Version
from metrist.run.run import Run, open_run
from metrist.run.score_tables import HashIndex
from metrist.run.store import Store
from metrist.run.stored_run import open_store
from metrist.run.tables import read_hashes


@dataclass(frozen=True, kw_only=True)
class Removal:
    """What would be deleted, in words, and `apply` to delete it."""

    messages: list[str]
    #: Returns what has to be said afterwards.
    delete: Callable[[], list[str]]

    @property
    def deletes(self) -> bool:
        return bool(self.messages)

    def apply(self) -> list[str]:
        """Delete it, and return what has to be said about files that other processes use. Whatever else is in the
        folder stays; a killed removal can be repeated."""
        return self.delete() if self.messages else []


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
    # What deletes opens the run again: as long as this one is open, no part is deleted.
    opened = open_run(run)
    if not (inputs or metrics or systems or unused):
        labels = ", ".join(metric.text for metric in opened.manifest.metrics) or "no metric"
        count = len(opened.view)
        about = f" of {format_count(count, 'record')}" if count else ""

        def delete() -> list[str]:
            open_store(run).delete_run()
            return []

        return Removal(messages=[f"the whole run {opened.name}: scores by {labels}{about}"], delete=delete)
    remain = partial(_Remaining, inputs=inputs, metrics=metrics, systems=systems, unused=unused)
    messages = remain(opened).messages
    if unused:
        listed = set(opened.manifest.list_parts())
        left = [name for name in opened.store.list_written() if name not in listed]
        messages += [f"{format_count(len(left), 'file')} that the run no longer uses"] if left else []
    return Removal(messages=messages, delete=lambda: _remove(open_store(run), remain))


class _Remaining(Run):
    """A run without what is to be deleted, which `messages` tell."""

    def __init__(
        self, run: Run, *, inputs: Sequence[str], metrics: Sequence[str], systems: Sequence[str], unused: bool
    ) -> None:
        super().__init__(run.store, run.manifest)
        self.messages: list[str] = []
        names = {text: metric.text for metric in run.manifest.metrics for text in (metric.text, metric.label)}
        for name in metrics:
            if name not in names:
                raise RunError(
                    f"{run.name} has no metric {name!r}{did_you_mean(name, names)}; it has {', '.join(names)}",
                    code="unknown_name",
                )
        self.removed_metrics = frozenset(names[name] for name in metrics)
        self._systems = systems
        #: The rows of parts that stay, by the folder and the file of the part; parts of which all stay are not there.
        self._kept: dict[tuple[str, str], NDArray[np.bool_]] = {}
        removed = self._find_records(run, inputs) if inputs or systems else []
        wanted = HashIndex(self.read_hashes())
        for one, hashes in removed:
            records, kept = format_count(len(hashes), "record"), int((wanted.find(hashes) >= 0).sum())
            others = f", and other inputs keep {kept:,} of these records" if kept else ""
            self.messages.append(f"{records} of {run.describe_input(one)}; the file itself stays{others}")
        before = run.read_hashes()
        gone = None if unused else HashIndex(before[wanted.find(before) < 0])
        for metric in run.manifest.metrics:
            if metric.text in self.removed_metrics:
                count = sum(part.rows for version in metric.versions for part in version.parts)
                self.messages.append(f"{format_count(count, 'score')} by {metric.label}, all that it has")
                continue
            count = self._find_scores(run, metric, wanted, gone)
            if count:
                self.messages.append(f"{format_count(count, 'score')} by {metric.label}")

    def read_part(
        self, folder: str, part: Part, columns: Sequence[str] | None = None, encoded: Sequence[str] = ()
    ) -> pa.Table:
        table = super().read_part(folder, part, columns, encoded)
        rows = self._kept.get((folder, part.file))
        return table if rows is None else table.filter(pa.array(rows))

    def _keep(self, folder: str, part: Part, rows: NDArray[np.bool_]) -> int:
        """Keep only these rows of a part; returns how many go."""
        count = int((~rows).sum())
        if count:
            self._kept[folder, part.file] = rows
        return count

    def _find_records(self, run: Run, inputs: Sequence[str]) -> list[tuple[Input, Hashes]]:
        """Find the rows that stay; returns the hashes of the records of each input that go."""
        chosen = {one.number for name in inputs for one in _find_inputs(run, name)}
        known = dict.fromkeys(run.view.systems.names)
        for metric in run.manifest.metrics:
            for part in (part for version in metric.versions for part in version.parts if metric.compares):
                table = run.read_part(metric.place, part, ["first", "second"])
                known |= dict.fromkeys([*table["first"].unique().to_pylist(), *table["second"].unique().to_pylist()])
        for system in self._systems:
            if system not in known:
                hint = did_you_mean(system, known)
                raise RunError(
                    f"{run.name} has no system {system!r}{hint}; it has {', '.join(known)}", code="unknown_name"
                )
        removed = list[tuple[Input, Hashes]]()
        for one in run.manifest.inputs:
            hashes = list[Hashes]()
            for folder, parts in one.tables.items():
                for part in parts:
                    is_chosen = one.number in chosen
                    rows = np.zeros(part.rows, np.bool_) if is_chosen else self._keep_systems(run, folder, part)
                    if self._keep(folder, part, rows) and folder == "records":
                        hashes.append(read_hashes(run.read_part(folder, part, ["record"])["record"])[~rows])
            if hashes:
                removed.append((one, np.concatenate(hashes)))
        return removed

    def _keep_systems(self, run: Run, folder: str, part: Part) -> NDArray[np.bool_]:
        """The rows of a part that are about none of the chosen systems."""
        table = run.read_part(folder, part, ["system", "first", "second"])
        names = pa.array([encodable(system) for system in self._systems], pa.string())
        rows = np.ones(part.rows, np.bool_)
        for column in table.columns:
            rows &= ~pc.is_in(column, names).to_numpy()
        return rows

    def _find_scores(self, run: Run, metric: StoredMetric, wanted: HashIndex, gone: HashIndex | None) -> int:
        """Find a metric's scores of records that are `gone`; None: of all that are not wanted, and of earlier versions.
        Choices between two outputs are found by the names of their systems."""
        count = 0
        finished = metric.finished
        # The version whose scores are shown, and those that were begun after it.
        current = metric.versions[metric.versions.index(finished) :] if finished else metric.versions[-1:]
        for version in metric.versions:
            for part in version.parts:
                if gone is None and version not in current:
                    rows = np.zeros(part.rows, np.bool_)
                elif metric.compares:
                    rows = self._keep_systems(run, metric.place, part)
                else:
                    hashes = read_hashes(run.read_part(metric.place, part, ["record"])["record"])
                    rows = wanted.find(hashes) >= 0 if gone is None else gone.find(hashes) < 0
                count += self._keep(metric.place, part, rows)
        return count

    def write(self) -> Manifest:
        """Write the parts that are left, and return the manifest that lists them."""
        inputs = list[Input]()
        metrics = list[StoredMetric]()
        for one in self.manifest.inputs:
            tables = {folder: self._rewrite(folder, parts) for folder, parts in one.tables.items()}
            tables = {folder: parts for folder, parts in tables.items() if parts}
            records = sum(part.rows for part in tables.get("records", ()))
            if records:
                inputs.append(msgspec.structs.replace(one, tables=tables, records=records))
        for metric in self.manifest.metrics:
            if metric.text in self.removed_metrics:
                continue
            versions = list[Version]()
            for version in metric.versions:
                left = self._rewrite(metric.place, version.parts)
                if left or not version.parts:
                    versions.append(msgspec.structs.replace(version, parts=left))
            metrics.append(msgspec.structs.replace(metric, versions=tuple(versions)))
        return msgspec.structs.replace(self.manifest, inputs=tuple(inputs), metrics=tuple(metrics))

    def _rewrite(self, folder: str, parts: Sequence[Part]) -> tuple[Part, ...]:
        left = list[Part]()
        for part in parts:
            rows = self._kept.get((folder, part.file))
            if rows is None:
                left.append(part)
            elif rows.any():
                facts = self.store.read_facts(folder, part)
                table = self.read_part(folder, part).replace_schema_metadata()
                left.append(self.store.write_part(folder, table, facts, tokens=part.tokens))
        return tuple(left)

    def filter_exports(self) -> dict[str, bytes | None]:
        """What is left of the files with a comparator's choices; None: nothing."""
        exports = dict[str, bytes | None]()
        for metric in self.manifest.metrics:
            name = metric.export
            data = self.store.read_bytes(name) if metric.compares else None
            if data is None:
                continue
            if metric.text in self.removed_metrics:
                exports[name] = None
            elif systems := set(self._systems):
                lines = data.splitlines(keepends=True)
                kept = [line for line in lines if not systems & set(json.loads(line)["systems"])]
                if len(kept) < len(lines):
                    exports[name] = b"".join(kept) or None
        return exports


def _remove(store: Store, remain: Callable[[Run], _Remaining]) -> list[str]:
    """Write the parts that are left, then the manifest that lists them, then delete the others. Parts that another
    process may use stay until a later one is alone."""
    listed = set[str]()
    exports = dict[str, bytes | None]()

    def change(manifest: Manifest) -> Manifest:
        remaining = remain(Run(store, manifest))
        listed.update(manifest.list_parts())
        exports.update(remaining.filter_exports())
        return remaining.write()

    with store.write():
        kept = set(store.update(change).list_parts())
        store.discard(listed - kept)
        store.delete(name for name, data in exports.items() if data is None)
        for name, data in exports.items():
            if data is not None:
                store.write_bytes(name, data)
    left = sum(name not in kept for name in store.list_written())
    hint = f"`metrist remove {quote_word(f'{store.name}/')} --unused` deletes what is left when it has ended"
    return [f"{format_count(left, 'file')} may be in use by another command: {hint}"] if left else []


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
            raise RunError(f"{run.name} has several inputs {name!r}: name one of {listed}", code="missing_value")
        if known:
            return known
    labels = dict.fromkeys(run.describe_input(one) for one in inputs)
    raise RunError(
        f"{run.name} has no input {name!r}{did_you_mean(name, labels)}; it has {', '.join(labels)}", code="unknown_name"
    )
