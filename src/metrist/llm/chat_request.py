"""The body of a request for an answer in a chat, or for text that goes on from other text, as OpenAI documents them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Protocol

from metrist.llm.capabilities import Shape
from metrist.llm.chat import Turns, words
from metrist.llm.talk import Conversation, Sampling

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
    said = {"prompt": words(conversation)} if raw else {"messages": _messages(conversation, llm.system)}
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
