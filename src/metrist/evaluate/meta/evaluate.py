"""`meta_evaluate`: how well each metric agrees with humans, on which slice, with what certainty.

Ratings and preferences take the same path: an aspect gives slices, figures on each slice, means over slices and notes
(`figures.RatingAspect`, `preferences.PreferenceAspect`); everything else is common.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np

from metrist.errors import RunError, SpecError, did_you_mean
from metrist.evaluate.meta.dataset import (
    JudgedDataset,
    check_names,
    compute_gold,
    filter_outputs,
    resample_whole_groups,
    resolve_column,
    select_outputs,
    system_means,
)
from metrist.evaluate.meta.estimates import CALIBRATED, check_groups
from metrist.evaluate.meta.figures import SOFT, RatingAspect, average_aspects, check_test, soft_ties
from metrist.evaluate.meta.join import describe_case, join
from metrist.evaluate.meta.notes import (
    direction_notes,
    opposition_notes,
    plan_notes,
    reversal_notes,
    weight_notes,
)
from metrist.evaluate.meta.preferences import (
    PreferenceAspect,
    check_preferences,
    derive_ratings,
    preference_aspects,
    split_gold,
)
from metrist.evaluate.meta.results import Figure, MetaEvaluation, Tests
from metrist.evaluate.plans import EPSILON_OVER, GROUPS, Average, Correction, MetaPlan, Resample, SystemScore, as_names
from metrist.evaluate.selection import list_names, normalize_text
from metrist.io.reader import check_keywords
from metrist.settings import checks_types, select_arguments
from metrist.spec import parse, split_list
from metrist.stats import Codes, Floats
from metrist.stats.measures import MEASURES, measure
from metrist.stats.significance import best_first

#: Columns that an error names as possible ratings or scores.
_MAX_HINTED = 4
#: The analyses that need no scores.
RATERS_ONLY = ("agreement", "disputes", "errors", "ratings", "strengths")


@checks_types
def meta_evaluate(
    data: Any,
    aspects: str | Sequence[str] = (),
    measures: str | Sequence[str] = (),
    *,
    group: str = "item",
    slices: str | Sequence[str] = (),
    gold: str = "mean",
    preferences: bool = False,
    epsilon_over: str = "all",
    epsilon: Mapping[str, Any] | None = None,
    average: Average = "macro",
    group_average: Average = "macro",
    system_score: SystemScore = "corpus",
    resample: Resample = "items",
    draws: int = 1000,
    seed: int = 0,
    confidence: float = 0.95,
    alpha: float = 0.05,
    correction: Correction = "holm",
    test: str = "auto",
    one_sided: bool = False,
    part: str | Sequence[str] = (),
    where: str | Sequence[str] | Mapping[str, Any] = (),
    metrics: str | Sequence[str] | None = None,
    systems: str | Sequence[str] | None = None,
    exclude_systems: str | Sequence[str] = (),
    top_k: int | None = None,
    min_samples: int = 0,
    mean_over: Literal["aspect"] | None = None,
    lower_is_better: str | Sequence[str] = (),
    marked: str | Sequence[str] = (),
    weighted: bool = True,
    progress: Callable[..., None] | None = None,
    **reading: Any,
) -> MetaEvaluation:
    """Measure how well metrics agree with human judgments.

    `data` is a file of records with `ratings` and `scores`, a run folder, results, rows, or a list of such sources,
    which are joined by item and system. `aspects` are the ratings to agree with (by default the only one); with
    `preferences` they are choices between two outputs. `measures` default to acc_eq, for preferences to accuracy and
    f1. `where` keeps the outputs that meet conditions such as "language=en". With `metrics=()` there are no figures,
    only analyses of the raters. Outputs and pairs that `metrist annotate` sampled count by their `sampling_weight`,
    unless `weighted` is False. `progress` is called with the steps done and all of them, by aspect and measure.
    `reading` are options of `read_records`. docs/guides/meta.md explains the other settings.
    """
    if reading:
        check_keywords(meta_evaluate, reading)
    if isinstance(where, Mapping):
        where = [f"{column}={value}" for column, value in where.items()]
    plan = MetaPlan(**select_arguments(MetaPlan, locals()))
    dataset = join(
        data,
        parts=as_names(part),
        metrics=list_names(metrics) or (),
        lower_is_better=as_names(lower_is_better),
        lengths=plan.length_units,
        **reading,
    )
    dataset = dataset if weighted else dataset.without_weights()
    plan = replace(
        plan,
        measures=plan.measures or (("accuracy", "f1") if preferences else ("acc_eq",)),
        metrics=None if plan.metrics is None else _split_names(dataset, plan.metrics),
        epsilon={name: e for text, e in plan.epsilon.items() for name in _split_names(dataset, [text])},
    )
    return evaluate(filter_outputs(dataset, plan.where), plan, progress)


def evaluate(dataset: JudgedDataset, plan: MetaPlan, progress: Callable[..., None] | None = None) -> MetaEvaluation:
    """Run the evaluation that the plan describes."""
    if plan.metrics == ():
        return _evaluate_raters(dataset, plan)
    if not plan.preferences and split_gold(plan.gold)[0]:
        derived, gold_notes = derive_ratings(dataset, plan)
        evaluation = evaluate(derived, replace(plan, gold="mean"), progress)
        return replace(evaluation, plan=plan, notes=(*gold_notes, *evaluation.notes))
    check_names("metric", list(plan.epsilon), list(dataset.scores))
    if plan.epsilon and (CALIBRATED not in plan.measures or plan.group == "system-level"):
        raise RunError(
            "`epsilon` is the threshold of `measures='acc_eq'` between outputs, which is not measured", code="conflict"
        )
    rated: list[RatingAspect] = []
    aspects: Sequence[RatingAspect | PreferenceAspect]
    if plan.preferences:
        check_preferences(plan)
        names = preference_aspects(dataset, plan.aspects)
        aspects = [PreferenceAspect.of(dataset, plan, aspect) for aspect in names]
    else:
        aspects = rated = _prepare_aspects(dataset, plan)
    figures: list[Figure] = []
    tests: list[Tests] = []
    notes: list[str] = []
    for aspect in aspects:
        aspect_figures, aspect_tests = _evaluate_aspect(aspect, plan, progress)
        figures, tests = figures + aspect_figures, tests + aspect_tests
        notes += aspect.notes(aspect_figures)
    if plan.mean_over:
        figures += average_aspects(rated, plan.measures, figures)
    if not plan.preferences and not any(figure.n for figure in figures):
        known = dataset.items.names
        items = " and ".join(repr(name) for name in known[:: max(1, len(known) - 1)][:2])
        raise RunError(
            "no output has both a rating and a score: do the files use the same names for items and systems? "
            f"Items are named like {items}; `item_key` builds them from fields{describe_case(dataset.systems.names)}"
        )
    metrics = rated[0].metrics if rated else tuple(dataset.scores.values())
    epsilon_column = next((part.column for part in rated[0].epsilon_slices), "") if rated else ""
    notes = [
        *weight_notes(dataset, plan),
        *opposition_notes(figures, metrics, dataset.reversed_aspects),
        *plan_notes(plan, figures, tests, epsilon_column),
        *reversal_notes(tests, plan.alpha),
        *notes,
        *direction_notes(metrics),
        *dataset.notes,
    ]
    return MetaEvaluation(
        dataset=dataset,
        plan=plan,
        figures=tuple(figures),
        tests=tuple(tests),
        golds={data.aspect: data.gold for data in rated},
        outputs={data.aspect: data.outputs for data in rated},
        notes=tuple(dict.fromkeys(notes)),
    )


def _split_names(dataset: JudgedDataset, names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of metrics, those with commas between them one by one, unless the data have such a name."""
    known = {*dataset.scores, *dataset.choices}
    texts = {scores.text: scores.name for scores in dataset.scores.values() if scores.text}

    def find(name: str) -> str:
        return name if name in known else texts.get(normalize_text(name), name)

    return as_names([find(n) for name in names for n in ([name] if name in known else split_list(name))])


