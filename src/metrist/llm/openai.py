"""Any server with OpenAI's API: OpenAI, Azure, vLLM, llama.cpp, Ollama, `transformers serve`, and the compatible
endpoints of other vendors.

`OpenAI` holds the settings; `ChatClient` gets the completions of one batch: schema probe, rate limit, retries, result.
"""

from __future__ import annotations

import json
import random
import re
import threading
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, get_args
from urllib.parse import urlsplit

from metrist.errors import ModelError, SpecError
from metrist.llm.base import LLM, Call
from metrist.llm.http import (
    Credentials,
    HttpClient,
    TransportError,
    UnreadableResponse,
    format_seconds,
    is_secret_field,
    is_secret_header,
    is_variable,
)
from metrist.llm.messages import Completion, Conversation, Message, Sampling, Turns, Usage
from metrist.llm.openai_format import (
    LENGTH_FIELDS,
    OMITTABLE,
    RESERVED_FIELDS,
    RequestShape,
    bound_usage,
    build_body,
    parse_chat_completion,
    parse_text_completion,
)
from metrist.llm.rate_limit import rate_limiter, run_requests
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
from metrist.spec import Spec

VENDOR_URL = "https://api.openai.com/v1"
VENDOR_KEY = "OPENAI_API_KEY"

_HEADER = re.compile(r"(?P<name>[A-Za-z0-9-]+): *(?P<value>[ -~]+)")
_VERSION = re.compile(r"[A-Za-z0-9.-]+")
_TOKENS_FIELDS = ("max_tokens", "max_completion_tokens")
_KEY_HINT = "key='NAME' or headers=['Name: $NAME'] name the environment variable that holds it"
_NOT_A_KEY = (
    " such as JUDGE_API_KEY, in capitals, and not a key: put the key into that variable (20 or more characters without "
    "an underscore are taken for a key)"
)
#: Hosts of this machine: texts that are sent there stay here.
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_SYSTEM_ROLES = ("system", "developer", "user")


