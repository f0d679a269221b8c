"""Files of other evaluation tools, which are recognised by their first entry and read as any other file.

Scores that a file holds become `scores`, judgments of people or judges `ratings`, and what else a tool knows of an
output extra columns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from metrist.io.tools import (
    arena,
    braintrust,
    deepeval,
    inspect_ai,
    lm_eval,
    openai_evals,
    promptfoo,
    ragas,
)
from metrist.io.tools.entries import Entries, Row, Rows


class Tool(NamedTuple):
    """How files of a tool are recognised by an entry, and read. An entry is a row, or a whole JSON document."""

    is_entry: Callable[[Row], bool]
    rows: Callable[[Entries], Rows]


TOOLS: dict[str, Tool] = {
    "arena": Tool(arena.is_entry, arena.rows),
    "braintrust": Tool(braintrust.is_entry, braintrust.rows),
    "deepeval": Tool(deepeval.is_entry, deepeval.rows),
    "inspect_ai": Tool(inspect_ai.is_entry, inspect_ai.rows),
    "lm_eval": Tool(lm_eval.is_entry, lm_eval.rows),
    "openai_evals": Tool(openai_evals.is_entry, openai_evals.rows),
    "promptfoo": Tool(promptfoo.is_entry, promptfoo.rows),
    "ragas": Tool(ragas.is_entry, ragas.rows),
}


def recognise_tool(entry: object) -> str:
    """Return the name of the tool that wrote an entry; empty if it is none of them."""
    if not isinstance(entry, dict):
        return ""
    return next((name for name, tool in TOOLS.items() if tool.is_entry(entry)), "")
