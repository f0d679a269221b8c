"""Secrets that a request carries: read from the environment when needed, shown nowhere."""

from __future__ import annotations

import json
import logging
import os
import re
import ssl
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from metrist._version import __version__
from metrist.errors import MissingExtra, ModelError
from metrist.llm.retry import Reply, Trouble

if TYPE_CHECKING:
    import httpx2
from collections.abc import Sequence
from dataclasses import dataclass

from metrist.llm.openai_format import Unreadable, decoded
from metrist.llm.retry import Again, Failed, Fatal, Refused, Verdict, parse_retry_after

#: What an environment variable may be called, so that a key given in place of its name is noticed.
VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
_HIDDEN = "***"
#: A word of a field's name, also where it is written as one with the word before it.
_SECRET_WORD = re.compile(
    r"(api|access|auth|secret|private|subscription)?key|[a-z]*(token|secret|cookie|passw(or)?d)"
    r"|auth(entication|ori[sz]ation)?|bearer|credentials?|passphrase",
    re.IGNORECASE,
)
#: Words that only in a header's name mean a secret.
_SECRET_HEADER_WORD = re.compile(r"pass(code)?|session(id)?", re.IGNORECASE)
#: Fields of a body that are called after secrets and hold none.
_NO_SECRETS = frozenset(
    ("prompt_cache_key", *(f"{which}_token" for which in ("stop", "eos", "bos", "pad", "unk", "sep", "cls", "mask")))
)
#: How the keys of well-known services begin.
_SECRET_VALUE = re.compile(
    r"(?i:bearer|basic) |(?i:token) +\S{6,}\s*$|(sk|pk|rk)-[A-Za-z0-9]|[spr]k_(live|test)_|AIza|AKIA|ASIA|gh[opsu]_"
    r"|github_pat_|glpat-|hf_|xox|eyJ[A-Za-z0-9]|gsk_|xai-|nvapi-|r8_"
)
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
#: A name of that length without an underscore is no variable's but, more likely, a key in capitals and digits.
_LONGEST_BARE = 20
# A shorter one is a stand-in such as 'EMPTY', which local servers take: hiding that would spoil common words.
_SHORTEST = 8


def is_variable(name: object) -> bool:
    """Whether it can be the name of an environment variable. What may be a key itself cannot; it is not to be shown."""
    if not isinstance(name, str) or VARIABLE.fullmatch(name) is None:
        return False
    return "_" in name or len(name) < _LONGEST_BARE


def is_secret_header(name: str, value: str) -> bool:
    """Whether a header carries a secret, by its name or by how it begins."""
    words = _WORD.findall(name)
    named = any(_SECRET_WORD.fullmatch(word) or _SECRET_HEADER_WORD.fullmatch(word) for word in words)
    return named or bool(_SECRET_VALUE.match(value))


def secret_fields(found: Any, path: str = "") -> Iterator[str]:
    """Where in a JSON value a secret stands, by its field's name or by how it begins. Fields that count tokens or name
    them, such as stop_token_ids, hold numbers and are none."""
    inner = found.items() if isinstance(found, dict) else enumerate(found) if isinstance(found, list) else ()
    for name, value in inner:
        place = f"{path}.{name}" if path else str(name)
        named = name not in _NO_SECRETS and any(map(_SECRET_WORD.fullmatch, _WORD.findall(str(name))))
        if isinstance(value, str) and (named or _SECRET_VALUE.match(value)):
            yield place
        yield from secret_fields(value, place)


class Credentials:
    """Headers whose values are secret. Its text does not show them, nor is one ever in a caller's variable."""

    def __init__(self) -> None:
        self._headers: dict[str, str] = {}
        self._secrets: set[str] = set()

    def __repr__(self) -> str:
        return f"Credentials({', '.join(self._headers) or 'none'})"

    def __bool__(self) -> bool:
        return bool(self._headers)

    def add(self, header: str, variable: str, what_for: str, prefix: str = "") -> None:
        """Reads a secret for a header from an environment variable."""
        _check(variable, what_for)
        self._headers[header.lower()] = prefix + os.environ[variable].strip()
        if len(os.environ[variable].strip()) >= _SHORTEST:
            self._secrets |= set(_spellings(os.environ[variable].strip()))

    def put_into(self, headers: MutableMapping[str, str]) -> None:
        """Sets its headers there."""
        headers.update(self._headers)

    def hide(self, text: str) -> str:
        """The text without any of the secrets: servers and libraries quote them in their complaints."""
        for secret in sorted(self._secrets, key=len, reverse=True):
            text = text.replace(secret, _HIDDEN)
        return text

    def in_body(self, body: bytes) -> bool:
        """Whether a server sent one of the secrets back."""
        return any(secret.encode() in body for secret in self._secrets)


