"""HTTP: credentials that never show, a client that raises nothing, and the meaning of error responses."""

from __future__ import annotations

import base64
import json
import logging
import os
import re
import ssl
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus, urlsplit

from metrist._version import __version__
from metrist.errors import MissingExtra, ModelError, escape_controls
from metrist.llm.openai_format import UnreadableResponse, decode_body
from metrist.llm.retry import (
    FatalError,
    Outcome,
    RejectedField,
    RequestError,
    Response,
    RetryableError,
    TransportError,
    parse_retry_after,
)
from metrist.scores import Failure, FailureKind

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


def find_secret_fields(data: Any, path: str = "") -> Iterator[str]:
    """The paths of secrets in a JSON value, by the name of the field or by how the value begins. Fields that count or
    list tokens, such as stop_token_ids, hold numbers and are not secrets."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for name, value in items:
        inner = f"{path}.{name}" if path else str(name)
        by_name = name not in _NO_SECRETS and any(map(_SECRET_WORD.fullmatch, _WORD.findall(str(name))))
        if isinstance(value, str) and (by_name or _SECRET_VALUE.match(value)):
            yield inner
        yield from find_secret_fields(value, inner)


class Credentials:
    """Headers with secret values, read from environment variables. Neither its repr nor any caller's variable holds a
    secret, so that no traceback shows one."""

    def __init__(self) -> None:
        self._headers: dict[str, str] = {}
        #: The names of the environment variables that hold the keys.
        self.variables: list[str] = []
        self._secrets: set[str] = set()

    def __repr__(self) -> str:
        return f"Credentials({', '.join(self._headers) or 'none'})"

    def __bool__(self) -> bool:
        return bool(self._headers)

    def add(self, header: str, variable: str, purpose: str, prefix: str = "") -> None:
        """Read the value of a header from an environment variable."""
        _check_key(variable, purpose)
        self.variables.append(variable)
        self._headers[header.lower()] = prefix + os.environ[variable].strip()
        if len(os.environ[variable].strip()) >= _SHORTEST_SECRET:
            self._secrets |= set(_spellings(os.environ[variable].strip()))

    def apply_to(self, headers: MutableMapping[str, str]) -> None:
        """Add the secret headers."""
        headers.update(self._headers)

    def mask(self, text: str) -> str:
        """The text with all secrets masked: servers and libraries quote them in error messages."""
        for secret in sorted(self._secrets, key=len, reverse=True):
            text = text.replace(secret, _MASK)
        return text

    def mask_body(self, body: bytes) -> bytes:
        """A response body with all secrets masked, since responses are stored in files."""
        plain = _unescape_json(body) if self._secrets and _ESCAPED_ASCII.search(body) else body
        if not any(secret.encode() in plain for secret in self._secrets):
            return body
        return self.mask(plain.decode("utf-8", "replace")).encode()


def _check_key(variable: str, purpose: str) -> None:
    """Raise ModelError unless the variable holds a value that a header can carry. No local variable holds it."""
    if not os.environ.get(variable, "").strip():
        raise ModelError(
            f"{purpose} needs a key: set the environment variable {variable}, or name another one with key=…"
        )
    if not (os.environ[variable].strip().isascii() and os.environ[variable].strip().isprintable()):
        raise ModelError(
            f"the environment variable {variable} (for {purpose}) contains characters that a key cannot have"
        )


#: A letter, digit or sign that JSON needs no escape for, written as one.
_ESCAPED_ASCII = re.compile(rb"\\u00[2-7][0-9A-Fa-f]")


def _unescape_json(body: bytes) -> bytes:
    """The same JSON with ASCII characters written as themselves, so that a secret can be found in it."""
    try:
        return json.dumps(json.loads(body)).encode()
    except (ValueError, RecursionError):
        return body


def _spellings(secret: str) -> Iterator[str]:
    """The secret itself; as written in JSON, in Python's repr, in both, and in URLs; in one case; in hexadecimal; and
    in base64, also where it is part of a longer text."""
    as_repr, data = repr(secret)[1:-1], secret.encode()
    yield from (secret, as_repr, json.dumps(secret)[1:-1], json.dumps(as_repr)[1:-1], secret.replace("/", "\\/"))
    yield from (quote(secret, safe=""), quote(secret), quote_plus(secret), secret.lower(), secret.upper())
    hexadecimal, percent = data.hex(), "".join(f"%{byte:02x}" for byte in data)
    yield from (hexadecimal, hexadecimal.upper(), percent, percent.upper())
    for shift in range(3):
        # Base64 takes three bytes at a time: what stands before the secret decides which of three forms it has. The
        # characters at both ends that also depend on its neighbours are left out.
        encoded = base64.b64encode(bytes(shift) + data).decode().rstrip("=")
        end = len(encoded) - ((shift + len(data)) % 3 != 0)
        core = encoded[(0, 2, 3)[shift] : end]
        yield from (core, core.replace("/", "\\/"), core.replace("+", "-").replace("/", "_"), quote(core, safe=""))


class _MaskFilter(logging.Filter):
    """Masks secrets in log records: libraries log what a server sent, which may be anything."""

    def __init__(self) -> None:
        super().__init__()
        self.credentials: weakref.WeakSet[Credentials] = weakref.WeakSet()

    def filter(self, record: logging.LogRecord) -> bool:
        message = masked = record.getMessage()
        for credentials in list(self.credentials):
            masked = credentials.mask(masked)
        if masked != message:
            record.msg, record.args = masked, ()
        return True


_mask_filter = _MaskFilter()


def mask_in_logs(credentials: Credentials, loggers: Iterable[str]) -> None:
    """Mask the credentials in the messages of these loggers for as long as the credentials exist."""
    _mask_filter.credentials.add(credentials)
    for name in loggers:
        logging.getLogger(name).addFilter(_mask_filter)  # Adding it twice has no effect.


_MAX_BYTES = 64 * 2**20
_CONNECT_TIMEOUT = 15.0
#: Bytes that are sent at a time, so that a server that reads slowly cannot stretch one wait.
_SEND_BYTES = 16 * 2**10
#: Encodings of a body that the client decodes. One of 64 KiB becomes 64 MiB at most; others, and several on top of one
#: another, can become any size before the limit on bytes is checked.
_ENCODINGS = ("", "identity", "gzip", "deflate")
_LOGGERS = ("httpx2", *(f"httpcore2.{part}" for part in ("connection", "http11", "http2", "proxy", "socks")))


class HttpClient:
    """Posts to one address over connections that stay open between requests. Threads can share it."""

    def __init__(
        self, url: str, headers: Mapping[str, str], credentials: Credentials, *, timeout: float, connections: int
    ) -> None:
        library = _load_library()
        self._url = url
        self._credentials = credentials
        self._timeout = timeout
        mask_in_logs(credentials, _LOGGERS)
        self._client = library.Client(
            headers={
                "User-Agent": f"metrist/{__version__}",
                "Content-Type": "application/json",
                "Accept-Encoding": "gzip, deflate",
                **headers,
            },
            auth=self._authorize,
            timeout=library.Timeout(timeout, connect=min(_CONNECT_TIMEOUT, timeout), pool=None),
            limits=library.Limits(max_connections=connections, max_keepalive_connections=connections),
            # A proxy for the internet does not lead to a server on this machine.
            trust_env=urlsplit(url).hostname not in ("localhost", "127.0.0.1", "::1"),
            verify=_ssl_context(),
        )
        self._limits = _Limits()
        for transport in {self._client._transport, *self._client._mounts.values()}:
            # The library has no total deadline: each of its waits starts anew with every byte that arrives.
            pool = getattr(transport, "_pool", None)
            if pool is not None:
                pool._network_backend = _LimitedBackend(pool._network_backend, self._limits)

    def send(self, body: bytes) -> Response | TransportError:
        """Post a body. No exception of the library gets out: its frames hold the key."""
        try:
            return self._post(body)
        except Exception as error:
            return self._describe(error)

    def close(self) -> None:
        """Close the connections; nothing may be in flight."""
        self._client.close()

    def _post(self, body: bytes) -> Response | TransportError:
        self._limits.start(self._timeout)
        with self._client.stream("POST", self._url, content=body) as response:
            headers = dict(response.headers)
            encoding = headers.get("content-encoding", "").strip().lower()
            if encoding not in _ENCODINGS:
                return TransportError(f"the response is encoded as {encoding!r:.60}, expected gzip, deflate or none")
            content = bytearray()
            for chunk in response.iter_bytes():
                content += chunk
                if len(content) > _MAX_BYTES:
                    raise _LimitExceeded(f"{_MAX_BYTES:,} bytes")
            return Response(response.status_code, headers, bytes(content))

    def _describe(self, error: Exception) -> TransportError:
        library = _load_library()
        if isinstance(error, _LimitExceeded):
            return TransportError(f"the response was not complete after {error}")
        message = escape_controls(self._credentials.mask(" ".join(str(error).split()))) or type(error).__name__
        if "CERTIFICATE_VERIFY_FAILED" in message:
            hint = "the server's certificate is not trusted (SSL_CERT_FILE can name other authorities)"
            return TransportError(f"{hint}: {message}", "untrusted")
        if isinstance(error, library.ConnectError | library.ConnectTimeout | library.ProxyError):
            return TransportError(f"no connection: {message}", "unreachable")
        if isinstance(error, library.TimeoutException):
            return TransportError(f"no complete response within {format_seconds(self._timeout)}")
        return TransportError(f"the connection broke off: {message}")

    def _authorize(self, request: httpx2.Request) -> httpx2.Request:
        self._credentials.apply_to(request.headers)
        return request


class _LimitExceeded(Exception):
    """A request took too long or too many bytes came; the message is the limit."""


def format_seconds(seconds: float) -> str:
    """`1 second`, `2.5 seconds`."""
    return "1 second" if seconds == 1 else f"{seconds:g} seconds"


class _Limits(threading.local):
    """The deadline of the request that this thread has sent, and the bytes that have come for it."""

    seconds, until, received = 0.0, float("inf"), 0

    def start(self, seconds: float) -> None:
        self.seconds, self.until, self.received = seconds, time.monotonic() + seconds, 0

    def shorten(self, timeout: float | None) -> float:
        """The seconds of a wait that ends at the deadline."""
        left = self.until - time.monotonic()
        if left <= 0:
            raise _LimitExceeded(format_seconds(self.seconds))
        return left if timeout is None else min(left, timeout)

    def count(self, size: int) -> None:
        self.received += size
        if self.received > _MAX_BYTES:
            raise _LimitExceeded(f"{_MAX_BYTES:,} bytes")


class _LimitedBackend:
    """Opens connections on which nothing outlasts the limits: connecting, TLS, status line, headers and body."""

    def __init__(self, backend: Any, limits: _Limits) -> None:
        self._backend = backend
        self._limits = limits

    def connect_tcp(self, host: str, port: int, timeout: float | None = None, *args: Any, **options: Any) -> Any:
        stream = self._backend.connect_tcp(host, port, self._limits.shorten(timeout), *args, **options)
        return _LimitedStream(stream, self._limits)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


class _LimitedStream:
    def __init__(self, stream: Any, limits: _Limits) -> None:
        self._stream = stream
        self._limits = limits
        self.close, self.get_extra_info = stream.close, stream.get_extra_info

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data: bytes = self._stream.read(max_bytes, self._limits.shorten(timeout))
        self._limits.count(len(data))
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if len(buffer) <= _SEND_BYTES:
            self._stream.write(buffer, self._limits.shorten(timeout))
            return
        for start in range(0, len(buffer), _SEND_BYTES):
            self._stream.write(buffer[start : start + _SEND_BYTES], self._limits.shorten(timeout))

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> Any:
        stream = self._stream.start_tls(ssl_context, server_hostname, self._limits.shorten(timeout))
        return _LimitedStream(stream, self._limits)


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
    error = parse_error(response.body)
    status, reason = response.status, f"the server answered {response.status}: {error.message}"
    if status < 300:
        reason = f"the server answered {status} with an error: {error.message}"
        status = _infer_status(error)
    if status in (400, 429) and error.matches(_NO_CREDIT):
        return FatalError(f"{reason} (waiting does not help: check the account's plan and balance)")
    if status in (408, 409, 425, 429) or status >= 500:
        return RetryableError(reason, parse_retry_after(response.headers, time.time()), throttled=status in (429, 529))
    if status in (400, 413, 422):
        return _classify_bad_request(error, model, optional, reason)
    if status == 403 and error.matches(_FILTERED):
        return RequestError(Failure(FailureKind.filtered, reason), "filter")
    return FatalError(f"{reason} ({_suggest_remedy(status, response)})")


def is_error_body(body: bytes) -> bool:
    """Whether the body of a successful response holds an error: gateways forward those of other servers like that."""
    try:
        data = decode_body(body)
    except UnreadableResponse:
        return False
    return isinstance(data, dict) and bool(data.get("error")) and not data.get("choices")


def parse_error(body: bytes) -> ServerError:
    """The error in a body: OpenAI's format, text (Ollama), a list of one (Gemini), 'detail' (FastAPI), no JSON."""
    try:
        data = decode_body(body)
    except UnreadableResponse:
        return ServerError(_shorten(body.decode("utf-8", "replace")) or "no message")
    data = data[0] if isinstance(data, list) and data else data
    error = data.get("error", data) if isinstance(data, dict) else data
    if not isinstance(error, dict):
        return ServerError(_shorten(str(error)))
    message = error.get("message") or error.get("detail") or error
    code, field = error.get("code") or error.get("type"), error.get("param")
    return ServerError(_shorten(str(message)), "" if code is None else str(code), "" if field is None else str(field))


def _infer_status(error: ServerError) -> int:
    """The status of an error sent with a success status: the one that it names, or the usual one for its message."""
    if re.fullmatch("[45][0-9]{2}", error.code):
        return int(error.code)
    return 400 if any(map(error.matches, (_TOO_LONG, _FILTERED, _NO_CREDIT))) else 500


def _classify_bad_request(error: ServerError, model: str, optional: Sequence[str], reason: str) -> Outcome:
    if error.matches(_TOO_LONG):  # First, since servers mention max_tokens in this message too.
        message = f"too long for the model's context: {reason}"
        return RequestError(Failure(FailureKind.too_long, message), "length")
    for field in optional:
        if error.names(field):
            return RejectedField(field, reason)
    if error.names("model") or error.quotes(model):
        return RejectedField("model", reason)
    if error.matches(_FILTERED):
        return RequestError(Failure(FailureKind.filtered, reason), "filter")
    return RequestError(Failure(FailureKind.refused, reason))


def _suggest_remedy(status: int, response: Response) -> str:
    if status < 400:
        return f"it redirects to {response.headers.get('location', 'another address')!r}; give that address as url=…"
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
