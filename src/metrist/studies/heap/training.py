"""Read and split the pairs of a study, and run its trainings, each from its request to its results.

A training takes hours: its progress is visible, one crash does not lose the others, and a worker writes a checkpoint
before it stops, also if the study's process is killed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from metrist.data.heap import add_instructions, read_heap_pairs
from metrist.data.pairs import GoodBad
from metrist.data.splits import DEFAULT_SHARES, assign_sides
from metrist.data.text_overlap import SplitUnit
from metrist.errors import InputError, MetristError
from metrist.io.writer import atomic_write
from metrist.models.devices import Options, import_torch
from metrist.models.loading import load_reward
from metrist.models.protocols import RewardScorer
from metrist.run.executors import WorkerDied, WorkerPool, send_event
from metrist.settings import as_arguments
from metrist.studies.heap.jobs import RESULTS, CriterionScores, Result, SplitName, TrainingRequest
from metrist.train.answer_pairs import score_pairs
from metrist.train.fit import fit
from metrist.train.folder import TrainingFolder
from metrist.train.preference import PreferenceTask
from metrist.train.task import Evaluation, TrainingCallback, TrainingProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyData:
    """The pairs of a file, in its order."""

    path: Path
    sha256: str
    pairs: tuple[GoodBad, ...]

    @property
    def criteria(self) -> tuple[str, ...]:
        """The criteria of the pairs, in the order of the file."""
        return tuple(dict.fromkeys(pair.criterion for pair in self.pairs))

    @property
    def sizes(self) -> dict[str, int]:
        """The number of pairs of each criterion."""
        return dict(Counter(pair.criterion for pair in self.pairs))

    def describe(self) -> dict[str, Any]:
        """Describe the file for a card."""
        return {"name": self.path.name, "pairs": len(self.pairs), "sha256": self.sha256}


def read_study_data(path: Path) -> StudyData:
    """Read a file of the suite's pairs."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return StudyData(path=path, sha256=digest, pairs=tuple(read_heap_pairs(path)))


def write_split(folder: Path, name: SplitName, data: StudyData) -> None:
    """Write the side of each pair: near-duplicates take a while to find, and all trainings must agree."""
    path = _split_path(folder, name)
    if path.is_file() and json.loads(path.read_text(encoding="utf-8"))["sha256"] == data.sha256:
        return
    if name == "authors":
        sides = [pair.split for pair in data.pairs]
        if None in sides:
            number = sides.index(None) + 1
            raise InputError(f"{data.path}: pair {number:,} has no 'split'; `split='honest'` makes one")
    else:
        # Pairs that share a text, or almost, are on one side; None for pairs between two sides, which are not used.
        # Texts inside longer ones are not looked for: the published results were computed before that was possible.
        sides = assign_sides([SplitUnit.from_pair(pair) for pair in data.pairs], DEFAULT_SHARES, inside=0)
    with atomic_write(path) as file:
        file.write(json.dumps({"sha256": data.sha256, "split": sides}) + "\n")


def load_split(folder: Path, name: SplitName, data: StudyData) -> list[GoodBad]:
    """Return the pairs, each with its side."""
    row = json.loads(_split_path(folder, name).read_text(encoding="utf-8"))
    if row["sha256"] != data.sha256:
        raise InputError(
            f"{data.path} has changed since the study in {folder} was started; use another `out`", code="changed"
        )
    return [replace(pair, split=side) for pair, side in zip(data.pairs, row["split"], strict=True)]


def _split_path(folder: Path, name: SplitName) -> Path:
    return folder / f"split-{name}.json"


_read_cached = lru_cache(maxsize=2)(read_study_data)


