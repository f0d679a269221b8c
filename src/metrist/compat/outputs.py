"""Scores of single outputs for evaluation tools, which ask for a number and for what there is to say about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from metrist.metrics.base import Metric, Shard
from metrist.records import Record
from metrist.report.output_card import describe_error
from metrist.run.tasks import score_shard
from metrist.scores import Score


def score_output(
    metric: Metric, output: str, *, source: str | None = None, references: Any = (), instruction: str | None = None
) -> Score:
    """The score of one output. Where a field is missing that the metric needs, there is a failure that says so."""
    texts = references if isinstance(references, list | tuple) else [references]
    record = Record(
        item="1",
        system="1",
        output=output,
        source=source or None,
        references=tuple(str(text) for text in texts if text not in (None, "")),
        instruction=instruction or None,
    )
    (score,) = score_shard(metric, Shard([record]))
    return score


def explain_score(score: Score) -> str | None:
    """Why a score is what it is: the failure, what the metric says, the errors that it found; else its parts."""
    errors = [describe_error(error) for error in score.errors]
    lines = [line for line in (score.failure, score.explanation, *errors) if line]
    parts = ", ".join(f"{name} {value:.4g}" for name, value in score.parts.items())
    return "\n".join(lines) or parts or None


def describe_facts(metric: Metric, score: Score) -> dict[str, Any]:
    """What else a tool stores with a score: signature, parts and errors."""
    errors = [{name: value for name, value in asdict(error).items() if value is not None} for error in score.errors]
    facts: Mapping[str, Any] = {
        "metric": metric.text,
        "signature": metric.signature,
        "parts": dict(score.parts),
        "errors": errors,
        "failure": score.failure.kind.value if score.failure else None,
    }
    return {name: value for name, value in facts.items() if value}
