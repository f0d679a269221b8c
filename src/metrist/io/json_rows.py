"""Read JSON: one object per line, or one list of objects per file."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any, cast

import msgspec

from metrist.errors import InputError
from metrist.io.compression import BYTE_ORDER_MARK, FileFormat, largest_row, undecodable
from metrist.io.row_model import CompleteRow, CompleteRows, PlainRow, RowError, describe_json_error, format_value
from metrist.io.tools import recognise_tool

Row = dict[str, Any]
_raw_decode = json.JSONDecoder().raw_decode
_FIRST_CHUNK = 1 << 16
_SPACE = re.compile(r"[ \t\r\n]*")
_LONGEST_LITERAL = len("-Infinity")


PLAIN_NAMES = frozenset(PlainRow.__struct_fields__)
_decode_plain = msgspec.json.Decoder(PlainRow).decode
_decode_complete = msgspec.json.Decoder(CompleteRow).decode
_decode_any = msgspec.json.Decoder().decode
#: Bytes of lines that are decoded at once.
_BLOCK_BYTES = 1 << 16


@dataclass(slots=True)
class Wish:
    """Whether the consumer of the rows takes a `PlainRow` for the next one, or `CompleteRows` for the next ones; it
    changes from row to row."""

    plain: bool = False
    complete: bool = False


def json_line_rows(stream: IO[bytes], wish: Wish | None = None) -> Iterator[tuple[int, Any]]:
    """Yield line numbers with their objects or errors; blank lines are skipped."""
    wish = wish or Wish()
    row: Any
    read = 0  # Lines.
    while lines := stream.readlines(_BLOCK_BYTES if wish.complete else 1):
        rows = None
        if wish.complete:
            with suppress(ValueError, RecursionError):
                rows = CompleteRows(map(_decode_complete, lines))
        if rows is not None:
            rows.size = sum(map(len, lines))
            yield read + 1, rows
            read += len(lines)
            continue
        for line in lines:
            read += 1
            try:
                row = _decode_plain(line) if wish.plain else _decode_any(line)
                is_row = wish.plain or type(row) is dict
            except (ValueError, RecursionError):
                is_row = False
            if not is_row:
                row = _parse_line(line, read)
            if row is not None:
                yield read, row


def _parse_line(line: bytes, number: int) -> Row | RowError | None:
    """Parse with Python's own decoder, which decides on what the faster one does not read: lone surrogates, NaN,
    numbers beyond all bounds, a byte order mark. None for a blank line."""
    if number == 1:
        line = line.removeprefix(BYTE_ORDER_MARK)
    line = line.strip()
    if not line:
        return None
    try:
        text = line.decode("utf-8")
        value, end = _raw_decode(text)
    except UnicodeDecodeError as error:
        return undecodable(line, error)
    except (ValueError, RecursionError) as error:
        return RowError(describe_json_error(error))
    if end != len(text):
        return RowError(f"more follows after the JSON object: {format_value(text[end:])}")
    return value if type(value) is dict else _not_an_object(value)


def _not_an_object(value: Any) -> RowError:
    hint = "; name the file .json if it holds one list of objects" if isinstance(value, list) else ""
    return RowError(f"must be a JSON object, got {format_value(value)}{hint}")


def json_list_rows(
    stream: IO[bytes], name: str, form: FileFormat | None = None
) -> Iterator[tuple[int, Row | RowError]]:
    """Yield the objects of a JSON list with the lines they begin on, one at a time: the list need not fit in memory.
    Invalid JSON ends the reading, because there is no next line to continue with.

    A file may also hold objects in a row, over any number of lines, and an object may hold the list of rows; these are
    numbered from 1.
    """
    form = form or FileFormat()
    window = _Window(stream, name)
    if window.next_character() == "{":
        while window.next_character():
            line = window.line
            value = window.value()
            try:
                key = find_rows(value, form.sheet) if type(value) is dict else None
            except InputError as error:
                raise InputError(f"{name}: {error}") from None
            if key is None:
                yield line, value if type(value) is dict else _not_an_object(value)
                continue
            if f"rows = {key}" not in form.notes:
                form.notes.append(f"rows = {key}")
            for number, row in enumerate(value[key], 1):
                # The Hugging Face dataset viewer puts each row into an object with its number.
                inner = row.get("row") if type(row) is dict and "row_idx" in row else row
                yield number, inner if type(inner) is dict else _not_an_object(inner)
        return
    window.expect("[")
    window.limit = largest_row()
    if window.next_character() == "]":
        return
    separator = ","
    while separator == ",":
        window.next_character()
        line = window.line
        value = window.value()
        yield line, value if type(value) is dict else _not_an_object(value)
        separator = window.expect(",]")
    if window.next_character():
        raise window.error("more follows after the JSON list")


_ROW_LISTS = frozenset(
    ("data", "rows", "records", "examples", "instances", "samples", "items", "results", "predictions", "entries")
)
#: Lists of objects that are part of one row.
_WITHIN_ROW = frozenset({
    "messages", "conversation", "conversations", "conversation_a", "conversation_b", "completions", "chosen",
    "rejected", "prompt", "errors", "history", "dialogue", "turns",
})  # fmt: skip


def find_rows(value: Row, name: str | None) -> str | None:
    """Return the key under which an object holds the list of rows; None if the object is a row itself, or a document of
    another tool. `name` is the key if the user knows it."""
    if name is None and recognise_tool(value):
        return None
    lists = [
        key
        for key, rows in value.items()
        if key not in _WITHIN_ROW and type(rows) is list and rows and all(type(row) is dict for row in rows[:10])
    ]
    if name is not None and name in value:
        return name if type(value[name]) is list else None
    if not lists or "output" in value or ("outputs" in value and "outputs" not in lists):
        # Objects with the same keys "0", "1" …, as pandas writes a frame by default.
        keys = [list(column) if type(column) is dict else [] for column in value.values()]
        holds_columns = len(keys) > 1 and keys[0][:1] == ["0"] and all(other == keys[0] for other in keys)
        if holds_columns and not lists:
            raise InputError(
                "the file holds columns, not rows; write it as rows, in pandas with df.to_json(path, orient='records')"
            )
        return None
    common = [key for key in lists if key.lower() in _ROW_LISTS]
    if len(lists) > 1 and len(common) != 1:
        flags = " or ".join(f"`sheet={key!r}`" for key in lists)
        raise InputError(f"the file holds several lists of rows: use {flags}")
    return (common or lists)[0]


class _Window:
    """A part of the file's text that moves forward as values are read."""

    def __init__(self, stream: IO[bytes], name: str) -> None:
        self._stream = stream
        self._name = name
        self._decode = codecs.getincrementaldecoder("utf-8-sig")().decode
        self._text = ""
        self._at = 0
        self._more = True
        self.line = 1
        #: Characters of a value, if it is a row.
        self.limit = 0

    def next_character(self) -> str:
        """Return the next non-space character without moving past it; empty at the end of the file."""
        while True:
            self._move(cast("re.Match[str]", _SPACE.match(self._text, self._at)).end())
            if self._at < len(self._text) or not self._widen(_FIRST_CHUNK):
                return self._text[self._at : self._at + 1]

    def expect(self, characters: str) -> str:
        character = self.next_character()
        if not character or character not in characters:
            names = " or ".join(map(repr, characters))
            rest = repr(character) if character else "the end of the file"
            raise self.error(f"not a JSON list of objects: expected {names}, found {rest}")
        self._move(self._at + 1)
        return character

    def value(self) -> Any:
        """Return the next value, reading as much more text as it needs."""
        chunk = _FIRST_CHUNK
        while True:
            try:
                value, end = _raw_decode(self._text, self._at)
            except (ValueError, RecursionError) as error:
                # Text that is not read yet may be what is missing. Otherwise a stray character in a large file would
                # cause the rest of it to be read into memory.
                is_incomplete = isinstance(error, json.JSONDecodeError) and (
                    error.msg.startswith("Unterminated string") or error.pos >= len(self._text) - _LONGEST_LITERAL
                )
                if not (is_incomplete and self._widen(chunk)):
                    raise self.error(describe_json_error(error)) from error
                chunk *= 2
            else:
                self._move(end)
                return value

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
        self._text = self._text[self._at :] + added
        self._at = 0
        if self.limit and len(self._text) > self.limit + _FIRST_CHUNK:
            raise InputError(
                f"{self._name}:{self.line}: a row of more than {self.limit:,} characters; METRIST_MAX_ROW sets another "
                "limit",
                code="too_large",
            )
        return self._more

    def error(self, message: str) -> InputError:
        return InputError(f"{self._name}:{self.line}: {message}")