def _evaluate_aspect(
    aspect: RatingAspect | PreferenceAspect, plan: MetaPlan, progress: Callable[..., None] | None
) -> tuple[list[Figure], list[Tests]]:
    """Return the figures of each measure on each slice, then the means over the slices of each column."""
    figures: list[Figure] = []
    tests: list[Tests] = []
    slices = aspect.slices

    def report(measure: str, number: int, steps: int = 0) -> None:
        if progress:
            done, total = number * aspect.steps + steps, len(slices) * aspect.steps
            progress(done, total, metric=f"{aspect.aspect}, {measure}")

    for name in plan.measures:
        by_column: dict[str, list[Figure]] = {}
        for number, part in enumerate(slices):
            report(name, number)
            slice_figures, slice_tests = aspect.evaluate_slice(part, name, partial(report, name, number))
            by_column.setdefault(part.column, []).extend(slice_figures)
            figures += slice_figures
            tests += [slice_tests] if slice_tests else []
        for column in plan.slices:
            members = [part for part in slices if part.column == column]
            if members:
                figures += aspect.average_slices(members, name, by_column[column])
    return figures, tests


def _evaluate_raters(dataset: JudgedDataset, plan: MetaPlan) -> MetaEvaluation:
    """Return the evaluation without figures, for its analyses of raters; of all aspects if none is named."""
    if plan.preferences:
        check_preferences(plan)
        preference_aspects(dataset, plan.aspects)
        return MetaEvaluation(dataset=dataset, plan=plan, figures=(), notes=dataset.notes)
    known = _check_rated(dataset)
    golds, outputs = {}, {}
    for aspect in check_names("aspect", plan.aspects, known) if plan.aspects else known:
        golds[aspect] = compute_gold(dataset, aspect, plan.gold)
        outputs[aspect] = _participating_outputs(dataset, plan, golds[aspect])
    return MetaEvaluation(dataset=dataset, plan=plan, figures=(), golds=golds, outputs=outputs, notes=dataset.notes)


