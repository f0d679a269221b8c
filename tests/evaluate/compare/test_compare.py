from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from run_builder import METRICS, make_run, noisy
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.significance import PairedTest, Result

import metrist
from error_codes import raises_code
from metrist.errors import ErrorCode, RunError
from metrist.evaluate.compare.comparison import compare
from metrist.metrics.base import Metric
from metrist.records import Record
from metrist.report.cells import find_best
from metrist.scores import Failure, FailureKind, Score
from metrist.stats.resampling import Test
from metrist.stats.significance import holm
from paired_tests import paired_bootstrap, paired_randomisation

THREE = {"a": noisy(0.6, 1), "b": noisy(0.5, 2), "c": noisy(0.5, 3)}


def test_the_better_system_is_named_and_equals_are_not_separated() -> None:
    by_pair = {(c.first, c.second): c for c in compare(make_run(quality=THREE), draws=2000).contests}
    assert list(by_pair) == [("a", "b"), ("a", "c"), ("b", "c")]
    assert by_pair["a", "b"].verdict == by_pair["a", "c"].winner == "a"
    assert by_pair["b", "c"].winner is None
    assert by_pair["b", "c"].verdict == "not separated"
    contest = by_pair["a", "b"]
    assert contest.test.first == pytest.approx(np.mean(THREE["a"]))
    assert contest.test.difference == contest.test.first - contest.test.second
    assert contest.test.low < contest.test.difference < contest.test.high
    assert (contest.items, contest.left_out) == (80, 0)


def test_numbers_equal_those_of_the_tests_on_each_pair() -> None:
    comparison = compare(make_run(quality=THREE), draws=500, seed=9)
    rows = {name: np.stack([values, np.ones(80)], axis=1) for name, values in THREE.items()}
    pool = METRICS["quality"].pool
    tests: dict[Test, Callable[..., Any]] = {"bootstrap": paired_bootstrap, "randomisation": paired_randomisation}
    for test, function in tests.items():
        alone = []
        for contest in comparison.contests:
            rng = np.random.default_rng(9).spawn(2)[test == "randomisation"]
            result = function(rows[contest.first], rows[contest.second], pool, 500, rng)
            alone.append(getattr(result, "p", result))
            assert contest.test.p[test] == alone[-1]
        assert [contest.adjusted[test] for contest in comparison.contests] == holm(alone).tolist()


def test_scores_far_from_0_have_the_p_values_of_the_same_scores_near_0() -> None:
    # Multiples of 2^-12, so that adding 2^40 rounds nothing.
    near = {name: (np.round(np.array(values) * 2**12) / 2**12).tolist() for name, values in THREE.items()}
    far = {name: [value + 2.0**40 for value in values] for name, values in near.items()}
    for one, other in zip(compare(make_run(errors=near)).contests, compare(make_run(errors=far)).contests, strict=True):
        assert other.test.p == one.test.p
        assert other.test.first == one.test.first + 2.0**40
        assert other.test.difference == pytest.approx(one.test.difference, rel=1e-12)
    assert [contest.winner for contest in compare(make_run(errors=far)).contests] == ["b", "c", None]


def test_all_that_are_not_significantly_worse_than_the_best_are_bold() -> None:
    scores = {"a": noisy(0.4, 1), "b": noisy(0.5, 2), "c": noisy(0.5, 3)}
    comparison = compare(make_run(quality=scores, errors=scores, size=scores), draws=500)
    assert len({np.mean(values) for values in scores.values()}) == 3
    table = comparison.system_table()
    assert find_best(table.columns, table.rows) == {(1, 1), (2, 1), (0, 2)}
    equals = compare(make_run(quality={"b": scores["b"], "c": scores["c"]}), draws=500).system_table()
    assert not find_best(equals.columns, equals.rows)


@dataclass(frozen=True)
class Length(Metric):
    """The length, as `Both` has it among its parts where there are at least three characters."""

    catalog_name = "length_of"
    higher_is_better = True

    def score_record(self, record: Record) -> Score:
        return Score(value=len(record.output))


