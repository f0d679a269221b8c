"""The layers of a text encoder, compared with float64 formulas of this file."""

from __future__ import annotations

from itertools import pairwise
from types import ModuleType

import numpy as np
import pytest
from flavours import both_flavours, compiled, needs_compiled

from metrist.kernels import reference

#: Rows, inputs, outputs and inputs in a block; the last ones have more rows and larger blocks than are taken at once.
SIZES = [
    (1, 64, 16, 64),
    (5, 96, 48, 32),
    (7, 384, 64, 128),
    (4, 128, 32, 16),
    (131, 384, 32, 64),
    (9, 3072, 16, 64),
    (3, 1536, 32, 768),
]


def make_linear(rng, outputs, inputs, block):
    integers = rng.integers(-63, 64, (outputs, inputs)).astype(np.int8)
    scales = (rng.random((outputs, inputs // block)) / 500).astype(np.float32)
    return integers, scales, rng.standard_normal(outputs).astype(np.float32)


def round_rows(rows, block):
    """Each block as integers up to 127 times a scale, in float64."""
    grouped = rows.reshape(len(rows), -1, block).astype(np.float64)
    scale = np.abs(grouped).max(2, keepdims=True) / 127
    return (np.rint(grouped / np.where(scale > 0, scale, 1)) * scale).reshape(rows.shape)


@both_flavours
@pytest.mark.parametrize(("count", "inputs", "outputs", "block"), SIZES)
def test_a_linear_layer_of_rounded_rows(kernels: ModuleType, count, inputs, outputs, block):
    rng = np.random.default_rng(inputs)
    integers, scales, bias = make_linear(rng, outputs, inputs, block)
    rows = rng.standard_normal((count, inputs)).astype(np.float32)
    rows[0, :block] = 0  # A block without any number to scale by.
    matrix = integers * np.repeat(scales.astype(np.float64), block, axis=1)
    expected = round_rows(rows, block) @ matrix.T
    for given, added in ((bias, bias), (None, 0)):
        result = kernels.apply_linear(kernels.pack_linear(integers, scales, given), rows)
        assert result.dtype == np.float32
        np.testing.assert_allclose(result, expected + added, atol=1e-4)


@both_flavours
@pytest.mark.parametrize(("count", "inputs", "outputs", "block"), SIZES)
def test_a_fine_layer_hardly_rounds_its_rows(kernels: ModuleType, count, inputs, outputs, block):
    rng = np.random.default_rng(inputs)
    _, scales, _ = make_linear(rng, outputs, inputs, block)
    integers = rng.integers(-127, 128, (outputs, inputs)).astype(np.int8)
    rows = (rng.standard_normal((count, inputs)) * 10.0 ** rng.integers(-3, 3, (count, 1))).astype(np.float32)
    rows[0, :block] = 0
    expected = rows.astype(np.float64) @ (integers * np.repeat(scales.astype(np.float64), block, axis=1)).T
    result = kernels.apply_linear(kernels.pack_linear(integers, scales, None, fine=True), rows, fine=True)
    # Errors of at most half a step of the rows, in random directions.
    steps = np.abs(rows.reshape(count, -1, block)).max(2) / 127 / 254
    spread = np.sqrt((np.square(steps)[:, None] * np.square(scales).astype(np.float64)).sum(2) * block) * 127 / 3
    assert (np.abs(result - expected) <= 2 * spread.max(1, keepdims=True) + 2e-6 * np.abs(expected).max()).all()


@both_flavours
def test_gelu_follows_a_linear_layer(kernels: ModuleType):
    from math import erf

    values = np.linspace(-12, 12, 321, dtype=np.float32)
    # The identity, with an exact scale: the row is the largest weight times one input.
    integers, scales = np.full((16, 16), 0, np.int8), np.ones((16, 1), np.float32)
    layers = [kernels.pack_linear(integers, scales, np.full(16, value, np.float32)) for value in [*values, 1e4, -1e4]]
    results = [kernels.apply_linear(layer, np.ones((1, 16), np.float32), gelu=True)[0, 0] for layer in layers]
    expected = [x * (1 + erf(x / 2**0.5)) / 2 for x in [*values.astype(float), 1e4, -1e4]]
    np.testing.assert_allclose(results, expected, atol=2e-6, rtol=1e-6)


@both_flavours
@pytest.mark.parametrize("rotary", [False, True])
def test_attention_stays_within_each_text(kernels: ModuleType, rotary):
    rng = np.random.default_rng(3)
    heads, width, lengths = 2, 32, [1, 5, 0, 37]
    starts = np.cumsum([0, *lengths])
    joined = rng.standard_normal((starts[-1], 3 * heads * width)).astype(np.float32)
    angles = rng.random((40, width // 2)) * 6
    turns = np.concatenate((np.cos(angles), np.sin(angles)), 1).astype(np.float32) if rotary else None
    result = kernels.attend(joined, starts, heads, turns)
    for first, end in pairwise(starts):
        own = angles[: end - first] if rotary else None
        if first < end:
            exact = attend_to_text(joined[first:end], heads, own, rounded=False)
            np.testing.assert_allclose(result[first:end], exact, atol=0.03)
            assert_nearly_all_equal(result[first:end], attend_to_text(joined[first:end], heads, own))


def assert_nearly_all_equal(result, expected):
    """Float64 and float32 differ on which side of a boundary between two integers a number lies, which is rare."""
    assert np.sqrt(np.square(result - expected).mean()) < 5e-4
    np.testing.assert_allclose(result, expected, atol=0.02)


def attend_to_text(joined, heads, angles=None, *, rounded=True):
    """Softmax attention in float64. If `rounded`, queries, keys and values are integers from -127 to 127 with a scale
    each. The scale of a value is the largest one times 2**(-n / 4), with n up to 16, and the weights times these scales
    are integers up to 9279."""
    length, width = len(joined), joined.shape[1] // 3 // heads
    result = np.zeros((length, heads, width))
    for head in range(heads):
        part = joined.reshape(length, 3, heads, width)[:, :, head].astype(np.float64)
        query, key, value = (turn(part[:, n], angles if n < 2 else None) for n in range(3))
        if rounded:
            query, key = round_rows(query, width), round_rows(key, width)
        scores = query @ key.T / np.sqrt(width)
        weights = np.exp(scores - scores.max(1, keepdims=True))
        if rounded:
            sizes = np.abs(value).max(1)
            ratios = np.maximum(sizes, 1e-300) / max(sizes.max(), 1e-300)
            scales = 2 ** (np.ceil(np.log2(np.maximum(ratios, 1 / 16)) * 4) / 4)
            value = np.rint(value / (scales * max(sizes.max(), 1e-300) / 127)[:, None])
            value *= (scales * sizes.max() / 127)[:, None]
            weights = weights * scales
            weights = np.rint(weights * (9279 / weights.max(1, keepdims=True))) / scales
        result[:, head] = weights @ value / weights.sum(1, keepdims=True)
    return result.reshape(length, -1)


@both_flavours
@pytest.mark.parametrize("width", [16, 32, 64, 256])
@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 31, 33, 511, 1024])
def test_attention_of_any_length(kernels: ModuleType, length, width):
    rng = np.random.default_rng(length)
    # Scores with a standard deviation of 2: some keys have most of the weight, and many have the rest.
    joined = (rng.standard_normal((length, 3 * 2 * width)) * 2**0.5).astype(np.float32)
    result = kernels.attend(joined, np.array([0, length]), 2, None)
    assert result.dtype == np.float32
    assert_nearly_all_equal(result, attend_to_text(joined, 2))
    # Rounding may change a number by a small part of the values' spread (sqrt(2)).
    error = result - attend_to_text(joined, 2, rounded=False)
    assert np.sqrt(np.square(error).mean()) < 0.012


@both_flavours
def test_attention_with_rows_of_very_unequal_size(kernels: ModuleType):
    """Each query and key has a scale of its own, so that a small one is as exact as a large one. Values may have any
    size too."""
    rng = np.random.default_rng(8)
    joined = rng.standard_normal((70, 96)).astype(np.float32)
    sizes = np.float32(10) ** rng.uniform(-6, 2, (2, 70, 1)).astype(np.float32)
    joined[:, :32] *= sizes[0]
    joined[:, 32:64] *= sizes[1]
    joined[:, 64:] *= np.float32(10) ** rng.uniform(-9, 0, (70, 1)).astype(np.float32)
    joined[3, 64:] = 0
    exact = attend_to_text(joined, 1, rounded=False)
    result = kernels.attend(joined, np.array([0, 70]), 1, None)
    assert_nearly_all_equal(result, attend_to_text(joined, 1))
    mild = sizes[0][:, 0] < 0.05
    np.testing.assert_allclose(result[mild], exact[mild], atol=0.05)


@both_flavours
@pytest.mark.parametrize("width", [16, 64])
@pytest.mark.parametrize("lengths", [[(1, 1)], [(3, 17), (5, 5)], [(63, 64), (2, 130), (70, 70)], [(200, 533)]])
@pytest.mark.parametrize("biased", [False, True])
def test_fine_attention_is_nearly_exact(kernels: ModuleType, width, lengths, biased):
    """The last rows of a text attend to all of it, and with a bias to no later ones."""
    rng = np.random.default_rng(len(lengths))
    heads, longest = 2, max(count for _, count in lengths)
    ends = np.cumsum([(0, 0), *lengths], axis=0)
    spans = np.column_stack([ends[:-1, 0], ends[1:, 0], ends[:-1, 1], ends[1:, 1]])
    queries = (rng.standard_normal((ends[-1, 0], heads * width + 8)) * 2 / width**0.5).astype(np.float32)
    memory = rng.standard_normal((ends[-1, 1], 2 * heads * width + 5)).astype(np.float32)
    memory[0, 5 + heads * width :] *= 100  # Values may have any size.
    bias = rng.standard_normal((heads, 2 * longest + 3)).astype(np.float32)
    bias[:, longest + 2 :] = -np.inf
    result = kernels.attend_finely(queries, memory, spans, bias if biased else None, heads, width)
    assert result.shape == (ends[-1, 0], heads * width)
    for first, end, start, stop in spans.tolist():
        for head in range(heads):
            own = slice(head * width, (head + 1) * width)
            scores = queries[first:end, own].astype(np.float64) @ memory[start:stop, 5:][:, own].T
            if biased:
                places = np.arange(stop - start) - (np.arange(end - first) + stop - start - (end - first))[:, None]
                scores += bias[head][longest + 1 + places]
            weights = np.exp(scores - scores.max(1, keepdims=True))
            weights /= weights.sum(1, keepdims=True)
            expected = weights @ memory[start:stop, 5 + heads * width :][:, own]
            error = np.abs(result[first:end, own] - expected)
            assert error.max() < 2e-4 * np.abs(memory[start:stop]).max()
            assert np.sqrt(np.square(error).mean()) < 2e-5 * np.abs(memory[start:stop]).max()


@both_flavours
def test_many_small_weights_beside_a_large_one_are_not_lost(kernels: ModuleType):
    """One key has as much weight as the 500 others together, each of which has 1 / 500 of it."""
    joined = np.zeros((501, 48), np.float32)
    joined[:, 0] = 4
    joined[0, 16] = np.log(500)
    joined[0, 32], joined[1:, 32] = 1, -1
    result = kernels.attend(joined, np.array([0, 501]), 1, None)
    np.testing.assert_allclose(result[:, 0], 0, atol=0.02)


@both_flavours
def test_a_token_without_a_value_has_its_weight(kernels: ModuleType):
    """The first token has 9 / 10 of the weight and nothing to add."""
    joined = np.zeros((4, 48), np.float32)
    joined[:, 0] = 4
    joined[0, 16] = np.log(27)
    joined[1:, 32] = 1
    result = kernels.attend(joined, np.array([0, 4]), 1, None)
    np.testing.assert_allclose(result[:, 0], 0.1, rtol=0.01)


@both_flavours
@pytest.mark.parametrize("size", [0, 1e-20, 1e15])
def test_attention_with_extreme_numbers(kernels: ModuleType, size):
    rng = np.random.default_rng(2)
    joined = (rng.choice([-1.0, 1.0, 0.5], (19, 96)) * size).astype(np.float32)
    result = kernels.attend(joined, np.array([0, 19]), 1, None)
    assert np.isfinite(result).all()
    np.testing.assert_allclose(result, attend_to_text(joined, 1), rtol=1e-3, atol=size * 1e-3)


def turn(vectors, angles):
    """Multiply the pairs (i, i + half) as complex numbers by e^(i angle)."""
    if angles is None:
        return vectors
    half = vectors.shape[1] // 2
    turned = (vectors[:, :half] + 1j * vectors[:, half:]) * np.exp(1j * angles)
    return np.concatenate((turned.real, turned.imag), 1)


@both_flavours
def test_large_scores_do_not_overflow(kernels: ModuleType):
    joined = np.full((3, 48), 40, np.float32)
    joined[1] *= -1
    assert np.isfinite(kernels.attend(joined, np.array([0, 3]), 1, None)).all()


@both_flavours
@pytest.mark.parametrize("width", [16, 384])
def test_rows_are_added_and_normalized_in_place(kernels: ModuleType, width):
    rng = np.random.default_rng(width)
    rows, more = (rng.standard_normal((6, width)).astype(np.float32) for _ in range(2))
    weight, bias = (rng.standard_normal(width).astype(np.float32) for _ in range(2))
    for extra in (more, None):
        total = rows.astype(np.float64) + (0 if extra is None else extra)
        centred = total - total.mean(1, keepdims=True)
        expected = centred / np.sqrt(total.var(1, keepdims=True) + 1e-12) * weight + bias
        result = rows.copy()
        kernels.add_and_normalize(result, extra, weight, bias, 1e-12)
        np.testing.assert_allclose(result, expected, atol=1e-5)


@both_flavours
def test_a_gate_is_up_times_silu(kernels: ModuleType):
    joined = np.random.default_rng(5).standard_normal((3, 64)).astype(np.float32) * 5
    joined[0, 40], joined[0, 41] = 200, -200
    up, gate = joined[:, :32].astype(np.float64), joined[:, 32:].astype(np.float64)
    np.testing.assert_allclose(kernels.gate_rows(joined), up * gate / (1 + np.exp(-gate)), rtol=1e-5, atol=1e-6)


@both_flavours
def test_a_gate_by_gelu_is_the_approximation_by_tanh_times_up(kernels: ModuleType):
    joined = np.random.default_rng(5).standard_normal((3, 64)).astype(np.float32) * 5
    joined[0, 0], joined[0, 1] = 200, -200
    gate, up = joined[:, :32].astype(np.float64), joined[:, 32:].astype(np.float64)
    gelu = gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3))) / 2
    np.testing.assert_allclose(kernels.gate_by_gelu(joined), gelu * up, rtol=1e-5, atol=5e-6)


