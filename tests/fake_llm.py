"""The fake LLM of the tests: the public one, with the conversations under `asked` too."""

from __future__ import annotations

from dataclasses import dataclass

from metrist.llm import replay
from metrist.llm.messages import Conversation


@dataclass(frozen=True)
class FakeLLM(replay.FakeLLM):
    """Answers by a function of the conversation and the sampling."""

    @property
    def asked(self) -> list[Conversation]:
        return self.requests
