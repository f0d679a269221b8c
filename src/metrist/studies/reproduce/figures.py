"""Compute the figures of the tables: read each data set once, score it once per metric, and measure the agreement."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from metrist.errors import RunError
from metrist.evaluate.meta.dataset import (
    ALL,
    JudgedDataset,
    Labels,
    MetricScores,
    compute_gold,
    select_outputs,
    select_sample,
)
from metrist.evaluate.meta.evaluate import meta_evaluate
from metrist.evaluate.meta.join import join
from metrist.evaluate.meta.preferences import vote
from metrist.evaluate.meta.results import Figure
from metrist.io import read_records
from metrist.io.writer import atomic_write
from metrist.metrics.registry import build
from metrist.records import Need, Record
from metrist.run import Results, score
from metrist.run.results import NothingScored
from metrist.scores import Scores
from metrist.stats import Floats
from metrist.stats.error_spans import reduction_shares
from metrist.stats.estimation import estimate
from metrist.stats.measures import measure
from metrist.stats.preferences import choose, confusion, pair_counts
from metrist.studies.reproduce.published import MEAN, Lines, PublishedBlock, References

#: Names the folder of data sets if no folder is passed.
DATA_VARIABLE = "METRIST_TEST_DATA"
_DEFAULT_FOLDER = Path("..") / "shared" / "data"
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


def find_data_folder(folder: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder, or the one that the environment names, or ../shared/data."""
    path = Path(folder or os.environ.get(DATA_VARIABLE) or _DEFAULT_FOLDER)
    if not path.is_dir():
        raise RunError(
            f"{path}: no such folder; name the folder with summeval.jsonl.xz and the other data sets by `data` or the "
            f"environment variable {DATA_VARIABLE}",
            code="missing_file",
        )
    return path


