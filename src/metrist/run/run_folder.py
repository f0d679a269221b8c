"""Run folders: scores by record, the lists of the records, and a page per finished metric.

run/manifest.json                                the settings of the run (a note to the reader)
run/inputs/…                                     what each input held when it was last read (see `view`)
run/results/<metric>/<start>-<digest>.jsonl      scores, each with the hash of its record; all valid files count
run/results/<metric>/complete.json               the metric was finished, and which files have to be there
run/results/<metric>/unfinished.json             exists while a run by another version of the metric is under way
run/timings/…                                    seconds and costs, never part of the results' bytes
run/columns/…                                    of a large run: copies of lists and scores as arrays (see `columns`)
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from metrist._version import __version__
from metrist.columns import HashColumn
from metrist.documents import check_folder
from metrist.errors import RunError
from metrist.metrics.base import NAME, Metric
from metrist.run.columns import FOLDER as COLUMNS
from metrist.run.columns import ColumnsWriter, ScoresWriter, open_columns, read_scores, to_keys, to_rows
from metrist.run.shard_file import (
    DIGEST_LENGTH,
    SHARD_NAME,
    Block,
    Header,
    ShardFile,
    Torn,
    decode,
    decode_header,
    digest_of,
    find_unsettled,
    take_rows,
)
from metrist.run.view import View
from metrist.scores import Failure, FailureKind, Scores

MANIFEST = "manifest.json"
#: The layout of a folder. Those of format 1, which have no list of their inputs, can be read and not be added to.
FORMAT = 2
_MANIFEST_OPENING = '{\n  "metrist":'
_COMPLETE = "complete.json"
_UNFINISHED = "unfinished.json"
_UNFINISHED_NOTE = b'{"unfinished": "a run by another version of the metric"}\n'
_SHARD_NAME = re.compile(rf"\d{{9,}}-[0-9a-f]{{{DIGEST_LENGTH}}}\.jsonl")
#: What decoding a page of a stranger's folder may raise.
_UNREADABLE = (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError)
#: What a run writes into its folder.
_ENTRIES = (MANIFEST, "inputs", "results", "timings", "preferences", COLUMNS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A metric of the run, and the folder that holds its shard files."""

    text: str
    signature: str
    folder: str
    name: str | None = None

    @property
    def label(self) -> str:
        """What tables and checks call the metric."""
        return self.name or self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Settings of the run. It holds no date and no machine, so that equal commands give equal bytes."""

    shard_size: int
    metrics: tuple[Listed, ...]
    input: tuple[str, ...] = ()
    format: int = FORMAT

    @classmethod
    def decode(cls, data: bytes) -> Manifest | None:
        """Read a manifest; None for a torn one."""
        try:
            facts = json.loads(data)
            metrics = tuple(
                Listed(
                    text=row["text"],
                    signature=row["signature"],
                    folder=row["folder"],
                    # None where there is no short name, or none that could have been given.
                    name=name if isinstance(name := row.get("name"), str) and NAME.fullmatch(name) else None,
                )
                for row in facts["metrics"]
            )
            size = facts["shard_size"]
            texts = [text for metric in metrics for text in (metric.text, metric.signature, metric.folder)]
            if not isinstance(size, int) or size < 1 or not all(isinstance(text, str) for text in texts):
                return None
            version = 1 if facts.get("format", 1) == 1 else FORMAT
            return cls(shard_size=size, metrics=metrics, input=tuple(map(str, facts["input"])), format=version)
        except _UNREADABLE:
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Complete:
    """The page of a finished metric: the shard files that have to be there, and how many scores they hold.

    `content`, a hash of all records' texts, and `references`, the different numbers of references that records have,
    are in folders of format 1 only.
    """

    metric: str
    signature: str
    higher_is_better: bool | None
    records: int
    shards: tuple[str, ...]
    content: str = ""
    references: tuple[int, ...] = ()
    #: On records that the metric is not made for.
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stored:
    """One finished metric of a run, in the order of the run's records. `content` is a hash of all records' texts; None:
    unknown. `references` are the different numbers of references that records have; empty: unknown."""

    metric: str
    signature: str
    higher_is_better: bool | None
    items: Sequence[str]
    systems: Sequence[str]
    scores: Scores
    name: str | None = None
    content: str | None = None
    references: tuple[int, ...] = ()
    #: Digests of the records' sources; empty: unknown.
    sources: Sequence[str] = ()

    @property
    def label(self) -> str:
        """What tables and checks call the metric."""
        return self.name or self.metric


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Contents:
    """What a run folder holds: finished metrics in the manifest's order, the texts of unfinished ones, those whose
    scores a run by another version has begun to replace, and notes for the user."""

    stored: list[Stored]
    unfinished: list[str]
    outdated: list[str]
    notes: list[str] = field(default_factory=list)
    #: Short names by text, None for metrics without one.
    names: Mapping[str, str | None] = field(default_factory=dict)


class RunFolder:
    """A folder that holds a run, or can hold one. Opening it writes nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            names = {path.name for path in self.path.iterdir()}
        except FileNotFoundError:
            return
        except NotADirectoryError:
            raise RunError(f"{self.path} is a file, expected a run folder") from None
        except OSError as error:
            raise RunError(f"cannot read {self.path}: {error.strerror}") from error
        check_folder(self.path, (MANIFEST,), RunError)
        data = _read_bytes(self.path / MANIFEST)
        # A torn manifest is one of ours, too.
        opening = None if data is None else data[: len(_MANIFEST_OPENING)].decode("ascii", "replace")
        if names and (opening is None or not _MANIFEST_OPENING.startswith(opening)):
            raise RunError(
                f"{self.path} is not a run folder and not empty (it holds {min(names)!r}): name a new folder"
            )
        check_folder(self.path, _ENTRIES, RunError)

    @property
    def manifest(self) -> Manifest | None:
        """What the runs here were asked for; None if there was none."""
        return Manifest.decode(_read_bytes(self.path / MANIFEST) or b"")

    def check_format(self) -> None:
        """Refuse to add to a folder of an old version: it does not say what its scores belong to."""
        manifest = self.manifest
        if manifest and manifest.format != FORMAT:
            files = " ".join(map(shlex.quote, manifest.input))
            metrics = " ".join(f"-m {shlex.quote(metric.text)}" for metric in manifest.metrics)
            command = f"`metrist score {files} {metrics} -o {shlex.quote(f'{self.path}-2/')}`"
            raise RunError(
                f"{self.path} was written by an older version of metrist: its scores can be loaded, compared and "
                "exported, but none can be added, since it does not say which texts they belong to; name a new folder"
                + (f" and score again what is here: {command}" if files else "")
            )

    def begin(self, manifest: Manifest) -> None:
        """Write the manifest. Metrics and inputs of earlier runs stay in its lists, in the order of their first use."""
        older = self.manifest
        metrics = {metric.text: metric for metric in (*(older.metrics if older else ()), *manifest.metrics)}
        inputs = dict.fromkeys([*(older.input if older else ()), *manifest.input])
        self.write_manifest(replace(manifest, metrics=tuple(metrics.values()), input=tuple(inputs)))

    def write_manifest(self, manifest: Manifest) -> None:
        """Make this the manifest."""
        facts = {
            "metrist": __version__,
            "format": FORMAT,
            "shard_size": manifest.shard_size,
            "input": list(manifest.input),
            "metrics": [{key: v for key, v in asdict(metric).items() if v is not None} for metric in manifest.metrics],
        }
        page = f"{json.dumps(facts, indent=2)}\n".encode("ascii")
        if page != _read_bytes(self.path / MANIFEST):
            write_object(self.path / MANIFEST, page)

    def name_metrics(self, metrics: Sequence[Metric]) -> tuple[Metric, ...]:
        """The metrics, those without a short name under the one that an earlier run here gave them. A name that
        another metric of the folder has is refused."""
        manifest = self.manifest
        listed = manifest.metrics if manifest else ()
        new = {metric.short_name for metric in metrics}
        names = {metric.text: metric.name for metric in listed if metric.name not in new}
        renamed = tuple(m if m.short_name or not names.get(m.text) else m.named(names[m.text]) for m in metrics)
        texts = {metric.text for metric in renamed}
        others = {metric.label: metric.text for metric in listed if metric.text not in texts}
        for metric in renamed:
            if metric.label in others:
                raise RunError(
                    f"{self.path} already has a metric called {metric.label!r}, {others[metric.label]}: give "
                    f"{metric.text} another name"
                )
        return renamed

    def metric_folders(self) -> dict[str, str]:
        """The texts of the metrics by their folder's name. The manifest gives the order; it may be torn or, after two
        runs at once, incomplete: the folders decide."""
        manifest = self.manifest
        folders = {folder_name(metric.text): metric.text for metric in manifest.metrics} if manifest else {}
        results = self.path / "results"
        existing = sorted(path.name for path in results.iterdir() if path.is_dir()) if results.is_dir() else []
        return folders | {name: name for name in existing if name not in folders}

    def read(self) -> Contents:
        """All finished metrics over all records of the run, and what else is known about the folder."""
        folders = self.metric_folders()
        parts = {name: MetricFolder(self.path, name) for name in folders}
        pages = {name: page for name, part in parts.items() if (page := part.complete())}
        manifest = self.manifest
        view = None if manifest and manifest.format != FORMAT else View.read(self.path)
        if not pages or (view is not None and not len(view.hashes)):
            raise RunError(f"{self.path} holds no finished metric: run the same `metrist score` again to finish it")
        names = {metric.text: metric.name for metric in manifest.metrics} if manifest else {}
        stored, notes = list[Stored](), list[str](view.notes if view else ())
        for name, page in pages.items():
            notes += page.notes
            if view is None:
                stored.append(replace(parts[name].read_whole(page), name=names.get(page.metric)))
                continue
            scores, missing = parts[name].arrange(page, view)
            notes += view.describe_missing(page.metric, names.get(page.metric), missing) if len(missing) else ()
            stored.append(
                Stored(
                    metric=page.metric,
                    name=names.get(page.metric),
                    signature=page.signature,
                    higher_is_better=page.higher_is_better,
                    items=view.items,
                    systems=view.systems,
                    scores=scores,
                    references=view.references,
                    sources=view.sources,
                )
            )
        return Contents(
            stored=stored,
            unfinished=[text for name, text in folders.items() if name not in pages],
            outdated=[page.metric for name, page in pages.items() if parts[name].is_outdated],
            notes=notes,
            names=names,
        )


