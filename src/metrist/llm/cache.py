"""The cache of LLM answers: one SQLite file, so that no answer is paid for twice.

A request (LLM, messages, sampling) is stored under a hash of its JSON form, which is also the format of exported files.
No API key is in it: an LLM's spec holds only the name of an environment variable.

Each answer is committed before it is used, so a killed process loses none (write-ahead log, synchronous NORMAL: 0.1 ms
an answer, where FULL takes 3.5). After each batch the file is flushed to disk, so a power cut loses at most the answers
of the current batch. A fault of the file ends the run before more is spent, because what cannot be stored would be paid
for again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import sqlite3
import threading
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from metrist.errors import ModelError
from metrist.llm.base import LLM
from metrist.llm.messages import Completion, Conversation, Finish, Message, Sampling, TokenChoice, Usage
from metrist.runtime import VARIABLES, Runtime
from metrist.scores import FailureKind
from metrist.spec import Spec
from metrist.sqlite_store import SqliteStore, add_checksum, strip_checksum

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Request:
    """One conversation for one LLM: everything that the answer depends on. `facts` are those of the LLM."""

    llm: str
    facts: Mapping[str, str] = field(default_factory=dict, hash=False)
    messages: tuple[Message, ...]
    sampling: Sampling

    @cached_property
    def key(self) -> bytes:
        """The cache key: equal for equal requests in any process and on any machine."""
        return hashlib.sha256(_canonical_json(self.to_json())).digest()

    @cached_property
    def content_key(self) -> bytes:
        """As `key`, whichever LLM is called."""
        return hashlib.sha256(_canonical_json(_content(self.messages, self.sampling))).digest()

    def to_json(self) -> dict[str, Any]:
        return {"llm": self.llm, "facts": dict(sorted(self.facts.items())), **_content(self.messages, self.sampling)}

    @staticmethod
    def from_json(data: Any) -> Request:
        """The inverse of `to_json`; ValueError if the data is not a request."""
        form = msgspec.convert(data, _RequestForm)
        return Request(
            llm=form.llm,
            facts={name: str(value) for name, value in form.facts.items()},
            messages=form.messages,
            sampling=Sampling(**msgspec.structs.asdict(form.sampling)),
        )


#: Sampling fields that are always part of the key. A field added later is included only if it differs from its
#: default, so that the keys of older answers stay the same.
_KEY_FIELDS = ("temperature", "top_p", "max_tokens", "seed", "stop", "schema", "logprobs", "sample")


def _content(messages: Sequence[Message], sampling: Sampling) -> dict[str, Any]:
    values = ((f, getattr(sampling, f.name)) for f in dataclasses.fields(sampling))
    settings = {f.name: value for f, value in values if f.name in _KEY_FIELDS or value != f.default}
    settings |= {"temperature": float(sampling.temperature), "top_p": float(sampling.top_p)}
    settings["stop"] = list(sampling.stop)
    return {"messages": [{"role": m.role, "text": m.text} for m in messages], "sampling": settings}


def _canonical_json(data: Any) -> bytes:
    # ASCII escapes let lone surrogates from broken JSON through. Keys keep their order: a model answers the properties
    # of a schema in the order in which they stand.
    return json.dumps(data, separators=(",", ":"), default=dict).encode("ascii")


def build_requests(llm: LLM, conversations: Sequence[Conversation], sampling: Sampling) -> list[Request]:
    """One request per conversation."""
    text, facts = llm_identity(llm), dict(llm.facts())
    return [
        Request(llm=text, facts=facts, messages=tuple(conversation), sampling=sampling)
        for conversation in conversations
    ]


def llm_identity(llm: LLM) -> str:
    """The LLM's spec without settings that change no answer: `key`, and fields declared with `compare=False`."""
    spec = llm.spec
    return str(Spec(spec.name, {name: value for name, value in spec.settings.items() if name != "key"}))


def is_cacheable(request: Request, completion: Completion) -> bool:
    """Whether the same request would give and cost the same again: a complete answer, or a failure that will not
    change and that the server counted tokens for."""
    if completion.failure is not None:
        is_counted = completion.usage.prompt_tokens or completion.usage.completion_tokens
        return bool(is_counted) and completion.failure.kind in (FailureKind.too_long, FailureKind.filtered)
    return has_requested_parts(request, completion)


def has_requested_parts(request: Request, completion: Completion) -> bool:
    """Whether there is an answer, with log-probabilities if they were requested: the server may deliver them another
    time."""
    if is_blank(completion, request.sampling):
        return False
    return not request.sampling.logprobs or completion.tokens is not None or not completion.text