@both_flavours
@pytest.mark.parametrize("width", [1, 15, 16, 17, 48, 533])
def test_rows_are_exponentiated_relative_to_their_largest_number(kernels: ModuleType, width):
    rows = np.random.default_rng(width).standard_normal((2, 3, width)).astype(np.float32) * 20
    rows[0, 1, 1:] = -np.inf
    expected = np.exp(rows.astype(np.float64) - rows.max(-1, keepdims=True))
    largest, sums = kernels.exponentiate_rows(powers := rows.copy())
    np.testing.assert_array_equal(largest, rows.max(-1))
    np.testing.assert_allclose(powers, expected, rtol=2e-5, atol=1e-7)
    np.testing.assert_allclose(sums, expected.sum(-1), rtol=1e-6)


@both_flavours
def test_no_rows_are_exponentiated(kernels: ModuleType):
    largest, sums = kernels.exponentiate_rows(np.empty((2, 0, 5), np.float32))
    assert largest.shape == sums.shape == (2, 0)


@needs_compiled
def test_wide_and_narrow_instructions_give_the_same_bits():
    rng = np.random.default_rng(11)
    layers = [
        (rows, compiled.pack_linear(*make_linear(rng, outputs, size, block))) for rows, size, outputs, block in SIZES
    ]
    fine_layers = [(rng.standard_normal((rows, layer.inputs)).astype(np.float32), layer) for rows, layer in layers]
    texts = [(rng.standard_normal((length, 3 * 2 * width)), width) for length, width in ((1, 16), (37, 48), (130, 64))]

    def compute():
        rng = np.random.default_rng(12)
        for count, layer in layers:
            rows = rng.standard_normal((count, layer.inputs)).astype(np.float32)
            yield compiled.apply_linear(layer, rows)
            yield compiled.apply_linear(layer, rows, gelu=True)
        for joined, width in texts:
            turns = rng.standard_normal((len(joined), width)).astype(np.float32)
            for given in (turns, None):
                yield compiled.attend(joined.astype(np.float32), np.array([0, len(joined)]), 2, given)
        yield compiled.gate_rows(rng.standard_normal((5, 2 * 40)).astype(np.float32) * 4)
        yield compiled.gate_by_gelu(rng.standard_normal((5, 2 * 48)).astype(np.float32) * 4)
        powers = rng.standard_normal((5, 37)).astype(np.float32) * 9
        yield from (powers, *compiled.exponentiate_rows(powers))
        states = rng.standard_normal((5, 384)).astype(np.float32)
        compiled.add_and_normalize(states, states.copy(), states[0].copy(), states[1].copy(), 1e-12)
        yield states

    try:
        if not compiled._native.limit_encoder(2):
            pytest.skip("this processor has no wider instructions")
        narrow = list(compute())
        compiled._native.limit_encoder(1)
        wide = list(compute())
        fine = [compiled.apply_linear(layer, rows, fine=True) for rows, layer in fine_layers]
    finally:
        compiled._native.limit_encoder(0)
    for results in zip(compute(), wide, narrow, strict=True):
        np.testing.assert_array_equal(results[0], results[2])
        np.testing.assert_array_equal(results[1], results[2])
    for (rows, layer), expected in zip(fine_layers, fine, strict=True):
        np.testing.assert_array_equal(compiled.apply_linear(layer, rows, fine=True), expected)


