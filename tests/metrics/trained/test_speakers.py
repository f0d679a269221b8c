"""Labels of speakers are not read, and errors keep their places."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrist.metrics.base import Shard
from metrist.metrics.trained import preference
from metrist.metrics.trained.preference import PreferenceMetric
from metrist.metrics.trained.speakers import remove_speakers
from metrist.ratings import Error
from metrist.records import Record

SOURCE = "User: Hi!\nSystem: Hi! What's up?\nUser: Not much."


def make_record(output: str, source: str | None = SOURCE, **more: Any) -> Record:
    return Record(item="1", system="a", output=output, source=source, **more)


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
def test_labels_at_the_beginning_of_lines_are_removed(text: str, plain: str) -> None:
    dialogue = remove_speakers(make_record(text, source=text))
    assert (dialogue.record.output, dialogue.record.source) == (plain, plain)
    assert remove_speakers(make_record(text, source=None)).record.source is None


@given(st.lists(st.sampled_from(["User: ", "B: ", "yes ", "no", "\n", " ", "x: "]), max_size=12))
def test_errors_are_restored_to_the_words_that_they_mark(pieces: list[str]) -> None:
    record = make_record("".join(pieces))
    dialogue = remove_speakers(record)
    text = dialogue.record.output
    errors = [
        Error(aspect="A", severity=None, text=word, start=start, end=start + len(word))
        for word in ("yes", "no")
        for start in range(len(text))
        if text.startswith(word, start)
    ]
    for error in dialogue.restore(errors):
        assert record.output[error.start : error.end] == error.text


def test_errors_without_a_place_in_the_output_stay() -> None:
    errors = (
        Error(aspect="A", severity=None, text="gone"),
        Error(aspect="A", severity=None, start=1, end=2, side="source"),
    )
    assert remove_speakers(make_record("User: yes")).restore(errors) == errors


def test_the_preference_model_reads_dialogues_without_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []

    def score_with(_: Any, __: Any, records: Any, ___: Any) -> Any:
        read.extend(records)
        raise InterruptedError

    monkeypatch.setattr(preference.PreferenceMetric, "_score_with", score_with)
    for task in ("dialogue", "dialog/fed", "summarization", None):
        with pytest.raises(InterruptedError):
            PreferenceMetric().score(Shard([make_record("System: Fine.", task=task)]))
    assert [record.output for record in read] == ["Fine.", "Fine.", "System: Fine.", "System: Fine."]
    assert read[0].source == "Hi!\nHi! What's up?\nNot much."
