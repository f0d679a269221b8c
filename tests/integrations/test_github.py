"""The action of GitHub: the steps of action.yml run in bash as a runner would run them, in a clone of a repository with
a base branch, and with the real `gh` against a server that keeps comments: `make test-github`."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("ruamel.yaml", reason="check-jsonschema is not installed (make test-github)")

ROOT = Path(__file__).parents[2]
ACTION = yaml.YAML(typ="safe").load(ROOT / "action.yml")
DEMO = (ROOT / "demo" / "sample.jsonl").read_text("utf-8")


class Comments(BaseHTTPRequestHandler):
    """The part of GitHub's API that has the comments of pull request 7, one per page."""

    comments: list[dict[str, Any]]

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        assert path == "/repos/someone/summaries/issues/7/comments"
        number = re.search(r"\bpage=(\d+)", query.replace("per_page", ""))
        page = int(number[1]) if number else 1
        url = f"http://{self.headers['Host']}{path}?page={page + 1}"
        link = f'<{url}>; rel="next"' if page < len(self.comments) else ""
        self.answer(200, self.comments[page - 1 : page], link)

    def do_POST(self) -> None:
        assert self.path == "/repos/someone/summaries/issues/7/comments"
        self.comments.append({"id": 100 + len(self.comments), "user": {"type": "Bot"}, **self.read_body()})
        self.answer(201, self.comments[-1])

    def do_PATCH(self) -> None:
        path = "/repos/someone/summaries/issues/comments"
        (comment,) = [one for one in self.comments if self.path == f"{path}/{one['id']}"]
        comment.update(self.read_body())
        self.answer(200, comment)

    def read_body(self) -> dict[str, Any]:
        assert self.headers["Authorization"] == "token secret"
        body: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        return body

    def answer(self, status: int, value: Any, link: str = "") -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Link", link)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@dataclass
class Runner:
    """Runs the steps of the action in a clone, as https://docs.github.com/actions describes their environment."""

    clone: Path
    temp: Path
    api: str
    context: dict[str, str] = field(default_factory=dict)

    def run(self, *, base: str | None = "main", **inputs: str) -> tuple[int, str]:
        """The exit code of the first step that failed, and the summary of the job."""
        self.context = {f"inputs.{name}": value.get("default", "") for name, value in ACTION["inputs"].items()}
        self.context |= {f"inputs.{name}": value for name, value in inputs.items()}
        self.context |= {
            "github.action_path": str(ROOT),
            "github.event.pull_request.number": "7",
            "github.event_name": "pull_request" if base else "push",
            "github.token": "secret",
        }
        summary = self.temp / "summary.md"
        summary.write_text("")
        environment = {
            "GITHUB_API_URL": self.api,
            "GITHUB_BASE_REF": base or "",
            "GITHUB_REPOSITORY": "someone/summaries",
            "GITHUB_STEP_SUMMARY": str(summary),
            "HOME": str(self.temp),
            "PATH": os.environ["PATH"],
            "RUNNER_TEMP": str(self.temp),
        }
        installed = (self.temp / "metrist" / "bin" / "metrist").exists()
        for step in ACTION["runs"]["steps"][installed:]:
            if "if" not in step or self.is_true(step["if"]):
                code = self.run_step(step, environment)
                if code and not step.get("continue-on-error"):
                    return code, summary.read_text("utf-8")
        return 0, summary.read_text("utf-8")

    def run_step(self, step: Mapping[str, Any], environment: Mapping[str, str]) -> int:
        outputs = self.temp / "outputs"
        outputs.write_text("")
        variables = {name: self.expand(value) for name, value in step.get("env", {}).items()}
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            check=False,
            cwd=self.clone,
            env={**environment, **variables, "GITHUB_OUTPUT": str(outputs)},
        )
        for line in outputs.read_text("utf-8").splitlines():
            name, _, value = line.partition("=")
            self.context[f"steps.{step['id']}.outputs.{name}"] = value
        return done.returncode

    def expand(self, text: str) -> str:
        return re.sub(r"\$\{\{ (\S+) \}\}", lambda match: self.context[match[1]], text)

    def is_true(self, condition: str) -> bool:
        comparisons = [part.split(" == ") for part in condition.split(" && ")]
        return all(self.context[name] == value.strip("'") for name, value in comparisons)


def run_git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=Someone", "-c", "user.email=someone@example.org", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def temp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is installed there is installed once."""
    return tmp_path_factory.mktemp("runner")


@pytest.fixture
def comments() -> list[dict[str, Any]]:
    """What others wrote before: a person who quotes the action, and another bot."""
    quote = "<!-- metrist: metrist -->\nWhat is this?"
    return [
        {"id": 1, "user": {"type": "User"}, "body": quote},
        {"id": 2, "user": {"type": "Bot"}, "body": "Coverage: 9 %"},
    ]


