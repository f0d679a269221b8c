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


# A conversation as a model reads it: by its chat template, as plain turns where it has none, or as its words alone.


#: 'none': the words are given as they are, for models that were trained on one prompt and not to chat.
Turns = Literal["chat", "none"]
#: How turns are named where a model has no chat template.
_NAMES = {"system": "System", "user": "User", "assistant": "Assistant"}
#: A model without a template does not know when its turn is over: it goes on as the user.
PLAIN_STOPS = ("\nUser:", "\nSystem:")


def has_chat_template(tokenizer: Any) -> bool:
    """Whether the tokenizer knows how its model was taught to talk."""
    return bool(getattr(tokenizer, "chat_template", None))


def join_text(conversation: Conversation) -> str:
    """What is said, without a sign of who says it: all that a model is given where `turns` is 'none'."""
    return "\n\n".join(one.text for one in conversation)


def encode_prompt(tokenizer: Any, conversation: Conversation, turns: Turns = "chat") -> list[int]:
    """The tokens up to where the model is to answer."""
    safe = [Message(one.role, escape_special_tokens(one.text, tokenizer.all_special_tokens)) for one in conversation]
    if turns == "none":
        return list(tokenizer(join_text(safe), verbose=False)["input_ids"])
    if not has_chat_template(tokenizer):
        return list(tokenizer(_plain(safe), verbose=False)["input_ids"])
    try:
        rendered = _rendered(tokenizer, safe)
    except Exception:
        if not any(one.role == "system" for one in safe):
            raise
        # Some templates know no system turn, and say so by an error.
        rendered = _rendered(tokenizer, _without_system(safe))
    # The template has put the tokens that begin a text where they belong.
    return list(tokenizer(rendered, add_special_tokens=False, verbose=False)["input_ids"])


def escape_special_tokens(text: str, marks: Sequence[str]) -> str:
    """The text with a space in each of the tokenizer's marks, such as `<|im_end|>`: as written, the model would take
    them for the end of a turn, and an output could put words into the judge's mouth."""
    clean = text.encode("utf-8", "replace").decode("utf-8")
    for mark in marks:
        if len(mark) > 1 and mark in clean:
            clean = clean.replace(mark, f"{mark[0]} {mark[1:]}")
    return clean


def _rendered(tokenizer: Any, messages: Sequence[Message]) -> str:
    turns = [{"role": one.role, "content": one.text} for one in messages]
    return str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True))


def _without_system(messages: Sequence[Message]) -> list[Message]:
    told = "\n\n".join(one.text for one in messages if one.role == "system")
    rest = [one for one in messages if one.role != "system"]
    if not rest or rest[0].role != "user":
        return [Message("user", told), *rest]
    return [Message("user", f"{told}\n\n{rest[0].text}"), *rest[1:]]


def _plain(messages: Sequence[Message]) -> str:
    turns = [f"{_NAMES[one.role]}: {one.text}" for one in messages]
    return "\n\n".join([*turns, "Assistant:"])