#: Rows of a block with their positions among some records, and whether tokens were scored too.
Piece = tuple[Sequence[int], Block, bool]


@dataclass(eq=False)
class MetricFolder:
    """The shard files of one metric in a run folder: a store of scores by the hash of the record."""

    #: What its folder holds besides shard files.
    PAGES: ClassVar[tuple[str, ...]] = (_COMPLETE, _UNFINISHED)
    run: Path
    name: str
    #: Whether scores that failed for any reason are to be computed again.
    retry_failed: bool = False
    damaged: list[str] = field(default_factory=list)
    #: Where the scores of records are that no file of their own group holds.
    _index: _HashIndex | None = None
    #: Files that were read, None where one is damaged, with the rows that are to be computed again.
    _files: dict[str, tuple[ShardFile | None, frozenset[int]]] = field(default_factory=dict)
    #: Files that hold exactly a group of this run. Each record of a run is in one group.
    _whole: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.results, self.timings = self.run / "results" / self.name, self.run / "timings" / self.name

    # ---- Scores of records ----

    def find(self, start: int, hashes: Sequence[str], signature: str, *, tokens: bool) -> tuple[list[Piece], bool]:
        """The stored scores of these records, and whether one file holds exactly them. Scores that are to be computed
        again are left out. Those with tokens also serve a run that wants none: they are the same."""
        for with_tokens in (True,) if tokens else (True, False):
            name = SHARD_NAME.format(start, digest_of(hashes, signature, tokens=with_tokens))
            file = self._read_file(name, note=with_tokens == tokens)
            if file is not None and not find_unsettled(file.block, retry_failed=self.retry_failed):
                self._whole.add(name)
                return [(range(len(hashes)), file.block, with_tokens)], True
        if self._index is None:
            others = ((name, header) for name, header in self.iterate_headers() if name not in self._whole)
            self._index = _HashIndex.of((name, header) for name, header in others if header.signature == signature)
        by_file: dict[str, tuple[list[int], list[int]]] = {}
        for position, places in self._index.find(hashes):
            for name, row in places:
                if tokens and name not in self._index.with_tokens:
                    continue
                if name not in self._files:
                    file = self._read_file(name)
                    unsettled = find_unsettled(file.block, retry_failed=self.retry_failed) if file else frozenset[int]()
                    self._files[name] = file, unsettled
                file, unsettled = self._files[name]
                if file is not None and row not in unsettled and file.header.hashes[row] == hashes[position]:
                    positions, rows = by_file.setdefault(name, ([], []))
                    positions.append(position)
                    rows.append(row)
                    break
        pieces = list[Piece]()
        for name, (positions, rows) in by_file.items():
            file, _ = self._files[name]
            assert file is not None
            pieces.append((positions, take_rows(file.block, rows), file.header.tokens))
        return pieces, False

    def _read_file(self, name: str, *, note: bool = True) -> ShardFile | None:
        """A file of the folder; None if it is not there. A damaged one is noted, to be redone."""
        try:
            return read_shard(self.results / name)
        except FileNotFoundError:
            return None
        except Torn as error:
            message = f"{self.results / name} was set aside and scored again: {error}"
            self.damaged += [message] if note and message not in self.damaged else []
            return None

    def read_block(self, name: str) -> Block:
        """What a file of this run holds."""
        block: Block = read_shard(self.results / name).block
        return block

    # ---- Files ----

    def list_files(self) -> list[str]:
        """The names of all shard files."""
        try:
            return sorted(entry.name for entry in os.scandir(self.results) if _SHARD_NAME.fullmatch(entry.name))
        except FileNotFoundError:
            return []

    def iterate_headers(self) -> Iterator[tuple[str, Header]]:
        """The shard files with their headers; torn ones are left out."""
        for name in self.list_files():
            header = self.read_header(name)
            if header is not None:
                yield name, header

    def read_header(self, name: str) -> Header | None:
        """The first line of a shard file; None if it is torn or gone."""
        try:
            with (self.results / name).open("rb") as file:
                header = decode_header(file.readline())
        except (OSError, Torn):
            return None
        return header if name == header.file_name else None

    def remove(self, names: Iterable[str]) -> None:
        """Delete shard files whose scores other files hold."""
        for name in names:
            path = self.results / name
            if not path.exists():  # A folder that can only be read refuses even that.
                continue
            try:
                path.unlink(missing_ok=True)  # Another run of the same command may have been faster.
            except OSError as error:
                raise RunError(f"cannot remove {path}: {error.strerror}") from error

    def read_timing(self, name: str) -> dict[str, Any]:
        """The seconds, records and costs that were noted for a shard file."""
        try:
            timing = json.loads(_read_bytes(self.timings / f"{Path(name).stem}.json") or b"")
            return {"seconds": float(timing["seconds"]), "records": int(timing["records"]), "usage": timing["usage"]}
        except _UNREADABLE:
            return {"seconds": 0.0, "records": 0, "usage": {}}

    def write_timing(self, name: str, timing: Mapping[str, Any]) -> None:
        """Note the seconds, records and costs of a shard file, apart from it."""
        path = self.timings / f"{Path(name).stem}.json"
        write_object(path, f"{json.dumps(timing, default=str)}\n".encode())

    # ---- The page of a finished metric ----

    def complete(self) -> Complete | None:
        """The page that `close` wrote; None while the metric is unfinished."""
        try:
            facts = {"references": (), "notes": (), **json.loads(_read_bytes(self.results / _COMPLETE) or b"")}
            references = tuple(number for number in facts["references"] if isinstance(number, int))
            notes = tuple(note for note in facts["notes"] if isinstance(note, str))
            page = Complete(**{**facts, "shards": tuple(facts["shards"]), "references": references, "notes": notes})
            valid = page.shards and all(map(_SHARD_NAME.fullmatch, page.shards))
            valid = valid and isinstance(page.metric, str) and isinstance(page.signature, str)
            valid = valid and isinstance(page.higher_is_better, bool | None) and type(page.records) is int
            return page if valid and isinstance(page.content, str) else None
        except _UNREADABLE:
            return None

    @property
    def is_outdated(self) -> bool:
        """Whether a later run by another version of the metric began and did not finish."""
        return (self.results / _UNFINISHED).exists()

    def open(self, signature: str) -> None:
        """Mark the metric where this run is by another version of it: if it does not finish, readers of the folder must
        know that the scores they get are older."""
        page = self.complete()
        if page and page.signature != signature:
            write_object(self.results / _UNFINISHED, _UNFINISHED_NOTE)

    def close(
        self,
        metric: str,
        signature: str,
        higher_is_better: bool | None,
        files: Mapping[str, int],
        records: Sequence[str] = (),
        notes: Sequence[str] = (),
        *,
        has_all_records: bool = False,
    ) -> int:
        """Record that the metric is finished. `files` are those of this run with the number of their scores, `records`
        the hashes of all records of the run folder. `notes` of earlier runs stay, unless this one had all records.

        Files whose scores are all in `files` are removed; whatever else is in the folder stays. Where the page was that
        of another version of the metric, returns how many scores by other versions there are.
        """
        page = self.complete()
        listed = set(page.shards) if page else set()
        counts = dict(files)
        repeated, older = list[str](), 0
        others = [name for name in self.list_files() if name not in files]
        known = _RunHashes(self, files, records) if others else None
        for name in others:
            header = self.read_header(name)
            if name not in listed and self._is_torn(name):
                # What a killed run left of a write is no score; a file that was whole once is kept.
                repeated.append(name)
            elif header is None:
                continue
            elif header.signature != signature:
                older += header.count
            elif known and known.holds_all(header):
                repeated.append(name)
            elif known and known.is_wanted(header):
                counts[name] = header.count
        self.write_page(
            Complete(
                metric=metric,
                signature=signature,
                higher_is_better=higher_is_better,
                records=sum(counts.values()),
                shards=tuple(sorted(counts)),
                notes=tuple(dict.fromkeys([*(page.notes if page and not has_all_records else ()), *notes])),
            )
        )
        self.remove([_UNFINISHED, *repeated])
        # What was read is no longer needed, and must not fill the memory.
        self._index = None
        self._files.clear()
        self._whole.clear()
        return older if page and page.signature != signature else 0

    def _is_torn(self, name: str) -> bool:
        try:
            decode((self.results / name).read_bytes())
        except Torn:
            return True
        except OSError:
            pass
        return False

    def write_page(self, page: Complete) -> None:
        """Make this the page of the metric."""
        facts = {name: value for name, value in asdict(page).items() if value not in ("", ())}
        data = f"{json.dumps(facts, indent=1)}\n".encode("ascii")
        if _read_bytes(self.results / _COMPLETE) != data:
            write_object(self.results / _COMPLETE, data)

    # ---- All scores ----

    def arrange(
        self, page: Complete, view: View, known: Mapping[str, ShardFile] | None = None
    ) -> tuple[Scores, Sequence[str] | set[str]]:
        """The scores of the records, and the hashes of those that are not there yet, which have a failure of kind
        `pending`. `known` are files that need not be read again. The scores of a large run are mapped columns."""
        hashes = view.hashes
        if isinstance(hashes, HashColumn):
            return self._map_columns(page, view, hashes)
        files = self._read_page(page, known or {})
        if [digest for file in files for digest in file.header.hashes] == list(hashes):
            return Scores.join([file.scores for file in files]), set()
        rows: dict[str, int] = {}
        blocks, position = list[Scores](), 0
        for file in self._with_unlisted(page, files, hashes):
            unsettled = find_unsettled(file.block)
            for row, digest in enumerate(file.header.hashes):
                if digest not in rows or row not in unsettled:
                    rows[digest] = position + row
            blocks.append(file.scores)
            position += len(file.scores)
        missing = {digest for digest in hashes if digest not in rows}
        positions = [n for n, digest in enumerate(hashes) if digest not in missing]
        scores = Scores.join(blocks).take([rows[hashes[n]] for n in positions])
        if not missing:
            return scores, missing
        pending = Failure(FailureKind.pending, f"{page.metric} has not scored this output yet")
        failures = {n: pending for n, digest in enumerate(hashes) if digest in missing}
        return scores.spread(len(hashes), positions, failures), missing

    def _read_page(self, page: Complete, known: Mapping[str, ShardFile]) -> list[ShardFile]:
        return list(self._iterate_page(page, known))

    def _iterate_page(self, page: Complete, known: Mapping[str, ShardFile]) -> Iterator[ShardFile]:
        """The files of the page; a missing or damaged one is an error, since there are no records to redo it."""
        count = 0
        for name in page.shards:
            path = self.results / name
            try:
                file = known[name] if name in known else read_shard(path)
            except FileNotFoundError:
                raise RunError(f"{path} is missing: run the same `metrist score` again to redo it") from None
            except Torn as error:
                raise RunError(f"{path} is damaged ({error}): run the same `metrist score` again to redo it") from None
            if file.header.signature != page.signature:
                raise RunError(
                    f"{self.results}: a file has the signature {file.header.signature!r}, expected {page.signature!r}: "
                    "run the same `metrist score` again to redo it"
                )
            if not isinstance(file.block, Scores):
                raise RunError(f"{self.results} holds preferences, expected scores")
            count += file.header.count
            yield file
        if count != page.records:
            raise RunError(
                f"{self.results / _COMPLETE} lists files with {count:,} scores and promises {page.records:,}: run the "
                "same `metrist score` again to redo it"
            )

    def _map_columns(self, page: Complete, view: View, hashes: HashColumn) -> tuple[Scores, HashColumn]:
        """The scores of a large run, from columns. Their key is a hash of the page, of the lists of records, and of the
        names, sizes and times of all shard files."""
        state = [_read_bytes(self.results / _COMPLETE) or b"", *(one.key.encode("ascii") for one in view.inputs)]
        for entry in sorted(os.scandir(self.results), key=lambda entry: entry.name):
            if _SHARD_NAME.fullmatch(entry.name):
                status = entry.stat()
                state.append(f"{entry.name} {status.st_size} {status.st_mtime_ns}".encode("ascii"))
        key = hashlib.sha256(b"\n".join(state)).hexdigest()
        columns = open_columns(
            self.run / COLUMNS / "results" / self.name, key, lambda writer: self._write_columns(writer, page, hashes)
        )
        return read_scores(columns), HashColumn(hashes.rows[columns.arrays["missing"]])

    def _write_columns(self, writer: ColumnsWriter, page: Complete, hashes: HashColumn) -> dict[str, Any]:
        scores, unsettled = ScoresWriter(writer), list[int]()

        def add(file: ShardFile) -> None:
            unsettled.extend(scores.rows + row for row in find_unsettled(file.block))
            writer.append("hashes", to_rows(file.header.hashes, 16))
            scores.append(file.scores)

        for file in self._iterate_page(page, {}):
            add(file)
        missing = np.empty(0, np.int64)
        if not np.array_equal(writer.read("hashes"), hashes.rows):
            wanted = to_keys(hashes.rows)
            known = to_keys(writer.read("hashes"))
            if not np.isin(wanted, known).all():
                for name, header in self.iterate_headers():
                    if name not in page.shards and header.signature == page.signature:
                        unlisted = self._read_file(name)
                        if unlisted is not None and isinstance(unlisted.block, Scores):
                            add(unlisted)
            chosen = _choose_rows(wanted, to_keys(writer.read("hashes")), np.array(unsettled, np.int64))
            missing = np.flatnonzero(chosen < 0)
            scores.reorder(chosen, Failure(FailureKind.pending, f"{page.metric} has not scored this output yet"))
        writer.drop("hashes")
        writer.append("missing", missing.astype(np.int64))
        return scores.finish()

    def _with_unlisted(self, page: Complete, files: list[ShardFile], hashes: Sequence[str]) -> Iterator[ShardFile]:
        """The files of the page, and what runs that were not finished have added."""
        yield from files
        known = {digest for file in files for digest in file.header.hashes}
        missing = {digest for digest in hashes if digest not in known}
        if not missing:
            return
        for name, header in self.iterate_headers():
            if name not in page.shards and header.signature == page.signature and not missing.isdisjoint(header.hashes):
                file = self._read_file(name)
                if file is not None and isinstance(file.block, Scores):
                    yield file

    def read_whole(self, page: Complete) -> Stored:
        """The scores in a folder of format 1, in the order of its files."""
        items: list[str] = []
        systems: list[str] = []
        names: dict[str, str] = {}
        files = self._read_page(page, {})
        for file in files:
            # Names repeat in every metric and most of them in every system: each is kept once.
            items += [names.setdefault(item, item) for item in file.items]
            systems += [names.setdefault(system, system) for system in file.systems]
        return Stored(
            metric=page.metric,
            signature=page.signature,
            higher_is_better=page.higher_is_better,
            items=items,
            systems=systems,
            scores=Scores.join([file.scores for file in files]),
            content=page.content,
            references=page.references,
        )


