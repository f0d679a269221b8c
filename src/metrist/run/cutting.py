"""Cutting records into shards by their position, the same way whenever the same input is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from metrist.records import Record

SHARD_SIZE = 1024
#: Where a metric holds a model: what is lost when a run is killed, and what a progress bar waits for, took longer.
SHARD_SIZE_WITH_MODEL = 256
#: A shard is closed early when its texts pass this many characters, so that long texts do not fill the memory.
MOST_TEXT = 8 << 20


def cut(records: Iterable[Record], size: int) -> Iterator[tuple[int, tuple[Record, ...]]]:
    """Consecutive records, each group with the position of its first."""
    start, text = 0, 0
    held: list[Record] = []
    for record in records:
        held.append(record)
        text += characters(record)
        if len(held) == size or text > MOST_TEXT:
            yield start, tuple(held)
            start, text, held = start + len(held), 0, []
    if held:
        yield start, tuple(held)


def characters(record: Record) -> int:
    """How much text a record holds."""
    asked = len(record.source or "") + len(record.instruction or "")
    return len(record.output) + asked + sum(map(len, record.references))
