"""SQL over a run: the views, and what a query may not do."""

from __future__ import annotations

import glob
import io
import re
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import metrist
from error_codes import raises_code
from metrist import Score
from metrist.errors import RunError
from metrist.metrics.base import Metric
from metrist.metrics.comparator import Comparator, Judgment
from metrist.records import Pair
from metrist.run.query import VIEWS, lock, open_database
from metrist.run.run import Run, open_run
from run_contents import write_rows


class Flaky(Metric):
    """Fails on outputs with a `?` until `repaired`, in a way that is tried again."""

    name = "flaky"
    higher_is_better = True
    repaired = False

    def score_record(self, record: metrist.Record) -> Score | float:
        if "?" in record.output and not Flaky.repaired:
            return Score.failed("no answer", "transient")
        return float(len(record.output))


class Longer(Comparator):
    """Prefers the longer output."""

    name = "longer"

    def prefer(self, pairs: Sequence[Pair]) -> list[Judgment]:
        return [
            Judgment(preference="first" if len(pair.first.output) > len(pair.second.output) else "second")
            for pair in pairs
        ]


def row(item: int, system: str, output: str, **more: Any) -> dict[str, Any]:
    return {"item": str(item), "system": system, "output": output, "references": ["a b"], **more}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    rows = [
        row(item, system, f"a {'b' * item}", ratings={"fluency": item}, errors=[{"aspect": "style", "text": "a"}])
        for item in range(1, 4)
        for system in ("x", "y")
    ]
    data = write_rows(tmp_path / "in.jsonl", rows)
    metrist.score(data, ["rouge1", "short=bleu(lowercase=True)"], out=tmp_path / "run", executor="serial")
    return open_run(tmp_path / "run")


def ask(run: Run, sql: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in run.query(sql).to_pylist()]


def test_views_hold_what_the_tables_hold(run: Run) -> None:
    results = metrist.load(run.store.path)
    assert ask(run, "SELECT count(*), min(output) FROM records") == [(6, "a b")]
    expected = sorted(
        (item, system, *(float(results[label].values[n]) for label in ("rouge1", "short")))
        for n, (item, system) in enumerate(zip(results.items, results.systems, strict=True))
    )
    assert ask(run, "SELECT item, system, rouge1, short FROM wide ORDER BY ALL") == expected
    means = ask(run, "SELECT metric, avg(value) FROM scores WHERE system = 'x' GROUP BY metric ORDER BY metric")
    assert [label for label, _ in means] == ["rouge1", "short"]
    assert ask(run, "SELECT aspect, sum(value) FROM ratings GROUP BY ALL") == [("fluency", 12)]
    assert ask(run, "SELECT DISTINCT aspect FROM errors") == [("style",)]
    assert ask(run, "SELECT count(*) FROM preferences") == ask(run, "SELECT count(*) FROM pairs") == [(0,)]
    if not duckdb.__version__.startswith("1."):  # It runs PIVOT as two statements.
        pivot = ask(run, "PIVOT scores ON metric USING avg(value) GROUP BY system ORDER BY system")
        assert pivot == ask(run, "SELECT system, avg(rouge1), avg(short) FROM wide GROUP BY system ORDER BY system")
    assert len(ask(run, "DESCRIBE wide")) == 5
    assert isinstance(run.query("EXPLAIN ANALYZE SELECT * FROM scores"), pa.Table)


def test_each_record_has_one_score_by_a_metric(tmp_path: Path) -> None:
    """The last that succeeded, whatever runs, retries and inputs there were."""
    Flaky.repaired = False
    first = write_rows(tmp_path / "first.jsonl", [row(1, "x", "one"), row(1, "y", "what?"), row(2, "x", "who?")])
    second = write_rows(tmp_path / "second.jsonl", [row(1, "x", "one"), row(2, "y", "three")])
    folder = tmp_path / "run"
    metrist.score(first, [Flaky()], out=folder, executor="serial")
    metrist.score(second, ["rouge1"], out=folder, executor="serial")
    run = open_run(folder)
    assert ask(run, "SELECT count(*), count(DISTINCT (item, system)) FROM records") == [(4, 4)]
    pending = [("1", "x", 3), ("1", "y", None), ("2", "x", None)]
    assert ask(run, "SELECT item, system, value FROM scores WHERE metric = 'flaky' ORDER BY ALL") == pending
    Flaky.repaired = True
    metrist.score(first, [Flaky()], out=folder, executor="serial")
    run = open_run(folder)
    results = metrist.load(folder, [Flaky()])
    for label in ("flaky", "rouge1"):
        values = {
            key: value
            for *key_, value in zip(results.items, results.systems, results[label].values, strict=True)
            for key in (tuple(key_),)
            if value == value
        }
        found = ask(run, f"SELECT item, system, value FROM scores WHERE metric = '{label}' AND value IS NOT NULL")
        assert {(item, system): value for item, system, value in found} == values
        assert len(found) == len(values)
    assert ask(run, "SELECT count(*), count(flaky), count(rouge1) FROM wide") == [(4, 3, 2)]


