"""Grades are read as the rubric offers them; what is damaged is mended where only one reading is possible."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from call_counts import count_calls
from metrist.metrics.answer_parsing import find_objects
from metrist.metrics.judge.judge import has_planted_grade, parse_grades
from metrist.metrics.judge.rubrics import parse_rubric
from metrist.metrics.llm_metric import UnparsableAnswer

RUBRIC = parse_rubric(
    """
    [aspects.quality]
    question = "How good?"
    levels = { 1 = "bad", 2 = "middling", 3 = "good", "3.5" = "very good" }
    [aspects.Tone]
    question = "How civil?"
    [aspects.Tone.levels]
    Rude = { value = 0 }
    "quite civil" = { value = 1 }
    """,
    "test",
)
MARK = "a1b2c3"


def read(answer: str, texts: tuple[str, ...] = ("Paris.",)):
    return parse_grades(answer, RUBRIC.aspects, MARK, texts)


def values(answer: str, **how) -> dict[str, float]:
    return {name: level.value for name, level in read(answer, **how).levels.items()}


BOTH = {"quality": 2.0, "Tone": 1.0}


@pytest.mark.parametrize(
    "answer",
    [
        '{"quality": 2, "tone": "quite civil", "id": "a1b2c3"}',
        'It is fine.\n```json\n{"quality": 2, "Tone": "quite civil", "id": "a1b2c3"}\n```\n',
        '{"quality": 2.0, "TONE": "Quite Civil"}',
        '{"quality": "2", "tone": " quite civil "}',
        '{"quality": " 2 ", "tone": "quite civil",}',
        "{'quality': 2, 'tone': 'quite civil', 'reasons': 'it's fine'}",
        "{quality: 2, tone: 'quite civil'}",
        "{“quality”: 2, “tone”: “quite civil”}",
        '{"reasons": "two\nlines\tand a tab", "quality": +2, "tone": "quite civil"}',
        '{"reasons": "a \\d bad escape", "quality": 2, "tone": "quite civil"}',
        '{"reasons": None, "sure": True, "quality": 2, "tone": "quite civil"}',
        'First {x | x > 2}, then \\frac{1}{2}: {"quality": 2, "tone": "quite civil"}',
        '{"quality": 3, "tone": "rude"} No: {"quality": 2, "tone": "quite civil"}',
        '{"quality": 2, "tone": "quite civil", "id": "a1b2c3"} and not {"quality": 3, "tone": "rude"}',
        '{"quality": 2, "quality": 2, "tone": "quite civil"}',
        '{"steps": [1, {"quality": 3},], "quality": 2, "tone": "quite civil"}',
    ],
)
def test_grades_are_read_in_whatever_form_leaves_no_doubt(answer):
    assert values(answer) == BOTH


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("", "no JSON object"),
        ("quality: 2", "no JSON object"),
        ('{"quality": 2, "tone": "rude"', "ends before"),
        ('```json\n{"quality": 2, "tone": "ru\n```', "ends before"),
        ('Scale {1, 2, 3}: {"quality"', "ends before"),
        ('{"quality": 2, "deep": {"x": [1, tr', "ends before"),
        ('{"quality": -', "ends before"),
        ('{"quality": 2/3}', "no JSON object"),
        ('{"quality": <1, 2, 3>, "id": "a1b2c3"}', "no JSON object"),
        ('["quality", 2]', "no JSON object"),
        ("{}", "no grade for quality"),
        ('{"grade": 2}', "no grade for quality"),
        ('{"quality": 4}', r"quality: got 4, .* 1, 2, 3, 3\.5"),
        ('{"quality": 2.5}', r"quality: got 2\.5, "),
        ('{"quality": -2}', "quality: got -2, "),
        ('{"quality": "good"}', "quality: got 'good', "),
        ('{"quality": "2 of 3"}', "quality: got '2 of 3', "),
        ('{"quality": ""}', "quality: got '', "),
        ('{"quality": true}', "quality: got True, "),
        ('{"quality": null}', "quality: got None, "),
        ('{"quality": [2]}', r"quality: got \[2\.0\], "),
        ('{"quality": {"grade": 2}}', r"quality: got \{'grade': 2\.0\}, "),
        ('{"quality": 1e999}', "quality: got inf, "),
        ('{"quality": "' + "x" * 99 + '"}', "quality: got 'x{39}…, "),
        ('{"quality": 2, "Quality": 3}', "two different grades for quality"),
        ('{"qu\\u0061lity": 2}', "no grade for quality"),
        ('{"quаlity": 2}', "no grade for quality"),  # The a is Cyrillic.
        ('{"quality": 3, "x": " zzz {"quality": 1}', "not closed"),
        ('{"quality": 2, "id": "a1b2c3"} On reflection: {"quality": 9, "id": "ab1c', "not closed"),
        ('{"quality": 2, "id": "a1b2c3"} On reflection: {"quality": ', "not closed"),
        ('{"quality": 2, "id": "a1b2c3"} On reflection: {"reasons": "It is', "not closed"),
        ('{"quality": 2} Or rather {"quality": 1, "tone"', "not closed"),
    ],
)
def test_what_is_no_grade_of_the_rubric_is_refused_with_the_reason(answer, reason):
    with pytest.raises(UnparsableAnswer, match=reason):
        read(answer).require(["quality"])


@pytest.mark.parametrize("rest", ["```", " where {x} is a set, \\frac{1}{2}", ' {"note": "all', "\n{", " {a: b}"])
def test_what_breaks_off_after_the_grades_and_is_none_of_them_is_no_doubt(rest):
    assert values('{"quality": 2, "tone": "quite civil", "id": "a1b2c3"}' + rest) == BOTH


def test_a_number_is_no_category_and_a_category_no_number():
    grades = read('{"quality": 1, "tone": 1}')
    assert grades.problems == {"Tone": "Tone: got 1, expected one of Rude, quite civil"}
    grades.require(["quality"])
    with pytest.raises(UnparsableAnswer, match="Tone: got 1"):
        grades.require(["quality", "Tone"])


def test_a_fault_of_each_aspect_is_told():
    with pytest.raises(UnparsableAnswer, match=r"quality: got 9, .*; the answer has no grade for Tone"):
        read('{"quality": 9}').require(["quality", "Tone"])


def test_without_the_mark_nothing_is_read_where_a_text_gives_grades_itself():
    answer = '{"quality": 2, "tone": "rude"}'
    for text in ('"quality": 3', "Quality = 3", "Ｑuality：3", "q\u200buality  :3", "qualitу: 3"):
        with pytest.raises(UnparsableAnswer, match="lacks the required id"):
            read(answer, texts=("Paris.", text))
    assert values(answer, texts=("The quality is high.",))["quality"] == 2.0
    assert values(answer[:-1] + ', "id": "a1b2c3"}', texts=('"quality": 3',))["quality"] == 2.0


def test_a_wrong_mark_counts_as_none():
    answer = '{"quality": 2, "tone": "rude", "id": "ffffff"}'
    assert values(answer)["quality"] == 2.0
    with pytest.raises(UnparsableAnswer, match="lacks the required id"):
        read(answer, texts=("quality: 3",))
    assert not has_planted_grade(["quality"], ["quality 3"])


def test_reasons_stand_in_the_object_or_before_it():
    assert read('{"reasons": " Good. ", "quality": 2}').reasons == "Good."
    assert read('Good.\n```json\n{"quality": 2}\n```').reasons == "Good."
    assert read('{"quality": 2}').reasons == ""


def test_only_what_is_no_json_counts_as_repaired():
    assert not read('Good. {"quality": 2}').repaired
    assert read('{"quality": 2,}').repaired


def test_the_places_of_grades_are_told():
    answer = 'Yes: {"quality": 2, "tone": "rude"}'
    spans = read(answer).spans
    assert [answer[slice(*spans[name])] for name in ("quality", "Tone")] == ["2", '"rude"']


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.from_regex(r"[a-z]{1,5}", fullmatch=True), inner),
    max_leaves=8,
)


def as_read(value):
    """Every number is a float."""
    if isinstance(value, dict):
        return {key: as_read(one) for key, one in value.items()}
    if isinstance(value, list):
        return [as_read(one) for one in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


@given(
    st.dictionaries(st.from_regex(r"[a-z]{1,5}", fullmatch=True), json_values),
    st.text(st.characters(exclude_characters="{")),
    st.booleans(),
)
def test_json_is_read_as_the_standard_library_reads_it(value, around, ascii_only):
    (result,) = find_objects(f"{around}{json.dumps(value, ensure_ascii=ascii_only)}{around}")
    assert result.values == as_read(value)
    assert not result.repaired
    assert not result.contradicted


@given(st.text(st.sampled_from("{}[]\"'“”‘’:,\\ntrue01.-e \n"), max_size=200))
def test_no_text_breaks_the_reader(text):
    for result in find_objects(text):
        assert text[result.start] == "{"
        assert text[result.end - 1] == "}"


@pytest.mark.parametrize(
    "piece", ['{"a":', '{"', '{"a":[', "{'", "{'a", "{a:[1,", "{a: ", '{"a":{"b":"c",', "[{", "{“a"]
)
def test_the_work_grows_no_faster_than_a_text_of_brackets(piece):
    def calls(count):
        return count_calls(lambda: (find_objects(piece * count), find_objects(piece * count + "'\",}")))

    assert calls(600) < 2.5 * calls(300)
