"""One metric's part of a run folder: its shards, what they took, and the page that says that all are there."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from metrist.errors import RunError
from metrist.run.store.shards import DIGEST_LENGTH, Block, Torn, decode, digest_of
from metrist.run.store.writes import write_object

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
        block = decode(path.read_bytes())
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