def train_request(request: TrainingRequest, callback: TrainingCallback) -> Result:
    """Train, score the pairs of the request's side, and write the results. A finished training is only read."""
    finished = request.read_result()
    if finished is not None:
        return finished
    data = _read_cached(request.pairs)
    pairs = add_instructions(load_split(request.study, request.job.split, data), request.settings.instructions)
    scored = _select(pairs, request.side, request.job.judged)
    if not scored:
        raise InputError(f"{request.pairs} has no {request.side} pairs of {', '.join(request.job.judged)}")
    request.folder.mkdir(parents=True, exist_ok=True)
    if not TrainingFolder(request.folder / "model").is_begun:
        # A process that was killed before it wrote its settings leaves a folder that cannot be resumed.
        shutil.rmtree(request.folder / "model", ignore_errors=True)
    card = _train(request, pairs, data, callback) if request.job.learns else {}
    result = Result(
        job=request.job,
        settings=request.identity(),
        scores=_score(_load_model(request), scored),
        sizes=data.sizes,
        training={name: card.get(name) for name in ("fingerprint", "figures", "training")},
    )
    result.write(request.folder / RESULTS)
    if not request.keep_model:
        shutil.rmtree(request.folder / "model", ignore_errors=True)
    return result


def _select(pairs: Sequence[GoodBad], side: str, criteria: Sequence[str]) -> list[GoodBad]:
    return [pair for pair in pairs if pair.split == side and pair.criterion in criteria]


def _train(
    request: TrainingRequest, pairs: Sequence[GoodBad], data: StudyData, callback: TrainingCallback
) -> Mapping[str, Any]:
    settings, job = request.settings, request.job
    facts: dict[str, Any] = {"files": [data.describe()], "setup": job.setup, "split": job.split}
    if request.chosen:
        facts["chosen_on_development_pairs"] = request.chosen
    own = {name: value for name, value in as_arguments(settings).items() if name not in ("dev_most", "instructions")}
    task = PreferenceTask(
        train=_select(pairs, "train", job.learns),
        dev=_limit_per_criterion(_select(pairs, "dev", job.learns), settings.dev_most),
        out=request.folder / "model",
        checkpoint_every=request.checkpoint_every,
        data=facts,
        **own | {"recipe": replace(settings.recipe, seed=job.seed)},
    )
    return fit(task, callback)


def _load_model(request: TrainingRequest) -> RewardScorer:
    """Load the trained model, or the base model with a head drawn by the seed if nothing was learned."""
    if request.job.learns:
        return load_reward(Options(model=str(request.folder / "model")))
    import_torch("the base model of a study")
    from metrist.models.reward_model import TorchReward

    settings = request.settings
    return TorchReward.untrained(settings.base, settings.layout, settings.pooling, request.job.seed)


def _limit_per_criterion(pairs: Sequence[GoodBad], limit: int | None) -> list[GoodBad]:
    """Select up to `limit` pairs of each criterion, spread over all that it has, because neighbours share a context."""
    if limit is None:
        return list(pairs)
    indices: dict[str, list[int]] = {}
    for index, pair in enumerate(pairs):
        indices.setdefault(pair.criterion, []).append(index)
    selected: set[int] = set()
    for own in indices.values():
        positions = np.linspace(0, len(own) - 1, min(limit, len(own))).round().astype(int)
        selected.update(own[position] for position in positions)
    return [pair for index, pair in enumerate(pairs) if index in selected]


def _score(reward: RewardScorer, pairs: Sequence[GoodBad]) -> dict[str, CriterionScores]:
    rewards = score_pairs(reward, pairs)
    scores = {}
    for code in dict.fromkeys(pair.criterion for pair in pairs):
        indices = np.array([index for index, pair in enumerate(pairs) if pair.criterion == code])
        own = [pairs[index] for index in indices]
        scores[code] = CriterionScores.from_pairs(own, rewards.good[indices], rewards.bad[indices])
    return scores


# ---- Trainings in worker processes, or one by one in this process

#: The names of failed trainings, with the reason.
Failures = dict[str, str]


class StudyCallback(Protocol):
    """Receives the events of all trainings by name, in the process of the study, never from two threads at once."""

    def on_plan(self, count: int, finished: int) -> None:
        """`count` trainings are requested, of which `finished` were finished before."""

    def on_start(self, name: str) -> None: ...

    def on_progress(self, name: str, progress: TrainingProgress) -> None: ...

    def on_evaluation(self, name: str, evaluation: Evaluation, figure: str) -> None: ...

    def on_finish(self, name: str, seconds: float) -> None: ...

    def on_failure(self, name: str, reason: str) -> None: ...

    def on_message(self, text: str) -> None: ...


