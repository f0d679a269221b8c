"""What is said to a large language model, how it is to answer, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: Role
    text: str


Conversation = Sequence[Message]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to answer. Greedy by default: the same question gets the same answer wherever the server keeps its word.

    `schema` is a JSON schema that the answer is to follow where the server can be held to it. `logprobs` asks for so
    many alternatives with their log-probabilities at each token. `sample` tells repeated draws of one question apart.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    max_tokens: int = 1024
    seed: int | None = 0
    stop: tuple[str, ...] = ()
    schema: Mapping[str, Any] | None = field(default=None, hash=False)
    logprobs: int = 0
    sample: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What an answer took. `cost` is in US dollars, None where no price is known; `cached` answers cost nothing now.
    `estimated` tokens were counted from the text's length, since the server did not say them."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost: float | None = None
    seconds: float = 0.0
    attempts: int = 1
    cached: bool = False
    estimated: bool = False


@dataclass(frozen=True, slots=True)
class TokenChoice:
    """A token of an answer, and the alternatives that the model weighed there."""

    text: str
    logprob: float
    alternatives: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """An answer, or the reason why there is none. `finish` is 'length' where the answer was cut off.

    `structured` says that the server held the answer to the schema; otherwise it was only asked to.
    """

    text: str = ""
    failure: str | None = None
    finish: Literal["stop", "length", "filter", "other"] = "stop"
    tokens: tuple[TokenChoice, ...] | None = None
    structured: bool = False
    usage: Usage = field(default_factory=Usage)
