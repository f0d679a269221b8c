"""Rows of tokens for reward models, against rows written by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from error_codes import raises_code
from metrist.errors import ModelError
from metrist.models.reward_layout import RewardFrame, RewardInput, RewardLayout, build_rows, read_frame, token_encoder

FRAME = RewardFrame((101,), (102,), (103,))
ASKED = RewardInput("10 11", (("1", "20 21 22"), ("2", "30 31"), ("3", "40 41")))


def numbers(texts: Sequence[str]) -> list[list[int]]:
    """A tokenizer whose tokens are the numbers that a text has."""
    return [[int(one) for one in text.split()] for text in texts]


def row(judged: RewardInput = ASKED, frame: RewardFrame = FRAME, **layout: object) -> tuple[list[int], int]:
    (ids,), (cut,), _, _ = build_rows(numbers, frame, RewardLayout(**layout), [judged])
    return ids.tolist(), cut


def test_parts_stand_in_order_with_separators_between_them() -> None:
    assert row() == ([101, 10, 11, 102, 20, 21, 22, 102, 30, 31, 102, 40, 41, 103], 0)


def test_labels_stand_before_their_fields() -> None:
    labelled = [101, 10, 11, 102, 1, 102, 20, 21, 22, 102, 2, 102, 30, 31, 102, 3, 102, 40, 41, 103]
    assert row(labelled=True) == (labelled, 0)


def test_what_is_empty_has_no_separator() -> None:
    assert row(RewardInput("", (("1", ""), ("3", "40")))) == ([101, 40, 103], 0)
    assert row(RewardInput("", (("3", ""),)), RewardFrame((), (102,), ())) == ([102], 0)


def test_what_the_tokenizer_does_not_know_is_not_read() -> None:
    judged = [RewardInput("10", (("1", "7"), ("3", answer))) for answer in ("40 7 41", "7 7", "")]
    assert build_rows(numbers, FRAME, RewardLayout(), judged, unknown=7).read == [2, 0, 0]
    assert build_rows(numbers, FRAME, RewardLayout(), judged).read == [3, 2, 0]


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        ({"max_length": 14}, [101, 10, 11, 102, 20, 21, 22, 102, 30, 31, 102, 40, 41, 103]),
        ({"max_length": 12}, [101, 10, 11, 102, 22, 102, 30, 31, 102, 40, 41, 103]),
        ({"max_length": 12, "keep": "start"}, [101, 10, 11, 102, 20, 21, 22, 102, 102, 40, 41, 103]),
        ({"max_length": 9}, [101, 10, 11, 102, 31, 102, 40, 41, 103]),
        ({"max_length": 12, "keep": "both"}, [101, 10, 11, 102, 20, 21, 30, 31, 102, 40, 41, 103]),
        ({"max_length": 9, "keep": "start"}, [101, 10, 11, 102, 20, 102, 40, 41, 103]),
        ({"max_length": 9, "keep": "both"}, [101, 10, 11, 102, 20, 102, 40, 41, 103]),
        ({"max_length": 8, "keep": "both"}, [101, 10, 11, 102, 40, 41, 103]),
        ({"max_length": 8}, [101, 10, 11, 102, 40, 41, 103]),
        ({"max_length": 7}, [101, 10, 11, 102, 40, 41, 103]),
        ({"max_length": 6}, [101, 10, 11, 102, 40, 103]),
    ],
)
def test_a_long_context_is_cut_and_then_the_answer_s_end(layout: dict[str, object], expected: list[int]) -> None:
    assert row(**layout) == (expected, 14 - len(expected))


def test_with_both_sides_kept_the_end_has_the_odd_token_and_a_separator_of_two_stays_whole() -> None:
    pair = RewardInput("", (("1", "20 21 22 23 24 25"), ("2", "40")))
    double = RewardFrame((101,), (102, 102), (103,))
    assert row(pair, max_length=9, keep="both") == ([101, 20, 21, 22, 24, 25, 102, 40, 103], 1)
    assert row(pair, max_length=8, keep="both") == ([101, 20, 21, 24, 25, 102, 40, 103], 2)
    assert row(pair, double, max_length=6, keep="both") == ([101, 20, 102, 102, 40, 103], 5)
    assert row(pair, double, max_length=5, keep="both") == ([101, 40, 103], 8)


@pytest.mark.parametrize(
    ("judged", "frame", "layout", "expected"),
    [
        (ASKED, FRAME, {}, [40, 41, 103]),
        (ASKED, FRAME, {"labelled": True}, [40, 41, 103]),
        (ASKED, FRAME, {"max_length": 11}, [40, 41, 103]),
        (ASKED, FRAME, {"max_length": 11, "keep": "start"}, [40, 41, 103]),
        (ASKED, FRAME, {"max_length": 11, "keep": "both"}, [40, 41, 103]),
        (ASKED, FRAME, {"max_length": 12, "labelled": True}, [40, 41, 103]),
        (ASKED, FRAME, {"max_length": 7}, [40, 41, 103]),
        (ASKED, FRAME, {"max_length": 6}, [40, 103]),
        (ASKED, RewardFrame((), (102,), ()), {}, [40, 41]),
        (ASKED, RewardFrame((), (), ()), {}, [40, 41]),
        (RewardInput("", (("3", "40"),)), FRAME, {}, [40, 103]),
        (RewardInput("10", (("1", "20"), ("3", ""))), FRAME, {}, [103]),
        (RewardInput("10", (("1", "20"), ("3", ""))), FRAME, {"labelled": True}, [103]),
        (RewardInput("10", (("1", "20"), ("3", ""))), RewardFrame((), (102,), ()), {}, [102]),
        (RewardInput("", (("3", ""),)), RewardFrame((), (102,), ()), {}, [102]),
    ],
)
def test_a_row_tells_where_its_answer_begins(
    judged: RewardInput, frame: RewardFrame, layout: dict[str, object], expected: list[int]
) -> None:
    """`wanted` is all from there on. An answer without tokens is what stands last: there must be something to read."""
    (ids,), _, (start,), _ = build_rows(numbers, frame, RewardLayout(**layout), [judged])
    assert ids[start:].tolist() == expected


def test_an_answer_s_label_is_kept_with_it() -> None:
    assert row(max_length=9, labelled=True) == ([101, 10, 11, 102, 3, 102, 40, 41, 103], 11)


def test_an_instruction_that_leaves_no_room_is_named() -> None:
    with raises_code(ModelError, "invalid_value", "'10 11'", "3 of 5"):
        row(max_length=5)


def test_impossible_layouts_are_refused() -> None:
    with raises_code(ModelError, "invalid_value", "max_length", "1", "0"):
        RewardLayout(max_length=0)
    with raises_code(ModelError, "invalid_value", "'end'", "'start'", "'both'"):
        RewardLayout(keep="middle")
    with raises_code(ModelError, "invalid_value", "fields"):
        row(RewardInput("10", ()))


def test_every_distinct_text_is_tokenised_once() -> None:
    seen: list[str] = []

    def counting(texts: Sequence[str]) -> list[list[int]]:
        seen.extend(texts)
        return numbers(texts)

    build_rows(counting, FRAME, RewardLayout(), [ASKED, ASKED, RewardInput("10 11", (("1", "20 21 22"), ("3", "50")))])
    assert sorted(seen) == ["10 11", "20 21 22", "30 31", "40 41", "50"]


def make_tokenizer(single: str, pair: str | None, *, line: bool = False) -> Tokenizer:
    words = ["[CLS]", "[SEP]", "[UNK]", "a", "b", "[", "]", "SEP", *(["\n"] if line else [])]
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.add_special_tokens(["[CLS]", "[SEP]"])
    tokenizer.pre_tokenizer = (
        pre_tokenizers.Split("", "isolated") if line else pre_tokenizers.Sequence(
            [pre_tokenizers.Whitespace(), pre_tokenizers.Punctuation()]
        )
    )  # fmt: skip
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=[("[CLS]", 0), ("[SEP]", 1)]
    )
    return tokenizer


@pytest.mark.parametrize(
    ("single", "pair", "line", "expected"),
    [
        ("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", False, RewardFrame((0,), (1,), (1,))),
        ("[CLS] $A [SEP]", "[CLS] $A [SEP] [SEP] $B:1 [SEP]:1", False, RewardFrame((0,), (1, 1), (1,))),
        ("$A [SEP]", "$A [SEP] $B:1 [SEP]:1", False, RewardFrame((), (1,), (1,))),
        ("[CLS] $A", "[CLS] $A [CLS] $B:1", True, RewardFrame((0,), (8,), ())),
        ("$A", "$A $B:1", True, RewardFrame((), (8,), ())),
    ],
    ids=["bert", "roberta", "t5", "llama", "gpt2"],
)
def test_the_frame_is_what_the_tokenizer_puts_around_and_between_texts(
    single: str, pair: str, line: bool, expected: RewardFrame
) -> None:
    tokenizer = make_tokenizer(single, pair, line=line)
    assert read_frame(tokenizer) == expected
    assert read_frame(PreTrainedTokenizerFast(tokenizer_object=tokenizer)) == expected


def test_without_a_template_for_pairs_the_separator_token_is_used(tiny: Callable[[str], Path]) -> None:
    assert read_frame(AutoTokenizer.from_pretrained(tiny("bert"))) == RewardFrame((0,), (2,), (2,))
    assert read_frame(AutoTokenizer.from_pretrained(tiny("gpt2"))) == RewardFrame((), (2,), ()), "the end token"


def test_a_text_that_spells_a_special_token_is_only_text() -> None:
    tokenizer = make_tokenizer("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1")
    expected = [[3, 5, 7, 6, 4]]
    assert tokenizer.encode("a [SEP] b", add_special_tokens=False).ids == [3, 1, 4]
    assert token_encoder(tokenizer)(["a [SEP] b"]) == expected
    assert token_encoder(PreTrainedTokenizerFast(tokenizer_object=tokenizer))(["a [SEP] b"]) == expected


def test_broken_characters_and_no_texts_are_taken(tiny: Callable[[str], Path]) -> None:
    encode = token_encoder(AutoTokenizer.from_pretrained(tiny("bert")))
    assert encode(["cat \ud800"]) == encode(["cat ?"])
    assert encode([]) == []
