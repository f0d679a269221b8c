"""Removing parts of a run: what is told, what goes, and what stays."""

from __future__ import annotations

import json
import os
import shutil
import threading
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

import metrist
from error_codes import raises_code
from metrist.errors import RunError
from metrist.run import load, score
from metrist.run.removal import plan_removal
from metrist.run.run import is_run
from metrist.run.store import Store


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """a.jsonl with systems s and t, b.jsonl with system u and one row of a.jsonl, by two metrics."""
    monkeypatch.chdir(tmp_path)
    write("a", [("0", "s", "x x"), ("1", "s", "x y"), ("0", "t", "x y z")])
    write("b", [("0", "u", "w w"), ("0", "s", "x x")])
    score("a.jsonl", ["length", "distinct"], out="run")
    score("b.jsonl", ["length", "distinct"], out="run")
    return Path("run")


def write(name: str, rows: list[tuple[str, str, str]]) -> None:
    lines = [json.dumps({"item": item, "system": system, "output": output}) for item, system, output in rows]
    Path(f"{name}.jsonl").write_text("\n".join(lines) + "\n")


def rows(run: Path) -> list[tuple[str, str, float]]:
    results = load(run)
    return list(zip(results.items, results.systems, results["length"].values.tolist(), strict=True))


def files(run: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in run.rglob("*") if path.is_file()}


def remove(run: Path, **options: Any) -> list[str]:
    before = files(run)
    removal = plan_removal(run, **options)
    assert files(run) == before
    removal.apply()
    return removal.messages


def test_an_input_goes_with_its_scores_and_what_others_share_stays(run: Path) -> None:
    assert remove(run, inputs=["a.jsonl"]) == [
        "3 records of a.jsonl; the file itself stays, and other inputs keep 1 of these records",
        "2 scores by length",
        "2 scores by distinct",
    ]
    assert rows(run) == [("0", "u", 2.0), ("0", "s", 2.0)]
    assert Path("a.jsonl").exists()
    assert load(run).notes == ()
    score("a.jsonl", ["length", "distinct"], out=run)
    assert len(rows(run)) == 4


def test_a_system_goes_with_its_scores(run: Path) -> None:
    remove(run, systems=["s"])
    assert rows(run) == [("0", "t", 3.0), ("0", "u", 2.0)]
    assert load(run).notes == ()


def test_a_metric_goes_and_the_user_s_files_stay(run: Path) -> None:
    (run / "scores/length/1-notes.jsonl").write_text("mine")
    assert remove(run, metrics=["length"]) == ["4 scores by length, all that it has"]
    assert list(load(run).scores) == ["distinct"]
    assert os.listdir(run / "scores/length") == ["1-notes.jsonl"]
    assert "length" not in (run / "manifest.json").read_text()


def test_unused_scores_go_and_all_others_stay(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not plan_removal(run, unused=True).deletes
    write("a", [("0", "s", "x x"), ("1", "s", "now edited")])
    score("a.jsonl", ["length", "distinct"], out=run)
    expected = list(load(run).rows())
    assert remove(run, unused=True)[:2] == ["2 scores by length", "2 scores by distinct"]
    assert set(Store(run).list_written()) == set(metrist.open_run(run).manifest.list_parts())
    assert list(load(run).rows()) == expected
    assert not plan_removal(run, unused=True).deletes
    monkeypatch.setattr("metrist.metrics.base.__version__", "99.0")
    score(["a.jsonl", "b.jsonl"], ["length"], out=run)
    (message,) = remove(run, unused=True)
    assert message.endswith("scores by length")
    assert list(load(run).scores) == ["length", "distinct"]


def test_what_people_said_of_a_system_and_choices_about_it_go_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in.jsonl").write_text(
        "".join(
            json.dumps({"item": item, "system": system, "output": text, "ratings": {"quality": len(text)}}) + "\n"
            for item in "01"
            for system, text in (("s", "x y"), ("t", "x"), ("u", "z z z"))
        )
    )
    score("in.jsonl", ["length"], out="run")
    metrist.prefer("in.jsonl", ["by_score(metric=length, better='higher')"], out="run")
    remove(Path("run"), systems=["t"])
    run = metrist.open_run("run")
    assert set(run.ratings()["system"].to_pylist()) == {"s", "u"}
    (comparator,) = (metric for metric in run.manifest.metrics if metric.compares)
    (part,) = comparator.versions[0].parts
    rows = run.read_part(comparator.place, part)
    assert set(zip(rows["first"].to_pylist(), rows["second"].to_pylist(), strict=True)) == {("s", "u")}
    (export,) = (tmp_path / "run/exports").glob("*.jsonl")
    assert {tuple(json.loads(line)["systems"]) for line in export.read_text().splitlines()} == {("s", "u")}
    del run  # It reads the run, so that no part is deleted.
    remove(Path("run"), metrics=[comparator.label])
    assert not export.exists()
    assert not list((tmp_path / "run").glob("judgments/*/*"))


