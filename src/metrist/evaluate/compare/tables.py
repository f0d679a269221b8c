"""Tables of a comparison, with notes and remarks."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count

import numpy as np

from metrist.errors import agree, format_count
from metrist.evaluate.compare.alignment import describe_sources
from metrist.evaluate.compare.comparison import TEST_NAMES, Comparison, Marks, count_pairs
from metrist.evaluate.selection import choose_decimals
from metrist.metrics.base import Metric
from metrist.report.tables import (
    Change,
    Column,
    Count,
    Estimate,
    Marked,
    Name,
    Number,
    PValue,
    Signature,
    Table,
)
from metrist.run.results import SystemScore, score_column, sign_metrics
from metrist.stats.resampling import Test, smallest_p
from metrist.stats.significance import letters

_TEST_COLUMNS: Mapping[Test, str] = {"bootstrap": "p boot", "randomisation": "p rand"}
#: With fewer items than this, a percentile bootstrap is overconfident.
_FEW_ITEMS = 30


def make_pair_table(comparison: Comparison) -> Table:
    """One row per metric and pair."""
    tests = comparison.plan.tests
    # A paper has the scores in the table of systems, and the better one in bold.
    outside = [Column(name, "right", in_latex=False) for name in ("items", "score A", "score B")]
    numeric = [Column(name, "right") for name in ("A - B", *(_TEST_COLUMNS[test] for test in tests))]
    metrics = {metric.label: score_column(metric) for metric in comparison.metrics}
    rows = []
    for contest in comparison.contests:
        result, decimals = contest.test, choose_decimals(contest.metric, contest.test.first, contest.test.second)
        rows.append(
            [
                Name(contest.metric.label, column=metrics[contest.metric.label]),
                *(Name(system, strong=system == contest.winner) for system in (contest.first, contest.second)),
                Count(contest.items),
                Number(result.first, decimals),
                Number(result.second, decimals),
                Change(result.difference, result.low, result.high, decimals),
                *(PValue(contest.adjusted[test]) for test in tests),
                contest.verdict,
            ]
        )
    return Table(
        title="Which system is better",
        columns=[*map(Column, ("metric", "A", "B")), *outside, *numeric, Column("better", in_latex=False)],
        rows=rows,
        notes=_table_notes(comparison),
        remarks=_table_remarks(comparison),
        signatures=_sign(comparison),
    )


def make_system_table(comparison: Comparison, marks: Marks | None = None) -> Table:
    """One row per system and one column per metric, with marks of significance: by default letters, or daggers
    where each system was compared with a baseline only."""
    plan, metrics = comparison.plan, comparison.metrics
    marks = plan.choose_marks(marks)
    systems = list(comparison.scores)
    columns: list[list[Marked]] = []
    complete = True
    for number, metric in enumerate(metrics):
        scores = {system: own[number] for system, own in comparison.scores.items()}
        own_marks = _mark_systems(metric, scores, comparison, marks)
        complete &= own_marks is not None
        decimals = choose_decimals(metric, *(score.value for score in scores.values() if np.isfinite(score.value)))
        room = max(map(len, (own_marks or {}).values()), default=0)
        columns.append(
            [
                Marked(Estimate(s.value, s.low, s.high, decimals, "none"), (own_marks or {}).get(s.system, ""), room)
                for s in scores.values()
            ]
        )
    tests = " and ".join(TEST_NAMES[test] for test in plan.tests)
    how = f"{tests}, Holm-corrected, alpha {plan.alpha:g}"
    notes, remarks = list[str](), list[str]()
    if marks == "letters":
        notes.append(f"Systems that share a letter do not differ significantly by the metric ({how}).")
        if not complete:
            remarks.append("Too many groups for letters: see the list of pairs.")
    elif marks == "daggers" and plan.baseline is None:
        notes.append(f"† significantly worse than the best system ({how}).")
    elif marks == "daggers":
        notes.append(f"† significantly better than {plan.baseline}, ‡ significantly worse ({how}).")
    if lower := [metric.label for metric in metrics if metric.higher_is_better is False]:
        notes.append(f"Lower is better: {', '.join(lower)}.")
    if any(contest.left_out for contest in comparison.contests):
        notes.append("Scores are of all outputs that have one; a pair is tested on the items that both systems share.")
    return Table(
        title="System scores",
        columns=[Column("system"), *(score_column(metric) for metric in metrics)],
        rows=[[system, *(column[row] for column in columns)] for row, system in enumerate(systems)],
        notes=notes,
        remarks=[*remarks, *_table_remarks(comparison)],
        signatures=_sign(comparison),
    )


def _mark_systems(
    metric: Metric, scores: Mapping[str, SystemScore], comparison: Comparison, marks: Marks
) -> dict[str, str] | None:
    """The marks of each system under a metric; None if letters do not suffice."""
    contests = [contest for contest in comparison.contests if contest.metric is metric and contest.differs]
    sign = -1 if metric.higher_is_better is False else 1
    # Systems without a score come last.
    order = sorted(scores, key=lambda system: (np.isnan(scores[system].value), -sign * scores[system].value))
    if marks == "letters":
        different = np.zeros((len(order), len(order)), dtype=np.bool_)
        for contest in contests:
            first, second = order.index(contest.first), order.index(contest.second)
            different[first, second] = different[second, first] = True
        own = letters(different)
        if own is None:
            return None
        # What was not tested does not differ either: a letter would say more than is known.
        return {s: "" if np.isnan(scores[s].value) else marked for s, marked in zip(order, own, strict=True)}
    if marks == "none" or metric.higher_is_better is None:
        return {}
    baseline = comparison.plan.baseline
    if baseline is None:
        losers = [c.second if c.winner == c.first else c.first for c in contests if order[0] == c.winner]
        return dict.fromkeys(losers, "†")
    return {
        system: "†" if contest.winner == system else "‡"
        for contest in contests
        for system in (contest.first, contest.second)
        if system != baseline
    }


def _table_notes(comparison: Comparison) -> list[str]:
    plan, contests = comparison.plan, comparison.contests
    pairs = count_pairs(contests)
    tests = " and ".join(TEST_NAMES[test] for test in plan.tests)
    both = "both p-values are" if len(plan.tests) > 1 else "the p-value is"
    corrected = f", Holm-corrected over the {pairs:,} pairs of each metric" if pairs > 1 else ""
    notes = [
        f"A - B with its 95 % bootstrap interval; p-values of {tests} are two-sided, from {plan.draws:,} "
        f"draws{corrected}.",
        f"A system is named as better when {both} at most {plan.alpha:g}.",
    ]
    if lower := dict.fromkeys(c.metric.label for c in contests if c.metric.higher_is_better is False):
        notes.append(f"Lower is better: {', '.join(lower)}.")
    if left_out := max((contest.left_out - contest.separated for contest in contests), default=0):
        notes.append(f"Items missing or failed for one of the two systems are left out: up to {left_out} of a pair.")
    return notes


def _table_remarks(comparison: Comparison) -> list[str]:
    plan, contests = comparison.plan, comparison.contests
    pairs, remarks = count_pairs(contests), list[str]()
    if pairs / (plan.draws + 1) > plan.alpha:
        remarks.append(
            f"With {format_count(pairs, 'pair')}, {plan.draws:,} draws cannot reach {plan.alpha:g}: increase draws "
            "(--draws)."
        )
    remarks += describe_sources({(c.first, c.second): (c.different, c.separated) for c in contests if c.different})
    if too_few := [contest.items for contest in contests if not contest.testable and not contest.differs]:
        needed = next(n for n in count(2) if pairs * smallest_p("randomisation", n) <= plan.alpha)
        remarks.append(
            f"No difference on {format_count(max(too_few), 'item')} is significant at {plan.alpha:g}, however large: "
            f"{format_count(pairs, 'pair')} {agree(pairs, 'needs', 'need')} at least {needed} items."
        )
    if not all(contest.common for contest in contests):
        remarks.append("Systems that share no item are not tested: check that their rows name the items alike.")
    if any(0 < contest.items < _FEW_ITEMS for contest in contests):
        remarks.append(
            f"Fewer than {_FEW_ITEMS} items: the bootstrap's intervals and p-values are overconfident; trust "
            "randomisation."
        )
    return [*remarks, *comparison.notes]


def _sign(comparison: Comparison) -> list[Signature]:

    return sign_metrics(comparison.metrics, comparison.signatures, comparison.reference_counts)
