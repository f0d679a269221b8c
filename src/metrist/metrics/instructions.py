"""What the writer of an output is taken to have been asked where the record does not say: each task's default."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources

from metrist.metrics.tasks import task_named
from metrist.records import Record

GENERAL = "general"


def instruction_of(record: Record) -> tuple[str, bool]:
    """The record's instruction, or its task's default; and whether it is the default."""
    if record.instruction is not None and record.instruction.strip():
        return record.instruction, False
    return default_instruction(record.task), True


def default_instruction(task: str | None) -> str:
    """The default of that task, whatever a data set calls it; of any task where it is not known."""
    known = _by_task()
    return known.get(task_named(task) or GENERAL, known[GENERAL])


@cache
def _by_task() -> Mapping[str, str]:
    file = resources.files("metrist.metrics") / "prompts" / "judge_instructions.toml"
    tables = tomllib.loads(file.read_text(encoding="utf-8"))
    return {task: table["instruction"] for task, table in tables.items()}
