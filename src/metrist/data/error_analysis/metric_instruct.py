"""Analyses as TIGERScore's authors publish them, in the fields of a file of examples.

MetricInstruct  {"id", "task", "instruction", "input_context", "hypo_output", "errors": "The model-generated …"}
                with errors {"error_1": {"error_location", "error_aspect", "explanation", "severity",
                "score_reduction"}, …} in other versions, or a list of such objects
alpaca          {"instruction": the prompt's first line, "input": the rest of it, "output": the analysis}
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from metrist.io.convert.instructions import METRIC_INSTRUCT_ALIASES, is_alpaca_analysis, is_metric_instruct
from metrist.io.fields import as_text
from metrist.io.row_model import RowError, format_value
from metrist.metrics.errors.answers import WrittenError, parse_penalty
from metrist.metrics.errors.span_alignment import ground_errors
from metrist.metrics.errors.tigerscore import build_prompt, format_tiger_answer, parse_tiger_answer
from metrist.records import Record

#: The texts in the rest of the prompt. An instruction of several lines cannot be told from the source: the first line
#: counts.
_INPUT = re.compile(
    r"\s*Instruction: ?\n(?P<instruction>[^\n]*)\n(?P<source>.*)\n\nModel-generated Output: ?\n(?P<output>.*)"
    r"\n\nFor each error you give in the response",
    re.DOTALL,
)
_ERROR_FIELDS = {
    "location": "error_location",
    "aspect": "error_aspect",
    "explanation": "explanation",
    "severity": "severity",
}


def read_published_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with `prompt`, `completion` and `errors` with their places; a row in another layout as it is. Raise
    RowError if its errors cannot be read."""
    if not is_metric_instruct(row):
        return dict(row)
    values = {METRIC_INSTRUCT_ALIASES.get(name, name): value for name, value in row.items()}
    errors = values.pop("errors", None)
    if is_alpaca_analysis(row):
        prompt = f"{row['instruction']}\n{as_text('input', row.get('input'))}"
        errors = values.pop("output")
        texts = _INPUT.match(as_text("input", values.pop("input")))
        if texts is None:
            raise RowError("'input' must be the rest of TIGERScore's prompt, with 'Model-generated Output:'")
        values |= texts.groupdict()
    else:
        texts_of_row = (as_text(name, values.get(name) or "") for name in ("instruction", "source", "output"))
        prompt = build_prompt(*texts_of_row)
    completion = as_text("errors", errors) if isinstance(errors, str) else format_tiger_answer(_read_errors(errors))
    answer = parse_tiger_answer(completion)
    if answer.failure is not None:
        raise RowError(f"the errors cannot be read as an analysis: {answer.failure}")
    record = Record(item="", system="", output=values["output"], source=values.get("source"))
    # The other fields of an error are about places in the source, and about raters.
    fields = ("aspect", "severity", "penalty", "explanation", "revision", "text", "start", "end", "side")
    placed = [asdict(error) for error in ground_errors(answer.errors, record)]
    listed = [{name: error[name] for name in fields} for error in placed]
    return {**values, "prompt": prompt, "completion": completion, "errors": listed}


def _read_errors(errors: Any) -> list[WrittenError]:
    """The errors of an object or a list, which may be empty."""
    values = list(errors.values()) if isinstance(errors, dict) else errors
    if not isinstance(values, Sequence) or not all(isinstance(error, dict) for error in values):
        raise RowError(f"'errors' must be an analysis, or objects with 'error_location' …, got {format_value(errors)}")
    written = []
    for number, error in enumerate(values, 1):
        penalty = error.get("score_reduction")
        if parse_penalty(str(penalty)) is None:
            raise RowError(f"'score_reduction' of error {number} must be a number, got {format_value(penalty)}")
        texts = {ours: as_text(theirs, error.get(theirs) or "") for ours, theirs in _ERROR_FIELDS.items()}
        value = abs(parse_penalty(str(penalty)) or 0.0)
        # 4 rather than 4.0, as the authors write it.
        written.append(WrittenError(**texts, penalty=int(value) if value == int(value) else value))
    return written
