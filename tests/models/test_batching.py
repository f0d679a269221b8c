from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrist.models.batching import TokenBudget, is_out_of_memory, longest_first, run_in_batches, split_batches

LENGTHS = st.lists(st.integers(1, 50), max_size=40)


class Device:
    """A device with room for so many tokens."""

    def __init__(self, lengths: list[int], room: int) -> None:
        self.lengths, self.room = lengths, room
        self.done: list[list[int]] = []
        self.freed = 0

    def work(self, batch: list[int]) -> None:
        if sum(self.lengths[at] for at in batch) > self.room:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        self.done.append(batch)

    def free(self) -> None:
        self.freed += 1


@given(LENGTHS, st.integers(1, 200), st.booleans())
def test_batches_hold_everything_once_in_order_and_keep_to_the_budget(
    lengths: list[int], tokens: int, padded: bool
) -> None:
    batches = list(split_batches(lengths, tokens, padded=padded))
    assert [at for batch in batches for at in batch] == list(range(len(lengths)))
    for batch in batches:
        some = [lengths[at] for at in batch]
        assert len(batch) == 1 or (max(some) * len(some) if padded else sum(some)) <= tokens


@given(LENGTHS)
def test_longest_first_is_the_stable_sort_by_falling_length(lengths: list[int]) -> None:
    assert longest_first(lengths) == sorted(range(len(lengths)), key=lambda at: lengths[at], reverse=True)


@given(LENGTHS, st.integers(1, 200), st.integers(1, 120), st.booleans())
def test_out_of_memory_halves_the_budget_and_goes_on_from_where_it_was(
    lengths: list[int], tokens: int, room: int, padded: bool
) -> None:
    device, budget = Device(lengths, room), TokenBudget(tokens)
    failures = run_in_batches(lengths, budget, device.work, device.free, padded=padded)
    done = [at for batch in device.done for at in batch]
    order = longest_first(lengths) if padded else sorted(done)
    assert done == [at for at in order if at not in failures]
    assert sorted([*done, *failures]) == list(range(len(lengths)))
    assert set(failures) == {at for at, length in enumerate(lengths) if length > room}
    assert 1 <= budget.tokens <= tokens
    assert (device.freed == 0) == (all(length <= room for length in lengths) and budget.tokens == tokens)


def test_a_budget_stays_small_for_the_next_call() -> None:
    lengths = [10] * 16
    device, budget = Device(lengths, 40), TokenBudget(160)
    run_in_batches(lengths, budget, device.work, device.free)
    assert (budget.tokens, device.freed, [len(batch) for batch in device.done]) == (40, 2, [4, 4, 4, 4])
    run_in_batches(lengths, budget, device.work, device.free)
    assert device.freed == 2


def test_an_item_that_does_not_fit_alone_fails_with_its_size() -> None:
    device = Device([5, 5000, 5], 10)
    failures = run_in_batches([5, 5000, 5], TokenBudget(100), device.work, device.free)
    assert failures == {
        1: "does not fit into the device's memory even alone (5,000 tokens); use a smaller max_tokens or model"
    }
    assert device.done == [[0, 2]]


def test_another_fault_is_not_swallowed() -> None:
    def work(batch: list[int]) -> None:
        raise RuntimeError(f"shapes do not match in {batch}")

    with pytest.raises(RuntimeError, match=r"shapes do not match in \[0\]"):
        run_in_batches([1], TokenBudget(10), work, lambda: None)


def test_torchs_own_fault_and_the_messages_of_other_allocators_are_known() -> None:
    import torch

    assert is_out_of_memory(torch.cuda.OutOfMemoryError("no room"))
    assert is_out_of_memory(
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate")
    )
    assert is_out_of_memory(RuntimeError("MPS backend out of memory"))
    assert is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"))
    assert not is_out_of_memory(RuntimeError("index out of range"))
    assert not is_out_of_memory(KeyError("out of memory"))
