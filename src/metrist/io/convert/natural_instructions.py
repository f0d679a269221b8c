"""Tasks of (Super-)Natural Instructions: a definition, examples, and instances with references.

    {"Definition": text or list, "Input_language": […], "Output_language": […],
     "Positive Examples": [{"input", "output", "explanation"}], "Negative Examples": […],
     "Instances": [{"id", "input", "output": text or list}]}

The files have no outputs of systems. Those are in files of predictions: `{"id", "prediction"}` a line, as the
repository's evaluation takes them, or a text a line, in the order of the instances of all tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from metrist.errors import InputError, format_count
from metrist.io.compression import open_bytes
from metrist.io.convert.json_input import (
    ConvertOptions,
    Row,
    drop_empty,
    get_text,
    get_texts,
    read_document,
    read_entries,
    reject,
)
from metrist.io.convert.mt_metrics_eval import read_lines
from metrist.io.rows import default_system

#: The system of references that stand for outputs.
REFERENCE = "reference"
#: Codes of languages that the tasks name; others keep their names.
_LANGUAGES = (
    "Arabic:ar Bengali:bn Bulgarian:bg Catalan:ca Chinese:zh Croatian:hr Czech:cs Danish:da Dutch:nl English:en "
    "Finnish:fi French:fr German:de Greek:el Hebrew:he Hindi:hi Indonesian:id Italian:it Japanese:ja Korean:ko "
    "Norwegian:no Persian:fa Polish:pl Portuguese:pt Romanian:ro Russian:ru Spanish:es Swahili:sw Swedish:sv "
    "Tamil:ta Thai:th Turkish:tr Ukrainian:uk Urdu:ur Vietnamese:vi"
)
_CODES = dict(pair.split(":") for pair in _LANGUAGES.split())
_EXAMPLES = {"Positive Examples": "positive_examples", "Negative Examples": "negative_examples"}


def is_document(value: Any) -> bool:
    return isinstance(value, dict) and {"Definition", "Instances"} <= value.keys()


def rows(paths: Sequence[Path], options: ConvertOptions) -> Iterator[Row]:
    """Yield a row per instance and system; without predictions, the first reference is the output."""
    systems = {name: _read_predictions(Path(path)) for name, path in options.systems.items()}
    missing, used = Counter[str](), Counter[str]()
    position = 0
    if not systems:
        options.note(
            f"no outputs are named: the first reference is that of the system {options.system or REFERENCE!r}; "
            "`outputs` names files of predictions"
        )
    for path in paths:
        for number, (item, context) in enumerate(_read_task(path, options)):
            position += 1
            if options.limit and number >= options.limit:
                continue
            fields = {"item": item, **context}
            if not systems:
                yield {**fields, "system": options.system or REFERENCE, "output": context["references"][0]}
            for system, predictions in systems.items():
                if isinstance(predictions, dict):
                    output = predictions.get(item)
                else:
                    output = predictions[position - 1] if position <= len(predictions) else None
                if output is None:
                    missing[system] += 1
                else:
                    used[system] += 1
                    yield {**fields, "system": system, "output": output}
    for system in systems:
        if not used[system]:
            raise InputError(
                f"{options.systems[system]}: has no prediction for an instance of {paths[0]}", code="no_data"
            )
        if missing[system]:
            options.note(f"{system} has no prediction for {format_count(missing[system], 'instance')}")


def _read_task(path: Path, options: ConvertOptions) -> Iterator[tuple[str, Row]]:
    """Yield the name of each instance of a task, and its fields."""
    document, place = read_document(path), str(path)
    if not is_document(document) or not isinstance(document["Instances"], list):
        raise InputError(f"{place}: expected a task with 'Definition' and a list of 'Instances'", code="invalid_value")
    name = default_system(path)
    languages = _read_texts(place, document, "Output_language")
    shared = drop_empty(
        {
            "task": options.task or name,
            "instruction": " ".join(_read_texts(place, document, "Definition")),
            "language": options.language or (_CODES.get(languages[0], languages[0]) if len(languages) == 1 else None),
            **{ours: document.get(theirs) for theirs, ours in _EXAMPLES.items()},
        }
    )
    for number, instance in enumerate(document["Instances"], 1):
        own_place = f"{place}: instance {number}"
        if not isinstance(instance, dict):
            reject(own_place, "Instances", instance, "a list of objects with 'input' and 'output'")
        references = _read_texts(own_place, instance, "output")
        if not references:
            reject(own_place, "output", instance.get("output"), "a text or a list of texts")
        item = str(instance["id"]) if instance.get("id") is not None else f"{name}/{number}"
        yield item, {**shared, "source": get_text(own_place, instance, "input"), "references": references}


def _read_texts(place: str, entry: dict[str, Any], field: str) -> list[str]:
    return [entry[field]] if isinstance(entry.get(field), str) else get_texts(place, entry, field)


def _read_predictions(path: Path) -> dict[str, str] | list[str]:
    """The predictions by instance, or in the order of the instances."""
    with open_bytes(path) as file:
        is_json = file.read(1) == b"{"
    if not is_json:
        return list(read_lines(path))
    return {get_text(place, entry, "id"): get_text(place, entry, "prediction") for place, entry in read_entries(path)}
