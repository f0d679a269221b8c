"""Run folders: shard files named by position and content, a manifest, and a page per complete metric.

run/manifest.json                                the settings of the run (a note to the reader)
run/results/<metric>/<start>-<digest>.jsonl      the set of valid shard files is the state of the run
run/results/<metric>/complete.json               written last: which shard files make up the run
run/results/<metric>/unfinished.json             exists while a run of other records replaces a complete one
run/timings/…                                    seconds and costs, never part of the results' bytes
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePath
from typing import Any

from metrist._version import __version__
from metrist.errors import RunError
from metrist.metrics.base import NAME, Metric
from metrist.run.shard_file import DIGEST_LENGTH, ShardFile, Torn, decode, digest_of
from metrist.scores import Scores

MANIFEST = "manifest.json"
_MANIFEST_OPENING = '{\n  "metrist":'
_COMPLETE = "complete.json"
_UNFINISHED = "unfinished.json"
_UNFINISHED_NOTE = b'{"unfinished": "a run of other records or of another version of the metric"}\n'
SHARD_NAME = "{:09d}-{}.jsonl"
_SHARD_NAME = re.compile(rf"\d{{9,}}-[0-9a-f]{{{DIGEST_LENGTH}}}\.jsonl")
_TIMING_NAME = re.compile(r"\d{9,}\.json")


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

    @classmethod
    def decode(cls, data: bytes) -> Manifest | None:
        """Read a manifest; None for a torn one."""
        try:
            facts = json.loads(data)
            metrics = tuple(
                Listed(text=row["text"], signature=row["signature"], folder=row["folder"], name=_read_name(row))
                for row in facts["metrics"]
            )
            size = facts["shard_size"]
            if not isinstance(size, int) or size < 1:
                return None
            return cls(shard_size=size, metrics=metrics, input=tuple(facts["input"]))
        except (ValueError, TypeError, KeyError):
            return None

    def is_foreign_to(self, older: Manifest) -> bool:
        """Whether the two read files of different names: continuing would discard the older scores."""
        own, others = ({PurePath(name).name for name in manifest.input} for manifest in (self, older))
        return bool(own and others) and own.isdisjoint(others)


@dataclass(frozen=True, slots=True, kw_only=True)
class Complete:
    """The page of a metric whose shard files are all written. `content` is a hash of all records' texts, `references`
    the different numbers of references that records have."""

    metric: str
    signature: str
    higher_is_better: bool | None
    records: int
    content: str
    shards: tuple[str, ...]
    references: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stored:
    """One complete metric of a run, in the input's order. `content` is a hash of all records' texts; None: unknown.
    `references` are the different numbers of references that records have; empty: unknown."""

    metric: str
    signature: str
    higher_is_better: bool | None
    items: list[str]
    systems: list[str]
    scores: Scores
    name: str | None = None
    content: str | None = None
    references: tuple[int, ...] = ()

    @property
    def label(self) -> str:
        """What tables and checks call the metric."""
        return self.name or self.metric


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Contents:
    """What a run folder holds: complete metrics in the manifest's order, the texts of unfinished ones, and of those
    whose complete scores a later run has begun to replace."""

    stored: list[Stored]
    unfinished: list[str]
    outdated: list[str]


class RunFolder:
    """A folder that holds a run, or can hold one. Opening it writes nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._names: dict[str, str] = {}
        try:
            names = {path.name for path in self.path.iterdir()}
        except FileNotFoundError:
            return
        except NotADirectoryError:
            raise RunError(f"{self.path} is a file, expected a run folder") from None
        except OSError as error:
            raise RunError(f"cannot read {self.path}: {error.strerror}") from error
        data = _read_bytes(self.path / MANIFEST)
        # A torn manifest is one of ours, too.
        opening = None if data is None else data[: len(_MANIFEST_OPENING)].decode("ascii", "replace")
        if names and (opening is None or not _MANIFEST_OPENING.startswith(opening)):
            raise RunError(
                f"{self.path} is not a run folder and not empty (it holds {min(names)!r}): name a new folder"
            )

    def begin(self, manifest: Manifest) -> None:
        """Write the manifest, keeping the metrics of earlier runs in its list."""
        before = _read_bytes(self.path / MANIFEST)
        older = Manifest.decode(before or b"")
        if older and manifest.is_foreign_to(older):
            raise RunError(
                f"{self.path} holds scores of {', '.join(older.input)}, not of {', '.join(manifest.input)}: "
                "name a new folder, or delete this one"
            )
        # The metrics that an earlier run left in the folder are listed after the run's own.
        own = {metric.text for metric in manifest.metrics}
        metrics = (*manifest.metrics, *(m for m in (older.metrics if older else ()) if m.text not in own))
        facts = {
            "metrist": __version__,
            "shard_size": manifest.shard_size,
            "input": list(manifest.input),
            "metrics": [{key: v for key, v in asdict(metric).items() if v is not None} for metric in metrics],
        }
        page = f"{json.dumps(facts, indent=2)}\n".encode("ascii")
        if page != before:
            write_object(self.path / MANIFEST, page)

    def name_metrics(self, metrics: Sequence[Metric]) -> tuple[Metric, ...]:
        """The metrics, those without a short name under the one that an earlier run here gave them. A name that
        another metric of the folder has is refused."""
        listed = self.manifest.metrics if self.manifest else ()
        new = {metric.short_name for metric in metrics}
        names = {metric.text: metric.name for metric in listed if metric.name not in new}
        renamed = tuple(m if m.short_name else m.named(names.get(m.text)) for m in metrics)
        texts = {metric.text for metric in renamed}
        others = {metric.label: metric.text for metric in listed if metric.text not in texts}
        for metric in renamed:
            if metric.label in others:
                raise RunError(
                    f"{self.path} already has a metric called {metric.label!r}, {others[metric.label]}: give "
                    f"{metric.text} another name"
                )
        return renamed

    @property
    def manifest(self) -> Manifest | None:
        """What the last run here was asked for; None if there was none."""
        return Manifest.decode(_read_bytes(self.path / MANIFEST) or b"")

    @property
    def inputs(self) -> tuple[str, ...]:
        """The files that the last run here read; empty if it read rows in memory."""
        return self.manifest.input if self.manifest else ()

    def read(self) -> Contents:
        """All complete metrics, and what else is known about the folder."""
        # The manifest gives the order. It may be torn or, after two runs at once, incomplete: the folders decide.
        manifest = self.manifest
        folders = {folder_name(metric.text): metric.text for metric in manifest.metrics} if manifest else {}
        names = {metric.text: metric.name for metric in manifest.metrics} if manifest else {}
        results = self.path / "results"
        existing = sorted(path.name for path in results.iterdir() if path.is_dir()) if results.is_dir() else []
        folders |= {name: name for name in existing if name not in folders}
        parts = {name: MetricFolder(self.path, name) for name in folders}
        pages = {name: page for name, part in parts.items() if (page := part.complete())}
        if not pages:
            raise RunError(f"{self.path} holds no finished metric: run the same `metrist score` again to finish it")
        return Contents(
            stored=[self._read_metric(parts[name], page, names.get(page.metric)) for name, page in pages.items()],
            unfinished=[text for name, text in folders.items() if name not in pages],
            outdated=[page.metric for name, page in pages.items() if parts[name].is_outdated],
        )

    def _read_metric(self, part: MetricFolder, page: Complete, name: str | None) -> Stored:
        items: list[str] = []
        systems: list[str] = []
        scores: list[Scores] = []
        for file in part.read(page.shards):
            # Names repeat in every metric and most of them in every system: each is kept once.
            items += [self._names.setdefault(item, item) for item in file.items]
            systems += [self._names.setdefault(system, system) for system in file.systems]
            scores.append(file.scores)
        return Stored(
            metric=page.metric,
            name=name,
            signature=page.signature,
            higher_is_better=page.higher_is_better,
            items=items,
            systems=systems,
            scores=Scores.join(scores),
            content=page.content,
            references=page.references,
        )


