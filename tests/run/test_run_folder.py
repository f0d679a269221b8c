"""Run folders: ownership, completeness, and files that are never touched."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from metrist.run.run_folder import Listed, Manifest, MetricFolder, RunFolder, folder_name, is_run_folder, write_object
from metrist.run.shard_file import Header, digest_of, encode, hash_units
from metrist.run.view import Draft, View, ViewUpdate

from metrist.errors import RunError
from metrist.records import Record
from metrist.scores import Scores

MANIFEST = Manifest(
    shard_size=2, metrics=(Listed(text="chrf", signature="chrf | 1", folder="chrf"),), input=("in.jsonl",)
)
Files = dict[str, Header]


def put(
    part: MetricFolder,
    start: int,
    records: list[Record],
    values: list[float],
    metric: str = "chrf",
    version: int = 1,
    tokens: bool = False,
) -> Files:
    hashes, signature = hash_units(records), f"{metric} | {version}"
    digest = digest_of(hashes, signature, tokens=tokens)
    header = Header(
        metric=metric,
        signature=signature,
        start=start,
        count=len(records),
        digest=digest,
        hashes=hashes,
        tokens=tokens,
    )
    name = f"{start:09d}-{digest}.jsonl"
    write_object(part.results / name, encode(header, records, Scores.of(values)))
    return {name: header}


def rows(*items: str) -> list[Record]:
    return [Record(item=item, system="s", output=f"output {item}") for item in items]


def note_rows(folder: RunFolder, *items: str) -> View:
    """Make these the records of the run."""
    records = rows(*items)
    update = ViewUpdate(View.read(folder.path), [Draft(name=None, path=None, options={})])
    update.add(update.drafts[0], records, hash_units(records))
    return update.finish()


def close(part: MetricFolder, files: Files, view: View, version: int = 1) -> int:
    counts = {name: header.count for name, header in files.items()}
    return part.close("chrf", f"chrf | {version}", True, counts, view.hashes)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A finished run of one metric over four records."""
    folder = RunFolder(tmp_path / "run")
    folder.begin(MANIFEST)
    part = MetricFolder(folder.path, folder_name("chrf"))
    files = put(part, 2, rows("c", "d"), [3.0, 4.0]) | put(part, 0, rows("a", "b"), [1.0, 2.0])
    close(part, files, note_rows(folder, "a", "b", "c", "d"))
    return folder


@pytest.fixture
def part(run: RunFolder) -> MetricFolder:
    return MetricFolder(run.path, folder_name("chrf"))


def test_a_finished_run_is_read_back_in_the_input_s_order(run: RunFolder) -> None:
    contents = run.read()
    (stored,) = contents.stored
    assert (stored.metric, stored.signature, stored.higher_is_better) == ("chrf", "chrf | 1", True)
    assert stored.items == ["a", "b", "c", "d"]
    assert stored.scores.values.tolist() == [1, 2, 3, 4]
    assert (contents.unfinished, contents.outdated, contents.notes) == ([], [], [])
    assert is_run_folder(run.path)


def test_records_without_a_score_are_pending_and_noted(run: RunFolder) -> None:
    note_rows(run, "e", "f")
    contents = run.read()
    (stored,) = contents.stored
    assert stored.items == ["a", "b", "c", "d", "e", "f"]
    assert {n: failure.kind for n, failure in stored.scores.failures.items()} == {4: "pending", 5: "pending"}
    assert contents.notes == [
        "chrf has not scored 2 of 2 outputs of rows in memory: score the same rows again to add them"
    ]


def test_scores_that_a_killed_run_left_are_read_and_torn_ones_are_not(run: RunFolder, part: MetricFolder) -> None:
    note_rows(run, "e", "f")
    put(part, 0, rows("e"), [5.0])
    (torn,) = put(part, 1, rows("f"), [6.0])
    (part.results / torn).write_bytes((part.results / torn).read_bytes()[:-9])
    values = run.read().stored[0].scores.values
    assert values.tolist()[:5] == [1, 2, 3, 4, 5]
    assert np.isnan(values[5])


def test_timings_stand_apart_from_results(run: RunFolder, part: MetricFolder) -> None:
    part.write_timing("000000000-abc.jsonl", {"seconds": 1.5, "records": 2, "usage": {}})
    assert part.read_timing("000000000-abc.jsonl") == {"seconds": 1.5, "records": 2, "usage": {}}
    assert part.read_timing("other.jsonl")["seconds"] == 0
    assert not list((run.path / "results").rglob("*timing*"))


