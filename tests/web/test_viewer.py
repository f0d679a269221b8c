"""The viewer's runs, queries and API, without a browser."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import numpy as np
import pytest

import metrist
from metrist.errors import RunError
from metrist.web.security import Access
from metrist.web.server import create_app
from metrist.web.viewed_run import ViewedRun, open_view
from metrist.web.viewer import Collection, Query, Viewer
from viewer_runs import ATTACK, LONG_LINE, make_run, write_records
from web_server import RunningServer, run_server

SECOND = f"second {ATTACK}"
CRITIC = "viewer_runs.Critic"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder)
    make_run(folder, "later", version=" quietly")
    return folder


@pytest.fixture(scope="module")
def collection(folder: Path) -> Iterator[Collection]:
    with closing(Collection([open_view(folder / name) for name in ("run", "later")])) as collection:
        yield collection


@pytest.fixture(scope="module")
def picks(folder: Path) -> Path:
    return folder / "picked.jsonl"


@pytest.fixture(scope="module")
def server(collection: Collection, picks: Path) -> Iterator[RunningServer]:
    with run_server(create_app(Viewer(collection=collection, picks=picks).routes(), Access())) as running:
        yield running


def select(collection: Collection, **parameters: str) -> list[tuple[str, str]]:
    run = collection.runs[0]
    rows = collection.select(Query.parse(parameters.items()))
    return [(run.items[row].split()[0], run.systems[row].split()[0]) for row in rows.tolist()]


# ---- The run


def test_a_run_is_shown_with_all_that_it_holds(collection: Collection) -> None:
    run = collection.runs[0]
    assert len(run) == 12
    assert list(run.columns) == ["chrf", CRITIC, "people: fluency", "characters"]
    row = next(row for row in run.rows_of("bad words") if run.systems[row] == "first")
    assert run.read_texts([row], "output") == {row: {"output": "A bad 😀 choice, a bad end."}}
    assert run.numbers["characters"][row] == len("A bad 😀 choice, a bad end.")
    assert run.numbers["people: fluency"][row] == 2.5
    card, facts, readings = run.read_card(row)
    assert [error.start for error in card.scores[CRITIC].errors] == [2, 18]
    # The emoji before the second one is two characters for JavaScript.
    assert [error["start"] for error in card.for_script()["errors"]] == [2, 19]
    assert card.reasons == {CRITIC: f"Because {ATTACK}"}
    (reading,) = readings[CRITIC]
    assert reading["units"][1][:2] == [" bad", -3.0]
    assert facts.record is not None
    assert facts.ratings == {"fluency": [2, 3]}
    assert facts.record.extra == {"origin": {"file": ATTACK}}
    assert facts.record.references[1] == "Another reference"


def test_picks_stay_when_a_run_grows(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    with closing(open_view(path)) as run:
        run.picks.change([("plain", "first")], picked=True)
    metrist.score(tmp_path / "run.jsonl", ["rougeL"], out=path, executor="serial")
    with closing(open_view(path)) as run:
        assert "rougeL" in run.columns
        assert [run.key(row) for row in run.list_picked()] == [("plain", "first")]
    (picks,) = (Path(os.environ["XDG_CACHE_HOME"]) / "metrist" / "view").glob("*.json")
    assert picks.parent.stat().st_mode & 0o077 == 0
    picks.write_bytes(b"no JSON at all")
    with closing(open_view(path)) as run:
        assert run.list_picked() == []


def test_a_run_without_its_texts_is_shown_without_them(tmp_path: Path) -> None:
    write_records(tmp_path / "in.jsonl")
    path = tmp_path / "run"
    metrist.score(tmp_path / "in.jsonl", ["chrf"], out=path, executor="serial", texts=False)
    with closing(open_view(path)) as run:
        assert run.read_texts([0], "output") == {0: {"output": "The cat sat on the mat."}}
    os.rename(tmp_path / "in.jsonl", tmp_path / "elsewhere.jsonl")
    notes: list[str] = []
    with closing(open_view(path, note=notes.append)) as run:
        assert run.read_texts([0], "output") == {0: {}}
        assert not run.search("cat", "output").any()
    assert any("texts are not shown" in note for note in notes)
    with closing(open_view(path, [str(tmp_path / "elsewhere.jsonl")])) as run:
        assert run.read_texts([0], "output") == {0: {"output": "The cat sat on the mat."}}
        assert run.search("cat", "output").sum() == 2


def test_a_flat_file_is_shown_with_named_texts(tmp_path: Path) -> None:
    rows = write_records(tmp_path / "in.jsonl")
    metrist.score(tmp_path / "in.jsonl", ["chrf"], executor="serial").write(tmp_path / "flat.jsonl")
    with closing(open_view(tmp_path / "flat.jsonl", [str(tmp_path / "in.jsonl")])) as run:
        assert run.read_texts([1], "output") == {1: {"output": rows[1]["output"]}}
        assert run.numbers["people: fluency"][0] == 2.0


def test_lone_surrogates_survive(tmp_path: Path) -> None:
    rows = [{"item": "a\ud800", "system": "s\udfff", "output": "lone \ud800", "references": ["r"]}]
    (tmp_path / "in.jsonl").write_text(json.dumps(rows[0]), encoding="utf-8")
    metrist.score(tmp_path / "in.jsonl", ["chrf"], out=tmp_path / "run", executor="serial")
    run = open_view(tmp_path / "run")
    run.picks.change([("a\ud800", "s\udfff")], picked=True)
    viewer = Viewer(collection=Collection([run]), picks=tmp_path / "p.jsonl")
    with closing(run), run_server(create_app(viewer.routes(), Access())) as server:
        (row,) = server.ask("/api/outputs").json()["outputs"]
        assert (row["item"], row["preview"], row["picked"]) == ("a\ud800", "lone \ud800", True)
        assert json.loads(server.ask("/api/export").text)["output"] == "lone \ud800"


# ---- Queries


def test_filters(collection: Collection) -> None:
    assert len(select(collection)) == 12
    assert len(select(collection, system="first")) == 6
    assert len(collection.select(Query.parse([("system", "first"), ("system", SECOND)]))) == 12
    assert len(select(collection, task="translation")) == 6
    assert select(collection, errors="major") == [("bad", "first")]
    assert select(collection, errors="minor") == [("plain", "first")]
    assert len(select(collection, errors="none")) == 9
    assert select(collection, errors="unchecked") == [("failed", "first")]
    assert select(collection, aspect="fact") == [("plain", "first")]
    assert select(collection, failed=CRITIC) == [("failed", "first")]
    assert select(collection, **{f"max.{CRITIC}": "-1"}) == [("bad", "first")]
    assert select(collection, **{"min.characters": "1000"}) == [("long", "first")]


@pytest.mark.parametrize("is_prepared", [False, True])
def test_searches(collection: Collection, is_prepared: bool) -> None:
    for run in collection.runs if is_prepared else ():
        run.prepare()
    assert select(collection, q="CAT SAT", sort="input") == [("plain", "first"), ("plain", "second")]
    assert select(collection, q="<script>") == [("attack", "first")]
    assert select(collection, q="\x00") == [("override", "second")]
    assert len(select(collection, q="source of plain", **{"in": "context"})) == 2
    assert select(collection, q="will not judge", **{"in": "reason"}) == [("failed", "first")]
    assert len(select(collection, q="bad w", **{"in": "item"})) == 2
    assert select(collection, q="mat.A bad") == []  # Not across the end of a text.


def test_sorting_puts_outputs_without_a_number_last(collection: Collection) -> None:
    values = collection.runs[0].numbers[CRITIC]
    for descending in ("", "1"):
        rows = collection.select(Query.parse([("sort", CRITIC), ("descending", descending)]))
        ordered = values[rows][:-1]
        assert np.isnan(values[rows][-1])
        assert (np.diff(-ordered if descending else ordered) >= 0).all()
    assert len(select(collection, sort="disagreement", descending="1")) == 12


def test_the_worst_by_the_first_metric_come_first(collection: Collection) -> None:
    values = collection.runs[0].numbers["chrf"]
    rows = collection.select(Query())
    np.testing.assert_array_equal(values[rows], np.sort(values))
    assert collection.choose_order(Query()) == ("chrf", False)
    assert collection.choose_order(Query(versus="run:1")) == ("chrf change", False)
    assert collection.choose_order(Query(sort="input", descending=True)) == ("input", True)
    page = collection.list_page(Query())
    assert (page["sort"], page["descending"]) == ("chrf", False)


def test_the_highest_come_first_where_lower_is_better(tmp_path: Path) -> None:
    write_records(tmp_path / "in.jsonl")
    metrist.score(tmp_path / "in.jsonl", ["length", "ter"], out=tmp_path / "run", executor="serial")
    metrist.score(tmp_path / "in.jsonl", ["length"], out=tmp_path / "plain", executor="serial", texts=False)
    with closing(Collection([open_view(tmp_path / name) for name in ("run", "plain")])) as collection:
        assert collection.choose_order(Query()) == ("ter", True)
        assert collection.choose_order(Query(run=1)) == ("people: fluency", False)


def test_the_list_says_what_was_asked_and_what_was_not_checked(collection: Collection) -> None:
    rows = collection.list_page(Query(sort="input"))["outputs"]
    assert rows[0]["instruction"] == "Shorten it."
    assert rows[0]["source"] == f"Source of plain. {ATTACK}"
    failures = {(row["item"], row["system"]): row["failures"] for row in rows if row["failures"]}
    assert failures == {("failed", "first"): {CRITIC: f"will not judge {ATTACK}"}}
    columns = collection.runs[0].columns
    assert [name for name, column in columns.items() if column.finds_errors] == [CRITIC]


def test_two_runs_are_compared_by_item_and_system(collection: Collection) -> None:
    assert select(collection, vs="run:1", differing="1") == [("plain", "second")]
    query = Query(versus="run:1", sort="chrf change", descending=True)
    first, *_ = collection.list_page(query)["outputs"]
    assert (first["item"], first["system"]) == ("plain", SECOND)
    own, theirs = (run.numbers["chrf"][first["row"]] for run in collection.runs)
    assert first["changes"][0] == pytest.approx(own - theirs)


def test_two_systems_are_compared_by_item(collection: Collection) -> None:
    page = collection.list_page(Query.parse([("vs", f"system:{SECOND}")]))
    assert {row["system"] for row in page["outputs"]} == {"first"}
    run = collection.runs[0]
    bad = next(row for row in page["outputs"] if row["item"] == "bad words")
    assert bad["changes"][1] == -4.0
    assert run.systems[bad["row"]] == "first"


def test_runs_with_one_system_each_are_compared_whatever_their_names(tmp_path: Path) -> None:
    runs: list[ViewedRun] = []
    for name, text in (("v1", "one two"), ("v2", "one three")):
        row = {"item": "a", "system": name, "output": text, "references": ["one two"]}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row), encoding="utf-8")
        metrist.score(tmp_path / f"{name}.jsonl", ["chrf"], out=tmp_path / name, executor="serial")
        runs.append(open_view(tmp_path / name))
    with closing(Collection(runs)) as collection:
        assert len(select(collection, vs="run:1", differing="1")) == 1


@pytest.mark.parametrize(
    "query",
    [
        *("run=7", "run=x", "run=-1", "run=1e999", "system=nobody", "in=etc", "sort=nothing", "min.nothing=1"),
        *("min.chrf=nan", "vs=run:9", "vs=file:/etc", "vs=run:²", "failed=nobody", "errors=huge", "aspect=no"),
        *("task=nothing", f"q={'x' * 1001}"),
    ],
)
def test_queries_that_make_no_sense_are_errors(collection: Collection, query: str) -> None:
    with pytest.raises(RunError):
        collection.list_page(Query.parse(parse_qsl(query)))


def test_pages(collection: Collection) -> None:
    page = collection.list_page(Query.parse([("size", "25"), ("page", "99")]))
    assert (page["total"], page["page"], page["pages"]) == (12, 1, 1)
    assert Query.parse([("size", "1000000"), ("page", "-3")]).size == 50


def test_a_view_can_be_closed_while_searches_are_prepared(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seconds in (0.0, 60.0):
        monkeypatch.setattr("metrist.web.viewer._PREPARE_SECONDS", seconds)
        with closing(Collection([open_view(folder / "run")])) as collection:
            collection.prepare()
        (preparing,) = [thread for thread in [collection._preparing] if thread]
        assert not preparing.is_alive()


# ---- The API


def test_the_api_answers(server: RunningServer) -> None:
    runs = server.ask("/api/runs").json()["runs"]
    assert [run["size"] for run in runs] == [12, 12]
    assert [column["higher"] for column in runs[0]["columns"]] == [True, True, True, None]
    query = urlencode({"item": "plain", "of": SECOND, "vs": "run:1", "sort": "input"})
    found = server.ask(f"/api/output?{query}").json()
    assert found["output"]["output"] == "The cat sat there."
    assert found["other"]["output"] == "The cat sat there quietly."
    assert [sibling["system"] for sibling in found["siblings"]] == ["first"]
    assert (found["position"], found["before"]["item"], found["after"]["item"]) == (2, "plain", "bad words")
    long = server.ask(f"/api/output?{urlencode({'item': 'long', 'of': 'first'})}").json()
    assert long["output"]["output"] == LONG_LINE


@pytest.mark.parametrize(
    ("path", "status"),
    [
        *(("/api/output", 404), ("/api/output?item=plain&of=nobody", 404), ("/api/output?item=../../etc/passwd", 404)),
        *(("/api/outputs?run=9", 400), ("/api/outputs?sort=%3Cscript%3E", 400), ("/api/export?run=9", 400)),
        *(("/api/outputs?q=%00%ff", 200), ("/api/export?run=0/../1", 400), ("/api/picks", 405)),
    ],
)
def test_wrong_requests_get_errors(server: RunningServer, path: str, status: int) -> None:
    assert server.ask(path).status == status


@pytest.mark.parametrize(
    "body",
    [
        *({"run": "0", "keys": []}, {"keys": "all"}, {"keys": [["plain"]]}, {"keys": [[1, 2]]}, {"run": True}),
        *({"keys": [["no", "such"]]}, {"query": "sort=nothing"}, {"run": 9, "keys": []}, [1], "text", None),
    ],
)
def test_wrong_picks_are_refused(server: RunningServer, body: Any) -> None:
    assert server.post("/api/picks", body).status in (400, 404)


def test_nested_json_is_refused(server: RunningServer) -> None:
    body = b"[" * 100_000
    assert server.ask("/api/picks", method="POST", body=body, headers={"Origin": server.url}).status == 400


def test_picked_outputs_are_exported_as_records(server: RunningServer, picks: Path, tmp_path: Path) -> None:
    assert server.post("/api/annotation", {"run": 0}).status == 400
    assert not picks.exists()
    server.post("/api/picks", {"query": "q=cat+sat", "picked": True})
    server.post("/api/picks", {"keys": [["bad words", "first"]], "picked": True})
    assert server.post("/api/picks", {"keys": [["plain", SECOND]], "picked": False}).json() == {"picked": 2}
    exported = server.ask("/api/export")
    assert "attachment" in exported.headers["content-disposition"]
    (tmp_path / "exported.jsonl").write_bytes(exported.body)
    reader = metrist.read_records(tmp_path / "exported.jsonl")
    entries = list(reader.entries())
    records = [record for entry in entries for record in entry.records]
    assert [(record.item, record.system) for record in records] == [("plain", "first"), ("bad words", "first")]
    assert records[1].output == "A bad 😀 choice, a bad end."
    assert records[1].references == ("A bad 😀 choice, a bad end.", "Another reference")
    assert records[1].extra == {"origin": {"file": ATTACK}}
    assert [rating.value for rating in entries[0].ratings] == [1, 3]
    assert entries[0].errors[0].error.text == "cat"
    assert {score.metric for score in entries[1].scores} == {"chrf", CRITIC}
    assert [row["picked"] for row in server.ask("/api/outputs?picked=1").json()["outputs"]] == [True, True]
    answer = server.post("/api/annotation", {"run": 0}).json()
    assert answer["count"] == 2
    assert picks.read_bytes() == exported.body