def needs_no_metric(dataset: JudgedDataset, analyses: Sequence[str]) -> bool:
    """Whether the data hold nothing to evaluate, and no analysis needs it."""
    return not dataset.scores and not dataset.choices and bool(analyses) and set(analyses) <= set(RATERS_ONLY)


def _prepare_aspects(dataset: JudgedDataset, plan: MetaPlan) -> list[RatingAspect]:
    """Check the settings against the data, and return what the figures of each rated aspect share."""
    _check_measures(dataset, plan)
    known = list(dataset.scores)
    if not known:
        raise RunError(
            "the data hold no scores to evaluate: run `metrist score FILE -m chrf -o run/`, then `metrist meta run/`, "
            f"or give records with 'scores' (`agreement` and `show=ratings` need none){_preferences_hint(dataset)}"
            f"{_column_hint(dataset, 'score')}",
            code="no_data",
        )
    names = known if plan.metrics is None else check_names("metric", plan.metrics, known)
    rated = _check_rated(dataset)
    if len(rated) > 1 and not plan.aspects:
        listed = " or ".join(f"`aspects={aspect!r}`" for aspect in rated)
        raise RunError(f"the data have several aspects, choose one or more: {listed}", code="missing_value")
    aspects = []
    for aspect in check_names("aspect", plan.aspects, rated) if plan.aspects else rated:
        gold = compute_gold(dataset, aspect, plan.gold)
        outputs = _participating_outputs(dataset, plan, gold)
        data = RatingAspect(
            dataset=resample_whole_groups(dataset, plan.group, outputs),
            plan=plan,
            aspect=aspect,
            gold=gold,
            outputs=outputs,
            metrics=tuple(dataset.scores[name] for name in names),
        )
        check_groups(data)
        aspects.append(data)
    return aspects


def _participating_outputs(dataset: JudgedDataset, plan: MetaPlan, gold: Floats) -> Codes:
    outputs = select_outputs(dataset, systems=plan.systems, exclude_systems=plan.exclude_systems)
    if plan.top_k is None:
        return outputs
    ranked = best_first(system_means(dataset, gold, outputs))  # Of equal systems, the first come first.
    if not 1 <= plan.top_k <= len(ranked):
        raise RunError(f"`top_k={plan.top_k}`: expected 1 to {len(ranked)} systems", code="invalid_value")
    return outputs[np.isin(dataset.systems.codes[outputs], ranked[: plan.top_k])]


def _check_rated(dataset: JudgedDataset) -> list[str]:
    if not dataset.ratings:
        errors = '; they hold errors: say who looked at each output, `"raters": ["ann", "ben"]`'
        raise RunError(
            f"the data hold no ratings to agree with: give the file that has them too{_preferences_hint(dataset)}"
            f"{_column_hint(dataset, 'rating')}{errors if dataset.errors else ''}",
            code="no_data",
        )
    return list(dataset.ratings)


def _preferences_hint(dataset: JudgedDataset) -> str:
    return "; they hold preferences: `preferences=True`" if dataset.preferences else ""


def _column_hint(dataset: JudgedDataset, kind: str) -> str:
    """Return the argument that reads columns of numbers as ratings or scores; empty if there are none.

    A number that all outputs of an item share, such as a year, judges none of them.
    """
    several = len(dataset.systems.names) > 1
    columns = []
    for name, labels in dataset.columns.items():
        numbers = labels.numbers()
        present = labels.codes >= 0
        if not present.any() or np.isnan(numbers[present]).any() or len(labels.names) < 2:
            continue
        pairs = np.unique(np.stack([dataset.items.codes[present], labels.codes[present]]), axis=1)
        if not several or len(np.unique(pairs[0])) < pairs.shape[1]:
            columns.append(name)
    if not columns:
        return ""
    fields = {f"{kind}:{name}": name for name in columns[:_MAX_HINTED]}
    return f"; to read columns of numbers as {kind}s: `fields={fields!r}`"


def _check_measures(dataset: JudgedDataset, plan: MetaPlan) -> None:
    """Raise an error early for unknown measures and columns, and for tests that do not fit a measure."""
    known = (*MEASURES, SOFT)
    for text in plan.measures:
        if soft_ties(text) is None:
            name = parse(text).name
            if name not in known:
                raise SpecError(
                    f"no measure named {name!r}{did_you_mean(name, known)} (known are {', '.join(known)})",
                    code="unknown_name",
                )
            measure(text)
            check_test(plan, text)
    _check_column(dataset, "group", plan.group, GROUPS)
    _check_column(dataset, "epsilon_over", plan.epsilon_over, EPSILON_OVER)
    for column in plan.slices:
        resolve_column(dataset, column, np.arange(len(dataset)))


def _check_column(dataset: JudgedDataset, argument: str, name: str, keywords: tuple[str, ...]) -> None:
    """Check for one of the argument's keywords or a column; for a misspelt name, suggest from both."""
    if name in keywords:
        return
    try:
        resolve_column(dataset, name, np.arange(len(dataset)))
    except RunError as error:
        hint = did_you_mean(name, keywords)
        if not hint:
            raise
        raise RunError(
            f"`{argument}='{name}'`: expected {', '.join(keywords)} or a column{hint} ({error})", code="invalid_value"
        ) from None