def test_closing_removes_repeated_scores_and_keeps_all_others_and_the_user_s_files(
    run: RunFolder, part: MetricFolder
) -> None:
    (part.results / "notes.txt").write_text("mine")
    before = set(os.listdir(part.results))
    pieces = put(part, 0, rows("a"), [1.0]) | put(part, 1, rows("b", "c"), [2.0, 3.0])
    superseded = put(part, 0, rows("a", "old"), [1.0, 9.0])
    other_version = put(part, 0, rows("a", "b"), [7.0, 7.0], version=2)
    (torn,) = put(part, 5, rows("x"), [1.0])
    (part.results / torn).write_bytes(b"{")
    files = put(part, 0, rows("a", "b"), [1.0, 2.0]) | put(part, 2, rows("c", "d"), [3.0, 4.0])
    assert close(part, files, View.read(run.path)) == 0
    assert set(os.listdir(part.results)) == before | set(superseded) | set(other_version)
    assert not set(pieces) & set(os.listdir(part.results))
    assert run.read().stored[0].scores.values.tolist() == [1, 2, 3, 4]


def test_scores_with_tokens_are_not_replaced_by_plain_ones(run: RunFolder, part: MetricFolder) -> None:
    (rich,) = put(part, 0, rows("a", "b"), [1.0, 2.0], tokens=True)
    plain = put(part, 0, rows("a", "b"), [1.0, 2.0]) | put(part, 2, rows("c", "d"), [3.0, 4.0])
    close(part, plain, View.read(run.path))
    assert rich in part.list_files()


def test_a_page_of_another_version_tells_how_many_scores_are_set_aside(run: RunFolder, part: MetricFolder) -> None:
    assert not part.is_outdated
    part.open("chrf | 2")
    assert part.is_outdated
    assert run.read().outdated == ["chrf"]
    files = put(part, 0, rows("a", "b", "c", "d"), [5.0, 6.0, 7.0, 8.0], version=2)
    assert close(part, files, View.read(run.path), version=2) == 4
    assert run.read().outdated == []
    assert run.read().stored[0].scores.values.tolist() == [5, 6, 7, 8]
    assert close(part, files, View.read(run.path), version=2) == 0


def test_scores_are_found_by_record_whatever_file_holds_them(part: MetricFolder) -> None:
    hashes = hash_units(rows("d", "a", "new"))
    pieces, is_whole = part.find(0, hashes, "chrf | 1", tokens=False)
    assert not is_whole
    values: dict[int, float] = {}
    for positions, block, _ in pieces:
        assert isinstance(block, Scores)
        values |= dict(zip(positions, block.values, strict=True))
    assert values == {0: 4.0, 1: 1.0}
    assert MetricFolder(part.run, part.name).find(0, hashes, "chrf | 2", tokens=False) == ([], False)
    assert part.find(0, hashes, "chrf | 1", tokens=True) == ([], False)
    (piece,), is_whole = part.find(2, hash_units(rows("c", "d")), "chrf | 1", tokens=False)
    assert is_whole
    assert list(piece[0]) == [0, 1]


def test_a_torn_shard_is_not_found_and_noted(run: RunFolder, part: MetricFolder) -> None:
    hashes = hash_units(rows("a", "b"))
    (name,) = put(part, 0, rows("a", "b"), [1.0, 2.0])
    path = part.results / name
    path.write_bytes(path.read_bytes()[:-30])
    assert part.find(0, hashes, "chrf | 1", tokens=False) == ([], False)
    assert part.damaged == [f"{path} was set aside and scored again: it ends before its closing line"]
    with pytest.raises(RunError, match=r"is damaged \(it ends before its closing line\): run the same .* again"):
        run.read()


def test_a_whole_shard_under_another_s_name_is_foreign(part: MetricFolder) -> None:
    (name,) = put(part, 0, rows("a", "b"), [1.0, 2.0])
    (other,) = part.results.glob("000000002-*")
    (part.results / name).write_bytes(other.read_bytes())
    assert part.find(0, hash_units(rows("a", "b")), "chrf | 1", tokens=False) == ([], False)
    assert "it is a shard of chrf at position 2 under another name" in part.damaged[0]


def test_a_missing_shard_is_named_on_reading(run: RunFolder, part: MetricFolder) -> None:
    next(part.results.glob("000000002-*")).unlink()
    with pytest.raises(RunError, match=r"000000002-\w+\.jsonl is missing: run the same"):
        run.read()


def test_a_page_that_lists_fewer_files_than_it_promises_is_refused(run: RunFolder, part: MetricFolder) -> None:
    page = part.complete()
    assert page
    part.write_page(replace(page, shards=page.shards[:1]))
    with pytest.raises(RunError, match=r"complete.json lists files with 2 scores and promises 4: run the same"):
        run.read()


PAGES = [b"", b'{"metric": "chrf"', b"[]", b'{"shards": ["../../x"]}', b'{"a": ' + b"[" * 100_000]


@pytest.mark.parametrize("page", PAGES, ids=range(len(PAGES)))
def test_a_run_with_a_torn_last_page_is_unfinished(run: RunFolder, part: MetricFolder, page: bytes) -> None:
    (part.results / "complete.json").write_bytes(page)
    with pytest.raises(RunError, match="holds no finished metric: run the same `metrist score` again"):
        run.read()


