"""The figures of a reliability study, and its folder: `tables.md`, `tables.json` and an SVG file per figure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from metrist.evaluate.meta.dataset import check_names
from metrist.io.writer import atomic_write
from metrist.report.figures import PlotValue
from metrist.report.meta_figures import AgreementBar, LevelColumn, draw_agreement, draw_levels
from metrist.report.svg import TEXT_WIDTH, Drawing
from metrist.report.tables import escape_markdown, format_number
from metrist.stats.measures import mean_of_known
from metrist.studies.reproduce.reliability import EVERY, LONG, SHORT, ReliabilityStudy

_HEADINGS = {SHORT: "short answers", LONG: "long answers"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StudyFigure:
    caption: str
    drawing: Drawing


def draw_study(study: ReliabilityStudy, pair: Sequence[str] = ()) -> Iterator[StudyFigure]:
    """Yield the paper's Figures 1, 2, 4 and 5, one per metric, then Figure 3 for two metrics (by default, the best
    judge and the best other metric on long answers) in each language."""
    check_names("metric", pair, study.metrics)
    for metric in study.metrics:
        worst, best, origin = _find_scale(study, metric)
        caption = (
            f"{metric}: pairwise accuracy with people per task and language above, mean levels of both below. 0 and 1 "
            f"are the worst and the best rating; for {metric} {worst:.3g} and {best:.3g}, {origin}. "
            f"{_describe_epsilon(study, metric)}."
        )
        columns = list(_list_levels(study, metric, worst, best))
        drawing = draw_levels(columns, metric=metric, measure="acc_eq", aspect=study.aspect, style=TEXT_WIDTH)
        yield StudyFigure(caption=caption, drawing=drawing)
    length = LONG if LONG in study.lengths else EVERY
    for language in study.languages:
        pairs = pair or _choose_pair(study, language, length)
        names = [name for name in pairs if study.select(name, language, length)]
        bars: dict[str, dict[str, AgreementBar]] = {}
        for cell in (cell for name in names for cell in study.select(name, language, length)):
            own = cell.accuracy
            bar = AgreementBar(agreement=PlotValue(value=own.value), chance=own.chance, all_ties=own.all_ties)
            bars.setdefault(cell.part.task or EVERY, {})[cell.metric] = bar
        if len(names) > 1:
            where = f"{length} tasks{f' in {language}' if language else ''}"
            yield StudyFigure(
                caption=f"Pairwise accuracy of {' and '.join(names)}: {where}.",
                drawing=draw_agreement(bars, {}, measure="acc_eq", style=TEXT_WIDTH),
            )


def _list_levels(study: ReliabilityStudy, metric: str, worst: float, best: float) -> Iterator[LevelColumn]:
    """Yield a column per task and language: short tasks left, the languages of a task side by side."""
    values, scores = study.dataset.ratings[study.aspect].value, study.scores(metric)
    low, high = float(values.min()), float(values.max())
    cells = (cell for cell in study.cells if cell.metric == metric)
    for cell in sorted(cells, key=lambda cell: (cell.part.length == LONG, cell.part.length, cell.part.task)):
        both = cell.part.outputs[np.isfinite(scores[cell.part.outputs])]
        yield LevelColumn(
            task=cell.part.task,
            language=cell.part.language,
            agreement=PlotValue(value=cell.accuracy.value),
            people=(float(study.gold[both].mean()) - low) / (high - low) if high > low else math.nan,
            metric=(float(scores[both].mean()) - worst) / (best - worst) if best != worst else math.nan,
            outputs=len(both),
            heading=_HEADINGS.get(cell.part.length, cell.part.length) if len(study.lengths) > 1 else "",
            epsilon=cell.accuracy.epsilon,
        )


def _describe_epsilon(study: ReliabilityStudy, metric: str) -> str:
    """The threshold of each language, or the one of all."""
    known = {language: format_number(study.epsilon(metric, language), 4) for language in study.languages}
    known = {language: shown for language, shown in known.items() if study.select(metric, language)}
    if len(set(known.values())) == 1:
        return f"ε {next(iter(known.values()))}"
    return f"ε {', '.join(f'{shown} ({language})' for language, shown in known.items())}"


def _find_scale(study: ReliabilityStudy, metric: str) -> tuple[float, float, str]:
    """The worst and the best value of a metric, and what they are: the raters' scale for a judge, 0 and 1 for scores
    within them, or else the range of its scores."""
    if metric in study.judges:
        values, origin = study.dataset.ratings[study.aspect].value, "the raters' scale"
        return float(values.min()), float(values.max()), origin
    scores = study.scores(metric)
    low, high = float(np.nanmin(scores)), float(np.nanmax(scores))
    return (0.0, 1.0, "its bounds") if low >= 0 and high <= 1 else (low, high, "the range of its scores")


def _choose_pair(study: ReliabilityStudy, language: str, length: str) -> list[str]:
    """The best judge and the best other metric, by their mean over these tasks."""
    means = {
        metric: mean_of_known(np.array([cell.accuracy.value for cell in cells])).item()
        for metric in study.metrics
        if (cells := study.select(metric, language, length))
    }
    judges = [metric for metric in means if metric in study.judges]
    others = [metric for metric in means if metric not in study.judges]
    return [max(group, key=means.__getitem__) for group in (judges, others) if group]


def format_study(study: ReliabilityStudy) -> str:
    """The notes and tables as Markdown."""
    tables = (table.render("markdown") for table in study.tables())
    return "\n\n".join([f"# Reliability of metrics: {study.aspect}", *study.notes, *tables]) + "\n"


def write_study(study: ReliabilityStudy, folder: Path, pair: Sequence[str] = ()) -> list[Path]:
    """Write the tables and figures; returns the files."""
    figures = list(draw_study(study, pair))
    folder.mkdir(parents=True, exist_ok=True)
    images = [folder / f"figure-{number}.svg" for number in range(1, len(figures) + 1)]
    page = format_study(study)
    for path, figure in zip(images, figures, strict=True):
        figure.drawing.write(path)
        page += f"\n![Figure]({path.name})\n\n{escape_markdown(figure.caption)}\n"
    texts = {folder / "tables.md": page, folder / "tables.json": json.dumps(study.to_dict(), indent=1) + "\n"}
    for path, text in texts.items():
        with atomic_write(path) as file:
            file.write(text)
    return [*texts, *images]
