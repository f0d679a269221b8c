"""Runs whose workers read slices of the inputs and write the parts: the same as serial runs, whatever the input."""

from __future__ import annotations

import gzip
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import accumulate, cycle
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from fake_ray import FakeRay
from pyarrow import parquet

from error_codes import raises_code
from metrist.errors import MetristError, format_path
from metrist.io.slices import WholeFile
from metrist.metrics.base import Metric
from metrist.run import score
from metrist.run.cluster import ReadSlice, ScoreSlice
from metrist.run.executors import Ray, Resources
from metrist.run.run import Run
from metrist.run.store import Store
from metrist.run.tasks import SliceSize
from metrist.scores import Score, Scores
from run_contents import contents, count_scores

METRICS = ["rougeL", "chrf"]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    """A cluster of two nodes; inputs are read in slices of about 1,000 bytes."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    monkeypatch.setattr("metrist.run.cluster.SLICE_BYTES", (1000, 1000))
    cluster = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", cluster)
    return cluster


def make_rows(count: int = 60, **more: Any) -> list[dict[str, Any]]:
    words = [f"w{n}" for n in range(17)]
    return [
        {
            "item": f"i{n // 3}",
            "system": f"s{n % 3}",
            "output": " ".join(words[n % 5 : n % 11 + 4]),
            "references": [" ".join(words[n % 7 : n % 13 + 5])],
            **more,
        }
        for n in range(count)
    ]


def write(path: Path, rows: list[Any], end: str = "\n") -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_bytes(end.join(lines).encode("utf-8", "surrogatepass") + end.encode())
    return path


def run(source: Any, out: Path, executor: Any, **options: Any) -> tuple[Any, Any]:
    """What a run folder holds afterwards with the notes, or the error."""
    try:
        results = score(source, METRICS, out=out, executor=executor, **options)
    except MetristError as error:
        return type(error), str(error).replace(format_path(out), "run")
    notes = [note.replace(format_path(out), "run") for note in results.notes]
    # Bit for bit, NaN included.
    return contents(out), (notes, list(results.items), [results[metric].values.tobytes() for metric in METRICS])


def check_against_serial(source: Any, folder: Path, **options: Any) -> Any:
    """Check that a run on the cluster is as a serial one, refused inputs also with `skip_bad`; return the latter."""
    expected = run(source, folder / "serial", "serial", **options)
    assert run(source, folder / "ray", Ray(), **options) == expected
    if isinstance(expected[0], type) and "skip_bad" not in options:
        (folder / "skip").mkdir()
        check_against_serial(source, folder / "skip", skip_bad=True, **options)
    return expected


def jobs(fake: FakeRay, kind: type) -> list[Any]:
    return [job for job in fake.done if isinstance(job, kind)]


def test_workers_read_and_write_what_a_serial_run_does(fake: FakeRay, tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", make_rows(200, ratings={"quality": 3}))
    expected = run(source, tmp_path / "serial", "serial")
    assert run(source, tmp_path / "ray", Ray(), shard_size=20) == expected
    assert len(jobs(fake, ReadSlice)) > 10
    assert sum(map(len, jobs(fake, ScoreSlice))) == 200
    assert len({worker for worker in fake.workers if worker.jobs}) == 2
    # Parts are in the order of the records, so that nothing has to be sorted when they are read.
    run_folder = Run.open(Store(tmp_path / "ray"))
    for metric in run_folder.manifest.metrics:
        parts = [run_folder.read_part(metric.place, part, ["record"]) for part in metric.versions[0].parts]
        assert pa.concat_tables(parts)["record"].to_pylist() == run_folder.records()["record"].to_pylist()


CONFLICT = {"item": "i3", "system": "s0", "output": "other", "references": ["w1"]}
#: What slices of a file cannot know of each other, and odd files. The command reads such files itself where it must.
INPUTS: dict[str, list[Any]] = {
    "a record twice": [*make_rows(), make_rows()[3]],
    "a record with other texts": [*make_rows(), CONFLICT],
    "a bad line": [*make_rows(), '{"item": "x", ', *make_rows(9)],
    "a list": [*make_rows(), "[1]"],
    "a row without an output": [*make_rows(), {"item": "x", "system": "s0"}],
    "rows without items": [{"output": f"w{n} w{n + 1}", "references": ["w3 w4"]} for n in range(60)],
    "blank lines and no items": [
        line for n in range(60) for line in (json.dumps({"output": f"w{n}", "references": ["w1"]}), "")
    ],
    "items in some rows": [*make_rows(), *({"output": "w1", "references": ["w2"]} for _ in range(40))],
    "an item that is null": [*make_rows(), *({"item": None, "output": "w1", "references": ["w2"]} for _ in range(40))],
    "other names of columns": [
        {"id": r["item"], "model": r["system"], "prediction": r["output"], "gold": r["references"][0]}
        for r in make_rows()
    ],
    "two names of a column": [
        {"id" if n < 40 else "doc_id": r["item"], "model": r["system"], "prediction": r["output"], "gold": "w1 w2"}
        for n, r in enumerate(make_rows())
    ],
    "items of one system each": [
        {"id": f"{n}", "model": f"m{n // 30}", "prediction": f"w{n}", "gold": "w1 w2"} for n in range(60)
    ],
    "more columns": [{**row, **({"topic": [n]} if n % 7 == 3 else {})} for n, row in enumerate(make_rows())],
    "raters that repeat a row": [
        {**row, "ratings": {"q": [1, 2]}, "raters": ["a", "b"]} for row in make_rows() + make_rows()
    ],
    "ratings without texts": [*make_rows(), *({"item": "i1", "system": "s1", "ratings": {"q": 1}} for _ in range(60))],
    "ratings that cannot be read": [*make_rows(), *make_rows(3, item="x", ratings={"q": "bad"})[:1]],
    "two outputs in a row": [
        {
            "item": f"{n}",
            "systems": ["a", "b"],
            "outputs": [f"w{n}", "w2"],
            "references": ["w2 w3"],
            "ratings": {"q": 1},
        }
        for n in range(40)
    ],
    "surrogates and zeros": [{**row, "output": row["output"] + "\ud800\0"} for row in make_rows()],
    "lines that end in CR LF": [json.dumps(row) + "\r" for row in make_rows()],
    "a mark at the start of a line": [
        json.dumps(row) if n != 31 else "\ufeff" + json.dumps(row) for n, row in enumerate(make_rows())
    ],
    "sources": make_rows(source="the same source"),
    "no references": [{"item": f"{n}", "system": "s", "output": "w1 w2 w3 w4 w5 w6 w7 w8 w9 w10"} for n in range(60)],
}


@pytest.mark.parametrize("name", INPUTS)
def test_any_input_is_read_as_by_one_process(name: str, fake: FakeRay, tmp_path: Path) -> None:
    check_against_serial(write(tmp_path / "in.jsonl", INPUTS[name]), tmp_path)
    assert any(started.startswith("bytes ") for started in fake.started)


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize(
    "options",
    [
        {"fields": {"output": "verdict"}},
        {"item_key": "system+item"},
        {"system": "mine"},
        {"encoding": "utf-8"},
        {"outputs": ["output", "verdict"]},
    ],
)
def test_options_of_reading_count(options: dict[str, Any], tmp_path: Path) -> None:
    check_against_serial(write(tmp_path / "in.jsonl", make_rows(verdict="w1 w2")), tmp_path, **options)


def write_parquet(path: Path, rows: list[Any], group: int = 1000) -> Path:
    """Rows as a Parquet file with groups of so many rows; columns that rows do not have are null."""
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: pa.array([row.get(name) for row in rows]) for name in names}
    parquet.write_table(pa.table(columns), path, row_group_size=group)
    return path


#: Inputs that a table can hold, and odd tables.
TABLES: dict[str, list[Any]] = {
    **{
        name: rows
        for name, rows in INPUTS.items()
        if all(isinstance(row, dict) for row in rows) and name != "surrogates and zeros"
    },
    "empty outputs": [{**row, "output": ""} if n % 20 == 11 else row for n, row in enumerate(make_rows())],
    "an output that is null": [{**row, "output": None} if n == 47 else row for n, row in enumerate(make_rows())],
    "an object where a text was": [
        {"id": f"{n}", "model": "m", "prediction": "w1", "answers": {"text": ["w1 w2"]}, "n": n} for n in range(60)
    ],
    "chosen and rejected": [{"chosen": f"w{n} w2", "rejected": "w3", "reference": "w2"} for n in range(60)],
}


@pytest.mark.parametrize(("group", "name"), [*zip(cycle([20, 1000]), TABLES, strict=False)])
def test_rows_of_parquet_are_read_as_by_one_process(name: str, group: int, fake: FakeRay, tmp_path: Path) -> None:
    check_against_serial(write_parquet(tmp_path / "in.parquet", TABLES[name], group), tmp_path)
    is_converted = name in ("chosen and rejected",)
    assert any(started.endswith(".parquet") and "records/" not in started for started in fake.started) != is_converted


@pytest.mark.parametrize("group", [7, 1000])
def test_parquet_is_cut_between_and_within_row_groups(group: int, fake: FakeRay, tmp_path: Path) -> None:
    rows = make_rows(100, ratings={"quality": 3.0})
    expected = check_against_serial(write_parquet(tmp_path / "in.parquet", rows, group), tmp_path)
    slices = sorted((job.slice for job in jobs(fake, ReadSlice)), key=lambda one: one.first_row)
    assert len(slices) >= 3
    assert [one.first_row for one in slices] == [0, *accumulate(one.rows for one in slices)][:-1]
    assert any(one.skipped for one in slices) == (group == 1000)
    assert len(expected[0]["records"]) == 100


FORMATS: dict[str, Any] = {
    "a.jsonl": write,
    "b.parquet": write_parquet,
    "c.csv": lambda path, rows: pandas_frame(rows).to_csv(path, index=False),
    "d.jsonl.gz": lambda path, rows: path.write_bytes(
        gzip.compress("".join(f"{json.dumps(row)}\n" for row in rows).encode())
    ),
    "e.json": lambda path, rows: path.write_text(json.dumps(rows)),
}


def pandas_frame(rows: list[Any]) -> Any:
    lists = [{k: json.dumps(v) if isinstance(v, list | dict) else v for k, v in row.items()} for row in rows]
    return pytest.importorskip("pandas").DataFrame(lists)


def name_columns(rows: list[Any], **names: str) -> list[Any]:
    return [{names.get(name, name): value for name, value in row.items()} for row in rows]


#: Rows of the n-th of several files.
FILES: dict[str, Callable[[int], list[Any]]] = {
    "systems": lambda n: make_rows(system=f"s{n}")[::3],
    "no systems": lambda n: [{"item": f"{k}", "output": f"w{k + n}", "reference": "w1 w2"} for k in range(40)],
    "no items": lambda n: [{"output": f"w{k + n} w2", "reference": "w1 w2"} for k in range(40)],
    "a source for each item": lambda n: [
        {**row, "source": f"the  source {row['item']}"} for row in make_rows(system=f"s{n}")[::3]
    ],
    "other sources": lambda n: [
        {**row, "source": f"source {(k + n) % 20}"} for k, row in enumerate(make_rows(system=f"s{n}")[::3])
    ],
    "sources of their own": lambda n: make_rows(system=f"s{n}", source=f"source of {n}")[::3],
    "items of their own": lambda n: name_columns(
        [{**row, "item": f"{n}-{row['item']}"} for row in make_rows(system=f"s{n}")[::3]], item="id"
    ),
    "the same records": lambda _n: make_rows(),
    "contradictions": lambda n: make_rows(output=f"w{n}"),
    "ratings of others": lambda n: (
        make_rows(ratings={"q": 2})
        if n == 0
        else [{"item": "i1", "system": f"s{k}", "ratings": {"q": n}} for k in range(3)]
    ),
    "a bad row": lambda n: [*make_rows(system=f"s{n}")[::3], {"item": "x", "system": f"s{n}"}],
    "empty outputs": lambda n: [{**row, "output": ""} for row in make_rows(system=f"s{n}")[::3]],
    "other names": lambda n: name_columns(
        make_rows(system=f"s{n}")[::3], output="prediction" if n % 2 else "response", item="doc_id"
    ),
    "pairs": lambda n: [
        {"response_a": f"w{k}", "response_b": f"w{n}", "model_a": "x", "model_b": f"y{n}", "id": f"{n}-{k}"}
        | {"reference": "w1", "winner": "model_a"}
        for k in range(40)
    ],
}


@pytest.mark.parametrize("name", FILES)
def test_several_files_are_read_as_by_one_process(name: str, fake: FakeRay, tmp_path: Path) -> None:
    sources = []
    for n, (file, write_file) in enumerate(FORMATS.items()):
        sources.append(tmp_path / file)
        write_file(sources[-1], FILES[name](n))
    check_against_serial(sources, tmp_path)
    assert fake.started
    if name not in ("the same records", "contradictions", "ratings of others", "a bad row"):
        read = jobs(fake, ReadSlice)
        assert {Path(job.slice.path).name for job in read} == set(FORMATS)
        assert sum(isinstance(job.slice, WholeFile) for job in read) == (5 if name == "pairs" else 3)


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("name", ["other names", "pairs", "no items"])
def test_what_is_recognised_is_announced_in_the_same_words(name: str, tmp_path: Path) -> None:
    sources, heard = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"], dict[str, list[str]]()
    for n, source in enumerate(sources):
        write(source, [{**row, **({"prompt": "w"} if k > 3 else {})} for k, row in enumerate(FILES[name](n))])
    for out, executor in (("serial", "serial"), ("ray", Ray())):
        run(sources, tmp_path / out, executor, announce=heard.setdefault(out, []).append)
    assert [words.replace("/ray/", "/serial/") for words in heard["ray"]] == heard["serial"]


@pytest.mark.parametrize("more", [{}, {"source": "w1"}], ids=["", "sources"])
def test_several_files_of_one_name_are_read_in_slices(more: dict[str, str], fake: FakeRay, tmp_path: Path) -> None:
    rows = [{k: v for k, v in row.items() if k != "system"} for row in make_rows(120, **more) if row["system"] == "s1"]
    sources = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        other = [{**row, "output": f"{row['output']} {folder}", **more} for row in rows]
        sources.append(write(tmp_path / folder / "in.jsonl", other))
    check_against_serial(sources, tmp_path)
    assert len(jobs(fake, ReadSlice)) > 4


def test_a_single_file_that_cannot_be_cut_is_read_by_the_command(fake: FakeRay, tmp_path: Path) -> None:
    source = tmp_path / "in.csv"
    rows = [f"i{n},s,w{n} w{n + 1},w3 w4 w{n}" for n in range(100)]
    source.write_text("item,system,output,reference\n" + "\n".join(rows))
    check_against_serial(source, tmp_path)
    assert not jobs(fake, ReadSlice)
    assert jobs(fake, ScoreSlice)


def test_a_large_file_is_written_in_several_parts(
    fake: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metrist.run.tables.PART_ROWS", 10)
    monkeypatch.setattr("metrist.io.reader.BATCH_RECORDS", 10)
    sources = [tmp_path / "c.csv", tmp_path / "e.json"]
    for n, source in enumerate(sources):
        FORMATS[source.name](source, make_rows(90, system=f"s{n}")[::3])
    check_against_serial(sources, tmp_path)
    assert len(jobs(fake, ReadSlice)) == 2


@pytest.mark.usefixtures("fake")
def test_another_input_must_not_contradict_the_first(tmp_path: Path) -> None:
    first = write(tmp_path / "first.jsonl", make_rows())
    more = write(tmp_path / "more.jsonl", [{**row, "system": "new"} for row in make_rows() if row["system"] == "s1"])
    bad = write(tmp_path / "bad.jsonl", [*make_rows(system="newer")[::3], CONFLICT])
    for executor, out in (("serial", "serial"), (Ray(), "ray")):
        run(first, tmp_path / out, executor)
        run(more, tmp_path / out, executor)
    assert contents(tmp_path / "ray") == contents(tmp_path / "serial")
    assert run(bad, tmp_path / "ray", Ray()) == run(bad, tmp_path / "serial", "serial")
    assert contents(tmp_path / "ray") == contents(tmp_path / "serial")


def test_only_what_is_missing_is_scored(fake: FakeRay, tmp_path: Path) -> None:
    source, out = write(tmp_path / "in.jsonl", make_rows(150)), tmp_path / "ray"
    expected = run(source, tmp_path / "serial", "serial")
    fake.dies = lambda _worker, job: isinstance(job, ScoreSlice) and len(jobs(fake, ScoreSlice)) > 8
    with raises_code(MetristError, "worker_died", "workers"):
        score(source, METRICS, out=out, executor=Ray(), shard_size=10)
    before = sum(map(len, jobs(fake, ScoreSlice)))
    assert 0 < before < 150
    fake.dies = lambda _worker, _job: False
    fake.done.clear()
    assert run(source, out, Ray(), shard_size=10) == expected
    assert not jobs(fake, ReadSlice)
    listed = 150 - sum(map(len, jobs(fake, ScoreSlice)))
    assert 0 < listed <= before
    fake.done.clear()
    fake.workers.clear()
    assert run(source, out, Ray()) == expected
    assert not fake.workers


def test_dead_workers_leave_no_part_behind(fake: FakeRay, tmp_path: Path) -> None:
    """A worker may write its parts and die before anybody knows."""
    source, out = write(tmp_path / "in.jsonl", make_rows(150)), tmp_path / "ray"
    expected = run(source, tmp_path / "serial", "serial")
    deaths = {"read": 2, "score": 3}

    def dies(_worker: Any, job: Any) -> bool:
        kind = "read" if isinstance(job, ReadSlice) else "score"
        deaths[kind] -= 1
        if deaths[kind] != 0:
            return False
        deaths[kind] = 1000
        for result in getattr(job, "results", ()):
            Store(out).write_part(result.metric.place, Run.open(Store(out)).records(["record"]), {"seconds": 1.0})
        return True

    fake.dies = dies
    found, (notes, *rest) = run(source, out, Ray(), shard_size=50)
    assert (found, rest) == (expected[0], list(expected[1][1:]))
    assert len(notes) == 1
    assert "2 workers of the cluster died and lost nothing" in notes[0]
    manifest = Store(out).read_manifest()
    assert manifest
    assert sorted(manifest.list_parts()) == sorted(str(path.relative_to(out)) for path in out.rglob("*.parquet"))


def test_parts_are_listed_without_waiting_for_the_next_result(
    fake: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each slice waits until all that was scored before it is listed."""
    monkeypatch.setattr("metrist.run.cluster.SAVE_SECONDS", 0.2)
    fake.cpus, fake.gpus = (1.0,), (0.0,)
    source, out = write(tmp_path / "in.jsonl", make_rows(40)), tmp_path / "ray"
    listed = list[int]()

    def wait_for_listing(_worker: Any, job: Any) -> bool:
        if isinstance(job, ScoreSlice):
            done, ends = sum(map(len, jobs(fake, ScoreSlice))), time.monotonic() + 10
            while (count := count_scores(out, "chrf")) < done and time.monotonic() < ends:
                time.sleep(0.02)
            listed.append(done - count)
        return False

    fake.dies = wait_for_listing
    score(source, METRICS, out=out, executor=Ray(), shard_size=20)
    assert len(listed) > 2
    assert not any(listed)


