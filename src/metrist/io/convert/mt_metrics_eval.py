"""A test set in mt-metrics-eval's folders, where file names say what is in them.

    sources/LP.txt   references/LP.NAME.txt   system-outputs/LP/SYSTEM.txt   documents/LP.docs ("DOMAIN DOCUMENT" lines)
    human-scores/LP.NAME.seg.score   metric-scores/LP/METRIC.seg.score       ("SYSTEM SCORE" lines, 'None' is missing)

Scores of whole systems, documents and domains (.sys, .doc, .domain) belong to no single output and are left aside.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from metrist.errors import InputError, did_you_mean
from metrist.io.convert.foreign_json import Options, Row, filled, listed, number
from metrist.io.convert.line_files import check_lengths, read_lines
from metrist.io.row_model import format_value

#: From system to one number per line of its file, NaN where missing: compact, for test sets have a million scores.
Columns = dict[str, "array[float]"]


def looks_alike(folder: Path) -> bool:
    """Whether a folder is laid out as mt-metrics-eval's test sets are."""
    return (folder / "sources").is_dir() and (folder / "system-outputs").is_dir()


@dataclass(frozen=True, slots=True, kw_only=True)
class _TestSet:
    """One language pair: the files that are read line by line, and the scores, which are grouped by system."""

    pair: str
    source: Path
    references: Mapping[str, Path]
    systems: Mapping[str, Path]
    documents: Sequence[Path]  # One file, or none.
    ratings: Mapping[str, Columns]
    scores: Mapping[str, Columns]


def rows(folder: Path, options: Options) -> Iterator[Row]:
    """One row per line and system, streamed; an item is called by language pair and line number."""
    yield from _rows(_test_set(folder, options), options.task or "translation")


def _test_set(folder: Path, options: Options) -> _TestSet:
    pair = _language_pair(folder, options.language)
    source = folder / "sources" / f"{pair}.txt"
    references = _references(folder, pair, options.references)
    systems = _named(folder / "system-outputs" / pair, "", ".txt")
    if not systems:
        raise InputError(f"{folder / 'system-outputs' / pair}: no file SYSTEM.txt with outputs")
    documents = list((folder / "documents").glob(f"{pair}.docs"))
    lines = check_lengths([source, *references.values(), *systems.values(), *documents])
    ratings = _named(folder / "human-scores", f"{pair}.", ".seg.score")
    scores = _named(folder / "metric-scores" / pair, "", ".seg.score")
    return _TestSet(
        pair=pair,
        source=source,
        references=references,
        systems=systems,
        documents=documents,
        ratings={name: _columns(path, systems, lines) for name, path in ratings.items()},
        scores={name: _columns(path, systems, lines) for name, path in scores.items()},
    )


def _named(folder: Path, start: str, end: str) -> dict[str, Path]:
    """The files whose names begin and end so, by what stands between."""
    found = sorted(folder.glob(f"{start}*{end}"))
    return {path.name.removeprefix(start).removesuffix(end): path for path in found}


def _language_pair(folder: Path, wanted: str | None) -> str:
    pairs = [path.stem for path in sorted((folder / "sources").glob("*.txt"))]
    if wanted in pairs:
        return wanted
    if wanted is not None:
        raise InputError(f"{folder}: no language pair {wanted!r}, only {listed(pairs)}{did_you_mean(wanted, pairs)}")
    if not pairs:
        raise InputError(f"{folder / 'sources'}: no file SOURCE-TARGET.txt such as en-de.txt")
    if len(pairs) > 1:
        raise InputError(f"{folder}: holds {len(pairs)} language pairs, {listed(pairs)}; name one with --language")
    return pairs[0]


def _references(folder: Path, pair: str, wanted: Collection[str] | None) -> dict[str, Path]:
    found = _named(folder / "references", f"{pair}.", ".txt")
    for name in wanted or ():
        if name not in found:
            raise InputError(f"{folder}: no reference {name!r} for {pair}, only {listed(found)}")
    return found if wanted is None else {name: found[name] for name in wanted}


def _columns(path: Path, systems: Mapping[str, Path], lines: int) -> Columns:
    columns: Columns = {}
    for n, line in enumerate(read_lines(path), 1):
        words = line.split()
        if len(words) != 2:
            raise InputError(f"{path}:{n}: wanted a system and a score, got {format_value(line)}")
        if words[0] not in systems:
            raise InputError(f"{path}:{n}: no outputs of a system {words[0]!r}{did_you_mean(words[0], systems)}")
        value = number(f"{path}:{n}", "score", words[1])
        columns.setdefault(words[0], array("d")).append(math.nan if value is None else value)
    for system, column in columns.items():
        if len(column) != lines:
            raise InputError(f"{path}: {len(column):,} scores for system {system!r}, but the test has {lines:,} lines")
    return columns


def _rows(test_set: _TestSet, task: str) -> Iterator[Row]:
    readers = [test_set.source, *test_set.references.values(), *test_set.systems.values()]
    documents = chain.from_iterable(map(read_lines, test_set.documents))
    for n, (source, *texts) in enumerate(zip(*map(read_lines, readers), strict=True)):
        references = dict(zip(test_set.references, texts, strict=False))
        head = {"item": f"{test_set.pair}:{n + 1}", "source": source, "task": task, "language": test_set.pair}
        head |= _document(next(documents, ""))
        for system, output in zip(test_set.systems, texts[len(references) :], strict=True):
            # A human translation is among the systems too, where it must not be its own reference.
            others = [text for name, text in references.items() if name != system and text]
            ratings = {name: [value] for name, value in _line(test_set.ratings, system, n).items()}
            judged = {"references": others, "ratings": ratings, "scores": _line(test_set.scores, system, n)}
            yield {**head, "system": system, **filled(judged), "output": output}


def _line(tables: Mapping[str, Columns], system: str, n: int) -> dict[str, float]:
    values = {name: columns[system][n] for name, columns in tables.items() if system in columns}
    return {name: value for name, value in values.items() if not math.isnan(value)}


def _document(line: str) -> Row:
    """The words of a line in documents/, of which some test sets have only the second."""
    words = line.strip().split(maxsplit=1)
    return dict(zip(("domain", "doc")[-len(words) :], words, strict=True)) if words else {}
