"""Sentences on lines of their own, as ROUGE-L over summaries wants them."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from metrist.errors import RunError
from metrist.evaluate.meta.dataset import JudgedDataset, Labels
from metrist.evaluate.meta.join import join
from metrist.io import read_records
from metrist.records import Record
from metrist.run import Results, score
from metrist.stats import Floats
from metrist.studies.reproduce.published import Block, Lines, References

_END = re.compile(r"(?<=[.!?])\s+")


def by_sentence(text: str) -> str:
    """The text with a new line after each full stop, question or exclamation mark that white space follows."""
    return _END.sub("\n", text)


# The data that the tables are computed from: each file is read once, and scored once per metric and way of reading.


#: Names the folder of data sets where it is not given.
VARIABLE = "METRIST_TEST_DATA"
_USUAL = Path("..") / "shared" / "data"


def data_folder(given: str | os.PathLike[str] | None = None) -> Path:
    """The folder given, or the one that the environment names, or ../shared/data."""
    folder = Path(given or os.environ.get(VARIABLE) or _USUAL)
    if not folder.is_dir():
        raise RunError(
            f"{folder}: no such folder; --data, or the environment variable {VARIABLE}, names the folder that holds "
            "summeval.jsonl.xz and the other data sets"
        )
    return folder


class Material:
    """Data sets of one folder, kept in memory once read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._judged: dict[str, JudgedDataset] = {}
        self._records: dict[tuple[str, References, Lines], list[Record]] = {}
        self._results: dict[tuple[str, References, Lines, str], Results] = {}

    def has(self, data: str) -> bool:
        """Whether the data set is at hand."""
        return self.path(data).is_file()

    def has_references(self, data: str) -> bool:
        """Whether its outputs can be compared with references."""
        return any(record.references for record in self._read(data, "all", "whole"))

    def path(self, data: str) -> Path:
        return self._folder / f"{data}.jsonl.xz"

    def judged(self, data: str) -> JudgedDataset:
        """What people, and others' metrics, said of the outputs."""
        if data not in self._judged:
            self._judged[data] = join(self.path(data))
        return self._judged[data]

    def values(self, data: str, block: Block) -> Floats:
        """The score of each output of `judged(data)`, larger being better."""
        judged = self.judged(data)
        if block.stored:
            return judged.scores[block.stored].signed()
        results = self._scored(data, block)
        scores = results.scores[results.metrics[0].text]
        return _in_order(judged, results, scores.parts[block.part] if block.part else scores.values)

    def _scored(self, data: str, block: Block) -> Results:
        key = (data, block.references, block.lines, block.metric)
        if key not in self._results:
            records = self._read(data, block.references, block.lines)
            # A lexical metric needs less time for a data set than worker processes need to start.
            self._results[key] = score(records, block.metric, executor="serial")
        return self._results[key]

    def _read(self, data: str, references: References, lines: Lines) -> list[Record]:
        key = (data, references, lines)
        if key not in self._records:
            self._records[key] = [_as_read(record, references, lines) for record in read_records(self.path(data))]
        return self._records[key]


def _as_read(record: Record, references: References, lines: Lines) -> Record:
    texts = _compared_with(record, references)
    if lines == "whole":
        return replace(record, references=texts)
    return replace(record, output=by_sentence(record.output), references=tuple(map(by_sentence, texts)))


def _compared_with(record: Record, references: References) -> tuple[str, ...]:
    match references:
        case "all":
            return record.references
        case "first":
            return record.references[:1]
        case "source":
            return () if record.source is None else (record.source,)


def _in_order(judged: JudgedDataset, results: Results, values: Floats) -> Floats:
    """Scores in the order of the judged outputs; NaN where there is none."""
    place = {key: number for number, key in enumerate(zip(results.items, results.systems, strict=True))}
    keys = zip(_written_out(judged.items), _written_out(judged.systems), strict=True)
    return np.append(values, np.nan)[[place.get(key, -1) for key in keys]]


def _written_out(labels: Labels) -> list[str]:
    return [labels.names[code] for code in labels.codes]
