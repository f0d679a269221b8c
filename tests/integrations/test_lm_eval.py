"""Metrics of metrist in a task of lm-evaluation-harness itself, with a model that gives fixed answers:
`make test-lm-eval`."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

import metrist

lm_eval = pytest.importorskip("lm_eval", reason="lm_eval is not installed (make test-lm-eval)")

from lm_eval.api.model import LM  # noqa: E402
from lm_eval.api.registry import register_model  # noqa: E402
from lm_eval.loggers import EvaluationTracker  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

ANSWERS = {"q1": "the cat sat on a mat", "q2": "it is raining", "q3": "yes and yes"}
TARGETS = {"q1": "the cats sat on the mat", "q2": "it rains again", "q3": "no"}
TASK = """
task: cats
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
metric_list:
  - metric: !function metrist.compat.lm_eval.rougeL
    stem: true
    aggregation: mean
    higher_is_better: true
  - metric: !function metrist.compat.lm_eval.chrf
    word_order: 2
    aggregation: !function metrist.compat.lm_eval.pool
    higher_is_better: true
"""
SEVERAL = """
include: cats.yaml
task: several
process_results: !function references.process_results
metric_list:
  - metric: bleu
    aggregation: !function metrist.compat.lm_eval.pool
    higher_is_better: true
"""
SPEC = "rougeL(stem=True)"
PROCESS = """
from metrist.compat.lm_eval import score_document

def process_results(doc, results):
    return {"bleu": score_document("bleu", results[0], [doc["answer"], doc["question"]])}
"""


class FixedAnswers(LM):
    """A model that knows the answers."""

    def __init__(self, **_: Any) -> None:
        super().__init__()

    def generate_until(self, requests: Any) -> list[str]:
        return [ANSWERS[request.args[0]] for request in requests]

    def loglikelihood(self, requests: Any) -> Any:
        raise NotImplementedError

    def loglikelihood_rolling(self, requests: Any) -> Any:
        raise NotImplementedError


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("tasks")
    rows = [{"question": question, "answer": answer} for question, answer in TARGETS.items()]
    data = folder / "data.json"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "cats.yaml").write_text(TASK.replace("FILE", str(data)))
    (folder / "several.yaml").write_text(SEVERAL)
    (folder / "references.py").write_text(PROCESS)
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    register_model("fixed-answers")(FixedAnswers)
    tracker = EvaluationTracker(output_path=str(folder / "logs"))
    evaluation = lm_eval.simple_evaluate(
        model="fixed-answers", tasks=["cats", "several"], task_manager=manager, evaluation_tracker=tracker
    )
    tracker.save_results_aggregated(results=evaluation, samples=evaluation["samples"])
    for task, samples in evaluation["samples"].items():
        tracker.save_results_samples(task_name=task, samples=samples)
    return evaluation, folder


def records(*more: str) -> list[dict[str, Any]]:
    return [
        {"output": ANSWERS[question], "references": [answer, *([question] if more else [])]}
        for question, answer in TARGETS.items()
    ]


def test_a_task_has_the_scores_of_metrist(results: Any) -> None:
    evaluation, _ = results
    scores = metrist.score(records(), ["rougeL(stem=True)", "chrf(word_order=2)"])
    rouge, chrf = scores.system_scores(draws=0)
    values = evaluation["results"]["cats"]
    assert values["rougeL,none"] == pytest.approx(rouge.value)
    assert values["chrf,none"] == pytest.approx(chrf.value)
    column = scores["rougeL(stem=True)"].values
    assert values["rougeL_stderr,none"] == pytest.approx(column.std(ddof=1) / math.sqrt(len(column)))
    assert [sample["rougeL"] for sample in evaluation["samples"]["cats"]] == pytest.approx(column)


def test_several_references_count_together(results: Any) -> None:
    evaluation, _ = results
    (bleu,) = metrist.score(records("question"), ["bleu"]).system_scores(draws=0)
    assert evaluation["results"]["several"]["bleu,none"] == pytest.approx(bleu.value)


def test_the_samples_are_read_back(results: Any) -> None:
    _, folder = results
    (log,) = (folder / "logs").rglob("samples_cats*.jsonl")
    rows = list(metrist.read_records(log).entries())
    assert [row.records[0].output for row in rows] == list(ANSWERS.values())
    assert [row.records[0].references for row in rows] == [(answer,) for answer in TARGETS.values()]
    stored = {score.metric: score.value for score in rows[0].scores}
    assert stored["rougeL,none"] == pytest.approx(metrist.score(records(), [SPEC])[SPEC].values[0])
