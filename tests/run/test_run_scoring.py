"""`score`: what a run gives, and what it leaves in its folder."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import metrist
from error_codes import raises_code
from metrist import Metric, Record, Shard, open_run, read_records
from metrist.errors import ErrorCode, InputError, NeedsError, RunError, format_path
from metrist.run import export, load, score
from metrist.run.executors import Processes, Serial, Task, TaskResult
from metrist.run.prefer import prefer
from metrist.run.tasks import NeedsCheck, TaskSize, read_shards
from metrist.runtime import loading_watchers
from metrist.scores import Scores
from metrist.spec import parse
from run_contents import contents, count_scores, unfinish, write_rows, written

METRICS = ["exact", "chrf", "length"]
Rows = list[dict[str, Any]]


@pytest.fixture
def run(rows: Rows, tmp_path: Path) -> Path:
    score(rows, METRICS, out=tmp_path / "run", shard_size=8, executor="serial")
    return tmp_path / "run"


def test_results_have_a_row_per_record_in_the_input_s_order(rows: Rows) -> None:
    results = score(rows, METRICS)
    assert results.items == [row["item"] for row in rows]
    assert results.systems == [row["system"] for row in rows]
    assert list(results.scores) == METRICS
    assert results.scores["length"].values.tolist() == [len(row["output"].split()) for row in rows]
    assert repr(results) == "Results(36 records, metrics: exact, chrf, length)"


@pytest.mark.parametrize("executor", ["processes", Processes(workers=3)])
def test_bytes_do_not_depend_on_the_executor(rows: Rows, run: Path, tmp_path: Path, executor: Any) -> None:
    score(rows, METRICS, out=tmp_path / "other", shard_size=8, executor=executor)
    assert contents(tmp_path / "other") == contents(run)


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz", "x.csv", "x.parquet"])
def test_an_exported_run_equals_the_flat_file_of_the_same_command(
    rows: Rows, run: Path, tmp_path: Path, name: str
) -> None:
    score(rows, METRICS, out=tmp_path / name, executor="serial", shard_size=5)
    export(run, tmp_path / f"exported-{name}")
    assert (tmp_path / f"exported-{name}").read_bytes() == (tmp_path / name).read_bytes()


def test_a_repeated_command_changes_nothing(rows: Rows, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, times = contents(run), written(run)
    monkeypatch.setattr("metrist.run.tasks.score_shard", None)
    results = score(rows, METRICS, out=run, shard_size=8)
    assert contents(run) == before
    assert written(run) == times
    assert results.notes == ()
    assert results.scores["chrf"].values.tolist() == load(run).scores["chrf"].values.tolist()


def test_damaged_and_missing_parts_are_redone(rows: Rows, run: Path) -> None:
    before = contents(run)
    times = {name: time for name, time in written(run).items() if "chrf" not in name}
    for damage in ("shorter", "other", "missing"):
        (part,) = (run / "scores/chrf").iterdir()
        data = part.read_bytes()
        part.unlink()
        if damage != "missing":
            part.write_bytes(data[:100] if damage == "shorter" else data[:500] + b"X" + data[501:])
        results = score(rows, METRICS, out=run, shard_size=8)
        assert contents(run) == before
        assert times.items() <= written(run).items()
        why = "is missing" if damage == "missing" else "is not as it was written"
        assert results.notes == (f"{part} {why}: it was set aside and scored again",)
        del results  # It reads the run, so that no part is deleted.
    assert score(rows, METRICS, out=run).notes == ()


def test_an_added_metric_is_the_only_one_computed(rows: Rows, run: Path) -> None:
    times = written(run)
    score(rows, ["distinct"], out=run, shard_size=8)
    assert times.items() <= written(run).items()
    assert set(load(run).scores) == {*METRICS, "distinct"}
    score(rows, [*METRICS, "distinct"], out=run, shard_size=8)
    assert list(load(run).scores) == [*METRICS, "distinct"]


def test_a_metric_without_scores_of_some_records_is_loaded_with_gaps(rows: Rows, run: Path, tmp_path: Path) -> None:
    edited = [*rows[:-2], *({**row, "output": f"{row['output']} too"} for row in rows[-2:])]
    score(edited, ["bleu"], out=run, shard_size=8)
    loaded = load(run)
    assert list(loaded.scores) == [*METRICS, "bleu"]
    assert not loaded.scores["bleu"].failures
    assert {i: failure.kind for i, failure in loaded.scores["chrf"].failures.items()} == {34: "pending", 35: "pending"}
    told = [note for note in loaded.notes if "has not scored" in note]
    assert told == [
        f"{metric} has not scored 2 of 2 outputs of rows in memory: score the same rows again to add them"
        for metric in METRICS
    ]
    assert export(run, tmp_path / "x.jsonl").notes == loaded.notes
    assert set(told) <= set(metrist.compare(run, draws=100).table().remarks)
    score(edited, [*METRICS, "bleu"], out=run, shard_size=8)
    assert not any(block.failures for block in load(run).scores.values())


def test_an_unfinished_metric_is_noted_wherever_the_run_is_read(run: Path, tmp_path: Path) -> None:
    unfinish(run, "chrf")
    note = "chrf is left out, because it is not finished: run the same `metrist score` again"
    assert load(run).notes == (note,)
    assert load(run).unfinished == {"chrf": "chrf"}
    assert export(run, tmp_path / "x.jsonl").notes == (note,)
    assert note in metrist.compare(run, draws=100).table().remarks
    assert note in metrist.check(run, minimum={"exact": 0.0}).notes


class Interrupted(Exception):
    """Stands for whatever ends a run from outside."""


@dataclass(frozen=True)
class Interrupting:
    """An executor that is interrupted after some tasks."""

    after: int

    def map(self, metrics: Sequence[Metric], tasks: Iterable[Task]) -> Iterator[TaskResult]:
        for number, task in enumerate(tasks):
            if number == self.after:
                raise Interrupted
            yield from Serial().map(metrics, [task])


@pytest.mark.parametrize("shards", [0, 2])
def test_an_interrupted_run_over_edited_rows_leaves_gaps_and_no_old_scores(rows: Rows, run: Path, shards: int) -> None:
    edited = [{**row, "output": f"{row['output']} too"} for row in rows]
    with pytest.raises(Interrupted):
        score(edited, METRICS, out=run, shard_size=8, executor=Interrupting(after=shards))
    loaded = load(run)
    assert {len(block.failures) for block in loaded.scores.values()} == {len(rows) - 8 * shards}
    assert loaded.notes[0].startswith(f"exact has not scored {len(rows) - 8 * shards} of 36 outputs of rows in memory")
    score(edited, METRICS, out=run, shard_size=8)
    assert load(run).notes == ()
    fresh = score(edited, METRICS, out=run.parent / "fresh", shard_size=8)
    assert list(load(run).rows()) == list(fresh.rows())


def test_scores_by_another_version_are_marked_until_the_run_is_finished_and_never_mixed(
    rows: Rows, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = load(run)
    monkeypatch.setattr("metrist.metrics.base.__version__", "99.0")
    with pytest.raises(Interrupted):
        score(rows, METRICS, out=run, shard_size=8, executor=Interrupting(after=2))
    loaded = load(run)
    assert list(loaded.rows()) == list(before.rows())
    assert loaded.notes == tuple(
        f"{metric}: these are the scores of an earlier run; a later one, by another version of the metric, was not "
        "finished: run `metrist score` again"
        for metric in METRICS
    )
    results = score(rows, METRICS, out=run, shard_size=8)
    assert results.notes == tuple(
        f"{metric}: 36 scores by other versions were set aside; `metrist remove {format_path(run)}/ --unused` deletes "
        "them"
        for metric in METRICS
    )
    assert load(run).notes == ()
    assert "metrist 99.0" in load(run).signatures["chrf"]
    assert score(rows, METRICS, out=run, shard_size=8).notes == ()


def test_a_repeated_metric_is_computed_once(rows: Rows) -> None:
    results = score(rows, ["chrf", "chrf(beta=2.0)", parse("chrf"), "length"])
    assert list(results.scores) == ["chrf", "length"]
    assert list(score(rows, "chrf").scores) == ["chrf"]


def test_records_come_from_files_readers_records_and_frames(rows: Rows, tmp_path: Path) -> None:
    import pandas
    import polars

    plain = [row for row in rows if row["system"] == "first" and row["item"].isprintable()]
    expected = score(plain, ["length"]).scores["length"].values.tolist()
    pandas.DataFrame(plain).to_json(tmp_path / "in.jsonl", orient="records", lines=True)
    sources: list[Any] = [
        tmp_path / "in.jsonl",
        read_records(plain),
        [Record(**{**row, "references": tuple(row["references"])}) for row in plain],
        pandas.DataFrame(plain),
        polars.DataFrame(plain),
        iter(plain),
    ]
    for source in sources:
        assert score(source, ["length"]).scores["length"].values.tolist() == expected


def test_the_manifest_names_the_input_and_the_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in.csv").write_text("item,system,output\n1,s,hello\n")
    score("in.csv", ["length"], out="run")
    page = Path("run/manifest.json").read_text()
    assert page.startswith('{\n  "metrist": ')
    facts = json.loads(page)
    assert [(one["name"], one["path"], one["records"]) for one in facts["inputs"]] == [("in.csv", "../in.csv", 1)]
    assert [(one["text"], one["folder"]) for one in facts["metrics"]] == [("length", "length")]


def test_progress_counts_computed_and_stored_records(rows: Rows, run: Path) -> None:
    calls: list[tuple[int, int | None]] = []
    score(rows, METRICS, shard_size=8, progress=lambda *call: calls.append(call))
    score(rows, METRICS, out=run, shard_size=8, progress=lambda *call: calls.append(call))
    assert calls == [(8, 36), (16, 36), (24, 36), (32, 36), (36, 36), (36, 36)]


def test_progress_tells_which_records_were_stored_already(rows: Rows, tmp_path: Path) -> None:
    path, calls = tmp_path / "in.jsonl", list[tuple[int, int]]()

    def note(done: int, _total: int | None, *, stored: int) -> None:
        calls.append((done, stored))

    write_rows(path, rows[:12])
    score(path, ["chrf"], out=tmp_path / "run", shard_size=8, progress=note)
    assert calls == [(8, 0), (12, 0)]
    calls.clear()
    write_rows(path, rows[:18])
    score(path, ["chrf"], out=tmp_path / "run", shard_size=8, progress=note)
    assert calls == [(12, 12), (18, 12)]


def test_progress_of_a_file_has_a_total_before_anything_is_scored(rows: Rows, tmp_path: Path) -> None:
    path, calls = write_rows(tmp_path / "rows.jsonl", rows), list[tuple[int, int | None, str]]()
    score(path, ["chrf"], progress=lambda done, total, metric="": calls.append((done, total, metric)))
    assert calls == [(0, None, "chrf"), (0, 36, "chrf"), (36, 36, "chrf")]


def test_loading_a_model_does_not_count_for_the_size_of_tasks(
    rows: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = []

    @dataclass(frozen=True)
    class Slow(Metric):
        """A metric whose model takes 100 s to load and 1 s to score a task."""

        resident = True

        def score(self, shard: Shard) -> Scores:
            for watch in loading_watchers:
                watch("model")
            clock[0] += 100.0
            for watch in loading_watchers:
                watch(None)
            clock[0] += 1.0
            return Scores.of(1.0 for _ in shard.records)

    clock = [0.0]
    monkeypatch.setattr("metrist.run.tasks.time.perf_counter", lambda: clock[0])
    monkeypatch.setattr(TaskSize, "measure", lambda _, units, seconds: measured.append((len(units), seconds)))
    score(rows, [Slow()], out=tmp_path / "run", shard_size=36, executor="serial")
    assert measured == [(36, 1.0)]


def test_a_need_that_no_record_meets_fails_before_the_run(rows: Rows, tmp_path: Path) -> None:
    bare = [{key: value for key, value in row.items() if key != "references"} for row in rows]
    with raises_code(NeedsError, "missing_field", "chrf", "references", "'i0'", "first 36 records"):
        score(bare, ["length", "chrf"], out=tmp_path / "run", shard_size=8)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("shard_size", [1, 8, 1024])
def test_whether_needs_are_met_does_not_depend_on_the_size_of_shards(
    rows: Rows, shard_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = [{**row, "references": []} if n < 20 else row for n, row in enumerate(rows)]
    assert len(score(late, ["chrf"], shard_size=shard_size, executor="serial").scores["chrf"].failures) == 20
    monkeypatch.setattr("metrist.run.tasks.LOOK_AHEAD", 20)
    with raises_code(NeedsError, "missing_field", "chrf", "references", "'i0'", "first 20 records"):
        score(late, ["chrf"], shard_size=shard_size)
    monkeypatch.setattr("metrist.run.tasks.LOOK_AHEAD", 21)
    assert len(score(late, ["chrf"], shard_size=shard_size, executor="serial")) == 36


def test_checking_needs_reads_as_few_records_as_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    consumed: list[Record] = []

    def records(*references: tuple[str, ...]) -> Iterator[Record]:
        for n, texts in enumerate(references):
            consumed.append(Record(item=str(n), system="s", output="o" * 10, references=texts))
            yield consumed[-1]

    chrf, length = metrist.metric("chrf"), metrist.metric("length")
    assert NeedsCheck([length]).add(records((), ("a",)))
    assert len(consumed) == 1
    assert NeedsCheck([length, chrf]).add(records((), ("a",), (), ("b",)))
    assert len(consumed) == 4
    monkeypatch.setattr("metrist.run.tasks.MAX_TEXT", 25)
    with raises_code(NeedsError, "missing_field", "3"):
        NeedsCheck([chrf]).add(records(*[()] * 9))


def test_some_records_without_a_need_are_failed_scores(rows: Rows, tmp_path: Path) -> None:
    some = [{**row, "references": []} if n in (0, 20, 21, 22, 23) else row for n, row in enumerate(rows)]
    results = score(some, ["chrf"], out=tmp_path / "run", shard_size=4)
    assert set(results.scores["chrf"].failures) == {0, 20, 21, 22, 23}
    again = load(tmp_path / "run").scores["chrf"]
    assert again.failures == results.scores["chrf"].failures
    assert np.array_equal(again.stats, results.scores["chrf"].stats)
    assert results.system_scores()[0].coverage == pytest.approx(10 / 12)


class Bare(Metric):
    """A metric without a hook."""


class Broken(Metric):
    def score_record(self, record: Record) -> float:
        raise ValueError(record.output)


@pytest.mark.parametrize(
    ("metrics", "settings", "code", "value"),
    [
        ([], {}, "missing_value", "chrf"),
        (["chrf"], {"shard_size": 0}, "invalid_value", "shard_size"),
        (["chrf"], {"out": "scores.txt"}, "invalid_value", "scores.txt"),
        (["chrf"], {"out": "x.parquet.gz"}, "cannot_write", "x.parquet.gz"),
        (["chrf"], {"executor": "dask"}, "unknown_name", "'dask'"),
        ([Bare()], {"executor": "serial"}, "metric_failed", "score_record(self, record)"),
        ([Broken()], {"executor": "serial"}, "metric_failed", "Broken"),
    ],
)
def test_invalid_runs_fail_before_they_begin(
    rows: Rows,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    metrics: list[str],
    settings: Any,
    code: ErrorCode,
    value: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    with raises_code(RunError, code, value):
        score(rows, metrics, **settings)
    assert os.listdir(tmp_path) == []


def test_an_empty_input_is_refused(tmp_path: Path) -> None:
    with raises_code(InputError, "no_data"):
        score([], ["chrf"], out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_folders_with_a_number_as_suffix_or_a_final_slash_are_folders(rows: Rows, tmp_path: Path) -> None:
    score(rows, ["length"], out=tmp_path / "run-1.2")
    score(rows, ["length"], out=f"{tmp_path}/other.name/")
    assert contents(tmp_path / "run-1.2") == contents(tmp_path / "other.name")


FAILING = """
@dataclass(frozen=True)
class Failing(Metric):
    def score(self, shard):
        why = os.environ.get("WHY")
        return Scores.of(Score(value=np.nan, failure=why) if why else 1.0 for _ in shard.records)