@dataclass(frozen=True, slots=True, eq=False)
class _HashIndex:
    """Where shard files hold the scores of records: beginnings of the records' hashes, sorted, with the number of the
    file and the row. It takes 16 bytes a score."""

    names: Sequence[str]
    with_tokens: frozenset[str]
    starts: NDArray[np.uint64]
    files: NDArray[np.int32]
    rows: NDArray[np.int32]

    @classmethod
    def of(cls, headers: Iterable[tuple[str, Header]]) -> _HashIndex:
        names, tokens, starts, counts = list[str](), set[str](), list[NDArray[np.uint64]](), list[int]()
        for name, header in headers:
            names.append(name)
            starts.append(_begin_hashes(header.hashes))
            counts.append(len(header.hashes))
            tokens |= {name} if header.tokens else set()
        joined = np.concatenate([np.empty(0, np.uint64), *starts])
        starts.clear()
        order = np.argsort(joined, kind="stable")
        files = np.repeat(np.arange(len(names), dtype=np.int32), counts)[order]
        ends = np.cumsum([0, *counts])
        return cls(names, frozenset(tokens), joined[order], files, (order - ends[files]).astype(np.int32))

    def find(self, hashes: Sequence[str]) -> Iterator[tuple[int, list[tuple[str, int]]]]:
        """The positions of the hashes that some file may hold, with these files and rows. The rest of the hash is to be
        compared with the file's."""
        if not len(self.starts):
            return
        begins = _begin_hashes(hashes)
        first, last = np.searchsorted(self.starts, begins, "left"), np.searchsorted(self.starts, begins, "right")
        for position in np.flatnonzero(first < last).tolist():
            span = range(int(first[position]), int(last[position]))
            yield position, [(self.names[self.files[n]], int(self.rows[n])) for n in span]


