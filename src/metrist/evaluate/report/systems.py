"""Systems in a report: the verdict in sentences, and sections with scores and intervals, tests, cost, distributions,
rubric aspects and failures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from metrist.errors import agree, format_count
from metrist.evaluate.compare.results import (
    Comparison,
    Contest,
    PairRecord,
    count_wins,
    gather_pairs,
    rank_systems,
)
from metrist.evaluate.report.data import ReportData
from metrist.evaluate.selection import choose_decimals
from metrist.metrics.base import Metric, PartMetric
from metrist.names import encode_names
from metrist.report.figures import PlotValue, draw_distributions, draw_matrix, draw_scores
from metrist.report.page import Block, FigureBlock, Fold, Prose, Section, TableBlock
from metrist.report.svg import PAGE, Drawing, Style
from metrist.report.tables import Column, Count, Estimate, Marked, Number, Share, Table, format_number, name_columns
from metrist.scores import FailureKind
from metrist.stats.resampling import pooled_interval

_MAX_REASONS = 30
#: Metrics named in one sentence.
_MAX_NAMED = 6
#: Sentences about pairs where there are more than two systems.
_MAX_SENTENCES = 2
#: With more systems than this, the table of all pairs is folded up.
_MAX_OPEN_PAIRS = 12


def systems_section(data: ReportData) -> Section:
    """Systems × metrics with intervals and letters of significance; wins; what the metrics cost."""
    blocks: list[Block] = []
    comparison = data.comparison
    if comparison is None:
        blocks.append(TableBlock(table=data.results.table(seed=data.options.seed)))
    else:
        blocks.append(TableBlock(table=data.trim(system_table(comparison, data.ranked))))
    blocks.append(FigureBlock(drawing=scores_figure(data, order=data.ranked), name="scores"))
    if comparison is not None:
        pairs = data.trim(comparison.table())
        wins = wins_figure(data)
        decided = any(contest.winner is not None for contest in comparison.contests)
        if wins is not None and decided and len(data.systems) > 2 and data.options.baseline is None:
            blocks.append(FigureBlock(drawing=wins, name="wins", caption=_WINS))
            blocks.append(TableBlock(table=standings_table(data)))
        undecided = any(contest.winner is None for contest in comparison.contests)
        words: list[Block] = [Prose(sentences=[_NOT_SEPARATED], kind="notes")] if undecided else []
        blocks.append(
            Fold(
                title=f"All tests ({len(pairs.rows):,})",
                blocks=[*words, TableBlock(table=pairs)],
                opened=len(pairs.rows) <= _MAX_OPEN_PAIRS,
            )
        )
    if any(len(data.results.scores[metric.label].failures) for metric in data.results.metrics):
        blocks.append(TableBlock(table=coverage_table(data)))
    else:
        blocks.append(Prose(sentences=["Coverage: every metric scored all outputs of all systems."]))
    if data.costs:
        blocks.append(TableBlock(table=cost_table(data)))
    return Section(name="systems", title="Systems", blocks=blocks, brief=True)


_NOT_SEPARATED = "Not separated: the tests find no difference between the two systems that is more than luck."
_WINS = (
    "On how many metrics the system of a row beats that of a column, the best systems first; only differences that are "
    "not luck count."
)


def system_table(comparison: Comparison, order: Sequence[str]) -> Table:
    """The table of `metrist compare`, in this order of the systems, with intervals beside the letters of
    significance."""
    table = comparison.system_table()
    scores = {(score.system, score.metric): score for own in comparison.scores.values() for score in own}

    def fill(system: str, column: str, cell: Any) -> Any:
        score = scores.get((system, column))
        number = cell.cell if isinstance(cell, Marked) else cell
        if score is None or not isinstance(number, Number | Estimate):
            return cell
        estimate = Estimate(number.value, score.low, score.high, number.decimals)
        return replace(cell, cell=estimate) if isinstance(cell, Marked) else estimate

    rows = [
        [fill(str(row[0]), column.name, cell) for column, cell in zip(table.columns, row, strict=True)]
        for row in table.rows
    ]
    place = {system: number for number, system in enumerate(order)}
    rows.sort(key=lambda row: place.get(str(row[0]), len(place)))
    longest = max((cell.marks for row in rows for cell in row if isinstance(cell, Marked)), key=len, default="")
    notes = [*table.notes, "Brackets: 95 % bootstrap intervals over items."]
    if comparison.plan.choose_marks(None) == "letters" and len(longest) > 1:
        # After the note on letters, which is the first.
        notes.insert(1, f"Several letters, such as {longest}: the system is in several such groups, which overlap.")
    return replace(table, rows=rows, notes=notes)


def scores_figure(
    data: ReportData,
    style: Style = PAGE,
    columns: Sequence[Metric] | None = None,
    order: Sequence[str] | None = None,
) -> Drawing:
    """The system scores with their intervals, with the systems in this order, or as the input has them."""
    chosen = data.columns if columns is None else list(columns)
    rows = data.results.system_scores(seed=data.options.seed, metrics=chosen)
    scores: dict[str, dict[str, PlotValue]] = {metric.label: {} for metric in chosen}
    place = {system: number for number, system in enumerate(order or data.systems)}
    for row in sorted(rows, key=lambda row: place[row.system]):
        scores[row.metric][row.system] = PlotValue(value=row.value, low=row.low, high=row.high)
    return draw_scores(scores, {metric.label: metric.higher_is_better for metric in chosen}, style)


def differences_figure(data: ReportData, style: Style = PAGE) -> Drawing | None:
    """The differences between two systems, or between each system and the baseline, metric by metric."""
    if data.comparison is None:
        return None
    differences: dict[str, dict[str, PlotValue]] = {}
    for contest in data.comparison.contests:
        test = contest.test
        interval = PlotValue(value=test.difference, low=test.low, high=test.high)
        differences.setdefault(contest.metric.label, {})[f"{contest.first} - {contest.second}"] = interval
    better = {metric.label: metric.higher_is_better for metric in data.comparison.metrics}
    return draw_scores(differences, better, style, "Differences with 95 % intervals", zero=True)


def wins_figure(data: ReportData, style: Style = PAGE) -> Drawing | None:
    """On how many metrics each system beats each other one."""
    if data.comparison is None:
        return None
    names, wins = count_wins(data.comparison)
    return draw_matrix(
        names,
        names,
        wins,
        title="Metrics on which the system of a row beats that of a column",
        description=f"The systems from the best to the worst: {', '.join(names)}.",
        decimals=0,
        domain=(0.0, float(max(len(data.directed), 1))),
        style=style,
    )


def standings_table(data: ReportData) -> Table:
    """How often each system beats another."""
    assert data.comparison is not None
    rows = [[name, *map(Count, numbers)] for name, *numbers in rank_systems(data.comparison)]
    head = name_columns("system", right=("wins", "losses", "not separated"))
    notes = [
        "Over all other systems and all metrics that have a better side; the order is by wins minus losses.",
        _NOT_SEPARATED,
    ]
    return Table(title="Wins and losses", columns=head, rows=rows, notes=notes)


def coverage_table(data: ReportData) -> Table:
    """The share of each system's outputs that each metric scored."""
    metrics = data.results.metrics
    rows: list[list[Any]] = []
    for system, at in data.positions.items():
        shares = [float(np.mean(~np.isnan(data.results[metric].values[at]))) for metric in metrics]
        rows.append([system, Count(len(at)), *map(Share, shares)])
    head = name_columns("system", right=("outputs", *(metric.label for metric in metrics)))
    return Table(title="Coverage: the share of outputs with a score", columns=head, rows=rows)


