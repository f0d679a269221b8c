"""Damaged files: flipped bits, zeros, files cut short or swapped. They are found, set aside and made again."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from faults import write_records

import metrist
import tiny_models
from annotation_projects import answer_all, make_project, make_rows, read_clicks
from metrist.errors import MetristError
from metrist.llm import gateway
from metrist.llm.cache import FILE_NAME, open_cache
from metrist.llm.messages import Sampling
from metrist.web.annotation.answers import Answers
from run_contents import contents
from scripted_llm import Scripted, say
from torture_table import TortureRow

pytestmark = pytest.mark.torture
Rows = Callable[[str], TortureRow]


def damage(path: Path, rng: random.Random, others: list[Path]) -> str:
    """Damage a file in one of the ways of disks and people; returns which."""
    data = bytearray(path.read_bytes())
    kind = rng.choice(["bit", "cut", "zeros", "swapped", "emptied", "appended", "block"])
    at = rng.randrange(len(data)) if data else 0
    if kind == "bit" and data:
        data[at] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        del data[at:]
    elif kind == "zeros":
        data[at : at + 512] = bytes(len(data[at : at + 512]))
    elif kind == "swapped" and others:
        data = bytearray(rng.choice(others).read_bytes())
    elif kind == "emptied":
        data = bytearray()
    elif kind == "appended":
        data += rng.randbytes(rng.randint(1, 200))
    elif kind == "block":
        data[at : at + 64] = rng.randbytes(64)
    path.write_bytes(data)
    return kind


def test_files_of_a_run_folder(tmp_path: Path, torture_row: Rows) -> None:
    """The same command again ends with the contents of the calm run; whatever reads the damaged folder gives the right
    scores or says what is wrong."""
    row = torture_row("corrupted: parts and manifest of a run folder")
    rng = random.Random(11)
    source = write_records(tmp_path / "in.jsonl", 60)
    specs = ["rougeL", "chrf"]

    def score(out: Path) -> dict[str, list[float]]:
        results = metrist.score(str(source), specs, out=out, shard_size=24, executor="serial")
        return {spec: results[spec].values.tolist() for spec in specs}

    values = score(tmp_path / "calm")
    calm = contents(tmp_path / "calm")
    for number in range(300):
        run_folder = tmp_path / "run"
        shutil.rmtree(run_folder, ignore_errors=True)
        shutil.copytree(tmp_path / "calm", run_folder)
        files = sorted(path for path in run_folder.rglob("*") if path.is_file() and not path.name.startswith("."))
        victims = rng.sample(files, rng.choice((1, 1, 1, 3)))
        with row.attempt():
            kinds = [damage(path, rng, [other for other in files if other != path]) for path in victims]
            names = [str(path.relative_to(run_folder)) for path in victims]
            try:
                loaded = metrist.load(run_folder)
                found = {spec: loaded[spec].values.tolist() for spec in specs if spec in loaded.metrics}
            except MetristError:
                found = {}
            for spec, column in found.items():
                row.compare(dict(enumerate(values[spec])), dict(enumerate(column)))
            try:
                again = score(run_folder)
            except MetristError:
                if "manifest.json" not in names:  # Without it nobody knows what the parts are.
                    raise
                continue
            row.compare(values, again)
            # The manifest has no checksum: what it says besides the parts may have changed.
            fresh = contents(run_folder)
            differing = [name for name in calm if name != "manifest" and fresh.get(name) != calm[name]]
            assert "manifest.json" in names or not differing, (number, names, kinds, differing)


def test_pages_of_the_llm_cache(tmp_path: Path, torture_row: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged answer is asked for again, a damaged file set aside; a wrong answer never comes back."""
    row = torture_row("corrupted: LLM cache")
    rng = random.Random(12)
    texts = [f"question {n} {'x' * (n % 50)}" for n in range(60)]
    sampling = Sampling(max_tokens=100)
    monkeypatch.setenv("METRIST_LLM_CACHE", str(tmp_path / "whole"))
    gateway.complete(Scripted(), say(*texts), sampling)
    cache = open_cache()
    cache.close()
    whole = cache.path.read_bytes()
    for number in range(150):
        folder = tmp_path / f"cache-{number}"
        folder.mkdir()
        (folder / FILE_NAME).write_bytes(whole)
        damage(folder / FILE_NAME, rng, [])
        monkeypatch.setenv("METRIST_LLM_CACHE", str(folder))
        with row.attempt():
            for _ in range(2):
                answers = gateway.complete(Scripted(), say(*texts), sampling)
                expected = {text: text.upper() for text in texts}
                row.compare(expected, {text: answer.text for text, answer in zip(texts, answers, strict=True)})
            assert all(answer.usage.cached for answer in answers), "not stored again"
        open_cache().close()
        shutil.rmtree(folder)


