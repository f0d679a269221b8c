"""Settings of the service: limits, tokens, and what a guard does by default."""

from __future__ import annotations

import hashlib
import hmac
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from metrist.errors import RunError, SpecError
from metrist.settings import setting

Policy = Literal["open", "closed"]
LogLevel = Literal["requests", "errors", "off"]

#: The environment variable with tokens, separated by commas or white space.
TOKENS_VARIABLE = "METRIST_SERVE_TOKENS"
#: A shorter token could be guessed.
MIN_TOKEN = 16
_HASH = "sha256:"
_NAME = re.compile(r"[\w.-]{1,64}")
_TOKEN = re.compile(r"[!-9;-~]+")
_CHECK = re.compile(r"(?P<metric>.+?)\s*(?P<sign>>=|<=)\s*(?P<limit>-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)", re.DOTALL)


class AccessTokens:
    """API tokens by the names of their owners. Only SHA-256 hashes are kept: no log or dump can show a token."""

    def __init__(self, digests: Mapping[bytes, str]) -> None:
        self._digests = dict(digests)

    def __repr__(self) -> str:
        return f"AccessTokens({', '.join(self._digests.values())})"

    def identify(self, token: bytes) -> str | None:
        """Return the owner of a token, or None. The time taken says nothing about known tokens."""
        given = hashlib.sha256(token).digest()
        owner = None
        for digest, name in self._digests.items():
            if hmac.compare_digest(digest, given):
                owner = name
        return owner

    @classmethod
    def parse(cls, lines: Sequence[str], source: str) -> AccessTokens:
        """Read tokens, one per entry: `TOKEN`, `NAME:TOKEN`, or `NAME:sha256:HASH`. Messages never quote a token."""
        digests: dict[bytes, str] = {}
        for number, line in enumerate(lines, 1):
            text = line.strip()
            if not text or text.startswith("#"):
                continue
            place = f"{source}, token {number}"
            name, colon, token = text.partition(":")
            if not colon or text.startswith(_HASH):
                name, token = f"token-{number}", text
            if not _NAME.fullmatch(name):
                raise RunError(f"{place}: a name has letters, digits, '_', '-' and '.' only")
            if token.startswith(_HASH):
                digits = token.removeprefix(_HASH)
                if not re.fullmatch(r"[0-9a-fA-F]{64}", digits):
                    raise RunError(f"{place}: expected 64 hexadecimal digits after {_HASH}", code="invalid_value")
                digest = bytes.fromhex(digits)
            else:
                if len(token) < MIN_TOKEN or not _TOKEN.fullmatch(token):
                    text = f"expected {MIN_TOKEN} printable characters without spaces: `openssl rand -hex 24` makes one"
                    raise RunError(f"{place}: {text}", code="invalid_value")
                digest = hashlib.sha256(token.encode()).digest()
            if digest in digests:
                raise RunError(f"{place}: the same token as that of {digests[digest]}")
            digests[digest] = name
        if not digests:
            raise RunError(f"{source} has no token: expected one per line, TOKEN or NAME:TOKEN", code="no_data")
        return cls(digests)


def read_tokens(file: Path | None, environ: Mapping[str, str] = os.environ) -> AccessTokens | None:
    """Return the tokens of a file, or else of the environment variable; None if there are none."""
    if file is not None:
        try:
            return AccessTokens.parse(file.read_text(encoding="utf-8").splitlines(), str(file))
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "no text"
            raise RunError(f"cannot read the tokens in {file}: {why}", code="unreadable") from None
    text = environ.get(TOKENS_VARIABLE, "")
    return AccessTokens.parse(re.split(r"[\s,]+", text), TOKENS_VARIABLE) if text.strip() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A limit on a metric's value: the output passes if the value is at least `minimum` and at most `maximum`."""

    metric: str
    minimum: float | None = None
    maximum: float | None = None

    @classmethod
    def parse(cls, text: str) -> Check:
        """Read a check as the command line has it: `consistency>=0.5`, `length<=200`."""
        match = _CHECK.fullmatch(text.strip())
        if match is None:
            raise SpecError(f"{text!r} is no metric with a limit, such as consistency>=0.5", code="unreadable")
        limit = float(match["limit"])
        minimum, maximum = (limit, None) if match["sign"] == ">=" else (None, limit)
        return cls(metric=match["metric"], minimum=minimum, maximum=maximum)

    def passes(self, value: float) -> bool:
        """Whether a value is within the limits."""
        return (self.minimum is None or value >= self.minimum) and (self.maximum is None or value <= self.maximum)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """Settings of a service that are options of `metrist serve` as they are."""

    host: str = setting("127.0.0.1", "The address to listen on; any but loopback needs tokens.", metavar="ADDRESS")
    anonymous: bool = setting(False, "Serve other machines without tokens: something in front checks users.")
    guard_policy: Policy = setting("closed", "Whether an output passes whose checks miss the budget.")
    max_records: int = setting(10_000, "Records of a request.", metavar="N", min=1)
    max_queue: int = setting(20_000, "Records that wait, per process; then 429.", "--queue", metavar="N", min=1)
    max_requests: int = setting(512, "Requests in progress, per process; then 429.", metavar="N", min=1)
    time_limit: float = setting(60.0, "Seconds until a request is given up.", metavar="S", min=0.1)
    log: LogLevel = setting("requests", "What is logged, as JSON, without texts.")
    log_texts: bool = setting(False, "Log the bodies of requests that the service failed at.")
    otel: bool = setting(False, "Send OpenTelemetry spans (extra `otel`).")
    grace: float = setting(60.0, "Seconds to end accepted requests after SIGTERM.", metavar="S", min=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings(ServiceOptions):
    """How a service is protected and how much it takes on. Limits are per worker process unless they say otherwise."""

    tokens: AccessTokens | None = None
    #: Bytes of a body.
    max_body: int = 8 * 1024 * 1024
    #: Characters of all texts of one record.
    max_characters: int = 1_000_000
    #: Bytes of the bodies of requests in progress.
    max_pending_bytes: int = 128 * 1024 * 1024
    #: Records and characters of a batch, and seconds that the first record of a batch waits for others.
    batch_records: int = 256
    batch_characters: int = 200_000
    batch_wait: float = 0.0
    #: The same for metrics with a model: one small batch at a time keeps answers quick.
    model_batch_characters: int = 20_000
    #: Draws and systems of one comparison.
    max_draws: int = 10_000
    max_systems: int = 20
    checks: tuple[Check, ...] = ()
    #: Seconds in which a guard answers. None: what an ordinary text takes here, and 0.3 at least.
    guard_budget: float | None = None
    #: Seconds in which idle connections can notice a shutdown.
    drain: float = 1.0
    #: Settings of metrics' runtime, such as `max_cost`; see `metrist.Runtime`.
    runtime: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("max_body", "max_records", "max_queue", "max_requests", "time_limit", "guard_budget", "grace"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise RunError(f"{name} must be above 0 and finite, got {value}", code="invalid_value")
        from metrist.web.security import is_loopback  # It needs starlette, and the options of the command do not.

        if not is_loopback(self.host) and self.tokens is None and not self.anonymous:
            raise RunError(
                f"a service on {self.host} needs tokens, in {TOKENS_VARIABLE} or in a file that `tokens` names; with "
                "`anonymous=True` it serves everybody who can reach it",
                code="missing_value",
            )
