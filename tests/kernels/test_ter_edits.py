from __future__ import annotations

import random
from functools import cache
from types import ModuleType

import numpy as np
from flavours import both_flavours, compiled, needs_compiled, numbers, words
from hypothesis import given
from sacrebleu.metrics.lib_ter import translation_edit_rate

from metrist.kernels import from_lists


@cache
def _edits(output: tuple[str, ...], reference: tuple[str, ...]) -> int:
    return int(translation_edit_rate(list(output), list(reference))[0])


def _sacrebleu(output: list[str], reference: list[str]) -> int:
    return _edits(tuple(output), tuple(reference))


@both_flavours
@given(a=words(14, "abcde"), b=words(14, "abcde"))
def test_short_texts_take_as_many_edits_as_in_sacrebleu(kernels: ModuleType, a: list[str], b: list[str]) -> None:
    result = kernels.ter_edits(from_lists([a, b]), numbers(0, 1), numbers(1, 0))
    assert result.tolist() == [_sacrebleu(a, b), _sacrebleu(b, a)]


def _shuffled(rng: random.Random, tokens: list[str]) -> list[str]:
    """Runs moved, words changed: what a search for moves has to find."""
    for _ in range(4):
        start, end = sorted(rng.choices(range(len(tokens) + 1), k=2))
        run, rest = tokens[start:end], tokens[:start] + tokens[end:]
        target = rng.randrange(len(rest) + 1)
        tokens = rest[:target] + run + rest[target:]
    return [rng.choice("xyz") if rng.random() < 0.1 else token for token in tokens]


@both_flavours
def test_moved_runs_cost_as_much_as_in_sacrebleu(kernels: ModuleType) -> None:
    rng = random.Random(5)
    references = [[f"w{rng.randrange(25)}" for _ in range(rng.randrange(1, 45))] for _ in range(15)]
    outputs = [_shuffled(rng, reference) for reference in references]
    result = kernels.ter_edits(from_lists(outputs + references), np.arange(15), np.arange(15, 30))
    assert result.tolist() == [_sacrebleu(o, r) for o, r in zip(outputs, references, strict=True)]


@both_flavours
def test_lengths_far_apart_widen_the_beam_as_in_sacrebleu(kernels: ModuleType) -> None:
    rng = random.Random(6)
    sizes = [(1, 120), (2, 101), (2, 150), (3, 151), (120, 1), (150, 2), (60, 119), (4, 0), (0, 4), (0, 0), (1, 51)]
    lists = [[rng.choice("abcd") for _ in range(size)] for pair in sizes for size in pair]
    result = kernels.ter_edits(from_lists(lists), np.arange(0, len(lists), 2), np.arange(1, len(lists), 2))
    assert result.tolist() == [_sacrebleu(lists[i], lists[i + 1]) for i in range(0, len(lists), 2)]


@both_flavours
def test_the_search_ends_at_its_limit_as_in_sacrebleu(kernels: ModuleType) -> None:
    rng = random.Random(7)
    a, b = ([rng.choice("ab") for _ in range(60)] for _ in range(2))
    assert kernels.ter_edits(from_lists([a, b]), numbers(0), numbers(1)).tolist() == [_sacrebleu(a, b)]


@needs_compiled
def test_compiled_long_texts_cost_as_much_as_in_sacrebleu() -> None:
    rng = random.Random(8)
    reference = [f"w{rng.randrange(300)}" for _ in range(120)]
    output = _shuffled(rng, reference)
    assert compiled.ter_edits(from_lists([output, reference]), numbers(0), numbers(1)).tolist() == [
        _sacrebleu(output, reference)
    ]
