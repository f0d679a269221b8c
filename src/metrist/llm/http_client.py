"""Sends one request over HTTP and brings back what came, whole, or why nothing did. No fault of the net is raised."""

from __future__ import annotations

import ssl
import time
from collections.abc import Mapping
from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from metrist._version import __version__
from metrist.errors import MissingExtra
from metrist.llm.credentials import Credentials, hide_in_logs
from metrist.llm.verdicts import Reply, Trouble

if TYPE_CHECKING:
    import httpx2

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
