"""A run folder's first page: what was asked for. A note to the reader; the shards themselves say what was done."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any

from metrist._version import __version__
from metrist.errors import RunError
from metrist.run.shard_file import DIGEST_LENGTH, Block, Torn, digest_of
from metrist.run.shard_file import decode as decode_shard_file
from metrist.scores import Scores

NAME = "manifest.json"
_OPENING = '{\n  "metrist":'


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A metric of the run, and the folder that holds its shards."""

    text: str
    signature: str
    folder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Settings of the run. It holds no date and no machine, so that equal commands give equal bytes."""

    shard_size: int
    metrics: tuple[Listed, ...]
    input: tuple[str, ...] = ()

    def joined(self, older: Manifest | None) -> Manifest:
        """This manifest, with the metrics that an earlier run left in the folder listed after its own."""
        mine = {listed.text for listed in self.metrics}
        kept = [listed for listed in (older.metrics if older else ()) if listed.text not in mine]
        return Manifest(shard_size=self.shard_size, metrics=(*self.metrics, *kept), input=self.input)

    def is_foreign_to(self, older: Manifest) -> bool:
        """Whether the two read files of other names: going on would throw the older scores away."""
        mine, theirs = ({PurePath(name).name for name in one.input} for one in (self, older))
        return bool(mine and theirs) and mine.isdisjoint(theirs)

    def encode(self) -> bytes:
        """The manifest as JSON to read by eye."""
        listed = [{"text": m.text, "signature": m.signature, "folder": m.folder} for m in self.metrics]
        facts = {"metrist": __version__, "shard_size": self.shard_size, "input": list(self.input), "metrics": listed}
        return f"{json.dumps(facts, indent=2)}\n".encode("ascii")


def is_manifest(data: bytes) -> bool:
    """Whether these bytes are a manifest of ours, or the torn beginning of one."""
    text = data[: len(_OPENING)].decode("ascii", "replace")
    return _OPENING.startswith(text)


def decode(data: bytes) -> Manifest | None:
    """Read a manifest back; None for a torn one."""
    try:
        facts: Mapping[str, Any] = json.loads(data)
        return Manifest(shard_size=facts["shard_size"], metrics=_listed(facts["metrics"]), input=tuple(facts["input"]))
    except (ValueError, TypeError, KeyError):
        return None


def _listed(rows: Sequence[Mapping[str, str]]) -> tuple[Listed, ...]:
    return tuple(Listed(text=row["text"], signature=row["signature"], folder=row["folder"]) for row in rows)


# Writing one object of a run folder whole, without a rename: the way that object stores work too.


def write_object(path: Path, data: bytes) -> None:
    """Make the file hold exactly these bytes.

    The file is not emptied first: where another process has written the same bytes already, no moment exists
    in which they are gone.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        with os.fdopen(handle, "wb", buffering=0) as file:
            _write_all(file.fileno(), data)
            file.truncate(len(data))
    except OSError as fault:
        raise RunError(f"cannot write {path}: {fault.strerror}; what was done before is kept") from fault


def _write_all(handle: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(handle, rest) :]


# One metric's part of a run folder: its shards, what they took, and the page that says that all are there.


_COMPLETE = "complete.json"
_UNFINISHED = "unfinished.json"
_WHY_UNFINISHED = b'{"unfinished": "a run of other records or of another version of the metric"}\n'
_SHARD_NAME = re.compile(rf"\d{{9,}}-[0-9a-f]{{{DIGEST_LENGTH}}}\.jsonl")
_TIMING_NAME = re.compile(r"\d{9,}\.json")


