"""What notebooks ask of results: lists in, a wide frame with texts, the worst outputs, a chart."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import metrist
from error_codes import raises_code
from metrist.errors import RunError
from metrist.metrics.base import Metric
from metrist.records import Record
from metrist.report.figures import PlotValue
from metrist.report.svg import Circle, Label
from metrist.run.results import Results

PREDICTIONS = ["the cat sat", "a dog ran off", "so it goes"]
REFERENCES: list[Any] = ["the cat sat down", ["a dog ran", "the dog ran"], "so it went"]


class Polite(Metric):
    """Whether the output says please."""

    def score_record(self, record: Record) -> float:
        return float("please" in record.output)


@pytest.fixture
def results() -> Results:
    return metrist.score(
        predictions=PREDICTIONS, references=REFERENCES, metrics=["rougeL", Polite], sources=list("xyz")
    )


def test_lists_score_as_the_same_records_do(results: Results) -> None:
    rows = [
        {"output": output, "references": [references] if isinstance(references, str) else references, "source": source}
        for output, references, source in zip(PREDICTIONS, REFERENCES, "xyz", strict=True)
    ]
    expected = metrist.score(rows, "rougeL")
    assert np.array_equal(results["rougeL"].values, expected["rougeL"].values)
    assert results.items == expected.items
    assert set(results.systems) == {"predictions"}


def test_a_mixture_of_records_and_lists_and_nothing_at_all_are_refused() -> None:
    with raises_code(RunError, "invalid_value"):
        metrist.score([{"output": "a"}], "rougeL", predictions=["a"])
    with raises_code(RunError, "invalid_value"):
        metrist.score(metrics="rougeL", references=["a"])
    with raises_code(RunError, "no_data"):
        metrist.score(metrics="rougeL")
    with raises_code(RunError, "missing_value", "chrf"):
        metrist.score(predictions=["a"])


def test_wide_has_a_row_per_output_with_its_texts(results: Results) -> None:
    frame = results.wide()
    label = Polite().text
    assert list(frame.columns) == ["item", "system", "source", "output", "references", "rougeL", label]
    assert frame["output"].tolist() == PREDICTIONS
    assert frame["references"].tolist() == [["the cat sat down"], ["a dog ran", "the dog ran"], ["so it went"]]
    assert frame["rougeL"].tolist() == results["rougeL"].values.tolist()
    assert list(results.wide(texts=False).columns) == ["item", "system", "rougeL", label]


def test_wide_keeps_the_columns_that_metrist_does_not_know() -> None:
    rows = [
        {"output": "the cat", "reference": "the cat", "note": "good", "rougeL": "mine"},
        {"output": "a dog", "reference": "the dog"},
    ]
    frame = metrist.score(rows, "rougeL").wide()
    assert list(frame.columns) == ["item", "system", "output", "references", "note", "rougeL", "rougeL score"]
    assert frame["note"].dropna().tolist() == ["good"]
    assert frame["rougeL score"].tolist() == [1.0, 0.5]


def test_wide_is_a_list_of_dicts_without_pandas(results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    rows = results.wide()
    assert [row["output"] for row in rows] == PREDICTIONS
    assert rows[0]["rougeL"] == results["rougeL"].values[0]


def test_wide_has_the_texts_of_a_run_or_those_of_its_files(tmp_path: Path) -> None:
    path = tmp_path / "outputs.csv"
    path.write_text("item,system,output,reference\n1,s,the cat,the cat\n2,s,a dog,the dog\n")
    metrist.score(path, "short=rougeL(stem=True)", out=tmp_path / "run")
    loaded = metrist.load(tmp_path / "run")
    assert loaded.wide()[["output", "short"]].to_numpy().tolist() == [["the cat", 1.0], ["a dog", 0.5]]
    metrist.score(path, "short=rougeL(stem=True)", out=tmp_path / "no-texts", texts=False)
    loaded = metrist.load(tmp_path / "no-texts")
    assert loaded.wide()["output"].tolist() == ["the cat", "a dog"]
    path.unlink()
    assert metrist.load(tmp_path / "run").wide()["output"].tolist() == ["the cat", "a dog"]
    with pytest.warns(UserWarning, match=r"without texts: .*outputs\.csv.* missing"):
        frame = loaded.wide()
    assert list(frame.columns) == ["item", "system", "short"]
    with pytest.warns(UserWarning, match="1 of 2 outputs has no texts"):
        frame = loaded.wide([{"item": "2", "system": "s", "output": "a dog"}])
    assert frame["output"].tolist()[1] == "a dog"
    with raises_code(RunError, "no_data"):
        loaded.wide([{"item": "9", "system": "s", "output": "a dog"}])


def test_a_metric_called_like_a_field_keeps_its_column_apart() -> None:
    frame = metrist.score(predictions=["a"], references=["a"], metrics={"output": "rougeL"}).wide()
    assert frame["output"].tolist() == ["a"]
    assert frame["output score"].tolist() == [1.0]


def test_rows_that_can_be_read_once_have_no_texts_later() -> None:
    results = metrist.score(iter([{"output": "a", "references": ["a"]}]), "rougeL")
    with pytest.warns(UserWarning, match="without texts: these results hold no texts"):
        results.wide()


def test_pickled_results_leave_the_records_behind(results: Results) -> None:
    scored = metrist.score(predictions=PREDICTIONS, references=REFERENCES, metrics="rougeL")
    copied = pickle.loads(pickle.dumps(scored))
    assert copied.inputs is None
    assert copied.system_scores(draws=100) == scored.system_scores(draws=100)
    assert results.inputs is not None


def test_worst_shows_texts_of_records_in_memory(results: Results) -> None:
    worst = results.worst(1, "rougeL")
    assert "so it goes" in worst.text()
    assert worst.text() == metrist.worst(results, 1, "rougeL").text()


def test_a_figure_has_a_panel_per_metric_and_a_point_per_system(results: Results) -> None:
    both = metrist.score(
        predictions={"v1": PREDICTIONS, "v2": PREDICTIONS[::-1]}, references=REFERENCES, metrics="rougeL,ter,length"
    )
    drawing = both.plot(draws=100)
    texts = [shape.text for shape in drawing.shapes if isinstance(shape, Label)]
    assert [text for text in texts if text in ("rougeL ↑", "ter ↓", "length")] == ["rougeL ↑", "ter ↓", "length"]
    tips = [shape.tip for shape in drawing.shapes if isinstance(shape, Circle)]
    expected = [
        f"{row.system}, {row.metric}: {interval}; 3 outputs, 100.0 % scored"
        for row in both.system_scores(draws=100)
        for interval in [PlotValue(value=row.value, low=row.low, high=row.high)]
    ]
    assert sorted(tips) == sorted(expected)
    assert "<svg " in results.plot(draws=100)._repr_html_()


def test_the_package_has_the_verbs_of_the_command_line() -> None:
    import metrist.train

    assert metrist.train is sys.modules["metrist.train"]
    assert "train" in dir(metrist)
    for name in ("audit", "calibrate", "check", "compare", "export", "explain", "meta_evaluate", "prefer", "worst"):
        assert getattr(metrist, name).__name__ == name


def test_texts_of_a_frame_that_changed_are_those_that_were_scored() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pandas.DataFrame(
        {"id": [1, 2], "completion": ["a b", "c d"], "gold": ["a b", "c e"], "rating:quality": [5, 1]}
    )
    results = metrist.score(frame, "rougeL")
    (entry,) = results.worst(1)
    assert [output.ratings for output in entry.outputs] == [{"quality": (1.0, 1)}]
    frame["completion"] = "x"
    wide = results.wide()
    assert list(wide["output"]) == ["a b", "c d"]
    worst = results.worst(1)
    (entry,) = worst
    assert [(output.record.output, output.ratings) for output in entry.outputs] == [("c d", {})]
    assert "2 rows have changed since they were scored: the texts are those of then" in worst.notes
    del frame["completion"]
    (entry,) = results.worst(1)
    assert [output.record.output for output in entry.outputs] == ["c d"]


def test_texts_of_rows_that_changed_are_those_that_were_scored(tmp_path: Path) -> None:
    for out in (None, tmp_path / "run"):
        rows = [{"output": "a b", "references": ["a b"]}, {"output": "c d", "references": ["c e"]}]
        results = metrist.score(rows, "rougeL", out=out)
        rows[0]["output"] = "x"
        rows.pop()
        assert list(results.wide()["output"]) == ["a b", "c d"]


def test_a_file_that_changed_gives_no_texts(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"output": "a b", "references": ["a b"]}\n')
    results = metrist.score(path, "rougeL")
    assert list(results.wide()["output"]) == ["a b"]
    path.write_text('{"output": "x", "references": ["a b"]}\n')
    with pytest.warns(UserWarning, match=r"without texts: .*data.jsonl has changed since it was scored"):
        assert "output" not in results.wide()
    worst = results.worst(1)
    (entry,) = worst
    assert [output.record for output in entry.outputs] == [None]
    assert any("data.jsonl has changed since it was scored: pass the records" in note for note in worst.notes)


def test_a_figure_of_some_metrics() -> None:
    both = metrist.score([Record(item="1", system="s", output="a b", references=("a c",))], ["rougeL", "chrf", "bleu"])
    for chosen in (["rougeL"], ["chrf", "rougeL"]):
        drawing = both.plot(chosen, draws=10)
        assert [shape.text for shape in drawing.shapes if isinstance(shape, Label) and shape.bold] == [
            f"{metric} ↑" for metric in chosen
        ]
    with raises_code(RunError, "unknown_name", "'rouge'", "rougeL, chrf, bleu"):
        both.plot("rouge")
