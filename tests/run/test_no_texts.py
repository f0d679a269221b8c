"""A run without texts: no file of its folder quotes a text, whatever happens, and commands that need texts say so."""

from __future__ import annotations

import io
import json
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import metrist
from error_codes import raises_code
from metrist import Comparator, Judgment, Metric, Record, Score, open_run
from metrist.errors import RunError
from metrist.ratings import Error
from metrist.run import load, score, stored_pipeline
from metrist.run.manifest import FRAME, LOG
from metrist.run.prefer import prefer
from metrist.run.removal import plan_removal
from run_contents import write_rows

SECRET = "s3cr3t"
ROWS: list[dict[str, Any]] = [
    {
        "item": str(n),
        "system": system,
        "output": f"{SECRET} output {n}\ud800" if n == 2 else f"{SECRET} output {n}",
        "source": f"{SECRET} source",
        "references": [f"{SECRET} reference {n}", "\udcff"],
        "instruction": f"{SECRET} instruction",
        "note": {SECRET: [f"{SECRET} extra"]},
        "ratings": {"good": n},
        "errors": [{"text": SECRET, "aspect": "style", "explanation": f"{SECRET} explanation", "revision": SECRET}],
        "rater": "ann",
    }
    for n in range(6)
    for system in "ab"
]


@dataclass(frozen=True)
class Quoting(Metric):
    """Quotes the output wherever it can."""

    def score_record(self, record: Record) -> Score:
        if record.item == "1":
            return Score.failed(f"not scored: {record.output}")
        error = Error(aspect="a", severity="minor", penalty=1.0, text=record.output, explanation=record.output)
        return Score(
            value=1.0,
            parts={"part": 2.0},
            errors=(error,),
            explanation=record.output,
            raw=record.output,
            tokens=[{"pieces": record.output.split()}],
            usage={"cost": 1},
        )


@dataclass(frozen=True)
class Choosing(Comparator):
    def prefer(self, pairs: Any) -> list[Judgment]:
        texts = [pair.first.output for pair in pairs]
        chosen = Judgment(preference="first", explanation=texts[0], raws=(texts[0],), shown=("first", "second"))
        return [chosen if n else Judgment.failed(f"no: {text}") for n, text in enumerate(texts)]


def find_secrets(folder: Path) -> list[str]:
    """The files, and the columns of parts and logs, that quote a text."""
    found = []

    def search(name: str, data: bytes) -> None:
        if SECRET.encode() in data:
            found.append(name)
        if data.startswith(b"PAR1"):
            table = pq.read_table(io.BytesIO(data))
            found.extend(
                f"{name}:{column}" for column in table.column_names if SECRET in repr(table[column].to_pylist())
            )
            found.extend([f"{name}: its metadata"] if SECRET in repr(table.schema.metadata) else [])

    for path in folder.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            search(path.name, data)
            while path.suffix == ".log" and data:
                size = FRAME.unpack_from(data)[0]
                search(path.name, data[FRAME.size : FRAME.size + size])
                data = data[FRAME.size + size :]
    return found


@pytest.mark.parametrize("form", ["file", "rows", "iterator"])
def test_nothing_quotes_a_text(tmp_path: Path, form: str) -> None:
    path, run = write_rows(tmp_path / "in.jsonl", ROWS), tmp_path / "run"
    sources: dict[str, Callable[[], Any]] = {"file": lambda: path, "rows": lambda: ROWS, "iterator": lambda: iter(ROWS)}
    results = score(sources[form](), [Quoting(), "chrf"], out=run, texts=False, tokens=True, executor="serial")
    assert find_secrets(run) == []
    expected = score(path, [Quoting(), "chrf"], executor="serial")
    for name, scores in results.scores.items():
        assert scores.values.tobytes() == expected.scores[name].values.tobytes()
        assert {n: f.kind for n, f in scores.failures.items()} == {
            n: f.kind for n, f in expected.scores[name].failures.items()
        }
    # What is added later follows, also where nobody says so.
    others = [{**row, "system": "c"} for row in ROWS[::2]]
    score(others, [Quoting()], out=run, executor="serial")
    score(write_rows(tmp_path / "more.jsonl", others), ["bleu"], out=run, executor="serial")
    prefer(ROWS, [Choosing()], out=run, executor="serial")
    assert find_secrets(run) == []
    assert not open_run(run).has_texts
    assert "output" not in open_run(run).records().column_names
    assert open_run(run).ratings()["value"].to_pylist()[:2] == [0.0, 0.0]
    (errors,) = {
        json.dumps(dict(row, item="", system="", input=0, row=0)) for row in open_run(run).errors().to_pylist()
    }
    assert {name: value for name, value in json.loads(errors).items() if value} == {"aspect": "style", "side": "output"}
    # With texts all of it is there: the search finds what there is.
    score(path, [Quoting()], out=tmp_path / "texts", tokens=True, executor="serial")
    prefer(ROWS, [Choosing()], out=tmp_path / "texts", executor="serial")
    columns = {name.rpartition(":")[2] for name in find_secrets(tmp_path / "texts")}
    assert columns >= {"output", "source", "references", "instruction", "extra", "original", "failure", "explanation"}
    assert columns >= {"errors", "raw", "tokens", "text", "revision", "raws"}