def test_the_log_of_clicks(tmp_path: Path, torture_row: Rows) -> None:
    """A damaged log is an error, or all its clicks are there; it is never begun anew over what people did."""
    row = torture_row("corrupted: annotation clicks")
    rng = random.Random(14)
    project = make_project(tmp_path, rows=make_rows(6), raters=2)
    with project.open_store() as store:
        answer_all(project, Answers(project, store), lambda *_: rng.choice((1, 2, 3)))
    expected = {click.id: (click.task, click.kind, str(click.content)) for click in read_clicks(project)}
    (path,) = project.folder.glob("*.sqlite*")
    whole = path.read_bytes()
    for _ in range(150):
        path.write_bytes(whole)
        kind = damage(path, rng, [])
        with row.attempt():
            if export(project.folder, tmp_path / "out.jsonl") is None:
                found = {click.id: (click.task, click.kind, str(click.content)) for click in read_clicks(project)}
                if kind != "emptied":  # That is the log of a project nobody has answered in.
                    row.compare(expected, found)
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)


def export(project: Path, out: Path) -> MetristError | None:
    """Export a project as the command does; returns its error."""
    from metrist.web.annotation.export import export_rows
    from metrist.web.annotation.project import open_project

    try:
        opened = open_project(project)
        with opened.open_store() as store:
            answers = Answers(opened, store)
            answers.refresh()
            out.write_text("".join(json.dumps(row) + "\n" for row in export_rows(answers)))
    except MetristError as error:
        return error
    return None


def test_checkpoints_of_a_training(tmp_path: Path, torture_row: Rows) -> None:
    """A training goes on from the newest whole checkpoint, or from the beginning, and ends with the calm weights."""
    row = torture_row("corrupted: checkpoints")
    rng = random.Random(15)
    base = tiny_models.save("bart", tmp_path / "base")
    data = tmp_path / "pairs.jsonl"
    pairs = [{"first": f"the cat {n % 9}", "second": f"good dog {n % 7}"} for n in range(24)]
    data.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    script = tmp_path / "train.py"
    script.write_text(STOPPED_TRAINING)
    options = ["--data", data, "--base", base, "--epochs", 2, "--lr", "0.01", "--batch", 4, "--checkpoint-every", 2]

    def train(out: Path, stop: int) -> subprocess.CompletedProcess[str]:
        arguments = [sys.executable, script, stop, "train", "likelihood", *options, "--out", out]
        return subprocess.run([*map(str, arguments)], capture_output=True, text=True, check=False, timeout=600)

    assert train(tmp_path / "calm", 0).returncode == 0
    expected = (tmp_path / "calm" / "model.safetensors").read_bytes()
    train(tmp_path / "begun", 7)
    assert len(list((tmp_path / "begun").glob("checkpoints/step-*"))) == 2
    for number in range(8):
        out = tmp_path / f"damaged-{number}"
        shutil.copytree(tmp_path / "begun", out)
        files = sorted(path for path in (out / "checkpoints").rglob("*") if path.is_file())
        newest = [path for path in files if "step-00000006" in str(path)]
        for path in [rng.choice(newest), *(rng.sample(files, 2) if number % 3 == 2 else ())]:
            damage(path, rng, [])
        with row.attempt():
            done = train(out, 0)
            assert done.returncode == 0, done.stderr[-2000:]
        row.compare({"weights": expected}, {"weights": (out / "model.safetensors").read_bytes()})
        shutil.rmtree(out)


STOPPED_TRAINING = """
import os, sys
stop = int(sys.argv.pop(1))
from metrist.train.likelihood import TokenLoss
from metrist.cli.app import main

plain, calls = TokenLoss.loss, [0]

def loss(self, model, batch):
    calls[0] += 1
    if stop and calls[0] > stop:
        os._exit(9)
    return plain(self, model, batch)

TokenLoss.loss = loss
main()
"""
