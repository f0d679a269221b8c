"""Damaged files: flipped bits, zeros, files cut short or swapped. They are found, set aside and made again."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from faults import check_readers, list_scores, make_training, write_model, write_records
from stepwise import start_steps

import metrist
from annotation_projects import answer_all, make_project, make_rows, read_clicks
from metrist.errors import MetristError
from metrist.llm import gateway
from metrist.llm.cache import FILE_NAME, open_cache
from metrist.llm.messages import Sampling
from metrist.run.manifest import decode_manifest, read_log
from metrist.run.removal import plan_removal
from metrist.web.annotation.answers import Answers
from run_contents import contents
from scripted_llm import Scripted, say
from torture_table import TortureRow, read_contents

Rows = Callable[[str], TortureRow]
#: Into which a file is divided.
REGIONS = 16


def damage(path: Path, rng: random.Random, others: Sequence[Path] = (), region: tuple[int, int] = (0, 1)) -> str:
    """Damage a region of a file, such as (2, 16) for the third of 16, in one of the ways of disks and people; returns
    which."""
    data = bytearray(path.read_bytes())
    kind = rng.choice(["bit", "bit", "cut", "zeros", "swapped", "emptied", "appended", "block"])
    first, last = (len(data) * n // region[1] for n in (region[0], region[0] + 1))
    at = rng.randrange(first, max(first + 1, last))
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


KILLED = """
import models
from metrist.run import stored_pipeline
stored_pipeline._LOGGED_SECONDS, models.FATAL = 60.0, "i25"
metrist.score({source!r}, ["rougeL", "models.Model"], out={out!r}, shard_size=12, executor="serial")
"""


def test_manifests_of_another_format(tmp_path: Path, torture_row: Rows) -> None:
    """What a later version may have written is refused by whoever reads or writes, and stays as it is."""
    row = torture_row("corrupted: manifest of another format")
    source, folder = write_records(tmp_path / "in.jsonl", 5), tmp_path / "run"
    metrist.score(source, ["rougeL"], out=folder)
    manifest = folder / "manifest.json"
    known = json.loads(manifest.read_text())
    del known["checksum"]
    forms: tuple[Any, ...] = (0, 1, known["format"] + 1, 10**9, -1, 2.5, "3", None, [], {})
    for form in forms:
        manifest.write_text(json.dumps({**known, "format": form, "further": {"a": 1}}))
        before = read_contents(folder)
        for call in (
            lambda: metrist.load(folder),
            lambda: metrist.open_run(folder),
            lambda: metrist.score(source, ["chrf"], out=folder),
            lambda: plan_removal(folder, metrics=["rougeL"]),
        ):
            with row.attempt(), pytest.raises(MetristError):
                call()
        row.compare(before, read_contents(folder))


def test_files_of_a_run_folder(tmp_path: Path, torture_row: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every region of the manifest, of parts of all kinds and of the log of a killed run. Whoever reads the folder sees
    right scores or a clear error, and the same commands end with the contents of calm ones."""
    row = torture_row("corrupted: manifest, parts and log of a run")
    rng = random.Random(11)
    write_model(tmp_path, monkeypatch)
    source = write_records(tmp_path / "in.jsonl", 30)
    rows = map(json.loads, source.read_text().splitlines())
    rated = [{**one, "ratings": {"fluency": n % 5}} for n, one in enumerate(rows)]
    source.write_text("".join(json.dumps(one) + "\n" for one in rated))

    def score(out: Path, *metrics: str) -> None:
        metrist.prefer(str(source), ["by_score(metric=chrf)"], out=out, executor="serial")
        metrist.score(str(source), metrics, out=out, shard_size=12, executor="serial")

    score(tmp_path / "calm", "rougeL", "models.Model")
    calm, scores = contents(tmp_path / "calm"), list_scores(tmp_path / "calm")
    whole, run = tmp_path / "whole", tmp_path / "run"
    score(whole, "rougeL")
    with start_steps(tmp_path) as steps:
        assert steps(0, whole, KILLED.format(source=str(source), out=str(whole))) < 0
    names = [name for name in read_contents(whole) if not name.endswith((".lock", ".writers", ".jsonl"))]
    assert sorted({Path(name).suffix for name in names}) == [".json", ".log", ".parquet"]
    for name in sorted(names):
        for region in range(REGIONS):
            shutil.rmtree(run, ignore_errors=True)
            shutil.copytree(whole, run)
            with row.attempt():
                kind = damage(run / name, rng, [run / other for other in names if other != name], (region, REGIONS))
                check_readers(row, scores, run)
                try:
                    score(run, "rougeL", "models.Model")
                    row.compare(calm, contents(run))
                except MetristError:  # Without a manifest nobody knows what the parts are.
                    assert name == "manifest.json", (name, region, kind)
    manifest = (whole / "manifest.json").read_bytes()
    (log,) = (whole / "log").iterdir()
    check_bits(row, manifest, 1, lambda data: [decode_manifest(data, "run")])
    check_bits(row, log.read_bytes(), 29, lambda data: [(one.signature, one.table) for one in read_log(data)])


def check_bits(row: TortureRow, data: bytes, distance: int, read: Callable[[bytes], list[Any]]) -> None:
    """Flip bits of what is read, and cut it there: it is refused, or its beginning comes out."""
    expected = read(data)
    for position in range(0, len(data), distance):
        flipped = [data[:position] + bytes([data[position] ^ 1 << n]) + data[position + 1 :] for n in range(8)]
        for damaged in (*flipped[:: 1 if distance == 1 else 3], data[:position]):
            with row.attempt(), suppress(MetristError):
                found = read(damaged)
                assert found == expected[: len(found)], position


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
        damage(folder / FILE_NAME, rng)
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
        damage(path, rng)
        with row.attempt():
            if export(project.folder, tmp_path / "out.jsonl") is None:
                found = {click.id: (click.task, click.kind, str(click.content)) for click in read_clicks(project)}
                row.compare(expected, found)
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)


def test_the_tasks_and_the_store_of_a_project(tmp_path: Path, torture_row: Rows) -> None:
    """A changed byte of the tasks or the project, or a log without the clicks that were acknowledged, is an error or
    changes nothing that is exported."""
    row = torture_row("corrupted: annotation clicks")
    rng = random.Random(16)
    project = make_project(tmp_path, rows=make_rows(6), raters=2)
    with project.open_store() as store:
        answer_all(project, Answers(project, store), lambda *_: rng.choice((1, 2, 3)))
    out = tmp_path / "out.jsonl"
    assert export(project.folder, out) is None
    expected = out.read_text()
    for name in ("tasks.jsonl", "project.json"):
        whole = (project.folder / name).read_bytes()
        for _ in range(60):
            data = bytearray(whole)
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            (project.folder / name).write_bytes(data)
            with row.attempt():
                if export(project.folder, out) is None:
                    assert out.read_text() == expected
        (project.folder / name).write_bytes(whole)
    (log,) = project.folder.glob("*.sqlite")
    for lose in (lambda: log.write_bytes(b""), log.unlink):
        with row.attempt():
            lose()
            assert export(project.folder, out) is not None


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
    script = tmp_path / "train.py"
    script.write_text(STOPPED_TRAINING)
    options = make_training(tmp_path)

    def train(out: Path, stop: int) -> subprocess.CompletedProcess[str]:
        arguments = [sys.executable, script, stop, *options, out]
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
            damage(path, rng)
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