def folder_name(text: str) -> str:
    """A folder name for a metric's text: the plain name, or what is legible of the text and a hash of all of it."""
    if re.fullmatch(r"[A-Za-z0-9_]+", text):
        return text
    legible = re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-.")[:60]
    return f"{legible}-{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Complete:
    """What a metric's folder holds when all of its shards are there. `content` is a hash of all records' texts."""

    metric: str
    signature: str
    higher_is_better: bool | None
    records: int
    content: str
    shards: tuple[str, ...]

    def encode(self) -> bytes:
        """The page as JSON, one shard a line."""
        facts = {
            "metric": self.metric,
            "signature": self.signature,
            "higher_is_better": self.higher_is_better,
            "records": self.records,
            "content": self.content,
            "shards": self.shards,
        }
        return f"{json.dumps(facts, indent=1)}\n".encode("ascii")


class MetricFolder:
    """Reads and writes the shards of one metric under one run folder."""

    def __init__(self, run: Path, name: str) -> None:
        self.results = run / "results" / name
        self.timings = run / "timings" / name
        self.set_aside: list[str] = []
        self._expected: dict[int, str] = {}
        self._richer: dict[int, str] = {}

    def expect(self, start: int, content: str, signature: str, *, tokens: bool = False) -> str:
        """Note that the run has a shard with this content at this position, with readings of tokens or without; the
        digest that its file is named by."""
        plain, rich = (digest_of(content, signature, tokens=with_tokens) for with_tokens in (False, True))
        digest = rich if tokens else plain
        self._expected[start] = _shard_name(start, digest)
        self._richer[start] = _shard_name(start, rich)
        if self._replaced and self._replaced.isdisjoint((_shard_name(start, plain), self._richer[start])):
            # Should this run not reach its end, whoever reads the folder must know that the finished one is older.
            write_object(self.results / _UNFINISHED, _WHY_UNFINISHED)
            self._replaced = frozenset()
        return digest

    @cached_property
    def _replaced(self) -> frozenset[str]:
        """The shards of the finished run that this one may replace; none once it is marked so."""
        page = self.complete()
        return frozenset(page.shards if page else ())

    def find(self, start: int) -> Block | None:
        """The expected shard at this position, if it is there and whole. A damaged one is noted, to be redone. One with
        readings of tokens also serves a run that asks for none: its scores are the same."""
        if self._expected[start] != self._richer[start]:
            with contextlib.suppress(FileNotFoundError, Torn):
                block = _checked(self.results / self._richer[start])
                self._expected[start] = self._richer[start]
                return block
        path = self.results / self._expected[start]
        try:
            return _checked(path)
        except FileNotFoundError:
            return None
        except Torn as fault:
            self.set_aside.append(f"{path} was set aside and scored again: {fault}")
            return None

    def write(self, start: int, data: bytes, timing: Mapping[str, Any]) -> None:
        """Store the expected shard at this position, and what it took apart from it."""
        write_object(self.results / self._expected[start], data)
        write_object(self.timings / f"{start:09d}.json", f"{json.dumps(timing, default=str)}\n".encode())

    def close(self, metric: str, signature: str, higher_is_better: bool | None, *, records: int, content: str) -> None:
        """Say that all expected shards are there, then remove those of an earlier input or version."""
        page = Complete(
            metric=metric,
            signature=signature,
            higher_is_better=higher_is_better,
            records=records,
            content=content,
            shards=tuple(self._expected[start] for start in sorted(self._expected)),
        ).encode()
        path = self.results / _COMPLETE
        if _bytes_of(path) != page:
            write_object(path, page)
        _remove(self.results / _UNFINISHED)
        _remove_others(self.results, _SHARD_NAME, page_names=set(self._expected.values()))
        _remove_others(self.timings, _TIMING_NAME, page_names={f"{start:09d}.json" for start in self._expected})

    def complete(self) -> Complete | None:
        """The page that `close` wrote; None while the metric is unfinished."""
        try:
            facts = json.loads(_bytes_of(self.results / _COMPLETE) or b"")
            page = Complete(**{**facts, "shards": tuple(facts["shards"])})
            return page if page.shards and all(map(_SHARD_NAME.fullmatch, page.shards)) else None
        except (ValueError, TypeError, KeyError):
            return None

    @property
    def is_outdated(self) -> bool:
        """Whether a later run, of other records or of another version of the metric, began and did not end."""
        return (self.results / _UNFINISHED).exists()

    def blocks(self, names: Sequence[str]) -> Iterator[Block]:
        """These shards in order; a missing or damaged one is an error, since no records are here to redo it."""
        for name in names:
            path = self.results / name
            try:
                yield _checked(path)
            except FileNotFoundError:
                raise RunError(f"{path} is missing: run the same `metrist score` again to redo it") from None
            except Torn as fault:
                raise RunError(f"{path} is damaged ({fault}): run the same `metrist score` again to redo it") from None


