"""The verdict of a comparison in sentences: who is better, on what, and whether it may be luck."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from metrist.errors import agree, format_count
from metrist.evaluate.compare.results import Comparison, Contest
from metrist.evaluate.selection import choose_decimals
from metrist.report.tables import format_number

#: Metrics named in one sentence.
_MAX_NAMED = 6
#: Sentences about pairs where there are more than two systems.
_MAX_SENTENCES = 2


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
    counts: dict[str, list[int]] = {system: [0, 0, 0] for system in comparison.scores}
    for record in gather_pairs(comparison).values():
        for side in (record, record.turn()):
            own = counts[side.first]
            own[0], own[1], own[2] = own[0] + len(side.wins), own[1] + len(side.losses), own[2] + len(side.undecided)
    ranked = [(system, wins, losses, undecided) for system, (wins, losses, undecided) in counts.items()]
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


def describe_comparison(comparison: Comparison) -> list[str]:
    """One sentence per comparison; where there are many systems, the leader first, and its pairs with the next."""
    pairs = gather_pairs(comparison)
    systems, baseline = list(comparison.scores), comparison.plan.baseline
    if len(systems) == 2 or baseline is not None:
        # The baseline is the second of each pair.
        records = sorted(pairs.values(), key=lambda record: -record.lead) if baseline else list(pairs.values())
        return [describe_pair(record if baseline or record.lead >= 0 else record.turn()) for record in records]
    ranked = rank_systems(comparison)
    leader, wins, losses, undecided = ranked[0]
    total = wins + losses + undecided
    if not any(record.wins or record.losses for record in pairs.values()):
        tested = sum(record.metrics for record in pairs.values())
        none = f"No system is ahead: none of {format_count(tested, 'comparison')} separates two systems"
        return [f"{none}, so that all differences may be luck.", *_name_best(comparison)]
    others, metrics = len(systems) - 1, total // (len(systems) - 1)
    sentences = [
        f"{leader} is ahead overall: of {total:,} comparisons ({format_count(others, 'other system')} × "
        f"{format_count(metrics, 'metric')}) it wins {wins:,}, loses {losses:,}, and {undecided:,} may be luck.",
        *_name_best(comparison),
    ]
    # Opponents that lose in the same way share a sentence.
    groups: dict[tuple[str, ...], list[PairRecord]] = {}
    for name, *_ in ranked[1:]:
        record = pairs.get((leader, name)) or pairs[name, leader].turn()
        alike = tuple(_list(own) for own in (record.wins, record.losses, record.undecided) if own)
        groups.setdefault(alike, []).append(record)
    for records in list(groups.values())[:_MAX_SENTENCES]:
        opponents = join_names([record.second for record in records])
        sentences.append(describe_pair(replace(records[0], second=opponents, described=[])))
    if len(groups) > _MAX_SENTENCES:
        rest = sum(map(len, list(groups.values())[_MAX_SENTENCES:]))
        sentences.append(f"The other {format_count(rest, 'opponent')} of {leader}, and all other pairs, are below.")
    return sentences


def _name_best(comparison: Comparison) -> list[str]:
    """Which system each metric puts first, if metrics differ about that."""
    best: dict[str, list[str]] = {}
    for metric in comparison.metrics:
        if metric.higher_is_better is None:
            continue
        sign = -1 if metric.higher_is_better is False else 1
        values = {
            system: sign * score.value
            for system, own in comparison.scores.items()
            for score in own
            if score.metric == metric.label and not math.isnan(score.value)
        }
        if values:
            best.setdefault(max(values, key=values.__getitem__), []).append(metric.label)
    if len(best) == 1:
        ((system, metrics),) = best.items()
        every = {1: "", 2: "both metrics, "}.get(len(metrics), "every metric: ")
        return [f"{system} has the best score by {every}{join_names(metrics)}."]
    by_count = sorted(best.items(), key=lambda entry: -len(entry[1]))
    listed = "; ".join(f"{system} by {join_names(metrics)}" for system, metrics in by_count)
    return [f"Metrics put different systems first: {listed}."] if listed else []


def describe_pair(record: PairRecord) -> str:
    """One sentence or two about a pair: `v2 beats v1 on 4 of 5 metrics (…), which is not luck, and loses on bleu.` The
    scores of both stand beside each metric, unless `second` names several systems."""
    first, second, total = record.first, record.second, record.metrics
    contests = [*record.wins, *record.losses]
    values = first if all({first, second} == {c.first, c.second} for c in contests) else None
    if not total:
        sentence = f"{first} and {second} share no metric that has a better side."
    elif record.wins:
        scope = _describe_scope(len(record.wins), total)
        sentence = f"{first} beats {second} on {scope} ({_list(record.wins, values)}), which is not luck"
        sentence += f", and loses on {_list(record.losses, values)}" if record.losses else ""
        if record.undecided:
            sentence += f"; on {_list(record.undecided)} the difference may be luck"
        sentence += "."
    elif record.losses:
        scope = _describe_scope(len(record.losses), total)
        sentence = f"{first} loses to {second} on {scope} ({_list(record.losses, values)}), which is not luck"
        sentence += f"; on {_list(record.undecided)} the difference may be luck." if record.undecided else "."
    else:
        items = max(contest.items for contest in record.undecided)
        what = {1: "the metric does not tell", 2: "neither metric tells"}.get(total, f"none of {total} metrics tells")
        sentence = (
            f"{first} and {second} are not separated: {what} them apart on {format_count(items, 'item')}, so that the "
            f"{agree(total, 'difference', 'differences')} may be luck."
        )
        if not any(contest.testable for contest in record.undecided):
            sentence += " So few items could not separate any two systems."
    # What descriptive metrics, such as the length, say about the pair.
    described = [_describe_scores(contest, first) for contest in record.described[:_MAX_NAMED]]
    return f"{sentence} They also differ in {join_names(described)}." if described else sentence


def _describe_scope(count: int, total: int) -> str:
    if total == 1:
        return "the only metric"
    if count == total:
        return "both metrics" if total == 2 else f"all {total} metrics"
    return f"{count} of {total} metrics"


def _describe_scores(contest: Contest, system: str) -> str:
    """The two scores of a contest, those of `system` first: `chrf 56.5 against 24.0`."""
    test = contest.test
    decimals = choose_decimals(contest.metric, test.first, test.second)
    first, second = (format_number(value, decimals) for value in (test.first, test.second))
    own, other = (first, second) if system == contest.first else (second, first)
    return f"{contest.metric.label} {own} against {other}"


def describe_basis(comparison: Comparison) -> str:
    """How the sentences were tested."""
    plan, pairs = comparison.plan, len(gather_pairs(comparison))
    tests = "both the paired bootstrap and approximate randomisation give" if len(plan.tests) > 1 else "the test gives"
    corrected = ", Holm-corrected over the pairs of a metric" if pairs > 1 else ""
    draws = f"{plan.draws:,} draws, seed {plan.seed}"
    return f"Not luck: {tests} p ≤ {plan.alpha:g} ({draws}{corrected}). Each metric is tested by itself."


def describe_limits(comparison: Comparison) -> list[str]:
    """A caution where so few draws for so many pairs cannot call any difference one."""
    pairs, plan = len(gather_pairs(comparison)), comparison.plan
    if pairs / (plan.draws + 1) <= plan.alpha:
        return []
    needed = math.ceil(pairs / plan.alpha)
    return [
        f"With {format_count(pairs, 'pair')} of systems, {plan.draws:,} draws cannot reach p ≤ {plan.alpha:g}, so that "
        f"no difference counts, however large: use --draws {needed} at least."
    ]


def describe_coverage(counts: Mapping[str, tuple[int, int]]) -> list[str]:
    """Cautions about metrics that did not score all outputs: scored and all, by metric."""
    incomplete = {name: pair for name, pair in counts.items() if pair[0] < pair[1]}
    return [
        f"{name} scored {scored:,} of {format_count(total, 'output')} ({scored / total:.1%}): its means are over "
        f"{agree(scored, 'that one', 'those')}, and its failures are listed below."
        for name, (scored, total) in incomplete.items()
    ]


def _list(contests: Sequence[Contest], system: str | None = None) -> str:
    """The metrics of contests; with the scores of both systems where `system` says whose come first."""
    if system is None:
        return join_names([contest.metric.label for contest in contests])
    return join_names([_describe_scores(contest, system) for contest in contests])


def join_names(names: Sequence[str], limit: int = _MAX_NAMED) -> str:
    """`a, b and c`; the last of many are counted."""
    shown = list(names[:limit])
    if len(names) > limit:
        return f"{', '.join(shown)} and {len(names) - limit} more"
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
