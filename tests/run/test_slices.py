"""Runs whose workers read slices of the inputs and write the parts: the same as serial runs, whatever the input."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from fake_ray import FakeRay

from metrist.errors import MetristError
from metrist.metrics.base import Metric
from metrist.run import score
from metrist.run.executors import Ray, Resources
from metrist.run.run import Run
from metrist.run.slices import ReadSlice, ScoreSlice, SliceSize
from metrist.run.store import Store
from metrist.scores import Score, Scores
from run_contents import contents

METRICS = ["rougeL", "chrf"]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    """A cluster of two nodes; inputs are read in slices of about 1,000 bytes."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    monkeypatch.setattr("metrist.run.ingest.SLICE_BYTES", (1000, 1000))
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
        return type(error), str(error).replace(str(out), "run")
    notes = [note.replace(str(out), "run") for note in results.notes]
    return contents(out), (notes, list(results.items), [list(results[metric].values) for metric in METRICS])


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
@pytest.mark.parametrize("skip_bad", [False, True])
def test_any_input_is_read_as_by_one_process(name: str, skip_bad: bool, fake: FakeRay, tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", INPUTS[name])
    expected = run(source, tmp_path / "serial", "serial", skip_bad=skip_bad)
    assert run(source, tmp_path / "ray", Ray(), skip_bad=skip_bad) == expected
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
    source = write(tmp_path / "in.jsonl", make_rows(verdict="w1 w2"))
    expected = run(source, tmp_path / "serial", "serial", **options)
    assert run(source, tmp_path / "ray", Ray(), **options) == expected


@pytest.mark.parametrize("more", [{}, {"source": "w1"}], ids=["", "sources"])
def test_several_files_are_read_in_slices(more: dict[str, str], fake: FakeRay, tmp_path: Path) -> None:
    rows = [{k: v for k, v in row.items() if k != "system"} for row in make_rows(180, **more) if row["system"] == "s1"]
    sources = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        other = [{**row, "output": f"{row['output']} {folder}", **more} for row in rows]
        sources.append(write(tmp_path / folder / "in.jsonl", other))
    expected = run(sources, tmp_path / "serial", "serial")
    assert run(sources, tmp_path / "ray", Ray()) == expected
    assert jobs(fake, ReadSlice)


def test_files_of_other_formats_are_read_by_the_command(fake: FakeRay, tmp_path: Path) -> None:
    source = tmp_path / "in.csv"
    rows = [f"i{n},s,w{n} w{n + 1},w3 w4 w{n}" for n in range(100)]
    source.write_text("item,system,output,reference\n" + "\n".join(rows))
    expected = run(source, tmp_path / "serial", "serial")
    assert run(source, tmp_path / "ray", Ray()) == expected
    assert not jobs(fake, ReadSlice)
    assert jobs(fake, ScoreSlice)


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
    source, out = write(tmp_path / "in.jsonl", make_rows(300)), tmp_path / "ray"
    expected = run(source, tmp_path / "serial", "serial")
    fake.dies = lambda _worker, job: isinstance(job, ScoreSlice) and len(jobs(fake, ScoreSlice)) > 8
    with pytest.raises(MetristError, match="workers of the cluster died"):
        score(source, METRICS, out=out, executor=Ray(), shard_size=10)
    before = sum(map(len, jobs(fake, ScoreSlice)))
    assert 0 < before < 300
    fake.dies = lambda _worker, _job: False
    fake.done.clear()
    assert run(source, out, Ray(), shard_size=10) == expected
    assert not jobs(fake, ReadSlice)
    listed = 300 - sum(map(len, jobs(fake, ScoreSlice)))
    assert 0 < listed <= before
    fake.done.clear()
    fake.workers.clear()
    assert run(source, out, Ray()) == expected
    assert not fake.workers


def test_dead_workers_leave_no_part_behind(fake: FakeRay, tmp_path: Path) -> None:
    """A worker may write its parts and die before anybody knows."""
    source, out = write(tmp_path / "in.jsonl", make_rows(300)), tmp_path / "ray"
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


def test_slices_that_are_refused_leave_the_parts_that_the_run_lists(fake: FakeRay, tmp_path: Path) -> None:
    """Slices of an unchanged beginning are the very parts that the run has."""
    source, out = write(tmp_path / "in.jsonl", make_rows()), tmp_path / "run"
    score(source, METRICS, out=out, executor=Ray())
    before, files = contents(out), sorted(out.rglob("*"))
    write(source, [*make_rows(), '{"item": "new", "system": '])
    with pytest.raises(MetristError, match=r"in\.jsonl:61: not valid JSON"):
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


def test_inputs_and_runs_may_be_urls(fake: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METRIST_REMOTE", str(tmp_path / "copies"))
    source, out = write(tmp_path / "in.jsonl", make_rows(200)), tmp_path / "ray"

    def lose_copy(_worker: Any, job: Any) -> bool:
        """Other nodes have no copy of the input."""
        if isinstance(job, ReadSlice):
            Path(job.slice.path).unlink(missing_ok=True)
        return False

    fake.dies = lose_copy
    results = score(f"file://{source}", METRICS, out=f"file://{out}", executor=Ray(), shard_size=20)
    assert len(jobs(fake, ReadSlice)) > 10
    assert sum(map(len, jobs(fake, ScoreSlice))) == 200
    same = score(source, METRICS, executor="serial")
    assert [list(results[metric].values) for metric in METRICS] == [list(same[metric].values) for metric in METRICS]
    assert len(contents(out)["records"]) == 200


@pytest.mark.parametrize("options", [{"texts": False}, {}], ids=["no texts", "rows in memory"])
def test_records_that_are_not_in_the_folder_are_sent(options: dict[str, Any], fake: FakeRay, tmp_path: Path) -> None:
    source: Any = write(tmp_path / "in.jsonl", make_rows()) if options else make_rows()
    expected = run(source, tmp_path / "serial", "serial", **options)
    assert run(source, tmp_path / "ray", Ray(), **options) == expected
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
    monkeypatch.setattr("metrist.run.ingest.SLICE_BYTES", (10_000, 10_000))
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


def test_a_file_that_changes_meanwhile_is_read_by_the_command(fake: FakeRay, tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", make_rows(200))

    def change(_worker: Any, job: Any) -> bool:
        if isinstance(job, ReadSlice) and job.slice.start:
            write(source, make_rows(200, output="w1 w2"))
        return False

    fake.dies = change
    results = score(source, METRICS, out=tmp_path / "ray", executor=Ray())
    assert list(results["chrf"].values) == list(score(source, ["chrf"])["chrf"].values)
