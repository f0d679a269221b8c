"""An LLM that only repeats: its answers are those of a file that `metrist answers export` wrote."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

from metrist.errors import ModelError, SpecError, did_you_mean
from metrist.llm.answer_cache import Kept
from metrist.llm.base import LLM, Arrived, check_text
from metrist.llm.exchange import read_answers
from metrist.llm.questions import Question, questions
from metrist.llm.talk import Completion, Conversation, Message, Sampling


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
        return [known.get(question.wording) for question in questions(self, conversations, sampling)]

    def complete(self, conversations: Sequence[Conversation], sampling: Sampling, arrived: Arrived) -> list[Completion]:
        recorded = self._recorded()
        done = []
        for number, question in enumerate(questions(self, conversations, sampling)):
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

    def hint(self, question: Question) -> str:
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
    by_llm: dict[str, list[Kept]] = {}
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


def _of_one_model(path: Path, llm: str, fact: str | None, kept: Sequence[Kept]) -> list[Kept]:
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
