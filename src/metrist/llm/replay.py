"""Answers without a model: files of recorded answers, the `replay` LLM that repeats them, and a fake LLM for tests.

A file of answers is JSONL with one object per answer: its request, its completion, the time and the LLM.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import ClassVar

from metrist.errors import InputError, ModelError, SpecError, did_you_mean, format_count
from metrist.io.compression import open_bytes
from metrist.io.writer import atomic_write
from metrist.llm.base import LLM, Call, check_text
from metrist.llm.cache import (
    AnswerCache,
    CachedAnswer,
    Request,
    build_requests,
    completion_from_json,
    completion_to_json,
    is_cacheable,
)
from metrist.llm.messages import Completion, Conversation, Message, Sampling, mark_cached
from metrist.scores import Failure, FailureKind

_BATCH = 500
_LONGEST_LINE = 1 << 26
_WRITER = "`metrist answers export`"


def write_answers(answers: Iterable[CachedAnswer], path: Path) -> int:
    """Write a file, which appears complete or not at all; .gz, .xz and .zst are compressed. The number of answers."""
    count = 0
    with atomic_write(path) as file:
        for answer in answers:
            file.write(format_line(answer) + "\n")
            count += 1
    return count


def format_line(answer: CachedAnswer) -> str:
    """An answer as one line of JSON."""
    when = datetime.fromtimestamp(answer.arrived, UTC).isoformat(timespec="milliseconds")
    data = {**answer.request.to_json(), "answer": completion_to_json(answer.completion), "when": when}
    return json.dumps(data, default=dict)


def read_answers(path: Path) -> Iterator[CachedAnswer]:
    """The answers in a file; InputError with the line number for a line that is none."""
    with open_bytes(path) as file:
        for number, line in enumerate(iter(lambda: file.readline(_LONGEST_LINE), b""), 1):
            if len(line) == _LONGEST_LINE:
                raise InputError(f"{path}:{number}: the line has {_LONGEST_LINE:,} bytes or more: no answer")
            if line.strip():
                yield _parse_line(line, f"{path}:{number}")


def import_answers(cache: AnswerCache, path: Path) -> tuple[int, int]:
    """Add a file's answers to the cache, which keeps those that it has: the number of answers, and of new ones. The
    file is read to its end first, so that a broken one changes nothing."""
    count = sum(1 for _ in read_answers(path))
    new, answers = 0, read_answers(path)
    while batch := list(islice(answers, _BATCH)):
        known = cache.find([answer.request for answer in batch])
        useful = (answer for answer in batch if is_cacheable(answer.request, answer.completion))
        fresh = {answer.request.key: answer for answer in useful if answer.request.key not in known}
        cache.store(list(fresh.values()))
        new += len(fresh)
    cache.sync()
    return count, new


def _parse_line(line: bytes, where: str) -> CachedAnswer:
    try:
        data = json.loads(line)
        request, completion = Request.from_json(data), completion_from_json(data.get("answer"))
        arrived = datetime.fromisoformat(data.get("when")).timestamp()
        return CachedAnswer(request=request, completion=completion, arrived=arrived)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise InputError(f"{where}: not an answer written by {_WRITER}: {error}") from None


@dataclass(frozen=True, kw_only=True)
class Replay(LLM):
    """Repeats the answers of a file that `metrist answers export` wrote, found by messages and sampling.

    For a file with answers of several LLMs, `of` is the spec of the one to repeat; `fact`, such as 'weights=3f2a…',
    tells apart models with the same spec.
    """

    llm_name: ClassVar[str] = "replay"
    cacheable: ClassVar[bool] = False
    free: ClassVar[bool] = True

    file: str
    of: str | None = None
    fact: str | None = None

    def __post_init__(self) -> None:
        # A value that needs no quotes is parsed as a spec.
        if self.of is not None:
            object.__setattr__(self, "of", str(self.of))
        check_text(self, "file")
        if self.fact is not None and not (isinstance(self.fact, str) and "=" in self.fact):
            raise SpecError(f"replay: fact must have the form 'name=value', got {self.fact!r}")

    def facts(self) -> Mapping[str, str]:
        """A hash of all answers, since the name of the file does not identify its content."""
        return {"answers": self._recording().fingerprint}

    def recall(self, conversations: Sequence[Conversation], sampling: Sampling) -> list[Completion | None]:
        answers = self._recording().answers
        return [answers.get(request.content_key) for request in build_requests(self, conversations, sampling)]

    def complete_batch(
        self,
        conversations: Sequence[Conversation],
        sampling: Sampling,
        call: Call,  # noqa: ARG002
    ) -> list[Completion]:
        recording = self._recording()
        completions = []
        for request in build_requests(self, conversations, sampling):
            completion = recording.answers.get(request.content_key)
            if completion is None:
                message = f"{self.file} has no answer to this request{recording.explain_missing(request)}"
                completion = Completion(failure=Failure(FailureKind.other, message))
            completions.append(completion)
        return completions

    def _recording(self) -> _Recording:
        path = Path(self.file).expanduser()
        try:
            status = path.stat()
        except OSError as error:
            raise ModelError(
                f"cannot replay {self.file}: {error.strerror}; expected a file written by {_WRITER}",
                code="invalid_value",
            ) from None
        return _read_recording(path, self.of, self.fact, status.st_size, status.st_mtime_ns)


@dataclass(frozen=True, slots=True, eq=False)
class _Recording:
    """Completions by the content key of their requests. `sampling_of` has the sampling of the same messages, and
    `other_llms` the other LLM of the file that got the same request."""

    answers: Mapping[bytes, Completion]
    sampling_of: Mapping[tuple[Message, ...], Sampling]
    other_llms: Mapping[bytes, str]
    fingerprint: str

    def explain_missing(self, request: Request) -> str:
        """What differs from the recorded requests, as far as it can be told."""
        if (other := self.other_llms.get(request.content_key)) is not None:
            return f", but {other} got the same request: select the LLM with of='…'"
        if (sampling := self.sampling_of.get(request.messages)) is not None:
            differences = []
            for name in (field.name for field in dataclasses.fields(Sampling)):
                before, now = getattr(sampling, name), getattr(request.sampling, name)
                if before != now:
                    differences.append(
                        "another schema" if name == "schema" else f"{name} {before!r} instead of {now!r}"
                    )
            # Equal schemas with their properties in another order are answered in another order.
            return f", but the same messages with {', '.join(differences) or 'another schema'}"
        return ": no request in the file has these messages, so the prompt, the rubric or the record differs"


@lru_cache(maxsize=4)
def _read_recording(path: Path, of: str | None, fact: str | None, _size: int, _changed: int) -> _Recording:
    by_llm: dict[str, list[CachedAnswer]] = {}
    for answer in read_answers(path):
        by_llm.setdefault(answer.request.llm, []).append(answer)
    available = ", ".join(sorted(by_llm))
    if not by_llm:
        raise ModelError(f"{path} has no answers; {_WRITER} writes them", code="no_data")
    if of is None and len(by_llm) > 1:
        raise ModelError(f"{path} has answers of {len(by_llm)} LLMs ({available}): select one with of='…'")
    llm = next(iter(by_llm)) if of is None else of
    if llm not in by_llm:
        raise ModelError(
            f"{path} has no answers of {llm}{did_you_mean(llm, by_llm)} (available: {available})", code="unknown_name"
        )
    # One spec can describe several models, such as weights that were trained further.
    name, _, value = (fact or "").partition("=")
    recorded = [answer for answer in by_llm[llm] if fact is None or answer.request.facts.get(name) == value]
    models = {frozenset(answer.request.facts.items()) for answer in recorded}
    if len(models) != 1:
        facts = sorted({f"{name}={value}" for answer in by_llm[llm] for name, value in answer.request.facts.items()})
        if not models:
            raise ModelError(
                f"{path} has no answers of {llm} with {fact}{did_you_mean(fact or '', facts)}", code="unknown_name"
            )
        raise ModelError(
            f"{path} has answers of {len(models)} models that are all called {llm}: select one with fact='…', one of "
            + ", ".join(map(repr, facts))
        )
    answers: dict[bytes, Completion] = {}
    for answer in recorded:
        answers.setdefault(answer.request.content_key, mark_cached(answer.completion))
    digest = hashlib.sha256()
    for key in sorted(answers):
        digest.update(key + answers[key].text.encode("utf-8", "surrogatepass"))
    sampling_of = {answer.request.messages: answer.request.sampling for answer in recorded}
    other_llms = {answer.request.content_key: other for other in by_llm if other != llm for answer in by_llm[other]}
    return _Recording(answers, sampling_of, other_llms, digest.hexdigest()[:12])


#: What a fake LLM can answer: a text, a completion, or a kind of failure.
FakeAnswer = str | Completion | FailureKind


@dataclass(frozen=True)
class FakeLLM(LLM):
    """An LLM for tests: it answers without a model and records the conversations it gets in `requests`.

    `answers` is one answer for all requests; a list, used in order; a dict, of which the first key that occurs in the
    last message decides; or a function of the conversation and the sampling. An answer is a text, a `Completion`, or a
    `FailureKind` such as `FailureKind.transient`, which makes the request fail.
    """

    llm_name: ClassVar[str] = "fake"
    # Its spec may name a function, which identifies nothing in another process.
    cacheable: ClassVar[bool] = False

    answers: (
        FakeAnswer | Sequence[FakeAnswer] | Mapping[str, FakeAnswer] | Callable[[Conversation, Sampling], FakeAnswer]
    ) = "OK"
    requests: list[Conversation] = field(default_factory=list, compare=False, repr=False)

    def complete_batch(self, conversations: Sequence[Conversation], sampling: Sampling, call: Call) -> list[Completion]:
        completions = []
        for index, conversation in enumerate(conversations):
            self.requests.append(conversation)
            answer = self._answer(conversation, sampling)
            if isinstance(answer, FailureKind):
                answer = Completion(failure=Failure(answer, f"the fake LLM failed ({answer.value})"))
            completions.append(answer if isinstance(answer, Completion) else Completion(text=answer))
            call.deliver(index, completions[-1])
        return completions

    def _answer(self, conversation: Conversation, sampling: Sampling) -> FakeAnswer:
        answers, text = self.answers, conversation[-1].text
        if isinstance(answers, str | Completion | FailureKind):
            return answers
        if isinstance(answers, Mapping):
            for key, answer in answers.items():
                if key in text:
                    return answer
            raise ModelError(f"FakeLLM: no key of answers ({', '.join(map(repr, answers))}) occurs in {text!r}")
        if not isinstance(answers, Sequence):
            return answers(conversation, sampling)
        if len(self.requests) > len(answers):
            count = format_count(len(answers), "answer")
            raise ModelError(f"FakeLLM: request {len(self.requests)} has no answer; the list has only {count}")
        return answers[len(self.requests) - 1]
