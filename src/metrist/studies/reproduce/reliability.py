"""The study of Doostmohammadi et al. (2024), "How Reliable Are Automatic Evaluation Methods for Instruction-Tuned
LLMs?", on ratings and scores of one's own.

Every figure rests on cells: a metric's scores of all systems' outputs for one task in one language. A metric's tie
threshold ε is chosen once per language, or once for all, as the best for the mean over tasks; every cell, row and table
uses that one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from metrist.errors import RunError, SpecError, format_count
from metrist.evaluate.meta.analyses.systems import metrics_on_scale, system_levels
from metrist.evaluate.meta.dataset import (
    JudgedDataset,
    Labels,
    check_names,
    compute_gold,
    filter_outputs,
    select_sample,
)
from metrist.evaluate.meta.evaluate import evaluate
from metrist.evaluate.meta.join import join
from metrist.evaluate.meta.lengths import SHORT_BELOW
from metrist.evaluate.meta.results import Figure, MetaEvaluation
from metrist.evaluate.plans import MetaPlan, check_epsilons
from metrist.evaluate.selection import holds_results
from metrist.metrics.base import PART
from metrist.report.tables import Column, Count, Number, Share, Table, name_columns
from metrist.run import score
from metrist.stats import Codes, Floats
from metrist.stats.agreement import agreement
from metrist.stats.estimation import estimate
from metrist.stats.gold import UNKNOWN, majorities
from metrist.stats.measures import accuracy_at, mean_of_known
from metrist.stats.ties import tie_share

#: For which outputs a metric has one threshold.
EpsilonOver = Literal["language", "all"]
#: The class of all tasks.
EVERY = "all"
SHORT, LONG = "short", "long"
#: Classes of tasks need the lengths of references in words.
_UNITS = ("words",)
_MEASURES = ("acc_eq", "kendall_b", "spearman")
#: The column of the cells' numbers.
_CELL = "cell"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskOutputs:
    """The outputs for one task in one language; `length` is the class of the task, empty if it has none."""

    language: str
    task: str
    length: str
    outputs: Codes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PartAgreement:
    """How a metric agrees with people on one task in one language."""

    metric: str
    part: TaskOutputs
    accuracy: Figure
    tau: Figure
    rho: Figure


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReliabilityStudy:
    """The cells, and what else tables and figures are made from. `judges` are the metrics on the raters' scale."""

    dataset: JudgedDataset
    aspect: str
    gold: Floats
    metrics: tuple[str, ...]
    judges: tuple[str, ...]
    parts: tuple[TaskOutputs, ...]
    cells: tuple[PartAgreement, ...]
    notes: tuple[str, ...]

    @property
    def languages(self) -> list[str]:
        return list(dict.fromkeys(part.language for part in self.parts))

    @property
    def lengths(self) -> list[str]:
        """All tasks, then the classes of tasks if there are several."""
        classes = sorted({part.length for part in self.parts if part.length})
        return [EVERY, *(classes if len(classes) > 1 else [])]

    def select(self, metric: str, language: str, length: str = EVERY) -> list[PartAgreement]:
        """The cells of a metric in one language."""
        own = [cell for cell in self.cells if cell.metric == metric and cell.part.language == language]
        return [cell for cell in own if length in (EVERY, cell.part.length)]

    def epsilon(self, metric: str, language: str) -> float:
        """The threshold of a metric in a language; NaN if it has no score there."""
        return next((cell.accuracy.epsilon for cell in self.select(metric, language)), math.nan)

    def scores(self, metric: str) -> Floats:
        """The scores of a metric; larger is better."""
        return self.dataset.scores[metric].signed()

    def tables(self) -> list[Table]:
        """Agreement among the raters, then the paper's Tables 1, 2, 4 and 5."""
        return [_rater_table(self), _tie_table(self), _level_table(self), _system_table(self), _metric_table(self)]

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data."""
        names = [(cell, {"task": cell.part.task, "language": cell.part.language}) for cell in self.cells]
        rows = [{**figure.row(), **own} for cell, own in names for figure in (cell.accuracy, cell.tau, cell.rho)]
        return {"tables": [table.to_dict() for table in self.tables()], "cells": rows, "notes": list(self.notes)}


def study_reliability(
    data: Sequence[Any],
    *,
    aspect: str | None = None,
    class_column: str | None = None,
    metrics: Sequence[str] = (),
    epsilon_over: EpsilonOver = "language",
    epsilon: Mapping[str, Any] | None = None,
    **reading: Any,
) -> ReliabilityStudy:
    """Repeat the study on these files and runs, which are joined by item and system.

    Gold is the majority of the raters. `metrics` that the data hold no scores of are computed; by default all that they
    hold are used. Tasks and languages come from the records, classes of tasks from `class_column` or, without one, from
    the length of their references. `epsilon` maps metrics to thresholds, or to one for each language, that are not
    chosen.
    """
    dataset = _read(data, metrics, reading)
    known = list(dataset.ratings)
    if aspect is not None:
        check_names("aspect", [aspect], known)
    elif len(known) == 1:
        aspect = known[0]
    else:
        listed = f"choose one, `aspect`: {', '.join(known)}" if known else "give the file that has them too"
        raise RunError(f"the study is about the ratings of one aspect; {listed}", code="missing_value")
    names = [name for name in metrics or dataset.scores if _split_aspect(dataset, name)[1] in ("", aspect)]
    gold = compute_gold(dataset, aspect, "majority")
    lengths, notes = _classify_tasks(dataset, class_column)
    rated = np.flatnonzero(np.isfinite(gold))
    parts = _list_parts(dataset, rated, lengths)
    if missing := len(rated) - sum(len(part.outputs) for part in parts):
        notes.append(f"Left out: {format_count(missing, 'output')} without a task or a language.")
    given = check_epsilons(epsilon or {}, "language" if epsilon_over == "language" else None)
    check_names("metric", list(given), names)
    figures = _measure_parts(dataset, aspect, names, parts, epsilon_over, given)
    evaluation = MetaEvaluation(dataset=dataset, plan=MetaPlan(), figures=tuple(figures))
    by_slice: dict[tuple[str, str], list[Figure]] = {}
    for figure in figures:
        if figure.slice.startswith(f"{_CELL}=") and figure.n:
            by_slice.setdefault((figure.metric, figure.slice.removeprefix(f"{_CELL}=")), []).append(figure)
    cells = [
        PartAgreement(metric=metric, part=parts[int(number)], accuracy=accuracy, tau=tau, rho=rho)
        for (metric, number), (accuracy, tau, rho) in by_slice.items()
    ]
    values = dataset.ratings[aspect].value
    return ReliabilityStudy(
        dataset=dataset,
        aspect=aspect,
        gold=gold,
        metrics=tuple(name for name in names if name in evaluation.metrics()),
        judges=tuple(metrics_on_scale(evaluation, rated, (float(values.min()), float(values.max())))),
        parts=tuple(parts),
        cells=tuple(cells),
        notes=(*_describe_thresholds(parts, epsilon_over, names, given), *notes, *dataset.notes),
    )


# ---- What the study is about


def _read(data: Sequence[Any], metrics: Sequence[str], reading: dict[str, Any]) -> JudgedDataset:
    """Join the sources; metrics without scores there are computed from the texts."""
    dataset = join(list(data), metrics=metrics, lengths=_UNITS, **reading)
    if missing := [name for name in metrics if name not in dataset.scores]:
        files = [source for source in data if not holds_results(source)]
        if not files:
            check_names("metric", missing, list(dataset.scores))
        try:
            computed = score(files if len(files) > 1 else files[0], missing, **reading)
        except SpecError:
            if dataset.scores:  # A stored score may be meant.
                check_names("metric", missing, list(dataset.scores))
            raise
        dataset = join([*data, computed], metrics=metrics, lengths=_UNITS, **reading)
    if not dataset.scores:
        raise RunError("the data hold no scores: name metrics to compute (-m rougeL), or add a run", code="no_data")
    if dataset.weight is not None:
        note = "All outputs count alike; sampling weights are not used."
        dataset = replace(dataset.without_weights(), notes=(note, *dataset.notes))
    # Without tasks, or languages, all outputs share one.
    single = Labels(codes=np.zeros(len(dataset), dtype=np.intp), names=("",))
    return replace(dataset, columns={"task": single, "language": single, **dataset.columns})


def _split_aspect(dataset: JudgedDataset, metric: str) -> tuple[str, str]:
    """Split `judge:fluency` into the metric and the rated aspect that it scores; that is empty if none is named."""
    name, _, aspect = metric.rpartition(PART)
    return (name, aspect) if name and aspect in dataset.ratings else (metric, "")


def _classify_tasks(dataset: JudgedDataset, column: str | None) -> tuple[Labels, list[str]]:
    """Return the class of each output's task, and how it came about."""
    if column is not None:
        return dataset.column(column), []
    tasks = dataset.columns["task"]
    lengths = dataset.lengths.get("reference_length:words")
    if lengths is None or not np.isfinite(lengths).any():
        note = "Tasks have no class: there are no references to tell short answers from long ones."
        return Labels(codes=np.full(len(dataset), -1, dtype=np.intp), names=()), [note]
    means = [float(mean_of_known(lengths[tasks.codes == code].astype(float))) for code in range(len(tasks.names))]
    codes = [-1 if math.isnan(mean) else int(mean >= SHORT_BELOW) for mean in means]
    note = f"Tasks are short where references have fewer than {SHORT_BELOW} words on average."
    return Labels(codes=np.array([*codes, -1], dtype=np.intp)[tasks.codes], names=(SHORT, LONG)), [note]


