"""`prefer`: pairs, choices, win rates and agreement. Rates are counted by hand, or by brute force over the rows."""

from __future__ import annotations

import json
import lzma
from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit

import metrist
from error_codes import raises_code
from metrist import Metric, Record, Score
from metrist.errors import NeedsError, RunError
from metrist.io import read_records
from metrist.metrics.comparator import Comparator, Judgment
from metrist.run.prefer import pair_records
from run_contents import write_rows


@dataclass(frozen=True)
class Longer(Comparator):
    """Prefers the longer output; an empty one cannot be judged."""

    def prefer(self, pairs):
        CALLS.append(len(pairs))
        return [self._one(len(pair.first.output), len(pair.second.output)) for pair in pairs]

    def _one(self, first, second):
        if not first or not second:
            return Judgment(failure="an output is empty")
        if first == second:
            return Judgment(preference="tie", flipped=True)
        return Judgment(preference="first" if first > second else "second", flipped=False, explanation="it is longer")

    def observations(self, judgments):
        return [f"{len(judgments)} lengths were compared"]


CALLS: list[int] = []
ROWS = [
    {"item": str(item), "system": system, "output": "x" * length}
    for item in range(4)
    for system, length in (("a", 3), ("b", 2 + item % 2), ("c", 1))
]


def keys(preferred):
    return list(preferred.keys)


def test_all_systems_of_an_item_meet_in_the_order_of_the_data():
    shuffled = [ROWS[i] for i in (2, 0, 1, 5, 3, 4)]
    results = metrist.prefer(shuffled, [Longer()])
    assert keys(results) == [(i, x, y) for i in "01" for x, y in (("c", "a"), ("c", "b"), ("a", "b"))]


def test_a_baseline_meets_every_other_system_and_comes_first():
    results = metrist.prefer(ROWS, Longer(), baseline="b")
    assert keys(results)[:2] == [("0", "b", "a"), ("0", "b", "c")]
    assert len(results) == 8


def test_a_baseline_that_is_not_there_is_refused():
    with raises_code(RunError, "unknown_name", "'bb'", "'b'"):
        metrist.prefer(ROWS, Longer(), baseline="bb")


def test_a_limit_picks_the_same_pairs_every_time_and_no_system_always():
    many = [{**row, "item": f"{row['item']}-{i}"} for i in range(30) for row in ROWS]
    first, again = (keys(metrist.prefer(many, Longer(), limit_per_item=1)) for _ in range(2))
    assert first == again
    assert Counter(item for item, *_ in first) == Counter({row["item"]: 1 for row in many})
    met = Counter(both for _, *both_ in first for both in [tuple(both_)])
    assert set(met) == {("a", "b"), ("a", "c"), ("b", "c")}
    assert min(met.values()) > 20
    note = metrist.prefer(many, Longer(), limit_per_item=1).notes
    assert note == ("120 of 360 pairs were compared, as `limit_per_item` asks",)
    with raises_code(RunError, "invalid_value", "limit_per_item", "1", "0"):
        metrist.prefer(many, Longer(), limit_per_item=0)


PAIRS = [
    {"item": "1", "systems": ["a", "b"], "outputs": ["long one", "short"], "ratings": {"good": [1, 1, 2]}},
    {"item": "1", "systems": ["b", "c"], "outputs": ["short", "the longest"], "ratings": {"good": [1, 2]}},
    {"item": "1", "systems": ["b", "a"], "outputs": ["short", "long one"], "ratings": {"good": [1]}},
    {"item": "2", "systems": ["a", "b"], "outputs": ["x", "yy"], "ratings": {"good": [2], "brief": [1]}},
]


def test_pairs_that_the_data_give_are_taken_once_with_what_most_people_chose():
    results = metrist.prefer(PAIRS, Longer())
    assert keys(results) == [("1", "a", "b"), ("1", "b", "c"), ("2", "a", "b")]
    # Item 1, a and b: two for a, one for b, and one for b shown first: undecided.
    assert results.human == {"good": ("tie", "tie", "second"), "brief": (None, None, "first")}
    good, brief = results.agreement()
    assert (good.pairs, good.value, good.chance) == (3, pytest.approx(1 / 3), pytest.approx(1 / 6))
    assert (brief.pairs, brief.value) == (1, 0.0)