@needs_compiled
def test_a_row_does_not_depend_on_other_rows():
    rng = np.random.default_rng(9)
    layer = compiled.pack_linear(*make_linear(rng, 64, 128, 64))
    rows = rng.standard_normal((9, 128)).astype(np.float32)
    together = compiled.apply_linear(layer, rows, gelu=True)
    alone = np.concatenate([compiled.apply_linear(layer, row[None], gelu=True) for row in rows])
    if compiled.has_encoder:
        np.testing.assert_array_equal(together, alone)


@needs_compiled
def test_attention_to_a_text_does_not_depend_on_other_texts():
    rng = np.random.default_rng(9)
    lengths = [3, 40, 1, 17]
    starts = np.cumsum([0, *lengths])
    joined = rng.standard_normal((starts[-1], 96)).astype(np.float32)
    together = compiled.attend(joined, starts, 1, None)
    alone = [compiled.attend(joined[a:b].copy(), np.array([0, b - a]), 1, None) for a, b in pairwise(starts)]
    if compiled.has_encoder:
        np.testing.assert_array_equal(together, np.concatenate(alone))


def fine_attention(k, rows, spans, bias, columns):
    k._native.attend_finely(rows, rows, np.array(spans), bias, np.empty((9, 64), np.float32), 1, 128, columns)


