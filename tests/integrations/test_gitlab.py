"""The template of GitLab, run by gitlab-ci-local in a repository with a merge request: `make test-gitlab`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEMO = (ROOT / "demo" / "sample.jsonl").read_text("utf-8")
RUNNER = ROOT / "build" / "gitlab" / "node_modules" / ".bin" / "gitlab-ci-local"
PIPELINE = """
include:
  - local: templates/metrist.yml
    inputs: {inputs}
"""

if not RUNNER.exists() or shutil.which("rsync") is None:
    pytest.skip("gitlab-ci-local or rsync is not installed (make test-gitlab)", allow_module_level=True)


def run_git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=Someone", "-c", "user.email=someone@example.org", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with outputs in its branch `main`; it is its own remote."""
    folder = tmp_path / "repository"
    folder.mkdir()
    run_git(folder, "init")
    run_git(folder, "remote", "add", "origin", folder.as_uri())
    shutil.copytree(ROOT / "templates", folder / "templates")
    (folder / "outputs.jsonl").write_text(DEMO, "utf-8")
    run_git(folder, "add", ".")
    run_git(folder, "commit", "--message", "Add outputs")
    run_git(folder, "checkout", "-b", "change")
    return folder


def run_pipeline(folder: Path, *, target: str = "", **inputs: str) -> tuple[int, str]:
    """The exit code of the job and its report. `pip` finds metrist installed."""
    (folder / ".gitlab-ci.yml").write_text(PIPELINE.format(inputs=json.dumps(inputs)), "utf-8")
    variables = ["--variable", f"CI_MERGE_REQUEST_TARGET_BRANCH_NAME={target}"] if target else []
    variables += ["--variable", f"CI_PIPELINE_SOURCE={'merge_request_event' if target else 'push'}"]
    done = subprocess.run(
        [RUNNER, "--force-shell-executor", "--no-shell-isolation", *variables, "metrist"],
        cwd=folder,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        check=False,
    )
    report = folder / "metrist.xml"
    return done.returncode, report.read_text("utf-8") if report.exists() else ""


def test_a_merge_request_is_compared_with_its_target(repository: Path) -> None:
    rows = [json.loads(line) for line in DEMO.splitlines()]
    rows = [{**row, "output": row["output"][:9]} if row["system"] == "careful" else row for row in rows]
    (repository / "outputs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    code, report = run_pipeline(
        repository, target="main", files="*.jsonl", metrics="rougeL chrf(word_order=2)", check="--draws 1000"
    )
    assert code == 1
    assert 'tests="8" failures="2"' in report


def test_a_push_has_its_limits_checked(repository: Path) -> None:
    code, report = run_pipeline(repository, files="outputs.jsonl", metrics="rougeL", check="--min rougeL=.3")
    assert code == 0
    assert 'tests="4" failures="0"' in report
    assert (repository / "metrist-run" / "manifest.json").exists()
