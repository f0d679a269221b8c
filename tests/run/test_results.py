"""Results: systems' scores, grids, tables and frames; and the same results read back."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import numpy as np
import pandas
import polars
import pytest
import sacrebleu

import metrist
from error_codes import raises_code
from metrist.errors import ErrorCode, MetristError, ModelError, RunError
from metrist.evaluate.compare.check import check
from metrist.evaluate.compare.comparison import compare
from metrist.metrics.judge.judge import Judge
from metrist.run import Results, load, score
from metrist.run.flat_file import COLUMNS
from metrist.scores import Scores
from metrist.stats.resampling import pooled_interval

Rows = list[dict[str, Any]]
MINE = """
@dataclass(frozen=True)
class Mean(Metric):
    higher_is_better = False
    def score(self, shard):
        return Scores.of(float(len(r.output)) for r in shard.records)

@dataclass(frozen=True)
class Root(Mean):
    def score(self, shard):
        return Scores.of(Score(value=1.0, stats=(float(len(r.output)), 2.0, 1.0)) for r in shard.records)
    def pool(self, sums):
        return np.sqrt(sums[..., 0] / sums[..., 1])
"""


@pytest.fixture
def results(rows: Rows) -> Results:
    return score(rows, ["chrf", "ter", "length"], executor="serial")


def test_a_system_s_score_pools_its_statistics(rows: Rows, results: Results) -> None:
    scores = {(row.system, row.metric): row for row in results.system_scores(draws=50)}
    for system in dict.fromkeys(results.systems):
        mine = [row for row in rows if row["system"] == system]
        # Origin: sacrebleu's corpus-level chrF, and a plain mean of word counts.
        references = list(zip(*(row["references"] for row in mine), strict=True))
        peer = sacrebleu.corpus_chrf([row["output"] for row in mine], references).score
        assert scores[system, "chrf"].value == pytest.approx(peer, abs=1e-9)
        words = np.mean([len(row["output"].split()) for row in mine])
        assert scores[system, "length"].value == pytest.approx(words)
        assert scores[system, "chrf"].low < peer < scores[system, "chrf"].high
        assert (scores[system, "chrf"].n, scores[system, "chrf"].coverage) == (12, 1.0)


def test_a_run_knows_how_many_references_its_records_have(rows: Rows, tmp_path: Path) -> None:
    fewer = [{**row, "references": row["references"][:1]} for row in rows[:3]]
    none = [{**row, "references": []} for row in rows[3:5]]
    scored = score([*fewer, *none, *rows[5:]], ["chrf"], out=tmp_path / "run")
    assert scored.reference_counts == load(tmp_path / "run").reference_counts == (1, 2)
    scored.write(tmp_path / "flat.jsonl")
    assert load(tmp_path / "flat.jsonl").reference_counts == ()


def test_intervals_depend_on_the_seed_and_on_nothing_else(rows: Rows, results: Results) -> None:
    assert results.system_scores() == results.system_scores()
    assert results.system_scores() != results.system_scores(seed=1)
    alone = score(rows, ["length"], shard_size=5).system_scores()
    assert alone == [row for row in results.system_scores() if row.metric == "length"]


def test_intervals_shared_among_metrics_are_those_of_each_alone(rows: Rows) -> None:
    some = [{**row, "references": []} if n % 5 == 1 else row for n, row in enumerate(rows)]
    results = score(some, ["chrf", "length", "rougeL"])
    for row in results.system_scores(draws=200, seed=3):
        metric, block = results.metric(row.metric), results.scores[row.metric]
        mine = [n for n, name in enumerate(results.systems) if name == row.system and n not in block.failures]
        rng = np.random.default_rng(3)
        assert (row.low, row.high) == pooled_interval(block.stats[mine], metric.pool, 200, rng)
        assert row.n == len(mine)


def test_a_system_without_a_single_score_has_none(rows: Rows) -> None:
    some = [{**row, "references": []} if row["system"] == "second" else row for row in rows]
    results = score(some, ["chrf"])
    row = results.system_scores()[1]
    assert math.isnan(row.value)
    assert (row.n, row.coverage) == (0, 0.0)
    text = str(results.table())
    assert "n/a" in text
    assert "chrf: 12 of 36 outputs not scored, most often (12): chrf needs references, but the record has none" in text


@pytest.mark.parametrize("wrong", [{"draws": -1}, {"confidence": 1.0}])
def test_impossible_intervals_are_refused(results: Results, wrong: Any) -> None:
    with raises_code(RunError, "invalid_value", "0", "1"):
        results.system_scores(**wrong)


def test_the_table_has_a_row_a_system_and_a_column_a_metric(results: Results) -> None:
    table = results.table(draws=100, seed=5)
    assert [column.name for column in table.columns] == ["system", "chrf", "ter", "length", "scored", "coverage"]
    assert len(table.rows) == 3
    assert "95% intervals: 100 bootstrap resamples of the items, seed 5" in table.notes
    assert "Lower is better: ter" in table.notes
    assert "<table" in results._repr_html_()


def test_coverage_is_shown_by_metric_where_it_differs(rows: Rows) -> None:
    bare = [{**row, "references": []} if row["system"] == "second" and row["item"] == "i0" else row for row in rows]
    table = score(bare, ["length", "chrf", "ter"]).table(draws=10)
    assert [column.name for column in table.columns][-3:] == ["scored", "coverage", "coverage of"]
    count = sum(row["system"] == "second" for row in rows)
    share = f"{100 * (count - 1) / count:.1f} %"
    assert [str(cell) for cell in table.rows[1][-3:]] == [
        str(count - 1),
        share,
        f"chrf, ter {share}; length 100.0 %",
    ]
    assert str(table.rows[0][-1]) == "length, chrf, ter 100.0 %"
    assert "coverage of length,coverage of chrf,coverage of ter" in table.render("csv").splitlines()[0]
    assert "coverage of" not in score(rows, ["length", "chrf"]).table(draws=10).text()


def test_a_metric_without_bounds_is_shown_with_decimals_that_fit_its_scores(
    rows: Rows, module: Callable[[str], ModuleType]
) -> None:
    own = module("""
