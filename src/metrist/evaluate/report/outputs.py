"""Sections of a report with texts: the worst outputs, those that changed most, disagreements, token heat, all outputs
to search, and errors. Only the texts that are shown are read into memory."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from metrist.errors import MetristError, format_count, label_item
from metrist.evaluate.explain.worst import find_smallest, show_outputs, worst
from metrist.evaluate.report.agreement import order_metrics
from metrist.evaluate.report.data import ReportData
from metrist.metrics.base import Metric, PartMetric
from metrist.names import find_outputs
from metrist.ratings import Error
from metrist.report.cells import join_names
from metrist.report.figures import draw_bars
from metrist.report.output_card import PEOPLE, SEVERITIES, identify_error, rank_severity, severity_of
from metrist.report.outputs import WorstEntry, WorstOutputs
from metrist.report.page import (
    Block,
    ExplorerBlock,
    FigureBlock,
    Fold,
    HeatBlock,
    OutputsBlock,
    Prose,
    Section,
    TableBlock,
)
from metrist.report.svg import PAGE, Drawing, Style
from metrist.report.tables import Count, Number, Table, format_number, name_columns

#: Outputs shown per list.
_SHOWN = 3
#: Outputs shown that lose most by their errors.
_HEAVIEST = 5
#: An output is among the worst by a metric if its percentile is at most this.
_LOWEST = 5
#: Metrics with a list of their own.
_MAX_LISTS = 12
#: Rated aspects with a list of their own.
_MAX_RATED = 4
#: Metrics by which the outputs of two systems are compared.
_MAX_CHANGES = 2
#: In a sample: outputs in all, and the worst of each metric that it has.
_SAMPLE, _SAMPLE_WORST = 1000, 20


def _rank(data: ReportData, metrics: str | Sequence[str], **ranking: Any) -> list[WorstOutputs]:
    """The outputs that `worst` finds; none where there are none of this kind, such as differences between systems
    without items in common. Notes of the run are shown elsewhere."""
    try:
        found = worst(data.results, _SHOWN, metrics, texts=data.texts, **ranking)
    except MetristError:
        return []
    notes = [note for note in found.notes if note not in data.results.notes]
    return [replace(found, notes=notes)] if found.entries else []


def _rank_worst(data: ReportData) -> list[WorstOutputs]:
    """The worst outputs by each metric, then by people's ratings. The metric that agrees best with people comes first,
    then metrics that give reasons."""
    results = data.results
    lists: list[WorstOutputs] = []
    trusted = _find_trusted(data)
    first = [m for m in data.directed if m is trusted]
    others = [m for m in data.directed if m not in first and not isinstance(m, PartMetric)]
    first += [m for m in others if (block := results.scores[m.label]).errors or block.explanations]
    for metric in [*first, *(m for m in data.directed if m not in first)][:_MAX_LISTS]:
        for outputs in _rank(data, metric.label):
            places = data.decimals[metric.label]
            mean = format_number(float(np.nanmean(data.results[metric].values)), places)
            entries = []
            shown = [entry.outputs[0] for entry in outputs.entries]
            rows = find_outputs(
                [o.item for o in shown], [o.system for o in shown], data.results.items, data.results.systems
            )
            for row, entry in zip(rows.tolist(), outputs.entries, strict=True):
                reason = f"{metric.label} {format_number(entry.value, places)}; the mean is {mean}"
                entries.append(replace(entry, reason=reason + _describe_ranks(data, row, metric.label)))
            lists.append(replace(outputs, entries=entries))
    return [*lists, *_rank_by_ratings(data)]


def _find_trusted(data: ReportData) -> Metric | None:
    """The metric with a better side that agrees best with people, on average over aspects; None without ratings."""
    if data.evaluation is None:
        return None
    directed = {metric.label: metric for metric in data.directed}
    return next((directed[name] for name in order_metrics(data.evaluation) if name in directed), None)


def _rank_by_ratings(data: ReportData) -> list[WorstOutputs]:
    """The outputs that people rate lowest, aspect by aspect. Higher is taken as better."""
    lists: list[WorstOutputs] = []
    ratings = data.texts.ratings
    chosen = data.options.aspects or tuple(ratings)
    for aspect in chosen[:_MAX_RATED]:
        means = ratings[aspect].mean(len(data.results)) if aspect in ratings else np.empty(0)
        rated = np.flatnonzero(~np.isnan(means))
        if len(np.unique(means[rated])) < 2:
            continue
        lowest = rated[find_smallest(means[rated], _SHOWN)].tolist()
        mean = format_number(float(np.mean(means[rated])), 2)
        entries = []
        for row, output in zip(lowest, show_outputs(data.results, data.texts.read(lowest)), strict=True):
            reason = f"people's {aspect} {format_number(means[row], 2)}; the mean is {mean}"
            value = float(means[row])
            entries.append(
                WorstEntry(outputs=(output,), value=value, reason=reason + _describe_ranks(data, row, aspect))
            )
        title = f"The worst of {format_count(len(rated), 'output')} by people's {aspect}"
        lists.append(WorstOutputs(title=title, entries=entries, decimals=data.decimals))
    return lists


def _describe_ranks(data: ReportData, row: int, without: str) -> str:
    """By which metrics, and by which of people's ratings, an output is among the worst, `without` the one it is listed
    by."""

    def list_low(percentiles: Mapping[str, Any]) -> list[str]:
        return [name for name, own in percentiles.items() if name != without and own[row] <= _LOWEST]

    metrics, aspects = map(list_low, data.percentiles)
    parts = [join_names(metrics)] if metrics else []
    # All aspects are named, as what people say counts most.
    parts += [f"people's {join_names(aspects, None)}"] if aspects else []
    return f"; also among the worst {_LOWEST} % by {', and by '.join(parts)}" if parts else ""


def worst_section(data: ReportData) -> Section | None:
    """The worst outputs by each metric, and by people's ratings."""
    blocks: list[Block] = [
        Fold(title=f"{outputs.title} ({len(outputs)} shown)", blocks=[OutputsBlock(outputs=outputs)], opened=not number)
        for number, outputs in enumerate(_rank_worst(data))
    ]
    if not blocks:
        return None
    if (trusted := _find_trusted(data)) is not None and len(data.directed) > 1:
        best = "of the metrics with a better side it agrees best with people overall"
        note = f"The list by {trusted.label} comes first: {best}."
        blocks.insert(0, Prose(sentences=[note], kind="notes"))
    return Section(name="worst", title="Worst outputs", blocks=blocks, brief=True)


