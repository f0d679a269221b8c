"""What each command prints, in `snapshots/COMMAND.txt`: the one place that pins the wording which a user sees.

Each line of a snapshot that begins with `$` is run, one after another, in a folder with the files of `folder`, and the
run `run/` where one is named. Below it stand standard output and standard error, and the exit code unless it is 0.
`METRIST_WRITE_SNAPSHOTS=1 pytest tests/cli/test_snapshots.py` writes what the commands print now: read the differences
before you commit them.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest

from metrist import score

ROOT = Path(__file__).resolve().parents[2]
SNAPSHOTS = Path(__file__).parent / "snapshots"
#: What differs between machines and versions, and what stands for it; progress is shown where a machine is slow.
VARIES = {
    r"(?m)^metrist: .* so far\n": "",
    r"metrist \d+\.\d+\.\d+": "metrist VERSION",
    r"version \d+\.\d+\.\d+": "version VERSION",
    r"unicode \d+\.\d+\.\d+": "unicode VERSION",
    r"\d+\.\d MB": "… MB",
    r"× \d+ points": "× … points",
    r"[0-9a-f]{64}": "…",
}


def list_commands() -> list[str]:
    """The names of the snapshots of all commands, `score`, `build-pairs`, but for `doctor`."""
    groups = tomllib.loads((ROOT / "src/metrist/cli/commands.toml").read_text(encoding="utf-8"))
    names = [name if group == "metrist" else f"{group}-{name}" for group, names in groups.items() for name in names]
    return [name for name in names if name != "doctor"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: the demo's sample, and a tiny file of each other kind."""
    shutil.copy(ROOT / "demo/sample.jsonl", tmp_path)
    shutil.copy(ROOT / "demo/versions.csv", tmp_path)
    row = {"item": "1", "system": "a", "output": "The cat sat.", "references": ["A cat sat."]}
    marked = {"start": 4, "end": 7, "text": "cat", "category": "accuracy", "severity": "major", "rater": "R1"}
    texts: dict[str, list[dict[str, Any]]] = {
        "bad.jsonl": [row, {**row, "item": "2", "output": ["x"]}, {**row, "item": "3", "output": "A cat sat."}],
        "one.jsonl": [row],
        "marked.jsonl": [{**row, "errors": [marked]}],
        "empty.jsonl": [],
        "texts.jsonl": [{"text": f"the cat sat on the mat {n}", "summary": f"cat {n}"} for n in range(10)],
        "answers.jsonl": [
            {"item": str(n), "system": "s", "rater": "r", "task": "story", "errors": [True, n > 1], "overall": n + 1}
            for n in range(4)
        ],
        "hellaswag_val.jsonl": [
            {"ind": n, "ctx": f"Text {n}.", "endings": ["a", "b", "c", "d"], "label": n % 4} for n in range(10)
        ],
    }
    for name, rows in texts.items():
        (tmp_path / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    chosen = "".join(f"p{n},a long answer {n},no {n}\n" for n in range(6))
    (tmp_path / "chosen.csv").write_text(f"prompt,chosen,rejected\n{chosen}", encoding="utf-8")
    for name, lines in {
        "out": "a cat sat\nno",
        "other": "a cat\nno one",
        "ref": "the cat sat\nno",
        "short": "a",
    }.items():
        (tmp_path / f"{name}.txt").write_text(f"{lines}\n", encoding="utf-8")
    (tmp_path / "evaluation.toml").write_text(
        "input = 'sample.jsonl'\nmetrics = ['chrf']\noutput = 'out/'\n[compare]\ndraws = 100\n[check]\nmin.chrf = 40\n",
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("METRIST_TEST_DATA", "nowhere")
    for name in ("METRIST_PRICES", "METRIST_SERVE_TOKENS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.mark.parametrize("command", list_commands())
def test_a_command_prints_what_its_snapshot_shows(command: str, metrist, folder: Path) -> None:
    path = SNAPSHOTS / f"{command}.txt"
    shown = path.read_text(encoding="utf-8")
    lines = re.findall(r"^\$ metrist (.*)$", shown, re.MULTILINE)
    if any(" run/" in line for line in lines) and not any("-o run/" in line for line in lines):
        score("sample.jsonl", ["rougeL", "chrf", "ter"], out="run/", progress=False)
    printed = ""
    for line in lines:
        code, out, err = metrist(*shlex.split(line))
        text = f"{out}{err}".replace(f"{folder}{os.sep}", "").replace(str(folder), ".")
        for pattern, stand_in in VARIES.items():
            text = re.sub(pattern, stand_in, text)
        text = "".join(f"{output.rstrip()}\n" for output in text.strip("\n").splitlines())
        printed += f"$ metrist {line}\n{text}" + (f"[exit code {code}]\n" if code else "") + "\n"
    if os.environ.get("METRIST_WRITE_SNAPSHOTS"):
        path.write_text(printed, encoding="utf-8")
        return
    assert printed == shown


def test_each_snapshot_is_of_a_command() -> None:
    assert sorted(path.stem for path in SNAPSHOTS.iterdir()) == sorted(list_commands())