def _shard_name(start: int, digest: str) -> str:
    return f"{start:09d}-{digest}.jsonl"


def _checked(path: Path) -> Block:
    try:
        block = decode_shard_file(path.read_bytes())
    except FileNotFoundError:
        raise
    except OSError as fault:
        raise RunError(f"cannot read {path}: {fault.strerror}") from fault
    header = block.header
    if path.name != _shard_name(header.start, header.digest):
        raise Torn(f"it is a shard of {header.metric} at position {header.start} under another name")
    return block


def _bytes_of(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _remove_others(folder: Path, ours: re.Pattern[str], page_names: Iterable[str]) -> None:
    # Only names of our own making are removed: whatever else a user keeps here stays.
    for path in folder.iterdir() if folder.is_dir() else ():
        if ours.fullmatch(path.name) and path.name not in page_names:
            _remove(path)


def _remove(path: Path) -> None:
    # Another run of the same command may have been faster.
    with contextlib.suppress(FileNotFoundError):
        try:
            path.unlink()
        except PermissionError as fault:
            raise RunError(f"cannot remove {path}: {fault.strerror}") from fault


# A run folder: shards cut by input position, each one object written whole and named by position and content.
#
# run/manifest.json                                      what was asked for (a note)
# run/results/<metric>/<start>-<digest>.jsonl            scores; the set of valid shards is the state of the run
# run/results/<metric>/complete.json                     written last: which shards are the whole run
# run/results/<metric>/unfinished.json                   there while a run of other records replaces a finished one
# run/timings/…                                          seconds and costs, never part of the results' bytes


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
        older = decode(before or b"")
        if older and manifest.is_foreign_to(older):
            raise RunError(
                f"{self.path} holds scores of {', '.join(older.input)}, not of {', '.join(manifest.input)}: "
                "name a new folder, or delete this one"
            )
        page = manifest.joined(older).encode()
        if page != before:
            write_object(self.path / NAME, page)

    @property
    def shard_size(self) -> int | None:
        """Into how many records a shard the last run here cut its input; None where there was none."""
        manifest = decode(self._manifest_bytes() or b"")
        size = manifest.shard_size if manifest else None
        return size if isinstance(size, int) and size > 0 else None

    @property
    def inputs(self) -> tuple[str, ...]:
        """The files that the last run here read; none where it read rows in memory."""
        manifest = decode(self._manifest_bytes() or b"")
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
        manifest = decode(self._manifest_bytes() or b"")
        listed = {folder_name(metric.text): metric.text for metric in manifest.metrics} if manifest else {}
        results = self.path / "results"
        there = sorted(path.name for path in results.iterdir() if path.is_dir()) if results.is_dir() else []
        return listed | {name: name for name in there if name not in listed}

    def _manifest_bytes(self) -> bytes | None:
        try:
            return (self.path / NAME).read_bytes()
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
        if names and (data is None or not is_manifest(data)):
            raise RunError(
                f"{self.path} is not a run folder and not empty (it holds {min(names)!r}): name a new folder"
            )


def is_run_folder(path: Path) -> bool:
    """Whether a run was begun here."""
    return path.is_dir() and (path / NAME).is_file()
