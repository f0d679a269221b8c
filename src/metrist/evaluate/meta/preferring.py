"""Meta-evaluation on preferences: does a metric choose as people do between two outputs?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from metrist.errors import RunError, SpecError, did_you_mean
from metrist.evaluate.meta.judged import Judged
from metrist.evaluate.meta.notes import direction_notes, plan_notes, reversal_notes
from metrist.evaluate.meta.pairs import Chooser, ChosenPairs, aspects_of_preferences, choosers, gold_pairs
from metrist.evaluate.meta.plan import Plan
from metrist.evaluate.meta.preference_measures import PREFERENCE_MEASURES
from metrist.evaluate.meta.preferred_figures import PreferenceWork, preference_figures, preference_means
from metrist.evaluate.meta.preferred_gold import PREFERRED_GOLDS
from metrist.evaluate.meta.result import Figure, MetaEvaluation, Tests
from metrist.evaluate.meta.slices import Slice, slices_of
from metrist.stats.tail_p_values import FEW_UNITS

_TESTS = ("auto", "permutation", "none")


def evaluate_preferences(judged: Judged, plan: Plan) -> MetaEvaluation:
    """Figures for every aspect that people were asked to choose by."""
    check_preferences(plan)
    figures: list[Figure] = []
    tests: list[Tests] = []
    notes: list[str] = []
    for aspect in aspects_of_preferences(judged, plan.aspects):
        pairs = gold_pairs(judged, plan, aspect)
        found = choosers(judged, pairs, plan.metrics)
        work = PreferenceWork(judged=judged, plan=plan, aspect=aspect, pairs=pairs, choosers=found)
        made, tested = _aspect_figures(work)
        figures, tests = figures + made, tests + tested
        notes += [*_notes(pairs, found, aspect), *_few_items(work)]
    notes = [*plan_notes(plan, figures, tests), *reversal_notes(tests, plan.alpha), *notes]
    about = [*notes, *direction_notes(list(judged.scores.values()))]
    return MetaEvaluation(
        judged=judged,
        plan=plan,
        figures=tuple(figures),
        tests=tuple(tests),
        notes=(*dict.fromkeys(about), *judged.notes),
    )


def check_preferences(plan: Plan) -> None:
    """Refuse what has no meaning between two outputs, rather than pass over it."""
    for name in plan.measures:
        if name not in PREFERENCE_MEASURES:
            known = ", ".join(PREFERENCE_MEASURES)
            raise SpecError(
                f"no measure of preferences {name!r}{did_you_mean(name, PREFERENCE_MEASURES)} (known: {known})"
            )
    if plan.gold in PREFERRED_GOLDS:
        raise RunError(f"--gold {plan.gold} gives outputs a value to agree with: leave --preferences out")
    if plan.epsilon_over not in ("all", "slice"):
        raise RunError(
            f"on preferences a tie threshold is chosen over all or per slice, not over {plan.epsilon_over!r}"
        )
    if plan.group != "item":
        raise RunError(
            f"--group {plan.group}: on preferences the pairs that people saw are compared, and no others; leave "
            "--group out, use --slice, or agree with win rates (--gold win-rate --group system-level, without "
            "--preferences)"
        )
    if plan.group_average != "macro":
        raise RunError("--group-average: on preferences all pairs of a slice are counted together, there are no groups")
    if plan.resample != "items":
        raise RunError(f"--resample {plan.resample}: on preferences items are resampled, with all their pairs")
    if plan.test not in _TESTS:
        raise RunError(
            f"--test {plan.test}: on preferences metrics are tested by exchanging whole items; wanted one of "
            f"{', '.join(_TESTS)}"
        )


def _aspect_figures(work: PreferenceWork) -> tuple[list[Figure], list[Tests]]:
    figures: list[Figure] = []
    tests: list[Tests] = []
    slices = _slices(work.judged, work.plan, work.pairs)
    for name in work.plan.measures:
        for one in slices:
            made, tested = preference_figures(work, one, name)
            figures, tests = figures + made, [*tests, tested]
        for column in work.plan.slices:
            parts = [one for one in slices if one.column == column]
            figures += preference_means(work, parts, name) if parts else []
    return figures, tests


def _slices(judged: Judged, plan: Plan, pairs: ChosenPairs) -> list[Slice]:
    """Slices of pairs, by what both outputs share; `outputs` of such a slice are the pairs' numbers."""
    everyone = np.unique(np.concatenate([pairs.first, pairs.second]))
    made = []
    for one in slices_of(judged, plan.slices, everyone):
        inside = np.zeros(len(judged), dtype=np.bool_)
        inside[one.outputs] = True
        kept = np.flatnonzero(inside[pairs.first] & inside[pairs.second])
        if len(kept):
            made.append(replace(one, outputs=kept))
    return made


def _few_items(work: PreferenceWork) -> list[str]:
    items = len(np.unique(work.judged.items.codes[work.pairs.first]))
    if not work.plan.draws or items >= FEW_UNITS:
        return []
    return [
        f"Warning: resampled from only {items} items ({work.aspect}): with fewer than {FEW_UNITS}, intervals are too "
        "narrow and tests find little."
    ]


def _notes(pairs: ChosenPairs, found: Sequence[Chooser], aspect: str) -> list[str]:
    share = {name: np.count_nonzero(pairs.human == value) for name, value in (("first", 1), ("second", -1), ("tie", 0))}
    total = len(pairs.human)
    most, count = max(share.items(), key=lambda entry: entry[1])
    notes = [f"{aspect}: humans prefer one output in {total - share['tie']:,} of {total:,} pairs and tie the rest."]
    if count >= 0.9 * total:
        notes.append(f"Warning: humans choose {most!r} in {count / total:.0%} of the pairs of {aspect}.")
    missing = {chooser.name: int(np.isnan(chooser.leaning).sum()) for chooser in found}
    short = ", ".join(f"{name} {count:,}" for name, count in list(missing.items())[:5] if count)
    return notes + (
        [f"Pairs without a choice or without both scores, left out for that metric: {short}."] if short else []
    )