"""


def test_a_metric_that_fails_alike_on_every_record_ends_the_run_and_leaves_nothing_to_resume(
    rows: Rows, tmp_path: Path, module: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    metric: Metric = module(FAILING).Failing()
    monkeypatch.setenv("WHY", "no key")
    with raises_code(RunError, "metric_failed", "own_metrics.Failing", "36", "no key"):
        score(rows, ["length", metric], out=tmp_path / "run", shard_size=8)
    assert len(score(rows[:1], [metric]).scores[metric.text].failures) == 1
    monkeypatch.delenv("WHY")
    results = score(rows, ["length", metric], out=tmp_path / "run", shard_size=8)
    assert not results.scores[metric.text].failures


def test_a_run_that_breaks_keeps_the_shards_before(
    rows: Rows, tmp_path: Path, module: Callable[[str], ModuleType]
) -> None:
    source = """
@dataclass(frozen=True)
class Breaking(Metric):
    def score(self, shard):
        if any(r.item == "i6" for r in shard.records): raise ValueError("a bug")
        return Scores.of(1.0 for _ in shard.records)
"""
    metric = module(source).Breaking()
    with raises_code(RunError, "metric_failed", "own_metrics.Breaking", "8"):
        score(rows, [metric], out=tmp_path / "run", shard_size=8, executor="serial")
    assert count_scores(tmp_path / "run", metric.text) == 16
    with raises_code(RunError, "unfinished"):
        load(tmp_path / "run")


def test_nothing_is_written_flat_when_a_run_breaks(tmp_path: Path) -> None:
    def rows() -> Iterator[dict[str, str]]:
        yield {"item": "1", "system": "s", "output": "o"}
        raise OSError("the network is gone")

    with pytest.raises(OSError, match="the network is gone"):
        score(rows(), ["length"], out=tmp_path / "x.jsonl")
    assert os.listdir(tmp_path) == []


def test_the_input_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"item": "1", "system": "s", "output": "o"}\n')
    with raises_code(RunError, "cannot_write", "in.jsonl"):
        score(tmp_path / "in.jsonl", ["length"], out=tmp_path / "in.jsonl")


def test_shards_are_cut_by_number_and_by_text() -> None:
    def cut(size: int, *lengths: int) -> list[tuple[int, int]]:
        records = [
            Record(item=str(n), system="s", output="x" * k, references=("y" * k,)) for n, k in enumerate(lengths)
        ]
        return [(start, len(shard)) for start, shard in read_shards([], read_records(records), size)]

    assert cut(2, *[1] * 5) == [(0, 2), (2, 2), (4, 1)]
    long = 3 << 20
    assert cut(10, 1, long, long, 1, 1) == [(0, 2), (2, 3)]


def _outputs(*counts: int) -> list[Record]:
    """Items with that many outputs, of 10 characters with their record's own."""
    return [
        Record(item=str(item), system=str(system), output="x" * 9)
        for item, n in enumerate(counts)
        for system in range(n)
    ]


