"""Evaluate an error analyst on data that it was not trained on: how many of its answers can be read, how far its errors
and severities are those of people, how its scores correlate with ratings, and what it says about good references.

Every figure stands beside what needs no analyst: length for scores, the whole text for errors, the more frequent
severity for severities.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrist.errors import InputError, format_count
from metrist.io import read_records
from metrist.metrics.base import Metric, Shard
from metrist.metrics.errors.base import PARTIAL
from metrist.metrics.llm_metric import LLMMetric
from metrist.metrics.registry import build
from metrist.models.local_llm import forget_models
from metrist.ratings import Error
from metrist.records import Record
from metrist.scores import FailureKind, Scores
from metrist.stats.error_spans import UNSTATED, ErrorColumns, error_agreement
from metrist.stats.resampling import interval
from metrist.train.agreement import Floats, correlate, group_places, none_if_nan, resample_groups
from metrist.train.analyses import Analysis
from metrist.train.error_analysis import TRAINED

Places = NDArray[np.int64]
#: The rating of a held-out analysis: minus the sum of its penalties.
LABEL = "score of the analysis"
_CORRELATIONS = {"spearman": "spearman", "pearson": "pearson", "kendall": "kendall_b"}
_DRAWS = 500
#: The two severities of an analysis; others are read as one of them, and a neutral mark is no error.
_SEVERITIES = {"minor": 0, "major": 1, "critical": 1}
_NEUTRAL = "neutral"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalystOutput:
    """An output with what is known about it. `errors` is None if nobody looked for errors, `is_reference` marks a text
    that should have none."""

    record: Record
    errors: tuple[Error, ...] | None = None
    ratings: Mapping[str, float] = field(default_factory=dict)
    is_reference: bool = False
    channel: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSet:
    """Outputs that are evaluated together."""

    name: str
    outputs: tuple[AnalystOutput, ...]


def read_evaluation_set(path: str | Path, limit: int | None, seed: int = 0) -> EvaluationSet:
    """Read records with ratings, errors or references. At most `limit` outputs are drawn, whole items at a time, and
    the first reference of each of their items is added. Outputs of a file that has errors somewhere have none where
    none are marked."""
    outputs: list[AnalystOutput] = []
    references: dict[tuple[str, str], AnalystOutput] = {}
    has_errors = False
    for entry in read_records(path).entries():
        for record in entry.new:
            key = record.item, record.system
            errors = tuple(one.error for one in entry.errors if (one.item, one.system) == key)
            has_errors |= bool(errors)
            values: dict[str, list[float]] = {}
            for rating in entry.ratings:
                if (rating.item, rating.system) == key:
                    values.setdefault(rating.aspect, []).append(rating.value)
            ratings = {aspect: math.fsum(own) / len(own) for aspect, own in values.items()}
            outputs.append(AnalystOutput(record=record, errors=errors, ratings=ratings))
            if record.references:
                reference = replace(record, output=record.references[0], references=(), system="reference")
                references.setdefault(
                    (record.item, reference.output), AnalystOutput(record=reference, is_reference=True)
                )
    if not has_errors:
        outputs = [replace(output, errors=None) for output in outputs]
    if not has_errors and not references and not any(output.ratings for output in outputs):
        raise InputError(f"{path}: has no ratings, errors or references to compare an analyst with", code="no_data")
    chosen = _draw(outputs, limit, seed)
    items = {output.record.item for output in chosen}
    own = [reference for (item, _), reference in references.items() if item in items]
    return EvaluationSet(name=Path(path).name.partition(".jsonl")[0], outputs=(*chosen, *_draw(own, limit, seed)))


def make_evaluation_set(analyses: Sequence[Analysis], limit: int | None, seed: int = 0) -> EvaluationSet | None:
    """The held-out analyses whose texts are known, as outputs with errors; None if there are none."""
    outputs = []
    for analysis in analyses:
        if analysis.output is None:
            continue
        record = Record(
            item=analysis.item or analysis.prompt,
            system=analysis.system or "output",
            output=analysis.output,
            source=analysis.source or None,
            instruction=analysis.instruction,
            task=analysis.task,
        )
        is_reference = analysis.channel == "reference"
        ratings = {} if is_reference else {LABEL: 0.0 - math.fsum(error.penalty or 0.0 for error in analysis.errors)}
        outputs.append(
            AnalystOutput(
                record=record,
                errors=analysis.errors,
                ratings=ratings,
                is_reference=is_reference,
                channel=analysis.channel,
            )
        )
    chosen = _draw(outputs, limit, seed)
    return EvaluationSet(name="held-out analyses", outputs=tuple(chosen)) if chosen else None


def _draw(outputs: Sequence[AnalystOutput], limit: int | None, seed: int) -> list[AnalystOutput]:
    """Draw items at random until there are `limit` outputs."""
    if limit is None or len(outputs) <= limit:
        return list(outputs)
    members = group_places([output.record.item for output in outputs])
    chosen: list[int] = []
    for at in np.random.default_rng([seed, 11]).permutation(len(members)):
        if len(chosen) >= limit:
            break
        chosen += members[at].tolist()
    return [outputs[number] for number in sorted(chosen[:limit])]


# ---- Figures


def evaluate_analyst(metric: str | Metric, sets: Sequence[EvaluationSet]) -> list[dict[str, Any]]:
    """Let a metric that lists errors analyse the outputs of each set, and return its figures."""
    analyst = build(metric) if isinstance(metric, str) else metric
    if isinstance(analyst, LLMMetric):
        # That no answer can be read is a finding here, not a reason to stop.
        analyst = replace(analyst, llm=analyst.llm.allow_unreadable())
    results = []
    for data in sets:
        scores = analyst.score(Shard([output.record for output in data.outputs]))
        results.append(measure_analyses(data, scores))
    return results


def measure_analyses(data: EvaluationSet, scores: Scores) -> dict[str, Any]:
    """Compare scores and errors with what is known about the outputs."""
    outputs = data.outputs
    values = np.asarray(scores.values, np.float64)
    kinds = Counter(scores.failures[number].kind for number in range(len(outputs)) if number in scores.failures)
    answered = len(outputs) - sum(count for kind, count in kinds.items() if kind is not FailureKind.unparsable)
    parsed = answered - kinds[FailureKind.unparsable]
    partial = np.nan_to_num(scores.parts.get(PARTIAL, np.zeros(len(outputs))))
    judged = [number for number, output in enumerate(outputs) if not output.is_reference]
    golden = [number for number, output in enumerate(outputs) if output.is_reference]
    by_task: dict[str, dict[str, Any]] = {}
    for task in dict.fromkeys(outputs[n].record.task or "not stated" for n in judged):
        numbers = [n for n in judged if (outputs[n].record.task or "not stated") == task]
        rows = measure_ratings([outputs[n] for n in numbers], values[numbers])
        # The mean over aspects.
        spearman = _mean([row["spearman"] for row in rows if row["spearman"] is not None])
        by_task[task] = {"outputs": len(numbers), "spearman": spearman}
    return {
        "set": data.name,
        "outputs": len(judged),
        "references": len(golden),
        "parse_rate": parsed / answered if answered else None,
        "unparsable": kinds[FailureKind.unparsable],
        "incomplete": int(partial.sum()),
        "other_failures": len(outputs) - answered,
        "errors_per_output": _mean([len(scores.errors.get(n, ())) for n in judged if not math.isnan(values[n])]),
        "spans": measure_spans(outputs, scores),
        "severity": measure_severities(outputs, scores),
        "ratings": measure_ratings([outputs[n] for n in judged], values[judged]),
        "by_task": by_task,
        "gold": measure_references(values[golden]),
        "gold_by_task": {
            task: measure_references(values[[n for n in golden if outputs[n].record.task == task]])
            for task in dict.fromkeys(outputs[n].record.task for n in golden)
            if task is not None
        },
    }


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def measure_spans(outputs: Sequence[AnalystOutput], scores: Scores) -> dict[str, Any] | None:
    """Precision, recall and F1 of the characters that errors cover, by people and by the analyst, with 95 % intervals
    over items; an answer that cannot be read marks nothing. `whole_text_f1` is what marking everything gets."""
    known = [number for number, output in enumerate(outputs) if output.errors is not None]
    if not any(_find_place(error) for number in known for error in outputs[number].errors or ()):
        return None
    places = {number: at for at, number in enumerate(known)}
    human = _collect_errors((places[n], error) for n in known for error in outputs[n].errors or ())
    found = _collect_errors((places[n], error) for n in known for error in scores.errors.get(n, ()))
    whole = ErrorColumns.of(
        [places[n] for n in known],
        [0] * len(known),
        [len(outputs[n].record.output) for n in known],
        [UNSTATED] * len(known),
    )
    items = np.unique([outputs[n].record.item for n in known], return_inverse=True)[1].reshape(-1)
    figures: dict[str, Any] = {"outputs": len(known), "human_errors": len(human.start), "found": len(found.start)}
    # A severity is measured on its own: here a place is right whatever its severity.
    result = error_agreement(human, found, items, _DRAWS, np.random.default_rng(0), partial=1.0).overall
    for name in ("precision", "recall", "f1"):
        estimate = getattr(result, name)
        figures |= {
            name: none_if_nan(estimate.value),
            f"{name}_low": none_if_nan(estimate.low),
            f"{name}_high": none_if_nan(estimate.high),
        }
    baseline = error_agreement(human, whole, items, 1, np.random.default_rng(0), partial=1.0).overall
    return {**figures, "whole_text_f1": none_if_nan(baseline.f1.value), "without_place": found.unplaced}


def _find_place(error: Error) -> tuple[int, int] | None:
    """Where an error is in the output; None if that is not known, or if it is none."""
    if error.side != "output" or error.start is None or error.end is None or error.end <= error.start:
        return None
    return None if (error.severity or "").lower() == _NEUTRAL else (error.start, error.end)


def _collect_errors(errors: Iterator[tuple[int, Error]]) -> ErrorColumns:
    rows = [
        (
            output,
            -1 if error.start is None or error.side != "output" else error.start,
            -1 if error.end is None or error.side != "output" else error.end,
            _SEVERITIES.get((error.severity or "").lower(), UNSTATED),
        )
        for output, error in errors
        if (error.severity or "").lower() != _NEUTRAL
    ]
    columns = np.array(rows, np.int64).reshape(-1, 4).T
    return ErrorColumns.of(*columns)


def measure_severities(outputs: Sequence[AnalystOutput], scores: Scores) -> dict[str, Any] | None:
    """Of the errors by people that overlap with one by the analyst, the share to which both give the same severity; the
    one with the largest overlap counts. `most_frequent` is what the more frequent severity would get."""
    pairs = []
    for number, output in enumerate(outputs):
        own = [(place, error) for error in scores.errors.get(number, ()) if (place := _find_place(error))]
        for error in output.errors or ():
            severity, place = _SEVERITIES.get((error.severity or "").lower()), _find_place(error)
            if severity is None or place is None:
                continue
            shared = [(min(place[1], end) - max(place[0], start), other) for (start, end), other in own]
            size, best = max(shared, key=lambda pair: pair[0], default=(0, error))
            if size > 0:
                pairs.append((severity, _SEVERITIES.get((best.severity or "").lower())))
    if not pairs:
        return None
    right = sum(human == found for human, found in pairs)
    most = Counter(human for human, _ in pairs).most_common(1)[0][1]
    return {"errors": len(pairs), "accuracy": right / len(pairs), "most_frequent": most / len(pairs)}


def measure_ratings(outputs: Sequence[AnalystOutput], values: Floats) -> list[dict[str, Any]]:
    """The correlations of scores with each rating over all outputs with both; Spearman's also within items, and with a
    95 % interval over items. `length` is Spearman's correlation of the rating with the output's length."""
    rows = []
    for aspect in dict.fromkeys(aspect for output in outputs for aspect in output.ratings):
        numbers = [n for n, output in enumerate(outputs) if aspect in output.ratings and not math.isnan(values[n])]
        human = np.array([outputs[n].ratings[aspect] for n in numbers], np.float64)
        own = values[numbers]
        lengths = np.array([len(outputs[n].record.output) for n in numbers], np.float64)
        items = group_places([outputs[n].record.item for n in numbers])
        row: dict[str, Any] = {"aspect": aspect, "outputs": len(numbers)}
        for name, correlation in _CORRELATIONS.items():
            row[name] = correlate(human, own, correlation)
        row["spearman_low"] = row["spearman_high"] = None
        if len(items) > 1:
            draws = [correlate(human[at], own[at]) for at in resample_groups(items, _DRAWS)]
            value = np.array(row["spearman"], np.float64)
            limits = interval(np.array(draws, np.float64), 0.95, len(items), float(value))
            row["spearman_low"], row["spearman_high"] = map(none_if_nan, limits)
        # Items whose ratings or scores are all equal are left out.
        within = (correlate(human[at], own[at]) for at in items)
        row["spearman_within_items"] = _mean([value for value in within if value is not None])
        row["length"] = correlate(human, lengths)
        rows.append(row)
    return rows


def measure_references(values: Floats) -> dict[str, Any] | None:
    """The shares of good references that get 0 and more than -2 (TIGERScore paper, Table 21); answers that cannot be
    read count as neither."""
    if not len(values):
        return None
    return {
        "references": len(values),
        "zero": float(np.mean(values == 0)),
        "above_minus_2": float(np.mean(values > -2)),
        "unread": int(np.isnan(values).sum()),
    }


@dataclass(frozen=True, slots=True)
class AnalystEvaluation:
    """The evaluation at the end of a training: `sets`, and up to `limit` of the held-out analyses. With `compare_base`
    the base is evaluated, too, with the same prompt and without the adapter."""

    sets: tuple[EvaluationSet, ...] = ()
    limit: int | None = 200
    seed: int = 0
    compare_base: bool = False

    def __call__(self, metrics: Mapping[str, str], held_out: Sequence[Analysis]) -> dict[str, Any] | None:
        """Return the figures of the trained metric and of its base; None if there is nothing to compare with."""
        own = make_evaluation_set(held_out, self.limit, self.seed)
        sets = (*((own,) if own else ()), *self.sets)
        if not sets:
            return None
        chosen = {name: text for name, text in metrics.items() if name == TRAINED or self.compare_base}
        models = {}
        for name, metric in chosen.items():
            models[name] = evaluate_analyst(metric, sets)
            forget_models()  # Two models need not fit into memory together.
        evaluation: dict[str, Any] = {"metrics": chosen, "models": models}
        return {**evaluation, "remarks": find_remarks(evaluation)}


# ---- Words


def summarise(result: Mapping[str, Any]) -> Iterator[str]:
    """Describe the figures of one set in lines of text."""
    counts = format_count(result["outputs"], "output")
    if result["references"]:
        counts += f" and {format_count(result['references'], 'reference')}"
    rate = "no answer" if result["parse_rate"] is None else f"{result['parse_rate']:.1%} of the answers can be read"
    yield f"{result['set']}: {counts}; {rate}"
    if spans := result["spans"]:
        interval_text = _interval(spans, "f1")
        yield (
            f"  errors: character F1 {_number(spans['f1'])}{interval_text} (precision {_number(spans['precision'])}, "
            f"recall {_number(spans['recall'])}; the whole text marked: {_number(spans['whole_text_f1'])}) on "
            f"{format_count(spans['human_errors'], 'error')}"
        )
    if severity := result["severity"]:
        yield (
            f"  severity: right for {severity['accuracy']:.1%} of {format_count(severity['errors'], 'error')} that "
            f"both mark (always the more frequent one: {severity['most_frequent']:.1%})"
        )
    for row in result["ratings"]:
        yield (
            f"  {row['aspect']}: Spearman {_number(row['spearman'])}{_interval(row, 'spearman')}, Pearson "
            f"{_number(row['pearson'])}, Kendall {_number(row['kendall'])} on {format_count(row['outputs'], 'output')} "
            f"(length: {_number(row['length'])})"
        )
    if gold := result["gold"]:
        yield f"  references: {gold['zero']:.1%} get 0, {gold['above_minus_2']:.1%} more than -2"
    for task, gold in result["gold_by_task"].items() if len(result["gold_by_task"]) > 1 else ():
        yield f"  references of {task}: {gold['zero']:.1%} get 0, {gold['above_minus_2']:.1%} more than -2"


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.3f}"


def _interval(row: Mapping[str, Any], name: str) -> str:
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    return "" if low is None or high is None else f" [{low:.3f}, {high:.3f}]"


def find_remarks(evaluation: Mapping[str, Any]) -> list[str]:
    """Return what a user should know before using the analyst: unreadable answers, no gain over simple rules."""
    remarks = []
    for result in evaluation["models"].get(TRAINED, ()):
        name, rate, spans = result["set"], result["parse_rate"], result["spans"]
        if rate is not None and rate < 0.98:
            remarks.append(f"warning: {name}: only {rate:.1%} of the answers can be read; more training may help")
        if spans and (spans["f1"] or 0.0) <= (spans["whole_text_f1"] or 0.0):
            remarks.append(
                f"warning: {name}: the errors (character F1 {_number(spans['f1'])}) are no better than marking the "
                f"whole text ({_number(spans['whole_text_f1'])})"
            )
        for row in result["ratings"]:
            if row["spearman"] is not None and row["length"] is not None and row["spearman"] <= abs(row["length"]):
                remarks.append(
                    f"warning: {name}: scores agree with {row['aspect']} (Spearman {row['spearman']:.3f}) no better "
                    f"than output length ({row['length']:.3f}) on {format_count(row['outputs'], 'output')}"
                )
    return remarks
