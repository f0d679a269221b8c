"""ASGI middleware that protects every page of metrist.

Other web sites that the user has open can send requests to a server on this machine, too. So:

- The Host header must name this server: a foreign name that resolves to this machine (DNS rebinding) is refused.
- Requests that change something must have this server's own Origin; other pages may link here, and nothing else.
- A server on any address but loopback needs a token. It comes once in the URL (`?token=…`) and then in a cookie that
  scripts cannot read and that other sites cannot send.
- The content security policy allows scripts, styles and requests of this server only, and no inline script or style.
- Bodies have a size limit.
"""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from metrist.errors import InputError
from metrist.web.pages import render_error, render_redirect

#: The largest body that a request may have, in bytes.
MAX_BODY = 4 * 1024 * 1024
#: The user of a request to a server that needs no token.
OWNER = "owner"
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
        # Scripts cannot turn text into HTML (innerHTML and the like), not even by mistake.
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_SAFE_METHODS = frozenset({"GET", "HEAD"})
_COOKIE_DAYS = 30


def is_loopback(host: str) -> bool:
    """Whether an address that a server listens on can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def match_token(given: str, owners: Iterable[tuple[str, str]]) -> str | None:
    """Return the owner of a token, or None. All are compared: the time taken says nothing about the tokens."""
    secret = given.encode("utf-8", "surrogateescape")
    found = None
    for token, owner in owners:
        if hmac.compare_digest(token.encode(), secret):
            found = owner
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Who may use a server. `host` is the address that it listens on.

    `tokens` maps each token to its user, which handlers find as `request.scope["metrist.user"]`. A server with tokens
    needs one for each request, on loopback too. `find_user` is for users who come while the server runs: it gives a
    token's user, or None. `url` is the address that people use where a proxy stands before the server; if it is https,
    cookies are sent over nothing else.
    """

    host: str = "127.0.0.1"
    url: str | None = None
    tokens: Mapping[str, str] = field(default_factory=dict)
    find_user: Callable[[str], str | None] | None = None
    max_body: int = MAX_BODY

    def __post_init__(self) -> None:
        if not is_loopback(self.host) and self.default_user is not None:
            raise ValueError(f"a server on {self.host} needs a token for every request")
        if self.url is not None and not _is_root_url(self.url):
            raise InputError(f"expected https://NAME or http://NAME:PORT, got {self.url!r}", code="invalid_value")

    def identify(self, token: str) -> str | None:
        """Return the user of a token, or None."""
        user = match_token(token, self.tokens.items())
        if user is None and token and self.find_user is not None:
            return self.find_user(token)
        return user

    @property
    def default_user(self) -> str | None:
        """The user of a request without a token; None if it is refused."""
        return None if self.tokens or self.find_user else OWNER

    def allows_host(self, header: str) -> bool:
        """Whether a Host header names this server. The port may differ: tunnels change it."""
        name = _split_host(header)
        if name is None:
            return False
        if name in ("localhost", "127.0.0.1", "::1", self.host.strip("[]").lower()) or (
            self.url is not None and name == urlsplit(self.url).hostname
        ):
            return True
        if is_loopback(self.host):
            return False
        # A server for other machines is reached by any address or by this machine's name. Rebinding needs a name.
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in (socket.gethostname().lower(), socket.getfqdn().lower())
        return True


def _is_root_url(url: str) -> bool:
    """Whether a URL names a server, and no page on it."""
    scheme, _, rest = url.partition("://")
    return scheme.lower() in ("http", "https") and bool(_split_host(rest.removesuffix("/")))


@lru_cache(maxsize=16)
def _split_host(header: str) -> str | None:
    """The name or address in a Host header, without its port; None if it is malformed."""
    try:
        parts = urlsplit(f"//{header}")
        parts.port  # noqa: B018 — raises ValueError for a port that is no number.
    except ValueError:
        return None
    if parts.netloc != header or parts.username is not None or parts.path or parts.query or parts.fragment:
        return None
    return parts.hostname


class Security:
    """ASGI middleware: checks each request against `access`, and puts security headers on each response."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app = app
        self.access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # No page uses web sockets.
            await send({"type": "websocket.close", "code": 1008})
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers["Cache-Control"] = "no-cache" if scope["path"].startswith("/static/") else "no-store"
            await send(message)

        refusal = self._check(scope)
        if refusal is not None:
            await refusal(scope, receive, send_with_headers)
            return
        left = self.access.max_body

        async def receive_limited() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))  # A request need not say how long its body is.
            if left < 0:
                raise BodyTooLarge
            return message

        await self.app(scope, receive_limited, send_with_headers)

    def _check(self, scope: Scope) -> Response | None:
        """Return the response to a request that is refused, or that brings a token in its URL; else None."""
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self.access.allows_host(hosts[0]):
            return render_error(
                scope, 421, "This server is not reached by that name. Use the address that metrist printed."
            )
        if not _is_own_request(scope["method"], headers, hosts[0], self.access.url):
            return render_error(scope, 403, "The request comes from another site.")
        try:
            length = int(headers.get("content-length", "0"))
        except ValueError:
            return render_error(scope, 400, "The length of the body is no number.")
        if length > self.access.max_body:
            return render_error(scope, 413, "The request is too large.")
        return self._authenticate(scope, headers)

    def _authenticate(self, scope: Scope, headers: Headers) -> Response | None:
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        tokens = [value for name, value in query if name == "token"]
        if tokens and scope["method"] in _SAFE_METHODS:
            if self.access.identify(tokens[0]) is None and self.access.default_user is None:
                return render_error(
                    scope, 403, "The token in this link is not valid. Use the link that metrist printed."
                )
            rest = urlencode([(name, value) for name, value in query if name != "token"])
            # A page that loads the address without the token: after a link on another site, browsers would not send
            # the new cookie along with a redirect.
            path = "/" + quote(scope["path"].lstrip("/"))
            response = render_redirect(f"{path}?{rest}" if rest else path)
            if self.access.identify(tokens[0]) is not None:
                response.set_cookie(
                    _cookie_name(headers),
                    tokens[0],
                    max_age=_COOKIE_DAYS * 86400,
                    httponly=True,
                    samesite="strict",
                    secure=(self.access.url or "").startswith("https:"),
                )
            return response
        token = cookie_parser(headers.get("cookie", "")).get(_cookie_name(headers), "")
        user = (self.access.identify(token) if token else None) or self.access.default_user
        if user is None:
            return render_error(scope, 401, "This page needs the link with the token that metrist printed.")
        scope["metrist.user"] = user
        return None


def _cookie_name(headers: Headers) -> str:
    """A cookie's name with the port: browsers send the cookies of all ports of a host to each of them."""
    return f"metrist_{urlsplit('//' + headers.get('host', '')).port or 80}"


def _is_own_request(method: str, headers: Headers, host: str, url: str | None) -> bool:
    """Whether a request comes from a page of this server, from the address bar, or from a link."""
    origins = headers.getlist("origin")
    own = {f"http://{host}".lower(), f"https://{host}".lower()}
    if url is not None:  # A proxy may ask for this machine by its address, while the page has its own.
        own.add(url.rstrip("/").lower())
    if any(origin.lower() not in own for origin in origins) or len(origins) > 1:
        return False
    if method not in _SAFE_METHODS:
        # Browsers send the origin with each such request; a program can do so, too.
        return bool(origins)
    site = headers.get("sec-fetch-site", "none")
    return site in ("same-origin", "none") or (
        headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    )


class BodyTooLarge(Exception):
    """A body without a length turned out to be larger than the limit."""