def test_parts_are_listed_without_waiting_for_slower_slices(
    fake: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first slice waits until others are listed; in the end the parts are in the order of the records."""
    monkeypatch.setattr("metrist.run.cluster.SAVE_SECONDS", 0.0)
    source, out = write(tmp_path / "in.jsonl", make_rows(40)), tmp_path / "ray"

    def wait_for_others(_worker: Any, job: Any) -> bool:
        ends = time.monotonic() + 10
        while isinstance(job, ScoreSlice) and not job.start and not count_scores(out, "chrf"):
            time.sleep(0.02)
            assert time.monotonic() < ends
        return False

    fake.dies = wait_for_others
    score(source, METRICS, out=out, executor=Ray(), shard_size=10)
    assert contents(out) == run(source, tmp_path / "serial", "serial")[0]
    stored = Run.open(Store(out))
    for metric in stored.manifest.metrics:
        parts = [stored.read_part(metric.place, part, ["record"]) for part in metric.versions[0].parts]
        assert pa.concat_tables(parts)["record"].to_pylist() == stored.records()["record"].to_pylist()


def test_slices_that_are_refused_leave_the_parts_that_the_run_lists(fake: FakeRay, tmp_path: Path) -> None:
    """Slices of an unchanged beginning are the very parts that the run has."""
    source, out = write(tmp_path / "in.jsonl", make_rows()), tmp_path / "run"
    score(source, METRICS, out=out, executor=Ray())
    before, files = contents(out), sorted(out.rglob("*"))
    write(source, [*make_rows(), '{"item": "new", "system": '])
    with raises_code(MetristError, "invalid_row", "in.jsonl:61"):
        score(source, METRICS, out=out, executor=Ray())
    assert jobs(fake, ReadSlice)
    assert contents(out) == before
    assert sorted(out.rglob("*")) == files


def test_workers_that_do_not_see_the_folder_are_sent_the_records(fake: FakeRay, tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", make_rows())
    expected = run(source, tmp_path / "serial", "serial")
    fake.shares_folder = False
    found, (notes, *rest) = run(source, tmp_path / "ray", Ray())
    assert (found, rest) == (expected[0], list(expected[1][1:]))
    assert notes == ["workers do not see run and were sent the records: a shared folder or a URL is faster"]
    assert not jobs(fake, ReadSlice)
    assert not jobs(fake, ScoreSlice)


@pytest.mark.parametrize("names", [["a.jsonl"], ["b.parquet", "c.csv"]])
def test_inputs_and_runs_may_be_urls(
    names: list[str], fake: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METRIST_REMOTE", str(tmp_path / "copies"))
    sources, out = [tmp_path / name for name in names], tmp_path / "ray"
    for n, source in enumerate(sources):
        FORMATS[source.name](source, [{**row, "system": f"{row['system']} {n}"} for row in make_rows(90)])

    def lose_copy(_worker: Any, job: Any) -> bool:
        """Other nodes have no copy of the input."""
        if isinstance(job, ReadSlice):
            Path(job.slice.path).unlink(missing_ok=True)
        return False

    fake.dies = lose_copy
    urls = [f"file://{source}" for source in sources]
    results = score(urls, METRICS, out=f"file://{out}", executor=Ray(), shard_size=20)
    assert len(jobs(fake, ReadSlice)) >= 3
    assert sum(map(len, jobs(fake, ScoreSlice))) == 90 * len(names)
    same = score(sources, METRICS, executor="serial")
    assert [list(results[metric].values) for metric in METRICS] == [list(same[metric].values) for metric in METRICS]
    assert len(contents(out)["records"]) == 90 * len(names)


@pytest.mark.parametrize("options", [{"texts": False}, {}], ids=["no texts", "rows in memory"])
def test_records_that_are_not_in_the_folder_are_sent(options: dict[str, Any], fake: FakeRay, tmp_path: Path) -> None:
    source: Any = write(tmp_path / "in.jsonl", make_rows()) if options else make_rows()
    check_against_serial(source, tmp_path, **options)
    assert not jobs(fake, ScoreSlice)


class Model(Metric):
    """A model, of which each worker needs two CPUs."""

    resident: ClassVar[bool] = True
    cpus: ClassVar[float | None] = 2

    def score(self, shard: Any) -> Scores:
        return Scores.of(Score(value=float(len(r.output)), usage={"tokens": len(r.output)}) for r in shard.records)


def test_models_have_workers_of_their_own_and_small_slices(
    fake: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metrist.run.cluster.SLICE_BYTES", (10_000, 10_000))
    fake.cpus = (2.0, 2.0)
    source = write(tmp_path / "in.jsonl", make_rows(300))
    results = score(source, ["chrf", Model()], out=tmp_path / "ray", executor=Ray())
    same = score(source, ["chrf", Model()], out=tmp_path / "serial", executor="serial")
    for metric in results.metrics:
        assert list(results[metric.label].values) == list(same[metric.label].values)
    text = Model().text
    assert dict(results.scores[text].usages) == dict(same.scores[text].usages)
    model = [job for job in jobs(fake, ScoreSlice) if job.results[0].metric.text != "chrf"]
    assert len(model[0]) <= 8 < max(map(len, model))
    assert {worker.resources for worker in fake.workers} == {(1, 0), (2, 0)}


def test_resources_may_name_a_metric_of_another_phase(fake: FakeRay, tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", make_rows())
    executor = Ray(resources={Model().text: Resources(1)})
    score(source, ["chrf", Model()], out=tmp_path / "ray", executor=executor)
    assert {worker.resources for worker in fake.workers} == {(1, 0)}


def test_the_size_of_slices_follows_their_seconds() -> None:
    size = SliceSize(rows=10, limit=1000)
    size.measure(10, 0.01)
    assert size.rows == 40  # At most four times as many.
    size.measure(40, 4.0)
    assert size.rows == 25
    size.measure(25, 100.0)
    assert size.rows == 1
    size.measure(1, 0.0001)
    assert size.rows == 1  # One fast slice after a slow one says little.
    size.measure(1, 0.0001)
    assert size.rows == 4
    fixed = SliceSize(rows=10)
    fixed.measure(10, 100.0)
    assert fixed.rows == 10


def test_slices_end_with_an_item() -> None:
    items = np.array([f"i{n // 4}" for n in range(30)])
    rows = np.arange(30)
    assert [list(map(int, part)) for part in SliceSize(rows=10).cut(rows, items)] == [
        list(range(8)),
        list(range(8, 16)),
        list(range(16, 30)),
    ]
    assert all(isinstance(part, range) for part in SliceSize(rows=10).cut(rows, items))
    same = np.array(["i"] * 30)
    assert [len(part) for part in SliceSize(rows=10).cut(rows, same)] == [10, 10, 10]
    missing = np.array([0, 5, 6, 7, 20])
    assert [list(map(int, part)) for part in SliceSize(rows=3).cut(missing, items)] == [[0, 5, 6], [7, 20]]


@pytest.mark.parametrize("name", ["a.jsonl", "b.parquet"])
def test_a_file_that_changes_meanwhile_is_read_by_the_command(name: str, fake: FakeRay, tmp_path: Path) -> None:
    source = tmp_path / name
    FORMATS[name](source, make_rows(200))
    changed = tmp_path / f"changed {name}"
    FORMATS[name](changed, make_rows(200, output="w1 w2"))

    def change(_worker: Any, job: Any) -> bool:
        if isinstance(job, ReadSlice) and getattr(job.slice, "first_row", 0):
            with suppress(FileNotFoundError):
                changed.rename(source)
        return False

    fake.dies = change
    results = score(source, METRICS, out=tmp_path / "ray", executor=Ray())
    assert list(results["chrf"].values) == list(score(source, ["chrf"])["chrf"].values)
