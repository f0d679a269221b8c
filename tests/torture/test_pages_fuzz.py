"""Strange requests to the pages of view, playground and annotate: never an answer of 500 or more, nor a broken
connection, and the right answer afterwards."""

from __future__ import annotations

import http.client
import json
import random
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import quote

from test_parsers import CASES, SEED, TOKENS, mutate

from annotation_projects import make_project, make_rows, serve_project
from metrist.web.playground import Playground, offer_metrics
from metrist.web.security import Access
from metrist.web.server import create_app
from metrist.web.viewed_run import open_view
from metrist.web.viewer import Collection, Viewer
from torture_table import TortureRow
from viewer_runs import make_run
from web_server import RunningServer, run_server

Rows = Callable[[str], TortureRow]
METHODS = ("GET", "GET", "GET", "POST", "POST", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH")


def send_strange(
    server: RunningServer, row: TortureRow, paths: Sequence[str], bodies: Sequence[object], cookie: str = ""
) -> None:
    rng = random.Random(f"{SEED} {paths}")
    for _ in range(CASES):
        path = rng.choice(paths)
        if rng.random() < 0.7 and "?" in path:
            head, _, query = path.partition("?")
            mutated = mutate(query.encode(), rng)[:5000]
            path = f"{head}?{quote(mutated, safe='=&%[]') if rng.random() < 0.8 else quote(mutated)}"
        elif rng.random() < 0.2:
            path += quote(rng.choice(TOKENS)[:3000])
        body = json.dumps(rng.choice(bodies)).encode()
        if rng.random() < 0.8:
            body = mutate(body, rng)
        headers = {"Origin": server.url, "Content-Type": rng.choice(["application/json"] * 5 + ["text/plain", "x", ""])}
        if cookie:
            headers["Cookie"] = cookie if rng.random() < 0.9 else mutate(cookie.encode(), rng)[:2000].hex()
        if rng.random() < 0.1:
            headers["Range"] = headers["If-None-Match"] = rng.choice(["bytes=0-", "bytes=9-1", "*", "x" * 3000])
        method = rng.choice(METHODS)
        with row.attempt():
            try:
                answer = server.ask(path, method=method, body=body if method != "GET" else None, headers=headers)
            except (OSError, http.client.HTTPException) as error:
                raise AssertionError(f"{method} {path[:300]} {body[:1000]!r}: {error!r}") from error
            assert answer.status < 500, f"{method} {path[:300]} {body[:1000]!r}: {answer.status} {answer.body[:500]!r}"


def send_raw(server: RunningServer, row: TortureRow, cases: int) -> None:
    """Bytes that are no HTTP, or hardly."""
    rng = random.Random(SEED)
    seed = b"GET /?a=1 HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Length: 3\r\n\r\nabc" % server.port
    for _ in range(cases):
        data = mutate(seed, rng)
        with row.attempt():
            with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
                connection.sendall(data[:100_000])
                connection.shutdown(socket.SHUT_WR)
                try:
                    answer = connection.recv(1000)
                except ConnectionResetError:
                    answer = b""
            assert not answer.startswith(b"HTTP/1.1 5"), (data[:500], answer)


def test_the_viewer(tmp_path: Path, torture_row: Rows) -> None:
    row = torture_row("fuzz: pages of view, playground, annotate")
    make_run(tmp_path)
    index = open_view(tmp_path / "run")
    viewer = Viewer(collection=Collection([index]), picks=tmp_path / "picked.jsonl")
    with run_server(create_app(viewer.routes(), Access())) as server:
        expected = server.ask("/api/outputs?run=0&sort=chrf").body
        queries = "run=0&sort=chrf&order=desc&search=cat&system=first&page=1&size=50&min_chrf=0&filter=chrf>0.5"
        paths = ["/", "/api/runs", f"/api/outputs?{queries}", "/api/output?run=0&item=plain&system=first"]
        paths += ["/api/picks", "/api/export?run=0", "/api/annotation", "/static/viewer.js", "/static/../x"]
        bodies = [
            {"run": 0, "keys": [["plain", "first"]], "picked": True},
            {"run": 0, "schema": "likert", "raters": 2},
            {"run": 0, "add": [["plain", "first"]], "remove": [], "all": {"search": "x"}},
        ]
        send_strange(server, row, paths, bodies)
        send_raw(server, row, CASES // 5)
        row.compare({"outputs": expected}, {"outputs": server.ask("/api/outputs?run=0&sort=chrf").body})
    index.close()


def test_the_playground(torture_row: Rows) -> None:
    row = torture_row("fuzz: pages of view, playground, annotate")
    playground = Playground(metrics=offer_metrics(), with_viewer=False)
    body = {"metric": "rougeL", "output": "the cat sat", "references": ["the cat sat down"], "source": "s"}
    with run_server(create_app(playground.routes(), Access())) as server:
        expected = server.post("/api/score", body).json()["value"]
        bodies = [body, {**body, "metric": "chrf", "instruction": None}, {"metric": "length", "output": "x"}]
        send_strange(server, row, ["/", "/play", "/api/metrics", "/api/score", "/api/score?x=1"], bodies)
        row.compare({"value": expected}, {"value": server.post("/api/score", body).json()["value"]})
    playground.close()


def test_the_annotation(tmp_path: Path, torture_row: Rows) -> None:
    row = torture_row("fuzz: pages of view, playground, annotate")
    project = make_project(tmp_path, rows=make_rows(3), raters=2)
    rater = project.raters[0]
    task = rater.assignments[0].task
    question = project.schema.questions[0]
    click = {
        "id": "first",
        "rater": rater.name,
        "task": task,
        "kind": "set",
        "content": {"name": question.name, "value": 1},
    }
    with serve_project(project) as server:
        cookie = f"metrist_{server.port}={rater.token}"
        bodies = [
            click,
            {**click, "kind": "skip", "content": {}},
            {**click, "kind": "mark", "content": {"id": "m", "start": 0, "end": 3, "aspect": "x", "severity": "major"}},
            {"id": "undo-1", "rater": rater.name},
            {"name": "new"},
        ]
        paths = ["/", f"/?token={rater.token}", "/api/project", f"/api/tasks/{task}", "/api/clicks", "/api/undo"]
        paths += ["/api/overview", "/api/raters", "/export/rows.jsonl", "/export/label-studio.json?x=1"]
        send_strange(server, row, paths, bodies, cookie)
        send_raw(server, row, CASES // 5)
        headers = {"Cookie": cookie, "Origin": server.url, "Content-Type": "application/json"}
        last = json.dumps({**click, "id": "last", "content": {"name": question.name, "value": 3}}).encode()
        assert server.ask("/api/clicks", method="POST", body=last, headers=headers).status == 200
        answer = server.ask(f"/api/tasks/{task}", headers=headers)
        assert answer.status == 200
        row.lost += b"3" not in answer.body
