"""Label Studio's JSON: tasks with their annotations, read as ratings, preferences and errors, and written.

    [{"id": 1, "data": {"item": "7", "system": "a", "output": "…", "source": "…"},
      "annotations": [{"completed_by": {"email": "ann@example.org"}, "result": [
        {"type": "rating", "from_name": "fluency", "to_name": "output", "value": {"rating": 4}},
        {"type": "labels", "id": "x1", "from_name": "aspect", "to_name": "output",
         "value": {"start": 4, "end": 9, "text": "…", "labels": ["Accuracy"]}},
        {"type": "choices", "id": "x1", "from_name": "severity", … "value": {"choices": ["major"]}},
        {"type": "textarea", "id": "x1", "from_name": "note", … "value": {"text": ["…"]}}]}]}]

The name of a control (`from_name`) becomes the aspect of a rating. A task whose `data` has `outputs`, or `first` and
`second`, compares two outputs. Results of other types (boxes in pictures, sound) are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

from metrist.errors import InputError
from metrist.io.convert.json_input import ConvertOptions, Row, drop_empty, parse_number, read_entries, reject
from metrist.io.row_model import format_value

_CHOICES = {"first": 1, "left": 1, "1": 1, "second": 2, "right": 2, "2": 2, "tie": 0, "0": 0, "both": 0, "equal": 0}
#: Controls of one region: what they say about an error.
_REGION_FIELDS = {"severity": "severity", "note": "explanation", "explanation": "explanation", "revision": "revision"}
_WORDS = {1: "first", 2: "second", 0: "tie"}
_STARS = 10


def is_entry(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("data"), dict) and "annotations" in value


# ---- Reading


def rows(path: Path, options: ConvertOptions) -> Iterator[Row]:
    """Yield a row per task, with the judgments of everyone who completed it."""
    for number, (place, entry) in enumerate(read_entries(path), 1):
        if not is_entry(entry):
            raise InputError(
                f"{place}: expected a task of Label Studio with 'data' and 'annotations'", code="invalid_value"
            )
        yield _task_row(place, entry, number, options)


def _task_row(place: str, entry: Mapping[str, Any], number: int, options: ConvertOptions) -> Row:
    data = dict(entry["data"])
    compares = "outputs" in data or {"first", "second"} <= data.keys()
    if compares and "outputs" not in data:
        data["outputs"] = [data.pop("first"), data.pop("second")]
    if not compares and "output" not in data and isinstance(data.get("text"), str):
        data["output"] = data.pop("text")
    data.setdefault("item", str(entry.get("id", number)))
    if compares:
        data.setdefault("systems", ["first", "second"])
    else:
        data.setdefault("system", options.system or "label_studio")
    fields = drop_empty({"task": options.task, "language": options.language})
    annotations = entry["annotations"] or []
    if not isinstance(annotations, list) or not all(isinstance(own, Mapping) for own in annotations):
        reject(place, "annotations", annotations, "a list of objects")
    annotations = [own for own in annotations if not own.get("was_cancelled")]
    if not annotations:
        return {**data, **fields}
    raters = [_name_rater(place, own, position) for position, own in enumerate(annotations, 1)]
    ratings: dict[str, list[Any]] = {}
    errors: list[Row] = []
    marks = False
    for position, own in enumerate(annotations):
        values, own_errors, own_marks = _parse_results(f"{place}: annotation {position + 1}", own, data, compares)
        marks |= own_marks
        for aspect, value in values.items():
            ratings.setdefault(aspect, [None] * len(raters))[position] = value
        errors += [{**error, "rater": raters[position]} for error in own_errors]
    judged: Row = {"raters": raters}
    if ratings:
        judged["ratings"] = ratings
    if marks or not ratings:
        judged["errors"] = errors
    return {**data, **fields, **judged}


def _name_rater(place: str, annotation: Mapping[str, Any], position: int) -> str:
    by = annotation.get("completed_by")
    if isinstance(by, Mapping):
        by = by.get("email") or by.get("username") or by.get("id")
    by = by if by is not None else annotation.get("created_username")
    if by is not None and not isinstance(by, str | int):
        reject(place, "completed_by", by, "a user's number or an object with an email")
    return str(by) if by not in (None, "") else f"annotator {position}"


def _parse_results(
    place: str, annotation: Mapping[str, Any], data: Mapping[str, Any], compares: bool
) -> tuple[dict[str, Any], list[Row], bool]:
    """Return values by aspect, errors, and whether there is a control for errors."""
    results = annotation.get("result")
    if not isinstance(results, list):
        reject(place, "result", results, "a list")
    values: dict[str, Any] = {}
    regions: dict[str, Row] = {}
    notes: list[tuple[str, str, str]] = []
    for number, result in enumerate(results, 1):
        at = f"{place}, result {number}"
        if not isinstance(result, Mapping) or not isinstance(result.get("value"), Mapping):
            raise InputError(
                f"{at}: expected an object with a 'value', got {format_value(result)}", code="invalid_value"
            )
        kind, name, value = result.get("type"), str(result.get("from_name")), result["value"]
        if kind in ("labels", "hypertextlabels"):
            regions[str(result.get("id", number))] = _parse_region(at, result, data)
        elif "start" in value and name in _REGION_FIELDS and kind in ("choices", "textarea"):
            notes.append((str(result.get("id")), _REGION_FIELDS[name], _first_text(at, kind, value)))
        elif kind == "rating":
            values[name] = parse_number(at, "rating", value.get("rating"))
        elif kind == "number":
            values[name] = parse_number(at, "number", value.get("number"))
        elif kind == "pairwise":
            values[name] = _parse_choice(at, value.get("selected"))
        elif kind == "choices":
            text = _first_text(at, kind, value)
            try:
                values[name] = _parse_choice(at, text) if compares else float(text)
            except ValueError:
                raise InputError(
                    f"{at}: the choice {format_value(text)} of {name!r} is no number; use numbers as the choices' "
                    "values, or a Rating or Number control"
                ) from None
        elif kind != "textarea":
            raise InputError(f"{at}: results of the type {format_value(kind)} say nothing about a text")
    for region, field, text in notes:
        if region in regions:
            regions[region][field] = text
    return values, list(regions.values()), bool(regions)


def _parse_region(place: str, result: Mapping[str, Any], data: Mapping[str, Any]) -> Row:
    value = result["value"]
    side = "source" if result.get("to_name") == "source" else "output"
    labels = value.get("labels") or value.get("hypertextlabels")
    start, end, text = value.get("start"), value.get("end"), value.get("text")
    start, end = (int(own) if isinstance(own, str) and _PLACE.fullmatch(own) else own for own in (start, end))
    if not isinstance(labels, list) or not labels or type(start) is not int or type(end) is not int:
        raise InputError(
            f"{place}: expected a region of a text with labels, start and end, got {format_value(value)}",
            code="invalid_value",
        )
    whole = data.get(side)
    if isinstance(whole, str) and isinstance(text, str) and whole[start:end] != text:
        start, end = _from_utf16(whole, start), _from_utf16(whole, end)
        if whole[start:end] != text:
            raise InputError(
                f"{place}: {format_value(text)} is not at {value['start']} to {value['end']} of the {side}",
                code="invalid_value",
            )
    error: Row = {"aspect": str(labels[0]), "start": start, "end": end, "side": side}
    return {**error, "text": text} if isinstance(text, str) else error


def _from_utf16(text: str, position: int) -> int:
    """Return a position that was counted in UTF-16 units, as older versions of Label Studio do, in characters."""
    units = 0
    for number, character in enumerate(text):
        if units >= position:
            return number
        units += 2 if ord(character) > 0xFFFF else 1
    return len(text)


def _first_text(place: str, kind: Any, value: Mapping[str, Any]) -> str:
    texts = value.get("choices" if kind == "choices" else "text")
    texts = [texts] if isinstance(texts, str) else texts
    if not isinstance(texts, list) or not texts or not isinstance(texts[0], str):
        raise InputError(
            f"{place}: expected a text or a list of texts, got {format_value(texts)}", code="invalid_value"
        )
    return texts[0]


def _parse_choice(place: str, value: Any) -> int:
    choice = _CHOICES.get(str(value).strip().lower())
    if choice is None:
        reject(place, "choice", value, f"one of {', '.join(_CHOICES)}")
    return choice


#: A position that is written as a text.
_PLACE = re.compile("[0-9]{1,18}")


# ---- Writing


def format_task(number: int, records: Sequence[Row], answers: Mapping[str, Row], weight: float) -> Row:
    """Return a task with one annotation per rater.

    An answer has `ratings` (aspect: value), `choices` (aspect: first, second or tie), or `errors`.
    """
    data = dict(records[0])
    if len(records) == 2:
        del data["output"], data["system"]
        data |= {"first": records[0]["output"], "second": records[1]["output"]}
        data["systems"] = [record["system"] for record in records]
    if weight != 1.0:
        data["sampling_weight"] = weight
    annotations = [
        {"completed_by": {"email": rater}, "was_cancelled": False, "result": _format_results(answer, data)}
        for rater, answer in answers.items()
    ]
    return {"id": number, "data": data, "annotations": annotations}


def _format_results(answer: Row, data: Row) -> list[Row]:
    results = []
    for aspect, value in answer.get("ratings", {}).items():
        kind = "rating" if float(value).is_integer() and 1 <= value <= _STARS else "number"
        shown = int(value) if float(value).is_integer() else value
        results.append({"type": kind, "from_name": aspect, "to_name": "output", "value": {kind: shown}})
    for aspect, choice in answer.get("choices", {}).items():
        results.append({"type": "choices", "from_name": aspect, "to_name": "first", "value": {"choices": [choice]}})
    for error in answer.get("errors", ()):
        side, text = error["side"], data[error["side"]][error["start"] : error["end"]]
        place = {"start": error["start"], "end": error["end"], "text": text}
        common = {"id": error["id"], "to_name": side}
        results.append(
            {**common, "type": "labels", "from_name": "aspect", "value": {**place, "labels": [error["aspect"]]}}
        )
        results.append(
            {**common, "type": "choices", "from_name": "severity", "value": {**place, "choices": [error["severity"]]}}
        )
        if error["note"]:
            results.append(
                {**common, "type": "textarea", "from_name": "note", "value": {**place, "text": [error["note"]]}}
            )
    return results


def labeling_config(
    kind: str, questions: Mapping[str, Sequence[str]], aspects: Sequence[str], severities: Sequence[str]
) -> str:
    """Return the labeling configuration (XML) under which Label Studio shows such tasks.

    `kind` is rating, pairwise or errors; `questions` are aspects with the labels of their answers, `aspects` those of
    errors to mark.
    """
    lines = ["<View>", '  <Text name="source" value="$source"/>']
    if kind == "pairwise":
        lines += ['  <Text name="first" value="$first"/>', '  <Text name="second" value="$second"/>']
    else:
        lines += ['  <Text name="output" value="$output"/>']
    if aspects:
        lines += ['  <Labels name="aspect" toName="output">']
        lines += [f"    <Label value={quoteattr(aspect)}/>" for aspect in aspects]
        lines += ["  </Labels>", '  <Choices name="severity" toName="output" perRegion="true">']
        lines += [f"    <Choice value={quoteattr(severity)}/>" for severity in severities]
        lines += ["  </Choices>", '  <TextArea name="note" toName="output" perRegion="true"/>']
    for name, labels in questions.items():
        if kind == "pairwise":
            lines += [f'  <Choices name={quoteattr(name)} toName="first" choice="single">']
            lines += [f'    <Choice value="{word}"/>' for word in _WORDS.values()]
            lines += ["  </Choices>"]
        elif all(label.isdecimal() and 1 <= int(label) <= _STARS for label in labels):
            lines += [f'  <Rating name={quoteattr(name)} toName="output" maxRating="{labels[-1]}"/>']
        else:
            lines += [f'  <Number name={quoteattr(name)} toName="output"/>']
    return "\n".join([*lines, "</View>"]) + "\n"
