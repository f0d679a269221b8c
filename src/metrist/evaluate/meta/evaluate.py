"""An evaluation without metrics: what can be said of the people alone, such as how far they agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from metrist.errors import RunError, SpecError, did_you_mean
from metrist.evaluate.meta.dataset import Judged, Scored, chosen, gold_of
from metrist.evaluate.meta.estimates import Work, check_crossfit, check_groups
from metrist.evaluate.meta.figures import SOFT, ceiling_figure, has_ceiling, mean_figures, slice_figures
from metrist.evaluate.meta.join import join
from metrist.evaluate.meta.metric_tests import check_test
from metrist.evaluate.meta.notes import (
    direction_notes,
    few_notes,
    missing_notes,
    opposed_metrics,
    plan_notes,
    reversal_notes,
    skew_notes,
)
from metrist.evaluate.meta.preferences import (
    PREFERRED_GOLDS,
    aspects_of_preferences,
    check_preferences,
    evaluate_preferences,
    with_preferred_gold,
)
from metrist.evaluate.meta.results import (
    EPSILON_OVER,
    GROUPS,
    Average,
    Correction,
    Figure,
    MetaEvaluation,
    Plan,
    Resample,
    Tests,
    names,
)
from metrist.evaluate.meta.slices import chosen_outputs, column_of, slices_of, top_systems, with_whole_groups
from metrist.spec import parse
from metrist.stats.measures import MEASURES, measure

#: The analyses that look at no score.
RATERS_ONLY = ("agreement", "strengths")


def evaluate_people(judged: Judged, plan: Plan) -> MetaEvaluation:
    """The evaluation without figures, for its analyses; all aspects where none is named."""
    if plan.preferences:
        check_preferences(plan)
        aspects_of_preferences(judged, plan.aspects)
        return MetaEvaluation(judged=judged, plan=plan, figures=(), notes=judged.notes)
    if not judged.ratings:
        hint = "; they hold preferences: --preferences" if judged.preferences else ""
        raise RunError(f"the data hold no ratings: give the file that has them{hint}")
    aspects = chosen("aspect", plan.aspects, list(judged.ratings)) if plan.aspects else list(judged.ratings)
    outputs = chosen_outputs(judged, systems=plan.systems, exclude_systems=plan.exclude_systems)
    golds = {aspect: gold_of(judged, aspect, plan.gold) for aspect in aspects}
    kept = {
        aspect: outputs if plan.top_k is None else top_systems(judged, gold, outputs, plan.top_k)
        for aspect, gold in golds.items()
    }
    return MetaEvaluation(judged=judged, plan=plan, figures=(), golds=golds, outputs=kept, notes=judged.notes)


def needs_no_metric(judged: Judged, show: Sequence[str]) -> bool:
    """Whether the data hold nothing to judge, and nothing was asked for that would need it."""
    return not judged.scores and not judged.choices and bool(show) and set(show) <= set(RATERS_ONLY)


# `meta_evaluate`: how far each metric can be trusted, on which slice, with what certainty.


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
    average: Average = "macro",
    group_average: Average = "macro",
    resample: Resample = "items",
    draws: int = 1000,
    seed: int = 0,
    confidence: float = 0.95,
    alpha: float = 0.05,
    correction: Correction = "holm",
    test: str = "auto",
    part: str | Sequence[str] = (),
    metrics: str | Sequence[str] | None = None,
    systems: Sequence[str] | None = None,
    exclude_systems: str | Sequence[str] = (),
    top_k: int | None = None,
    lower_is_better: str | Sequence[str] = (),
    marked: str | Sequence[str] = (),
    item_key: Sequence[str] = (),
    fields: Mapping[str, str] | None = None,
    skip_bad: bool = False,
    system: str | None = None,
) -> MetaEvaluation:
    """How well metrics agree with human judgments.

    `data` is a file of records with `ratings` and `scores`, a run folder, results, rows, or a list of such sources,
    which are joined by item and system. `aspects` are the ratings to agree with (the only one, where there is one);
    with `preferences` they are choices between two outputs. `measures` are acc_eq where none is named, on preferences
    accuracy and f1. Without any metric (`metrics=()`) there are no figures, only analyses of the people. The other
    settings are explained in docs/meta.md.
    """
    judged = join(
        data,
        item_key=item_key,
        fields=fields,
        skip_bad=skip_bad,
        system=system,
        parts=names(part),
        lower_is_better=names(lower_is_better),
    )
    plan = Plan(
        aspects=names(aspects),
        measures=names(measures) or (("accuracy", "f1") if preferences else ("acc_eq",)),
        group=group,
        slices=names(slices),
        gold=gold,
        preferences=preferences,
        epsilon_over=epsilon_over,
        average=average,
        group_average=group_average,
        resample=resample,
        draws=draws,
        seed=seed,
        confidence=confidence,
        alpha=alpha,
        correction=correction,
        test=test,
        metrics=None if metrics is None else names(metrics),
        systems=None if systems is None else names(list(systems)),
        exclude_systems=names(exclude_systems),
        top_k=top_k,
        marked=names(marked),
    )
    return evaluate(judged, plan)


def evaluate(judged: Judged, plan: Plan) -> MetaEvaluation:
    """The evaluation that the plan describes."""
    if plan.metrics == ():
        return evaluate_people(judged, plan)
    if plan.preferences:
        return evaluate_preferences(judged, plan)
    if plan.gold in PREFERRED_GOLDS:
        found = evaluate(with_preferred_gold(judged, plan), replace(plan, gold="mean"))
        return replace(found, plan=plan, notes=(PREFERRED_GOLDS[plan.gold], *found.notes))
    _check(judged, plan)
    metrics = chosen_metrics(judged, plan.metrics)
    works = [_work(judged, plan, aspect, metrics) for aspect in _aspects(judged, plan)]
    figures: list[Figure] = []
    tests: list[Tests] = []
    notes: list[str] = []
    for work in works:
        check_groups(work)
        check_crossfit(work)
        made, tested = _aspect_figures(work)
        figures, tests = figures + made, tests + tested
        slices = slices_of(judged, plan.slices, work.outputs)
        notes += [*missing_notes(work), *few_notes(work, slices), *skew_notes(work, made), *work.judged.notes]
    _check_met(judged, figures)
    opposed = [name for work in works for name in opposed_metrics(work)]
    notes = [*plan_notes(plan, figures, tests), *reversal_notes(tests, plan.alpha), *notes]
    about = [*notes, *direction_notes(metrics, opposed), *judged.notes]
    return MetaEvaluation(
        judged=judged,
        plan=plan,
        figures=tuple(figures),
        tests=tuple(tests),
        golds={work.aspect: work.gold for work in works},
        outputs={work.aspect: work.outputs for work in works},
        notes=tuple(dict.fromkeys(about)),
    )


def _check_met(judged: Judged, figures: Sequence[Figure]) -> None:
    if not any(figure.n for figure in figures):
        items = " and ".join(repr(name) for name in judged.items.names[:: max(1, len(judged.items.names) - 1)][:2])
        raise RunError(
            "no output has both a rating and a score: do the files name their items and systems alike? "
            f"Items are such as {items}; --item-key builds them from fields"
        )


def chosen_metrics(judged: Judged, wanted: Sequence[str] | None) -> tuple[Scored, ...]:
    """The metrics to be judged: those asked for, by name, or all."""
    known = list(judged.scores)
    if not known:
        hint = "; they hold preferences: --preferences" if judged.preferences else ""
        raise RunError(
            "the data hold no scores to judge: give records with 'scores', or the run folder that `metrist score` "
            f"wrote (--agreement needs none){hint}"
        )
    return tuple(judged.scores[name] for name in (known if wanted is None else chosen("metric", wanted, known)))


def _check(judged: Judged, plan: Plan) -> None:
    """Refuse what could only fail later: unknown measures and columns, and tests that do not fit a measure."""
    for name in plan.measures:
        if name != SOFT:
            _check_measure(name)
            check_test(plan, name)
    _check_column(judged, "--group", plan.group, GROUPS)
    _check_column(judged, "--epsilon-over", plan.epsilon_over, EPSILON_OVER)
    for column in plan.slices:
        column_of(judged, column, np.arange(len(judged)))


def _check_measure(text: str) -> None:
    name, known = parse(text).name, (*MEASURES, SOFT)
    if name not in known:
        raise SpecError(f"no measure named {name!r}{did_you_mean(name, known)} (known are {', '.join(known)})")
    measure(text)


def _check_column(judged: Judged, option: str, name: str, words: tuple[str, ...]) -> None:
    """A word that the option knows, or a column; whoever misspelt one is told of both."""
    if name in words:
        return
    try:
        column_of(judged, name, np.arange(len(judged)))
    except RunError as error:
        near = did_you_mean(name, words)
        if not near:
            raise
        raise RunError(f"{option} {name}: wanted {', '.join(words)} or a column{near} ({error})") from None


def _aspects(judged: Judged, plan: Plan) -> list[str]:
    known = list(judged.ratings)
    if known and plan.aspects:
        return chosen("aspect", plan.aspects, known)
    if len(known) == 1:
        return known
    if not known:
        hint = "; they hold preferences: --preferences" if judged.preferences else ""
        raise RunError(f"the data hold no ratings to agree with: give the file that has them too{hint}")
    raise RunError(f"say which aspect to agree with: --aspect {' or --aspect '.join(known)}")


def _work(judged: Judged, plan: Plan, aspect: str, metrics: tuple[Scored, ...]) -> Work:
    gold = gold_of(judged, aspect, plan.gold)
    outputs = chosen_outputs(judged, systems=plan.systems, exclude_systems=plan.exclude_systems)
    if plan.top_k is not None:
        outputs = top_systems(judged, gold, outputs, plan.top_k)
    drawn = with_whole_groups(judged, plan.group, outputs)
    return Work(judged=drawn, plan=plan, aspect=aspect, gold=gold, outputs=outputs, metrics=metrics)


def _aspect_figures(work: Work) -> tuple[list[Figure], list[Tests]]:
    figures: list[Figure] = []
    tests: list[Tests] = []
    slices = slices_of(work.judged, work.plan.slices, work.outputs)
    with_humans = has_ceiling(work)
    for name in work.plan.measures:
        by_column: dict[str, list[Figure]] = {}
        for one in slices:
            made, tested = slice_figures(work, one, name)
            by_column.setdefault(one.column, []).extend(made)
            human = ceiling_figure(work, one, name) if with_humans else None
            figures += [*made, *([human] if human else [])]
            tests += [tested] if tested else []
        for column in work.plan.slices:
            if name != SOFT:
                parts = [one for one in slices if one.column == column]
                figures += mean_figures(work, parts, name, by_column[column])
    return figures, tests