@pytest.mark.parametrize("options", [{"systems": ["s"]}, {"inputs": ["a.jsonl"]}, {"metrics": ["length"]}, {}])
def test_a_removal_that_is_killed_at_any_step_can_be_repeated(
    run: Path, options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Path(shutil.copytree(run, "removed"))
    plan_removal(copy, **options).apply()
    before, after = contents(run), contents(copy)
    for step in range(100):
        copy = Path(shutil.copytree(run, f"copy{step}"))
        with monkeypatch.context() as patch:
            kill_after(patch, step)
            try:
                plan_removal(copy, **options).apply()
                break
            except Killed:
                pass
        assert contents(copy) in (before, after), step
        with suppress(RunError):  # It was done but for the files.
            plan_removal(copy, **options).apply()
        assert contents(copy) == after
        if options and is_run(copy):
            score("b.jsonl", ["distinct"], out=copy)
            assert set(Store(copy).list_written()) == set(metrist.open_run(copy).manifest.list_parts())
    assert step > 2
    assert copy.exists() == bool(options)


def contents(run: Path) -> list[Any] | None:
    """The rows of a run; None if it has none."""
    try:
        return list(load(run).rows())
    except RunError:
        return None


class Killed(BaseException):
    pass


def kill_after(patch: pytest.MonkeyPatch, steps: int) -> None:
    """Let a removal write or delete so many files, and no more."""
    left = [steps]

    def count(function: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            if not left[0]:
                raise Killed
            left[0] -= 1
            return function(*args, **options)

        return call

    patch.setattr(Store, "write_bytes", count(Store.write_bytes))
    patch.setattr(Path, "unlink", count(Path.unlink))


def test_the_whole_run_goes_but_for_other_people_s_files(run: Path) -> None:
    (run / "thesis.tex").write_text("years of work")
    assert remove(run) == ["the whole run run: scores by length, distinct of 4 records"]
    assert [path for path in run.rglob("*") if path.is_file()] == [run / "thesis.tex"]


@pytest.mark.parametrize("use", ["write", "read"])
def test_a_run_that_another_process_uses_is_not_deleted(run: Path, use: str) -> None:
    before, other = files(run), Store(run)
    removal = plan_removal(run)
    with other.write() if use == "write" else nullcontext():
        if use == "read":
            other.hold_parts()
        with raises_code(RunError, "in_use", "run"):
            removal.apply()
        assert files(run) == before
    del other
    removal.apply()
    assert not run.exists()


def test_a_writer_that_comes_while_a_run_is_deleted_begins_a_new_one(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete_folder, entered = Store._delete_folder, threading.Event()
    threads: list[threading.Thread] = []

    def write() -> None:
        store = Store(run)
        with store.write():
            entered.set()
            store.update(lambda manifest: manifest)

    def delete(store: Store) -> None:
        threads.append(threading.Thread(target=write))
        threads[0].start()
        assert not entered.wait(0.2)
        delete_folder(store)

    monkeypatch.setattr(Store, "_delete_folder", delete)
    plan_removal(run).apply()
    threads[0].join(10)
    assert entered.is_set()
    assert sorted(files(run)) == ["run/.lock", "run/.writers", "run/manifest.json"]
    assert metrist.open_run(run).manifest.inputs == ()


def test_parts_that_a_reader_uses_stay_until_it_has_ended(run: Path) -> None:
    reader = metrist.open_run(run)
    before = set(reader.manifest.list_parts())
    (message,) = plan_removal(run, inputs=["a.jsonl"]).apply()
    assert message == (
        "3 files may be in use by another command: `metrist remove run/ --unused` deletes what is left when it has "
        "ended"
    )
    assert len(reader.records()) == 4
    assert len(reader.scores()) == 8
    listed = set(metrist.open_run(run).manifest.list_parts())
    assert set(Store(run).list_written()) == before | listed
    del reader
    assert plan_removal(run, unused=True).apply() == []
    assert set(Store(run).list_written()) == listed


@pytest.mark.parametrize(
    ("options", "name", "known"),
    [
        ({"inputs": ["c.jsonl"]}, "'c.jsonl'", "a.jsonl, b.jsonl"),
        ({"metrics": ["bleu"]}, "'bleu'", "length, distinct"),
        ({"systems": ["v"]}, "'v'", "s, t, u"),
    ],
)
def test_what_is_not_there_is_named_with_what_is(run: Path, options: Any, name: str, known: str) -> None:
    with raises_code(RunError, "unknown_name", name, known):
        plan_removal(run, **options)


def test_only_run_folders_are_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with raises_code(RunError, "invalid_value", "manifest.json"):
        plan_removal(tmp_path)


def test_a_name_that_two_inputs_had_must_say_which(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = run.resolve().parent
    for folder in "xy":
        (root / folder).mkdir()
        monkeypatch.chdir(root / folder)
        write("data", [("9", folder, "text")])
        score("data.jsonl", ["length", "distinct"], out="../run")
    monkeypatch.chdir(root)
    with raises_code(RunError, "missing_value", "'data.jsonl'", "x/data.jsonl, y/data.jsonl"):
        plan_removal(Path("run"), inputs=["data.jsonl"])
    monkeypatch.chdir("x")
    assert remove(Path("../run"), inputs=["data.jsonl"])[0].startswith("1 record of data.jsonl")
    assert [row[1] for row in rows(Path("../run"))] == ["s", "s", "t", "u", "y"]


def test_a_run_in_a_store_is_removed_by_its_url(run: Path, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/run"
    for name in (".lock", ".writers"):
        (run / name).unlink()
    plan_removal(url, systems=["s"]).apply()
    assert rows(run) == [("0", "t", 3.0), ("0", "u", 2.0)]
    removal = plan_removal(url)
    assert removal.messages == [f"the whole run {url}: scores by length, distinct of 2 records"]
    removal.apply()
    assert not [path for path in run.rglob("*") if path.is_file()]
