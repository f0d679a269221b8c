"""Pairs of texts by direction, their reduction to records, and prompts."""

from __future__ import annotations

import re

import numpy as np
import pytest

from metrist.errors import SpecError
from metrist.metrics.likelihood.layout import (
    DIRECTIONS,
    NEEDS,
    SETS,
    collect_pairs,
    insert_phrase,
    prompt_facts,
    read_phrases,
)
from metrist.records import Record


def record(output: str = "out", source: str | None = "src", references: tuple[str, ...] = ("r1", "r2")) -> Record:
    return Record(item="0", system="s", output=output, source=source, references=references)


@pytest.mark.parametrize(
    ("direction", "pairs"),
    [
        ("source->output", [[("src", "out")]]),
        ("reference->output", [[("r1", "out"), ("r2", "out")]]),
        ("output->reference", [[("out", "r1"), ("out", "r2")]]),
        ("f", [[("r1", "out"), ("r2", "out")], [("out", "r1"), ("out", "r2")]]),
    ],
)
def test_a_direction_says_what_is_given_and_what_is_scored(direction, pairs):
    assert list(collect_pairs([record()], direction).pairs) == pairs


def test_a_direction_needs_the_texts_that_it_looks_at():
    assert [NEEDS[direction] for direction in DIRECTIONS] == [
        ("source",),
        ("references",),
        ("references",),
        ("references",),
    ]


def test_references_may_be_ragged_and_come_back_to_their_records():
    pairs = collect_pairs(
        [record(references=("a",)), record(references=("b", "c", "d")), record()], "reference->output"
    )
    assert pairs.starts.tolist() == [0, 1, 4, 6]
    values = np.array([[-1.0, -2.0, -3.0, -7.0, -4.0, -2.0]])
    assert pairs.reduce(values, "mean")[0].tolist() == [-1, -4, -3]
    assert pairs.reduce(values, "native")[0].tolist() == [-1, -4, -3]
    assert pairs.reduce(values, "max")[0].tolist() == [-1, -2, -2]


def test_f_is_the_mean_of_both_ways_and_keeps_them_as_parts():
    pairs = collect_pairs([record(references=("a", "b"))], "f")
    values = np.array([[-1.0, -3.0], [-5.0, -1.0]])  # by reference: F is -3 and -2
    mean, parts = pairs.reduce(values, "mean")
    assert (mean.tolist(), parts["precision"].tolist(), parts["recall"].tolist()) == ([-2.5], [-2.0], [-3.0])
    best, parts = pairs.reduce(values, "max")
    assert (best.tolist(), parts["precision"].tolist(), parts["recall"].tolist()) == ([-2.0], [-3.0], [-1.0])


@pytest.mark.parametrize(
    ("direction", "changed", "reason"),
    [
        ("source->output", record(output=" \n"), "output is empty"),
        ("source->output", record(source=""), "source is empty"),
        ("f", record(output=""), "output is empty"),
        ("f", record(references=("",)), "reference is empty"),
        ("reference->output", record(references=("a", "\t")), "reference 2 is empty"),
    ],
)
def test_a_record_with_an_empty_text_fails_alone_and_says_which(direction, changed, reason):
    pairs = collect_pairs([record(), changed, record()], direction)
    assert list(pairs.failures) == [1]
    assert reason in pairs.failures[1]
    assert pairs.failures[1].kind == "missing_input"
    assert pairs.positions == [0, 2]


def test_texts_that_a_direction_does_not_look_at_may_be_empty():
    assert collect_pairs([record(references=("",))], "source->output").failures == {}
    assert collect_pairs([record(source="")], "f").failures == {}


def test_no_record_that_can_be_scored_leaves_no_pair():
    pairs = collect_pairs([record(output="")], "f")
    assert pairs.pairs == ([], [])
    assert pairs.reduce(np.empty((2, 0)), "max")[0].tolist() == []


def test_the_shipped_sets_have_the_sizes_of_the_paper():
    # Paper 002, Table 2: 70 phrases for source->output, 34 for both ways between output and reference.
    assert [len(read_phrases(name)) for name in SETS] == [70, 34]


@pytest.mark.parametrize("name", SETS)
def test_shipped_phrases_are_short_and_end_without_punctuation(name):
    # A comma is added where they are used, so that none may stand there already.
    for phrase in read_phrases(name):
        assert re.fullmatch(r"[a-z]+( [a-z]+){0,7}|i\.e\.", phrase), phrase


def test_the_two_sets_begin_with_their_seeds():
    assert [read_phrases(name)[0] for name in SETS] == ["in summary", "in other words"]


def test_a_phrase_stands_before_the_target_or_after_the_condition():
    # The forms of the authors' code: p + ", " + target, and condition + " " + p + ",".
    assert insert_phrase("a b.", "c", "in short", "target") == ("a b.", "in short, c")
    assert insert_phrase("a b.", "c", "in short", "condition") == ("a b. in short,", "c")
    marked = {"In short,": "In short,", "That is:": "That is:", "i. e., ": "i. e.,", "x\uff0c": "x\uff0c"}
    for phrase, inserted in marked.items():
        assert insert_phrase("a", "c", phrase, "target") == ("a", f"{inserted} c")
        assert insert_phrase("a", "c", phrase, "condition") == (f"a {inserted}", "c")
    assert insert_phrase("a", "c", "", "target") == insert_phrase("a", "c", "", "condition") == ("a", "c")


def test_a_file_has_a_phrase_on_each_line(tmp_path):
    file = tmp_path / "mine.txt"
    file.write_text("# my own\nto wit\n\n  viz.  \nto wit\n", encoding="utf-8")
    assert read_phrases(str(file)) == ("to wit", "viz.")
    before = prompt_facts(str(file))["prompts"]
    assert before.startswith("2 ")
    file.write_text("to wit\n", encoding="utf-8")
    assert prompt_facts(str(file))["prompts"] != before


def test_no_prompt_is_the_empty_phrase():
    assert read_phrases("none") == ("",)
    assert read_phrases(("a", "b")) == ("a", "b")
    assert prompt_facts("none") == prompt_facts(("a",)) == {}


def test_what_is_no_set_and_no_file_is_refused(tmp_path):
    with pytest.raises(SpecError, match=r"'source_output' .*did you mean 'source-output'"):
        read_phrases("source_output")
    (tmp_path / "empty.txt").write_text("# nothing\n")
    with pytest.raises(SpecError, match=r"empty\.txt.*phrases"):
        read_phrases(str(tmp_path / "empty.txt"))
    (tmp_path / "odd.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match=r"odd\.txt.*UTF-8"):
        read_phrases(str(tmp_path / "odd.txt"))
