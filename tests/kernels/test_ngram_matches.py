from __future__ import annotations

from collections import Counter
from types import ModuleType

import numpy as np
import pytest
from flavours import both_flavours, compiled, needs_compiled, numbers, words
from hypothesis import given
from hypothesis import strategies as st

from metrist.kernels import Tokens, from_lists

Lists = list[list[str]]
some_lists = st.lists(words(12), min_size=1, max_size=6)


def _grams(tokens: list[str], order: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(tokens[i : i + order]) for i in range(len(tokens) - order + 1))


def _brute(output: list[str], references: Lists, order: int) -> int:
    allowed: dict[tuple[str, ...], int] = {}
    for reference in references:
        for gram, count in _grams(reference, order).items():
            allowed[gram] = max(count, allowed.get(gram, 0))
    return sum(min(count, allowed.get(gram, 0)) for gram, count in _grams(output, order).items())


@both_flavours
@given(lists=some_lists, data=st.data(), order=st.integers(1, 7))
def test_matches_equal_brute_force(kernels: ModuleType, lists: Lists, data: st.DataObject, order: int) -> None:
    text = st.integers(0, len(lists) - 1)
    pairs = data.draw(st.lists(st.tuples(text, text), max_size=8))
    outputs, references = numbers(*(o for o, _ in pairs)), numbers(*(r for _, r in pairs))
    result = kernels.clipped_matches(from_lists(lists), outputs, references, order)
    assert result.tolist() == [[_brute(lists[o], [lists[r]], n) for n in range(1, order + 1)] for o, r in pairs]
    assert result.shape == (len(pairs), order)
    assert result.dtype == np.int64


@both_flavours
@given(lists=some_lists, data=st.data())
def test_grouped_matches_equal_brute_force(kernels: ModuleType, lists: Lists, data: st.DataObject) -> None:
    text = st.integers(0, len(lists) - 1)
    groups = data.draw(st.lists(st.tuples(text, st.lists(text, max_size=4)), max_size=6))
    outputs = numbers(*(o for o, refs in groups for _ in refs))
    references = numbers(*(r for _, refs in groups for r in refs))
    starts = np.cumsum([0, *(len(refs) for _, refs in groups)])
    result = kernels.clipped_matches(from_lists(lists), outputs, references, 4, starts)
    expected = [[_brute(lists[o], [lists[r] for r in refs], n) for n in range(1, 5)] for o, refs in groups]
    assert result.tolist() == expected


@both_flavours
def test_outputs_past_one_batch_are_all_counted(kernels: ModuleType) -> None:
    lists = [["a", "b"] * 20_000, ["b", "a"] * 20_000, ["a", "b"] * 10, []]
    result = kernels.clipped_matches(from_lists(lists), numbers(0, 1, 0, 3, 2), numbers(2, 2, 2, 2, 2), 2)
    assert result.tolist() == [[20, 19], [20, 19], [20, 19], [0, 0], [20, 19]]


@both_flavours
def test_texts_that_are_outputs_and_references_of_many_groups_are_counted(kernels: ModuleType) -> None:
    # All groups hang together by the first text, and are too many to be counted at once.
    lists = [[str(i * k % 17) for i in range(10 + k % 20)] for k in range(400)]
    pairs = [(0, k) for k in range(400)] + [(k, 0) for k in range(400)] + [(k, k + 1) for k in range(399)]
    outputs, references = numbers(*(o for o, _ in pairs)), numbers(*(r for _, r in pairs))
    result = kernels.clipped_matches(from_lists(lists), outputs, references, 3)
    assert result.tolist() == [[_brute(lists[o], [lists[r]], n) for n in (1, 2, 3)] for o, r in pairs]


@both_flavours
def test_a_megabyte_of_characters_is_counted(kernels: ModuleType) -> None:
    text = "".join(chr(0x4E00 + i * i % 20_000) for i in range(100_000))
    result = kernels.clipped_matches(kernels.characters([text, text[:-1]]), numbers(0), numbers(1), 6)
    assert result.tolist() == [[99_999 - n for n in range(6)]]


@needs_compiled
@pytest.mark.parametrize(
    ("outputs", "references", "complaint"),
    [
        (numbers(2), numbers(0), "a pair names a text that is not there"),
        (numbers(0), numbers(-1), "a pair names a text that is not there"),
        (numbers(0, 1), numbers(0), "each pair needs an output and a reference"),
    ],
)
def test_pairs_that_point_nowhere_are_refused(
    outputs: np.ndarray[tuple[int], np.dtype[np.int32]],
    references: np.ndarray[tuple[int], np.dtype[np.int32]],
    complaint: str,
) -> None:
    with pytest.raises(ValueError, match=complaint):
        compiled.clipped_matches(from_lists([["a"], ["b"]]), outputs, references, 2)
    with pytest.raises(ValueError, match=complaint):
        compiled.lcs_lengths(from_lists([["a"], ["b"]]), outputs, references)


@needs_compiled
def test_tokens_that_cannot_be_are_refused() -> None:
    for ids, starts, complaint in (
        (numbers(0, -1), [0, 2], "ids must not be negative"),
        (numbers(0, 1), [0, 3], "starts must lie within what they cut"),
        (numbers(0, 1), [0, 2, 1], "starts must not go down"),
    ):
        with pytest.raises(ValueError, match=complaint):
            compiled.ter_edits(Tokens(ids, np.array(starts), []), numbers(0), numbers(0))
