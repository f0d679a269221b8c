"""How many records a shard holds: as the folder was cut before, however long its tasks were."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from metrist.run import load, score

HOLDING = """
@dataclass(frozen=True)
class Holding(Metric):
    resident = True
    def score(self, shard):
        return Scores.of(1.0 for _ in shard.records)
"""

ROWS = [{"item": str(n), "system": "s", "output": "a"} for n in range(1100)]


def starts(run: Path, metric: str) -> list[int]:
    return sorted(int(path.name[:9]) for path in (run / "results").glob(f"{metric}*/0*.jsonl"))


@pytest.fixture(autouse=True)
def _holding(module: Callable[[str], ModuleType]) -> None:
    module(HOLDING)


def test_all_metrics_get_the_same_shards_whatever_their_tasks(tmp_path: Path) -> None:
    score(ROWS, ["length", "own_metrics.Holding"], out=tmp_path / "run")
    assert starts(tmp_path / "run", "length") == starts(tmp_path / "run", "own") == [0, 1024]


def test_an_external_program_gets_few_shards(tmp_path: Path) -> None:
    script = tmp_path / "constant.py"
    script.write_text("import sys\nopen(sys.argv[2], 'w').writelines('{\"value\": 1}\\n' for _ in open(sys.argv[1]))\n")
    spec = f"external(command=[{sys.executable!r}, {str(script)!r}])"
    score(ROWS, [spec, "own_metrics.Holding"], out=tmp_path / "run")
    assert starts(tmp_path / "run", "external") == starts(tmp_path / "run", "own") == [0, 1024]


def test_a_folder_keeps_its_shard_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    score(ROWS, ["length"], out=run)
    score(ROWS, ["length", "own_metrics.Holding"], out=run)
    assert starts(run, "length") == starts(run, "own") == [0, 1024]
    monkeypatch.setattr("metrist.run.tasks.score_shard", None)
    score(ROWS, ["length", "own_metrics.Holding"], out=run)
    monkeypatch.undo()
    score(ROWS, ["length"], out=run, shard_size=600)
    assert starts(run, "length") == [0, 600]
    assert set(load(run).scores) == {"length", "own_metrics.Holding"}


@pytest.mark.parametrize("size", ["0", '"many"', "null"])
def test_an_invalid_size_in_a_manifest_is_ignored(tmp_path: Path, size: str) -> None:
    run = tmp_path / "run"
    score(ROWS, ["length"], out=run)
    page = (run / "manifest.json").read_text().replace('"shard_size": 1024', f'"shard_size": {size}')
    (run / "manifest.json").write_text(page)
    score(ROWS, ["length"], out=run)
    assert starts(run, "length") == [0, 1024]
