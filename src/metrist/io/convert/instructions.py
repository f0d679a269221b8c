"""Data of models that follow instructions: AlpacaEval's lists, MetricInstruct, tasks of Natural Instructions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from metrist.errors import InputError, format_count
from metrist.io.compression import open_bytes
from metrist.io.convert.json_input import (
    ConvertOptions,
    Row,
    drop_empty,
    get_optional_text,
    get_text,
    get_texts,
    parse_number,
    read_document,
    read_entries,
    reject,
)
from metrist.io.convert.mt_metrics_eval import read_lines
from metrist.io.row_model import RowError
from metrist.io.rows import UNNAMED, default_system

# ---- AlpacaEval's lists: outputs of one or more systems, and judgments of pairs of outputs
#
#     outputs    [{"instruction", "output", "generator", "input", "dataset", …}]
#     judgments  [{"instruction", "output_1", "output_2", "generator_1", "generator_2", "annotator", "preference", …}]
#
# Items have no names there; an item is identified by its instruction. Items are numbered in the order of their
# instructions over all files together, so that lists of several systems match.

_OUTPUT_FIELDS = frozenset({"instruction", "input", "output", "generator"})
# The other fields of a judgment describe the judge's run (price, time, raw answer) and would make rows of the same
# output differ.
_JUDGMENT_EXTRA = ("dataset", "datasplit")


def is_alpaca_eval(value: Any) -> bool:
    return isinstance(value, dict) and "instruction" in value and bool(value.keys() & {"output", "output_1"})


def read_alpaca_eval(paths: Iterable[Path], options: ConvertOptions) -> Iterator[Row]:
    """Yield one row per output, and one row of two outputs per judgment."""
    items = ItemNames()
    for path in paths:
        for place, entry in read_entries(path):
            convert = _judgment_row if "output_1" in entry or "output_2" in entry else _output_row
            yield convert(place, entry, items, options)


class ItemNames:
    """Number instructions in order of appearance."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._answers: Counter[tuple[int, str]] = Counter()

    def name(self, context: Mapping[str, str | None], answered_by: str) -> str:
        """Return the item's name. A list that answers an instruction twice has two items with equal texts."""
        # Digests instead of texts: the lists of hundreds of systems may be read at once.
        key = sha256(repr((context["instruction"], context["source"])).encode("utf-8", "surrogatepass")).digest()
        number = self._numbers.setdefault(key, len(self._numbers) + 1)
        self._answers[number, answered_by] += 1
        count = self._answers[number, answered_by]
        return str(number) if count == 1 else f"{number}#{count}"


def _output_row(place: str, entry: Mapping[str, Any], items: ItemNames, options: ConvertOptions) -> Row:
    context = _context_fields(place, entry, options)
    if entry.get("generator") is not None:
        system = get_text(place, entry, "generator")
    elif options.system is not None:
        system = options.system
    else:
        raise InputError(f"{place}: no 'generator', which names the output's system; set `system`")
    extra = {field: value for field, value in entry.items() if field not in _OUTPUT_FIELDS}
    fields = {"item": items.name(context, system), "system": system, **context}
    return {**extra, **drop_empty(fields), "output": get_text(place, entry, "output")}


def _judgment_row(place: str, entry: Mapping[str, Any], items: ItemNames, options: ConvertOptions) -> Row:
    context = _context_fields(place, entry, options)
    systems = [get_text(place, entry, f"generator_{side}") for side in (1, 2)]
    judge = str(entry["annotator"]) if entry.get("annotator") is not None else None
    # 1 and 2 name the better output, 0 and 1.5 are ties. Values in between express a judge's certainty: the nearer
    # output is the choice, and the value is kept as the judge's score.
    value = parse_number(place, "preference", entry.get("preference"))
    judgments: Row = {}
    if value is not None:
        if value != 0 and not 1 <= value <= 2:
            reject(place, "preference", value, "0 or 1.5 for a tie, or a number from 1 (first) to 2 (second)")
        choice = 0 if value in (0, 1.5) else round(value)
        judgments = {
            "ratings": {"preference": [choice]},
            "raters": [judge] if judge else None,
            "scores": {judge or "preference": value} if value not in (0, 1, 1.5, 2) else None,
        }
    fields = {
        "item": items.name(context, repr((systems, judge))),
        "systems": systems,
        "outputs": [get_text(place, entry, f"output_{side}") for side in (1, 2)],
        **context,
        **judgments,
        **{field: entry.get(field) for field in _JUDGMENT_EXTRA},
    }
    return drop_empty(fields)


