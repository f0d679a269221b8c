"""Run folders: ownership, completeness, and files that are never touched."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from metrist.errors import RunError
from metrist.records import Record
from metrist.run.run_folder import Listed, Manifest, MetricFolder, RunFolder, folder_name, is_run_folder, write_object
from metrist.run.shard_file import Header, content_hash, encode
from metrist.scores import Scores

MANIFEST = Manifest(
    shard_size=2, metrics=(Listed(text="chrf", signature="chrf | 1", folder="chrf"),), input=("in.jsonl",)
)


def put(part: MetricFolder, start: int, records: list[Record], values: list[float], metric: str = "chrf") -> str:
    digest = part.expect(start, content_hash(records), f"{metric} | 1")
    header = Header(metric=metric, signature=f"{metric} | 1", start=start, count=len(records), digest=digest)
    part.write(start, encode(header, records, Scores.of(values)), {"seconds": 1.5})
    return f"{start:09d}-{digest}.jsonl"


def rows(*items: str) -> list[Record]:
    return [Record(item=item, system="s", output=f"output {item}") for item in items]


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A finished run of one metric over four records."""
    folder = RunFolder(tmp_path / "run")
    folder.begin(MANIFEST)
    part = MetricFolder(folder.path, folder_name("chrf"))
    put(part, 2, rows("c", "d"), [3.0, 4.0])
    put(part, 0, rows("a", "b"), [1.0, 2.0])
    part.close("chrf", "chrf | 1", True, records=4, content="four texts")
    return folder


def test_a_finished_run_is_read_back_in_the_input_s_order(run: RunFolder) -> None:
    contents = run.read()
    (stored,) = contents.stored
    assert (stored.metric, stored.signature, stored.higher_is_better) == ("chrf", "chrf | 1", True)
    assert stored.items == ["a", "b", "c", "d"]
    assert stored.scores.values.tolist() == [1, 2, 3, 4]
    assert stored.content == "four texts"
    assert (contents.unfinished, contents.outdated) == ([], [])
    assert is_run_folder(run.path)


def test_timings_stand_apart_from_results(run: RunFolder) -> None:
    assert (run.path / "timings/chrf/000000000.json").read_text() == '{"seconds": 1.5}\n'
    assert not list((run.path / "results").rglob("*timing*"))


def test_shards_of_an_earlier_input_are_removed_and_the_user_s_files_kept(run: RunFolder) -> None:
    part = MetricFolder(run.path, folder_name("chrf"))
    (part.results / "notes.txt").write_text("mine")
    put(MetricFolder(run.path, folder_name("bleu")), 4, rows("z"), [9.0], metric="bleu")
    name = put(part, 0, rows("a", "other"), [1.0, 5.0])
    part.close("chrf", "chrf | 1", True, records=2, content="two texts")
    assert sorted(os.listdir(part.results)) == [name, "complete.json", "notes.txt"]
    assert os.listdir(part.timings) == ["000000000.json"]
    assert len(os.listdir(MetricFolder(run.path, folder_name("bleu")).results)) == 1


def test_a_torn_shard_is_not_found_and_noted(run: RunFolder) -> None:
    part = MetricFolder(run.path, folder_name("chrf"))
    digest = part.expect(0, content_hash(rows("a", "b")), "chrf | 1")
    path = part.results / f"000000000-{digest}.jsonl"
    assert part.find(0)
    path.write_bytes(path.read_bytes()[:-30])
    assert part.find(0) is None
    assert part.damaged == [f"{path} was set aside and scored again: it ends before its closing line"]
    with pytest.raises(RunError, match=r"is damaged \(it ends before its closing line\): run the same .* again"):
        run.read()


def test_a_whole_shard_under_another_s_name_is_foreign(run: RunFolder) -> None:
    part = MetricFolder(run.path, folder_name("chrf"))
    digest = part.expect(0, content_hash(rows("a", "b")), "chrf | 1")
    (other,) = part.results.glob("000000002-*")
    (part.results / f"000000000-{digest}.jsonl").write_bytes(other.read_bytes())
    assert part.find(0) is None
    assert "it is a shard of chrf at position 2 under another name" in part.damaged[0]


def test_a_missing_shard_is_named_on_reading(run: RunFolder) -> None:
    next(MetricFolder(run.path, folder_name("chrf")).results.glob("000000002-*")).unlink()
    with pytest.raises(RunError, match=r"000000002-\w+\.jsonl is missing: run the same"):
        run.read()


@pytest.mark.parametrize("page", [b"", b'{"metric": "chrf"', b"[]", b'{"shards": ["../../x"]}'])
def test_a_run_with_a_torn_last_page_is_unfinished(run: RunFolder, page: bytes) -> None:
    (MetricFolder(run.path, folder_name("chrf")).results / "complete.json").write_bytes(page)
    with pytest.raises(RunError, match="holds no finished metric: run the same `metrist score` again"):
        run.read()


def test_an_unfinished_metric_is_noted_next_to_a_finished_one(run: RunFolder) -> None:
    put(MetricFolder(run.path, folder_name("bleu")), 0, rows("a", "b"), [9.0, 9.0], metric="bleu")
    contents = run.read()
    assert [metric.metric for metric in contents.stored] == ["chrf"]
    assert contents.unfinished == ["bleu"]


def test_an_unfinished_metric_is_called_by_its_text(run: RunFolder) -> None:
    text = "chrf(word_order=2)"
    run.begin(Manifest(shard_size=2, metrics=(Listed(text=text, signature="s", folder=folder_name(text)),)))
    assert run.read().unfinished == [text]


def test_a_finished_run_that_a_later_one_began_to_replace_is_outdated_until_one_of_them_ends(run: RunFolder) -> None:
    again = MetricFolder(run.path, folder_name("chrf"))
    again.expect(0, content_hash(rows("a", "b")), "chrf | 1")
    assert run.read().outdated == []
    later = MetricFolder(run.path, folder_name("chrf"))
    later.expect(0, content_hash(rows("a", "other")), "chrf | 1")
    assert run.read().outdated == ["chrf"]
    assert run.read().stored[0].items == ["a", "b", "c", "d"]
    again.expect(2, content_hash(rows("c", "d")), "chrf | 1")
    again.close("chrf", "chrf | 1", True, records=4, content="four texts")
    assert run.read().outdated == []


def test_a_run_that_began_under_another_signature_outdates_the_finished_one(run: RunFolder) -> None:
    MetricFolder(run.path, folder_name("chrf")).expect(0, content_hash(rows("a", "b")), "chrf | 2")
    assert run.read().outdated == ["chrf"]


def test_the_manifest_keeps_metrics_of_earlier_runs(run: RunFolder) -> None:
    added = Listed(text="bleu", signature="bleu | 1", folder="bleu")
    run.begin(Manifest(shard_size=2, metrics=(added,)))
    text = (run.path / "manifest.json").read_text()
    assert text.index('"bleu"') < text.index('"chrf"')
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
    assert part.find(0) is None
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
