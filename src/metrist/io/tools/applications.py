"""Results and data sets of tools that test applications: Braintrust, deepeval, promptfoo, Ragas."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from metrist.io.fields import normalise_name
from metrist.io.layouts import describe_context, parse_messages
from metrist.io.row_model import RowError
from metrist.io.tools.entries import (
    Entries,
    Row,
    Rows,
    as_plain_text,
    as_scores,
    convert_each,
    describe_input,
    get_object,
    get_objects,
)

# ---- Exports of Braintrust: a row per span of an experiment or of logs, of which the roots are outputs
#
# {"id", "span_id", "root_span_id", "input", "output", "expected", "scores": {…}, "metadata", "tags"}

#: Fields that what the user adds to a span does not replace.
_BRAINTRUST = frozenset(
    ("item", "system", "output", "source", "references", "scores", "ratings", "instruction", "model")
)


def convert_braintrust_span(entry: Row) -> Iterable[Row]:
    if entry.get("is_root") is False or entry.get("span_id", entry.get("root_span_id")) != entry.get("root_span_id"):
        return
    if entry.get("output") is None:
        raise RowError(f"the span {entry.get('id')!r} has no output")
    metadata = get_object(entry, "metadata")
    expected = entry.get("expected")
    system = metadata.get("model")
    yield {
        **{key: value for key, value in metadata.items() if key not in _BRAINTRUST},
        "item": entry.get("id"),
        "system": system if isinstance(system, str) else None,
        **describe_input(entry.get("input")),
        "references": None if expected is None else [as_plain_text(expected)],
        "output": as_plain_text(entry["output"]),
        "scores": as_scores(get_object(entry, "scores")),
    }


# ---- Test runs of deepeval, and its data sets
#
# `DEEPEVAL_RESULTS_FOLDER` and `.deepeval/.latest_test_run.json`; `save_as`:
# {"testCases": [{"name", "input", "actualOutput", "expectedOutput", "context", "retrievalContext",
#  "metricsData": [{"name", "score", "reason"}]}], "metricsScores", "hyperparameters"}
# [{"input", "actual_output", "expected_output", "context", "retrieval_context"}]


def read_deepeval_runs(entries: Entries) -> Rows:
    for line, entry in entries:
        run = get_object(entry, "testRunData") or entry
        if "testCases" in run:
            model = get_object(run, "hyperparameters").get("model")
            cases = enumerate(get_objects(run, "testCases"), 1)
        else:
            model = None
            cases = enumerate([entry], line)
        yield from convert_each(cases, partial(_convert_test_case, model=model))


def _convert_test_case(case: Row, model: object) -> Iterator[Row]:
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


# ---- Results of promptfoo (`--output`): one JSON document, or a line per output
#
# {"evalId", "results": {"version", "results": [{"testIdx", "provider": {"id", "label"}, "prompt": {"raw", "label"},
#  "vars", "response": {"output"}, "gradingResult": {"componentResults": […]}, "namedScores", "score"}]}, "config"}

#: Assertions whose value is a text that the output should resemble.
_REFERENCE_ASSERTIONS = frozenset(
    ("equals", "similar", "levenshtein", "factuality", "model-graded-factuality", "rouge-n", "bleu", "gleu", "meteor")
)
#: Fields that a variable of this name does not replace.
_PROMPTFOO = frozenset(("item", "system", "output", "outputs", "systems", "instruction", "scores", "ratings"))


def read_promptfoo_results(entries: Entries) -> Rows:
    prompts: dict[tuple[str, str], str] = {}
    for line, entry in entries:
        results: Entries = [(line, entry)]
        if "testIdx" not in entry:
            summary = entry["results"] if isinstance(entry.get("results"), dict) else entry
            results = enumerate(get_objects(summary, "results"), 1)
        yield from convert_each(results, partial(_convert_result, prompts=prompts))


def _convert_result(result: Row, prompts: dict[tuple[str, str], str]) -> Iterable[Row]:
    """Convert a result. `prompts` are the systems so far, by provider and prompt."""
    provider = result.get("provider")
    name = provider if isinstance(provider, str) else ((provider or {}).get("label") or (provider or {}).get("id"))
    prompt = get_object(result, "prompt")
    if not isinstance(name, str) or not name:
        raise RowError("'provider' must have an id or a label")
    key = name, str(prompt.get("label") or result.get("promptId"))
    if key not in prompts:
        number = 1 + sum(other == name for other, _ in prompts)
        prompts[key] = name if number == 1 else f"{name} prompt {number}"
    response = get_object(result, "response")
    if response.get("output") is None:
        raise RowError(f"test {result.get('testIdx')} has no output: {result.get('error') or 'the provider failed'}")
    references: list[str] = []
    for assertion in get_objects(get_object(result, "testCase"), "assert"):
        if assertion.get("type") in _REFERENCE_ASSERTIONS:
            value = assertion.get("value")
            references += [text for text in (value if isinstance(value, list) else [value]) if isinstance(text, str)]
    yield {
        **{key: value for key, value in get_object(result, "vars").items() if key not in _PROMPTFOO},
        "item": str(result.get("testIdx")),
        "system": prompts[key],
        "prompt_label": prompt.get("label"),
        "instruction": as_plain_text(prompt.get("raw")) or None,
        "references": references or None,
        "output": as_plain_text(response["output"]),
        "scores": as_scores({"promptfoo": result.get("score"), **_named_scores(result)}),
    }


def _named_scores(result: Row) -> dict[str, Any]:
    """Return scores by metric, and those of assertions without a metric by type where a test has it once."""
    scores: dict[str, Any] = {}
    repeated = set()
    for component in get_objects(get_object(result, "gradingResult"), "componentResults"):
        assertion = get_object(component, "assertion")
        kind = assertion.get("type")
        if kind and not assertion.get("metric"):
            repeated |= {kind} & scores.keys()
            scores[kind] = component.get("score")
    unnamed = {kind: score for kind, score in scores.items() if kind not in repeated}
    return {**unnamed, **get_object(result, "namedScores")}


# ---- Data sets and results of Ragas that hold conversations, or scores; others are read by the names of columns
#
# {"user_input": text or [{"type": "human", "content"}], "retrieved_contexts", "response", "reference", metric: number}

#: Columns that hold no score.
RAGAS_COLUMNS = frozenset({
    "user_input", "retrieved_contexts", "reference_contexts", "retrieved_context_ids", "reference_context_ids",
    "response", "multi_responses", "reference", "rubrics", "reference_tool_calls", "reference_topics",
    "persona_name", "query_style", "query_length",
})  # fmt: skip


def convert_ragas_sample(entry: Row) -> Iterable[Row]:
    question, passages = entry.get("user_input"), entry.get("retrieved_contexts")
    output = entry.get("response")
    context: Row
    if isinstance(question, list):
        messages = parse_messages([{"role": part.get("type"), **part} for part in question if isinstance(part, dict)])
        if not messages or messages[-1][0] not in ("ai", "assistant"):
            raise RowError("'user_input' must be a conversation that ends with an answer")
        context, output = dict(describe_context(messages[:-1])), messages[-1][1]
    else:
        context = {"source": passages, "instruction": question} if passages else {"source": question}
    numbers = {
        name: value for name, value in entry.items() if name not in RAGAS_COLUMNS and not isinstance(value, bool)
    }
    yield {
        **context,
        "references": [entry["reference"]] if entry.get("reference") else None,
        "output": output,
        "scores": as_scores(numbers),
    }