@needs_compiled
@pytest.mark.parametrize(
    "break_call",
    [
        lambda k, layer, rows: k.apply_linear(layer, rows[:, :-1].copy()),
        lambda k, layer, rows: k.apply_linear(layer._replace(outputs=80), rows),
        lambda k, layer, rows: k.apply_linear(layer._replace(block=24), rows),
        lambda k, layer, rows: k.apply_linear(layer._replace(bias=np.zeros(3, np.float32)), rows),
        lambda k, _, rows: k.attend(rows[:, :96].copy(), np.array([0, 3]), 1, None),
        lambda k, _, rows: k.attend(rows[:, :96].copy(), np.array([0, 9]), 2, np.zeros((3, 16), np.float32)),
        lambda k, _, rows: k.attend(rows[:, :96].copy(), np.array([0, 9, 4]), 2, None),
        lambda k, *_: k.attend(np.zeros((2, 3 * 272), np.float32), np.array([0, 2]), 1, None),
        lambda k, *_: k.attend(np.zeros((2**17 + 1, 48), np.float32), np.array([0, 2**17 + 1]), 1, None),
        lambda k, _, rows: fine_attention(k, rows, [[0, 9, 0, 10]], k._NONE, 128),
        lambda k, _, rows: fine_attention(k, rows, [[0, 10, 0, 9]], k._NONE, 128),
        lambda k, _, rows: fine_attention(k, rows, [[0, 9, 3, 3]], k._NONE, 128),
        lambda k, _, rows: fine_attention(k, rows, [[0, 9, 0, 9]], rows[0, :16].copy(), 128),
        lambda k, _, rows: fine_attention(k, rows, [[0, 9, 0, 9]], k._NONE, 127),
        lambda k, _, rows: k.add_and_normalize(rows, rows[:2].copy(), *np.ones((2, 128), np.float32), 0.0),
        lambda k, _, rows: k.add_and_normalize(rows, None, *np.ones((2, 60), np.float32), 0.0),
        lambda k, _, rows: k._native.gate_by_gelu(rows, rows[:, :63].copy(), 63),
        lambda k, _, rows: k._native.gate_by_gelu(rows, rows[:, :48].copy(), 48),
        lambda k, _, rows: k._native.exponentiate_rows(rows, *np.ones((2, 10), np.float32)),
        lambda k, _, rows: k._native.exponentiate_rows(rows, rows[0, :9].copy(), rows[0, :8].copy()),
    ],
)
def test_sizes_that_do_not_fit_are_refused(break_call):
    """Wrong sizes would read or write beyond the arrays."""
    if not compiled.has_encoder:
        pytest.skip("this processor lacks the instructions")
    rng = np.random.default_rng(9)
    layer = compiled.pack_linear(*make_linear(rng, 64, 128, 64))
    with pytest.raises(ValueError, match="must"):
        break_call(compiled, layer, rng.standard_normal((9, 128)).astype(np.float32))


