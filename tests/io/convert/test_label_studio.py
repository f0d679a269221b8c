"""Label Studio's JSON as its own exports have it: numbered users, UTF-16 offsets of older versions, foreign results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from metrist.errors import InputError
from metrist.io.convert import convert, detect
from metrist.io.convert.label_studio import labeling_config


def write(folder: Path, *results: dict[str, Any], **data: Any) -> Path:
    task = {
        "id": 7,
        "data": data or {"text": "💩This is an annotation."},
        "annotations": [{"id": 1, "completed_by": 10, "was_cancelled": False, "result": list(results)}],
        "predictions": [],
    }
    path = folder / "export.json"
    path.write_text(json.dumps([task]), encoding="utf-8")
    return path


def region(start: int, end: int, text: str) -> dict[str, Any]:
    value = {"start": start, "end": end, "text": text, "labels": ["Accuracy"]}
    return {"id": "x", "type": "labels", "from_name": "label", "to_name": "text", "value": value}


def test_an_export_is_recognised_and_read(tmp_path: Path) -> None:
    path = write(tmp_path, {"type": "rating", "from_name": "fluency", "to_name": "text", "value": {"rating": 4}})
    assert detect(path) == "label_studio"
    (row,) = convert(path, system="gpt")
    assert row == {
        "output": "💩This is an annotation.", "item": "7", "system": "gpt", "raters": ["10"],
        "ratings": {"fluency": [4.0]},
    }  # fmt: skip


@pytest.mark.parametrize("start", [12, 13])
def test_offsets_are_characters_also_where_they_were_counted_in_utf16(tmp_path: Path, start: int) -> None:
    # The text and the offset 13 are those of https://github.com/HumanSignal/label-studio/issues/1347
    (row,) = convert(write(tmp_path, region(start, start + 10, "annotation")))
    (error,) = row["errors"]
    assert row["output"][error["start"] : error["end"]] == "annotation"
    assert (error["aspect"], error["rater"]) == ("Accuracy", "10")


def test_severity_and_note_of_a_region_belong_to_its_error(tmp_path: Path) -> None:
    place = {"start": 12, "end": 22}
    severity = {"id": "x", "type": "choices", "from_name": "severity", "value": {**place, "choices": ["major"]}}
    note = {"id": "x", "type": "textarea", "from_name": "note", "value": {**place, "text": ["why"]}}
    (row,) = convert(write(tmp_path, region(12, 22, "annotation"), severity, note))
    assert (row["errors"][0]["severity"], row["errors"][0]["explanation"]) == ("major", "why")


def test_pairs_are_preferences(tmp_path: Path) -> None:
    choice = {"type": "pairwise", "from_name": "better", "value": {"selected": "right"}}
    (row,) = convert(write(tmp_path, choice, first="one", second="two"))
    assert (row["outputs"], row["systems"], row["ratings"]) == (["one", "two"], ["first", "second"], {"better": [2]})


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ({"type": "rectanglelabels", "from_name": "b", "value": {"x": 1}}, "rectanglelabels"),
        ({"type": "choices", "from_name": "tone", "value": {"choices": ["rude"]}}, "no number"),
        (region(3, 9, "annotation"), "is not at 3 to 9"),
        ({"type": "labels", "value": {"labels": ["A"]}}, "start and end"),
        ({"type": "rating"}, "value"),
    ],
)
def test_what_cannot_be_read_is_an_error_with_its_place(tmp_path: Path, result: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=rf"export.json:\d+: annotation 1, result 1: .*{message}"):
        list(convert(write(tmp_path, result)))


def test_tasks_without_annotations_are_outputs(tmp_path: Path) -> None:
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps([{"data": {"output": "x", "item": "1", "system": "s"}, "annotations": []}]))
    assert list(convert(path)) == [{"output": "x", "item": "1", "system": "s"}]


def test_the_configuration_names_all_controls() -> None:
    config = labeling_config("errors", {}, ["A & B"], ["minor"])
    assert '<Label value="A &amp; B"/>' in config
    assert '<Rating name="tone" toName="output" maxRating="3"/>' in labeling_config("rating", {"tone": "123"}, (), ())
