"""Line files, in which line n of each file belongs to the same item: given one by one, as sacreBLEU takes them, or in
the folders of mt-metrics-eval, where file names say what is in them.

    sources/LP.txt   references/LP.NAME.txt   system-outputs/LP/SYSTEM.txt   documents/LP.docs ("DOMAIN DOCUMENT" lines)
    human-scores/LP.NAME.seg.score   metric-scores/LP/METRIC.seg.score       ("SYSTEM SCORE" lines, 'None' is missing)

Scores of systems, documents and domains (.sys, .doc, .domain) belong to no single output and are not converted.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

from metrist.errors import InputError, did_you_mean, format_count
from metrist.io.compression import BYTE_ORDER_MARK, decode_line, open_bytes
from metrist.io.convert.json_input import ConvertOptions, Row, drop_empty, format_names, parse_number
from metrist.io.row_model import Location, RowError, format_value

#: From system to one number per line, NaN if missing. Arrays are compact: test sets have a million scores.
Columns = dict[str, "array[float]"]


def line_files(
    outputs: Mapping[str, Path | str],
    *,
    source: Path | str | None = None,
    references: Sequence[Path | str] = (),
    task: str | None = None,
    language: str | None = None,
) -> Iterator[Row]:
    """Convert one file of outputs per system, with the source and any number of references; items are named by their
    line number. An empty line of a reference file means that the item lacks this reference, as in sacreBLEU.
    """
    if not outputs:
        raise InputError(
            "line files need at least one file of outputs with its system's name, such as nllb=nllb.txt",
            code="invalid_value",
        )
    sources = [Path(source)] if source is not None else []
    columns = [*sources, *map(Path, references), *map(Path, outputs.values())]
    _count_lines(columns)
    shared = drop_empty({"task": task, "language": language})
    return _line_file_rows(columns, len(sources), len(references), list(outputs), shared)


def _line_file_rows(
    columns: list[Path], sources: int, references: int, systems: list[str], shared: Row
) -> Iterator[Row]:
    first_output = sources + references
    for number, texts in enumerate(zip(*map(read_lines, columns), strict=True), 1):
        context = {
            "item": str(number),
            "source": texts[0] if sources else None,
            "references": [reference for reference in texts[sources:first_output] if reference],
        }
        for system, output in zip(systems, texts[first_output:], strict=True):
            yield {**drop_empty(context), **shared, "system": system, "output": output}


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file without their ends. Only a newline ends a line, as in sacreBLEU: texts may contain the
    other characters that Unicode calls line breaks."""
    with open_bytes(path) as file:
        for number, line in enumerate(file, 1):
            try:
                yield decode_line((line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line).rstrip(b"\r\n"))
            except RowError as error:
                raise InputError(f"{Location(str(path), number)}: {error}") from None


def _count_lines(paths: Sequence[Path]) -> int:
    """Return the common number of lines; checked before anything is written, not after."""
    counts = []
    for path in paths:
        with open_bytes(path) as file:
            counts.append(sum(1 for _ in file))
        if counts[-1] != counts[0]:
            raise InputError(
                f"{path}: has {format_count(counts[-1], 'line')}, but {paths[0]} has {counts[0]:,}; line "
                "n of every file must belong "
                "to the same item",
                code="invalid_value",
            )
    return counts[0]


