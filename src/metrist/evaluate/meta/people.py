"""An evaluation without metrics: what can be said of the people alone, such as how far they agree."""

from __future__ import annotations

from collections.abc import Sequence

from metrist.errors import RunError
from metrist.evaluate.meta.judged import Judged, chosen
from metrist.evaluate.meta.pairs import aspects_of_preferences
from metrist.evaluate.meta.plan import Plan
from metrist.evaluate.meta.preferring import check_preferences
from metrist.evaluate.meta.result import MetaEvaluation
from metrist.evaluate.meta.samples import gold_of
from metrist.evaluate.meta.slices import chosen_outputs, top_systems

#: The analyses that look at no score.
OF_PEOPLE = ("agreement", "strengths")


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
    return not judged.scores and not judged.choices and bool(show) and set(show) <= set(OF_PEOPLE)
