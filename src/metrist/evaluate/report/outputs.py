"""Sections of a report with texts: the worst outputs, those that changed most, disagreements, token heat, and all
outputs to search. Only the texts that are shown are read into memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrist.errors import MetristError, format_count, label_item
from metrist.evaluate.explain.worst import find_smallest, list_decimals, percentile_ranks, show_outputs, worst
from metrist.evaluate.report.agreement import order_metrics
from metrist.evaluate.report.data import ReportData
from metrist.evaluate.report.verdicts import join_names
from metrist.metrics.base import Metric, PartMetric
from metrist.names import find_outputs
from metrist.report.errors import locate_errors
from metrist.report.output_cards import clean_text, cut_pieces
from metrist.report.page import Block, ExplorerBlock, Fold, HeatBlock, OutputsBlock, Prose, Section
from metrist.report.tables import format_number, or_none
from metrist.report.worst import WorstEntry, WorstOutputs

#: Outputs shown per list.
_SHOWN = 5
#: An output is among the worst by a metric if its percentile is at most this.
_LOWEST = 5
#: Metrics with a list of their own.
_MAX_LISTS = 12
#: Rated aspects with a list of their own.
_MAX_RATED = 4
#: Metrics by which the outputs of two systems are compared.
_MAX_CHANGES = 4
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
    decimals, lists, results = list_decimals(data.results), list[WorstOutputs](), data.results
    ranks = _Percentiles(
        metrics={
            m.label: percentile_ranks((-1.0 if m.higher_is_better is False else 1.0) * results[m].values)
            for m in data.directed
            if not isinstance(m, PartMetric)
        },
        aspects={name: percentile_ranks(rated.mean(len(results))) for name, rated in data.texts.ratings.items()},
    )
    trusted = _find_trusted(data)
    first = [m for m in data.directed if m is trusted]
    others = [m for m in data.directed if m not in first and not isinstance(m, PartMetric)]
    first += [m for m in others if (block := results.scores[m.label]).errors or block.explanations]
    for metric in [*first, *(m for m in data.directed if m not in first)][:_MAX_LISTS]:
        for outputs in _rank(data, metric.label):
            places = decimals[metric.label]
            mean = format_number(float(np.nanmean(data.results[metric].values)), places)
            entries = []
            shown = [entry.outputs[0] for entry in outputs.entries]
            rows = find_outputs(
                [o.item for o in shown], [o.system for o in shown], data.results.items, data.results.systems
            )
            for row, entry in zip(rows.tolist(), outputs.entries, strict=True):
                reason = f"{metric.label} {format_number(entry.value, places)}; the mean is {mean}"
                entries.append(replace(entry, reason=reason + ranks.describe(row, metric.label)))
            lists.append(replace(outputs, entries=entries))
    return [*lists, *_rank_by_ratings(data, ranks)]


def _find_trusted(data: ReportData) -> Metric | None:
    """The metric with a better side that agrees best with people, on average over aspects; None without ratings."""
    if data.evaluation is None:
        return None
    directed = {metric.label: metric for metric in data.directed}
    return next((directed[name] for name in order_metrics(data.evaluation) if name in directed), None)


def _rank_by_ratings(data: ReportData, ranks: _Percentiles) -> list[WorstOutputs]:
    """The outputs that people rate lowest, aspect by aspect. Higher is taken as better."""
    lists, ratings = list[WorstOutputs](), data.texts.ratings
    decimals, chosen = list_decimals(data.results), data.options.aspects or tuple(ratings)
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
            entries.append(WorstEntry(outputs=(output,), value=value, reason=reason + ranks.describe(row, aspect)))
        title = f"The worst of {format_count(len(rated), 'output')} by people's {aspect}"
        lists.append(WorstOutputs(title=title, entries=entries, decimals=decimals))
    return lists


@dataclass(frozen=True, slots=True, kw_only=True)
class _Percentiles:
    """The percentiles of all outputs by each metric, and by people's ratings of each aspect, where higher is taken as
    better."""

    metrics: Mapping[str, NDArray[np.float64]]
    aspects: Mapping[str, NDArray[np.float64]]

    def describe(self, row: int, without: str) -> str:
        """By which metrics, and by which aspects, an output is among the worst, `without` the one it is listed by."""
        metrics, aspects = (
            [name for name, own in columns.items() if name != without and own[row] <= _LOWEST]
            for columns in (self.metrics, self.aspects)
        )
        parts = [join_names(metrics)] if metrics else []
        # All aspects are named, as what people say counts most.
        parts += [f"people's {join_names(aspects, len(aspects))}"] if aspects else []
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
    """A fold per list, the first one open."""
    return [
        Fold(title=outputs.title, blocks=[OutputsBlock(outputs=outputs)], opened=not number)
        for number, outputs in enumerate(lists)
    ]


# ---- Heat


def heat_section(data: ReportData) -> Section | None:
    """Words coloured by how unlikely a model found them; None if no run stored that."""
    try:
        words, pieces = (data.results.heat(limit=_SHOWN, pieces=pieces) for pieces in (False, True))
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
    decimals = list_decimals(data.results)
    columns = [metric.label for metric in data.columns]
    for output in sample:
        if output.record is None:
            continue
        if output.item not in items:
            items[output.item] = len(items)
            contexts.append(
                {
                    "name": clean_text(label_item(output.item, output.number)),
                    "source": _join_pieces(output.record.source),
                    "instruction": _join_pieces(output.record.instruction),
                    "references": [_join_pieces(reference) for reference in output.record.references],
                }
            )
        errors, names = output.number_errors()
        located = locate_errors(errors, "output")
        pieces = [piece.plain() for piece in cut_pieces(output.record.output, located, names=names, whole=True)]
        said = {name: _join_pieces(score.explanation) for name, score in output.scores.items() if score.explanation}
        outputs.append(
            {
                "i": items[output.item],
                "s": systems[output.system],
                "v": [_round(output.scores[name].value if name in output.scores else math.nan) for name in columns],
                "t": pieces if any(not isinstance(piece, str) for piece in pieces) else "".join(pieces),
                **(
                    {"r": {clean_text(a): float(f"{mean:.3g}") for a, (mean, _) in output.ratings.items()}}
                    if output.ratings
                    else {}
                ),
                **({"e": said} if said else {}),
            }
        )
    signs = {True: 1, False: -1, None: None}
    metrics = [
        {"name": clean_text(m.label), "better": signs[m.higher_is_better], "decimals": decimals.get(m.label, 3)}
        for m in data.columns
    ]
    shown_systems = [clean_text(system) for system in systems]
    explorer = ExplorerBlock(data={"metrics": metrics, "systems": shown_systems, "items": contexts, "outputs": outputs})
    return Section(
        name="outputs",
        title="All outputs" if not rule else "Outputs",
        blocks=[Prose(sentences=rule, kind="notes"), explorer],
    )


def _choose_rows(data: ReportData) -> tuple[list[int], list[str]]:
    """The outputs whose texts go into the page, and the rule by which they were chosen if not all do."""
    results, with_text = data.results, np.flatnonzero(data.texts.has_text)
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


def _join_pieces(text: str | None) -> str:
    return "" if text is None else "".join(piece.text for piece in cut_pieces(text, whole=True))


def _round(value: float) -> float | None:
    known = or_none(value)
    return None if known is None else float(f"{known:.6g}")
