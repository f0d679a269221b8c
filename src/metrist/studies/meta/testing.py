"""Is one metric better than another, or is it luck? All pairs of metrics of one table.

auto          exchange what is resampled where the exchanged rows add up (macro averages over the very items or systems,
              Pearson's correlation of all outputs), else the paired bootstrap
permutation   paired permutation tests, by whole items, systems, or single outputs
bootstrap     the paired bootstrap
sign          mt-metrics-eval's test of pairs of outputs as if they were independent, computed exactly
williams      Williams' test of two Pearson correlations
none          no tests
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

import numpy as np

from metrist.errors import RunError
from metrist.meta.between import permutation_tests
from metrist.meta.certainty import bootstrap_gaps
from metrist.meta.measures import Measure
from metrist.meta.multiple import adjust
from metrist.meta.pair_signs import pair_wins, sign_test
from metrist.meta.panel import Pairs, Panel, batches
from metrist.meta.williams import williams_of
from metrist.studies.meta.grouped import group_codes
from metrist.studies.meta.judged import Codes, Floats
from metrist.studies.meta.plan import Plan
from metrist.studies.meta.result import Tests
from metrist.studies.meta.samples import taken
from metrist.studies.meta.tail_p_values import exchange_p_values, with_tails
from metrist.studies.meta.work import CALIBRATED, Laid, Work

_UNITS = {"items": "item", "systems": "system"}


def tests_between(work: Work, laid: Laid, values: Floats) -> Tests:
    """p-values of all pairs of metrics, as computed and adjusted for their number."""
    pairs = list(combinations(range(len(values)), 2))
    known = [pair for pair in pairs if not np.isnan(values[list(pair)]).any()]
    how, p = _p_values(work, laid, known) if known and work.plan.draws else ("no tests", np.empty(0))
    raw, adjusted = (np.full((len(values), len(values)), np.nan) for _ in range(2))
    first, second = np.array(known, dtype=np.intp).reshape(-1, 2).T
    for table, column in ((raw, p), (adjusted, adjust(p, work.plan.correction) if len(p) else p)):
        if len(column):
            table[first, second] = table[second, first] = column
    return Tests(
        aspect=work.aspect,
        measure=laid.measure,
        slice=laid.slice.name,
        metrics=tuple(metric.name for metric in work.metrics),
        values=values,
        raw=raw,
        adjusted=adjusted,
        how=how,
    )


def _p_values(work: Work, laid: Laid, pairs: Pairs) -> tuple[str, Floats]:
    plan, rng = work.plan, np.random.default_rng(work.plan.seed)
    match _kind(work, laid):
        case "none":
            return "no tests", np.empty(0)
        case "exchange":
            codes = laid.panel.item if plan.group == "item" else laid.panel.system
            return f"permutation of whole {plan.resample}", _exchange(laid, pairs, codes, plan.draws, rng)
        case "sign":
            return "exact sign test of pairs of outputs", _signs(work, laid, pairs, rng)
        case "williams":
            return "Williams' test", np.array([_williams(laid.panel, a, b) for a, b in pairs])
        case "bootstrap":
            return f"paired bootstrap of {_drawn(plan.resample)}", _bootstrap(plan, laid, pairs, rng)
    found = permutation_tests(
        laid.measures[0],
        laid.panel,
        pairs,
        laid.grouping,
        plan.group_average,
        exchange=plan.resample,
        draws=plan.draws,
        rng=rng,
        alpha=plan.alpha,
    )
    return f"permutation of {_drawn(plan.resample)}", np.array([test.p for test in found])


def _kind(work: Work, laid: Laid) -> str:
    plan = work.plan
    whole = isinstance(laid.grouping, str) and laid.grouping == _UNITS.get(plan.resample)
    if plan.test in ("auto", "permutation") and whole and plan.group_average == "macro":
        return "exchange"
    if plan.test == "auto":
        linear = laid.measure == "pearson" and isinstance(laid.grouping, str) and laid.grouping == "none"
        return "permutation" if linear else "bootstrap"
    if plan.test == "sign" and laid.measure != CALIBRATED:
        raise RunError(f"the sign test is of pairwise accuracy with ties (acc_eq), not of {laid.measure}")
    if plan.test == "williams" and (laid.measure != "pearson" or plan.group != "none"):
        raise RunError("Williams' test is of Pearson correlations over all outputs: --measure pearson --group none")
    return plan.test


def _bootstrap(plan: Plan, laid: Laid, pairs: Pairs, rng: np.random.Generator) -> Floats:
    gaps = bootstrap_gaps(
        laid.measures,
        laid.panel,
        pairs,
        laid.grouping,
        plan.group_average,
        over=plan.resample,
        draws=plan.draws,
        rng=rng,
    )
    z = [abs(gap.value) / gap.standard_error if gap.standard_error > 0 else math.nan for gap in gaps]
    return with_tails(np.array([gap.p for gap in gaps]), np.array(z), plan.draws)


def _exchange(laid: Laid, pairs: Pairs, codes: Codes, draws: int, rng: np.random.Generator) -> Floats:
    """Whole groups change hands between two metrics, each with its own measure (its own threshold)."""
    found = np.full(len(pairs), np.nan)
    (source,) = rng.spawn(1)
    state = source.bit_generator.state
    for batch in batches(laid.panel, pairs):
        source.bit_generator.state = state
        rows = _rows(batch.panel, [laid.measures[metric] for metric in batch.metrics], codes[batch.outputs])
        found[batch.positions] = exchange_p_values(rows, batch.pairs, _mean, draws, source)
    return found


def _rows(panel: Panel, measures: Sequence[Measure], codes: Codes) -> Floats:
    """(metrics, groups, 2): a group's value and 1, or twice 0 where the measure is undefined in it."""
    order = np.argsort(codes, kind="stable")
    present = np.unique(codes)
    starts = np.append(np.searchsorted(codes[order], present), len(codes))
    once = np.ones((1, len(order)))
    values = [
        own.pool(own.grouped_rows(panel.human[order], column[order], once, starts))[0]
        for own, column in zip(measures, panel.metrics, strict=True)
    ]
    known = ~np.isnan(values)
    return np.stack([np.where(known, values, 0.0), known.astype(np.float64)], axis=-1)


def _mean(sums: Floats) -> Floats:
    total, count = sums[..., 0], sums[..., 1]
    means: Floats = np.divide(total, count, out=np.full(count.shape, np.nan), where=count > 0)
    return means


def _signs(work: Work, laid: Laid, pairs: Pairs, rng: np.random.Generator) -> Floats:
    found = np.full(len(pairs), np.nan)
    part = taken(work.judged, work.gold, work.gold, laid.outputs)
    groups = group_codes(work.judged, work.plan.group, part) if isinstance(laid.grouping, str) else laid.grouping
    for batch in batches(laid.panel, pairs):
        wins = pair_wins(batch.panel.human, batch.panel.metrics, laid.ties[batch.metrics], groups[batch.outputs])
        for position, (first, second) in zip(batch.positions, batch.pairs, strict=True):
            found[position] = sign_test(wins, first, second, rng).p
    return found


def _williams(panel: Panel, first: int, second: int) -> float:
    scored = panel.take(panel.scored((first, second)), [first, second])
    return williams_of(scored.human, scored.metrics[0], scored.metrics[1]).p


def _drawn(what: str) -> str:
    return "items and systems" if what == "both" else what
