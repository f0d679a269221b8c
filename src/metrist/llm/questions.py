"""A question is all that an answer depends on: the LLM, what it is told, how it is to answer. Its key is a hash of it.

Questions and answers are written as JSON here, for the cache and for files that are shared. A key for a server is in
neither: an LLM's text has only the name of the variable that holds it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from metrist.llm.base import LLM
from metrist.llm.talk import Completion, Conversation, Message, Sampling, TokenChoice, Usage
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
        _check_numbers("sampling", sampling, _DRAWN)
        sampling["stop"] = tuple(map(_text, sampling.get("stop", ())))
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


def is_worth_keeping(question: Question, answer: Completion) -> bool:
    """Whether asking again would give the same and cost the same: an answer with all that was asked for, or one that
    came without words for a reason that stays, and that the server counted. Why else there are no words nobody knows:
    the next time there may be some."""
    if answer.failure is not None:
        counted = answer.usage.prompt_tokens or answer.usage.completion_tokens
        return bool(counted) and answer.finish in ("length", "filter")
    if not answer.text.strip() and answer.finish == "other":
        return False
    return has_all_asked_for(question, answer)


def has_all_asked_for(question: Question, answer: Completion) -> bool:
    """Whether the log-probabilities are there, if they were asked for: another day the server may give them."""
    return not question.sampling.logprobs or answer.tokens is not None or not answer.text


def answer_to_json(answer: Completion) -> dict[str, Any]:
    """An answer as plain data, without what is as usual."""
    data: dict[str, Any] = {"text": answer.text, "finish": answer.finish}
    if answer.failure is not None:
        data["failure"] = answer.failure
    if answer.structured:
        data["structured"] = True
    if answer.tokens is not None:
        data["tokens"] = [[one.text, one.logprob, [list(pair) for pair in one.alternatives]] for one in answer.tokens]
    usage = dataclasses.asdict(answer.usage)
    return {**data, "usage": {name: usage[name] for name in _PAID if usage[name] not in (None, False)}}


#: What is kept of an answer's usage: the tokens, and what they cost then.
_PAID: Mapping[str, Any] = {
    "prompt_tokens": int,
    "completion_tokens": int,
    "cost": (int, float),
    "seconds": (int, float),
    "estimated": bool,
}
_DRAWN: Mapping[str, Any] = {
    "temperature": (int, float),
    "top_p": (int, float),
    "max_tokens": int,
    "seed": int,
    "logprobs": int,
    "sample": int,
}
_NAMED: Mapping[Any, str] = {int: "a whole number", (int, float): "a number", bool: "true or false"}


def answer_of_json(data: Mapping[str, Any]) -> Completion:
    """What `answer_to_json` gave; KeyError, TypeError or ValueError where it did not."""
    if data["finish"] not in ("stop", "length", "filter", "other"):
        raise ValueError(f"finish must be stop, length, filter or other, got {data['finish']!r}")
    tokens, failure = data.get("tokens"), data.get("failure")
    return Completion(
        text=_text(data["text"]),
        failure=None if failure is None else _text(failure),
        finish=data["finish"],
        tokens=None if tokens is None else tuple(_choice(*one) for one in tokens),
        structured=bool(data.get("structured", False)),
        usage=_usage(data.get("usage", {})),
    )


def _usage(data: Mapping[str, Any]) -> Usage:
    _check_numbers("usage", data, _PAID)
    return Usage(**{name: data[name] for name in _PAID if data.get(name) is not None})


def _check_numbers(what: str, data: Mapping[str, Any], kinds: Mapping[str, Any]) -> None:
    """What others wrote is counted with later, where nobody knows any more whence it came."""
    for name, kind in kinds.items():
        value = data.get(name)
        if value is None:
            continue
        known = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
        if not known or not (math.isfinite(value) and (value >= 0 or name == "seed")):
            raise ValueError(f"{what}: {name} must be {_NAMED[kind]}, got {value!r}")


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
