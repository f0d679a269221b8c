"""`quality`: tasks are recognised, parts are combined as the table says, failures and errors pass through; and the
choice of metrics where none is named."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from error_codes import raises_code
from metrist.errors import ModelError, SpecError
from metrist.metrics.agreement import BEST_LEXICAL, DatasetAgreement, load_agreements
from metrist.metrics.base import Shard
from metrist.metrics.registry import build, names
from metrist.metrics.trained import quality
from metrist.metrics.trained.consistency import Consistency
from metrist.metrics.trained.quality import (
    Mixture,
    MixturePart,
    Quality,
    choose_metrics,
    find_mixture,
    infer_task,
    load_mixtures,
    load_withdrawn,
)
from metrist.records import Record
from metrist.scores import FailureKind
from metrist.studies.reproduce.agreement import METRICS_TABLE, make_agreement_table
from metrist.studies.reproduce.figures import DataFolder
from metrist.studies.reproduce.published import read_table_file

ARTICLE = "The council met on Monday to decide about the bridge. " * 12
SUMMARY = Mixture(
    task="summarization",
    needs=("source",),
    basis="learned on news",
    parts=(
        MixturePart(metric="copy_rate", weight=1.0, centre=0.5, spread=0.25),
        MixturePart(metric="distinct", weight=0.5, centre=1.0, spread=0.5),
    ),
    left_out={"length": "it says nothing"},
)
GENERAL = Mixture(
    task="general",
    needs=(),
    basis="measured",
    parts=(MixturePart(metric="distinct", weight=1.0, centre=0.5, spread=0.1),),
)
TRANSLATION = Mixture(
    task="translation",
    needs=("source", "references"),
    basis="b",
    parts=(MixturePart(metric="chrf", weight=1, centre=50, spread=20),),
)


@pytest.fixture(autouse=True)
def mixtures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of cheap metrics, except for tests of the table that ships."""
    if "shipped" not in request.node.name:
        monkeypatch.setattr(quality, "load_mixtures", lambda: (SUMMARY, TRANSLATION, GENERAL))
        monkeypatch.setattr(quality, "load_withdrawn", dict)


def make_record(output: str = "a b c d", **fields: object) -> Record:
    return Record(item="1", system="s", output=output, **fields)


@pytest.mark.parametrize(
    ("fields", "task"),
    [
        ({"task": "Summarisation", "source": "short"}, "summarization"),
        ({"task": "opinion_summarization/books"}, "opinion_summarization"),
        ({"task": "opinion"}, "general"),
        ({"source": ARTICLE}, "summarization"),
        ({"source": "Ein kurzer Satz.", "language": "de-en"}, "translation"),
        ({"source": "Это короткое предложение."}, "translation"),
        ({"source": "User: hello\nSystem: hi\nUser: what now?"}, "dialogue"),
        ({"source": ARTICLE, "instruction": "Who met?"}, "general"),
        ({"source": "What is a b?", "language": "en-en"}, "general"),
        ({}, "general"),
    ],
)
def test_the_task_is_declared_or_guessed(fields: dict[str, object], task: str) -> None:
    assert infer_task(make_record(**fields))[0] == task


def test_parts_are_combined_as_the_mixture_says() -> None:
    record = make_record("The council met on Friday", source=ARTICLE)
    (score,) = Quality().score(Shard([record]))
    copied, distinct = score.parts["copy_rate"], score.parts["distinct"]
    assert (copied, distinct) == (0.75, 1.0)
    expected = 1 / (1 + math.exp(-(1.0 * (copied - 0.5) / 0.25 + 0.5 * (distinct - 1.0) / 0.5)))
    assert score.value == pytest.approx(expected)
    assert score.explanation == "summarization: copy_rate 0.75, distinct 1"


def test_each_record_has_the_mixture_of_its_own_task_and_companions_change_nothing() -> None:
    records = [make_record("The council met", source=ARTICLE), make_record("a b a b"), make_record("", source=ARTICLE)]
    metric = Quality()
    together = metric.score(Shard(records))
    assert [score.failure is None for score in together] == [True, True, False]
    assert np.isnan(together.parts["copy_rate"][1])
    for record, score in zip(records, together, strict=True):
        (alone,) = metric.score(Shard([record]))
        assert (alone.value, alone.failure) == pytest.approx((score.value, score.failure), nan_ok=True)


