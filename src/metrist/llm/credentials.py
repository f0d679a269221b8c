"""Secrets that a request carries: read from the environment when needed, shown nowhere."""

from __future__ import annotations

import json
import logging
import os
import re
import weakref
from collections.abc import Iterable, Iterator, MutableMapping
from typing import Any

from metrist.errors import ModelError

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