def test_the_note_on_people_counts_the_pairs_of_every_comparator():
    """By hand: three pairs, two of which people decided; the second comparator cannot judge the pair of item 2."""
    (note,) = [note for note in metrist.prefer(PAIRS, Longer()).comparator_table().notes if "good" in note]
    assert note.endswith("chose as most people did, of 3; a coin would reach 0.167.")
    assert "a tie is a miss where people prefer one" in note
    rows = [*PAIRS[:3], {**PAIRS[3], "outputs": ["", "yy"]}]
    results = metrist.prefer(rows, [Longer(), "by_score(metric=length, better='higher')"])
    (note,) = [note for note in results.comparator_table().notes if "good" in note]
    counts = {row.comparator: (row.pairs, f"{row.chance:.3f}") for row in results.agreement() if row.aspect == "good"}
    assert sorted(pairs for pairs, _ in counts.values()) == [2, 3]
    assert note.endswith(": " + ", ".join(f"{name} {n} and {coin}" for name, (n, coin) in counts.items()) + ".")


def test_all_pairs_can_be_asked_for_where_the_data_give_some():
    assert len(metrist.prefer(PAIRS, Longer(), pairs="all")) == 4
    with raises_code(RunError, "no_data", "'systems'", "'outputs'"):
        metrist.prefer(ROWS, Longer(), pairs="given")
    with raises_code(RunError, "invalid_value", "baseline"):
        metrist.prefer(PAIRS, Longer(), pairs="given", baseline="a")
    with raises_code(RunError, "invalid_value", "'given'", "'all'", "'some'"):
        metrist.prefer(PAIRS, Longer(), pairs="some")


def test_items_of_one_system_have_no_pair_and_are_counted():
    results = metrist.prefer([*ROWS, {"item": "9", "system": "a", "output": "x"}], Longer())
    assert results.notes == ("1 of 5 items has an output of one system only, and no pair",)
    with raises_code(RunError, "no_data", "compare"):
        metrist.prefer(ROWS[:1], Longer())


def test_win_rates_count_a_tie_as_half_and_strengths_follow():
    results = metrist.prefer(ROWS, Longer())
    rates = {row.system: row for row in results.win_rates(draws=200)}
    # b is as long as a in items 1 and 3, shorter in 0 and 2.
    assert [(r.won, r.tied, r.lost) for r in rates.values()] == [(6, 2, 0), (4, 2, 2), (0, 0, 8)]
    assert [r.value for r in rates.values()] == [7 / 8, 5 / 8, 0.0]
    assert rates["a"].low <= rates["a"].value <= rates["a"].high
    assert "strengths are not determined: some systems never lost" in results.table().text()
    equal = metrist.prefer([{**row, "output": "same"} for row in ROWS], Longer()).table().text()
    assert "strengths are not determined: every comparison is a tie" in equal
    mixed = metrist.prefer(
        [*ROWS, {"item": "9", "system": "a", "output": "x"}, {"item": "9", "system": "c", "output": "xx"}], Longer()
    )
    strengths = [row.strength for row in mixed.win_rates()]
    assert strengths[0] > strengths[1] > strengths[2]


@dataclass(frozen=True)
class ByColumn(Comparator):
    """Chooses what a column of the record says."""

    def prefer(self, pairs):
        return [Judgment(preference=pair.first.extra["choice"]) for pair in pairs]


