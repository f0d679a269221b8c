"""Finds the JSON objects in what an LLM wrote, with reasons around them and small faults within.

Read besides JSON: strings in single or typographic quotes, line breaks within strings, keys without quotes, a comma
before a closing bracket, Python's True, False and None. Nothing is made up: what is not closed is no object, and a key
that is given twice with different values is told.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any

_DEEPEST = 32
#: What a value costs of the reader's patience besides its characters.
_VALUE = 16
_SPACE = re.compile(r"\s*")
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+)?(?![\w.%/])")
_WORD = re.compile(r"[^\W\d]\w*")
_WORDS: Mapping[str, Any] = {
    "true": True,
    "false": False,
    "null": None,
    "True": True,
    "False": False,
    "None": None,
}
# A quote within a string of the same quotes ends it only where something can follow the string.
_STRINGS = {
    '"': re.compile(r'"((?:[^"\\]|\\.)*+)"', re.DOTALL),
    "'": re.compile(r"'((?:[^'\\]|\\.|'(?!\s*[,:}\]]))*+)'", re.DOTALL),
    "“": re.compile(r"“([^”]*+)”", re.DOTALL),
    "‘": re.compile(r"‘((?:[^’]|’(?!\s*[,:}\]]))*+)’", re.DOTALL),
}
# Two halves of a character are one escape.
_ESCAPE = re.compile(r'((?:\\u[0-9a-fA-F]{4})+|\\["\\/bfnrt])|\\(.)', re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundObject:
    """An object, where it stands in the answer, and where each of its values does. `repaired` says that it is no
    JSON as it stands; `contradicted` holds the keys that were given twice with different values, and `broken` those of
    objects before it that broke off: what follows one of them may be its end. Keys are as written, in small letters."""

    values: Mapping[str, Any]
    start: int
    end: int
    spans: Mapping[str, tuple[int, int]]
    contradicted: frozenset[str] = frozenset()
    broken: frozenset[str] = frozenset()
    repaired: bool = False


def objects_in(text: str) -> list[FoundObject]:
    """The objects of an answer in their order, those within others left out."""
    return _read(text, 0)[0]


def broken_off(text: str, start: int) -> frozenset[str]:
    """The keys of objects that begin from a place on and break off: those whose values were read, and the one at which
    the text ends."""
    return _read(text, start)[1]


def _read(text: str, start: int) -> tuple[list[FoundObject], frozenset[str]]:
    reader = _Reader(text)
    found: list[FoundObject] = []
    broken: set[str] = set()
    cut: set[str] = set()
    at = text.find("{", start)
    while at >= 0 and reader.patience > 0:
        made = _Object()
        try:
            one = _found(text, at, reader.members(made, at, 0), made, broken)
        except _NoJSON:
            broken |= made.values.keys()
            cut |= {made.begun} if reader.ended else set()
            at = text.find("{", at + 1)
        else:
            found.append(one)
            at = text.find("{", one.end)
    # Where the last object is cannot be told of a text that was not read to its end.
    return (found, frozenset(broken | cut)) if reader.patience > 0 else ([], frozenset())


class _NoJSON(ValueError):
    """What stands here is no JSON, not even damaged."""


@dataclass(slots=True)
class _Object:
    values: dict[str, Any] = field(default_factory=dict)
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)
    contradicted: set[str] = field(default_factory=set)
    begun: str = ""

    def add(self, key: str, value: Any, span: tuple[int, int]) -> None:
        key = key.strip().lower()
        if key in self.values and self.values[key] != value:
            self.contradicted.add(key)
        self.values[key], self.spans[key] = value, span


@dataclass(slots=True)
class _Reader:
    """Reads values at places of a text. `patience` is how many characters it is still ready to go through: a text of
    thousands of strings that never end would take hours."""

    text: str
    patience: int = 2_000_000
    #: Whether the last value that was begun runs into the text's end.
    ended: bool = False

    def members(self, made: _Object, at: int, depth: int) -> int:
        """Read the object at a place into `made`, which keeps what was read before a fault; where it ends."""
        at = self.skip(at + 1)
        while not self.text.startswith("}", at):
            key, at = self.key(at)
            made.begun = key.strip().lower()
            at = self.skip(self.past(":", self.skip(at)))
            value, end = self.value(at, depth + 1)
            made.add(key, value, (at, end))
            at = self.next(end, "}")
        return at + 1

    def array(self, at: int, depth: int) -> tuple[list[Any], int]:
        made: list[Any] = []
        at = self.skip(at + 1)
        while not self.text.startswith("]", at):
            value, end = self.value(at, depth + 1)
            made.append(value)
            at = self.next(end, "]")
        return made, at + 1

    def next(self, at: int, closing: str) -> int:
        """Where the next member begins, or the closing bracket stands."""
        at = self.skip(at)
        return at if self.text.startswith(closing, at) else self.skip(self.past(",", at))

    def value(self, at: int, depth: int) -> tuple[Any, int]:
        self.patience -= _VALUE
        if depth > _DEEPEST or self.patience <= 0:
            raise _NoJSON
        first = self.text[at : at + 1]
        self.ended = not first
        if first == "{":
            made = _Object()
            end = self.members(made, at, depth)
            return made.values, end
        if first == "[":
            return self.array(at, depth)
        if first in _STRINGS:
            raw, end = self.string(at)
            return _unescaped(raw), end
        if number := _NUMBER.match(self.text, at):
            return float(number[0]), number.end()
        if (word := _WORD.match(self.text, at)) and word[0] in _WORDS:
            return _WORDS[word[0]], word.end()
        raise _NoJSON

    def key(self, at: int) -> tuple[str, int]:
        """A key as it is written: escapes are left as they are, so that a key in disguise is another key."""
        if self.text[at : at + 1] in _STRINGS:
            return self.string(at)
        if word := _WORD.match(self.text, at):
            return word[0], word.end()
        raise _NoJSON

    def string(self, at: int) -> tuple[str, int]:
        found = _STRINGS[self.text[at]].match(self.text, at)
        self.patience -= (found.end() if found else len(self.text)) - at
        self.ended = not found
        if not found or self.patience <= 0:
            raise _NoJSON
        return found[1], found.end()

    def skip(self, at: int) -> int:
        space = _SPACE.match(self.text, at)
        return space.end() if space else at

    def past(self, mark: str, at: int) -> int:
        if not self.text.startswith(mark, at):
            raise _NoJSON
        return at + 1


def _found(text: str, start: int, end: int, made: _Object, broken: Set[str]) -> FoundObject:
    return FoundObject(
        values=made.values,
        start=start,
        end=end,
        spans=made.spans,
        contradicted=frozenset(made.contradicted),
        broken=frozenset(broken),
        repaired=not _is_json(text[start:end]),
    )


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _unescaped(raw: str) -> str:
    return _ESCAPE.sub(lambda found: json.loads(f'"{found[1]}"') if found[1] else found[2], raw)
