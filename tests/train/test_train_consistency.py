"""Training a consistency metric from judgments and from a run, with a tiny random encoder."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

from error_codes import raises_code
from metrist.errors import InputError, ModelError, RunError, SpecError
from tiny_text_encoders import write_text_encoder

pytest.importorskip("torch", reason="torch is not installed")

import metrist
from metrist.evaluate.distill import read_judged_run
from metrist.metrics.trained.support import SupportSettings
from metrist.models.loading import load_text_encoder
from metrist.ratings import Error
from metrist.scores import Score
from metrist.train import consistency, train_consistency
from metrist.train.consistency import SupportExample, compare_with_length, divide_examples, read_support_examples

NOUNS, PLACES = ("dog", "cat", "john", "mary"), ("mat", "tree", "house", "river")


def make_rows(count, seed=0, **more):
    """Sources that name who sat where; an output is right or says that someone did not."""
    rng = random.Random(seed)
    for number in range(count):
        who, where = rng.choice(NOUNS), rng.choice(PLACES)
        right = number % 2 == 0
        output = f"the {who} sat on the {where}." if right else f"the {who} was not on the {where}."
        source = f"one day the {who} ran, and sat on the {where} in the rain {number}."
        yield {"item": str(number), "system": "a", "source": source, "output": output, **label(right), **more}


def label(right):
    return {"ratings": {"consistent": [float(right)]}}


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def base(tmp_path):
    return str(write_text_encoder(tmp_path / "base" / "model", scale=0.1))


@pytest.mark.parametrize("kind", ["bert", "nomic"])
def test_a_model_learns_what_is_unsupported(tmp_path, kind):
    base = str(write_text_encoder(tmp_path / "base" / "model", kind=kind, scale=0.1))
    data = write(tmp_path / "judged.jsonl", make_rows(120))
    card = train_consistency(data, tmp_path / "out", base=base, epochs=8, lr=3e-3, window=128)
    figures = card["figures"]
    assert figures["after"] > 0.9 > figures["before"]
    assert figures["agreement_model"] > 0.8
    assert card["recipe"]["left_out_heads"] == "fluency"
    assert card["metric"] == f"consistency(model={str(tmp_path / 'out')!r})"
    # Scoring with it tells new outputs apart.
    rows = list(make_rows(20, seed=5))
    results = metrist.score(rows, f"consistency(model={str(tmp_path / 'out')!r}, window=128)")
    values = next(iter(results.scores.values())).values
    assert values[::2].min() > values[1::2].max()
    # A finished training is not repeated.
    assert train_consistency(data, tmp_path / "out", base=base, epochs=8, lr=3e-3, window=128) == card


def test_ratings_are_scaled_and_errors_label_sentences(tmp_path):
    output = "the dog sat. the cat ran."
    error = {"start": 13, "end": 25, "category": "Fact Consistency", "severity": "major"}
    rows: list[dict[str, Any]] = [
        {"ratings": {"faithfulness": [1, 3]}},
        {"ratings": {"faithfulness": [5]}},
        {"ratings": {"faithfulness": [3]}, "errors": [error]},
        {"ratings": {"fluency": [3]}},
        {"ratings": {"faithfulness": [3]}, "source": " "},
    ]
    shared = {"system": "a", "source": "s", "output": output}
    rows = [{"item": str(number), **shared, **row} for number, row in enumerate(rows)]
    files = read_support_examples([write(tmp_path / "rows.jsonl", rows)])
    assert [example.label for example in files.examples] == [0.0, 1.0, pytest.approx(1 / 3), 1.0]
    assert [example.errors for example in files.examples] == [None, (), ((13, 25),), ()]
    assert any("1 output without a source" in note for note in files.notes)


def test_columns_of_other_names_are_read_and_bad_rows_skipped(tmp_path):
    rows = [{"doc": f"d{n}", "text": "the dog sat.", "gold": n % 2} for n in range(4)]
    data = write(tmp_path / "rows.jsonl", [*rows, {"doc": "d", "text": {}, "gold": 1}])
    fields = {"source": "doc", "output": "text", "rating:support": "gold"}
    files = read_support_examples([data], fields=fields, skip_bad=True)
    assert [(example.source, example.label) for example in files.examples] == [
        (row["doc"], row["gold"]) for row in rows
    ]
    assert any("1 bad row was skipped" in note for note in files.notes)
    with raises_code(InputError, "invalid_row", "rows.jsonl:5"):
        read_support_examples([data], fields=fields)
    other = divide_examples(files.examples, str(data), 0, fields=fields, skip_bad=True)
    assert other.dev == files.examples


def test_errors_of_other_kinds_and_sides_say_nothing_about_support(tmp_path):
    errors = [
        {"start": 0, "end": 3, "category": "Fluency", "severity": "minor"},
        {"start": 0, "end": 1, "category": "Accuracy", "severity": "minor", "side": "source"},
    ]
    rows = [{"item": "1", "system": "a", "source": "s", "output": "the dog", "errors": errors}]
    with raises_code(InputError, "unreadable"):
        read_support_examples([write(tmp_path / "rows.jsonl", rows)])


def test_data_that_cannot_be_learned_from_is_refused(tmp_path, base, tiny):
    rows = list(make_rows(8))
    other = write(tmp_path / "other.jsonl", [{**row, "ratings": {"style": [1]}} for row in rows])
    with raises_code(InputError, "unreadable"):
        train_consistency(other, tmp_path / "out", base=base)
    with raises_code(InputError, "unknown_name", "styel"):
        train_consistency(other, tmp_path / "out", base=base, aspect="styel")
    same = write(tmp_path / "same.jsonl", [{**row, **label(True)} for row in rows])
    with raises_code(InputError, "too_little_data", "same label"):
        train_consistency(same, tmp_path / "out", base=base)
    data = write(tmp_path / "rows.jsonl", rows)
    with raises_code(ModelError, "invalid_value"):
        train_consistency(data, tmp_path / "out2", base=str(tiny("bert")))


def test_a_base_without_the_head_gets_a_new_one(tmp_path, base, monkeypatch):
    shipped = base
    monkeypatch.setattr(consistency, "_SHIPPED", shipped)
    base = write_text_encoder(tmp_path / "headless" / "model", heads=("fluency",))
    data = write(tmp_path / "rows.jsonl", make_rows(20))
    card = train_consistency(data, tmp_path / "out", base=str(base), dev="0.5", epochs=1)
    figures = card["figures"]
    assert figures["new_head"]
    # It scored nothing before, so what is trained is compared with what ships.
    assert figures["compared_with"] == shipped
    assert figures["agreement_base"] is not None
    assert "before training (with a new head)" in (tmp_path / "out" / "card.md").read_text(encoding="utf-8")
    assert load_text_encoder(str(tmp_path / "out")).heads == ("support",)
    monkeypatch.setattr(consistency, "_SHIPPED", "metrist:not-installed")
    card = train_consistency(data, tmp_path / "alone", base=str(base), dev="0.5", epochs=1)
    assert "compared_with" not in card["figures"]


def test_a_model_that_agrees_less_than_its_base_is_reported(tmp_path, base, monkeypatch):
    """The base orders the development outputs as their labels do, and the trained model only half of them."""

    def score(reader, examples):
        labels = np.array([example.label for example in examples])
        return labels if reader.encoder.folder == Path(base) else np.where(np.arange(len(labels)) < 4, labels, 0.5)

    monkeypatch.setattr(consistency, "score_examples", score)
    data, dev = write(tmp_path / "rows.jsonl", make_rows(10)), write(tmp_path / "dev.jsonl", make_rows(8, seed=3))
    card = train_consistency(data, tmp_path / "out", base=base, dev=str(dev), epochs=1)
    figures = card["figures"]
    expected = spearmanr([1, 0, 1, 0, 0.5, 0.5, 0.5, 0.5], [1, 0] * 4).statistic
    assert [figures["agreement_base"], figures["agreement_model"]] == pytest.approx([1, expected])
    (warning,) = [remark for remark in figures["remarks"] if base in remark]
    assert f"Spearman's correlation with the labels fell from 1.000 to {expected:.3f}" in warning
    assert warning.removeprefix("w") in (tmp_path / "out" / "card.md").read_text(encoding="utf-8")
    # What is stored is measured as the training measured it, and 7 bits change little.
    assert figures["after"] == pytest.approx(figures["trained"], abs=0.01)


def test_the_layout_of_the_base_is_kept_and_its_calibration_dropped(tmp_path, base):
    SupportSettings(sentences=5, window=512, scale=0.5, shift=1.0, copied=0.9).write(Path(base))
    data = write(tmp_path / "rows.jsonl", make_rows(10))
    train_consistency(data, tmp_path / "out", base=base, epochs=1, window=128)
    assert SupportSettings.read(tmp_path / "out") == SupportSettings(sentences=5, window=128, copied=0.9)


def test_all_outputs_of_a_source_are_on_one_side():
    examples = [SupportExample(source=f"s{n % 10}", output=f"o{n}", label=n % 2) for n in range(60)]
    divided = divide_examples(examples, "0.3", seed=1)
    sources = [{example.source for example in part} for part in divided]
    assert (len(sources[0]), len(sources[1])) == (7, 3)
    assert not sources[0] & sources[1]
    assert divide_examples(examples, None, seed=1).dev == []


class FakeJudge(metrist.Metric):
    """Says 0.2 where the output says `not`, and marks the sentence."""

    bounds = (0.0, 2.0)
    marks = True

    def score_record(self, record):
        at = record.output.find("was not")
        errors = (Error(aspect="Accuracy", severity="major", start=at, end=at + 7),) if at >= 0 and self.marks else ()
        return Score(value=0.4 if at >= 0 else 2.0, errors=errors)


def run_judge(tmp_path, judge, **more):
    data = write(tmp_path / "outputs.jsonl", make_rows(6, **more))
    metrist.score(data, judge, out=tmp_path / "run")
    return tmp_path / "run"


def test_a_run_gives_labels_errors_and_peoples_ratings(tmp_path):
    files = read_judged_run(run_judge(tmp_path, FakeJudge))
    assert [example.label for example in files.examples] == [1, 0] * 3
    assert [example.rating for example in files.examples] == [1, 0] * 3
    assert [example.errors == () for example in files.examples] == [True, False] * 3
    example = files.examples[1]
    [(start, end)] = example.errors or ()
    assert example.output[start:end] == "was not"


def test_a_run_without_marks_labels_outputs_as_a_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(FakeJudge, "marks", False)
    files = read_judged_run(run_judge(tmp_path, FakeJudge))
    assert {example.errors for example in files.examples} == {None}


def test_scores_are_scaled_by_the_bounds_of_the_metric(tmp_path):
    run = run_judge(tmp_path, "copy_rate")
    values = next(iter(metrist.load(run).scores.values())).values
    assert 0 < values.min() < values.max() <= 1
    assert [example.label for example in read_judged_run(run).examples] == pytest.approx(values.tolist())


def test_a_run_that_cannot_be_learned_from_is_refused(tmp_path):
    run = run_judge(tmp_path, FakeJudge)
    metrist.score(tmp_path / "outputs.jsonl", "length", out=run)
    with raises_code(SpecError, "missing_value"):
        read_judged_run(run)
    no_source = [{k: v for k, v in row.items() if k != "source"} for row in make_rows(3)]
    data = write(tmp_path / "bare.jsonl", no_source)
    metrist.score(data, FakeJudge, out=tmp_path / "bare")
    with raises_code(RunError, "no_data"):
        read_judged_run(tmp_path / "bare")


def test_a_model_that_agrees_no_better_than_length_is_reported():
    """Length orders all outputs as the labels do, or as the ratings do if the shorter one is better."""
    rng = np.random.default_rng(0)
    labels, noise = np.arange(60.0), rng.random(60)
    sources = [f"source {number // 2}" for number in range(60)]
    worse: Any = compare_with_length("the labels", labels, noise, labels, sources)
    start = "warning: the trained model agrees with the labels no better than output length alone (the longer"
    assert worse.startswith(start)
    assert f"{spearmanr(noise, labels).statistic:.3f} against 1.000 on 60 outputs of 30 sources" in worse
    assert "too few" not in worse
    shorter: Any = compare_with_length("people's ratings", labels, noise, -labels, sources)
    assert "(the shorter one is better)" in shorter
    few: Any = compare_with_length("the labels", labels[:6], noise[:6], labels[:6], sources[:6])
    assert "that is too few to tell" in few
    near: Any = compare_with_length("the labels", labels, labels + 20 * noise, labels + 25 * rng.random(60), sources)
    assert near.startswith("it is not certain")
    assert compare_with_length("the labels", labels, labels, noise, sources) is None
    assert compare_with_length("people's ratings", np.full(60, np.nan), noise, labels, sources) is None


def test_outputs_in_another_language_teach_only_a_base_that_may_know_it(tmp_path: Path) -> None:
    german = "Der Preis beträgt zehn Euro im Monat und wird nicht mehr von der Bank erhoben."
    english = "The price is ten euros a month and it is not raised by the bank any more."
    rows = [
        {"item": str(n), "system": "a", "source": text, "output": text, "ratings": {"consistency": [n % 2]}}
        for n, text in enumerate([german, english, german, english])
    ]
    data = write(tmp_path / "mixed.jsonl", rows)
    shipped = read_support_examples([data], base="metrist:english-small")
    assert [example.output for example in shipped.examples] == [english, english]
    assert shipped.notes[-1] == "2 outputs left out: metrist:english-small knows only English"
    assert len(read_support_examples([data], base="own-model").examples) == 4
    only = write(tmp_path / "german.jsonl", [rows[0], rows[2]])
    with raises_code(InputError, "no_data", "metrist:english-small"):
        read_support_examples([only])
