"""Faults of fluency and support: what they change, and where they are."""

from __future__ import annotations

import random

import pytest

from metrist.data.faults.fluency import FAULTS, damage
from metrist.data.faults.news import Article, Corpus, find_facts, vary
from metrist.data.faults.sentence import SentenceEditor, build_lexicon
from metrist.data.faults.support import FAULTS as SUPPORT_FAULTS
from metrist.data.faults.support import break_sentence, quote
from metrist.data.faults.text import EditableText, find_changes

SENTENCES = (
    "The old manager has taken a difference between the two houses into account, and he was happy.",
    "She did not see any better children's book than her sister's new story about the small house.",
    "They quickly walked to the house because it was the largest house in their town.",
    "We walk and he walks, they walked while she was walking, and a house is not a quick answer.",
    "A walk is a quick answer, and a quick walk quickly answers many houses of the town.",
)


@pytest.mark.parametrize(
    ("original", "changed", "marked"),
    [
        ("He met Anna Lee in Rome.", "He met Carla Poe in Rome.", ["Carla Poe"]),
        ("They did not win on Monday.", "They did win on Tuesday.", ["win", "Tuesday"]),
        ("Rome beat Paris.", "Rome beat Paris, despite earlier warnings.", ["despite earlier warnings"]),
        ("Rome beat Paris.", "Rome, beat Paris.", [","]),
        ("Nothing changes.", "Nothing changes.", []),
    ],
)
def test_changed_words_of_a_fault_are_found(original: str, changed: str, marked: list[str]) -> None:
    assert [changed[start:end] for start, end in find_changes(original, changed)] == marked


def test_every_fault_of_fluency_changes_some_sentence() -> None:
    lexicon = build_lexicon(SENTENCES * 4, ["Haus"])
    rng = random.Random(0)
    for name, fault in FAULTS.items():
        edits = [
            (text, edit)
            for text in SENTENCES * 30
            if (edit := fault.propose(SentenceEditor(EditableText(output=text), rng, lexicon))) is not None
        ]
        assert any(edit.text != text[edit.start : edit.end] for text, edit in edits), name


def test_a_damaged_sentence_says_where_its_faults_are() -> None:
    lexicon = build_lexicon(SENTENCES * 4)
    for seed in range(60):
        damaged = damage(SENTENCES[seed % 3], 1 + seed % 3, random.Random(seed), lexicon)
        if damaged is not None:
            assert damaged.text != SENTENCES[seed % 3]
            assert len(damaged.names) == 1 + seed % 3
            assert 0 < damaged.remains < 1
            assert damaged.spans == find_changes(SENTENCES[seed % 3], damaged.text)
            assert all(0 <= start < end <= len(damaged.text) for start, end in damaged.spans)
    assert damage("Go.", 3, random.Random(0), lexicon) is None


ARTICLE = (
    "Anna Lee, the former mayor of Leeds, met David Cameron on Monday, who said that 34 miners won the case. "
    "Carla Poe said: 'The miners of Leeds have won a case that nobody thought they would win.' "
    "The judge may have been told that David Cameron lost 12 letters before the trial in March. "
    "Anna Lee was not in Leeds when the miners celebrated after David Cameron left the court."
)


def make_article() -> Article:
    texts = [ARTICLE, "Anna Kay said so. Anna Poe said so. Anna Ray said no. Anna May said no. Mr David Kay said so."]
    foreign = {"person": ["Ella Fox"], "place": ["Hull"]}
    return Article(ARTICLE, ("Anna Lee met David Cameron.",), Corpus(texts * 3), foreign)


def test_a_fault_of_support_changes_a_sentence_and_marks_the_change() -> None:
    article = make_article()
    kinds = set()
    for seed in range(80):
        for sentence in article.sentences:
            fault = break_sentence(sentence, article, random.Random(seed))
            if fault is not None:
                kinds.add(fault.kind)
                assert fault.text != sentence
                assert fault.errors == find_changes(sentence, fault.text)
    assert {"number", "time", "negation"} <= kinds <= set(SUPPORT_FAULTS)


def test_a_supported_change_keeps_the_facts() -> None:
    article = make_article()
    known = {word.strip(".,'").lower() for word in ARTICLE.split()}
    for seed in range(40):
        _, text = vary(article.sentences[0], article, article.sentences[1:], random.Random(seed))
        assert find_facts(text, known, frozenset({"the", "anna"})) == ()


def test_a_quotation_gets_another_speaker() -> None:
    article = make_article()
    made = [pair for seed in range(9) for pair in [quote(article.sentences[1], article, random.Random(seed))] if pair]
    for right, wrong in made:
        assert right.label > 0.5 > wrong.label
        assert wrong.text[slice(*wrong.errors[0])] not in right.text


def test_names_and_numbers_that_a_passage_lacks_are_found() -> None:
    text = "Shortly after, David Cameron met 34 miners in Leeds."
    spans = find_facts(text, {"cameron", "leeds"}, frozenset({"shortly"}))
    assert [text[start:end] for start, end in spans] == ["David", "34"]
