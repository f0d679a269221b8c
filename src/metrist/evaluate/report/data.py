"""What a report is made from: the results of one or more runs as one, their texts and ratings, the comparison of the
systems, and the agreement of metrics with people."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrist.errors import MetristError, RunError, format_count
from metrist.evaluate.compare.comparison import compare
from metrist.evaluate.compare.results import Comparison, rank_systems
from metrist.evaluate.explain.worst import percentile_ranks
from metrist.evaluate.meta import JudgedDataset, MetaEvaluation, join, meta_evaluate
from metrist.evaluate.meta.dataset import Cost
from metrist.evaluate.meta.join import read_costs
from metrist.evaluate.plans import as_names, list_units
from metrist.evaluate.selection import (
    check_signatures,
    has_metric,
    holds_results,
    list_decimals,
    list_names,
    list_owners,
    open_run,
    select_metrics,
    select_systems,
)
from metrist.io.remote import is_remote
from metrist.metrics.base import Metric, PartMetric
from metrist.names import (
    NameColumn,
    concatenate_names,
    encode_names,
    list_distinct,
    select_names,
    split_positions,
    take_names,
)
from metrist.ratings import Error
from metrist.records import TAG_FIELDS
from metrist.report.output_card import PEOPLE, identify_error
from metrist.report.tables import Table
from metrist.run import Results, score
from metrist.run.loading import UnavailableMetric, fetch_flat
from metrist.run.results import SystemScore
from metrist.run.run import Run
from metrist.run.texts import OutputFacts, OutputTexts, RatedRows
from metrist.scores import Failure, FailureKind, Scores
from metrist.settings import check_types

Key = tuple[str, str]
Floats = NDArray[np.float64]
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
    group: str = "item"
    gold: str = "mean"
    epsilon_over: str = "all"
    epsilon: Mapping[str, Any] = field(default_factory=dict)
    #: The column that sets tasks apart in figures of levels; None: the length of their answers.
    task_class: str | None = None
    draws: int = 10_000
    alpha: float = 0.05
    seed: int = 0
    reading: Mapping[str, Any] = field(default_factory=dict)
    #: Called with the draws done and all of them.
    progress: Callable[..., None] | None = None
    #: Called with the part of the work that comes now.
    begin: Callable[[str], None] | None = None

    def __post_init__(self) -> None:
        check_types(ReportOptions, {name: getattr(self, name) for name in ("draws", "alpha", "seed")})
        for name in ("systems", "metrics", "aspects", "slices"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, as_names(getattr(self, name)))


class ReportData:
    """Everything that the sections of a report, and its figures, are drawn from. What takes time is computed when it is
    first asked for."""

    def __init__(self, sources: Sequence[Any], options: ReportOptions | None = None) -> None:
        self.options = options or ReportOptions()
        self.sources = [fetch_flat(source) for source in sources]
        self.notes: list[str] = []
        #: The runs by their names, and the files with texts and ratings that were named.
        self.runs, self.files = self._open(self.sources)
        self._names = _name_systems(self.runs)
        self.results = self._merge()
        # What was remarked when the inputs were read, such as bad rows that were skipped.
        stored = (run.inputs for run in self.runs.values())
        inputs = [one for run in stored if isinstance(run, Run) for one in run.manifest.inputs]
        self.notes += dict.fromkeys(note for one in inputs for note in one.notes)

    # ---- Opening

    def _open(self, sources: Sequence[Any]) -> tuple[dict[str, Results], list[Any]]:
        names, reading = list_names(self.options.metrics) or [], self.options.reading
        runs: dict[str, Results] = {}
        files: list[Any] = []
        for source in sources:
            if isinstance(source, Results):
                runs[f"run {len(runs) + 1}"] = source
            elif holds_results(source):
                runs[os.fspath(source).rstrip("/")] = open_run(source, names)
            elif (
                isinstance(source, str | os.PathLike)
                and not is_remote(source)
                and not Path(source).exists()
                and "*" not in os.fspath(source)
            ):
                raise RunError(f"there is no run and no file {os.fspath(source)!r}", code="missing_file")
            else:
                files.append(source)
        if runs:
            return runs, files
        if not files:
            raise RunError("a report needs a run, or files to score", code="missing_value")
        given = files if len(files) > 1 else files[0]
        judged = None
        try:
            judged = join(given, **reading)
        except MetristError:
            if not names:
                raise
        if judged is None or not set(names) <= judged.scores.keys():
            return {"this run": score(given, names, progress=False, **reading)}, files
        return {"this run": _use_stored_scores(judged, names or list(judged.scores))}, files

    def _merge(self) -> Results:
        """All runs as one, with the systems and metrics that were chosen."""
        first, *others = self.runs.values()
        common = [m for m in first.metrics if all(has_metric(run, m) for run in others)]
        if not common:
            raise RunError("the runs have no metric in common", code="too_little_data")
        for metric in common if others else ():
            check_signatures(metric, self.runs)
        names = list_names(self.options.metrics)
        chosen = common
        if names and any(map(holds_results, self.sources)):
            chosen = select_metrics(common, names, first.unfinished)
        owners = list_owners(chosen)
        columns = [encode_names(run.systems) for run in self.runs.values()]
        renamed = [
            NameColumn(column.codes, new)
            if (new := tuple(map(names.__getitem__, column.names))) != column.names
            else column
            for column, names in zip(columns, self._names.values(), strict=True)
        ]
        systems = concatenate_names(renamed)
        items = concatenate_names([encode_names(run.items) for run in self.runs.values()])
        kept = set(select_systems(systems, self.options.systems))
        if self.options.baseline is not None:
            kept |= set(select_systems(systems, [self.options.baseline]))
        rows = select_names(systems, kept)
        blocks = {}
        for metric in owners:
            own = [run.scores[run.metric(metric).label] for run in self.runs.values()]
            blocks[metric.label] = Scores.join(own) if others else own[0]
        everything = len(rows) == len(items)
        self._owners = np.repeat(np.arange(len(columns)), [len(column) for column in columns])[rows]
        return replace(
            first,
            items=items if everything else take_names(items, rows),
            systems=systems if everything else take_names(systems, rows),
            metrics=tuple(owners),
            scores=blocks if everything else {label: block.take(rows.tolist()) for label, block in blocks.items()},
            signatures={metric.label: first.signatures[first.metric(metric).label] for metric in owners},
            notes=tuple(dict.fromkeys(note for run in self.runs.values() for note in run.notes)),
            reference_counts=tuple(sorted({n for run in self.runs.values() for n in run.reference_counts})),
            sources=first.sources if not others and everything else (),
        )

    # ---- Facts

    def begin(self, part: str) -> None:
        """Tell which part of the work comes now."""
        if self.options.begin is not None:
            self.options.begin(part)

    @cached_property
    def systems(self) -> list[str]:
        return list_distinct(self.results.systems)

    @cached_property
    def columns(self) -> list[Metric]:
        """The metrics, each followed by the aspects of its rubric."""
        return list(self.results.columns)

    @cached_property
    def directed(self) -> list[Metric]:
        """The columns that have a better side."""
        return [metric for metric in self.columns if metric.higher_is_better is not None]

    @cached_property
    def decimals(self) -> dict[str, int]:
        """The number of decimals for the scores of each column."""
        return list_decimals([self.results])

    @cached_property
    def positions(self) -> dict[str, NDArray[np.intp]]:
        """The rows of each system."""
        column = encode_names(self.results.systems)
        return dict(zip(column.names, split_positions(column), strict=True))

    @cached_property
    def item_rows(self) -> dict[str, int]:
        """A row of each item."""
        return {item: row for row, item in enumerate(self.results.items)}

    @cached_property
    def costs(self) -> dict[str, Cost]:
        """What each metric cost per output, by its label, for run folders."""
        costs = {}
        for run in self.runs.values():
            own = read_costs(run)
            costs.update({m.label: own[m.text] for m in self.results.metrics if m.text in own and m.label not in costs})
        return {label: cost for label, cost in costs.items() if not math.isnan(cost.seconds)}

    def trim(self, table: Table) -> Table:
        """A table without the signatures and the notes of the run, which have a section of their own."""
        known = set(self.results.notes)
        notes, remarks = ([note for note in own if note not in known] for own in (table.notes, table.remarks))
        return replace(table, signatures=(), notes=notes, remarks=remarks)

    @cached_property
    def percentiles(self) -> tuple[dict[str, Floats], dict[str, Floats]]:
        """The percentiles of all outputs by each metric, and by people's ratings of each aspect, where higher is taken
        as better."""
        by_metric = {}
        for metric in self.directed:
            if not isinstance(metric, PartMetric):
                sign = -1.0 if metric.higher_is_better is False else 1.0
                by_metric[metric.label] = percentile_ranks(sign * self.results[metric].values)
        ratings = self.texts.ratings
        return by_metric, {name: percentile_ranks(own.mean(len(self.results))) for name, own in ratings.items()}

    @cached_property
    def errors(self) -> dict[str, list[tuple[int, Error]]]:
        """The errors by who found them, each with the row of its output."""
        found: dict[str, Mapping[int, Sequence[Error]]] = {PEOPLE: self.texts.errors}
        found = {**{m.label: self.results.scores[m.label].errors for m in self.results.metrics}, **found}
        listed = {
            name: [(row, error) for row in sorted(errors) for error in errors[row]]
            for name, errors in found.items()
            if errors
        }
        # A metric that combines others, such as `quality`, has their errors too, which count once.
        sets = {name: {(row, identify_error(error, name)) for row, error in own} for name, own in listed.items()}
        shown = list[str]()
        for name in sorted(listed, key=lambda name: -len(sets[name])):
            if not any(sets[name] <= sets[other] for other in shown):
                shown.append(name)
        return {name: errors for name, errors in listed.items() if name in shown}

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
    def scores(self) -> list[SystemScore]:
        """The score of each system by each column with its interval: those of the comparison, where it was made."""
        made: Comparison | None = self.__dict__.get("comparison")
        if made is None:
            return self.results.system_scores(seed=self.options.seed)
        return [score for own in made.scores.values() for score in own]

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
    def texts(self) -> ReportTexts:
        """The texts of the outputs, people's ratings of them, and the errors that they marked."""
        files = self.files if all(isinstance(file, str | os.PathLike) for file in self.files) else self.files[0]
        results, members = self.results, dict[int, OutputTexts]()
        column = encode_names(results.systems)
        for number, (name, run) in enumerate(self.runs.items()):
            try:
                opened = OutputTexts.open(run, files or None, **self.options.reading)
            except MetristError as error:
                if self.files:
                    raise
                self.notes.append(f"Texts are not shown: {error}")
                continue
            self.notes += opened.remarks
            if results.items is not run.items or results.systems is not run.systems:
                # As the run calls them; the outputs of other runs have no name there.
                own = {new: old for old, new in self._names[name].items()}
                codes = np.where(self._owners == number, column.codes, len(column.names))
                systems = NameColumn(codes, (*(own.get(system, "") for system in column.names), ""))
                opened = OutputTexts(opened.run, results.items, systems)
            members[number] = opened
        texts = ReportTexts(results.items, results.systems, members, self._owners)
        missing = int(np.count_nonzero(~texts.has_text))
        if missing and missing < len(texts):
            self.notes.append(
                f"{format_count(missing, 'output')} of {len(texts):,} without texts in the files that were read."
            )
        return texts

    @cached_property
    def dataset(self) -> JudgedDataset | None:
        """Scores and judgments, joined; None where people judged nothing, or where systems had to be renamed."""
        if any(old != new for names in self._names.values() for old, new in names.items()):
            return None
        runs = [self.results] if len(self.runs) == 1 else list(self.runs.values())
        sources = [*runs, *self.files]
        try:
            dataset = join(sources, lengths=list_units(self.options.slices), **self.options.reading)
        except MetristError:
            return None
        return dataset if dataset.ratings or dataset.preferences else None

    @cached_property
    def evaluation(self) -> MetaEvaluation | None:
        """How the metrics agree with people, on all outputs and on the slices; None without judgments."""
        dataset, options = self.dataset, self.options
        if dataset is None or not dataset.scores:
            if options.slices:
                self.notes.append(f"Nobody rated these outputs: nothing is sliced by {', '.join(options.slices)}.")
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
                group=options.group,
                gold=options.gold,
                epsilon_over=options.epsilon_over,
                epsilon=options.epsilon,
                metrics=[m.label for m in self.results.metrics] if options.metrics else None,
                systems=self.systems if options.systems else None,
                draws=draws,
                seed=options.seed,
                alpha=options.alpha,
            )
        except MetristError as error:
            if error.code == "unknown_name":  # An aspect or a slice that the reader named.
                raise
            self.notes.append(f"Agreement with people could not be measured: {error}")
            return None

    @cached_property
    def slices(self) -> tuple[str, ...]:
        """The columns to slice by: those that were named, or task and language where they vary."""
        dataset = self.dataset
        if self.options.slices or dataset is None:
            return tuple(self.options.slices)
        varied = []
        for name in TAG_FIELDS:
            labels = dataset.columns.get(name)
            if labels and _MIN_VALUES <= len(np.unique(labels.codes[labels.codes >= 0])) <= _MAX_VALUES:
                varied.append(name)
        return (*varied, "+".join(varied)) if len(varied) == 2 else tuple(varied)


