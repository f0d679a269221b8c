"""Gets the completion of one conversation from a chat server: feature probe, rate limit, retries, final result."""

from __future__ import annotations

import json
import random
import threading
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from metrist.errors import ModelError
from metrist.llm.base import Call
from metrist.llm.http import Credentials, HttpClient, Response, TransportError, format_seconds
from metrist.llm.messages import Completion, Conversation, Message, Sampling, Usage
from metrist.llm.openai_format import (
    OMITTABLE,
    ChatSettings,
    RequestShape,
    UnreadableResponse,
    build_body,
    parse_chat_completion,
    parse_text_completion,
)
from metrist.llm.rate_limit import RateLimiter
from metrist.llm.retry import (
    FatalError,
    Outcome,
    RejectedField,
    RequestError,
    RetryableError,
    RetryPolicy,
    Success,
    classify_error,
    parse_error,
)
from metrist.scores import Failure, FailureKind

#: Conversations that may fail in a row before the server, and not a record, is held responsible.
MAX_FAILURES_IN_A_ROW = 20

#: No model says this by chance, and the prompt does not mention it: an answer that follows this schema was forced to.
PROBE_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {"kestrel_lantern": {"type": "string", "enum": ["violet-7391"]}},
    "required": ["kestrel_lantern"],
    "additionalProperties": False,
}
PROBE = (Message("user", "Say hello in one word."),)
#: max_tokens of the first probe, and of the second if the first was used up before the answer began.
PROBE_TOKENS = (64, 4096)

_TOKENS_FIELDS = ("max_tokens", "max_completion_tokens")
_OPTIONAL_FIELDS = ("response_format", "top_logprobs", "logprobs", *_TOKENS_FIELDS, *OMITTABLE)


def probe_sampling(max_tokens: int = PROBE_TOKENS[0]) -> Sampling:
    """The sampling of a probe for structured output."""
    return Sampling(max_tokens=max_tokens, seed=None, schema=PROBE_SCHEMA)


@dataclass(slots=True)
class ServerState:
    """What this process has learned about one model of one server. Threads share it."""

    #: Whether the server enforces JSON schemas; None: not probed yet.
    schema: bool | None = None
    logprobs: bool = True
    tokens_field: str = "max_tokens"
    rejected_schemas: set[str] = field(default_factory=set)
    #: Whether it ever responded, with any status.
    responded: bool = False
    #: Whether it ever completed a conversation, in this process or according to the cache.
    answered: bool = False
    answered_before: bool = False
    failures_in_a_row: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    #: Held during the probe, so that there is only one.
    probe_lock: threading.Lock = field(default_factory=threading.Lock)

    def shape(self, sampling: Sampling, tokens_field: str | None) -> RequestShape:
        """The fullest form of a request that the server may accept."""
        schema = sampling.schema is not None and self.schema is not False
        schema = schema and _schema_key(sampling) not in self.rejected_schemas
        return RequestShape(schema, self.logprobs and sampling.logprobs > 0, tokens_field or self.tokens_field)

    def learn_rejection(self, name: str, sampling: Sampling) -> None:
        """Remember a rejected field that requests can do without."""
        with self.lock:
            if name == "response_format":
                self.rejected_schemas.add(_schema_key(sampling))
            elif name in ("logprobs", "top_logprobs"):
                self.logprobs = False
            elif name == "max_tokens":
                self.tokens_field = "max_completion_tokens"

    def learn_answer(self) -> None:
        """Remember that a conversation was answered."""
        with self.lock:
            self.answered = True
            self.failures_in_a_row = 0

    def learn_failure(self, ended: threading.Event) -> bool:
        """Count a failed conversation. False if too many failed in a row, which sets `ended`; failures after that
        belong to the same batch and do not count for the next one."""
        with self.lock:
            if ended.is_set():
                return True
            self.failures_in_a_row += 1
            if self.failures_in_a_row < MAX_FAILURES_IN_A_ROW:
                return True
            self.failures_in_a_row = 0
            ended.set()
            return False


def _schema_key(sampling: Sampling) -> str:
    return json.dumps(sampling.schema, default=dict)


_states: dict[tuple[str, str], ServerState] = {}
_states_lock = threading.Lock()


def server_state(url: str, model: str) -> ServerState:
    """What this process knows of the model at this address."""
    with _states_lock:
        return _states.setdefault((url, model), ServerState())


def reset_server_states() -> None:
    """Forget all servers, as another one may now run at the same address."""
    with _states_lock:
        _states.clear()


def follows_probe(completion: Completion) -> bool:
    """Whether the answer follows the schema of the probe."""
    try:
        return bool(json.loads(completion.text) == {"kestrel_lantern": "violet-7391"})
    except (ValueError, RecursionError):
        return False


