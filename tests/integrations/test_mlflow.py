"""Scores in MLflow itself, in a store of this machine: `make test-mlflow`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import metrist
from metrist.cli.app import app
from metrist.compat.tracking import log_results

mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed (make test-mlflow)")

from mlflow import genai  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

from metrist.compat.mlflow import metrist_scorer  # noqa: E402

RECORDS = [
    {"item": "1", "system": "a", "output": "the cat sat on a mat", "reference": "the cat sat on the mat"},
    {"item": "2", "system": "a", "output": "it is raining", "reference": "it rains"},
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


@pytest.fixture(autouse=True)
def _tracking(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)  # Where MLflow puts artifacts.
    mlflow.set_tracking_uri(store)
    yield
    mlflow.set_tracking_uri(None)


def last_run() -> Any:
    (run, *_) = mlflow.search_runs(output_format="list", order_by=["start_time DESC"])
    return run


def test_score_logs_numbers_with_intervals_and_the_report(store: str, tmp_path: Path) -> None:
    demo = Path(__file__).parents[2] / "demo" / "sample.jsonl"
    command = ["score", str(demo), "-m", "rougeL(stem=True)", "--log", f"mlflow:{store}", "--log-step", "7"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    run = last_run()
    for score in metrist.score(demo, ["rougeL(stem=True)"]).system_scores():
        name = f"{score.system}/rougeL_stem_True"
        assert run.data.metrics[name] == pytest.approx(score.value)
        assert run.data.metrics[f"{name}.low"] == pytest.approx(score.low)
        assert run.data.metrics[f"{name}.high"] == pytest.approx(score.high)
        assert run.data.metrics[f"{name}.coverage"] == 1
    client = mlflow.MlflowClient()
    (point,) = client.get_metric_history(run.info.run_id, name)
    assert point.step == 7
    assert run.data.tags["metrist.rougeL_stem_True"].startswith("rougeL(")
    assert [file.path for file in client.list_artifacts(run.info.run_id, "metrist")] == ["metrist/report.html"]
    page = client.download_artifacts(run.info.run_id, "metrist/report.html", str(tmp_path))
    assert "careful" in Path(page).read_text(encoding="utf-8")


def test_a_training_logs_each_step_into_its_run() -> None:
    results = metrist.score(RECORDS, ["chrf"])
    with mlflow.start_run() as run:
        for step in (1, 2):
            log_results(results, "mlflow", step=step, report=False)
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "chrf")
    assert [point.step for point in history] == [1, 2]
    value = results.system_scores(draws=0)[0].value
    assert [point.value for point in history] == [pytest.approx(value)] * 2


def test_scorers_of_genai_have_metrist_scores() -> None:
    data = [
        {
            "inputs": {"question": "What did the cat do?"},
            "outputs": record["output"],
            "expectations": {"expected_response": record["reference"]},
        }
        for record in RECORDS
    ]
    data.append({"inputs": {"question": "And?"}, "outputs": "ok", "expectations": {}})
    scorers = [metrist_scorer("stem=rougeL(stem=True)"), metrist_scorer("length")]
    result = genai.evaluate(data=data, scorers=scorers)
    expected = metrist.score(RECORDS, ["rougeL(stem=True)", "length"])
    assert result.metrics["stem/mean"] == pytest.approx(expected["rougeL(stem=True)"].values.mean())
    by_output = {}
    for trace in mlflow.search_traces(run_id=result.run_id, return_type="list"):
        feedback = {one.name: one for one in trace.info.assessments if one.name in ("stem", "length")}
        by_output[trace.data.response.strip('"')] = feedback
    for record, value in zip(RECORDS, expected["rougeL(stem=True)"].values, strict=True):
        feedback = by_output[record["output"]]["stem"]
        assert feedback.value == pytest.approx(value)
        assert "recall" in feedback.rationale
        assert feedback.metadata["signature"] == expected.signatures["rougeL(stem=True)"]
    assert by_output["ok"]["length"].value == 1
    assert "references" in by_output["ok"]["stem"].error.error_message
