"""How many records a metric gets at once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from metrist.run import score
from run_contents import contents

HOLDING = """
@dataclass(frozen=True)
class Holding(Metric):
    log: str = ""
    resident = True
    def score(self, shard):
        with open(self.log, "a") as file:
            file.write(f"{len(shard)}\\n")
        return Scores.of(1.0 for _ in shard.records)

class Light(Holding):
    resident = False
"""
SLOW = """
import time

@dataclass(frozen=True)
class Slow(Metric):
    log: str = ""
    def score(self, shard):
        with open(self.log, "a") as file:
            file.write(f"{len(shard)}\\n")
        time.sleep(.01 * len(shard))
        return Scores.of(1.0 for _ in shard.records)
"""
ROWS = [{"item": str(n), "system": "s", "output": "a"} for n in range(1100)]


@pytest.mark.parametrize("name", ["Holding", "Light"])
def test_whatever_the_tasks_the_folder_holds_the_same(
    name: str, tmp_path: Path, module: Callable[[str], ModuleType]
) -> None:
    metric, sizes = getattr(module(HOLDING), name)(log=str(tmp_path / "log")), list[list[int]]()
    for size in (None, 600):
        score(ROWS, [metric], out=tmp_path / f"run-{size}", executor="serial", shard_size=size)
        sizes.append([int(line) for line in (tmp_path / "log").read_text().split()])
        (tmp_path / "log").unlink()
    # It gets more and more, so that nothing that it computed is lost if it is slow.
    assert sizes[0] == [16, 64, 256, 764] if name == "Light" else sizes[0][:3] == [1, 4, 16]
    assert sizes[1] == [600, 500]
    assert contents(tmp_path / "run-None") == contents(tmp_path / "run-600")
    score(ROWS, [metric], out=tmp_path / "run-None", executor="serial", shard_size=600)
    assert not (tmp_path / "log").exists()


def test_a_slow_metric_gets_few_records(
    tmp_path: Path, module: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metrist.run.tasks.TASK_SECONDS", 0.25)
    metric = module(SLOW).Slow(log=str(tmp_path / "log"))
    score(ROWS[:60], [metric], out=tmp_path / "run", executor="serial")
    first, *others = [int(line) for line in (tmp_path / "log").read_text().split()]
    assert first == 16
    assert max(others) <= 25


def test_an_external_program_is_started_a_few_times(tmp_path: Path) -> None:
    script = tmp_path / "constant.py"
    script.write_text(
        "import sys\nopen(sys.argv[2], 'w').writelines('{\"value\": 1}\\n' for _ in open(sys.argv[1]))\n"
        f"open({str(tmp_path / 'log')!r}, 'a').write('.')\n"
    )
    score(ROWS, [f"external(command=[{sys.executable!r}, {str(script)!r}])"], out=tmp_path / "run")
    assert (tmp_path / "log").read_text() == ".."
