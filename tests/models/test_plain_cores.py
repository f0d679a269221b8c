from __future__ import annotations

import os
import threading

import pytest

from forked_processes import exit_code, forked
from metrist import threads


@pytest.fixture
def thread_counts(monkeypatch):
    """A fake BLAS library with three threads, and the numbers it is set to."""
    counts = [3]
    monkeypatch.setattr(threads, "_find_blas", lambda: threads._BlasThreads(lambda: counts[-1], counts.append))
    return counts


def test_results_are_in_order_and_the_threads_are_restored(thread_counts):
    inside = []
    results = threads.parallel_map(lambda piece: inside.append(thread_counts[-1]) or piece * 2, list(range(20)))
    assert results == [piece * 2 for piece in range(20)]
    assert set(inside) == {1}
    assert thread_counts == [3, 1, 3]


def test_pieces_run_in_parallel(thread_counts):
    meeting = threading.Barrier(3, timeout=120)
    threads.parallel_map(lambda _: meeting.wait(), [1, 2, 3])
    assert threads.thread_count() == 3 == thread_counts[0]


def test_an_error_is_raised_and_the_threads_are_restored(thread_counts):
    with pytest.raises(ZeroDivisionError):
        threads.parallel_map(lambda piece: 1 // piece, [1, 0])
    assert thread_counts[-1] == 3


def test_a_single_piece_keeps_all_threads_for_its_find_blas(thread_counts):
    assert threads.parallel_map(lambda _: thread_counts[-1], ["one"]) == [3]
    assert thread_counts == [3]


def test_without_openblas_work_is_serial(monkeypatch):
    monkeypatch.setattr(threads, "_find_blas", lambda: None)
    here = threading.get_ident()
    assert threads.parallel_map(lambda _: threading.get_ident(), [1, 2]) == [here, here]
    assert threads.thread_count() == 1


def test_the_threads_of_numpys_openblas_can_be_set():
    blas = threads._find_blas()
    if blas is None:
        pytest.skip("this numpy does not use OpenBLAS")
    before = blas.get()
    with threads._single_threaded_blas():
        assert blas.get() == 1
    assert blas.get() == before >= 1


def test_the_last_user_restores_the_threads(thread_counts):
    first, second = threads._single_threaded_blas(), threads._single_threaded_blas()
    first.__enter__()
    second.__enter__()
    assert threads.thread_count() == 3, "as many pieces at once as before"
    first.__exit__(None, None, None)
    assert thread_counts[-1] == 1, "the second still computes each product on one core"
    second.__exit__(None, None, None)
    assert thread_counts == [3, 1, 3]


def test_many_concurrent_users_restore_the_threads(thread_counts):
    users = [threading.Thread(target=threads.parallel_map, args=(lambda piece: piece, range(9))) for _ in range(20)]
    for user in users:
        user.start()
    for user in users:
        user.join()
    assert thread_counts[-1] == 3
    assert set(thread_counts) == {1, 3}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks a process")
def test_a_process_forked_during_work_has_its_threads_restored(thread_counts):
    def child():
        assert thread_counts[-1] == 3 == threads.thread_count()
        assert threads.parallel_map(lambda _: thread_counts[-1], [1, 2]) == [1, 1]
        assert thread_counts[-1] == 3

    with threads._single_threaded_blas():
        assert exit_code(forked(child)) == 0
        assert thread_counts[-1] == 1, "the parent is still working"
    assert thread_counts[-1] == 3


def test_work_without_blas_runs_on_all_cores_where_its_threads_cannot_be_set(monkeypatch):
    monkeypatch.setattr(threads, "_find_blas", lambda: None)
    monkeypatch.setattr(threads, "count_cores", lambda: 3)
    meeting = threading.Barrier(3, timeout=120)
    assert len(threads.parallel_map(lambda _: meeting.wait(), [1, 2, 3], uses_blas=False)) == 3
    assert threads.thread_count(uses_blas=False) == 3
