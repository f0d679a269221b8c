"""Models whose outputs are cached on disk between runs.

A key is a hash of the model's facts (weights, tokenizer, dtype), metrist's version, the settings of the call and the
texts.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import sqlite3
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from metrist._version import __version__
from metrist.models.protocols import EncoderModel, LikelihoodModel, Likelihoods, Long, States, TextModel
from metrist.sqlite_store import SqliteStore, add_checksum, strip_checksum

#: The number is that of the file's layout, so that versions of metrist with another layout can share a folder.
CACHE_NAME = "models-1.sqlite"
_BYTES_PER_WRITE = 32 << 20
_TABLE = "CREATE TABLE IF NOT EXISTS entries (key BLOB PRIMARY KEY, value BLOB NOT NULL)"
# Vectors are long: larger pages make for fewer of them.
_SETTINGS = ("page_size = 16384", f"journal_size_limit = {2 * _BYTES_PER_WRITE}")

_HEAD = struct.Struct("<qqq")
_T = TypeVar("_T")

log = logging.getLogger("metrist")


@lru_cache(maxsize=8)
def _open_cache(folder: Path, limit_gb: float, _process: int) -> CacheFile:
    return CacheFile(folder, limit_gb)


@dataclass(frozen=True, slots=True)
class CacheContents:
    """The entries of a cache, and the bytes that it takes on disk."""

    entries: int
    size: int


class CacheFile:
    """A key-value cache. Above `limit_gb` (10^9 bytes) it stores nothing more. No method fails because of the file:
    scoring goes on without it, and the problem is logged once."""

    def __init__(self, folder: Path, limit_gb: float = 10.0) -> None:
        self.path = folder / CACHE_NAME
        self._limit_gb = limit_gb
        self._store = SqliteStore(self.path, tables=(_TABLE,), settings=_SETTINGS)
        self._usable = self._growing = True

    def find(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the intact entries under these keys."""
        query = "SELECT key, value FROM entries WHERE key IN"
        rows = self._attempt(lambda: list(self._store.find(query, keys))) or []
        return {key: value for key, stored in rows if (value := strip_checksum(stored)) is not None}

    def keep(self, entries: Mapping[bytes, bytes]) -> None:
        """Store the entries in groups of some megabytes; each group is stored whole or not at all."""
        group: list[tuple[bytes, bytes]] = []
        size = 0
        for number, (key, value) in enumerate(entries.items(), 1):
            group.append((key, value))
            size += len(value)
            if size > _BYTES_PER_WRITE or number == len(entries):
                if self._growing:
                    self._attempt(partial(self._write, group))
                group, size = [], 0

    def _write(self, group: Sequence[tuple[bytes, bytes]]) -> None:
        self._store.write(partial(self._insert, group=group))

    def contents(self) -> CacheContents:
        query = "SELECT count(*) FROM entries"
        count = self._attempt(lambda: self._store.read(lambda connection: connection.execute(query).fetchone()[0]))
        return CacheContents(entries=count or 0, size=self._store.size())

    def clear(self) -> None:
        self._attempt(self._delete)

    def _delete(self) -> None:
        self._store.write(lambda connection: connection.execute("DELETE FROM entries"))
        self._store.compact()

    def _attempt(self, work: Callable[[], _T]) -> _T | None:
        """Work on the file; an error ends the use of the file in this process."""
        if not self._usable:
            return None
        try:
            return work()
        except (sqlite3.Error, OSError) as error:
            self._usable = False
            log.warning("%s cannot be used (%s): scoring goes on without caching model outputs", self.path, error)
            return None

    def _insert(self, connection: sqlite3.Connection, group: Sequence[tuple[bytes, bytes]]) -> None:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        (page_size,) = connection.execute("PRAGMA page_size").fetchone()
        if pages * page_size > self._limit_gb * 1e9:
            self._growing = False
            log.warning(
                "%s has reached %g GB and takes no more; METRIST_CACHE_GB sets another limit", self.path, self._limit_gb
            )
            return
        # An existing entry is damaged, or another process stored the same content first.
        rows = ((key, add_checksum(value)) for key, value in group)
        connection.executemany("INSERT OR REPLACE INTO entries (key, value) VALUES (?, ?)", rows)