@pytest.mark.parametrize(
    ("counts", "measured", "seconds", "size"),
    [
        ((9, 9), 0, 0.0, 9),  # nothing is known yet: the first item
        ((999,), 0, 0.0, 500),  # or 5,000 characters of it
        ((99,), 1, 0.1, 4),  # at most four times as many as before
        ((1,) * 60, 20, 2.0, 25),  # every output its own item: 2.5 s at 0.1 s each
        ((16, 16, 16), 20, 2.0, 32),  # on to the end of the item: 3.2 s
        ((16, 40, 16), 20, 2.0, 16),  # back to its beginning: to its end it would be 5.6 s
        ((4, 47), 20, 2.0, 4),  # so that the next is not divided: 4.7 s
        ((4, 90), 20, 2.0, 50),  # divided in any case: 5 s
        ((3, 3), 20, 2.0, 6),  # all there is
        ((1,) * 9, 1, 1.4, 2),  # nearer to the aim than one alone
        ((9,), 1, 9.0, 1),  # slower than the aim: at least one
    ],
)
def test_a_task_takes_a_few_seconds_and_ends_with_an_item_where_it_can(
    counts: tuple[int, ...], measured: int, seconds: float, size: int
) -> None:
    task_size = TaskSize()
    if measured:
        task_size.measure(_outputs(measured), seconds)
    assert task_size.cut(_outputs(*counts)) == size


