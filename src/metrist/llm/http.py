"""HTTP: credentials that never show, and a client that raises nothing.

httpx has a limit for each wait, which starts anew with every byte that arrives, and none for a whole request: a thread
shuts the connection of a request down at its deadline.
"""

from __future__ import annotations

import base64
import html
import json
import logging
import math
import os
import re
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from metrist._version import __version__
from metrist.errors import MissingExtra, ModelError, escape_controls

if TYPE_CHECKING:
    import httpx2

_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
_MASK = "***"
#: A word in a field's name that marks a secret, also where it is joined to the word before it.
_SECRET_WORD = re.compile(
    r"(api|access|auth|secret|private|subscription)?key|[a-z]*(token|secret|cookie|passw(or)?d)"
    r"|auth(entication|ori[sz]ation)?|bearer|credentials?|passphrase",
    re.IGNORECASE,
)
#: Words that mark a secret only in the name of a header.
_SECRET_HEADER_WORD = re.compile(r"pass(code)?|session(id)?", re.IGNORECASE)
#: Fields of a body whose names look like secrets but hold none.
_NO_SECRETS = frozenset(
    ("prompt_cache_key", *(f"{which}_token" for which in ("stop", "eos", "bos", "pad", "unk", "sep", "cls", "mask")))
)
#: How the keys of well-known services begin.
_SECRET_VALUE = re.compile(
    r"(?i:bearer|basic) |(?i:token) +\S{6,}\s*$|(sk|pk|rk)-[A-Za-z0-9]|[spr]k_(live|test)_|AIza|AKIA|ASIA|gh[opsu]_"
    r"|github_pat_|glpat-|hf_|xox|eyJ[A-Za-z0-9]|gsk_|xai-|nvapi-|r8_"
)
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
#: A name of this length without an underscore is more likely a key in capitals and digits than a variable.
_LONGEST_BARE_NAME = 20
#: A shorter value is a placeholder such as 'EMPTY', which local servers accept: masking it would spoil common words.
_SHORTEST_SECRET = 8


def is_variable(name: object) -> bool:
    """Whether this can be the name of an environment variable, and not a key. The value must not be shown if not."""
    if not isinstance(name, str) or _VARIABLE.fullmatch(name) is None:
        return False
    return "_" in name or len(name) < _LONGEST_BARE_NAME


def is_secret_header(name: str, value: str) -> bool:
    """Whether a header carries a secret, by its name or by how its value begins."""
    words = _WORD.findall(name)
    by_name = any(_SECRET_WORD.fullmatch(word) or _SECRET_HEADER_WORD.fullmatch(word) for word in words)
    return by_name or bool(_SECRET_VALUE.match(value))


def is_secret_field(name: str, value: object) -> bool:
    """Whether a field of a JSON object holds a secret, by its name or by how the value begins. Fields that count or
    list tokens, such as stop_token_ids, hold numbers and are not secrets."""
    by_name = name not in _NO_SECRETS and any(map(_SECRET_WORD.fullmatch, _WORD.findall(name)))
    return isinstance(value, str) and (by_name or bool(_SECRET_VALUE.match(value)))


class UnreadableResponse(ValueError):
    """A body that is no completion although the status says success."""


@dataclass(frozen=True)
class Response:
    """What a server sent, complete, with secrets masked. `is_masked`: the body held one."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    is_masked: bool = False

    @cached_property
    def data(self) -> Any:
        """The JSON value in the body; UnreadableResponse if it is none."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            start = repr(self.body[:60].decode("utf-8", "replace"))
            raise UnreadableResponse(
                f"the body is not JSON ({len(self.body):,} bytes, starting with {start})"
            ) from None

    @property
    def is_success(self) -> bool:
        """Whether the status says success, and the body holds no error: gateways forward those of other servers like
        that."""
        if not 200 <= self.status < 300:
            return False
        try:
            data = self.data
        except UnreadableResponse:
            return True
        return not (isinstance(data, dict) and data.get("error") and not data.get("choices"))


@dataclass(frozen=True, slots=True)
class TransportError:
    """Why no complete response came: no connection ('unreachable'), a certificate that is not trusted ('untrusted'),
    or a timeout or a connection that broke off ('broken')."""

    reason: str
    kind: Literal["unreachable", "untrusted", "broken"] = "broken"


