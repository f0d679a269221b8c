"""Files of answers, to be shared and replayed: JSONL, one object per answer with its question, what it took, when it
came and which LLM gave it. No file holds a key, since no question does."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import json
import lzma
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import IO, Any, ClassVar, Literal

from metrist.errors import InputError, ModelError, SpecError, did_you_mean
from metrist.llm.base import LLM, Arrived, check_text
from metrist.llm.cache import (
    AnswerCache,
    CachedAnswer,
    Request,
    build_requests,
    completion_from_json,
    completion_to_json,
    is_cacheable,
)
from metrist.llm.messages import Completion, Conversation, Message, Sampling

_STORED_AT_ONCE = 500


def write_answers(answers: Iterable[CachedAnswer], path: Path) -> int:
    """Write a file, which appears whole or not at all; .gz, .xz and .zst are compressed. How many answers went in."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with _opened(unfinished, path.suffix.lower(), "w") as file:
            count = sum(1 for kept in answers if file.write(line_of(kept) + "\n"))
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    return count


def line_of(kept: CachedAnswer) -> str:
    """An answer as one line."""
    when = datetime.fromtimestamp(kept.arrived, UTC).isoformat(timespec="milliseconds")
    data = {**kept.question.to_json(), "answer": completion_to_json(kept.answer), "when": when}
    return json.dumps(data, default=dict)


def read_answers(path: Path) -> Iterator[CachedAnswer]:
    """The answers of a file; a line that is none is refused with its number."""
    try:
        with _opened(path, path.suffix.lower(), "r") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield _of_line(line, f"{path}:{number}")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error, lzma.LZMAError) as fault:
        why = fault.strerror if isinstance(fault, OSError) and fault.strerror else str(fault)
        raise InputError(f"{path} cannot be read: {why}") from None


def import_answers(cache: AnswerCache, path: Path) -> tuple[int, int]:
    """Put a file's answers into the cache: how many there are, and how many of them were new. What the cache has
    stays. The file is read to its end first: one that is broken changes nothing."""
    count = sum(1 for _ in read_answers(path))
    new, answers = 0, read_answers(path)
    while some := list(islice(answers, _STORED_AT_ONCE)):
        known = cache.find([kept.question for kept in some])
        useful = (kept for kept in some if is_cacheable(kept.question, kept.answer))
        fresh = {kept.question.key: kept for kept in useful if kept.question.key not in known}
        cache.keep(list(fresh.values()))
        new += len(fresh)
    cache.sync()
    return count, new


def _of_line(line: str, where: str) -> CachedAnswer:
    try:
        data = json.loads(line)
        arrived = datetime.fromisoformat(data["when"]).timestamp()
        return CachedAnswer(
            question=Request.of_json(data), answer=completion_from_json(data["answer"]), arrived=arrived
        )
    except KeyError as fault:
        raise InputError(f"{where}: the field {fault} is missing: wanted an answer as written by {_WRITER}") from None
    except (ValueError, TypeError, AttributeError) as fault:
        raise InputError(f"{where}: no answer as written by {_WRITER}: {fault}") from None


_WRITER = "`metrist answers export`"


@contextmanager
def _opened(path: Path, suffix: str, mode: Literal["r", "w"]) -> Iterator[IO[str]]:
    with path.open(f"{mode}b") as file:
        raw = _unpacked(file, suffix) if mode == "r" else _packed(file, suffix)
        with raw, io.TextIOWrapper(raw, encoding="utf-8", newline="\n") as text:
            yield text


def _packed(file: IO[bytes], suffix: str) -> Any:
    if suffix == ".zst":
        import zstandard

        return zstandard.ZstdCompressor(level=3).stream_writer(file)
    if suffix == ".gz":
        return gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0)
    return lzma.LZMAFile(file, "wb") if suffix == ".xz" else file


def _unpacked(file: IO[bytes], suffix: str) -> Any:
    if suffix == ".zst":
        return io.BytesIO(_of_zstandard(file.read()))
    if suffix == ".gz":
        return gzip.GzipFile(fileobj=file, mode="rb")
    return lzma.LZMAFile(file, "rb") if suffix == ".xz" else file


def _of_zstandard(data: bytes) -> bytes:
    """All at once: the package's stream takes a file that is cut off for a whole one."""
    import zstandard

    found = []
    while data:
        frame = zstandard.ZstdDecompressor().decompressobj()
        try:
            found.append(frame.decompress(data))
        except zstandard.ZstdError as fault:
            raise OSError(str(fault)) from fault
        if not frame.eof:
            raise EOFError("the archive is cut short")
        data = frame.unused_data
    return b"".join(found)


# An LLM that only repeats: its answers are those of a file that `metrist answers export` wrote.