@dataclass(frozen=True)
class Both(Metric):
    catalog_name = "both"
    higher_is_better = True

    @property
    def aspect_parts(self) -> dict[str, tuple[float, float]]:
        return {"length": (0.0, math.inf), "vowels": (0.0, math.inf)}

    def score_record(self, record: Record) -> Score:
        length, vowels = len(record.output), sum(letter in "aeiou" for letter in record.output)
        return Score(value=length + vowels, parts={"length": length, "vowels": vowels} if length > 2 else {})


def test_a_part_that_another_metric_gives_is_compared_once() -> None:
    rows = [
        {"item": str(item), "system": system, "output": "ab"[: item % 3] + "x" * (item % 5) + "e" * shift}
        for item in range(30)
        for shift, system in enumerate("ab")
    ]
    results = metrist.score(rows, [Length(), Both()])
    comparison = compare(results, draws=100)
    assert [metric.label for metric in comparison.metrics] == ["length_of", "both", "both:vowels"]
    assert any(note.startswith("both:length ") for note in comparison.notes)
    assert [metric.label for metric in compare(results, metrics="both:length", draws=100).metrics] == ["both:length"]


@dataclass(frozen=True)
class Halved(Metric):
    """Half of its only part."""

    catalog_name = "halved"
    higher_is_better = True

    @property
    def aspect_parts(self) -> dict[str, tuple[float, float]]:
        return {"length": (0.0, math.inf)}

    def score_record(self, record: Record) -> Score:
        return Score(value=len(record.output) / 2, parts={"length": len(record.output)})


def test_the_only_part_of_a_metric_is_not_compared_beside_it() -> None:
    rows = [
        {"item": str(i), "system": system, "output": "x" * (i + (system == "b"))} for i in range(9) for system in "ab"
    ]
    results = metrist.score(rows, Halved())
    assert [metric.label for metric in compare(results, draws=100).metrics] == ["halved"]
    assert [metric.label for metric in compare(results, metrics="halved:length", draws=100).metrics] == [
        "halved:length"
    ]


def test_a_metric_without_any_score_has_a_table() -> None:
    comparison = compare(make_run(errors={"a": [None] * 5, "b": [None] * 5}), draws=100)
    assert comparison.contests[0].verdict == "not tested"
    assert comparison.system_table().to_dict()["rows"][0]["errors"]["value"] is None


def test_lower_wins_where_lower_is_better() -> None:
    comparison = compare(make_run(errors={"a": noisy(60, 1, spread=5), "b": noisy(50, 2, spread=5)}), draws=500)
    assert comparison.contests[0].winner == "b"
    assert "Lower is better: errors." in comparison.table().notes


def test_a_descriptive_metric_has_a_difference_and_no_winner() -> None:
    (contest,) = compare(make_run(size={"a": noisy(60, 1), "b": noisy(50, 2)}), draws=500).contests
    assert contest.test.difference > 9
    assert contest.winner is None
    assert contest.verdict == "(descriptive)"


def test_items_that_failed_for_one_of_the_two_are_left_out_and_counted() -> None:
    run = make_run(quality={"a": [None, *THREE["a"][1:]], "b": [*THREE["b"][:-1], None], "c": THREE["c"][:70]})
    comparison = compare(run, draws=200)
    assert [(c.items, c.left_out) for c in comparison.contests] == [(78, 2), (69, 11), (70, 10)]
    expected = np.mean(THREE["a"][1:79]) - np.mean(THREE["b"][1:79])
    assert comparison.contests[0].test.difference == pytest.approx(expected)
    note = "Items missing or failed for one of the two systems are left out: up to 11 of a pair."
    assert note in comparison.table().notes


def test_a_baseline_is_compared_with_every_other_system() -> None:
    run = make_run(quality=THREE)
    pairs = [(c.first, c.second) for c in compare(run, baseline="b", draws=100).contests]
    assert pairs == [("a", "b"), ("c", "b")]
    pairs = [(c.first, c.second) for c in compare(run, ["a"], baseline="b", draws=100).contests]
    assert pairs == [("a", "b")]


@pytest.mark.parametrize("test", ["bootstrap", "randomisation"])
def test_a_single_test_can_be_chosen(test) -> None:
    comparison = compare(make_run(quality=THREE), test=test, draws=500)
    assert set(comparison.contests[0].adjusted) == {test}
    assert comparison.contests[0].winner == "a"
    assert f"p {test[:4]}" in [column.name for column in comparison.table().columns]
    assert "A system is named as better when the p-value is at most 0.05." in comparison.table().notes


