"""Preferences and several outputs in a row, in the forms of well-known data sets."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from error_codes import raises_code
from metrist.errors import InputError
from metrist.io import ParsedRow, read_records

Write = Callable[..., Path]


def read(source: Any, **options: Any) -> tuple[list[ParsedRow], str]:
    """All rows, and what was announced last."""
    lines: list[str] = []
    entries = list(read_records(source, announce=lines.append, **options).entries())
    return entries, lines[-1]


def chosen(entry: ParsedRow) -> tuple[str, str]:
    """The texts of the output that was preferred and of the other."""
    (preference,) = entry.preferences
    outputs = [record.output for record in entry.records]
    return (outputs[0], outputs[1]) if preference.choice == "first" else (outputs[1], outputs[0])


def table(rows: list[dict[str, Any]]) -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def test_chosen_and_rejected_in_a_table(write: Write) -> None:
    rows = [{"prompt": f"p{n}", "chosen": f"good {n}", "rejected": f"bad {n}"} for n in range(40)]
    path = write(table(rows), "pairs.csv")
    entries, line = read(path)
    assert [chosen(entry) for entry in entries] == [(f"good {n}", f"bad {n}") for n in range(40)]
    assert [entry.records[0].source for entry in entries] == [f"p{n}" for n in range(40)]
    assert all([record.system for record in entry.records] == ["first", "second"] for entry in entries)
    assert {entry.preferences[0].aspect for entry in entries} == {"preference"}
    assert line.startswith(f"reading {path}: preferences = chosen, rejected, systems = first, second")
    # Whoever always takes the first is right about half of the time: 40 fair coins fall outside 10 to 30 once in 400.
    assert 10 < sum(entry.preferences[0].choice == "first" for entry in entries) < 30


def test_the_order_does_not_depend_on_which_was_chosen() -> None:
    one, other = read([{"chosen": "x", "rejected": "y"}])[0][0], read([{"chosen": "y", "rejected": "x"}])[0][0]
    assert [record.output for record in one.records] == [record.output for record in other.records]
    assert one.preferences[0].choice != other.preferences[0].choice


def test_transcripts_of_hh_rlhf_share_a_prompt() -> None:
    prompt = "\n\nHuman: Hi there.\n\nAssistant: Hello!\n\nHuman: Name a fruit.\n\nAssistant:"
    rows = [
        {"chosen": f"{prompt} An apple.\n\nIt is red.", "rejected": f"{prompt} A carrot."},
        # The two part before the last turn.
        {
            "chosen": "\n\nHuman: Hi\n\nAssistant: a\n\nHuman: b\n\nAssistant: c",
            "rejected": "\n\nHuman: Hi\n\nAssistant: d",
        },
    ]
    (first, second), line = read(rows)
    assert first.records[0].source == "Human: Hi there.\n\nAssistant: Hello!\n\nHuman: Name a fruit."
    assert chosen(first) == ("An apple.\n\nIt is red.", "A carrot.")
    assert second.records[0].source == "Hi"
    assert chosen(second) == ("a\n\nHuman: b\n\nAssistant: c", "d")
    assert "source = the turns that the two share" in line


def message(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}


def test_binarised_ultrafeedback_has_lists_of_messages(write: Write) -> None:
    row = {
        "prompt": "Name a fruit.",
        "prompt_id": "ab12",
        "chosen": [message("user", "Name a fruit."), message("assistant", "An apple.")],
        "rejected": [message("user", "Name a fruit."), message("assistant", "A carrot.")],
        "messages": [message("user", "Name a fruit."), message("assistant", "An apple.")],
        "score_chosen": 8.5,
        "score_rejected": 3.0,
    }
    (entry,), line = read(write([row], "binarised.jsonl"))
    assert entry.keys == (("ab12", "first"), ("ab12", "second"))
    assert entry.records[0].source == "Name a fruit."
    assert chosen(entry) == ("An apple.", "A carrot.")
    assert entry.records[0].extra == {"score_chosen": 8.5, "score_rejected": 3.0}
    assert line.endswith("item = prompt_id, source = prompt, not used = score_chosen, score_rejected")
    # The same as a table, in which pandas writes lists as Python does.
    cells = {name: value if isinstance(value, str) else repr(value) for name, value in row.items()}
    (again,), _ = read(write(table([cells]), "binarised.csv"))
    assert chosen(again) == ("An apple.", "A carrot.")


def test_a_prompt_of_messages_and_a_system_prompt() -> None:
    rows = [
        {
            "prompt": [message("system", "Be brief."), message("user", "Hi")],
            "chosen": [message("assistant", "Hello")],
            "rejected": [message("assistant", "Dear Sir")],
        }
    ]
    (entry,), _ = read(rows)
    record = entry.records[0]
    assert (record.source, record.instruction) == ("Hi", "Be brief.")
    assert chosen(entry) == ("Hello", "Dear Sir")
    # As in the DPO pairs of Orca, `system` is a prompt and names no system.
    (entry,), _ = read([{"system": "Be kind.", "question": "Hi", "chosen": "Hello", "rejected": "No"}])
    record = entry.records[0]
    assert (record.source, record.instruction, record.system) == ("Hi", "Be kind.", "first")


def test_the_models_of_chosen_and_rejected_are_their_systems() -> None:
    rows = [{"prompt": "p", "chosen": "x", "rejected": "y", "chosen_model": "a", "rejected_model": "b"}]
    (entry,), _ = read(rows)
    assert {(record.system, record.output) for record in entry.records} == {("a", "x"), ("b", "y")}
    assert chosen(entry) == ("x", "y")


def test_ultrafeedback_has_several_rated_completions() -> None:
    def completion(model: str, response: str, helpfulness: str, overall: float) -> dict[str, Any]:
        ratings = {"helpfulness": {"Rating": helpfulness, "Rationale": "…"}, "honesty": {"Rating": "N/A"}}
        return {"model": model, "response": response, "annotations": ratings, "overall_score": overall}

    row = {
        "source": "evol_instruct",
        "instruction": "Name a fruit.",
        "models": ["m1", "m2"],
        "completions": [completion("m1", "An apple.", "5", 8.5), completion("m2", "A carrot.", "2", 3.0)],
        "correct_answers": ["None"],
    }
    entries, line = read([row, {**row, "instruction": "Name another."}])
    assert [entry.keys for entry in entries] == [((item, model),) for item in "12" for model in ("m1", "m2")]
    assert [(rating.aspect, rating.value) for rating in entries[1].ratings] == [("helpfulness", 2.0), ("overall", 3.0)]
    record = entries[0].records[0]
    assert (record.output, record.instruction, record.source) == ("An apple.", "Name a fruit.", None)
    assert "system = model, output = response, ratings = annotations" in line


def battle(winner: str, **more: Any) -> dict[str, Any]:
    return {
        "question_id": "q1",
        "model_a": "alpaca",
        "model_b": "vicuna",
        "winner": winner,
        "judge": "arena_user_1",
        "conversation_a": [message("user", "Hi"), message("assistant", "Hello")],
        "conversation_b": [message("user", "Hi"), message("assistant", "Yes?")],
        "turn": 1,
        **more,
    }


@pytest.mark.parametrize(
    ("winner", "choice"),
    [("model_a", "first"), ("model_b", "second"), ("tie", "tie"), ("tie (bothbad)", "tie"), ("vicuna", "second")],
)
def test_battles_of_the_arena(winner: str, choice: str) -> None:
    (entry,), line = read([battle(winner)])
    assert entry.keys == (("q1", "alpaca"), ("q1", "vicuna"))
    assert [(record.output, record.source) for record in entry.records] == [("Hello", "Hi"), ("Yes?", "Hi")]
    assert [(preference.choice, preference.rater) for preference in entry.preferences] == [(choice, "arena_user_1")]
    assert "systems = model_a, model_b, preferences = winner, item = question_id" in line


def test_a_winner_that_names_nobody_is_an_error() -> None:
    with raises_code(InputError, "invalid_row", "'winner'", "'a'", "'b'"):
        read([{**battle("x"), "winner": 0}])


@pytest.mark.parametrize(("flags", "choice"), [((1, 0, 0), "first"), ((0, 1, 0), "second"), ((0, 0, 1), "tie")])
def test_the_newer_form_of_the_arena(flags: tuple[int, int, int], choice: str, write: Write) -> None:
    names = ("winner_model_a", "winner_model_b", "winner_tie")
    row = {
        "id": 30192,
        "model_a": "m1",
        "model_b": "m2",
        "prompt": json.dumps(["Hi", "And?"]),
        "response_a": json.dumps(["Hello", "So"]),
        "response_b": json.dumps(["Hello", "Well"]),
        **dict(zip(names, flags, strict=True)),
    }
    (entry,), line = read(write(table([row]), "arena.csv"))
    assert [record.output for record in entry.records] == ["So", "Well"]
    assert entry.records[0].source == "Human: Hi\n\nAssistant: Hello\n\nHuman: And?"
    assert [preference.choice for preference in entry.preferences] == [choice]
    assert line.endswith("preferences = winner_model_a, winner_model_b, winner_tie, item = id")
    plain = {**row, "prompt": "Hi", "response_a": "x", "response_b": "y"}
    (entry,), _ = read([plain])
    assert [(record.output, record.source) for record in entry.records] == [("x", "Hi"), ("y", "Hi")]
    with raises_code(InputError, "invalid_row", "winner_model_a", "winner_model_b", "winner_tie"):
        read([{**plain, **dict.fromkeys(names, 0)}])


def test_two_outputs_with_their_generators_and_a_preference() -> None:
    row = {"instruction": "Add.", "output_1": "3", "output_2": "4", "generator_1": "a", "generator_2": "b"}
    (entry,), _ = read([{**row, "preference": 2}])
    assert entry.keys == (("1", "a"), ("1", "b"))
    assert [preference.choice for preference in entry.preferences] == ["second"]
    (entry,), _ = read([row])
    assert entry.preferences == ()


def test_a_row_without_one_side_is_an_error_and_can_be_skipped() -> None:
    rows = [{"prompt": "p", "chosen": "x", "rejected": "y"}, {"prompt": "q", "chosen": "x"}]
    with raises_code(InputError, "invalid_row", "2", "'rejected'"):
        read(rows)
    assert len(read(rows, skip_bad=True)[0]) == 1


def test_preferences_reach_every_command_that_reads_them(tmp_path: Path) -> None:
    from metrist import prefer
    from metrist.data.judgments import read_judgments
    from metrist.evaluate.meta.join import join

    path = tmp_path / "pairs.csv"
    rows = [{"prompt": f"p{n}", "chosen": "a longer answer " * (n + 1), "rejected": f"no {n}"} for n in range(9)]
    path.write_text(table(rows))
    (aspect,) = read_judgments([path]).preferences
    assert aspect == "preference"
    assert "preference" in join(str(path)).preferences
    results = prefer(path, "by_score(metric=length, better='higher')")
    (choices,) = results.human.values()
    (judgments,) = results.judgments.values()
    assert [judgment.preference for judgment in judgments] == list(choices)


def test_a_null_among_the_outputs_of_a_wide_row_is_an_error_and_can_be_skipped() -> None:
    rows = [{"v1_output": "a", "v2_output": "b"}, {"v1_output": "c", "v2_output": None}]
    with raises_code(InputError, "invalid_row", "2", "'v2_output'"):
        list(read_records(rows, outputs="*_output"))
    reader = read_records(rows, outputs="*_output", skip_bad=True)
    assert [(record.item, record.system) for record in reader] == [("1", "v1"), ("1", "v2"), ("2", "v1")]
    assert reader.skipped.count == 1


def test_a_pattern_leaves_out_columns_of_numbers_and_says_so(write: Write) -> None:
    table = "id,v1,v2,v1_score,v2_score\n1,a,3,0.5,\n2,b,c,0.25,7\n"
    reader = read_records(write(table, "wide.csv"), outputs="v*")
    assert [(record.system, record.output) for record in reader] == [("v1", "a"), ("v2", "3"), ("v1", "b"), ("v2", "c")]
    (reading,) = reader.readings
    assert "outputs = v1 (v1), v2 (v2), no outputs but numbers = v1_score, v2_score, item = id" in reading
    # Answers may be numbers: where all columns are, and where a column is named.
    rows = [{"item": 1, "v1": 3, "v2": "4"}]
    assert [record.output for record in read_records(rows, outputs="v*")] == ["3", "4"]
    named = read_records(write(table, "wide.csv"), outputs=["v1=v1", "s=v2_score"], skip_bad=True)
    assert [record.output for record in named] == ["a", "", "b", "7"]


@pytest.mark.parametrize(
    ("outputs", "systems"),
    [
        (["v1,v2"], {"v1": "a", "v2": "b"}),
        (["x=v1,y=v2"], {"x": "a", "y": "b"}),
        (["v1", "v,3"], {"v1": "a", "v,3": "c"}),  # a column of that name
        (["x=v,3"], {"x": "c"}),
        (["v*"], {"v1": "a", "v2": "b", ",3": "c"}),  # a number alone is no name
    ],
)
def test_outputs_may_be_named_with_commas(outputs: list[str], systems: dict[str, str]) -> None:
    records = read_records([{"item": "1", "v1": "a", "v2": "b", "v,3": "c"}], outputs=outputs)
    assert {record.system: record.output for record in records} == systems


def test_a_wide_table_without_flags_is_refused_with_the_columns_that_may_be_outputs(write: Write) -> None:
    path = write("id,article,reference,year,v1,the v2\n1,long,r,1999,a,b\n", "wide.csv")
    reader = read_records(path)
    with raises_code(InputError, "invalid_row", "`outputs=", "'the v2'"):
        list(reader)
    assert reader.readings == [
        f"reading {path}: item = id, source = article, references = reference, not used = year, v1, the v2"
    ]
    with pytest.raises(InputError) as error:
        list(read_records([{"item": "1", "text1": "a"}]))
    assert "`outputs=" not in str(error.value)


def test_columns_that_are_taken_for_files_are_explained(write: Write) -> None:
    path = write("id,v1,v2\n1,a,b\n", "wide.csv")
    with raises_code(InputError, "missing_file", "`outputs`"):
        read_records([path, "v2"], outputs=["v1"])
    with pytest.raises(InputError, match=r"^v2: no such file$"):
        read_records([path, "v2"])


def test_two_columns_of_one_system_are_named_with_the_flags_that_tell_them_apart() -> None:
    rows = [{"item": "1", "v1_output": "a", "v1 text": "b"}]
    with raises_code(InputError, "unreadable", "`outputs=", "'v1_output', 'v1 text'"):
        list(read_records(rows, outputs=["*_output", "* text"]))
