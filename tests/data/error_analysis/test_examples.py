"""Examples of error analyses: places, prompts and completions in the checkpoints' form, files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from error_codes import raises_code
from metrist.data.error_analysis import make_example, read_examples, write_examples
from metrist.data.error_analysis.examples import NOTHING
from metrist.data.faults import KINDS
from metrist.data.perturbations import perturb
from metrist.errors import InputError
from metrist.metrics.errors.span_alignment import ground_errors
from metrist.metrics.errors.tigerscore import build_prompt, parse_tiger_answer
from metrist.ratings import Error
from metrist.records import Record

RECORD = Record(item="1", system="s", output="It is 12 km away.", source="The town is 15 km away.", task="summ")
NUMBER = Error(
    aspect="Fact Consistency", severity="major", penalty=4.0, explanation="The number is wrong.", revision="15",
    text="12", start=6, end=8,
)  # fmt: skip


def test_the_form_of_the_checkpoints() -> None:
    example = make_example(RECORD, [NUMBER], "human")
    # The default instruction of the task, whose name the record abbreviates.
    assert example.task == "summarization"
    assert example.prompt == build_prompt("Write a short summary of the text.", RECORD.source or "", RECORD.output)
    assert example.completion == (
        "The model-generated output contains 1 errors, with a total score reduction of 4.\n"
        "Error location 1: 12\n"
        "Error aspect 1: Fact Consistency\n"
        "Explanation 1: The number is wrong. Better: “15”.\n"
        "Severity 1: Major\n"
        "Score reduction 1: 4"
    )
    assert example.score == -4.0
    assert make_example(RECORD, [], "reference").completion == (
        "The model-generated output contains 0 errors, with a total score reduction of 0."
    )


@pytest.mark.parametrize(
    ("output", "start", "end", "revision", "words", "better"),
    [
        # A gap: the words before it; at the start of the text the first ones.
        ("One two three four five. Six.", 24, 24, " No.", "two three four five.", "two three four five. No."),
        ("Two. Three four.", 0, 0, "One. ", "Two. Three four.", "One. Two. Three four."),
        # A mark, or a mark that is missing: the word at which it stands.
        ("See the, dog.", 7, 8, "", "the,", "the"),
        ("The dogs tail.", 7, 7, "'", "dogs", "dog's"),
        # Words stay as they are.
        ("See the dog.", 8, 11, "cat", "dog", "cat"),
    ],
)
def test_an_error_without_words_gets_those_beside_it(
    output: str, start: int, end: int, revision: str, words: str, better: str
) -> None:
    error = Error(
        aspect="A", severity="minor", penalty=1.0, revision=revision, text=output[start:end], start=start, end=end
    )
    record = Record(item="1", system="s", output=output)
    (anchored,) = make_example(record, [error], "synthetic", exact=True).errors
    assert (anchored.text, anchored.revision) == (words, better)
    assert output[anchored.start : anchored.end] == words
    # People who mark a comma without a correction do not say that it should go.
    (marked,) = make_example(record, [error], "human").errors
    assert marked.revision == (better if revision else "")


def test_an_empty_output() -> None:
    error = Error(aspect="A", severity="major", penalty=5.0, text="", revision="All.", start=0, end=0)
    (anchored,) = make_example(Record(item="1", system="s", output=" "), [error], "human").errors
    assert (anchored.text, anchored.start, anchored.end) == (NOTHING, None, None)


@settings(max_examples=100, deadline=None)
@given(
    output=st.text(min_size=1, max_size=120),
    source=st.text(max_size=60),
    kinds=st.lists(st.sampled_from([*KINDS]), min_size=1, max_size=3, unique=True),
    seed=st.integers(0, 9),
)
def test_places_bound_the_words_and_the_parser_reads_the_completion(output, source, kinds, seed) -> None:
    donor = Record(item="2", system="s", output="Anna Berg won in Oslo. Nobody saw it coming at all.", task="math")
    record = Record(item="1", system="s", output=f"{output}. Maria Lopez is 12. 3 + 4 = 7.", source=source, task="math")
    perturbed = perturb(record, kinds, seed=seed, donor=donor)
    if perturbed is None:
        return
    example = make_example(perturbed.record, perturbed.errors, "synthetic")
    for error in example.errors:
        if error.start is not None:
            assert example.output[error.start : error.end] == error.text
            assert error.text.strip()
    answer = parse_tiger_answer(example.completion, example.prompt)
    if answer.failure is None:
        assert len(answer.errors) == len(example.errors)
        assert answer.penalty == pytest.approx(-example.score)
        assert len(ground_errors(answer.errors, perturbed.record)) == len(example.errors)


def test_texts_that_no_file_can_hold(tmp_path: Path) -> None:
    record = Record(item="1", system="s", output="It \ud83d is 12 km.", source="\ud800")
    error = Error(aspect="\ud800", severity="minor", penalty=1.0, explanation="\udfff", text="\ud83d", start=3, end=4)
    example = make_example(record, [error], "human")
    assert example.output == "It \ufffd is 12 km."
    write_examples(tmp_path / "examples.jsonl", [example])
    assert list(read_examples(tmp_path / "examples.jsonl")) == [example]


def test_files(tmp_path: Path) -> None:
    examples = [make_example(RECORD, [NUMBER], "human"), make_example(RECORD, [], "reference")]
    path = tmp_path / "examples.jsonl.xz"
    assert write_examples(path, examples) == 2
    assert list(read_examples(path)) == examples
    chat = tmp_path / "chat.jsonl"
    write_examples(chat, examples, chat=True)
    row = json.loads(chat.read_text().splitlines()[0])
    assert [turn["role"] for turn in row["messages"]] == ["user", "assistant"]
    assert row["messages"][1]["content"] == examples[0].completion


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"output": 3}, "output"),
        ({"channel": "other"}, "channel"),
        ({"errors": {}}, "errors"),
        ({"errors": [3]}, "$.errors[0]"),
        ({"errors": [{"aspect": "A"}]}, "$.errors[0]"),
        ({"task": []}, "task"),
    ],
)
def test_a_file_that_is_none_of_examples(tmp_path: Path, change: dict[str, object], word: str) -> None:
    path = tmp_path / "examples.jsonl"
    path.write_text(json.dumps(make_example(RECORD, [NUMBER], "human").to_dict() | change))
    with raises_code(InputError, "invalid_value", "examples.jsonl:1", word):
        list(read_examples(path))


def test_a_line_that_is_no_json(tmp_path: Path) -> None:
    path = tmp_path / "examples.jsonl"
    path.write_text("{\n")
    with raises_code(InputError, "unreadable", "examples.jsonl:1"):
        list(read_examples(path))
