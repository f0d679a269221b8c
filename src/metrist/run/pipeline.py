"""What a run has so far: names and columns of numbers, never the texts."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Generator, Iterable, Iterator, Sequence, Sized
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from metrist._version import __version__
from metrist.errors import NeedsError, RunError
from metrist.io import Reader, read_records
from metrist.io.reader import check_keywords
from metrist.io.writer import check_distinct
from metrist.llm.budget import Estimate, estimate_calls
from metrist.metrics.base import Metric
from metrist.metrics.registry import build
from metrist.metrics.shard import Shard
from metrist.records import Record
from metrist.run.executors import Done, Executor, Outcome, Task, choose
from metrist.run.flat_file import check_writable, flat_suffix
from metrist.run.results import NothingScored, Results, nothing_scored, remarks
from metrist.run.run_folder import Listed, Manifest, RunFolder, folder_name
from metrist.run.shard_file import Header, InputHash
from metrist.run.surroundings import surroundings
from metrist.run.tasks import lack, score_one
from metrist.scores import Scores
from metrist.spec import Spec


class Collected:
    """Gathers shards in whatever order they arrive, and puts them in order in the end."""

    def __init__(self, metrics: Iterable[str]) -> None:
        self.items: list[str] = []
        self.systems: list[str] = []
        self._names: dict[str, str] = {}
        self._blocks: dict[str, dict[int, Scores]] = {metric: {} for metric in metrics}

    def add_records(self, records: Sequence[Record]) -> None:
        """Note the next records' names; equal names are kept once."""
        keep = self._names.setdefault
        items, systems = [record.item for record in records], [record.system for record in records]
        self.items += map(keep, items, items)
        self.systems += map(keep, systems, systems)

    def add_scores(self, metric: str, start: int, scores: Scores) -> None:
        """Keep one metric's scores of the shard at this position."""
        self._blocks[metric][start] = scores

    def joined(self) -> dict[str, Scores]:
        """Each metric's scores in the input's order. Gives its blocks away: no number is held twice for long."""
        whole = {}
        for metric in list(self._blocks):
            blocks = self._blocks.pop(metric)
            whole[metric] = Scores.join([blocks[start] for start in sorted(blocks)])
        return whole


# Cutting records into shards by their position, the same way whenever the same input is read.


SHARD_SIZE = 1024
#: Where a metric holds a model: what is lost when a run is killed, and what a progress bar waits for, took longer.
SHARD_SIZE_WITH_MODEL = 256
#: A shard is closed early when its texts pass this many characters, so that long texts do not fill the memory.
MOST_TEXT = 8 << 20
_STEP = 64


def cut(records: Iterable[Record], size: int) -> Iterator[tuple[int, tuple[Record, ...]]]:
    """Consecutive records, each group with the position of its first."""
    remaining = iter(records)
    start, text = 0, 0
    held: list[Record] = []
    # Counting the characters of a few records at once is much faster than of one record at a time.
    while block := list(islice(remaining, min(_STEP, size - len(held)))):
        parts = [(block, characters(block))]
        if text + parts[0][1] > MOST_TEXT:
            parts = [([record], characters([record])) for record in block]
        for part, count in parts:
            held += part
            text += count
            if len(held) >= size or text > MOST_TEXT:
                yield start, tuple(held)
                start, text, held = start + len(held), 0, []
    if held:
        yield start, tuple(held)


def characters(records: Sequence[Record]) -> int:
    """How much text the records hold."""
    total = sum(map(len, [record.output for record in records]))
    total += sum(map(len, chain.from_iterable([record.references for record in records])))
    total += sum(map(len, filter(None, [record.source for record in records])))
    return total + sum(map(len, filter(None, [record.instruction for record in records])))


# A metric that an input cannot serve is refused before anything is scored.


#: Records that are looked at for one that serves a metric; fewer where their texts pass `MOST_TEXT` characters. Neither
#: depends on the size of shards, so the same input is refused or scored whatever that is.
LOOK_AHEAD = 10_000


