"""Training data from a run: the stored scores of an expensive judge, which a small metric learns to give."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from metrist import criteria
from metrist.data.judgments import JudgedRecords
from metrist.errors import MetristError, RunError, SpecError, format_count, format_path, unknown_name
from metrist.evaluate.meta.join import Timing, read_timing
from metrist.evaluate.selection import find_changes, find_metric
from metrist.io import read_records
from metrist.metrics.base import Metric, PartMetric, calls_llm
from metrist.metrics.comparator import ByScore
from metrist.metrics.judge.judge import Judge
from metrist.metrics.judge.pair import JudgePair
from metrist.metrics.judge.panel import Panel, PanelPair
from metrist.metrics.judge.rubrics import ALL_ASPECTS
from metrist.metrics.llm_metric import merge_usage
from metrist.metrics.registry import build
from metrist.metrics.trained.consistency import Consistency
from metrist.metrics.trained.preference import SPREAD, PreferenceMetric
from metrist.models.devices import Options
from metrist.records import Pair, hash_units
from metrist.run import Results, load, read_inputs
from metrist.run.loading import UnavailableMetric as UnavailableMetric
from metrist.run.loading import load_run
from metrist.run.manifest import StoredMetric
from metrist.run.query import quote_text
from metrist.run.run import Run, is_run, open_run
from metrist.scores import FailureKind, Scores
from metrist.train import HELD_OUT, split_settings
from metrist.train.consistency import SupportExample, SupportFiles, find_places, find_rating
from metrist.train.distillation import DistillationTask, JudgedOutputs, Key, PairKey, make_pairs
from metrist.train.preference import RECIPE

#: A longer rubric or criterion takes the room of the texts: the metric's name stands for it.
MAX_INSTRUCTION = 300
_SIGNS = {"first": 1.0, "second": -1.0, "tie": 0.0}
_Paths = Sequence[str | os.PathLike[str]]


# ---- Consistency: labels of outputs


def read_judged_run(
    run: str | os.PathLike[str],
    metric: str | None = None,
    *,
    texts: Sequence[str | os.PathLike[str]] = (),
    aspect: str | None = None,
    base: str = "",
) -> SupportFiles:
    """Read the outputs of a run with their sources, labelled by one of its metrics, or one of its parts. Outputs in a
    language that the model `base` does not know are left out.

    A score is scaled to 0 to 1 by the bounds of the metric, or by the lowest and highest score. Of a metric that
    reports errors with their places, those about facts label the sentences. Ratings of `aspect` by people, where
    records have any, are kept to compare with.
    """
    results = load(run)
    _refuse_changes(results, texts)
    name = metric or _only_name([own.label for own in results.metrics], run)
    chosen = results.metric(find_metric(results.metrics, name, results.unfinished))
    scores = results.scores[chosen.metric.label if isinstance(chosen, PartMetric) else chosen.label]
    values, left_out = _collect_values(results, chosen)
    if not values:
        raise RunError(f"{run}: {chosen.label} has no scores to learn from", code="no_data")
    # A metric of another package, or one that sums penalties, does not say how good the best output can be.
    limits = zip(chosen.bounds, (min(values.values()), max(values.values())), strict=True)
    low, high = (float(bound if np.isfinite(bound) else own) for bound, own in limits)
    labels = {}
    for number, value in values.items():
        label = (value - low) / (high - low) if high > low else 1.0
        key = results.items[number], results.systems[number]
        labels[key] = number, float(1 - label if chosen.higher_is_better is False else label)
    by_sentence = bool(scores.errors) and not isinstance(chosen, PartMetric)
    reader = read_inputs(run, texts)
    examples: list[SupportExample] = []
    seen = without_source = in_other_language = 0
    learner = Consistency(model=base)
    for entry in reader.entries():
        for record in entry.new:
            if (record.item, record.system) not in labels:
                continue
            number, label = labels[record.item, record.system]
            seen += 1
            if not (record.source or "").strip() or not record.output.strip():
                without_source += 1
                continue
            if learner.find_unknown_language(record):
                in_other_language += 1
                continue
            errors = find_places(scores.errors.get(number, ())) if by_sentence else None
            # A judge that lowers a score without marking anything says nothing about single sentences.
            examples.append(
                SupportExample(
                    source=record.source or "",
                    output=record.output,
                    label=label,
                    errors=errors if errors or label == 1 else None,
                    rating=find_rating(entry, record, aspect),
                )
            )
    if not examples:
        what = f"in a language that {base} knows, with a source" if in_other_language else "with a source"
        found = f"none of {format_count(seen, 'scored output')} is {what}"
        raise RunError(
            f"{run}: {found if seen else 'no scored output is in the files that were read'}; a consistency metric "
            "learns from outputs with their sources (`texts` names the records)",
            code="no_data",
        )
    notes = [f"labels: {chosen.label} from {low:g} to {high:g}, scaled to 0 to 1", *reader.remarks]
    notes += [f"{count:,} {reason} left out" for reason, count in left_out.items()]
    if without_source:
        notes.append(f"{format_count(without_source, 'output')} without a source left out")
    if in_other_language:
        notes.append(f"{format_count(in_other_language, 'output')} left out: {base} knows only English")
    return SupportFiles(examples, notes)


def _only_name(names: Sequence[str], run: Any) -> str:
    if len(names) != 1:
        raise SpecError(
            f"{run} has {format_count(len(names), 'metric')}: name the one to learn from with `metric`: "
            f"{', '.join(names)}",
            code="missing_value",
        )
    return names[0]


def _collect_values(results: Results, metric: Metric) -> tuple[dict[int, float], Counter[str]]:
    """The values of a metric by position in the run, and how many outputs are left out for which reason."""
    stored = results.scores[metric.metric.label if isinstance(metric, PartMetric) else metric.label]
    scores = metric.select(stored) if isinstance(metric, PartMetric) else stored
    values: dict[int, float] = {}
    left_out = Counter[str]()
    for number, value in enumerate(scores.values.tolist()):
        failure = scores.failures.get(number)
        if failure is not None or math.isnan(value):
            pending = failure is not None and failure.kind is FailureKind.pending
            left_out["outputs that are not scored yet" if pending else "outputs without a score, which failed,"] += 1
        elif number in stored.incomplete:
            left_out["outputs with an incomplete score"] += 1
        elif math.isinf(value):
            left_out["outputs with an infinite score"] += 1
        else:
            values[number] = value
    return values, left_out


def _refuse_changes(results: Results, texts: _Paths) -> None:
    """Raise an error if the files of a run that stores no texts are not those that were scored. Files that the user
    names are compared as they are read."""
    if texts or (isinstance(results.inputs, Run) and results.inputs.has_texts):
        return
    changed, _ = find_changes(results)
    if changed:
        raise RunError(
            f"the scores are not those of the texts: {'; '.join(change.message for change in changed)}", code="changed"
        )


# ---- Preference: outputs with scores, or choices between two


def read_judge(
    run: str | os.PathLike[str],
    metric: str | None = None,
    *,
    texts: _Paths = (),
    criterion: str | None = None,
) -> JudgedOutputs:
    """Read what a metric of a run of `metrist score`, or a comparator of `metrist prefer`, said about outputs, with
    their texts and with the ratings of people, if there are any.

    `texts` are the files with the records; by default those that the run read. `criterion` is the one to learn, by
    default `overall`, which `preference` uses. Scores that failed, are not finished or are not complete are left out
    and counted.
    """
    if not is_run(run):
        raise RunError(
            f"{format_path(Path(run))} is no run folder of `metrist score` or `metrist prefer`", code="invalid_value"
        )
    opened = open_run(run)
    compared = [stored for stored in opened.manifest.metrics if stored.compares]
    comparators = [comparator for comparator in compared if comparator.finished]
    results = None
    try:
        results = load_run(opened)
    except RunError:
        if not compared:
            raise
        if not comparators:
            raise RunError(
                f"the choices in {opened.name} are not finished: run the same `metrist prefer` again", code="unfinished"
            ) from None
    metrics = results.metrics if results else ()
    labels = [comparator.label for comparator in comparators]
    name = metric or _only_name([*(own.label for own in metrics), *labels], opened.name)
    exact = [comparator for comparator in comparators if name in (comparator.label, comparator.text)]
    by_name = [comparator for comparator in comparators if comparator.text.partition("(")[0] == name]
    if exact or len(by_name) == 1:
        return _read_choices(opened, (exact or by_name)[0], texts, criterion)
    if results is None:
        raise unknown_name("comparator", name, labels)
    chosen = results.metric(find_metric(metrics, name, results.unfinished))
    return _read_scores(opened, results, chosen, texts, criterion)


def distill_preference(
    run: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    metric: str | None = None,
    texts: _Paths = (),
    base: str = "metrist:preference-small",
    dev: str | None = HELD_OUT,
    across: bool = False,
    criterion: str | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Train a preference metric from the scores or choices in a run, as `metrist train preference --from-run` does, and
    return its card. The same call resumes a stopped training.

    `dev` is the share of items to hold out, None for none. `settings` are those of a recipe (`epochs`, `batch`, `lr`,
    `seed`, …) and of a `PreferenceTask`.
    """
    from metrist.train.fit import fit

    options = Options(model=base)
    recipe, others = split_settings(RECIPE, options, settings)
    data = make_pairs(read_judge(run, metric, texts=texts, criterion=criterion), dev, seed=recipe.seed, across=across)
    task = DistillationTask(
        train=data.train,
        dev=data.dev,
        held_out=data.held_out,
        across=across,
        base=options,
        out=Path(out),
        recipe=recipe,
        **{"data": data.facts, **others},
    )
    return fit(task)