def test_systems_without_shared_items_are_not_tested() -> None:
    run = make_run(quality={"a": [0.5, None], "b": [None, 0.5]})
    (contest,) = compare(run, draws=50).contests
    assert contest.verdict == "not tested"
    assert math.isnan(contest.test.difference)
    table = compare(run, draws=50).table()
    assert "n/a" in table.text()
    # Both have both items: their names are not the reason.
    assert not any("share no item" in remark for remark in table.remarks)
    rows = [{"item": system * 2, "system": system, "output": "x", "references": ["x"]} for system in "ab"]
    remarks = compare(metrist.score(rows, ["chrf"]), draws=50).table().remarks
    assert remarks[-1] == "Systems that share no item are not tested: check that their rows name the items alike."


def test_several_runs_are_compared_when_they_were_scored_alike() -> None:
    first, second = make_run(quality={"a": THREE["a"]}), make_run(quality={"b": THREE["b"]})
    joint = compare(make_run(quality={"a": THREE["a"], "b": THREE["b"]}), draws=200).contests
    assert compare([first, second], draws=200).contests == joint
    with raises_code(RunError, "conflict", "run 1", "'quality | version 1'", "run 2", "'quality | version 2'"):
        compare([first, make_run(quality={"b": THREE["b"]}, signature="2")])
    forced = compare([first, make_run(quality={"b": THREE["b"]}, signature="2")], force=True)
    assert forced.notes[0].startswith("NOT COMPARABLE: quality was not computed alike")
    with raises_code(RunError, "conflict", "'a'", "1", "2"):
        compare([first, first])
    with raises_code(RunError, "too_little_data", "metric"):
        compare([first, make_run(errors={"b": THREE["b"]})])


JOINED = "Runs are joined by the names of their items."


def test_problems_of_the_runs_are_noted() -> None:
    run = replace(make_run(quality={"a": THREE["a"], "b": THREE["b"]}), notes=("ter is left out",))
    comparison = compare(run, draws=100)
    assert comparison.table().remarks[-1] == "ter is left out"
    assert comparison.to_dict()["notes"] == ["ter is left out"]
    both = compare([run, make_run(quality={"c": THREE["c"]})], draws=100)
    assert both.notes == (JOINED, "run 1: ter is left out")


def test_metrics_missing_from_a_run_are_noted_unless_some_were_chosen() -> None:
    runs = [
        make_run(quality={"a": THREE["a"]}, errors={"a": THREE["a"]}),
        make_run(quality={"b": THREE["b"]}, size={"b": THREE["b"]}),
    ]
    assert compare(runs, draws=100).notes == (JOINED, "Not scored in every run, so left out: errors, size.")
    assert compare(runs, metrics=["quality"], draws=100).notes == (JOINED,)


@pytest.mark.parametrize(
    ("options", "code", "values"),
    [
        ({"systems": ["a", "bb"]}, "unknown_name", ["'bb'", "'a', 'b', 'c'"]),
        ({"systems": ["a"]}, "too_little_data", ["'a'"]),
        ({"systems": "ab"}, "unknown_name", ["'ab'", "'a', 'b', 'c'"]),
        ({"systems": ["a,b"]}, "unknown_name", ["'a,b'", "a b,"]),
        ({"baseline": "cc"}, "unknown_name", ["'cc'"]),
        ({"metrics": ["qualty"]}, "unknown_name", ["'qualty'", "'quality'"]),
        ({"test": "bootstap"}, "unknown_name", ["'bootstap'", "'bootstrap'"]),
        ({"draws": 0}, "invalid_value", ["0 and 0.05"]),
        ({"alpha": 1.5}, "invalid_value", ["1.5"]),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], code: ErrorCode, values: list[str]) -> None:
    with raises_code(RunError, code, *values):
        compare(make_run(quality=THREE), **options)


def test_an_ambiguous_name_is_refused() -> None:
    run = make_run(strict=THREE, quality=THREE)
    assert compare(run, metrics=["quality"], draws=20).contests[0].metric.text == "quality"
    with raises_code(RunError, "conflict", "'quality(strict=True)', 'quality(scale=2)'"):
        compare(make_run(strict=THREE, scaled=THREE), metrics=["quality"])


