"""A question is all that an answer depends on: the LLM, what it is told, how it is to answer. Its key is a hash of it.

Questions and answers are written as JSON here, for the cache and for files that are shared. A key for a server is in
neither: an LLM's text has only the name of the variable that holds it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, TypeVar

from metrist.errors import ModelError
from metrist.llm import rate_limit
from metrist.llm.base import LLM
from metrist.llm.messages import Completion, Conversation, Message, Sampling, TokenChoice, Usage
from metrist.models.sqlite_store import SqliteFile, transaction
from metrist.spec import Spec


@dataclass(frozen=True, kw_only=True)
class Request:
    """One conversation put to one LLM. `facts` are what else the LLM's answers depend on."""

    llm: str
    facts: Mapping[str, str] = field(default_factory=dict, hash=False)
    messages: tuple[Message, ...]
    sampling: Sampling

    @cached_property
    def key(self) -> bytes:
        """Equal for equal questions, in any process and on any machine."""
        return hashlib.sha256(_canonical(self.to_json())).digest()

    @cached_property
    def wording(self) -> bytes:
        """As the key, whichever LLM is asked."""
        return hashlib.sha256(_canonical(_said(self.messages, self.sampling))).digest()

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {"llm": self.llm, "facts": dict(sorted(self.facts.items())), **_said(self.messages, self.sampling)}

    @staticmethod
    def of_json(data: Mapping[str, Any]) -> Request:
        """What `to_json` gave; KeyError, TypeError or ValueError where it did not."""
        messages = tuple(Message(one["role"], _text(one["text"])) for one in data["messages"])
        if wrong := [one.role for one in messages if one.role not in ("system", "user", "assistant")]:
            raise ValueError(f"a message's role must be system, user or assistant, got {wrong[0]!r}")
        sampling = dict(data["sampling"])
        _check_numbers("sampling", sampling, _DRAWN)
        sampling["stop"] = tuple(map(_text, sampling.get("stop", ())))
        facts = {str(k): str(v) for k, v in dict(data["facts"]).items()}
        return Request(llm=_text(data["llm"]), facts=facts, messages=messages, sampling=Sampling(**sampling))


def build_requests(llm: LLM, conversations: Sequence[Conversation], sampling: Sampling) -> list[Request]:
    """One question per conversation."""
    text, facts = llm_identity(llm), dict(llm.facts())
    return [Request(llm=text, facts=facts, messages=tuple(one), sampling=sampling) for one in conversations]


#: Where a key is found changes no answer.
_ASIDE = ("key",)


def llm_identity(llm: LLM) -> str:
    """The LLM's text without settings that change no answer: the key's name, and what is declared with
    `field(compare=False)`."""
    fields: tuple[dataclasses.Field[Any], ...] = dataclasses.fields(llm) if dataclasses.is_dataclass(llm) else ()
    aside = [*_ASIDE, *(f.name for f in fields if not f.compare)]
    spec = llm.spec
    return str(Spec(spec.name, {name: value for name, value in spec.settings.items() if name not in aside}))


def is_cacheable(question: Request, answer: Completion) -> bool:
    """Whether asking again would give the same and cost the same: an answer with all that was asked for, or one that
    came without words for a reason that stays, and that the server counted. Why else there are no words nobody knows:
    the next time there may be some."""
    if answer.failure is not None:
        counted = answer.usage.prompt_tokens or answer.usage.completion_tokens
        return bool(counted) and answer.finish in ("length", "filter")
    if not answer.text.strip() and answer.finish == "other":
        return False
    return has_requested_parts(question, answer)


def has_requested_parts(question: Request, answer: Completion) -> bool:
    """Whether the log-probabilities are there, if they were asked for: another day the server may give them."""
    return not question.sampling.logprobs or answer.tokens is not None or not answer.text