def hide_in_logs(secret: Credentials, loggers: Iterable[str]) -> None:
    """As long as they live, the credentials are hidden in what those loggers say."""
    _veil.all.add(secret)
    for name in loggers:
        logging.getLogger(name).addFilter(_veil)  # Adding it again changes nothing.


class _Veil(logging.Filter):
    """Libraries log what a server sent, and a server can send anything back."""

    def __init__(self) -> None:
        super().__init__()
        self.all: weakref.WeakSet[Credentials] = weakref.WeakSet()

    def filter(self, record: logging.LogRecord) -> bool:
        said = shown = record.getMessage()
        for secret in list(self.all):
            shown = secret.hide(shown)
        if shown != said:
            record.msg, record.args = shown, ()
        return True


_veil = _Veil()


def _check(variable: str, what_for: str) -> None:
    """That the variable holds what a header can carry; what it holds is in no message and no variable here."""
    if not os.environ.get(variable, "").strip():
        raise ModelError(
            f"{what_for} needs a key: set the environment variable {variable}, or name another one by key=…"
        )
    if not (os.environ[variable].strip().isascii() and os.environ[variable].strip().isprintable()):
        raise ModelError(f"the environment variable {variable} holds characters that no key has (for {what_for})")


def _spellings(secret: str) -> Iterable[str]:
    """As it is, and as it stands in JSON, in Python's notation and in both."""
    noted = repr(secret)[1:-1]
    return (secret, noted, json.dumps(secret)[1:-1], json.dumps(noted)[1:-1])


# Sends one request over HTTP and brings back what came, whole, or why nothing did. No fault of the net is raised.


_LARGEST = 64 * 2**20
_CONNECTING = 15.0
# Where the library logs.
_LOGGERS = ("httpx2", *(f"httpcore2.{part}" for part in ("connection", "http11", "http2", "proxy", "socks")))


class HttpClient:
    """One server's address, with connections that are kept open between requests; threads may share it."""

    def __init__(
        self, url: str, headers: Mapping[str, str], secret: Credentials, *, timeout: float, connections: int
    ) -> None:
        library = _library()
        self._url = url
        self._secret = secret
        self._timeout = timeout
        hide_in_logs(secret, _LOGGERS)
        self._client = library.Client(
            headers={"User-Agent": f"metrist/{__version__}", "Content-Type": "application/json", **headers},
            auth=self._signed,
            timeout=library.Timeout(timeout, connect=min(_CONNECTING, timeout), pool=None),
            limits=library.Limits(max_connections=connections, max_keepalive_connections=connections),
            # A proxy for the outside world is no way to a server on this machine.
            trust_env=not _on_this_machine(url),
            verify=_certificates(),
        )

    def send(self, body: bytes) -> Reply | Trouble:
        """Posts a body. What the library raises ends here: its frames hold the key."""
        try:
            return self._exchange(body)
        except Exception as fault:
            return self._trouble(fault)

    def close(self) -> None:
        """Lets go of the connections; nothing may be in flight."""
        self._client.close()

    def _exchange(self, body: bytes) -> Reply | Trouble:
        until = time.monotonic() + self._timeout
        with self._client.stream("POST", self._url, content=body) as response:
            found = bytearray()
            for piece in response.iter_bytes():
                found += piece
                # The library's limit is on each wait for bytes; a server that trickles them would never end.
                if time.monotonic() > until or len(found) > _LARGEST:
                    return Trouble(f"the answer was not whole after {self._timeout:g} seconds or {_LARGEST:,} bytes")
            return Reply(response.status_code, dict(response.headers), bytes(found))

    def _trouble(self, fault: Exception) -> Trouble:
        library = _library()
        said = self._secret.hide(" ".join(str(fault).split())) or type(fault).__name__
        if "CERTIFICATE_VERIFY_FAILED" in said:
            return Trouble(
                f"its certificate is not trusted here (SSL_CERT_FILE names other authorities): {said}", "untrusted"
            )
        if isinstance(fault, library.ConnectError | library.ConnectTimeout | library.ProxyError):
            return Trouble(f"no connection: {said}", "unreachable")
        if isinstance(fault, library.TimeoutException):
            return Trouble(f"no answer within {self._timeout:g} seconds")
        return Trouble(f"the answer broke off: {said}")

    def _signed(self, request: httpx2.Request) -> httpx2.Request:
        self._secret.put_into(request.headers)
        return request


@lru_cache(maxsize=1)
def _certificates() -> ssl.SSLContext:
    """Reading the trusted authorities takes a quarter of a second: once for all clients."""
    made: ssl.SSLContext = _library().create_ssl_context()
    return made


def _on_this_machine(url: str) -> bool:
    return urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")


def _library() -> ModuleType:
    try:
        import httpx2
    except ImportError:
        raise MissingExtra("asking a server over HTTP", "llm") from None
    return httpx2


# What a server's error means: whose fault it is, and whether asking again can help.