def test_a_name_that_selects_other_settings_is_told() -> None:
    other = compare(make_run(strict=THREE), metrics=["quality"], draws=20)
    assert "quality selects quality(strict=True), the only metric of that name in the run." in other.notes
    exact = compare(make_run(strict=THREE, quality=THREE), metrics=["quality"], draws=20)
    assert not any("selects" in note for note in exact.notes)
    whole = compare(make_run(strict=THREE), metrics=["quality(strict=True)"], draws=20)
    assert not any("selects" in note for note in whole.notes)


def test_no_run_is_refused() -> None:
    with raises_code(RunError, "missing_value"):
        compare([])


def test_too_few_draws_and_too_few_items_are_noted() -> None:
    notes = compare(make_run(quality={name: values[:10] for name, values in THREE.items()}), draws=20).table().remarks
    assert "With 3 pairs, 20 draws cannot reach 0.05: use more draws." in notes
    assert any(note.startswith("Fewer than 30 items: the bootstrap's intervals") for note in notes)


def test_plain_data_is_json_without_nan() -> None:
    run = make_run(quality={"a": [0.5, None], "b": [None, 0.5]})
    data = json.loads(json.dumps(compare(run, draws=50).to_dict(), allow_nan=False))
    assert data["signatures"] == {"quality": "quality | version 1"}
    assert data["contests"][0]["p_bootstrap_holm"] is None
    assert data["contests"][0]["verdict"] == "not tested"


def test_the_table_reads_well() -> None:
    table = metrist.compare(make_run(quality={"a": [0.9, 0.8], "b": [0.1, 0.3]}), draws=99)
    lines = str(table).splitlines()
    assert lines[0] == "Which system is better"
    assert lines[2].split("  ")[0] == "metric"
    assert lines[4].startswith("quality  a  b      2    0.850    0.200  +0.650 [+0.500, +0.800]")
    assert "<table" in table._repr_html_()


def test_a_comparison_agrees_with_sacrebleu() -> None:
    rng = np.random.default_rng(4)
    words = ["the", "a", "cat", "dog", "sat", "ran", "on", "under", "mat", "log", "and", "then", "home", "away"]
    references = [" ".join(rng.choice(words, size=rng.integers(6, 14))) for _ in range(60)]
    outputs = {
        system: [" ".join(np.where(rng.random(len(r.split())) < share, "zzz", r.split())) for r in references]
        for system, share in (("a", 0.30), ("b", 0.36))
    }
    records = [
        {"item": str(i), "system": system, "output": output, "references": [references[i]]}
        for system, texts in outputs.items()
        for i, output in enumerate(texts)
    ]
    ours = compare(metrist.score(records, ["bleu", "chrf", "ter"], executor="serial"), draws=1000, test="randomisation")
    peers = {"bleu": BLEU(), "chrf": CHRF(), "ter": TER()}
    _, theirs = PairedTest(list(outputs.items()), peers, [references], "ar", 1000)()
    for contest, (first, second) in zip(ours.contests, list(theirs.values())[1:], strict=True):
        assert isinstance(first, Result)
        assert isinstance(second, Result)
        assert contest.test.first == pytest.approx(first.score, abs=1e-9)
        assert contest.test.difference == pytest.approx(first.score - second.score, abs=1e-9)
        p = second.p_value
        assert p is not None
        assert contest.test.p["randomisation"] == pytest.approx(p, abs=4 * math.sqrt(2 * p * (1 - p) / 1000) + 0.002)


FOUR = {"a": noisy(0.8, 1), "b": noisy(0.5, 2), "c": noisy(0.5, 3), "d": noisy(0.2, 4)}


