"""The server of a project: who may do what, what raters are told, and that no acknowledged click is lost."""

from __future__ import annotations

import http.client
import json
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from annotation_projects import make_project, make_rows, read_clicks, serve_project
from error_codes import raises_code
from metrist.errors import InputError
from metrist.web.annotation import estimates
from metrist.web.annotation.answers import Answers
from metrist.web.annotation.app import create_annotation_app, grant_project_access
from metrist.web.annotation.export import export_rows
from metrist.web.annotation.project import Project, Rater, open_project
from metrist.web.annotation.store import ClickStore
from torture_table import TortureRow
from web_server import Answer, RunningServer, run_server

HOSTILE = "<script>alert(1)</script>\u202e\0\x1b[31m\ud800"


def ask(server: RunningServer, token: str, path: str, body: Any = None, **headers: str) -> Answer:
    """A request with the cookie that a personal link sets."""
    sent = {"Cookie": f"metrist_{server.port}={token}", **headers}
    if body is None:
        return server.ask(path, headers=sent)
    sent = {"Origin": server.url, "Content-Type": "application/json", **sent}
    return server.ask(path, method="POST", body=json.dumps(body).encode(), headers=sent)


def make_click(rater: Rater, task: str, kind: str = "set", **content: Any) -> dict[str, Any]:
    return {"id": uuid.uuid4().hex, "rater": rater.name, "task": task, "kind": kind, "content": content}


def test_a_personal_link_opens_the_page_of_the_rater(tmp_path: Path) -> None:
    project = make_project(tmp_path, raters=2)
    with serve_project(project) as server:
        assert server.ask("/").status == 401
        assert server.ask("/api/project").status == 401
        link = server.ask(f"/?token={project.raters[0].token}")
        assert "samesite=strict" in link.headers["set-cookie"].lower()
        assert ask(server, project.raters[0].token, "/api/project").json()["rater"] == "r1"
        assert "annotate.js" in ask(server, project.raters[0].token, "/").text
        assert "overview.js" in ask(server, project.owner_token, "/").text


def test_raters_see_neither_systems_nor_items_nor_what_the_owner_sees(tmp_path: Path) -> None:
    rows = make_rows(2, systems=("system-one", "system-two"))
    for row in rows:
        row["item"] = f"secret-{row['item']}"
        row["output"] = row["output"].replace(row["system"], row["system"][::-1])
    project = make_project(tmp_path, "pairwise", rows=rows)
    token = project.raters[0].token
    with serve_project(project) as server:
        texts = [ask(server, token, "/api/project").text]
        texts += [ask(server, token, f"/api/tasks/{task}").text for task in project.tasks]
        assert not any("system-" in text or "secret-" in text or "reference for" in text for text in texts)
        for path in ("/api/overview", "/export/answers.jsonl"):
            assert ask(server, token, path).status == 403
            assert ask(server, project.owner_token, path).status == 200
        assert ask(server, project.owner_token, "/api/project").status == 403
        assert ask(server, project.owner_token, "/export/..%2Fproject.json").status == 404


def test_a_rater_who_is_added_while_the_server_runs_has_a_link_at_once(tmp_path: Path) -> None:
    project = make_project(tmp_path, raters=2)
    with serve_project(project) as server, project.open_store() as store:
        added = ask(server, project.owner_token, "/api/raters", {"name": "Zoë"}).json()
        assert added["tasks"] == 12
        # By another process, as `--add-rater` does.
        late = Answers(open_project(project.folder), store).add_rater("late")
        for token, name in ((added["token"], "Zoë"), (late.token, "late"), (project.raters[0].token, "r1")):
            assert ask(server, token, "/api/project").json()["rater"] == name
        overview = ask(server, project.owner_token, "/api/overview").json()
        assert [rater["name"] for rater in overview["raters"]] == ["r1", "r2", "Zoë", "late"]
        for wrong in ("r1", "", " ", "a\nb", 7):
            assert ask(server, project.owner_token, "/api/raters", {"name": wrong}).status == 400
        assert ask(server, late.token, "/api/raters", {"name": "x"}).status == 403
        assert ask(server, "x" * 24, "/api/project").status == 401


def test_the_server_orders_tasks_by_what_they_tell_and_tells_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimates, "FIRST_TASKS", 20)
    rows = [{**row, "scores": {"m": number}} for number, row in enumerate(make_rows(10))]
    project = make_project(tmp_path, "likert", rows=rows, order="informative")
    rater = project.raters[0]
    with serve_project(project) as server:
        told = [
            ask(server, rater.token, "/api/clicks", make_click(rater, own.task, name="overall", value=1)).json()
            for own in rater.assignments[:20]
        ]
        assert [answer["ordered"] for answer in told] == [False] * 19 + [True]
        tasks = ask(server, rater.token, "/api/project").json()["tasks"]
    chances = open_project(project.folder).chances
    assert tasks[20:] == sorted(chances, key=lambda task: chances[task].priority)