def _list_parts(dataset: JudgedDataset, rated: Codes, lengths: Labels) -> list[TaskOutputs]:
    languages, tasks = dataset.columns["language"], dataset.columns["task"]
    codes = np.stack([column.codes[rated] for column in (languages, tasks, lengths)])
    keys, number = np.unique(codes, axis=1, return_inverse=True)
    parts = []
    for code, (language, task, length) in enumerate(keys.T.tolist()):
        if language >= 0 and task >= 0:
            own = TaskOutputs(
                language=languages.names[language],
                task=tasks.names[task],
                length=lengths.names[length] if length >= 0 else "",
                outputs=rated[number.reshape(-1) == code],
            )
            parts.append(own)
    return parts


def _measure_parts(
    dataset: JudgedDataset,
    aspect: str,
    names: Sequence[str],
    parts: Sequence[TaskOutputs],
    epsilon_over: EpsilonOver,
    given: Mapping[str, Any],
) -> list[Figure]:
    """Return the figures of each part, whose number is the value of their slice; thresholds that are not given are
    chosen for the parts of one language, or for all parts."""
    number = np.full(len(dataset), -1, dtype=np.intp)
    for code, part in enumerate(parts):
        number[part.outputs] = code
    column = Labels(codes=number, names=tuple(map(str, range(len(parts)))))
    # Raters without names are not measured against each other.
    ratings = {name: replace(own, rater=np.full_like(own.rater, UNKNOWN)) for name, own in dataset.ratings.items()}
    dataset = replace(dataset, columns={**dataset.columns, _CELL: column}, ratings=ratings)
    languages = dict.fromkeys(part.language for part in parts)
    apart = len(languages) > 1 and epsilon_over == "language"
    figures: list[Figure] = []
    for language in languages if apart else [next(iter(languages), "")]:
        own = filter_outputs(dataset, [f"language={language}"] if apart else [])
        known = tuple(name for name in names if name in own.scores and np.isfinite(own.scores[name].values).any())
        plan = MetaPlan(
            aspects=(aspect,), measures=_MEASURES, group="none", slices=(_CELL,), gold="majority", draws=0, test="none"
        )
        if known:
            epsilon = {}
            for name in (name for name in known if name in given):
                thresholds = given[name]
                if isinstance(thresholds, Mapping) and language not in thresholds:
                    raise RunError(f"`epsilon` of {name!r} has none for language={language}", code="missing_value")
                epsilon[name] = thresholds[language] if isinstance(thresholds, Mapping) else thresholds
            figures += evaluate(own, replace(plan, metrics=known, epsilon=epsilon)).figures
    return figures


