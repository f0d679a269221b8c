from __future__ import annotations

import re

import pytest

from metrist.errors import SpecError
from metrist.metrics.likelihood.layout import SETS, insert_phrase, prompt_facts, read_phrases


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
    wanted = r"prompts must be 'none', 'source-output', 'reference-output', a list of phrases or a file with one phrase"
    with pytest.raises(SpecError, match=wanted + r".*'source_output' cannot be read.*did you mean 'source-output'"):
        read_phrases("source_output")
    (tmp_path / "empty.txt").write_text("# nothing\n")
    with pytest.raises(SpecError, match=r"empty\.txt: wanted one phrase a line, found none"):
        read_phrases(str(tmp_path / "empty.txt"))
    (tmp_path / "odd.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match=r"odd\.txt: prompts must be a text file in UTF-8"):
        read_phrases(str(tmp_path / "odd.txt"))
