"""Results of promptfoo (`--output`): one JSON document, or a line per output.

{"evalId", "results": {"version", "results": [{"testIdx", "provider": {"id", "label"}, "prompt": {"raw", "label"},
 "vars", "response": {"output"}, "gradingResult": {"componentResults": […]}, "namedScores", "score"}]}, "config"}
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from metrist.io.row_model import RowError
from metrist.io.tools.entries import Entries, Row, Rows, as_plain_text, as_scores, convert_each, get_object, get_objects

#: Assertions whose value is a text that the output should resemble.
_REFERENCES = frozenset(
    ("equals", "similar", "levenshtein", "factuality", "model-graded-factuality", "rouge-n", "bleu", "gleu", "meteor")
)
_OWN = frozenset(("item", "system", "output", "outputs", "systems", "instruction", "scores", "ratings"))


def is_entry(value: Row) -> bool:
    results = value.get("results")
    is_document = isinstance(results, dict) and isinstance(results.get("results"), list)
    is_summary = isinstance(results, list) and {"version", "stats", "timestamp"} <= value.keys()
    return is_document or is_summary or {"testIdx", "promptIdx", "provider", "vars"} <= value.keys()


def rows(entries: Entries) -> Rows:
    prompts: dict[tuple[str, str], str] = {}
    return convert_each(_list_results(entries), partial(_convert, prompts=prompts))


def _list_results(entries: Entries) -> Iterator[tuple[int, Row]]:
    for line, entry in entries:
        if "testIdx" in entry:
            yield line, entry
        else:
            results = entry["results"] if isinstance(entry.get("results"), dict) else entry
            yield from enumerate(get_objects(results, "results"), 1)


def _convert(result: Row, prompts: dict[tuple[str, str], str]) -> Iterable[Row]:
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
    yield {
        **{key: value for key, value in get_object(result, "vars").items() if key not in _OWN},
        "item": str(result.get("testIdx")),
        "system": prompts[key],
        "prompt_label": prompt.get("label"),
        "instruction": as_plain_text(prompt.get("raw")) or None,
        "references": list(_references(result)) or None,
        "output": as_plain_text(response["output"]),
        "scores": as_scores({"promptfoo": result.get("score"), **_named_scores(result)}),
    }


def _references(result: Row) -> Iterator[str]:
    for assertion in get_objects(get_object(result, "testCase"), "assert"):
        value: Any = assertion.get("value")
        if assertion.get("type") in _REFERENCES:
            yield from [text for text in (value if isinstance(value, list) else [value]) if isinstance(text, str)]


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