@pytest.mark.parametrize(("tasks", "size"), [([(20, 2.0), (20, 1.0)], 50), ([(1, 0.4), (4, 0.4)], 16)])
def test_the_slower_of_two_tasks_of_a_size_counts(tasks: list[tuple[int, float]], size: int) -> None:
    task_size = TaskSize()
    for count, seconds in tasks:
        task_size.measure(_outputs(count), seconds)
    assert task_size.cut(_outputs(99)) == size


@pytest.mark.parametrize(("references", "size"), [(True, 5), (False, 25)])
def test_references_count_only_where_a_metric_reads_them(references: bool, size: int) -> None:
    task_size = TaskSize(references=references)
    task_size.measure(_outputs(20), 2.0)
    assert task_size.cut([replace(record, references=("x" * 40,)) for record in _outputs(*[1] * 60)]) == size


def _share_source(size: int, *counts: int) -> list[Record]:
    """The same outputs, with a source of so many characters for each item."""
    return [replace(record, source=record.item.rjust(size, "s")) for record in _outputs(*counts)]


@pytest.mark.parametrize(
    ("source", "counts", "seconds", "size"),
    [
        (980, (2, 2, 2), 3.0, 2),  # a second output costs little: the item stays whole
        (980, (16, 16), 4.0, 16),  # 1,140 characters: 4.6 s
        (480, (16, 16), 4.0, 14),  # 5.1 s: divided at 5 s
        (980, (16, 16), 4.6, 16),  # 5.2 s, but a record alone takes 4.6 s: dividing would gain little
        (980, (16, 16), 9.0, 16),  # a record alone takes longer than that: the others cost little more
        (980, (99,), 9.0, 25),  # but no more than a quarter more
        (180, (2, 2, 2, 2), 0.9, 6),  # small items together
    ],
)
def test_a_source_that_outputs_share_counts_once(
    source: int, counts: tuple[int, ...], seconds: float, size: int
) -> None:
    task_size = TaskSize()
    task_size.measure(_share_source(source, *[2] * 20), 20 * seconds)
    assert task_size.cut(_share_source(source, *counts)) == size