def served(metrics: Iterable[Metric], records: Iterable[Record]) -> Iterator[Record]:
    """The same records. A metric that none of the first ones serves is refused; mostly a look at one record settles it,
    and no more are held than were looked at."""
    coming, looked_at, text = iter(records), list[Record](), 0
    unserved = [metric for metric in metrics if metric.needs]
    while unserved and len(looked_at) < LOOK_AHEAD and text <= MOST_TEXT and (record := next(coming, None)):
        looked_at.append(record)
        text += characters([record])
        unserved = [metric for metric in unserved if lack(metric, record)]
    if unserved and looked_at:
        why = f"none of the first {len(looked_at):,} records can be scored by it"
        raise NeedsError(f"{lack(unserved[0], looked_at[0])}; {why}")
    return chain(looked_at, coming)


# Where the scores of a run go: nowhere, into one flat file, or into a run folder.


@dataclass(frozen=True, slots=True)
class Target:
    """A flat file to write in the end, or a folder to write into all along; at most one of them."""

    file: Path | None = None
    folder: RunFolder | None = None

    def check_apart_from(self, inputs: Iterable[str]) -> None:
        """Refuse to write over the file that is being read."""
        if self.file:
            check_distinct(self.file, inputs)


def target_of(out: str | os.PathLike[str] | None) -> Target:
    """What a path asks for. What could not be written in the end is refused at once; nothing is touched yet."""
    if out is None:
        return Target()
    path = Path(out)
    if flat_suffix(path):
        check_writable(path)
        return Target(file=path)
    named_as_folder = os.fspath(out).endswith(("/", os.sep)) or path.is_dir()
    if not named_as_folder and re.fullmatch(r"\.[A-Za-z]\w*", path.suffix):
        raise RunError(
            f"cannot tell what to write to {path}: wanted a folder (end it with '/'), or a file that ends in "
            ".jsonl, .csv or .parquet"
        )
    return Target(folder=RunFolder(path))


# `score`: records and metrics in, results out; what a run folder holds already is not done again.


class Progress(Protocol):
    """Told after each shard how many records are done, and of how many where that is known."""

    def __call__(self, done: int, total: int | None) -> None: ...


def score(
    records: Any,
    metrics: str | Spec | Metric | Iterable[str | Spec | Metric],
    *,
    executor: str | Executor | None = None,
    out: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    shard_size: int | None = None,
    tokens: bool = False,
    device: str | None = None,
    batch_tokens: int | None = None,
    cache: str | os.PathLike[str] | None = None,
    max_cost: float | None = None,
    concurrency: int | None = None,
    rpm: int | None = None,
    tpm: int | None = None,
    **reading: Any,
) -> Results:
    """Score records with metrics.

    `records` is whatever `read_records` takes, or a reader that it gave; `reading` are its options, such as
    `fields={"output": "prediction"}`. `executor` is 'serial', 'processes' or an object; by default all cores are used,
    or all cards by metrics with a model. `out` is a run folder, which a second call completes, or a .jsonl, .csv or
    .parquet file, which appears whole or not at all. `tokens` asks metrics for what they found at single tokens.
    Where models run (`device`), how many tokens they take at once (`batch_tokens`) and in which folder they keep what
    they computed (`cache`) change no score, nor does what LLMs may cost in US dollars (`max_cost`) or how fast they are
    asked (`concurrency` requests at once, `rpm` requests and `tpm` tokens a minute); see `surroundings`.
    """
    check_keywords(score, reading)
    limits = {"concurrency": concurrency, "rpm": rpm, "tpm": tpm}
    with surroundings(device=device, batch_tokens=batch_tokens, cache=cache, max_cost=max_cost, **limits):
        asked = _asked(metrics)
        if shard_size is not None and shard_size < 1:
            raise RunError(f"shard_size must be at least 1, got {shard_size}")
        target = target_of(out)
        size = shard_size or _usual_size(target, asked)
        chosen, notes = choose(executor, asked)
        reader = read_records(records, **reading)
        target.check_apart_from(reader.names)
        run = _Run(asked, target, _Plan(size, tokens), _Bar(progress, reader, _count(records)))
        with closing(_each(chosen.map(asked, run.tasks(reader, reader.names)))) as finished:
            for done in finished:
                run.keep(done)
        return run.finish([*notes, *reader.remarks])


