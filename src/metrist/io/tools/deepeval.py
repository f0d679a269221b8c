"""Test runs of deepeval (`DEEPEVAL_RESULTS_FOLDER`, `.deepeval/.latest_test_run.json`), and its data sets (`save_as`).

{"testCases": [{"name", "input", "actualOutput", "expectedOutput", "context", "retrievalContext",
 "metricsData": [{"name", "score", "reason"}]}], "metricsScores", "hyperparameters"}
[{"input", "actual_output", "expected_output", "context", "retrieval_context"}]
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from metrist.io.fields import normalise_name
from metrist.io.row_model import RowError
from metrist.io.tools.entries import Entries, Row, Rows, as_plain_text, as_scores, convert_each, get_object, get_objects


def is_entry(value: Row) -> bool:
    run = value.get("testRunData", value)
    is_run = isinstance(run, dict) and "testCases" in run and bool(run.keys() & {"metricsScores", "testPassed"})
    return is_run or {"input", "actual_output", "expected_output", "retrieval_context"} <= value.keys()


def rows(entries: Entries) -> Rows:
    for line, entry in entries:
        run = get_object(entry, "testRunData") or entry
        if "testCases" in run:
            model = get_object(run, "hyperparameters").get("model")
            cases = enumerate(get_objects(run, "testCases"), 1)
        else:
            model = None
            cases = enumerate([entry], line)
        yield from convert_each(cases, partial(_convert, model=model))


def _convert(case: Row, model: object) -> Iterator[Row]:
    case = {normalise_name(name): value for name, value in case.items()}
    output, expected, question = case.get("actual_output"), case.get("expected_output"), as_plain_text(case["input"])
    if output is None:
        raise RowError(f"the test case {case.get('name')!r} has no actual output")
    passages = case.get("retrieval_context") or case.get("context")
    passages = [passages] if isinstance(passages, str) else passages
    name, order = case.get("name"), case.get("order")
    scores = {metric.get("name", ""): metric.get("score") for metric in get_objects(case, "metrics_data")}
    yield {
        "item": name if order is None else str(order),
        "name": name,
        "system": model if isinstance(model, str) else None,
        **({"source": passages, "instruction": question} if passages else {"source": question}),
        "references": [as_plain_text(expected)] if expected is not None else None,
        "output": as_plain_text(output),
        "scores": as_scores(scores),
    }
