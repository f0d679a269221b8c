"""An LLM with its own spec, like real ones. It logs its requests to a file, including those of other processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from metrist.llm.base import LLM, Call
from metrist.llm.messages import Completion, Conversation, Message, Sampling, Usage


@dataclass(frozen=True, kw_only=True)
class Scripted(LLM):
    """Answers in capitals. Texts that begin with 'fail' are not answered."""

    llm_name: ClassVar[str] = "scripted"

    model: str = "m"
    url: str = "http://server.example/v1"
    key: str | None = None
    log: str = field(default=os.devnull, compare=False)
    tokens: tuple[int, int] | None = field(default=(100, 50), compare=False)
    weights: str = field(default="w1", compare=False)

    def facts(self) -> Mapping[str, str]:
        return {"weights": self.weights}

    def complete_batch(self, conversations: Sequence[Conversation], _: Sampling, call: Call) -> list[Completion]:
        completions = []
        for number, conversation in enumerate(conversations):
            with Path(self.log).open("a") as file:
                file.write(conversation[-1].text + "\n")
            completions.append(self._answer(conversation[-1].text))
            call.deliver(number, completions[-1])
        return completions

    def _answer(self, text: str) -> Completion:
        if text.startswith("fail"):
            return Completion(failure="no answer after 5 attempts", usage=Usage(attempts=5))
        prompt, output = self.tokens or (None, None)
        return Completion(text=text.upper(), usage=Usage(prompt_tokens=prompt, completion_tokens=output, seconds=0.5))


class DeliverTo(Call):
    """A call that passes each completion to a function."""

    def __init__(self, function: Callable[[int, Completion], None]) -> None:
        super().__init__()
        self.deliver = function  # type: ignore[method-assign, assignment]


def say(*texts: str) -> list[list[Message]]:
    """One conversation per text."""
    return [[Message("user", text)] for text in texts]


def read_log(log: Path) -> list[str]:
    """The texts of all requests so far."""
    return log.read_text().splitlines() if log.exists() else []