class ReportTexts(OutputTexts):
    """What the runs of a report say about its outputs; `owners` has the number of each output's run. What was read once
    is kept."""

    def __init__(
        self, items: Sequence[str], systems: Sequence[str], members: Mapping[int, OutputTexts], owners: NDArray[np.intp]
    ) -> None:
        self.items, self.systems, self.remarks = items, systems, []
        self._members, self._owners = members, owners
        self._facts: dict[int, OutputFacts] = {}

    @cached_property
    def has_text(self) -> NDArray[np.bool_]:
        has_text = np.zeros(len(self), np.bool_)
        for member in self._members.values():
            has_text |= member.has_text
        return has_text

    @property
    def stores_texts(self) -> bool:
        return any(member.stores_texts for member in self._members.values())

    @cached_property
    def are_few(self) -> bool:
        """Whether the page has room for all texts."""
        rows = np.flatnonzero(self.has_text)
        if len(rows) > MAX_OUTPUTS:
            return False
        records = [facts.record for facts in self.read(rows.tolist()).values() if facts.record]
        contexts = {record.item: record for record in reversed(records)}.values()
        characters = sum(len(record.output) for record in records)
        characters += sum(len(record.source or "") + sum(map(len, record.references)) for record in contexts)
        return characters <= MAX_CHARACTERS

    def read(self, positions: Sequence[int], connection: Any = None) -> dict[int, OutputFacts]:
        for number, member in self._members.items():
            new = [row for row in positions if row not in self._facts and self._owners[row] == number]
            self._facts |= member.read(new, connection) if new else {}
        return {row: self._facts.get(row) or OutputFacts() for row in positions}

    @cached_property
    def ratings(self) -> dict[str, RatedRows]:
        rated: dict[str, RatedRows] = {}
        for aspect, own in ((a, r) for member in self._members.values() for a, r in member.ratings.items()):
            if before := rated.get(aspect):
                rows, values = np.concatenate([before.rows, own.rows]), np.concatenate([before.values, own.values])
                rated[aspect] = RatedRows(rows, values)
            else:
                rated[aspect] = own
        return rated

    @cached_property
    def errors(self) -> dict[int, list[Error]]:
        return {row: errors for member in self._members.values() for row, errors in member.errors.items()}


