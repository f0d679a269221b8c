"""OpenAI's wire format: the bodies of requests, and the completions and errors in responses.

Responses are not trusted: whatever differs from the documented format raises `UnreadableResponse`.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from typing import Any

from metrist.errors import escape_controls
from metrist.llm.http import Response, UnreadableResponse
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


NO_TEXT = Failure(FailureKind.transient, "the server sent an answer without text")


def parse_completion(data: Any, *, plain: bool = False) -> Completion:
    """The first choice of a chat completion; of a text completion (/completions) if `plain`."""
    choices = data.get("choices") if isinstance(data, dict) else None
    if not (isinstance(choices, list) and choices and isinstance(choices[0], dict)):
        raise UnreadableResponse("the response has no choices")
    choice: dict[str, Any] = choices[0]
    message: Any = {} if plain else choice.get("message")
    if not isinstance(message, dict):
        raise UnreadableResponse("the response has no message")
    text = choice.get("text", 0) if plain else message.get("content")
    if plain and not isinstance(text, str | None):
        raise UnreadableResponse("the response has no text")
    if isinstance(text, list):
        parts = [part.get("text") for part in text if isinstance(part, dict)]
        text = "".join(part for part in parts if isinstance(part, str))
    if not isinstance(text, str | None):
        raise UnreadableResponse(f"the content of the response is neither text nor parts but {type(text).__name__}")
    reason = choice.get("finish_reason")
    # Some local servers leave the reason out of complete answers.
    finish: Finish = "stop" if reason is None else _FINISHES.get(str(reason).lower(), "other")
    usage = _parse_usage(data.get("usage"))
    if text is None:
        refusal = message.get("refusal")
        if isinstance(refusal, str) and refusal:  # One in words counts as an answer.
            return Completion(text=_replace_surrogates(refusal), finish="filter", usage=usage)
        failure = NO_TEXT
        if finish == "length":
            reason = "the model used all of max_tokens before its answer began (reasoning counts too); allow more"
            failure = Failure(FailureKind.too_long, reason)
        elif finish == "filter":
            failure = Failure(FailureKind.filtered, "the server's content filter withheld the answer")
        return Completion(failure=failure, finish=finish, usage=usage)
    parse_logprobs = _parse_text_logprobs if plain else _parse_chat_logprobs
    tokens = parse_logprobs(choice.get("logprobs"))
    return Completion(text=_replace_surrogates(text), finish=finish, tokens=tokens, usage=usage)


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


def _replace_surrogates(text: str) -> str:
    """Replace halves of surrogate pairs, which JSON can carry and files cannot."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


# ---- Errors


@dataclass(frozen=True, slots=True)
class Success:
    """The server answered. The completion may still hold a failure, such as a filtered or empty answer."""

    completion: Completion


@dataclass(frozen=True, slots=True)
class RetryableError:
    """Another attempt may succeed, after at least `wait` seconds. `throttled`: the server asked for a lower rate,
    which does not count as a failed attempt."""

    reason: str
    wait: float = 0.0
    throttled: bool = False
    unreachable: bool = False
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class RejectedField:
    """The server does not accept this field of the request; without it the request may succeed."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class RequestError:
    """This conversation cannot be answered, however often it is sent."""

    failure: Failure
    finish: Finish = "other"
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class FatalError:
    """No conversation can be answered."""

    reason: str


Outcome = Success | RetryableError | RejectedField | RequestError | FatalError


def parse_retry_after(headers: Mapping[str, str], now: float) -> float:
    """Seconds that the server asks to wait (`retry-after-ms`, or `Retry-After` as seconds or a date); else 0.

    A date is compared with the server's own clock if it sent one.
    """
    milliseconds = _parse_number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    text = headers.get("retry-after")
    seconds = _parse_number(text)
    if seconds is not None:
        return seconds
    until, server_now = _parse_date(text), _parse_date(headers.get("date"))
    return max(0.0, until - (server_now or now)) if until else 0.0


def _parse_number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if 0 <= number < float("inf") else None


def _parse_date(text: str | None) -> float | None:
    """Seconds since 1970 of an HTTP date."""
    try:
        return parsedate_to_datetime(text or "").timestamp()
    except (ValueError, OverflowError, TypeError, IndexError):
        return None


_TOO_LONG = re.compile(
    r"context.{0,20}(length|window|size)|maximum context|n_ctx|(prompt|input|request).{0,40}too (long|large)"
    r"|token count.{0,40}exceeds|exceeds? the (maximum|available|model)|too many tokens",
    re.IGNORECASE | re.DOTALL,
)
_FILTERED = re.compile(r"content.?(filter|policy|management)|safety|moderat(ion|ed)|flagged", re.IGNORECASE)
_NO_CREDIT = re.compile(
    r"insufficient.?(quota|funds|credits?|balance)|billing|credit balance|exceeded your current quota", re.IGNORECASE
)
#: Other words for a field in servers' error messages.
_SYNONYMS = {"response_format": ("schema", "grammar", "structured output", "guided decoding")}
_LONGEST_MESSAGE = 300


@dataclass(frozen=True, slots=True)
class ServerError:
    """The error in a response: the server's message, and the code and the request field that it names."""

    message: str
    code: str = ""
    field: str = ""

    def matches(self, pattern: re.Pattern[str]) -> bool:
        return bool(pattern.search(self.message) or pattern.search(self.code))

    def names(self, field: str) -> bool:
        """Whether it is about this field of the request. A common word such as 'stop' must stand in quotes."""
        if self.field:
            return self.field.split(".")[0] == field
        words = [field, *_SYNONYMS.get(field, ())] if "_" in field or field in ("temperature", "logprobs") else []
        return self.quotes(field) or any(word in self.message.lower() for word in words)

    def quotes(self, word: str) -> bool:
        return bool(re.search(rf"""['"`]{re.escape(word)}['"`]""", self.message))


