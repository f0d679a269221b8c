"""What a comparison found, and its tables with notes and remarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from metrist.errors import RunError, agree, format_count
from metrist.evaluate.selection import choose_decimals, list_owners
from metrist.metrics.base import Metric
from metrist.report.scores import score_column, sign_metrics
from metrist.report.tables import (
    Change,
    Column,
    Count,
    Estimate,
    Marked,
    MetricSignature,
    NameCell,
    Number,
    PValue,
    Table,
    or_none,
)
from metrist.run.results import SystemScore, name_in_papers
from metrist.stats.resampling import PairTest, Test, smallest_p
from metrist.stats.significance import letters

#: What marks significance in the table of systems: letters that systems share unless they differ, or daggers at those
#: that differ from the baseline or from the best system.
Marks = Literal["letters", "daggers", "none"]
TEST_NAMES: Mapping[Test, str] = {"bootstrap": "the paired bootstrap", "randomisation": "approximate randomisation"}
TEST_CITATIONS: Mapping[Test, str] = {
    "bootstrap": "koehn-2004-statistical",
    "randomisation": "riezler-maxwell-2005-pitfalls",
}
_TEST_COLUMNS: Mapping[Test, str] = {"bootstrap": "p boot", "randomisation": "p rand"}
#: With fewer items than this, a percentile bootstrap is overconfident.
_FEW_ITEMS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonPlan:
    """The settings of a comparison."""

    tests: tuple[Test, ...]
    draws: int
    seed: int
    alpha: float
    confidence: float = 0.95
    baseline: str | None = None

    def choose_marks(self, marks: Marks | None) -> Marks:
        """The marks of significance: by default letters, with a baseline daggers."""
        if marks == "letters" and self.baseline is not None:
            raise RunError(
                "letters need tests of all pairs of systems, not only against a baseline: use daggers", code="conflict"
            )
        return marks or ("letters" if self.baseline is None else "daggers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """Two systems under one metric. `adjusted` holds the p-values after Holm's correction over the metric's pairs."""

    metric: Metric
    first: str
    second: str
    items: int
    #: As in `PairFacts`.
    common: int
    left_out: int
    different: int
    separated: int
    test: PairTest
    adjusted: Mapping[Test, float]
    winner: str | None
    #: Whether the two differ significantly, also where neither side is better.
    differs: bool = False
    #: Whether the test can find a difference on so many items at all.
    testable: bool = True

    @property
    def tested(self) -> bool:
        """Whether there are p-values: the metric has scored both systems on some items."""
        return not any(map(np.isnan, self.adjusted.values()))

    @property
    def verdict(self) -> str:
        """The winner's name, or why there is none."""
        if self.winner is not None:
            return self.winner
        if self.metric.higher_is_better is None:
            return "(descriptive)"
        if not self.tested:
            return "not tested"
        return "not separated" if self.testable else f"cannot be separated with {format_count(self.items, 'item')}"

    def to_dict(self) -> dict[str, Any]:
        """All numbers as plain data; NaN is None."""
        return {
            "metric": self.metric.label,
            "first": self.first,
            "second": self.second,
            "items": self.items,
            "left_out": self.left_out,
            "different_sources": self.different,
            "first_score": or_none(self.test.first),
            "second_score": or_none(self.test.second),
            "difference": or_none(self.test.difference),
            "low": or_none(self.test.low),
            "high": or_none(self.test.high),
            **{f"p_{test}": or_none(p) for test, p in self.test.p.items()},
            **{f"p_{test}_holm": or_none(p) for test, p in self.adjusted.items()},
            "winner": self.winner,
            "verdict": self.verdict,
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Comparison:
    """All contests, metric by metric. `notes` report problems of the runs, such as metrics that are not finished."""

    contests: tuple[Contest, ...]
    signatures: Mapping[str, str]
    plan: ComparisonPlan
    notes: tuple[str, ...] = ()
    #: The scores of each system, metric by metric in the order of `signatures`.
    scores: Mapping[str, tuple[SystemScore, ...]] = field(default_factory=dict)
    reference_counts: tuple[int, ...] = ()

    @property
    def metrics(self) -> list[Metric]:
        """The metrics that were compared."""
        return list({contest.metric.label: contest.metric for contest in self.contests}.values())

    def table(self) -> Table:
        """One row per metric and pair."""
        tests = self.plan.tests
        # A paper has the scores in the table of systems, and the better one in bold.
        outside = [Column(name, "right", in_latex=False) for name in ("items", "score A", "score B")]
        numeric = [Column(name, "right") for name in ("A - B", *(_TEST_COLUMNS[test] for test in tests))]
        metrics = {metric.label: score_column(metric, name_in_papers) for metric in self.metrics}
        rows = []
        for contest in self.contests:
            result, decimals = contest.test, choose_decimals(contest.metric, contest.test.first, contest.test.second)
            rows.append(
                [
                    NameCell(contest.metric.label, column=metrics[contest.metric.label]),
                    *(NameCell(system, strong=system == contest.winner) for system in (contest.first, contest.second)),
                    Count(contest.items),
                    Number(result.first, decimals),
                    Number(result.second, decimals),
                    Change(result.difference, result.low, result.high, decimals),
                    *(PValue(contest.adjusted[test]) for test in tests),
                    contest.verdict,
                ]
            )
        pairs = count_pairs(self.contests)
        how = " and ".join(TEST_NAMES[test] for test in tests)
        both = "both p-values are" if len(tests) > 1 else "the p-value is"
        corrected = f", Holm-corrected over the {pairs:,} pairs of each metric" if pairs > 1 else ""
        notes = [
            f"A - B with its 95 % bootstrap interval; p-values of {how} are two-sided, from {self.plan.draws:,} "
            f"draws{corrected}.",
            f"A system is named as better when {both} at most {self.plan.alpha:g}.",
        ]
        if lower := dict.fromkeys(c.metric.label for c in self.contests if c.metric.higher_is_better is False):
            notes.append(f"Lower is better: {', '.join(lower)}.")
        if left_out := max((contest.left_out - contest.separated for contest in self.contests), default=0):
            notes.append(
                f"Items missing or failed for one of the two systems are left out: up to {left_out} of a pair."
            )
        return Table(
            title="Which system is better",
            columns=[*map(Column, ("metric", "A", "B")), *outside, *numeric, Column("better", in_latex=False)],
            rows=rows,
            notes=notes,
            remarks=_table_remarks(self),
            signatures=_sign(self),
        )

    def system_table(self, marks: Marks | None = None) -> Table:
        """One row per system and one column per metric, with marks of significance: by default letters, or daggers
        where each system was compared with a baseline only."""
        plan, metrics = self.plan, self.metrics
        marks = plan.choose_marks(marks)
        systems = list(self.scores)
        columns: list[list[Marked]] = []
        complete = True
        for number, metric in enumerate(metrics):
            scores = {system: own[number] for system, own in self.scores.items()}
            own_marks = _mark_systems(metric, scores, self, marks)
            complete &= own_marks is not None
            decimals = choose_decimals(metric, *(score.value for score in scores.values() if np.isfinite(score.value)))
            room = max(map(len, (own_marks or {}).values()), default=0)
            best = _find_unbeaten(metric, scores, self)
            columns.append(
                [
                    Marked(
                        Estimate(s.value, s.low, s.high, decimals, "none"),
                        (own_marks or {}).get(s.system, ""),
                        room,
                        None if best is None else s.system in best,
                    )
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
        if any(contest.left_out for contest in self.contests):
            notes.append(
                "Scores are of all outputs that have one; a pair is tested on the items that both systems share."
            )
        return Table(
            title="System scores",
            columns=[Column("system"), *(score_column(metric, name_in_papers) for metric in metrics)],
            rows=[[system, *(column[row] for column in columns)] for row, system in enumerate(systems)],
            notes=notes,
            remarks=[*remarks, *_table_remarks(self)],
            signatures=_sign(self),
        )

    def bibliography(self, marks: Marks | None = None) -> str:
        """What to cite for the metrics, the tests and the marks of significance, as BibTeX; what `describe_methods`
        cites."""
        from metrist.metrics.cards import format_bibliography

        methods = {TEST_CITATIONS[test]: TEST_NAMES[test] for test in self.plan.tests}
        methods["efron-1979-bootstrap"] = "bootstrap intervals"
        if count_pairs(self.contests) > 1:
            methods["holm-1979-simple"] = "Holm's correction"
        if self.plan.choose_marks(marks) == "letters":
            methods["piepho-2004-algorithm"] = "letters of significance"
        return format_bibliography(list_owners(self.metrics), methods, self.notes)

    def to_dict(self) -> dict[str, Any]:
        """All numbers as plain data; NaN is None."""
        return {
            "draws": self.plan.draws,
            "seed": self.plan.seed,
            "alpha": self.plan.alpha,
            "tests": list(self.plan.tests),
            "correction": "Holm, over all pairs of a metric, each test by itself",
            "signatures": dict(self.signatures),
            "systems": self.system_table().to_dict()["rows"],
            "contests": [contest.to_dict() for contest in self.contests],
            "notes": list(self.notes),
        }

    def __repr__(self) -> str:
        return f"Comparison({format_count(len(self.contests), 'contest')}, metrics: {', '.join(self.signatures)})"

    def __str__(self) -> str:
        return self.table().text()

    def _repr_html_(self) -> str:
        return self.table().render("html")


def _mark_systems(
    metric: Metric, scores: Mapping[str, SystemScore], comparison: Comparison, marks: Marks
) -> dict[str, str] | None:
    """The marks of each system under a metric; None if letters do not suffice."""
    held = [contest for contest in comparison.contests if contest.metric is metric]
    contests = [contest for contest in held if contest.differs]
    order = _order_systems(metric, scores)
    if marks == "letters":
        # What was not tested does not differ either: a letter would say more than is known.
        tested = {system for contest in held if contest.tested for system in (contest.first, contest.second)}
        order = [system for system in order if system in tested]
        different = np.zeros((len(order), len(order)), dtype=np.bool_)
        for contest in contests:
            first, second = order.index(contest.first), order.index(contest.second)
            different[first, second] = different[second, first] = True
        own = letters(different)
        return None if own is None else dict(zip(order, own, strict=True))
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


def _order_systems(metric: Metric, scores: Mapping[str, SystemScore]) -> list[str]:
    """The systems from the best score to the worst; those without a score come last."""
    sign = -1 if metric.higher_is_better is False else 1
    return sorted(scores, key=lambda system: (np.isnan(scores[system].value), -sign * scores[system].value))


def _find_unbeaten(metric: Metric, scores: Mapping[str, SystemScore], comparison: Comparison) -> set[str] | None:
    """The system with the best score and those that are not significantly worse; None if not all pairs were tested."""
    if comparison.plan.baseline is not None or metric.higher_is_better is None:
        return None
    best = _order_systems(metric, scores)[0]
    beaten = {
        system for c in comparison.contests if c.metric is metric and c.winner == best for system in (c.first, c.second)
    }
    return {best, *(set(scores) - beaten)}


def _table_remarks(comparison: Comparison) -> list[str]:
    plan, contests = comparison.plan, comparison.contests
    pairs, remarks = count_pairs(contests), list[str]()
    if pairs / (plan.draws + 1) > plan.alpha:
        remarks.append(
            f"With {format_count(pairs, 'pair')}, {plan.draws:,} draws cannot reach {plan.alpha:g}: use more draws."
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


def _sign(comparison: Comparison) -> list[MetricSignature]:
    return sign_metrics(comparison.metrics, comparison.signatures, comparison.reference_counts)


def count_pairs(contests: Sequence[Contest]) -> int:
    return max((sum(c.metric is contest.metric for c in contests) for contest in contests), default=0)


def describe_sources(pairs: Mapping[tuple[str, str], tuple[int, int]]) -> list[str]:
    """Notes on the pairs of systems with items of different sources: how many there are, and how many of them were left
    out."""
    remarks = []
    for is_separated in (True, False):
        counts = {pair: different for pair, (different, separated) in pairs.items() if bool(separated) is is_separated}
        if not counts:
            continue
        (first, second), count = max(counts.items(), key=lambda entry: entry[1])
        others = f" (and {format_count(len(counts) - 1, 'other pair')})" if len(counts) > 1 else ""
        items = agree(count, "1 item of the same name has", f"{count:,} items of the same names have")
        what = f"{first} and {second}{others}: {items} different sources in the two"
        if is_separated:
            remarks.append(
                f"{what}, and were left out: their sources are those of other items, so these are not the same inputs. "
                "Score all files with `item_key='source'`, in a new folder, to pair outputs by their source."
            )
        else:
            remarks.append(
                f"{what}, and were compared all the same: right if each system has sources of its own, such as the "
                "passages that it retrieved; wrong if the files use the same names for different inputs (`item_key`)."
            )
    return remarks


# ---- Wins and losses


@dataclass(slots=True)
class PairRecord:
    """Two systems over all metrics: the metrics that each wins, those that do not separate them, and descriptive ones
    on which they differ."""

    first: str
    second: str
    wins: list[Contest] = field(default_factory=list)
    losses: list[Contest] = field(default_factory=list)
    undecided: list[Contest] = field(default_factory=list)
    described: list[Contest] = field(default_factory=list)

    @property
    def metrics(self) -> int:
        return len(self.wins) + len(self.losses) + len(self.undecided)

    @property
    def untested(self) -> list[Contest]:
        """Those of the undecided contests that have no p-value."""
        return [contest for contest in self.undecided if not contest.tested]

    @property
    def lead(self) -> int:
        return len(self.wins) - len(self.losses)

    def turn(self) -> PairRecord:
        """The same from the other side."""
        return PairRecord(self.second, self.first, self.losses, self.wins, self.undecided, self.described)


def gather_pairs(comparison: Comparison) -> dict[tuple[str, str], PairRecord]:
    """The record of each pair of systems that was tested."""
    pairs: dict[tuple[str, str], PairRecord] = {}
    for contest in comparison.contests:
        record = pairs.setdefault((contest.first, contest.second), PairRecord(contest.first, contest.second))
        if contest.metric.higher_is_better is None:
            if contest.differs:
                record.described.append(contest)
        elif contest.winner is None:
            record.undecided.append(contest)
        else:
            (record.wins if contest.winner == contest.first else record.losses).append(contest)
    return pairs


def rank_systems(comparison: Comparison) -> list[tuple[str, int, int, int]]:
    """The systems by wins minus losses over all pairs and metrics: name, wins, losses and undecided."""
    counts = {system: np.zeros(3, np.intp) for system in comparison.scores}
    for record in gather_pairs(comparison).values():
        for side in (record, record.turn()):
            counts[side.first] += [len(side.wins), len(side.losses), len(side.undecided)]
    ranked = [(system, int(wins), int(losses), int(undecided)) for system, (wins, losses, undecided) in counts.items()]
    return sorted(ranked, key=lambda row: (row[2] - row[1], row[2]))


def count_wins(comparison: Comparison) -> tuple[list[str], NDArray[np.float64]]:
    """The systems, best first, and on how many metrics the one of a row beats the one of a column."""
    names = [row[0] for row in rank_systems(comparison)]
    place = {name: number for number, name in enumerate(names)}
    wins = np.full((len(names), len(names)), np.nan)
    for record in gather_pairs(comparison).values():
        first, second = place[record.first], place[record.second]
        wins[first, second], wins[second, first] = len(record.wins), len(record.losses)
    return names, wins
