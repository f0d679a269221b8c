"""The pages of a project: one for each rater behind a personal link, and one for the owner.

Raters see neither the names of systems and items nor each other's answers. A click is on disk before it is
acknowledged; a page that gets no answer sends it again under the same id.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from metrist.errors import RunError
from metrist.io.writer import json_line
from metrist.web.annotation.answers import (
    ALPHA_NOTE,
    Answers,
    Dispute,
    Disputes,
    check_click,
    describe_dispute,
    give_answer,
)
from metrist.web.annotation.estimates import describe_means, estimate_ratings, order_open_tasks
from metrist.web.annotation.export import (
    export_disputes,
    export_label_studio,
    export_rows,
    fits_label_studio,
    label_studio_config,
)
from metrist.web.annotation.guidelines import parse_guidelines
from metrist.web.annotation.project import Project, Rater
from metrist.web.annotation.store import Click
from metrist.web.pages import answer_json, read_body, render_page
from metrist.web.security import OWNER, Access, match_token
from metrist.web.server import create_app

_RATER = "rater:"
#: Disputed tasks on the owner's page, and characters of each text.
_SHOWN_DISPUTES, _SHOWN_TEXT = 50, 2000
#: What raters see of an error that an analysis lists, besides its text.
_SHOWN_FACTS = ("aspect", "severity", "penalty", "explanation", "revision")


class UndoBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The id of a click that takes back the last one, and the rater whom the page was loaded for."""

    id: str
    rater: str


class ClickBody(UndoBody, frozen=True, forbid_unknown_fields=True):
    """A click as a page sends it."""

    task: str
    kind: str
    content: dict[str, Any]


_Body = TypeVar("_Body", bound=UndoBody)


class RaterBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The name of a new rater."""

    name: str


def grant_project_access(answers: Answers, host: str = "127.0.0.1", url: str | None = None) -> Access:
    """Return who may use the pages: the owner and each rater, by the tokens of their links, on loopback too. `url` is
    the address that people use, where a proxy stands before the server."""

    def find_rater(token: str) -> str | None:
        answers.refresh_project()
        return match_token(token, ((rater.token, f"{_RATER}{rater.name}") for rater in answers.project.raters))

    return Access(host=host, url=url, tokens={answers.project.owner_token: OWNER}, find_user=find_rater)


def create_annotation_app(answers: Answers, access: Access) -> ASGIApp:
    """Return the app of a project."""
    pages = Pages(answers)
    routes = [
        Route("/", pages.home),
        Route("/api/project", pages.send_project),
        Route("/api/tasks/{task}", pages.send_task),
        Route("/api/clicks", pages.take_click, methods=["POST"]),
        Route("/api/undo", pages.take_undo, methods=["POST"]),
        Route("/api/overview", pages.send_overview),
        Route("/api/raters", pages.add_rater, methods=["POST"]),
        Route("/export/{name}", pages.send_export),
    ]
    return create_app(routes, access, static=["metrist.web.annotation"])


class Pages:
    """Handlers of requests. One lock guards the answers; the work is done in threads, since it waits for the disk."""

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self._disputes = Disputes(answers)
        self._guidelines = parse_guidelines(answers.project.guidelines)
        self._lock = threading.Lock()

    @property
    def project(self) -> Project:
        return self.answers.project

    async def home(self, request: Request) -> Response:
        script, heading = "annotate.js", self.project.schema.about
        if request.scope["metrist.user"] == OWNER:
            script, heading = "overview.js", f"Annotation: {self.project.schema.name}"
        return render_page(
            "annotation.html", "Annotation", heading=heading, scripts=[script], styles=["annotation.css"]
        )

    # ---- Raters

    # Handlers that are no coroutines run in threads.

    def send_project(self, request: Request) -> Response:
        rater = self._rater(request)
        with self._lock:
            self.answers.refresh()
            return answer_json(
                {
                    "id": self.project.id,
                    "rater": rater.name,
                    "schema": self.project.schema.to_dict(),
                    "guidelines": self._guidelines,
                    "tasks": [own.task for own in rater.assignments],
                    **self._progress(rater),
                }
            )

    def send_task(self, request: Request) -> Response:
        rater = self._rater(request)
        assignment = self.project.assigned.get((rater.name, request.path_params["task"]))
        if assignment is None:
            raise HTTPException(404, "There is no such task.")
        task = self.project.tasks[assignment.task]
        record = task.records[0]
        errors = []
        for error in task.errors:
            text = error.text
            whole = record.output if error.side == "output" else record.source
            if not text and whole is not None and error.start is not None and error.end is not None:
                text = whole[error.start : error.end]
            errors.append({"text": text, **{name: getattr(error, name) for name in _SHOWN_FACTS}})
        with self._lock:
            self.answers.refresh()
            answer = self.answers.find(rater.name, task.id).to_dict()
        return answer_json(
            {
                "id": task.id,
                "instruction": record.instruction,
                "source": record.source,
                "references": list(record.references) if self.project.show_references else [],
                "outputs": [shown.output for shown in (task.records[::-1] if assignment.swapped else task.records)],
                "errors": errors,
                "answer": answer,
            }
        )

    async def take_click(self, request: Request) -> Response:
        rater, body = await self._read_click(request, ClickBody)
        click = Click(id=body.id, rater=rater.name, task=body.task, kind=body.kind, content=body.content)

        def append() -> Click:
            check_click(self.project, click)
            return self.answers.store.append(click)

        return await run_in_threadpool(self._store, rater, append)

    async def take_undo(self, request: Request) -> Response:
        rater, body = await self._read_click(request, UndoBody)
        return await run_in_threadpool(self._store, rater, lambda: self.answers.store.undo(body.id, rater.name))

    async def _read_click(self, request: Request, kind: type[_Body]) -> tuple[Rater, _Body]:
        """The rater, and a click of a page that was loaded for nobody else: the cookie of the browser may change."""
        rater = self._rater(request)
        body = await read_body(request, kind)
        if body.rater != rater.name:
            text = f"This browser now uses the link of {rater.name!r}. Open the link of {body.rater!r} again to go on."
            raise HTTPException(409, text)
        return rater, body

    def _rater(self, request: Request) -> Rater:
        user = str(request.scope["metrist.user"])
        rater = self.project.raters_by_name.get(user.removeprefix(_RATER)) if user.startswith(_RATER) else None
        if rater is None:
            raise HTTPException(403, "This page is for raters; open a rater's link.")
        return rater

    def _store(self, rater: Rater, append: Callable[[], Click | None]) -> Response:
        """Store a click and acknowledge it. Where that fails, the page sends it again and the owner reads why."""
        try:
            stored = append()
            with self._lock:
                self.answers.refresh()
                order_open_tasks(self.answers)
        except RunError as error:
            print(f"metrist: {error}", file=sys.stderr, flush=True)
            raise HTTPException(503, "Answers cannot be stored at the moment; this page goes on trying.") from None
        with self._lock:
            content: dict[str, Any] = {"number": stored.number if stored else 0, **self._progress(rater)}
            if stored is not None:
                content["task"] = stored.task
                content["answer"] = self.answers.find(rater.name, stored.task).to_dict()
        return answer_json(content)

    def _progress(self, rater: Rater) -> dict[str, Any]:
        complete = [own.task for own in rater.assignments if self.answers.is_complete(rater.name, own.task)]
        ordered = bool(self.project.chances)
        return {"complete": complete, "can_undo": self.answers.can_undo(rater.name), "ordered": ordered}

    # ---- The owner

    async def add_rater(self, request: Request) -> Response:
        _check_owner(request)
        body = await read_body(request, RaterBody)

        def add() -> Rater:
            with self._lock:
                return self.answers.add_rater(body.name)

        rater = await run_in_threadpool(add)
        return answer_json({"name": rater.name, "token": rater.token, "tasks": len(rater.assignments)})

    def send_overview(self, request: Request) -> Response:
        _check_owner(request)
        with self._lock:
            self.answers.refresh()
            raters = []
            for rater in self.project.raters:
                done, total = self.answers.progress(rater.name)
                attention = self.answers.attention(rater.name)
                person = {"name": rater.name, "token": rater.token, "done": done, "total": total}
                person |= {"attention": attention if attention[1] else None}
                raters.append({**person, "last": self.answers.last_times.get(rater.name)})
            disputes = self._disputes.find()
            means = [mean for mean in estimate_ratings(self.answers) if mean.rated]
            shown = [self._describe_dispute(dispute) for dispute in disputes[:_SHOWN_DISPUTES]]
            content = {
                "schema": self.project.schema.name,
                "label_studio": fits_label_studio(self.project.schema),
                "about": self.project.schema.about,
                "folder": str(self.project.folder.resolve()),
                "pick": None if all(task.weight == 1 for task in self.project.tasks.values()) else self.project.pick,
                "informative": bool(self.project.chances),
                "tasks": len(self.project.sampled_tasks),
                "attention": sum(task.expected is not None for task in self.project.tasks.values()),
                "raters": raters,
                "means": [mean.to_dict() for mean in means],
                "means_title": "Win rates" if self.project.schema.kind == "pairwise" else "Mean ratings",
                "means_note": " ".join(describe_means(self.answers, means)),
                "agreement": self.answers.agreement(),
                "alpha": ALPHA_NOTE,
                "disputes": {"count": len(disputes), "shown": shown},
            }
        return answer_json(content)

    def _describe_dispute(self, dispute: Dispute) -> dict[str, Any]:
        """A disputed task with the beginnings of its outputs."""
        task = dispute.task
        return {
            "task": task.id,
            "item": task.item,
            "said": describe_dispute(self.answers, dispute),
            "outputs": [{"system": record.system, "text": record.output[:_SHOWN_TEXT]} for record in task.records],
            "disagreement": dispute.disagreement,
            "disputed": [name for name, disagreement in dispute.by_question.items() if disagreement],
            "answers": {rater: give_answer(self.answers, rater, task) for rater in dispute.raters},
        }

    def send_export(self, request: Request) -> Response:
        _check_owner(request)
        name = request.path_params["name"]
        if name not in ("answers.jsonl", "disputes.jsonl", "label-studio.json", "label-studio.xml"):
            raise HTTPException(404, "There is no such file.")
        with self._lock:
            self.answers.refresh()
            if name == "label-studio.xml":
                content, media_type = label_studio_config(self.answers), "application/xml"
            elif name == "label-studio.json":
                rows = ",\n".join(map(json_line, export_label_studio(self.answers)))
                content, media_type = f"[{rows}]\n", "application/json"
            else:
                lines = (export_disputes if name == "disputes.jsonl" else export_rows)(self.answers)
                content, media_type = "".join(f"{json_line(row)}\n" for row in lines), "application/x-ndjson"
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        return Response(content.encode("utf-8", "backslashreplace"), media_type=media_type, headers=headers)


def _check_owner(request: Request) -> None:
    if request.scope["metrist.user"] != OWNER:
        raise HTTPException(403, "This page is for the owner of the project.")