class _Plan(NamedTuple):
    """How the records of a run are cut, and whether metrics are asked about single tokens."""

    shard_size: int
    tokens: bool


class _Bar:
    """Counts what was read and what is done. How many records a file will give is told from the part of it read."""

    def __init__(self, progress: Progress | None, reader: Reader, count: int | None) -> None:
        self._progress = progress
        self._reader = reader
        self._count = count
        self._read = self._done = 0

    def read(self, count: int) -> None:
        self._read += count

    def advance(self, count: int) -> None:
        self._done += count
        if self._progress:
            share = self._reader.share_read
            self._progress(self._done, self._count or (round(self._read / share) if share else None))


class _Run:
    """One call of `score`, from the first shard to the last."""

    def __init__(self, metrics: Sequence[Metric], target: Target, plan: _Plan, bar: _Bar) -> None:
        self._metrics = metrics
        self._signatures = {metric.text: metric.signature for metric in metrics}
        self._target = target
        self._plan = plan
        self._bar = bar
        self._collected = Collected(self._signatures)
        self._folders = {text: target.folder.metric(text) for text in self._signatures} if target.folder else {}
        self._began = datetime.now(UTC)
        self._input = InputHash()
        self._computed = 0

    def tasks(self, records: Iterable[Record], note: tuple[str, ...]) -> Iterator[Task]:
        """The shards that need work; what the folder holds already is collected on the way."""
        for start, shard in cut(served(self._metrics, records), self._plan.shard_size):
            if start == 0:
                self._begin(note)
            self._collected.add_records(shard)
            self._bar.read(len(shard))
            wanted = self._wanted(start, shard)
            if wanted:
                yield Task(start=start, records=shard, wanted=wanted, tokens=self._plan.tokens)
            else:
                self._bar.advance(len(shard))

    def keep(self, done: Done) -> None:
        """Collect what an executor has done, and store it."""
        for text, outcome in done.outcomes.items():
            self._collected.add_scores(text, done.start, outcome.scores)
            if outcome.file is not None:
                self._folders[text].write(done.start, outcome.file, _timing(outcome))
        count = max(len(outcome.scores) for outcome in done.outcomes.values())
        self._computed += count
        self._bar.advance(count)

    def finish(self, notes: Sequence[str]) -> Results:
        """Put the shards together, and say in the folder that all are there."""
        items, systems = self._collected.items, self._collected.systems
        scores = self._collected.joined()
        self._close_folder(len(items))
        results = Results(
            items=items,
            systems=systems,
            metrics=tuple(self._metrics),
            scores=scores,
            signatures=self._signatures,
            notes=(*notes, *self._set_aside(), *remarks(self._metrics, scores)),
        )
        if self._target.file:
            results.write(self._target.file)
        self._check_failures(results)
        return results

    def _set_aside(self) -> list[str]:
        return [note for folder in self._folders.values() for note in folder.set_aside]

    def _begin(self, note: tuple[str, ...]) -> None:
        if self._target.folder:
            listed = (Listed(text=t, signature=s, folder=folder_name(t)) for t, s in self._signatures.items())
            self._target.folder.begin(Manifest(shard_size=self._plan.shard_size, metrics=tuple(listed), input=note))

    def _wanted(self, start: int, shard: Sequence[Record]) -> dict[str, Header | None]:
        if not self._folders:
            return dict.fromkeys(self._signatures)
        content = self._input.add(shard)
        wanted: dict[str, Header | None] = {}
        for text, folder in self._folders.items():
            signature = self._signatures[text]
            digest = folder.expect(start, content, signature, tokens=self._plan.tokens)
            if (found := folder.find(start)) and _is_settled(found.scores):
                self._collected.add_scores(text, start, found.scores)
            else:
                wanted[text] = Header(metric=text, signature=signature, start=start, count=len(shard), digest=digest)
        return wanted

    def _check_failures(self, results: Results) -> None:
        """A metric that scored nothing is a fault of the run. What there is has been written: it shows the reasons."""
        written = self._target.file or (self._target.folder.path if self._target.folder else None)
        for text, block in results.scores.items():
            if len(block) > 1 and (said := nothing_scored(text, block)):
                raise NothingScored(f"{said}{f' (all of it is in {written})' if written else ''}", results)

    def _close_folder(self, records: int) -> None:
        for metric in self._metrics if self._target.folder else ():
            folder = self._folders[metric.text]
            signature, content = self._signatures[metric.text], self._input.whole
            folder.close(metric.text, signature, metric.higher_is_better, records=records, content=content)
        if self._target.folder and self._computed:
            self._target.folder.note_machine(self._machine())

    def _machine(self) -> dict[str, Any]:
        return {
            "began": self._began.isoformat(timespec="seconds"),
            "seconds": round((datetime.now(UTC) - self._began).total_seconds(), 3),
            "records": self._computed,
            "metrist": __version__,
            "python": platform.python_version(),
            "numpy": np.__version__,
            "platform": platform.platform(),
        }


