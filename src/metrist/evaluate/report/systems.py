"""Systems in a report: the verdict in sentences, and sections with scores and intervals, tests, cost, distributions,
rubric aspects and failures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
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
from metrist.metrics.base import PartMetric
from metrist.names import encode_names
from metrist.report.cells import MAX_NAMED, join_names
from metrist.report.figures import PlotValue, draw_distributions, draw_matrix, draw_scores
from metrist.report.page import Block, FigureBlock, Fold, Prose, Section, TableBlock
from metrist.report.svg import PAGE, Drawing, Style
from metrist.report.tables import (
    Column,
    Count,
    Estimate,
    Marked,
    Number,
    Share,
    Table,
    TableLayout,
    format_number,
    name_columns,
)
from metrist.scores import FailureKind
from metrist.stats import Floats
from metrist.stats.measures import divide
from metrist.stats.resampling import bootstrap_scores, interval

_MAX_REASONS = 30
#: Sentences about pairs where there are more than two systems.
_MAX_SENTENCES = 2


def systems_section(data: ReportData) -> Section:
    """Systems × metrics with intervals and letters of significance; wins; what the metrics cost."""
    blocks: list[Block] = []
    comparison = data.comparison
    if comparison is None:
        blocks.append(TableBlock(table=data.results.table(seed=data.options.seed)))
    else:
        blocks.append(TableBlock(table=data.trim(system_table(comparison, data.ranked))))
    blocks += FigureBlock.of(lambda style: scores_figure(data, style, order=data.ranked), "scores")
    if comparison is not None:
        pairs = data.trim(comparison.table())
        decided = any(contest.winner is not None for contest in comparison.contests)
        if decided and len(data.systems) > 2 and data.options.baseline is None:
            blocks += FigureBlock.of(partial(wins_figure, data), "wins", _WINS)
            ranks = [[name, *map(Count, numbers)] for name, *numbers in rank_systems(comparison)]
            notes = [
                "Over all other systems and all metrics that have a better side; the order is by wins minus losses.",
                _NOT_SEPARATED,
            ]
            head = name_columns("system", right=("wins", "losses", "not separated"))
            blocks.append(TableBlock(table=Table(title="Wins and losses", columns=head, rows=ranks, notes=notes)))
        undecided = any(contest.winner is None for contest in comparison.contests)
        words: list[Block] = [Prose(sentences=[_NOT_SEPARATED], kind="notes")] if undecided else []
        blocks.append(Fold(title=f"All tests ({len(pairs.rows):,})", blocks=[*words, TableBlock(table=pairs)]))
    return Section(name="systems", title="Systems", blocks=blocks, brief=True)


_NOT_SEPARATED = "Not separated: the tests find no difference between the two systems that is more than luck."
_WINS = (
    "On how many metrics the system of a row beats that of a column, the best systems first; only differences that are "
    "not luck count."
)


def system_table(comparison: Comparison, order: Sequence[str]) -> Table:
    """The table of `metrist compare`, in this order of the systems, with intervals beside the letters of
    significance."""
    (table,) = TableLayout(intervals="brackets").apply([comparison.system_table()])
    place = {system: number for number, system in enumerate(order)}
    rows = sorted(table.rows, key=lambda row: place.get(str(row[0]), len(place)))
    longest = max((cell.marks for row in rows for cell in row if isinstance(cell, Marked)), key=len, default="")
    notes = [*table.notes, "Brackets: 95 % bootstrap intervals over items."]
    if comparison.plan.choose_marks(None) == "letters" and len(longest) > 1:
        # After the note on letters, which is the first.
        notes.insert(1, f"Several letters, such as {longest}: the system is in several such groups, which overlap.")
    return replace(table, rows=rows, notes=notes)


def scores_figure(data: ReportData, style: Style = PAGE, order: Sequence[str] | None = None) -> Drawing:
    """The system scores with their intervals, with the systems in this order, or as the input has them."""
    scores: dict[str, dict[str, PlotValue]] = {metric.label: {} for metric in data.columns}
    place = {system: number for number, system in enumerate(order or data.systems)}
    for row in sorted(data.scores, key=lambda row: place[row.system]):
        if row.metric in scores:
            scores[row.metric][row.system] = PlotValue(value=row.value, low=row.low, high=row.high)
    return draw_scores(scores, {metric.label: metric.higher_is_better for metric in data.columns}, style)


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
    figure = FigureBlock.of(partial(distributions_figure, data), "distributions", caption)
    shares = (0.05, 0.25, 0.5, 0.75, 0.95)
    rows: list[list[Any]] = []
    for metric in data.columns:
        for system, at in data.positions.items():
            values = data.results[metric].values[at]
            known = values[np.isfinite(values)]
            numbers = np.quantile(known, shares) if len(known) else np.full(len(shares), math.nan)
            rows.append([metric.label, system, *(Number(float(number)) for number in numbers), Count(len(known))])
    head = name_columns("metric", "system", right=(*(f"{share:.0%}" for share in shares), "scored"))
    quantiles = TableBlock(table=Table(title="Quantiles of the scores", columns=head, rows=rows))
    blocks: list[Block] = [*figure, Fold(title="Quantiles", blocks=[quantiles])]
    return Section(name="distributions", title="Distributions", blocks=blocks)


# ---- Rubric aspects


def aspects_section(data: ReportData) -> Section | None:
    """Systems by the aspects of rubrics on the scale of the grades; None if no metric has several aspects."""
    parts = [metric for metric in data.columns if isinstance(metric, PartMetric)]
    bounds = {metric.bounds for metric in parts}
    # Colours compare grades on one scale only.
    if len(parts) < 2 or len(bounds) > 1 or not np.isfinite(parts[0].bounds).all():
        return None
    known = {(score.system, score.metric): score.value for score in data.scores}
    values = np.array([[known.get((system, part.label), math.nan) for part in parts] for system in data.systems])
    title = "Mean grade per system and aspect"
    names = [part.label for part in parts]
    draw = partial(draw_matrix, data.systems, names, values, title=title, domain=parts[0].bounds)
    caption = f"{title}, coloured from the lowest to the highest grade."
    blocks = FigureBlock.of(lambda style: draw(style=style), "aspects-matrix", caption)
    return Section(name="aspects", title="Rubric aspects", blocks=blocks)


# ---- Failures


def failures_section(data: ReportData) -> Section | None:
    """Outputs without a score, by metric and reason; None if all were scored."""
    rows: list[list[Any]] = []
    for metric in data.results.metrics:
        block = data.results.scores[metric.label]
        systems: dict[tuple[FailureKind, str], list[str]] = {}
        for row, failure in block.failures.items():
            systems.setdefault((failure.kind, failure.reason.message), []).append(data.results.systems[row])
        ranked = sorted(systems.items(), key=lambda entry: -len(entry[1]))
        for (kind, message), failed in ranked[:_MAX_REASONS]:
            share = Share(len(failed) / len(block))
            rows.append(
                [
                    metric.label,
                    kind.value.replace("_", " "),
                    Count(len(failed)),
                    share,
                    Count(len(set(failed))),
                    message,
                ]
            )
    if not rows:
        return None
    head = [*name_columns("metric", "kind", right=("outputs", "share", "systems")), Column("reason")]
    total = sum(len(data.results.scores[m.label].failures) for m in data.results.metrics)
    coverage: list[list[Any]] = []
    for system, at in data.positions.items():
        shares = [float(np.mean(~np.isnan(data.results[metric].values[at]))) for metric in data.results.metrics]
        coverage.append([system, Count(len(at)), *map(Share, shares)])
    columns = name_columns("system", right=("outputs", *(metric.label for metric in data.results.metrics)))
    scored = Table(title="Coverage: the share of outputs with a score", columns=columns, rows=coverage)
    blocks: list[Block] = [
        Prose(
            sentences=[
                f"{format_count(total, 'score is', 'scores are')} missing. Means are over the outputs that were scored."
            ]
        ),
        TableBlock(table=Table(title="Failures by reason", columns=head, rows=rows)),
        Fold(title="Coverage by system", blocks=[TableBlock(table=scored)]),
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
        codes = column.codes[outputs]
        own = [means[outputs[codes == code]] for code in range(len(rows))]
        for row, cell in zip(rows, _estimate_means(own, data.options.seed), strict=True):
            row.append(cell)
    head = [Column("system"), *(Column(aspect, "right", "higher") for aspect in ratings)]
    several = any(len(np.unique(rated.rows)) < len(rated.rows) for rated in ratings.values())
    how = "Means over outputs of the means over raters" if several else "Means over outputs"
    notes = [f"{how}, with 95 % intervals over items. Higher is taken as better."]
    return Table(title="Mean ratings by people", columns=head, rows=rows, notes=notes)


def _estimate_means(groups: Sequence[Floats], seed: int) -> list[Estimate | None]:
    """The means of groups of numbers with their bootstrap intervals; groups of one size are resampled together."""
    estimates: list[Estimate | None] = [None] * len(groups)
    for size in {len(own) for own in groups} - {0}:
        alike = [number for number, own in enumerate(groups) if len(own) == size]
        rows = np.stack([np.stack([groups[number], np.ones(size)], axis=1) for number in alike])
        draws = bootstrap_scores(rows, _mean, 1000, np.random.default_rng(seed))
        for number, scores in zip(alike, draws.T, strict=True):
            mean = float(groups[number].mean())
            estimates[number] = Estimate(mean, *interval(scores, 0.95, size, mean), 2)
    return estimates


def _mean(sums: Floats) -> Floats:
    return divide(sums[..., 0], sums[..., 1])


# ---- The verdict: who is better, on what, and whether it may be luck


def describe_comparison(comparison: Comparison) -> list[str]:
    """What is better in plain words, then one sentence per comparison; of many systems, the leader and its pairs."""
    pairs = gather_pairs(comparison)
    systems, baseline = list(comparison.scores), comparison.plan.baseline
    if len(systems) == 2 or baseline is not None:
        # The baseline is the second of each pair.
        records = sorted(pairs.values(), key=lambda record: -record.lead) if baseline else list(pairs.values())
        records = [record if baseline or record.lead >= 0 else record.turn() for record in records]
        plain = [summarize_pair(records[0])] if len(records) == 1 else summarize_pairs(records)
        return [*filter(None, plain), *map(describe_pair, records)]
    ranked = rank_systems(comparison)
    leader, wins, losses, undecided = ranked[0]
    untested = {pair: len(record.untested) for pair, record in pairs.items()}
    undecided -= sum(number for pair, number in untested.items() if leader in pair)
    total = wins + losses + undecided
    if not any(record.wins or record.losses for record in pairs.values()):
        tested = sum(record.metrics for record in pairs.values()) - sum(untested.values())
        none = f"No system is ahead: none of {format_count(tested, 'comparison')} separates two systems"
        return [f"{none}, so that all differences may be luck.", *_name_best(comparison)]
    records = [
        pairs[leader, name] if (leader, name) in pairs else pairs[name, leader].turn() for name, *_ in ranked[1:]
    ]
    open_ends = f", and {undecided:,} may be luck" if undecided else ""
    place = f"Of {len(systems)} systems {leader} comes first and {records[0].second} second"
    if summary := summarize_pair(records[0]):
        place += f": {summary}"
    else:
        place += f", but luck may explain what sets the two apart.{_describe_open(records[0])}"
    sentences = [
        place,
        f"Of the {format_count(total, 'comparison')} with {format_count(len(records), 'other system')}, metric by "
        f"metric, {leader} wins {wins:,} and loses {losses:,}{open_ends}.",
        *_name_best(comparison),
    ]
    # Opponents that lose in the same way share a sentence.
    groups: dict[tuple[str, ...], list[PairRecord]] = {}
    for record in records:
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
    best: dict[str, list[str]] = {}
    for metric in comparison.metrics:
        if metric.higher_is_better is None:
            continue
        sign = -1 if metric.higher_is_better is False else 1
        scores = (score for own in comparison.scores.values() for score in own if score.metric == metric.label)
        values = {score.system: sign * score.value for score in scores if not math.isnan(score.value)}
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
    first, second = record.first, record.second
    contests = [*record.wins, *record.losses]
    values = first if all({first, second} == {c.first, c.second} for c in contests) else None
    untested = record.untested
    undecided = [contest for contest in record.undecided if contest not in untested]
    total = len(contests) + len(undecided)
    luck = f"; on {_list(undecided)} the difference may be luck" if undecided else ""
    if not record.metrics:
        sentence = f"{first} and {second} share no metric that has a better side"
    elif not total:
        sentence = f"{first} and {second} could not be compared"
    elif record.wins:
        scope = _describe_scope(len(record.wins), total)
        sentence = f"{first} beats {second} on {scope} ({_list(record.wins, values)}), which is not luck"
        sentence += f", and loses on {_list(record.losses, values)}" if record.losses else ""
        sentence += luck
    elif record.losses:
        scope = _describe_scope(len(record.losses), total)
        sentence = f"{first} loses to {second} on {scope} ({_list(record.losses, values)}), which is not luck{luck}"
    else:
        items = max(contest.items for contest in undecided)
        what = {1: "the metric does not tell", 2: "neither metric tells"}.get(total, f"none of {total} metrics tells")
        sentence = (
            f"{first} and {second} are not separated: {what} them apart on {format_count(items, 'item')}, so that the "
            f"{agree(total, 'difference', 'differences')} may be luck"
        )
        if not any(contest.testable for contest in undecided):
            sentence += ". So few items could not separate any two systems"
    if untested:
        sentence += f"; {_list(untested)} {agree(len(untested), 'was', 'were')} not tested: no item has both scores"
    sentence += "."
    # What descriptive metrics, such as the length, say about the pair.
    if described := [_describe_scores(contest, first) for contest in record.described[:MAX_NAMED]]:
        sentence += f" They also differ in {join_names(described)}."
    shown = [*contests, *record.described]
    if values and any(contest.left_out for contest in shown):
        least = f"{min(contest.items for contest in shown):,}"
        most = f"{max(contest.items for contest in shown):,}"
        span = f"{most} items" if least == most else f"{least} to {most} items"
        sentence += f" These scores are of the {span} that both have a score for, the table's of all."
    return sentence


#: What metrics measure, in words for readers who know none of them; others go by their own names.
_TOPICS = {
    "consistency": "support by the source",
    "fluency": "fluency",
    "quality": "overall quality",
    "translation_quality": "quality of the translation",
    "errors": "errors",
    "bertscore": "likeness in meaning to the references",
    **dict.fromkeys(
        ("rouge1", "rouge2", "rougeL", "rougeLsum", "bleu", "chrf", "meteor", "ter"), "likeness to the references"
    ),
}


def summarize_pairs(records: Sequence[PairRecord]) -> list[str]:
    """Which systems are better and worse than the baseline, in a sentence; none where nothing is separated."""
    decided = [record for record in records if record.wins or record.losses]
    if not decided:
        return []
    groups = {
        "better": [record.first for record in decided if not record.losses],
        "worse": [record.first for record in decided if not record.wins],
        "better in some respects and worse in others": [r.first for r in decided if r.wins and r.losses],
        "not separated from it": [record.first for record in records if record not in decided],
    }
    parts = [f"{join_names(own)} {agree(len(own), 'is', 'are')} {how}" for how, own in groups.items() if own]
    return [f"Against {records[0].second}: {'; '.join(parts)}."]


def summarize_pair(record: PairRecord) -> str:
    """What got better and worse, and what stayed open, for readers who know no metric; "" where nothing is
    separated."""
    if not record.wins and not record.losses:
        return ""
    better, worse = (_name_topics(own) for own in (record.wins, record.losses))
    mixed = [topic for topic in better if topic in worse]
    better, worse = ([topic for topic in own if topic not in mixed] for own in (better, worse))
    said = [f"better than {record.second} in {join_names(better)}"] if better else []
    said += [f"worse{'' if better else f' than {record.second}'} in {join_names(worse)}"] if worse else []
    sentence = f"{record.first} is {' and '.join(said)}" if said else f"{record.first} and {record.second} trade places"
    if mixed:
        sentence += f"; metrics contradict each other about {join_names(mixed)}"
    elif not record.losses and not record.undecided:
        sentence += ", and in nothing worse"
    return f"{sentence}. Luck is an unlikely explanation.{_describe_open(record, [*better, *worse, *mixed])}"


def _describe_open(record: PairRecord, decided: Sequence[str] = ()) -> str:
    """What the tests leave open, with the two scores where one metric speaks for it, and what was not tested."""
    sentences = ""
    untested = record.untested
    topics: dict[str, list[Contest]] = {}
    for contest in record.undecided:
        (topic,) = _name_topics([contest])
        if topic not in decided and contest not in untested:
            topics.setdefault(topic, []).append(contest)
    if topics:
        shown = []
        for topic, own in topics.items():
            if len(own) == 1:
                items = format_count(own[0].items, "item")
                scores = " against ".join(_format_scores(own[0], record.first))
                topic += f" ({scores}{f' on the {items} that both have' if own[0].left_out else ''})"
            shown.append(topic)
        sentences += f" No difference is shown in {join_names(shown)}."
    if missing := [topic for topic in _name_topics(untested) if topic not in decided and topic not in topics]:
        sentences += f" Not tested: {join_names(missing)}."
    return sentences


def _name_topics(contests: Sequence[Contest]) -> list[str]:
    """What the metrics measure, each thing once. An aspect counts only where its metric does not speak for it."""
    owners = {contest.metric.name for contest in contests if not isinstance(contest.metric, PartMetric)}
    shown = [c.metric for c in contests if not isinstance(c.metric, PartMetric) or c.metric.metric.name not in owners]
    return list(dict.fromkeys(_TOPICS.get(metric.name, metric.label) for metric in shown))


def _describe_scope(count: int, total: int) -> str:
    if total == 1:
        return "the only metric"
    if count == total:
        return "both metrics" if total == 2 else f"all {total} metrics"
    return f"{count} of {total} metrics"


def _describe_scores(contest: Contest, system: str) -> str:
    """The two scores of a contest, those of `system` first: `chrf 56.5 against 24.0`."""
    return f"{contest.metric.label} {' against '.join(_format_scores(contest, system))}"


def _format_scores(contest: Contest, system: str) -> list[str]:
    test = contest.test
    decimals = choose_decimals(contest.metric, test.first, test.second)
    values = (test.first, test.second) if system == contest.first else (test.second, test.first)
    return [format_number(value, decimals) for value in values]


def describe_basis(comparison: Comparison) -> str:
    """How the sentences were tested."""
    plan, pairs = comparison.plan, len(gather_pairs(comparison))
    tests = "both the paired bootstrap and approximate randomisation give" if len(plan.tests) > 1 else "the test gives"
    corrected = ", Holm-corrected over the pairs of a metric" if pairs > 1 else ""
    draws = f"{plan.draws:,} draws, seed {plan.seed}"
    return f"Not luck: {tests} p ≤ {plan.alpha:g} ({draws}{corrected}). Each metric is tested by itself."


def describe_coverage(counts: Mapping[str, tuple[int, int]]) -> list[str]:
    """Cautions about metrics that did not score all outputs: scored and all, by metric."""
    return [
        f"{name} scored {scored:,} of {format_count(total, 'output')} ({scored / total:.1%}): its means are over "
        f"{agree(scored, 'that one', 'those')}, and its failures are listed below."
        for name, (scored, total) in counts.items()
        if scored < total
    ]


def _list(contests: Sequence[Contest], system: str | None = None) -> str:
    """The metrics of contests; with the scores of both systems where `system` says whose come first."""
    if system is None:
        return join_names([contest.metric.label for contest in contests])
    return join_names([_describe_scores(contest, system) for contest in contests])
