"""The metric that was learned from preferences, with tiny random models. The expected values come from the models
themselves, asked by hand."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny_models
import tiny_rewards
from error_codes import raises_code
from metrist import criteria
from metrist.errors import ModelError, SpecError
from metrist.metrics.base import Shard
from metrist.metrics.comparator import build_comparator
from metrist.metrics.registry import build
from metrist.metrics.trained.preference import PreferenceMetric, remove_speakers
from metrist.models import loading
from metrist.models.devices import Options
from metrist.models.reward_layout import RewardInput, RewardLayout, RewardSettings
from metrist.records import Pair, Record

FULL = Record(item="1", system="a", output="the cat sat", source="a small cat", instruction="summary of it")
#: What some criteria of the HEAP suite are about.
TOLD = ("narrative", "question", "answer")
BARE = Record(item="1", system="b", output="the dog ran")


def _with_fields(*fields: str) -> str:
    return next(one.code for one in criteria.suite("heap").criteria if one.fields == fields)


@pytest.fixture(scope="module")
def model(tiny, tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("preference") / "one"
    learned = {"overall": "is it very good ?", "CNO": "is it bad ?", _with_fields(*TOLD): "is it not bad ?"}
    return str(tiny_rewards.plain(tiny("bert"), folder, criteria=learned, centre=0.5, spread=2.0))


@pytest.fixture(scope="module")
def other(tiny, tmp_path_factory) -> str:
    return str(tiny_rewards.plain(tiny("bert"), tmp_path_factory.mktemp("preference") / "other", seed=11))


def raw(model: str, instruction: str, *fields: tuple[str, str]) -> float:
    return float(loading.load_reward(Options(model=model)).rewards([RewardInput(instruction, fields)]).values[0])


def scored(metric: PreferenceMetric, *records: Record):
    return metric.score(Shard(records))


def test_the_score_is_the_reward_in_units_of_the_training_answers(model):
    (score,) = scored(PreferenceMetric(model=model), FULL)
    expected = raw(
        model,
        "is it very good ?",
        ("instruction", "summary of it"),
        ("source", "a small cat"),
        ("output", "the cat sat"),
    )
    assert score.parts["reward"] == expected
    assert score.value == pytest.approx((expected - 0.5) / 2)


def test_a_criterion_that_was_not_learned_is_asked_for_in_its_own_words(model):
    (score,) = scored(PreferenceMetric(model=model, criterion="grammaticality"), FULL)
    # It is about the output alone.
    expected = raw(model, criteria.find("grammaticality").instruction, ("output", "the cat sat"))
    assert score.parts["reward"] == expected


def test_an_instruction_of_the_users_own_is_taken_as_it_is(model):
    (score,) = scored(PreferenceMetric(model=model, instruction="is it new ?", context=("source",)), FULL)
    assert score.parts["reward"] == raw(model, "is it new ?", ("source", "a small cat"), ("output", "the cat sat"))


def test_a_criterion_of_a_data_set_reads_the_columns_that_it_came_with(model):
    record = replace(FULL, extra={"narrative": "he ran", "question": "to london ?"})
    metric = PreferenceMetric(model=model, criterion=_with_fields(*TOLD))
    (score,) = scored(metric, record)
    answer = ("answer", "the cat sat")
    assert score.parts["reward"] == raw(
        model, "is it not bad ?", ("narrative", "he ran"), ("question", "to london ?"), answer
    )
    (score,) = scored(metric, replace(FULL, instruction=None, extra={"narrative": "he ran"}))
    assert score.parts["reward"] == raw(model, "is it not bad ?", ("source", "a small cat"), answer)


def test_any_column_and_the_first_reference_can_be_the_context(model):
    metric = PreferenceMetric(model=model, instruction="good ?", context=("references", "mood", "absent"))
    (score,) = scored(metric, replace(FULL, references=("", "a dog", "a cat"), extra={"mood": "bad", "absent": 3}))
    context = [("reference", "a dog"), ("mood", "bad")]
    assert score.parts["reward"] == raw(model, "good ?", *context, ("output", "the cat sat"))


def test_an_opposite_criterion_scores_what_it_is_called_and_less_is_better(model):
    metric = PreferenceMetric(model=model, criterion="cno")
    assert metric.text == f"preference(model={model!r}, criterion='CNO')"
    assert metric.higher_is_better is False
    assert PreferenceMetric(model=model).higher_is_better is True
    (score,) = scored(metric, FULL)
    answer = criteria.find("CNO").answer
    context = (("instruction", "summary of it"), ("source", "a small cat"))
    assert score.parts["reward"] == raw(model, "is it bad ?", *context, (answer, "the cat sat"))


def test_several_models_give_their_mean_and_how_far_they_lie_apart(model, other):
    metric = PreferenceMetric(model=(model, other), criterion="fluency")
    (score,) = scored(metric, FULL)
    each = [scored(PreferenceMetric(model=one, criterion="fluency"), FULL)[0] for one in (model, other)]
    # Their means of training answers are 0.5 and 0, the standard deviations 2 and 1.
    assert score.value == pytest.approx((np.mean([one.parts["reward"] for one in each]) - 0.25) / 1.5)
    assert score.parts["spread"] == pytest.approx(abs(each[0].value - each[1].value) / 2**0.5)
    assert [score.parts["reward_1"], score.parts["reward_2"]] == [one.parts["reward"] for one in each]
    assert build(metric.text) == metric
    both = dict(fact.split(" ", 1) for fact in metric.signature.split(" | ")[1:])["weights"]
    assert both == ", ".join(PreferenceMetric(model=one).facts()["weights"] for one in (model, other))


def test_an_empty_output_fails_and_the_others_are_scored(model):
    scores = scored(PreferenceMetric(model=model), replace(FULL, output=" \n"), FULL)
    assert scores.failures == {0: "the output is empty: there is nothing to prefer"}
    assert scores.values[1] == scored(PreferenceMetric(model=model), FULL).values[0]
    assert scored(PreferenceMetric(model=model), replace(FULL, output="")).failures[0]


def test_records_without_the_context_that_the_criterion_is_about_are_counted(model):
    metric = PreferenceMetric(model=model)
    remarks = metric.remarks(scored(metric, FULL, BARE))
    assert remarks == [
        f"{metric.text}: 1 of 2 outputs has no source or other context for 'overall', and was judged without"
    ]
    mood = PreferenceMetric(model=model, context=("mood", "source"))
    assert mood.remarks(scored(mood, FULL, BARE)) == [
        f"{mood.text}: 1 of 2 outputs has no mood or source, and was judged without"
    ]
    fluency = PreferenceMetric(model=model, criterion="fluency")
    # It is about the output alone.
    assert "context" not in " ".join(fluency.remarks(scored(fluency, FULL, BARE)))


def test_a_criterion_that_was_not_learned_is_reported_with_the_model(model, other, taught):
    fluency = PreferenceMetric(model=model, criterion="fluency")
    scores = scored(fluency, FULL, BARE)
    assert scores[0].parts["unlearned"] == 1
    assert fluency.remarks(scores) == [
        f"{fluency.text}: {model} has not learned 'fluency', and judged by the criterion's own wording: take the "
        "scores for a guess"
    ]
    three = PreferenceMetric(model=(model, taught, other), criterion="fluency")
    remarks = three.remarks(scored(three, FULL))
    assert len(remarks) == 2
    assert [name for name in (model, taught, other) if any(f": {name} has not" in one for one in remarks)] == [
        model,
        other,
    ]


def test_an_instruction_that_was_not_learned_is_reported_with_the_model(model):
    metric = PreferenceMetric(model=model, criterion="fluency", instruction="is it new ?")
    scores = scored(metric, FULL)
    assert scores[0].parts["unlearned"] == 1
    assert metric.remarks(scores) == [
        f"{metric.text}: {model} has not learned this instruction, and follows it as far as it resembles those that it "
        "has learned: take the scores for a guess"
    ]


def test_nothing_is_reported_where_the_criterion_or_the_instruction_was_learned(model):
    learned = RewardSettings.read(Path(model), model).criteria["CNO"]
    for metric in (
        PreferenceMetric(model=model, criterion="CNO"),
        PreferenceMetric(model=model, criterion="fluency", instruction=learned),
        PreferenceMetric(model=model, criterion="fluency", instruction=criteria.find("CNO").instructions[-1]),
    ):
        scores = scored(metric, FULL)
        assert "unlearned" not in scores.parts
        assert metric.remarks(scores) == []
        assert metric.remarks(scored(metric, replace(FULL, output=""))) == []


def test_other_languages_get_a_warning_of_the_shipped_models_only(model):
    german = Record(item="1", system="a", output="Der Rat hat sich am Montag getroffen und über die Brücke beraten.")
    assert "German" in PreferenceMetric().describe_misuse([german] * 4)[0]
    assert PreferenceMetric(model=model).describe_misuse([german] * 4) == []


def test_texts_that_are_too_long_are_counted(model):
    metric = PreferenceMetric(model=model)
    remarks = metric.remarks(scored(metric, FULL, replace(FULL, source="cat " * 100)))
    assert len(remarks) == 1
    assert "1 of 2 outputs had texts too long for the model" in remarks[0]


def sigmoid(x: float) -> float:
    return 1 / (1 + np.exp(-x))


def test_of_two_outputs_the_one_with_the_higher_reward_is_preferred(model):
    metric = PreferenceMetric(model=model)
    (judgment,) = build_comparator(metric).prefer([Pair(first=FULL, second=BARE)])
    first, second = (score.parts["reward"] for score in scored(metric, FULL, BARE))
    assert judgment.preference == ("first" if first > second else "second")
    assert str(judgment.explanation).endswith(
        f"the first is better with a probability of {sigmoid(first - second):.3f}"
    )
    (same,) = build_comparator(metric).prefer([Pair(first=FULL, second=replace(FULL, system="b"))])
    assert same.preference == "tie"
    assert str(same.explanation).endswith("a probability of 0.500")


def test_where_less_is_better_the_lower_reward_is_preferred(model):
    metric = PreferenceMetric(model=model, criterion="CNO")
    (judgment,) = build_comparator(metric).prefer([Pair(first=FULL, second=BARE)])
    first, second = (score.parts["reward"] for score in scored(metric, FULL, BARE))
    assert judgment.preference == ("first" if first < second else "second")
    assert str(judgment.explanation).endswith(f"a probability of {sigmoid(second - first):.3f}")


def test_an_ensembles_probability_is_that_of_its_mean_reward(model, other):
    metric = PreferenceMetric(model=(model, other))
    (judgment,) = build_comparator(metric).prefer([Pair(first=FULL, second=BARE)])
    leads = [
        np.subtract(*(s.parts["reward"] for s in scored(PreferenceMetric(model=one), FULL, BARE)))
        for one in (model, other)
    ]
    assert str(judgment.explanation).endswith(f"{sigmoid(np.mean(leads)):.3f}")


def test_an_ensembles_choice_and_its_probability_never_contradict_each_other(tiny, tmp_path):
    """Of models that disagree, one in a unit a hundred times as large, and of one's mean or the other's."""
    models = tuple(
        str(tiny_rewards.plain(tiny("bert"), tmp_path / str(seed), seed=seed, spread=spread))
        for seed, spread in ((3, 10.0), (11, 0.1))
    )
    rng = random.Random(2)
    records = [
        Record(item="1", system=str(at), output=" ".join(rng.choices(tiny_models.WORDS, k=5))) for at in range(40)
    ]
    pairs = [Pair(first=one, second=other) for one, other in pairwise(records)]
    chosen = set()
    for judgment in build_comparator(PreferenceMetric(model=models)).prefer(pairs):
        sure = float(str(judgment.explanation).rsplit(" ", 1)[1])
        assert sure >= 0.5 if judgment.preference == "first" else sure <= 0.5
        chosen.add(judgment.preference)
    assert chosen == {"first", "second"}


@pytest.fixture(scope="module")
def taught(tiny, tmp_path_factory) -> str:
    """A model that learned criteria each with something else before the answer; labels tell."""
    fields = {
        "overall": ("output",),
        "fluency": ("source", "summary"),
        "Coherence": ("dialogue", "response"),
        "correctness": ("reference", "translation"),
        "politeness": ("instruction", "mood", "reply"),
    }
    learned = {**dict.fromkeys(fields, "is it good ?"), "correctness": "", "relevance": "is it new ?"}
    folder = tmp_path_factory.mktemp("preference") / "taught"
    return str(
        tiny_rewards.plain(tiny("bert"), folder, criteria=learned, fields=fields, layout=RewardLayout(labelled=True))
    )


TALK = replace(FULL, references=("a small dog", "dogs"), extra={"mood": "bad"})
SOURCE = "a small cat"


@pytest.mark.parametrize(
    ("criterion", "record", "shown"),
    [
        ("overall", TALK, [("output", "the cat sat")]),
        ("fluency", TALK, [("source", SOURCE), ("summary", "the cat sat")]),
        # The table knows it in small letters; the record's source stands for a dialogue.
        ("Coherence", TALK, [("dialogue", SOURCE), ("response", "the cat sat")]),
        (
            "coherence",
            replace(TALK, extra={"dialogue": "he ran"}),
            [("dialogue", "he ran"), ("response", "the cat sat")],
        ),
        ("fluency", replace(TALK, source=None), [("source", "summary of it"), ("summary", "the cat sat")]),
        ("correctness", TALK, [("reference", "a small dog"), ("translation", "the cat sat")]),
        ("correctness", FULL, [("translation", "the cat sat")]),
        ("politeness", TALK, [("instruction", "summary of it"), ("mood", "bad"), ("reply", "the cat sat")]),
        ("politeness", FULL, [("instruction", "summary of it"), ("mood", SOURCE), ("reply", "the cat sat")]),
        ("politeness", BARE, [("reply", "the dog ran")]),
        # Learned by a metrist that did not keep what was shown: as for one that was not learned.
        ("relevance", FULL, [("instruction", "summary of it"), ("source", SOURCE), ("output", "the cat sat")]),
    ],
)
def test_a_model_is_shown_what_it_learned_a_criterion_with(taught, criterion, record, shown):
    instruction = {"correctness": "", "relevance": "is it new ?"}.get(criterion, "is it good ?")
    (score,) = scored(PreferenceMetric(model=taught, criterion=criterion), record)
    assert score.parts["reward"] == pytest.approx(raw(taught, instruction, *shown), abs=1e-5)
    expected = criterion != "overall"
    assert score.parts.get("no_context") == (float(len(shown) == 1) if expected else None)


def test_the_users_own_context_comes_before_the_learned_one(taught):
    (score,) = scored(PreferenceMetric(model=taught, criterion="fluency", context=("mood",)), TALK)
    assert score.parts["reward"] == raw(taught, "is it good ?", ("mood", "bad"), ("summary", "the cat sat"))


def test_an_ensemble_of_equal_weights_under_two_names_is_refused(model):
    again = str(Path(model).parent / "." / Path(model).name) + "/"
    with raises_code(SpecError, "invalid_value", "different"):
        PreferenceMetric(model=(model, again)).facts()


def test_each_model_of_an_ensemble_is_shown_what_it_learned(taught, model):
    (score,) = scored(PreferenceMetric(model=(taught, model)), FULL)
    each = [scored(PreferenceMetric(model=one), FULL)[0].parts["reward"] for one in (taught, model)]
    assert [score.parts["reward_1"], score.parts["reward_2"]] == each


def test_a_criterion_that_only_the_model_knows_is_taken(taught):
    metric = build(f"preference(model={taught!r}, criterion='politeness')")
    assert metric.higher_is_better is True
    assert build(metric.text) == metric
    assert metric.facts() == PreferenceMetric(model=taught).facts()


def test_a_criterion_that_nobody_knows_is_refused_before_anything_is_scored(taught, model):
    learned = "overall, fluency, Coherence, correctness, politeness, relevance"
    metric = build(f"preference(model={taught!r}, criterion='politness')")
    for look in (metric.facts, lambda: scored(metric, FULL)):
        with raises_code(SpecError, "unknown_name", "'politness'", "did you mean 'politeness'", "taught", learned):
            look()
    with raises_code(SpecError, "unknown_name", "'politeness'"):
        PreferenceMetric(model=(taught, model), criterion="politeness").facts()


@pytest.mark.parametrize(
    ("text", "setting", "value"),
    [
        ("preference(model=[])", "model", "()"),
        ("preference(model=['a', 'a'])", "models", "['a', 'a']"),
        ("preference(model='')", "model", "''"),
        ("preference(model=['a', ' '])", "model", "('a', ' ')"),
        ("preference(model='a', instruction=' ')", "instruction", ""),
        ("preference(model='a', context='source')", "context", "'source'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(text, setting, value):
    with raises_code(SpecError, "invalid_value", setting, value):
        build(text)


def test_one_model_in_a_list_is_that_model():
    assert build("preference(model=['a'])") == PreferenceMetric(model="a")


def test_a_model_that_knows_no_preferences_is_refused(tiny):
    with raises_code(ModelError, "invalid_value", "reward.json"):
        scored(PreferenceMetric(model=str(tiny("bert"))), FULL)


def test_torch_and_plain_form_of_a_model_give_the_same_scores(model):
    in_torch = str(Path(model).with_name("one-torch"))
    plain, theirs = (scored(PreferenceMetric(model=one), FULL, BARE).values for one in (model, in_torch))
    np.testing.assert_allclose(plain, theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("System: Fine.", "Fine."),
        ("human : Fine.\n\nASSISTANT: Good.", "Fine.\n\nGood."),
        ("A: Yes.\nB: No.\nA: Oh.", "Yes.\nNo.\nOh."),
        ("Speaker 1: Yes.\nSpeaker B: No.\nPerson2: Oh.", "Yes.\nNo.\nOh."),
        ("Anna: Yes.", "Anna: Yes."),
        ("The user: it said so.", "The user: it said so."),
        ("a: b", "a: b"),
        ("I use the system: it works.", "I use the system: it works."),
        ("", ""),
    ],
)
def test_labels_at_the_beginning_of_lines_are_removed(text, plain):
    dialogue = remove_speakers(replace(FULL, output=text, source=text))
    assert (dialogue.output, dialogue.source) == (plain, plain)
    assert remove_speakers(replace(FULL, output=text, source=None)).source is None


def test_the_model_reads_dialogues_without_labels(monkeypatch):
    read: list[Any] = []

    def score_with(_: Any, __: Any, records: Any, ___: Any) -> Any:
        read.extend(records)
        raise InterruptedError

    monkeypatch.setattr(PreferenceMetric, "_score_with", score_with)
    dialogue = replace(FULL, output="System: Fine.", source="User: Hi!\nSystem: What's up?\nUser: Not much.")
    for task in ("dialogue", "dialog/fed", "summarization", None):
        with pytest.raises(InterruptedError):
            scored(PreferenceMetric(), replace(dialogue, task=task))
    assert [record.output for record in read] == ["Fine.", "Fine.", "System: Fine.", "System: Fine."]
    assert read[0].source == "Hi!\nWhat's up?\nNot much."