@needs_compiled
def test_a_processor_without_the_instructions_uses_numpy(monkeypatch):
    monkeypatch.setattr(compiled, "has_encoder", False)
    rng = np.random.default_rng(9)
    linear, rows = make_linear(rng, 64, 128, 64), rng.standard_normal((2, 128)).astype(np.float32)
    result = compiled.apply_linear(compiled.pack_linear(*linear), rows, gelu=True)
    np.testing.assert_array_equal(result, reference.apply_linear(reference.pack_linear(*linear), rows, gelu=True))
    joined = rng.standard_normal((3, 96)).astype(np.float32)
    starts = np.array([0, 3])
    np.testing.assert_array_equal(compiled.attend(joined, starts, 1, None), reference.attend(joined, starts, 1, None))
    np.testing.assert_array_equal(compiled.gate_rows(joined), reference.gate_rows(joined))
    np.testing.assert_array_equal(compiled.gate_by_gelu(joined), reference.gate_by_gelu(joined))
    sums = [kernels.exponentiate_rows(joined.copy())[1] for kernels in (compiled, reference)]
    np.testing.assert_array_equal(*sums)
    finely = [k.apply_linear(k.pack_linear(*linear, fine=True), rows, fine=True) for k in (compiled, reference)]
    np.testing.assert_array_equal(*finely)
    norm = np.ones(96, np.float32), np.zeros(96, np.float32), 1e-6
    first, second = joined.copy(), joined.copy()
    compiled.add_and_normalize(first, None, *norm)
    reference.add_and_normalize(second, None, *norm)
    np.testing.assert_array_equal(first, second)
