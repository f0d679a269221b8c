"""Short names of metrics and aspects as columns, in results, run folders, files, comparisons and checks."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from error_codes import raises_code
from metrist.errors import RunError, SpecError
from metrist.evaluate.compare.check import check
from metrist.evaluate.compare.comparison import compare
from metrist.llm.messages import Completion, Conversation, Sampling
from metrist.llm.replay import FakeLLM
from metrist.metrics.base import Metric
from metrist.metrics.judge.judge import Judge
from metrist.records import Record
from metrist.run import load, score
from metrist.run.prefer import prefer
from metrist.run.results import Results
from metrist.run.run import open_run
from metrist.scores import Score
from run_contents import unfinish

STEMMED = "rougeL(stem=True)"


def test_a_name_is_the_key_of_scores_signatures_and_tables_and_changes_no_signature(rows: list[dict[str, Any]]) -> None:
    plain = score(rows, STEMMED)
    named = score(rows, f"short={STEMMED}")
    assert list(named.scores) == list(named.signatures) == ["short"]
    assert named.signatures["short"] == plain.signatures[STEMMED]
    assert np.array_equal(named["short"].values, plain[STEMMED].values)
    assert np.array_equal(named[STEMMED].values, plain[STEMMED].values)
    assert [column.name for column in named.table().columns] == ["system", "short", "scored", "coverage"]
    assert {row.metric for row in named.system_scores(draws=100)} == {"short"}
    assert {row["metric"] for row in named.rows()} == {"short"}


def test_names_can_be_given_as_a_mapping_and_metrics_as_one_text_with_commas(rows: list[dict[str, Any]]) -> None:
    assert list(score(rows, {"a": STEMMED, "b": "chrf"}).scores) == ["a", "b"]
    assert list(score(rows, f"a={STEMMED},chrf(char_order=6, word_order=2)").scores) == ["a", "chrf(word_order=2)"]


def test_two_metrics_of_one_name_and_two_names_of_one_metric_are_refused(rows: list[dict[str, Any]]) -> None:
    with raises_code(SpecError, "invalid_value", "rougeL", "chrf", "'a'"):
        score(rows, ["a=rougeL", "a=chrf"])
    with raises_code(SpecError, "invalid_value", "'chrf'"):
        score(rows, ["chrf=rougeL", "chrf"])
    with raises_code(SpecError, "invalid_value", "'a'", "'b'"):
        score(rows, ["a=rougeL", "b=rougeL"])


@pytest.mark.parametrize("name", ["item", "System", "record", "scored", "coverage"])
def test_names_of_other_columns_are_refused(name: str, rows: list[dict[str, Any]]) -> None:
    for metrics in (f"{name}=rougeL", ["chrf", f"{name}=rougeL"], {name: "rougeL"}):
        with raises_code(SpecError, "invalid_value", "coverage"):
            score(rows, metrics)


def test_a_run_folder_keeps_names_and_its_files_go_by_the_text(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    run = tmp_path / "run"
    score(rows, f"short={STEMMED}", out=run)
    unnamed = tmp_path / "unnamed"
    score(rows, STEMMED, out=unnamed)
    folders = [[p.name for p in (path / "scores").iterdir()] for path in (run, unnamed)]
    assert folders[0] == folders[1]
    loaded = load(run)
    assert list(loaded.scores) == ["short"]
    assert loaded.metrics[0].text == STEMMED
    assert "name" not in json.loads((unnamed / "manifest.json").read_text())["metrics"][0]
    # The folder remembers the name for a later run that does not give it.
    assert list(score(rows, [STEMMED, "chrf"], out=run).scores) == ["short", "chrf"]
    assert list(load(run).scores) == ["short", "chrf"]
    # Another name replaces it, without scoring again.
    assert list(score(rows, f"other={STEMMED}", out=run).scores) == ["other"]
    assert sorted(load(run).scores) == ["chrf", "other"]
    with raises_code(RunError, "conflict", "'chrf'"):
        score(rows, "chrf=rougeL", out=run)


def test_names_may_change_places_between_two_runs_of_a_folder(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    score(rows, ["a=rougeL", "b=chrf"], out=tmp_path / "run")
    assert list(score(rows, ["b=rougeL", "a=chrf"], out=tmp_path / "run").scores) == ["b", "a"]
    assert {m.label: m.text for m in load(tmp_path / "run").metrics} == {"b": "rougeL", "a": "chrf"}
    assert {m.label: m.text for m in score(rows, ["b=chrf", "rougeL"], out=tmp_path / "run").metrics} == {
        "b": "chrf",
        "rougeL": "rougeL",
    }


def test_an_unfinished_metric_is_noted_by_its_name(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    score(rows, ["short=rougeL(stem=True)", "chrf"], out=tmp_path / "run")
    unfinish(tmp_path / "run", STEMMED)
    loaded = load(tmp_path / "run")
    assert list(loaded.scores) == ["chrf"]
    assert loaded.unfinished == {STEMMED: "short"}
    assert any(note.startswith("short is left out, because it is not finished") for note in loaded.notes)


@pytest.mark.parametrize("name", ["", "a:b", "a b", "(", 7])
def test_a_name_in_a_manifest_that_nobody_could_have_given_is_refused(
    rows: list[dict[str, Any]], tmp_path: Path, name: Any
) -> None:
    score(rows, "short=rougeL", out=tmp_path / "run")
    manifest = tmp_path / "run" / "manifest.json"
    facts = json.loads(manifest.read_text())
    facts["metrics"][0]["name"] = name
    manifest.write_text(json.dumps(facts, indent=2))
    with raises_code(RunError, "damaged", "manifest.json"):
        load(tmp_path / "run")


def test_a_flat_file_with_names_loads_as_the_metric_that_its_signature_names(
    rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    path = tmp_path / "flat.jsonl"
    # Without the signature, this file would seem to hold plain BLEU, which is smoothed otherwise.
    written = score(rows, ["bleu=bleu(smooth='floor', smooth_value=0.5)", "chrf"], out=path)
    loaded = load(path)
    assert [metric.text for metric in loaded.metrics] == ["bleu(smooth='floor', smooth_value=0.5)", "chrf"]
    assert list(loaded.scores) == ["bleu", "chrf"]
    assert loaded.system_scores(draws=100) == written.system_scores(draws=100)


def test_a_separator_within_a_setting_does_not_end_the_metric_of_a_flat_file(
    rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    path = tmp_path / "flat.jsonl"
    score(rows, Worded(words="a | b").named("w"), out=path)
    assert list(load(path).scores) == ["w"]


def test_compare_and_check_find_metrics_by_name_by_text_and_by_part(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    run = tmp_path / "run"
    results = score(rows, ["gpt-4.1=rougeL(stem=True)", "chrf"], out=run)
    contests = compare(run, metrics="gpt-4.1,chrf", draws=100).contests
    assert list(dict.fromkeys(contest.metric.label for contest in contests)) == ["gpt-4.1", "chrf"]
    assert compare(run, metrics=[STEMMED], draws=100).contests[0].metric.label == "gpt-4.1"
    recall = compare(run, metrics=["gpt-4.1:recall"], draws=100)
    first = recall.contests[0]
    own = np.array([system == first.first for system in results.systems])
    assert first.test.first == pytest.approx(results["gpt-4.1"].scores.parts["recall"][own].mean())
    assert first.metric.higher_is_better
    verdicts = check(run, minimum={"gpt-4.1:recall": 0.0, "gpt-4.1": 2, STEMMED: 0}).verdicts
    assert [verdict.metric for verdict in verdicts[::3]] == ["gpt-4.1:recall", "gpt-4.1", "gpt-4.1"]
    assert [verdict.passed for verdict in verdicts[::3]] == [True, False, True]
    with raises_code(RunError, "unknown_name", "'recal'"):
        check(run, minimum={"gpt-4.1:recal": 0.1})


def test_runs_are_joined_by_the_text_of_metrics_and_a_name_for_two_metrics_is_refused(
    rows: list[dict[str, Any]],
) -> None:
    first = [row for row in rows if row["system"] == "first"]
    second = [row for row in rows if row["system"] == "second"]
    named, unnamed = score(first, f"short={STEMMED}"), score(second, STEMMED)
    assert compare([named, unnamed], draws=100).contests[0].metric.label == "short"
    assert compare([unnamed, named], draws=100).contests[0].metric.label == STEMMED
    assert check(named, against=unnamed, draws=100).verdicts[0].metric == "short"
    with raises_code(RunError, "conflict", "computed"):
        compare([named, score(second, "short=chrf")], draws=100)


def test_comparators_have_names_too(rows: list[dict[str, Any]], tmp_path: Path) -> None:
    results = prefer(rows, ["chars=chrf", "rougeL"], pairs="all", out=tmp_path / "run")
    assert list(results.judgments) == ["chars", "by_score(metric=rougeL)"]
    assert {rate.comparator for rate in results.win_rates(draws=100)} == {"chars", "by_score(metric=rougeL)"}
    stored = open_run(tmp_path / "run").manifest.metrics
    assert [(metric.name, metric.text) for metric in stored] == [
        ("chars", "by_score(metric=chrf)"),
        (None, "by_score(metric=rougeL)"),
    ]


# ---- Aspects ----


class Worded(Metric):
    """A metric whose text cannot be parsed from a file, like every metric from outside the catalog."""

    def __init__(self, words: str) -> None:
        self.words = words

    def score_record(self, record: Record) -> float:
        return float(len(record.output))


class Tidy(Metric):
    bounds = (0.0, 10.0)
    aspect_parts: Mapping[str, tuple[float, float]] = {"order": (0.0, 10.0), "shine": (0.0, 10.0)}

    def score_record(self, record: Record) -> Score:
        size = float(len(record.output) % 7)
        parts = {"order": size, "weight": 3.0, **({} if record.item == "i1" else {"shine": size + 2})}
        return Score(value=size + 1, parts=parts)


def _judge(grade: int = 2) -> Judge:
    def answer(conversation: Conversation, _: Sampling) -> Completion:
        mark = re.findall(r'"id": "(\w+)"', conversation[-1].text)[-1]
        grades = {"naturalness": 3, "relatedness": grade, "correctness": 1}
        return Completion(text=json.dumps({"reasons": "", **grades, "id": mark}))

    return Judge(llm=FakeLLM(answer))


@pytest.fixture
def tidy(rows: list[dict[str, Any]]) -> Results:
    return score(rows, Tidy().named("tidy"))


def test_aspects_are_columns_of_the_table_pooled_by_their_mean(tidy: Results) -> None:
    assert [c.label for c in tidy.columns] == ["tidy", "tidy:order", "tidy:shine"]
    by_key = {(row.system, row.metric): row for row in tidy.system_scores(draws=200)}
    for system in dict.fromkeys(tidy.systems):
        own = np.array([name == system for name in tidy.systems])
        for part in ("order", "shine"):
            values = tidy["tidy"].scores.parts[part][own]
            row = by_key[system, f"tidy:{part}"]
            assert row.value == pytest.approx(np.nanmean(values))
            assert row.low <= row.value <= row.high
            assert (row.n, row.coverage) == (np.isfinite(values).sum(), np.isfinite(values).mean())
    # A missing aspect is a failure of that column, not of the metric.
    assert not tidy["tidy"].scores.failures
    assert set(tidy["tidy:shine"].scores.failures.values()) == {"the score has no shine"}
    assert tidy["tidy:weight"].metric.higher_is_better is None
    assert tidy["tidy:order"].metric.bounds == (0.0, 10.0)


def test_aspects_are_in_compare_check_and_files(tidy: Results, tmp_path: Path) -> None:
    contests = compare(tidy, draws=100).contests
    assert list(dict.fromkeys(c.metric.label for c in contests)) == ["tidy", "tidy:order", "tidy:shine"]
    assert {v.metric for v in check(tidy, minimum={"tidy:order": 1}).verdicts} == {"tidy:order"}
    against = check(tidy, against=tidy, draws=100).verdicts
    assert {verdict.metric for verdict in against} == {"tidy", "tidy:order", "tidy:shine"}
    path = tmp_path / "flat.jsonl"
    tidy.write(path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["metric"] for line in lines[:3]] == ["tidy", "tidy:order", "tidy:shine"]
    assert [line["value"] for line in lines if line["metric"] == "tidy:order"] == list(tidy["tidy:order"].values)
    loaded = load(path)
    assert list(loaded.scores) == ["tidy"]
    assert np.array_equal(loaded["tidy:shine"].values, tidy["tidy:shine"].values, equal_nan=True)


def test_the_aspects_of_a_judge_are_columns_unless_one_of_them_is_the_value(
    rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    results = score(rows, {"judge": _judge()}, out=tmp_path / "run")
    expected = ["judge", "judge:naturalness", "judge:relatedness", "judge:correctness"]
    assert [c.label for c in results.columns] == expected
    assert {row.value for row in results.system_scores(draws=100) if row.metric == "judge:relatedness"} == {2.0}
    assert not check(results, minimum={"judge:correctness": 2}).passed
    assert score(rows, Judge(llm=_judge().llm, aspect="correctness")).columns[1:] == ()
    # The fake LLM cannot be built from a file, and the aspects are there all the same.
    assert [c.label for c in load(tmp_path / "run").columns] == expected


def test_the_aspects_of_a_judge_without_a_name_go_by_its_plain_name_in_tables(rows: list[dict[str, Any]]) -> None:
    results = score(rows, _judge())
    assert [column.name for column in results.table(draws=100).columns][2:5] == [
        "judge:naturalness",
        "judge:relatedness",
        "judge:correctness",
    ]
    assert check(results, minimum={"judge:naturalness": 3}).passed