def completion_to_json(answer: Completion) -> dict[str, Any]:
    """An answer as plain data, without what is as usual."""
    data: dict[str, Any] = {"text": answer.text, "finish": answer.finish}
    if answer.failure is not None:
        data["failure"] = answer.failure
    if answer.structured:
        data["structured"] = True
    if answer.tokens is not None:
        data["tokens"] = [[one.text, one.logprob, [list(pair) for pair in one.alternatives]] for one in answer.tokens]
    usage = dataclasses.asdict(answer.usage)
    return {**data, "usage": {name: usage[name] for name in _PAID if usage[name] not in (None, False)}}


#: What is kept of an answer's usage: the tokens, and what they cost then.
_PAID: Mapping[str, Any] = {
    "prompt_tokens": int,
    "completion_tokens": int,
    "cost": (int, float),
    "seconds": (int, float),
    "estimated": bool,
}
_DRAWN: Mapping[str, Any] = {
    "temperature": (int, float),
    "top_p": (int, float),
    "max_tokens": int,
    "seed": int,
    "logprobs": int,
    "sample": int,
}
_NAMED: Mapping[Any, str] = {int: "a whole number", (int, float): "a number", bool: "true or false"}


def completion_from_json(data: Mapping[str, Any]) -> Completion:
    """What `answer_to_json` gave; KeyError, TypeError or ValueError where it did not."""
    if data["finish"] not in ("stop", "length", "filter", "other"):
        raise ValueError(f"finish must be stop, length, filter or other, got {data['finish']!r}")
    tokens, failure = data.get("tokens"), data.get("failure")
    return Completion(
        text=_text(data["text"]),
        failure=None if failure is None else _text(failure),
        finish=data["finish"],
        tokens=None if tokens is None else tuple(_choice(*one) for one in tokens),
        structured=bool(data.get("structured", False)),
        usage=_usage(data.get("usage", {})),
    )


def _usage(data: Mapping[str, Any]) -> Usage:
    _check_numbers("usage", data, _PAID)
    return Usage(**{name: data[name] for name in _PAID if data.get(name) is not None})


def _check_numbers(what: str, data: Mapping[str, Any], kinds: Mapping[str, Any]) -> None:
    """What others wrote is counted with later, where nobody knows any more whence it came."""
    for name, kind in kinds.items():
        value = data.get(name)
        if value is None:
            continue
        known = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
        if not known or not (math.isfinite(value) and (value >= 0 or name == "seed")):
            raise ValueError(f"{what}: {name} must be {_NAMED[kind]}, got {value!r}")


def _choice(text: str, logprob: float, alternatives: Sequence[Sequence[Any]]) -> TokenChoice:
    return TokenChoice(_text(text), float(logprob), tuple((_text(one), float(number)) for one, number in alternatives))


#: What is always said of the sampling. A setting that is added one day is said only where it is not as usual, so that
#: it leaves all questions from before what they are.
_ALWAYS = ("temperature", "top_p", "max_tokens", "seed", "stop", "schema", "logprobs", "sample")


def _said(messages: Sequence[Message], sampling: Sampling) -> dict[str, Any]:
    given = ((f, getattr(sampling, f.name)) for f in dataclasses.fields(sampling))
    how = {f.name: value for f, value in given if f.name in _ALWAYS or value != f.default}
    how |= {"temperature": float(sampling.temperature), "top_p": float(sampling.top_p), "stop": list(sampling.stop)}
    return {"messages": [{"role": one.role, "text": one.text} for one in messages], "sampling": how}


def _canonical(data: Any) -> bytes:
    # ASCII escapes let half a character, as broken JSON gives it, through. Keys stay in their order: that of a schema's
    # properties is the order in which they are answered.
    return json.dumps(data, separators=(",", ":"), default=dict).encode("ascii")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"wanted text, got {type(value).__name__}")
    return value


# Answers of LLMs, kept in one file so that none is paid for twice.
#
# An answer is committed before anybody uses it, so a process that is killed loses none that it had
# (SQLite's write-ahead
# mode, synchronous NORMAL: 0.1 ms an answer, where FULL takes 3.5). After each batch of questions
# the file is brought to
# disk, so a power cut loses at most the answers of the batch under way. A fault of the file ends
# the run before more is
# spent: what cannot be kept would be paid for again.


_T = TypeVar("_T")