class DataFolder:
    """The data sets of a folder and the scores of their outputs; both stay in memory once read.

    `scores` is a folder in which scores are kept from one time to the next; a stopped run of a model goes on. Blocks
    use the first `limit` items only.
    """

    def __init__(self, folder: Path, scores: str | os.PathLike[str] | None = None, limit: int | None = None) -> None:
        self._folder, self.limit = folder, limit
        self._scores = None if scores is None else Path(scores)
        self._judged: dict[str, JudgedDataset] = {}
        self._records: dict[tuple[str, References, Lines], list[Record]] = {}
        self._results: dict[tuple[str, References, Lines, str], Results] = {}

    def has(self, data: str) -> bool:
        return self.path(data).is_file()

    def has_field(self, data: str, need: Need, references: References = "all") -> bool:
        """Return whether any record has what a metric needs; `references` as for a block."""
        return any(not record.lacks(need) for record in self._read_records(data, references, "whole"))

    def path(self, data: str) -> Path:
        return self._folder / f"{data}.jsonl.xz"

    def judged(self, data: str) -> JudgedDataset:
        """Return the outputs with their human judgments and stored scores."""
        if data not in self._judged:
            self._judged[data] = join(self.path(data))
        return self._judged[data]

    def values(self, data: str, block: PublishedBlock) -> Floats:
        """Return the score of each output of `judged(data)`; higher is better, NaN is missing."""
        judged = self.judged(data)
        if block.stored:
            values = judged.scores[block.stored].signed()
            if self.limit is None:
                return values
            keys = {(record.item, record.system) for record in self.select_block(data, block)}
            return np.where([key in keys for key in list_outputs(judged)], values, np.nan)
        results, scores = self._score(data, block), self.score_block(data, block)
        values = scores.parts[block.part] if block.part else scores.values
        rows = {key: row for row, key in enumerate(zip(results.items, results.systems, strict=True))}
        return np.append(values, np.nan)[[rows.get(key, -1) for key in list_outputs(judged)]]

    def score_block(self, data: str, block: PublishedBlock) -> Scores:
        """Return the scores of the records that a block scores."""
        results = self._score(data, block)
        return results.scores[results.metrics[0].label]

    def column(
        self, data: str, metric: str, *, references: References = "all", every: int = 1, part: str = ""
    ) -> Floats:
        """Return the score of each output of `judged(data)`, NaN if missing. Only every n-th item is scored, and only
        outputs whose task begins with `part`. Stored scores of the same signature are not computed again."""
        records = self.select(data, references, every, part)
        stored = self.load_scores(data, metric, references)
        if missing := [record for record in records if (record.item, record.system) not in stored]:
            try:
                results = score(missing, metric, executor="serial")
            except NothingScored as nothing:
                results = nothing.results
            values = results.scores[results.metrics[0].label].values.tolist()
            stored.update(zip(zip(results.items, results.systems, strict=True), values, strict=True))
            if (path := self._score_file(data, metric, references)) is not None:
                rows = [[*key, None if math.isnan(value) else value] for key, value in stored.items()]
                content = {"signature": build(metric).signature, "references": references, "scores": rows}
                path.parent.mkdir(parents=True, exist_ok=True)
                with atomic_write(path) as file:
                    json.dump(content, file)
        selected = {(record.item, record.system) for record in records}
        return np.array([stored[key] if key in selected else np.nan for key in list_outputs(self.judged(data))])

    def select(self, data: str, references: References, every: int = 1, part: str = "") -> list[Record]:
        """Return the records of every n-th item whose task begins with `part`."""
        records = self._read_records(data, references, "whole")
        items = set(list(dict.fromkeys(record.item for record in records))[::every])
        return [record for record in records if record.item in items and (record.task or "").startswith(part)]

    def load_scores(self, data: str, metric: str, references: References) -> dict[tuple[str, str], float]:
        """Return the stored scores of a metric by item and system; none if its signature has changed."""
        path = self._score_file(data, metric, references)
        if path is None or not path.is_file():
            return {}
        rows = json.loads(path.read_text(encoding="utf-8"))["scores"]
        return {(item, system): math.nan if value is None else value for item, system, value in rows}

    def _score_file(self, data: str, metric: str, references: References) -> Path | None:
        if self._scores is None:
            return None
        built = build(metric)
        digest = hashlib.sha256(f"{built.signature}\n{references}".encode()).hexdigest()[:12]
        return self._scores / f"{data}.{built.name}.{digest}.json"

    def _score(self, data: str, block: PublishedBlock) -> Results:
        key = (data, block.references, block.lines, block.metric)
        if key not in self._results:
            # A lexical metric scores a data set in less time than worker processes need to start.
            records = self.select_block(data, block)
            self._results[key] = score(records, block.metric, executor="serial", out=self.run_folder(data, block))
        return self._results[key]

    def select_block(self, data: str, block: PublishedBlock) -> list[Record]:
        """Return the records that a block scores: of the first items, if there is a limit."""
        records = self._read_records(data, block.references, block.lines)
        items = set(list(dict.fromkeys(record.item for record in records))[: self.limit])
        return [record for record in records if record.item in items]

    def run_folder(self, data: str, block: PublishedBlock) -> str | None:
        """Return the run folder of a block's model on a data set, if there is a folder for scores."""
        if self._scores is None or not block.learned:
            return None
        identity = f"{build(block.metric).text}\n{block.references}\n{block.lines}\n{self.limit}"
        return f"{self._scores / 'runs' / data}.{hashlib.sha256(identity.encode()).hexdigest()[:12]}/"

    def _read_records(self, data: str, references: References, lines: Lines) -> list[Record]:
        key = (data, references, lines)
        if key not in self._records:
            records = [_adapt(record, references, lines) for record in read_records(self.path(data))]
            gold = {record.item: record for record in records if record.output} if references == "gold" else {}
            self._records[key] = [*gold.values()] or records
        return self._records[key]


def _adapt(record: Record, references: References, lines: Lines) -> Record:
    match references:
        case "all":
            texts = record.references
        case "first":
            texts = record.references[:1]
        case "source":
            texts = () if record.source is None else (record.source,)
        case "gold":
            texts = ()
            record = replace(record, system="reference", output="".join(record.references[:1]))
    if lines == "whole":
        return replace(record, references=texts)
    return replace(record, output=split_sentences(record.output), references=tuple(map(split_sentences, texts)))


def split_sentences(text: str) -> str:
    """Put each sentence on its own line, as ROUGE-L over summaries needs it: a line ends after a full stop, question or
    exclamation mark before white space."""
    return _SENTENCE_END.sub("\n", text)


def list_outputs(judged: JudgedDataset) -> list[tuple[str, str]]:
    """Return item and system of each output."""
    codes = zip(judged.items.codes, judged.systems.codes, strict=True)
    return [(judged.items.names[item], judged.systems.names[system]) for item, system in codes]


# Our figure for each printed one.


@dataclass(frozen=True, slots=True, kw_only=True)
class ReproducedFigure:
    """A printed number and ours, both multiplied by `scale`. NaN: the paper has none, or the data is missing. `n`
    counts outputs, or pairs of compared outputs."""

    block: PublishedBlock
    data: str
    aspect: str
    measure: str
    printed: float
    ours: float
    n: int
    scale: float

    @property
    def has_data(self) -> bool:
        return self.n > 0

    @property
    def difference(self) -> float:
        return self.ours - self.printed


