"""Find JSON objects in an LLM's answer, with text around them and small syntax errors inside.

Accepted besides JSON: strings in single or typographic quotes, line breaks inside strings, keys without quotes,
trailing commas, and Python's True, False and None. Nothing is invented: an object that is not closed is not returned,
and a key that occurs twice with different values is reported.

json-repair is not used here: it closes unclosed objects, drops duplicate keys and reports no positions, and with it 22
of the tests that attack judges through the judged text failed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_MAX_DEPTH = 32
#: Steps that one value costs in addition to the characters of its strings.
_VALUE_COST = 16
_SPACE = re.compile(r"\s*")
_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+)?(?![\w.%/])")
_CUT_LITERAL = re.compile(r"[\w.+-]*")
_WORD = re.compile(r"[^\W\d]\w*")
_CONSTANTS: Mapping[str, Any] = {
    "true": True,
    "false": False,
    "null": None,
    "True": True,
    "False": False,
    "None": None,
}
# A quote inside a string of the same quotes ends it only where something can follow the string.
_STRINGS = {
    '"': re.compile(r'"((?:[^"\\]|\\.)*+)"', re.DOTALL),
    "'": re.compile(r"'((?:[^'\\]|\\.|'(?!\s*[,:}\]]))*+)'", re.DOTALL),
    "“": re.compile(r"“([^”]*+)”", re.DOTALL),
    "‘": re.compile(r"‘((?:[^’]|’(?!\s*[,:}\]]))*+)’", re.DOTALL),
}
# A surrogate pair is one escape.
_ESCAPE = re.compile(r'((?:\\u[0-9a-fA-F]{4})+|\\["\\/bfnrt])|\\(.)', re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonObject:
    """A JSON object and its position in the answer.

    Keys are lower-cased and otherwise as written. `spans` has the position of each value. `contradicted` holds keys
    that occur twice with different values. `broken` holds keys of unclosed objects before this one, which may really
    be the end of one of them. `repaired` says that the text is not valid JSON as it stands.
    """

    values: Mapping[str, Any]
    start: int
    end: int
    spans: Mapping[str, tuple[int, int]]
    contradicted: frozenset[str] = frozenset()
    broken: frozenset[str] = frozenset()
    repaired: bool = False


def find_objects(text: str) -> list[JsonObject]:
    """The outermost objects of an answer, in order."""
    return _scan(text, 0)[0]


def find_broken_keys(text: str, start: int) -> frozenset[str]:
    """The keys of unclosed objects that begin after `start`, including the key at which the text ends."""
    return _scan(text, start)[1]


def is_cut_off(text: str) -> bool:
    """Whether the text ends inside an object that is not closed, perhaps followed by the end of a code block."""
    text = text.rstrip("` \n\r\t")
    parser = _Parser(text)
    position = text.find("{")
    while position >= 0 and parser.steps_left > 0:
        try:
            position = parser.parse_members(_Members(), position, 0) - 1
        except _SyntaxError:
            if parser.stopped_at_end:
                return True
        position = text.find("{", position + 1)
    return False


def _scan(text: str, start: int) -> tuple[list[JsonObject], frozenset[str]]:
    parser = _Parser(text)
    objects: list[JsonObject] = []
    broken: set[str] = set()
    truncated: set[str] = set()
    position = text.find("{", start)
    while position >= 0 and parser.steps_left > 0:
        members = _Members()
        try:
            end = parser.parse_members(members, position, 0)
        except _SyntaxError:
            broken |= members.values.keys()
            truncated |= {members.current_key} if parser.at_end else set()
            position = text.find("{", position + 1)
            continue
        objects.append(
            JsonObject(
                values=members.values,
                start=position,
                end=end,
                spans=members.spans,
                contradicted=frozenset(members.contradicted),
                broken=frozenset(broken),
                repaired=not _is_json(text[position:end]),
            )
        )
        position = text.find("{", end)
    # The last object is unknown in a text that was not read to its end.
    return (objects, frozenset(broken | truncated)) if parser.steps_left > 0 else ([], frozenset())


class _SyntaxError(ValueError):
    """The text at this position is not JSON, even with tolerance."""


@dataclass(slots=True)
class _Members:
    values: dict[str, Any] = field(default_factory=dict)
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)
    contradicted: set[str] = field(default_factory=set)
    current_key: str = ""


@dataclass(slots=True)
class _Parser:
    """Parse values at positions of a text. `steps_left` bounds the work: a text of thousands of unclosed strings would
    otherwise take hours."""

    text: str
    steps_left: int = 2_000_000
    #: Whether the value that was started last reaches the end of the text.
    at_end: bool = False
    #: Whether the latest syntax error is that the text ends.
    stopped_at_end: bool = False

    def parse_members(self, members: _Members, at: int, depth: int) -> int:
        """Parse the object at `at` into `members`, which keeps what precedes a syntax error; return its end."""
        at = self.skip_space(at + 1)
        while not self.text.startswith("}", at):
            written_key, at = self.parse_key(at)
            members.current_key = key = written_key.strip().lower()
            at = self.skip_space(self.expect(":", self.skip_space(at)))
            value, end = self.parse_value(at, depth + 1)
            if key in members.values and members.values[key] != value:
                members.contradicted.add(key)
            members.values[key] = value
            members.spans[key] = at, end
            at = self.next_member(end, "}")
        return at + 1

    def parse_array(self, at: int, depth: int) -> tuple[list[Any], int]:
        values: list[Any] = []
        at = self.skip_space(at + 1)
        while not self.text.startswith("]", at):
            value, end = self.parse_value(at, depth + 1)
            values.append(value)
            at = self.next_member(end, "]")
        return values, at + 1

    def next_member(self, at: int, closing: str) -> int:
        """The position of the next member or of the closing bracket."""
        at = self.skip_space(at)
        return at if self.text.startswith(closing, at) else self.skip_space(self.expect(",", at))

    def parse_value(self, at: int, depth: int) -> tuple[Any, int]:
        self.steps_left -= _VALUE_COST
        if depth > _MAX_DEPTH or self.steps_left <= 0:
            raise self.error_at(at - 1)
        first = self.text[at : at + 1]
        self.at_end = not first
        if first == "{":
            members = _Members()
            end = self.parse_members(members, at, depth)
            return members.values, end
        if first == "[":
            return self.parse_array(at, depth)
        if first in _STRINGS:
            raw, end = self.parse_string(at)
            return _ESCAPE.sub(lambda match: json.loads(f'"{match[1]}"') if match[1] else match[2], raw), end
        if number := _NUMBER.match(self.text, at):
            return float(number[0]), number.end()
        if (word := _WORD.match(self.text, at)) and word[0] in _CONSTANTS:
            return _CONSTANTS[word[0]], word.end()
        raise self.error_at(_CUT_LITERAL.match(self.text, at).end())  # type: ignore[union-attr]

    def parse_key(self, at: int) -> tuple[str, int]:
        """A key as written. Escapes are kept, so that a disguised key is a different key."""
        if self.text[at : at + 1] in _STRINGS:
            return self.parse_string(at)
        if word := _WORD.match(self.text, at):
            return word[0], word.end()
        raise self.error_at(at)

    def parse_string(self, at: int) -> tuple[str, int]:
        match = _STRINGS[self.text[at]].match(self.text, at)
        self.steps_left -= (match.end() if match else len(self.text)) - at
        self.at_end = not match
        if not match or self.steps_left <= 0:
            raise self.error_at(at if match else len(self.text))
        return match[1], match.end()

    def skip_space(self, at: int) -> int:
        space = _SPACE.match(self.text, at)
        return space.end() if space else at

    def expect(self, mark: str, at: int) -> int:
        if not self.text.startswith(mark, at):
            raise self.error_at(at)
        return at + 1

    def error_at(self, at: int) -> _SyntaxError:
        self.stopped_at_end = at >= len(self.text)
        return _SyntaxError()


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