@dataclass(eq=False)
class MetricFolder:
    """Reads and writes the shard files of one metric in a run folder.

    A run first declares each shard with `expect`; `find` and `write` then work on the declared ones, and `close` says
    that all of them are there.
    """

    run: Path
    name: str
    damaged: list[str] = field(default_factory=list)
    _expected: dict[int, str] = field(default_factory=dict)
    _with_tokens: dict[int, str] = field(default_factory=dict)
    #: The shard files of the complete run that this one may replace; empty once it is marked, None until read.
    _replaced: frozenset[str] | None = None

    def __post_init__(self) -> None:
        self.results, self.timings = self.run / "results" / self.name, self.run / "timings" / self.name

    def expect(self, start: int, content: str, signature: str, *, tokens: bool = False) -> str:
        """Declare the shard at this position; returns the digest in its file's name."""
        plain, rich = (digest_of(content, signature, tokens=with_tokens) for with_tokens in (False, True))
        digest = rich if tokens else plain
        self._expected[start] = SHARD_NAME.format(start, digest)
        self._with_tokens[start] = SHARD_NAME.format(start, rich)
        if self._replaced is None:
            page = self.complete()
            self._replaced = frozenset(page.shards if page else ())
        if self._replaced and self._replaced.isdisjoint((SHARD_NAME.format(start, plain), self._with_tokens[start])):
            # If this run does not finish, readers of the folder must know that the complete one is older.
            write_object(self.results / _UNFINISHED, _UNFINISHED_NOTE)
            self._replaced = frozenset()
        return digest

    def find(self, start: int) -> ShardFile | None:
        """The declared shard at this position, if it is there and intact. A damaged one is noted, to be redone. One
        with scores of tokens also serves a run that wants none: its scores are the same."""
        if self._expected[start] != self._with_tokens[start]:
            with contextlib.suppress(FileNotFoundError, Torn):
                file = _read_shard(self.results / self._with_tokens[start])
                self._expected[start] = self._with_tokens[start]
                return file
        path = self.results / self._expected[start]
        try:
            return _read_shard(path)
        except FileNotFoundError:
            return None
        except Torn as error:
            self.damaged.append(f"{path} was set aside and scored again: {error}")
            return None

    def write(self, start: int, data: bytes, timing: Mapping[str, Any]) -> None:
        """Store the declared shard at this position, and its timing apart from it."""
        write_object(self.results / self._expected[start], data)
        write_object(self.timings / f"{start:09d}.json", f"{json.dumps(timing, default=str)}\n".encode())

    def close(
        self,
        metric: str,
        signature: str,
        higher_is_better: bool | None,
        *,
        records: int,
        content: str,
        references: tuple[int, ...] = (),
    ) -> None:
        """Record that all declared shards are there, then remove those of an earlier input or version."""
        shards = tuple(self._expected[start] for start in sorted(self._expected))
        page = Complete(
            metric=metric,
            signature=signature,
            higher_is_better=higher_is_better,
            records=records,
            content=content,
            shards=shards,
            references=references,
        )
        data = f"{json.dumps(asdict(page), indent=1)}\n".encode("ascii")
        if _read_bytes(self.results / _COMPLETE) != data:
            write_object(self.results / _COMPLETE, data)
        timings = {f"{start:09d}.json" for start in self._expected}
        # Only files that metrist names like this are removed: whatever else a user keeps here stays.
        outdated = [p for p in self.results.iterdir() if _SHARD_NAME.fullmatch(p.name) and p.name not in shards]
        if self.timings.is_dir():
            outdated += [p for p in self.timings.iterdir() if _TIMING_NAME.fullmatch(p.name) and p.name not in timings]
        for path in (self.results / _UNFINISHED, *outdated):
            try:
                path.unlink(missing_ok=True)  # Another run of the same command may have been faster.
            except PermissionError as error:
                raise RunError(f"cannot remove {path}: {error.strerror}") from error

    def complete(self) -> Complete | None:
        """The page that `close` wrote; None while the metric is unfinished."""
        try:
            facts = {"references": (), **json.loads(_read_bytes(self.results / _COMPLETE) or b"")}
            references = tuple(number for number in facts["references"] if isinstance(number, int))
            page = Complete(**{**facts, "shards": tuple(facts["shards"]), "references": references})
            return page if page.shards and all(map(_SHARD_NAME.fullmatch, page.shards)) else None
        except (ValueError, TypeError, KeyError):
            return None

    @property
    def is_outdated(self) -> bool:
        """Whether a later run, of other records or of another version of the metric, began and did not finish."""
        return (self.results / _UNFINISHED).exists()

    def read(self, names: Sequence[str]) -> Iterator[ShardFile]:
        """These shard files in order; a missing or damaged one is an error, since there are no records to redo it."""
        for name in names:
            path = self.results / name
            try:
                yield _read_shard(path)
            except FileNotFoundError:
                raise RunError(f"{path} is missing: run the same `metrist score` again to redo it") from None
            except Torn as error:
                raise RunError(f"{path} is damaged ({error}): run the same `metrist score` again to redo it") from None


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


def _read_name(row: Mapping[str, Any]) -> str | None:
    """The short name in a row of a manifest; None where there is none, or none that could have been given."""
    name = row.get("name")
    return name if isinstance(name, str) and NAME.fullmatch(name) else None


def _read_shard(path: Path) -> ShardFile:
    try:
        file = decode(path.read_bytes())
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror}") from error
    header = file.header
    if path.name != SHARD_NAME.format(header.start, header.digest):
        raise Torn(f"it is a shard of {header.metric} at position {header.start} under another name")
    return file


def _read_bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None
