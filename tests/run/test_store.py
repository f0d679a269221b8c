"""The store of a run folder: manifests, parts, writers, and files that are never touched."""

from __future__ import annotations

import errno
import fcntl
import gc
import json
import os
import re
import resource
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

import metrist
from error_codes import raises_code
from metrist import open_run
from metrist.errors import RunError
from metrist.records import hash_units
from metrist.run import export, load, score, stored_pipeline
from metrist.run.manifest import Rows, StoredMetric, folder_name, read_log
from metrist.run.prefer import prefer
from metrist.run.removal import plan_removal
from metrist.run.score_tables import scores_table
from metrist.run.store import Store
from metrist.scores import Scores
from run_contents import contents

ROWS = [
    {"item": f"i{n}", "system": system, "output": "the cat sat on a mat"[: size + n], "references": ["a cat", "a mat"]}
    for n in range(6)
    for system, size in (("first", 4), ("second", 9))
]
CHRF = StoredMetric(text="chrf", folder="chrf")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished run of two metrics over rows in memory."""
    score(ROWS, ["chrf", "length"], out=tmp_path / "run")
    return tmp_path / "run"


def make_rows(values: list[float], *, first: int = 0, signature: str = "chrf | 1") -> Rows:
    """Scores of records with consecutive hashes."""
    hashes = np.zeros((len(values), 16), np.uint8)
    hashes[:, 0] = np.arange(first, first + len(values))
    return Rows(metric=CHRF, signature=signature, table=scores_table("chrf", hashes, Scores.of(values)))


# Manifests


def change_manifest(run: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    path = run / "manifest.json"
    facts = json.loads(path.read_bytes())
    del facts["checksum"]
    change(facts)
    path.write_text(json.dumps(facts))


def _parts(facts: dict[str, Any]) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = facts["metrics"][0]["versions"][0]["parts"]
    return parts


CHANGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a text for a number": lambda facts: _parts(facts)[0].update(rows="many"),
    "a fraction": lambda facts: _parts(facts)[0].update(rows=1.5),
    "a list for an object": lambda facts: facts.update(metrics=[[]]),
    "a part out of the folder": lambda facts: _parts(facts)[0].update(file="../../x.parquet"),
    "an absolute part": lambda facts: _parts(facts)[0].update(file="/etc/passwd"),
    "a folder out of the run": lambda facts: facts["metrics"][0].update(folder="../.."),
    "a folder of folders": lambda facts: facts["metrics"][0].update(folder="a/b"),
    "a hidden folder": lambda facts: facts["metrics"][0].update(folder="."),
    "another table": lambda facts: facts["inputs"][0]["tables"].update(secrets=[]),
    "a part twice": lambda facts: _parts(facts).append(_parts(facts)[0]),
    "records twice": lambda facts: facts["inputs"][0]["tables"]["records"].append(
        facts["inputs"][0]["tables"]["records"][0]
    ),
    "an input twice": lambda facts: facts["inputs"].append({"number": 0}),
    "a metric twice": lambda facts: facts["metrics"].append(facts["metrics"][0]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_manifest_that_no_run_has_written_is_refused(run: Path, change: str) -> None:
    change_manifest(run, CHANGES[change])
    for action in (lambda: load(run), lambda: score(ROWS, ["chrf"], out=run)):
        with raises_code(RunError, "damaged", "manifest.json"):
            action()


@pytest.mark.parametrize("content", [b"", b"{", b"{}", b"[]", b"7", b"\0", b'{"a": ' + b"[" * 100_000, b"\xff\xfe{}"])
def test_a_manifest_that_is_not_json_is_refused_and_left_alone(run: Path, content: bytes) -> None:
    (run / "manifest.json").write_bytes(content)
    for action in (lambda: load(run), lambda: score(ROWS, ["chrf"], out=run)):
        with raises_code(RunError, "damaged", "manifest.json"):
            action()
    assert (run / "manifest.json").read_bytes() == content
    assert len(list(run.rglob("*.parquet"))) == 3


@pytest.mark.parametrize("rows", [0, 11, 13, -1, 2**62, 10**400])
def test_another_number_of_rows_than_listed_is_found(run: Path, rows: int) -> None:
    change_manifest(run, lambda facts: _parts(facts)[0].update(rows=rows))
    with raises_code(RunError, "damaged", 12, rows):
        load(run)
    score(ROWS, ["chrf"], out=run)
    assert not load(run).scores["chrf"].failures


def test_a_letter_of_the_manifest_that_changed_is_found(run: Path) -> None:
    page = run / "manifest.json"
    page.write_text(page.read_text().replace('"text": "chrf"', '"text": "chrg"'))
    with raises_code(RunError, "damaged", "written"):
        load(run)


@pytest.mark.parametrize("form", [1, 2, 4, 10**6])
def test_a_manifest_of_another_format_is_never_written_again(form: int, run: Path) -> None:
    change_manifest(run, lambda facts: facts.update(format=form, unknown={"a": 1}))
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    calls: list[Callable[[], Any]] = [
        lambda: load(run),
        lambda: open_run(run),
        lambda: score(ROWS, ["chrf"], out=run),
        lambda: score(ROWS, ["rougeL"], out=run, texts=False),
        lambda: prefer(ROWS, ["chrf"], out=run),
        lambda: plan_removal(str(run), metrics=["chrf"]),
        lambda: export(run, run.parent / "flat.jsonl"),
    ]
    for call in calls:
        with raises_code(RunError, "unsupported", "version"):
            call()
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_scores_without_a_manifest_are_not_taken_for_a_new_run(run: Path) -> None:
    (run / "manifest.json").unlink()
    with raises_code(RunError, "invalid_value", "'scores'"):
        score(ROWS, ["chrf"], out=run)


@pytest.mark.parametrize("name", ["thesis.tex", ".hidden", "x.part"])
def test_a_folder_of_something_else_is_refused_and_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("years of work")
    with raises_code(RunError, "invalid_value", repr(name)):
        score(ROWS, ["chrf"], out=tmp_path)
    assert os.listdir(tmp_path) == [name]


def test_a_file_is_not_a_run_folder(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with raises_code(RunError, "invalid_value", "folder"):
        Store(tmp_path / "run").check()


def test_files_of_the_user_stay_where_they_are(run: Path) -> None:
    mine = [run / name for name in ("notes.txt", "scores/chrf/notes.txt", "log.txt", f"mine/{'0' * 32}.parquet")]
    for path in mine:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    unlisted = run / "scores" / "chrf" / f"{'0' * 32}.parquet"
    unlisted.write_text("a killed run has left it")
    score(ROWS, ["exact"], out=run)
    assert [path.read_text() for path in mine] == ["mine"] * 4
    assert not unlisted.exists()


# Parts


def test_another_part_under_the_name_of_one_is_found(run: Path) -> None:
    """Also one that is whole and has as many rows."""
    before = contents(run)
    (chrf,), (length,) = (list((run / "scores" / name).iterdir()) for name in ("chrf", "length"))
    for other in (length, next((run / "records").iterdir())):
        shutil.copy(other, chrf)
        results = score(ROWS, ["chrf", "length"], out=run)
        assert results.notes == (f"{chrf} is not as it was written: it was set aside and scored again",)
        assert contents(run) == before
        del results  # It reads the run, so that no part is deleted.
        (chrf,) = (run / "scores/chrf").iterdir()


def test_a_part_has_its_signature_and_timing(run: Path) -> None:
    store = Store(run)
    manifest = store.read_manifest()
    assert manifest is not None
    facts = store.read_facts("scores/chrf", manifest.metrics[0].versions[0].parts[0])
    assert facts["signature"] == load(run).signatures["chrf"]
    assert facts["records"] == 12
    assert facts["seconds"] >= 0


def test_parts_of_several_row_groups_that_are_read_in_pieces_hold_the_same(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export(run, tmp_path / "one.jsonl")
    monkeypatch.setattr("metrist.run.manifest._GROUP_ROWS", 5)
    score(ROWS, ["chrf", "length"], out=tmp_path / "several")
    export(tmp_path / "several", tmp_path / "several.jsonl")
    assert (tmp_path / "several.jsonl").read_bytes() == (tmp_path / "one.jsonl").read_bytes()


@pytest.mark.parametrize("order", [(1, 1, 1, 1), (1, 4, 1, 1), (1, 1, 4, 1), (4, 1, 1, 4)])
def test_small_parts_are_merged_and_of_several_scores_the_last_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: tuple[int, ...]
) -> None:
    """A part with many rows stays where it is among them."""
    monkeypatch.setattr(stored_pipeline, "SMALL_PART", 4)
    monkeypatch.setattr(stored_pipeline, "_FEW_PARTS", 1)
    rows = ROWS[:4]
    score(rows, ["length"], out=tmp_path / "run")
    signature = load(tmp_path / "run").signatures["length"]
    store, hashes = Store(tmp_path / "run"), hash_units(list(metrist.read_records(rows)))
    metric = StoredMetric(text="length", folder="length")
    for number, count in enumerate(order):
        table = scores_table("length", hashes[:count], Scores.of([float(number)] * count))
        added = Rows(metric=metric, signature=signature, table=table, facts={"seconds": 1.0, "records": count})
        store.add_results([added])
    before = load(tmp_path / "run").scores["length"].values.tolist()
    assert before[0] == len(order) - 1  # As the last part says.
    assert score(rows, ["length"], out=tmp_path / "run").scores["length"].values.tolist() == before
    manifest = store.read_manifest()
    assert manifest is not None
    (version,) = manifest.metrics[0].versions
    assert len(version.parts) <= len(order)  # One less than before, at least.
    assert len(list((tmp_path / "run/scores/length").iterdir())) == len(version.parts)
    assert load(tmp_path / "run").scores["length"].values.tolist() == before


def test_small_parts_that_a_reader_uses_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_pipeline, "_FEW_PARTS", 99)
    rows, folder = ROWS[:4], tmp_path / "run/scores/length"
    for count in range(1, 5):
        score(rows[:count], ["length"], out=tmp_path / "run")
    assert len(list(folder.iterdir())) == 4
    reader = open_run(tmp_path / "run")
    monkeypatch.setattr(stored_pipeline, "_FEW_PARTS", 1)
    score(rows, ["length"], out=tmp_path / "run")
    assert len(list(folder.iterdir())) == 4
    values = reader.query("SELECT value FROM scores ORDER BY value")["value"].to_pylist()
    assert (
        values == reader.scores()["value"].sort().to_pylist() == sorted(len(str(row["output"]).split()) for row in rows)
    )
    del reader
    gc.collect()
    score(rows, ["length"], out=tmp_path / "run")
    assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize("place", [100, -100, -1000], ids=["page", "footer", "statistics"])
def test_a_flipped_bit_is_no_other_number(tmp_path: Path, place: int) -> None:
    score(ROWS, ["length"], out=tmp_path / "run")
    (part,) = (tmp_path / "run/scores/length").iterdir()
    data = bytearray(part.read_bytes())
    data[place] ^= 1
    part.write_bytes(data)
    run = open_run(tmp_path / "run")
    for read in (run.scores, run.wide, lambda: run.query("SELECT avg(value) FROM scores")):
        with raises_code(RunError, "damaged", "`metrist score`"):
            read()
    again = score(ROWS, ["length"], out=tmp_path / "run")
    assert any("scored again" in note for note in again.notes)


# Writers


def test_a_second_writer_leaves_the_unlisted_parts_and_the_log_of_the_first(tmp_path: Path) -> None:
    first, second = Store(tmp_path), Store(tmp_path)
    with first.write():
        first.add_results([make_rows([1.0])])
        part = first.write_rows(make_rows([2.0], first=1))
        assert part is not None
        first.add_to_log(make_rows([3.0], first=2))
        with second.write():
            second.add_results([make_rows([4.0], first=3)])
        with suppress(ZeroDivisionError), second.write():
            raise ZeroDivisionError
        assert (tmp_path / "scores/chrf" / part.file).exists()
        assert len(first.list_files("log")) == 1
    # They are alone now.
    with Store(tmp_path).write():
        assert not (tmp_path / "scores/chrf" / part.file).exists()
        assert first.list_files("log") == []
    manifest = first.read_manifest()
    assert manifest is not None
    parts = manifest.metrics[0].versions[0].parts
    values = [first.read_part("scores/chrf", part)["value"].to_pylist() for part in parts]
    assert values == [[1.0], [4.0], [3.0]]


def test_a_writer_that_fails_leaves_nothing_that_was_not_there(tmp_path: Path) -> None:
    for folder in (tmp_path / "new", tmp_path / "old"):
        if folder.name == "old":
            Store(folder).add_results([make_rows([1.0])])
        before, store = sorted(tmp_path.rglob("*.parquet")), Store(folder)
        with suppress(ZeroDivisionError), store.write():
            store.write_rows(make_rows([2.0]))
            raise ZeroDivisionError
        assert sorted(tmp_path.rglob("*.parquet")) == before
    assert not (tmp_path / "new").exists()


def test_a_writer_whose_folder_was_deleted_begins_no_other_run(tmp_path: Path) -> None:
    store = Store(tmp_path / "run")
    store.add_results([make_rows([1.0])])
    with store.write():
        shutil.rmtree(tmp_path / "run")
        with raises_code(RunError, "changed", "deleted"):
            store.add_results([make_rows([2.0])])
    assert store.read_manifest() is None


def test_a_folder_that_another_writer_deletes_when_it_is_empty_is_created_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other writer comes between the creation of a folder and that of the first file in it."""
    run, create, removed = tmp_path / "run", Path.mkdir, list[str]()

    def lose_folder(self: Path, *args: Any, **kwargs: Any) -> None:
        create(self, *args, **kwargs)
        if self.is_relative_to(run) and self.name not in removed:
            removed.append(self.name)
            self.rmdir()

    monkeypatch.setattr(Path, "mkdir", lose_folder)
    store = Store(run)
    with store.write():
        store.add_to_log(make_rows([1.0]))
        store.write_bytes("exports/a.jsonl", b"{}")
    assert removed == ["run", "log", "exports"]
    with Store(run).write():
        pass
    manifest = store.read_manifest()
    assert manifest is not None
    assert [part.rows for part in manifest.metrics[0].versions[0].parts] == [1]


