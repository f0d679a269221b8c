"""Reads what a chat server answered, and trusts none of it: whatever is not the documented form is said to be so."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from metrist.llm.messages import Completion, Conversation, Sampling, TokenChoice, Turns, Usage, join_text

Finish = Literal["stop", "length", "filter", "other"]
_FINISHES: Mapping[str, Finish] = {
    "stop": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "eos": "stop",
    "length": "length",
    "max_tokens": "length",
    "content_filter": "filter",
    "safety": "filter",
    "refusal": "filter",
}


class Unreadable(ValueError):
    """A body that is no answer, though the server called it one."""


def decoded(body: bytes) -> Any:
    """The JSON value in a body, whole or not at all."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise Unreadable(f"the body is no JSON ({len(body):,} bytes, beginning {_beginning(body)})") from None


def completion(found: Any) -> Completion:
    """The first choice of a chat completion, with what it took as the server counted it."""
    choice = _first_choice(found)
    message = choice.get("message")
    if not isinstance(message, dict):
        raise Unreadable("the answer has no message")
    text, finish = _text(message), _finish(choice.get("finish_reason"))
    usage = _usage(found.get("usage"))
    if text is None:
        return _without_text(message, finish, usage)
    return Completion(text=_whole(text), finish=finish, tokens=_tokens(choice.get("logprobs")), usage=usage)


def text_completion(found: Any) -> Completion:
    """The first choice of a completion without turns, likewise."""
    choice = _first_choice(found)
    if not isinstance(choice.get("text", 0), str | None):
        raise Unreadable("the answer has no text")
    text, finish, usage = choice["text"], _finish(choice.get("finish_reason")), _usage(found.get("usage"))
    if text is None:
        return _without_text({}, finish, usage)
    return Completion(text=_whole(text), finish=finish, tokens=_text_tokens(choice.get("logprobs")), usage=usage)


def _first_choice(found: Any) -> dict[str, Any]:
    choices = found.get("choices") if isinstance(found, dict) else None
    if not (isinstance(choices, list) and choices and isinstance(choices[0], dict)):
        raise Unreadable("the answer has no choices")
    first: dict[str, Any] = choices[0]
    return first


def _text(message: dict[str, Any]) -> str | None:
    """What was said: a string, or the text parts of a list; None where there is no content at all."""
    content = message.get("content")
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        content = "".join(part for part in parts if isinstance(part, str))
    if content is None or isinstance(content, str):
        return content
    raise Unreadable(f"the content of the answer is neither text nor parts but {type(content).__name__}")


def _without_text(message: dict[str, Any], finish: Finish, usage: Usage) -> Completion:
    """A refusal in words is an answer; nothing at all is not."""
    refusal = message.get("refusal")
    if isinstance(refusal, str) and refusal:
        return Completion(text=_whole(refusal), finish="filter", usage=usage)
    why = {
        "length": "all of max_tokens was used before the answer began (reasoning counts too); allow more",
        "filter": "the server's content filter withheld the answer",
    }
    reason = why.get(finish, "the server sent an answer without text")
    return Completion(failure=reason, finish=finish, usage=usage)


