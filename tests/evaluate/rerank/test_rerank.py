"""The best of several outputs. Choices by minimum Bayes risk are compared with loops over all pairs of outputs with
sacreBLEU and rouge-score, and sums of scores with numpy."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics import BLEU, CHRF, TER

import metrist
from error_codes import raises_code
from metrist import Record
from metrist.errors import InputError, RunError, SpecError
from metrist.metrics.base import pairs_of
from metrist.metrics.registry import build

_WORDS = ["a", "the", "cat", "dog", "sat", "ran", "on", "in", "mat", "house", "big", "small", "red", "fast", "was"]


def make_records(items: int = 6, outputs: int = 7, seed: int = 0) -> list[Record]:
    """Outputs of one system that resemble each other, some of them equal and one empty."""
    rng = random.Random(seed)
    records = []
    for item in range(items):
        base = rng.choices(_WORDS, k=9)
        for _ in range(outputs):
            text = " ".join(word if rng.random() < 0.7 else rng.choice(_WORDS) for word in base[: rng.randint(4, 9)])
            records.append(Record(item=f"i{item}", system="s", output=text, references=(" ".join(base),)))
    records[1] = records[0]
    records.append(Record(item="i0", system="s", output="", references=("a cat",)))
    return [replace(record, extra={"n": n}) for n, record in enumerate(records)]


def score_apart(records: Sequence[Record], *metrics: str) -> Any:
    """Scores of `score`, to which each output is that of another system."""
    return metrist.score([replace(record, system=str(n)) for n, record in enumerate(records)], metrics)


def rouge(name: str) -> Callable[[str, str], float]:
    scorer = RougeScorer([name])
    return lambda output, reference: scorer.score(reference, output)[name].fmeasure


def sentence(metric: Any) -> Callable[[str, str], float]:
    return lambda output, reference: metric.sentence_score(output, [reference]).score


UTILITIES: dict[str, Callable[[str, str], float]] = {
    "chrf": sentence(CHRF()),
    "chrf(word_order=2)": sentence(CHRF(word_order=2)),
    "bleu": sentence(BLEU(effective_order=True)),
    "ter": sentence(TER()),
    "rouge1(tokenizer='rouge-score')": rouge("rouge1"),
    "rouge2(tokenizer='rouge-score')": rouge("rouge2"),
    "rougeL(tokenizer='rouge-score')": rouge("rougeL"),
}


def choose_by_loops(outputs: Sequence[str], utility: Callable[[str, str], float], sign: int) -> tuple[int, float]:
    means = [np.mean([utility(output, reference) for reference in outputs]) for output in outputs]
    rounded = np.round(sign * np.array(means), 9)
    best = int(rounded.argmax())
    return best, float(means[best])


@pytest.mark.parametrize("spec", UTILITIES)
def test_choices_by_minimum_bayes_risk_are_those_of_a_loop_over_pairs(spec: str) -> None:
    records = make_records()
    reranked = metrist.rerank(records, mbr=spec)
    for choice in reranked:
        outputs = [record.output for record in records if record.item == choice.record.item]
        best, mean = choose_by_loops(outputs, UTILITIES[spec], -1 if spec == "ter" else 1)
        assert (choice.record.output, choice.of) == (outputs[best], len(outputs))
        assert choice.score == pytest.approx(mean, abs=1e-9)
    assert len(reranked) == 6


@pytest.mark.parametrize("spec", ["chrf", "chrf(char_order=3, beta=1)", "chrf(whitespace=True)"])
def test_aggregated_references_are_those_of_fastchrf(spec: str) -> None:
    fastchrf = pytest.importorskip("fastchrf", reason="fastchrf is not installed (make bench-rerank)")
    records = make_records()
    metric: Any = build(spec)
    for choice in metrist.rerank(records, mbr=spec, aggregate=True, k=99):
        outputs = [record.output for record in records if record.item == choice.record.item]
        (means,) = fastchrf.aggregate_chrf(
            [outputs],
            [outputs],
            char_order=metric.char_order,
            beta=metric.beta,
            remove_whitespace=not metric.whitespace,
        )
        assert choice.score == pytest.approx(means[outputs.index(choice.record.output)], abs=1e-9)


def test_a_mean_of_references_counts_each_output_as_often_as_it_occurs() -> None:
    # By hand, with single characters.
    records = [Record(item="1", system="s", output=text) for text in ("ab", "aa", "a")]
    chosen = metrist.rerank([*records, records[0]], mbr="chrf(char_order=1, beta=1)", aggregate=True, k=4)
    means = {"a": 5 / 4, "b": 2 / 4}
    matches = {"ab": 1.5, "aa": means["a"], "a": 1}
    expected = {text: 200 * matches[text] / (len(text) + 7 / 4) for text in matches}
    assert {choice.record.output: choice.score for choice in chosen} == pytest.approx(expected)


def test_of_equally_good_outputs_the_earlier_one_is_chosen() -> None:
    outputs = ["red cat", "cat red", "blue dog", "dog blue"]  # Each shares both words with one other output.
    records = [Record(item="1", system=str(n), output=text) for n, text in enumerate(outputs)]
    for rows in (records, records[::-1]):
        ranked = metrist.rerank(rows, mbr="rouge1", k=4)
        assert [choice.record for choice in ranked] == rows
        assert [choice.rank for choice in ranked] == [1, 2, 3, 4]


def test_a_utility_that_sees_single_records_and_the_source() -> None:
    class Near(metrist.Metric):
        needs = ("source", "references")

        def score_record(self, record: Record) -> float:
            (reference,) = record.references
            return -abs(len(record.output) - len(reference)) * len(record.source or "")

    records = [Record(item="1", system="s", output="x" * n, source="ab") for n in (1, 2, 3, 9, 20)]
    (choice,) = metrist.rerank(records, mbr=Near())
    assert (choice.record.output, choice.score) == ("xxx", -2 * (2 + 1 + 0 + 6 + 17) / 5)
    sourceless = [Record(item="2", system="s", output="y")]
    reranked = metrist.rerank([*records, *sourceless], mbr=Near())
    assert (reranked.items, len(reranked)) == (2, 1)


def test_a_utility_gets_each_distinct_text_once() -> None:
    texts: list[str] = []

    class Encoded(metrist.Metric):
        needs = ("references",)

        def score(self, shard: metrist.Shard) -> metrist.Scores:
            texts.extend(pairs_of(shard).texts)
            assert [record.references[0] for record in shard.records] == [
                pairs_of(shard).texts[n] for n in pairs_of(shard).references
            ]
            return metrist.Scores.of([0.0] * len(shard))

    records = make_records()
    metrist.rerank(records, mbr=Encoded(), executor="serial")
    assert sorted(texts) == sorted({record.output for record in records})


@pytest.mark.parametrize("name", ["bertscore", "moverscore", "embedding_cosine"])
def test_a_utility_with_a_model_chooses_as_scores_of_single_pairs_do(tiny: Callable[[str], Path], name: str) -> None:
    spec = f"{name}(model={str(tiny('bert'))!r})"
    records = [record for record in make_records(items=3, outputs=5) if record.output]
    chosen = {choice.record.item: choice for choice in metrist.rerank(records, mbr=spec)}
    for item in {record.item for record in records}:
        outputs = [record.output for record in records if record.item == item]
        pairs = [
            Record(item=f"{n} {m}", system="s", output=output, references=(reference,))
            for n, output in enumerate(outputs)
            for m, reference in enumerate(outputs)
        ]
        means = metrist.score(pairs, [spec], shard_size=1)[spec].values.reshape(len(outputs), -1).mean(axis=1)
        assert chosen[item].score == pytest.approx(means.max(), abs=1e-6)
        assert means[outputs.index(chosen[item].record.output)] == pytest.approx(means.max(), abs=1e-6)


def test_several_metrics_choose_by_the_weighted_sum_of_standardised_scores() -> None:
    records = make_records(items=4)
    reranked = metrist.rerank(records, ["ter", "chrf"], mbr="rougeL", weights={"chrf": 0.3, "rougeL": 2}, k=99)
    results = score_apart(records, "ter", "chrf")
    risks = {choice.record.extra["n"]: choice.score for choice in metrist.rerank(records, mbr="rougeL", k=99)}
    for item in ("i0", "i3"):
        at = [n for n, record in enumerate(records) if record.item == item]
        columns = np.array([[risks[n], -results["ter"].values[n], results["chrf"].values[n]] for n in at])
        sums = (columns - columns.mean(axis=0)) / columns.std(axis=0) @ [2, 1, 0.3]
        own = [choice for choice in reranked if choice.record.item == item]
        assert [choice.score for choice in own] == pytest.approx(sorted(sums, reverse=True))
        assert own[0].lead is None
        assert own[0].scores["ter"] == -columns[sums.argmax(), 1]


def test_the_lead_is_over_the_best_output_that_was_not_chosen() -> None:
    records = [
        Record(item="1", system="s", output=text, references=("a b c d",)) for text in ("a", "a b c d", "a b", "a b c")
    ]
    scores = [choice.score for choice in metrist.rerank(records, "ter", k=4)]
    assert scores == [0, 25, 50, 75]
    assert [choice.lead for choice in metrist.rerank(records, "ter", k=2)] == [50, 25]


def test_gains_are_means_over_items_of_the_chosen_outputs_and_of_all() -> None:
    records = make_records()
    reranked = metrist.rerank(records, mbr="chrf", report=["rougeL", "ter"], k=2)
    scores = score_apart(records, "rougeL")["rougeL"].values
    chosen = {choice.record.extra["n"] for choice in reranked}
    items = sorted({record.item for record in records})
    before = [np.mean([v for r, v in zip(records, scores, strict=True) if r.item == item]) for item in items]
    after = [np.mean([scores[n] for n in chosen if records[n].item == item]) for item in items]
    used, gain, lower = reranked.gains
    assert (gain.metric, gain.used, used.used, gain.items) == ("rougeL", False, True, 6)
    assert (gain.before, gain.after) == pytest.approx((np.mean(before), np.mean(after)))
    assert gain.low < gain.difference < gain.high
    assert lower.higher_is_better is False
    assert used.after > used.before


def test_a_rise_of_the_chosen_metric_alone_is_noted() -> None:
    # The metric counts words, and longer outputs have no more words of the reference.
    class Long(metrist.Metric):
        def score_record(self, record: Record) -> float:
            return len(record.output.split())

    outputs = ["the cat", "the cat and some more words", "the cat and one"]
    records = [
        Record(item=str(n), system=str(s), output=text, references=("the cat",))
        for n in range(20)
        for s, text in enumerate(outputs)
    ]
    by_length = metrist.rerank(records, Long(), report="rougeL")
    assert not by_length.gains[1].is_better
    assert any("rougeL" in note and "overrates" in note for note in by_length.notes)
    by_both = metrist.rerank(records, "chrf", report="rougeL")
    assert by_both.gains[1].is_better
    assert not any("overrates" in note for note in by_both.notes)


def test_a_file_is_written_in_its_own_columns(tmp_path: Path) -> None:
    lines = [
        {"id": "b", "answer": "the cat sat", "model": "m", "meta": {"n": 1}},
        {"id": "a", "answer": "dogs", "model": "m", "meta": None},
        {"id": "b", "answer": "the cat", "model": "m", "meta": {"n": 2}},
        {"id": "b", "answer": "no", "model": "m", "meta": {"n": 3}},
        {"id": "a", "answer": "dogs bark", "model": "m", "meta": None},
        {"id": "a", "answer": "dogs bark", "model": "m", "meta": None},
    ]
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    reranked = metrist.rerank(source, mbr="chrf", out=out)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    told = [row.pop("rerank") for row in rows]
    assert rows == [lines[0], lines[4]]
    assert [(entry["rank"], entry["of"]) for entry in told] == [(1, 3), (1, 3)]
    assert (len(reranked), reranked.items, reranked.outputs) == (2, 2, 6)
    assert not reranked.choices
    assert [row["rerank"] for row in metrist.rerank(source, mbr="chrf").rows()] == told


def test_a_table_keeps_its_cells(tmp_path: Path) -> None:
    source, out = tmp_path / "in.csv", tmp_path / "out.csv"
    cells = [["item", "output", "note"], ["1", "- a, b", "x\ry"], ["1", "- a, b\nc", ""], ["1", "zzz", '"q"']]
    with source.open("w", newline="") as file:
        csv.writer(file).writerows(cells)
    metrist.rerank(source, mbr="chrf", k=2, out=out)
    with out.open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header == [*cells[0], "rerank"]
    assert sorted(row[:3] for row in rows) == sorted(cells[1:3])
    assert json.loads(rows[1][3])["rank"] == 2


def test_rows_with_an_output_per_system_become_rows_of_one(tmp_path: Path) -> None:
    source, out = tmp_path / "wide.csv", tmp_path / "out.jsonl"
    source.write_text("id,a_output,b_output,c_output\n1,the cat,a cat sat,the cat sat\n2,no,yes,yes\n")
    metrist.rerank(source, mbr="chrf", out=out, outputs="*_output")
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["item"], row["system"], row["output"]) for row in rows] == [
        ("1", "c", "the cat sat"),
        ("2", "b", "yes"),
    ]


@pytest.mark.parametrize(
    ("column", "reading"), [("output", {}), ("outputs", {}), ("samples", {"fields": {"output": "samples"}})]
)
def test_a_row_may_hold_a_list_of_outputs(tmp_path: Path, column: str, reading: dict[str, Any]) -> None:
    lists = [["a cat", "a cat sat", "a cat sat"], ["dog"], ["no", "yes yes", "yes no"]]
    named = [{"item": f"i{n}", "note": n, column: texts} for n, texts in enumerate(lists)]
    numbered = [{"note": n, column: texts} for n, texts in enumerate(lists)]
    out = tmp_path / "best.jsonl"
    for rows in (named, numbered, iter(named), write_lines(tmp_path / "in.jsonl", numbered)):
        ranked = [
            (choice.record.item, choice.record.output, choice.score, choice.of)
            for choice in metrist.rerank(rows, mbr="chrf", k=2, **reading)
        ]
        single = [
            Record(item=f"i{n}" if rows is named else str(n + 1), system=str(m), output=text)
            for n, texts in enumerate(lists)
            for m, text in enumerate(texts)
        ]
        expected = [
            (choice.record.item, choice.record.output, choice.score, choice.of)
            for choice in metrist.rerank(single, mbr="chrf", k=2)
        ]
        assert [row[1:] for row in ranked] == [row[1:] for row in expected]
        assert len({row[0] for row in ranked}) == len(lists)
    metrist.rerank(tmp_path / "in.jsonl", mbr="chrf", k=2, out=out, **reading)
    written = [json.loads(line) for line in out.read_text().splitlines()]
    text = "output" if column == "outputs" else column
    assert [(row["note"], row[text], row["rerank"]["rank"]) for row in written] == [
        (0, "a cat sat", 1),
        (0, "a cat sat", 2),
        (1, "dog", 1),
        (2, "yes no", 1),
        (2, "no", 2),
    ]
    with raises_code(InputError, "invalid_row"):
        metrist.rerank([{column: ["a", 3]}], mbr="chrf", **reading)


def write_lines(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_choices_do_not_depend_on_the_executor_or_on_how_the_input_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    records = make_records(items=9)
    alone = [choice.to_row() for choice in metrist.rerank(records, "ter", mbr="chrf", k=3)]
    monkeypatch.setattr("metrist.evaluate.rerank.items.SHARD_SIZE", 1)
    monkeypatch.setattr("metrist.evaluate.rerank.item_metrics._PAIRS_AT_ONCE", 1)
    for executor in ("serial", "processes"):
        reranked = metrist.rerank(records, "ter", mbr="chrf", k=3, executor=executor)
        assert [choice.to_row() for choice in reranked] == alone


def test_what_cannot_choose_is_refused(tmp_path: Path) -> None:
    records = make_records(items=2)
    with raises_code(RunError, "missing_value"):
        metrist.rerank(records)
    with raises_code(RunError, "unsupported", "length", "`report`"):
        metrist.rerank(records, "length")
    with raises_code(SpecError, "invalid_value", "fluency"):
        metrist.rerank(records, mbr="fluency")
    with raises_code(SpecError, "unsupported", "rougeL"):
        metrist.rerank(records, mbr="rougeL", aggregate=True)
    with raises_code(RunError, "unknown_name", "rougeL"):
        metrist.rerank(records, "chrf", weights={"rougeL": 1.0})
    with raises_code(RunError, "invalid_value", "k"):
        metrist.rerank(records, "chrf", k=0)
    with raises_code(RunError, "cannot_write", "out.xlsx"):
        metrist.rerank(records, "chrf", out=tmp_path / "out.xlsx")
    single = [Record(item=str(n), system="s", output="a") for n in range(3)]
    assert any("item_key" in note for note in metrist.rerank(single, mbr="chrf").notes)
