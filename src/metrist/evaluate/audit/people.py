"""How far the judge agrees with people, with the reference in the prompt and without it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from metrist.errors import MetristError
from metrist.evaluate.audit.card import Finding
from metrist.evaluate.audit.certainty import Floats, share, unmeasured
from metrist.evaluate.audit.material import Material
from metrist.evaluate.meta import meta_evaluate
from metrist.metrics.comparator import Judgment

_MEASURES = ("acc_eq", "spearman")


def people_findings(material: Material, grades: Mapping[str, Floats], lower_is_better: bool) -> list[Finding]:
    """Agreement of each column of grades, by aspect that people rated: pairwise accuracy with ties, and rank
    correlation, on all outputs together."""
    if not material.ratings:
        return [unmeasured("people", "agreement with ratings", "the data have no human ratings")]
    told = {name: column for name, column in grades.items() if not all(map(math.isnan, column))}
    if not told:
        return [unmeasured("people", "agreement with ratings", "no output has a grade")]
    try:
        found = meta_evaluate(
            list(_rows(material, told)),
            list(material.ratings),
            list(_MEASURES),
            group="none",
            test="none",
            lower_is_better=list(told) if lower_is_better else (),
        )
    except MetristError as fault:
        return [unmeasured("people", "agreement with ratings", str(fault))]
    return [
        Finding(
            part="people",
            name=f"{figure.measure} with {figure.aspect}, {figure.metric}",
            value=figure.value,
            low=figure.low,
            high=figure.high,
            n=figure.n,
            unit="outputs",
            beside=_baselines(figure.chance, figure.all_ties),
            details={} if math.isnan(figure.chance) else {"chance": figure.chance, "all_ties": figure.all_ties},
        )
        for figure in found.figures
        if figure.metric in told and not math.isnan(figure.value)
    ]


def _baselines(chance: float, all_ties: float) -> str:
    """What a metric reaches that knows nothing: pairwise accuracy is no share of which half would be chance."""
    if math.isnan(chance) or math.isnan(all_ties):
        return ""
    return f"chance {chance:.3f}, all ties {all_ties:.3f}"


def choice_findings(material: Material, judgments: Sequence[Judgment]) -> list[Finding]:
    """How often the judge chooses between two outputs as most people did."""
    findings = []
    for aspect, votes in material.votes.items():
        keys = [(pair.first.item, pair.first.system, pair.second.system) for pair in material.pairs]
        sides = zip(map(votes.choice, keys), (one.preference for one in judgments), strict=True)
        both = [(human, own) for human, own in sides if human is not None and own is not None]
        hits = sum(human == own for human, own in both)
        coin = sum(human != "tie" for human, _ in both) / 2 / len(both) if both else math.nan
        name = f"choices as people's by {aspect}"
        told = share("people", name, hits, len(both), "pairs", details={"chance": coin})
        findings.append(replace(told, beside="" if math.isnan(coin) else f"chance {coin:.3f}"))
    return findings


def _rows(material: Material, grades: Mapping[str, Floats]) -> list[dict[str, Any]]:
    rows = []
    for i, record in enumerate(material.records):
        key = (record.item, record.system)
        ratings = {aspect: column[key] for aspect, column in material.ratings.items() if key in column}
        scores = {name: float(column[i]) for name, column in grades.items() if not math.isnan(column[i])}
        rows.append(
            {
                "item": record.item,
                "system": record.system,
                "output": record.output,
                "ratings": ratings,
                "scores": scores,
            }
        )
    return rows
