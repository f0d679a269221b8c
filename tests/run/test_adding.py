"""Runs add: a folder holds any number of inputs, no output is scored twice, what changed is told, nothing is lost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import metrist
from error_codes import raises_code
from metrist import Metric, Score, open_run
from metrist.errors import RunError, quote_word
from metrist.evaluate.compare.check import check
from metrist.evaluate.compare.methods import describe_methods
from metrist.evaluate.explain.worst import worst
from metrist.run import load, score
from run_contents import write_rows

SEEN: list[str] = []


class Counting(Metric):
    """Notes each output that it scores."""

    def score_record(self, record: Any) -> float | Score:
        SEEN.append(record.output)
        return float(len(record.output))


class Picky(Counting):
    """Fails on one output."""

    def score_record(self, record: Any) -> float | Score:
        return Score.failed("a bad output") if record.output == "bad" else 1.0


@pytest.fixture(autouse=True)
def seen() -> list[str]:
    SEEN.clear()
    return SEEN


TEXT = Counting().text
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """`write("a", ["x", "y"])`: a.jsonl with these outputs of items 0, 1 … by the system 'a'."""
    monkeypatch.chdir(tmp_path)

    def write_file(name: str, outputs: list[str], **columns: Any) -> Path:
        lines = [json.dumps({"item": str(n), "output": output, **columns}) for n, output in enumerate(outputs)]
        path = Path(f"{name}.jsonl")
        path.write_text("\n".join(lines) + "\n")
        return path

    return write_file


def run(source: Any, *metrics: Any, **options: Any) -> metrist.Results:
    return score(source, [Counting(), *metrics], out="run", executor="serial", **options)


def take(seen: list[str]) -> list[str]:
    taken = list(seen)
    seen.clear()
    return taken


def files() -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}


def test_a_second_file_adds_and_the_first_is_not_scored_again(write: Write, seen: list[str]) -> None:
    write("a", ["x", "yy"])
    write("b", ["x", "zzz"])
    run("a.jsonl")
    assert take(seen) == ["x", "yy"]
    results = run("b.jsonl")
    assert take(seen) == ["x", "zzz"]
    assert list(zip(results.items, results.systems, strict=True)) == [("0", "a"), ("1", "a"), ("0", "b"), ("1", "b")]
    assert results[TEXT].values.tolist() == [1, 2, 1, 3]
    assert results.notes == ("run now holds 4 outputs of a.jsonl, b.jsonl; 2 are new",)
    assert list(load("run").rows()) == list(results.rows())
    for again in ("a.jsonl", "b.jsonl", ["b.jsonl", "a.jsonl"]):
        assert list(run(again).rows()) == list(results.rows())
    assert take(seen) == []


def test_a_metric_that_other_inputs_lack_is_shown_with_the_command_that_adds_it(write: Write) -> None:
    write("a", ["x", "yy"])
    write("b", ["x", "zzz"])
    run("a.jsonl", fields={"output": "output"})
    results = run("b.jsonl", "length")
    told = (
        "length has not scored 2 of 2 outputs of a.jsonl: `metrist score a.jsonl --field output=output -m length "
        "-o run/` to add them"
    )
    assert told in results.notes
    assert {failure.kind for failure in results["length"].scores.failures.values()} == {"pending"}
    assert load("run").notes == (told,)
    coverage = {(row.system, row.metric): row.coverage for row in load("run").system_scores(draws=100)}
    assert coverage == {("a", TEXT): 1, ("b", TEXT): 1, ("a", "length"): 0, ("b", "length"): 1}
    score("a.jsonl", ["length"], out="run", fields={"output": "output"})
    assert load("run").notes == ()


def test_outputs_that_a_metric_was_not_asked_for_are_no_failures(write: Write) -> None:
    write("a", ["x", "yy", "z"])
    write("b", ["x", "bad"])
    run("a.jsonl")
    results = run("b.jsonl", Picky().named("picky"))
    assert repr(results["picky"]) == "ResultColumn(picky, 5 scores, 1 failed)"
    (told,) = (note for note in results.notes if "has not scored" in note)
    assert told.startswith("picky has not scored 3 of 3 outputs of a.jsonl: `metrist score a.jsonl -m picky=")
    assert load("run").notes == (told,)
    notes = results.table(draws=10).remarks
    assert "picky: 1 of 2 outputs not scored, such as: a bad output" in notes
    coverage = {verdict.system: verdict.why for verdict in check(results, min_coverage=1).failures}
    assert coverage == {
        "a": "only 0.0 % of the outputs have a score: 3 not scored yet, 0 failed",
        "b": "only 50.0 % of the outputs have a score",
    }
    assert [output.system for output in worst(results, metric="picky").failures] == ["b"]


@pytest.mark.parametrize("text", ["plain", "judge(llm='a b')", "it's $HOME", "a 'b' \"c\"", "don't!", "a `b` 'c'", ""])
def test_commands_in_notes_quote_readably_what_a_shell_reads_back(text: str) -> None:
    quoted = quote_word(text)
    assert subprocess.run(["sh", "-c", f"printf %s {quoted}"], stdout=-1, text=True, check=True).stdout == text
    assert quote_word("tone=judge(llm='a b')") == "\"tone=judge(llm='a b')\""


def test_edited_outputs_are_scored_again_and_vanished_ones_set_aside(write: Write, seen: list[str]) -> None:
    write("a", ["x", "yy", "zzz", "www"])
    run("a.jsonl")
    before = files()
    write("a", ["x", "other", "zzz"])
    take(seen)
    results = run("a.jsonl")
    assert take(seen) == ["other"]
    assert results[TEXT].values.tolist() == [1, 5, 3]
    assert results.notes == (
        "a.jsonl: 1 output changed and was scored again, 1 is no longer in the file and was set aside; "
        "`metrist remove run/ --unused` deletes the earlier scores",
    )
    scores = {name: data for name, data in before.items() if name.startswith("run/scores")}
    assert scores.items() <= files().items()
    # What was set aside comes back without being scored.
    write("a", ["x", "yy", "zzz", "www"])
    assert run("a.jsonl")[TEXT].values.tolist() == [1, 2, 3, 3]
    assert take(seen) == []


@pytest.mark.parametrize("repeatable", [True, False])
def test_other_texts_under_a_known_name_are_refused_and_nothing_changes(
    write: Write, seen: list[str], repeatable: bool
) -> None:
    write("a", ["x", "yy"], system="s")
    write("b", ["new", "other"], system="s")
    run("a.jsonl")
    before = files()
    take(seen)
    source: Any = "b.jsonl" if repeatable else iter(map(json.loads, Path("b.jsonl").read_text().splitlines()))
    with raises_code(RunError, "conflict", "'0'", "'s'", "a.jsonl"):
        run(source)
    assert take(seen) == []
    assert files() == before
    with raises_code(RunError, "conflict", "system='NAME'", "`metrist remove run/ --input a.jsonl`"):
        run("b.jsonl")


@pytest.mark.parametrize("later", [["one=one", "two=two"], {"two": "two", "one": "one"}, "one,two"])
@pytest.mark.usefixtures("write")
def test_two_ways_to_name_the_same_columns_are_one_reading(seen: list[str], later: Any) -> None:
    def write_table(text: str) -> None:
        Path("a.csv").write_text(f"id,one,two\n1,x,{text}\n")

    write_table("y")
    run("a.csv", outputs=["one", "two"])
    take(seen)
    write_table("z")
    run("a.csv", outputs=later)
    assert take(seen) == ["z"]
    assert len(load("run")) == 2


def test_another_column_of_the_same_file_is_refused_and_with_a_system_of_its_own_added(
    write: Write, seen: list[str]
) -> None:
    write("a", ["x", "yy"], second="2")
    run("a.jsonl")
    fields = {"output": "second"}
    with raises_code(RunError, "conflict", "a.jsonl", "`a.jsonl`", "`a.jsonl --field output=second`"):
        run("a.jsonl", fields=fields)
    assert len(load("run")) == 2
    take(seen)
    results = run("a.jsonl", fields=fields, system="second")
    assert take(seen) == ["2", "2"]
    assert results.systems == ["a", "a", "second", "second"]


def test_reading_options_that_change_nothing_leave_one_input(write: Write, seen: list[str]) -> None:
    write("a", ["x", "yy"])
    run("a.jsonl")
    run("a.jsonl", fields={"output": "output"})
    run("a.jsonl", skip_bad=True)
    assert len(open_run("run").manifest.inputs) == 1
    assert set(open_run("run").records()["input"].to_pylist()) == {0}
    write("a", ["x", "edited"])
    take(seen)
    assert run("a.jsonl")[TEXT].values.tolist() == [1, 6]
    assert take(seen) == ["edited"]


def test_a_file_by_another_path_is_the_same_and_may_move(write: Write, seen: list[str], tmp_path: Path) -> None:
    write("a", ["x", "yy"])
    run("a.jsonl")
    take(seen)
    run(tmp_path / "a.jsonl")
    Path("data").mkdir()
    shutil.move("a.jsonl", "data/a.jsonl")
    results = run("data/a.jsonl")
    assert (take(seen), len(results), len(open_run("run").manifest.inputs)) == ([], 2, 1)


def test_a_folder_that_moves_with_its_files_is_added_to(write: Write, seen: list[str], tmp_path: Path) -> None:
    write("a", ["x", "yy"])
    run("a.jsonl")
    take(seen)
    (tmp_path / "there").mkdir()
    for name in ("a.jsonl", "run"):
        shutil.move(name, f"there/{name}")
    os.chdir("there")
    write("a", ["x", "edited"])
    assert len(run("a.jsonl")) == 2
    assert take(seen) == ["edited"]


def test_rows_in_memory_add_and_replace(write: Write, seen: list[str]) -> None:  # noqa: ARG001
    def rows(*outputs: str) -> list[dict[str, str]]:
        return [{"item": str(n), "system": "s", "output": output} for n, output in enumerate(outputs)]

    run(rows("x", "yy"))
    assert run(rows("x")).items == ["0", "1"]
    results = run(rows("x", "edited", "zzz"))
    assert take(seen) == ["x", "yy", "edited", "zzz"]
    assert results[TEXT].values.tolist() == [1, 6, 3]
    assert results.notes == (
        "1 output changed and was scored again; `metrist remove run/ --unused` deletes the earlier scores",
        "run now holds 3 outputs of rows in memory; 1 is new",
    )
    assert run(rows("x", "yy"))[TEXT].values.tolist() == [1, 2, 3]
    assert take(seen) == []


def test_an_iterator_adds_shard_by_shard(write: Write, seen: list[str]) -> None:  # noqa: ARG001
    def rows() -> Iterator[dict[str, str]]:
        yield from ({"item": str(n), "system": "s", "output": "x" * n} for n in range(5))

    assert run(rows(), shard_size=2)[TEXT].values.tolist() == [0, 1, 2, 3, 4]
    assert run(rows())[TEXT].values.tolist() == [0, 1, 2, 3, 4]
    assert take(seen) == ["x" * n for n in range(5)]


class Model(Counting):
    """As expensive as a model."""

    resident = True

    def score_record(self, record: Any) -> float | Score:  # noqa: ARG002
        SEEN.append("model")
        return 1.0


def test_cheap_metrics_of_all_records_are_stored_before_the_first_model_score(write: Write) -> None:
    write("a", ["x", "yy", "zzz"])
    stored: list[list[str]] = []

    class Looking(Model):
        def score_record(self, record: Any) -> float | Score:  # noqa: ARG002
            stored.append(list(load("run").scores))
            assert not load("run").scores[TEXT].failures
            return 1.0

    calls: list[tuple[int, int | None, str]] = []
    score(
        "a.jsonl",
        [Looking(), Counting()],
        out="run",
        shard_size=2,
        executor="serial",
        progress=lambda done, total, metric="": calls.append((done, total, metric)),
    )
    assert stored == [[TEXT]] * 3
    assert [call for call in calls if call[2] == Looking().text] == [
        (0, 3, Looking().text),
        (2, 3, Looking().text),
        (3, 3, Looking().text),
    ]


def test_progress_counts_what_is_stored_once(write: Write) -> None:
    run(write("a", ["x"] * 4))
    calls: list[tuple[int, int | None, int]] = []
    # One metric has scored four records, the other none.
    run(
        write("a", ["x"] * 6),
        Picky(),
        shard_size=1,
        progress=lambda done, total, stored=0: calls.append((done, total, stored)),
    )
    assert calls[0] == (2, 6, 2)
    assert calls[-1] == (6, 6, 2)
    assert [done for done, _, _ in calls] == sorted(done for done, _, _ in calls)


def test_from_an_iterator_cheap_metrics_come_first_too(write: Write, seen: list[str]) -> None:  # noqa: ARG001
    rows = ({"item": str(n), "system": "s", "output": str(n)} for n in range(3))
    score(rows, [Model(), Counting()], out="run", shard_size=2, executor="serial")
    assert seen == ["0", "1", "2", "model", "model", "model"]


def test_a_file_that_changes_while_it_is_scored_does_so_unnoticed_or_ends_the_run(write: Write) -> None:
    path = write("a", ["x", "yy"])

    class Changing(Counting):
        def score_record(self, record: Any) -> float | Score:  # noqa: ARG002
            write("a", ["x", "changed"])
            return 1.0

    results = score(path, [Changing(), Model()], out="run", executor="serial")
    assert results[Model().text].values.tolist() == [1, 1]
    assert open_run("run").records()["output"].to_pylist() == ["x", "yy"]
    write("a", ["x", "yy"])
    # A run without texts reads the file again.
    with raises_code(RunError, "changed", "a.jsonl"):
        score("a.jsonl", [Changing(), Model()], out="no-texts", executor="serial", texts=False)


# Items that do not line up


def write_sources(name: str, items: list[str | None], sources: list[str]) -> None:
    rows = [
        {"output": f"{name} {source}", "source": source, **({"item": item} if item else {})}
        for item, source in zip(items, sources, strict=True)
    ]
    write_rows(Path(f"{name}.jsonl"), rows)


@pytest.mark.usefixtures("write")
def test_items_with_other_sources_in_an_added_file_are_told_and_not_paired() -> None:
    sources = [f"sentence {n}" for n in range(8)]
    # Rows without an item are numbered 1 to 8: only those before the gap line up.
    write_sources("a", ["1", "2", "4", "5", "6", "7", "8", "9"], sources)
    write_sources("b", [None] * 8, sources)
    run("a.jsonl")
    results = run("b.jsonl")
    # Of the items 1, 2 and 4 to 8, which both have, b has other sources for the last five.
    expected = "5 records have a different source than an earlier record of the same item, and those sources belong"
    notes = [note for note in results.notes if note.startswith(expected)]
    assert len(notes) == 1
    assert "item_key='source'" in notes[0]
    comparison = metrist.compare(load("run"), draws=20)
    (contest,) = comparison.contests
    assert (contest.items, contest.different, contest.separated) == (2, 5, 5)
    remarks = comparison.table().remarks
    left_out = "a and b: 5 items of the same names have different sources in the two, and were left out"
    assert any(remark.startswith(left_out) for remark in remarks)
    assert notes[0] in remarks
    report = check(load("run"), against="a", systems=["b"], draws=20)
    assert notes[0] in report.notes
    assert any(note.startswith("b and a: 5 items of the same names have different sources") for note in report.notes)
    assert notes[0] in describe_methods("run")
    # The way out pairs all of them.
    score(["a.jsonl", "b.jsonl"], [Counting()], out="by-source", executor="serial", item_key="source")
    (contest,) = metrist.compare("by-source", draws=20).contests
    assert (contest.items, contest.different) == (8, 0)


@pytest.mark.usefixtures("write")
def test_files_scored_together_get_one_note_on_sources() -> None:
    write_sources("a", ["1", "2", "4"], ["x", "y", "z"])
    write_sources("b", ["1", "2", "4"], ["x", "z", "y"])
    for results in (run(["a.jsonl", "b.jsonl"]), score(["a.jsonl", "b.jsonl"], [Counting()], executor="serial")):
        assert sum("different source" in note for note in results.notes) == 1
        (contest,) = metrist.compare(results, draws=20).contests
        assert (contest.items, contest.separated) == (1, 2)


@pytest.mark.usefixtures("write")
def test_systems_with_sources_of_their_own_are_compared_with_a_note() -> None:
    items = [str(n) for n in range(4)]
    write_sources("a", items, [f"passage {n} of a" for n in items])
    write_sources("b", items, [f"passage {n} of b" for n in items])
    run("a.jsonl")
    run("b.jsonl")
    comparison = metrist.compare("run", draws=20)
    (contest,) = comparison.contests
    assert (contest.items, contest.different, contest.separated) == (4, 4, 0)
    assert any("and were compared all the same" in remark for remark in comparison.table().remarks)


def test_a_damaged_part_of_records_is_found_and_written_again(write: Write, seen: list[str]) -> None:
    write("a", ["x", "yy"], ratings={"good": 1})
    write("b", ["other", "texts"])
    run("a.jsonl")
    take(seen)
    for table in ("records", "ratings"):
        (path,) = Path("run", table).iterdir()
        whole = path.read_bytes()
        for damaged in (whole[:8] + bytes(60) + whole[68:], whole[:-30], b"", None):
            path.unlink() if damaged is None else path.write_bytes(damaged)
            if table == "records":
                with raises_code(RunError, "damaged", "metrist"):
                    load("run")
                with raises_code(RunError, "damaged", "`metrist score`"):
                    run("b.jsonl")
            results = run("a.jsonl")
            assert any(note.endswith("it was set aside and a.jsonl was read again") for note in results.notes)
            assert path.read_bytes() == whole
    assert take(seen) == []
