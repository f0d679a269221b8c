"""Greedy matching against the definition, token by token in plain Python."""

from __future__ import annotations

import numpy as np
import pytest

from metrist.metrics.base import Shard, pairs_of
from metrist.metrics.embedding import bertscore
from metrist.metrics.embedding.bertscore import TokenVectors, normalise_weights, precision_recall, unit_vectors
from metrist.records import Record


def record(output, *references):
    return Record(item="0", system="a", output=output, references=references)


def token_vectors(texts, rng):
    """Random vectors, one for each letter of each text, with random weights."""
    starts = np.cumsum([0, *map(len, texts)])
    units = unit_vectors(rng.normal(size=(starts[-1], 7)).astype(np.float32))
    return TokenVectors(units, normalise_weights(rng.random(starts[-1]), starts), starts)


def by_definition(tokens, output, reference):
    rows, columns = tokens.units[tokens.rows(output)], tokens.units[tokens.rows(reference)]
    weights, others = tokens.weights[tokens.rows(output)], tokens.weights[tokens.rows(reference)]
    precision = sum(w * max(float(row @ column) for column in columns) for w, row in zip(weights, rows, strict=True))
    recall = sum(w * max(float(row @ column) for row in rows) for w, column in zip(others, columns, strict=True))
    return precision, recall


@pytest.mark.parametrize("most", [1 << 24, 10])
def test_ragged_and_shared_references_are_matched_as_defined(monkeypatch, most):
    monkeypatch.setattr(bertscore, "_MAX_COSINES", most)
    shard = Shard(
        [record("abcd", "xy", "abcdefgh"), record("zz", "xy", "abcdefgh"), record("q", "wvu"), record("abcd", "q", "q")]
    )
    pairs = pairs_of(shard)
    tokens = token_vectors(pairs.texts, np.random.default_rng(3))
    result = precision_recall(tokens, pairs)
    expected = [by_definition(tokens, o, r) for o, r in zip(pairs.outputs, pairs.references, strict=True)]
    assert result == pytest.approx(np.array(expected), abs=1e-6)


def test_weights_become_shares_of_their_text():
    result = normalise_weights(np.array([1.0, 3.0, 0.0, 0.0, 2.0]), np.array([0, 2, 2, 4, 5]))
    assert result.tolist() == [0.25, 0.75, 0.0, 0.0, 1.0]
    assert normalise_weights(np.empty(0), np.array([0])).size == 0


def test_a_vector_of_zeros_has_no_direction_and_stays():
    assert unit_vectors(np.array([[0, 0], [3, 4]], np.float32)).tolist() == pytest.approx(
        np.array([[0, 0], [0.6, 0.8]])
    )