def _describe_thresholds(
    parts: Sequence[TaskOutputs], epsilon_over: EpsilonOver, names: Sequence[str], given: Mapping[str, Any]
) -> Iterator[str]:
    if given:
        yield f"ε of {', '.join(given)}: given; all tables use it."
    if len(given) == len(names):
        return
    several = len({part.language for part in parts}) > 1
    each, over = "metric", "tasks"
    if several:
        each, over = (
            ("metric and language", "its tasks") if epsilon_over == "language" else (each, "tasks of all languages")
        )
    whose = f" of {', '.join(name for name in names if name not in given)}" if given else ""
    yield f"ε{whose}: one per {each}, the best for the mean over {over}; all tables use it."


# ---- Tables


def _mean(values: Iterable[float]) -> float:
    """The mean of the values that are defined."""
    return float(mean_of_known(np.array([*values], dtype=np.float64)))


def _rater_table(study: ReliabilityStudy) -> Table:
    """How the raters agree, per aspect (section 3.3)."""
    rows: list[list[Any]] = []
    for aspect, ratings in study.dataset.ratings.items():
        named, agreed = ratings.are_named(), majorities(ratings)
        names = ["fleiss_kappa", *(["kendall"] if named else [])]
        found = agreement(ratings, names, 0, np.random.default_rng(0))
        cells = [own.failure or Number(own.value) for own in found] + ([] if named else ["raters unnamed"])
        rows.append([aspect, *cells, Share(_mean(agreed)), Count(int(np.isfinite(agreed).sum()))])
    head = name_columns("aspect", right=("Fleiss' κ", "τ-b, mean of rater pairs", "majority", "outputs"))
    notes = ["Majority: the share of outputs with two or more ratings where more than half of the raters agree."]
    return Table(title="Agreement among the raters", columns=head, rows=rows, notes=notes)


