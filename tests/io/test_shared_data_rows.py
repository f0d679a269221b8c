"""Every file in the folder of human judgments can be read."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest

from error_codes import raises_code
from metrist.errors import InputError
from metrist.io import read_records

SAMPLE = 200


@pytest.fixture
def data_folder(data: Callable[[str], Path]) -> Path:
    return data("summeval").parent


def test_every_file_of_the_data_folder_is_readable(data_folder: Path) -> None:
    for path in sorted(data_folder.glob("*.jsonl.xz")):
        if path.name.startswith("heap-pairs"):
            continue
        entries = list(islice(read_records(path).entries(), SAMPLE))
        assert entries
        assert all(e.ratings or e.preferences or e.errors or e.raters or e.scores for e in entries), path


def test_rows_of_another_shape_are_named(data_folder: Path) -> None:
    path = data_folder / "heap-pairs.jsonl.xz"
    if not path.exists():
        pytest.skip(f"{path.name} is not there")
    with raises_code(InputError, "invalid_row", "heap-pairs.jsonl", "'output'", "'task'", "'pair'"):
        list(read_records(path))


def test_all_rows_of_a_file_with_preferences_are_read(data: Callable[[str], Path]) -> None:
    entries = list(read_records(data("pandalm")).entries())
    # INDEX.tsv: 999 rows, up to three raters, two peer metrics, one of which sometimes answers neither.
    assert len(entries) == 999
    assert {preference.choice for entry in entries for preference in entry.preferences} == {"first", "second", "tie"}
    assert sum(len(entry.preferences) for entry in entries) == 3 * 999
    assert {choice.answer for entry in entries for choice in entry.choices if choice.choice is None} == {"garbage"}