def _asked(metrics: str | Spec | Metric | Iterable[str | Spec | Metric]) -> tuple[Metric, ...]:
    several = (metrics,) if isinstance(metrics, str | Spec | Metric) else metrics
    built = {metric.text: metric for metric in map(build, several)}
    if not built:
        raise RunError("no metric was asked for: name at least one, such as 'chrf'")
    return tuple(built.values())


def _is_settled(scores: Scores) -> bool:
    """Whether stored scores can be used as they are. Where a server did not answer, or where nothing at all was scored,
    the cause may have gone; earlier answers are in the LLM cache, so only what is missing is asked again."""
    if scores.incomplete or any(failure.kind.is_retryable for failure in scores.failures.values()):
        return False
    return len(scores.failures) < len(scores) or not scores.failures


def _usual_size(target: Target, metrics: Sequence[Metric]) -> int:
    """As the folder was cut before, so that no metric in it is scored again for being cut otherwise."""
    before = target.folder.shard_size if target.folder else None
    # A program of its own reads its model anew for each shard, so it gets few.
    holding = any(metric.resident for metric in metrics) and not any(metric.programs for metric in metrics)
    return before or (SHARD_SIZE_WITH_MODEL if holding else SHARD_SIZE)


def _timing(outcome: Outcome) -> dict[str, Any]:
    timing: dict[str, Any] = {"seconds": round(outcome.seconds, 6), "records": len(outcome.scores)}
    return {**timing, "usage": dict(outcome.scores.usages)} if outcome.scores.usages else timing


def _count(records: Any) -> int | None:
    """How many records there will be, for rows in memory; a file does not say."""
    paths = isinstance(records, str | os.PathLike) or (
        isinstance(records, list | tuple) and records and isinstance(records[0], str | os.PathLike)
    )
    return len(records) if isinstance(records, Sized) and not paths else None


def _each(done: Iterator[Done]) -> Generator[Done, None, None]:
    """Any iterator as a generator: closing it closes the executor's own, and with it the workers."""
    yield from done


# What a run would ask of LLMs, before it asks.


#: The dependency group that metrics which ask LLMs have in common.
_ASKING = "llm"


def estimate(records: Any, metrics: Iterable[str | Spec | Metric], **reading: Any) -> Estimate:
    """The questions that a run of `score` with the same arguments would ask. Nothing is sent and nothing written;
    metrics without an LLM are left out."""
    built = [build(metric) for metric in metrics]
    asking = [metric for metric in built if metric.extra == _ASKING]
    with estimate_calls() as found:
        for _, shard in cut(served(built, read_records(records, **reading)), SHARD_SIZE_WITH_MODEL):
            for metric in asking:
                score_one(metric, Shard(shard))
    return found
