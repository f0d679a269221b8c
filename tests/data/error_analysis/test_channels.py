"""Channels that need no LLM, and the whole build: aspects, severities, mixes, the same bytes again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from error_codes import raises_code
from metrist.data.error_analysis.build import (
    BuildSettings,
    MixCell,
    apply_mix,
    build_examples,
    describe_examples,
    read_mix,
)
from metrist.data.error_analysis.channels import (
    JudgedOutput,
    choose_good_texts,
    inject_faults,
    read_outputs,
    use_human_errors,
    use_references,
)
from metrist.data.error_analysis.examples import make_example
from metrist.data.faults import KINDS
from metrist.data.perturbations import choose_aspect
from metrist.errors import SpecError
from metrist.evaluate.audit.stress import read_examples as read_reports
from metrist.io.reader import read_records
from metrist.metrics.errors.aspect_tables import choose_table
from metrist.records import Record

TRANSLATION = {
    "item": "1", "system": "mt", "task": "translation", "language": "de-en",
    "source": "Der Hund schläft. Die Katze frisst den Fisch.", "output": "The dog sleeps. The cat eats the fishes .",
}  # fmt: skip


def read(tmp_path: Path, *rows: dict[str, object]) -> list[JudgedOutput]:
    path = tmp_path / "records.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return read_outputs(read_records(str(path)))


def test_errors_that_people_marked(tmp_path: Path) -> None:
    errors = [
        {"start": 33, "end": 39, "category": "Terminology/Wrong_term", "severity": "minor", "rater": "r1"},
        {"start": 39, "end": 41, "category": "Linguistic_conventions/Punctuation", "severity": "minor", "rater": "r1"},
        {"start": 24, "end": 28, "category": "Accuracy/Mistranslation", "severity": "critical", "rater": "r1"},
        {"start": 0, "end": 3, "category": "Other/", "severity": "neutral", "rater": "r1"},
    ]
    (example,) = use_human_errors(read(tmp_path, TRANSLATION | {"errors": errors, "raters": ["r1"]}))
    assert example.channel == "human"
    told = [(error.text, error.aspect, error.severity, error.penalty) for error in example.errors]
    assert told == [
        ("fishes", "Terminology", "minor", 1.0),
        (".", "Fluency", "minor", 0.5),
        ("eats", "Accuracy", "major", 5.0),
    ]
    # The passage of the source at the same place.
    assert example.errors[2].explanation == (
        "“eats” does not give the meaning of the source. The source: “Die Katze frisst den Fisch.”."
    )


def test_reasons_and_corrections_of_people_are_kept(tmp_path: Path) -> None:
    error = {"start": 24, "end": 28, "category": "factuality", "explanation": "It drank it.", "correction": "drinks"}
    (example,) = use_human_errors(read(tmp_path, TRANSLATION | {"errors": [error]}))
    assert example.errors[0].explanation == "It drank it."
    assert "Better: “drinks”." in example.completion
    assert (example.errors[0].severity, example.errors[0].penalty) == ("major", 4.0)


def test_an_error_without_a_place_is_looked_for(tmp_path: Path) -> None:
    error = {"start": None, "end": None, "text": "the Fishes", "category": "grammar"}
    (example,) = use_human_errors(read(tmp_path, TRANSLATION | {"errors": [error]}))
    assert (example.errors[0].text, example.errors[0].start) == ("the fishes", 29)


def test_categories_without_an_aspect(tmp_path: Path) -> None:
    outputs = read(
        tmp_path,
        TRANSLATION | {"errors": [{"start": 0, "end": 3, "severity": "major"}]},
        TRANSLATION | {"item": "2", "errors": [{"start": 0, "end": 3, "category": "Gender", "severity": "major"}]},
    )
    (other,) = use_human_errors(
        read(tmp_path, TRANSLATION | {"errors": [{"start": 0, "end": 3, "category": "Other/"}]})
    )
    assert other.errors[0].aspect == "unspecified"
    unnamed, freeform = use_human_errors(outputs)
    assert (unnamed.channel, unnamed.errors[0].aspect) == ("human", "unspecified")
    assert (freeform.channel, freeform.errors[0].aspect) == ("freeform", "Gender")
    named, gender = use_human_errors(outputs, aspects={"unspecified": "Accuracy", "gender": "Fluency"})
    assert (named.errors[0].aspect, gender.errors[0].aspect, gender.channel) == ("Accuracy", "Fluency", "human")


def test_a_rater_who_only_rates_does_not_say_that_there_are_no_errors(tmp_path: Path) -> None:
    rated = TRANSLATION | {"raters": ["r1"], "ratings": {"fluency": [2]}}
    assert not list(use_human_errors(read(tmp_path, rated)))
    # The same name in another file may be another person.
    other = tmp_path / "marked.jsonl"
    error = {"start": 0, "end": 3, "category": "grammar", "rater": "r1"}
    other.write_text(json.dumps(TRANSLATION | {"item": "2", "errors": [error], "raters": ["r1"]}))
    outputs = read_outputs(read_records([str(tmp_path / "records.jsonl"), str(other)]))
    assert [example.item for example in use_human_errors(outputs)] == ["2"]


def test_outputs_without_errors(tmp_path: Path) -> None:
    marked = {"start": 0, "end": 3, "category": "grammar", "rater": "r1"}
    rows = [
        TRANSLATION | {"item": "marked", "raters": ["r1"], "errors": [marked]},
        TRANSLATION | {"item": "looked at", "raters": ["r1"]},
        TRANSLATION | {"item": "rated well", "ratings": {"grammatical": [1]}},
        TRANSLATION | {"item": "rated badly", "ratings": {"grammatical": [0]}},
        TRANSLATION | {"item": "not judged"},
    ]
    outputs = read(tmp_path, *rows)
    assert [example.item for example in use_human_errors(outputs)] == ["marked", "looked at"]
    clean = list(use_human_errors(outputs, clean={"grammatical": 1}))
    assert [example.item for example in clean] == ["marked", "looked at", "rated well"]
    assert not any(example.errors for example in clean[1:])


def test_one_rater_of_each_output(tmp_path: Path) -> None:
    errors = [
        {"start": 0, "end": 3, "category": "grammar", "rater": "r1"},
        {"start": 4, "end": 7, "category": "grammar", "rater": "r2"},
    ]
    rows = [TRANSLATION | {"item": str(n), "errors": errors, "raters": ["r1", "r2", "r3"]} for n in range(40)]
    texts = Counter(
        tuple(error.text for error in example.errors) for example in use_human_errors(read(tmp_path, *rows))
    )
    # r3 marked nothing anywhere.
    assert set(texts) == {("The",), ("dog",)}


def make_outputs() -> list[JudgedOutput]:
    """The reports that `stress` uses: sources with a good summary and a reference."""
    return [JudgedOutput(record=record) for record in read_reports()]


def test_good_texts() -> None:
    outputs = make_outputs()
    assert {text.output for text in choose_good_texts(outputs)} == {o.record.references[0] for o in outputs}
    assert len(choose_good_texts(outputs, "both")) == 2 * len(outputs)
    assert {text.output for text in choose_good_texts(outputs, "outputs")} == {o.record.output for o in outputs}
    references = list(use_references(outputs))
    assert len(references) == len(outputs)
    assert all(example.completion.startswith("The model-generated output contains 0 errors") for example in references)


def test_faults_have_aspects_of_the_task_evenly() -> None:
    texts = choose_good_texts(make_outputs())
    examples = list(inject_faults(texts, 400))
    assert len(examples) == len({example.output for example in examples}) == 400
    aspects = Counter(error.aspect for example in examples for error in example.errors)
    assert set(aspects) == set(choose_table("summarization").names)
    # Sentences can be put into another order in few of these short texts.
    aspects.pop("Coherence")
    assert min(aspects.values()) > 0.2 * sum(aspects.values())
    per_item = Counter(example.item for example in examples)
    assert max(per_item.values()) <= 2 * min(per_item.values())
    facts = [error for example in examples for error in example.errors if error.aspect == "Fact Consistency"]
    assert sum("source" in error.explanation for error in facts) > 0.95 * len(facts)
    freeform = list(inject_faults(texts, 20, channel="freeform", kinds=["number", "word_order"]))
    assert {error.aspect for example in freeform for error in example.errors} <= {"Wrong Number", "Word Order"}


@pytest.mark.parametrize("task", ["summarization/cnndm", "MathQA", "lfqa", "d2t", "mt", "story", None, "dialogue"])
def test_every_fault_has_an_aspect_of_the_task_under_any_of_its_names(task: str | None) -> None:
    for kind in KINDS:
        assert choose_aspect(kind, task) in choose_table(task).names
    assert choose_aspect("repetition", "lfqa") == "Informativeness"


def test_faults_that_nobody_could_notice_are_not_taught() -> None:
    """Without the source, or where the source does not have the word, a wrong number looks like a right one."""
    output = "Maria Lopez sold 240 loaves in March. She was not tired, and the shop opened early."
    record = Record(item="1", system="s", output=output, task="summarization")
    facts = ["number", "date", "entity", "negation", "addition", "contradiction", "omission"]
    donor = Record(item="2", system="s", output="Anna Berg won in Oslo.", source="Anna Berg won.", task="summarization")
    for source, kinds in (
        ("", facts),
        ("A shop in Bristol sells bread.", ["number", "date", "entity", "contradiction"]),
    ):
        for kind in kinds:
            made = inject_faults([replace(record, source=source), donor], 4, kinds=[kind], most=1)
            assert not [example for example in made if example.item == "1"], kind
    supported = replace(record, source="In March, Maria Lopez sold 240 loaves. She was not tired and opened early.")
    examples = list(inject_faults([supported, donor], 30, kinds=facts))
    assert len({error.explanation.split(":")[0] for example in examples for error in example.errors}) > 3
    story = replace(supported, task="story")
    assert not list(inject_faults([story], 5, kinds=["addition", "omission", "negation"]))


def test_no_text_takes_a_fault() -> None:
    assert not list(inject_faults([Record(item="1", system="s", output="")], 10))
    assert not list(inject_faults([], 10))
    # A text without numbers: no endless search.
    assert not list(inject_faults([Record(item="1", system="s", output="Ja.")], 10, kinds=["number"]))


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    settings = BuildSettings(synthetic=60, freeform=20, seed=3)
    for name in ("first", "second"):
        build_examples(make_outputs(), settings).write(tmp_path / name, chat=True)
    for file in ("examples.jsonl", "chat.jsonl", "report.json"):
        assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes()
    other = build_examples(make_outputs(), BuildSettings(synthetic=60, freeform=20, seed=4))
    assert other.examples != build_examples(make_outputs(), settings).examples


def test_the_report_accounts_for_every_example() -> None:
    result = build_examples(make_outputs(), BuildSettings(synthetic=60, freeform=20))
    report = result.report()
    removed = sum(row["count"] for row in report["removed"])
    assert sum(report["made"].values()) == report["examples"] + removed
    statistics = describe_examples(result.examples)
    assert sum(statistics["tokens"].values()) == len(result.examples)
    assert sum(statistics["errors per example"].values()) == len(result.examples)
    assert statistics["channels"]["summarization"]["reference"] == 20


def test_statistics_are_counted_by_task() -> None:
    examples = [
        make_example(Record(item=str(n), system="s", output="x", task=task), [], "human")
        for n, task in enumerate(["summarization", "summarization", "translation"])
    ]
    # By hand: the counter says 100, 200 and 2,000 tokens.
    counts = {"0": 100, "1": 200, "2": 2000}
    statistics = describe_examples(examples, lambda example: counts[example.item])
    assert statistics["tokens by task"] == {
        "summarization": {"up to 128": 1, "up to 256": 1},
        "translation": {"over 1024": 1},
    }
    assert statistics["tokens"] == {"up to 128": 1, "up to 256": 1, "over 1024": 1}
    assert statistics["errors per example by task"] == {"summarization": {"0": 2}, "translation": {"0": 1}}


def test_the_mix_of_the_paper() -> None:
    # TIGERScore paper, Table 2.
    cells = {(cell.task, "+".join(cell.channels)): cell.count for cell in read_mix("paper")}
    assert cells["summarization", "real+human"] == 4179
    assert cells["instruction_following", "synthetic"] == 3014
    assert sum(count for (task, _), count in cells.items() if task != "any") == 27603
    assert cells["any", "freeform"] == 10000


def test_a_mix_takes_its_proportions() -> None:
    summary = Record(item="1", system="s", output="x", task="summarization")
    examples = [
        *(make_example(Record(item=str(n), system="s", output="x", task="summ"), [], "human") for n in range(50)),
        *(make_example(Record(item=str(n), system="s", output="x", task="summ"), [], "synthetic") for n in range(5)),
        make_example(summary, [], "reference"),
    ]
    mix = (
        MixCell("summarization", ("real", "human"), 300),
        MixCell("summarization", ("synthetic",), 100),
        MixCell("math", ("human",), 600),
    )
    taken, shares = apply_mix(examples, mix, size=40)
    assert [list(share.values())[2:] for share in shares] == [[50, 30, 30], [5, 10, 5], [0, 0, 0]]
    assert Counter(example.channel for example in taken) == {"human": 30, "synthetic": 5}
    assert apply_mix(examples, mix, size=40)[0] == taken
    assert [share["taken"] for share in apply_mix(examples, mix)[1]] == [50, 5, 0]


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ("real = 3", "task"),
        ("[summary]\nunreal = 3", "did you mean 'real'"),
        ("[math]\nreal = 'x'", "number"),
        ("[math]\nreal = 0", "no examples"),
        ("[nonsense]\nreal = 3", "task"),
        ("[", "TOML"),
    ],
)
def test_a_wrong_mix(tmp_path: Path, content: str, word: str) -> None:
    path = tmp_path / "mix.toml"
    path.write_text(content)
    with pytest.raises(SpecError, match=word):
        read_mix(str(path))


def test_wrong_settings() -> None:
    with raises_code(SpecError, "unknown_name", "'human'"):
        BuildSettings(channels=("humans",))
    with raises_code(SpecError, "missing_value", "mix"):
        BuildSettings(size=3)
    with raises_code(SpecError, "unknown_name", "papers"):
        read_mix("papers")
    with raises_code(SpecError, "unknown_name", "no fault"):
        BuildSettings(kinds=("nothing",))


@pytest.mark.parametrize(
    ("name", "least"),
    [("bio-mqm.de-en", 0.5), ("wice-tokens", 0.9), ("bump", 0.6), ("realec-dev", 0.9), ("qa-feedback", 0.9)],
)
def test_published_errors(data: Callable[[str], Path], name: str, least: float) -> None:
    """Most of the marked outputs of the published sets become examples with exact places."""
    outputs = read_outputs(read_records(str(data(name))))
    marked = [output for output in outputs if output.errors]
    result = build_examples(marked, BuildSettings(channels=("human",), max_tokens=10_000))
    assert len(result.examples) > least * len(marked)
    for example in result.examples:
        for error in example.errors:
            if error.start is not None and error.side == "output":
                assert example.output[error.start : error.end] == error.text
