"""Tables 1, 2, 4 and 5 of Doostmohammadi et al. (2024) from rows of JSON: all pairs of outputs one by one, every gap
between two scores as a threshold, scipy for τ and ρ. Nothing of metrist is used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
from scipy.stats import kendalltau, spearmanr

Row = dict[str, Any]
NONE = float("nan")


def majority(values: Sequence[float]) -> float:
    """The value that most raters give; the median where there are several."""
    ranked = Counter(values).most_common()
    alone = len(ranked) == 1 or ranked[0][1] > ranked[1][1]
    return float(ranked[0][0] if alone else np.median(values))


def mean(values: Sequence[float]) -> float:
    known = [value for value in values if not np.isnan(value)]
    return float(np.mean(known)) if known else NONE


class Task:
    """The gold values and scores for one task; pairs are all pairs of outputs that have both."""

    def __init__(self, rows: Sequence[Row], aspect: str, metric: str) -> None:
        own = [row for row in rows if row["scores"].get(metric) is not None]
        self.human = np.array([majority(row["ratings"][aspect]) for row in own])
        self.metric = np.array([row["scores"][metric] for row in own], float)
        first, second = np.array([*combinations(range(len(own)), 2)], int).reshape(-1, 2).T
        self.rise = np.sign(self.human[first] - self.human[second])
        self.change = self.metric[first] - self.metric[second]

    def accuracy(self, epsilon: float) -> float:
        right = np.where(np.abs(self.change) <= epsilon, self.rise == 0, np.sign(self.change) == self.rise)
        return float(right.mean()) if len(right) else NONE

    def correlation(self, measure: Any) -> float:
        if len(set(self.human)) < 2 or len(set(self.metric)) < 2:
            return NONE
        return float(measure(self.human, self.metric).statistic)

    def all_ties(self) -> float:
        return float((self.rise == 0).mean()) if len(self.rise) else NONE

    def chance(self) -> float:
        return float((self.rise != 0).mean() / 2) if len(self.rise) else NONE


def best_epsilon(tasks: Sequence[Task]) -> float:
    """The smallest of the thresholds 0 and all gaps with the highest mean accuracy over tasks."""
    tasks = [task for task in tasks if len(task.change)]
    gaps = np.concatenate([np.abs(task.change) for task in tasks])
    share = np.concatenate([np.full(len(task.change), 1 / len(task.change)) for task in tasks])
    tied = np.concatenate([task.rise == 0 for task in tasks])
    alike = np.concatenate([np.sign(task.change) == task.rise for task in tasks])
    # A tied pair is right if people tie it too; otherwise it is right if both order it alike.
    gain = np.where(tied, share, -share * alike) * (gaps > 0)
    order = np.argsort(gaps, kind="stable")
    value = np.cumsum(gain[order])
    candidates, last = np.unique(gaps[order][::-1], return_index=True)
    reached = value[len(gaps) - 1 - last]
    if candidates[0] > 0:
        candidates, reached = np.append(0.0, candidates), np.append(0.0, reached)
    return float(candidates[np.flatnonzero(reached > reached.max() - 1e-12)[0]])


def tie_share(values: Sequence[float], epsilon: float) -> float:
    pairs = [abs(a - b) <= epsilon for a, b in combinations(values, 2)]
    return float(np.mean(pairs)) if pairs else NONE


def spread(values: Sequence[float]) -> float:
    known = [value for value in values if not np.isnan(value)]
    return float(np.std(known, ddof=1)) if len(known) > 1 else NONE


class Study:
    """The rows by language and task; `length` maps a task to its class."""

    def __init__(self, rows: Sequence[Row], aspect: str, metrics: Sequence[str], length: dict[str, str], over: str):
        self.rows, self.aspect, self.metrics, self.length = rows, aspect, metrics, length
        self.languages = list(dict.fromkeys(row.get("language", "") for row in rows))
        self.systems = list(dict.fromkeys(row["system"] for row in rows))
        tasks = list(dict.fromkeys(row.get("task", "") for row in rows))
        self.parts = {
            (language, task): own
            for language in self.languages
            for task in tasks
            if (own := [r for r in rows if r.get("language", "") == language and r.get("task", "") == task])
        }
        self.epsilons: dict[tuple[str, str], float] = {}
        for metric in metrics:
            for language in self.languages:
                pool = [
                    Task(own, aspect, metric)
                    for (name, _), own in self.parts.items()
                    if over == "all" or name == language
                ]
                if any(len(task.change) for task in self.tasks(metric, language).values()):
                    self.epsilons[metric, language] = best_epsilon(pool)

    def tasks(self, metric: str, language: str) -> dict[str, Task]:
        return {task: Task(own, self.aspect, metric) for (name, task), own in self.parts.items() if name == language}

    def table_1(self) -> list[Row]:
        table = []
        for language in self.languages:
            own = [rows for (name, _), rows in self.parts.items() if name == language]
            columns = {"(humans)": ([[majority(r["ratings"][self.aspect]) for r in rows] for rows in own], 0.0)}
            for metric in self.metrics:
                if (metric, language) in self.epsilons:
                    scores = [[r["scores"][metric] for r in rows if metric in r["scores"]] for rows in own]
                    columns[metric] = scores, self.epsilons[metric, language]
            for name, (values, epsilon) in columns.items():
                raw, tied = ([tie_share(part, limit) for part in values] for limit in (0.0, epsilon))
                row = {"ties": mean(raw), "± sd": spread(raw), "ties at ε": mean(tied), "± sd at ε": spread(tied)}
                table.append({"language": language, "metric": name, **row, "ε": epsilon})
        return table

    def table_2(self, judges: dict[str, dict[str, str]]) -> list[Row]:
        """`judges` maps each aspect to the judges that score it, and to the names of these scores."""
        table: list[Row] = [{"system": system} for system in self.systems]
        gaps: Row = {"system": "average difference"}
        for aspect in self.rows[0]["ratings"]:
            values = [value for row in self.rows for value in row["ratings"][aspect]]
            low, high = min(values), max(values)
            humans = []
            for system, line in zip(self.systems, table, strict=True):
                own = [majority(row["ratings"][aspect]) for row in self.rows if row["system"] == system]
                line[aspect] = (mean(own) - low) / (high - low) * 100
                humans.append(line[aspect])
            gaps[aspect] = ""
            for judge, name in judges.get(aspect, {}).items():
                column = f"{aspect} ({judge})"
                for system, line in zip(self.systems, table, strict=True):
                    own = [row["scores"][name] for row in self.rows if row["system"] == system]
                    line[column] = (mean(own) - low) / (high - low) * 100
                gaps[column] = mean([abs(line[column] - human) for line, human in zip(table, humans, strict=True)])
        return [*table, gaps] if any(judges.values()) else table

    def table_4(self) -> list[Row]:
        table = []
        for system in self.systems:
            for language in self.languages:
                own = [
                    [row for row in rows if row["system"] == system]
                    for (name, _), rows in self.parts.items()
                    if name == language
                ]
                line = {"system": system, "language": language}
                for metric in self.metrics:
                    epsilon = self.epsilons.get((metric, language), NONE)
                    tasks = [Task(rows, self.aspect, metric) for rows in own]
                    line[metric] = NONE if np.isnan(epsilon) else mean([task.accuracy(epsilon) for task in tasks])
                if any(value == value for name, value in line.items() if name in self.metrics):
                    table.append(line)
        return table

    def table_5(self) -> list[Row]:
        table = []
        classes = sorted(set(self.length.values()))
        for metric in self.metrics:
            for language in self.languages:
                if (metric, language) not in self.epsilons:
                    continue
                epsilon = self.epsilons[metric, language]
                for length in ["all", *(classes if len(classes) > 1 else [])]:
                    own = {
                        name: task
                        for name, task in self.tasks(metric, language).items()
                        if length in ("all", self.length.get(name))
                    }
                    tau = [task.correlation(kendalltau) for task in own.values()]
                    rho = [task.correlation(spearmanr) for task in own.values()]
                    table.append(
                        {
                            "metric": metric,
                            "tasks": length,
                            "language": language,
                            "τ": mean(tau),
                            "ρ": mean(rho),
                            "PA": mean([task.accuracy(epsilon) for task in own.values()]),
                            "ε": epsilon,
                            "chance": mean([task.chance() for task in own.values()]),
                            "all ties": mean([task.all_ties() for task in own.values()]),
                            "number of tasks": len(own),
                            "without τ or ρ": sum(np.isnan(a) or np.isnan(b) for a, b in zip(tau, rho, strict=True)),
                        }
                    )
        return table


def fleiss_kappa(rows: Sequence[Row], aspect: str) -> float:
    """Fleiss (1971) for the same number of raters everywhere."""
    ratings = [row["ratings"][aspect] for row in rows]
    levels, raters = sorted({value for own in ratings for value in own}), len(ratings[0])
    counts = np.array([[own.count(level) for level in levels] for own in ratings], float)
    observed = ((counts**2).sum(axis=1) - raters) / (raters * (raters - 1))
    expected = (counts.sum(axis=0) / counts.sum()) ** 2
    return float((observed.mean() - expected.sum()) / (1 - expected.sum()))


def mean_tau_of_raters(rows: Sequence[Row], aspect: str) -> float:
    table = np.array([row["ratings"][aspect] for row in rows])
    pairs = combinations(range(table.shape[1]), 2)
    return float(np.mean([kendalltau(table[:, a], table[:, b]).statistic for a, b in pairs]))


def majority_share(rows: Sequence[Row], aspect: str) -> float:
    """Where more than half of the raters agree."""
    ratings = [row["ratings"][aspect] for row in rows]
    return float(np.mean([max(Counter(own).values()) > len(own) / 2 for own in ratings]))
