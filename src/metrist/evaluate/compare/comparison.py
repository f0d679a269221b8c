"""`compare`: test every pair of systems, per metric, on the items that both have a score for."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrist.errors import RunError, unknown_name
from metrist.evaluate.compare.results import Comparison, ComparisonPlan, Contest
from metrist.evaluate.plans import ComparisonTest
from metrist.evaluate.selection import (
    check_signatures,
    describe_other_settings,
    find_changes,
    find_signature,
    has_metric,
    list_names,
    open_run,
    pools_to_mean,
    select_metrics,
    select_systems,
)
from metrist.grid import Grid
from metrist.io.dedup import OTHER_ITEMS
from metrist.metrics.base import Metric, PartMetric
from metrist.names import NameColumn, concatenate_names, encode_names, list_distinct, select_names, take_names
from metrist.run.results import Results, SystemScore
from metrist.scores import FailureKind, Scores, take_stats
from metrist.settings import checks_types
from metrist.stats.resampling import (
    Contestants,
    ExactSums,
    PairTest,
    Test,
    find_origin,
    pair_tests,
    smallest_p,
)
from metrist.stats.significance import holm

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

_TESTS: Mapping[str, tuple[Test, ...]] = {
    "both": ("bootstrap", "randomisation"),
    "bootstrap": ("bootstrap",),
    "randomisation": ("randomisation",),
}
#: Bytes of statistics up to which metrics share the draws of a test.
_MAX_BYTES = 1 << 29


@checks_types
def compare(
    runs: Results | str | os.PathLike[str] | Sequence[Results | str | os.PathLike[str]],
    systems: str | Sequence[str] | None = None,
    metrics: str | Sequence[str] | None = None,
    test: ComparisonTest = "both",
    draws: int = 10_000,
    seed: int = 0,
    baseline: str | None = None,
    alpha: float = 0.05,
    force: bool = False,
    progress: Callable[..., None] | None = None,
) -> Comparison:
    """Test all pairs of systems of a run (or of several runs, scored alike), or each system against a baseline.

    `metrics` selects by label, text or name; `judge:fluency` is one part of a metric's scores. By default all metrics
    are compared, and the aspects of rubrics. Runs whose signatures of a metric differ are refused; `force` compares
    them all the same, with a note. `progress` is called with the draws done and all of them, by metrics.
    """
    metrics = list_names(metrics)
    plan = plan_comparison(test, draws, seed, baseline, alpha)
    by_name, present, chosen, warnings = open_runs(runs, metrics, force=force)
    opened = list(by_name.values())
    copies = _find_copies(chosen, opened) if metrics is None else {}
    chosen = [metric for metric in chosen if metric.label not in copies]
    pairs = _choose_pairs(present, systems, baseline)
    scores: dict[str, list[SystemScore]] = {system: [] for system in select_systems(present, systems)}
    if baseline is not None:
        scores.setdefault(baseline, [])
    unfinished_notes: list[str] = []
    for run in opened:
        # A run may have another name for the metric.
        unfinished = {run[metric].metric.label: find_unfinished(run, metric) for metric in chosen}
        for score in run.system_scores(seed=seed, metrics=chosen):
            if score.system in unfinished[score.metric]:
                score = score._replace(value=np.nan, low=np.nan, high=np.nan)
            if score.system in scores:
                scores[score.system].append(score)
        unfinished_notes += [
            f"{label} has not scored {count:,} outputs of {system} yet: no score is shown until it is finished."
            for label, systems_left in unfinished.items()
            for system, count in systems_left.items()
            if system in scores
        ]
    known = {metric.text for metric in chosen}
    unshared = dict.fromkeys(m.label for run in opened for m in run.metrics if m.text not in known)
    return Comparison(
        contests=tuple(_test_pairs(chosen, opened, pairs, plan, progress)),
        signatures={metric.label: find_signature(opened[0], metric) for metric in chosen},
        plan=plan,
        scores={system: tuple(own) for system, own in scores.items()},
        reference_counts=tuple(sorted({count for run in opened for count in run.reference_counts})),
        notes=(
            *warnings,
            *describe_other_settings(chosen, metrics),
            *unfinished_notes,
            *(
                f"{part} orders the outputs as {metric} does: they are compared once."
                for part, metric in copies.items()
            ),
            *_run_notes(by_name),
            *(
                [f"Not scored in every run, so left out: {', '.join(unshared)}."]
                if metrics is None and unshared
                else ()
            ),
        ),
    )


def plan_comparison(test: ComparisonTest, draws: int, seed: int, baseline: str | None, alpha: float) -> ComparisonPlan:
    """The settings of a comparison; those that make no sense are refused."""
    if test not in _TESTS:
        raise unknown_name("test", test, _TESTS)
    check_draws(draws, alpha)
    return ComparisonPlan(tests=_TESTS[test], draws=draws, seed=seed, alpha=alpha, baseline=baseline)


def check_draws(draws: int, alpha: float) -> None:
    if draws < 1 or not 0 < alpha < 1:
        raise RunError(
            f"draws must be at least 1 and alpha between 0 and 1, got {draws} and {alpha}", code="invalid_value"
        )


def _find_copies(metrics: Sequence[Metric], runs: Sequence[Results]) -> dict[str, str]:
    """The parts whose scores are those of another metric, wherever they have one, and the metric: `quality:likelihood`
    where `likelihood` is scored too; and the only part of a metric, if it orders the outputs as its whole does. To
    count both would count its wins twice."""
    wholes = [metric.metric for metric in metrics if isinstance(metric, PartMetric)]
    columns = {metric.label: np.concatenate([run[metric].values for run in runs]) for metric in metrics}
    copies = {}
    for part in metrics:
        known = ~np.isnan(columns[part.label])
        if not isinstance(part, PartMetric) or not known.any():
            continue
        own = columns[part.label][known]
        for metric in metrics:
            whole = columns[metric.label][known]
            if metric is part.metric:
                _, own_order = np.unique(own, return_inverse=True)
                _, order = np.unique(whole, return_inverse=True)
                equal = sum(metric is known_whole for known_whole in wholes) == 1 and np.array_equal(own_order, order)
            else:
                equal = not isinstance(metric, PartMetric) and np.array_equal(own, whole)
            if equal:
                copies[part.label] = metric.label
    return copies


class OpenRuns(NamedTuple):
    """Runs by their names in messages, their systems, and the metrics that were chosen of those that all have."""

    by_name: dict[str, Results]
    systems: list[str]
    metrics: list[Metric]
    #: On metrics that were not computed alike.
    warnings: list[str]


def open_runs(
    runs: Results | str | os.PathLike[str] | Sequence[Results | str | os.PathLike[str]],
    metrics: Sequence[str] | None,
    *,
    force: bool = False,
) -> OpenRuns:
    """Open runs to be compared; unless `force`, refuse those that were not scored alike."""
    sources: list[Any] = [*runs] if isinstance(runs, list | tuple) else [runs]
    if not sources:
        raise RunError("compare needs a run", code="missing_value")
    by_name = {f"run {number}": open_run(source, metrics or ()) for number, source in enumerate(sources, 1)}
    run_of_system: dict[str, str] = {}
    for name, run in by_name.items():
        for system in list_distinct(run.systems):
            if system in run_of_system:
                raise RunError(
                    f"system {system!r} is in {run_of_system[system]} and in {name}: give it two names", code="conflict"
                )
            run_of_system[system] = name
    first, *others = by_name.values()
    common = [metric for metric in first.columns if all(has_metric(run, metric) for run in others)]
    if not common:
        raise RunError(
            "the runs have no metric in common" if others else "the run has no metrics", code="too_little_data"
        )
    unfinished = {text: label for run in by_name.values() for text, label in run.unfinished.items()}
    chosen = select_metrics(common, metrics, unfinished)
    warnings = [warning for metric in chosen for warning in check_signatures(metric, by_name, force=force)]
    return OpenRuns(by_name, list(run_of_system), chosen, warnings)


def _run_notes(runs: Mapping[str, Results]) -> list[str]:
    by_run = {}
    for name, run in runs.items():
        changed, unknown = find_changes(run)
        by_run[name] = [*(change.message for change in changed), *unknown, *run.notes]
    if len(runs) == 1:
        return by_run.popitem()[1]
    notes = [f"{name}: {note}" for name, own in by_run.items() for note in own]
    return ["Runs are joined by the names of their items.", *notes]


def _choose_pairs(present: Sequence[str], names: Sequence[str] | None, baseline: str | None) -> list[tuple[str, str]]:
    opponents = [] if baseline is None else select_systems(present, [baseline])
    systems = select_systems(present, names)
    if len({*systems, *opponents}) < 2:
        raise RunError(
            f"compare needs at least two systems, found {', '.join(map(repr, systems)) or 'none'}",
            code="too_little_data",
        )
    if opponents:
        return [(system, opponent) for opponent in opponents for system in systems if system != opponent]
    return list(combinations(systems, 2))


def _test_pairs(
    metrics: Sequence[Metric],
    runs: Sequence[Results],
    pairs: Sequence[tuple[str, str]],
    plan: ComparisonPlan,
    progress: Callable[..., None] | None,
) -> list[Contest]:
    """Test the pairs by each metric. Metrics share the draws, the costly part, as far as their statistics fit into the
    memory together."""
    ready, size = list[_MetricPairs](), 0
    contests = list[Contest]()
    for metric in metrics:
        ready.append(_prepare_pairs(metric, runs, pairs))
        size += sum(contestants.sums.nbytes for _, contestants in ready[-1].groups)
        if size > _MAX_BYTES or metric is metrics[-1]:
            contests += _test_together(ready, pairs, plan, progress)
            ready, size = [], 0
    return contests


class _MetricPairs(NamedTuple):
    """The pairs of a metric. Groups are pairs with the same shared items, by their numbers: one set of draws and one
    matrix product for all of them."""

    metric: Metric
    facts: list[PairFacts]
    groups: list[tuple[list[int], Contestants]]


def _prepare_pairs(metric: Metric, runs: Sequence[Results], pairs: Sequence[tuple[str, str]]) -> _MetricPairs:
    chosen = {name for pair in pairs for name in pair}
    aligned = align_scores(metric, [(run, {s: s for s in list_distinct(run.systems) if s in chosen}) for run in runs])
    indices = [(aligned.grid.systems.index(a), aligned.grid.systems.index(b)) for a, b in pairs]
    numbers_by_mask: dict[bytes, list[int]] = {}
    facts = []
    for number, index in enumerate(indices):
        shared, fact = aligned.pair(*index)
        numbers_by_mask.setdefault(shared.tobytes(), []).append(number)
        facts.append(fact)
    groups = []
    for mask, numbers in numbers_by_mask.items():
        shared = np.frombuffer(mask, np.bool_)
        members = sorted({system for number in numbers for system in indices[number]})
        local = [(members.index(indices[n][0]), members.index(indices[n][1])) for n in numbers]
        groups.append((numbers, set_up_tests(metric, aligned, members, shared, local)))
    return _MetricPairs(metric, facts, groups)


def set_up_tests(
    metric: Metric, aligned: AlignedScores, systems: Sequence[int], items: Mask, pairs: Sequence[tuple[int, int]]
) -> Contestants:
    """Systems on items for which all have a score, and pairs of their positions; means are tested about an origin."""
    count = int(np.count_nonzero(items))
    origin = find_origin(aligned.grid.values[list(systems)][:, items]) if pools_to_mean(metric) else 0.0
    sums = ExactSums(len(systems), count, aligned.width, lambda n: aligned.read(systems[n], items, origin))
    return Contestants(sums=sums, pairs=pairs, pool=metric.pool, origin=origin)


def _test_together(
    prepared: Sequence[_MetricPairs],
    pairs: Sequence[tuple[str, str]],
    plan: ComparisonPlan,
    progress: Callable[..., None] | None,
) -> list[Contest]:
    by_items: dict[int, list[tuple[dict[int, PairTest], list[int], Contestants]]] = {}
    tests: list[dict[int, PairTest]] = [{} for _ in prepared]
    for one, by_pair in zip(prepared, tests, strict=True):
        for numbers, contestants in one.groups:
            by_items.setdefault(contestants.sums.items, []).append((by_pair, numbers, contestants))
    names = ", ".join(one.metric.label for one in prepared)
    done, total = 0, plan.draws * len(plan.tests) * len(by_items)

    def report_draws(draws: int) -> None:
        nonlocal done
        done += draws
        if progress:
            progress(done, total, metric=names)

    report_draws(0)
    for members in by_items.values():
        # A new generator each time: a pair's numbers depend on the count of its items and the seed, not on other pairs.
        results = pair_tests(
            [contestants for *_, contestants in members],
            plan.draws,
            np.random.default_rng(plan.seed),
            plan.tests,
            confidence=plan.confidence,
            progress=report_draws,
        )
        for (by_pair, numbers, _), own in zip(members, results, strict=True):
            by_pair.update(zip(numbers, own, strict=True))
    contests = list[Contest]()
    for one, by_pair in zip(prepared, tests, strict=True):
        contests += _judge_pairs(one, pairs, [by_pair[number] for number in range(len(pairs))], plan)
    return contests


def _judge_pairs(
    prepared: _MetricPairs, pairs: Sequence[tuple[str, str]], tests: Sequence[PairTest], plan: ComparisonPlan
) -> list[Contest]:
    metric, facts = prepared.metric, prepared.facts
    adjusted = {test: holm([result.p[test] for result in tests]) for test in plan.tests}
    # Holm's correction never lowers a p-value when another rises, so that no scores give less than this.
    floors = {
        test: holm([smallest_p(test, fact.items) if fact.items > 1 else np.nan for fact in facts])
        for test in plan.tests
    }
    contests = []
    for i, (pair, fact, result) in enumerate(zip(pairs, facts, tests, strict=True)):
        p_values = {test: float(adjusted[test][i]) for test in plan.tests}
        # NaN <= alpha is false, so an untested pair does not differ.
        differs = result.difference != 0 and all(p <= plan.alpha for p in p_values.values())
        winner = None
        if differs and metric.higher_is_better is not None:
            winner = pair[0] if (result.difference > 0) is metric.higher_is_better else pair[1]
        contests.append(
            Contest(
                metric=metric,
                first=pair[0],
                second=pair[1],
                **fact._asdict(),
                test=result,
                adjusted=p_values,
                winner=winner,
                differs=differs,
                testable=not any(floor[i] > plan.alpha for floor in floors.values()),
            )
        )
    return contests


# ---- Scores of systems, aligned by item


class PairFacts(NamedTuple):
    """How many items two systems are compared on, and how many items of either are missing or failed for one of them.
    `common` are the items that both have, scored or not.

    `different` are shared items with different sources: `separated` of them are left out, since sources tell that items
    were named wrongly; where it is 0, they are compared.
    """

    items: int
    common: int
    left_out: int
    different: int
    separated: int


@dataclass(frozen=True, slots=True, eq=False)
class AlignedScores:
    """A metric's grid of systems and items, with the statistics of each run's rows and the number of each cell's
    source, 0 if it has none."""

    grid: Grid
    stats: tuple[_RunStats, ...]
    sources: NDArray[np.intp]

    def pair(self, first: int, second: int) -> tuple[Mask, PairFacts]:
        """The items that both systems have a score for, without those that are surely not the same input, and how many
        there are.

        Items with different sources must not be paired where the sources of one system are, under other names, items of
        the other system. If they are not, each system may have sources of its own, such as the passages that it
        retrieved.
        """
        scored = ~(np.isnan(self.grid.values[first]) | np.isnan(self.grid.values[second]))
        one, other = self.sources[first], self.sources[second]
        differing = scored & (one != 0) & (other != 0) & (one != other)
        separated = differing.any() and (
            max(np.isin(one[differing], other).mean(), np.isin(other[differing], one).mean()) >= OTHER_ITEMS
        )
        shared: Mask = scored & ~differing if separated else scored
        present = self.grid.rows[[first, second]] >= 0
        items, different = int(np.count_nonzero(shared)), int(np.count_nonzero(differing))
        facts = PairFacts(
            items=items,
            common=int(np.count_nonzero(present.all(axis=0))),
            left_out=int(np.count_nonzero(present.any(axis=0))) - items,
            different=different,
            separated=different if separated else 0,
        )
        return shared, facts

    @property
    def width(self) -> int:
        """The number of statistics. A run in which every output failed does not know it."""
        return max(part.scores.width for part in self.stats)

    def read(self, system: int, items: Mask, origin: float = 0.0) -> Floats:
        """Statistics (items, k) of one system's cells that all have a score; `origin` is subtracted from scores whose
        mean is pooled."""
        cells = self.grid.rows[system, items]
        rows = np.zeros((len(cells), self.width))
        for part in self.stats:
            in_part = (cells >= part.start) & (cells < part.start + len(part.positions))
            at = part.positions[cells[in_part] - part.start]
            rows[in_part, : part.scores.width] = take_stats(part.scores, at)
        if origin:
            rows[:, 0] -= origin * rows[:, 1]
        return rows


@dataclass(frozen=True, slots=True, eq=False)
class _RunStats:
    """The scores of a run, the positions of the rows that were chosen, and the number of the first of them."""

    scores: Scores
    positions: NDArray[np.intp]
    start: int


def align_scores(metric: Metric, runs: Sequence[tuple[Results, Mapping[str, str]]]) -> AlignedScores:
    """Align the metric's scores in one or more runs by item; each run comes with labels for its systems to use."""
    #: Of each run: labels of systems, items, values, and digests of sources, empty for none.
    chosen: list[tuple[NameColumn, NameColumn, Floats, NameColumn]] = []
    stats: list[_RunStats] = []
    start = 0
    for results, names in runs:
        systems = encode_names(results.systems)
        rows = select_names(systems, names)
        scores = results[metric].scores
        values = np.asarray(scores.values[rows])
        if unfinished := find_unfinished(results, metric):
            values = np.where(np.isin(rows, select_names(systems, unfinished)), np.nan, values)
        own = take_names(systems, rows)
        own = NameColumn(own.codes, tuple(names[system] for system in own.names))
        digests = results.sources if len(results.sources) else NameColumn(np.zeros(len(results), np.intp), ("",))
        columns = (take_names(encode_names(column), rows) for column in (results.items, digests))
        chosen.append((own, next(columns), values, next(columns)))
        stats.append(_RunStats(scores, rows, start))
        start += len(rows)
    all_labels, all_items, all_values, all_sources = zip(*chosen, strict=True)
    labels, items, sources = map(concatenate_names, (all_labels, all_items, all_sources))
    grid = Grid.of(metric.label, labels, items, np.concatenate(all_values))
    is_known = np.fromiter(map(bool, sources.names), np.bool_)
    by_cell = np.zeros(grid.rows.shape, np.intp)
    by_cell[labels.codes, items.codes] = np.where(is_known[sources.codes], sources.codes + 1, 0)
    return AlignedScores(grid, tuple(stats), by_cell)


def find_unfinished(run: Results, metric: Metric) -> dict[str, int]:
    """The systems of which the metric has not scored all outputs yet, and how many it has not. A mean over the others
    is not the system's score, so they are compared by this metric only once it is finished."""
    failures = run[metric].scores.failures
    return Counter(run.systems[row] for row, failure in failures.items() if failure.kind is FailureKind.pending)