def test_preferences_by_comparators_are_pairs(tmp_path: Path) -> None:
    data = write_rows(tmp_path / "in.jsonl", [row(1, "x", "a b"), row(1, "y", "c")])
    metrist.prefer(data, Longer(), out=tmp_path / "run")
    run = open_run(tmp_path / "run")
    assert ask(run, "SELECT item, first, second, choice FROM pairs") == [("1", "x", "y", "first")]


@pytest.mark.parametrize(
    "sql",
    [
        "COPY (SELECT 1) TO '{folder}/out.csv'",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '{folder}/out.csv'",
        "/* x */ EXPLAIN /* y */ ANALYZE COPY (SELECT 1) TO '{folder}/out.csv'",
        "COPY (SELECT 1 AS a) TO '{part}' (FORMAT parquet)",
        "SELECT * FROM read_text('{folder}/in.jsonl')",
        "SELECT * FROM '{folder}/in.jsonl'",
        "SELECT * FROM read_parquet('{folder}/other.parquet')",
        "SELECT * FROM glob('{folder}/*')",
        "WITH x AS (INSERT INTO records VALUES (1) RETURNING *) FROM x",
        "ATTACH '{folder}/db.duckdb'",
        "SET threads = 1",
        "INSTALL httpfs",
        "LOAD httpfs",
        "PRAGMA memory_limit = '1GB'",
        "CREATE TABLE t (a INT)",
        "SELECT 1; SELECT 2",
        "SELECT * FROM run",
        "SELEC 1",
        "",
    ],
)
def test_a_query_reads_only_the_run(run: Run, tmp_path: Path, sql: str) -> None:
    (part,) = glob.glob(f"{tmp_path}/run/records/*.parquet")
    shutil.copy(part, tmp_path / "other.parquet")
    before = sorted(path.name for path in tmp_path.rglob("*"))
    with pytest.raises(RunError):
        run.query(sql.format(folder=tmp_path, part=part))
    assert sorted(path.name for path in tmp_path.rglob("*")) == before
    assert ask(run, "SELECT count(*) FROM records") == [(6,)]


def test_what_does_not_fit_into_memory_goes_to_a_private_folder(run: Run) -> None:
    with closing(open_database(run, memory_limit="60MB")) as connection:
        lock(connection, run)
        ((folder,),) = connection.execute("SELECT current_setting('temp_directory')").fetchall()
        assert Path(folder).parent == Path(tempfile.gettempdir())
        assert Path(folder).stat().st_mode & 0o077 == 0
        count = "SELECT count(DISTINCT repeat('x', 40) || i) FROM range(1500000) r(i)"
        assert connection.execute(count).fetchall() == [(1500000,)]
    del connection
    assert not Path(folder).exists()


def test_a_run_without_texts_has_views_without_them(tmp_path: Path) -> None:
    data = write_rows(tmp_path / "in.jsonl", [row(1, "x", "a secret", source="secret")])
    metrist.score(data, ["rouge1"], out=tmp_path / "run[1] *", texts=False)
    run = open_run(tmp_path / "run[1] *")
    assert "secret" not in str(run.query("SELECT * FROM records").to_pylist())
    assert ask(run, "SELECT item, system, rouge1 > 0 FROM wide") == [("1", "x", True)]


