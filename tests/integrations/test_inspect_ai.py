"""metrist's scorers in inspect_ai itself, with a model that gives fixed answers: `make test-inspect-ai`."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import metrist

inspect_ai = pytest.importorskip("inspect_ai", reason="inspect_ai is not installed (make test-inspect-ai)")

from inspect_ai import Task, eval  # noqa: A004, E402
from inspect_ai.dataset import Sample  # noqa: E402
from inspect_ai.log import read_eval_log  # noqa: E402
from inspect_ai.model import ModelOutput, ModelUsage, get_model  # noqa: E402
from inspect_ai.solver import generate  # noqa: E402

from metrist.compat.inspect_ai import metrist_scorer  # noqa: E402

OUTPUTS = ["the cat sat on a mat", "it is raining", "ok"]
REFERENCES: list[Any] = [["the cat sat on the mat"], ["it rains", "it is raining hard"], ""]
RECORDS = [{"output": o, "references": r} for o, r in zip(OUTPUTS[:2], REFERENCES[:2], strict=True)]

SPECS = ["stem=rougeL(stem=True)", "bleu"]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The log of an evaluation with two scorers."""
    outputs = [ModelOutput.from_content("mockllm/model", text) for text in OUTPUTS]
    for output in outputs:
        output.usage = ModelUsage()  # Without it, inspect_ai downloads a tokenizer to count tokens.
    samples = [Sample(id=n, input=f"question {n}", target=text) for n, text in enumerate(REFERENCES)]
    task = Task(name="cats", dataset=samples, solver=generate(), scorer=[metrist_scorer(spec) for spec in SPECS])
    model = get_model("mockllm/model", custom_outputs=outputs)
    (log,) = eval(task, model=model, log_dir=str(tmp_path_factory.mktemp("logs")), display="none", max_samples=1)
    assert log.status == "success", log.error
    return log


def test_samples_and_the_run_have_the_scores_of_metrist(log: Any) -> None:
    expected = metrist.score(RECORDS, ["rougeL(stem=True)", "bleu"])
    values = expected["rougeL(stem=True)"].values
    assert [sample.scores["stem"].value for sample in log.samples[:2]] == pytest.approx(values)
    metrics = {score.name: score.metrics for score in log.results.scores}
    rouge, bleu = expected.system_scores(draws=0)
    assert metrics["stem"]["mean"].value == pytest.approx(rouge.value)
    assert metrics["bleu"]["pooled"].value == pytest.approx(bleu.value)
    first = log.samples[0].scores["stem"]
    assert first.answer == OUTPUTS[0]
    assert first.metadata["signature"] == expected.signatures["rougeL(stem=True)"]
    assert "recall" in first.explanation
    assert "recall" in first.metadata["parts"]


def test_a_sample_without_a_target_stays_unscored(log: Any) -> None:
    score = log.samples[2].scores["stem"]
    assert math.isnan(score.value)
    assert score.metadata["failure"] == "missing_input"
    assert "references" in score.explanation


def test_the_log_is_read_back(log: Any) -> None:
    rows = list(metrist.read_records(log.location).entries())
    records = [record for row in rows for record in row.records]
    assert [record.output for record in records] == OUTPUTS
    assert records[1].references == tuple(REFERENCES[1])
    assert records[0].source == "question 0"
    assert {record.system for record in records} == {"mockllm/model"}
    stored = {score.metric: score.value for score in rows[0].scores}
    assert stored["stem"] == pytest.approx(metrist.score(RECORDS[:1], [SPECS[0]])["stem"].values[0])


def test_a_log_is_scored_again_by_name(log: Any, tmp_path: Path) -> None:
    out = tmp_path / "again.eval"
    program = [sys.executable, "-m", "inspect_ai", "score", log.location, "--output-file", str(out)]
    chosen = ["--scorer", "metrist/chrf", "-S", "metric=chrf(word_order=2)", "--action", "append"]
    subprocess.run([*program, *chosen], check=True, capture_output=True, timeout=300)
    (expected,) = metrist.score(RECORDS, ["chrf(word_order=2)"]).system_scores(draws=0)
    metrics = {score.name: score.metrics for score in read_eval_log(str(out)).results.scores}
    assert metrics["chrf"]["pooled"].value == pytest.approx(expected.value)
    assert "stem" in metrics