#: The number is the layout's: another layout is another file, so that versions of metrist can share a folder.
NAME = "answers-1.sqlite"
_TABLES = (
    "CREATE TABLE IF NOT EXISTS answers (key BLOB PRIMARY KEY, llm TEXT NOT NULL, question BLOB NOT NULL, "
    "answer BLOB NOT NULL, arrived REAL NOT NULL)",
    "CREATE TABLE IF NOT EXISTS spending (run TEXT NOT NULL, process TEXT NOT NULL, paid REAL NOT NULL, "
    "reserved REAL NOT NULL, changed REAL NOT NULL, PRIMARY KEY (run, process))",
)
_KEYS_AT_ONCE = 500
_CHECKSUM = 4
#: Days for which it is remembered what a run spent.
_SPENDING_KEPT = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedAnswer:
    """An answer in the cache, with its question and when it came (seconds since 1970)."""

    question: Request
    answer: Completion
    arrived: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """How many answers there are, of which LLMs, and the bytes that they take on disk."""

    answers: Mapping[str, int]
    size: int


def open_cache() -> AnswerCache:
    """The cache in the folder that the environment names."""
    # A connection must not cross a fork, so each process has its own.
    return _of(rate_limit.cache_folder().absolute(), os.getpid())


@lru_cache(maxsize=8)
def _of(folder: Path, _process: int) -> AnswerCache:
    return AnswerCache(folder)


