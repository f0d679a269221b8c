"""The hook of pre-commit, which installs metrist from a repository and runs it in another: `make test-pre-commit`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pre_commit", reason="pre-commit is not installed (make test-pre-commit)")

ROOT = Path(__file__).parents[2]
CONFIG = """
repos:
  - repo: {url}
    rev: v1
    hooks:
      - id: metrist-validate
        args: [--field, output=prediction]
"""


def run_git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=Someone", "-c", "user.email=someone@example.org"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def make_repository(folder: Path) -> None:
    run_git(folder, "init")
    run_git(folder, "add", ".")
    run_git(folder, "commit", "--message", "Begin")
    run_git(folder, "tag", "v1")


def test_the_hook_refuses_files_with_bad_rows(tmp_path: Path) -> None:
    hooks, project = tmp_path / "hooks", tmp_path / "project"
    hooks.mkdir()  # What pip needs of this repository: its models would take long to copy.
    for name in (".pre-commit-hooks.yaml", "pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, hooks)
    shutil.copytree(ROOT / "src", hooks / "src", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    make_repository(hooks)
    project.mkdir()
    (project / ".pre-commit-config.yaml").write_text(CONFIG.format(url=hooks.as_uri()), "utf-8")
    (project / "good.jsonl").write_text('{"id": 1, "prediction": "a cat"}\n', "utf-8")
    (project / "notes.txt").write_text("no data\n", "utf-8")
    make_repository(project)

    def run_hook() -> subprocess.CompletedProcess[str]:
        run_git(project, "add", ".")
        return subprocess.run(
            [sys.executable, "-m", "pre_commit", "run", "--all-files", "--verbose"],
            cwd=project,
            env={**os.environ, "PRE_COMMIT_HOME": str(tmp_path / "home")},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )

    accepted = run_hook()
    assert accepted.returncode == 0, accepted.stdout
    assert "good.jsonl" in accepted.stdout
    assert "notes.txt" not in accepted.stdout
    (project / "bad.csv").write_text("id,prediction,references\n1,a cat,a cat\n1,a dog,a cat\n", "utf-8")
    refused = run_hook()
    assert refused.returncode == 1
    assert "bad.csv:3: item '1'" in refused.stdout
