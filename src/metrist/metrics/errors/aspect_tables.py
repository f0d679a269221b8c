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

from metrist.errors import SpecError, did_you_mean
from metrist.metrics.prompt_layout import resolve_task

#: The table for tasks that have none of their own.
GENERAL_TASK = "instruction_following"
_FORM = 'wanted [[aspects]] with name = "…", definition = "…" and, if you like, errors = ["…"]'


@dataclass(frozen=True, slots=True, kw_only=True)
class Aspect:
    """A way in which an output can be wrong; `errors` are typical cases."""

    name: str
    definition: str
    errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AspectTable:
    """The aspects of a task. `output` is what an output of the task is called, `instruction` what is said to have been
    asked for where a record does not say it."""

    task: str
    aspects: tuple[Aspect, ...]
    output: str = "output"
    instruction: str = "Do what the source asks for."

    @property
    def names(self) -> tuple[str, ...]:
        """The aspects' names."""
        return tuple(aspect.name for aspect in self.aspects)

    def described(self) -> str:
        """The aspects as a prompt lists them."""
        return "\n".join(map(_described, self.aspects))


def shipped_tables() -> Mapping[str, AspectTable]:
    """The tables that ship, by task."""
    return _shipped()


def find_table(task: str | None) -> AspectTable | None:
    """The shipped table of a task, under any of its names."""
    return shipped_tables().get(resolve_task(task) or "")


def require_table(task: str) -> AspectTable:
    """The shipped table of a task; an unknown one is refused with the nearest."""
    found = find_table(task)
    if found is None:
        raise SpecError(
            f"there is no aspect table for the task {task!r}{did_you_mean(task, shipped_tables())} (there are "
            f"{', '.join(shipped_tables())}); `metrist aspects` makes one for a new task"
        )
    return found


def read_table(path: str) -> AspectTable:
    """The table in a file; whatever is wrong with it is told with its place."""
    try:
        found = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as fault:
        raise SpecError(f"the aspect table {path} cannot be read: {fault.strerror}") from None
    except UnicodeDecodeError:
        raise SpecError(f"{path}: an aspect table must be a TOML file in UTF-8") from None
    except tomllib.TOMLDecodeError as fault:
        raise SpecError(f"{path}: an aspect table must be a TOML file: {fault}") from None
    return parse_table(found, path)


def parse_table(found: Mapping[str, Any], place: str) -> AspectTable:
    """The table that TOML says."""
    known = ("task", "output", "instruction", "aspects")
    for key in found:
        if key not in known:
            raise SpecError(f"{place}: an aspect table has no {key!r}; it takes {', '.join(known)}")
    rows = found.get("aspects")
    if not isinstance(rows, list) or not rows:
        raise SpecError(f"{place}: the table has no aspects; {_FORM}")
    aspects = tuple(_aspect(row, f"{place}: aspect {number}") for number, row in enumerate(rows, 1))
    if len({_plain(aspect.name) for aspect in aspects}) < len(aspects):
        raise SpecError(f"{place}: two aspects have the same name")
    texts = {key: _text(found[key], f"{place}: {key}") for key in ("output", "instruction") if key in found}
    return AspectTable(
        task=_text(found.get("task", "task"), f"{place}: task"),
        aspects=aspects,
        **texts,
    )


def format_toml(table: AspectTable, comment: Sequence[str] = ()) -> str:
    """The table as a file for people to edit."""
    lines = [*(f"# {line}".rstrip() for line in comment), f"task = {_quoted(table.task)}"]
    lines += [f"output = {_quoted(table.output)}", f"instruction = {_quoted(table.instruction)}"]
    for aspect in table.aspects:
        lines += ["", "[[aspects]]", f"name = {_quoted(aspect.name)}", f"definition = {_quoted(aspect.definition)}"]
        lines += ["errors = [", *(f"  {_quoted(error)}," for error in aspect.errors), "]"]
    return "\n".join(lines) + "\n"


def _described(aspect: Aspect) -> str:
    typical = f" Typical errors: {'; '.join(aspect.errors)}." if aspect.errors else ""
    return f"- {aspect.name}: {aspect.definition}{typical}"


@cache
def _shipped() -> Mapping[str, AspectTable]:
    folder = resources.files("metrist.metrics") / "aspects"
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".toml")), key=lambda file: file.name)
    found = [parse_table(tomllib.loads(file.read_text(encoding="utf-8")), file.name) for file in files]
    return {table.task: table for table in found}


def _aspect(row: Any, place: str) -> Aspect:
    if not isinstance(row, Mapping) or not {"name", "definition"} <= row.keys():
        raise SpecError(f"{place} lacks a name or a definition; {_FORM}")
    if odd := row.keys() - {"name", "definition", "errors"}:
        raise SpecError(f"{place} has no {min(odd)!r}; {_FORM}")
    return Aspect(
        name=_text(row["name"], f"{place}: name"),
        definition=_text(row["definition"], f"{place}: definition"),
        errors=_texts(row.get("errors", []), f"{place}: errors"),
    )


def _text(value: Any, place: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise SpecError(f"{place} must be a text, got {value!r}")
    return value.strip()


def _texts(value: Any, place: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise SpecError(f"{place} must be a list of texts, got {value!r}")
    return tuple(_text(one, place) for one in value)


def _plain(name: str) -> str:
    return name.strip().lower().replace("-", "_").replace(" ", "_")


def _quoted(text: str) -> str:
    # TOML's plain strings take JSON's escapes; the one character that JSON leaves bare and TOML does not is DEL.
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return json.dumps(whole, ensure_ascii=False).replace("\x7f", "\\u007F")
