from __future__ import annotations

import os
import threading

import pytest

from forked_processes import exit_code, forked
from metrist.models.numpy_inference import threads


@pytest.fixture
def set_to(monkeypatch):
    """Products that can be told their threads, starting with three."""
    said = [3]
    monkeypatch.setattr(threads, "_products", lambda: threads._Products(lambda: said[-1], said.append))
    return said


def test_pieces_come_back_in_order_and_the_threads_are_as_before(set_to):
    inside = []
    found = threads.parallel_map(lambda piece: inside.append(set_to[-1]) or piece * 2, list(range(20)))
    assert found == [piece * 2 for piece in range(20)]
    assert set(inside) == {1}
    assert set_to == [3, 1, 3]


def test_pieces_are_worked_on_at_once(set_to):
    meeting = threading.Barrier(3, timeout=120)
    threads.parallel_map(lambda _: meeting.wait(), [1, 2, 3])
    assert threads.thread_count() == 3 == set_to[0]


def test_a_fault_comes_out_and_the_threads_are_as_before(set_to):
    with pytest.raises(ZeroDivisionError):
        threads.parallel_map(lambda piece: 1 // piece, [1, 0])
    assert set_to[-1] == 3


def test_a_single_piece_keeps_all_threads_for_its_products(set_to):
    assert threads.parallel_map(lambda _: set_to[-1], ["one"]) == [3]
    assert set_to == [3]


def test_another_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(threads, "_products", lambda: None)
    here = threading.get_ident()
    assert threads.parallel_map(lambda _: threading.get_ident(), [1, 2]) == [here, here]
    assert threads.thread_count() == 1


def test_numpys_own_library_says_how_many_threads_it_has():
    found = threads._products()
    if found is None:
        pytest.skip("this numpy computes products with another library than OpenBLAS")
    before = found.get()
    with threads._single():
        assert found.get() == 1
    assert found.get() == before >= 1


def test_the_last_of_several_sets_the_threads_back_whoever_came_first(set_to):
    first, second = threads._single(), threads._single()
    first.__enter__()
    second.__enter__()
    assert threads.thread_count() == 3, "as many pieces at once as before anybody came"
    first.__exit__(None, None, None)
    assert set_to[-1] == 1, "the second still computes each product on one core"
    second.__exit__(None, None, None)
    assert set_to == [3, 1, 3]


def test_many_that_work_at_once_leave_the_threads_as_they_were(set_to):
    users = [threading.Thread(target=threads.parallel_map, args=(lambda piece: piece, range(9))) for _ in range(20)]
    for user in users:
        user.start()
    for user in users:
        user.join()
    assert set_to[-1] == 3
    assert set(set_to) == {1, 3}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks a process")
def test_a_process_that_is_forked_amid_the_work_has_its_threads_back(set_to):
    def child():
        assert set_to[-1] == 3 == threads.thread_count()
        assert threads.parallel_map(lambda _: set_to[-1], [1, 2]) == [1, 1]
        assert set_to[-1] == 3

    with threads._single():
        assert exit_code(forked(child)) == 0
        assert set_to[-1] == 1, "here the work goes on"
    assert set_to[-1] == 3
