"""What a server can do, found out by asking it and remembered as long as the process lives."""

from __future__ import annotations

import dataclasses
import json
import random
import threading
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from metrist.errors import ModelError
from metrist.llm import base, http, openai_format
from metrist.llm.http import Credentials, HttpClient
from metrist.llm.messages import Completion, Conversation, Message, Sampling, Usage
from metrist.llm.openai_format import Shape
from metrist.llm.rate_limit import RateLimiter
from metrist.llm.retry import (
    FIRST_CONTACT,
    Again,
    Answered,
    Failed,
    Fatal,
    Refused,
    Reply,
    RetryPolicy,
    Trouble,
    Verdict,
    backoff_delay,
)

#: Conversations in a row that may fail before it is called the server's fault and no record's.
FAILING_ALIKE = 20

# No model says this by chance, and the question says nothing of it: an answer that follows it was held to it.
PROBE_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {"kestrel_lantern": {"type": "string", "enum": ["violet-7391"]}},
    "required": ["kestrel_lantern"],
    "additionalProperties": False,
}
PROBE = (Message("user", "Say hello in one word."),)
#: Allowed to the first probe, and to the second where the first was spent before the answer began.
PROBE_TOKENS = (64, 4096)


@dataclass(slots=True)
class ServerState:
    """What is known of one model of one server. Threads share it."""

    #: None: not asked yet.
    schema: bool | None = None
    logprobs: bool = True
    tokens_field: str = "max_tokens"
    refused_schemas: set[str] = field(default_factory=set)
    #: Whether it ever replied, with whatever status.
    reached: bool = False
    answered: bool = False
    #: Whether answers of it were found in the cache.
    answered_before: bool = False
    failing: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    #: Held by the one who asks for structured output first, so that it is asked once.
    probing: threading.Lock = field(default_factory=threading.Lock)

    def shape(self, sampling: Sampling, tokens_field: str | None) -> Shape:
        """The fullest form that a request for such an answer may have."""
        schema = self.schema is not False and sampling.schema is not None and _key(sampling) not in self.refused_schemas
        return Shape(schema, self.logprobs and sampling.logprobs > 0, tokens_field or self.tokens_field)

    def learn_refusal(self, name: str, sampling: Sampling) -> None:
        """Remembers that a field was refused, where requests can do without it."""
        with self.lock:
            if name == "response_format":
                self.refused_schemas.add(_key(sampling))
            elif name in ("logprobs", "top_logprobs"):
                self.logprobs = False
            elif name == "max_tokens":
                self.tokens_field = "max_completion_tokens"

    def learn_answer(self) -> None:
        """Remembers that a conversation was answered."""
        with self.lock:
            self.answered = True
            self.failing = 0

    def learn_failure(self, ended: threading.Event) -> bool:
        """Counts a conversation given up; False where too many in a row failed, which sets `ended`. Failures that come
        after that belong to the same batch and are not counted for the next one."""
        with self.lock:
            if ended.is_set():
                return True
            self.failing += 1
            if self.failing < FAILING_ALIKE:
                return True
            self.failing = 0
            ended.set()
            return False


def follows_probe(completion: Completion) -> bool:
    """Whether the server held the answer to the schema that nothing else could have told the model."""
    try:
        return bool(json.loads(completion.text) == {"kestrel_lantern": "violet-7391"})
    except (ValueError, RecursionError):
        return False


_known: dict[tuple[str, str], ServerState] = {}
_known_lock = threading.Lock()


def server_state(url: str, model: str) -> ServerState:
    """What this process knows of the model at that address."""
    with _known_lock:
        return _known.setdefault((url, model), ServerState())


def reset_server_states() -> None:
    """As if nothing had been asked yet; a server may have been replaced by another one at the same address."""
    with _known_lock:
        _known.clear()


def _key(sampling: Sampling) -> str:
    return json.dumps(sampling.schema, default=dict)


# One conversation's way to its answer: it waits for its turn, is sent, and is sent again where that can help.


_TOKENS_FIELDS = ("max_tokens", "max_completion_tokens")
_MAY_BE_REFUSED = ("response_format", "top_logprobs", "logprobs", *_TOKENS_FIELDS, *openai_format.OMITTABLE)


