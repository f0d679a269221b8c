"""Small annotation projects for tests."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from metrist.io.writer import write_rows
from metrist.web.annotation.answers import Answers, check_click
from metrist.web.annotation.app import create_annotation_app, grant_project_access
from metrist.web.annotation.project import Project
from metrist.web.annotation.setup import set_up
from metrist.web.annotation.store import Click
from web_server import RunningServer, run_server

SYSTEMS = ("a", "b", "c")


def make_rows(items: int = 4, systems: tuple[str, ...] = SYSTEMS) -> list[dict[str, Any]]:
    """Rows of made texts: each system's output differs."""
    return [
        {
            "item": f"i{item}",
            "system": system,
            "source": f"The source number {item}.",
            "output": f"Output {system} of item {item}, with a few words.",
            "references": [f"A reference for {item}."],
        }
        for item in range(1, items + 1)
        for system in systems
    ]


def make_project(
    folder: Path, schema: str | list[str] = "reliability", rows: list[dict[str, Any]] | None = None, **settings: Any
) -> Project:
    """A project of made rows in `folder/project`."""
    write_rows(iter(make_rows() if rows is None else rows), folder / "rows.jsonl")
    return set_up(folder / "project", [str(folder / "rows.jsonl")], schema, **settings)


def sign_project(folder: Path) -> None:
    """Give a project that was changed the right checksums, as a stranger would."""
    content = json.loads((folder / "project.json").read_text())
    del content["sha256"]
    content["tasks_sha256"] = sha256((folder / "tasks.jsonl").read_bytes()).hexdigest()
    content["sha256"] = sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    (folder / "project.json").write_text(json.dumps(content))


def clicker(project: Project, answers: Answers) -> Callable[..., Click]:
    """A function that makes a click as the server does: checked, stored, applied."""

    def click(rater: str, task: str, kind: str, **content: Any) -> Click:
        made = Click(id=uuid.uuid4().hex, rater=rater, task=task, kind=kind, content=content)
        check_click(project, made)
        stored = answers.store.append(made)
        answers.refresh()
        return stored

    return click


@contextmanager
def open_answers(project: Project) -> Iterator[tuple[Answers, Callable[..., Click]]]:
    """The answers of a project, and a function that makes a click."""
    with project.open_store() as store:
        answers = Answers(project, store)
        yield answers, clicker(project, answers)


def answer_all(project: Project, answers: Answers, choose: Callable[[str, str, str], Any]) -> None:
    """Answer every question of every task with `choose(rater, task, question)`."""
    click = clicker(project, answers)
    for rater in project.raters:
        for own in rater.assignments:
            for question in project.schema.questions:
                click(
                    rater.name, own.task, "set", name=question.name, value=choose(rater.name, own.task, question.name)
                )


@contextmanager
def serve_project(project: Project) -> Iterator[RunningServer]:
    """The pages of a project on a free port."""
    with project.open_store() as store:
        answers = Answers(project, store)
        with run_server(create_annotation_app(answers, grant_project_access(answers))) as server:
            yield server


def read_clicks(project: Project) -> list[Click]:
    """All clicks in the project's log."""
    with project.open_store() as store:
        return store.read()