def test_systems_share_a_letter_exactly_if_they_are_not_separated() -> None:
    comparison = compare(make_run(quality=FOUR, errors=FOUR), draws=500)
    table = comparison.system_table()
    assert [column.name for column in table.columns] == ["system", "quality", "errors"]
    assert [row[0] for row in table.rows] == list(FOUR)
    assert [row[1].marks for row in table.rows] == ["a", "b", "b", "c"]
    # Lower is better: the letter a belongs to the lowest.
    assert [row[2].marks for row in table.rows] == ["c", "b", "b", "a"]
    by_system = {row[0]: set(row[1].marks) for row in table.rows}
    for contest in comparison.contests:
        if contest.metric.name == "quality":
            assert bool(by_system[contest.first] & by_system[contest.second]) is not contest.differs
    assert table.rows[0][1].cell.value == pytest.approx(np.mean(FOUR["a"]))
    assert "share a letter" in table.notes[0]
    assert "Lower is better: errors." in table.notes


def test_letters_show_differences_of_descriptive_metrics_and_daggers_do_not() -> None:
    comparison = compare(make_run(size={"a": noisy(60, 1), "b": noisy(50, 2)}), draws=500)
    assert [row[1].marks for row in comparison.system_table().rows] == ["a", "b"]
    assert [row[1].marks for row in comparison.system_table("daggers").rows] == ["", ""]


def test_daggers_mark_what_differs_from_the_baseline_or_the_best() -> None:
    run = make_run(quality=FOUR)
    against = compare(run, draws=500, baseline="b").system_table()
    assert {row[0]: row[1].marks for row in against.rows} == {"a": "†", "b": "", "c": "", "d": "‡"}
    assert "† significantly better than b, ‡ significantly worse" in against.notes[0]
    best = compare(run, draws=500).system_table("daggers")
    assert [row[1].marks for row in best.rows] == ["", "†", "†", "†"]
    assert [row[1].marks for row in compare(run, draws=500).system_table("none").rows] == [""] * 4
    with raises_code(RunError, "conflict", "letters"):
        compare(run, draws=500, baseline="b").system_table("letters")


def test_the_baseline_is_in_the_table_of_systems_wherever_it_stands() -> None:
    table = compare(make_run(quality=FOUR), systems=["d", "a"], baseline="b", draws=200).system_table()
    assert [row[0] for row in table.rows] == ["d", "a", "b"]


def test_system_scores_have_the_intervals_of_the_run() -> None:
    run = make_run(quality=FOUR)
    cell = compare(run, draws=200).system_table().rows[0][1].cell
    own = run.system_scores()[0]
    assert (cell.value, cell.low, cell.high) == (own.value, own.low, own.high)
    assert str(cell) == f"{own.value:.3f}"


def test_a_system_without_scores_has_no_letter() -> None:
    table = compare(make_run(quality={**FOUR, "e": [None] * 80}), draws=200).system_table()
    assert [row[1].marks for row in table.rows] == ["a", "b", "b", "c", ""]
    assert str(table.rows[4][1]).strip() == "n/a"


def test_a_system_that_was_not_tested_has_no_letter() -> None:
    """It has a score on the first item only, so that it shares too few items with any other."""
    one = [0.9, *[None] * 79]
    table = compare(make_run(quality={**FOUR, "e": one}), draws=200).system_table()
    assert [(row[0], row[1].marks) for row in table.rows] == [("a", "a"), ("b", "b"), ("c", "b"), ("d", "c"), ("e", "")]
    alone = compare(make_run(quality={"a": FOUR["a"], "e": one}), draws=200).system_table()
    assert [row[1].marks for row in alone.rows] == ["", ""]


def test_tables_of_a_comparison_hold_the_signatures_and_what_to_cite() -> None:
    comparison = compare(make_run(quality=FOUR), draws=200, test="bootstrap")
    assert comparison.table().signatures == comparison.system_table().signatures
    assert comparison.table().signatures[0].text == "quality | version 1"
    text = comparison.bibliography()
    assert "koehn-2004-statistical" in text
    assert "piepho-2004-algorithm" in text
    assert "riezler" not in text
    assert text.endswith("% Nothing to cite is known for: quality")
    assert "piepho" not in compare(make_run(quality=FOUR), draws=200, baseline="a").bibliography()