def test_parts_that_are_not_in_a_folder_are_read(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(run.store.path)
    monkeypatch.setattr(run.store, "path", "memory://run")
    monkeypatch.setattr(run.store, "check_part", lambda *_: None)
    monkeypatch.setattr(run.store, "open_file", lambda name: io.BytesIO((folder / name).read_bytes()))
    assert ask(run, "SELECT count(*), count(rouge1) FROM wide") == [(6, 6)]
    with pytest.raises(RunError):
        run.query("SELECT * FROM read_parquet('metrist-run://manifest.json')")


@pytest.mark.parametrize("name", ["run[1]", "run?", "run*"])
def test_a_folder_whose_name_reads_as_a_pattern_is_that_folder(tmp_path: Path, name: str) -> None:
    rows = [{"item": str(n), "system": "a", "output": "x " * n} for n in range(1, 6)]
    metrist.score(rows, ["length"], out=tmp_path / name)
    shutil.copytree(tmp_path / name, tmp_path / "run1")
    run = open_run(tmp_path / name)
    assert run.query("SELECT count(*) AS n FROM records")["n"].to_pylist() == [5]
    assert run.query("SELECT sum(value) AS n FROM scores")["n"].to_pylist() == [15]


def test_tables_have_each_record_once_and_refuse_names_that_they_do_not_have(tmp_path: Path) -> None:
    rows = [{"item": str(n), "system": "a", "output": "x " * n} for n in range(1, 6)]
    for name, own in (("one", rows), ("two", [*rows[2:], {"item": "9", "system": "a", "output": "x"}])):
        write_rows(tmp_path / f"{name}.jsonl", own)
        metrist.score(tmp_path / f"{name}.jsonl", ["length"], out=tmp_path / "run")
    run = open_run(tmp_path / "run")
    assert run.records(["item"])["item"].to_pylist() == ["1", "2", "3", "4", "5", "9"]
    assert run.scores()["value"].to_pylist() == [1, 2, 3, 4, 5, 1]
    with raises_code(RunError, "no_data", "'size'", "length"):
        run.scores(["size"])
    with raises_code(RunError, "unknown_name", "'items'"):
        run.scores(columns=["items"])
    metrist.score(rows, ["length"], out=tmp_path / "bare", texts=False)
    with raises_code(RunError, "no_data", "bare"):
        open_run(tmp_path / "bare").records(["output"])


def test_metrics_that_sql_takes_for_the_same_have_columns_of_their_own(tmp_path: Path) -> None:
    data = write_rows(tmp_path / "in.jsonl", [row(1, "x", "a b c"), row(2, "x", "a d")])
    metrics = {"A": "rougeL", "a": "chrf", "plain": "bleu"}
    metrist.score(data, metrics, out=tmp_path / "run", executor="serial")
    run, results = open_run(tmp_path / "run"), metrist.load(tmp_path / "run")
    columns = ["record", "item", "system", "A (1)", "a (2)", "plain"]
    wide = run.query("SELECT * FROM wide ORDER BY item")
    assert wide.column_names == run.wide().column_names == columns
    assert wide.to_pylist() == run.wide().to_pylist()
    for label, column in (("A", "A (1)"), ("a", "a (2)"), ("plain", "plain")):
        assert wide[column].to_pylist() == results[label].values.tolist()
    for sql in ("SELECT avg(a) FROM wide", "SELECT w.A FROM wide w"):
        with raises_code(RunError, "invalid_value", '"A (1)" and "a (2)"'):
            run.query(sql)


def test_a_query_needs_only_the_parts_of_its_views(run: Run) -> None:
    folder = Path(run.store.path)
    for part in folder.glob("scores/rouge1/*.parquet"):
        part.unlink()
    run = open_run(folder)
    assert ask(run, "SELECT count(*) FROM Records") == [(6,)]
    assert ask(run, "SELECT count(*) FROM ratings JOIN records USING (item, system)") == [(6,)]
    for view in ("scores", "wide"):
        with raises_code(RunError, "damaged", "`metrist score`"):
            run.query(f"SELECT count(*) FROM {view}")


def test_only_the_views_are_shown_and_named(run: Run, tmp_path: Path) -> None:
    views = ["errors", "pairs", "preferences", "ratings", "records", "scores", "wide"]
    assert [name for (name,) in ask(run, "SHOW TABLES")] == views
    expected = "score does not exist!; a run has records, scores, wide, ratings, errors, preferences and pairs"
    with pytest.raises(RunError, match=f"{expected}$"):
        run.query("SELECT * FROM score")
    metrist.score([row(1, "x", "a")], ["rouge1"], out=tmp_path / "bare", texts=False)
    for sql in ("SELECT output FROM records", "SELECT r.output FROM records r"):
        with raises_code(RunError, "invalid_value", "stores"):
            open_run(tmp_path / "bare").query(sql)


def test_tables_are_those_of_the_views(run: Run) -> None:
    for view in ("records", "scores", "wide", "ratings", "errors", "preferences"):
        table, answer = getattr(run, view)(), run.query(f"SELECT * FROM {view}")
        assert table.column_names == answer.column_names
        assert sorted(map(str, table.to_pylist())) == sorted(map(str, answer.to_pylist()))
    assert run.scores("short", "value").equals(run.scores(["short"], ["value"]))
    assert run.scores("short", ["system", "metric", "item"]).slice(0, 1).to_pylist() == [
        {"system": "x", "metric": "short", "item": "1"}
    ]
    assert run.records("item").column_names == ["item"]
    for table in (run.records, run.scores):
        with raises_code(RunError, "unknown_name", "'texts'"):
            table(columns="texts")


def test_the_guide_lists_the_columns_of_each_view(run: Run) -> None:
    guide = Path(__file__).parents[2].joinpath("docs/guides/runs.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \|[^|]*\| (`record`.*|`item`.*|`comparator`.*) \|$", guide, re.MULTILINE))
    assert sorted(rows) == sorted(VIEWS)
    for view, listed in rows.items():
        columns = run.query(f"SELECT * FROM {view}").column_names
        assert re.findall(r"`(\w+)`", listed) == (columns[:3] if view == "wide" else columns)