def cost_table(data: ReportData) -> Table:
    """What each metric took per output, as its run recorded it."""
    outputs = len(data.results)
    paid = any(cost.money > 0 for cost in data.costs.values())
    rows = [
        [
            label,
            Number(1000 * cost.seconds, 3),
            Number(cost.seconds * outputs, 1),
            *((Number(cost.money, 5), Number(cost.money * outputs, 2)) if paid else ()),
        ]
        for label, cost in data.costs.items()
    ]
    names = ["ms per output", "seconds, all outputs"]
    names += ["money per output", "money, all outputs"] if paid else []
    notes = [f"Seconds are those of one process.{'' if paid else ' Nothing was paid for.'}"]
    return Table(title="Cost of the metrics", columns=name_columns("metric", right=names), rows=rows, notes=notes)


# ---- Distributions


def distributions_figure(data: ReportData, style: Style = PAGE) -> Drawing:
    """How the scores of each system are spread, metric by metric."""
    values = {
        metric.label: {system: data.results[metric].values[at] for system, at in data.positions.items()}
        for metric in data.columns
    }
    return draw_distributions(values, {metric.label: metric.higher_is_better for metric in data.columns}, style)


def distributions_section(data: ReportData) -> Section:
    """The spread of scores."""
    caption = (
        "Areas: outputs by score, all of one panel on the same scale; lines: medians. The outermost half percent on "
        "either side is counted at the edge."
    )
    figure = FigureBlock(drawing=distributions_figure(data), name="distributions", caption=caption)
    return Section(
        name="distributions",
        title="Distributions",
        blocks=[figure, Fold(title="Quantiles", blocks=[TableBlock(table=_quantile_table(data))])],
    )