def changes_section(data: ReportData) -> Section | None:
    """Where two systems differ most, in either direction."""
    changes = [
        outputs
        for first, second in data.pairs
        for metric in data.directed[:_MAX_CHANGES]
        for order in ("losses", "gains")
        for outputs in _rank(data, metric.label, vs=second, systems=[first], order=order)
    ]
    if not changes:
        return None
    how = "Two outputs of the same item side by side; words that only one of them has are marked."
    blocks: list[Block] = [Prose(sentences=[how], kind="notes"), *_fold(changes)]
    return Section(name="changes", title="Most changed", blocks=blocks)


def disagreements_section(data: ReportData) -> Section | None:
    """Outputs on which metrics disagree with each other, and with people."""
    metrics = [metric for metric in data.directed if not isinstance(metric, PartMetric)]
    lists = _rank(data, [m.label for m in metrics], by="disagreement") if len(metrics) > 1 else []
    if data.texts.ratings:
        lists += [outputs for m in metrics[:_MAX_LISTS] for outputs in _rank(data, m.label, by="people")]
    return Section(name="disagreements", title="Disagreements", blocks=_fold(lists)) if lists else None


def _fold(lists: Sequence[WorstOutputs]) -> list[Block]:
    return [Fold(title=outputs.title, blocks=[OutputsBlock(outputs=outputs)]) for outputs in lists]


# ---- Heat


def heat_section(data: ReportData) -> Section | None:
    """Words coloured by how unlikely a model found them; None if no run stored that."""
    try:
        words = data.results.heat(limit=_SHOWN, pieces=False)
        pieces = data.results.heat(limit=_SHOWN, pieces=True)
    except MetristError:
        return None
    return Section(name="heat", title="Token heat", blocks=[HeatBlock(words=words, pieces=pieces)])


# ---- All outputs


