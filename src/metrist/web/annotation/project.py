"""An annotation project: a folder with its tasks, who gets which of them, and the log of clicks.

project.json   the schema, the raters with their links, the order of each rater's tasks; readable by its owner only. It
               is replaced as a whole when a rater comes later, or when open tasks are ordered by what their ratings
               tell; nothing else ever changes. It has checksums of itself and of the tasks
tasks.jsonl    the texts of each task with its sampling weight and metrics' scores
clicks.sqlite  every click
clicks.count   how many clicks there are
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from metrist.documents import check_folder, parse_json, read_json_object, read_text
from metrist.errors import InputError, RunError, format_count
from metrist.io import ParsedRow
from metrist.io.hashes import hash_file
from metrist.io.writer import atomic_write, json_line
from metrist.ratings import Error
from metrist.records import TEXT_FIELDS, Record
from metrist.web.annotation.schemas import LEFT, RIGHT, Schema
from metrist.web.annotation.store import ClickStore, count_path

#: Bytes of all texts of a project.
_LARGEST_TASKS = 1 << 30
PROJECT, TASKS, CLICKS = "project.json", "tasks.jsonl", "clicks.sqlite"
_VERSION = 2
_MAX_RATERS = 1000
_MAX_NAME = 100
#: Fields of a project that its file has as they are.
_SETTINGS = ("id", "pick", "seed", "show_references", "guidelines", "owner_token")
_T = TypeVar("_T")
_ERROR_FIELDS = ("aspect", "severity", "penalty", "explanation", "revision", "text", "start", "end", "side")


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotationTask:
    """What a rater sees at once: an output, or two of an item. `weight` is 1 over the probability of its choice.
    `scores` are those of the project's metrics, of a pair their differences, None where one is missing. `errors` are
    those that an analysis lists, for the questionnaire. `expected` is the known answer of an attention item, None for
    all others."""

    id: str = ""
    records: tuple[Record, ...]
    weight: float = 1.0
    scores: tuple[float | None, ...] = ()
    errors: tuple[Error, ...] = ()
    expected: Mapping[str, Any] | None = None

    @property
    def item(self) -> str:
        return self.records[0].item

    @property
    def systems(self) -> tuple[str, ...]:
        return tuple(record.system for record in self.records)


class Chance(NamedTuple):
    """Where a task comes in the order by what ratings tell: tasks of a group have the same raters, and the smallest
    priority comes first. It is a random number over the size."""

    size: float
    priority: float
    group: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """A task in a rater's list; `swapped` shows the second output of a pair on the left."""

    task: str
    swapped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rater:
    """A person with a personal link, whose secret part is `token`."""

    name: str
    token: str
    assignments: tuple[Assignment, ...]


