"""Dynamic batches: records of concurrent requests are scored together, outside of the event loop.

A lane has one or several threads and runs one batch in each. While they are busy, jobs gather; when one is free, it
takes as many jobs as fit a batch, all for the same metrics, so that metrics share tokenised texts. An idle lane starts
at once, so batches grow with the load and a single request does not wait. Numbers do not depend on the batch.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, count
from typing import Any

from metrist.metrics.base import Metric
from metrist.records import Unit
from metrist.run.tasks import Task, count_characters, perform
from metrist.runtime import Runtime
from metrist.scores import Scores
from metrist.web.service.settings import ServiceSettings
from metrist.web.service.telemetry import Counters, Tracing

#: The texts of metrics that a job is for; jobs with the same key can share a batch.
Key = tuple[str, ...]
#: Threads that wait for LLM servers; a batch sends several requests at once by itself.
_LLM_THREADS = 8
#: The weight of the newest batch in the mean time per record.
_NEWEST = 0.2
#: What is added to the niceness of threads with batches of models: one in progress leaves most of the cores to a guard.
_NICENESS = 5


@dataclass(eq=False, slots=True)
class JobResults:
    """Scores or judgments of one job: rows `start` and following of each block, by the metric's text."""

    blocks: Mapping[str, Any]
    start: int
    count: int

    def take(self, text: str) -> Scores:
        """The scores of the job alone."""
        block: Scores = self.blocks[text]
        return block.take(range(self.start, self.start + self.count))


@dataclass(eq=False, slots=True)
class _Job:
    key: Key
    units: Sequence[Unit]
    characters: int
    added: float
    future: asyncio.Future[JobResults]