def explorer_section(data: ReportData) -> Section | None:
    """All outputs with texts, or the sample of a large run, to be searched and sorted on the page."""
    rows, rule = _choose_rows(data)
    sample = show_outputs(data.results, data.texts.read(rows))
    if not any(output.record for output in sample):
        return None
    items: dict[str, int] = {}
    systems = {system: number for number, system in enumerate(data.systems)}
    contexts: list[dict[str, Any]] = []
    outputs: list[dict[str, Any]] = []
    columns = [metric.label for metric in data.columns]

    def round_score(value: float) -> float | None:
        return float(f"{value:.6g}") if math.isfinite(value) else None

    for card in sample:
        if card.record is None:
            continue
        # The outputs of an item share its source and references.
        shown = card.for_script()
        context = {name: shown.pop(name) for name in ("source", "instruction", "references")}
        if card.item not in items:
            items[card.item] = len(items)
            contexts.append({"name": label_item(card.item, card.number), **context})
        outputs.append(
            {
                "i": items[card.item],
                "s": systems[card.system],
                "v": [round_score(card.scores[name].value if name in card.scores else math.nan) for name in columns],
                "ratings": {aspect: float(f"{mean:.3g}") for aspect, (mean, _) in card.ratings.items()},
                # Most outputs have no errors and no reasons.
                **{name: value for name, value in shown.items() if value or name == "output"},
            }
        )
    signs = {True: 1, False: -1, None: None}
    metrics = [
        {"name": m.label, "better": signs[m.higher_is_better], "decimals": data.decimals.get(m.label, 3)}
        for m in data.columns
    ]
    explorer = ExplorerBlock(data={"metrics": metrics, "systems": data.systems, "items": contexts, "outputs": outputs})
    return Section(
        name="outputs",
        title="All outputs" if not rule else "Outputs",
        blocks=[Prose(sentences=rule, kind="notes"), explorer],
    )


def _choose_rows(data: ReportData) -> tuple[list[int], list[str]]:
    """The outputs whose texts go into the page, and the rule by which they were chosen if not all do."""
    results = data.results
    with_text = np.flatnonzero(data.texts.has_text)
    if data.texts.are_few:
        return with_text.tolist(), []
    worst_rows = []
    for metric in data.directed:
        keys = (-1 if metric.higher_is_better is False else 1) * results[metric].values[with_text]
        scored = ~np.isnan(keys)
        worst_rows.append(with_text[scored][find_smallest(keys[scored], _SAMPLE_WORST)])
    chosen = np.unique(np.concatenate([np.empty(0, np.intp), *worst_rows]))
    rest = np.setdiff1d(with_text, chosen)
    rng = np.random.default_rng(data.options.seed)
    room = min(max(_SAMPLE - len(chosen), 0), len(rest))
    if room:
        chosen = np.union1d(chosen, rest[rng.choice(len(rest), room, replace=False)])
    rule = (
        f"Texts of {len(chosen):,} of {len(results):,} outputs: the {_SAMPLE_WORST} worst by each metric, and a random "
        f"sample of the others (seed {data.options.seed}). All tables and figures above are over all outputs."
    )
    return chosen.tolist(), [rule]


# ---- Errors


def errors_figure(data: ReportData, style: Style = PAGE) -> Drawing | None:
    """Errors by aspect, stacked by severity, for everyone who found some."""
    found = data.errors
    counts: dict[str, Counter[str]] = {}
    for name, errors in found.items():
        for _, error in errors:
            label = error.aspect if len(found) == 1 else f"{name}: {error.aspect}"
            counts.setdefault(label, Counter())[severity_of(error)] += 1
    if not counts:
        return None
    ordered = dict(sorted(counts.items(), key=lambda entry: -sum(entry[1].values()))[:30])
    used = [severity for severity in SEVERITIES if any(entry[severity] for entry in ordered.values())]
    return draw_bars(
        ordered,
        used,
        used,
        title="Errors by aspect and severity",
        description="; ".join(f"{label}: {sum(entry.values())}" for label, entry in ordered.items()),
        style=style,
    )


def errors_section(data: ReportData) -> Section | None:
    """Errors by aspect and severity, per system, and the outputs that lose most by them."""
    found = data.errors
    figures = FigureBlock.of(partial(errors_figure, data), "errors")
    if not figures:
        return None
    blocks: list[Block] = [*figures, TableBlock(table=_error_table(found))]
    blocks.append(TableBlock(table=_system_error_table(data, found)))
    penalties: dict[int, list[float]] = {}
    # What several found, such as a metric and people, counts once.
    distinct = dict.fromkeys((row, identify_error(error, name)) for name, own in found.items() for row, error in own)
    for row, error in distinct:
        by_severity = (len(SEVERITIES) - rank_severity(error)) / 10
        penalties.setdefault(row, []).append(by_severity if error.penalty is None else error.penalty)
    totals = {row: sum(own) for row, own in penalties.items()}
    rows = sorted(totals, key=lambda row: (-totals[row], -len(penalties[row]), row))[:_HEAVIEST]
    entries = []
    for row, card in zip(rows, show_outputs(data.results, data.texts.read(rows)), strict=True):
        reason = format_count(len(penalties[row]), "error")
        entries.append(WorstEntry(outputs=(card,), value=totals[row], reason=reason))
    title = "Outputs with the heaviest errors"
    heaviest = WorstOutputs(title=title, entries=entries, decimals=data.decimals)
    legend = "Point at a marked passage, or reach it with the Tab key, to read why it is one."
    inner: list[Block] = [Prose(sentences=[legend], kind="notes"), OutputsBlock(outputs=heaviest)]
    blocks.append(Fold(title=f"{title} ({len(heaviest)} of {len(penalties):,})", blocks=inner))
    return Section(name="errors", title="Errors", blocks=blocks)


