"""Conversations with an LLM, sampling settings, completions, and how a conversation becomes a prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from metrist.scores import Failure

Role = Literal["system", "user", "assistant"]
Finish = Literal["stop", "length", "filter", "other"]


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: Role
    text: str


Conversation = Sequence[Message]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the LLM generates. The default is greedy decoding with a fixed seed.

    `schema` is a JSON schema for the answer; servers that support it enforce it. `logprobs` requests that many
    alternatives per token with their log-probabilities. `sample` distinguishes repeated draws for one conversation.
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
    """What a completion consumed.

    `cost` is in US dollars, None if no price is known. `cached` completions cost nothing now: `saved` is what they
    would cost, and `repeated` marks those that answer an equal request of the same call. `estimated` marks token
    counts computed from the text's length because the server reported none, or more than the texts can hold
    (`unusable`). `calls` is 1 plus the requests that the LLM sent on its own account for this completion, such as a
    probe of the server's features; tokens, cost and attempts include them.
    """

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost: float | None = None
    seconds: float = 0.0
    attempts: int = 1
    calls: int = 1
    cached: bool = False
    repeated: bool = False
    saved: float | None = None
    estimated: bool = False
    unusable: bool = False

    def include(self, other: Usage) -> Usage:
        """The sum of both; a number that only one of them knows counts as the sum."""

        def add(first: Any, second: Any) -> Any:
            return first if second is None else second if first is None else first + second

        return replace(
            self,
            prompt_tokens=add(self.prompt_tokens, other.prompt_tokens),
            completion_tokens=add(self.completion_tokens, other.completion_tokens),
            cost=add(self.cost, other.cost),
            seconds=self.seconds + other.seconds,
            attempts=self.attempts + other.attempts,
            calls=self.calls + other.calls,
            estimated=self.estimated or other.estimated,
            unusable=self.unusable or other.unusable,
        )


@dataclass(frozen=True, slots=True)
class TokenChoice:
    """One token of a completion with the alternatives at its position, likeliest first."""

    text: str
    logprob: float
    alternatives: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """An answer, or the `failure` that took its place.

    A failure given as plain text gets its kind from `finish`: `too_long` for 'length', `filtered` for 'filter', else
    `transient`, which a later run tries again. `finish` is 'length' if the answer was cut off. `structured` tells that
    the server enforced the schema; otherwise the prompt only asked for it.
    """

    text: str = ""
    failure: Failure | None = None
    finish: Finish = "stop"
    tokens: tuple[TokenChoice, ...] | None = None
    structured: bool = False
    usage: Usage = field(default_factory=Usage)
    #: The key of its request in the cache; empty if it did not come through `gateway.complete`.
    key: bytes = field(default=b"", compare=False, repr=False)

    def __post_init__(self) -> None:
        failure: Any = self.failure
        if type(failure) is str:
            from metrist.scores import Failure, FailureKind

            kinds = {"length": FailureKind.too_long, "filter": FailureKind.filtered}
            failure = Failure(kinds.get(self.finish, FailureKind.transient), failure)
            object.__setattr__(self, "failure", failure)


def mark_cached(completion: Completion, *, saved: float | None = None, repeated: bool = False) -> Completion:
    """A completion that costs nothing now."""
    usage = replace(completion.usage, cached=True, cost=0.0, seconds=0.0, attempts=0, saved=saved, repeated=repeated)
    return replace(completion, usage=usage)


#: 'chat' applies the model's chat template; 'none' passes the text as it is, for models trained on a single prompt.
Turns = Literal["chat", "none"]
_ROLE_NAMES = {"system": "System", "user": "User", "assistant": "Assistant"}
#: A model without a chat template does not stop after its turn and continues as the user.
PLAIN_STOPS = ("\nUser:", "\nSystem:")


def has_chat_template(tokenizer: Any) -> bool:
    return bool(getattr(tokenizer, "chat_template", None))


def join_text(conversation: Conversation) -> str:
    """The text of all messages without roles: the whole prompt where `turns` is 'none'."""
    return "\n\n".join(message.text for message in conversation)


def encode_prompt(tokenizer: Any, conversation: Conversation, turns: Turns = "chat") -> list[int]:
    """The token ids of the prompt, up to where the model is to answer."""
    special = tokenizer.all_special_tokens
    messages = [Message(message.role, escape_special_tokens(message.text, special)) for message in conversation]
    if turns == "none":
        return list(tokenizer(join_text(messages), verbose=False)["input_ids"])
    if not has_chat_template(tokenizer):
        lines = [f"{_ROLE_NAMES[message.role]}: {message.text}" for message in messages]
        return list(tokenizer("\n\n".join([*lines, "Assistant:"]), verbose=False)["input_ids"])
    entries = [{"role": message.role, "content": message.text} for message in messages]
    try:
        prompt = tokenizer.apply_chat_template(entries, tokenize=False, add_generation_prompt=True)
    except Exception:
        system = [message.text for message in messages if message.role == "system"]
        if not system:
            raise
        # Some templates raise an error on a system message: its text goes to the head of the user's first one.
        entries = [entry for entry in entries if entry["role"] != "system"]
        if entries and entries[0]["role"] == "user":
            system.append(entries.pop(0)["content"])
        entries.insert(0, {"role": "user", "content": "\n\n".join(system)})
        prompt = tokenizer.apply_chat_template(entries, tokenize=False, add_generation_prompt=True)
    # The template has already added the tokens that begin a text.
    return list(tokenizer(str(prompt), add_special_tokens=False, verbose=False)["input_ids"])


def escape_special_tokens(text: str, special: Sequence[str]) -> str:
    """The text with a space inside each special token such as `<|im_end|>`.

    Unescaped, the model would read them as the end of a turn, and an output could speak in the judge's name.
    """
    clean = text.encode("utf-8", "replace").decode("utf-8")
    for token in special:
        if len(token) > 1 and token in clean:
            clean = clean.replace(token, f"{token[0]} {token[1:]}")
    return clean