class CachedModel:
    """A model and the folder of its cache. All but the cached method is the model's own."""

    def __init__(self, model: Any, folder: Path, limit_gb: float = 10.0) -> None:
        self._model, self._folder, self._limit_gb = model, folder, limit_gb

    def __getattr__(self, name: str) -> Any:
        if name == "_model":  # Not set yet while the object is copied or unpickled.
            raise AttributeError(name)
        return getattr(self._model, name)

    def _look_up(
        self,
        layout: _Layout,
        settings: object,
        inputs: Sequence[Any],
        compute: Callable[[list[Any]], Likelihoods | States],
    ) -> tuple[list[_CachedText], dict[int, str]]:
        """The entries of all inputs, cached ones and new ones, and the failures by index. Inputs that failed are not
        stored."""
        # A connection must not cross a fork, so each process has its own.
        cache = _open_cache(self._folder, self._limit_gb, os.getpid())
        # The same weights can be loaded as different kinds of model.
        facts = [__version__, type(self._model).__name__, sorted(self._model.facts.items()), settings]
        head = hashlib.sha256(json.dumps(facts).encode())
        keys = []
        for texts in inputs:
            digest = head.copy()
            for text in (texts,) if isinstance(texts, str) else texts:
                data = text.encode("utf-8", "surrogatepass")
                # The length separates texts unambiguously.
                digest.update(len(data).to_bytes(8, "big"))
                digest.update(data)
            keys.append(digest.digest())
        known = {key: layout.unpack(value) for key, value in cache.find(list(dict.fromkeys(keys))).items()}
        missing = {key: value for key, value in zip(keys, inputs, strict=True) if key not in known}
        failures: dict[bytes, str] = {}
        if missing:
            computed = compute(list(missing.values()))
            fresh = dict(zip(missing, layout.split(computed), strict=True))
            if isinstance(computed, Likelihoods):
                failures = {key: computed.failures[n] for n, key in enumerate(missing) if n in computed.failures}
            cache.keep({key: layout.pack(entry) for key, entry in fresh.items() if key not in failures})
            known.update(fresh)
        return [known[key] for key in keys], {n: failures[key] for n, key in enumerate(keys) if key in failures}


class CachedLikelihoodModel(CachedModel):
    _model: LikelihoodModel

    def log_probs(self, pairs: Sequence[tuple[str, str]], max_tokens: int | None = None) -> Likelihoods:
        entries, failures = self._look_up(
            _LIKELIHOODS, max_tokens, pairs, lambda new: self._model.log_probs(new, max_tokens)
        )
        return Likelihoods(**_LIKELIHOODS.join(entries), failures=failures)


class CachedTextModel(CachedModel):
    _model: TextModel

    def running(self, texts: Sequence[str], max_tokens: int | None = None) -> Likelihoods:
        entries, failures = self._look_up(
            _LIKELIHOODS, ["running", max_tokens], texts, lambda new: self._model.running(new, max_tokens)
        )
        return Likelihoods(**_LIKELIHOODS.join(entries), failures=failures)


class CachedEncoder(CachedModel):
    _model: EncoderModel

    def states(self, texts: Sequence[str], layer: int | None = None, long: Long = "windows") -> States:
        # The last layer has one key, whether it is named by number or not.
        settings = [self._model.layers if layer is None else layer, long]
        entries, _ = self._look_up(_STATES, settings, texts, lambda new: self._model.states(new, layer, long))
        return States(**_STATES.join(entries))


class _CachedText(NamedTuple):
    """One text of a block: its rows of each column, and its numbers."""

    columns: list[NDArray[Any]]
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Layout:
    """How the texts of a block of arrays are told apart, stored, and put together again. `columns` have a row for each
    token, and are given with the types in which they are stored and returned; `numbers` have one for each text."""

    columns: Mapping[str, tuple[str, type]]
    numbers: tuple[str, ...]

    def split(self, block: Likelihoods | States) -> list[_CachedText]:
        columns = [getattr(block, name) for name in self.columns]
        numbers = zip(*(getattr(block, name).tolist() for name in self.numbers), strict=True)
        starts = block.starts.tolist()
        rows = (slice(start, stop) for start, stop in pairwise(starts))
        return [_CachedText([column[row] for column in columns], own) for row, own in zip(rows, numbers, strict=True)]

    def pack(self, entry: _CachedText) -> bytes:
        # Vectors are stored uncompressed: zstd saves 8 % and takes as long as reading them.
        head = _HEAD.pack(*entry.columns[0].shape, *entry.numbers)
        types = (stored for stored, _ in self.columns.values())
        parts = (column.astype(stored).tobytes() for column, stored in zip(entry.columns, types, strict=True))
        return head + b"".join(parts)

    def unpack(self, data: bytes) -> _CachedText:
        head = _HEAD.unpack_from(data)
        # The first column may be a matrix.
        shape, numbers = head[: -len(self.numbers)], head[-len(self.numbers) :]
        columns: list[NDArray[Any]] = []
        start = _HEAD.size
        for stored, _ in self.columns.values():
            column = np.frombuffer(data, stored, math.prod(shape), start).reshape(shape)
            start += column.nbytes
            columns.append(column)
            shape = shape[:1]
        return _CachedText(columns, numbers)

    def join(self, entries: Sequence[_CachedText]) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for index, (name, (_, kind)) in enumerate(self.columns.items()):
            parts = [entry.columns[index] for entry in entries]
            empty: NDArray[Any] = np.empty((0, 0) if name == "vectors" else 0, kind)
            fields[name] = np.concatenate(parts).astype(kind, copy=False) if parts else empty
        for index, name in enumerate(self.numbers):
            fields[name] = np.array([entry.numbers[index] for entry in entries], np.int64)
        lengths = [len(entry.columns[0]) for entry in entries]
        return {**fields, "starts": np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)}


_LIKELIHOODS = _Layout(
    {"logprobs": ("<f4", np.float32), "tokens": ("<i4", np.int64)}, numbers=("condition_cut", "target_cut")
)
_STATES = _Layout(
    {"vectors": ("<f4", np.float32), "tokens": ("<i4", np.int64), "special": ("u1", np.bool_)}, numbers=("cut",)
)
