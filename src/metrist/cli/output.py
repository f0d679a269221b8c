"""Printing: results on standard output, notes on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from metrist.cli.options import Format

if TYPE_CHECKING:
    from metrist.report.tables import Table


def print_table(table: Table, form: Format) -> None:
    """Print a table: drawn with rich on a terminal, as plain text in a file or pipe."""
    if form is Format.text and sys.stdout.isatty():
        from rich.console import Console

        Console().print(table)
    else:
        print_text(table.render(form.value))


def print_tables(tables: Sequence[Table], form: Format) -> None:
    """Print several tables; as JSON they are one list, because several documents in a row are not valid JSON."""
    if form is Format.json:
        print_text(json.dumps([table.to_dict() for table in tables], indent=2))
        return
    for table in tables:
        print_table(table, form)
        print_text("")


def print_text(text: str) -> None:
    """Print text on standard output. It may quote the user's data, which not every terminal can encode."""
    sys.stdout.write(_encodable(text, sys.stdout.encoding) + "\n")


def print_note(text: str) -> None:
    """Print a message that is not a result, on standard error."""
    sys.stderr.write(f"metrist: {_encodable(text, sys.stderr.encoding)}\n")


def format_count(number: int, noun: str) -> str:
    """Format a number of things: `1 answer`, `1,200 answers`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _encodable(text: str, encoding: str | None) -> str:
    encoding = encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