def _quantile_table(data: ReportData) -> Table:
    shares = (0.05, 0.25, 0.5, 0.75, 0.95)
    rows: list[list[Any]] = []
    for metric in data.columns:
        for system, at in data.positions.items():
            values = data.results[metric].values[at]
            known = values[np.isfinite(values)]
            numbers = np.quantile(known, shares) if len(known) else np.full(len(shares), math.nan)
            rows.append([metric.label, system, *(Number(float(number)) for number in numbers), Count(len(known))])
    head = name_columns("metric", "system", right=(*(f"{share:.0%}" for share in shares), "scored"))
    return Table(title="Quantiles of the scores", columns=head, rows=rows)


# ---- Rubric aspects


def aspects_section(data: ReportData) -> Section | None:
    """Systems by the aspects of rubrics; None if no metric has any."""
    parts = [metric for metric in data.columns if isinstance(metric, PartMetric)]
    if not parts:
        return None
    rows = data.results.system_scores(seed=data.options.seed, metrics=parts)
    values = np.full((len(data.systems), len(parts)), np.nan)
    for row in rows:
        column = next(number for number, metric in enumerate(parts) if metric.label == row.metric)
        values[data.systems.index(row.system), column] = row.value
    drawing = scores_figure(data, columns=parts)
    matrix = draw_matrix(data.systems, [m.label for m in parts], values, title="Mean grade per system and aspect")
    blocks: list[Block] = [
        FigureBlock(
            drawing=drawing, name="aspects", caption="Each aspect of the rubric by itself, with 95 % intervals."
        ),
        FigureBlock(drawing=matrix, name="aspects-matrix"),
    ]
    return Section(name="aspects", title="Rubric aspects", blocks=blocks)


# ---- Failures


def failures_section(data: ReportData) -> Section | None:
    """Outputs without a score, by metric and reason; None if all were scored."""
    rows: list[list[Any]] = []
    for metric in data.results.metrics:
        block = data.results.scores[metric.label]
        reasons = Counter((failure.kind, str(failure)) for failure in block.failures.values())
        systems: dict[tuple[FailureKind, str], set[str]] = {}
        for row, failure in block.failures.items():
            systems.setdefault((failure.kind, str(failure)), set()).add(data.results.systems[row])
        for (kind, message), count in reasons.most_common(_MAX_REASONS):
            share = Share(count / len(block))
            rows.append([metric.label, kind.value, Count(count), share, Count(len(systems[kind, message])), message])
    if not rows:
        return None
    head = [*name_columns("metric", "kind", right=("outputs", "share", "systems")), Column("reason")]
    total = sum(len(data.results.scores[m.label].failures) for m in data.results.metrics)
    blocks: list[Block] = [
        Prose(
            sentences=[
                f"{format_count(total, 'score is', 'scores are')} missing. Means are over the outputs that were scored."
            ]
        ),
        TableBlock(table=Table(title="Failures by reason", columns=head, rows=rows)),
    ]
    return Section(name="failures", title="Failures", blocks=blocks, brief=True)


# ---- People


def ratings_table(data: ReportData) -> Table | None:
    """Each system's mean rating by people, with intervals over items; None without ratings."""
    ratings = data.texts.ratings
    if not ratings:
        return None
    column = encode_names(data.results.systems)
    rows: list[list[Any]] = [[system] for system in column.names]
    for rated in ratings.values():
        means = rated.mean(len(data.results))
        outputs = rated.rows[np.sort(np.unique(rated.rows, return_index=True)[1])]  # In the order of the ratings.
        for code, row in enumerate(rows):
            own = means[outputs[column.codes[outputs] == code]]
            if not len(own):
                row.append(None)
                continue
            sums = np.stack([own, np.ones(len(own))], axis=1)
            rng = np.random.default_rng(data.options.seed)
            low, high = pooled_interval(sums, lambda sums: sums[..., 0] / sums[..., 1], 1000, rng, 0.95)
            row.append(Estimate(float(own.mean()), low, high, 2))
    head = [Column("system"), *(Column(aspect, "right", "higher") for aspect in ratings)]
    several = any(len(np.unique(rated.rows)) < len(rated.rows) for rated in ratings.values())
    how = "Means over outputs of the means over raters" if several else "Means over outputs"
    notes = [f"{how}, with 95 % intervals over items. Higher is taken as better."]
    return Table(title="Mean ratings by people", columns=head, rows=rows, notes=notes)


# ---- The verdict: who is better, on what, and whether it may be luck


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
        f"no difference counts, however large: use at least {needed:,} draws."
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
