"""What a sequence-to-sequence model does when memory runs out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from seq2seq_models import PAIRS, SOURCES, TARGETS, agree

from metrist.models.batching import TokenBudget
from metrist.models.seq2seq import Seq2Seq

Loaded = Callable[[str], Seq2Seq]


class _Full:
    """A device with room for so many decoder tokens."""

    def __init__(self, states: Any, room: int) -> None:
        self.states, self.room, self.failed = states, room, 0

    def __call__(self, memory: Any, owners: Any, inputs: Sequence[np.ndarray]) -> Any:
        if sum(map(len, inputs)) > self.room:
            self.failed += 1
            raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB")
        return self.states(memory, owners, inputs)


@pytest.mark.parametrize("kind", ["bart", "t5"])
def test_out_of_memory_halves_the_budget_and_the_values_stay(
    kind: str, loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = loaded(kind)
    expected = engine.log_probs(PAIRS)
    full = _Full(engine._path.decoder.states, 40)
    monkeypatch.setattr(engine._path.decoder, "states", full)
    monkeypatch.setattr(engine, "_decoding", TokenBudget(1000))
    agree(engine.log_probs(PAIRS), [expected.of(at) for at in range(len(PAIRS))])
    assert full.failed >= 2
    assert engine._decoding.tokens <= 80


def test_a_target_that_does_not_fit_alone_is_a_failure_of_its_pair(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = loaded("bart")
    expected = engine.log_probs([(SOURCES[0], "dog")]).of(0)
    monkeypatch.setattr(engine._path.decoder, "states", _Full(engine._path.decoder.states, 10))
    monkeypatch.setattr(engine, "_decoding", TokenBudget(1000))
    result = engine.log_probs([(SOURCES[0], TARGETS[2]), (SOURCES[0], "dog")])
    assert result.failures == {
        0: "the target does not fit into the device's memory even alone (16 tokens); use a smaller max_tokens or model"
    }
    np.testing.assert_allclose(result.of(1), expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["bart", "t5"])
def test_a_target_that_does_not_fit_beside_other_conditions_is_scored_with_fewer_of_them(
    kind: str, loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = loaded(kind)
    expected = engine.log_probs(PAIRS)
    states = engine._path.decoder.states
    refused = []

    def crowded(memory: Any, owners: Any, inputs: Sequence[np.ndarray]) -> Any:
        size = len(memory.lengths if hasattr(memory, "lengths") else memory.mask)
        if size > 1 and owners[-1] > 0:  # What came before in the group is thrown away, not counted twice.
            refused.append(size)
            raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB")
        return states(memory, owners, inputs)

    monkeypatch.setattr(engine._path.decoder, "states", crowded)
    monkeypatch.setattr(engine, "_decoding", TokenBudget(1000))
    monkeypatch.setattr(engine, "_encoding", TokenBudget(1000))
    result = engine.log_probs(PAIRS)
    assert max(refused) > 1
    assert result.failures == expected.failures
    agree(result, [expected.of(at) for at in range(len(PAIRS))])


def test_a_condition_that_does_not_fit_alone_fails_all_its_pairs(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = loaded("bart")
    encode = engine._path.encoder.encode

    def small(conditions: Sequence[np.ndarray]) -> Any:
        if sum(map(len, conditions)) > 20:
            raise RuntimeError("out of memory")
        return encode(conditions)

    monkeypatch.setattr(engine._path.encoder, "encode", small)
    monkeypatch.setattr(engine, "_encoding", TokenBudget(1000))
    result = engine.log_probs(PAIRS)
    assert sorted(result.failures) == [8, 9, 10, 11]
    assert set(result.failures.values()) == {
        "the conditioning text does not fit into the device's memory even alone (29 tokens); "
        "use a smaller max_tokens or model"
    }