def test_a_size_selects_its_own_mixtures_and_parts_keep_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    large = replace(SUMMARY, size="large", parts=(replace(SUMMARY.parts[0], metric="copy_rate(order=3)"),))
    monkeypatch.setattr(quality, "load_mixtures", lambda: (SUMMARY, GENERAL, large))
    record = make_record("The council met on Friday", source=ARTICLE)
    metric = Quality(size="large")
    (score,) = metric.score(Shard([record]))
    copied = score.parts["copy_rate"]
    assert copied == pytest.approx(2 / 3)
    assert score.value == pytest.approx(1 / (1 + math.exp(-(copied - 0.5) / 0.25)))
    assert list(metric.aspect_parts) == ["copy_rate"]
    assert metric.choose(make_record()) is None  # There is no large mixture for any task here.
    assert Quality().choose(record) is SUMMARY
    with raises_code(SpecError, "invalid_value", "'small'", "'large'", "'big'"):
        build("quality(size='big')")


def test_a_part_that_fails_is_a_failure_with_its_reason() -> None:
    (score,) = Quality().score(Shard([make_record("word", source=ARTICLE)]))
    assert score.failure is not None
    assert score.failure.kind is FailureKind.missing_input
    assert score.failure.startswith("copy_rate: the output has no sequence of 2 words")


def test_a_record_without_what_its_task_needs_says_so() -> None:
    (score,) = Quality(task="translation").score(Shard([make_record(source="Ein Satz.", language="de-en")]))
    assert score.failure is not None
    assert (score.failure.kind, str(score.failure)) == (
        FailureKind.missing_input,
        "quality of translation needs references",
    )


def test_a_record_without_the_source_of_its_task_has_no_quality() -> None:
    for record in (make_record(task="summarization"), make_record(task="summarization", source=" ")):
        assert find_mixture("summarization", record) is None
        (score,) = Quality().score(Shard([record]))
        assert str(score.failure) == "quality of summarization needs source"


def test_the_task_is_a_setting() -> None:

    assert build("quality(task='summarisation')").text == "quality(task='summarization')"
    with raises_code(SpecError, "invalid_value"):
        build("quality(task='cooking')")


def test_an_extreme_part_does_not_overflow() -> None:
    assert GENERAL.combine({"distinct": np.array([-1e9, 1e9])}).tolist() == pytest.approx([0, 1])


def test_records_choose_quality_and_lexical_metrics_with_reasons() -> None:
    choice = choose_metrics(
        [make_record("The council met", source=ARTICLE, references=("The council of the town met twice.",))]
    )
    assert choice.metrics == ("quality", "rougeL", "chrf")
    first, second, third = choice.reasons
    assert first.startswith(
        "quality for summarization (because outputs are far shorter than their sources): copy_rate 67%"
    )
    assert second == "length is left out: it says nothing"
    assert third == "rougeL and chrf: there are references"


@pytest.mark.parametrize("question", ["How much is the plan?", "plan price"])
def test_answers_from_passages_choose_consistency(monkeypatch: pytest.MonkeyPatch, question: str) -> None:
    monkeypatch.setattr(Consistency, "facts", lambda _: {})
    passage = "The basic plan of the shop costs 30 euros a month."
    answer = make_record("It costs 30 euros.", source=passage, instruction=question)
    choice = choose_metrics([answer] * 3)
    assert choice.metrics == ("consistency",)
    assert len(choice.reasons) == 1
    # Few words are the question itself; and other instructions need not rest on a text.
    for other in (replace(answer, source="plan price"), replace(answer, instruction="Write a poem about it.")):
        assert choose_metrics([other] * 3).metrics == ("quality",)


def test_short_references_choose_metrics_of_short_answers() -> None:
    assert choose_metrics([make_record("Paris", references=("Paris",))]).metrics == ("quality", "exact", "token_f1")


def test_mostly_translations_choose_their_usual_metrics() -> None:
    references = ("one of the longer references here is this",)
    translation = make_record("a b", source="Ein Satz.", language="de-en", references=references)
    other = make_record("a b", references=references)
    assert choose_metrics([translation, translation, other]).metrics == ("quality", "chrf", "bleu")
    assert choose_metrics([translation, other]).metrics == ("quality", "rougeL", "chrf")


def test_outputs_in_another_language_do_not_choose_english_models() -> None:
    german = "Der Rat hat sich am Montag getroffen und über die neue Brücke in der Stadt beraten, die nicht sicher ist."
    choice = choose_metrics([make_record(german, references=(german,))] * 4)
    assert choice.metrics == ("rougeL", "chrf")
    assert "many outputs are in German" in choice.reasons[0]
    with raises_code(SpecError, "invalid_value", "German") as caught:
        choose_metrics([make_record(german)] * 4)
    assert "fluency" not in str(caught.value)


def test_outputs_in_another_language_are_left_out_of_a_file_in_english() -> None:
    german = make_record("Der Rat hat sich am Montag getroffen und über die neue Brücke in der Stadt beraten.")
    english = make_record("The council of the town met on Monday and talked about the new bridge that is not safe.")
    records = [german, german, german, english, english]
    assert choose_metrics(records).metrics == ("quality",)
    assert "German" in Quality().describe_misuse(records)[0]
    scores = list(Quality().score(Shard(records)))
    assert [score.failure is None for score in scores] == [False, False, False, True, True]
    assert "German" in str(scores[0].failure)


