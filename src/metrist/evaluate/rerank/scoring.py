"""Scores of items, task by task, and the log of those that are done, from which a stopped call goes on."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Self

import numpy as np

from metrist.errors import RunError
from metrist.evaluate.rerank.rows import Item
from metrist.io.hashes import hash_records
from metrist.io.writer import json_line
from metrist.metrics.base import Metric, is_resident
from metrist.records import RecordColumns
from metrist.run.executors import choose_executor
from metrist.run.tasks import SHARD_SIZE, SHARD_SIZE_WITH_MODEL, Executor, NeedsCheck, Task
from metrist.runtime import Runtime
from metrist.scores import Failure, Scores


class ScoreLog:
    """The scores of finished tasks in a file beside the output, a line for each, until the output is complete. A task
    is known by its records and by the signatures of the metrics. A line begins with its checksum: one that was cut off
    or damaged is not read."""

    def __init__(self, out: Path, metrics: Sequence[Metric]) -> None:
        self._path = out.with_name(f".{out.name}.scores")
        self._signatures = "\n".join(metric.signature for metric in metrics).encode("utf-8", "surrogatepass")
        self._known: dict[str, Mapping[str, Any]] = {}
        try:
            lines = self._path.read_bytes().splitlines() if self._path.exists() else []
        except OSError as error:
            raise RunError(f"cannot read {self._path}: {error.strerror}", code="unreadable") from error
        for line in lines:
            checksum, _, data = line.partition(b" ")
            if data and checksum == _checksum(data):
                entry = json.loads(data)
                self._known[entry["task"]] = entry

    def find(self, records: RecordColumns) -> list[Scores] | None:
        """The scores by each metric; None if the task is not done."""
        entry = self._known.pop(self._digest(records), None)
        if entry is None:
            return None
        return [
            Scores(
                values=np.array(values, np.float64),
                failures={int(position): Failure(*failure) for position, failure in failures.items()},
            )
            for values, failures in zip(entry["values"], entry["failures"], strict=True)
        ]

    def add(self, records: RecordColumns, scores: Sequence[Scores]) -> None:
        """Add a finished task, unless some of its scores may succeed later."""
        if any(block.incomplete or any(f.kind.is_retryable for f in block.failures.values()) for block in scores):
            return
        failures = [{str(n): [failure.kind, str(failure)] for n, failure in block.failures.items()} for block in scores]
        values = [block.values.tolist() for block in scores]
        line = json_line({"task": self._digest(records), "values": values, "failures": failures})
        data = line.encode("utf-8", "backslashreplace")
        try:
            with self._path.open("ab") as file:
                file.write(b"\n" + _checksum(data) + b" " + data)  # The last line may have no end.
        except OSError as error:
            raise RunError(f"cannot write {self._path}: {error.strerror}", code="cannot_write") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._path.unlink(missing_ok=True)

    def _digest(self, records: RecordColumns) -> str:
        return hashlib.sha256(self._signatures + hash_records(records).tobytes()).hexdigest()


def _checksum(data: bytes) -> bytes:
    return b"%08x" % zlib.crc32(data)


def score_items(
    items: Iterable[Item],
    metrics: Sequence[Metric],
    executor: str | Executor | None,
    runtime: Runtime,
    log: ScoreLog | None = None,
) -> Iterator[tuple[Item, list[Scores]]]:
    """Yield each item with the scores of its outputs by each metric. The outputs of an item are in one task."""
    size = SHARD_SIZE_WITH_MODEL if any(map(is_resident, metrics)) else SHARD_SIZE
    needs = NeedsCheck(metrics)
    blocks = _gather(items, size)
    for block in blocks if log else ():
        records = _join_records(block)
        known = log.find(records) if log else None
        if known is None:
            blocks = chain([block], blocks)
            break
        needs.add(records)
        yield from _share_scores(block, known)
    waiting: deque[tuple[list[Item], RecordColumns]] = deque()

    def tasks() -> Iterator[Task]:
        start = 0
        for block in blocks:
            records = _join_records(block)
            needs.add(records)
            waiting.append((block, records))
            yield Task(start=start, units=records, metrics=tuple(metric.text for metric in metrics), runtime=runtime)
            start += len(records)
        needs.finish()

    chosen, _ = choose_executor(executor, metrics, runtime)
    for result in chosen.map(metrics, tasks()):
        block, records = waiting.popleft()
        scores: Any = [result.outcomes[metric.text].block for metric in metrics]
        if log:
            log.add(records, scores)
        yield from _share_scores(block, scores)


def _gather(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield items together, with about `size` outputs."""
    block, count = list[Item](), 0
    for item in items:
        block.append(item)
        count += len(item.records)
        if count >= size:
            yield block
            block, count = [], 0
    if block:
        yield block


def _join_records(block: Sequence[Item]) -> RecordColumns:
    return RecordColumns.of([record for item in block for record in item.records])


def _share_scores(block: Sequence[Item], scores: Sequence[Scores]) -> Iterator[tuple[Item, list[Scores]]]:
    start = 0
    for item in block:
        stop = start + len(item.records)
        yield item, [column.block(start, stop) for column in scores]
        start = stop