class Stopped(Exception):
    """The run was stopped while a conversation waited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatClient:
    """Completes conversations of one batch with one server. Threads share it."""

    llm: ChatSettings
    name: str
    tokens_field: str | None
    sampling: Sampling
    http: HttpClient
    credentials: Credentials
    state: ServerState
    limiter: RateLimiter
    policy: RetryPolicy
    call: Call
    #: Set to stop all threads.
    stop: threading.Event
    #: Set when a probe got no answer: there is no further one before the next batch.
    probe_failed: threading.Event = field(default_factory=threading.Event)
    #: Set when too many conversations in a row have failed.
    ended: threading.Event = field(default_factory=threading.Event)

    def complete(self, conversation: Conversation) -> Completion | ModelError | None:
        """The completion, with a failure if there is no answer; an error that concerns all conversations; or None if
        the run was stopped. Raises nothing: an exception would end the thread and leave its caller waiting."""
        try:
            probe = self._probe_schema() if self.sampling.schema is not None else None
            if isinstance(probe, FatalError) or (isinstance(probe, RetryableError) and probe.unreachable):
                return self._conclude(probe, self.state.shape(self.sampling, self.tokens_field))
            return self._conclude(*self._send_in_accepted_shape(conversation, self.sampling))
        except Stopped:
            return None
        except ModelError as error:
            return error
        except Exception as error:
            reason = self.credentials.mask(f"{type(error).__name__}: {error}")
        return self._fail_batch(f"the request failed unexpectedly ({reason})")

    def _probe_schema(self) -> Outcome | None:
        """Find out, once per process, whether the server enforces JSON schemas. The last outcome."""
        outcome: Outcome | None = None
        with self.state.probe_lock:
            for max_tokens in PROBE_TOKENS:
                if self.state.schema is None and not self.probe_failed.is_set():
                    outcome = self._send_probe(max_tokens)
        return outcome

    def _send_probe(self, max_tokens: int) -> Outcome | None:
        sampling = probe_sampling(max_tokens)
        if not self.call.reserve(PROBE, sampling):
            self.probe_failed.set()
            return None
        try:
            outcome, shape = self._send_in_accepted_shape(PROBE, sampling)
        except Stopped:
            self.call.settle(PROBE, sampling, None)
            raise
        match outcome:
            case Success(completion):
                self.call.settle(PROBE, sampling, completion)
                used_up = completion.finish == "length" and not completion.text
                if not used_up or max_tokens == PROBE_TOKENS[-1]:
                    self.state.schema = shape.schema and follows_probe(completion)
            case RequestError(usage=usage) | RetryableError(usage=usage):
                self.call.settle(PROBE, sampling, Completion(failure=_NO_PROBE, usage=usage))
                if isinstance(outcome, RequestError):
                    self.state.schema = False
                else:
                    self.probe_failed.set()
            case _:
                self.call.settle(PROBE, sampling, None)
                self.probe_failed.set()
        return outcome

    def _send_in_accepted_shape(self, conversation: Conversation, sampling: Sampling) -> tuple[Outcome, RequestShape]:
        """Send the fullest form of the request, then without each field that the server rejects."""
        shape = self.state.shape(sampling, self.tokens_field)
        attempts, seconds = 0, 0.0
        while True:
            body = build_body(self.llm, conversation, sampling, shape)
            outcome, more_attempts, more_seconds = self._send_with_retries(body, sampling.max_tokens)
            attempts, seconds = attempts + more_attempts, seconds + more_seconds
            if not isinstance(outcome, RejectedField):
                return _with_usage(outcome, attempts, seconds), shape
            self.state.learn_rejection(outcome.name, sampling)
            reduced = self.state.shape(sampling, self.tokens_field)
            if reduced == shape:
                return outcome, shape
            shape = reduced

    def _send_with_retries(self, fields: dict[str, Any], max_tokens: int) -> tuple[Outcome, int, float]:
        """Send until another attempt would change nothing or the policy gives up; with the attempts and seconds."""
        body = json.dumps(fields, default=dict).encode()
        optional = [name for name in _OPTIONAL_FIELDS if name in fields]
        tokens = len(body) // 4 + max_tokens
        rng = random.Random(zlib.crc32(body))  # Reproducible, and different for each conversation.
        attempts = failures = 0
        started: float | None = None
        while True:
            self._wait(self.limiter.book(tokens))
            started = started or time.monotonic()
            attempts += 1
            outcome = self._send(body, optional)
            seconds = time.monotonic() - started
            # Replace the booked number of tokens by the number that the server counted.
            if not isinstance(outcome, Success):
                self.limiter.correct(tokens, 0)
            elif (used := outcome.completion.usage).prompt_tokens is not None and used.completion_tokens is not None:
                self.limiter.correct(tokens, used.prompt_tokens + used.completion_tokens)
            if not isinstance(outcome, RetryableError):
                return outcome, attempts, seconds
            failures += not outcome.throttled
            delay = self.policy.delay(attempts + 1, outcome.wait, rng)
            first_contact = outcome.unreachable and not self.state.responded
            if self.policy.is_exhausted(failures, seconds + delay, first_contact=first_contact):
                count = "1 attempt" if attempts == 1 else f"{attempts} attempts in {format_seconds(round(seconds))}"
                reason = f"gave up after {count}; the last error: {outcome.reason}"
                return replace(outcome, reason=reason), attempts, seconds
            self.call.report_retry(outcome.reason, delay)
            self._wait(delay)

    def _send(self, body: bytes, optional: list[str]) -> Outcome:
        response = self.http.send(body)
        if isinstance(response, TransportError):
            if response.kind == "untrusted":
                return FatalError(response.reason)
            return RetryableError(response.reason, unreachable=response.kind == "unreachable")
        self.state.responded = True
        if response.is_success:
            return self._parse(response)
        outcome = classify_error(response, self.llm.model, optional)
        if isinstance(outcome, FatalError) and self.llm.turns == "none" and response.status in (404, 405):
            return FatalError(f"{outcome.reason}; turns='none' needs /completions, which not every server has")
        if isinstance(outcome, FatalError) and response.status == 401:
            remedy = "no key was sent; name its environment variable with key='…'"
            if self.credentials:
                variables = " or ".join(self.credentials.variables)
                remedy = f"the key in the environment variable {variables} is wrong; key='…' can name another one"
            return FatalError(f"the server answered 401: {parse_error(response).message} ({remedy})")
        return outcome

    def _parse(self, response: Response) -> Outcome:
        parse = parse_text_completion if self.llm.turns == "none" else parse_chat_completion
        try:
            completion = parse(response.data)
        except UnreadableResponse as error:
            return RetryableError(f"the server answered {response.status}, but {error}")
        # The tokens of an answer that repeats a key hold its pieces.
        return Success(replace(completion, tokens=None) if response.is_masked else completion)

    def _wait(self, seconds: float) -> None:
        if self.stop.wait(seconds) if seconds > 0 else self.stop.is_set():
            raise Stopped

    def _conclude(self, outcome: Outcome, shape: RequestShape) -> Completion | ModelError:
        """Turn the last outcome into what the caller gets."""
        match outcome:
            case Success(completion):
                self.state.learn_answer()
                has_answer = completion.failure is None and completion.finish != "filter"
                enforced = shape.schema and self.state.schema is True
                return replace(completion, structured=True) if has_answer and enforced else completion
            case FatalError():
                return self._fail_batch(outcome.reason)
            case RetryableError(unreachable=True):
                return self._fail_batch(f"{outcome.reason} (is the server running, and is url=… right?)")
            case RetryableError():
                failure = Failure(FailureKind.transient, outcome.reason)
                return self._fail_conversation(RequestError(failure, usage=outcome.usage))
            case RejectedField() if not self.state.answered:
                return self._fail_batch(f"{outcome.reason} ({_suggest_setting(outcome.name)})")
            case RejectedField():
                return Completion(failure=Failure(FailureKind.refused, outcome.reason), finish="other")
            case RequestError():
                # A text that is too long or filtered says nothing about the next one, however many there are.
                own = outcome.failure.kind in (FailureKind.too_long, FailureKind.filtered)
                if own or self.state.answered or self.state.answered_before:
                    return Completion(failure=outcome.failure, finish=outcome.finish, usage=outcome.usage)
                return self._fail_conversation(outcome)

    def _fail_conversation(self, error: RequestError) -> Completion | ModelError:
        """A failed completion, or an error for the whole batch if too many have failed in a row."""
        if self.state.learn_failure(self.ended):
            return Completion(failure=error.failure, finish=error.finish, usage=error.usage)
        return self._fail_batch(
            f"the last {MAX_FAILURES_IN_A_ROW} conversations all failed, so the records are not the cause; "
            f"{error.failure}"
        )

    def _fail_batch(self, reason: str) -> ModelError:
        return ModelError(f"{self.name}: {reason}")


_NO_PROBE = Failure(FailureKind.transient, "the probe for structured output was not answered")


def _with_usage(outcome: Outcome, attempts: int, seconds: float) -> Outcome:
    """The outcome with the attempts and seconds of the whole request."""
    if isinstance(outcome, Success):
        usage = replace(outcome.completion.usage, attempts=attempts, seconds=seconds)
        return Success(replace(outcome.completion, usage=usage))
    if isinstance(outcome, RetryableError | RequestError):
        return replace(outcome, usage=Usage(attempts=attempts, seconds=seconds))
    return outcome


def _suggest_setting(name: str) -> str:
    if name in OMITTABLE:
        return f"this model does not accept {name!r}; omit=[{name!r}] leaves it out, and answers may then differ"
    return "max_tokens_field=… sets the name of this field" if name in _TOKENS_FIELDS else f"check {name}=…"
