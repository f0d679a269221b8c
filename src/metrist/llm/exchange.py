"""Files of answers, to be shared and replayed: JSONL, one object per answer with its question, what it took, when it
came and which LLM gave it. No file holds a key, since no question does."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal

from metrist.errors import InputError
from metrist.llm.answer_cache import AnswerCache, Kept
from metrist.llm.questions import Question, answer_of_json, answer_to_json, is_worth_keeping

_STORED_AT_ONCE = 500


def write_answers(answers: Iterable[Kept], path: Path) -> int:
    """Write a file, which appears whole or not at all; .gz, .xz and .zst are compressed. How many answers went in."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with _opened(unfinished, path.suffix.lower(), "w") as file:
            count = sum(1 for kept in answers if file.write(line_of(kept) + "\n"))
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    return count


def line_of(kept: Kept) -> str:
    """An answer as one line."""
    when = datetime.fromtimestamp(kept.arrived, UTC).isoformat(timespec="milliseconds")
    data = {**kept.question.to_json(), "answer": answer_to_json(kept.answer), "when": when}
    return json.dumps(data, default=dict)


def read_answers(path: Path) -> Iterator[Kept]:
    """The answers of a file; a line that is none is refused with its number."""
    try:
        with _opened(path, path.suffix.lower(), "r") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield _of_line(line, f"{path}:{number}")
    except (OSError, EOFError, UnicodeDecodeError, zlib.error, lzma.LZMAError) as fault:
        why = fault.strerror if isinstance(fault, OSError) and fault.strerror else str(fault)
        raise InputError(f"{path} cannot be read: {why}") from None


def merge(cache: AnswerCache, path: Path) -> tuple[int, int]:
    """Put a file's answers into the cache: how many there are, and how many of them were new. What the cache has
    stays. The file is read to its end first: one that is broken changes nothing."""
    count = sum(1 for _ in read_answers(path))
    new, answers = 0, read_answers(path)
    while some := list(islice(answers, _STORED_AT_ONCE)):
        known = cache.find([kept.question for kept in some])
        useful = (kept for kept in some if is_worth_keeping(kept.question, kept.answer))
        fresh = {kept.question.key: kept for kept in useful if kept.question.key not in known}
        cache.keep(list(fresh.values()))
        new += len(fresh)
    cache.sync()
    return count, new


def _of_line(line: str, where: str) -> Kept:
    try:
        data = json.loads(line)
        arrived = datetime.fromisoformat(data["when"]).timestamp()
        return Kept(question=Question.of_json(data), answer=answer_of_json(data["answer"]), arrived=arrived)
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
