"""The two sets of replies to hateful messages as they were published; all texts are made up. The expected pairs follow
from the rules in metrist.data.heap.datasets, worked out by hand.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from published_files import answers, ratings, table

from error_codes import raises_code
from metrist.data.heap import read_data_set
from metrist.errors import InputError

# --- counter narratives

SYSTEMS = ["dialoGPT", "BART", "BERT", "T5", "gpt2"]
JUDGED = ["suitable", "specific", "grammar", "choose_or_not", "is_best"]
NARRATIVES = [
    "Hate_Speech",
    "TARGET",
    *SYSTEMS,
    *(f"{system}_{what}" for system in SYSTEMS for what in JUDGED),
    "Annotator",
]


def judged(rater: str, *by_system: list[int]) -> list[Any]:
    return [
        "They are all bad.",
        "CATS",
        *(f"by {system}" for system in SYSTEMS),
        *(v for five in by_system for v in five),
        rater,
    ]


def narratives(folder: Path) -> Path:
    return table(
        folder,
        NARRATIVES,
        judged("one", [5, 5, 5, 1, 1], [4, 1, 5, 1, 0], [4, 1, 5, 0, 0], [4, 1, 5, 0, 0], [4, 1, 5, 0, 0]),
        judged("two", [5, 4, 5, 1, 0], [4, 2, 5, 1, 1], [4, 1, 4, 1, 0], [4, 1, 5, 0, 0], [4, 1, 5, 0, 0]),
    )


def test_counter_narratives_are_ordered_by_the_floor_of_two_raters_mean(tmp_path: Path) -> None:
    result = read_data_set("counter narratives", narratives(tmp_path))
    # Suitable: 5 4 4 4 4. Specific: floor(4.5) = 4, floor(1.5) = 1, 1 1 1. Grammar: 5 5 floor(4.5) = 4, 5 5.
    assert (
        {good for good, _ in answers(result, "CNSu")}
        == {good for good, _ in answers(result, "CNSp")}
        == {"by dialoGPT"}
    )
    assert ratings(result, "CNSp") == [(4, 1)] * 4
    assert answers(result, "CNG") == [(f"by {system}", "by BERT") for system in ("dialoGPT", "BART", "T5", "gpt2")]
    assert result[0].good[:2] == (("hate speech", "They are all bad."), ("target", "CATS"))


def test_a_chosen_counter_narrative_is_one_that_all_raters_chose(tmp_path: Path) -> None:
    result = read_data_set("CCN", narratives(tmp_path))
    assert answers(result, "CCN") == [
        (f"by {good}", f"by {bad}") for good in ("dialoGPT", "BART") for bad in ("BERT", "T5", "gpt2")
    ]
    assert ratings(result, "CCN") == [(None, None)] * 6


def test_the_best_counter_narratives_of_two_raters_are_not_compared(tmp_path: Path) -> None:
    result = read_data_set("BCN", narratives(tmp_path))
    assert answers(result, "BCN") == [
        (f"by {good}", f"by {bad}") for good in ("dialoGPT", "BART") for bad in ("BERT", "T5", "gpt2")
    ]
    assert result[0].systems == ("dialoGPT", "BERT")


def test_counter_narratives_name_the_column_at_fault(tmp_path: Path) -> None:
    row = judged("one", *([1, 1, 1, 1, 2] for _ in SYSTEMS))
    with raises_code(InputError, "unreadable", "rows.csv:2", "'dialoGPT_is_best'", "got '2'"):
        read_data_set("BCN", table(tmp_path, NARRATIVES, row))
    with raises_code(InputError, "unreadable", "rows.csv:2", "'TARGET'"):
        read_data_set("BCN", table(tmp_path, ["Hate_Speech"], ["x"]))


# --- CHASM


def entry(post: str, offence: int, *rated: tuple[int, int, int]) -> dict[str, Any]:
    replies = {
        system: {
            "text": f"{system} on {post}",
            "score": {"off": [off] * 3, "stance": [stance] * 3, "info": [1, 1, info]},
        }
        for system, (off, stance, info) in zip(("GPT-2", "GPT-Neo", "GPT-3"), rated, strict=True)
    }
    return {"post": {"text": post, "score": [offence] * 9}, **replies}


def chasm(folder: Path, entries: Any, name: str = "counter.json") -> Path:
    (folder / name).write_text(json.dumps(entries), encoding="utf-8")
    return folder / name


def test_chasm_orders_replies_by_the_floor_of_three_ratings(tmp_path: Path) -> None:
    result = read_data_set("CHASM", chasm(tmp_path, {"c1": entry("p", 2, (0, 4, 0), (3, 4, 4), (1, 0, 1))}))
    assert answers(result, "CNO") == [
        ("GPT-Neo on p", "GPT-2 on p"),
        ("GPT-Neo on p", "GPT-3 on p"),
        ("GPT-3 on p", "GPT-2 on p"),
    ]
    # Informativeness: floor(2/3) = 0, 2, 1.
    assert ratings(result, "CNI") == [(2, 0), (2, 1), (1, 0)]
    assert answers(result, "CNSt") == [("GPT-2 on p", "GPT-3 on p"), ("GPT-Neo on p", "GPT-3 on p")]
    assert (result[0].item, result[0].systems) == ("c1", ("GPT-Neo", "GPT-2"))


def test_chasms_messages_are_compared_within_the_first_two_thirds_and_within_the_rest(tmp_path: Path) -> None:
    same = ((1, 1, 1),) * 3
    first = chasm(
        tmp_path, {"a": entry("a", 4, *same), "b": entry("b", 2, *same), "c": entry("c", 3, *same)}, "one.json"
    )
    second = chasm(tmp_path, {"d": entry("d", 1, *same), "e": entry("e", 0, *same)}, "two.json")
    result = read_data_set("HSO", first, second)  # floor(.66 × 5) = 3 messages in the first part.
    assert answers(result, "HSO") == [("a", "b"), ("a", "c"), ("c", "b"), ("d", "e")]
    assert result[-1].good == (("hate speech", "d"),)
    assert [pair.item for pair in result] == ["first part"] * 3 + ["second part"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", r"counter.json: must hold one JSON object of named entries, got \[1\]"),
        ('{"c1": 1}', r"counter.json: 'c1' must be an object, got 1"),
        ('{"c1": {"post": {}}}', r"counter.json: 'c1': 'post.text' is missing"),
        ('{"c1":\n {,', r"counter.json:2: not valid JSON: "),
        (
            '{"c1": {"post": {"text": "p"}, "GPT-2": {"text": "x", "score": {"info": 3}}}}',
            r"'c1': 'GPT-2.score.info' must be a list",
        ),
    ],
)
def test_chasm_names_the_entry_and_the_field_at_fault(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "counter.json").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_data_set("CNI", tmp_path / "counter.json")


def test_chasm_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "counter.json").write_bytes(b'{"\xff": 1}')
    with raises_code(InputError, "unreadable", "counter.json"):
        read_data_set("CNI", tmp_path / "counter.json")