_TOO_LONG = re.compile(
    r"context.{0,20}(length|window|size)|maximum context|n_ctx|(prompt|input|request).{0,40}too (long|large)"
    r"|token count.{0,40}exceeds|exceeds? the (maximum|available|model)|too many tokens",
    re.IGNORECASE | re.DOTALL,
)
_FILTERED = re.compile(r"content.?(filter|policy|management)|safety|moderat(ion|ed)|flagged", re.IGNORECASE)
_SPENT = re.compile(
    r"insufficient.?(quota|funds|credits?|balance)|billing|credit balance|exceeded your current quota", re.IGNORECASE
)
#: Other words for a field in servers' complaints.
_ALSO = {"response_format": ("schema", "grammar", "structured output", "guided decoding")}
_LONGEST = 300


@dataclass(frozen=True, slots=True)
class Complaint:
    """An error in the server's words, with the code and the field that it names."""

    message: str
    code: str = ""
    field: str = ""

    def about(self, pattern: re.Pattern[str]) -> bool:
        return bool(pattern.search(self.message) or pattern.search(self.code))

    def names(self, field: str) -> bool:
        """Whether it is about that field of the request. A plain word such as 'stop' must stand in quotes."""
        if self.field:
            return self.field.split(".")[0] == field
        words = [field, *_ALSO.get(field, ())] if "_" in field or field in ("temperature", "logprobs") else []
        return self.quotes(field) or any(word in self.message.lower() for word in words)

    def quotes(self, word: str) -> bool:
        return bool(re.search(rf"""['"`]{re.escape(word)}['"`]""", self.message))


def judge(reply: Reply, model: str, optional: Sequence[str]) -> Verdict:
    """The verdict on a reply with an error. `optional` are fields that a request could do without."""
    complaint = complained(reply.body)
    said = f"the server answered {reply.status}: {complaint.message}"
    status = reply.status
    if status < 300:
        status, said = _told_status(complaint), f"the server answered {status} with an error: {complaint.message}"
    if status in (400, 429) and complaint.about(_SPENT):
        return Fatal(f"{said} (waiting does not help: look at the account's plan and balance)")
    if status in (408, 409, 425, 429) or status >= 500:
        return Again(said, parse_retry_after(reply.headers, time.time()), crowded=status in (429, 529))
    if status in (400, 413, 422):
        return _bad_request(complaint, model, optional, said)
    if status == 403 and complaint.about(_FILTERED):
        return Failed(said, "filter")
    return Fatal(f"{said} ({_advice(status, reply)})")


def is_error(body: bytes) -> bool:
    """Whether a reply is an error by what it holds: gateways send those of others on as if all were well."""
    try:
        found = decoded(body)
    except Unreadable:
        return False
    return isinstance(found, dict) and bool(found.get("error")) and not found.get("choices")


def _told_status(complaint: Complaint) -> int:
    """The status of an error that came without: the one that it names, or what its words are usually sent with."""
    if re.fullmatch("[45][0-9]{2}", complaint.code):
        return int(complaint.code)
    return 400 if any(map(complaint.about, (_TOO_LONG, _FILTERED, _SPENT))) else 500


def _bad_request(complaint: Complaint, model: str, optional: Sequence[str], said: str) -> Verdict:
    if complaint.about(_TOO_LONG):  # First, since servers name max_tokens in this message too.
        return Failed(f"too long for the model's context: {said}", "length")
    for field in optional:
        if complaint.names(field):
            return Refused(field, said)
    if complaint.names("model") or complaint.quotes(model):
        return Refused("model", said)
    return Failed(said, "filter" if complaint.about(_FILTERED) else "other")


def _advice(status: int, reply: Reply) -> str:
    if status < 400:
        return f"it points to {reply.headers.get('location', 'another address')!r}; give that address as url=…"
    known = {
        401: "the key is wrong or missing: look at the environment variable that key=… names",
        402: "look at the account's balance",
        403: "this key may not use this model or address",
        404: "look at model=… and url=…, which must be the server's base address, as in http://127.0.0.1:8000/v1",
    }
    return known.get(status, "look at url=…")


def complained(body: bytes) -> Complaint:
    """The error in a body: OpenAI's form, bare text (Ollama), a list of one (Gemini), 'detail' (FastAPI), no JSON."""
    try:
        found = decoded(body)
    except Unreadable:
        return Complaint(_short(body.decode("utf-8", "replace")) or "nothing more")
    found = found[0] if isinstance(found, list) and found else found
    inner = found.get("error", found) if isinstance(found, dict) else found
    if not isinstance(inner, dict):
        return Complaint(_short(str(inner)))
    message = inner.get("message") or inner.get("detail") or inner
    return Complaint(_short(str(message)), _text(inner.get("code") or inner.get("type")), _text(inner.get("param")))


def _text(found: Any) -> str:
    return "" if found is None else str(found)


def _short(text: str) -> str:
    """One line that a table can hold."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"