@dataclass(frozen=True, kw_only=True)
class Project:
    """A project as its folder had it when it was opened. Clicks are in the store. `chances` are those of the tasks that
    were open when they were ordered by what their ratings tell."""

    folder: Path
    schema: Schema
    tasks: Mapping[str, AnnotationTask]
    raters: tuple[Rater, ...]
    owner_token: str
    id: str
    pick: str = "random"
    seed: int = 0
    inputs: tuple[str, ...] = ()
    show_references: bool = False
    guidelines: str = ""
    metrics: tuple[str, ...] = ()
    order: str = "random"
    chances: Mapping[str, Chance] = field(default_factory=dict)

    @cached_property
    def raters_by_name(self) -> Mapping[str, Rater]:
        return {rater.name: rater for rater in self.raters}

    @cached_property
    def assigned(self) -> Mapping[tuple[str, str], Assignment]:
        """Assignments by rater and task."""
        return {(rater.name, own.task): own for rater in self.raters for own in rater.assignments}

    @cached_property
    def sampled_tasks(self) -> tuple[AnnotationTask, ...]:
        """The tasks that are no attention items."""
        return tuple(task for task in self.tasks.values() if task.expected is None)

    def rank(self, task_id: str) -> float:
        """The place of a task in the order by what ratings tell; those without one come last."""
        return self.chances[task_id].priority if task_id in self.chances else math.inf

    def markable_texts(self, rater: str, task_id: str) -> dict[str, str]:
        """Return the texts in which a rater marks errors, by side: those of a pair are left and right, as shown."""
        records = self.tasks[task_id].records
        if len(records) == 2:
            left, right = records[::-1] if self.assigned[rater, task_id].swapped else records
            return {LEFT: left.output, RIGHT: right.output}
        source = {} if records[0].source is None else {"source": records[0].source}
        return {"output": records[0].output, **source}

    def open_store(self) -> ClickStore:
        return ClickStore(self.folder / CLICKS)

    @contextmanager
    def read_store(self) -> Iterator[ClickStore]:
        """The log of clicks for reading only: of a folder that cannot be written, a copy."""
        if os.access(self.folder, os.W_OK):
            with self.open_store() as store:
                yield store
            return
        with tempfile.TemporaryDirectory(prefix="metrist-") as folder:
            # The count first: it must not be ahead of the log.
            for name in (count_path(Path(CLICKS)).name, CLICKS, f"{CLICKS}-wal"):
                with suppress(FileNotFoundError):
                    shutil.copyfile(self.folder / name, Path(folder, name))
            with ClickStore(Path(folder, CLICKS)) as store:
                yield store


def is_project(path: str | os.PathLike[str]) -> bool:
    """Whether there is a project in this folder."""
    return (Path(path) / PROJECT).is_file()


def read_attention(entries: Sequence[ParsedRow], schema: Schema) -> list[AnnotationTask]:
    """Return attention items: rows whose ratings, preferences or errors are the answers that a careful rater gives. The
    known answers are under `values`, and the places of errors under `spans`, if there are any."""
    if entries and schema.kind == "questionnaire":
        raise InputError("the questionnaire takes no attention items", code="invalid_value")
    names = {question.name for question in schema.questions}
    wanted = 2 if schema.kind == "pairwise" else 1
    tasks = []
    for entry in entries:
        if schema.kind == "pairwise":
            values: dict[str, Any] = {own.aspect: own.choice for own in entry.preferences if own.aspect in names}
        else:
            values = {own.aspect: float(own.value) for own in entry.ratings if own.aspect in names}
            for name, value in values.items():
                question = schema.question(name)
                if question is None or not question.accepts(value):
                    raise InputError(f"{entry.location}: {value:g} is no answer to {name!r}", code="invalid_value")
        expected: dict[str, Any] = {"values": values} if values else {}
        if schema.marks_errors and schema.kind != "pairwise" and (entry.errors or schema.kind == "errors"):
            errors = [located.error for located in entry.errors]
            expected["spans"] = [
                [error.start, error.end] for error in errors if error.start is not None and error.side == "output"
            ]
        if len(entry.records) != wanted:
            raise InputError(f"{entry.location}: an attention item needs {format_count(wanted, 'output')}")
        if not expected:
            asked = ", ".join(question.name for question in schema.questions) or "errors"
            raise InputError(f"{entry.location}: an attention item needs an answer to {asked}", code="invalid_value")
        tasks.append(AnnotationTask(records=entry.records, expected=expected))
    return tasks