def test_the_length_free_win_rate_is_that_of_a_logistic_regression_at_equal_lengths():
    """scipy's optimum of the choice given the difference of log lengths, which a comparator likes, without ties."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 200, size=(120, 2))
    differences = np.log1p(sizes[:, 0]) - np.log1p(sizes[:, 1])
    bounded = np.tanh(differences / np.sqrt((differences**2).mean()))
    won = rng.random(120) < expit(-0.5 + 1.5 * bounded)
    rows = [
        {"item": str(item), "system": system, "output": "x" * int(size), "choice": "first" if first else "second"}
        for item, (first, both) in enumerate(zip(won, sizes, strict=True))
        for system, size in zip("ab", both, strict=True)
    ]
    signs = np.where(won, 1, -1)
    fitted = minimize(lambda at: np.logaddexp(0, -signs * (at[0] + at[1] * bounded)).sum(), np.zeros(2)).x
    results = metrist.prefer(rows, ByColumn())
    a, b = results.win_rates()
    assert a.value == won.mean()
    assert a.length_free == pytest.approx(expit(fitted[0]), abs=1e-4)
    assert b.length_free == pytest.approx(1 - a.length_free)
    assert a.length_free_low < a.length_free < a.length_free_high < a.value + 0.1
    assert "length-free" in results.table().text()


@dataclass(frozen=True)
class PartMetric(Metric):
    """The length of an output; without length, what a column says."""

    aspect_parts: ClassVar = {"length_free": (0.0, 1.0)}
    higher_is_better = True

    def score_record(self, record):
        return Score(value=float(len(record.output)), parts={"length_free": record.extra["quality"]})


def test_a_metric_with_a_length_free_part_chooses_by_it_and_a_resumed_run_does_too(tmp_path):
    """By hand: b is longer in every item, and better without length in two of four, equal in one."""
    rows = [
        {"item": str(item), "system": system, "output": output, "quality": quality}
        for item, values in enumerate([(0.1, 0.9), (0.2, 0.4), (0.5, 0.5), (0.8, 0.3)])
        for system, output, quality in zip("ab", ("x", "xx"), values, strict=True)
    ]
    for _ in range(2):
        a, b = metrist.prefer(rows, PartMetric(), out=tmp_path / "run").win_rates()
        assert (a.value, b.value) == (0.0, 1.0)
        assert (a.length_free, b.length_free) == (3 / 8, 5 / 8)
        assert a.length_free_low < a.length_free < a.length_free_high


def test_choices_that_length_decides_alone_have_no_length_free_win_rate():
    results = metrist.prefer(ROWS, "by_score(metric=length(unit='characters'), better='higher')")
    assert all(np.isnan(row.length_free) for row in results.win_rates())
    assert "length-free" not in results.table().text()


def test_flips_and_ties_are_shares_of_the_judged_pairs():
    (row,) = metrist.prefer(ROWS, Longer()).summaries(draws=200)
    assert (row.pairs, row.judged) == (12, 12)
    assert (row.ties, row.flips) == (pytest.approx(1 / 6), pytest.approx(1 / 6))
    assert row.flips_low <= row.flips <= row.flips_high


def test_a_pair_that_fails_is_data_and_bounds_the_win_rate():
    rows = [*ROWS, {"item": "9", "system": "a", "output": ""}, {"item": "9", "system": "b", "output": "x"}]
    results = metrist.prefer(rows, Longer())
    a = results.win_rates()[0]
    assert (a.failed, a.worst, a.best) == (1, pytest.approx(7 / 9), pytest.approx(8 / 9))
    text = results.table().text()
    assert "own_metrics" not in text
    assert "1 of 13 pairs not judged, such as: an output is empty" in text
    assert "13 lengths were compared" in text
    assert list(results.rows())[-1]["failure"] == "an output is empty"


def test_pairs_that_all_fail_are_written_with_their_reasons_before_the_run_ends(tmp_path):
    rows = [{"item": str(i), "system": s, "output": ""} for i in range(2) for s in "ab"]
    for out in (tmp_path / "prefs.jsonl", tmp_path / "folder"):
        with raises_code(RunError, "metric_failed", "all 2 pairs", out):
            metrist.prefer(rows, Longer(), out=out)
    for file in (tmp_path / "prefs.jsonl", *(tmp_path / "folder" / "exports").glob("*.jsonl")):
        assert [json.loads(line)["failure"] for line in file.read_text().splitlines()] == ["an output is empty"] * 2


def test_a_comparator_that_the_data_cannot_serve_is_refused_at_once():
    with raises_code(NeedsError, "missing_field", "'0'", "'a'"):
        metrist.prefer(ROWS, "rougeL")


def test_a_pair_that_lacks_what_is_needed_fails_alone():
    with_references = [{**row, "references": ["xxx"]} for row in ROWS[:3]]
    results = metrist.prefer([*with_references, *ROWS[3:]], "rougeL")
    assert [judgment.failure is None for judgment in results.judgments["by_score(metric=rougeL)"]] == [True] * 3 + [
        False
    ] * 9


@dataclass(frozen=True)
class Broken(Comparator):
    how: str = "raises"

    def prefer(self, pairs):
        if self.how == "raises":
            raise ZeroDivisionError("division by zero")
        return [Judgment(preference="tie")] * (len(pairs) + 1)


def test_a_comparator_that_breaks_is_named():
    with raises_code(RunError, "metric_failed", "12", "'0'", "'a'"):
        metrist.prefer(ROWS, Broken())
    with raises_code(RunError, "invalid_value", "12"):
        metrist.prefer(ROWS, Broken(how="too many"))
    with raises_code(RunError, "missing_value"):
        metrist.prefer(ROWS, [])


def test_shards_keep_an_items_pairs_together_and_progress_is_reported():
    CALLS.clear()
    calls = []
    metrist.prefer(ROWS, Longer(), shard_size=4, progress=lambda done, total: calls.append((done, total)))
    assert CALLS == [6, 6]
    assert calls == [(6, 12), (12, 12)]


def test_a_file_of_preferences_reads_back_and_meta_takes_its_choices(tmp_path):
    out = tmp_path / "prefs.jsonl.gz"
    results = metrist.prefer(PAIRS, Longer(), out=out)
    entries = list(read_records(out).entries())
    assert [entry.choices[0].choice for entry in entries] == ["first", "second", "second"]
    assert entries[0].choices[0].metric == "test_prefer.Longer"
    assert entries[0].keys == (("1", "a"), ("1", "b"))
    human = write_rows(tmp_path / "human.jsonl", PAIRS)
    evaluation = metrist.meta_evaluate([human, out], preferences=True, measures="accuracy", draws=100)
    values = {(figure.aspect, figure.metric): figure.value for figure in evaluation.figures}
    assert values["good", "test_prefer.Longer"] == pytest.approx(results.agreement()[0].value)


def test_failed_pairs_are_written_and_read_as_no_choice(tmp_path):
    rows = [*ROWS, {"item": "9", "system": "a", "output": ""}, {"item": "9", "system": "b", "output": "x"}]
    metrist.prefer(rows, Longer(), out=tmp_path / "p.jsonl")
    last = json.loads((tmp_path / "p.jsonl").read_text().splitlines()[-1])
    assert last == {
        "item": "9",
        "systems": ["a", "b"],
        "comparator": "test_prefer.Longer",
        "choice": None,
        "explanation": None,
        "failure": "an output is empty",
        "failure_kind": "other",
    }
    assert list(read_records(tmp_path / "p.jsonl").entries())[-1].choices == ()


def test_a_folder_is_resumed_and_nothing_is_judged_again_unless_it_changed(tmp_path):
    CALLS.clear()
    first = metrist.prefer(ROWS, [Longer(), "by_score(metric=length, better='higher')"], out=tmp_path / "run")
    again = metrist.prefer(ROWS, [Longer()], out=tmp_path / "run")
    assert sum(CALLS) == 12
    assert list(again.judgments["test_prefer.Longer"]) == list(first.judgments["test_prefer.Longer"])
    metrist.prefer(ROWS[:-1], [Longer()], out=tmp_path / "run")
    assert sum(CALLS) == 12
    with_failure = [*ROWS, {"item": "9", "system": "a", "output": ""}, {"item": "9", "system": "b", "output": "x"}]
    for _ in range(2):
        metrist.prefer(with_failure, [Longer()], out=tmp_path / "run")
    assert sum(CALLS) == 13


@dataclass(frozen=True)
class ByExtra(Comparator):
    """Prefers the output whose record has the larger `length` field."""

    def prefer(self, pairs):
        leads = [pair.first.extra["length"] - pair.second.extra["length"] for pair in pairs]
        return [Judgment(preference="first" if lead > 0 else "second" if lead < 0 else "tie") for lead in leads]


def test_a_torn_file_in_the_folder_is_made_anew(tmp_path):
    metrist.prefer(ROWS, [Longer()], out=tmp_path)
    (file,) = (tmp_path / "exports").glob("*.jsonl")
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    CALLS.clear()
    metrist.prefer(ROWS, [Longer()], out=tmp_path)
    assert CALLS == []
    assert file.read_bytes() == content
    (part,) = (tmp_path / "judgments").rglob("*.parquet")
    part.write_bytes(part.read_bytes()[:-20])
    assert any("set aside" in note for note in metrist.prefer(ROWS, [Longer()], out=tmp_path).notes)
    assert sum(CALLS) == 12
    assert file.read_bytes() == content


def test_a_change_of_extra_fields_is_judged_again(tmp_path):
    """The hash of pairs once left `extra` out, so that a comparator that reads it got stale choices."""
    rows = [{**row, "length": len(row["output"])} for row in ROWS]
    metrist.prefer(rows, ByExtra(), out=tmp_path)
    turned = [{**row, "length": -len(row["output"])} for row in ROWS]
    fresh = metrist.prefer(turned, ByExtra())
    again = metrist.prefer(turned, ByExtra(), out=tmp_path)
    assert again.judgments == fresh.judgments


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_asked(tmp_path):
    CALLS.clear()
    with raises_code(RunError, "invalid_value", "p.csv"):
        metrist.prefer(ROWS, Longer(), out=tmp_path / "p.csv")
    data = write_rows(tmp_path / "data.jsonl", ROWS)
    with raises_code(RunError, "cannot_write", "data.jsonl"):
        metrist.prefer(data, Longer(), out=data)
    assert CALLS == []


def test_rows_of_two_without_outputs_find_their_texts_in_other_rows():
    rows = [*ROWS[:3], {"item": "0", "systems": ["c", "a"], "ratings": {"good": "second"}}]
    results = metrist.prefer(rows, Longer())
    assert keys(results) == [("0", "c", "a")]
    assert results.agreement()[0].value == 1.0
    with raises_code(metrist.InputError, "invalid_row", "'outputs'"):
        metrist.prefer([{"item": "0", "systems": ["a", "b"]}], Longer())


def test_a_file_of_choices_alone_holds_nothing_to_compare(tmp_path):
    metrist.prefer(PAIRS, Longer(), out=tmp_path / "p.jsonl")
    with raises_code(RunError, "no_data", "p.jsonl"):
        pair_records(read_records(tmp_path / "p.jsonl"))


def test_on_pandalm_lengths_agree_with_people_as_often_as_brute_force_counts(data):
    path = data("pandalm")
    agreement = metrist.prefer(path, "by_score(metric=length(unit='characters'), better='higher')").agreement(
        draws=100
    )[0]
    rows = [json.loads(line) for line in lzma.decompress(path.read_bytes()).splitlines()]
    right = 0
    for row in rows:
        votes = Counter(row["ratings"]["preference"]).most_common(2)
        human = 0 if len(votes) == 2 and votes[0][1] == votes[1][1] else votes[0][0]
        first, second = (len(str(output)) for output in row["outputs"])
        right += human == (1 if first > second else 2 if second > first else 0)
    assert agreement.pairs == 999
    assert agreement.value == pytest.approx(right / 999, abs=1e-12)


def test_to_pandas_has_a_row_per_pair_and_comparator():
    frame = metrist.prefer(ROWS, Longer()).to_pandas()
    assert frame.shape[0] == 12
    assert set(frame["choice"]) == {"first", "tie"}


def test_records_can_be_given_as_objects():
    records = [Record(item="1", system=system, output=output) for system, output in (("a", "xx"), ("b", "x"))]
    results = metrist.prefer(records, Longer())
    assert [judgment.preference for judgment in results.judgments["test_prefer.Longer"]] == ["first"]
    assert repr(results) == "PreferenceResults(1 pair, comparators: test_prefer.Longer)"


def test_stored_choices_lead_to_the_records_of_the_run(tmp_path):
    metrist.score(ROWS, ["length"], out=tmp_path / "run")
    metrist.prefer(ROWS, Longer(), out=tmp_path / "run/")
    joined = metrist.open_run(tmp_path / "run").query(
        "SELECT p.item, p.first, p.second, a.output AS one, b.output AS other FROM pairs p "
        "JOIN records a ON a.record = p.first_record JOIN records b ON b.record = p.second_record"
    )
    texts = {(row["item"], row["system"]): row["output"] for row in ROWS}
    rows = joined.to_pylist()
    assert len(rows) == len(ROWS)
    for row in rows:
        assert (row["one"], row["other"]) == (texts[row["item"], row["first"]], texts[row["item"], row["second"]])
