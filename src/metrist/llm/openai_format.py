"""OpenAI's wire format: the bodies of requests, and the completions in responses.

Responses are not trusted: whatever differs from the documented format raises `UnreadableResponse`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from metrist.llm.http import UnreadableResponse
from metrist.llm.messages import (
    Completion,
    Conversation,
    Finish,
    Sampling,
    TokenChoice,
    Turns,
    Usage,
    join_text,
)
from metrist.scores import Failure, FailureKind

#: Fields of a request that change its answers and that some models reject.
OMITTABLE = ("top_p", "temperature", "seed", "stop")

_LENGTH = "the metric's max_tokens=… limits the length of an answer, which the budget relies on"
#: Fields that `body` must not set at any depth: servers read them in nested objects too.
LENGTH_FIELDS = {
    **dict.fromkeys(("max_tokens", "max_completion_tokens"), f"{_LENGTH}; max_tokens_field=… names the field to use"),
    **dict.fromkeys(("max_output_tokens", "max_new_tokens", "n_predict", "num_predict"), _LENGTH),
}
#: Fields that `body` must not set, because the cache key and the budget would then describe another request; and what
#: to do instead.
RESERVED_FIELDS = {
    "model": "use model=…",
    "messages": "the metric writes the prompt",
    "prompt": "the metric writes the prompt",
    "stream": "responses are read whole",
    "n": "use samples=… of the metric",
    "best_of": "use samples=… of the metric",
    "temperature": "use temperature=… of the metric, or omit=['temperature'] to leave it out",
    **{name: f"the metric sets it; omit=['{name}'] leaves it out" for name in ("top_p", "seed", "stop")},
    **dict.fromkeys(("logprobs", "top_logprobs"), "a metric that reads them requests them"),
    "response_format": "the metric decides the format of its answers",
    **LENGTH_FIELDS,
}


@dataclass(frozen=True, slots=True)
class RequestShape:
    """Which of the fields that not every server accepts a request has."""

    schema: bool
    logprobs: bool
    tokens_field: str


def build_body(
    conversation: Conversation,
    sampling: Sampling,
    shape: RequestShape,
    *,
    model: str,
    turns: Turns,
    system: str,
    omit: Sequence[str],
    user_body: str | None,
) -> dict[str, Any]:
    """The fields of a request to /chat/completions, or to /completions if `turns` is 'none'. The user's own fields come
    last."""
    plain = turns == "none"
    prompt = {"prompt": join_text(conversation)} if plain else {"messages": _build_messages(conversation, system)}
    body: dict[str, Any] = {"model": model, **prompt, "temperature": sampling.temperature}
    if sampling.temperature > 0:  # Greedy answers do not depend on top_p, and many reasoning models reject it.
        body["top_p"] = sampling.top_p
    if sampling.seed is not None:
        body["seed"] = sampling.seed + sampling.sample  # With one seed, all samples would be the same draw.
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    for name in omit:
        body.pop(name, None)
    body[shape.tokens_field] = sampling.max_tokens
    if shape.logprobs:
        body |= {"logprobs": sampling.logprobs} if plain else {"logprobs": True, "top_logprobs": sampling.logprobs}
    if shape.schema:
        schema = {"name": "answer", "strict": True, "schema": sampling.schema}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    return body | (json.loads(user_body) if user_body else {})


def _build_messages(conversation: Conversation, system: str) -> list[dict[str, str]]:
    messages = [{"role": message.role, "content": message.text} for message in conversation]
    if system != "user":
        return [{**message, "role": system} if message["role"] == "system" else message for message in messages]
    # For models without a system role: its text goes to the head of the user's next message.
    merged: list[dict[str, str]] = []
    pending: list[str] = []
    for message in messages:
        if message["role"] == "system":
            pending.append(message["content"])
            continue
        if message["role"] == "user" and pending:
            message = {"role": "user", "content": "\n\n".join([*pending, message["content"]])}
            pending = []
        merged.append(message)
    return [*merged, {"role": "user", "content": "\n\n".join(pending)}] if pending else merged


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


def parse_chat_completion(data: Any) -> Completion:
    """The first choice of a chat completion."""
    choice = _first_choice(data)
    message = choice.get("message")
    if not isinstance(message, dict):
        raise UnreadableResponse("the response has no message")
    text, finish = _parse_content(message.get("content")), _parse_finish(choice.get("finish_reason"))
    usage = _parse_usage(data.get("usage"))
    if text is None:
        return _completion_without_text(message, finish, usage)
    tokens = _parse_chat_logprobs(choice.get("logprobs"))
    return Completion(text=_replace_surrogates(text), finish=finish, tokens=tokens, usage=usage)


def parse_text_completion(data: Any) -> Completion:
    """The first choice of a text completion (/completions)."""
    choice = _first_choice(data)
    if not isinstance(choice.get("text", 0), str | None):
        raise UnreadableResponse("the response has no text")
    text, finish, usage = choice["text"], _parse_finish(choice.get("finish_reason")), _parse_usage(data.get("usage"))
    if text is None:
        return _completion_without_text({}, finish, usage)
    tokens = _parse_text_logprobs(choice.get("logprobs"))
    return Completion(text=_replace_surrogates(text), finish=finish, tokens=tokens, usage=usage)


def _first_choice(data: Any) -> dict[str, Any]:
    choices = data.get("choices") if isinstance(data, dict) else None
    if not (isinstance(choices, list) and choices and isinstance(choices[0], dict)):
        raise UnreadableResponse("the response has no choices")
    first: dict[str, Any] = choices[0]
    return first


def _parse_content(content: Any) -> str | None:
    """A string, or the text parts of a list; None if there is no content."""
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        content = "".join(part for part in parts if isinstance(part, str))
    if content is None or isinstance(content, str):
        return content
    raise UnreadableResponse(f"the content of the response is neither text nor parts but {type(content).__name__}")


NO_TEXT = Failure(FailureKind.transient, "the server sent an answer without text")


def _completion_without_text(message: dict[str, Any], finish: Finish, usage: Usage) -> Completion:
    """A refusal in words counts as an answer; an empty message is a failure."""
    refusal = message.get("refusal")
    if isinstance(refusal, str) and refusal:
        return Completion(text=_replace_surrogates(refusal), finish="filter", usage=usage)
    if finish == "length":
        reason = "the model used all of max_tokens before its answer began (reasoning counts too); allow more"
        failure = Failure(FailureKind.too_long, reason)
    elif finish == "filter":
        failure = Failure(FailureKind.filtered, "the server's content filter withheld the answer")
    else:
        failure = NO_TEXT
    return Completion(failure=failure, finish=finish, usage=usage)


def _parse_chat_logprobs(logprobs: Any) -> tuple[TokenChoice, ...] | None:
    """Tokens with their alternatives; None if the server sent none, or not in the documented format."""

    def parse(entry: dict[str, Any]) -> tuple[str, float]:
        return _replace_surrogates(str(entry["token"])), float(entry["logprob"])

    entries = logprobs.get("content") if isinstance(logprobs, dict) else None
    if not (isinstance(entries, list) and entries):
        return None
    try:
        return tuple(
            TokenChoice(*parse(entry), tuple(map(parse, entry.get("top_logprobs") or ()))) for entry in entries
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _parse_text_logprobs(logprobs: Any) -> tuple[TokenChoice, ...] | None:
    """As `_parse_chat_logprobs`, for text completions: three parallel lists, with alternatives as objects by token."""
    if not (isinstance(logprobs, dict) and logprobs.get("tokens")):
        return None
    try:
        texts, own = list(map(str, logprobs["tokens"])), list(map(float, logprobs["token_logprobs"]))
        candidates = logprobs.get("top_logprobs") or [None] * len(texts)
        ranked = [sorted((by_token or {}).items(), key=lambda pair: -pair[1]) for by_token in candidates]
        return tuple(
            TokenChoice(
                _replace_surrogates(text),
                logprob,
                tuple((_replace_surrogates(other), float(number)) for other, number in alternatives),
            )
            for text, logprob, alternatives in zip(texts, own, ranked, strict=True)
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _parse_usage(data: Any) -> Usage:
    """The token counts; those that are none are unknown, and marked so."""
    if not isinstance(data, dict):
        return Usage()
    reported = [data.get("prompt_tokens"), data.get("completion_tokens")]
    prompt, output = (value if type(value) is int and value >= 0 else None for value in reported)
    return Usage(prompt_tokens=prompt, completion_tokens=output, unusable=reported != [prompt, output])


#: Tokens of a prompt that the request does not hold: the chat template, and what a server puts before the messages.
_TEMPLATE_TOKENS = 4096


def bound_usage(usage: Usage, *, request_bytes: int, answer_bytes: int, max_tokens: int) -> Usage:
    """The token counts, at most as many as the request and the answer can hold: no current tokenizer makes more tokens
    than a text has bytes. What a model thinks unseen counts towards max_tokens."""
    prompt, output = usage.prompt_tokens, usage.completion_tokens
    bounded = replace(
        usage,
        prompt_tokens=None if prompt is None else min(prompt, request_bytes + _TEMPLATE_TOKENS),
        completion_tokens=None if output is None else min(output, max(answer_bytes, max_tokens)),
    )
    return usage if bounded == usage else replace(bounded, estimated=True, unusable=True)


def _parse_finish(reason: Any) -> Finish:
    if reason is None:
        return "stop"  # Some local servers leave it out of complete answers.
    return _FINISHES.get(str(reason).lower(), "other")


def _replace_surrogates(text: str) -> str:
    """Replace halves of surrogate pairs, which JSON can carry and files cannot."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
