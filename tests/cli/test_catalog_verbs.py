"""`metrist list`, `metrist explain-metric`, `metrist convert` and the command itself."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import pytest

from metrist import __version__
from metrist.metrics import registry


def test_the_list_shows_every_metric_with_needs_and_direction(metrist) -> None:
    rows = json.loads(metrist("list", "--format", "json").out)["rows"]
    assert [row["metric"] for row in rows] == registry.names()
    assert {"metric": "ter", "better": "lower", "needs": "output references"}.items() <= rows[13].items()


def test_the_list_shows_families_in_lines_that_fit(metrist) -> None:
    lines = metrist("list").out.splitlines()
    assert max(map(len, lines)) <= 100
    assert sum("rouge" in line for line in lines) == 1
    assert any("rouge1 … rouge9, rougeL, rougeLsum" in line for line in lines)
    for name in registry.names():
        assert re.fullmatch("rouge[2-8]", name) or re.search(rf"\b{name}\b", "\n".join(lines)), name


def test_another_packages_broken_metric_is_listed_with_the_reason(metrist, monkeypatch) -> None:
    point = EntryPoint(name="broken", value="no_such_module:Metric", group=registry.ENTRY_POINTS)
    monkeypatch.setattr(registry, "entry_points", lambda **_: [point])
    rows = json.loads(metrist("list", "--format", "json").out)["rows"]
    assert rows[-1]["metric"] == "broken"
    assert "no_such_module" in rows[-1]["install"]


def test_every_metric_can_be_explained(metrist) -> None:
    for name in registry.names():
        answer = metrist("explain-metric", name)
        assert answer.code == 0
        assert "What it measures" in answer.out
        assert "When not to trust it" in answer.out
        # Weights that are not on this machine cannot be named by their hash, and are not fetched for a description.
        text = " ".join(answer.out.split())
        assert f"metrist {__version__}" in text or "Signature not known here: " in text


def test_line_files_become_records_that_score_reads(metrist, tmp_path: Path) -> None:
    for name, lines in {"src": "ein Haus\nzwei\n", "ref": "a house\ntwo\n", "out": "a house\nthree\n"}.items():
        (tmp_path / f"{name}.txt").write_text(lines)
    records = tmp_path / "records.jsonl"
    files = ("--source", tmp_path / "src.txt", "--reference", tmp_path / "ref.txt")
    answer = metrist("convert", *files, "--output", f"nllb={tmp_path / 'out.txt'}", "-o", records)
    assert (answer.code, answer.err) == (0, f"metrist: wrote 2 rows to {records}\n")
    table = json.loads(metrist("score", records, "-m", "exact", "--format", "json").out)
    assert table["rows"][0]["exact"]["value"] == 0.5


def test_the_version_is_printed(metrist) -> None:
    assert metrist("--version").out == f"metrist {__version__}\n"


@pytest.mark.parametrize("start", ["import metrist", "from metrist.cli.app import main; main()"])
def test_neither_import_nor_help_loads_heavy_modules(start: str) -> None:
    heavy = "{'numpy', 'scipy', 'pandas', 'torch', 'pyarrow', 'polars', 'rich', 'sacrebleu', 'zstandard'}"
    code = f"import atexit, sys; atexit.register(lambda: print({heavy} & set(sys.modules))); {start}"
    done = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


def test_a_metric_without_local_weights_can_be_explained(metrist, module: Callable[[str], ModuleType]) -> None:
    module("""
from metrist.errors import ModelError
@dataclass(frozen=True)
class Heavy(Metric):
    '''Holds a model.'''
    def facts(self):
        raise ModelError("no model of that name: see https://example.org")
""")
    answer = metrist("explain-metric", "own_metrics.Heavy")
    assert answer.code == 0
    assert "Holds a model." in answer.out
    assert "Signature\n  not known here: no model of that name: see https://example.org" in answer.out
