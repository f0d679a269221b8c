"""What metrics find at single tokens: kept when it is asked for, and never at the cost of what is there already."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow.parquet as parquet
import pytest

from metrist.metrics.base import Metric
from metrist.run import export, load, score
from metrist.run.flat_file import COLUMNS
from metrist.run.tasks import Serial, Task, TaskResult
from run_contents import contents

Rows = list[dict[str, Any]]

LETTERS = """
@dataclass(frozen=True)
class Letters(Metric):
    needs = ("references",)
    folder: str = ""
    def score(self, shard):
        with open(f"{self.folder}/asked", "a") as file:
            file.write(f"{len(shard)} {shard.tokens}\\n")
        return Scores.of(self._one(r, shard.tokens) for r in shard.records)
    def _one(self, r, tokens):
        reading = {"condition": "reference", "target": "output", "pieces": list(r.output[:2]) + ["\\ud800"]}
        reading["logprobs"] = [-0.1 * (n + 1) for n in range(len(reading["pieces"]))]
        return Score(value=float(len(r.output)), tokens=[reading] if tokens else None)
    def remarks(self, scores):
        return [f"{int(np.nansum(scores.values))} letters in all"]
"""


def remark(rows: Rows) -> str:
    return f"{sum(len(row['output']) for row in rows)} letters in all"


@pytest.fixture
def letters(module: Callable[[str], ModuleType], tmp_path: Path) -> Metric:
    metric: Metric = module(LETTERS).Letters(folder=str(tmp_path))
    return metric


@pytest.fixture
def read_calls(tmp_path: Path) -> Callable[[], list[str]]:
    """Read and clear the log of the metric's calls."""

    def read_and_clear() -> list[str]:
        path = tmp_path / "asked"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines

    return read_and_clear


@pytest.mark.parametrize("executor", ["serial", "processes"])
def test_readings_are_computed_stored_and_read_back(rows: Rows, letters: Metric, tmp_path: Path, executor: str) -> None:
    # A record without references: the metric sees a smaller shard, which must ask for tokens too.
    some = [{**row, "references": []} if n == 1 else row for n, row in enumerate(rows)]
    results = score(some, [letters, "chrf"], out=tmp_path / "run", shard_size=16, executor=executor, tokens=True)
    tokens = results.scores[letters.text].tokens
    assert set(tokens) == set(range(36)) - {1}
    assert tokens[0] == [
        {
            "condition": "reference",
            "target": "output",
            "pieces": ["t", "h", "\ud800"],
            "logprobs": [-0.1, -0.2, -0.1 * 3],
        }
    ]
    assert results.scores["chrf"].tokens == {}
    assert load(tmp_path / "run").scores[letters.text].tokens == tokens


def test_readings_are_optional(rows: Rows, letters: Metric, tmp_path: Path) -> None:
    results = score(rows, [letters], out=tmp_path / "x.jsonl")
    assert results.scores[letters.text].tokens == {}
    assert list(json.loads((tmp_path / "x.jsonl").read_text().splitlines()[0])) == list(COLUMNS)


def test_a_finished_run_is_scored_again_only_to_add_readings(
    rows: Rows, letters: Metric, tmp_path: Path, read_calls: Callable[[], list[str]]
) -> None:
    run = tmp_path / "run"
    plain = score(rows, [letters], out=run, shard_size=16, executor="serial")
    assert read_calls() == ["16 False", "16 False", "4 False"]
    rich = score(rows, [letters], out=run, shard_size=16, executor="serial", tokens=True)
    assert read_calls() == ["16 True", "16 True", "4 True"]
    assert rich.scores[letters.text].values.tolist() == plain.scores[letters.text].values.tolist()
    before = contents(run)
    for tokens in (False, True):
        again = score(rows, [letters], out=run, shard_size=16, executor="serial", tokens=tokens)
        assert again.scores[letters.text].tokens == rich.scores[letters.text].tokens
    assert read_calls() == []
    assert contents(run) == before


class Ending:
    """An executor that ends after one task."""

    def map(self, metrics: Sequence[Metric], tasks: Iterable[Task]) -> Iterator[TaskResult]:
        yield from islice(Serial().map(metrics, tasks), 1)
        raise KeyboardInterrupt


def test_a_run_interrupted_on_its_way_to_readings_keeps_both(
    rows: Rows, letters: Metric, tmp_path: Path, read_calls: Callable[[], list[str]]
) -> None:
    run = tmp_path / "run"
    plain = score(rows, [letters], out=run, shard_size=16, executor="serial")
    read_calls()
    with pytest.raises(KeyboardInterrupt):
        score(rows, [letters], out=run, shard_size=16, executor=Ending(), tokens=True)
    assert read_calls() == ["16 True"]
    assert load(run).notes == ()
    assert score(rows, [letters], out=run, shard_size=16, executor="serial").notes == (remark(rows),)
    assert read_calls() == []
    assert len(load(run).scores[letters.text].tokens) == 16
    assert load(run).scores[letters.text].values.tolist() == plain.scores[letters.text].values.tolist()
    score(rows, [letters], out=run, shard_size=16, executor="serial", tokens=True)
    assert read_calls() == ["16 True", "4 True"]
    assert len(load(run).scores[letters.text].tokens) == 36


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.zst", "x.csv", "x.parquet"])
def test_a_flat_file_has_the_readings_of_the_run_folder(rows: Rows, letters: Metric, tmp_path: Path, name: str) -> None:
    results = score(rows, [letters, "chrf"], out=tmp_path / name, tokens=True)
    score(rows, [letters, "chrf"], out=tmp_path / "run", tokens=True)
    export(tmp_path / "run", tmp_path / f"exported-{name}")
    assert (tmp_path / f"exported-{name}").read_bytes() == (tmp_path / name).read_bytes()
    assert list(next(iter(results.rows()))) == [*COLUMNS, "tokens"]
    if ".jsonl" in name:
        loaded = load(tmp_path / name)
        assert loaded.scores[letters.text].tokens == results.scores[letters.text].tokens
        assert list(loaded.rows()) == list(results.rows())
    if name == "x.parquet":
        first, second = parquet.read_table(tmp_path / name)["tokens"].to_pylist()[:2]
        assert json.loads(first)[0]["logprobs"] == results.scores[letters.text].tokens[0][0]["logprobs"]
        assert second is None


def test_frames_contain_readings(rows: Rows, letters: Metric) -> None:
    results = score(rows, [letters, "chrf"], tokens=True, executor="serial")
    assert results.to_pandas()["tokens"][0][0]["pieces"] == ["t", "h", "\\ud800"]
    assert results.to_polars()["tokens"].to_list()[0][0]["logprobs"][0] == -0.1


def test_a_metric_s_remarks_are_notes_of_its_results_wherever_they_are_read(
    rows: Rows, letters: Metric, tmp_path: Path
) -> None:
    for name in ("run", "x.jsonl"):
        results = score(rows, [letters], out=tmp_path / name)
        assert results.notes == (remark(rows),)
        assert remark(rows) in results.table().remarks
        assert load(tmp_path / name, metrics=[letters]).notes == (remark(rows),)