def _tokens(logprobs: Any) -> tuple[TokenChoice, ...] | None:
    """Tokens with their alternatives; None where the server sent none, or not in the documented form."""
    entries = logprobs.get("content") if isinstance(logprobs, dict) else None
    if not (isinstance(entries, list) and entries):
        return None
    try:
        return tuple(
            TokenChoice(*_token(entry), tuple(map(_token, entry.get("top_logprobs") or ()))) for entry in entries
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _text_tokens(logprobs: Any) -> tuple[TokenChoice, ...] | None:
    """As `_tokens`, of an answer without turns: three lists side by side, the alternatives as objects by token."""
    if not (isinstance(logprobs, dict) and logprobs.get("tokens")):
        return None
    try:
        texts, own = list(map(str, logprobs["tokens"])), list(map(float, logprobs["token_logprobs"]))
        weighed = logprobs.get("top_logprobs") or [None] * len(texts)
        others = [sorted((one or {}).items(), key=lambda pair: -pair[1]) for one in weighed]
        each = zip(texts, own, others, strict=True)
        return tuple(
            TokenChoice(_whole(text), number, tuple((_whole(t), float(n)) for t, n in some))
            for text, number, some in each
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _token(entry: dict[str, Any]) -> tuple[str, float]:
    return _whole(str(entry["token"])), float(entry["logprob"])


def _usage(found: Any) -> Usage:
    counts = found if isinstance(found, dict) else {}
    return Usage(
        prompt_tokens=_count(counts.get("prompt_tokens")), completion_tokens=_count(counts.get("completion_tokens"))
    )


def _count(found: Any) -> int | None:
    return found if isinstance(found, int) and not isinstance(found, bool) and found >= 0 else None


def _whole(text: str) -> str:
    """Halves of surrogate pairs, which JSON can carry and no file can, become replacement characters."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _finish(found: Any) -> Finish:
    if found is None:
        return "stop"  # Some local servers leave it out of whole answers.
    return _FINISHES.get(str(found).lower(), "other")


def _beginning(body: bytes) -> str:
    return repr(body[:60].decode("utf-8", "replace"))


# The body of a request for an answer in a chat, or for text that goes on from other text, as OpenAI documents them.


#: Fields of a request that change its answers and that some models refuse.
OMITTABLE = ("top_p", "temperature", "seed", "stop")


_LENGTH = "max_tokens=… of the metric says how long an answer may be, which the limit on cost counts with"
#: Those of the fields below that no object within `body` can have either: servers heed them there too.
LENGTHS = {
    **dict.fromkeys(("max_tokens", "max_completion_tokens"), f"{_LENGTH}; max_tokens_field=… what the server calls it"),
    **dict.fromkeys(("max_output_tokens", "max_new_tokens", "n_predict", "num_predict"), _LENGTH),
}
_LEFT_OUT = "the metric says it, and omit=['{}'] leaves it out"
#: Fields that `body` cannot set, since what is known of a question (its key, the most that it can cost) says another
#: thing then; and what to do instead.
INSTEAD = {
    "model": "model=… names it",
    "messages": "the metric says what is asked",
    "prompt": "the metric says what is asked",
    "stream": "answers are read whole",
    "n": "samples=… of the metric says how many answers are drawn",
    "best_of": "samples=… of the metric says how many answers are drawn",
    "temperature": "temperature=… of the metric sets it, and omit=['temperature'] leaves it out",
    **{name: _LEFT_OUT.format(name) for name in ("top_p", "seed", "stop")},
    **dict.fromkeys(("logprobs", "top_logprobs"), "a metric that reads them asks for them"),
    "response_format": "the metric says which form its answers have",
    **LENGTHS,
}


@dataclass(frozen=True, slots=True)
class Shape:
    """Which of the things that not every server takes a request has."""

    schema: bool
    logprobs: bool
    tokens_field: str


class ChatSettings(Protocol):
    """What of an LLM's settings shapes its requests."""

    @property
    def model(self) -> str: ...
    @property
    def turns(self) -> Turns: ...
    @property
    def system(self) -> str: ...
    @property
    def omit(self) -> Sequence[str]: ...
    @property
    def body(self) -> str | None: ...


def fields(llm: ChatSettings, conversation: Conversation, sampling: Sampling, shape: Shape) -> dict[str, Any]:
    """All fields of the request, the user's own (`body`) last."""
    raw = llm.turns == "none"
    said = {"prompt": join_text(conversation)} if raw else {"messages": _messages(conversation, llm.system)}
    found: dict[str, Any] = {"model": llm.model, **said}
    found |= {name: value for name, value in _drawing(sampling).items() if name not in llm.omit}
    found[shape.tokens_field] = sampling.max_tokens
    if shape.logprobs:
        found |= {"logprobs": sampling.logprobs} if raw else {"logprobs": True, "top_logprobs": sampling.logprobs}
    if shape.schema:
        form = {"name": "answer", "strict": True, "schema": sampling.schema}
        found["response_format"] = {"type": "json_schema", "json_schema": form}
    return found | (json.loads(llm.body) if llm.body else {})


def _drawing(sampling: Sampling) -> dict[str, Any]:
    """How tokens are drawn. Greedy answers do not depend on `top_p`, and many reasoning models refuse it."""
    found: dict[str, Any] = {"temperature": sampling.temperature}
    if sampling.temperature > 0:
        found["top_p"] = sampling.top_p
    if sampling.seed is not None:
        found["seed"] = sampling.seed + sampling.sample  # With one seed, all samples would be the same draw.
    if sampling.stop:
        found["stop"] = list(sampling.stop)
    return found


def _messages(conversation: Conversation, system: str) -> list[dict[str, str]]:
    said = [{"role": message.role, "content": message.text} for message in conversation]
    if system == "user":
        return _told_by_user(said)
    return [{**one, "role": system} if one["role"] == "system" else one for one in said]


def _told_by_user(said: list[dict[str, str]]) -> list[dict[str, str]]:
    """For models without a system role: what it says stands at the head of the next turn of the user."""
    found: list[dict[str, str]] = []
    pending: list[str] = []
    for one in said:
        if one["role"] == "system":
            pending.append(one["content"])
            continue
        if one["role"] == "user" and pending:
            one = {"role": "user", "content": "\n\n".join([*pending, one["content"]])}
            pending = []
        found.append(one)
    return [*found, {"role": "user", "content": "\n\n".join(pending)}] if pending else found