def _tie_table(study: ReliabilityStudy) -> Table:
    """Table 1: the share of tied pairs, as mean and spread over tasks, without a threshold and at ε."""
    rows: list[list[Any]] = []
    for language in study.languages:
        columns = {"(humans)": (study.gold, 0.0)}
        columns |= {name: (study.scores(name), study.epsilon(name, language)) for name in study.metrics}
        for name, (values, epsilon) in columns.items():
            if not math.isnan(epsilon):
                own = [values[part.outputs] for part in study.parts if part.language == language]
                known = [part[np.isfinite(part)] for part in own]
                cells: list[Number] = []
                for threshold in (0.0, epsilon):
                    shares = np.array([tie_share(part, threshold) for part in known if len(part) > 1])
                    cells += [Number(_mean(shares)), Number(shares.std(ddof=1) if len(shares) > 1 else math.nan)]
                rows.append([language, name, *cells, Number(epsilon, 4)])
    head = name_columns("language", "metric", right=("ties", "± sd", "ties at ε", "± sd at ε", "ε"))
    return _make_table(study, "Table 1: tied pairs, mean over tasks", head, rows)


def _level_table(study: ReliabilityStudy) -> Table:
    """Table 2: the systems' mean ratings from 0 to 100, and those of judges, with their average difference."""
    systems = study.dataset.systems
    columns: dict[str, tuple[Floats, Any]] = {}
    for aspect, ratings in study.dataset.ratings.items():
        scale = float(ratings.value.min()), float(ratings.value.max())
        if scale[0] == scale[1]:
            continue
        gold = compute_gold(study.dataset, aspect, "majority")
        columns[aspect] = system_levels(gold, gold, systems.codes, scale).human, ""
        for judge in study.judges:
            name = f"{_split_aspect(study.dataset, judge)[0]}{PART}{aspect}"
            name = judge if aspect == study.aspect else name
            if name in study.dataset.scores:
                levels = system_levels(gold, study.scores(name), systems.codes, scale)
                columns[f"{aspect} ({judge})"] = levels.judge, Number(levels.gap, 1)
    rows: list[list[Any]] = [
        [name, *(Number(values[code], 0) for values, _ in columns.values())] for code, name in enumerate(systems.names)
    ]
    notes = ["Ratings are the majority; 0 and 100 are the worst and the best rating given, also for judges."]
    if study.judges:
        rows.append(["average difference", *(gap for _, gap in columns.values())])
    else:
        notes.append("No metric uses the raters' scale.")
    head = name_columns("system", right=columns)
    return Table(title="Table 2: mean ratings per system, 0 to 100", columns=head, rows=rows, notes=notes)


