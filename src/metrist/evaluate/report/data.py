"""What a report is made from: the results of one or more runs as one, their texts and ratings, the comparison of the
systems, and the agreement of metrics with people."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from metrist.errors import MetristError, RunError, format_count
from metrist.evaluate.compare import Comparison, compare
from metrist.evaluate.meta import JudgedDataset, MetaEvaluation, join, meta_evaluate
from metrist.evaluate.meta.dataset import Cost
from metrist.evaluate.meta.join import holds_results, read_costs
from metrist.evaluate.report.verdicts import rank_systems
from metrist.evaluate.selection import (
    check_signatures,
    has_metric,
    list_names,
    open_run,
    select_metrics,
    select_systems,
)
from metrist.evaluate.worst import Judgments, TextBudget
from metrist.io import read_records
from metrist.io.remote import is_remote
from metrist.metrics.base import Metric
from metrist.records import Record
from metrist.report.tables import Table
from metrist.run import Results, read_inputs, score
from metrist.run.loading import StoredMetric, fetch_flat
from metrist.scores import Failure, FailureKind, Scores

Key = tuple[str, str]
#: A column has to have this many values at least, and at most, to be sliced by without being named.
_MIN_VALUES, _MAX_VALUES = 2, 30
_MAX_ASPECTS = 8
#: Pairs of systems that are looked at closely.
_MAX_PAIRS = 3
#: Texts on the page: outputs at most, and characters of all texts together.
MAX_OUTPUTS, MAX_CHARACTERS = 2000, 6_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """What the reader of a report chooses."""

    systems: Sequence[str] | None = None
    metrics: Sequence[str] | None = None
    baseline: str | None = None
    aspects: Sequence[str] = ()
    slices: Sequence[str] = ()
    draws: int = 10_000
    alpha: float = 0.05
    seed: int = 0
    reading: Mapping[str, Any] = field(default_factory=dict)
    progress: Callable[..., None] | None = None


class ReportData:
    """Everything that the sections of a report, and its figures, are drawn from. What takes time is computed when it is
    first asked for."""

    def __init__(self, sources: Sequence[Any], options: ReportOptions | None = None) -> None:
        self.options = options or ReportOptions()
        self.sources = [fetch_flat(source) for source in sources]
        self.notes: list[str] = []
        self._runs, self._files = self._open(self.sources)
        self._names = _name_systems(self._runs)
        self.results = self._merge()

    # ---- Opening

    def _open(self, sources: Sequence[Any]) -> tuple[dict[str, Results], list[Any]]:
        """The runs by their names, and the files with texts and ratings."""
        names, reading = list_names(self.options.metrics) or [], self.options.reading
        runs: dict[str, Results] = {}
        files: list[Any] = []
        for source in sources:
            if isinstance(source, Results):
                runs[f"run {len(runs) + 1}"] = source
            elif isinstance(source, str | os.PathLike) and holds_results(source):
                runs[os.fspath(source).rstrip("/")] = open_run(source, names)
            elif (
                isinstance(source, str | os.PathLike)
                and not is_remote(source)
                and not Path(source).exists()
                and "*" not in os.fspath(source)
            ):
                raise RunError(f"there is no run and no file {os.fspath(source)!r}")
            else:
                files.append(source)
        if runs:
            return runs, files
        if not files:
            raise RunError("a report needs a run, or files to score")
        given = files if len(files) > 1 else files[0]
        if names:
            return {"this run": score(given, names, progress=False, **reading)}, files
        return {"this run": _use_stored_scores(join(given, **reading))}, files

    def _merge(self) -> Results:
        """All runs as one, with the systems and metrics that were chosen."""
        first, *others = self._runs.values()
        common = [m for m in first.metrics if all(has_metric(run, m) for run in others)]
        if not common:
            raise RunError("the runs have no metric in common")
        for metric in common if others else ():
            check_signatures(metric, self._runs)
        names = list_names(self.options.metrics)
        chosen = select_metrics(common, names, first.unfinished) if names and not self._scored_here else common
        owners = list({(m := getattr(metric, "metric", metric)).label: m for metric in chosen}.values())
        systems = [self._names[name][s] for name, run in self._runs.items() for s in run.systems]
        kept = set(select_systems(systems, self.options.systems))
        if self.options.baseline is not None:
            kept |= set(select_systems(systems, [self.options.baseline]))
        rows = [row for row, system in enumerate(systems) if system in kept]
        items = [item for run in self._runs.values() for item in run.items]
        blocks = {
            metric.label: Scores.join([run.scores[run.metric(metric).label] for run in self._runs.values()])
            for metric in owners
        }
        everything = len(rows) == len(items)
        return replace(
            first,
            items=items if everything else [items[row] for row in rows],
            systems=systems if everything else [systems[row] for row in rows],
            metrics=tuple(owners),
            scores=blocks if everything else {label: block.take(rows) for label, block in blocks.items()},
            signatures={metric.label: first.signatures[first.metric(metric).label] for metric in owners},
            notes=tuple(dict.fromkeys(note for run in self._runs.values() for note in run.notes)),
            reference_counts=tuple(sorted({n for run in self._runs.values() for n in run.reference_counts})),
            sources=first.sources if not others and everything else (),
        )

    @property
    def _scored_here(self) -> bool:
        return not any(
            isinstance(s, Results) or (isinstance(s, str | os.PathLike) and holds_results(Path(s)))
            for s in self.sources
        )

    # ---- Facts

    @property
    def runs(self) -> Mapping[str, Results]:
        """The runs by their names."""
        return self._runs

    @property
    def files(self) -> Sequence[Any]:
        """The files with texts and ratings that were named."""
        return self._files

    @cached_property
    def systems(self) -> list[str]:
        return list(dict.fromkeys(self.results.systems))

    @cached_property
    def columns(self) -> list[Metric]:
        """The metrics, each followed by the aspects of its rubric."""
        return list(self.results.columns)

    @cached_property
    def directed(self) -> list[Metric]:
        """The columns that have a better side."""
        return [metric for metric in self.columns if metric.higher_is_better is not None]

    @cached_property
    def positions(self) -> dict[str, np.ndarray[Any, np.dtype[np.intp]]]:
        """The rows of each system."""
        rows: dict[str, list[int]] = {}
        for row, system in enumerate(self.results.systems):
            rows.setdefault(system, []).append(row)
        return {system: np.array(own, dtype=np.intp) for system, own in rows.items()}

    @cached_property
    def costs(self) -> dict[str, Cost]:
        """What each metric cost per output, by its label, for run folders."""
        costs = {}
        for name, run in self._runs.items():
            own = read_costs(Path(name), run)
            costs.update({m.label: own[m.text] for m in self.results.metrics if m.text in own and m.label not in costs})
        return {label: cost for label, cost in costs.items() if not math.isnan(cost.seconds)}

    def trim(self, table: Table) -> Table:
        """A table without the signatures and the notes of the run, which have a section of their own."""
        known = set(self.results.notes)
        notes, remarks = ([note for note in own if note not in known] for own in (table.notes, table.remarks))
        return replace(table, signatures=(), notes=notes, remarks=remarks)

    # ---- What takes time

    @cached_property
    def comparison(self) -> Comparison | None:
        """The tests of all pairs of systems, or of each against the baseline; None with one system."""
        if len(self.systems) < 2:
            return None
        options = self.options
        return compare(
            self.results,
            draws=options.draws,
            seed=options.seed,
            baseline=options.baseline,
            alpha=options.alpha,
            progress=options.progress,
        )

    @cached_property
    def ranked(self) -> list[str]:
        """The systems, those that win most first; two systems, and others that no test separates, as the input has
        them."""
        if self.comparison is None or len(self.systems) == 2:
            return self.systems
        return [name for name, *_ in rank_systems(self.comparison)]

    @cached_property
    def pairs(self) -> list[Key]:
        """The pairs of systems to look at closely: the only two, each against the baseline, or the two best."""
        if self.comparison is None or not self.directed:
            return []
        ranked, baseline = self.ranked, self.options.baseline
        if baseline is not None:
            return [(name, baseline) for name in ranked if name != baseline][:_MAX_PAIRS]
        return [(ranked[0], ranked[1])] if len(ranked) != 2 else [(ranked[1], ranked[0])]

    @cached_property
    def judgments(self) -> Judgments:
        """Ratings and errors that people marked, and the texts of all outputs if the page has room for them."""
        known = set(zip(self.results.items, self.results.systems, strict=True))
        gathered, budget = Judgments(), TextBudget(MAX_OUTPUTS, MAX_CHARACTERS)
        for name, run in self._runs.items():
            rename: Callable[[str], str] = partial(_rename, self._names[name])
            try:
                reader = self._reader(name, run)
                gathered.add(Judgments.read(reader, known, rename, budget))
                self.notes += reader.remarks
            except MetristError as error:
                if self._files:
                    raise
                self.notes.append(f"Texts are not shown: {error}")
        if budget.exceeded:
            gathered.records.clear()
        if gathered.seen and (missing := len(known) - len(gathered.seen)):
            self.notes.append(
                f"{format_count(missing, 'output')} of {len(known):,} without texts in the files that were read."
            )
        return gathered

    @property
    def has_all_texts(self) -> bool:
        """Whether the texts of all outputs that have one are in memory."""
        return len(self.judgments.records) == len(self.judgments.seen)

    def read_texts(self, keys: Set[Key]) -> dict[Key, Record]:
        """The records of these outputs. Where not all texts are in memory, the files are read once more."""
        if self.has_all_texts:
            records = self.judgments.records
            return {key: records[key] for key in keys if key in records}
        found: dict[Key, Record] = {}
        for name, run in self._runs.items():
            names, own = self._names[name], dict[Key, Record]()
            for record in self._reader(name, run):
                if (key := (record.item, names.get(record.system, record.system))) in keys:
                    own.setdefault(key, record)
            found |= own
        return found

    def _reader(self, name: str, run: Results) -> Any:
        reading = self.options.reading
        if self._files and all(isinstance(file, str | os.PathLike) for file in self._files):
            return (
                read_inputs(name, self._files, **reading)
                if Path(name).exists()
                else read_records(self._files, **reading)
            )
        if self._files:
            return read_records(self._files[0], **reading)
        if isinstance(run.inputs, Path):
            return read_inputs(run.inputs, **reading)
        return run.read_inputs()

    @cached_property
    def dataset(self) -> JudgedDataset | None:
        """Scores and judgments, joined; None where people judged nothing, or where systems had to be renamed."""
        if any(old != new for names in self._names.values() for old, new in names.items()):
            return None
        runs = [self.results] if len(self._runs) == 1 else list(self._runs.values())
        sources = [*runs, *self._files]
        try:
            dataset = join(sources, **self.options.reading)
        except MetristError:
            return None
        return dataset if dataset.ratings or dataset.preferences else None

    @cached_property
    def evaluation(self) -> MetaEvaluation | None:
        """How the metrics agree with people, on all outputs and on the slices; None without judgments."""
        dataset, options = self.dataset, self.options
        if dataset is None or not dataset.scores:
            return None
        preferences = not dataset.ratings
        aspects = options.aspects or tuple(dataset.preferences if preferences else dataset.ratings)[:_MAX_ASPECTS]
        draws = min(options.draws, 1000)
        try:
            return meta_evaluate(
                dataset,
                aspects,
                ("accuracy",) if preferences else ("acc_eq",),
                preferences=preferences,
                slices=self.slices,
                metrics=[m.label for m in self.results.metrics] if options.metrics else None,
                systems=self.systems if options.systems else None,
                draws=draws,
                seed=options.seed,
                alpha=options.alpha,
            )
        except MetristError as error:
            self.notes.append(f"Agreement with people could not be measured: {error}")
            return None

    @cached_property
    def slices(self) -> tuple[str, ...]:
        """The columns to slice by: those that were named, or task and language where they vary."""
        dataset = self.dataset
        if self.options.slices or dataset is None:
            return tuple(self.options.slices)
        varied = []
        for name in ("task", "language"):
            labels = dataset.columns.get(name)
            values = Counter(labels.codes[labels.codes >= 0].tolist()) if labels else Counter()
            if _MIN_VALUES <= len(values) <= _MAX_VALUES:
                varied.append(name)
        return (*varied, "task+language") if len(varied) == 2 else tuple(varied)


def _rename(names: Mapping[str, str], system: str) -> str:
    return names.get(system, system)


def _name_systems(runs: Mapping[str, Results]) -> dict[str, dict[str, str]]:
    """Names of the systems of each run: a system that two runs have is told apart by the name of its run."""
    counts = Counter(system for run in runs.values() for system in set(run.systems))
    shorts = {name: Path(name).name or name for name in runs}
    unique = shorts if len(set(shorts.values())) == len(shorts) else {name: name for name in runs}
    return {
        name: {s: f"{s} ({unique[name]})" if counts[s] > 1 else s for s in dict.fromkeys(run.systems)}
        for name, run in runs.items()
    }


def _use_stored_scores(dataset: JudgedDataset) -> Results:
    """Results from the scores that records hold themselves."""
    if not dataset.scores:
        raise RunError("the files hold no scores: name metrics to score them with (-m rougeL), or give a run folder")
    metrics, scores, signatures = list[Metric](), {}, {}
    for name, column in dataset.scores.items():
        missing = np.flatnonzero(np.isnan(column.values)).tolist()
        reason = Failure(FailureKind.missing_input, "the file has no score")
        block = Scores(values=column.values, failures=dict.fromkeys(missing, reason))
        signature = column.signature or f"{name} | as the file gives it"
        cls: Any = type("StoredMetric", (StoredMetric,), {"higher_is_better": column.higher_is_better})
        metric: Metric = cls(name, signature, block)
        metrics.append(metric)
        scores[metric.label], signatures[metric.label] = block, signature
    return Results(
        items=[dataset.items.names[code] for code in dataset.items.codes],
        systems=[dataset.systems.names[code] for code in dataset.systems.codes],
        metrics=tuple(metrics),
        scores=scores,
        signatures=signatures,
        notes=dataset.notes,
    )
