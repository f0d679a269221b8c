"""Convert files of other tools to rows that metrist reads.

A row is a dictionary as `metrist.io` reads it: `item`, `system`, `output` (or `systems` and `outputs` for a pair),
`source`, `references`, `instruction`, `task`, `language`, `ratings` with `raters`, `scores`; any other field is kept as
an extra column of the record.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, cast, get_args

from metrist.errors import InputError, did_you_mean
from metrist.io.convert import (
    alpaca_eval,
    bartscore,
    label_studio,
    metric_instruct,
    mt_metrics_eval,
    natural_instructions,
)
from metrist.io.convert.json_input import ConvertOptions, Row, drop_empty, format_names, read_document, read_entries
from metrist.io.convert.mt_metrics_eval import line_files
from metrist.io.fields import ColumnMap
from metrist.io.layouts import convert_rows
from metrist.io.row_model import RowError, format_value
from metrist.io.rows import open_source
from metrist.io.tools import TOOLS
from metrist.io.writer import write_rows

__all__ = ["KINDS", "Kind", "Row", "convert", "detect", "line_files", "write_rows"]

Kind = Literal[
    "bartscore",
    "alpaca_eval",
    "mt_metrics_eval",
    "label_studio",
    "metric_instruct",
    "natural_instructions",
    "arena",
    "braintrust",
    "deepeval",
    "inspect_ai",
    "lm_eval",
    "openai_evals",
    "promptfoo",
    "ragas",
]
KINDS: tuple[Kind, ...] = get_args(Kind)


def convert(
    *paths: Path | str,
    kind: Kind | None = None,
    system: str | None = None,
    task: str | None = None,
    language: str | None = None,
    ratings: Collection[str] | None = None,
    references: Collection[str] | None = None,
    announce: Callable[[str], None] | None = None,
    read_analysis: Callable[[Row], Row] | None = None,
    outputs: Mapping[str, Path | str] | None = None,
    limit: int = 0,
) -> Iterator[Row]:
    """Convert files of one format, which is detected unless `kind` names it.

    `system` is the system of outputs that name none; `task` and `language` set these fields. `ratings` lists the names
    of BARTScore's scores that were given by people; `references` lists the references of mt-metrics-eval to use.
    `announce` gets what the user should know about the conversion, as it comes up. `read_analysis` reads the rows of
    MetricInstruct: `metrist.data.error_analysis.read_published_row`. `outputs` are files of predictions by system for
    the tasks of Natural Instructions, of each of which the first `limit` instances are used (0: all).
    """
    if not paths:
        raise InputError("nothing to convert: name at least one file or folder", code="missing_value")
    if kind is not None and kind not in KINDS:
        raise InputError(
            f"no format named {kind!r}{did_you_mean(kind, KINDS)}; there are {', '.join(KINDS)}", code="unknown_name"
        )
    existing = [_check_exists(path) for path in paths]
    if kind is None:
        kind, *others = map(detect, existing)
        for path, other in zip(existing[1:], others, strict=True):
            if other != kind:
                raise InputError(f"{path} has the format {other}, but {existing[0]} is {kind}; convert them one by one")
    if outputs and kind != "natural_instructions":
        raise InputError(
            f"`outputs` names predictions for tasks of Natural Instructions, but {existing[0]} is {kind}; line files "
            "need no other file",
            code="conflict",
        )
    options = ConvertOptions(
        system=system,
        task=task,
        language=language,
        ratings=ratings,
        references=references,
        announce=announce,
        read_analysis=read_analysis,
        systems=outputs or {},
        limit=limit,
    )
    # Items are numbered, and predictions found, over all files together.
    together: dict[str, Callable[[list[Path], ConvertOptions], Iterator[Row]]] = {
        "alpaca_eval": alpaca_eval.rows,
        "metric_instruct": metric_instruct.rows,
        "natural_instructions": natural_instructions.rows,
    }
    if kind in together:
        return together[kind](existing, options)
    if kind == "arena" or kind in TOOLS:
        return _read_tool_files(existing, kind, options)
    reader = {"bartscore": bartscore.rows, "label_studio": label_studio.rows}.get(kind, mt_metrics_eval.rows)
    return chain.from_iterable(reader(path, options) for path in existing)


def detect(path: Path | str) -> Kind:
    """Detect the format of a file or folder from its beginning; conversion then checks all of it."""
    path = _check_exists(path)
    if path.is_dir():
        if (path / "sources").is_dir() and (path / "system-outputs").is_dir():
            return "mt_metrics_eval"
        names = format_names(sorted(child.name for child in path.iterdir()))
        raise InputError(
            f"{path}: expected a folder with sources/ and system-outputs/ (mt-metrics-eval), found {names}",
            code="invalid_value",
        )
    with suppress(InputError):
        if tool := _detect_tool(path):
            return cast(Kind, tool)
    try:  # The first element of a list, the object of the first line, or a document that spans several lines.
        value = next(entry for _, entry in read_entries(path))
    except InputError:
        value = read_document(path)
    if bartscore.is_document(value):
        return "bartscore"
    if metric_instruct.is_entry(value):
        return "metric_instruct"
    if alpaca_eval.is_entry(value):
        return "alpaca_eval"
    if label_studio.is_entry(value):
        return "label_studio"
    with suppress(InputError):  # What was read may be an instance of a task.
        if natural_instructions.is_document(value) or natural_instructions.is_document(read_document(path)):
            return "natural_instructions"
    if isinstance(value, dict) and "item" in value:
        raise InputError(f"{path}: already has metrist's fields and needs no conversion; found {format_names(value)}")
    beginning = f"an object with {format_names(value)}" if isinstance(value, dict) else format_value(value)
    raise InputError(f"{path}: is none of {', '.join(KINDS)}; it begins with {beginning}")


def _check_exists(path: Path | str) -> Path:
    path = Path(path)
    if not path.exists():
        raise InputError(f"{path}: no such file or folder", code="missing_file")
    return path


# ---- Files of the tools in `metrist.io.tools`, and votes of Chatbot Arena with their texts
#
# Questions of MT-bench (`question.jsonl`) beside the answers become their sources and references.


def _detect_tool(path: Path) -> str:
    """Return the name of the tool that wrote a file; empty if it is none of them."""
    source = open_source(path)
    first = next(iter(source.read()), (0, None))[1]
    if source.format.tool or not isinstance(first, dict):
        return source.format.tool
    return "arena" if _is_question(first) or {"model_a", "model_b", "winner"} <= first.keys() else ""


def _read_tool_files(paths: Iterable[Path], kind: str, options: ConvertOptions) -> Iterator[Row]:
    """Yield the rows of all files."""
    questions: dict[str, Row] = {}
    files = []
    for path in paths:
        if (tool := _detect_tool(path)) != kind:
            raise InputError(f"{path}: expected a file of {kind}, found {tool or 'another one'}", code="invalid_value")
        source = open_source(path)
        if _is_question(next(iter(source.read()), (0, None))[1]):
            questions |= {str(entry["question_id"]): entry for _, entry in read_entries(path)}
        else:
            files.append(source)
    tags = drop_empty({"task": options.task, "language": options.language})
    for source in files:
        answers: dict[tuple[str, str], str] = {}
        entries: Iterator[tuple[int, Any]] = iter(source.read())
        head = list(islice(entries, 1))  # What wrote the file is known by now.
        entries = chain(head, entries)
        if not source.format.tool:
            entries, _ = convert_rows(entries, {}, ColumnMap({}))
        for line, entry in entries:
            if isinstance(entry, RowError):
                raise InputError(f"{source.location(line)}: {entry}", code="invalid_row")
            row = dict(entry)
            if options.system and "systems" not in row:
                row.setdefault("system", options.system)
            yield {**row, **(_find_question(row, questions, answers) if questions else {}), **tags}


def _is_question(entry: Any) -> bool:
    return isinstance(entry, dict) and {"question_id", "turns"} <= entry.keys() and "model_id" not in entry


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
