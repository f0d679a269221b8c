"""Learn the weights of `quality` for each task, and write src/metrist/metrics/trained/quality.toml.

    python quality_weights.py DATA SCORES [TASK...]       the mixtures of other tasks stay as they are

SCORES is the folder of stored scores of `metrist reproduce --scores`; quality_weights.toml has the tasks. Only sets of
families that may be trained on and that no figure is judged by are used, and a metric is never weighed on a family that
it learned from.

Within a set, ratings and scores become ranks among the outputs of an item (or over all outputs where items have one
each), standardised, so that neither scales nor difficult items matter. The weights are those of a ridge regression that
is not negative and is drawn towards equal weights: few sets, few parameters. A metric is left out of a task if it does
not agree with people beyond length on the mean of the task's sets, or if it significantly runs against them on one.
Where a metric has no scores on the sets, or learned from all of them, the weights are equal and the table says so.
Length may be a part itself where people prefer longer or shorter outputs. A task whose mixture agrees less than
length, -length, the copy rate or, with references, the best lexical metric on any set of the table of results is
withdrawn in quality_weights.toml, with the figures; tests/metrics/trained/test_quality.py checks that none is left.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from metrist.errors import MissingExtra, ModelError
from metrist.evaluate.meta.dataset import compute_gold
from metrist.metrics import registry
from metrist.metrics.trained.quality import Size
from metrist.studies.reproduce import agreement
from metrist.studies.reproduce.agreement import RatedSet, correlate, find_pairs, select_outputs
from metrist.studies.reproduce.figures import DataFolder
from metrist.studies.reproduce.published import read_table_file

Floats = NDArray[np.float64]

#: How strongly weights are drawn to equal ones, as a share of the data.
RIDGE = 0.5
#: The standard deviation of the sum of parts on the logistic scale.
SPREAD = 1.5
DRAWS = 400
#: Metrics that have a small and a large English model.
SIZED = ("consistency", "preference", "fluency")


class Task(NamedTuple):
    """A mixture, as quality_weights.toml describes it."""

    task: str
    candidates: tuple[str, ...]
    needs: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    left_out: Mapping[str, str] = {}
    reason: str = ""
    scales: tuple[str, ...] = ()


RECIPE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
TASKS = tuple(
    Task(**{name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()})
    for entry in RECIPE["tasks"]
)


@dataclass(frozen=True)
class Evidence:
    """A set's standardised ratings and scores, and what each metric shows on it. A metric that learned from the family,
    or has no scores, has a column of zeros."""

    name: str
    human: Floats
    scores: Floats
    raw: Mapping[str, tuple[float, float]]
    figures: Mapping[str, tuple[float, float, float]]


def add_size(metric: str, size: Size) -> str:
    """Return the metric with the English model of that size; of some, the small one is the default."""
    is_default = metric not in SIZED or (size == "small" and metric != "preference")
    return metric if is_default else f"{metric}(model='{size}')"


def read_evidence(
    folder: DataFolder, rated: RatedSet, candidates: Sequence[str], trained: Mapping[str, set[str]], size: Size
) -> Evidence:
    judged = folder.judged(rated.data)
    lengths = folder.column(rated.data, "length", every=rated.every, part=rated.part)
    columns: dict[str, Floats] = {}
    for metric in candidates:
        if metric not in registry.names() or rated.family in trained.get(metric, ()):
            continue
        if not all(folder.has_field(rated.data, need) for need in registry.build(metric).needs):
            continue
        try:
            stored = folder.load_scores(rated.data, add_size(metric, size), "all")
        except (MissingExtra, ModelError):  # Its weights are not installed.
            continue
        if stored:
            columns[metric] = folder.column(rated.data, add_size(metric, size), every=rated.every, part=rated.part)
    used = select_outputs(judged, rated) & np.isfinite(lengths)
    for column in columns.values():
        used &= np.isfinite(column)
    raw = {name: (float(np.mean(column[used])), float(np.std(column[used]))) for name, column in columns.items()}
    figures: dict[str, tuple[float, float, float]] = {}
    if rated.measure == "accuracy":
        pairs = find_pairs(judged, used)
        leads = {name: column[pairs.first] - column[pairs.second] for name, column in columns.items()}
        # Each pair in both orders, so that its human side is not constant.
        human = np.concatenate([np.ones(len(pairs.first)), -np.ones(len(pairs.first))])
        stacked = {name: np.concatenate([lead, -lead]) / (lead.std() or 1) for name, lead in leads.items()}
        for name, column in columns.items():
            figures[name] = tuple(agreement.regress_pairs(pairs, column, lengths, DRAWS).figure())
    else:
        parts = []
        ranked: dict[str, list[Floats]] = {name: [] for name in columns}
        statistics: dict[str, list[Any]] = {name: [] for name in columns}
        for aspect in rated.aspects or judged.ratings:
            gold = compute_gold(judged, aspect, "mean")
            outputs = np.flatnonzero(used & np.isfinite(gold))
            items = judged.items.codes[outputs] if rated.group == "item" else np.zeros(len(outputs), dtype=np.intp)
            parts.append(standardise(gold[outputs], items))
            for name, column in columns.items():
                ranked[name].append(standardise(column[outputs], items))
                # Length has no figure given length.
                statistics[name].append(
                    correlate(
                        gold[outputs],
                        column[outputs],
                        lengths[outputs],
                        judged.items.codes[outputs],
                        by_item=rated.group == "item",
                        ranked=True,
                        draws=DRAWS,
                    )[0 if name == "length" else 1]
                )
        human = np.concatenate(parts)
        stacked = {name: np.concatenate(rows) for name, rows in ranked.items()}
        for name, rows in statistics.items():
            figures[name] = tuple(agreement.average_statistics(rows).figure())
    scores = np.stack([stacked.get(name, np.zeros(len(human))) for name in candidates], axis=1)
    return Evidence(rated.name, human, scores, raw, figures)


def standardise(values: Floats, items: NDArray[np.intp]) -> Floats:
    """Return ranks among the outputs of an item, with mean 0 and standard deviation 1; 0 where all are equal."""
    result = np.zeros(len(values))
    for item in np.unique(items):
        own = np.flatnonzero(items == item)
        ranks = agreement.rank(values[own])
        spread = ranks.std()
        result[own] = (ranks - ranks.mean()) / spread if spread > 0 else 0.0
    return result


def fit(evidence: Sequence[Evidence], kept: Sequence[int]) -> Floats:
    """Return weights that are not negative, drawn towards equal ones; every set counts the same."""
    size = len(kept)
    gram, moment = np.zeros((size, size)), np.zeros(size)
    for entry in evidence:
        scores = entry.scores[:, kept]
        gram += scores.T @ scores / len(scores)
        moment += scores.T @ entry.human / len(scores)
    strength = RIDGE * len(evidence)
    equal = max(float(moment.mean()) / max(float(gram.sum(axis=1).mean()), 1e-9), 1e-3)
    gram += strength * np.eye(size)
    moment += strength * equal
    weights = np.full(size, equal)
    for _ in range(2000):
        weights = np.maximum(weights - 0.1 / np.trace(gram) * size * (gram @ weights - moment) / size, 0.0)
    return weights


def learn(
    folder: DataFolder, task: Task, sets: Mapping[str, RatedSet], trained: Mapping[str, set[str]], size: Size
) -> dict[str, Any]:
    evidence = [read_evidence(folder, sets[name], task.candidates, trained, size) for name in task.sets]
    evidence = [entry for entry in evidence if entry.raw]
    left_out = dict(task.left_out)
    measured = {metric for entry in evidence for metric in entry.figures}
    if not measured.issuperset(task.candidates):
        evidence += [read_evidence(folder, sets[name], task.candidates, {}, size) for name in task.scales]
        parts = {metric: weigh_equally(metric, evidence, len(task.candidates)) for metric in task.candidates}
        weights = "equal weights, " if len(parts) > 1 else ""
        return {
            "task": task.task,
            "needs": task.needs,
            "basis": f"{weights}not learned: {task.reason}",
            "parts": parts,
            "left_out": left_out,
        }
    kept = []
    for number, metric in enumerate(task.candidates):
        figures = {entry.name: entry.figures[metric] for entry in evidence if metric in entry.figures}
        if not figures:
            left_out[metric] = "no data set could weigh it here"
            continue
        against = [name for name, figure in figures.items() if figure[2] < 0]
        mean = float(np.mean([figure[0] for figure in figures.values()]))
        shown = ", ".join(f"{name} {figure[0]:+.2f}" for name, figure in figures.items())
        print(f"  {metric:20} given length: {shown}")
        if against:
            left_out[metric] = f"given length it runs against people on {', '.join(against)}"
        elif mean <= 0:
            left_out[metric] = f"it says nothing beyond length ({shown})"
        else:
            kept.append(number)
    if not kept:
        kept = [0]
        left_out.pop(task.candidates[0], None)
    weights = fit(evidence, kept)
    names = [task.candidates[number] for number in kept]
    total = np.concatenate([entry.scores[:, kept] @ weights for entry in evidence])
    weights = weights * SPREAD / max(float(total.std()), 1e-9)
    parts = {}
    for name, weight in zip(names, weights, strict=True):
        if weight < 0.02 * weights.sum():
            left_out[name] = "its weight is next to nothing"
            continue
        raw = [entry.raw[name] for entry in evidence if name in entry.raw]
        parts[name] = {
            "weight": round(float(weight), 4),
            "centre": round(float(np.mean([mean for mean, _ in raw])), 4),
            "spread": round(float(np.mean([spread for _, spread in raw])), 4),
        }
    names_of_sets = " and ".join(entry.name for entry in evidence)
    return {
        "task": task.task,
        "needs": task.needs,
        "basis": f"weights learned on {names_of_sets}",
        "parts": parts,
        "left_out": left_out,
    }


def weigh_equally(metric: str, evidence: Sequence[Evidence], count: int) -> dict[str, float]:
    """Return a part with its share of the standard deviation, on the scale of its stored scores if there are any."""
    raw = [entry.raw[metric] for entry in evidence if metric in entry.raw]
    centre, spread = np.mean(raw, axis=0) if raw else RECIPE["scales"][metric]
    # As if the parts were independent.
    return {
        "weight": round(SPREAD / count**0.5, 4),
        "centre": round(float(centre), 4),
        "spread": round(float(spread), 4),
    }


def write_table(mixtures: Sequence[Mapping[str, Any]]) -> str:
    lines = ["# Written by models/recipes/quality_weights.py; edit the recipe, not this file."]
    for mixture in mixtures:
        lines += ["", "[[mixtures]]", f'task = "{mixture["task"]}"', f"needs = {json.dumps(mixture['needs'])}"]
        if without := mixture.get("without"):
            lines.append(f"without = {json.dumps(without)}")
        lines.append(f'basis = "{mixture["basis"]}"')
        size = mixture.get("size", "small")
        if size != "small":
            lines.append(f'size = "{size}"')
        lines.append("[mixtures.parts]")
        for metric, numbers in mixture["parts"].items():
            text = add_size(metric, size)
            inside = ", ".join(f"{key} = {value}" for key, value in numbers.items())
            lines.append(f"{json.dumps(text) if '(' in text else text} = {{ {inside} }}")
        if left_out := mixture.get("left_out"):
            lines.append("[mixtures.left_out]")
            lines += [f'{metric} = "{reason}"' for metric, reason in left_out.items()]
    lines += ["", "[withdrawn]", *(f'{task} = "{reason}"' for task, reason in RECIPE["withdrawn"].items())]
    return "\n".join(lines) + "\n"


def main() -> None:
    data, scores, *only = sys.argv[1:]
    folder = DataFolder(Path(data), scores)
    content = read_table_file(agreement.METRICS_TABLE)
    trained = {entry["label"].partition(",")[0]: set(entry.get("trained", ())) for entry in content["metrics"]}
    sets = {rated.data: rated for rated in agreement.parse_sets() if not rated.judged}
    target = Path(__file__).resolve().parents[2] / "src/metrist/metrics/trained/quality.toml"
    written = tomllib.loads(target.read_text(encoding="utf-8"))["mixtures"]
    mixtures: list[Mapping[str, Any]] = []
    sizes: tuple[Size, ...] = get_args(Size)
    for size, task in product(sizes, TASKS):
        if only and task.task not in only:
            mixtures += [m for m in written if (m["task"], m.get("size", "small")) == (task.task, size)]
            continue
        print(size, task.task, ", ".join(task.needs))
        mixture = {"size": size, "without": task.without, **learn(folder, task, sets, trained, size)}
        print("  ", mixture["parts"])
        mixtures.append(mixture)
    target.write_text(write_table(mixtures), encoding="utf-8")


if __name__ == "__main__":
    main()