def test_an_unfinished_metric_is_told_in_every_format() -> None:
    note = "size is left out, because it is not finished: run the same `metrist score` again"
    run = replace(make_run(quality=FOUR), notes=(note,), unfinished={"size": "size"})
    comparison = compare(run, draws=200)
    for table in (comparison.table(), comparison.system_table()):
        for form in ("text", "html", "json"):
            assert note in table.render(form)
        latex = table.render("latex")
        assert f"% Note: {note}" in latex
        assert latex.count("left out, because it") == 1  # Not also a footnote of the table.
    assert comparison.bibliography().startswith(f"% Note: {note}\n")
    with raises_code(RunError, "unfinished", "finished"):
        compare(run, metrics=["size"])
    with raises_code(RunError, "unknown_name", "'sise'"):
        compare(run, metrics=["sise"])


def test_a_single_pair_needs_no_correction_and_is_not_counted() -> None:
    note = compare(make_run(quality={"a": [0.1, 0.2, 0.3], "b": [0.3, 0.1, 0.2]}), draws=200).table().notes[0]
    assert note.endswith("are two-sided, from 200 draws.")
    assert "over the 6 pairs of each metric" in compare(make_run(quality=FOUR), draws=200).table().notes[0]


def test_a_system_that_a_metric_has_not_scored_whole_has_no_score() -> None:
    """The mean of the few outputs that an interrupted run has scored is not the system's score."""
    best_so_far = [0.9] * 4 + [None] * 76
    run = make_run(quality={"a": noisy(0.6, 1), "b": noisy(0.5, 2), "c": best_so_far})
    block = run.scores["quality"]
    pending = {row: Failure(FailureKind.pending, "not scored yet") for row in block.failures}
    comparison = compare(replace(run, scores={"quality": replace(block, failures=pending)}), draws=500)
    table = comparison.system_table()
    assert [row[1].cell.value for row in table.rows[:2]] == pytest.approx(
        [np.mean(noisy(0.6, 1)), np.mean(noisy(0.5, 2))]
    )
    assert math.isnan(table.rows[2][1].cell.value)
    assert "quality has not scored 76 outputs of c yet: no score is shown until it is finished." in table.remarks
    by_pair = {(contest.first, contest.second): contest for contest in comparison.contests}
    assert by_pair["a", "c"].items == 0
    assert by_pair["a", "b"].winner == "a"


@pytest.mark.parametrize("systems", [2, 3, 4])
def test_few_items_that_no_test_can_separate_are_told(systems: int) -> None:
    pairs = systems * (systems - 1) // 2
    for items in range(2, 11):
        # Brute force: of all exchanges of the items, how many differ as much as the most different systems do?
        totals = [abs(sum(signs)) for signs in product((1, -1), repeat=items)]
        can_differ = pairs * np.mean([total == items for total in totals]) <= 0.05
        run = make_run(quality={str(s): [s / 4] * items for s in range(systems)})
        comparison = compare(run, draws=20_000)
        expected = set() if can_differ else {f"cannot be separated with {items} items"}
        verdicts = {contest.verdict for contest in comparison.contests}
        assert {verdict for verdict in verdicts if verdict.startswith("cannot")} == expected
        assert ("is significant at 0.05, however large" in str(comparison)) is (not can_differ)
        # The bootstrap has no such limit.
        assert not any("cannot" in contest.verdict for contest in compare(run, test="bootstrap", draws=500).contests)


def test_an_input_that_has_changed_is_noted(tmp_path) -> None:
    path = tmp_path / "outputs.jsonl"
    rows = [{"item": str(i), "system": s, "output": f"{s} {i}", "references": ["a 1"]} for i in range(6) for s in "ab"]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    metrist.score(path, "exact", out=tmp_path / "run")
    assert not compare(tmp_path / "run", draws=100).notes
    path.write_text(path.read_text().replace("b 3", "garbage").replace("b 4", "garbage"))
    (note,) = compare(tmp_path / "run", draws=100).notes
    assert "outputs.jsonl has changed since it was scored: 2 outputs differ; score it again with `" in note


def test_progress_counts_the_draws_of_both_tests() -> None:
    calls: list[tuple[int, int, str]] = []
    compare(
        make_run(quality=THREE),
        draws=500,
        progress=lambda done, total, metric: calls.append((done, total, metric)),
    )
    assert calls[0] == (0, 1000, "quality")
    assert calls[-1] == (1000, 1000, "quality")
    assert [done for done, *_ in calls] == sorted(done for done, *_ in calls)