def _context_fields(place: str, entry: Mapping[str, Any], options: ConvertOptions) -> dict[str, str | None]:
    return {
        "task": options.task or "instruction",
        "language": options.language,
        "instruction": get_text(place, entry, "instruction"),
        "source": get_optional_text(place, entry, "input") or None,
    }


# ---- MetricInstruct, the training data of TIGERScore, and its alpaca form, as a JSON list or one object per line
#
#     [{"id", "task", "instruction", "input_context", "hypo_output", "errors": text, object or list}]
#     [{"instruction": the first line of TIGERScore's prompt, "input": the rest of it, "output": the analysis}]
#
# What the analyses say is read by `metrist.data.error_analysis.examples`, for training as well.

#: The fields of MetricInstruct that have another name in metrist.
METRIC_INSTRUCT_ALIASES = {"input_context": "source", "hypo_output": "output"}
#: The first line of TIGERScore's prompt.
_OPENING = "You are evaluating errors in a model-generated output for a given instruction."


def is_metric_instruct(value: Any) -> bool:
    return is_alpaca_analysis(value) or (isinstance(value, dict) and "hypo_output" in value and "errors" in value)


def is_alpaca_analysis(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("instruction"), str):
        return False
    return {"input", "output"} <= value.keys() and value["instruction"].strip() == _OPENING


def read_metric_instruct(paths: Iterable[Path], options: ConvertOptions) -> Iterator[Row]:
    """Yield a row per output, with its errors. Items have the `id` of the file, or a number by instruction and source;
    what occurs again gets a number behind its name."""
    if options.read_analysis is None:
        raise InputError("MetricInstruct's analyses are read by `read_analysis`: give a function", code="missing_value")
    names, seen = ItemNames(), Counter[tuple[str, str]]()
    for path in paths:
        for place, entry in read_entries(path):
            try:
                row = options.read_analysis(entry)
            except RowError as error:
                raise InputError(f"{place}: {error}", code="invalid_row") from None
            if "completion" not in row:
                raise InputError(f"{place}: expected 'hypo_output' and 'errors'", code="invalid_row")
            system = options.system or get_optional_text(place, row, "system") or UNNAMED
            if row.get("id") is None:
                item = names.name({"instruction": row.get("instruction"), "source": row.get("source")}, system)
            else:
                name = str(row["id"])
                seen[name, system] += 1
                item = name if seen[name, system] == 1 else f"{name}#{seen[name, system]}"
            tags = drop_empty({"task": options.task, "language": options.language})
            left = {name: value for name, value in row.items() if name not in ("id", "prompt", "completion", "system")}
            yield {"item": item, "system": system, **left, **tags}


# ---- Tasks of (Super-)Natural Instructions: a definition, examples, and instances with references
#
#     {"Definition": text or list, "Input_language": […], "Output_language": […],
#      "Positive Examples": [{"input", "output", "explanation"}], "Negative Examples": […],
#      "Instances": [{"id", "input", "output": text or list}]}
#
# The files have no outputs of systems. Those are in files of predictions: `{"id", "prediction"}` a line, as the
# repository's evaluation takes them, or a text a line, in the order of the instances of all tasks.

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


def is_natural_instructions(value: Any) -> bool:
    return isinstance(value, dict) and {"Definition", "Instances"} <= value.keys()


def read_natural_instructions(paths: Sequence[Path], options: ConvertOptions) -> Iterator[Row]:
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
    if not is_natural_instructions(document) or not isinstance(document["Instances"], list):
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
