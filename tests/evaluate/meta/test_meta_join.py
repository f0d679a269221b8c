"""Sources of every kind meet under item and system."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from judged_rows import drop_fields, make_rows, write_rows

import metrist
from error_codes import raises_code
from metrist.errors import InputError, RunError, format_path
from metrist.evaluate.meta.dataset import JudgedDataset
from metrist.evaluate.meta.join import join, suggests_lower_is_better
from metrist.io import reader


def test_inline_ratings_scores_and_columns_are_read_without_texts() -> None:
    rows = make_rows(items=3)
    judged = join(rows)
    assert len(judged) == 12
    assert judged.systems.names == ("a", "b", "c", "d")
    assert list(judged.ratings) == ["quality"]
    assert judged.raters == ("r0", "r1", "r2")
    assert judged.scores["near"].values.tolist() == [row["scores"]["near"] for row in rows]
    assert judged.lengths["output_length"].tolist() == [len(row["output"]) for row in rows]
    assert judged.column("task").names == ("qa", "summary")


def test_ratings_of_one_file_meet_scores_of_another_in_any_order(tmp_path: Path) -> None:
    rows = make_rows(items=4)
    ratings = write_rows(tmp_path / "ratings.jsonl", drop_fields(rows, "scores", "output"))
    scores = write_rows(tmp_path / "scores.jsonl", drop_fields(rows[::-1], "ratings", "raters"))
    both, turned = join([ratings, scores]), join([scores, ratings])
    unsplit = join(rows)

    def ordered(judged: JudgedDataset) -> dict[tuple[str, str], float]:
        names = zip(judged.items.codes, judged.systems.codes, strict=True)
        keys = [(judged.items.names[i], judged.systems.names[s]) for i, s in names]
        return dict(zip(keys, judged.scores["near"].values.tolist(), strict=True))

    assert ordered(both) == ordered(turned) == ordered(unsplit)


def test_a_run_folder_brings_scores_direction_and_time(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", drop_fields(make_rows(items=3), "scores"))
    metrist.score(path, ["ter", "rougeL"], out=tmp_path / "run")
    judged = join([tmp_path / "run", path])
    assert judged.scores["ter"].higher_is_better is False
    assert judged.scores["rougeL"].higher_is_better is True
    assert judged.scores["ter"].cost.seconds > 0
    assert np.isnan(judged.scores["ter"].cost.money)
    assert judged.scores["ter"].signed().tolist() == (-judged.scores["ter"].values).tolist()


def test_a_run_alone_finds_the_ratings_of_the_files_it_read(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", drop_fields(make_rows(items=3), "scores", "raters"))
    for name, metric in (("first", "rougeL"), ("second", "chrf")):
        metrist.score(path, [metric], out=tmp_path / name)
    named, alone = join([tmp_path / "first", path]), join(tmp_path / "first")
    assert alone.ratings["quality"].value.tolist() == named.ratings["quality"].value.tolist()
    assert alone.column("task").names == ("qa", "summary")
    assert any("rows.jsonl" in note for note in alone.notes)
    assert not any("rows.jsonl" in note for note in named.notes)
    # Two runs of one file: its ratings, which name no rater, count once.
    both = join([tmp_path / "first", tmp_path / "second"])
    assert set(both.scores) == {"rougeL", "chrf"}
    assert len(both.ratings["quality"].value) == len(named.ratings["quality"].value)
    assert metrist.meta_evaluate(tmp_path / "first", "quality", draws=0).figure("rougeL").n == 12


def test_ratings_are_those_that_the_run_stores(tmp_path: Path) -> None:
    rows = drop_fields(make_rows(items=3), "scores")
    path = write_rows(tmp_path / "rows.jsonl", rows)
    metrist.score(path, ["rougeL"], out=tmp_path / "run")
    metrist.score(path, ["rougeL"], out=tmp_path / "bare", texts=False)
    whole = join(tmp_path / "run")
    assert whole.lengths
    columns = {name: labels for name, labels in whole.columns.items() if name in ("task", "language")}
    known = describe(replace(whole, lengths={}, label_sets={}, columns=columns))
    write_rows(path, [{**row, "ratings": {"quality": 0}} for row in rows[:-4]])
    for _ in range(2):
        assert describe(join(tmp_path / "run")) == describe(whole)
        bare = join(tmp_path / "bare")
        assert describe(bare) == known
        assert f"Ratings are those that the run stores, from {format_path(path)}." in bare.notes
        assert any("stores no texts: lengths and other columns are unknown" in note for note in bare.notes)
        path.unlink(missing_ok=True)


def describe(judged: JudgedDataset) -> str:
    """Everything in a data set but notes and where scores come from."""

    def plain(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return value.tolist()
        if is_dataclass(value):
            names = (field.name for field in fields(value))
            return {name: plain(getattr(value, name)) for name in names if name not in _ORIGINS}
        return {name: plain(one) for name, one in value.items()} if isinstance(value, Mapping) else value

    return repr(plain(judged))


_ORIGINS = ("notes", "reading_notes", "origin", "cost", "corpus", "fields_by_column")


def mix_rows(tmp_path: Path) -> list[Path]:
    """Files in which texts come before and after what people and other metrics say, in rows of one and two outputs,
    some of them twice."""
    rows = make_rows(items=6)
    for row in rows[::3]:
        row["errors"] = [{"category": "style", "severity": "minor", "start": 0, "end": 2, "rater": "r9"}]
        row["sampling_weight"] = 2.5
    pairs: list[dict[str, Any]] = [
        {"item": f"i{n}", "systems": ["b", "a"], "ratings": {"better": [1, 0]}, "raters": ["r7", "r1"]}
        for n in range(8)
    ]
    pairs[0]["scores"] = {"judge_pair": "second"}
    surrogate = {"item": "\ud800", "system": "a", "output": "x\udc00", "ratings": {"quality": 2}, "scores": {"near": 1}}
    return [
        write_rows(tmp_path / "ratings.jsonl", [*drop_fields(rows[8:], "output", "scores"), *pairs]),
        write_rows(tmp_path / "rows.jsonl", [*drop_fields(rows, "ratings", "raters", "errors"), surrogate]),
        write_rows(tmp_path / "more.jsonl", [*rows[:8], {**rows[0], "system": "e", "kind": 3, "year": 2020.5}]),
    ]


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0)])
def test_a_run_says_what_its_files_say(tmp_path: Path, order: tuple[int, ...]) -> None:
    written = mix_rows(tmp_path)
    paths = [written[n] for n in order]
    metrist.score(paths, ["length"], out=tmp_path / "run")
    results = metrist.score(paths, ["length"])
    expected = describe(join([*paths, results]))
    assert describe(join(tmp_path / "run")) == expected
    assert describe(join([tmp_path / "run", *paths])) == expected
    judged = join(tmp_path / "run")
    assert judged.weight is not None
    assert len(judged.preferences["better"].choice) == 16
    assert "\ud800" in judged.items.names
    assert set(judged.columns) == {"task", "language", "kind", "year"}


def test_a_part_of_a_run_replaces_the_value(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", drop_fields(make_rows(items=3), "scores"))
    results = metrist.score(path, ["rouge1", "exact"])
    judged = join([results, path], parts=["recall"])
    assert list(judged.scores) == ["rouge1:recall", "exact"]
    assert judged.scores["rouge1:recall"].values.tolist() == results.scores["rouge1"].parts["recall"].tolist()
    with raises_code(RunError, "unknown_name", "'recal'", "'recall'"):
        join([results, path], parts=["recal"])
    with raises_code(RunError, "run_failed"):
        join(path, parts=["recall"])


def test_a_part_named_with_its_metric_stands_beside_the_whole(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", drop_fields(make_rows(items=3), "scores"))
    results = metrist.score(path, ["rouge1", "exact"])

    def metrics(names: str | list[str], **settings: str) -> list[str]:
        result = metrist.meta_evaluate([results, path], "quality", metrics=names, draws=0, **settings)
        return sorted(row["metric"] for row in result.rows() if row["metric"] != "(one rater)")

    assert metrics("rouge1:recall") == ["rouge1:recall"]
    assert metrics("rouge1,rouge1:recall") == ["rouge1", "rouge1:recall"]
    assert metrics(["rouge1:recall", "exact"]) == ["exact", "rouge1:recall"]
    assert metrics("rouge1,rouge1:precision,rouge1:recall", part="recall") == [
        "rouge1",
        "rouge1:precision",
        "rouge1:recall",
    ]
    judged = join([results, path], metrics=["rouge1:recall"])
    assert judged.scores["rouge1:recall"].values.tolist() == results.scores["rouge1"].parts["recall"].tolist()
    with raises_code(RunError, "unknown_name", "'exact:recall'"):
        metrics("exact:recall")


def test_a_stored_score_may_have_a_comma_in_its_name() -> None:
    rows = [{**row, "scores": {"a,b": row["scores"]["near"], "a": 1.0}} for row in make_rows(items=3)]
    result = metrist.meta_evaluate(rows, "quality", metrics="a,b", draws=0)
    assert {row["metric"] for row in result.rows()} - {"(one rater)"} == {"a,b"}


def test_a_flat_result_file_is_known_by_its_first_line(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", drop_fields(make_rows(items=3), "scores"))
    metrist.score(path, ["rougeL"], out=tmp_path / "flat.jsonl")
    judged = join([tmp_path / "flat.jsonl", path])
    assert list(judged.scores) == ["rougeL"]
    assert not np.isnan(judged.scores["rougeL"].values).any()


def test_the_same_metric_twice_is_fine_while_the_scores_are_equal(tmp_path: Path) -> None:
    rows = make_rows(items=2)
    path = write_rows(tmp_path / "rows.jsonl", rows)
    results = metrist.score(path, ["exact"])
    same = drop_fields(rows, "scores")
    for row in same:
        row["scores"] = {"exact": 0.0}
    assert list(join([results, write_rows(tmp_path / "same.jsonl", same)]).scores) == ["exact"]
    same[3]["scores"] = {"exact": 1.0}
    with raises_code(InputError, "unreadable", "other.jsonl", "1", "'i0'"):
        join([results, write_rows(tmp_path / "other.jsonl", same)])


def test_two_rows_that_score_one_output_differently_are_named() -> None:
    rows = [
        {"item": "1", "system": "a", "output": "x", "scores": {"m": 1}},
        {"item": "1", "system": "a", "output": "x", "scores": {"m": 2}},
    ]
    with raises_code(InputError, "unreadable", "2", "'1'", "'a'"):
        join(rows)


def test_lower_is_better_must_be_stated() -> None:
    rows = make_rows(items=2)
    judged = join(rows, lower_is_better=["near", "quality"])
    assert judged.scores["near"].higher_is_better is False
    assert judged.scores["far"].higher_is_better is None
    assert judged.ratings["quality"].value.max() < 0
    with raises_code(RunError, "unknown_name", "'nere'", "'near'"):
        join(rows, lower_is_better=["nere"])


@pytest.mark.parametrize("name", ["TER", "sentence-WER", "hTER", "PER", "GPT2-Perplexity", "edit_distance"])
def test_a_name_may_suggest_that_lower_is_better(name: str) -> None:
    assert suggests_lower_is_better(name)


@pytest.mark.parametrize(
    "name", ["chrF", "BERTScore", "MetricX-23", "per_token", "Percent", "interpreter", "BARTScore"]
)
def test_most_names_suggest_nothing(name: str) -> None:
    assert not suggests_lower_is_better(name)


def test_bad_rows_are_left_out_and_counted_on_request(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [*make_rows(items=1), {"item": "9", "system": "a", "output": {}}])
    judged = join(path, skip_bad=True)
    assert judged.notes[0].startswith("1 bad row was ")


def test_two_columns_together_are_a_column() -> None:
    judged = join(make_rows(items=6))
    assert set(judged.column("task+language").names) == {"qa · sv", "qa · en", "summary · sv", "summary · en"}


def test_unnamed_ratings_that_come_twice_are_pointed_out(tmp_path: Path) -> None:
    rows = drop_fields(make_rows(items=4), "raters")
    path = write_rows(tmp_path / "rows.jsonl", rows)
    note = "quality: 16 of 16 outputs are rated in more than one row"
    assert any(own.startswith(note) for own in join([path, path]).notes)
    # A list of ratings in one row is by several people; named raters who repeat themselves word for word count once.
    named = join([*make_rows(items=4), *make_rows(items=4)])
    assert not any("more than one row" in own for own in (*join(rows).notes, *named.notes))
    assert len(named.ratings["quality"].value) == 16 * 3


def test_ratings_of_texts_that_were_not_scored_are_left_out(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    rows: dict[str, list[dict[str, Any]]] = {
        system: [
            {
                "item": str(n),
                "system": system,
                "output": " ".join(rng.choice(["red", "green", "blue", "grey"], rng.integers(1, 9))),
                "references": ["red green blue grey"],
                "ratings": {"mqm": float(rng.normal())},
            }
            for n in range(30)
        ]
        for system in "ABCD"
    }
    paths = {system: write_rows(tmp_path / f"{system}.jsonl", rows[system]) for system in rows}
    metrist.score(list(paths.values()), ["chrf"], out=tmp_path / "run")
    scores = metrist.load(tmp_path / "run")
    for row in rows["B"][:12]:
        row.update(output=row["output"] + " other", ratings={"mqm": 50.0 + float(row["item"])})
    write_rows(paths["B"], rows["B"])
    ratings = {(s, row["item"]): row["ratings"]["mqm"] for s in "ACD" for row in rows[s]}
    ratings |= {("B", row["item"]): row["ratings"]["mqm"] for row in rows["B"][12:]}
    pairs = [
        (ratings[system, item], value)
        for item, system, value in zip(scores.items, scores.systems, scores["chrf"].values, strict=True)
        if (system, item) in ratings
    ]
    expected = np.corrcoef(np.array(pairs).T)[0, 1]
    settings: dict[str, Any] = {"measures": "pearson", "group": "none", "draws": 0}
    evaluation = metrist.meta_evaluate([tmp_path / "run", *paths.values()], **settings)
    (figure,) = evaluation.figures
    assert figure.n == len(pairs) == 108
    assert figure.value == pytest.approx(expected, abs=1e-12)
    assert any("12 outputs with other texts left out" in note for note in evaluation.notes)
    # The run has the ratings of then.
    assert metrist.meta_evaluate(tmp_path / "run", **settings).figures[0].n == 120


def rated_rows() -> list[dict[str, object]]:
    return [
        {"item": str(n), "system": system, "output": "word " * (n + k), "ratings": {"coherence": n + k}}
        for n in range(1, 9)
        for k, system in enumerate("ab")
    ]


@pytest.mark.parametrize("form", ["frame", "rows"])
def test_results_paths_frames_and_rows_mix_in_a_list(tmp_path, form):
    rows = rated_rows()
    bare = [{name: value for name, value in row.items() if name != "ratings"} for row in rows]
    results = metrist.score(bare, "length", out=tmp_path / "run")
    pandas = pytest.importorskip("pandas", reason="pandas is not installed") if form == "frame" else None
    source = pandas.DataFrame(rows) if pandas else rows
    for sources in ([results, source], [str(tmp_path / "run"), source], (source, results)):
        evaluation = metrist.meta_evaluate(sources, "coherence", "spearman", group="none", draws=10)
        assert [figure.value for figure in evaluation.figures] == [pytest.approx(1.0)]


@pytest.mark.parametrize("form", ["file", "rows"])
def test_ratings_are_found_in_what_results_were_made_from(tmp_path, form):
    rows = rated_rows()
    path = tmp_path / "rated.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    results = metrist.score(str(path) if form == "file" else rows, "length")
    evaluation = metrist.meta_evaluate(results, "coherence", "spearman", group="none", draws=10)
    assert [figure.value for figure in evaluation.figures] == [pytest.approx(1.0)]
    assert len(join([results, results]).items.codes) == len(rows)


def test_a_table_of_ratings_alone_is_refused_with_the_options_that_read_it(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", drop_fields(make_rows(items=3), "scores", "ratings", "raters"))
    metrist.score(path, ["chrf"], out=tmp_path / "run")
    human = tmp_path / "human.csv"
    human.write_text("seg_id,system,mqm\n" + "".join(f"i{i},{s},{i - ord(s)}\n" for i in range(3) for s in "abcd"))
    with raises_code(InputError, "invalid_row", "rating:mqm", "seg_id"):
        join([tmp_path / "run", human])
    fields = {"rating:mqm": "mqm", "item": "seg_id"}
    assert len(join([tmp_path / "run", human], fields=fields).ratings["mqm"].value) == 12
    human.write_text(human.read_text().replace(",a,", ",A,"))
    judged = join([tmp_path / "run", human], fields=fields)
    assert "Warning: systems that differ only in case are not joined: 'A' and 'a'." in judged.notes


def test_a_rating_that_all_metrics_run_against_may_be_one_where_lower_is_better() -> None:
    rows = drop_fields(make_rows(items=40), "raters")
    for row in rows:
        row["ratings"] = {"errors": [-value for value in row["ratings"]["quality"]]}
        del row["scores"]["noise"]
    hint = "Warning: all metrics run against errors. If lower errors is better: `lower_is_better=['errors']`."
    settings: dict[str, Any] = {"measures": "pearson", "group": "none", "draws": 50}
    assert hint in metrist.meta_evaluate(rows, **settings).notes
    assert hint not in metrist.meta_evaluate(rows, lower_is_better="errors", **settings).notes


def test_progress_tells_the_rows_read_and_about_how_many_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_REPORTED", 10)
    path = write_rows(tmp_path / "rows.jsonl", make_rows(items=10))
    reports: list[tuple[int, int | None]] = []
    join(path, progress=lambda done, total: reports.append((done, total)))
    assert [done for done, _ in reports] == [0, 10, 20, 30]
    assert reports[0][1] is None or reports[0][1] <= 80
    assert all(total is not None and done <= total <= 80 for done, total in reports[1:])


def test_outputs_of_a_run_are_matched_by_name_unless_they_come_in_the_same_order(tmp_path: Path) -> None:
    rows = drop_fields(make_rows(items=3), "scores")
    path = write_rows(tmp_path / "rows.jsonl", rows)
    results = metrist.score(path, ["rougeL"])
    expected = dict(zip(zip(results.items, results.systems, strict=True), results["rougeL"].values, strict=True))
    for order in (rows, rows[::-1], rows[4:], [*rows[1:], rows[0]]):
        judged = join([order, results])
        names = zip(judged.items.codes, judged.systems.codes, strict=True)
        keys = [(judged.items.names[item], judged.systems.names[system]) for item, system in names]
        assert judged.scores["rougeL"].values.tolist() == [expected[key] for key in keys]
