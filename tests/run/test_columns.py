"""Runs of many outputs work from columns on disk. Expected values are those of the same run in memory."""

import io
import json
import mmap
import os
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import metrist
from metrist import columns as array_columns
from metrist.columns import (
    HashColumn,
    MeanRows,
    NameColumn,
    NarrowRows,
    SparseColumn,
    encode_names,
    move_to_disk,
    release_pages,
    stack_rows,
    take_names,
    take_rows,
)
from metrist.errors import RunError
from metrist.run import columns
from metrist.run.results import Results
from metrist.scores import Score, Scores
from metrist.stats import resampling

SYSTEMS, ITEMS = 4, 60
METRICS = ["rouge1", "bleu", "chrf"]


def write_rows(path: Path, *, items: int = ITEMS, offset: int = 0, without_reference: int = -1) -> Path:
    rng = np.random.default_rng(offset)
    words = ["the", "a", "cat", "dog", "sat", "ran", "on", "under", "mat", "tree", "näïve", "猫"]
    rows = []
    for number in range(items * SYSTEMS):
        item, system = divmod(number, SYSTEMS)
        reference = " ".join(words[n] for n in np.random.default_rng(item).integers(0, len(words), 9))
        output = " ".join(word if rng.random() > 0.1 * system else "x" for word in reference.split())
        row: dict[str, Any] = {"item": f"i{item + offset}", "system": f"s{system}", "output": output}
        row |= {"references": [reference]} if number != without_reference else {}
        rows.append(row | {"ratings": {"quality": int(rng.integers(0, 5)) - system}})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run counts as a large one, and statistics are summed in blocks."""
    monkeypatch.setattr(columns, "MAX_IN_MEMORY", 100)
    monkeypatch.setattr(resampling, "_MAX_MATRIX", 100)
    monkeypatch.setattr(resampling, "_BLOCK", 16)


def assert_same(results: Results, expected: Results) -> None:
    assert list(results.items) == list(expected.items)
    assert list(results.systems) == list(expected.systems)
    assert list(results.sources) == list(expected.sources)
    for name, scores in expected.scores.items():
        own = results.scores[name]
        assert np.array_equal(own.values, scores.values, equal_nan=True)
        assert np.array_equal(np.asarray(own.stats), scores.stats)
        assert list(own.parts) == list(scores.parts)
        for part, column in scores.parts.items():
            assert np.array_equal(own.parts[part], column, equal_nan=True)
        assert dict(own.failures) == dict(scores.failures)
        assert [failure.kind for failure in own.failures.values()] == [f.kind for f in scores.failures.values()]
    assert results.notes == expected.notes


@pytest.fixture
def in_memory(tmp_path: Path) -> tuple[Path, Results]:
    path = write_rows(tmp_path / "data.jsonl", without_reference=17)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "MAX_IN_MEMORY", 1_000)
        results = metrist.score(path, METRICS, out=tmp_path / "memory", executor="serial", shard_size=32)
    assert isinstance(results.items, list)
    return path, results


def list_columns(run: Path) -> list[Path]:
    return sorted(run.glob("columns/results/*/*/columns.json"))


@pytest.mark.usefixtures("large")
def test_a_large_run_has_the_numbers_and_files_of_a_run_in_memory(
    tmp_path: Path, in_memory: tuple[Path, Results]
) -> None:
    path, expected = in_memory
    results = metrist.score(path, METRICS, out=tmp_path / "large", executor="serial", shard_size=32)
    assert isinstance(results.items, NameColumn)
    assert isinstance(results.scores["bleu"].failures, SparseColumn)
    assert_same(results, expected)
    for folder in ("results", "inputs"):
        for file in (tmp_path / "memory" / folder).rglob("*.json*"):
            assert (tmp_path / "large" / file.relative_to(tmp_path / "memory")).read_bytes() == file.read_bytes()
    # A folder without columns, as older versions leave it.
    assert_same(metrist.load(tmp_path / "memory"), expected)
    for suffix in ("jsonl", "csv"):
        results.write(tmp_path / f"large.{suffix}")
        expected.write(tmp_path / f"memory.{suffix}")
        assert (tmp_path / f"large.{suffix}").read_bytes() == (tmp_path / f"memory.{suffix}").read_bytes()
    assert repr(results["bleu"][17]) == repr(expected["bleu"][17])


def test_commands_give_the_same_answers_from_columns(
    tmp_path: Path, in_memory: tuple[Path, Results], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, expected = in_memory
    run = tmp_path / "memory"

    def answer() -> list[Any]:
        results = metrist.load(run)
        meta = metrist.meta_evaluate(run, draws=20, metrics=["bleu", "rouge1"])
        return [
            repr(results.system_scores(draws=50)),
            results.table(draws=50).text(),
            metrist.compare(run, draws=40).to_dict(),
            metrist.compare([results], systems=["s3", "s1"], metrics="chrf", draws=40).to_dict(),
            metrist.check(results, minimum={"bleu": 30}, against="s2", draws=40).table().text(),
            str(metrist.worst(results, 3, "bleu")),
            [repr(figure) for figure in meta.figures],
            meta.notes,
            results.grid("bleu").values.tolist(),
        ]

    before = answer()
    assert not list_columns(run)
    monkeypatch.setattr(columns, "MAX_IN_MEMORY", 100)
    monkeypatch.setattr(resampling, "_MAX_MATRIX", 100)
    monkeypatch.setattr(resampling, "_BLOCK", 16)
    after = answer()
    assert len(list_columns(run)) == len(METRICS)
    assert repr(after) == repr(before)
    assert len(expected) == ITEMS * SYSTEMS


@pytest.mark.usefixtures("large")
def test_damaged_and_outdated_columns_are_made_again(tmp_path: Path, in_memory: tuple[Path, Results]) -> None:
    _, expected = in_memory
    run = tmp_path / "memory"
    metrist.load(run)
    values = next(run.glob("columns/results/bleu/*/values.bin"))
    sound = values.read_bytes()
    values.write_bytes(bytes([sound[0] ^ 1]) + sound[1:])
    assert_same(metrist.load(run), expected)
    assert next(run.glob("columns/results/bleu/*/values.bin")).read_bytes() == sound
    page = next(run.glob("columns/results/chrf/*/columns.json"))
    page.write_text(page.read_text()[:40])
    next(run.glob("columns/inputs/*/*/item.codes.bin")).write_bytes(b"short")
    assert_same(metrist.load(run), expected)
    # A shard that was written again since: the columns have another key, and the old ones go.
    shard = min((run / "results" / "rouge1").glob("*-*.jsonl"))
    os.utime(shard, ns=(1, 1))
    assert_same(metrist.load(run), expected)
    assert len(list_columns(run)) == len(METRICS)
    # A damaged shard is still found, and told.
    shard.write_bytes(shard.read_bytes()[:-9])
    with pytest.raises(metrist.RunError, match="damaged"):
        metrist.load(run)


@pytest.mark.usefixtures("large")
def test_a_large_run_resumes_and_takes_another_metric_and_file(tmp_path: Path) -> None:
    path, run = write_rows(tmp_path / "data.jsonl"), tmp_path / "run"
    metrist.score(path, ["rouge1"], out=run, executor="serial", shard_size=32)
    lost = sorted((run / "results" / "rouge1").glob("*-*.jsonl"))[2]
    lost.unlink()
    results = metrist.score(path, ["rouge1", "bleu"], out=run, executor="serial", shard_size=32)
    assert lost.exists()
    whole = metrist.score(path, ["rouge1", "bleu"], executor="serial")
    assert np.array_equal(results.scores["rouge1"].values, whole.scores["rouge1"].values)
    assert np.array_equal(results.scores["bleu"].values, whole.scores["bleu"].values)
    # Another order of the records: scores are taken over, and the columns follow the new order.
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(reversed(lines)))
    again = metrist.score(path, ["rouge1"], out=run, executor="serial", shard_size=32)
    assert list(again.items) == list(reversed(whole.items))
    assert np.array_equal(again.scores["rouge1"].values, whole.scores["rouge1"].values[::-1])
    # bleu is still in the old order of files.
    loaded = metrist.load(run)
    assert np.array_equal(loaded.scores["bleu"].values, whole.scores["bleu"].values[::-1])
    assert np.array_equal(np.asarray(loaded.scores["bleu"].stats), whole.scores["bleu"].stats[::-1])


@pytest.mark.usefixtures("large")
def test_outputs_that_a_metric_has_not_scored_are_pending(tmp_path: Path) -> None:
    path, run = write_rows(tmp_path / "data.jsonl"), tmp_path / "run"
    metrist.score(path, ["rouge1", "bleu"], out=run, executor="serial", shard_size=32)
    with path.open("a") as file:
        file.write(json.dumps({"item": "new", "system": "s0", "output": "a cat", "references": ["a dog"]}) + "\n")
    metrist.score(path, ["rouge1"], out=run, executor="serial", shard_size=32)
    loaded = metrist.load(run)
    position = list(loaded.items).index("new")
    assert loaded.scores["bleu"].pending == 1
    assert loaded["bleu"][position].failure.kind == "pending"
    assert loaded["rouge1"][position].value == 0.5
    assert any("bleu has not scored 1 of" in note for note in loaded.notes)


@pytest.mark.usefixtures("large")
def test_a_folder_that_cannot_be_written_is_read_all_the_same(
    tmp_path: Path, in_memory: tuple[Path, Results], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, expected = in_memory
    make = Path.mkdir

    def refuse(path: Path, *args: Any, **options: Any) -> None:
        if tmp_path in path.parents:
            raise PermissionError(13, "Permission denied", str(path))
        make(path, *args, **options)

    monkeypatch.setattr(Path, "mkdir", refuse)
    assert_same(metrist.load(tmp_path / "memory"), expected)
    assert not (tmp_path / "memory" / "columns").exists()


@pytest.mark.usefixtures("large")
def test_a_full_disk_sends_columns_to_another(
    tmp_path: Path, in_memory: tuple[Path, Results], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, expected = in_memory
    append = columns.ColumnsWriter.append
    full = [tmp_path / "memory"]

    def fill(writer: columns.ColumnsWriter, name: str, array: Any) -> None:
        append(writer, name, array)
        if any(folder in writer._part.parents for folder in full):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(columns.ColumnsWriter, "append", fill)
    assert_same(metrist.load(tmp_path / "memory"), expected)
    assert not [path for path in (tmp_path / "memory" / "columns").rglob("*") if path.is_file()]
    full.append(Path(tempfile.gettempdir()))
    with pytest.raises(RunError, match="No space left on device; no score is lost"):
        metrist.load(tmp_path / "memory")


def test_rows_of_a_mapped_array_are_taken_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = np.arange(600, dtype=np.uint16).reshape(200, 3)
    numbers.tofile(tmp_path / "a.bin")
    mapped = np.asarray(np.memmap(tmp_path / "a.bin", np.uint16, "r", shape=(200, 3)))
    at = np.arange(199, -1, -3)
    monkeypatch.setattr("metrist.columns.CHUNK", 16)
    assert np.array_equal(take_rows(mapped, at), numbers[at])
    assert np.array_equal(take_rows(NarrowRows(mapped), at), numbers[at])
    values = np.where(numbers[:, 0] % 2, np.nan, numbers[:, 0])
    assert np.array_equal(take_rows(MeanRows(values), at), MeanRows(values)[at])


def test_statistics_are_stored_in_the_narrowest_type_that_holds_them(tmp_path: Path) -> None:
    blocks = [
        Scores.of([Score(value=1.0, stats=(1.0, 2.0, 3.0))]),
        Scores.of([Score(value=2.0, stats=(70_000.0, 0.0, 1.0)), Score.failed("no answer")]),
        Scores.of([Score(value=3.0, stats=(0.25, 0.0, 1.0), parts={"p": 0.5})]),
        Scores.of([Score.failed("no answer")]),
    ]
    seen = []
    for count in range(1, len(blocks) + 1):

        def build(writer: columns.ColumnsWriter, count: int = count) -> dict[str, Any]:
            scores = columns.ScoresWriter(writer)
            for block in blocks[:count]:
                scores.append(block)
            return scores.finish()

        stored = columns.open_columns(tmp_path / "columns", f"key{count}", build)
        joined, own = Scores.join(blocks[:count]), columns.read_scores(stored)
        assert np.array_equal(np.asarray(own.stats), joined.stats)
        assert [repr(score) for score in own] == [repr(score) for score in joined]
        seen.append(stored.arrays["stats"].dtype.str)
    assert seen == ["<u2", "<i4", "<f8", "<f8"]


def test_columns_of_names_and_hashes_are_sequences() -> None:
    names = encode_names(["b", "a", "b", "c"])
    assert names.codes.tolist() == [0, 1, 0, 2]
    assert names == ["b", "a", "b", "c"]
    assert names[-1] == "c"
    assert names[1:3] == ["a", "b"]
    taken = take_names(names, np.array([3, 1]))
    assert (list(taken), list(taken.names)) == (["c", "a"], ["c", "a"])
    hashes = HashColumn(np.array([[1, 255], [0, 0]], np.uint8))
    assert list(hashes) == ["01ff", ""]


# ---- Large arrays in files without a name


def is_mapped(array: Any) -> bool:
    while array is not None and not isinstance(array, mmap.mmap):
        array = getattr(array, "base", None)
    return array is not None


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_columns, "_LARGE", 1000)


@pytest.mark.usefixtures("small_limit")
def test_a_large_array_is_mapped_and_survives_the_release_of_its_pages() -> None:
    array = np.random.default_rng(0).random(1000)
    moved = move_to_disk(array)
    assert is_mapped(moved)
    release_pages(moved)
    assert moved.tolist() == array.tolist()
    assert not moved.flags.writeable


def test_a_small_array_stays_in_memory() -> None:
    array = np.arange(1000)
    assert move_to_disk(array) is array


@pytest.mark.usefixtures("small_limit")
def test_rows_are_stacked_in_a_file_or_in_memory() -> None:
    def rows(size: int) -> Iterator[np.ndarray[Any, np.dtype[np.float64]]]:
        for number in range(3):
            yield np.full((1, size), float(number))

    for size in (2, 2000):
        stacked = stack_rows(partial(rows, size), (3, size), np.dtype(np.float64))
        assert is_mapped(stacked) == (size == 2000)
        assert stacked[:, [0, -1]].tolist() == [[0, 0], [1, 1], [2, 2]]


@pytest.mark.usefixtures("small_limit")
def test_without_room_for_a_file_the_array_stays_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    class FullDisk(io.BytesIO):
        def write(self, _: Any) -> int:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(array_columns, "TemporaryFile", FullDisk)
    array = np.arange(1000)
    assert move_to_disk(array) is array
    stacked = stack_rows(lambda: iter([array[None], array[None]]), (2, 1000), array.dtype)
    assert not is_mapped(stacked)
    assert stacked.tolist() == [list(range(1000))] * 2


def test_changes_of_a_private_mapping_survive_the_release_of_pages(tmp_path: Path) -> None:
    np.zeros(5000).tofile(tmp_path / "zeros")
    for mode in ("c", "r+"):
        mapped = np.memmap(tmp_path / "zeros", np.float64, mode)
        mapped[:] = 1.0
        view = mapped[10:]
        view.flags.writeable = False
        release_pages(mapped, np.asarray(mapped), view, MeanRows(mapped))
        assert mapped.sum() == 5000