def test_missing_weights_do_not_choose_quality(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise ModelError("there is no model\nsecond line")

    monkeypatch.setattr("metrist.metrics.lexical.descriptive.Distinct.facts", fail)
    choice = choose_metrics([make_record("a b", references=("a b c d e f g h",))])
    assert choice.metrics == ("rougeL", "chrf")
    assert choice.reasons[0] == "quality is left out: there is no model"


def test_a_part_that_is_not_installed_matters_only_where_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ModelError("there is no model")

    monkeypatch.setattr("metrist.metrics.lexical.chrf.Chrf.facts", fail)
    monkeypatch.setattr("metrist.metrics.lexical.chrf.Chrf.score", fail)
    metric = Quality()
    assert "chrf not installed" in metric.signature
    (score,) = metric.score(Shard([make_record("a b")]))
    assert score.failure is None
    with pytest.raises(ModelError, match="there is no model"):
        metric.score(Shard([make_record("a", source="Ein Satz.", language="de-en", references=("a",))]))


def test_records_that_nothing_is_measured_for_name_what_to_try(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality, "load_mixtures", lambda: (TRANSLATION,))
    for task in (None, "math", "summarization"):
        with raises_code(SpecError, "invalid_value", "judge(llm=…), preference, fluency", "annotate", "meta"):
            choose_metrics([make_record(task=task)])
    with raises_code(SpecError, "invalid_value", "consistency, likelihood, preference, fluency"):
        choose_metrics([make_record(task="math", source="a source")])
    assert choose_metrics([make_record(task="math", references=("3",))]).metrics == ("exact", "token_f1")


def test_no_records_choose_nothing() -> None:
    with raises_code(SpecError, "missing_value", "metrics"):
        choose_metrics([])


def test_the_shipped_table_names_metrics_with_sensible_numbers() -> None:
    for mixture in load_mixtures():
        assert mixture.basis
        assert mixture.parts
        for part in mixture.parts:
            assert part.metric.partition("(")[0] in names()
            assert part.weight > 0
            assert part.spread > 0
            assert build(part.metric).higher_is_better is not False
            assert set(build(part.metric).needs) <= set(mixture.needs)
        assert not mixture.left_out.keys() & {part.metric for part in mixture.parts}


def test_a_shipped_task_without_a_mixture_says_why() -> None:
    assert not load_withdrawn().keys() & {mixture.task for mixture in load_mixtures()}
    for task, reason in load_withdrawn().items():
        (score,) = Quality().score(Shard([make_record(task=task, source="a", references=("b",))]))
        assert score.failure is not None
        assert str(score.failure).endswith(reason)
        with raises_code(SpecError, "invalid_value"):
            Quality(task=task)


#: Data sets with references, which lexical metrics compare with.
WITH_REFERENCES = (
    *("summeval", "newsroom", "realsumm", "multi-summeval.en", "openmeva-roc", "qa-feedback-pairs"),
    *("bagel", "sfres", "sfhot", "wmt23.en-de"),
)


def find_better_baselines(row: DatasetAgreement, column: str) -> list[str]:
    baselines = ["length", "−length", "copy rate"] + [BEST_LEXICAL] * (row.data in WITH_REFERENCES)
    return [name for name in baselines if name in row.figures and row.figures[name].value > row.figures[column].value]


@pytest.mark.parametrize("column", ["quality", "quality, large"])
def test_no_shipped_mixture_falls_below_a_simple_baseline(column: str) -> None:
    """On no set of the published table, judged or not, length, its negation, the share of copied word pairs or, with
    references, the best of six lexical metrics agrees better with people."""
    rows = [row for row in load_agreements() if row.whole and column in row.figures]
    assert len(rows) >= 11
    assert {row.name: better for row in rows if (better := find_better_baselines(row, column))} == {}


@pytest.mark.parametrize(
    "name",
    [
        "asset-hr",
        *(pytest.param(n, marks=pytest.mark.torture) for n in ("simplicity-da", "bagel", "haluquestqa-pairs")),
    ],
)
def test_no_shipped_mixture_falls_below_a_simple_baseline_on_data(data: Callable[[str], Path], name: str) -> None:
    """The same for sets that chose weights, computed from the mixtures as they are."""
    content = read_table_file(METRICS_TABLE)
    labels = [entry["label"] for entry in (*content["metrics"], *content["baselines"])]
    kept = [label for label in labels if label not in ("quality", "length", "copy rate")]
    table = make_agreement_table(DataFolder(data(name).parent), keep=kept, only=[name])
    (row,) = (row for row in table.agreements if row.data == name)
    assert find_better_baselines(row, "quality") == []
