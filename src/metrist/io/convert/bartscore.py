"""BARTScore's nested data, as JSON: summaries, data-to-text, and pairs of translations.

    summaries     {doc: {"src", "ref_summ" and/or "ref_summs", "sys_summs": {system: {"sys_summ", "scores"}}}}
    data-to-text  {doc: {"src", "ref_summs", "sys_summ", "scores"}}              one output each, system not named
    translations  {doc: {"src", "ref", "better": {"sys", "scores"}, "worse": {"sys", "scores"}}}

Its `scores` mix what people said with what metrics said; the names of the former tell them apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from metrist.errors import InputError
from metrist.io.convert.foreign_json import (
    Options,
    Row,
    filled,
    listed,
    mapping,
    number,
    optional_text,
    read_document,
    text,
    texts,
    wrong,
)
from metrist.io.row_model import format_value
from metrist.io.rows import UNNAMED

#: The names under which the BARTScore repository keeps human judgments.
HUMAN = frozenset(
    {
        "coherence",
        "consistency",
        "fact",
        "fluency",
        "informativeness",
        "litepyramid_recall",
        "naturalness",
        "quality",
        "relevance",
    }
)
_OWN = frozenset({"src", "ref_summ", "ref_summs", "ref", "sys_summs", "sys_summ", "scores", "better", "worse"})


def looks_alike(document: Any) -> bool:
    """Whether a JSON value is built as BARTScore's data are."""
    first = next(iter(document.values()), None) if isinstance(document, dict) else None
    return isinstance(first, dict) and bool(first.keys() & {"sys_summs", "sys_summ", "better"})


def rows(path: Path, options: Options) -> Iterator[Row]:
    """One row per output; for pairs of translations one row per pair, then one per output that has scores."""
    document = read_document(path)
    if not isinstance(document, dict):
        raise InputError(f"{path}: wanted an object from document to outputs, got {format_value(document)}")
    for item, entry in document.items():
        place = f"{path}: document {format_value(item)}"
        if not isinstance(entry, dict):
            raise InputError(f"{place}: wanted an object with its source and outputs, got {format_value(entry)}")
        yield from _document(place, item, entry, options)


def _document(place: str, item: str, entry: Mapping[str, Any], options: Options) -> Iterator[Row]:
    shared = _shared(place, item, entry, options)
    if "sys_summs" in entry:
        shared.setdefault("task", "summarization")
        yield from _summaries(place, mapping(place, entry, "sys_summs"), shared, options)
    elif "sys_summ" in entry:
        shared.setdefault("task", "data2text")
        yield {**shared, **_output(place, options.system or UNNAMED, entry, "sys_summ", options)}
    elif "better" in entry:
        shared.setdefault("task", "translation")
        yield from _pair(place, entry, shared, options)
    else:
        raise InputError(f"{place}: wanted 'sys_summs', 'sys_summ' or 'better' and 'worse', found {listed(entry)}")


def _shared(place: str, item: str, entry: Mapping[str, Any], options: Options) -> Row:
    extra = {field: value for field, value in entry.items() if field not in _OWN}
    fields = {
        "item": item,
        "source": optional_text(place, entry, "src"),
        "references": _references(place, entry),
        "task": options.task,
        "language": options.language,
    }
    return {**extra, **filled(fields)}


def _references(place: str, entry: Mapping[str, Any]) -> list[str]:
    several = texts(place, entry, "ref_summs")
    single = [found for name in ("ref_summ", "ref") if (found := optional_text(place, entry, name)) is not None]
    # Multi-reference data repeat the original reference among the others; it must not count twice in a mean.
    return [reference for reference in single if reference not in several] + several


def _summaries(place: str, summaries: Mapping[str, Any], shared: Row, options: Options) -> Iterator[Row]:
    for system, holder in summaries.items():
        if not isinstance(holder, dict):
            wrong(
                f"{place}, system {format_value(system)}", "sys_summs", holder, "an object with 'sys_summ' and 'scores'"
            )
        yield {**shared, **_output(f"{place}, system {format_value(system)}", system, holder, "sys_summ", options)}


def _output(place: str, system: str, holder: Mapping[str, Any], field: str, options: Options) -> Row:
    said = {name: number(place, name, value) for name, value in mapping(place, holder, "scores").items()}
    known = {name: value for name, value in said.items() if value is not None}
    human = HUMAN if options.ratings is None else set(options.ratings)
    judged = {
        "ratings": {name: [value] for name, value in known.items() if name in human},
        "scores": {name: value for name, value in known.items() if name not in human},
    }
    return {"system": system, "output": text(place, holder, field), **filled(judged)}


def _pair(place: str, entry: Mapping[str, Any], shared: Row, options: Options) -> Iterator[Row]:
    sides = [
        {**shared, **_output(f"{place}, {side!r}", side, mapping(place, entry, side), "sys", options)}
        for side in ("better", "worse")
    ]
    outputs = [side["output"] for side in sides]
    yield {**shared, "systems": ["better", "worse"], "outputs": outputs, "ratings": {"preference": [1]}}
    yield from (side for side in sides if "scores" in side or "ratings" in side)
