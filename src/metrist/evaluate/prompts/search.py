"""`search_prompts`: every prompt is tried on data that people have judged, as paper 002 found its prompt for
translation (section 4.2.2) and asked where prompts help (section 4.4.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from metrist.errors import SpecError
from metrist.evaluate.meta import JudgedDataset, MetaEvaluation, MetaPlan, evaluate, join
from metrist.evaluate.meta.dataset import MetricScores
from metrist.evaluate.meta.results import as_names
from metrist.evaluate.prompts.each_prompt import EachPrompt
from metrist.evaluate.prompts.groups import aspect_groups
from metrist.evaluate.prompts.result import ALL, PromptStudy, Tried
from metrist.metrics.base import Metric
from metrist.metrics.likelihood.layout import NONE, read_phrases
from metrist.metrics.likelihood.likelihood import NO_PROMPT, Likelihood
from metrist.metrics.registry import build
from metrist.run import Progress, Results, score

#: How the evaluation's note on missing scores begins.
_LACKING = "Rated outputs without a score"


def search_prompts(
    data: Any,
    metric: str | Metric,
    aspects: str | Sequence[str] = (),
    *,
    prompts: str | Sequence[str] | None = None,
    measure: str = "spearman",
    group: str = "item",
    gold: str = "mean",
    groups: Mapping[str, str] | None = None,
    executor: Any = None,
    progress: Progress | None = None,
    running: Mapping[str, Any] | None = None,
    **reading: Any,
) -> PromptStudy:
    """How well a likelihood metric agrees with people with each prompt alone, without any, and with all together.

    `data` holds records with ratings, and is read twice. `prompts` are what a metric's setting of that name takes; by
    default the metric's own, or the shipped set that suits its direction. `groups` adds aspects to the groups of
    `aspect_groups`. `running` is passed on to `score` (device, batch_tokens, cache), `reading` to `read_records`.
    """
    each = EachPrompt(metric=_prepared(metric, prompts))
    judged = join(data, **reading)
    plan = MetaPlan(aspects=as_names(aspects), measures=(measure,), group=group, gold=gold, draws=0, test="none")
    results = score(data, each, executor=executor, progress=progress, **(running or {}), **reading)
    found = evaluate(replace(judged, scores=_columns(judged, results)), plan)
    return PromptStudy(
        metric=each.text,
        measure=measure,
        group=group,
        figures=_figures(found),
        aspect_groups=aspect_groups(groups),
        notes=(*_warnings(found, results), *results.notes),
    )


def _prepared(metric: str | Metric, prompts: str | Sequence[str] | None) -> Likelihood:
    """The metric with the prompts to try, and no prompt before them."""
    built = build(metric)
    if not isinstance(built, Likelihood):
        raise SpecError(f"{built.name} takes no prompts: wanted a likelihood metric, such as bartscore or likelihood")
    own = built.prompts if built.prompts != NONE else _suiting(built)
    phrases = [phrase for phrase in read_phrases(prompts if prompts is not None else own) if phrase]
    if not phrases:
        raise SpecError("no prompt to try: name a set, a file with one phrase a line, or phrases")
    return replace(built, prompts=("", *dict.fromkeys(phrases)))


def _suiting(metric: Likelihood) -> str:
    return "source-output" if metric.direction == "source->output" else "reference-output"


def _columns(judged: JudgedDataset, results: Results) -> dict[str, MetricScores]:
    """One column of scores per prompt, in the order of the judged outputs, and that of their mean."""
    (scores,) = results.scores.values()
    place = {key: row for row, key in enumerate(zip(results.items, results.systems, strict=True))}
    items, systems = judged.items, judged.systems
    keys = ((items.names[i], systems.names[s]) for i, s in zip(items.codes, systems.codes, strict=True))
    rows = np.array([place.get(key, -1) for key in keys], dtype=np.intp)
    by_prompt = {prompt: np.append(values, np.nan)[rows] for prompt, values in scores.parts.items()}
    mean = np.mean([values for prompt, values in by_prompt.items() if prompt != NO_PROMPT], axis=0)
    columns = {**by_prompt, ALL: mean}
    return {name: MetricScores(name=name, values=values, higher_is_better=True) for name, values in columns.items()}


def _figures(found: MetaEvaluation) -> tuple[Tried, ...]:
    figures = [one for one in found.figures if one.metric in found.metrics()]
    without = {one.aspect: one.value for one in figures if one.metric == NO_PROMPT}
    return tuple(
        Tried(prompt=one.metric, aspect=one.aspect, value=one.value, gain=one.value - without[one.aspect], n=one.n)
        for one in figures
    )


def _warnings(found: MetaEvaluation, results: Results) -> list[str]:
    (scores,) = results.scores.values()
    outputs, tried = max(one.n for one in found.figures), len(found.metrics()) - 2
    chosen = (
        f"The best of {tried} prompts was chosen on these {outputs:,} outputs, so its figure flatters it: report its "
        "agreement on data that it was not chosen on."
    )
    reasons = list(scores.failures.values())
    lacking = [f"{len(reasons):,} of {len(scores):,} outputs not scored, such as: {one}" for one in reasons[:1]]
    # The evaluation names every prompt that lacks a score, and all lack the same.
    notes = [note for note in found.notes if not note.startswith(_LACKING)]
    return [chosen, *lacking, *notes]
