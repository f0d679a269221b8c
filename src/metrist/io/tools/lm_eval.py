"""Sample logs of lm-evaluation-harness (`--log_samples`): a line per document and filter.

    {"doc_id", "doc", "target", "arguments": {"gen_args_0": {"arg_0": prompt, "arg_1": continuation or settings}},
     "resps": [[…]], "filtered_resps": […], "filter", "metrics": […], metric: value}

The output is the first raw answer, or the choice that the model finds most likely. Scores are named as in the harness's
tables: `exact_match,strict-match`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from metrist.io.row_model import RowError, format_value
from metrist.io.tools.entries import Entries, Row, Rows, as_scores, convert_each

_OWN = frozenset({"item", "system", "output", "source", "references", "scores", "ratings"})


def is_entry(value: Row) -> bool:
    return {"doc_id", "doc", "resps", "filtered_resps", "arguments"} <= value.keys()


def rows(entries: Entries) -> Rows:
    return convert_each(entries, _convert)


def _convert(entry: Row) -> Iterable[Row]:
    arguments = entry.get("arguments")
    requests = list(arguments.values()) if isinstance(arguments, dict) else arguments
    requests = [tuple(request.values()) if isinstance(request, dict) else request for request in requests or ()]
    answers = entry.get("resps")
    if not requests or not all(requests) or not isinstance(answers, list) or len(answers) != len(requests):
        raise RowError(f"'resps' must have an answer for each of 'arguments', got {format_value(answers)}")
    doc = entry.get("doc")
    target = entry.get("target")
    first = answers[0][0] if isinstance(answers[0], list) and answers[0] else answers[0]
    if isinstance(first, str):
        output = first
        references = target if isinstance(target, list) else [target]
    else:
        choices = [str(request[1]).strip() for request in requests]
        values = [_log_likelihood(answer) for answer in answers]
        output = choices[values.index(max(values))]
        index = str(target)
        references = [choices[int(index)] if index.isdecimal() and int(index) < len(choices) else target]
    name = entry.get("filter", "none")
    yield {
        **({key: value for key, value in doc.items() if key not in _OWN} if isinstance(doc, dict) else {}),
        "item": str(entry["doc_id"]),
        "source": str(requests[0][0]),
        "references": [str(text) for text in references if text is not None] or None,
        "output": output,
        "scores": as_scores({f"{metric},{name}": entry.get(metric) for metric in entry.get("metrics") or ()}),
    }


def _log_likelihood(answer: Any) -> float:
    try:
        return float(answer[0][0])
    except (TypeError, ValueError, LookupError):
        raise RowError(f"'resps' must hold texts or log-likelihoods, got {format_value(answer)}") from None