def rows(folder: Path, options: ConvertOptions) -> Iterator[Row]:
    """Yield one row per line and system; items are named by language pair and line number."""
    pair = _choose_language_pair(folder, options.language)
    source = folder / "sources" / f"{pair}.txt"
    reference_files = _find_files(folder / "references", f"{pair}.", ".txt")
    for name in options.references or ():
        if name not in reference_files:
            raise InputError(f"{folder}: no reference {name!r} for {pair}, only {format_names(reference_files)}")
    if options.references is not None:
        reference_files = {name: reference_files[name] for name in options.references}
    systems = _find_files(folder / "system-outputs" / pair, "", ".txt")
    if not systems:
        raise InputError(f"{folder / 'system-outputs' / pair}: no file SYSTEM.txt with outputs")
    documents = list((folder / "documents").glob(f"{pair}.docs"))  # One file, or none.
    files = [source, *reference_files.values(), *systems.values()]
    lines = _count_lines([*files, *documents])

    def read_scores(place: Path, prefix: str) -> dict[str, Columns]:
        files = _find_files(place, prefix, ".seg.score")
        return {name: _read_scores(path, systems, lines) for name, path in files.items()}

    human = read_scores(folder / "human-scores", f"{pair}.")
    metric = read_scores(folder / "metric-scores" / pair, "")
    document_lines = chain.from_iterable(map(read_lines, documents))
    for number, (source_text, *texts) in enumerate(zip(*map(read_lines, files), strict=True)):
        references = dict(zip(reference_files, texts, strict=False))
        # Domain and document, or only the document in some test sets.
        words = next(document_lines, "").strip().split(maxsplit=1)
        tags = ("doc",) if len(words) == 1 else ("domain", "doc")
        context = {
            "item": f"{pair}:{number + 1}",
            "source": source_text,
            "task": options.task or "translation",
            "language": pair,
            **dict(zip(tags, words, strict=False)),
        }
        for system, output in zip(systems, texts[len(references) :], strict=True):
            ratings = _scores_of_line(human, system, number)
            judgments = {
                # A human translation may also be a system; it must not be its own reference.
                "references": [text for name, text in references.items() if name != system and text],
                "ratings": {name: [value] for name, value in ratings.items()},
                "scores": _scores_of_line(metric, system, number),
            }
            yield {**context, "system": system, **drop_empty(judgments), "output": output}


def _find_files(folder: Path, prefix: str, suffix: str) -> dict[str, Path]:
    """Find files by prefix and suffix, keyed by the part of the name between them."""
    paths = sorted(folder.glob(f"{prefix}*{suffix}"))
    return {path.name.removeprefix(prefix).removesuffix(suffix): path for path in paths}


def _choose_language_pair(folder: Path, requested: str | None) -> str:
    pairs = [path.stem for path in sorted((folder / "sources").glob("*.txt"))]
    if requested in pairs:
        return requested
    names = format_names(pairs)
    if requested is not None:
        raise InputError(
            f"{folder}: no language pair {requested!r}, only {names}{did_you_mean(requested, pairs)}",
            code="unknown_name",
        )
    if not pairs:
        raise InputError(f"{folder / 'sources'}: no file SOURCE-TARGET.txt such as en-de.txt")
    if len(pairs) > 1:
        raise InputError(f"{folder}: has {len(pairs)} language pairs, {names}; choose one with `language`")
    return pairs[0]


def _read_scores(path: Path, systems: Mapping[str, Path], lines: int) -> Columns:
    columns: Columns = {}
    for number, line in enumerate(read_lines(path), 1):
        words = line.split()
        if len(words) != 2:
            raise InputError(
                f"{path}:{number}: expected a system and a score, got {format_value(line)}", code="invalid_value"
            )
        system, text = words
        if system not in systems:
            raise InputError(
                f"{path}:{number}: no outputs of a system {system!r}{did_you_mean(system, systems)}",
                code="unknown_name",
            )
        value = parse_number(f"{path}:{number}", "score", text)
        columns.setdefault(system, array("d")).append(math.nan if value is None else value)
    for system, column in columns.items():
        if len(column) != lines:
            raise InputError(f"{path}: {len(column):,} scores for system {system!r}, but the test has {lines:,} lines")
    return columns


def _scores_of_line(tables: Mapping[str, Columns], system: str, line: int) -> dict[str, float]:
    values = {name: columns[system][line] for name, columns in tables.items() if system in columns}
    return {name: value for name, value in values.items() if not math.isnan(value)}
