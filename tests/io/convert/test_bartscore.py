"""BARTScore's nested data. Field names are those of its public repository; all texts here are made up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from metrist.errors import InputError
from metrist.io.convert import convert, detect
from metrist.io.reader import read_records

WriteJson = Callable[..., Path]
SUMMARIES = {
    "doc-7": {
        "src": "A long text.",
        "ref_summ": "Short.",
        "sys_summs": {
            "A": {"sys_summ": "Shorter.", "scores": {"coherence": 4.5, "rouge1_f": 0.5}},
            "B": {"sys_summ": "Long.", "scores": {}},
        },
    }
}


def test_summaries_become_one_row_per_system(write_json: WriteJson) -> None:
    path = write_json(SUMMARIES)
    assert detect(path) == "bartscore"
    shared = {"item": "doc-7", "source": "A long text.", "references": ["Short."], "task": "summarization"}
    assert list(convert(path)) == [
        {**shared, "system": "A", "output": "Shorter.", "ratings": {"coherence": [4.5]}, "scores": {"rouge1_f": 0.5}},
        {**shared, "system": "B", "output": "Long."},
    ]


def test_the_original_reference_counts_once_among_several(write_json: WriteJson) -> None:
    outputs = {"A": {"sys_summ": "x"}}
    path = write_json(
        {
            "1": {"ref_summ": "one", "ref_summs": ["one", "two"], "sys_summs": outputs},
            "2": {"ref_summ": "zero", "ref_summs": ["one", "two"], "sys_summs": outputs},
        },
    )
    assert [row["references"] for row in convert(path)] == [["one", "two"], ["zero", "one", "two"]]


def test_data_to_text_has_one_output_whose_system_the_user_may_name(write_json: WriteJson) -> None:
    document = {
        "0": {"src": "name=X", "ref_summs": ["It is X.", "X."], "sys_summ": "X it is.", "scores": {"quality": 5}}
    }
    path = write_json(document)
    row = {
        "item": "0",
        "source": "name=X",
        "references": ["It is X.", "X."],
        "task": "data2text",
        "system": "unnamed",
        "output": "X it is.",
        "ratings": {"quality": [5.0]},
    }
    assert list(convert(path)) == [row]
    assert list(convert(path, system="lstm", task="nlg", language="en")) == [
        {**row, "system": "lstm", "task": "nlg", "language": "en"}
    ]


TRANSLATIONS = {
    "0": {
        "src": "Hallo",
        "ref": "Hello",
        "better": {"sys": "Hello!", "scores": {"bleu": "59.46"}},
        "worse": {"sys": "Halo", "scores": {}},
    }
}


def test_pairs_of_translations_keep_both_sides_and_their_scores(write_json: WriteJson) -> None:
    shared = {"item": "0", "source": "Hallo", "references": ["Hello"], "task": "translation"}
    assert list(convert(write_json(TRANSLATIONS))) == [
        {**shared, "systems": ["better", "worse"], "outputs": ["Hello!", "Halo"], "ratings": {"preference": [1]}},
        {**shared, "system": "better", "output": "Hello!", "scores": {"bleu": 59.46}},
    ]


def test_systems_of_a_pair_keep_their_names(write_json: WriteJson) -> None:
    """The layout is that of WMT/README.md of the BARTScore repository, whose pickles have numbers as keys and scores as
    strings, as `json.dump` writes them; the texts are made up."""
    document = {
        0: {
            "src": "Hallo",
            "ref": "Hello",
            "better": {"sys_name": "NEU.6756", "sys": "Hello!", "scores": {"bleu": "59.46", "prism": float("nan")}},
            "worse": {"sys_name": "UEDIN.6749", "sys": "Halo", "scores": {"bleu": "0.0"}},
        }
    }
    notes: list[str] = []
    path = write_json(document)
    shared = {
        "item": "0",
        "source": "Hallo",
        "references": ["Hello"],
        "task": "translation",
        "language": "de-en",
    }
    systems = ["NEU.6756", "UEDIN.6749"]
    assert list(convert(path, language="de-en", announce=notes.append)) == [
        {**shared, "systems": systems, "outputs": ["Hello!", "Halo"], "ratings": {"preference": [1]}},
        {**shared, "system": "NEU.6756", "output": "Hello!", "scores": {"bleu": 59.46}},
        {**shared, "system": "UEDIN.6749", "output": "Halo", "scores": {"bleu": 0.0}},
    ]
    assert not notes
    # The rows of several documents can be read together, although systems occur in many of them.
    rows = convert(write_json({n: document[0] | {"ref": f"Hello {n}"} for n in range(3)}))
    assert {record.system for record in read_records(list(rows))} == set(systems)


def test_pairs_without_names_of_systems_say_so(write_json: WriteJson) -> None:
    notes: list[str] = []
    rows = list(convert(write_json({**TRANSLATIONS, "1": TRANSLATIONS["0"]}), announce=notes.append))
    assert rows[0]["systems"] == ["better", "worse"]
    assert len(set(notes)) == 1
    assert "sys_name" in notes[0]


def test_the_user_can_name_the_human_ratings(write_json: WriteJson) -> None:
    first = next(iter(convert(write_json(SUMMARIES), ratings=["rouge1_f"])))
    assert first["ratings"] == {"rouge1_f": [0.5]}
    assert first["scores"] == {"coherence": 4.5}


def test_missing_scores_are_dropped(write_json: WriteJson) -> None:
    scores = {"a": None, "b": "None", "c": float("nan"), "d": 0}
    path = write_json({"1": {"sys_summs": {"A": {"sys_summ": "x", "scores": scores}}}})
    assert next(iter(convert(path)))["scores"] == {"d": 0.0}


def test_unknown_fields_are_kept(write_json: WriteJson) -> None:
    path = write_json({"1": {"topic": "sport", "item": "?", "sys_summs": {"A": {"sys_summ": "x"}}}})
    assert list(convert(path)) == [
        {"topic": "sport", "item": "1", "task": "summarization", "system": "A", "output": "x"}
    ]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"sys_summs": {"A": {}}}, r"data.json: document '1', system 'A': no field 'sys_summ'; found nothing"),
        ({"sys_summs": {"A": "x"}}, r"system 'A': 'sys_summs' must be an object with 'sys_summ' and 'scores', got 'x'"),
        ({"sys_summs": ["x"]}, r"document '1': 'sys_summs' must be an object, got \['x'\]"),
        ({"sys_summ": "x", "src": ["y"]}, r"document '1': 'src' must be a string, got \['y'\]"),
        ({"sys_summ": "x", "ref_summs": "y"}, r"document '1': 'ref_summs' must be a list of strings, got 'y'"),
        ({"sys_summ": "x", "scores": {"q": float("inf")}}, r"'q' must be a finite number or None, got Infinity"),
        ({"src": "x"}, r"expected 'sys_summs', 'sys_summ' or 'better' and 'worse', found 'src'"),
        ("x", r"document '1': expected an object with its source and outputs, got 'x'"),
    ],
)
def test_a_wrong_field_is_named_with_its_place(write_json: WriteJson, entry: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        list(convert(write_json({"1": entry}), kind="bartscore"))
