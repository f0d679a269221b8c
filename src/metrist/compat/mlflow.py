"""Metrics as scorers of MLflow: `mlflow.genai.evaluate(data=…, scorers=[metrist_scorer("rougeL")])`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mlflow.entities import Feedback
from mlflow.genai.scorers import Scorer, scorer

from metrist.compat.outputs import describe_facts, explain_score, score_output
from metrist.metrics import registry


def metrist_scorer(metric: str) -> Scorer:
    """A scorer for a metric's text, such as `rougeL(stem=True)`; a short name (`stem=rougeL(stem=True)`) names it.

    `expected_response` or `references` of the expectations are the reference. `source` and `instruction` of the inputs
    are what they say; inputs without these names are the source. An output without a score gets an error, which MLflow
    leaves out of the mean."""
    built = registry.build(metric)

    def score(inputs: Any = None, outputs: Any = None, expectations: Any = None) -> Feedback:
        given = inputs if isinstance(inputs, Mapping) else {}
        expected = expectations or {}
        result = score_output(
            built,
            _find_text(outputs, "output", "response"),
            source=given.get("source") or _find_text(inputs, "question", "input"),
            instruction=given.get("instruction"),
            references=expected.get("references") or expected.get("expected_response"),
        )
        facts = {
            name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            for name, value in describe_facts(built, result).items()
        }
        if result.failure:
            return Feedback(error=str(result.failure), metadata=facts)
        return Feedback(value=result.value, rationale=explain_score(result), metadata=facts)

    return scorer(name=built.short_name or built.name)(score)


def _find_text(value: Any, *names: str) -> str:
    """A text itself, that under one of the names, the only one that there is, or else all values as JSON."""
    if not isinstance(value, Mapping):
        return value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)
    named = [value[name] for name in names if isinstance(value.get(name), str)]
    texts = [text for text in value.values() if isinstance(text, str)]
    if named or len(texts) == 1:
        return (named or texts)[0]
    return json.dumps(value, ensure_ascii=False, default=str)