@pytest.mark.parametrize("executor", ["serial", "processes"])
def test_a_run_keeps_how_many_rows_of_each_file_were_left_out(executor: str, tmp_path: Path) -> None:
    text = "many words of a long output " * 20
    for name, bad in (("a", 3), ("b", 0), ("c", 1)):
        rows = [{"item": str(n), "system": name, "output": text} for n in range(3000)]
        rows += [{"item": "x", "system": name, "output": 1.5}] * bad  # type: ignore[dict-item]
        write_rows(tmp_path / f"{name}.jsonl", rows)
    files = [tmp_path / f"{name}.jsonl" for name in "abc"]
    for texts in (True, False):
        score(files, ["length"], out=tmp_path / f"run-{texts}", skip_bad=True, texts=texts, executor=executor)
        run = open_run(tmp_path / f"run-{texts}")
        assert [one.skipped for one in run.manifest.inputs] == [3, 0, 1]
        notes = [note for note in load(tmp_path / f"run-{texts}").notes if "left out" in note]
        assert [("a.jsonl: 3 bad" in note, "c.jsonl: 1 bad" in note) for note in notes] == [
            (True, False),
            (False, True),
        ]
        assert all(one.notes[0].startswith("4 bad rows were skipped") for one in run.manifest.inputs)


@pytest.mark.parametrize("skipped", [1, 2])
def test_results_say_how_many_bad_rows_were_skipped(skipped: int, tmp_path: Path) -> None:
    good = [{"item": str(n), "system": s, "output": "a b", "references": ["a"]} for n in range(2) for s in "ab"]
    rows = [*good, *({"item": "x", "system": str(n), "output": [n]} for n in range(skipped))]
    first = (
        "1 bad row was skipped; the first: row 5: " if skipped == 1 else "2 bad rows were skipped; the first: row 5: "
    )
    for out in (None, tmp_path / "run"):
        notes = [*score(rows, "exact", skip_bad=True, out=out).notes, *prefer(rows, "exact", skip_bad=True).notes]
        assert [note[: len(first)] for note in notes if "skipped" in note] == [first, first]
    assert not any("skipped" in note for note in score(good, "exact", skip_bad=True).notes)