def _read_scores(run: Run, results: Results, metric: Metric, texts: _Paths, criterion: str | None) -> JudgedOutputs:
    if metric.higher_is_better is None:
        raise SpecError(f"{metric.label} has no better side: learn from another metric", code="missing_value")
    _refuse_changes(results, texts)
    owner = metric.metric if isinstance(metric, PartMetric) else metric
    stored = results.scores[owner.label]
    sign = 1.0 if metric.higher_is_better else -1.0
    numbers, left_out = _collect_values(results, metric)
    deviations = _find_spreads(metric, stored)
    keys = {number: (results.items[number], results.systems[number]) for number in numbers}
    values = {keys[number]: sign * value for number, value in numbers.items()}
    spreads: dict[Key, float] = {}
    if deviations is not None:
        spreads = {key: float(deviations[n]) for n, key in keys.items() if math.isfinite(deviations[n])}
    judged = JudgedRecords.read(read_inputs(run, texts))
    missing = [key for key in values if key not in judged.records]
    if missing:
        raise RunError(
            f"{len(missing):,} of {format_count(len(values), 'scored output')} of {run.name} have no text, or "
            f"another one than was scored, such as item {missing[0][0]!r} of system {missing[0][1]!r}: name the files "
            "that were scored (`texts`), or score again",
            code="missing_value",
        )
    stored_metric = run.manifest.metric(owner.text)
    return JudgedOutputs(
        name=metric.label,
        records=judged.records,
        values=values,
        spreads=spreads,
        left_out=left_out,
        notes=(*results.notes, *judged.remarks),
        **_describe_judge(metric, criterion),
        **_average_people(judged),
        judge={
            "run": Path(run.store.path).name,
            "judge": metric.label,
            "signature": results.signatures[owner.label],
            "judged_outputs": len(values),
        },
        cost=_describe_cost(owner, read_timing(run, stored_metric), "outputs") if stored_metric else {},
    )