def test_a_click_is_stored_before_it_is_acknowledged_and_counts_once(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    rater = project.raters[0]
    click = make_click(rater, "t1", name="naturalness", value=2)
    with serve_project(project) as server:
        answers = [ask(server, rater.token, "/api/clicks", click).json() for _ in range(3)]
        assert [answer["number"] for answer in answers] == [1, 1, 1]
        assert answers[0]["answer"]["values"] == {"naturalness": 2.0}
        assert len(read_clicks(project)) == 1
        assert ask(server, project.owner_token, "/api/overview").json()["means"] == []
        undo = {"id": "u1", "rater": rater.name}
        for _ in range(2):
            assert ask(server, rater.token, "/api/undo", undo).json()["answer"]["values"] == {}
        assert ask(server, rater.token, "/api/undo", {**undo, "id": "u2"}).json()["number"] == 0


def test_bad_clicks_are_refused_and_not_stored(tmp_path: Path) -> None:
    project = make_project(tmp_path, raters=2)
    rater, other = project.raters
    click = make_click(rater, "t1", name="naturalness", value=2)
    values: list[Any] = [float("nan"), [[]], 9]
    changes: list[dict[str, Any]] = [
        *({"task": "t999"}, {"kind": "drop"}, {"id": 7}, {"id": "a b"}, {"more": 1}, {"content": []}),
        {"content": {"\ud800": 1}},
        *({"content": {"name": "naturalness", "value": value}} for value in values),
    ]
    with serve_project(project) as server:
        for body in (*({**click, **change} for change in changes), [click]):
            answer = ask(server, rater.token, "/api/clicks", body)
            assert answer.status == 400, body
            assert answer.json()["error"]
        assert ask(server, rater.token, "/api/clicks", click, Origin="http://evil.example").status == 403
        # A page of another rater in the same browser.
        assert ask(server, other.token, "/api/clicks", click).status == 409
    assert read_clicks(project) == []


def test_any_text_is_sent_as_json(tmp_path: Path) -> None:
    rows = [{"item": HOSTILE, "system": "s", "output": HOSTILE, "source": HOSTILE}]
    project = make_project(tmp_path, rows=rows)
    with serve_project(project) as server:
        answer = ask(server, project.raters[0].token, "/api/tasks/t1")
        assert answer.json()["outputs"] == [HOSTILE]
        assert "nosniff" in answer.headers["x-content-type-options"]
        rater = project.raters[0]
        ask(server, rater.token, "/api/clicks", make_click(rater, "t1", "note", text=HOSTILE))
        for question in project.schema.questions:
            ask(server, rater.token, "/api/clicks", make_click(rater, "t1", name=question.name, value=1))
        exported = ask(server, project.owner_token, "/export/answers.jsonl")
        assert exported.json()["rater_notes"] == {"r1": HOSTILE}
        assert exported.json()["output"] == HOSTILE


def test_a_click_that_cannot_be_stored_is_to_be_sent_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    project = make_project(tmp_path)
    rater = project.raters[0]
    click = make_click(rater, "t1", name="naturalness", value=2)
    with serve_project(project) as server:
        # SQLite would go on writing to a file that is deleted.
        (project.folder / "clicks.sqlite").rename(tmp_path / "away")
        for path, body in (("/api/clicks", click), ("/api/undo", {"id": "u1", "rater": rater.name})):
            answer = ask(server, rater.token, path, body)
            assert answer.status == 503
            assert str(tmp_path) not in answer.text
        assert str(tmp_path) in capfd.readouterr().err
        (tmp_path / "away").rename(project.folder / "clicks.sqlite")
        with monkeypatch.context() as patch:
            patch.setattr(ClickStore, "_insert", fail_as_on_a_full_disk)
            assert ask(server, rater.token, "/api/clicks", click).status == 503
        assert ask(server, rater.token, "/api/clicks", click).status == 200
    assert [stored.id for stored in read_clicks(project)] == [click["id"]]


def fail_as_on_a_full_disk(*_: object) -> None:
    raise sqlite3.OperationalError("database or disk is full")


def test_a_proxy_with_another_name_is_allowed_by_its_url(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    rater = project.raters[0]
    with project.open_store() as store:
        answers = Answers(project, store)
        access = grant_project_access(answers, url="https://annotate.example.org")
        with run_server(create_annotation_app(answers, access)) as server:
            host = {"Host": "annotate.example.org"}
            link = server.ask(f"/?token={rater.token}", headers=host)
            assert "secure" in link.headers["set-cookie"].lower()
            for own in (host, {}):  # A proxy may pass the name on, or not.
                cookie = {"Cookie": f"metrist_{80 if own else server.port}={rater.token}"}
                click = make_click(rater, "t1", name="naturalness", value=2)
                for origin, status in (("https://annotate.example.org", 200), ("https://example.org", 403)):
                    headers = {**own, **cookie, "Origin": origin, "Content-Type": "application/json"}
                    answer = server.ask("/api/clicks", method="POST", body=json.dumps(click).encode(), headers=headers)
                    assert answer.status == status
            assert server.ask("/", headers={"Host": "example.org"}).status == 421
        for wrong in ("annotate.example.org", "https://a/b", "ftp://a", "https://a:x", "https://u@a"):
            with raises_code(InputError, "invalid_value", wrong):
                grant_project_access(answers, url=wrong)


# ---- The soak: raters who click while the server is killed


class SimulatedRater:
    """Clicks over HTTP; a click without an answer is sent again under its id, as the page does."""

    def __init__(self, project: Project, rater: Rater, clicks: int, port: Callable[[], int]) -> None:
        self.project, self.rater, self.port = project, rater, port
        rng = random.Random(rater.name)
        self.clicks = []
        for _ in range(clicks):
            question = rng.choice(project.schema.questions)
            task = rng.choice(rater.assignments).task
            self.clicks.append(make_click(rater, task, name=question.name, value=rng.choice(question.choices).value))
        self.acknowledged: list[str] = []
        self.faults: list[str] = []
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        for click in self.clicks:
            while not self.send(click):
                time.sleep(0.05)
            self.acknowledged.append(click["id"])

    def send(self, click: dict[str, Any]) -> bool:
        port = self.port()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        headers = {
            "Cookie": f"metrist_{port}={self.rater.token}",
            "Origin": f"http://127.0.0.1:{port}",
            "Content-Type": "application/json",
        }
        try:
            connection.request("POST", "/api/clicks", json.dumps(click), headers)
            response = connection.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
        if response.status == 503:
            return False
        if response.status != 200:
            self.faults.append(body.decode())
        return True


def soak(
    folder: Path,
    popen: Callable[..., subprocess.Popen[Any]],
    row: TortureRow,
    *,
    raters: int,
    clicks: int,
    kills: int,
) -> None:
    project = make_project(folder, rows=make_rows(10), raters=raters)
    command = [sys.executable, "-m", "metrist", "annotate", str(project.folder), "--port"]

    def start(port: int) -> tuple[subprocess.Popen[Any], int]:
        process = popen([*command, str(port)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert process.stdout is not None
        line = process.stdout.readline()  # owner: http://127.0.0.1:8517/?token=…
        return process, int(line.split("127.0.0.1:")[1].split("/")[0])

    process, port = start(0)
    everyone = [SimulatedRater(project, rater, clicks, lambda: port) for rater in project.raters]
    for rater in everyone:
        rater.thread.start()
    for kill in range(1, kills + 1):
        while sum(len(rater.acknowledged) for rater in everyone) < raters * clicks * kill / (kills + 1):
            time.sleep(0.01)
        with row.attempt():
            process.send_signal(signal.SIGKILL)
            process.wait()
            process, port = start(port)
    for rater in everyone:
        rater.thread.join()
        assert rater.faults == []
    process.send_signal(signal.SIGKILL)
    process.wait()

    stored = Counter(click.id for click in read_clicks(project))
    sent = Counter(click["id"] for rater in everyone for click in rater.clicks)
    row.compare(sent, stored)  # Each acknowledged click, once.
    # The export has what the last click of each rater on each question says.
    with project.open_store() as store:
        answers = Answers(project, store)
        answers.refresh()
        exported = {
            (rater, row["item"], row["system"], name): value
            for row in export_rows(answers)
            for name, values in row["ratings"].items()
            for rater, value in zip(row["raters"], values, strict=True)
        }
        expected = {}
        for rater in everyone:
            for click in rater.clicks:
                record = project.tasks[click["task"]].records[0]
                if answers.is_complete(rater.rater.name, click["task"]):
                    key = rater.rater.name, record.item, record.system, click["content"]["name"]
                    expected[key] = click["content"]["value"]
    row.compare(expected, exported)
    assert len(exported) > 0
    row.check()


def test_a_killed_server_loses_no_acknowledged_click(
    tmp_path: Path, popen: Callable[..., subprocess.Popen[Any]]
) -> None:
    soak(tmp_path, popen, TortureRow("kill -9: annotate"), raters=2, clicks=60, kills=1)


@pytest.mark.torture
def test_twenty_raters_lose_nothing_when_the_server_is_killed_five_times(
    tmp_path: Path, popen: Callable[..., subprocess.Popen[Any]], torture_row: Callable[[str], TortureRow]
) -> None:
    soak(tmp_path, popen, torture_row("kill -9: annotate"), raters=20, clicks=200, kills=5)