class Credentials:
    """Headers with secret values, read from environment variables. Neither its repr nor any caller's variable holds a
    secret, so that no traceback shows one."""

    def __init__(self) -> None:
        self._headers: dict[str, str] = {}
        #: The names of the environment variables that hold the keys.
        self.variables: list[str] = []
        self._patterns: list[re.Pattern[str]] = []

    def __repr__(self) -> str:
        return f"Credentials({', '.join(self._headers) or 'none'})"

    def add(self, header: str, variable: str, purpose: str, prefix: str = "") -> None:
        """Read the value of a header from an environment variable."""
        if not os.environ.get(variable, "").strip():
            raise ModelError(
                f"{purpose} needs a key: set the environment variable {variable}, or name another one with key=…",
                code="missing_value",
            )
        if not (os.environ[variable].strip().isascii() and os.environ[variable].strip().isprintable()):
            raise ModelError(
                f"the environment variable {variable} (for {purpose}) contains characters that a key cannot have"
            )
        self.variables.append(variable)
        self._headers[header.lower()] = prefix + os.environ[variable].strip()
        # Servers quote a key also without the word before it, such as the Bearer of a header.
        for secret in {os.environ[variable].strip(), *os.environ[variable].split()}:
            if len(secret) >= _SHORTEST_SECRET:
                self._patterns += map(re.compile, _list_patterns(secret))
        # One key can be the beginning of another.
        self._patterns.sort(key=lambda pattern: -len(pattern.pattern))

    def authorize(self, request: httpx2.Request) -> httpx2.Request:
        request.headers.update(self._headers)
        return request

    def mask(self, text: str) -> str:
        """The text with all secrets masked: servers and libraries quote them in error messages."""
        for pattern in self._patterns:
            text = pattern.sub(_MASK, text)
        return text


def _list_patterns(secret: str) -> Iterator[str]:
    """Patterns of the secret as servers repeat it: as it is, and in base64 as part of any text."""
    yield _match_escaped(secret)
    data = secret.encode()
    for shift in range(3):
        # Base64 takes three bytes at a time: what stands before the secret decides which of three forms it has. The
        # characters at both ends that also depend on its neighbours are left out.
        encoded = base64.b64encode(bytes(shift) + data).decode().rstrip("=")
        end = len(encoded) - ((shift + len(data)) % 3 != 0)
        yield _match_escaped(encoded[(0, 2, 3)[shift] : end], {"+": "+-", "/": "/_"})


def _match_escaped(text: str, variants: Mapping[str, str] = MappingProxyType({})) -> str:
    """A pattern of the text, with what is no letter or digit as it is or escaped, as in URLs, JSON, HTML and Python.
    `variants` has the characters that may stand for one."""

    def match(character: str) -> str:
        number = ord(character)
        return "|".join(
            (
                rf"\\{{0,32}}{re.escape(character)}",
                rf"\\{{1,32}}u00{number:02x}",
                rf"%(?:25){{0,4}}{number:02x}",
                rf"&\#(?:0{{0,4}}{number}|x0{{0,4}}{number:x});",
                re.escape(html.escape(character)),
            )
        )

    return "".join(
        character if character.isalnum() else f"(?i:{'|'.join(map(match, variants.get(character, character)))})"
        for character in text
    )


#: Those whose secrets are masked in log records, for as long as they exist.
_logged: weakref.WeakSet[Credentials] = weakref.WeakSet()


def _mask_record(record: logging.LogRecord) -> bool:
    """Mask secrets in a log record, as a filter of it: libraries log what a server sent, which may be anything."""
    message = masked = record.getMessage()
    for credentials in list(_logged):
        masked = credentials.mask(masked)
    if masked != message:
        record.msg, record.args = masked, ()
    return True


_MAX_BYTES = 64 * 2**20
_CONNECT_TIMEOUT = 15.0
#: Seconds between two attempts to end a request that is over its deadline: a connection may just be made.
_END_AGAIN = 0.05
#: The longest wait of the watchdog: the system has a limit.
_LONGEST_WATCH = 3600.0
#: Encodings of a body that the client decodes. One of 64 KiB becomes 64 MiB at most; others, and several on top of one
#: another, can become any size before the limit on bytes is checked.
_ENCODINGS = ("", "identity", "gzip", "deflate")
_LOGGERS = ("httpx2", *(f"httpcore2.{part}" for part in ("connection", "http11", "http2", "proxy", "socks")))


