"""Whoever watches while LLMs are asked: told of questions, of answers, and of attempts that failed. A person before a
silent terminal cannot tell a slow server from one that is down."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Watcher(Protocol):
    """Told what happens in this process; `retried` may be called from any thread."""

    def asked(self, count: int) -> None:
        """So many more questions, each different from the others."""

    def arrived(self, count: int) -> None:
        """So many of them are answered, or given up."""

    def retried(self, reason: str, wait: float) -> None:
        """An attempt failed for that reason, and the next is made in so many seconds."""


class _Tally:
    """The watchers of this process, and how many answers it has put into the cache."""

    def __init__(self) -> None:
        self.watchers: list[Watcher] = []
        self.kept = 0


_tally = _Tally()


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Inside, the watcher is told."""
    _tally.watchers.append(watcher)
    try:
        yield
    finally:
        _tally.watchers.remove(watcher)


def asked(count: int) -> None:
    """Tell of questions."""
    for watcher in _tally.watchers:
        watcher.asked(count)


def arrived(count: int) -> None:
    """Tell of answers."""
    for watcher in _tally.watchers:
        watcher.arrived(count)


def retried(reason: str, wait: float) -> None:
    """Tell of an attempt that failed."""
    for watcher in _tally.watchers:
        watcher.retried(reason, wait)


def note_kept() -> None:
    """Count an answer that was put into the cache."""
    _tally.kept += 1


def kept() -> int:
    """How many answers this process has put into the cache."""
    return _tally.kept
