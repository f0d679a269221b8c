"""`worst` against brute force on random scores, and what it says about what it cannot rank or show."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_builder import make_run

from error_codes import raises_code
from metrist.errors import ErrorCode, InputError, RunError
from metrist.evaluate.explain.worst import percentile_ranks, worst
from metrist.run import score
from metrist.run.results import Results


def random_run(seed: int = 0, items: int = 60) -> Results:
    """Two systems and two metrics with ties and failures; `errors` are better when lower."""
    rng = np.random.default_rng(seed)

    def column(low: float, high: float) -> list[float | None]:
        values = rng.uniform(low, high, items).round(1).tolist()
        return [None if rng.random() < 0.1 else value for value in values]

    return make_run(
        quality={"a": column(0, 1), "b": column(0, 1)},
        errors={"a": column(0, 100), "b": column(0, 100)},
    )


def shown(outputs: Any) -> list[tuple[str, str]]:
    return [(output.item, output.system) for entry in outputs for output in entry.outputs]


def brute_percentile(value: float, values: list[float]) -> float:
    """The share of smaller values and half the share of equal ones, counted one by one."""
    return 100 * (sum(v < value for v in values) + sum(v == value for v in values) / 2) / len(values)


@pytest.mark.parametrize(("metric", "sign"), [("quality", 1), ("errors", -1)])
@pytest.mark.parametrize("seed", range(3))
def test_the_worst_scores_come_first_whichever_side_is_better(metric: str, sign: int, seed: int) -> None:
    run = random_run(seed)
    values = run.scores[metric].values
    scored = [row for row in range(len(run)) if not np.isnan(values[row])]
    expected = sorted(scored, key=lambda row: (sign * values[row], row))[:25]
    outputs = worst(run, 25, metric)
    assert shown(outputs) == [(run.items[row], run.systems[row]) for row in expected]
    assert [entry.value for entry in outputs] == [values[row] for row in expected]
    failed = [(run.items[row], run.systems[row]) for row in range(len(run)) if row not in scored]
    assert [(output.item, output.system) for output in outputs.failures] == failed[:25]


@pytest.mark.parametrize("order", [None, "losses", "gains", "both"])
@pytest.mark.parametrize("seed", range(3))
def test_differences_of_two_systems_in_order(seed: int, order: Any) -> None:
    run = random_run(seed)
    values = dict(zip(zip(run.systems, run.items, strict=True), run.scores["errors"].values, strict=True))
    # Lower is better: a positive difference means that `a`, the first, is better.
    differences = {item: values["b", item] - values["a", item] for item in dict.fromkeys(run.items)}
    scored = [item for item, difference in differences.items() if not np.isnan(difference)]
    shown = [d for d in scored if order == "both" or (differences[d] > 0 if order == "gains" else differences[d] < 0)]
    expected = sorted(shown, key=lambda item: -abs(differences[item]))[:15]
    outputs = worst(run, 15, "errors", vs="b", order=order)
    assert [entry.outputs[0].item for entry in outputs] == expected
    assert [entry.value for entry in outputs] == pytest.approx([differences[item] for item in expected])
    assert all([output.system for output in entry.outputs] == ["a", "b"] for entry in outputs)
    first = outputs.entries[0]
    better, worse = ("a", "b") if first.value > 0 else ("b", "a")
    assert first.reason.startswith(f"{better} is better than {worse} by ")
    wins = sum(differences[item] > 0 for item in scored)
    assert any(f"a is better on {wins}," in note for note in outputs.notes)


@pytest.mark.parametrize("seed", range(3))
def test_disagreements_are_distances_of_percentiles(seed: int) -> None:
    run = random_run(seed)
    quality, errors = run.scores["quality"].values, -run.scores["errors"].values
    both = [row for row in range(len(run)) if not np.isnan(quality[row] + errors[row])]
    distance = {
        row: abs(
            brute_percentile(quality[row], [quality[other] for other in both])
            - brute_percentile(errors[row], [errors[other] for other in both])
        )
        for row in both
    }
    outputs = worst(run, 20, by="disagreement")
    assert [entry.value for entry in outputs] == pytest.approx(sorted(distance.values(), reverse=True)[:20])
    for entry in outputs:
        (output,) = entry.outputs
        row = next(r for r in both if (run.items[r], run.systems[r]) == (output.item, output.system))
        assert entry.value == pytest.approx(distance[row])
    assert len(outputs.failures) == min(20, len(run) - len(both))


def test_more_than_two_metrics_disagree_by_their_extremes() -> None:
    rng = np.random.default_rng(1)
    columns = {name: {"a": rng.uniform(0, 1, 30).tolist()} for name in ("quality", "strict", "scaled")}
    run = make_run(**columns)
    ranks = [[brute_percentile(v, values["a"]) for v in values["a"]] for values in columns.values()]
    spread = [max(abs(a - b) for a, b in combinations(column, 2)) for column in zip(*ranks, strict=True)]
    outputs = worst(run, 30, by="disagreement")
    assert [entry.value for entry in outputs] == pytest.approx(sorted(spread, reverse=True))


def test_percentiles_share_the_middle_of_ties_and_skip_nan() -> None:
    values = np.array([3.0, 1.0, np.nan, 1.0, 2.0])
    known = [3.0, 1.0, 1.0, 2.0]
    expected = [np.nan if np.isnan(v) else brute_percentile(v, known) for v in values]
    assert percentile_ranks(values) == pytest.approx(expected, nan_ok=True)


def rated_rows(seed: int = 3, items: int = 40) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    return [
        {
            "item": str(item),
            "system": "a",
            "output": "word " * int(rng.integers(1, 30)),
            "references": ["word " * 12],
            "ratings": {"fluency": rng.integers(1, 6, 3).tolist(), "noise": [float(rng.uniform(0, 100))]},
        }
        for item in range(items)
    ]


@pytest.mark.parametrize("reverse", [(), ("fluency",)], ids=["higher", "lower"])
def test_people_disagree_with_a_metric_by_percentiles(tmp_path: Path, reverse: tuple[str, ...]) -> None:
    rows = rated_rows()
    del rows[7]["ratings"]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = score(tmp_path / "in.jsonl", ["rougeL"], out=tmp_path / "run")
    rated = [row for row in range(len(rows)) if row != 7]
    sign = -1 if reverse else 1
    people = {row: sign * float(np.mean(rows[row]["ratings"]["fluency"])) for row in rated}
    metric = {row: float(run.scores["rougeL"].values[row]) for row in rated}
    distance = [
        abs(brute_percentile(people[row], [*people.values()]) - brute_percentile(metric[row], [*metric.values()]))
        for row in rated
    ]
    outputs = worst(tmp_path / "run", 40, by="people", aspect="fluency", lower_is_better=reverse)
    assert [entry.value for entry in outputs] == pytest.approx(sorted(distance, reverse=True))
    first = outputs.entries[0].outputs[0]
    assert first.record is not None
    assert first.record.output == rows[int(first.item)]["output"]
    assert first.ratings["fluency"] == (pytest.approx(np.mean(rows[int(first.item)]["ratings"]["fluency"])), 3)
    assert "left out: 1 output without a rating" in outputs.notes


def test_several_aspects_are_averaged_by_rank(tmp_path: Path) -> None:
    rows = rated_rows()
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = score(tmp_path / "in.jsonl", ["rougeL"], out=tmp_path / "run")
    means = {aspect: [float(np.mean(row["ratings"][aspect])) for row in rows] for aspect in ("fluency", "noise")}
    opinion = [np.mean([brute_percentile(v[i], v) for v in means.values()]) for i in range(len(rows))]
    values = run.scores["rougeL"].values.tolist()
    distance = [
        abs(brute_percentile(opinion[i], opinion) - brute_percentile(values[i], values)) for i in range(len(rows))
    ]
    outputs = worst(tmp_path / "run", 40, by="people")
    assert [entry.value for entry in outputs] == pytest.approx(sorted(distance, reverse=True))


def test_two_runs_are_compared_by_system_and_item(tmp_path: Path) -> None:
    for name, cut in (("old", 5), ("new", 2)):
        rows = [
            {"item": str(i), "system": "mine", "output": "x" * (i % cut), "references": ["x" * 4]} for i in range(8)
        ]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[: 8 - (name == "new")]))
        score(tmp_path / f"{name}.jsonl", ["chrf"], out=tmp_path / name)
    outputs = worst(tmp_path / "new", 3, vs=tmp_path / "old", order="both")
    assert len(outputs) == 3
    for entry in outputs:
        new, old = entry.outputs
        assert (new.item, new.system) == (old.item, old.system)
        assert entry.value == pytest.approx(new.scores["chrf"].value - old.scores["chrf"].value)
        assert new.record is not None
        assert old.record is not None
        assert (new.record.output, old.record.output) == ("x" * (int(new.item) % 2), "x" * (int(old.item) % 5))
        assert (new.run, old.run) == (str(tmp_path / "new"), str(tmp_path / "old"))
    assert "left out: 1 output without a counterpart" in outputs.notes


def test_runs_that_were_scored_differently_are_not_compared() -> None:
    one, other = make_run(quality={"a": [0.1]}), make_run(quality={"a": [0.2]}, signature="2")
    with raises_code(RunError, "conflict", "'quality | version 1'", "'quality | version 2'"):
        worst(one, vs=other)


def test_runs_without_a_common_system_are_matched_by_name() -> None:
    one = make_run(quality={"a": [0.1, 0.2]})
    other = make_run(quality={"b": [0.9, 0.3], "c": [0.2, 0.2]})
    with raises_code(RunError, "missing_value", "a", "b, c"):
        worst(one, vs=other)
    outputs = worst(one, vs=other, systems=["a", "b"])
    assert [entry.value for entry in outputs] == pytest.approx([-0.8, -0.1])


def test_a_metric_without_a_better_side_must_be_named_and_can_be_turned() -> None:
    run = make_run(size={"a": [3.0, 1.0, 2.0]})
    with raises_code(RunError, "missing_value", "size"):
        worst(run)
    assert [entry.value for entry in worst(run, metric="size")] == [1.0, 2.0, 3.0]
    assert [entry.value for entry in worst(run, metric="size", lower_is_better=["size"])] == [3.0, 2.0, 1.0]


def test_only_the_named_systems_are_ranked() -> None:
    run = make_run(quality={"a": [0.9, 0.8], "b": [0.1, 0.2], "c": [0.5, 0.4]})
    assert shown(worst(run, systems=["c", "a"])) == [("1", "c"), ("0", "c"), ("1", "a"), ("0", "a")]
    with raises_code(RunError, "unknown_name", "'d'"):
        worst(run, systems=["d"])


@pytest.mark.parametrize(
    ("arguments", "code", "values"),
    [
        ({"n": 0}, "invalid_value", ["0"]),
        ({"by": "scores"}, "unknown_name", ["'scores'", "'score'"]),
        ({"vs": "b", "by": "people"}, "conflict", ["'people'"]),
        ({"vs": "x"}, "unknown_name", ["'x'"]),
        ({"vs": "b", "order": "loss"}, "unknown_name", ["'loss'", "'losses'"]),
        ({"order": "losses"}, "missing_value", ["`vs`"]),
        ({"by": "disagreement", "metric": ["quality"]}, "invalid_value", ["quality"]),
        ({"metric": ["quality", "errors"]}, "missing_value", ["quality, errors"]),
        ({"by": "difference", "systems": ["a"], "lower_is_better": ["z"]}, "conflict", ["lower_is_better", "'z'"]),
        ({"by": "people"}, "no_data", ["texts="]),
        ({"by": "people", "texts": [{"item": "0", "system": "a", "output": "o"}]}, "no_data", []),
        ({"metric": "qualify"}, "unknown_name", ["'qualify'", "'quality'"]),
    ],
)
def test_what_cannot_be_ranked_is_refused(arguments: dict[str, Any], code: ErrorCode, values: list[str]) -> None:
    run = make_run(quality={"a": [0.1, 0.2], "b": [0.2, 0.1]}, errors={"a": [1.0, 2.0], "b": [3.0, 4.0]})
    with raises_code(RunError, code, *values):
        worst(run, **arguments)


def test_what_did_not_get_worse_is_said() -> None:
    run = make_run(quality={"a": [0.1, 0.5], "b": [0.2, 0.5]}, size={"a": [1.0, 2.0], "b": [2.0, 1.0]})
    outputs = worst(run, metric="quality", systems=["b"], vs="a")
    assert not outputs.entries
    assert outputs.title == "Of 2 items, those where b loses most against a by quality"
    assert "b is worse than a on no item; `order=gains` and `order=both` show the others" in outputs.notes
    assert [e.value for e in worst(run, metric="quality", systems=["b"], vs="a", order="gains")] == pytest.approx([0.1])
    with raises_code(RunError, "conflict", "better"):
        worst(run, metric="size", vs="b", order="losses")
    assert [entry.value for entry in worst(run, metric="size", vs="b")] == [-1.0, 1.0]
    turned = worst(run, metric="size", vs="b", lower_is_better=["size"])
    assert [entry.outputs[0].item for entry in turned] == ["1"]  # size 2 of a against 1 of b


def test_the_items_of_two_runs_are_counted_once() -> None:
    new = make_run(quality={"a": [0.1, 0.2], "b": [0.3, 0.4]})
    old = make_run(quality={"a": [0.2, 0.3], "b": [0.1, 0.5]})
    assert worst(new, vs=old).title.startswith(
        "Of 2 items × 2 systems, those where this run loses most against the other run"
    )


def test_a_metric_that_some_outputs_still_lack_does_not_rank_by_default(tmp_path: Path) -> None:
    rows = [{"item": str(i), "output": "x" * i, "references": ["xx"]} for i in range(1, 4)]
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    score(tmp_path / "a.jsonl", ["chrf"], out=tmp_path / "run")
    score([tmp_path / "a.jsonl", tmp_path / "b.jsonl"], ["rougeL"], out=tmp_path / "run")
    outputs = worst(tmp_path / "run")
    assert "by rougeL" in outputs.title
    assert any("by rougeL, the first metric that was applied to all outputs" in note for note in outputs.notes)
    assert len(outputs.notes) == len(set(outputs.notes))


def test_a_difference_takes_two_systems() -> None:
    run = make_run(quality={"a": [0.1], "b": [0.2], "c": [0.3]})
    with raises_code(RunError, "missing_value", "b, c, a"):
        worst(run, vs="a")
    assert len(worst(run, vs="b", systems=["a"])) == 1


def test_scores_are_shown_without_texts_and_the_reason_is_noted(tmp_path: Path) -> None:
    rows = [{**row, "errors": [{"aspect": "style", "text": "word"}]} for row in rated_rows()]
    file = tmp_path / "in.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    score(file, ["rougeL"], out=tmp_path / "run", texts=False)
    score(file, ["rougeL"], out=tmp_path / "whole")
    file.rename(tmp_path / "other.jsonl")
    outputs = worst(tmp_path / "run", 3)
    assert [entry.outputs[0].record for entry in outputs] == [None] * 3
    assert all(entry.outputs[0].ratings and entry.outputs[0].errors for entry in outputs)
    people = [entry.outputs[0].item for entry in worst(tmp_path / "run", 3, by="people")]
    assert people == [entry.outputs[0].item for entry in worst(tmp_path / "whole", 3, by="people")]
    assert any("texts are not shown" in note and "in.jsonl" in note for note in outputs.notes)
    # Files that are named must be there.
    with raises_code(InputError, "missing_file", "nothing.jsonl"):
        worst(tmp_path / "run", 3, texts=tmp_path / "nothing.jsonl")
    read: list[int] = []
    named = worst(tmp_path / "run", 3, texts=tmp_path / "other.jsonl", progress=lambda done, _: read.append(done))
    assert read[0] == 0
    assert all(entry.outputs[0].record for entry in named)


def test_texts_of_other_outputs_are_counted_as_missing() -> None:
    run = make_run(quality={"a": [0.1, 0.2]})
    outputs = worst(run, texts=[{"item": "0", "system": "a", "output": "here"}])
    assert "1 of 2 outputs has no texts in the files that were read" in outputs.notes


def test_files_that_moved_or_changed_are_told(tmp_path: Path) -> None:
    rows = rated_rows()
    file = tmp_path / "data" / "in.jsonl"
    file.parent.mkdir()
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    score(file, ["rougeL"], out=tmp_path / "run", texts=False)
    rows[0]["output"] = "another text"
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    file.unlink()
    outputs = worst(tmp_path / "run", 40)
    assert any("has moved since it was scored" in note for note in outputs.notes)
    assert any("has changed since it was scored" in note for note in outputs.notes)
    (shown,) = [entry.outputs[0] for entry in outputs if entry.outputs[0].item == "0"]
    assert shown.record is None


def test_an_item_that_is_a_whole_article_is_shown_by_its_first_words_and_kept_whole_in_data() -> None:
    article = " ".join(f"word{n}" for n in range(400))
    rows = [
        {"source": f"{name} {article}", "system": name + str(n), "output": str(n), "references": ["2"]}
        for name in ("One", "Two")
        for n in range(2)
    ]
    results = score(rows, ["rougeL"], item_key="source")
    outputs = worst(results, 4)
    label = "Two word0 word1 word2 word3 word4 word5 word6 word7 word8 … (number 2)"
    assert f"item {label} · system Two1" in outputs.text()
    assert f"item {label} · system Two1" in outputs.render("html")
    # Besides the shortened source.
    assert outputs.text().count("word9") == outputs.text().count("source:")
    assert {row["item"] for row in outputs.rows()} == {f"One {article}", f"Two {article}"}
    assert set(results.items) == {f"One {article}", f"Two {article}"}