def assign_tasks(
    tasks: Sequence[AnnotationTask],
    raters: Sequence[str],
    rng: np.random.Generator,
    *,
    overlap: int | None = None,
    share: float = 1.0,
    by_item: bool = True,
) -> dict[str, tuple[Assignment, ...]]:
    """Return each rater's tasks in order.

    `share` of the items are seen by `overlap` raters (all, if None), the rest by one each. Items are dealt to those who
    have the fewest tasks so far. A rater gets the tasks of an item one after the other, in random order, and the
    attention items, which all raters get, in between. Without `by_item`, tasks are dealt one by one.
    """
    check_names(raters)
    per_item = len(raters) if overlap is None else overlap
    if not 1 <= per_item <= len(raters):
        number = format_count(len(raters), "rater")
        raise InputError(f"an overlap of {per_item} is not possible with {number}", code="too_little_data")
    if not 0 <= share <= 1:
        raise InputError(f"`share` must lie in 0 to 1, got {share:g}", code="invalid_value")
    items, checks = _group_by_item(tasks)
    if not by_item:
        items = [[task] for own in items for task in own]
    shared = round(share * len(items))
    dealt: dict[str, list[list[AnnotationTask]]] = {rater: [] for rater in raters}
    load = dict.fromkeys(raters, 0)
    for position, place in enumerate(rng.permutation(len(items))):
        own = items[place]
        # Python's sort is stable: among raters with equally many tasks, chance decides.
        mixed = [raters[place] for place in rng.permutation(len(raters))]
        for rater in sorted(mixed, key=load.__getitem__)[: per_item if position < shared else 1]:
            dealt[rater].append(own)
            load[rater] += len(own)
    return {rater: _order_tasks(blocks, checks, rng) for rater, blocks in dealt.items()}


def _group_by_item(tasks: Iterable[AnnotationTask]) -> tuple[list[list[AnnotationTask]], list[AnnotationTask]]:
    """Return the tasks of each item, and the attention items."""
    by_item: dict[str, list[AnnotationTask]] = {}
    checks = []
    for task in tasks:
        if task.expected is None:
            by_item.setdefault(task.item, []).append(task)
        else:
            checks.append(task)
    return list(by_item.values()), checks


def check_names(raters: Sequence[str]) -> None:
    """Raise InputError unless these are names of raters: different ones, that a terminal can show."""
    if not 1 <= len(raters) <= _MAX_RATERS:
        raise InputError(f"expected 1 to {_MAX_RATERS} raters, got {len(raters)}", code="invalid_value")
    if len(set(raters)) < len(raters):
        twice = Counter(raters).most_common(1)[0][0]
        raise InputError(f"the rater {twice!r} is there twice", code="invalid_value")
    for name in raters:
        if not name or name != name.strip() or not name.isprintable() or len(name) > _MAX_NAME:
            raise InputError(f"a name has 1 to {_MAX_NAME} printable characters: {name!r:.120}", code="invalid_value")


def choose_tasks(
    project: Project, answers: Mapping[str, int], count: int | None, rng: np.random.Generator
) -> tuple[Assignment, ...]:
    """Return the tasks of a rater who comes later, in order: whole items until there are `count` tasks, by default as
    many as the other raters have on average. First come items with the fewest `answers` (a number per task), then
    those that the fewest raters have, then chance decides. Attention items come on top. Where tasks are ordered by what
    their ratings tell, they come one by one in that order."""
    items, checks = _group_by_item(project.tasks.values())
    raters_of = Counter(own.task for rater in project.raters for own in rater.assignments)
    if count is None:
        count = math.ceil(sum(raters_of[task.id] for own in items for task in own) / len(project.raters))
    if project.order == "informative":
        mixed = [project.sampled_tasks[place] for place in rng.permutation(len(project.sampled_tasks))]
        ranked = sorted(mixed, key=lambda task: (answers.get(task.id, 0), project.rank(task.id)))
        return _assign(insert_checks(ranked[:count], checks, rng), rng)
    items = [items[place] for place in rng.permutation(len(items))]

    def count_work(own: Sequence[AnnotationTask]) -> tuple[float, float]:
        """The answers and the raters of an item, per task."""
        answered = sum(answers.get(task.id, 0) for task in own)
        return answered / len(own), sum(raters_of[task.id] for task in own) / len(own)

    items.sort(key=count_work)
    blocks: list[list[AnnotationTask]] = []
    for own in items:
        if sum(map(len, blocks)) >= count:
            break
        blocks.append(own)
    return _order_tasks(blocks, checks, rng)