class AnswerCache:
    """Questions and their answers. Whatever is wrong with the file is raised as ModelError; a file that is damaged or
    another program's is set aside, and one entry that is damaged is as good as none."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self._file = SqliteFile(self.path, tables=_TABLES, settings=("journal_size_limit = 67108864",))

    @property
    def begun(self) -> bool:
        """Whether there is a file yet."""
        return self.path.exists()

    def find(self, questions: Sequence[Request]) -> dict[bytes, Completion]:
        """The answers that are there with all that was asked for, by the question's key."""
        by_key = {question.key: question for question in questions}
        keys = list(by_key)
        found: dict[bytes, Completion] = {}
        for start in range(0, len(keys), _KEYS_AT_ONCE):
            some = keys[start : start + _KEYS_AT_ONCE]
            found.update(self.work(lambda connection, some=some: _selected(connection, some)))  # type: ignore[misc]
        return {key: answer for key, answer in found.items() if has_requested_parts(by_key[key], answer)}

    def keep(self, kept: Sequence[CachedAnswer]) -> list[Completion]:
        """Store answers, and give those that now stand for their questions: where another process was first, its own,
        so that all later runs say the same."""

        def stored(connection: sqlite3.Connection) -> list[Completion]:
            with transaction(connection):
                return [_stored(connection, one) for one in kept]

        return self.work(stored)

    def check(self) -> None:
        """Write something, so that a file that takes nothing is found before anything is paid for."""
        old = time.time() - _SPENDING_KEPT * 86_400

        def forgotten(connection: sqlite3.Connection) -> None:
            with transaction(connection):
                connection.execute("DELETE FROM spending WHERE changed < ?", (old,))
                # Deleting nothing writes nothing: the version is a number in the file's head that nobody reads.
                (number,) = connection.execute("PRAGMA user_version").fetchone()
                connection.execute(f"PRAGMA user_version = {(number + 1) % 1_000_000}")

        self.work(forgotten)

    def sync(self) -> None:
        """Bring what was stored to the disk itself."""
        self.work(lambda connection: connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall())

    def each(self, llm: str | None = None) -> Iterator[CachedAnswer]:
        """All answers, or one LLM's, in the order in which they were stored."""
        # Page by page: whoever reads slowly must not hold up those who write.
        rows = self._looked(lambda connection: _page(connection, -1, llm))
        while rows:
            whole = (_kept(*row[1:]) for row in rows)
            yield from (kept for kept in whole if kept is not None)
            rows = self._looked(lambda connection, last=rows[-1][0]: _page(connection, last, llm))  # type: ignore[misc]

    def contents(self) -> Contents:
        """How much there is."""
        counted = "SELECT llm, count(*) FROM answers GROUP BY llm ORDER BY llm"
        answers = dict(self._looked(lambda connection: connection.execute(counted).fetchall()))
        return Contents(answers=answers, size=self._file.size())

    def clear(self, llm: str | None = None) -> int:
        """Forget all answers, or one LLM's, and give the space back; how many they were."""

        def emptied(connection: sqlite3.Connection) -> int:
            count = connection.execute("DELETE FROM answers WHERE ? IN (llm, '')", (llm or "",)).rowcount
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            return count

        return self._looked(emptied)

    def close(self) -> None:
        """Let go of the file, which is opened again when it is needed."""
        self._file.close()

    def work(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Do the work on the file."""
        try:
            return self._file.work(work)
        except (sqlite3.Error, OSError) as fault:
            raise ModelError(
                f"answers of LLMs cannot be kept in {self.path} ({_why(fault)}), and nothing is asked that could not "
                f"be kept; make room, or name another folder by {rate_limit.CACHE}"
            ) from fault

    def _looked(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Look at the file, or change it by hand, while nothing is asked."""
        try:
            return self._file.work(work)
        except (sqlite3.Error, OSError) as fault:
            raise ModelError(f"the answers in {self.path} cannot be looked at or changed: {_why(fault)}") from fault


def _why(fault: sqlite3.Error | OSError) -> str:
    return fault.strerror if isinstance(fault, OSError) and fault.strerror else str(fault)


def _selected(connection: sqlite3.Connection, keys: Sequence[bytes]) -> dict[bytes, Completion]:
    places = ",".join("?" * len(keys))
    rows = connection.execute(f"SELECT key, answer FROM answers WHERE key IN ({places})", keys)
    found = ((key, _answer(blob)) for key, blob in rows)
    return {key: answer for key, answer in found if answer is not None}


def _stored(connection: sqlite3.Connection, kept: CachedAnswer) -> Completion:
    key = kept.question.key
    rows = connection.execute("SELECT answer FROM answers WHERE key = ?", (key,)).fetchall()
    before = _answer(rows[0][0]) if rows else None
    if before is not None and has_requested_parts(kept.question, before):
        return before
    question, answer = _packed(kept.question.to_json()), _packed(completion_to_json(kept.answer))
    row = (key, kept.question.llm, question, answer, kept.arrived)
    connection.execute(
        "INSERT OR REPLACE INTO answers (key, llm, question, answer, arrived) VALUES (?, ?, ?, ?, ?)", row
    )
    return kept.answer


def _page(connection: sqlite3.Connection, last: int, llm: str | None) -> list[tuple[int, bytes, bytes, float]]:
    wanted = "SELECT rowid, question, answer, arrived FROM answers WHERE rowid > ? AND ? IN (llm, '')"
    return connection.execute(f"{wanted} ORDER BY rowid LIMIT 1000", (last, llm or "")).fetchall()


def _kept(question: bytes, answer: bytes, arrived: float) -> CachedAnswer | None:
    asked, answered = _unpacked(question), _answer(answer)
    if asked is None or answered is None:
        return None
    return CachedAnswer(question=Request.of_json(asked), answer=answered, arrived=arrived)


def _answer(blob: bytes) -> Completion | None:
    data = _unpacked(blob)
    try:
        return None if data is None else completion_from_json(data)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _packed(data: Any) -> bytes:
    squeezed = zlib.compress(json.dumps(data, separators=(",", ":"), default=dict).encode("ascii"), level=1)
    return squeezed + zlib.crc32(squeezed).to_bytes(_CHECKSUM, "big")


def _unpacked(blob: Any) -> Any:
    """What was packed, or None where a byte of it has changed."""
    if not isinstance(blob, bytes) or len(blob) < _CHECKSUM:
        return None
    squeezed, seal = blob[:-_CHECKSUM], blob[-_CHECKSUM:]
    whole = zlib.crc32(squeezed).to_bytes(_CHECKSUM, "big") == seal
    return json.loads(zlib.decompress(squeezed)) if whole else None
