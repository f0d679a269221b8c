"""The one door through which metrics come to an LLM: what was answered before is not asked again, what is answered now
is kept before it is used, and nothing is sent that could pass the limit on cost."""

from __future__ import annotations

from collections.abc import Sequence

from metrist.models.llm.base import LLM
from metrist.models.llm.talk import Completion, Conversation, Sampling


def complete(llm: LLM, conversations: Sequence[Conversation], sampling: Sampling) -> list[Completion]:
    """One completion per conversation, in order."""
    return llm.complete(conversations, sampling, _let_go)


def _let_go(_number: int, _completion: Completion) -> None:
    """Keeps nothing."""