def _begin_hashes(hashes: Sequence[str]) -> NDArray[np.uint64]:
    data = bytes.fromhex("".join(digest[:16] for digest in hashes))
    return np.frombuffer(data, ">u8").astype(np.uint64)


class _RunHashes:
    """The hashes of the records that files of one run hold, and of all records of the folder."""

    def __init__(self, store: MetricFolder, files: Iterable[str], records: Sequence[str]) -> None:
        headers = [header for name in files if (header := store.read_header(name))]
        tokens = [to_rows(header.hashes, 16) for header in headers if header.tokens]
        empty = np.empty((0, 16), np.uint8)
        self._plain = np.sort(
            to_keys(np.concatenate([empty, *(to_rows(h.hashes, 16) for h in headers if not h.tokens), *tokens]))
        )
        self._with_tokens = np.sort(to_keys(np.concatenate([empty, *tokens])))
        self._records = np.sort(to_keys(to_rows(records, 16)))

    def holds_all(self, header: Header) -> bool:
        """Whether the run has scored all records of another file."""
        return bool(_contains(self._with_tokens if header.tokens else self._plain, header).all())

    def is_wanted(self, header: Header) -> bool:
        """Whether another file holds scores of records of the folder."""
        return bool(_contains(self._records, header).any())


def _contains(known: NDArray[np.bytes_], header: Header) -> NDArray[np.bool_]:
    keys = to_keys(to_rows(header.hashes, 16))
    if not len(known):
        return np.zeros(len(keys), np.bool_)
    at = np.minimum(np.searchsorted(known, keys), len(known) - 1)
    return np.asarray(known[at] == keys)