@pytest.fixture
def runner(tmp_path: Path, temp: Path, comments: list[dict[str, Any]]) -> Iterator[Runner]:
    """A pull request whose outputs are worse: those of `careful` are cut. The clone is shallow, as actions/checkout
    makes it."""
    if shutil.which("gh") is None:
        pytest.skip("gh is not installed")
    origin = tmp_path / "origin"
    (origin / "outputs").mkdir(parents=True)
    run_git(origin, "init")
    (origin / "outputs" / "sample.jsonl").write_text(DEMO, "utf-8")
    run_git(origin, "add", ".")
    run_git(origin, "commit", "--message", "Add outputs")
    run_git(origin, "checkout", "-b", "change")
    rows = [json.loads(line) for line in DEMO.splitlines()]
    rows = [{**row, "output": row["output"][:9]} if row["system"] == "careful" else row for row in rows]
    (origin / "outputs" / "sample.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    run_git(origin, "commit", "--all", "--message", "Cut outputs")
    run_git(tmp_path, "clone", "--depth=1", "--branch=change", origin.as_uri(), "clone")
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Comments,), {"comments": comments})) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield Runner(clone=tmp_path / "clone", temp=temp, api=f"http://127.0.0.1:{server.server_address[1]}")
        server.shutdown()
        thread.join()


def test_the_action_has_the_format_of_github() -> None:
    subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-actions", ROOT / "action.yml"],
        check=True,
    )


def test_a_pull_request_has_one_comment_that_is_updated(runner: Runner, comments: list[dict[str, Any]]) -> None:
    inputs = {
        "files": "outputs/*.jsonl",
        "metrics": "rougeL\nchrf(word_order=2)\n",
        "check": "--max rougeL=.99 --draws 1000",
    }
    code, summary = runner.run(**inputs)
    assert code == 1
    assert [comment["id"] for comment in comments] == [1, 2, 102]
    assert comments[2]["body"] == summary
    rows = [line.split(" | ") for line in summary.splitlines() if "FAILED" in line]
    assert [row[1:4] for row in rows] == [
        ["regression", "careful", "rougeL"],
        ["regression", "careful", "chrf(word_order=2)"],
    ]

    run_git(runner.clone, "fetch", "--depth=1", "origin", "main")
    run_git(runner.clone, "checkout", "FETCH_HEAD", "--", "outputs")
    code, summary = runner.run(**inputs)
    assert code == 0
    assert "FAILED" not in summary
    assert [comment["body"] for comment in comments[2:]] == [summary]

    runner.run(**inputs, name="again")
    assert [comment["body"].splitlines()[0] for comment in comments[2:]] == [
        "<!-- metrist: metrist -->",
        "<!-- metrist: again -->",
    ]


def test_a_stored_baseline_takes_the_place_of_the_base_branch(runner: Runner, comments: list[dict[str, Any]]) -> None:
    code, summary = runner.run(files="outputs/sample.jsonl", metrics="rougeL", base=None, check="--min rougeL=0")
    assert code == 0
    assert len(comments) == 2  # A push has no pull request to comment on.
    stored = runner.context["steps.check.outputs.run"]
    run_git(runner.clone, "rm", "-r", "outputs")
    (runner.clone / "new.jsonl").write_text(DEMO, "utf-8")
    code, summary = runner.run(
        files="new.jsonl", metrics="rougeL", baseline=stored, comment="false", check="--draws 1000"
    )
    assert code == 0
    assert summary.count("| passed | regression |") == 4
    assert len(comments) == 2


def test_files_that_are_new_have_nothing_to_compare_with(runner: Runner, comments: list[dict[str, Any]]) -> None:
    (runner.clone / "new.jsonl").write_text(DEMO, "utf-8")
    code, _ = runner.run(files="new.jsonl", metrics="rougeL")
    assert code == 0
    assert "rougeL" in comments[2]["body"]
    code, summary = runner.run(files="nothing.jsonl", metrics="rougeL")
    assert (code, summary) == (2, "")


def test_a_comment_that_cannot_be_written_does_not_fail_the_job(runner: Runner) -> None:
    runner.api = "http://127.0.0.1:9"
    code, summary = runner.run(files="outputs/sample.jsonl", metrics="rougeL", check="--draws 1000")
    assert code == 1
    assert "FAILED" in summary


def test_a_long_comment_is_cut(runner: Runner, comments: list[dict[str, Any]]) -> None:
    row = json.loads(DEMO.splitlines()[0])
    rows = [{**row, "system": f"système {n} {'é' * 100}"} for n in range(400)]
    (runner.clone / "many.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    code, summary = runner.run(files="many.jsonl", metrics="rougeL", check="--min rougeL=0")
    assert code == 0
    body = comments[2]["body"]
    assert len(summary) > 65_536 > len(body) > 30_000
    assert summary.startswith(body[:-2])  # The last character may be cut.
