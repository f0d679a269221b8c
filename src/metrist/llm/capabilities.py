"""What a server can do, found out by asking it and remembered as long as the process lives."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from metrist.llm.talk import Completion, Message, Sampling

#: Conversations in a row that may fail before it is called the server's fault and no record's.
FAILING_ALIKE = 20

# No model says this by chance, and the question says nothing of it: an answer that follows it was held to it.
PROBE_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {"kestrel_lantern": {"type": "string", "enum": ["violet-7391"]}},
    "required": ["kestrel_lantern"],
    "additionalProperties": False,
}
PROBE = (Message("user", "Say hello in one word."),)
#: Allowed to the first probe, and to the second where the first was spent before the answer began.
PROBE_TOKENS = (64, 4096)


@dataclass(frozen=True, slots=True)
class Shape:
    """Which of the things that not every server takes a request has."""

    schema: bool
    logprobs: bool
    tokens_field: str


@dataclass(slots=True)
class Known:
    """What is known of one model of one server. Threads share it."""

    #: None: not asked yet.
    schema: bool | None = None
    logprobs: bool = True
    tokens_field: str = "max_tokens"
    refused_schemas: set[str] = field(default_factory=set)
    #: Whether it ever replied, with whatever status.
    reached: bool = False
    answered: bool = False
    #: Whether answers of it were found in the cache.
    answered_before: bool = False
    failing: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    #: Held by the one who asks for structured output first, so that it is asked once.
    probing: threading.Lock = field(default_factory=threading.Lock)

    def shape(self, sampling: Sampling, tokens_field: str | None) -> Shape:
        """The fullest form that a request for such an answer may have."""
        schema = self.schema is not False and sampling.schema is not None and _key(sampling) not in self.refused_schemas
        return Shape(schema, self.logprobs and sampling.logprobs > 0, tokens_field or self.tokens_field)

    def learn_refusal(self, name: str, sampling: Sampling) -> None:
        """Remembers that a field was refused, where requests can do without it."""
        with self.lock:
            if name == "response_format":
                self.refused_schemas.add(_key(sampling))
            elif name in ("logprobs", "top_logprobs"):
                self.logprobs = False
            elif name == "max_tokens":
                self.tokens_field = "max_completion_tokens"

    def learn_answer(self) -> None:
        """Remembers that a conversation was answered."""
        with self.lock:
            self.answered = True
            self.failing = 0

    def learn_failure(self, ended: threading.Event) -> bool:
        """Counts a conversation given up; False where too many in a row failed, which sets `ended`. Failures that come
        after that belong to the same batch and are not counted for the next one."""
        with self.lock:
            if ended.is_set():
                return True
            self.failing += 1
            if self.failing < FAILING_ALIKE:
                return True
            self.failing = 0
            ended.set()
            return False


def follows_probe(completion: Completion) -> bool:
    """Whether the server held the answer to the schema that nothing else could have told the model."""
    try:
        return bool(json.loads(completion.text) == {"kestrel_lantern": "violet-7391"})
    except (ValueError, RecursionError):
        return False


_known: dict[tuple[str, str], Known] = {}
_known_lock = threading.Lock()


def known(url: str, model: str) -> Known:
    """What this process knows of the model at that address."""
    with _known_lock:
        return _known.setdefault((url, model), Known())


def forget() -> None:
    """As if nothing had been asked yet; a server may have been replaced by another one at the same address."""
    with _known_lock:
        _known.clear()


def _key(sampling: Sampling) -> str:
    return json.dumps(sampling.schema, default=dict)