def _order_tasks(
    blocks: Sequence[Sequence[AnnotationTask]], checks: Sequence[AnnotationTask], rng: np.random.Generator
) -> tuple[Assignment, ...]:
    ordered = [
        block[place]
        for block in (blocks[n] for n in rng.permutation(len(blocks)))
        for place in rng.permutation(len(block))
    ]
    return _assign(insert_checks(ordered, checks, rng), rng)


def insert_checks(ordered: Sequence[_T], checks: Sequence[_T], rng: np.random.Generator) -> list[_T]:
    """Return tasks with attention items at random places."""
    mixed = list(ordered)
    for number in rng.permutation(len(checks)):
        # Not the first: raters should have met an ordinary task before.
        place = int(rng.integers(1, len(mixed) + 1)) if mixed else 0
        mixed.insert(place, checks[number])
    return mixed


def _assign(tasks: Sequence[AnnotationTask], rng: np.random.Generator) -> tuple[Assignment, ...]:
    return tuple(Assignment(task=task.id, swapped=len(task.records) == 2 and bool(rng.integers(2))) for task in tasks)


# ---- The folder


def create_project(
    folder: str | os.PathLike[str],
    schema: Schema,
    tasks: Sequence[AnnotationTask],
    assignments: Mapping[str, tuple[Assignment, ...]],
    *,
    pick: str,
    seed: int,
    inputs: Sequence[str] = (),
    show_references: bool = False,
    guidelines: str = "",
    metrics: Sequence[str] = (),
    order: str = "random",
) -> Project:
    """Write a project into a new or empty folder and return it."""
    path = Path(folder)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise RunError(f"{path} is no empty folder: name another, or `metrist annotate {path}`", code="invalid_value")
    if not tasks:
        raise InputError("there is nothing to annotate: the files have no outputs for this schema", code="no_data")
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    with atomic_write(path / TASKS) as file:
        for task in tasks:
            row: dict[str, Any] = {"id": task.id, "weight": task.weight}
            row["records"] = [*map(record_to_dict, task.records)]
            if task.scores:
                row["scores"] = task.scores
            if task.errors:
                row["errors"] = [{name: getattr(error, name) for name in _ERROR_FIELDS} for error in task.errors]
            if task.expected is not None:
                row["expected"] = dict(task.expected)
            file.write(f"{json_line(row)}\n")
    content = {
        "metrist_annotation": _VERSION,
        "tasks_sha256": hash_file(str(path / TASKS)),
        "id": secrets.token_hex(8),
        "schema": schema.to_dict(),
        "pick": pick,
        "seed": seed,
        "inputs": list(inputs),
        "show_references": show_references,
        "guidelines": guidelines,
        "metrics": list(metrics),
        "order": order,
        "owner_token": secrets.token_urlsafe(18),
        "raters": [_new_rater(name, assigned) for name, assigned in assignments.items()],
    }
    _write_project(path, content)
    return open_project(path)


def append_rater(project: Project, store: ClickStore, name: str, assignments: Sequence[Assignment]) -> Project:
    """Add a rater to the project's file, and return the project as it is then. What others have and did stays."""
    with store.lock():  # Of two processes that do this at once, one waits for the other.
        content = _read_project(project.folder)
        check_names([*(rater["name"] for rater in content["raters"]), name])
        content["raters"].append(_new_rater(name, assignments))
        _write_project(project.folder, content)
    return open_project(project.folder)


def write_order(
    project: Project, store: ClickStore, chances: Mapping[str, Chance], orders: Mapping[str, Sequence[str]]
) -> Project:
    """Write the chances of a project's tasks and the order of each rater's tasks into its file, once, and return the
    project as it is then."""
    with store.lock():
        content = _read_project(project.folder)
        if "chances" not in content:
            for rater in content["raters"]:
                rater["tasks"] = list(orders.get(rater["name"], rater["tasks"]))
            _write_project(project.folder, {**content, "chances": chances})
    return open_project(project.folder)


def _new_rater(name: str, assignments: Sequence[Assignment]) -> dict[str, Any]:
    return {
        "name": name,
        "token": secrets.token_urlsafe(18),
        "tasks": [own.task for own in assignments],
        "swapped": [own.task for own in assignments if own.swapped],
    }


