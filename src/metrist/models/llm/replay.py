"""An LLM that only repeats: its answers are those of a file that `metrist answers export` wrote."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

from metrist.errors import ModelError, did_you_mean
from metrist.models.llm.base import LLM, Arrived, check_text
from metrist.models.llm.exchange import read_answers
from metrist.models.llm.questions import questions
from metrist.models.llm.talk import Completion, Conversation, Sampling


@dataclass(frozen=True, kw_only=True)
class Replay(LLM):
    """Finds an answer by what was said and how it was to be answered. `of` is the text of the LLM whose answers count,
    for a file with those of several."""

    llm_name: ClassVar[str] = "replay"
    kept: ClassVar[bool] = False
    free: ClassVar[bool] = True

    file: str
    of: str | None = None

    def __post_init__(self) -> None:
        # A text that needs no quotes to be one is read as a spec.
        if self.of is not None:
            object.__setattr__(self, "of", str(self.of))
        check_text(self, "file")

    def facts(self) -> Mapping[str, str]:
        """A hash of all answers: the file's name alone does not say what it held that day."""
        return {"answers": self._recorded().fingerprint}

    def complete(self, conversations: Sequence[Conversation], sampling: Sampling, arrived: Arrived) -> list[Completion]:
        known = self._recorded().answers
        done = []
        for number, question in enumerate(questions(self, conversations, sampling)):
            found = known.get(question.wording)
            done.append(found or Completion(failure=f"{self.file} holds no answer to this question"))
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
        return _recorded(path, self.of, about.st_size, about.st_mtime_ns)


@dataclass(frozen=True, slots=True, eq=False)
class _Recorded:
    """Answers by the wording of their questions."""

    answers: Mapping[bytes, Completion]
    fingerprint: str


@lru_cache(maxsize=4)
def _recorded(path: Path, of: str | None, _size: int, _changed: int) -> _Recorded:
    by_llm: dict[str, dict[bytes, Completion]] = {}
    for kept in read_answers(path):
        usage = replace(kept.answer.usage, cached=True, cost=0.0, seconds=0.0, attempts=0)
        answers = by_llm.setdefault(kept.question.llm, {})
        answers.setdefault(kept.question.wording, replace(kept.answer, usage=usage))
    chosen = by_llm[_chosen(path, of, list(by_llm))]
    total = hashlib.sha256()
    for wording in sorted(chosen):
        total.update(wording + chosen[wording].text.encode("utf-8", "surrogatepass"))
    return _Recorded(chosen, total.hexdigest()[:12])


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