def test_preferences_alone_are_stored_without_texts(tmp_path: Path) -> None:
    for texts in (False, True):  # The second time the folder decides.
        results = prefer(ROWS, [Choosing()], out=tmp_path / "run", texts=texts, executor="serial")
        assert find_secrets(tmp_path / "run") == []
    assert [j.preference for j in results.judgments["test_no_texts.Choosing"]] == [None, *["first"] * 5]
    score(ROWS, [Quoting()], out=tmp_path / "run", executor="serial")
    assert find_secrets(tmp_path / "run") == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks a process that dies")
def test_the_log_of_a_killed_run_quotes_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, run = write_rows(tmp_path / "in.jsonl", ROWS), tmp_path / "run"
    monkeypatch.setattr(stored_pipeline, "_COSTLY_SECONDS", 0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        process = os.fork()
    if not process:
        count = 0

        def stop(done: int, total: int | None) -> None:  # noqa: ARG001
            nonlocal count
            count += 1
            if count == 3:
                os._exit(9)

        score(path, [Quoting()], out=run, texts=False, tokens=True, executor="serial", shard_size=2, progress=stop)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 9
    (log,) = (run / LOG).iterdir()
    assert log.stat().st_size > 1000
    assert find_secrets(run) == []
    score(path, [Quoting()], out=run, tokens=True, executor="serial")
    assert find_secrets(run) == []
    assert not (run / LOG).exists() or not list((run / LOG).iterdir())
    assert not load(run).unfinished


def test_remarks_that_quote_a_row_are_told_and_not_stored(tmp_path: Path) -> None:
    rows = [*ROWS, {"item": SECRET, "system": "a", "output": [SECRET]}, {**ROWS[0], "item": "9", "ratings": SECRET}]
    path = write_rows(tmp_path / "in.jsonl", rows)
    for _ in range(2):
        results = score(path, ["length"], out=tmp_path / "run", texts=False, skip_bad=True)
        assert any("bad row" in note for note in results.notes)
        assert find_secrets(tmp_path / "run") == []


@pytest.mark.parametrize("options", [{"item_key": "source+instruction"}, {"fields": {"item": "source"}}])
def test_items_that_are_named_by_their_texts_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    path = write_rows(tmp_path / "in.jsonl", [{**ROWS[0], "source": " ".join([SECRET] * 20)}])
    with raises_code(RunError, "invalid_value", "item"):
        score(path, ["length"], out=tmp_path / "run", texts=False, **options)
    assert not (tmp_path / "run").exists()


def test_a_folder_with_texts_does_not_become_one_without(tmp_path: Path) -> None:
    score(ROWS, ["length"], out=tmp_path / "scores")
    prefer(ROWS, [Choosing()], out=tmp_path / "preferences")
    for folder in ("scores", "preferences"):
        before = sorted((tmp_path / folder).rglob("*"))
        for action in (
            lambda out: score(ROWS, ["length"], out=out, texts=False),
            lambda out: prefer(ROWS, [Choosing()], out=out, texts=False),
        ):
            with raises_code(RunError, "conflict"):
                action(tmp_path / folder)
        assert sorted((tmp_path / folder).rglob("*")) == before


def test_a_folder_without_texts_stays_one_when_all_was_removed(tmp_path: Path) -> None:
    path, out = write_rows(tmp_path / "in.jsonl", ROWS), tmp_path / "run"
    score(path, ["length"], out=out, texts=False)
    plan_removal(out, inputs=[str(path)], metrics=["length"]).apply()
    assert not open_run(out).manifest.metrics
    score(path, ["length"], out=out)
    assert find_secrets(out) == []
    plan_removal(out, inputs=[str(path)], metrics=["length"]).apply()
    prefer(path, [Choosing()], out=out)
    assert find_secrets(out) == []


def test_commands_that_need_texts_read_the_files_again_and_say_so(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "in.jsonl", ROWS)
    results = score(path, ["chrf"], out=tmp_path / "run", texts=False)
    told = "stores no texts: "
    outputs = metrist.load(tmp_path / "run").worst(metric="chrf")
    assert any(output.record is not None for entry in outputs for output in entry.outputs)
    assert results.wide()["output"][0] == ROWS[0]["output"]
    reader = metrist.run.read_inputs(tmp_path / "run")
    assert [record.output for record in reader] == [row["output"] for row in ROWS]
    assert told in reader.remarks[0]
    path.unlink()
    with raises_code(RunError, "missing_value", "in.jsonl"):
        metrist.run.read_inputs(tmp_path / "run")
