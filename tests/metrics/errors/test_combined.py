"""`errors`: which models look at which output, and how their marks become one list. The models are stand-ins that mark
a word."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from error_codes import raises_code
from metrist.errors import MissingExtra, SpecError
from metrist.metrics.base import Metric, Shard
from metrist.metrics.errors import combined as module
from metrist.metrics.errors.combined import MODELS, Errors, choose_models, merge_marks
from metrist.metrics.registry import build
from metrist.ratings import Error
from metrist.records import Record
from metrist.scores import FailureKind, Score, Scores

SOURCE = "The town council voted on Monday to close the old bridge, because two of its pillars have cracks."
GERMAN = "Der Rat der Stadt hat am Montag die alte Brücke geschlossen, weil sie nicht mehr sicher ist."


@dataclass(frozen=True)
class Marker(Metric):
    """Marks a word wherever it stands, and fails on outputs with an exclamation mark."""

    word: str = "bad"
    penalty: float = 2.0
    severity: str = "minor"
    reports_errors = True

    def score(self, shard: Shard) -> Scores:
        return Scores.of(self._mark(record) for record in shard.records)

    def _mark(self, record: Record) -> Score:
        if "!" in record.output:
            return Score.failed("it shouts", FailureKind.other)
        places = [match.span() for match in re.finditer(self.word, record.output)]
        errors = tuple(
            Error(aspect="A", severity=self.severity, penalty=self.penalty, explanation=f"{self.word} is bad.",
                  text=record.output[start:end], start=start, end=end)
            for start, end in places
        )  # fmt: skip
        return Score(value=0.5, errors=errors)


class Absent(Metric):
    """A metric whose model is not installed."""

    def facts(self) -> Any:
        raise MissingExtra("the shipped model 'metrist:english-small'", "standard")


@pytest.fixture
def markers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Metric]:
    components: dict[str, Metric] = {
        "consistency": Marker(word="bridge", penalty=4.0, severity="major"),
        "fluency": Marker(word="goed"),
        "fluency beside another model": Marker(word="goed"),
        "translation_quality": Marker(word="Brücke", penalty=1.0),
    }
    monkeypatch.setattr(Errors, "components", components)
    return components


def make_record(output: str, **more: Any) -> Record:
    return Record(item="1", system="a", output=output, **more)


def closing(**more: Any) -> Record:
    return make_record("It will close.", **more)


def score(*records: Record) -> Scores:
    return Errors().score(Shard(records))


@pytest.mark.parametrize(
    ("record", "models"),
    [
        (closing(source=SOURCE, task="summarization"), "consistency fluency"),
        (closing(source=SOURCE, task="opinion summarization"), "consistency fluency"),
        (closing(source=SOURCE, task="simplification"), "consistency fluency"),
        (closing(source="name[Bridge], state[closed]", task="data_to_text"), "consistency fluency"),
        (closing(source=SOURCE), "consistency fluency"),
        (closing(source=SOURCE, task="long_form_qa"), "consistency fluency"),
        (closing(source="Why will the old bridge of the town be closed now?"), "fluency"),
        (closing(source="The bridge", task="long_form_qa"), "fluency"),
        (closing(source=SOURCE, instruction="Answer it."), "fluency"),
        # An answer that was retrieved for.
        (closing(source=SOURCE, instruction="What happens to the bridge?"), "consistency fluency"),
        (closing(source=SOURCE, instruction="why does the bridge close"), "consistency fluency"),
        # Words to search for.
        (closing(source=SOURCE, instruction="bridge closing date"), "consistency fluency"),
        (closing(source=SOURCE, instruction="Continue the story"), "fluency"),
        (closing(source=SOURCE, task="dialogue"), "fluency"),
        (closing(source=SOURCE, task="story"), "fluency"),
        (closing(source=SOURCE, task="math"), "fluency"),
        (closing(source=GERMAN, task="summarization"), "fluency"),
        (closing(), "fluency"),
        (closing(source=" "), "fluency"),
        (make_record(GERMAN, source=SOURCE, task="summarization"), ""),
        (make_record(GERMAN), ""),
        (make_record(GERMAN, source=SOURCE, task="translation", language="en-de"), "translation_quality"),
        (make_record(SOURCE, source=GERMAN, task="mt"), "translation_quality fluency"),
        (make_record(SOURCE, source=GERMAN, language="de-en"), "translation_quality fluency"),
        (make_record(SOURCE, references=("Close it.",), task="translation"), "translation_quality fluency"),
        (make_record(GERMAN, task="translation", language="en-de"), ""),
    ],
)
def test_each_model_looks_only_at_outputs_that_it_is_made_for(record: Record, models: str) -> None:
    choice = choose_models(record)
    assert choice.models == tuple(models.split())
    assert not set(choice.models) & set(choice.skipped)
    # There is a reason for what one might expect.
    assert choice.models or choice.skipped


def test_the_setting_overrides_the_task() -> None:
    dialogue = closing(source=SOURCE, task="dialogue")
    assert choose_models(dialogue, "summarization").models == ("consistency", "fluency")
    assert build("errors(task='mt')").text == "errors(task='translation')"


@pytest.mark.usefixtures("markers")
def test_the_value_is_minus_the_sum_of_the_penalties() -> None:
    [result] = score(make_record("The bridge goed, the bridge too.", source=SOURCE))
    assert result.value == -10
    assert [(e.text, e.rater, e.penalty) for e in result.errors] == [
        ("bridge", "consistency", 4.0), ("goed", "fluency", 2.0), ("bridge", "consistency", 4.0)
    ]  # fmt: skip
    assert dict(result.parts) == {
        "errors": 3,
        "penalty_per_100_words": pytest.approx(1000 / 6),
        "worst_penalty": 4,
        "consistency": 2,
        "fluency": 1,
    }
    assert result.explanation is None


@pytest.mark.usefixtures("markers")
def test_an_output_without_errors_has_0() -> None:
    [result] = score(make_record("It is closed.", source=SOURCE))
    assert (result.value, math.copysign(1, result.value), result.errors) == (0, 1, ())


@pytest.mark.usefixtures("markers")
def test_scores_say_which_models_did_not_look_and_why() -> None:
    scores = score(make_record("It goed."), make_record("It goed.", source=SOURCE), make_record(GERMAN))
    assert scores.values[:2].tolist() == [-2, -2]
    assert scores.explanations[0] == "not checked by consistency (there is no source)"
    assert 1 not in scores.explanations
    assert np.isnan(scores.parts["consistency"]).tolist() == [True, False, True]
    failure = scores.failures[2]
    assert failure.kind is FailureKind.missing_input
    assert "not in English" in failure
    remarks = "\n".join(Errors().remarks(scores))
    assert "fluency found 2 errors in 2 outputs" in remarks
    assert "1 of 3 outputs was not checked by consistency (there is no source)" in remarks


@pytest.mark.usefixtures("markers")
def test_empty_outputs_fail_and_move_no_other_score() -> None:
    scores = score(make_record(""), make_record("It goed."), make_record(" \n\t"))
    assert sorted(scores.failures) == [0, 2]
    assert scores.values[1] == -2
    assert list(scores.errors) == [1]


def test_models_that_are_not_installed_are_named_with_the_command(markers: dict[str, Metric]) -> None:
    markers["consistency"] = Absent()
    [result] = score(make_record("It goed.", source=SOURCE))
    assert result.value == -2
    assert "pip install 'metrist[standard]'" in (result.explanation or "")
    assert Errors().facts()["consistency"] == "not installed"
    markers["fluency"] = Absent()
    [result] = score(make_record("It goed.", source=SOURCE))
    assert "pip install 'metrist[standard]'" in (result.failure or "")
    # What no record needs may be missing.
    markers |= {"fluency": Marker(word="goed"), "consistency": Marker(), "translation_quality": Absent()}
    [result] = score(make_record("It goed.", source=SOURCE))
    assert result.explanation is None


def test_a_model_that_fails_on_an_output_leaves_it_to_the_others(markers: dict[str, Metric]) -> None:
    markers["fluency beside another model"] = Marker(word="bridge!")
    [result] = score(make_record("The bridge!", source=SOURCE))
    assert "it shouts" in (result.failure or "")
    markers["fluency beside another model"] = Quiet()
    [result] = score(make_record("The bridge!", source=SOURCE))
    assert result.value == 0
    assert result.explanation == "not checked by consistency (it shouts)"


class Quiet(Metric):
    """Finds nothing."""

    def score_record(self, _: Record) -> float:
        return 1.0


@pytest.mark.usefixtures("markers")
def test_scores_do_not_depend_on_the_other_records() -> None:
    records = [make_record("The bridge goed.", source=SOURCE), make_record("goed"), make_record(GERMAN)]
    together = score(*records)
    for i, record in enumerate(records):
        [alone] = score(record)
        assert (alone.errors, alone.failure) == (together[i].errors, together[i].failure)


def mark(start: int, end: int, penalty: float = 1.0, **more: Any) -> Error:
    return Error(aspect="A", severity="minor", penalty=penalty, start=start, end=end, explanation="E.", **more)


def test_the_same_words_marked_by_two_models_are_one_error() -> None:
    [error] = merge_marks(
        {
            "consistency": [mark(0, 10, 4.0, source_start=3, source_end=9, revision="12")],
            "fluency": [mark(2, 10, 1.0)],
        }
    )
    assert (error.start, error.end, error.penalty, error.rater) == (2, 10, 4.0, "consistency, fluency")
    assert (error.source_start, error.source_end) == (3, 9)
    assert error.revision == ""
    assert error.explanation == "E. E."


def test_a_slip_within_a_wrong_sentence_is_an_error_of_its_own() -> None:
    errors = merge_marks({"consistency": [mark(0, 60, 4.0)], "fluency": [mark(10, 14), mark(20, 23)]})
    assert [(e.start, e.rater) for e in errors] == [(0, "consistency"), (10, "fluency"), (20, "fluency")]


def test_marks_of_one_model_are_never_joined() -> None:
    assert len(merge_marks({"fluency": [mark(0, 4), mark(0, 4)]})) == 2


@pytest.mark.parametrize("settings", [{"task": "juggling"}, {"size": "medium"}])
def test_impossible_settings_are_refused(settings: dict[str, Any]) -> None:
    with raises_code(SpecError, "invalid_value", *settings, *settings.values()):
        Errors(**settings)


def test_the_models_are_those_of_the_catalog() -> None:
    small, large = Errors(), Errors(size="large")
    assert {metric.name for metric in small.components.values()} == set(MODELS)
    assert large.components["fluency"].text == "fluency(model='metrist:english-large')"
    assert large.components["translation_quality"].text == "translation_quality"


@pytest.mark.parametrize(("file", "threshold"), [(None, 0.3), ("errors.json", 0.05)])
def test_the_threshold_of_consistency_is_that_of_the_models_calibration(
    file: str | None, threshold: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "find_weights", lambda _: SimpleNamespace(folder=tmp_path))
    if file:
        (tmp_path / file).touch()
    assert Errors().components["consistency"] == build(f"consistency(threshold={threshold}, supported_words=True)")


def test_fluency_is_stricter_where_another_model_looks_too(markers: dict[str, Metric]) -> None:
    markers["fluency beside another model"] = Marker(word="nothing")
    alone, beside = score(make_record("It goed."), make_record("It goed.", source=SOURCE))
    assert (alone.value, beside.value) == (-2, 0)
    assert "fluency" in beside.parts
