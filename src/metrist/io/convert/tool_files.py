"""Files of the tools in `metrist.io.tools`, and votes of Chatbot Arena with their texts.

Questions of MT-bench (`question.jsonl`) beside the answers become their sources and references.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

from metrist.errors import InputError
from metrist.io.convert.json_input import ConvertOptions, Row, drop_empty, read_entries
from metrist.io.fields import ColumnMap
from metrist.io.layouts import convert_rows
from metrist.io.row_model import RowError
from metrist.io.rows import RowSource, open_source


def detect_tool(path: Path) -> str:
    """Return the name of the tool that wrote a file; empty if it is none of them."""
    source = open_source(path)
    first = next(iter(source.read()), (0, None))[1]
    if source.format.tool or not isinstance(first, dict):
        return source.format.tool
    return "arena" if _is_question(first) or {"model_a", "model_b", "winner"} <= first.keys() else ""


def rows(paths: Iterable[Path], kind: str, options: ConvertOptions) -> Iterator[Row]:
    """Yield the rows of all files."""
    questions: dict[str, Row] = {}
    files = []
    for path in paths:
        if (tool := detect_tool(path)) != kind:
            raise InputError(f"{path}: expected a file of {kind}, found {tool or 'another one'}", code="invalid_value")
        source = open_source(path)
        if _is_question(next(iter(source.read()), (0, None))[1]):
            questions |= {str(entry["question_id"]): entry for _, entry in read_entries(path)}
        else:
            files.append(source)
    tags = drop_empty({"task": options.task, "language": options.language})
    for source in files:
        answers: dict[tuple[str, str], str] = {}
        for row in _read(source):
            if options.system and "systems" not in row:
                row.setdefault("system", options.system)
            yield {**row, **(_find_question(row, questions, answers) if questions else {}), **tags}


def _is_question(entry: Any) -> bool:
    return isinstance(entry, dict) and {"question_id", "turns"} <= entry.keys() and "model_id" not in entry


def _read(source: RowSource) -> Iterator[Row]:
    entries: Iterator[tuple[int, Any]] = iter(source.read())
    head = list(islice(entries, 1))  # What wrote the file is known by now.
    entries = chain(head, entries)
    if not source.format.tool:
        entries, _ = convert_rows(entries, {}, ColumnMap({}))
    for line, row in entries:
        if isinstance(row, RowError):
            raise InputError(f"{source.location(line)}: {row}", code="invalid_row")
        yield dict(row)


def _find_question(row: Row, questions: dict[str, Row], answers: dict[tuple[str, str], str]) -> Row:
    """Return the source and references of an answer, which is to the second turn where its item is `81:2`."""
    name, _, turn = row["item"].partition(":")
    question = questions.get(name)
    if question is None or "output" not in row:
        return {}
    number = int(turn or 1) - 1
    source = question["turns"][number]
    if number:
        first = question["turns"][0], answers[name, row["system"]]
        source = f"Human: {first[0]}\n\nAssistant: {first[1]}\n\nHuman: {source}"
    else:
        answers[name, row["system"]] = row["output"]
    references = (question.get("reference") or [])[number : number + 1]
    return drop_empty({"source": source, "references": references, "category": question.get("category")})
