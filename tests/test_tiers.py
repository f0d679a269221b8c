"""The patterns of tiers.py: each matches a test, and files that are left out are not imported."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

import tiers

ROOT = Path(__file__).resolve().parent.parent
FILES = {path.relative_to(ROOT).as_posix(): path for path in ROOT.glob("tests/**/test_*.py")}


@pytest.mark.parametrize("pattern", sorted(pattern for patterns in tiers.PATTERNS.values() for pattern in patterns))
def test_a_pattern_matches_a_test(pattern: str) -> None:
    file, _, test = pattern.partition("::")
    sources = [path.read_text(encoding="utf-8") for name, path in FILES.items() if fnmatchcase(name, file)]
    names = {name for source in sources for name in re.findall(r"^def (test_\w+)", source, re.MULTILINE)}
    assert any(fnmatchcase(name, test or "*") for name in names)


@pytest.mark.parametrize(
    ("test", "fixtures", "markers"),
    [
        ("tests/train/test_loop.py::test_x[1]", [], {"models"}),
        ("tests/metrics/lexical/test_bleu.py::test_x", ["data"], {"data"}),
        ("tests/run/test_resuming.py::test_x", ["tiny"], {"slow", "models"}),
        ("tests/stats/test_x.py::test_y_rejects_a_true_null_often", [], {"slow"}),
        ("tests/test_records.py::test_x[tests/train/x]", ["tmp_path"], set()),
    ],
)
def test_a_test_has_the_markers_of_its_file_its_name_and_its_fixtures(
    test: str, fixtures: list[str], markers: set[str]
) -> None:
    assert set(tiers.find_markers(test, fixtures)) == markers


def test_a_file_is_left_out_only_as_a_whole() -> None:
    assert tiers.is_left_out("tests/train/test_loop.py", "not models and not slow")
    assert not tiers.is_left_out("tests/train/test_loop.py", "not torture")
    assert not tiers.is_left_out("tests/test_docs.py", "not models and not slow")


@pytest.mark.parametrize("fixture", sorted(tiers.FIXTURES))
def test_no_other_fixture_has_the_name_of_one_that_decides(fixture: str) -> None:
    sources = {name: path.read_text(encoding="utf-8") for name, path in FILES.items()}
    assert [name for name, source in sources.items() if re.search(rf"^def {fixture}\(", source, re.MULTILINE)] == []
