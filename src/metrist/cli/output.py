"""What a verb prints: tables on standard output in the format asked for, remarks on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from metrist.cli.options import Format

if TYPE_CHECKING:
    from metrist.report.tables import Table


def show(table: Table, form: Format) -> None:
    """Print a table: drawn on a terminal, plain where the output goes to a file or a pipe."""
    if form is Format.text and sys.stdout.isatty():
        from rich.console import Console

        Console().print(table)
    else:
        say(table.render(form.value))


def show_all(tables: Sequence[Table], form: Format) -> None:
    """Print several tables; as JSON they are one list, since several documents in a row are none."""
    if form is Format.json:
        say(json.dumps([table.to_dict() for table in tables], indent=2))
        return
    for table in tables:
        show(table, form)
        say("")


def say(text: str) -> None:
    """Print text that may quote the user's data, which not every terminal can encode."""
    sys.stdout.write(_encodable(text, sys.stdout.encoding) + "\n")


def remark(text: str) -> None:
    """Tell the user something that is not a result."""
    sys.stderr.write(f"metrist: {_encodable(text, sys.stderr.encoding)}\n")


def counted(number: int, what: str) -> str:
    """A number of things: `1 answer`, `1,200 answers`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _encodable(text: str, encoding: str | None) -> str:
    known = encoding or "utf-8"
    return text.encode(known, "backslashreplace").decode(known)