def _choose_rows(
    wanted: NDArray[np.bytes_], known: NDArray[np.bytes_], unsettled: NDArray[np.int64]
) -> NDArray[np.int64]:
    """For each hash the row that has it, -1 if there is none: of several, the last that is not to be computed again, or
    the first."""
    order = np.argsort(known, kind="stable")
    if not len(order):
        return np.full(len(wanted), -1, np.int64)
    ordered = known[order]
    first, last = np.searchsorted(ordered, wanted, "left"), np.searchsorted(ordered, wanted, "right")
    chosen = np.where(first < last, order[np.minimum(first, len(order) - 1)], -1)
    doubtful = set(unsettled.tolist())
    for position in np.flatnonzero(last - first > 1).tolist():
        rows = order[first[position] : last[position]].tolist()
        chosen[position] = next((row for row in reversed(rows) if row not in doubtful), rows[0])
    return chosen.astype(np.int64)


def is_run_folder(path: Path) -> bool:
    """Whether a run was begun here."""
    return path.is_dir() and (path / MANIFEST).is_file()


def folder_name(text: str) -> str:
    """A folder name for a metric's text: the plain name, or its legible part and a hash of the whole."""
    if re.fullmatch(r"[A-Za-z0-9_]+", text):
        return text
    legible = re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-.")[:60]
    return f"{legible}-{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def write_object(path: Path, data: bytes) -> None:
    """Make the file hold exactly these bytes, without a rename, as object stores work too.

    The file is not emptied first: where another process has already written the same bytes, they are never gone.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        with os.fdopen(handle, "wb", buffering=0) as file:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(file.fileno(), rest) :]
            file.truncate(len(data))
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}; earlier results are kept") from error


def read_shard(path: Path) -> ShardFile:
    try:
        file = decode(path.read_bytes())
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror}") from error
    header = file.header
    if path.name != header.file_name:
        raise Torn(f"it is a shard of {header.metric} at position {header.start} under another name")
    return file


def _read_bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None
