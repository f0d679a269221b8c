"""What can be wrong with an output, by task: aspects with their definitions and typical errors.

The tables that ship are TOML files in the folder `aspects` beside this module; a user's file looks the same.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from metrist.documents import read_toml
from metrist.errors import SpecError, did_you_mean
from metrist.metrics.prompt_layout import resolve_task

#: The table for tasks that have none of their own.
_GENERAL_TASK = "instruction_following"
_FORM = 'expected [[aspects]] with name = "…", definition = "…" and optionally errors = ["…"]'


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorAspect:
    """A way in which an output can be wrong; `errors` are typical cases."""

    name: str
    definition: str
    errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AspectTable:
    """The aspects of a task. `output` is the word for an output of the task, `instruction` the one of records
    without an instruction."""

    task: str
    aspects: tuple[ErrorAspect, ...]
    output: str = "output"
    instruction: str = "Do what the source asks for."

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the aspects."""
        return tuple(aspect.name for aspect in self.aspects)

    def describe_aspects(self) -> str:
        """The aspects as a list in a prompt."""
        return "\n".join(
            f"- {aspect.name}: {aspect.definition}"
            + (f" Typical errors: {'; '.join(aspect.errors)}." if aspect.errors else "")
            for aspect in self.aspects
        )


@cache
def shipped_tables() -> Mapping[str, AspectTable]:
    """The tables that ship with metrist, by task."""
    folder = resources.files("metrist.metrics") / "aspects"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".toml")), key=lambda file: file.name)
    tables = [parse_table(tomllib.loads(file.read_text(encoding="utf-8")), file.name) for file in files]
    return {table.task: table for table in tables}


def find_table(task: str | None) -> AspectTable | None:
    """The shipped table of a task, under any of its names."""
    return shipped_tables().get(resolve_task(task) or "")


def choose_table(task: str | None) -> AspectTable:
    """The shipped table of a task, or the general one."""
    return find_table(task) or shipped_tables()[_GENERAL_TASK]


def require_table(task: str) -> AspectTable:
    """The shipped table of a task; SpecError with the nearest name if there is none."""
    table = find_table(task)
    if table is None:
        known = f"{did_you_mean(task, shipped_tables())} (there are {', '.join(shipped_tables())})"
        raise SpecError(
            f"no aspect table for the task {task!r}{known}; `metrist aspects` makes one", code="unknown_name"
        )
    return table


def read_table(path: str) -> AspectTable:
    """Read a table from a file; SpecError with the place of whatever is wrong with it."""
    return parse_table(read_toml(Path(path), SpecError, largest=1 << 20), path)


def parse_table(content: Mapping[str, Any], place: str) -> AspectTable:
    """The table in parsed TOML."""
    known = ("task", "output", "instruction", "aspects")
    for key in content:
        if key not in known:
            raise SpecError(f"{place}: an aspect table has no {key!r}; it takes {', '.join(known)}")
    rows = content.get("aspects")
    if not isinstance(rows, list) or not rows:
        raise SpecError(f"{place}: the table has no aspects; {_FORM}")
    aspects = []
    for number, row in enumerate(rows, 1):
        own = f"{place}: aspect {number}"
        if not isinstance(row, Mapping) or not {"name", "definition"} <= row.keys():
            raise SpecError(f"{own} lacks a name or a definition; {_FORM}")
        if unknown := row.keys() - {"name", "definition", "errors"}:
            raise SpecError(f"{own} has no {min(unknown)!r}; {_FORM}")
        errors = row.get("errors", [])
        if not isinstance(errors, list):
            raise SpecError(f"{own}: errors must be a list of texts, got {errors!r}")
        name, definition = (_check_text(row[key], f"{own}: {key}") for key in ("name", "definition"))
        cases = tuple(_check_text(error, f"{own}: errors") for error in errors)
        aspects.append(ErrorAspect(name=name, definition=definition, errors=cases))
    names = {aspect.name.strip().lower().replace("-", "_").replace(" ", "_") for aspect in aspects}
    if len(names) < len(aspects):
        raise SpecError(f"{place}: two aspects have the same name")
    texts = {key: _check_text(content[key], f"{place}: {key}") for key in ("output", "instruction") if key in content}
    return AspectTable(task=_check_text(content.get("task", "task"), f"{place}: task"), aspects=tuple(aspects), **texts)


def _check_text(value: Any, place: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise SpecError(f"{place} must be a text, got {value!r}")
    return value.strip()


def format_toml(table: AspectTable, comment: Sequence[str] = ()) -> str:
    """The table as a TOML file for people to edit."""
    lines = [*(f"# {line}".rstrip() for line in comment), f"task = {_quote(table.task)}"]
    lines += [f"output = {_quote(table.output)}", f"instruction = {_quote(table.instruction)}"]
    for aspect in table.aspects:
        lines += ["", "[[aspects]]", f"name = {_quote(aspect.name)}", f"definition = {_quote(aspect.definition)}"]
        lines += ["errors = [", *(f"  {_quote(error)}," for error in aspect.errors), "]"]
    return "\n".join(lines) + "\n"


def _quote(text: str) -> str:
    # TOML's basic strings take JSON's escapes; DEL is the only character that TOML escapes and JSON does not.
    valid = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return json.dumps(valid, ensure_ascii=False).replace("\x7f", "\\u007F")