def _find_spreads(metric: Metric, scores: Scores) -> Any:
    """The standard deviations of scores: of several analyses or models, or the standard error of a panel's mean."""
    if isinstance(metric, PartMetric):
        return None
    if isinstance(metric, Panel):
        grades = np.stack([part for name, part in scores.parts.items() if name.startswith("judge_")])
        known = (~np.isnan(grades)).sum(axis=0)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = np.nansum(grades, axis=0) / known
            variance = np.nansum((grades - mean) ** 2, axis=0) / np.maximum(known - 1, 1)
            return np.sqrt(variance / known)
    return scores.parts.get(SPREAD)


def _read_choices(run: Run, stored: StoredMetric, texts: _Paths, criterion: str | None) -> JudgedOutputs:
    if not texts and not run.manifest.inputs:
        raise RunError(
            f"{run.name} does not say which files its pairs come from: name them with `texts`", code="missing_value"
        )
    judged = JudgedRecords.read(read_records(list(texts)) if texts else read_inputs(run))
    version = stored.finished
    assert version is not None
    rows: dict[PairKey, dict[bytes, dict[str, Any]]] = {}
    columns = "pair, item, first, second, choice, incomplete"
    judgments = run.query(f"SELECT {columns} FROM pairs WHERE comparator = {quote_text(stored.label)}")
    for judgment in judgments.to_pylist():
        rows.setdefault((judgment["item"], judgment["first"], judgment["second"]), {})[judgment["pair"]] = judgment
    choices, left_out = dict[PairKey, float](), Counter[str]()
    for (item, first, second), same in rows.items():
        try:
            pair = Pair(first=judged.records[item, first], second=judged.records[item, second])
        except KeyError:
            raise RunError(
                f"item {item!r} has no text of {first!r} or {second!r} in the files: name those that were compared "
                "(`texts`)",
                code="missing_value",
            ) from None
        row = same.get(hash_units([pair])[0].tobytes())
        if row is None:
            raise RunError(
                f"the texts are not those that {stored.label} compared: name the files as they were then (`texts`), or "
                "run `metrist prefer` again",
                code="missing_value",
            )
        if row["choice"] is None:
            left_out["pairs without a choice, which failed,"] += 1
        elif row["incomplete"]:
            left_out["pairs with an incomplete choice"] += 1
        elif first <= second:
            choices[item, first, second] = _SIGNS[row["choice"]]
        else:
            choices[item, second, first] = -_SIGNS[row["choice"]]
    try:
        comparator = build(stored.text, allow_import=False, disable_risky_llms=True)
    except MetristError:
        comparator = UnavailableMetric(stored.text, version.signature, Scores.of([]))
    if stored.name:
        comparator = comparator.named(stored.name)
    return JudgedOutputs(
        name=stored.label,
        records=judged.records,
        choices=choices,
        left_out=left_out,
        notes=judged.remarks,
        **_describe_judge(comparator, criterion),
        **_average_people(judged),
        judge={
            "run": Path(run.store.path).name,
            "judge": stored.label,
            "signature": version.signature,
            "judged_pairs": len(choices),
        },
        cost=_describe_cost(comparator, read_timing(run, stored), "pairs"),
    )


