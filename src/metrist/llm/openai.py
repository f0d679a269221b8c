"""Any server with OpenAI's API: OpenAI, Azure, vLLM, llama.cpp, Ollama, `transformers serve`, and the compatible
endpoints of other vendors."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args
from urllib.parse import urlsplit

from metrist.errors import SpecError
from metrist.llm.base import LLM, Call
from metrist.llm.client import PROBE, ChatClient, ServerState, probe_sampling, server_state
from metrist.llm.http import Credentials, HttpClient, is_secret_field, is_secret_header, is_variable
from metrist.llm.messages import Completion, Conversation, Sampling, Turns
from metrist.llm.openai_format import LENGTH_FIELDS, OMITTABLE, RESERVED_FIELDS
from metrist.llm.rate_limit import rate_limiter, run_requests
from metrist.llm.retry import RetryPolicy
from metrist.spec import Spec

VENDOR_URL = "https://api.openai.com/v1"
VENDOR_KEY = "OPENAI_API_KEY"

_HEADER = re.compile(r"(?P<name>[A-Za-z0-9-]+): *(?P<value>[ -~]+)")
_VERSION = re.compile(r"[A-Za-z0-9.-]+")
_TOKENS_FIELDS = (None, "max_tokens", "max_completion_tokens")
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
        _check_url(self.url)
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
            ("max_tokens_field", self.max_tokens_field, _TOKENS_FIELDS),
            ("turns", self.turns, get_args(Turns)),
            *(("omit", field, OMITTABLE) for field in self.omit),
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
        if sampling.schema is None or self._state().schema is not None:
            return []
        return [(PROBE, probe_sampling())]

    def complete_batch(self, conversations: Sequence[Conversation], sampling: Sampling, call: Call) -> list[Completion]:
        """One completion per conversation, in order. `call.deliver` is called in the caller's own thread."""
        if not conversations:
            return []
        size = min(call.runtime.concurrency, len(conversations))
        client = self._connect(sampling, call)
        return run_requests(
            lambda number: client.complete(conversations[number]),
            len(conversations),
            size=size,
            stop=client.stop,
            close=client.http.close,
            deliver=call.deliver,
        )

    def _address(self) -> str:
        query = f"?api-version={self.api_version}" if self.api_version else ""
        path = "completions" if self.turns == "none" else "chat/completions"
        return f"{(self.url or VENDOR_URL).rstrip('/')}/{path}{query}"

    def _state(self) -> ServerState:
        return server_state(self._address(), self.model)

    def _connect(self, sampling: Sampling, call: Call) -> ChatClient:
        credentials, base, runtime = self._credentials(), self.url or VENDOR_URL, call.runtime
        headers = {name: value for name, value in map(_split_header, self.headers) if not value.startswith("$")}
        state = self._state()
        state.answered_before = state.answered_before or call.has_cached_answers
        return ChatClient(
            llm=self,
            name=f"the model {self.model!r} at {base}",
            tokens_field=self.max_tokens_field,
            sampling=sampling,
            http=HttpClient(self._address(), headers, credentials, timeout=runtime.timeout),
            credentials=credentials,
            state=state,
            limiter=rate_limiter(base, runtime),
            policy=RetryPolicy(runtime.attempts, runtime.max_wait),
            call=call,
            stop=threading.Event(),
        )

    def _credentials(self) -> Credentials:
        credentials = Credentials()
        for name, value in map(_split_header, self.headers):
            if value.startswith("$"):
                credentials.add(name, value[1:], f"the header {name}")
        key = self.key or (VENDOR_KEY if self.url is None else None)
        if key is not None:
            name, prefix = ("api-key", "") if self.api_version else ("Authorization", "Bearer ")
            credentials.add(name, key, f"the model {self.model!r}", prefix)
        return credentials


def _split_header(header: str) -> tuple[str, str]:
    name, _, value = header.partition(":")
    return name.strip(), value.strip()


def _check(holds: bool, expected: str, *value: object) -> None:
    if not holds:
        shown = [f"{item} without quotes" if isinstance(item, Spec) else repr(item) for item in value]
        raise SpecError(f"openai: {expected}{''.join(f', got {text}' for text in shown)}")


def _check_url(url: str | None) -> None:
    if url is None:
        return
    parts = urlsplit(url)
    _check("@" not in parts.netloc, "url must not contain a user name or password")
    _check(not (parts.query or parts.fragment), "url must not contain '?' or '#'")
    _check(parts.scheme in ("http", "https") and bool(parts.hostname), "url must start with http:// or https://", url)
    ends = url.rstrip("/").endswith("/completions")
    _check(not ends, "url must be the server's base address, without /chat/completions or /completions", url)


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
