"""A file of outputs in several languages gets one note."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import metrist
from metrist import read_records
from metrist.run import read_inputs

ENGLISH = "The minister said on Monday that the new law will be discussed in the parliament before it is passed."
GERMAN = "Der Minister sagte am Montag, dass das neue Gesetz im Parlament besprochen wird, bevor es verabschiedet ist."
THAI = "รัฐมนตรีกล่าวเมื่อวันจันทร์ว่ากฎหมายใหม่จะถูกอภิปรายในรัฐสภา"


def list_notes(texts: list[str]) -> list[str]:
    reader = read_records([{"item": str(n), "system": "a", "output": text} for n, text in enumerate(texts)])
    for _ in reader.batches():
        pass
    return [note for note in reader.remarks if "languages" in note]


@pytest.mark.parametrize(
    "texts", [[ENGLISH, GERMAN] * 5, [ENGLISH] * 20 + [THAI] * 5, [GERMAN] * 900 + [ENGLISH] * 900]
)
def test_several_languages(texts: list[str]) -> None:
    (note,) = list_notes(texts)
    assert "in English" in note


@pytest.mark.parametrize(
    "texts", [[ENGLISH] * 20, [GERMAN] * 20, [GERMAN, THAI] * 5, ["Yes.", "Ja."] * 9, [ENGLISH] * 50 + [GERMAN]]
)
def test_one_language_or_none_that_can_be_told(texts: list[str]) -> None:
    assert list_notes(texts) == []


def test_workers_and_the_stored_run_say_the_same(tmp_path: Path) -> None:
    rows = [{"item": str(n), "system": "a", "output": f"{n} {(ENGLISH, GERMAN)[n % 2]}"} for n in range(20_000)]
    (tmp_path / "r.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    for executor in ("serial", "processes"):
        folder = tmp_path / executor
        results = metrist.score(tmp_path / "r.jsonl", ["length"], out=folder, executor=executor)
        assert len([note for note in results.notes if "languages" in note]) == 1
        assert len([note for note in read_inputs(folder).remarks if "languages" in note]) == 1