@dataclass(frozen=True, kw_only=True)
class Replay(LLM):
    """Finds an answer by what was said and how it was to be answered. `of` is the text of the LLM whose answers count,
    for a file with those of several; `fact` tells apart models of one text, as in 'weights=3f2a…'."""

    llm_name: ClassVar[str] = "replay"
    kept: ClassVar[bool] = False
    free: ClassVar[bool] = True

    file: str
    of: str | None = None
    fact: str | None = None

    def __post_init__(self) -> None:
        # A text that needs no quotes to be one is read as a spec.
        if self.of is not None:
            object.__setattr__(self, "of", str(self.of))
        check_text(self, "file")
        if self.fact is not None and not (isinstance(self.fact, str) and "=" in self.fact):
            raise SpecError(f"replay: fact must be of the form 'name=value', got {self.fact!r}")

    def facts(self) -> Mapping[str, str]:
        """A hash of all answers: the file's name alone does not say what it held that day."""
        return {"answers": self._recorded().fingerprint}

    def remembered(self, conversations: Sequence[Conversation], sampling: Sampling) -> list[Completion | None]:
        known = self._recorded().answers
        return [known.get(question.wording) for question in build_requests(self, conversations, sampling)]

    def complete(self, conversations: Sequence[Conversation], sampling: Sampling, arrived: Arrived) -> list[Completion]:
        recorded = self._recorded()
        done = []
        for number, question in enumerate(build_requests(self, conversations, sampling)):
            found = recorded.answers.get(question.wording)
            done.append(
                found or Completion(failure=f"{self.file} holds no answer to this question{recorded.hint(question)}")
            )
            arrived(number, done[-1])
        return done

    def _recorded(self) -> _Recorded:
        path = Path(self.file).expanduser()
        try:
            about = path.stat()
        except OSError as fault:
            raise ModelError(
                f"{self.file} cannot be replayed: {fault.strerror}; wanted a file that `metrist answers export` wrote"
            ) from None
        return _recorded(path, self.of, self.fact, about.st_size, about.st_mtime_ns)


@dataclass(frozen=True, slots=True, eq=False)
class _Recorded:
    """Answers by the wording of their questions. `asked` is how the same words were to be answered, and `others` says
    which other LLM of the file was asked the same."""

    answers: Mapping[bytes, Completion]
    asked: Mapping[tuple[Message, ...], Sampling]
    others: Mapping[bytes, str]
    fingerprint: str

    def hint(self, question: Request) -> str:
        """What differs, as far as it can be told."""
        if (other := self.others.get(question.wording)) is not None:
            return f", but {other} was asked it: of='…' says whose answers count"
        if (before := self.asked.get(question.messages)) is not None:
            return f", but to the same words asked with {_differing(before, question.sampling)}"
        return ": its words are in no question of the file, so that the prompt, the rubric or the record differs"


def _differing(before: Sampling, now: Sampling) -> str:
    pairs = ((f.name, getattr(before, f.name), getattr(now, f.name)) for f in dataclasses.fields(Sampling))
    differ = [
        "another schema" if name == "schema" else f"{name} {was!r} and not {wanted!r}"
        for name, was, wanted in pairs
        if was != wanted
    ]
    # Equal schemas whose properties stand in another order are answered in another order.
    return ", ".join(differ) or "another schema"


@lru_cache(maxsize=4)
def _recorded(path: Path, of: str | None, fact: str | None, _size: int, _changed: int) -> _Recorded:
    by_llm: dict[str, list[CachedAnswer]] = {}
    for kept in read_answers(path):
        by_llm.setdefault(kept.question.llm, []).append(kept)
    chosen = _chosen(path, of, list(by_llm))
    counting = _of_one_model(path, chosen, fact, by_llm[chosen])
    answers: dict[bytes, Completion] = {}
    for kept in counting:
        usage = replace(kept.answer.usage, cached=True, cost=0.0, seconds=0.0, attempts=0)
        answers.setdefault(kept.question.wording, replace(kept.answer, usage=usage))
    total = hashlib.sha256()
    for wording in sorted(answers):
        total.update(wording + answers[wording].text.encode("utf-8", "surrogatepass"))
    asked = {kept.question.messages: kept.question.sampling for kept in counting}
    others = {kept.question.wording: llm for llm in by_llm if llm != chosen for kept in by_llm[llm]}
    return _Recorded(answers, asked, others, total.hexdigest()[:12])


def _of_one_model(path: Path, llm: str, fact: str | None, kept: Sequence[CachedAnswer]) -> list[CachedAnswer]:
    """One text can name several models, such as weights that were trained on: their answers are not to be mixed."""
    name, _, value = (fact or "").partition("=")
    counting = [one for one in kept if fact is None or one.question.facts.get(name) == value]
    models = {frozenset(one.question.facts.items()) for one in counting}
    if len(models) == 1:
        return counting
    listed = sorted({f"{name}={value}" for one in kept for name, value in one.question.facts.items()})
    if not models:
        raise ModelError(f"{path} holds no answers of {llm} with {fact}{did_you_mean(fact or '', listed)}")
    raise ModelError(
        f"{path} holds answers of {len(models)} models that are all called {llm}: say which by fact='…', one of "
        + ", ".join(map(repr, listed))
    )


def _chosen(path: Path, of: str | None, known: Sequence[str]) -> str:
    if not known:
        raise ModelError(f"{path} holds no answers; `metrist answers export` writes them")
    if of is None and len(known) == 1:
        return known[0]
    if of in known:
        return of or ""
    listed = ", ".join(sorted(known))
    if of is None:
        raise ModelError(f"{path} holds answers of {len(known)} LLMs ({listed}): say which by of='…'")
    raise ModelError(f"{path} holds no answers of {of}{did_you_mean(of, known)} (it has those of {listed})")
