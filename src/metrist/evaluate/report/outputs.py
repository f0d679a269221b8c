"""Sections of a report with texts: the worst outputs, those that changed most, disagreements, errors, token heat, and
all outputs to search."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from metrist.errors import MetristError, format_count, label_item
from metrist.evaluate.report.data import ReportData
from metrist.evaluate.report.verdicts import rank_systems
from metrist.evaluate.worst import list_decimals, show_outputs, worst
from metrist.metrics.base import Metric, PartMetric
from metrist.ratings import Error
from metrist.report.errors import SEVERITIES, rank_severity
from metrist.report.figures import draw_bars
from metrist.report.output_cards import clean_text, cut_pieces, number_errors
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
from metrist.report.tables import Column, Count, Number, Table, format_number, or_none
from metrist.report.worst import PEOPLE, WorstEntry, WorstOutputs

#: Outputs shown per list.
_SHOWN = 5
#: Metrics with a list of their own.
_MAX_LISTS = 12
#: Texts on the page: outputs at most, and characters of all texts together.
MAX_OUTPUTS, MAX_CHARACTERS = 2000, 6_000_000
#: In a sample: outputs in all, and the worst of each metric that it has.
_SAMPLE, _SAMPLE_WORST = 1000, 20


def _find(data: ReportData, metrics: str | Sequence[str], **ranking: Any) -> WorstOutputs | None:
    """The outputs that `worst` finds, or None where there are none of this kind, such as differences between systems
    without items in common. Notes of the run are shown elsewhere."""
    try:
        found = worst(data.results, _SHOWN, metrics, texts=data.judgments, **ranking)
    except MetristError:
        return None
    notes = [note for note in found.notes if note not in data.results.notes]
    return replace(found, notes=notes) if found.entries else None


def worst_section(data: ReportData) -> Section | None:
    """The worst outputs by each metric."""
    blocks, decimals = list[Block](), list_decimals(data.results)
    # Metrics that give reasons come first.
    explained = [m for m in data.directed if not isinstance(m, PartMetric) and _gives_reasons(data, m)]
    for metric in [*explained, *(m for m in data.directed if m not in explained)][:_MAX_LISTS]:
        outputs = _find(data, metric.label)
        if outputs is not None:
            places = decimals[metric.label]
            mean = format_number(float(np.nanmean(data.results[metric].values)), places)
            entries = [
                replace(entry, reason=f"{metric.label} {format_number(entry.value, places)}; the mean is {mean}")
                for entry in outputs.entries
            ]
            outputs = replace(outputs, entries=entries)
            block = OutputsBlock(outputs=outputs)
            blocks.append(Fold(title=f"{outputs.title} ({len(outputs)} shown)", blocks=[block], opened=not blocks))
    return Section(name="worst", title="Worst outputs", blocks=blocks, brief=True) if blocks else None


def _gives_reasons(data: ReportData, metric: Metric) -> bool:
    block = data.results.scores[metric.label]
    return bool(block.errors or block.explanations)


def changes_section(data: ReportData) -> Section | None:
    """Where two systems differ most, in either direction: the only two, each against the baseline, or the two best."""
    if data.comparison is None or not data.directed:
        return None
    baseline = data.options.baseline
    ranked = [name for name, *_ in rank_systems(data.comparison)]
    if baseline is not None:
        pairs = [(name, baseline) for name in ranked if name != baseline][:3]
    else:
        pairs = [(ranked[0], ranked[1])] if len(ranked) != 2 else [(data.systems[1], data.systems[0])]
    blocks: list[Block] = []
    for first, second in pairs:
        for metric in data.directed[:4]:
            folds: list[Block] = []
            for order in ("losses", "gains"):
                outputs = _find(data, metric.label, vs=second, systems=[first], order=order)
                if outputs is not None:
                    folds.append(
                        Fold(
                            title=outputs.title, blocks=[OutputsBlock(outputs=outputs)], opened=not blocks and not folds
                        )
                    )
            blocks += folds
    if not blocks:
        return None
    how = Prose(
        sentences=["Two outputs of the same item side by side; words that only one of them has are marked."],
        kind="notes",
    )
    return Section(name="changes", title="Most changed", blocks=[how, *blocks])


def disagreements_section(data: ReportData) -> Section | None:
    """Outputs on which metrics disagree with each other, and with people."""
    texts, blocks = data.judgments, list[Block]()
    metrics = [metric for metric in data.directed if not isinstance(metric, PartMetric)]
    if len(metrics) > 1:
        outputs = _find(data, [m.label for m in metrics], by="disagreement")
        if outputs is not None:
            blocks.append(Fold(title=outputs.title, blocks=[OutputsBlock(outputs=outputs)], opened=True))
    if texts.ratings:
        for metric in metrics[:_MAX_LISTS]:
            outputs = _find(data, metric.label, by="people")
            if outputs is not None:
                blocks.append(Fold(title=outputs.title, blocks=[OutputsBlock(outputs=outputs)]))
    return Section(name="disagreements", title="Disagreements", blocks=blocks) if blocks else None


# ---- Errors


def _list_errors(data: ReportData) -> dict[str, list[tuple[int, Error]]]:
    """The errors by who found them, each with the row of its output."""
    found: dict[str, list[tuple[int, Error]]] = {}
    for metric in data.results.metrics:
        block = data.results.scores[metric.label].errors
        own = [(row, error) for row in sorted(block) for error in block[row]]
        if own:
            found[metric.label] = own
    rows = {key: row for row, key in enumerate(zip(data.results.items, data.results.systems, strict=True))}
    marked = [(rows[key], error) for key, errors in data.judgments.errors.items() for error in errors if key in rows]
    if marked:
        found[PEOPLE] = sorted(marked, key=lambda entry: entry[0])
    return found


def _severity(error: Error) -> str:
    return SEVERITIES[rank_severity(error)]


def errors_figure(data: ReportData, style: Style = PAGE) -> Drawing | None:
    """Errors by aspect, stacked by severity, for everyone who found some."""
    found = _list_errors(data)
    counts: dict[str, Counter[str]] = {}
    for name, errors in found.items():
        for _, error in errors:
            label = error.aspect if len(found) == 1 else f"{name}: {error.aspect}"
            counts.setdefault(label, Counter())[_severity(error)] += 1
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
    found = _list_errors(data)
    drawing = errors_figure(data)
    if drawing is None:
        return None
    blocks: list[Block] = [FigureBlock(drawing=drawing, name="errors"), TableBlock(table=_error_table(found))]
    blocks.append(TableBlock(table=_system_error_table(data, found)))
    penalties: dict[int, tuple[float, int]] = {}
    for errors in found.values():
        for row, error in errors:
            penalty, number = penalties.get(row, (0.0, 0))
            own = error.penalty if error.penalty is not None else (len(SEVERITIES) - rank_severity(error)) / 10
            penalties[row] = penalty + own, number + 1
    rows = sorted(penalties, key=lambda row: (-penalties[row][0], -penalties[row][1], row))[:8]
    shown = show_outputs(data.results, data.judgments, rows)
    entries = [
        WorstEntry(
            outputs=(output,),
            value=penalties[row][0],
            reason=f"{format_count(penalties[row][1], 'error')} with penalties of {penalties[row][0]:g} together",
        )
        for row, output in zip(rows, shown, strict=True)
    ]
    outputs = WorstOutputs(
        title="Outputs with the heaviest errors", entries=entries, decimals=list_decimals(data.results)
    )
    legend = Prose(
        sentences=["Point at a marked passage, or reach it with the Tab key, to read why it is one."], kind="notes"
    )
    blocks.append(
        Fold(
            title=f"{outputs.title} ({len(entries)} of {len(penalties):,})",
            blocks=[legend, OutputsBlock(outputs=outputs)],
            opened=True,
        )
    )
    return Section(name="errors", title="Errors", blocks=blocks)


def _error_table(found: dict[str, list[tuple[int, Error]]]) -> Table:
    rows: list[list[Any]] = []
    for name, errors in found.items():
        by_aspect: dict[str, list[tuple[int, Error]]] = {}
        for row, error in errors:
            by_aspect.setdefault(error.aspect, []).append((row, error))
        for aspect, own in sorted(by_aspect.items(), key=lambda entry: -len(entry[1])):
            severities = Counter(_severity(error) for _, error in own)
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
        columns=[Column("found by"), Column("aspect"), *(Column(n, "right") for n in numbers)],
        rows=rows,
    )


def _system_error_table(data: ReportData, found: dict[str, list[tuple[int, Error]]]) -> Table:
    rows: list[list[Any]] = []
    for name, errors in found.items():
        by_system: dict[str, list[Error]] = {}
        for row, error in errors:
            by_system.setdefault(data.results.systems[row], []).append(error)
        for system, at in data.positions.items():
            own = by_system.get(system, [])
            severities = Counter(map(_severity, own))
            rate = Number(len(own) / len(at), 2)
            rows.append(
                [system, name, Count(len(own)), rate, *(Count(severities[severity]) for severity in SEVERITIES)]
            )
    head = [Column("system"), Column("found by"), *(Column(n, "right") for n in ("errors", "per output", *SEVERITIES))]
    return Table(title="Errors by system", columns=head, rows=rows)


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
    """All outputs with texts, to be searched and sorted on the page; of large runs a sample, by a rule that is
    stated."""
    records = data.judgments.records
    if not records:
        return None
    rows, rule = _choose_rows(data)
    shown = show_outputs(data.results, data.judgments, rows)
    items: dict[str, int] = {}
    systems = {system: number for number, system in enumerate(data.systems)}
    contexts: list[dict[str, Any]] = []
    outputs: list[dict[str, Any]] = []
    decimals = list_decimals(data.results)
    columns = [metric.label for metric in data.columns]
    for output in shown:
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
        errors, names = number_errors(output)
        located = [(n, e) for n, e in errors if e.start is not None and e.side == "output"]
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
    records, results = data.judgments.records, data.results
    keys = list(zip(results.items, results.systems, strict=True))
    with_text = [row for row, key in enumerate(keys) if key in records]
    contexts = {key[0]: records[key] for key in records}
    characters = sum(len(records[keys[row]].output) for row in with_text)
    characters += sum(len(r.source or "") + sum(map(len, r.references)) for r in contexts.values())
    if len(with_text) <= MAX_OUTPUTS and characters <= MAX_CHARACTERS:
        return with_text, []
    chosen: set[int] = set()
    for metric in data.directed:
        sign, values = (-1 if metric.higher_is_better is False else 1), results[metric].values
        scored = [row for row in with_text if not math.isnan(values[row])]
        chosen.update(sorted(scored, key=lambda row: sign * values[row])[:_SAMPLE_WORST])
    rest = [row for row in with_text if row not in chosen]
    rng = np.random.default_rng(data.options.seed)
    room = max(_SAMPLE - len(chosen), 0)
    if rest and room:
        chosen.update(rest[i] for i in rng.choice(len(rest), min(room, len(rest)), replace=False))
    rule = (
        f"Texts of {len(chosen):,} of {len(results):,} outputs: the {_SAMPLE_WORST} worst by each metric, and a random "
        f"sample of the others (seed {data.options.seed}). All tables and figures above are over all outputs."
    )
    return sorted(chosen), [rule]


def _join_pieces(text: str | None) -> str:
    return "" if text is None else "".join(piece.text for piece in cut_pieces(text, whole=True))


def _round(value: float) -> float | None:
    known = or_none(value)
    return None if known is None else float(f"{known:.6g}")