@dataclass(frozen=True)
class OpenAI(LLM):
    """A model behind an OpenAI-compatible server.

    `url` is the server's base address, without /chat/completions; the default is OpenAI's. `key` is the name of the
    environment variable that holds the key; the default is OPENAI_API_KEY for OpenAI's own address and none for any
    other, so that a key is never sent to the wrong server. `api_version` is Azure's. `headers` are additional ones in
    the form 'Name: value'; a value '$NAME' is read from that environment variable. `system` is the role of system
    messages ('user': they are put at the head of the user's message). `omit` lists fields that the model rejects, and
    `body` is a JSON object of additional fields such as '{"reasoning_effort": "low"}'. `turns` 'none' uses the server's
    /completions: the model gets the text as it is, without a chat template.
    """

    model: str
    url: str | None = None
    key: str | None = None
    api_version: str | None = None
    headers: tuple[str, ...] = ()
    system: Literal["system", "developer", "user"] = "system"
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] | None = None
    omit: tuple[str, ...] = ()
    body: str | None = None
    turns: Turns = "chat"

    llm_name: ClassVar[str] = "openai"
    extra: ClassVar[str | None] = "llm"

    def __post_init__(self) -> None:
        for name in ("headers", "omit"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        _check(isinstance(self.model, str) and bool(self.model), "model must be the name of a model", self.model)
        if self.url is not None:
            parts = urlsplit(self.url)
            _check("@" not in parts.netloc, "url must not contain a user name or password")
            _check(not (parts.query or parts.fragment), "url must not contain '?' or '#'")
            is_http = parts.scheme in ("http", "https") and bool(parts.hostname)
            _check(is_http, "url must start with http:// or https://", self.url)
            ends = self.url.rstrip("/").endswith("/completions")
            hint = "url must be the server's base address, without /chat/completions or /completions"
            _check(not ends, hint, self.url)
        # A rejected key or header is not shown: it may be the secret itself.
        _check(
            self.key is None or is_variable(self.key), f"key must be the name of an environment variable{_NOT_A_KEY}"
        )
        version = self.api_version is None or bool(_VERSION.fullmatch(self.api_version))
        _check(version, "api_version must be one such as '2024-10-21'", self.api_version)
        for header in self.headers:
            _check_header(header)
        for name, value, known in (
            ("system", self.system, _SYSTEM_ROLES),
            ("max_tokens_field", self.max_tokens_field, (None, *_TOKENS_FIELDS)),
            ("turns", self.turns, get_args(Turns)),
            *(("omit", omitted, OMITTABLE) for omitted in self.omit),
        ):
            _check(value in known, f"{name} must be one of {', '.join(map(repr, known))}", value)
        _check_body(self.body)

    def risks(self) -> str | None:
        """Sending texts to another server than OpenAI's or one on this machine, or sending the value of an environment
        variable other than OpenAI's own key to OpenAI."""
        names = ["key"] if self.key not in (None, None if self.url else VENDOR_KEY) else []
        names += ["headers"] if any(value.startswith("$") for _, value in map(_split_header, self.headers)) else []
        if names:
            to = self.url or VENDOR_URL
            return f"openai({names[0]}=…) names an environment variable whose content is sent to {to}"
        if self.url is not None and urlsplit(self.url).hostname not in _LOOPBACK:
            return f"openai(url=…) sends texts to {self.url}"
        return None

    def own_requests(self, sampling: Sampling) -> list[tuple[Conversation, Sampling]]:
        """The probe for structured output, unless this process already knows whether the server supports it."""
        if sampling.schema is None or self.server_state().schema is not None:
            return []
        return [(PROBE, probe_sampling())]

    def complete_batch(self, conversations: Sequence[Conversation], sampling: Sampling, call: Call) -> list[Completion]:
        """One completion per conversation, in order. `call.deliver` is called in the caller's own thread."""
        if not conversations:
            return []
        client = ChatClient(self, sampling, call)
        return run_requests(
            lambda number: client.complete(conversations[number]),
            len(conversations),
            size=min(call.runtime.concurrency, len(conversations)),
            stop=client.stop,
            close=client.http.close,
            deliver=call.deliver,
        )

    def address(self) -> str:
        """The address to which requests are posted."""
        query = f"?api-version={self.api_version}" if self.api_version else ""
        path = "completions" if self.turns == "none" else "chat/completions"
        return f"{(self.url or VENDOR_URL).rstrip('/')}/{path}{query}"

    def server_state(self) -> ServerState:
        """What this process knows of the model at its address."""
        with _states_lock:
            return _states.setdefault((self.address(), self.model), ServerState())

    def connect(self, timeout: float) -> HttpClient:
        """A client that sends the headers, the secret ones from environment variables."""
        headers: dict[str, str] = {}
        credentials = Credentials()
        for name, value in map(_split_header, self.headers):
            if value.startswith("$"):
                credentials.add(name, value[1:], f"the header {name}")
            else:
                headers[name] = value
        key = self.key or (VENDOR_KEY if self.url is None else None)
        if key is not None:
            name, prefix = ("api-key", "") if self.api_version else ("Authorization", "Bearer ")
            credentials.add(name, key, f"the model {self.model!r}", prefix)
        return HttpClient(self.address(), headers, credentials, timeout=timeout)


def _split_header(header: str) -> tuple[str, str]:
    name, _, value = header.partition(":")
    return name.strip(), value.strip()


def _check(holds: bool, expected: str, *value: object) -> None:
    if not holds:
        shown = [f"{item} without quotes" if isinstance(item, Spec) else repr(item) for item in value]
        raise SpecError(f"openai: {expected}{''.join(f', got {text}' for text in shown)}")


def _check_header(header: str) -> None:
    match = _HEADER.fullmatch(header)
    if match is None:
        raise SpecError("openai: headers must have the form 'Name: value'")
    variable = match["value"].startswith("$")
    secret = is_secret_header(match["name"], match["value"])
    _check(variable or not secret, "a header with a secret must name its environment variable, as in 'api-key: $NAME'")
    named = not variable or is_variable(match["value"][1:])
    _check(named, f"after '$' a header must have the name of an environment variable{_NOT_A_KEY}")


def _check_body(body: str | None) -> None:
    if body is None:
        return
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        fields = None
    # The text is not shown, since it may hold a secret.
    _check(isinstance(fields, dict), """body must be a JSON object such as '{"reasoning_effort": "low"}'""")
    for name in fields:
        _check(name not in RESERVED_FIELDS, f"body cannot set {name!r}: {RESERVED_FIELDS.get(name)}")
    for path, name, value in _walk_fields(fields):
        _check(name not in LENGTH_FIELDS, f"body cannot set {path!r}: {LENGTH_FIELDS.get(name)}")
        _check(not is_secret_field(name, value), f"body cannot hold a secret, as {path!r} seems to be: {_KEY_HINT}")


def _walk_fields(data: Any, path: str = "") -> Iterator[tuple[str, str, Any]]:
    """All fields at any depth, each with its path, its own name and its value."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for name, value in items:
        inner = f"{path}.{name}" if path else str(name)
        yield inner, str(name), value
        yield from _walk_fields(value, inner)


# --- Completing conversations

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

_OPTIONAL_FIELDS = ("response_format", "top_logprobs", "logprobs", *_TOKENS_FIELDS, *OMITTABLE)


def probe_sampling(max_tokens: int = PROBE_TOKENS[0]) -> Sampling:
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

    def learn_rejection(self, name: str, sampling: Sampling) -> None:
        """Remember a rejected field that requests can do without."""
        with self.lock:
            if name == "response_format":
                self.rejected_schemas.add(_schema_key(sampling))
            elif name in ("logprobs", "top_logprobs"):
                self.logprobs = False
            elif name == "max_tokens":
                self.tokens_field = "max_completion_tokens"


def _schema_key(sampling: Sampling) -> str:
    return json.dumps(sampling.schema, default=dict)


_states: dict[tuple[str, str], ServerState] = {}
_states_lock = threading.Lock()


def reset_server_states() -> None:
    """Forget all servers, as another one may now run at the same address."""
    with _states_lock:
        _states.clear()


class Stopped(Exception):
    """The run was stopped while a conversation waited."""


class ChatClient:
    """Completes the conversations of one batch. Threads share it."""

    def __init__(self, llm: OpenAI, sampling: Sampling, call: Call) -> None:
        runtime, base = call.runtime, llm.url or VENDOR_URL
        self.http = llm.connect(runtime.timeout)
        #: Set to stop all threads.
        self.stop = threading.Event()
        self._llm = llm
        self._name = f"the model {llm.model!r} at {base}"
        self._sampling = sampling
        self._call = call
        self._state = llm.server_state()
        self._state.answered_before = self._state.answered_before or call.has_cached_answers
        self._limiter = rate_limiter(base, runtime)
        self._policy = RetryPolicy(runtime.attempts, runtime.max_wait)
        #: Set when a probe got no answer: there is no further one before the next batch.
        self._probe_failed = threading.Event()
        #: Set when too many conversations in a row have failed.
        self._ended = threading.Event()

    def complete(self, conversation: Conversation) -> Completion | ModelError | None:
        """The completion, with a failure if there is no answer; an error that concerns all conversations; or None if
        the run was stopped. Raises nothing: an exception would end the thread and leave its caller waiting."""
        try:
            probe = self._probe_schema() if self._sampling.schema is not None else None
            if isinstance(probe, FatalError) or (isinstance(probe, RetryableError) and probe.unreachable):
                return self._conclude(probe, self._shape(self._sampling))
            return self._conclude(*self._send_in_accepted_shape(conversation, self._sampling))
        except Stopped:
            return None
        except ModelError as error:
            return error
        except Exception as error:
            reason = self.http.credentials.mask(f"{type(error).__name__}: {error}")
        return self._fail_batch(f"the request failed unexpectedly ({reason})")

    def _probe_schema(self) -> Outcome | None:
        """Find out, once per process, whether the server enforces JSON schemas. The last outcome."""
        state = self._state
        outcome: Outcome | None = None
        with state.probe_lock:
            for max_tokens in PROBE_TOKENS:
                if state.schema is not None or self._probe_failed.is_set():
                    break
                sampling = probe_sampling(max_tokens)
                if not self._call.reserve(PROBE, sampling):
                    self._probe_failed.set()
                    return None
                try:
                    outcome, shape = self._send_in_accepted_shape(PROBE, sampling)
                except Stopped:
                    self._call.settle(PROBE, sampling, None)
                    raise
                charged: Completion | None = None
                match outcome:
                    case Success(charged):
                        used_up = charged.finish == "length" and not charged.text
                        if not used_up or max_tokens == PROBE_TOKENS[-1]:
                            state.schema = shape.schema and _follows_probe(charged)
                    case RequestError(usage=usage):
                        charged = Completion(failure=_NO_PROBE, usage=usage)
                        state.schema = False
                    case RetryableError(usage=usage):
                        charged = Completion(failure=_NO_PROBE, usage=usage)
                        self._probe_failed.set()
                    case _:
                        self._probe_failed.set()
                self._call.settle(PROBE, sampling, charged)
        return outcome

    def _shape(self, sampling: Sampling) -> RequestShape:
        """The fullest form of a request that the server may accept."""
        state = self._state
        schema = sampling.schema is not None and state.schema is not False
        return RequestShape(
            schema=schema and _schema_key(sampling) not in state.rejected_schemas,
            logprobs=state.logprobs and sampling.logprobs > 0,
            tokens_field=self._llm.max_tokens_field or state.tokens_field,
        )

    def _send_in_accepted_shape(self, conversation: Conversation, sampling: Sampling) -> tuple[Outcome, RequestShape]:
        """Send the fullest form of the request, then without each field that the server rejects."""
        shape = self._shape(sampling)
        attempts, seconds = 0, 0.0
        while True:
            llm = self._llm
            body = build_body(
                conversation,
                sampling,
                shape,
                model=llm.model,
                turns=llm.turns,
                system=llm.system,
                omit=llm.omit,
                user_body=llm.body,
            )
            outcome, more_attempts, more_seconds = self._send_with_retries(body, sampling.max_tokens)
            attempts += more_attempts
            seconds += more_seconds
            if isinstance(outcome, Success):
                usage = replace(outcome.completion.usage, attempts=attempts, seconds=seconds)
                return Success(replace(outcome.completion, usage=usage)), shape
            if isinstance(outcome, RetryableError | RequestError):
                return replace(outcome, usage=Usage(attempts=attempts, seconds=seconds)), shape
            if isinstance(outcome, FatalError):
                return outcome, shape
            self._state.learn_rejection(outcome.name, sampling)
            reduced = self._shape(sampling)
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
            self._wait(self._limiter.book(tokens))
            started = started or time.monotonic()
            attempts += 1
            outcome = self._send(body, optional, max_tokens)
            seconds = time.monotonic() - started
            # Replace the booked number of tokens by the number that the server counted.
            if not isinstance(outcome, Success):
                self._limiter.correct(tokens, 0)
            elif (used := outcome.completion.usage).prompt_tokens is not None and used.completion_tokens is not None:
                self._limiter.correct(tokens, used.prompt_tokens + used.completion_tokens)
            if not isinstance(outcome, RetryableError):
                return outcome, attempts, seconds
            failures += not outcome.throttled
            delay = self._policy.delay(attempts + 1, outcome.wait, rng)
            first_contact = outcome.unreachable and not self._state.responded
            if self._policy.is_exhausted(failures, seconds + delay, first_contact=first_contact):
                count = "1 attempt" if attempts == 1 else f"{attempts} attempts in {format_seconds(round(seconds))}"
                reason = f"gave up after {count}; the last error: {outcome.reason}"
                return replace(outcome, reason=reason), attempts, seconds
            self._call.report_retry(outcome.reason, delay)
            self._wait(delay)

    def _wait(self, seconds: float) -> None:
        if self.stop.wait(seconds) if seconds > 0 else self.stop.is_set():
            raise Stopped

    def _send(self, body: bytes, optional: list[str], max_tokens: int) -> Outcome:
        """Send once, and read what the server answers."""
        response = self.http.send(body)
        if isinstance(response, TransportError):
            if response.kind == "untrusted":
                return FatalError(response.reason)
            return RetryableError(response.reason, unreachable=response.kind == "unreachable")
        self._state.responded = True
        plain = self._llm.turns == "none"
        if response.is_success:
            parse = parse_text_completion if plain else parse_chat_completion
            try:
                completion = parse(response.data)
            except UnreadableResponse as error:
                return RetryableError(f"the server answered {response.status}, but {error}")
            usage = bound_usage(
                completion.usage, request_bytes=len(body), answer_bytes=len(response.body), max_tokens=max_tokens
            )
            # The tokens of an answer that repeats a key hold its pieces.
            tokens = None if response.is_masked else completion.tokens
            return Success(replace(completion, usage=usage, tokens=tokens))
        outcome = classify_error(response, self._llm.model, optional)
        if isinstance(outcome, FatalError) and plain and response.status in (404, 405):
            return FatalError(f"{outcome.reason}; turns='none' needs /completions, which not every server has")
        if isinstance(outcome, FatalError) and response.status == 401:
            remedy = "no key was sent; name its environment variable with key='…'"
            if variables := " or ".join(self.http.credentials.variables):
                remedy = f"the key in the environment variable {variables} is wrong; key='…' can name another one"
            return FatalError(f"the server answered 401: {parse_error(response).message} ({remedy})")
        return outcome

    def _conclude(self, outcome: Outcome, shape: RequestShape) -> Completion | ModelError:
        """Turn the last outcome into what the caller gets."""
        match outcome:
            case Success(completion):
                with self._state.lock:
                    self._state.answered = True
                    self._state.failures_in_a_row = 0
                has_answer = completion.failure is None and completion.finish != "filter"
                enforced = shape.schema and self._state.schema is True
                return replace(completion, structured=True) if has_answer and enforced else completion
            case FatalError():
                return self._fail_batch(outcome.reason)
            case RetryableError(unreachable=True):
                return self._fail_batch(f"{outcome.reason} (is the server running, and is url=… right?)")
            case RetryableError():
                failure = Failure(FailureKind.transient, outcome.reason)
                failed = Completion(failure=failure, finish="other", usage=outcome.usage)
            case RejectedField(name, reason) if not self._state.answered:
                remedy = f"check {name}=…"
                if name in OMITTABLE:
                    omit = f"omit=[{name!r}] leaves it out, and answers may then differ"
                    remedy = f"this model does not accept {name!r}; {omit}"
                elif name in _TOKENS_FIELDS:
                    remedy = "max_tokens_field=… sets the name of this field"
                return self._fail_batch(f"{reason} ({remedy})")
            case RejectedField():
                return Completion(failure=Failure(FailureKind.refused, outcome.reason), finish="other")
            case RequestError(failure):
                failed = Completion(failure=failure, finish=outcome.finish, usage=outcome.usage)
                # A text that is too long or filtered says nothing about the next one, however many there are.
                own = failure.kind in (FailureKind.too_long, FailureKind.filtered)
                if own or self._state.answered or self._state.answered_before:
                    return failed
        with self._state.lock:
            # Failures after the end belong to the same batch and do not count for the next one.
            if not self._ended.is_set():
                self._state.failures_in_a_row += 1
            if self._ended.is_set() or self._state.failures_in_a_row < MAX_FAILURES_IN_A_ROW:
                return failed
            self._state.failures_in_a_row = 0
            self._ended.set()
        return self._fail_batch(
            f"the last {MAX_FAILURES_IN_A_ROW} conversations all failed, so the records are not the cause; {failure}"
        )

    def _fail_batch(self, reason: str) -> ModelError:
        return ModelError(f"{self._name}: {reason}")


_NO_PROBE = Failure(FailureKind.transient, "the probe for structured output was not answered")


def _follows_probe(completion: Completion) -> bool:
    try:
        return bool(json.loads(completion.text) == {"kestrel_lantern": "violet-7391"})
    except (ValueError, RecursionError):
        return False