def _name_systems(runs: Mapping[str, Results]) -> dict[str, dict[str, str]]:
    """Names of the systems of each run: a system that two runs have is told apart by the name of its run."""
    counts = Counter(system for run in runs.values() for system in list_distinct(run.systems))
    shorts = {name: Path(name).name or name for name in runs}
    unique = shorts if len(set(shorts.values())) == len(shorts) else {name: name for name in runs}
    return {
        name: {s: f"{s} ({unique[name]})" if counts[s] > 1 else s for s in list_distinct(run.systems)}
        for name, run in runs.items()
    }


def _use_stored_scores(dataset: JudgedDataset, names: Sequence[str]) -> Results:
    """Results from the scores that records hold themselves."""
    if not dataset.scores:
        raise RunError(
            "the files hold no scores: name metrics to score them with (-m rougeL), or give a run folder",
            code="no_data",
        )
    metrics, scores, signatures = list[Metric](), {}, {}
    for name in names:
        column = dataset.scores[name]
        missing = np.flatnonzero(np.isnan(column.values)).tolist()
        reason = Failure(FailureKind.missing_input, "the file has no score")
        block = Scores(values=column.values, failures=dict.fromkeys(missing, reason))
        signature = column.signature or f"{name} | as the file gives it"
        cls: Any = type("StoredMetric", (UnavailableMetric,), {"higher_is_better": column.higher_is_better})
        metric: Metric = cls(name, signature, block)
        metrics.append(metric)
        scores[metric.label], signatures[metric.label] = block, signature
    return Results(
        items=NameColumn(dataset.items.codes, dataset.items.names),
        systems=NameColumn(dataset.systems.codes, dataset.systems.names),
        metrics=tuple(metrics),
        scores=scores,
        signatures=signatures,
        notes=dataset.notes,
    )
