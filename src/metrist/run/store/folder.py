"""A run folder: shards cut by input position, each one object written whole and named by position and content.

run/manifest.json                                      what was asked for (a note)
run/results/<metric>/<start>-<digest>.jsonl            scores; the set of valid shards is the state of the run
run/results/<metric>/complete.json                     written last: which shards are the whole run
run/results/<metric>/unfinished.json                   there while a run of other records replaces a finished one
run/timings/…                                          seconds and costs, never part of the results' bytes
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metrist.errors import RunError
from metrist.run.store import manifest as manifests
from metrist.run.store.manifest import Manifest
from metrist.run.store.metric_folder import Complete, MetricFolder, folder_name
from metrist.run.store.writes import write_object
from metrist.scores import Scores


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stored:
    """One finished metric of a run: its scores in the input's order. `content` is a hash of all records' texts, or None
    where the place does not tell."""

    metric: str
    signature: str
    higher_is_better: bool | None
    items: list[str]
    systems: list[str]
    scores: Scores
    content: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Contents:
    """What a run folder holds: the finished metrics in the manifest's order, the texts of the unfinished ones, and
    those whose finished scores a later run has begun to replace."""

    stored: list[Stored]
    unfinished: list[str]
    outdated: list[str]


class RunFolder:
    """A folder that is a run, or that can become one. Opening it touches nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._names: dict[str, str] = {}
        self._check_ours()

    def begin(self, manifest: Manifest) -> None:
        """Write what is asked for, keeping earlier runs' metrics in the list."""
        before = self._manifest_bytes()
        older = manifests.decode(before or b"")
        if older and manifest.is_foreign_to(older):
            raise RunError(
                f"{self.path} holds scores of {', '.join(older.input)}, not of {', '.join(manifest.input)}: "
                "name a new folder, or delete this one"
            )
        page = manifest.joined(older).encode()
        if page != before:
            write_object(self.path / manifests.NAME, page)

    @property
    def shard_size(self) -> int | None:
        """Into how many records a shard the last run here cut its input; None where there was none."""
        manifest = manifests.decode(self._manifest_bytes() or b"")
        size = manifest.shard_size if manifest else None
        return size if isinstance(size, int) and size > 0 else None

    @property
    def inputs(self) -> tuple[str, ...]:
        """The files that the last run here read; none where it read rows in memory."""
        manifest = manifests.decode(self._manifest_bytes() or b"")
        return manifest.input if manifest else ()

    def metric(self, text: str) -> MetricFolder:
        """The part of the folder that belongs to one metric."""
        return MetricFolder(self.path, folder_name(text))

    def note_machine(self, facts: Mapping[str, Any]) -> None:
        """Keep where and when the run was made, apart from the results."""
        write_object(self.path / "timings" / "machine.json", f"{json.dumps(facts, indent=2)}\n".encode("ascii"))

    def read(self) -> Contents:
        """All finished metrics, and what else must be known about the folder."""
        folders = self._folders()
        pages = {name: self._part(name).complete() for name in folders}
        finished = {name: page for name, page in pages.items() if page}
        if not finished:
            raise RunError(f"{self.path} holds no finished metric: run the same `metrist score` again to finish it")
        return Contents(
            stored=[self._stored(name, page) for name, page in finished.items()],
            unfinished=[text for name, text in folders.items() if name not in finished],
            outdated=[page.metric for name, page in finished.items() if self._part(name).is_outdated],
        )

    def _part(self, name: str) -> MetricFolder:
        return MetricFolder(self.path, name)

    def _stored(self, name: str, page: Complete) -> Stored:
        items: list[str] = []
        systems: list[str] = []
        scores: list[Scores] = []
        for block in self._part(name).blocks(page.shards):
            # Names repeat in every metric and most of them in every system: each is kept once.
            items += [self._names.setdefault(item, item) for item in block.items]
            systems += [self._names.setdefault(system, system) for system in block.systems]
            scores.append(block.scores)
        return Stored(
            metric=page.metric,
            signature=page.signature,
            higher_is_better=page.higher_is_better,
            items=items,
            systems=systems,
            scores=Scores.join(scores),
            content=page.content,
        )

    def _folders(self) -> dict[str, str]:
        """The metrics' folders, each with the metric's text as far as it is known."""
        # The manifest gives the order. It may be torn or, after two runs at once, incomplete: the folders decide.
        manifest = manifests.decode(self._manifest_bytes() or b"")
        listed = {folder_name(metric.text): metric.text for metric in manifest.metrics} if manifest else {}
        results = self.path / "results"
        there = sorted(path.name for path in results.iterdir() if path.is_dir()) if results.is_dir() else []
        return listed | {name: name for name in there if name not in listed}

    def _manifest_bytes(self) -> bytes | None:
        try:
            return (self.path / manifests.NAME).read_bytes()
        except OSError:
            return None

    def _check_ours(self) -> None:
        try:
            names = {path.name for path in self.path.iterdir()}
        except FileNotFoundError:
            return
        except NotADirectoryError:
            raise RunError(f"{self.path} is a file, wanted a run folder") from None
        except OSError as fault:
            raise RunError(f"cannot read {self.path}: {fault.strerror}") from fault
        data = self._manifest_bytes()
        if names and (data is None or not manifests.is_manifest(data)):
            raise RunError(
                f"{self.path} is not a run folder and not empty (it holds {min(names)!r}): name a new folder"
            )


def is_run_folder(path: Path) -> bool:
    """Whether a run was begun here."""
    return path.is_dir() and (path / manifests.NAME).is_file()
