"""Files of other evaluation tools, which are recognised by their first entry and read as any other file.

Scores that a file holds become `scores`, judgments of people or judges `ratings`, and what else a tool knows of an
output extra columns.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from metrist.io.tools import applications, arena, harnesses
from metrist.io.tools.entries import Entries, Rows, convert_each

#: How the files of each tool are read.
TOOLS: dict[str, Callable[[Entries], Rows]] = {
    "arena": arena.read_arena,
    "braintrust": partial(convert_each, convert=applications.convert_braintrust_span),
    "deepeval": applications.read_deepeval_runs,
    "inspect_ai": harnesses.read_inspect_logs,
    "lm_eval": partial(convert_each, convert=harnesses.convert_lm_eval_sample),
    "openai_evals": harnesses.read_openai_events,
    "promptfoo": applications.read_promptfoo_results,
    "ragas": partial(convert_each, convert=applications.convert_ragas_sample),
}
#: Columns of votes that have texts, which are read as any other preferences.
_TEXTS_OF_VOTES = frozenset(
    ("conversation_a", "response_a", "answer_a", "output_a", "text_a", "conversation", "full_conversation")
)


def recognise_tool(entry: object) -> str:
    """Return the name of the tool that wrote an entry, which is a row or a whole JSON document; empty if it is none of
    them."""
    if not isinstance(entry, dict):
        return ""
    keys = entry.keys()
    spec = entry.get("spec")
    results = entry.get("results")
    run = entry.get("testRunData", entry)
    is_of = {
        "arena": {"question_id", "model_id", "choices"} <= keys
        or {"question_id", "model", "judge", "score", "turn"} <= keys
        or {"question_id", "model_1", "model_2", "g1_winner", "g2_winner"} <= keys
        or ({"model_a", "model_b", "winner"} <= keys and not keys & _TEXTS_OF_VOTES),
        "braintrust": {"input", "output", "root_span_id"} <= keys,
        "deepeval": {"input", "actual_output", "expected_output", "retrieval_context"} <= keys
        or (isinstance(run, dict) and "testCases" in run and bool(run.keys() & {"metricsScores", "testPassed"})),
        "inspect_ai": {"version", "status", "plan"} <= keys and isinstance(entry.get("eval"), dict),
        "lm_eval": {"doc_id", "doc", "resps", "filtered_resps", "arguments"} <= keys,
        "openai_evals": entry.get("object") == "eval.run.output_item"
        or (isinstance(spec, dict) and {"eval_name", "completion_fns"} <= spec.keys()),
        "promptfoo": {"testIdx", "promptIdx", "provider", "vars"} <= keys
        or (isinstance(results, dict) and isinstance(results.get("results"), list))
        or (isinstance(results, list) and {"version", "stats", "timestamp"} <= keys),
        "ragas": "user_input" in keys
        and bool(keys & {"response", "reference", "reference_topics"})
        and (isinstance(entry["user_input"], list) or not keys <= applications.RAGAS_COLUMNS),
    }
    return next((name for name, matches in is_of.items() if matches), "")