class HttpClient:
    """Posts to one address over connections that stay open between requests, one in each thread that sends."""

    def __init__(self, url: str, headers: Mapping[str, str], credentials: Credentials, *, timeout: float) -> None:
        library = _load_library()
        self._url = url
        self.credentials = credentials
        self._timeout = timeout
        _logged.add(credentials)
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(_mask_record)  # Adding a filter twice has no effect.
        self._options: dict[str, Any] = {
            "headers": {
                "User-Agent": f"metrist/{__version__}",
                "Content-Type": "application/json",
                "Accept-Encoding": "gzip, deflate",
                **headers,
            },
            "auth": credentials.authorize,
            "timeout": library.Timeout(timeout, connect=min(_CONNECT_TIMEOUT, timeout)),
            # With one connection, the last that was opened is the one on which the request runs.
            "limits": library.Limits(max_connections=1, max_keepalive_connections=1),
            # A proxy for the internet does not lead to a server on this machine.
            "trust_env": urlsplit(url).hostname not in ("localhost", "127.0.0.1", "::1"),
            "verify": _ssl_context(),
        }
        self._of_thread = threading.local()
        self._connections: list[_Connection] = []
        self._closed = threading.Event()
        threading.Thread(target=self._watch, name="metrist-llm-deadlines", daemon=True).start()

    def send(self, body: bytes) -> Response | TransportError:
        """Post a body. No exception of the library gets out: its frames hold the key."""
        connection: _Connection | None = getattr(self._of_thread, "connection", None)
        if connection is None:
            connection = self._of_thread.connection = _Connection(_load_library().Client(**self._options))
            self._connections.append(connection)
        connection.is_over = False
        connection.deadline = time.monotonic() + self._timeout
        try:
            outcome = self._post(connection, body)
        except Exception as error:
            outcome = self._describe(error)
        connection.deadline = math.inf
        # A response without a length looks complete when its connection is shut down.
        is_unreachable = isinstance(outcome, TransportError) and outcome.kind == "unreachable"
        if connection.is_over and not is_unreachable:
            return self._describe(_load_library().ReadTimeout(""))
        return outcome

    def close(self) -> None:
        """Close the connections; nothing may be in flight."""
        self._closed.set()
        for connection in self._connections:
            connection.client.close()

    def _post(self, connection: _Connection, body: bytes) -> Response | TransportError:
        extensions = {"trace": connection.trace}
        with connection.client.stream("POST", self._url, content=body, extensions=extensions) as response:
            encoding = self.credentials.mask(response.headers.get("content-encoding", "").strip())
            if encoding.lower() not in _ENCODINGS:
                return TransportError(f"the response is encoded as {encoding!r:.60}, expected gzip, deflate or none")
            content = bytearray()
            for chunk in response.iter_bytes():
                content += chunk
                if len(content) > _MAX_BYTES:
                    return TransportError(f"the response was not complete after {_MAX_BYTES:,} bytes")
        # All that is stored or shown of what a server sends comes from here: without secrets.
        text = content.decode(json.detect_encoding(content), "replace")
        masked = self.credentials.mask(text)
        return Response(
            status=response.status_code,
            headers={name: self.credentials.mask(value) for name, value in response.headers.items()},
            body=bytes(content) if masked == text else masked.encode(),
            is_masked=masked != text,
        )

    def _describe(self, error: Exception) -> TransportError:
        library = _load_library()
        message = escape_controls(self.credentials.mask(" ".join(str(error).split()))) or type(error).__name__
        if "CERTIFICATE_VERIFY_FAILED" in message:
            hint = "the server's certificate is not trusted (SSL_CERT_FILE can name other authorities)"
            return TransportError(f"{hint}: {message}", "untrusted")
        if isinstance(error, library.ConnectError | library.ConnectTimeout | library.ProxyError):
            return TransportError(f"no connection: {message}", "unreachable")
        if isinstance(error, library.TimeoutException):
            return TransportError(f"no complete response within {format_seconds(self._timeout)}")
        return TransportError(f"the connection broke off: {message}")

    def _watch(self) -> None:
        """End requests at their deadlines, until the client is closed."""
        wait = 0.0
        while not self._closed.wait(wait):
            now = time.monotonic()
            # Deadlines of requests that start during the wait come after it.
            wait = min(self._timeout, _LONGEST_WATCH)
            for connection in list(self._connections):
                if connection.deadline <= now:
                    connection.shut_down()
                wait = min(wait, max(connection.deadline - now, _END_AGAIN))


class _Connection:
    """A client with one connection, and the deadline of the request on it."""

    def __init__(self, client: httpx2.Client) -> None:
        self.client = client
        self.deadline = math.inf
        #: Whether it was shut down at the deadline.
        self.is_over = False
        self._stream: Any = None

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Take the stream of a new connection: httpx calls this at each step of a request."""
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            self._stream = info["return_value"]

    def shut_down(self) -> None:
        self.is_over = True
        if self._stream is not None:
            # Both ends of the socket are shut, which ends a wait in the thread of the request. The method of a TLS
            # socket would take its state from under that thread.
            with suppress(OSError):
                socket.socket.shutdown(self._stream.get_extra_info("socket"), socket.SHUT_RDWR)


def format_seconds(seconds: float) -> str:
    """`1 second`, `2.5 seconds`."""
    return "1 second" if seconds == 1 else f"{seconds:g} seconds"


@lru_cache(maxsize=1)
def _ssl_context() -> ssl.SSLContext:
    """Reading the trusted authorities takes a quarter of a second: once for all clients."""
    context: ssl.SSLContext = _load_library().create_ssl_context()
    return context


def _load_library() -> ModuleType:
    try:
        import httpx2
    except ImportError:
        raise MissingExtra("asking a server over HTTP", "llm") from None
    return httpx2