def _write_project(folder: Path, content: Mapping[str, Any]) -> None:
    with atomic_write(folder / PROJECT) as file:
        os.fchmod(file.fileno(), 0o600)
        json.dump({**content, "sha256": _hash_content(content)}, file, ensure_ascii=False, indent=1)


def _read_project(folder: Path) -> dict[str, Any]:
    """Return what is in the project's file; RunError if anything in it was changed."""
    path = folder / PROJECT
    content = read_json_object(path, RunError)
    if (version := content.get("metrist_annotation")) != _VERSION:
        raise RunError(f"{path} is of version {version!r}, expected {_VERSION}", code="invalid_value")
    if content.pop("sha256", None) != _hash_content(content):
        raise _tell_damage(path)
    return content


def _hash_content(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _tell_damage(path: Path) -> RunError:
    return RunError(
        f"{path} does not match its checksum, and answers would be about something else: restore it from a copy",
        code="damaged",
    )


def open_project(folder: str | os.PathLike[str]) -> Project:
    """Read the project in a folder; RunError with the reason if there is none."""
    path = Path(folder)
    for name in (PROJECT, TASKS):
        if not (path / name).exists():
            raise RunError(f"{path} is no annotation project: it has no {name}", code="missing_file")
    clicks = CLICKS, f"{CLICKS}-wal", f"{CLICKS}-shm", count_path(Path(CLICKS)).name
    check_folder(path, (PROJECT, TASKS, *clicks), RunError)
    try:
        content = _read_project(path)
        text = read_text(path / TASKS, RunError, largest=_LARGEST_TASKS)
        if hashlib.sha256(text.encode()).hexdigest() != content["tasks_sha256"]:
            raise _tell_damage(path / TASKS)
        lines = text.rstrip("\n").split("\n")
        tasks = [_task_from_dict(parse_json(line, f"{path / TASKS}:{n}", RunError)) for n, line in enumerate(lines, 1)]
        raters = []
        for rater in content["raters"]:
            swapped = set(rater["swapped"])
            assignments = tuple(Assignment(task=task, swapped=task in swapped) for task in rater["tasks"])
            raters.append(Rater(name=rater["name"], token=rater["token"], assignments=assignments))
        return Project(
            folder=path,
            schema=Schema.from_dict(content["schema"]),
            tasks={task.id: task for task in tasks},
            raters=tuple(raters),
            inputs=tuple(content["inputs"]),
            metrics=tuple(content.get("metrics", ())),
            order=content.get("order", "random"),
            chances={task: Chance(*chance) for task, chance in content.get("chances", {}).items()},
            **{name: content[name] for name in _SETTINGS},
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise RunError(f"{path}: the project's files are damaged: {error!r}", code="damaged") from None


def record_to_dict(record: Record) -> dict[str, Any]:
    """Return a record as a row that `read_records` reads, without empty fields."""
    texts = {name: text for name in TEXT_FIELDS if (text := getattr(record, name)) is not None}
    row: dict[str, Any] = {**record.extra, **texts}
    if record.references:
        row["references"] = list(record.references)
    return row


def record_from_dict(content: Mapping[str, Any]) -> Record:
    """Return the record that `record_to_dict` wrote."""
    row = dict(content)
    fields: dict[str, Any] = {name: row.pop(name) for name in TEXT_FIELDS if name in row}
    references = tuple(row.pop("references", ()))
    return Record(**fields, references=references, extra=row)


def _task_from_dict(content: Mapping[str, Any]) -> AnnotationTask:
    return AnnotationTask(
        id=content["id"],
        weight=content["weight"],
        scores=tuple(content.get("scores", ())),
        records=tuple(map(record_from_dict, content["records"])),
        # Projects made before penalties were kept have none.
        errors=tuple(Error(**{"penalty": None, **row}) for row in content.get("errors", ())),
        expected=content.get("expected"),
    )
