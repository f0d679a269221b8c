"""Delete parts of a run: inputs, metrics, systems, or scores that no record needs any more."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from metrist.errors import RunError, did_you_mean, format_count
from metrist.io.writer import atomic_write_bytes
from metrist.records import Record
from metrist.run.columns import remove_columns
from metrist.run.run_folder import FORMAT, MANIFEST, Complete, MetricFolder, RunFolder, is_run_folder, write_object
from metrist.run.shard_file import Header, decode, digest_of, encode, take_rows
from metrist.run.view import FOLDER, RunInput, View


@dataclass(eq=False)
class Removal:
    """What would be deleted, in words, and `apply` to delete it."""

    messages: list[str] = field(default_factory=list)
    _steps: list[Callable[[], None]] = field(default_factory=list)
    _run: Path | None = None

    @property
    def deletes(self) -> bool:
        """Whether there is anything to delete."""
        return bool(self._steps)

    def apply(self) -> None:
        """Delete it. Whatever else is in the folder stays; a killed removal can be repeated."""
        for step in self._steps:
            step()
        if self._steps and self._run is not None:
            remove_columns(self._run)


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
    path = Path(run)
    if not is_run_folder(path):
        raise RunError(f"{path} is not a run folder: it has no {MANIFEST}")
    folder = RunFolder(path)
    if not (inputs or metrics or systems or unused):
        return _plan_whole(folder)
    manifest = folder.manifest
    if manifest and manifest.format != FORMAT and (inputs or systems or unused):
        raise RunError(f"{path} was written by an older version of metrist: remove metrics of it, or all of it")
    removal = Removal(_run=path)
    chosen = _choose_metrics(folder, metrics)
    if inputs or systems or unused:
        view = View.read(path)
        kept = _plan_records(removal, view, inputs, systems)
        wanted = View(path, kept).hashes
        gone = None if unused else frozenset(view.hashes) - frozenset(wanted)
        for name, text in folder.metric_folders().items():
            if name not in chosen:
                _plan_scores(removal, MetricFolder(path, name), text, frozenset(wanted), gone)
    for name, text in chosen.items():
        _plan_metric(removal, folder, name, text)
    return removal


def _choose_metrics(folder: RunFolder, metrics: Sequence[str]) -> dict[str, str]:
    """The chosen metrics by the name of their folder."""
    known = folder.metric_folders()
    manifest = folder.manifest
    labels = {metric.label: metric.folder for metric in manifest.metrics} if manifest else {}
    names = {text: name for name, text in known.items()} | {
        label: name for label, name in labels.items() if name in known
    }
    chosen = {}
    for metric in metrics:
        if metric not in names:
            raise RunError(
                f"{folder.path} has no metric {metric!r}{did_you_mean(metric, names)}; it has {', '.join(names)}"
            )
        chosen[names[metric]] = metric
    return chosen


def _plan_records(removal: Removal, view: View, inputs: Sequence[str], systems: Sequence[str]) -> list[RunInput]:
    """Plan to delete the lists of these inputs and systems; returns the lists that will be there."""
    labels = dict.fromkeys(one.describe(view.run) for one in view.inputs)
    chosen = [one for name in inputs for one in _find_input(view, name, labels)]
    known = dict.fromkeys(view.systems)
    for system in systems:
        if system not in known:
            raise RunError(
                f"{view.run} has no system {system!r}{did_you_mean(system, known)}; it has {', '.join(known)}"
            )
    kept = []
    for one in view.inputs:
        rows = [n for n, system in enumerate(one.systems) if system not in systems]
        if any(one is other for other in chosen):
            rows = []
        if len(rows) == len(one.hashes):
            kept.append(one)
            continue
        count = len(one.hashes) - len(rows)
        removal.messages.append(f"{format_count(count, 'record')} of {one.describe(view.run)}; the file itself stays")
        old = view.run / FOLDER / one.file_name
        rest = replace(
            one,
            items=[one.items[n] for n in rows],
            systems=[one.systems[n] for n in rows],
            hashes=[one.hashes[n] for n in rows],
            sources=[one.sources[n] for n in rows],
        )
        if rows:
            kept.append(rest)
        removal._steps.append(_replace_list(view.run / FOLDER, old, rest if rows else None))
    return kept


def _replace_list(folder: Path, old: Path, new: RunInput | None) -> Callable[[], None]:
    def step() -> None:
        if new is not None:
            with atomic_write_bytes(folder / new.file_name) as file:
                file.write(new.encode())
        if new is None or new.file_name != old.name:
            _unlink(old)

    return step


def _find_input(view: View, name: str, labels: Iterable[str]) -> list[RunInput]:
    """The inputs that were read from a file; a name that files of several folders had must say which."""
    place = os.path.realpath(name)
    for known in (
        [one for one in view.inputs if one.path and os.path.realpath(view.run / one.path) == place],
        [one for one in view.inputs if name == one.label],
    ):
        if len({one.path for one in known}) > 1:
            listed = ", ".join(one.describe(view.run) for one in known)
            raise RunError(f"{view.run} has several inputs {name!r}: name one of {listed}")
        if known:
            return known
    raise RunError(f"{view.run} has no input {name!r}{did_you_mean(name, labels)}; it has {', '.join(labels)}")


def _plan_scores(
    removal: Removal, store: MetricFolder, text: str, wanted: frozenset[str], gone: frozenset[str] | None
) -> None:
    """Plan to delete the scores of the records that are `gone`; None: of all that are not wanted, and of other versions
    of the metric."""
    page = store.complete()
    deleted = 0
    rewrites: dict[str, list[int]] = {}
    counts: dict[str, int] = {}
    for name, header in store.iterate_headers():
        is_current = page is None or header.signature == page.signature
        rows = [
            n
            for n, digest in enumerate(header.hashes)
            if (digest not in gone if gone is not None else is_current and digest in wanted)
        ]
        if len(rows) < header.count:
            rewrites[name] = rows
            deleted += header.count - len(rows)
        if rows and page and is_current and (name in page.shards or len(rows) < header.count):
            counts[name] = len(rows)
    if not rewrites:
        return
    removal.messages.append(f"{format_count(deleted, 'score')} by {text}")
    removal._steps.append(lambda: _rewrite(store, page, rewrites, counts))


def _rewrite(
    store: MetricFolder, page: Complete | None, rewrites: dict[str, list[int]], counts: dict[str, int]
) -> None:
    """Write the files that are left, then the page that lists them, then delete the old ones."""
    for name, rows in rewrites.items():
        if not rows:
            continue
        file = decode((store.results / name).read_bytes())
        hashes = tuple(file.header.hashes[n] for n in rows)
        digest = digest_of(hashes, file.header.signature, tokens=file.header.tokens)
        header: Header = replace(file.header, count=len(rows), digest=digest, hashes=hashes)
        units = [Record(item=file.items[n], system=file.systems[n], output="") for n in rows]
        new = header.file_name
        write_object(store.results / new, encode(header, units, take_rows(file.block, rows)))
        if name in counts:
            counts[new] = counts.pop(name)
    if page:
        if counts:
            store.write_page(replace(page, records=sum(counts.values()), shards=tuple(sorted(counts))))
        else:
            store.remove(store.PAGES)
    store.remove(rewrites)
    for name in rewrites:
        _unlink(store.timings / f"{Path(name).stem}.json")


def _plan_metric(removal: Removal, folder: RunFolder, name: str, text: str) -> None:
    store = MetricFolder(folder.path, name)
    count = sum(header.count for _, header in store.iterate_headers())
    removal.messages.append(f"{format_count(count, 'score')} by {text}, all that it has")

    def step() -> None:
        manifest = folder.manifest
        if manifest:
            folder.write_manifest(
                replace(manifest, metrics=tuple(metric for metric in manifest.metrics if metric.folder != name))
            )
        _delete_store(store)

    removal._steps.append(step)


def _plan_whole(folder: RunFolder) -> Removal:
    manifest = folder.manifest
    records = len(View.read(folder.path).hashes) if not manifest or manifest.format == FORMAT else 0
    metrics = ", ".join(folder.metric_folders().values()) or "no metric"
    about = f" of {format_count(records, 'record')}" if records else ""
    removal = Removal([f"the whole run {folder.path}: scores by {metrics}{about}"])

    def step() -> None:
        remove_columns(folder.path)
        for name in folder.metric_folders():
            _delete_store(MetricFolder(folder.path, name))
        _delete_files(folder.path / "results")
        _delete_files(folder.path / "timings", "machine.json")
        _delete_files(folder.path / FOLDER, "*.jsonl")
        _delete_files(folder.path, MANIFEST)

    removal._steps.append(step)
    return removal


def _delete_store(store: MetricFolder) -> None:
    store.remove([*store.PAGES, *store.list_files()])
    _delete_files(store.results)
    _delete_files(store.timings, "*.json")


def _delete_files(folder: Path, *patterns: str) -> None:
    """Delete the files of these names, and the folder if nothing else is in it."""
    for pattern in patterns:
        for path in folder.glob(pattern):
            _unlink(path)
    with suppress(OSError):  # The user keeps something in it, or it is not there.
        folder.rmdir()


def _unlink(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise RunError(f"cannot remove {path}: {error.strerror}") from error
