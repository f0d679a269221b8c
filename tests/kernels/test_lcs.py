from __future__ import annotations

import random
from types import ModuleType

import numpy as np
from flavours import both_flavours, numbers, words
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from rouge_score import rouge_scorer

from metrist.kernels import SEPARATOR, WORD, CharClasses, from_lists

Lists = list[list[str]]


def _table(a: list[str], b: list[str]) -> int:
    """The textbook's table."""
    row = [0] * (len(b) + 1)
    for token in a:
        before = row[:]
        for j, other in enumerate(b):
            row[j + 1] = before[j] + 1 if token == other else max(row[j], before[j + 1])
    return row[-1]


def _rouge_score_hits(output: Lists, reference: Lists) -> int:
    tokens = sum(map(len, reference))
    return round(rouge_scorer._summary_level_lcs(reference, output).recall * tokens) if tokens else 0


def _lines(texts: list[Lists]) -> tuple[Lists, NDArray[np.int64]]:
    return [line for text in texts for line in text], np.cumsum([0, *map(len, texts)])


def _random_words(rng: random.Random, count: int, distinct: int) -> list[str]:
    return [f"w{rng.randrange(distinct)}" for _ in range(count)]


@both_flavours
@given(a=words(30), b=words(30))
def test_short_lengths_equal_the_table(kernels: ModuleType, a: list[str], b: list[str]) -> None:
    assert kernels.lcs_lengths(from_lists([a, b]), numbers(0, 1, 0), numbers(1, 0, 0)).tolist() == [
        _table(a, b),
        _table(a, b),
        len(a),
    ]


@both_flavours
def test_lengths_of_texts_longer_than_a_machine_word_equal_the_table(kernels: ModuleType) -> None:
    rng = random.Random(1)
    lists = [_random_words(rng, count, distinct) for count in (63, 64, 65, 127, 128, 129, 300) for distinct in (3, 40)]
    outputs, references = (indices.ravel() for indices in np.indices((len(lists), len(lists)), dtype=np.int32))
    result = kernels.lcs_lengths(from_lists(lists), outputs, references)
    assert result.tolist() == [_table(lists[o], lists[r]) for o, r in zip(outputs, references, strict=True)]


@both_flavours
@given(output=st.lists(words(9), max_size=4), reference=st.lists(words(9), max_size=4))
def test_union_hits_are_those_of_rouge_score(kernels: ModuleType, output: Lists, reference: Lists) -> None:
    lines, starts = _lines([output, reference])
    result = kernels.union_lcs_hits(from_lists(lines), starts, numbers(0, 1), numbers(1, 0))
    assert result.tolist() == [_rouge_score_hits(output, reference), _rouge_score_hits(reference, output)]


@both_flavours
def test_union_hits_of_long_lines_are_those_of_rouge_score(kernels: ModuleType) -> None:
    rng = random.Random(2)
    texts = [
        [_random_words(rng, rng.choice((1, 60, 64, 70, 130, 700)), distinct) for _ in range(2)]
        for distinct in (2, 5, 30, 30)
    ]
    lines, starts = _lines(texts)
    outputs, references = (indices.ravel() for indices in np.indices((4, 4), dtype=np.int32))
    result = kernels.union_lcs_hits(from_lists(lines), starts, outputs, references)
    expected = [_rouge_score_hits(texts[o], texts[r]) for o, r in zip(outputs, references, strict=True)]
    assert result.tolist() == expected


@both_flavours
def test_a_megabyte_against_a_megabyte_ends(kernels: ModuleType) -> None:
    classes = CharClasses(lambda c: SEPARATOR if c.isspace() else WORD)
    rng = random.Random(4)
    texts = [" ".join(_random_words(rng, 20_000, 5_000)) for _ in range(2)]
    tokens = kernels.scan(texts, classes)
    length = kernels.lcs_lengths(tokens, numbers(0), numbers(1))
    hits = kernels.union_lcs_hits(tokens, np.array([0, 1, 2]), numbers(0), numbers(1))
    assert hits.tolist() == length.tolist()