def test_where_nobody_knows_whether_the_folder_is_read_no_part_is_deleted(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS locks no folder that is open for reading."""
    lock = fcntl.flock

    def fail(file: Any, operation: int) -> None:
        if operation & fcntl.LOCK_EX and stat.S_ISDIR(
            os.stat(file if isinstance(file, int) else file.fileno()).st_mode
        ):
            raise OSError(errno.EBADF, "Bad file descriptor")
        lock(file, operation)

    unlisted = run / "scores" / "chrf" / f"{'0' * 32}.parquet"
    unlisted.write_text("a reader may use it")
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", fail)
        score(ROWS, ["exact"], out=run)
    assert unlisted.exists()
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", fail)
        Store(run).delete_run()
    assert not run.exists()


def test_a_log_with_a_folder_out_of_the_run_is_not_put_into_parts(tmp_path: Path) -> None:
    store = Store(tmp_path / "run")
    store.add_results([make_rows([1.0])])
    rows = make_rows([2.0])
    store.add_to_log(msgspec.structs.replace(rows, metric=StoredMetric(text="x", folder="../../out")))
    with store.write():
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]
    manifest = store.read_manifest()
    assert manifest is not None
    assert [metric.text for metric in manifest.metrics] == ["chrf"]


def test_a_write_error_names_the_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with raises_code(RunError, "cannot_write", "file/x"):
        Store(tmp_path).write_bytes("file/x", b"data")
    Store(tmp_path).add_results([make_rows([1.0])])
    with raises_code(RunError, "cannot_write", "earlier"):
        Store(tmp_path).write_bytes("file/x", b"data")


@contextmanager
def small_disk(size: int) -> Iterator[None]:
    """Files may not grow past some bytes: what a full disk does to a write, without filling one. For a moment only:
    pytest itself may be writing to a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.skipif(sys.platform != "linux", reason="needs RLIMIT_FSIZE as Linux has it")
@pytest.mark.parametrize("size", [0, 100, 1000])
def test_a_full_disk_keeps_what_is_there(run: Path, size: int) -> None:
    before, files = contents(run), sorted(run.rglob("*"))
    with raises_code(RunError, "cannot_write", "earlier"), small_disk(size):
        score(ROWS, ["chrf", "bleu", "rougeL"], out=run)
    after = contents(run)
    assert {name: rows for name, rows in after.items() if name in before and name != "manifest"} == {
        name: rows for name, rows in before.items() if name != "manifest"
    }
    assert [path for path in sorted(run.rglob("*.part")) if path not in files] == []
    score(ROWS, ["chrf", "bleu", "rougeL"], out=run)
    assert list(load(run).scores) == ["chrf", "length", "bleu", "rougeL"]


@pytest.mark.skipif(sys.platform != "linux", reason="needs RLIMIT_FSIZE as Linux has it")
def test_what_is_logged_after_half_a_frame_is_read(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.write():
        store.add_to_log(make_rows([1.0]))
        (log,) = (tmp_path / "log").iterdir()
        with raises_code(RunError, "cannot_write", "File too large"), small_disk(log.stat().st_size + 100):
            store.add_to_log(make_rows([2.0], first=1))
        store.add_to_log(make_rows([3.0], first=2))
        logged = [rows.table["value"].to_pylist() for rows in read_log(log.read_bytes())]
    assert logged == [[1.0], [3.0]]


def test_last_results_that_cannot_be_written_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_bytes(store: Store, name: str, data: bytes | memoryview) -> None:
        if name.startswith("scores/"):
            raise RunError("the disk is full")
        write(store, name, data)

    write = Store.write_bytes
    with monkeypatch.context() as patch:
        patch.setattr(Store, "write_bytes", write_bytes)
        with pytest.raises(RunError, match="the disk is full"):
            score(ROWS, ["chrf"], out=tmp_path / "run")
    assert not open_run(tmp_path / "run").finished_metrics()
    assert not score(ROWS, ["chrf"], out=tmp_path / "run").scores["chrf"].failures


def test_a_part_that_does_not_fit_into_memory_is_not_damaged(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise pa.ArrowMemoryError("malloc failed")

    before = contents(run)
    with monkeypatch.context() as patch:
        patch.setattr("pyarrow.parquet.ParquetFile", fail)
        for action in (lambda: load(run), lambda: score(ROWS, ["chrf"], out=run)):
            with pytest.raises(MemoryError):
                action()
    assert contents(run) == before


def test_reading_writes_nothing(run: Path, tmp_path: Path) -> None:
    for name in (".lock", ".writers"):
        (run / name).unlink()
    files = {path: path.stat().st_mtime_ns for path in [run, *run.rglob("*")]}
    opened: list[Any] = []

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and str(arguments[0]).startswith(str(run)) and (arguments[2] or 0) & 3:
            opened.append(arguments[0])

    sys.addaudithook(watch)
    results, opened_run = load(run), open_run(run)
    results.table(draws=10)
    results.wide()
    metrist.compare(run, draws=10)
    opened_run.query("SELECT count(*) FROM wide")
    export(run, tmp_path / "x.jsonl")
    assert opened == []
    assert {path: path.stat().st_mtime_ns for path in [run, *run.rglob("*")]} == files


def test_folder_names_are_legible_safe_and_differ_where_case_does_not_count() -> None:
    assert folder_name("chrf") == "chrf"
    assert folder_name("rougeL").startswith("rougeL-")
    texts = ["rougeL", "rougel", "ROUGEL", "chrf(word_order=2)", "chrf(word_order=-2)", "my.Mine(path='../..')"]
    texts += ["a" * 500 + "(b=1)", "x(a='\ud800')", "x(a='ü')", "CON", "con(a=1)"]
    names = [folder_name(text) for text in texts]
    assert len({name.lower() for name in names}) == len(texts)
    assert all(len(name) < 80 and re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name) for name in names)