def classify_error(response: Response, model: str, optional: Sequence[str]) -> Outcome:
    """What an error response means for the request. `optional` are fields that the request could do without."""
    error = parse_error(response)
    status = response.status
    reason = f"the server answered {response.status}: {error.message}"
    if status < 300:
        # An error sent with a success status: the status that it names, or the usual one for its message.
        reason = f"the server answered {status} with an error: {error.message}"
        is_usual = any(map(error.matches, (_TOO_LONG, _FILTERED, _NO_CREDIT)))
        status = int(error.code) if re.fullmatch("[45][0-9]{2}", error.code) else 400 if is_usual else 500
    if status in (400, 429) and error.matches(_NO_CREDIT):
        return FatalError(f"{reason} (waiting does not help: check the account's plan and balance)")
    if status in (408, 409, 425, 429) or status >= 500:
        return RetryableError(reason, parse_retry_after(response.headers, time.time()), throttled=status in (429, 529))
    is_bad_request = status in (400, 413, 422)
    if is_bad_request:
        if error.matches(_TOO_LONG):  # First, since servers mention max_tokens in this message too.
            message = f"too long for the model's context: {reason}"
            return RequestError(Failure(FailureKind.too_long, message), "length")
        rejected = next((name for name in optional if error.names(name)), None)
        if rejected is None and (error.names("model") or error.quotes(model)):
            rejected = "model"
        if rejected is not None:
            return RejectedField(rejected, reason)
    if (is_bad_request or status == 403) and error.matches(_FILTERED):
        return RequestError(Failure(FailureKind.filtered, reason), "filter")
    if is_bad_request:
        return RequestError(Failure(FailureKind.refused, reason))
    return FatalError(f"{reason} ({_suggest_remedy(status, response)})")


def parse_error(response: Response) -> ServerError:
    """The error in a body: OpenAI's format, text (Ollama), a list of one (Gemini), 'detail' (FastAPI), no JSON."""
    try:
        data = response.data
    except UnreadableResponse:
        return ServerError(_shorten(response.body.decode("utf-8", "replace")) or "no message")
    data = data[0] if isinstance(data, list) and data else data
    error = data.get("error", data) if isinstance(data, dict) else data
    if not isinstance(error, dict):
        return ServerError(_shorten(str(error)))
    message = error.get("message") or error.get("detail") or error
    code, field = error.get("code") or error.get("type"), error.get("param")
    return ServerError(_shorten(str(message)), "" if code is None else str(code), "" if field is None else str(field))


def _suggest_remedy(status: int, response: Response) -> str:
    if status < 400:
        address = _shorten(response.headers.get("location", "another address"))
        return f"it redirects to {address!r}; give that address as url=…"
    remedies = {
        401: "the key is wrong or missing: check the environment variable that key=… names",
        402: "check the account's balance",
        403: "this key may not use this model or address",
        404: "check model=… and url=…, which must be the server's base address such as http://127.0.0.1:8000/v1",
    }
    return remedies.get(status, "check url=…")


def _shorten(text: str) -> str:
    """One line that fits into a table."""
    line = escape_controls(" ".join(text.split()))
    return line if len(line) <= _LONGEST_MESSAGE else f"{line[:_LONGEST_MESSAGE]}…"