def reproduce_block(block: PublishedBlock, folder: DataFolder, scale: float = 1.0) -> Iterator[ReproducedFigure]:
    """Compute all figures of a block."""
    for data, aspects in block.printed.items():
        for aspect, numbers in aspects.items():
            for name, number in zip(block.measures, numbers, strict=True):
                ready = folder.has(data) and not block.missing
                ours, n = _compute_figure(block, folder, data, aspect, name) if ready else (math.nan, 0)
                yield ReproducedFigure(
                    block=block,
                    data=data,
                    aspect=aspect,
                    measure=name,
                    printed=number,
                    ours=scale * ours,
                    n=n,
                    scale=scale,
                )


def _compute_figure(block: PublishedBlock, folder: DataFolder, data: str, aspect: str, name: str) -> tuple[float, int]:
    """Return the measure's value, and the number of outputs (or pairs) behind it."""
    if block.references == "gold":
        shares = reduction_shares(folder.score_block(data, block).values)
        return getattr(shares, name), shares.scored
    judged, values = folder.judged(data), folder.values(data, block)
    if aspect in judged.preferences:
        choices = judged.preferences[aspect]
        leads = values[choices.first] - values[choices.second]
        if folder.limit is not None:
            known = np.isfinite(leads)
            choices, leads = choices.take(known), leads[known]
        counts = pair_counts(confusion(choose(choices.choice), choose(leads)))
        return float(measure(name).pool(counts)), len(leads)
    outputs = select_outputs(judged, exclude_systems=block.exclude)
    figures = []
    for rated in judged.ratings if aspect == MEAN else (aspect,):
        sample = select_sample(judged, compute_gold(judged, rated, "mean"), values, outputs).sample
        figures.append((float(estimate(measure(name), sample, block.group).values[0]), len(sample)))
    return float(np.mean([value for value, _ in figures])), min(n for _, n in figures)


# Several metrics on the same outputs of a data set, with intervals.

_FAMILY, _SUBSET = "family", "subset"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricFigures:
    """The figures of all metrics on one part of a data set (empty: the whole)."""

    part: str
    figures: Mapping[str, Figure]

    @property
    def n(self) -> int:
        return max(figure.n for figure in self.figures.values())

    @property
    def chance(self) -> float:
        return next(iter(self.figures.values())).chance


def compare_metrics(
    judged: JudgedDataset, aspect: str, measure: str, scores: Mapping[str, Floats], *, subsets: str = "", draws: int
) -> list[MetricFigures]:
    """Measure the agreement on the whole data set, then on its parts. The column `subsets` names parts by paths
    (task/Adversarial/Manual); the parts of a family also come together if there are several."""
    # Only outputs that every metric has a score for.
    shared = np.logical_and.reduce([np.isfinite(values) for values in scores.values()])
    restricted = {
        name: MetricScores(name=name, values=np.where(shared, values, np.nan), higher_is_better=True)
        for name, values in scores.items()
    }
    dataset = replace(judged, scores=restricted)
    is_preference = aspect in judged.preferences
    if is_preference:
        # One choice for each pair, that of most raters; no pairs without a majority or a winner.
        pairs = vote(judged.preferences[aspect])
        decided = pairs.take(np.flatnonzero(pairs.choice))
        choices = replace(decided, rater=np.zeros(len(decided.choice), dtype=np.intp), weight=None)
        dataset = replace(dataset, preferences={aspect: choices}, choices={})
    slices: tuple[str, ...] = ()
    if subsets:
        # Two columns of a column of paths: the second step, and everything after the first.
        paths = judged.column(subsets)
        steps = [name.split("/")[1:] for name in paths.names]
        families = Labels.of(steps[code][0] for code in paths.codes)
        parts = Labels.of("/".join(steps[code]) for code in paths.codes)
        dataset = replace(dataset, columns={_FAMILY: families, _SUBSET: parts})
        slices = (_FAMILY, _SUBSET)
    evaluation = meta_evaluate(
        dataset,
        aspect,
        measure,
        slices=slices,
        preferences=is_preference,
        draws=draws,
        test="none",
        metrics=list(scores),
    )
    return list(_group_by_part(evaluation.figures))


def _group_by_part(figures: tuple[Figure, ...]) -> Iterator[MetricFigures]:
    """Yield the whole first, then each family before its parts; a family of one part is that part."""
    parts: dict[str, dict[str, Figure]] = {}
    for figure in figures:
        column, equals, name = figure.slice.partition("=")
        if figure.slice == ALL or (equals and column in (_FAMILY, _SUBSET)):
            parts.setdefault(name, {})[figure.metric] = figure
    for name in sorted(parts):
        if sum(other.startswith(f"{name}/") for other in parts) != 1:
            yield MetricFigures(part=name, figures=parts[name])
