"""BARTScore's nested data, as JSON: summaries, data-to-text, and pairs of translations.

    summaries     {doc: {"src", "ref_summ" and/or "ref_summs", "sys_summs": {system: {"sys_summ", "scores"}}}}
    data-to-text  {doc: {"src", "ref_summs", "sys_summ", "scores"}}              one output each, system not named
    translations  {doc: {"src", "ref", "better": {"sys_name", "sys", "scores"}, "worse": {"sys_name", "sys", "scores"}}}

`scores` mixes human ratings with metric scores; the names distinguish them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from metrist.errors import InputError
from metrist.io.convert.json_input import (
    ConvertOptions,
    Row,
    drop_empty,
    format_names,
    get_mapping,
    get_optional_text,
    get_text,
    get_texts,
    parse_number,
    read_document,
    reject,
)
from metrist.io.row_model import format_value
from metrist.io.rows import UNNAMED

#: The names of human ratings in the BARTScore repository.
HUMAN_RATINGS = frozenset({
    "coherence", "consistency", "fact", "fluency", "informativeness", "litepyramid_recall", "naturalness", "quality",
    "relevance",
})  # fmt: skip
_FIELDS = frozenset({"src", "ref_summ", "ref_summs", "ref", "sys_summs", "sys_summ", "scores", "better", "worse"})


def is_document(value: Any) -> bool:
    first = next(iter(value.values()), None) if isinstance(value, dict) else None
    return isinstance(first, dict) and bool(first.keys() & {"sys_summs", "sys_summ", "better"})


def rows(path: Path, options: ConvertOptions) -> Iterator[Row]:
    """Yield one row per output; for a pair of translations one row for the pair, then one per output with scores."""
    document = read_document(path)
    if not isinstance(document, dict):
        raise InputError(
            f"{path}: expected an object from document to outputs, got {format_value(document)}", code="invalid_value"
        )
    for item, entry in document.items():
        place = f"{path}: document {format_value(item)}"
        if not isinstance(entry, dict):
            raise InputError(
                f"{place}: expected an object with its source and outputs, got {format_value(entry)}",
                code="invalid_value",
            )
        shared = _shared_fields(place, item, entry, options)
        if "sys_summs" in entry:
            shared.setdefault("task", "summarization")
            for system, summary in get_mapping(place, entry, "sys_summs").items():
                system_place = f"{place}, system {format_value(system)}"
                if not isinstance(summary, dict):
                    reject(system_place, "sys_summs", summary, "an object with 'sys_summ' and 'scores'")
                yield {**shared, **_output_fields(system_place, system, summary, "sys_summ", options)}
        elif "sys_summ" in entry:
            shared.setdefault("task", "data2text")
            yield {**shared, **_output_fields(place, options.system or UNNAMED, entry, "sys_summ", options)}
        elif "better" in entry:
            shared.setdefault("task", "translation")
            yield from _pair_rows(place, entry, shared, options)
        else:
            names = format_names(entry)
            raise InputError(
                f"{place}: expected 'sys_summs', 'sys_summ' or 'better' and 'worse', found {names}",
                code="invalid_value",
            )


def _shared_fields(place: str, item: str, entry: Mapping[str, Any], options: ConvertOptions) -> Row:
    several = get_texts(place, entry, "ref_summs")
    single = [text for name in ("ref_summ", "ref") if (text := get_optional_text(place, entry, name)) is not None]
    extra = {field: value for field, value in entry.items() if field not in _FIELDS}
    fields = {
        "item": item,
        "source": get_optional_text(place, entry, "src"),
        # Multi-reference data repeat the original reference among the others; it must not count twice in a mean.
        "references": [text for text in single if text not in several] + several,
        "task": options.task,
        "language": options.language,
    }
    return {**extra, **drop_empty(fields)}


def _output_fields(
    place: str, system: str, entry: Mapping[str, Any], output_field: str, options: ConvertOptions
) -> Row:
    numbers = {name: parse_number(place, name, value) for name, value in get_mapping(place, entry, "scores").items()}
    scores = {name: value for name, value in numbers.items() if value is not None}
    human = HUMAN_RATINGS if options.ratings is None else set(options.ratings)
    judgments = {
        "ratings": {name: [value] for name, value in scores.items() if name in human},
        "scores": {name: value for name, value in scores.items() if name not in human},
    }
    return {"system": system, "output": get_text(place, entry, output_field), **drop_empty(judgments)}


def _pair_rows(place: str, entry: Mapping[str, Any], shared: Row, options: ConvertOptions) -> Iterator[Row]:
    """Without `sys_name`, the systems are called better and worse: then nothing can be said about systems."""
    sides = {side: get_mapping(place, entry, side) for side in ("better", "worse")}
    names = [get_optional_text(f"{place}, {side!r}", sides[side], "sys_name") for side in sides]
    if None in names or names[0] == names[1]:
        names = [*sides]
        options.note(
            "documents without two different names in `sys_name`: their systems are called better and worse, so "
            "results by system mean nothing"
        )
    rows = [
        {**shared, **_output_fields(f"{place}, {side!r}", str(name), sides[side], "sys", options)}
        for name, side in zip(names, sides, strict=True)
    ]
    outputs = [row["output"] for row in rows]
    yield {**shared, "systems": names, "outputs": outputs, "ratings": {"preference": [1]}}
    yield from (row for row in rows if "scores" in row or "ratings" in row)