class NoStudyCallback:
    """Ignores all events."""

    def _ignore(self, *_: Any, **__: Any) -> None: ...

    on_plan = on_start = on_progress = on_evaluation = on_finish = on_failure = on_message = _ignore


#: An event of a training, as a method of `StudyCallback` and its arguments after the name.
Event = tuple[str, tuple[object, ...]]


class TrainingPool:
    """Runs trainings, `at_once` of them at a time; workers stay until the pool is closed. With `at_once` 1, trainings
    run in this process.

    A training that fails does not stop the others. Leaving by an exception, such as Ctrl-C, stops running trainings.
    """

    def __init__(self, folder: Path, at_once: int, callback: StudyCallback) -> None:
        self._at_once = at_once
        self._callback = callback
        self._callback_lock = threading.Lock()
        self._logs = folder / "workers"
        threads = max(1, (os.cpu_count() or 1) // at_once)
        self._workers = WorkerPool(places=at_once, threads=threads, logs=self._logs, interrupt=True)
        self._failures: Failures = {}

    def __enter__(self) -> TrainingPool:
        return self

    def __exit__(self, *_: object) -> None:
        self._workers.stop()

    def run(self, requests: Sequence[TrainingRequest]) -> Failures:
        """Run all requests that are not finished, and return those that failed. Expensive trainings come first, so that
        none of them runs alone at the end."""
        pending = [request for request in requests if request.read_result() is None]
        self._callback.on_plan(len(requests), len(requests) - len(pending))
        pending.sort(key=lambda request: -len(request.job.learns))
        self._failures = {}
        if self._at_once == 1:
            for request in pending:
                self._report(request, ("on_start", ()))
                _run_request(request, partial(self._report, request))
        elif pending:
            self._logs.mkdir(parents=True, exist_ok=True)
            threads = ThreadPoolExecutor(self._at_once)
            try:
                futures = [threads.submit(self._run_in_worker, request) for request in pending]
                while wait(futures, timeout=0.2).not_done:  # A wait without a timeout would block Ctrl-C.
                    pass
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                self._workers.stop()
                raise
            for future in futures:
                future.result()
        return self._failures

    def _run_in_worker(self, request: TrainingRequest) -> None:
        self._report(request, ("on_start", ()))
        report = partial(self._report, request)
        try:
            self._workers.call(_run_request, request, send_event, attempts=1, on_event=report)
        except WorkerDied as death:
            if not self._workers.stopped:
                report(("on_failure", (f"its worker process died: {death}; see {self._logs}",)))

    def _report(self, request: TrainingRequest, event: Event) -> None:
        method, arguments = event
        with self._callback_lock:
            if method == "on_message":
                self._callback.on_message(f"{request.name}: {arguments[0]}")
                return
            if method == "on_failure":
                self._failures[request.name] = str(arguments[0])
            getattr(self._callback, method)(request.name, *arguments)


# ---- What runs a request, in this process or in a worker


@dataclass(frozen=True, slots=True)
class _EventSender:
    """Turns the callbacks of a training into events."""

    send: Callable[[Event], None]

    def on_progress(self, progress: TrainingProgress) -> None:
        self.send(("on_progress", (progress,)))

    def on_evaluation(self, evaluation: Evaluation, name: str) -> None:
        self.send(("on_evaluation", (evaluation, name)))

    def on_message(self, text: str) -> None:
        self.send(("on_message", (text,)))


def _run_request(request: TrainingRequest, send: Callable[[Event], None]) -> None:
    started = time.monotonic()
    try:
        train_request(request, _EventSender(send))
    except MetristError as error:
        send(("on_failure", (str(error),)))
    except Exception as error:  # Whatever the error, the next training starts.
        send(("on_failure", (f"{type(error).__name__}: {error}",)))
    else:
        send(("on_finish", (time.monotonic() - started,)))