def _error_table(found: dict[str, list[tuple[int, Error]]]) -> Table:
    rows: list[list[Any]] = []
    for name, errors in found.items():
        by_aspect: dict[str, list[tuple[int, Error]]] = {}
        for row, error in errors:
            by_aspect.setdefault(error.aspect, []).append((row, error))
        for aspect, own in sorted(by_aspect.items(), key=lambda entry: -len(entry[1])):
            severities = Counter(severity_of(error) for _, error in own)
            penalties = [error.penalty for _, error in own if error.penalty is not None]
            rows.append(
                [
                    name,
                    aspect,
                    Count(len(own)),
                    *(Count(severities[severity]) for severity in SEVERITIES),
                    Count(len({row for row, _ in own})),
                    Number(float(np.mean(penalties)) if penalties else math.nan, 2),
                ]
            )
    numbers = ("errors", *SEVERITIES, "outputs", "mean penalty")
    return Table(
        title="Errors by aspect and severity",
        columns=name_columns("found by", "aspect", right=numbers),
        rows=rows,
    )


def _system_error_table(data: ReportData, found: dict[str, list[tuple[int, Error]]]) -> Table:
    rows: list[list[Any]] = []
    for name, errors in found.items():
        by_system: dict[str, list[Error]] = {}
        for row, error in errors:
            by_system.setdefault(data.results.systems[row], []).append(error)
        for system in data.systems:
            own, judged = by_system.get(system, []), _count_judged(data, name, system)
            severities = Counter(map(severity_of, own))
            rate = Number(len(own) / judged if judged else math.nan, 2)
            rows.append(
                [system, name, Count(len(own)), rate, *(Count(severities[severity]) for severity in SEVERITIES)]
            )
    head = name_columns("system", "found by", right=("errors", "per output", *SEVERITIES))
    return Table(title="Errors by system", columns=head, rows=rows)


def compare_errors(data: ReportData) -> list[str]:
    """Which of two systems has more errors per output, and in which aspect they differ most: why one is better."""
    sentences = []
    for name, errors in data.errors.items():
        counts: dict[str, Counter[str]] = {}
        for row, error in errors:
            counts.setdefault(data.results.systems[row], Counter())[error.aspect] += 1
        for first, second in data.pairs:
            sizes = [_count_judged(data, name, system) for system in (first, second)]
            if not all(sizes):
                continue
            rates = [
                {aspect: count / size for aspect, count in counts.get(system, Counter()).items()}
                for system, size in zip((first, second), sizes, strict=True)
            ]
            own, other = (sum(rate.values()) for rate in rates)
            finds = "People find" if name == PEOPLE else f"{name} finds"
            sentence = f"{finds} {own:.2f} errors per output in {first} and {other:.2f} in {second}"
            aspects = sorted(set(rates[0]) | set(rates[1]))
            gaps = {aspect: rates[0].get(aspect, 0.0) - rates[1].get(aspect, 0.0) for aspect in aspects}
            widest = max(gaps, key=lambda aspect: abs(gaps[aspect]), default=None)
            if widest is not None and len(gaps) > 1 and gaps[widest]:
                shown = " against ".join(f"{rate.get(widest, 0.0):.2f}" for rate in rates)
                sentence += f"; they differ most in {widest}, {shown}"
            sentences.append(f"{sentence}.")
    return sentences


def _count_judged(data: ReportData, name: str, system: str) -> int:
    """The outputs of a system on which errors could be found: for a metric, those that it scored."""
    at = data.positions[system]
    if name not in data.results.scores:
        return len(at)
    return int(np.count_nonzero(~np.isnan(data.results.scores[name].values[at])))
