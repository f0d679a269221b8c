"""Files of other evaluation tools, which are recognised by their first entry and read as any other file.

Scores that a file holds become `scores`, judgments of people or judges `ratings`, and what else a tool knows of an
output extra columns.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from metrist.io.tools import applications, arena, harnesses
from metrist.io.tools.entries import Entries, Row, Rows, convert_each


class Tool(NamedTuple):
    """How files of a tool are recognised by an entry, and read. An entry is a row, or a whole JSON document."""

    is_entry: Callable[[Row], bool]
    rows: Callable[[Entries], Rows]


TOOLS: dict[str, Tool] = {
    "arena": Tool(arena.is_entry, arena.rows),
    "braintrust": Tool(
        applications.is_braintrust_span, partial(convert_each, convert=applications.convert_braintrust_span)
    ),
    "deepeval": Tool(applications.is_deepeval_run, applications.read_deepeval_runs),
    "inspect_ai": Tool(harnesses.is_inspect_log, harnesses.read_inspect_logs),
    "lm_eval": Tool(harnesses.is_lm_eval_sample, partial(convert_each, convert=harnesses.convert_lm_eval_sample)),
    "openai_evals": Tool(harnesses.is_openai_event, harnesses.read_openai_events),
    "promptfoo": Tool(applications.is_promptfoo_result, applications.read_promptfoo_results),
    "ragas": Tool(applications.is_ragas_sample, partial(convert_each, convert=applications.convert_ragas_sample)),
}


def recognise_tool(entry: object) -> str:
    """Return the name of the tool that wrote an entry; empty if it is none of them."""
    if not isinstance(entry, dict):
        return ""
    return next((name for name, tool in TOOLS.items() if tool.is_entry(entry)), "")
