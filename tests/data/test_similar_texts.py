"""Near-duplicate texts, against sets of word 5-grams compared two by two."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from error_codes import raises_code
from metrist.data.text_overlap import find_near_duplicates, normalise_text
from metrist.errors import SpecError


def naive(texts: list[str], threshold: float) -> set[tuple[int, int]]:
    """Jaccard similarity of all pairs; a text of fewer than five words is one gram."""
    grams = []
    for text in texts:
        words = text.split()
        grams.append({tuple(words[at : at + 5]) for at in range(len(words) - 4)} or {tuple(words)})
    return {
        (first, second)
        for first, second in combinations(range(len(texts)), 2)
        if len(grams[first] & grams[second]) >= threshold * len(grams[first] | grams[second]) - 1e-12
    }


def family(rng: random.Random, vocabulary: int) -> list[str]:
    """A text of random words and some that differ from it by a few words, longer and shorter ones."""
    words = [f"w{rng.randrange(vocabulary)}" for _ in range(rng.randint(1, 60))]
    result = [" ".join(words)]
    for _ in range(rng.randint(0, 4)):
        changed = list(words)
        for _ in range(rng.randint(0, 3)):
            changed[rng.randrange(len(changed))] = f"x{rng.randrange(50)}"
        result.append(" ".join(changed[rng.randint(0, 3) :] + ["y"] * rng.randint(0, 6)))
    return [text for text in result if text]


@pytest.mark.parametrize("threshold", [0.2, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("vocabulary", [3, 2000])
def test_all_near_duplicates_are_found_and_no_others(threshold: float, vocabulary: int) -> None:
    rng = random.Random(vocabulary)
    texts = list(dict.fromkeys(text for _ in range(60) for text in family(rng, vocabulary)))
    result = find_near_duplicates(texts, threshold).tolist()
    assert len({tuple(pair) for pair in result}) == len(result)
    assert {tuple(pair) for pair in result} == naive(texts, threshold)
    assert result or threshold == 1


def test_few_or_strange_texts_have_no_near_duplicates() -> None:
    for texts in ([], ["one"], ["", " "], ["a b c d e f"], ["a b", "a b c"]):
        assert find_near_duplicates(texts).tolist() == []


def test_one_changed_word_leaves_texts_of_twenty_words_near() -> None:
    words = [f"w{at}" for at in range(20)]
    changed = [*words[:10], "other", *words[11:]]
    # 16 grams each, 5 of them changed: 11 of 21 are shared.
    assert find_near_duplicates([" ".join(words), " ".join(changed)], 11 / 21).tolist() == [[0, 1]]
    assert find_near_duplicates([" ".join(words), " ".join(changed)], 0.53).tolist() == []


def test_normalised_texts_have_small_words_without_punctuation() -> None:
    assert normalise_text("  It's “FINE”, really…\n") == "it s fine really"
    assert normalise_text("Straße ﬁn") == normalise_text("STRASSE fin")
    assert normalise_text("这是 test。") == "这 是 test"
    # Vowel signs of Indic scripts belong to their words.
    assert normalise_text("ભારત અને, રશિયા") == "ભારત અને રશિયા"
    assert normalise_text(" ?! ") == "?!"
    assert normalise_text("") == ""


def test_texts_from_one_template_are_linked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metrist.data.text_overlap._MAX_TEXTS_PER_GRAM", 400)
    texts = [f"write a short and friendly poem for a child about the number {at}" for at in range(500)]
    result = find_near_duplicates(texts)
    assert len(result) < 50 * len(texts)
    assert {tuple(pair) for pair in result.tolist()} >= {(at, at + 1) for at in range(499)}


@pytest.mark.parametrize("wrong", [0.0, 1.5, float("nan")])
def test_a_threshold_outside_its_range_is_refused(wrong: float) -> None:
    with raises_code(SpecError, "invalid_value"):
        find_near_duplicates(["a"], wrong)
