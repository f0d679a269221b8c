"""An LLM that answers by a function of the conversation: for tests of what is asked, and of what is made of answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from metrist.llm.base import LLM, Arrived
from metrist.llm.messages import Completion, Conversation, Sampling


@dataclass(frozen=True)
class FakeLLM(LLM):
    """Answers with text, or with a whole completion; keeps what it was asked."""

    answer: Callable[[Conversation, Sampling], str | Completion]
    asked: list[Conversation] = field(default_factory=list, compare=False)
    llm_name = "fake"
    # Its text names a function of this process, which says nothing to another.
    kept = False

    def complete(self, conversations: Sequence[Conversation], sampling: Sampling, arrived: Arrived) -> list[Completion]:
        done = []
        for number, conversation in enumerate(conversations):
            self.asked.append(conversation)
            said = self.answer(conversation, sampling)
            done.append(said if isinstance(said, Completion) else Completion(text=said))
            arrived(number, done[-1])
        return done
