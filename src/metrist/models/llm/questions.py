"""A question is all that an answer depends on: the LLM, what it is told, how it is to answer. Its key is a hash of it.

Questions and answers are written as JSON here, for the cache and for files that are shared. A key for a server is in
neither: an LLM's text has only the name of the variable that holds it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from metrist.models.llm.base import LLM
from metrist.models.llm.talk import Completion, Conversation, Message, Sampling, TokenChoice, Usage
from metrist.spec import Spec


@dataclass(frozen=True, kw_only=True)
class Question:
    """One conversation put to one LLM. `facts` are what else the LLM's answers depend on."""

    llm: str
    facts: Mapping[str, str] = field(default_factory=dict, hash=False)
    messages: tuple[Message, ...]
    sampling: Sampling

    @cached_property
    def key(self) -> bytes:
        """Equal for equal questions, in any process and on any machine."""
        return hashlib.sha256(_canonical(self.to_json())).digest()

    @cached_property
    def wording(self) -> bytes:
        """As the key, whichever LLM is asked."""
        return hashlib.sha256(_canonical(_said(self.messages, self.sampling))).digest()

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {"llm": self.llm, "facts": dict(sorted(self.facts.items())), **_said(self.messages, self.sampling)}

    @staticmethod
    def of_json(data: Mapping[str, Any]) -> Question:
        """What `to_json` gave; KeyError, TypeError or ValueError where it did not."""
        messages = tuple(Message(one["role"], _text(one["text"])) for one in data["messages"])
        if wrong := [one.role for one in messages if one.role not in ("system", "user", "assistant")]:
            raise ValueError(f"a message's role must be system, user or assistant, got {wrong[0]!r}")
        sampling = dict(data["sampling"])
        sampling["stop"] = tuple(sampling.get("stop", ()))
        facts = {str(k): str(v) for k, v in dict(data["facts"]).items()}
        return Question(llm=_text(data["llm"]), facts=facts, messages=messages, sampling=Sampling(**sampling))


def questions(llm: LLM, conversations: Sequence[Conversation], sampling: Sampling) -> list[Question]:
    """One question per conversation."""
    text, facts = identity(llm), dict(llm.facts())
    return [Question(llm=text, facts=facts, messages=tuple(one), sampling=sampling) for one in conversations]


#: Where a key is found changes no answer.
_ASIDE = ("key",)


def identity(llm: LLM) -> str:
    """The LLM's text without settings that change no answer: the key's name, and what is declared with
    `field(compare=False)`."""
    fields: tuple[dataclasses.Field[Any], ...] = dataclasses.fields(llm) if dataclasses.is_dataclass(llm) else ()
    aside = [*_ASIDE, *(f.name for f in fields if not f.compare)]
    spec = llm.spec
    return str(Spec(spec.name, {name: value for name, value in spec.settings.items() if name not in aside}))


def answer_to_json(answer: Completion) -> dict[str, Any]:
    """An answer as plain data, without what is as usual."""
    data: dict[str, Any] = {"text": answer.text, "finish": answer.finish}
    if answer.structured:
        data["structured"] = True
    if answer.tokens is not None:
        data["tokens"] = [[one.text, one.logprob, [list(pair) for pair in one.alternatives]] for one in answer.tokens]
    usage = dataclasses.asdict(answer.usage)
    return {**data, "usage": {name: usage[name] for name in _PAID if usage[name] not in (None, False)}}


#: What is kept of an answer's usage: the tokens, and what they cost then.
_PAID = ("prompt_tokens", "completion_tokens", "cost", "seconds", "estimated")


def answer_of_json(data: Mapping[str, Any]) -> Completion:
    """What `answer_to_json` gave; KeyError, TypeError or ValueError where it did not."""
    if data["finish"] not in ("stop", "length", "filter", "other"):
        raise ValueError(f"finish must be stop, length, filter or other, got {data['finish']!r}")
    tokens = data.get("tokens")
    return Completion(
        text=_text(data["text"]),
        finish=data["finish"],
        tokens=None if tokens is None else tuple(_choice(*one) for one in tokens),
        structured=bool(data.get("structured", False)),
        usage=Usage(**{name: value for name, value in data.get("usage", {}).items() if name in _PAID}),
    )


def _choice(text: str, logprob: float, alternatives: Sequence[Sequence[Any]]) -> TokenChoice:
    return TokenChoice(_text(text), float(logprob), tuple((_text(one), float(number)) for one, number in alternatives))


#: What is always said of the sampling. A setting that is added one day is said only where it is not as usual, so that
#: it leaves all questions from before what they are.
_ALWAYS = ("temperature", "top_p", "max_tokens", "seed", "stop", "schema", "logprobs", "sample")


def _said(messages: Sequence[Message], sampling: Sampling) -> dict[str, Any]:
    given = ((f, getattr(sampling, f.name)) for f in dataclasses.fields(sampling))
    how = {f.name: value for f, value in given if f.name in _ALWAYS or value != f.default}
    how |= {"temperature": float(sampling.temperature), "top_p": float(sampling.top_p), "stop": list(sampling.stop)}
    return {"messages": [{"role": one.role, "text": one.text} for one in messages], "sampling": how}


def _canonical(data: Any) -> bytes:
    # ASCII escapes let half a character, as broken JSON gives it, through. Keys stay in their order: that of a schema's
    # properties is the order in which they are answered.
    return json.dumps(data, separators=(",", ":"), default=dict).encode("ascii")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"wanted text, got {type(value).__name__}")
    return value
