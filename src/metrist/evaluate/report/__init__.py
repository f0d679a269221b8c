"""`report`: everything that a run shows, on one page: verdict, tables, figures, texts, and how to repeat it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from metrist._version import __version__
from metrist.documents import read_json
from metrist.errors import RunError, format_count, quote_word, unknown_name
from metrist.evaluate.compare.methods import describe_methods
from metrist.evaluate.report import agreement, outputs, systems
from metrist.evaluate.report.data import ReportData, ReportOptions
from metrist.names import list_distinct
from metrist.report.page import Block, CommandBlock, Fold, Prose, Report, Section, TableBlock
from metrist.report.scores import sign_metrics
from metrist.report.svg import COLUMN, PAGE, TEXT_WIDTH, Drawing, Style
from metrist.report.tables import Column, Count, Estimate, Table, name_columns
from metrist.run.run import Run
from metrist.run.stored_run import describe_options

__all__ = ["KINDS", "WIDTHS", "ReportData", "ReportOptions", "build_report", "plot"]

#: The figures that `plot` draws.
KINDS: Mapping[str, Callable[..., Drawing | None]] = {
    "scores": systems.scores_figure,
    "differences": systems.differences_figure,
    "distributions": systems.distributions_figure,
    "wins": systems.wins_figure,
    "errors": outputs.errors_figure,
    "agreement": agreement.agreement_figure,
    "slices": agreement.slices_figure,
    "scatter": agreement.scatter_figure,
    "curves": agreement.curves_figure,
    "levels": agreement.levels_figure,
    "majority": agreement.majority_figure,
}
WIDTHS: Mapping[str, Style] = {"column": COLUMN, "text": TEXT_WIDTH, "page": PAGE}
#: What a figure needs that the run may not have.
_NEEDS = {
    "differences": "two systems",
    "wins": "two systems",
    "errors": "a metric that marks errors, or errors that people marked",
    "levels": "ratings and two tasks or languages at least (`slices` names another column)",
    "slices": "ratings, and several aspects or slices (`slices='COLUMN'`)",
    "majority": "two or more ratings per output",
}

#: The sections of the page in their order, by what they show.
_SECTIONS: Mapping[str, Callable[[ReportData], Section | None]] = {
    "systems": systems.systems_section,
    "agreement with people": agreement.agreement_section,
    "worst outputs": outputs.worst_section,
    "changes": outputs.changes_section,
    "errors": outputs.errors_section,
    "aspects": systems.aspects_section,
    "distributions": systems.distributions_section,
    "disagreements": outputs.disagreements_section,
    "token heat": outputs.heat_section,
    "failures": systems.failures_section,
    "texts": outputs.explorer_section,
}
#: Lines of the verdict, and those of them on systems at least: all pairs and aspects are in sections of their own.
_MAX_VERDICTS, _MIN_COMPARED = 5, 2


def build_report(
    *sources: Any,
    title: str = "",
    command: str = "",
    judge_cards: Sequence[str | os.PathLike[str]] = (),
    **options: Any,
) -> Report:
    """A report on runs, or on files with scores, or on files scored now with `metrics`.

    `sources` are run folders, files that `metrist score` wrote, results, and files with texts and ratings. `options`
    are those of `ReportOptions`. `judge_cards` are JSON files of `metrist audit`; `command` is shown as the one that
    made the page. `report.html()` is the page, `report.markdown()` the form for a pull request.
    """
    data = ReportData(sources, ReportOptions(**options))
    data.begin("systems")
    comparison = data.comparison
    data.begin("agreement with people")
    evaluation = data.evaluation
    cards = [TableBlock(table=_read_card(Path(path))) for path in judge_cards]
    sections = list[Section | None]()
    for name, build in _SECTIONS.items():
        data.begin(name)
        sections.append(build(data))
    judges = Section(name="judges", title="Judge card", blocks=cards) if cards else None
    sections += [judges, _methods_section(data, command)]
    further = [*outputs.compare_errors(data)[:1], *(agreement.trust_sentence(evaluation) if evaluation else [])]
    compared = systems.describe_comparison(comparison) if comparison else _describe_system(data)
    sentences = compared[: max(_MAX_VERDICTS - len(further), _MIN_COMPARED)] + further
    total = len(data.results)
    counts = {m.label: (total - len(data.results.scores[m.label].failures), total) for m in data.results.metrics}
    facts = [
        format_count(total, "output"),
        format_count(len(list_distinct(data.results.items)), "item"),
        format_count(len(data.systems), "system"),
        format_count(len(data.results.metrics), "metric"),
    ]
    if data.texts.ratings:
        facts.append(f"rated by people for {', '.join(data.texts.ratings)}")
    names = [Path(source).name for source in sources if isinstance(source, str | os.PathLike)]
    cautions = systems.describe_coverage(counts)
    cautions += [*data.notes, *data.results.notes]
    if announce := data.options.reading.get("announce"):
        for note in dict.fromkeys(data.notes):
            announce(note)
    basis = [systems.describe_basis(comparison)] if comparison else []
    basis += [agreement.describe_measure(evaluation)] if evaluation else []
    return Report(
        title=title or (f"Evaluation of {' and '.join(names[:3])}" if names else "Evaluation"),
        facts=" · ".join(facts),
        verdicts=sentences[:_MAX_VERDICTS],
        basis=" ".join(basis),
        cautions=list(dict.fromkeys(cautions)),
        sections=[section for section in sections if section is not None],
        footer=f"metrist {__version__}. This page loads nothing and sends nothing.",
    )


def plot(
    *sources: Any,
    kind: str,
    width: str = "column",
    metric: str | None = None,
    aspect: str | None = None,
    **options: Any,
) -> Drawing:
    """One figure of the report, with the size and the type of a paper's column. `metric` is that of `levels`, `aspect`
    that of `levels`, `scatter` and `curves`."""
    if kind not in KINDS:
        raise unknown_name("kind of figure", kind, KINDS)
    if width not in WIDTHS:
        raise unknown_name("width", width, WIDTHS)
    data = ReportData(sources, ReportOptions(**options))
    chosen: dict[str, Any] = {}
    if kind in ("levels", "scatter", "curves") and aspect is not None:
        known = data.evaluation.golds if data.evaluation else {}
        if aspect not in known:
            raise unknown_name("ratings of", aspect, known)
        chosen["aspect"] = aspect
    if kind == "levels" and metric is not None:
        chosen["metric"] = data.results.metric(metric).label
    drawing = KINDS[kind](data, WIDTHS[width], **chosen)
    if drawing is None:
        reasons = f" ({'; '.join(data.notes)})" if data.notes else ""
        raise RunError(
            f"a figure of {kind} needs {_NEEDS.get(kind, 'ratings by people')}{reasons}", code="too_little_data"
        )
    return drawing


def _describe_system(data: ReportData) -> list[str]:
    """With one system there is nothing to compare: its scores."""
    parts = [
        f"{s.metric} {Estimate(s.value, s.low, s.high, data.decimals[s.metric])}"
        for s in data.scores
        if not math.isnan(s.value)
    ]
    name = data.systems[0] if data.systems else "The run"
    return [f"{name}: {', '.join(parts)}. There is no other system to compare it with."]


# ---- Judge cards


def _read_card(path: Path) -> Table:
    try:
        card = read_json(path, RunError)
        findings = [finding for finding in card["findings"] if finding.get("verdict") != "not measured"]
        rows = [
            [
                str(finding["part"]),
                str(finding["name"]),
                Estimate(_number(finding["value"]), _number(finding["low"]), _number(finding["high"])),
                Count(int(finding.get("n") or 0)),
                {"found": "problem", "not found": "ok", "told": ""}.get(str(finding.get("verdict")), ""),
                str(finding.get("limit", "")),
            ]
            for finding in findings
        ]
        missing = [str(finding["name"]) for finding in card["findings"] if finding.get("verdict") == "not measured"]
        title, judge, signature = str(card["verdict"]), str(card["judge"]), str(card["signature"])
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise RunError(
            f"{path}: expected a judge card that `metrist audit -o card.json` wrote ({error})", code="invalid_value"
        ) from None
    head = [*name_columns("part", "what", right=("value", "n")), *name_columns("verdict", "problem if")]
    notes = [
        f"Judge: {judge}",
        f"Signature: {signature}",
        *([f"Not measured: {', '.join(missing)}"] if missing else []),
    ]
    return Table(title=title, columns=head, rows=rows, notes=notes)


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


# ---- How to repeat it


def _methods_section(data: ReportData, command: str) -> Section:
    """A paragraph for a paper, the commands, the signatures, and what the metrics cost."""
    blocks: list[Block] = []
    commands = [*_score_commands(data), *([command] if command else [])]
    if commands:
        blocks += [Prose(sentences=["The commands that give these numbers again:"]), CommandBlock(lines=commands)]
    paragraph = describe_methods(
        data.results,
        draws=data.options.draws,
        seed=data.options.seed,
        baseline=data.options.baseline,
        alpha=data.options.alpha,
    ).partition("\n\n")[0]
    blocks += [Prose(sentences=["For the methods section of a paper:"]), Prose(sentences=[paragraph])]
    signatures = sign_metrics(data.results.metrics, data.results.signatures, data.results.reference_counts)
    rows = [[signature.name, signature.text, signature.peer] for signature in signatures]
    peers = any(row[2] for row in rows)
    head = [Column("metric"), Column("signature"), *([Column("sacreBLEU's form")] if peers else [])]
    table = Table(title="Signatures", columns=head, rows=[row if peers else row[:2] for row in rows])
    blocks.append(Fold(title="Signatures", blocks=[TableBlock(table=table)]))
    if data.costs:
        blocks.append(Fold(title="Cost of the metrics", blocks=[TableBlock(table=systems.cost_table(data))]))
    return Section(name="methods", title="How to repeat it", blocks=blocks, brief=False)


def _score_commands(data: ReportData) -> list[str]:
    """The commands that scored each run folder, from the current folder: one for all files that were read alike."""
    commands = []
    for name, run in data.runs.items():
        stored = run.inputs
        if not isinstance(stored, Run):
            continue
        files: dict[str, list[str]] = {}
        for one in stored.manifest.inputs:
            if one.path is not None:
                described = quote_word(stored.describe_input(one))
                files.setdefault(" ".join(describe_options(one.options)), []).append(described)
        specs = " ".join(
            f"-m {quote_word(m.text if m.label == m.text else f'{m.label}={m.text}')}"
            for m in stored.manifest.metrics
            if not m.compares
        )
        tokens = " --tokens" if any(block.tokens for block in run.scores.values()) else ""
        for options, names in files.items():
            read = " ".join([*names, *([options] if options else [])])
            commands.append(f"metrist score {read} {specs}{tokens} -o {quote_word(f'{name}/')}")
    return commands