def _system_table(study: ReliabilityStudy) -> Table:
    """Table 4: pairwise accuracy among the outputs of one system, mean over tasks, at the language's ε."""
    systems = study.dataset.systems
    rows: list[list[Any]] = []
    for code, system in enumerate(systems.names):
        for language in study.languages:
            parts = [part.outputs for part in study.parts if part.language == language]
            own = [outputs[systems.codes[outputs] == code] for outputs in parts]
            values = [_measure_system(study, name, study.epsilon(name, language), own) for name in study.metrics]
            if not all(map(math.isnan, values)):
                rows.append([system, language, *map(Number, values)])
    head = name_columns("system", "language", right=study.metrics)
    return _make_table(study, "Table 4: pairwise accuracy per system, mean over tasks", head, rows)


def _measure_system(study: ReliabilityStudy, metric: str, epsilon: float, parts: Sequence[Codes]) -> float:
    if math.isnan(epsilon):
        return math.nan
    samples = [select_sample(study.dataset, study.gold, study.scores(metric), own).sample for own in parts]
    return _mean(estimate(accuracy_at(epsilon), sample, "none").values[0] for sample in samples if len(sample))


def _metric_table(study: ReliabilityStudy) -> Table:
    """Table 5: τ, ρ and pairwise accuracy by metric, class of tasks and language, means over tasks."""
    rows: list[list[Any]] = []
    for metric in study.metrics:
        for language in study.languages:
            for length in study.lengths:
                if not (cells := study.select(metric, language, length)):
                    continue
                means = [_mean(getattr(cell, name).value for cell in cells) for name in ("tau", "rho", "accuracy")]
                floors = [_mean(getattr(cell.accuracy, name) for cell in cells) for name in ("chance", "all_ties")]
                undefined = sum(math.isnan(cell.tau.value + cell.rho.value) for cell in cells)
                numbers = [*map(Number, means), Number(study.epsilon(metric, language), 4), *map(Number, floors)]
                rows.append([metric, length, language, *numbers, Count(len(cells)), Count(undefined)])
    right = ("τ", "ρ", "PA", "ε", "chance", "all ties", "number of tasks", "without τ or ρ")
    notes = [
        "τ is Kendall's τ-b, ρ Spearman's, PA pairwise accuracy with ties at ε: means over tasks, over the outputs of "
        "all systems. Where people or the metric give all outputs of a task one value, it has no τ and ρ, and their "
        "means leave it out.",
        "Chance is the PA of guessing the order of each pair, all ties that of calling every pair a tie.",
    ]
    head = name_columns("metric", "tasks", "language", right=right)
    return _make_table(study, "Table 5: agreement with people by metric and kind of task", head, rows, notes)


def _make_table(
    study: ReliabilityStudy,
    title: str,
    head: Sequence[Column],
    rows: Sequence[Sequence[Any]],
    notes: Sequence[str] = (),
) -> Table:
    """A table without the column of languages if the data name none."""
    kept = [n for n, column in enumerate(head) if column.name != "language" or study.languages != [""]]
    cells = [[row[number] for number in kept] for row in rows]
    return Table(title=title, columns=[head[number] for number in kept], rows=cells, notes=notes)