class Stopped(Exception):
    """The run was stopped while a conversation waited."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ChatClient:
    """Asks one server for answers of one kind. Threads share it."""

    llm: openai_format.ChatSettings
    name: str
    tokens_field: str | None
    sampling: Sampling
    client: HttpClient
    secret: Credentials
    known: ServerState
    rates: RateLimiter
    patience: RetryPolicy
    stop: threading.Event
    #: Set where the server did not answer what it can do: not asked again before the next batch.
    unclear: threading.Event = dataclasses.field(default_factory=threading.Event)
    #: Set where too many conversations of this batch failed in a row.
    ended: threading.Event = dataclasses.field(default_factory=threading.Event)

    def ask(self, conversation: Conversation) -> Completion | ModelError:
        """The answer, or why this conversation has none; a fault of the whole is handed back, not raised."""
        probed = self._find_out() if self.sampling.schema is not None else None
        if isinstance(probed, Fatal) or (isinstance(probed, Again) and probed.unreachable):
            return self._settled(probed, self.known.shape(self.sampling, self.tokens_field))
        return self._settled(*self._shaped(conversation, self.sampling))

    def _find_out(self) -> Verdict | None:
        """Asks, once per process, whether the server holds answers to a schema; the last verdict on that."""
        verdict: Verdict | None = None
        with self.known.probing:
            for tokens in PROBE_TOKENS:
                if self.known.schema is None and not self.unclear.is_set():
                    verdict = self._probe(tokens)
        return verdict

    def _probe(self, tokens: int) -> Verdict:
        """One question with a schema that only the server can enforce; what that shows is remembered."""
        sampling = Sampling(max_tokens=tokens, seed=None, schema=PROBE_SCHEMA)
        verdict, shape = self._shaped(PROBE, sampling)
        if isinstance(verdict, Answered):
            spent = verdict.completion.finish == "length" and not verdict.completion.text
            if not spent or tokens == PROBE_TOKENS[-1]:
                self.known.schema = shape.schema and follows_probe(verdict.completion)
        elif isinstance(verdict, Failed):
            self.known.schema = False
        else:
            self.unclear.set()
        return verdict

    def _shaped(self, conversation: Conversation, sampling: Sampling) -> tuple[Verdict, Shape]:
        """Asks in the fullest form, then without what the server refuses."""
        shape = self.known.shape(sampling, self.tokens_field)
        while True:
            verdict = self._persist(openai_format.fields(self.llm, conversation, sampling, shape))
            if isinstance(verdict, Refused):
                self.known.learn_refusal(verdict.name, sampling)
            less = self.known.shape(sampling, self.tokens_field)
            if less == shape or not isinstance(verdict, Refused):
                return verdict, shape
            shape = less

    def _persist(self, fields: dict[str, Any]) -> Verdict:
        """Sends until there is a verdict that no further attempt would change, or patience ends (`Again`)."""
        body = json.dumps(fields, default=dict).encode()
        refusable = [name for name in _MAY_BE_REFUSED if name in fields]
        tokens = len(body) // 4 + self.sampling.max_tokens
        rng = random.Random(zlib.crc32(body))  # Seeded, and yet different for each conversation.
        attempt = faults = 0
        started: float | None = None
        while True:
            self._pause(self.rates.book(tokens))
            started = started or time.monotonic()
            attempt += 1
            verdict = self._sent(body, refusable)
            seconds = time.monotonic() - started
            self._correct(tokens, verdict)
            verdict = _timed(verdict, attempt, seconds)
            if not isinstance(verdict, Again):
                return verdict
            faults += not verdict.crowded
            wait = backoff_delay(attempt + 1, verdict.wait, rng)
            if self._is_enough(faults, seconds + wait, verdict):
                times = "1 attempt" if attempt == 1 else f"{attempt} attempts in {seconds:.0f} seconds"
                return dataclasses.replace(verdict, reason=f"given up after {times}; the last one: {verdict.reason}")
            base.retried(verdict.reason, wait)
            self._pause(wait)

    def _is_enough(self, faults: int, seconds: float, last: Again) -> bool:
        unknown = last.unreachable and not self.known.reached
        return faults >= (FIRST_CONTACT if unknown else self.patience.attempts) or seconds > self.patience.seconds

    def _sent(self, body: bytes, refusable: list[str]) -> Verdict:
        reply = self.client.send(body)
        if isinstance(reply, Trouble):
            if reply.kind == "untrusted":
                return Fatal(reply.reason)
            return Again(reply.reason, unreachable=reply.kind == "unreachable")
        self.known.reached = True
        if self.secret.in_body(reply.body):  # An answer is kept in files, where no key may be.
            reply = dataclasses.replace(reply, body=self.secret.hide(reply.body.decode("utf-8", "replace")).encode())
        if 200 <= reply.status < 300 and not http.is_error(reply.body):
            return self._read(reply)
        verdict = http.judge(reply, self.llm.model, refusable)
        if isinstance(verdict, Fatal) and self.llm.turns == "none" and reply.status in (404, 405):
            return Fatal(f"{verdict.reason}; turns='none' asks its /completions, which not every server has")
        if isinstance(verdict, Fatal) and reply.status == 401 and not self.secret:
            said = http.complained(reply.body).message
            return Fatal(f"the server answered 401: {said} (no key was sent; name its environment variable by key='…')")
        return verdict

    def _read(self, reply: Reply) -> Verdict:
        try:
            read = openai_format.text_completion if self.llm.turns == "none" else openai_format.completion
            return Answered(read(openai_format.decoded(reply.body)))
        except openai_format.Unreadable as fault:
            return Again(f"the server answered {reply.status}, but {fault}")

    def _settled(self, verdict: Verdict, shape: Shape) -> Completion | ModelError:
        """What the caller gets of the last verdict."""
        match verdict:
            case Answered(completion):
                self.known.learn_answer()
                said = completion.failure is None and completion.finish != "filter"
                held = shape.schema and self.known.schema is True
                return dataclasses.replace(completion, structured=said and held)
            case Again(unreachable=True):
                return self._fault(f"{verdict.reason} (is the server running, and url=… right?)")
            case Again():
                return self._given_up(Failed(verdict.reason, usage=verdict.usage))
            case Fatal():
                return self._fault(verdict.reason)
            case Refused() if not self.known.answered:
                return self._fault(f"{verdict.reason} ({_instead(verdict.name)})")
            case Refused():
                return _failure(Failed(verdict.reason))
            case Failed():
                # A text that is too long or filtered says nothing of the next one, however many they are.
                own = verdict.finish in ("length", "filter") or self.known.answered or self.known.answered_before
                return _failure(verdict) if own else self._given_up(verdict)

    def _given_up(self, verdict: Failed) -> Completion | ModelError:
        """A failure, unless it is one too many in a row."""
        if self.known.learn_failure(self.ended):
            return _failure(verdict)
        alike = f"the last {FAILING_ALIKE} conversations all failed, so it is no record's fault"
        return self._fault(f"{alike}; {verdict.reason}")

    def _fault(self, reason: str) -> ModelError:
        return ModelError(f"{self.name}: {reason}")

    def _correct(self, booked: int, verdict: Verdict) -> None:
        """What was booked by guess is counted as it was used."""
        if not isinstance(verdict, Answered):
            self.rates.correct(booked, 0)
            return
        usage = verdict.completion.usage
        if usage.prompt_tokens is not None and usage.completion_tokens is not None:
            self.rates.correct(booked, usage.prompt_tokens + usage.completion_tokens)

    def _pause(self, seconds: float) -> None:
        if self.stop.wait(seconds) if seconds > 0 else self.stop.is_set():
            raise Stopped


def _failure(verdict: Failed) -> Completion:
    return Completion(failure=verdict.reason, finish=verdict.finish, usage=verdict.usage)


def _timed(verdict: Verdict, attempts: int, seconds: float) -> Verdict:
    """With what all attempts together took."""
    if isinstance(verdict, Answered):
        usage = dataclasses.replace(verdict.completion.usage, attempts=attempts, seconds=seconds)
        return Answered(dataclasses.replace(verdict.completion, usage=usage))
    if isinstance(verdict, Again | Failed):
        return dataclasses.replace(verdict, usage=Usage(attempts=attempts, seconds=seconds))
    return verdict


def _instead(name: str) -> str:
    if name in openai_format.OMITTABLE:
        return (
            f"this model takes no {name!r} of ours; with omit=[{name!r}] its own choice holds, and answers may differ"
        )
    return "max_tokens_field=… says what this server calls it" if name in _TOKENS_FIELDS else f"look at {name}=…"
