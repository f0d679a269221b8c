"""Settings, specs, rubrics, tables, calibrations, judge cards and annotation projects of strangers."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import metrist
from annotation_projects import make_project, sign_project
from metrist.evaluate.compare.config import run_config
from metrist.evaluate.report import build_report
from metrist.metrics.registry import build
from metrist.web.annotation.project import open_project
from metrist.web.annotation.store import ClickStore

Refused = Callable[..., str]

DEEP = 100_000
HUGE = "9" * 5000

#: What each kind of document must refuse, as bytes.
TOML = {
    "lists nested 100,000 deep": ("nested", b"x = " + b"[" * DEEP),
    "tables nested 100,000 deep": ("nested", b"x = " + b"{a=" * DEEP),
    "dotted keys nested 2,000 deep": ("nested", b"a" + b".a" * 2000 + b" = 1"),
    "a number of 5,000 digits": ("digits", b"x = " + HUGE.encode()),
    "a number of 1,000 digits": ("digits", b"x = " + HUGE[:1000].encode()),
    "the same key twice": ("overwrite", b"x = 1\nx = 2"),
    "UTF-16": ("UTF-8", "x = 1".encode("utf-16")),
    "a surrogate half": ("UTF-8", b'x = "\xed\xa0\x80"'),
    "an escaped surrogate half": ("TOML", b'x = "\\ud800"'),
    "a NUL": ("TOML", b'x = "\0"'),
    "YAML with a tag that runs code": ("TOML", b"!!python/object/apply:os.system ['touch canary']"),
    "ten million spaces": ("larger", b" " * 10_000_000),
}
JSON = {
    "lists nested 100,000 deep": ("nested", b"[" * DEEP + b"]" * DEEP),
    "lists nested 500 deep": ("nested", b"[" * 500 + b"]" * 500),
    "a number of 5,000 digits": ("digits", b'{"a": ' + HUGE.encode() + b"}"),
    "a number of 1,000 digits": ("digits", b'{"a": ' + HUGE[:1000].encode() + b"}"),
    "the same key twice": ("twice", b'{"a": 1, "a": 2}'),
    "UTF-16": ("UTF-8", '{"a": 1}'.encode("utf-16")),
    "a pickle": ("UTF-8", b"\x80\x04\x95\x00\x00\x00"),
    "a list in place of an object": ("", b"[1]"),
}


@pytest.mark.parametrize("case", TOML)
def test_a_toml_file_is_refused(case: str, tmp_path: Path, refused: Refused) -> None:
    word, content = TOML[case]
    (tmp_path / "file.toml").write_bytes(content)
    refused(word, build, f"judge(llm=fake, rubric={str(tmp_path / 'file.toml')!r})")


@pytest.mark.parametrize("case", JSON)
def test_a_json_file_is_refused(case: str, tmp_path: Path, refused: Refused) -> None:
    word, content = JSON[case]
    (tmp_path / "file.json").write_bytes(content)
    refused(word, _read_calibration, tmp_path / "file.json")


def _read_calibration(path: Path) -> object:
    return build(f"calibrated(metric=chrf, by={str(path)!r})").signature


def _read_project(path: Path) -> object:
    (path.parent / "project").mkdir()
    path.rename(path.parent / "project" / "project.json")
    (path.parent / "project" / "tasks.jsonl").touch()
    return open_project(path.parent / "project")


def _read_judge_card(path: Path) -> object:
    run = path.with_name("run")
    metrist.score([{"output": "a", "references": ["a"]}], ["chrf"], out=f"{run}/", progress=False)
    return build_report(run, judge_cards=[path])


READERS: dict[str, Callable[[Path], object]] = {
    "settings": run_config,
    "rubric": lambda path: build(f"judge(llm=fake, rubric={str(path)!r})").signature,
    "aspects": lambda path: build(f"error_analysis(llm=fake, aspects={str(path)!r})").signature,
    "calibration": _read_calibration,
    "project": _read_project,
    "judge card": _read_judge_card,
}


@pytest.mark.parametrize("reader", READERS)
def test_each_reader_refuses_deep_documents(reader: str, tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "file").write_bytes(b"x = " * (reader in ("settings", "rubric", "aspects")) + b"[" * DEEP)
    refused("nested", READERS[reader], tmp_path / "file")


def test_a_named_pipe_does_not_block(tmp_path: Path, refused: Refused) -> None:
    os.mkfifo(tmp_path / "file.toml")
    refused("named pipe", run_config, tmp_path / "file.toml")


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        pytest.param("bleu(tokenize=__import__('os').system('touch canary'))", "cannot read", id="a call within"),
        pytest.param("__import__('os').system('touch canary')", "cannot read", id="a call"),
        pytest.param("bleu(**{'tokenize': '13a'})", "**", id="unpacked settings"),
        pytest.param("chrf(word_order=9**9**9)", "neither a literal", id="a power that never ends"),
        pytest.param("chrf(word_order='a'*10**9)", "neither a literal", id="a text of a gigabyte"),
        pytest.param("chrf(word_order=[x for x in y])", "neither a literal", id="a loop"),
        pytest.param("chrf(word_order=lambda: 0)", "neither a literal", id="a function"),
        pytest.param("chrf(word_order=f'{1}')", "neither a literal", id="a format string"),
        pytest.param("(" * 1_000_000, "too long", id="a megabyte of parentheses"),
        pytest.param("(" * 5000, "nested", id="5,000 parentheses"),
        pytest.param("a(b=" * 2000, "cannot read", id="2,000 metrics within each other"),
        pytest.param(f"chrf(word_order={HUGE})", "digits", id="5,000 digits"),
        pytest.param("chrf(word_order=1e999999)", "word_order", id="infinity"),
        pytest.param("chrf(word_order=-" + "-" * 8000 + "1)", "", id="8,000 signs"),
        pytest.param("chrf\0", "cannot read", id="a NUL"),
        pytest.param("os.system", "", id="a function of another module"),
    ],
)
def test_a_metrics_text_is_refused(spec: str, word: str, outputs: Path, refused: Refused) -> None:
    refused(word, metrist.score, metrist.read_records(outputs), [spec])


RISKS = {
    "an import path": ("import path", "metrics = 'os.system'"),
    "a program": ("program", "metrics = \"external(command='touch canary')\""),
    "another interpreter": ("program", "metrics = \"comet(python='/tmp/canary.sh')\""),
    "a model with code": ("code", "metrics = \"perplexity(model='gpt2', trust_remote_code=True)\""),
    "an LLM with code": (
        "code",
        "metrics = \"judge(llm=transformers(model='x', trust_remote_code=True))\"",
    ),
    "a key for a server": ("environment variable", "metrics = \"judge(llm=openai(model='x', key='AWS_SECRET'))\""),
    "a key in a header": (
        "environment variable",
        "metrics = \"judge(llm=openai(model='x', headers=['A: $HOME_SECRET']))\"",
    ),
    "a server for the texts": ("sends texts", "metrics = \"judge(llm=openai(model='x', url='http://192.0.2.1/v1'))\""),
    "a server that looks local": (
        "sends texts",
        "metrics = \"judge(llm=openai(model='x', url='http://127.0.0.1.example/v1'))\"",
    ),
    "a server behind a name before @": (
        "url",
        "metrics = \"judge(llm=openai(model='x', url='http://localhost@192.0.2.1/v1'))\"",
    ),
    "a run folder elsewhere": ("outside", "metrics = 'chrf'\noutput = '../../canary/'"),
    "a file elsewhere": ("outside", "metrics = 'chrf'\noutput = '/canary.jsonl'"),
    "a cache elsewhere": ("outside", "metrics = 'chrf'\ncache = '/canary'"),
    "a report elsewhere": ("outside", "metrics = 'chrf'\n[check]\nmin = {chrf = 0}\njunit = '../../canary'"),
    "a report through a link": ("outside", "metrics = 'chrf'\n[check]\nmin = {chrf = 0}\njunit = 'link/canary'"),
    "a store for the results": ("an address", "metrics = 'chrf'\noutput = 's3://bucket/run/'"),
    "a baseline in a store": ("an address", "metrics = 'chrf'\n[check]\nagainst = 's3://bucket/run'"),
    "a cluster for the texts": ("an address", "metrics = 'chrf'\nexecutor = 'ray:192.0.2.1:6379'"),
    "a setting that allows imports": ("unknown setting", "metrics = 'os.system'\nallow_import = true"),
    "workers beyond reason": ("workers", "metrics = 'chrf'\nworkers = -5"),
}


@pytest.mark.parametrize("case", RISKS)
def test_a_settings_file_decides_nothing_that_is_the_users(
    case: str, outputs: Path, tmp_path: Path, refused: Refused
) -> None:
    word, text = RISKS[case]
    folder = tmp_path / "stranger"
    folder.mkdir()
    (folder / "link").symlink_to("/")
    (folder / "settings.toml").write_text(f"input = {str(outputs)!r}\n{text}")
    os.chdir(folder)
    refused(word, "run", folder / "settings.toml")


def test_a_server_on_this_machine_and_places_below_may_be_named(outputs: Path, tmp_path: Path) -> None:
    assert build("judge(llm=openai(model='x', url='http://127.0.0.1:8000/v1'))", allow_import=False)
    (tmp_path / "settings.toml").write_text(f"input = {str(outputs)!r}\nmetrics = 'chrf'\noutput = 'run/'")
    assert run_config(tmp_path / "settings.toml").passed


def test_a_run_folder_does_not_choose_where_verify_sends_texts(outputs: Path, tmp_path: Path) -> None:
    judge = "judge(llm=openai(model='x', url='http://192.0.2.1/v1'))"
    metrist.score(metrist.read_records(outputs), ["chrf"], out=f"{tmp_path / 'run'}/", progress=False)
    page = tmp_path / "run" / "manifest.json"
    forged = page.read_text().replace('"text": "chrf"', f'"text": {json.dumps(judge)}')
    page.write_text(forged.replace('"checksum"', '"unknown"'))
    results = metrist.verify(tmp_path / "run", allow_llm=True)
    assert not results.passed
    (finding,) = [finding for finding in results.findings if finding.check == "scores"]
    assert "sends texts to http://192.0.2.1/v1" in finding.message


PROJECT_CASES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a log of clicks that is a link": (
        "symbolic link",
        lambda folder: (folder / "clicks.sqlite").symlink_to(folder.parent / "victim"),
    ),
    "a file of tasks that is a link": (
        "symbolic link",
        lambda folder: ((folder / "tasks.jsonl").unlink(), (folder / "tasks.jsonl").symlink_to("/etc/passwd")),
    ),
    "a file of tasks that is a named pipe": (
        "named pipe",
        lambda folder: ((folder / "tasks.jsonl").unlink(), os.mkfifo(folder / "tasks.jsonl")),
    ),
    "a count of clicks that is a link": (
        "symbolic link",
        lambda folder: (folder / "clicks.count").symlink_to(folder.parent / "victim"),
    ),
    "tasks nested 100,000 deep": ("nested", lambda folder: _change_tasks(folder, "[" * DEEP)),
    "a task that is a number": ("damaged", lambda folder: _change_tasks(folder, "7\n")),
    "raters that are a number": ("damaged", lambda folder: _change(folder, raters=7)),
    "a scheme that is a list": ("damaged", lambda folder: _change(folder, schema=[])),
}


def _change_tasks(folder: Path, text: str) -> None:
    (folder / "tasks.jsonl").write_text(text)
    sign_project(folder)


def _change(folder: Path, **facts: Any) -> None:
    path = folder / "project.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | facts))
    sign_project(folder)


@pytest.mark.parametrize("case", PROJECT_CASES)
def test_an_annotation_project_is_refused(case: str, tmp_path: Path, refused: Refused) -> None:
    folder = make_project(tmp_path).folder
    for path in folder.glob("clicks.sqlite*"):
        path.unlink()
    word, spoil = PROJECT_CASES[case]
    spoil(folder)
    refused(word, open_project, folder)


STATEMENTS = {
    "a trigger": "CREATE TRIGGER t AFTER INSERT ON clicks BEGIN DELETE FROM clicks; END",
    "a view": "CREATE VIEW v AS SELECT 1",
}


@pytest.mark.parametrize("case", STATEMENTS)
def test_a_log_of_clicks_with_statements_is_refused(case: str, tmp_path: Path, refused: Refused) -> None:
    ClickStore(tmp_path / "clicks.sqlite").close()
    with sqlite3.connect(tmp_path / "clicks.sqlite") as connection:
        connection.execute(STATEMENTS[case])
    connection.close()
    refused("trigger", ClickStore, tmp_path / "clicks.sqlite")


def test_a_log_of_clicks_that_is_no_database_is_refused(tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "clicks.sqlite").write_bytes(b"SQLite format 3\0" + b"x" * 5000)
    refused("cannot be opened", ClickStore, tmp_path / "clicks.sqlite")
