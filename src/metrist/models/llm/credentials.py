"""Secrets that a request carries: read from the environment when needed, shown nowhere."""

from __future__ import annotations

import json
import logging
import os
import re
import weakref
from collections.abc import Iterable, MutableMapping

from metrist.errors import ModelError

#: What an environment variable may be called, so that a key given in place of its name is noticed.
VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
_HIDDEN = "***"
# A shorter one is a stand-in such as 'EMPTY', which local servers take: hiding that would spoil common words.
_SHORTEST = 8


class Credentials:
    """Headers whose values are secret. Its text does not show them, nor is one ever in a caller's variable."""

    def __init__(self) -> None:
        self._headers: dict[str, str] = {}
        self._secrets: set[str] = set()

    def __repr__(self) -> str:
        return f"Credentials({', '.join(self._headers) or 'none'})"

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
