"""Any server that speaks OpenAI's protocol: OpenAI, Azure, vLLM, llama.cpp, Ollama, `transformers serve`, and the
compatible addresses of other vendors."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args
from urllib.parse import urlsplit

from metrist.errors import ModelError, SpecError
from metrist.llm import client as capabilities
from metrist.llm import rate_limit, retry
from metrist.llm.base import LLM, Arrived
from metrist.llm.client import ChatClient, Stopped
from metrist.llm.http import Credentials, HttpClient, is_secret_header, is_variable, secret_fields
from metrist.llm.messages import Completion, Conversation, Sampling, Turns
from metrist.llm.openai_format import INSTEAD, LENGTHS, OMITTABLE
from metrist.llm.rate_limit import RequestPool

VENDOR = "https://api.openai.com/v1"
VENDOR_KEY = "OPENAI_API_KEY"

_HEADER = re.compile(r"(?P<name>[A-Za-z0-9-]+): *(?P<value>[ -~]+)")
_VERSION = re.compile(r"[A-Za-z0-9.-]+")
_TOKENS_FIELDS = (None, "max_tokens", "max_completion_tokens")
_NAME_IT = "key='NAME' or headers=['Name: $NAME'] name the environment variable that holds it"
_NOT_A_KEY = ", and not a key (20 characters or more without an underscore are taken for one)"
_SYSTEM_ROLES = ("system", "developer", "user")


@dataclass(frozen=True)
class OpenAI(LLM):
    """A model behind a chat server.

    `url` is the server's base address, without /chat/completions; by default OpenAI's. `key` is the name of the
    environment variable that holds the key; by default OPENAI_API_KEY for OpenAI's own address and none for any other,
    so that a key is never sent where it was not meant to go. `api_version` is Azure's. `headers` are further ones, each
    as 'Name: value'; a value '$NAME' is read from that environment variable. `system` says in whose name the system's
    words are said ('user': at the head of the user's). `omit` are fields that the model refuses and `body` is a JSON
    object of further fields, such as '{"reasoning_effort": "low"}'. `turns` 'none' asks the server's /completions: the
    model is given the words as they are, without a chat template.
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
        # Neither what is found in place of a variable's name nor a header is shown: it may be the key itself.
        named = self.key is None or is_variable(self.key)
        _check(named, f"key must be the name of an environment variable{_NOT_A_KEY}")
        version = self.api_version is None or bool(_VERSION.fullmatch(self.api_version))
        _check(version, "api_version must be one such as '2024-10-21'", self.api_version)
        for header in self.headers:
            _check_header(header)
        for name, value, known in (
            ("system", self.system, _SYSTEM_ROLES),
            ("max_tokens_field", self.max_tokens_field, _TOKENS_FIELDS),
            ("turns", self.turns, get_args(Turns)),
            *(("omit", one, OMITTABLE) for one in self.omit),
        ):
            _check(value in known, f"{name} must be one of {', '.join(map(repr, known))}", value)
        _check_body(self.body)

    def risks(self) -> str | None:
        """To send what an environment variable holds, other than OpenAI's own key to OpenAI."""
        names = ["key"] if self.key not in (None, None if self.url else VENDOR_KEY) else []
        names += ["headers"] if any(value.startswith("$") for _, value in map(_split, self.headers)) else []
        if not names:
            return None
        return f"openai({names[0]}=…) names an environment variable whose content is sent to {self.url or VENDOR}"

    def complete(self, conversations: Sequence[Conversation], sampling: Sampling, arrived: Arrived) -> list[Completion]:
        """One completion per conversation, in order. `arrived` is called in the caller's own thread."""
        if not conversations:
            return []
        at_once = min(rate_limit.concurrency(), len(conversations))
        stop = threading.Event()
        asker = self._asker(sampling, at_once, stop)
        crowd = RequestPool(_careful(asker, conversations), at_once, stop, asker.client.close)
        return crowd.answer(len(conversations), arrived)

    def note_answered_before(self) -> None:
        capabilities.server_state(self._address(), self.model).answered_before = True

    def _address(self) -> str:
        query = f"?api-version={self.api_version}" if self.api_version else ""
        path = "completions" if self.turns == "none" else "chat/completions"
        return f"{(self.url or VENDOR).rstrip('/')}/{path}{query}"

    def _asker(self, sampling: Sampling, at_once: int, stop: threading.Event) -> ChatClient:
        secret, base, address = self._credentials(), self.url or VENDOR, self._address()
        client = HttpClient(address, self._headers(), secret, timeout=rate_limit.timeout(), connections=at_once)
        return ChatClient(
            llm=self,
            name=f"the model {self.model!r} at {base}",
            tokens_field=self.max_tokens_field,
            sampling=sampling,
            client=client,
            secret=secret,
            known=capabilities.server_state(address, self.model),
            rates=rate_limit.rate_limiter(base),
            patience=retry.patience(),
            stop=stop,
        )

    def _headers(self) -> Mapping[str, str]:
        return {name: value for name, value in map(_split, self.headers) if not value.startswith("$")}

    def _credentials(self) -> Credentials:
        found = Credentials()
        for name, value in map(_split, self.headers):
            if value.startswith("$"):
                found.add(name, value[1:], f"the header {name}")
        key = self.key or (VENDOR_KEY if self.url is None else None)
        if key is not None:
            name, prefix = ("api-key", "") if self.api_version else ("Authorization", "Bearer ")
            found.add(name, key, f"the model {self.model!r}", prefix)
        return found


def _careful(
    asker: ChatClient, conversations: Sequence[Conversation]
) -> Callable[[int], Completion | ModelError | None]:
    """Asks by number, and raises nothing: a thread that ends by surprise would leave its caller waiting."""

    def ask(number: int) -> Completion | ModelError | None:
        try:
            return asker.ask(conversations[number])
        except Stopped:
            return None
        except Exception as fault:
            said = asker.secret.hide(f"{type(fault).__name__}: {fault}")
        return ModelError(f"{asker.name}: asking failed in a way that was not foreseen ({said})")

    return ask


def _split(header: str) -> tuple[str, str]:
    name, _, value = header.partition(":")
    return name.strip(), value.strip()


def _check(holds: bool, wanted: str, *found: object) -> None:
    if not holds:
        raise SpecError(f"openai: {wanted}{''.join(f', got {one!r}' for one in found)}")


def _check_url(url: str | None) -> None:
    if url is None:
        return
    parts = urlsplit(url)
    _check("@" not in parts.netloc, "url must hold no user name and no password")
    _check(not (parts.query or parts.fragment), "url must have nothing after '?' or '#'")
    _check(parts.scheme in ("http", "https") and bool(parts.hostname), "url must begin with http:// or https://", url)
    ends = url.rstrip("/").endswith("/completions")
    _check(not ends, "url must be the server's base address, without /chat/completions and /completions", url)


def _check_header(header: str) -> None:
    found = _HEADER.fullmatch(header)
    _check(found is not None, "headers must be of the form 'Name: value'")
    secret = found is not None and is_secret_header(found["name"], found["value"])
    variable = found is not None and found["value"].startswith("$")
    _check(variable or not secret, "a header with a secret must name its environment variable, as in 'api-key: $NAME'")
    named = found is None or not variable or is_variable(found["value"][1:])
    _check(named, f"after '$' a header must have the name of an environment variable{_NOT_A_KEY}")


def _check_body(body: str | None) -> None:
    if body is None:
        return
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    # It is not shown, as a header is not.
    _check(isinstance(found, dict), """body must be the text of a JSON object such as '{"reasoning_effort": "low"}'""")
    for name in found:
        _check(name not in INSTEAD, f"body cannot set {name!r}: {INSTEAD.get(name)}")
    for place, name in _fields_of(found):
        _check(name not in LENGTHS, f"body cannot set {place!r}: {LENGTHS.get(name)}")
    secret = next(secret_fields(found), None)
    _check(secret is None, f"body cannot hold a secret, as {secret!r} seems to be: {_NAME_IT}")


def _fields_of(found: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """All fields at any depth, each with its place and its own name."""
    inner = found.items() if isinstance(found, dict) else enumerate(found) if isinstance(found, list) else ()
    for name, value in inner:
        place = f"{path}.{name}" if path else str(name)
        yield place, str(name)
        yield from _fields_of(value, place)