def is_blank(completion: Completion, sampling: Sampling) -> bool:
    """Whether a server says that it answered, and sent no text. Where a `stop` text was requested, an answer may be
    empty because it begins with that."""
    has_end = completion.finish == "other" or (completion.finish == "stop" and not sampling.stop)
    return has_end and completion.failure is None and not completion.text.strip()


#: No count, cost or seed is larger; the sum of larger numbers could overflow.
_LARGEST = 10**18
_Count = Annotated[int, msgspec.Meta(ge=0, le=_LARGEST)]
_Amount = Annotated[float, msgspec.Meta(ge=0, le=_LARGEST)]


class _SamplingForm(msgspec.Struct, forbid_unknown_fields=True):
    """What files say of `Sampling`. Imported numbers are checked now; later code cannot tell where they came from."""

    temperature: _Amount = 0.0
    top_p: _Amount = 1.0
    max_tokens: _Count = 1024
    seed: Annotated[int, msgspec.Meta(ge=-_LARGEST, le=_LARGEST)] | None = 0
    stop: tuple[str, ...] = ()
    schema: Any = None
    logprobs: _Count = 0
    sample: _Count = 0


class _RequestForm(msgspec.Struct):
    llm: str
    facts: dict[str, Any]
    messages: tuple[Message, ...]
    sampling: _SamplingForm


class _UsageForm(msgspec.Struct):
    """What is stored of `Usage`: the tokens and what they cost."""

    prompt_tokens: _Count | None = None
    completion_tokens: _Count | None = None
    cost: _Amount | None = None
    seconds: _Amount = 0.0
    estimated: bool = False


class _CompletionForm(msgspec.Struct):
    text: str
    finish: Finish
    failure: str | None = None
    tokens: list[tuple[str, float, tuple[tuple[str, float], ...]]] | None = None
    structured: bool = False
    usage: _UsageForm = msgspec.field(default_factory=_UsageForm)


def completion_to_json(completion: Completion) -> dict[str, Any]:
    data: dict[str, Any] = {"text": completion.text, "finish": completion.finish}
    if completion.failure is not None:
        data["failure"] = completion.failure
    if completion.structured:
        data["structured"] = True
    if completion.tokens is not None:
        data["tokens"] = [
            [token.text, token.logprob, [list(pair) for pair in token.alternatives]] for token in completion.tokens
        ]
    usage = dataclasses.asdict(completion.usage)
    return {
        **data,
        "usage": {name: usage[name] for name in _UsageForm.__struct_fields__ if usage[name] not in (None, False)},
    }


def completion_from_json(data: Any) -> Completion:
    """The inverse of `completion_to_json`; ValueError if the data is not a completion."""
    form = msgspec.convert(data, _CompletionForm)
    return Completion(
        text=form.text,
        failure=form.failure,  # type: ignore[arg-type]
        finish=form.finish,
        tokens=None if form.tokens is None else tuple(TokenChoice(*token) for token in form.tokens),
        structured=form.structured,
        usage=Usage(**msgspec.structs.asdict(form.usage)),
    )


#: The number is that of the table layout: another layout is another file, so that versions can share a folder.
FILE_NAME = "answers-1.sqlite"
_TABLES = (
    "CREATE TABLE IF NOT EXISTS answers (key BLOB PRIMARY KEY, llm TEXT NOT NULL, question BLOB NOT NULL, "
    "answer BLOB NOT NULL, arrived REAL NOT NULL)",
    # Answers that a metric could not read; the second column only says so.
    "CREATE TABLE IF NOT EXISTS unreadable (key BLOB PRIMARY KEY, parser TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS spending (run TEXT NOT NULL, process TEXT NOT NULL, paid REAL NOT NULL, "
    "reserved REAL NOT NULL, changed REAL NOT NULL, PRIMARY KEY (run, process))",
)
_PAGE = 1000
#: Bytes of a request or an answer: a stranger's file may hold a few that unpack to gigabytes.
_LARGEST_DATA = 1 << 28
#: Processes whose spending is remembered, the latest ones: a clock that jumps must not make a run forget what it spent.
_MAX_SPENDING = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedAnswer:
    """A completion in the cache with its request and the time of its arrival (seconds since 1970)."""

    request: Request
    completion: Completion
    arrived: float