@dataclass(frozen=True)
class Share(Metric):
    def score(self, shard):
        return Scores.of(0.12345 for _ in shard.records)
""")
    assert "0.123 [0.123, 0.123]" in str(score(rows, [own.Share()]).table(draws=100))


def test_a_grid_holds_larger_is_better(results: Results) -> None:
    assert np.array_equal(results.grid("chrf").values[0], results.scores["chrf"].values[::3])
    assert np.array_equal(results.grid(results.metrics[1]).values[0], -results.scores["ter"].values[::3])
    with raises_code(RunError, "unknown_name", "'chr'", "'chrf'"):
        results.grid("chr")


def test_rows_are_those_of_a_flat_file(results: Results, tmp_path: Path) -> None:
    results.write(tmp_path / "x.jsonl")
    assert [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()] == list(results.rows())


def test_frames_come_out(results: Results) -> None:
    frame = results.to_pandas()
    assert list(frame.columns) == list(COLUMNS)
    assert frame[frame.metric == "length"].value.tolist() == results.scores["length"].values.tolist()
    assert isinstance(frame, pandas.DataFrame)
    assert isinstance(results.to_polars(), polars.DataFrame)
    assert results.to_polars()["value"].to_list() == frame.value.tolist()
    assert results.to_polars()["item"].to_list() == frame["item"].tolist()


@pytest.mark.parametrize("name", ["pandas", "polars"])
def test_a_missing_frame_library_is_named(results: Results, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with raises_code(RunError, "missing_dependency", f"pip install {name}"):
        getattr(results, f"to_{name}")()


@pytest.mark.parametrize("name", ["run", "x.jsonl", "x.jsonl.zst"])
def test_loaded_results_equal_those_that_were_written(rows: Rows, tmp_path: Path, name: str) -> None:
    results = score(rows, ["chrf", "ter", "rougeL"], out=tmp_path / name, shard_size=7)
    loaded = load(tmp_path / name)
    assert (loaded.items, loaded.systems, loaded.metrics) == (results.items, results.systems, results.metrics)
    assert loaded.signatures == results.signatures
    assert list(loaded.rows()) == list(results.rows())
    assert loaded.system_scores() == results.system_scores()


@pytest.mark.parametrize("name", ["run", "x.jsonl"])
def test_a_metric_from_outside_is_pooled_without_its_code_only_where_that_is_exact(
    rows: Rows, tmp_path: Path, module: Callable[[str], ModuleType], name: str
) -> None:
    own = module(MINE)
    results = score(rows, [own.Mean(), own.Root()], out=tmp_path / name, executor="serial")
    loaded = load(tmp_path / name)
    mean, root = loaded.metrics
    assert [metric.text for metric in loaded.metrics] == ["own_metrics.Mean", "own_metrics.Root"]
    assert mean.higher_is_better is (False if name == "run" else None)
    assert mean.signature == own.Mean().signature
    single = Results(
        items=loaded.items,
        systems=loaded.systems,
        metrics=(mean,),
        scores=loaded.scores,
        signatures=loaded.signatures,
    )
    assert single.system_scores() == [row for row in results.system_scores() if row.metric == mean.text]
    with raises_code(RunError, "metric_failed", "own_metrics.Root"):
        loaded.system_scores()
    assert load(tmp_path / name, metrics=[root.text, mean.text]).system_scores() == results.system_scores()
    loaded.write(tmp_path / "again.jsonl")
    results.write(tmp_path / "first.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == (tmp_path / "first.jsonl").read_bytes()


def test_loading_never_imports_what_a_file_names(tmp_path: Path, rows: Rows) -> None:
    score(rows, ["length"], out=tmp_path / "x.jsonl")
    text = (tmp_path / "x.jsonl").read_text().replace('"length"', '"antigravity.Metric"')
    (tmp_path / "x.jsonl").write_text(text)
    load(tmp_path / "x.jsonl").system_scores()
    assert "antigravity" not in sys.modules


KEYED = "judge(llm=openai(model='m', url='http://127.0.0.1:9/v1', key='SOME_SECRET'))"


@pytest.mark.parametrize("name", ["run", "x.jsonl"])
def test_a_judge_with_a_key_is_loaded_as_it_was_and_asked_nothing(rows: Rows, tmp_path: Path, name: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Judge, "score", lambda _self, shard: Scores.of(float(len(r.output) % 3) for r in shard.records))
        results = score(rows, [KEYED, "length"], out=tmp_path / name, executor="serial")
    loaded = load(tmp_path / name)
    assert loaded.metrics == results.metrics
    assert loaded.system_scores() == results.system_scores()
    assert loaded.metrics[0].bounds == results.metrics[0].bounds
    assert compare(loaded, metrics=["judge"]).contests[0].metric.text == KEYED
    assert check(loaded, minimum={KEYED: -1.0}).passed
    with raises_code(ModelError, "model_unusable", "127"):
        score(rows, loaded.metrics)


def _line(**change: Any) -> str:
    row = dict.fromkeys(COLUMNS) | {"item": "1", "system": "s", "metric": "m", "value": 1.0, "signature": "m"}
    return json.dumps({**row, "parts": {}, "stats": [1.0, 1.0], "errors": [], **change})


@pytest.mark.parametrize(
    ("lines", "code", "value"),
    [
        ([], "no_data", "x.jsonl"),
        (['{"item": "1"}'], "invalid_value", "x.jsonl:1: 'system'"),
        ([_line(), _line(stats=[1])], "unreadable", "x.jsonl:2"),
        ([_line(), _line(), _line(signature="m | 2")], "unreadable", "'m | 2'"),
        ([_line(value="high")], "unreadable", "x.jsonl:1"),
        ([_line(value=None)], "unreadable", "score 0"),
        ([_line(errors=[{"x": 1}])], "unreadable", "'x'"),
        ([_line(), _line(metric="n", item="2")], "conflict", "m and n"),
    ],
)
def test_a_flat_file_that_is_none_of_ours_is_told(
    tmp_path: Path, lines: list[str], code: ErrorCode, value: str
) -> None:
    (tmp_path / "x.jsonl").write_text("".join(f"{line}\n" for line in lines))
    with raises_code(MetristError, code, value):
        load(tmp_path / "x.jsonl")


def test_places_without_a_run_are_told(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("")
    for name, code in {"none": "missing_file", "": "invalid_value", "x.csv": "invalid_value"}.items():
        with raises_code(RunError, cast("ErrorCode", code), tmp_path / name):
            load(tmp_path / name)


def test_systems_with_different_items_are_remarked_on() -> None:
    rows = [{"item": item, "system": system, "output": "a b"} for item, system in ("1a", "2a", "1b")]
    assert any("different items" in note for note in score(rows, "length").table().remarks)
    assert not any("different items" in note for note in score(rows[::2], "length").table().remarks)


def test_options_of_the_reader_can_be_given_to_score() -> None:
    results = score([{"id": 1, "answer": "a b"}], "length", fields={"output": "answer", "item": "id"}, system="mine")
    assert (results.items, results.systems) == (["1"], ["mine"])


def test_statistics_that_do_not_fit_the_named_metric_are_refused(rows: Rows, tmp_path: Path) -> None:
    score(rows, ["length"], out=tmp_path / "x.jsonl")
    page = tmp_path / "forged.jsonl"
    lines = map(json.loads, (tmp_path / "x.jsonl").read_text().splitlines())
    forged = ({**line, "metric": "chrf", "signature": metrist.metric("chrf").signature} for line in lines)
    page.write_text("".join(json.dumps(line) + "\n" for line in forged))
    with raises_code(RunError, "changed", "2"):
        load(page)