@pytest.mark.parametrize("damage", ["", "{}", "[" * 100_000, '{"records": 1}\n[1, 2, 3]', "\0"])
def test_a_damaged_list_of_records_is_named(run: RunFolder, damage: str) -> None:
    (path,) = (run.path / "inputs").iterdir()
    path.write_text(damage)
    with pytest.raises(RunError, match=r"inputs/.*jsonl is damaged \(.*no score is lost"):
        run.read()


def test_a_deeply_nested_manifest_is_torn_and_loses_nothing(run: RunFolder) -> None:
    (run.path / "manifest.json").write_bytes(b'{\n  "metrist": ' + b"[" * 100_000)
    assert [metric.metric for metric in RunFolder(run.path).read().stored] == ["chrf"]


def test_an_unfinished_metric_is_noted_next_to_a_finished_one(run: RunFolder) -> None:
    put(MetricFolder(run.path, folder_name("bleu")), 0, rows("a", "b"), [9.0, 9.0], metric="bleu")
    contents = run.read()
    assert [metric.metric for metric in contents.stored] == ["chrf"]
    assert contents.unfinished == ["bleu"]


def test_an_unfinished_metric_is_called_by_its_text(run: RunFolder) -> None:
    text = "chrf(word_order=2)"
    run.begin(Manifest(shard_size=2, metrics=(Listed(text=text, signature="s", folder=folder_name(text)),)))
    assert run.read().unfinished == [text]


def test_the_manifest_keeps_metrics_of_earlier_runs(run: RunFolder) -> None:
    added = Listed(text="bleu", signature="bleu | 1", folder="bleu")
    run.begin(Manifest(shard_size=2, metrics=(added,)))
    text = (run.path / "manifest.json").read_text()
    assert text.index('"chrf"') < text.index('"bleu"')
    before = (run.path / "manifest.json").stat().st_mtime_ns
    run.begin(Manifest(shard_size=2, metrics=(added,)))
    assert (run.path / "manifest.json").stat().st_mtime_ns == before


@pytest.mark.parametrize("length", [0, 5, 60])
def test_a_torn_manifest_does_not_lose_the_run(run: RunFolder, length: int) -> None:
    path = run.path / "manifest.json"
    manifest = path.read_bytes()
    path.write_bytes(manifest[:length])
    assert [metric.metric for metric in RunFolder(run.path).read().stored] == ["chrf"]
    RunFolder(run.path).begin(MANIFEST)
    assert path.read_bytes() == manifest


@pytest.mark.parametrize("name", ["thesis.tex", "manifest.json"])
def test_a_folder_of_something_else_is_refused_and_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text('{"name": "an app"}')
    with pytest.raises(RunError, match=rf"is not a run folder and not empty \(it holds '{name}'\): name a new folder"):
        RunFolder(tmp_path)
    assert os.listdir(tmp_path) == [name]


def test_a_file_is_not_a_run_folder(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(RunError, match="run is a file, expected a run folder"):
        RunFolder(tmp_path / "run")


def test_a_write_error_names_the_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"cannot write .*file.x: .*; earlier results are kept"):
        write_object(tmp_path / "file" / "x", b"data")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser may write anywhere")
def test_a_read_only_folder_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(RunError, match=r"cannot write .*: Permission denied"):
        write_object(tmp_path / "run" / "x", b"data")


@contextmanager
def small_disk() -> Iterator[None]:
    """Files may not grow past 100 bytes: what a full disk does to a write, without filling one. For a moment only:
    pytest itself may be writing to a file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.skipif(sys.platform != "linux", reason="needs RLIMIT_FSIZE as Linux has it")
def test_a_full_disk_leaves_a_shard_that_is_detected_as_torn(tmp_path: Path) -> None:
    part = MetricFolder(tmp_path / "run", "chrf")
    full = pytest.raises(RunError, match=r"cannot write .*: File too large; earlier results are kept")
    with full, small_disk():
        put(part, 0, rows("a", "b"), [1.0, 2.0])
    assert part.find(0, hash_units(rows("a", "b")), "chrf | 1", tokens=False) == ([], False)
    assert len(part.damaged) == 1


def test_longer_remains_of_an_older_object_are_cut_off(tmp_path: Path) -> None:
    write_object(tmp_path / "x", b"a long object")
    write_object(tmp_path / "x", b"short")
    assert (tmp_path / "x").read_bytes() == b"short"


def test_folder_names_are_legible_safe_and_never_shared() -> None:
    assert folder_name("rougeL") == "rougeL"
    texts = ["chrf(word_order=2)", "chrf(word_order=-2)", "my.Mine(path='../..')", "a" * 500 + "(b=1)", "x(a='\ud800')"]
    names = [folder_name(text) for text in texts]
    assert names[0].startswith("chrf-word_order-2-")
    assert len(set(names)) == len(texts)
    assert all(len(name) < 80 and name.isascii() and "/" not in name for name in names)
