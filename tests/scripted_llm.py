"""An LLM with a text of its own, as real ones have: what it is asked is written to a file, so that other processes'
questions count too."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from metrist.llm.base import LLM, Arrived
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

    def complete(self, conversations: Sequence[Conversation], _: Sampling, arrived: Arrived) -> list[Completion]:
        done = []
        for number, conversation in enumerate(conversations):
            with Path(self.log).open("a") as file:
                file.write(conversation[-1].text + "\n")
            done.append(self._answer(conversation[-1].text))
            arrived(number, done[-1])
        return done

    def _answer(self, text: str) -> Completion:
        if text.startswith("fail"):
            return Completion(failure="no answer after 5 attempts", usage=Usage(attempts=5))
        prompt, said = self.tokens or (None, None)
        return Completion(text=text.upper(), usage=Usage(prompt_tokens=prompt, completion_tokens=said, seconds=0.5))


def say(*texts: str) -> list[list[Message]]:
    """One conversation per text."""
    return [[Message("user", text)] for text in texts]


def asked(log: Path) -> list[str]:
    """What was asked so far."""
    return log.read_text().splitlines() if log.exists() else []
