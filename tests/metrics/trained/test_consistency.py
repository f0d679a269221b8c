"""The consistency metric. The stand-in model is that of test_support: it looks for the words of a sentence in the
window."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from test_support import MarkingOverlap, Overlap, make_text

from error_codes import raises_code
from metrist.errors import SpecError
from metrist.metrics import model_metric
from metrist.metrics.base import Metric, Shard
from metrist.metrics.errors.aspect_tables import shipped_tables
from metrist.metrics.errors.combined import Errors
from metrist.metrics.registry import build
from metrist.metrics.trained import consistency as module
from metrist.metrics.trained.consistency import Consistency
from metrist.metrics.trained.quality import Quality
from metrist.records import Record
from metrist.scores import FailureKind

SOURCE = "w3000 w3001 w3002 w3003. w3004 w3005 w3006. w3007 w3008 w3009 w3010 w3011."
#: The logits of the stand-in: 4 if all words are there, else minus the number of missing ones.
ALL, ONE_MISSING, TWO_MISSING = (1 / (1 + np.exp(-logit)) for logit in (4, -1, -2))


@pytest.fixture(autouse=True)
def model(monkeypatch):
    encoder = Overlap()
    monkeypatch.setattr(module, "load_text_encoder", lambda *_, **__: encoder)
    return encoder


def make_record(output, source=SOURCE, **more):
    return Record(item="1", system="a", output=output, source=source, **more)


#: What the stand-in is unsure about is unsupported.
EVEN = Consistency(threshold=0.5)


def score(*outputs, metric=EVEN, **more):
    return metric.score(Shard([make_record(output, **more) for output in outputs]))


def test_metrics_that_read_with_one_model_read_an_output_once(monkeypatch):
    read = []

    def count(self, pairs, own=module.SupportReader.read):
        read.extend(pairs)
        return own(self, pairs)

    monkeypatch.setattr(module.SupportReader, "read", count)
    others: dict[str, Metric] = {name: build("length") for name in ("likelihood", "preference(model='small')")}
    monkeypatch.setattr(Quality, "components", {"consistency": Consistency(), **others})
    parts: dict[str, Metric] = {"consistency": Consistency(threshold=0.05)}
    parts |= {name: build("length") for name in ("fluency", "fluency beside another model")}
    monkeypatch.setattr(Errors, "components", parts)
    records = [make_record(f"w3000 w300{n}.", task="summarization") for n in range(6)]
    shard = Shard(records)
    first, *_, last = [metric.score(shard) for metric in (Consistency(), Quality(), Errors(), Consistency())]
    assert len(read) == 6
    np.testing.assert_array_equal(first.values, last.values)
    Consistency(window=200).score(shard)
    assert len(read) == 12


def test_the_value_is_the_mean_and_the_parts_say_what_it_hides():
    [result] = score("w3000 w3001. w3007 w4999. w3008 w5000 w5001.")
    assert result.value == pytest.approx((ALL + ONE_MISSING + TWO_MISSING) / 3)
    expected = {"sentences": 3, "supported": 1, "mean": result.value, "minimum": TWO_MISSING}
    assert dict(result.parts) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("mean", (ALL + ONE_MISSING) / 2),
        ("geometric_mean", np.sqrt(ALL * ONE_MISSING)),
        ("minimum", ONE_MISSING),
        ("product", ALL * ONE_MISSING),
    ],
)
def test_aggregations(aggregation, expected):
    [result] = score("w3000 w3001. w3007 w4999.", metric=Consistency(aggregation=aggregation))
    assert result.value == pytest.approx(expected)
    assert result.parts["mean"] == pytest.approx((ALL + ONE_MISSING) / 2)


def test_unsupported_sentences_are_errors_with_places_and_evidence():
    output = " w3000 w3001 .\n\nw3007 w3008  w4999. w3004 w5000 w5001 w5002 w5003 w5004 w5005 w5006."
    [result] = score(output, metric=Consistency(threshold=0.3))
    first, second = result.errors
    assert [output[e.start : e.end] for e in result.errors] == [e.text for e in result.errors]
    assert first.text == "w3007 w3008  w4999."
    assert (first.side, first.aspect) == ("output", "Fact Consistency")
    assert (first.severity, second.severity) == ("minor", "major")
    # 0.5 at the threshold, 5 at probability 0, in proportion between them.
    assert first.penalty == pytest.approx(0.5 + 4.5 * (1 - ONE_MISSING / 0.3), abs=0.005)
    assert second.penalty == pytest.approx(5, abs=0.01)
    start = SOURCE.index("w3007")
    assert f"characters {start} to {len(SOURCE)} of the source" in first.explanation
    assert SOURCE[start:] in first.explanation
    assert "w3004 w3005 w3006." in second.explanation


def test_a_sentence_without_a_word_of_the_source_has_no_evidence():
    [result] = score("w5000 w5001.")
    assert "No passage" in result.errors[0].explanation


def test_long_evidence_is_cut_and_lies_on_one_line():
    source = "w3000 \n " + " ".join(f"w{n}" for n in range(5, 500)) + "\x00"
    [result] = score("w3000 w5000.", source=source)
    explanation = result.errors[0].explanation
    assert "\n" not in explanation
    assert len(explanation) < 500


def test_the_aspect_is_that_of_the_table_of_the_task():
    for task, table in shipped_tables().items():
        [result] = score("w5000.", task=task)
        aspect = result.errors[0].aspect
        assert aspect in table.names or not {"Fact Consistency", "Accuracy"} & set(table.names)
    [result] = score("w5000.", task="juggling")
    assert result.errors[0].aspect == "Fact Consistency"


def test_the_threshold_decides_which_sentences_are_errors():
    [strict] = score("w3007 w4999.", metric=Consistency(threshold=0.99))
    [mild] = score("w3007 w4999.", metric=Consistency(threshold=0.1))
    assert strict.value == mild.value
    assert (len(strict.errors), len(mild.errors)) == (1, 0)
    assert (strict.parts["supported"], mild.parts["supported"]) == (0, 1)


@pytest.mark.parametrize(("output", "source"), [("", "w5"), (" \n", "w5"), ("w5", ""), ("w5", "  "), ("...", "w5")])
def test_empty_texts_fail_with_a_reason(output, source):
    [result] = score(output, source=source)
    assert np.isnan(result.value)
    assert result.failure
    assert (result.failure.kind is FailureKind.missing_input) == (output != "...")


def test_failures_do_not_move_the_other_scores():
    results = score("", "w3000.", "...", "w4999.")
    assert [i for i in range(4) if results[i].failure] == [0, 2]
    assert results.values[[1, 3]].tolist() == pytest.approx([ALL, ONE_MISSING])
    assert list(results.errors) == [3]


def test_sources_are_read_in_groups_that_fit_into_memory(monkeypatch):
    rng = random.Random(3)
    records = [make_record(make_text(rng, 2), make_text(rng, 12)) for _ in range(7)]
    whole = Consistency().score(Shard(records))
    monkeypatch.setattr(module, "_SOURCE_CHARACTERS", 1500)
    np.testing.assert_array_equal(Consistency().score(Shard(records)).values, whole.values)


def test_remarks_count_what_is_unsupported():
    scores = score("w3000. w4999. w5000.", "w3000.", "w4999.", "")
    [remark] = Consistency().remarks(scores)
    assert "3 of 5 sentences in 2 outputs are unlikely" in remark
    [remark] = Consistency().remarks(score("w3000. w4999."))
    assert "1 of 2 sentences in 1 output is unlikely" in remark
    assert Consistency().remarks(score("w3000.")) == []
    assert Consistency().remarks(score("")) == []


def test_another_language_is_noted():
    german = make_record("Der Hund ist nicht mit der Katze auf dem Dach, und sie sind auch nicht im Haus.")
    [note] = Consistency().describe_misuse([german] * 5)
    assert "German" in note
    assert Consistency(model="my-folder").describe_misuse([german] * 5) == []
    assert Consistency().describe_misuse([make_record("The dog is on the roof, and it was there before.")] * 5) == []


def test_short_names_of_models_are_the_models_that_ship():
    assert Consistency(model="large") == Consistency(model="metrist:english-large")
    assert build("consistency(model='small')").text == "consistency"


def test_scores_by_other_rules_have_another_signature(monkeypatch):
    monkeypatch.setattr(model_metric, "find_weights", lambda _: SimpleNamespace(fingerprint="abc"))
    # Scores before numbers were compared as values have no such fact.
    assert Consistency().facts() == {"weights": "abc", "rules": "3"}
    assert Consistency().signature.endswith("weights abc | rules 3")


@pytest.mark.parametrize(
    ("output", "source"),
    [
        ("Der Preis beträgt 30 Euro im Monat.", SOURCE),
        ("w3000 w3001.", "Der Tarif kostet im Monat 30 Euro, und das ist für alle Kunden der Preis."),
        ("价格是三十欧元。", SOURCE),
    ],
)
def test_what_the_model_cannot_read_is_left_out(model, output, source):
    left, kept = EVEN.score(Shard([make_record(output, source), make_record("w4999.")]))
    assert left.failure is not None
    assert left.failure.kind is FailureKind.other
    assert "English" in left.failure
    assert left.errors == ()
    assert kept.errors
    assert len(model.calls) == 1
    # What a model of one's own knows is not known here.
    [own] = Consistency(model="my-folder").score(Shard([make_record(output, source)]))
    assert own.failure is None or "English" not in own.failure


def test_a_question_is_no_source():
    question, passage = score("w3000.", source="Which w3000 has w3001?"), score("w3000.", source="w3000? w3000 w3001.")
    [failed], [scored] = question, passage
    assert failed.failure is not None
    assert (failed.failure.kind, scored.failure) == (FailureKind.missing_input, None)


def test_another_value_for_the_same_thing_is_unsupported():
    source = "w3000 w3001 costs €30 w3002. w3003 has 5 lamps."
    wrong, right, other = score(
        "w3000 w3001 costs €60 w3002.", "w3000 w3001 costs 30 euros w3002.", "w3003 is 60 years.", source=source
    )
    assert wrong.value <= 0.05
    [error] = wrong.errors
    assert (error.text, error.revision, error.severity) == ("€60", "€30", "major")
    assert "The source says “€30”, not “€60”" in error.explanation
    assert (error.source_start, error.source_end) == (0, source.index(".") + 1)
    # The model reads what the source has.
    assert (right.value, right.errors) == (pytest.approx(ALL), ())
    assert other.value > 0.05


@pytest.mark.parametrize(("logit", "words"), [(-0.5, "unlikely"), (0.5, "may not")])
def test_claims_fit_their_probabilities(monkeypatch, logit, words):
    encoder = Overlap()
    monkeypatch.setattr(module, "load_text_encoder", lambda *_, **__: encoder)
    monkeypatch.setattr(encoder, "score_spans", lambda _, __, spans: [np.full(len(own), logit) for own in spans])
    [result] = score("w3000 w5000.", metric=Consistency(threshold=0.99))
    assert words in result.errors[0].explanation


def test_remarks_leave_marks_in_supported_sentences_out(monkeypatch):
    monkeypatch.setattr(module, "load_text_encoder", lambda *_, **__: MarkingOverlap())
    # The first output is supported as a whole and has a mark.
    metric = replace(EVEN, supported_words=True)
    scores = score("w3000 w3001 w3002 w3003 w3004 w3005 w5000.", "w4999. w3000.", metric=metric)
    assert len(scores.errors) == 2
    [remark] = Consistency().remarks(scores)
    assert "1 of 3 sentences in 1 output is unlikely" in remark


@pytest.mark.parametrize(
    ("settings", "value"),
    [({"threshold": 0.0}, "0.0"), ({"threshold": 1.0}, "1.0"), ({"window": 127}, "127")],
)
def test_impossible_settings_are_refused(settings, value):
    with raises_code(SpecError, "invalid_value", *settings, value):
        replace(Consistency(), **settings)


@pytest.fixture
def marking(monkeypatch):
    encoder = MarkingOverlap()
    monkeypatch.setattr(module, "load_text_encoder", lambda *_, **__: encoder)
    return encoder


def test_words_are_marked_if_the_model_has_a_head_for_them(marking):
    output = "w3000 w5000 w5001 w3001 w5002. w3004 w3005."
    [result] = score(output)
    assert [error.text for error in result.errors] == ["w5000 w5001", "w5002"]
    assert all(output[error.start : error.end] == error.text for error in result.errors)
    assert all("these words (probability 0.05)" in error.explanation for error in result.errors)
    assert "“w5002” occurs nowhere" in result.errors[1].explanation
    assert {(error.source_start, error.source_end) for error in result.errors} == {(0, SOURCE.index(".") + 1)}
    assert result.parts["supported"] == 1
    assert len(marking.calls) == 1


@pytest.mark.parametrize(
    ("output", "marked"),
    [
        ("w3000 w3001 $9.99.", "$9.99"),
        ("w3000 w3001 4.5 million.", "4.5 million"),
        ("w3000 60% w3001.", "60%"),
        ("w3000 w3001 12 May 2021.", "12 May 2021"),
    ],
)
@pytest.mark.usefixtures("marking")
def test_marks_have_whole_numbers(output, marked):
    # Its tokens are unknown to the stand-in, and the full stop within it is not: "9" and "99" would be two marks.
    [result] = score(output)
    assert [error.text for error in result.errors] == [marked]


@pytest.mark.usefixtures("marking")
def test_a_supported_sentence_is_marked_only_where_the_model_is_very_sure():
    # Six words of seven are there, so that the sentence is supported as a whole; the probability of the other is .95.
    output = "w3000 w3001 w3002 w3003 w3004 w3005 w5000."
    metric = replace(EVEN, supported_words=True)
    [result] = score(output, metric=metric)
    assert result.parts["supported"] == 1
    [error] = result.errors
    assert (error.text, error.severity) == ("w5000", "minor")
    assert error.penalty < 2.5
    [plain] = score(output)
    assert (plain.value, plain.errors) == (result.value, ())
    # Data have no words for what their values mean.
    [data] = score(output, metric=metric, source="w3000 = w3001 | w3002 = w3003 | w3004 = w3005")
    assert (data.parts["supported"], data.errors) == (1, ())
    [strict] = score(output, metric=Consistency(threshold=0.8))
    assert strict.parts["supported"] == 0
    assert [error.text for error in strict.errors] == ["w5000"]


def test_a_sentence_in_which_no_word_stands_out_is_marked_as_a_whole(marking, monkeypatch):
    monkeypatch.setattr(
        marking, "score_tokens", lambda _, sequences: [np.full((first, 2), [-2.0, -1.0]) for _, first in sequences]
    )
    output = "w3000 w3001. w3004 w3005."
    [result] = score(output)
    assert [error.text for error in result.errors] == ["w3000 w3001.", "w3004 w3005."]


def test_punctuation_alone_is_not_marked(marking, monkeypatch):
    def mark_points(_, sequences):
        return [np.array([[-2.0, 3.0 if i == 4 else -3.0] for i in ids[:first].tolist()]) for ids, first in sequences]

    monkeypatch.setattr(marking, "score_tokens", mark_points)
    [result] = score("w3000 w3001.")
    assert [error.text for error in result.errors] == ["w3000 w3001."]


def test_explanations_say_what_the_source_has_instead():
    # The stand-in knows no numbers; nothing is sure enough for this threshold.
    metric = Consistency(threshold=0.99)
    [result] = score("w3000 w3001 in 1999.", source="w3000 w3001 in 1998. w3007 w3008.", metric=metric)
    [error] = result.errors
    assert "The source says “1998”, not “1999” (characters 15 to 19)." in error.explanation
    assert (error.text, error.revision) == ("1999", "1998")
    assert (error.source_start, error.source_end) == (0, 20)