def _average_people(judged: JudgedRecords) -> dict[str, Any]:
    def average(values: Mapping[Any, Sequence[tuple[str | None, float]]]) -> dict[Any, float]:
        return {key: math.fsum(value for _, value in rated) / len(rated) for key, rated in values.items()}

    return {
        "ratings": {aspect: average(values) for aspect, values in judged.ratings.items()},
        "preferences": {aspect: average(values) for aspect, values in judged.preferences.items()},
    }


def _describe_judge(metric: Metric, criterion: str | None) -> dict[str, Any]:
    name = metric.part if isinstance(metric, PartMetric) else metric.short_name or metric.name.partition("(")[0]
    text = " ".join(_find_question(metric).split())
    return {
        "criterion": criterion or "overall",
        "instruction": text if 0 < len(text) <= MAX_INSTRUCTION else name,
        "references": "references" in metric.needs,
    }


def _find_question(metric: Metric | None) -> str:
    """What the metric asks of an output, in words; empty if it does not say."""
    if isinstance(metric, PartMetric):
        owner = metric.metric
        return owner.load_rubric().aspect(metric.part).question if isinstance(owner, Judge) else ""
    if isinstance(metric, Judge):
        rubric = metric.load_rubric()
        aspects = rubric.aspects if metric.aspect == ALL_ASPECTS else (rubric.aspect(metric.aspect),)
        return " ".join(aspect.question for aspect in aspects)
    if isinstance(metric, JudgePair):
        return metric.describe_criteria()
    if isinstance(metric, PreferenceMetric):
        known = criteria.known(metric.criterion)
        return metric.instruction or (known.instruction if known else "")
    if isinstance(metric, Panel | PanelPair):
        questions = {_find_question(judge) for judge in metric.judges}
        return questions.pop() if len(questions) == 1 else ""
    return _find_question(metric.metric) if isinstance(metric, ByScore) else ""


def _describe_cost(metric: Metric, timing: Timing, noun: str) -> dict[str, Any]:
    """What a thousand outputs or pairs cost: answers from the cache count with what they would cost. None: unknown."""
    usages, total = timing.usages, merge_usage(timing.usages)
    dollars = None
    replayed = total.get("cached", 0) - total.get("repeated", 0)
    if "cost" in total and "unpriced" not in total and not (replayed and "saved" not in total):
        dollars = round(1000 * (total["cost"] + total.get("saved", 0.0)) / max(len(usages), 1), 6)
    elif not usages and not isinstance(metric, UnavailableMetric) and not calls_llm(metric):
        dollars = 0.0
    return {
        f"judge_us_dollars_per_1000_{noun}": dollars,
        f"judge_seconds_per_1000_{noun}": round(1000 * timing.seconds / timing.records, 3) if timing.records else None,
    }
