"""What the writer of an output is taken to have been asked where the record does not say: each task's default."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources

from metrist.records import Record

GENERAL = "general"


def instruction_of(record: Record) -> tuple[str, bool]:
    """The record's instruction, or its task's default; and whether it is the default."""
    if record.instruction is not None and record.instruction.strip():
        return record.instruction, False
    return default_instruction(record.task), True


def default_instruction(task: str | None) -> str:
    """The default of that task, whatever a data set calls it; of any task where it is not known."""
    by_name = _by_name()
    return by_name.get((task or GENERAL).strip().lower(), by_name[GENERAL])


@cache
def _by_name() -> Mapping[str, str]:
    file = resources.files("metrist.metrics") / "prompts" / "judge_instructions.toml"
    tables = tomllib.loads(file.read_text(encoding="utf-8"))
    return {name: table["instruction"] for task, table in tables.items() for name in (task, *table["names"])}
