"""JSON Lines: one object a line."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import IO, Any, cast

from metrist.errors import InputError
from metrist.io.compression import BYTE_ORDER_MARK, decoded
from metrist.io.row_model import RowError, format_value

Row = dict[str, Any]
_raw_decode = json.JSONDecoder().raw_decode


def json_line_rows(stream: IO[bytes]) -> Iterator[tuple[int, Row | RowError]]:
    """Line numbers with their objects, or with what is wrong with them. Blank lines are passed over."""
    for number, line in enumerate(stream, 1):
        if number == 1:
            line = line.removeprefix(BYTE_ORDER_MARK)
        line = line.strip()
        if not line:
            continue
        try:
            text = decoded(line)
            value, end = _raw_decode(text)
        except RowError as error:
            yield number, error
        except (ValueError, RecursionError) as error:
            yield number, RowError(unreadable(error))
        else:
            if end != len(text):
                yield number, RowError(f"more follows after the JSON object: {format_value(text[end:])}")
            else:
                yield number, value if type(value) is dict else not_an_object(value)


def not_an_object(value: Any) -> RowError:
    hint = "; name the file .json if it holds one list of objects" if isinstance(value, list) else ""
    return RowError(f"must be a JSON object, got {format_value(value)}{hint}")


def unreadable(error: Exception) -> str:
    """Why a text is no JSON, in a user's words."""
    if isinstance(error, json.JSONDecodeError):
        found = (
            format_value(error.doc[error.pos : error.pos + 30]) if error.pos < len(error.doc) else "the end of the line"
        )
        return f"not valid JSON: {error.msg} at column {error.colno}, found {found}"
    if isinstance(error, RecursionError):
        return "not readable JSON: it is nested too deeply"
    return f"not readable JSON: {error}"


# A JSON file that holds one list of objects, read object by object, so that the list need not fit in memory.


_FIRST_CHUNK = 1 << 16
_SPACE = re.compile(r"[ \t\r\n]*")
_LONGEST_LITERAL = len("-Infinity")


def json_list_rows(stream: IO[bytes], name: str) -> Iterator[tuple[int, Row | RowError]]:
    """The line each object begins on, with the object. What is no JSON ends the reading: there is no next line
    to go on with."""
    window = _Window(stream, name)
    window.expect("[")
    if window.next_character() == "]":
        return
    separator = ","
    while separator == ",":
        window.next_character()
        line, value = window.line, window.value()
        yield line, value if type(value) is dict else not_an_object(value)
        separator = window.expect(",]")
    window.end()


class _Window:
    """The part of the text that is looked at, moved forward over the file."""

    def __init__(self, stream: IO[bytes], name: str) -> None:
        self._stream, self._name = stream, name
        self._decode = codecs.getincrementaldecoder("utf-8-sig")().decode
        self._text, self._at, self._more = "", 0, True
        self.line = 1

    def next_character(self) -> str:
        """The next character that is no space, left where it is; nothing at the end of the file."""
        while True:
            self._move(cast("re.Match[str]", _SPACE.match(self._text, self._at)).end())
            if self._at < len(self._text) or not self._widen(_FIRST_CHUNK):
                return self._text[self._at : self._at + 1]

    def expect(self, wanted: str) -> str:
        found = self.next_character()
        if not found or found not in wanted:
            names = " or ".join(map(repr, wanted))
            raise self._error(f"not a JSON list of objects: expected {names}, found {found or 'the end of the file'!r}")
        self._move(self._at + 1)
        return found

    def end(self) -> None:
        if self.next_character():
            raise self._error("more follows after the JSON list")

    def value(self) -> Any:
        """The next value, with as much more text as it takes."""
        chunk = _FIRST_CHUNK
        while True:
            try:
                value, end = _raw_decode(self._text, self._at)
            except (ValueError, RecursionError) as error:
                if not (self._cut_short(error) and self._widen(chunk)):
                    raise self._error(unreadable(error)) from error
                chunk *= 2
            else:
                self._move(end)
                return value

    def _cut_short(self, error: Exception) -> bool:
        """Whether the text may only seem wrong because it ends too early. Telling keeps one stray character in
        a large file from drawing in all the rest."""
        if not isinstance(error, json.JSONDecodeError):
            return False
        return error.msg.startswith("Unterminated string") or error.pos >= len(self._text) - _LONGEST_LITERAL

    def _move(self, position: int) -> None:
        self.line += self._text.count("\n", self._at, position)
        self._at = position

    def _widen(self, size: int) -> bool:
        if not self._more:
            return False
        data = self._stream.read(size)
        self._more = bool(data)
        try:
            added = self._decode(data, not data)
        except UnicodeDecodeError as error:
            raise InputError(f"{self._name}: not UTF-8 text: byte 0x{error.object[error.start]:02x}") from None
        self._text, self._at = self._text[self._at :] + added, 0
        return self._more

    def _error(self, message: str) -> InputError:
        return InputError(f"{self._name}:{self.line}: {message}")
