"""Warnings about texts in languages that a model does not know, and about texts that were cut."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from metrist import Metric, compare, load, read_records, score
from metrist.cli.output import _build_time_table
from metrist.evaluate.compare.methods import describe_methods
from metrist.evaluate.explain.worst import worst
from metrist.language import find_other_language, is_english, name_other_language
from metrist.metrics.base import Shard
from metrist.metrics.errors.combined import choose_models
from metrist.metrics.likelihood.likelihood import Likelihood
from metrist.metrics.trained.consistency import Consistency
from metrist.metrics.trained.fluency import Fluency
from metrist.metrics.trained.preference import PreferenceMetric
from metrist.metrics.trained.quality import Quality
from metrist.records import Record
from metrist.run.estimate import estimate_run
from metrist.scores import Score, Scores

GERMAN = "Der Rat hat am Montag beschlossen, dass die Straße nach dem Fest für den Verkehr gesperrt wird."
ENGLISH = "On Monday the council decided that the road will be closed to traffic after the festival."

#: Each is too short to be judged alone.
SHORT = [
    "Das Haus ist groß.",
    "Ich gehe nicht.",
    "Wir haben keine Zeit.",
    "Der Hund schläft im Garten.",
    "Es ist kalt.",
]


def make(*texts: str, language: str | None = None) -> list[Record]:
    return [Record(item=str(n), system="s", output=text, language=language) for n, text in enumerate(texts)]


@pytest.mark.parametrize(
    ("texts", "language", "expected"),
    [
        ([ENGLISH] * 5, None, None),
        ([GERMAN] * 5, None, "German"),
        ([GERMAN], None, "German"),
        ([ENGLISH] * 18 + [GERMAN] * 2, None, None),  # quotations and names, perhaps
        ([ENGLISH] * 6 + [GERMAN] * 4, None, "German"),
        (["Дорога будет закрыта.", "道路将关闭。"], None, "another script than Latin"),
        (["42", "Berlin", "", "Anna Schmidt"], None, None),
        (["42", "Berlin", "Paris"], "de", "another language than English"),
        (["42", "Berlin", "Paris"], "en-US", None),
        ([GERMAN], "de-en", None),  # what the data say counts
        ([ENGLISH] * 3, "de", None),  # the language of the source, perhaps
        ([], None, None),
        (SHORT, None, "German"),
        (SHORT[:3], None, "German"),
        (
            ["Der Preis beträgt 9,99 €.", "Das kostet 30 Euro im Monat.", "Unser Laden hat 3,5 Millionen Kunden."],
            None,
            "German",
        ),
        (["Le prix est de 30 €."] * 3, None, "French"),
        (["São Paulo", "San José del Cabo", "café du Monde", "Die Hard"], None, None),
        (["The dog is big.", "He is not here.", "It was good.", "They have no time.", "We go now."], None, None),
        (["Der Preis beträgt 30 €.", "The basic plan costs €30 a month."] * 3, None, "German"),
        (["A dog jumping over a wall to chase a cat", "la galaxy striker alan gordon scored a goal ."] * 3, None, None),
        (["Los Angeles", "La Paz", "San Juan", "De Niro", "Marilyn Monroe", "Ada Lovelace"] * 2, None, None),
    ],
)
def test_other_languages_are_told_only_where_they_are_sure(
    texts: list[str], language: str | None, expected: str | None
) -> None:
    assert find_other_language(make(*texts, language=language)) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("summeval", None),
        ("wmt22.zh-en", None),
        ("topical-chat-usr", None),
        ("wmt22.en-de", "German"),
        ("multi-summeval.fr", "French"),
        ("wmt22.en-ru", "another script than Latin"),
        ("mlqe-pe.en-zh", "another script than Latin"),
    ],
)
def test_public_data_are_told_right_by_their_texts_alone(
    data: Callable[[str], Path], name: str, expected: str | None
) -> None:
    read = islice(read_records(data(name)), 200)
    assert find_other_language([replace(record, language=None) for record in read]) == expected


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("The basic plan costs €30 a month.", True),
        ("You can cancel at any time.", True),
        ("Was kostet es in Wien?", False),
        ("The basic plan kostet €30.", None),
        ("Das kostet 30 Euro im Monat.", False),
        ("A man looking into a microscope in a lab", True),
        ("Cost: €30.", None),
    ],
)
def test_a_few_english_words_are_english_if_none_is_foreign(output: str, expected: bool | None) -> None:
    assert is_english(make(output)[0]) is expected


SHORT_ANSWER = Record(
    item="1",
    system="s",
    output="Lieferung dauert drei Werktage.",
    source="Wir liefern innerhalb von drei Werktagen nach der Bestellung mit der Post.",
    instruction="Wie lange dauert die Lieferung?",
)


def test_what_is_too_short_to_tell_is_in_the_language_of_question_and_source() -> None:
    assert name_other_language(replace(SHORT_ANSWER, source=None, instruction=None)) is None
    assert name_other_language(SHORT_ANSWER) == "German"
    assert name_other_language(replace(SHORT_ANSWER, instruction="How long is the delivery time?")) is None
    assert name_other_language(replace(SHORT_ANSWER, source=ENGLISH, instruction=None)) is None
    # A translation is in another language than its source; and a word may tell that an answer is English.
    assert name_other_language(replace(SHORT_ANSWER, task="translation/news")) is None
    assert name_other_language(replace(SHORT_ANSWER, output="Delivery takes three days.")) is None
    assert find_other_language([SHORT_ANSWER] * 3) == "German"


def test_shipped_models_leave_out_what_they_do_not_know() -> None:
    german = Record(item="2", system="s", output=GERMAN, source=GERMAN)
    for metric in (Fluency(), Consistency(), Likelihood(), PreferenceMetric(), Quality()):
        scores = metric.score(Shard([SHORT_ANSWER, german]))
        assert np.isnan(scores.values).all()
        assert all("German" in failure for failure in scores.failures.values())
        assert metric.describe_misuse([SHORT_ANSWER, german])
    assert choose_models(SHORT_ANSWER).models == ()
    # What another model knows is not known.
    for model in (Likelihood(model="some/model"), PreferenceMetric(model="some/model")):
        assert model.find_unknown_language(german) is None


class Length(Metric):
    """Counts characters, and warns as the shipped likelihood does."""

    def score_record(self, record: Record) -> float:
        return float(len(record.output))

    def describe_misuse(self, records: Sequence[Record]) -> list[str]:
        return Likelihood().describe_misuse(records)


@pytest.mark.parametrize("folder", [False, True])
def test_a_run_notes_what_a_metric_is_not_made_for(tmp_path: Path, folder: bool) -> None:
    out = tmp_path / "run" if folder else None
    (note,) = [note for note in score(make(*[GERMAN] * 3), [Length()], out=out).notes if "English" in note]
    assert note.startswith("likelihood: many outputs are in German; metrist:likelihood-small knows only English")
    assert not [note for note in score(make(*[ENGLISH] * 3), [Length()]).notes if "English" in note]
    assert not Likelihood(model="some/model").describe_misuse(make(GERMAN))


CALLS: list[str] = []


class Noting(Length):
    """Notes that it scored a record."""

    def score_record(self, record: Record) -> float:
        CALLS.append("scored")
        return super().score_record(record)


def test_the_note_comes_before_the_scores_and_stays_with_the_run(tmp_path: Path) -> None:
    CALLS.clear()
    run = tmp_path / "run"

    def add(**texts: str) -> tuple[str, ...]:
        for name, text in texts.items():
            rows = [{"item": str(n), "output": text, "source": "s"} for n in range(3)]
            (tmp_path / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        reader = read_records([tmp_path / f"{name}.jsonl" for name in texts], announce=CALLS.append)
        return score(reader, [Noting()], out=run, executor="serial").notes

    add(de=GERMAN, en=ENGLISH)
    note = next(call for call in CALLS if "English" in call)
    assert CALLS.index(note) < CALLS.index("scored")
    results = load(run, [Noting()])
    assert results.notes.count(note) == 1
    comparison = compare(results, draws=20)
    assert note in comparison.table().remarks
    assert f"% Note: {note}" in describe_methods(results, form="latex")
    assert note in worst(results, 1).notes
    assert note in add(more=ENGLISH)
    assert note in load(run, [Noting()]).notes
    # Once nothing is German any more, nothing is to be told.
    assert note not in add(en=ENGLISH, de=ENGLISH, more=ENGLISH)
    assert note not in load(run, [Noting()]).notes


def test_a_dry_run_tells_what_a_metric_is_not_made_for(tmp_path: Path) -> None:
    paths = []
    for name, text in (("en", ENGLISH), ("de", GERMAN)):
        paths.append(tmp_path / f"{name}.jsonl")
        paths[-1].write_text("".join(f'{{"item": "{n}", "output": "{text}"}}\n' for n in range(300)))
    (note,) = estimate_run(paths, [Length()]).notes
    assert note.startswith("likelihood: many outputs are in German")
    assert note in _build_time_table(estimate_run(paths, [Length()])).remarks
    assert not estimate_run(paths[0], [Length()]).notes


def test_cut_texts_are_counted_among_the_outputs_that_were_scored() -> None:
    scores = Scores.of([0.5, Score.failed("no source"), 0.25, Score.failed("no source")])
    scores = replace(scores, parts={"cut_tokens": np.array([3.0, np.nan, 0.0, np.nan])})
    expected = "likelihood: 1 of 2 scored outputs had texts too long for the model; 3 tokens were left out"
    assert Likelihood().remarks(scores) == [expected]