@dataclass(frozen=True, slots=True)
class StoredCompletion:
    """A completion in the cache, the time of its arrival, and whether a metric could not read it."""

    completion: Completion
    arrived: float
    is_marked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Which stored answers: of one LLM, stored before a time (seconds since 1970), without a readable answer. A field
    that is None or False does not narrow the scope."""

    llm: str | None = None
    before: float | None = None
    failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerCounts:
    """The number of answers by LLM, of those that a metric could not read, and the size of the file in bytes."""

    answers: Mapping[str, int]
    unreadable: Mapping[str, int]
    size: int


def cache_folder(runtime: Runtime | None = None) -> Path:
    """The folder of the cache: the runtime's, else the user's folder for caches."""
    folder = (runtime or Runtime.current()).llm_cache
    if folder is not None:
        return folder
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    return (Path(base) if base else Path.home() / ".cache") / "metrist" / "llm"


def open_cache(runtime: Runtime | None = None) -> AnswerCache:
    """The cache in the folder of the runtime."""
    # An SQLite connection must not cross a fork, so each process has its own.
    return _open_cache(cache_folder(runtime).absolute(), os.getpid())


@lru_cache(maxsize=8)
def _open_cache(folder: Path, _process: int) -> AnswerCache:
    return AnswerCache(folder)


class AnswerCache:
    """Requests and their completions in one file.

    Any fault of the file raises ModelError. A damaged file, or one of another program, is set aside; a damaged entry
    counts as missing.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE_NAME
        self._store = SqliteStore(self.path, tables=_TABLES, settings=("journal_size_limit = 67108864",))
        #: Requests that a thread of this process has sent, each with an event that is set once it has its answer.
        self._sent: dict[bytes, threading.Event] = {}
        self._lock = threading.Lock()

    @contextmanager
    def claim(self, keys: Collection[bytes]) -> Iterator[dict[bytes, threading.Event]]:
        """Mark requests as sent while the block runs. Yields those that another thread has sent already, which are not
        marked, each with an event that is set when that thread has stored its answers or has given up."""
        done = threading.Event()
        with self._lock:
            others = {key: self._sent[key] for key in keys if key in self._sent}
            claimed = [key for key in keys if key not in others]
            self._sent.update(dict.fromkeys(claimed, done))
        try:
            yield others
        finally:
            with self._lock:
                for key in claimed:
                    del self._sent[key]
            done.set()

    @property
    def exists(self) -> bool:
        return self.path.exists()

    def find(self, requests: Sequence[Request]) -> dict[bytes, StoredCompletion]:
        """The stored completions that have all that was requested, by the key of the request."""
        by_key = {request.key: request for request in requests}
        query = "SELECT key, answer, arrived, parser FROM answers LEFT JOIN unreadable USING (key) WHERE key IN"
        stored: dict[bytes, StoredCompletion] = {}
        with self._faults(storing=True):
            for key, blob, arrived, parser in self._store.find(query, list(by_key)):
                completion = _parse_blob(blob, completion_from_json)
                if completion is not None and has_requested_parts(by_key[key], completion):
                    stored[key] = StoredCompletion(completion, arrived, parser is not None)
        return stored

    def store(self, answers: Sequence[CachedAnswer], replaced: Mapping[bytes, float] | None = None) -> list[Completion]:
        """Store completions and return those that now stand for their requests: where another process was first, its
        own, so that all later runs see the same. `replaced` are the keys of those that do not count as first, with the
        times of their arrival."""
        arrivals = replaced or {}

        def insert(connection: sqlite3.Connection) -> list[Completion]:
            completions = []
            for answer in answers:
                key = answer.request.key
                query = "SELECT answer FROM answers WHERE key = ? AND arrived IS NOT ?"
                blob = next(iter(connection.execute(query, (key, arrivals.get(key))).fetchall()), None)
                before = _parse_blob(blob[0], completion_from_json) if blob else None
                if before is not None and has_requested_parts(answer.request, before):
                    completions.append(before)
                    continue
                if blob or key in arrivals:  # There is an answer, and it may be marked.
                    connection.execute("DELETE FROM unreadable WHERE key = ?", (key,))
                blobs = _compress(answer.request.to_json()), _compress(completion_to_json(answer.completion))
                connection.execute(
                    "INSERT OR REPLACE INTO answers (key, llm, question, answer, arrived) VALUES (?, ?, ?, ?, ?)",
                    (key, answer.request.llm, *blobs, answer.arrived),
                )
                completions.append(answer.completion)
            return completions

        return self.write(insert)

    def mark_unreadable(self, keys: Collection[bytes]) -> None:
        """Remember that a metric could not read the answers to these requests."""
        query = "INSERT OR REPLACE INTO unreadable (key, parser) SELECT key, '' FROM answers WHERE key = ?"
        self.write(lambda connection: connection.executemany(query, [(key,) for key in keys]))

    def check_writable(self) -> None:
        """Write to the file, so that a fault shows before anything is paid for."""

        def write(connection: sqlite3.Connection) -> None:
            newest = "(SELECT max(rowid) FROM spending)"
            connection.execute(f"DELETE FROM spending WHERE rowid <= {newest} - ?", (_MAX_SPENDING,))
            # Deleting nothing writes nothing; the version is a number in the file header that nobody reads.
            (number,) = connection.execute("PRAGMA user_version").fetchone()
            connection.execute(f"PRAGMA user_version = {(number + 1) % 1_000_000}")

        self.write(write)

    def sync(self) -> None:
        """Flush what was stored to disk."""
        with self._faults(storing=True):
            self._store.read(lambda connection: connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall())

    def write(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Work on the file in a transaction while LLMs are called."""
        with self._faults(storing=True):
            return self._store.write(work)

    def entries(self, scope: Scope | None = None) -> Iterator[CachedAnswer]:
        """The answers in a scope, by default all, in the order in which they were stored."""
        scope = scope or Scope()
        query = (
            "SELECT answers.rowid, question, answer, arrived, parser FROM answers LEFT JOIN unreadable USING (key) "
            "WHERE answers.rowid > ? AND ? IN (llm, '') ORDER BY answers.rowid LIMIT ?"
        )
        last, more = -1, True
        while more:
            # Page by page: a slow reader must not block writers.
            rows = self._query(query, (last, scope.llm or "", _PAGE))
            for last, question, answer, arrived, parser in rows:  # noqa: B007
                request, completion = (
                    _parse_blob(question, Request.from_json),
                    _parse_blob(answer, completion_from_json),
                )
                is_time = isinstance(arrived, float) and 0 <= arrived < 2**36
                if request is None or completion is None or not is_time:
                    continue
                if scope.before is not None and arrived >= scope.before:
                    continue
                is_blank_or_failed = completion.failure is not None or is_blank(completion, request.sampling)
                if not scope.failed or parser is not None or is_blank_or_failed:
                    yield CachedAnswer(request=request, completion=completion, arrived=arrived)
            more = len(rows) == _PAGE

    def contents(self) -> AnswerCounts:
        """The number of answers, and the size of the file."""
        tables = "answers LEFT JOIN unreadable USING (key)"
        rows = self._query(f"SELECT llm, count(*), count(parser) FROM {tables} GROUP BY llm ORDER BY llm")
        return AnswerCounts(
            answers={llm: count for llm, count, _ in rows},
            unreadable={llm: unreadable for llm, _, unreadable in rows if unreadable},
            size=self._store.size(),
        )

    def clear(self, scope: Scope | None = None) -> int:
        """Delete the answers in a scope, by default all, and free the space; the number of deleted answers."""
        keys = None if scope in (None, Scope()) else [(answer.request.key,) for answer in self.entries(scope)]

        def delete(connection: sqlite3.Connection) -> int:
            if keys is None:
                count = connection.execute("DELETE FROM answers").rowcount
            else:
                count = connection.executemany("DELETE FROM answers WHERE key = ?", keys).rowcount
            connection.execute("DELETE FROM unreadable WHERE key NOT IN (SELECT key FROM answers)")
            return max(0, count)

        with self._faults(storing=False):
            count = self._store.write(delete)
            self._store.compact()
            return count

    def close(self) -> None:
        """Close the file, which is opened again when it is needed."""
        self._store.close()

    def _query(self, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with self._faults(storing=False):
            return self._store.read(lambda connection: connection.execute(query, values).fetchall())

    @contextmanager
    def _faults(self, *, storing: bool) -> Iterator[None]:
        """Raise ModelError for faults of the file; `storing` tells whether LLMs are called meanwhile."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            if not storing:
                raise ModelError(
                    f"cannot read or change the answers in {self.path}: {reason}", code="unreadable"
                ) from error
            raise ModelError(
                f"LLM answers cannot be stored in {self.path} ({reason}), so no LLM is called; free some space, or set "
                f"another folder with {VARIABLES['llm_cache']}",
                code="cannot_write",
            ) from error


def _compress(data: Any) -> bytes:
    return add_checksum(zlib.compress(_canonical_json(data), level=1))


def _parse_blob(blob: object, parse: Callable[[Any], _T]) -> _T | None:
    """What is stored in a blob; None if a byte of it has changed, or if it is none of ours."""
    compressed = strip_checksum(blob)
    if compressed is None:
        return None
    try:
        data = zlib.decompressobj().decompress(compressed, _LARGEST_DATA)
        return parse(json.loads(data)) if len(data) < _LARGEST_DATA else None
    except (zlib.error, ValueError, RecursionError):
        return None
