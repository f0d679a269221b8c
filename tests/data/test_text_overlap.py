"""Near-duplicate texts, and texts inside longer ones, against sets of word 5-grams compared two by two."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest

from error_codes import raises_code
from metrist.data.text_overlap import find_contained_texts, find_near_duplicates, normalise_text
from metrist.errors import SpecError


def grams(text: str) -> set[tuple[str, ...]]:
    """A text of fewer than five words is one gram."""
    words = text.split()
    return {tuple(words[at : at + 5]) for at in range(len(words) - 4)} or {tuple(words)}


def list_contained(texts: list[str], threshold: float) -> set[tuple[int, int]]:
    """The smaller set's share in the larger, of all pairs; eight different words in a row make four grams."""
    sets = [grams(text) for text in texts]
    result = set()
    for couple in combinations(range(len(texts)), 2):
        inner, outer = sorted(couple, key=lambda at: (len(sets[at]), at))
        if len(sets[inner]) >= 4 and len(sets[inner] & sets[outer]) >= threshold * len(sets[inner]) - 1e-12:
            result.add((inner, outer))
    return result


def dialogue(rng: random.Random, vocabulary: int) -> list[str]:
    """A text, beginnings and parts of it, some with a changed word, some with words of their own around."""
    words = [f"w{rng.randrange(vocabulary)}" for _ in range(rng.randint(8, 90))]
    result = [" ".join(words)]
    for _ in range(rng.randint(1, 6)):
        begin = rng.choice([0, rng.randrange(len(words) - 4)])
        part = words[begin : rng.randint(begin + 4, len(words))]
        if rng.random() < 0.5:
            part[rng.randrange(len(part))] = "changed"
        result.append(" ".join([*["x"] * rng.randint(0, 3), *part, *["y"] * rng.randint(0, 4)]))
    return result


@pytest.mark.parametrize("threshold", [0.3, 0.8, 1.0])
@pytest.mark.parametrize("vocabulary", [3, 2000])
def test_all_texts_inside_others_are_found_and_no_others(threshold: float, vocabulary: int) -> None:
    rng = random.Random(vocabulary)
    texts = list(dict.fromkeys(text for _ in range(60) for text in dialogue(rng, vocabulary)))
    result = [tuple(pair) for pair in find_contained_texts(texts, threshold).tolist()]
    assert result == sorted(list_contained(texts, threshold))
    assert result


def test_candidates_are_compared_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(5)
    texts = list(dict.fromkeys(text for _ in range(30) for text in dialogue(rng, 4)))
    monkeypatch.setattr("metrist.data.text_overlap._BATCH_SIZE", 100)
    assert [tuple(pair) for pair in find_contained_texts(texts).tolist()] == sorted(list_contained(texts, 0.8))


def test_seven_words_are_a_phrase_and_lie_inside_nothing() -> None:
    words = [f"w{at}" for at in range(30)]
    assert find_contained_texts([" ".join(words[3:10]), " ".join(words)]).tolist() == []
    assert find_contained_texts([" ".join(words[3:11]), " ".join(words)]).tolist() == [[0, 1]]
    for texts in ([], ["one"], ["", " "], ["a b c d e f g h i"]):
        assert find_contained_texts(texts).tolist() == []
    assert find_contained_texts([" ".join(words[3:11]), " ".join(words)], 0).tolist() == []


def test_texts_from_one_template_are_not_compared_two_by_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metrist.data.text_overlap._MAX_CANDIDATES_PER_GRAM", 1_000)
    template = " ".join(f"w{at}" for at in range(60))
    texts = [f"{template} about the number {at}" for at in range(300)]
    result = find_contained_texts(texts)
    assert len(result) < 60 * len(texts)
    assert {tuple(pair) for pair in result.tolist()} >= {(at, at + 1) for at in range(299)}
    # One text inside many others is not limited: all are found.
    assert {tuple(pair) for pair in find_contained_texts([template, *texts]).tolist()} >= {
        (0, at) for at in range(1, 301)
    }


def test_results_do_not_depend_on_the_hash_seed() -> None:
    code = (
        "import metrist.data.text_overlap as c; c._MAX_CANDIDATES_PER_GRAM = 100; "
        "t = ' '.join(f'w{at}' for at in range(60)); "
        "print(c.find_contained_texts([f'{t} about {at % 7} of {at}' for at in range(200)]).tolist())"
    )
    command = [sys.executable, "-c", code]
    environments = [{**os.environ, "PYTHONHASHSEED": seed} for seed in ("1", "2")]
    outputs = {subprocess.run(command, env=env, stdout=subprocess.PIPE, check=True).stdout for env in environments}
    assert len(outputs) == 1


# ---- Near-duplicates


def list_near(texts: list[str], threshold: float) -> set[tuple[int, int]]:
    """Jaccard similarity of all pairs."""
    sets = [grams(text) for text in texts]
    return {
        (first, second)
        for first, second in combinations(range(len(texts)), 2)
        if len(sets[first] & sets[second]) >= threshold * len(sets[first] | sets[second]) - 1e-12
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
    assert {tuple(pair) for pair in result} == list_near(texts, threshold)
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


@pytest.mark.parametrize(
    ("find", "wrong"),
    [(find, wrong) for find, low in ((find_near_duplicates, 0.0), (find_contained_texts, -0.1))
     for wrong in (low, 1.5, float("nan"))],
)  # fmt: skip
def test_a_threshold_outside_its_range_is_refused(find: Callable[..., Any], wrong: float) -> None:
    with raises_code(SpecError, "invalid_value"):
        find(["a"], wrong)