class Lane:
    """Runs batches of jobs in threads of its own. Call its methods from the event loop's thread only."""

    def __init__(
        self,
        metrics: Mapping[str, Metric],
        settings: ServiceSettings,
        name: str,
        *,
        counters: Counters,
        runtime: Runtime,
        tracing: Tracing,
        batch_records: int | None = None,
    ) -> None:
        self.name = name
        #: Records that wait or are being scored.
        self.pending = 0
        self._metrics = metrics
        self._batch_records = settings.batch_records if batch_records is None else batch_records
        self._batch_wait = settings.batch_wait
        self._characters = settings.batch_characters if name == "text" else settings.model_batch_characters
        self._threads = _LLM_THREADS if name == "llm" else 1
        self._runtime = runtime
        self._queue_records = counters.queue.labels(name)
        self._observed_records = counters.batch_records.labels(name)
        self._observed_seconds = counters.batch_seconds.labels(name)
        self._tracing = tracing
        yields = name == "model" and batch_records is None
        self._executor = ThreadPoolExecutor(
            self._threads, thread_name_prefix=f"metrist-{name}", initializer=_lower_priority if yields else None
        )
        self._waiting: list[_Job] = []
        #: When each running batch began.
        self._running: dict[int, float] = {}
        self._batches = count()
        self._scheduled: asyncio.Handle | None = None
        self._seconds_per_record = 0.0

    def submit(self, key: Key, units: Sequence[Unit]) -> asyncio.Future[JobResults]:
        """Have units scored by the metrics of `key`; cancelling the future before that drops them."""
        loop = asyncio.get_running_loop()
        job = _Job(key, units, count_characters(units), loop.time(), loop.create_future())
        self._waiting.append(job)
        self._count(len(units))
        if self._scheduled is None and len(self._running) < self._threads:
            self._scheduled = loop.call_soon(self._dispatch)
        return job.future

    @property
    def backlog_seconds(self) -> float:
        """About how long what is pending will take."""
        return self.pending * self._seconds_per_record / self._threads

    def busy_seconds(self) -> float:
        """For how long the oldest running batch has been running."""
        return max((time.monotonic() - began for began in self._running.values()), default=0.0)

    def close(self) -> None:
        """Start nothing more. A running batch ends by itself."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _count(self, records: int) -> None:
        self.pending += records
        self._queue_records.inc(records)

    def _dispatch(self) -> None:
        loop = asyncio.get_running_loop()
        self._scheduled = None
        while len(self._running) < self._threads and (jobs := self._take(loop)):
            number = next(self._batches)
            self._running[number] = time.monotonic()
            running = loop.run_in_executor(self._executor, self._run, jobs[0].key, jobs)
            running.add_done_callback(partial(self._finish, number, jobs))

    def _take(self, loop: asyncio.AbstractEventLoop) -> list[_Job]:
        """The jobs of the next batch: the one that has waited longest, and others for the same metrics that fit."""
        self._count(-sum(len(job.units) for job in self._waiting if job.future.cancelled()))
        self._waiting = [job for job in self._waiting if not job.future.cancelled()]
        if not self._waiting:
            return []
        first = self._waiting[0]
        candidates = [job for job in self._waiting if job.key == first.key]
        left = self._batch_wait - (loop.time() - first.added)
        if left > 0 and sum(len(job.units) for job in candidates) < self._batch_records:
            self._scheduled = loop.call_later(left, self._dispatch)
            return []
        jobs, records, characters = list[_Job](), 0, 0
        for job in candidates:
            records += len(job.units)
            characters += job.characters
            if jobs and (records > self._batch_records or characters > self._characters):
                break
            jobs.append(job)
        taken = set(jobs)
        self._waiting = [job for job in self._waiting if job not in taken]
        return jobs

    def _run(self, key: Key, jobs: Sequence[_Job]) -> list[JobResults | Exception]:
        """Score the jobs of a batch in a thread; if that fails each by itself, so that none spoils the others."""
        attributes = {"metrist.lane": self.name, "metrist.metrics": list(key), "metrist.requests": len(jobs)}
        with self._tracing.start("batch", attributes):
            try:
                return self._score(key, jobs)
            except Exception as error:
                if len(jobs) == 1:
                    return [error]
            outcomes: list[JobResults | Exception] = []
            for job in jobs:
                try:
                    outcomes += self._score(key, [job])
                except Exception as error:
                    outcomes.append(error)
            return outcomes

    def _score(self, key: Key, jobs: Sequence[_Job]) -> list[JobResults | Exception]:
        units = tuple(unit for job in jobs for unit in job.units)
        task = Task(start=0, units=units, metrics=key, runtime=self._runtime)
        blocks = {text: outcome.block for text, outcome in perform(self._metrics, task).outcomes.items()}
        starts = accumulate((len(job.units) for job in jobs), initial=0)
        return [JobResults(blocks, start, len(job.units)) for job, start in zip(jobs, starts, strict=False)]

    def _finish(self, number: int, jobs: Sequence[_Job], done: asyncio.Future[list[JobResults | Exception]]) -> None:
        seconds = time.monotonic() - self._running.pop(number)
        records = sum(len(job.units) for job in jobs)
        self._count(-records)
        mean = seconds / records if records else 0.0
        self._seconds_per_record += (mean - self._seconds_per_record) * (_NEWEST if self._seconds_per_record else 1.0)
        self._observed_records.observe(records)
        self._observed_seconds.observe(seconds)
        error = asyncio.CancelledError() if done.cancelled() else done.exception()
        outcomes: Sequence[JobResults | BaseException] = done.result() if error is None else [error] * len(jobs)
        for job, outcome in zip(jobs, outcomes, strict=True):
            if job.future.done():
                continue
            if isinstance(outcome, asyncio.CancelledError):
                job.future.cancel()
            elif isinstance(outcome, BaseException):
                job.future.set_exception(outcome)
                job.future.exception()  # Seen: asyncio would log one that nobody waits for, with its message.
            else:
                job.future.set_result(outcome)
        self._dispatch()


def _lower_priority() -> None:
    """Give way to other threads of the process, with all threads that this one starts. Only Linux can do it."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.nice(0) + _NICENESS)
