"""Runs of metrist 0.1, as runs of this version: what is kept, what is added, and what is told.

old_runs/format_2 was written by version 0.1.0, with metrics and a comparator that were invented for it: in.jsonl and
more.jsonl were scored, `rougeL` first by an earlier version and `invented.Odd` last by a later one that was stopped.
exported.jsonl is what `metrist export` of 0.1.0 made of the folder. old_runs/format_1 is older still.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import metrist
from error_codes import raises_code
from metrist.cli.app import app
from metrist.errors import RunError
from metrist.run.convert import convert_run
from metrist.run.flat_file import error_rows
from metrist.run.manifest import StoredMetric, Version
from metrist.run.run import Run
from metrist.run.score_tables import read_judgments_table, read_scores_table
from metrist.run.store import Store
from metrist.run.verify import verify

OLD = Path(__file__).parent / "old_runs"


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(OLD / "format_2", tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return Path("run")


def list_files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def read_old(folder: Path) -> list[tuple[dict[str, Any], list[Any], dict[str, Any]]]:
    """All files of results: the first line, the rows, and the timing."""
    files = []
    for path in sorted(folder.glob("results/*/*-*.jsonl")):
        header, *rows, _ = map(json.loads, path.read_text().splitlines())
        timing = folder / "timings" / path.parent.name / f"{path.stem}.json"
        files.append((header, rows, json.loads(timing.read_text())))
    return files


def find(run: Run, text: str, signature: str) -> tuple[StoredMetric, Version]:
    metric = run.manifest.metric(text)
    assert metric is not None
    return metric, next(version for version in metric.versions if version.signature == signature)


@pytest.mark.parametrize("rows", [2, 1 << 16])
def test_results_are_those_that_the_old_version_exported(old: Path, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metrist.run.convert._PART_ROWS", rows)
    before = list_files(old)
    conversion = convert_run(old, "new")
    assert conversion.describe() == ["12 records, 45 scores, 9 choices by 4 metrics"]
    metrist.export("new", "now.jsonl")
    assert Path("now.jsonl").read_bytes() == Path("exported.jsonl").read_bytes()
    assert list_files(old) == before


def test_every_score_is_kept_with_all_that_belongs_to_it(old: Path) -> None:
    convert_run(old, "new")
    run = metrist.open_run("new")
    expected, found = Counter[str](), Counter[str]()
    keys = ("explanation", "raw", "tokens", "failure", "failure_kind", "incomplete", "errors")
    for header, rows, timing in read_old(old):
        for number, (_, _, value, parts, stats, *more) in enumerate(rows):
            row = {"metric": header["metric"], "signature": header["signature"], "asked": bool(header.get("tokens"))}
            numbers = {name: part for name, part in zip(header["parts"], parts, strict=True) if part is not None}
            row |= {"record": header["hashes"][number], "value": value, "parts": numbers}
            row |= {"stats": list(map(float, stats))}
            row |= {key: more[0].get(key) if more else None for key in keys}
            expected[json.dumps([row, timing["usage"].get(str(number))])] += 1
    for metric in run.manifest.metrics:
        for version, part in ((v, part) for v in metric.versions for part in v.parts if not metric.compares):
            table = run.read_part(metric.place, part)
            scores = read_scores_table(table)
            for n, record in enumerate(table["record"].to_pylist()):
                failure, value = scores.failures.get(n), scores.values[n].item()
                row = {"metric": metric.text, "signature": version.signature, "asked": part.tokens}
                numbers = {name: column[n].item() for name, column in scores.parts.items()}
                numbers = {name: part for name, part in numbers.items() if part == part}
                row |= {"record": record.hex(), "value": value if value == value else None, "parts": numbers}
                row |= {"stats": scores.stats[n].tolist()}
                row |= {
                    "explanation": scores.explanations.get(n),
                    "raw": scores.raws.get(n),
                    "tokens": scores.tokens.get(n),
                    "failure": failure and str(failure),
                    "failure_kind": failure and failure.kind.value,
                    "incomplete": True if n in scores.incomplete else None,
                    "errors": error_rows(scores.errors.get(n, ())) or None,
                }
                found[json.dumps([row, scores.usages.get(n)])] += 1
    assert found == expected
    assert sum(found.values()) == 45


def test_seconds_are_kept(old: Path) -> None:
    convert_run(old, "new")
    run = metrist.open_run("new")
    expected = Counter[tuple[str, str]]()
    for folder in (old, old / "preferences/shards"):
        for header, _, timing in read_old(folder):
            expected[header["metric"], header["signature"]] += timing["seconds"]
    for (text, signature), seconds in expected.items():
        metric, version = find(run, text, signature)
        facts = [run.store.read_facts(metric.place, part) for part in version.parts]
        assert sum(fact["seconds"] for fact in facts) == pytest.approx(seconds)
        assert {fact["signature"] for fact in facts} == {signature}


def test_versions_are_in_the_order_in_which_they_were_run(old: Path) -> None:
    convert_run(old, "new")
    manifest = metrist.open_run("new").manifest
    versions = {
        metric.label: [(version.signature.split(" | ")[1], version.finished) for version in metric.versions]
        for metric in manifest.metrics
    }
    assert versions == {
        "rougeL": [("metrist 0.0.9", False), ("metrist 0.1.0", True)],
        "invented.Odd": [("metrist 0.1.0", True), ("metrist 0.0.10", False)],
        "chars": [("metrist 0.1.0", True)],
        "invented.Pick": [("metrist 0.1.0", True)],
    }
    assert any("these are the scores of an earlier run" in note for note in metrist.load("new").notes)


def test_choices_are_kept_with_their_answers(old: Path) -> None:
    ((header, rows, timing),) = read_old(old / "preferences/shards")
    export = next(old.glob("preferences/*.jsonl")).read_bytes()
    convert_run(old, "new")
    run = metrist.open_run("new")
    metric, version = find(run, header["metric"], header["signature"])
    (part,) = version.parts
    table = run.read_part(metric.place, part)
    assert [pair.hex() for pair in table["pair"].to_pylist()] == header["hashes"]
    names = zip(*(table[name].to_pylist() for name in ("item", "first", "second")), strict=True)
    for number, (row, judgment, (item, first, second)) in enumerate(
        zip(rows, read_judgments_table(table), names, strict=True)
    ):
        assert (item, [first, second]) == (row["item"], row["systems"])
        assert (judgment.preference, judgment.explanation) == (row["choice"], row["explanation"])
        assert (judgment.failure, judgment.failure and judgment.failure.kind) == (
            row["failure"],
            row.get("failure_kind"),
        )
        assert (list(judgment.raws), list(judgment.shown)) == (row.get("raws", []), row.get("shown", []))
        assert (judgment.flipped, judgment.usage) == (row.get("flipped"), timing["usage"].get(str(number)))
    assert next(Path("new/exports").glob("*.jsonl")).read_bytes() == export
    # A folder that holds nothing else is one, too.
    shutil.copytree(old / "preferences", "alone/preferences")
    assert convert_run("alone", "new2").describe() == ["0 records, 0 scores, 9 choices by 1 metric"]


def test_texts_and_ratings_come_from_the_files(old: Path) -> None:
    rows = [json.loads(line) for line in Path("in.jsonl").read_text().splitlines()]
    # They need not be where they were, only be the same records.
    lines = Path("in.jsonl").read_text().splitlines()
    Path("in.jsonl").write_text("\n".join([*reversed(lines), json.dumps({"output": "new", "item": "9"})]) + "\n")
    convert_run(old, "new")
    run = metrist.open_run("new")
    assert run.has_texts
    table = run.records().slice(0, 9)
    for name in ("item", "system", "output", "source", "references"):
        assert [str(value).encode("ascii", "backslashreplace") for value in table[name].to_pylist()] == [
            str(row[name]).encode("ascii", "backslashreplace") for row in rows
        ]
    assert table["row"].to_pylist() == list(range(9, 0, -1))
    ratings = run.ratings().filter(pc.equal(run.ratings()["input"], 0))
    assert sorted(ratings["value"].to_pylist()) == sorted(row["ratings"]["quality"] for row in rows)
    checks = {(finding.check, finding.metric): finding.passed for finding in verify("new").findings}
    assert checks["files", ""]
    assert checks["scores", "length(unit='characters')"]
    metrist.export("new", "now.jsonl")
    assert Path("now.jsonl").read_bytes() == Path("exported.jsonl").read_bytes()


@pytest.mark.parametrize(("change", "missing"), [("edit", 1), ("delete", 9), ("break", 9)])
def test_texts_that_are_not_those_that_were_scored_are_counted(old: Path, change: str, missing: int) -> None:
    path = Path("in.jsonl")
    if change == "edit":
        path.write_text(path.read_text().replace("later or never 3", "later"))
    elif change == "delete":
        path.unlink()
    else:
        path.write_text("not what it was\n")
    told = convert_run(old, "new").describe()
    assert told[1].startswith(f"the texts of {missing} of 12 records were not found: the new run stores none")
    run = metrist.open_run("new")
    assert not run.has_texts
    assert "output" not in run.records().column_names
    # What metrics said stays.
    metrist.export("new", "now.jsonl")
    assert Path("now.jsonl").read_bytes() == Path("exported.jsonl").read_bytes()


@pytest.mark.parametrize("has_texts", [False, True])
def test_a_run_that_will_store_no_texts_never_writes_one(
    old: Path, has_texts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_texts:
        Path("more.jsonl").unlink()  # in.jsonl is whole, and read with its ratings.
    quoting: dict[str, str] = {}
    write = Store.write_bytes

    def watch(store: Store, name: str, data: bytes) -> None:
        content = repr(pq.read_table(io.BytesIO(data)).to_pylist()) if name.endswith(".parquet") else repr(data)
        quoting.update({text: name for text in ("good part", "source 1", "the text 1", "another") if text in content})
        write(store, name, data)

    monkeypatch.setattr(Store, "write_bytes", watch)
    convert_run(old, "new")
    assert metrist.open_run("new").has_texts == has_texts
    assert len(metrist.open_run("new").ratings()) == 9 + has_texts
    assert sorted(quoting) == (["another", "good part", "source 1", "the text 1"] if has_texts else [])


def test_items_that_are_texts_are_kept_where_texts_are_missing(old: Path) -> None:
    path = next(old.glob("inputs/more*"))
    lines = path.read_bytes().replace(b'"1"', json.dumps(" ".join(["word"] * 30)).encode()).splitlines(keepends=True)
    checksum = hashlib.sha256(b"".join(lines[:-1])).hexdigest()
    path.write_bytes(b"".join([*lines[:-1], b'{"sha256": "%s"}\n' % checksum.encode()]))
    Path("more.jsonl").unlink()
    convert_run(old, "new")
    assert " ".join(["word"] * 30) in metrist.open_run("new").records()["item"].to_pylist()


def test_what_is_converted_is_not_scored_again(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    convert_run(old, "new")
    monkeypatch.setattr("metrist.metrics.base.__version__", "0.1.0")
    before = metrist.open_run("new").manifest.metric("length(unit='characters')")
    metrist.score(["in.jsonl", "more.jsonl"], ["length(unit='characters')"], out="new", progress=False)
    assert metrist.open_run("new").manifest.metric("length(unit='characters')") == before


def test_damaged_files_are_left_out_and_told(old: Path) -> None:
    path = next(old.glob("results/length*/000000004-*.jsonl"))
    path.write_bytes(path.read_bytes().replace(b"1", b"2", 1))
    summary, damaged = convert_run(old, "new").describe()
    assert "41 scores" in summary
    assert damaged == f"left out: {path} is damaged: its content does not match its checksum"
    assert any("chars has not scored 4 of 9 outputs" in note for note in metrist.load("new").notes)
    path = next(old.glob("inputs/in*"))
    path.write_bytes(path.read_bytes()[:-10])
    with raises_code(RunError, "damaged", "in.jsonl"):
        convert_run(old, "new2")


def test_a_folder_of_the_first_format_keeps_names_and_scores(tmp_path: Path) -> None:
    told = convert_run(OLD / "format_1", tmp_path / "new").describe()
    assert told[0] == "3 records, 3 scores by 1 metric"
    assert told[1].startswith("the texts of 3 of 3 records were not found")
    results = metrist.load(tmp_path / "new")
    assert list(zip(results.items, results["length"].values.tolist(), strict=True)) == [("0", 3), ("1", 1), ("2", 2)]


def test_only_an_old_run_is_converted_and_only_into_a_new_folder(old: Path) -> None:
    convert_run(old, "new")
    for source, target in ((old, "new"), (old, "run"), (old, "run/new"), ("new", "newer"), (".", "newer")):
        with pytest.raises(RunError):
            convert_run(source, target)
    assert not Path("newer").exists()
    Path("run/results/link").symlink_to("/etc")
    with raises_code(RunError, "run_failed", "run/results/link"):
        convert_run(old, "newer")


@pytest.mark.parametrize("name", ["format_1", "format_2/run"])
def test_whoever_opens_an_old_run_is_told_what_to_do(name: str, tmp_path: Path) -> None:
    run = tmp_path / "a run"
    shutil.copytree(OLD / name, run)
    (tmp_path / "in.jsonl").write_text('{"output": "a text"}\n')
    for call in (
        lambda: metrist.open_run(run),
        lambda: metrist.load(run),
        lambda: metrist.score(tmp_path / "in.jsonl", ["length"], out=run, progress=False),
    ):
        with pytest.raises(RunError) as error:
            call()
        assert "is a run of an older version of metrist: `metrist convert " in str(error.value)
        assert f"'{run}' -o NEW`" in str(error.value)
        assert "\n" not in str(error.value)


def test_the_command(old: Path) -> None:
    answer = CliRunner().invoke(app, ["convert", str(old), "-o", "new"], catch_exceptions=False)
    assert answer.exit_code == 0
    assert "12 records, 45 scores, 9 choices by 4 metrics" in answer.output
    assert metrist.load("new").systems
