from __future__ import annotations

import pytest

from error_codes import raises_code
from metrist.errors import SpecError
from metrist.metrics.judge.rubrics import Level, list_rubrics, load_rubric, parse_rubric

ASPECT = '[aspects.a]\nquestion = "Good?"\n'
LEVELS = '[aspects.a.levels]\n1 = "no"\n2 = "yes"\n'


def test_the_rubrics_that_ship_are_whole():
    assert set(list_rubrics()) >= {"reliability", "single_answer", "summarization", "faithfulness"}
    for name in list_rubrics():
        rubric = load_rubric(name)
        assert rubric.about
        for aspect in rubric.aspects:
            assert aspect.question.endswith(("?", "."))
            assert aspect.levels[0].meaning
            assert aspect.levels[-1].meaning


def test_the_scales_of_the_papers_are_kept():
    scales = {name: {one.name: one.bounds for one in load_rubric(name).aspects} for name in list_rubrics()}
    # Doostmohammadi et al. (2024), section 3.3; Zheng et al. (2023); Fabbri et al. (2021).
    assert scales["reliability"] == dict.fromkeys(("naturalness", "relatedness", "correctness"), (1, 3))
    assert scales["single_answer"] == {"quality": (1, 10)}
    assert scales["summarization"] == dict.fromkeys(("coherence", "consistency", "fluency", "relevance"), (1, 5))


def test_a_users_file_is_read_and_named_by_its_content(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(f'about = "x"\nreasons = "none"\nhigher_is_better = false\n{ASPECT}{LEVELS}')
    rubric = load_rubric(str(file))
    assert (rubric.reasons, rubric.higher_is_better) == ("none", False)
    assert rubric.aspects[0].levels == (Level("1", 1.0, "no"), Level("2", 2.0, "yes"))
    before = rubric.digest
    (tmp_path / "moved.toml").write_text(file.read_text() + "# a remark\n")
    assert load_rubric(str(tmp_path / "moved.toml")).digest == before
    file.write_text(file.read_text().replace("yes", "yes!"))
    assert load_rubric(str(file)).digest != before


def test_levels_may_be_decimals_negative_and_in_any_order():
    rubric = parse_rubric(f'{ASPECT}levels = {{ 2 = "c", -1 = "a", "0.5" = "b" }}', "r")
    assert [(level.name, level.value) for level in rubric.aspects[0].levels] == [("-1", -1), ("0.5", 0.5), ("2", 2)]
    assert rubric.aspects[0].choices == "-1, 0.5, 2"


def test_a_long_scale_needs_no_meaning_for_each_level():
    rubric = parse_rubric(f'{ASPECT}scale = {{ from = 0, to = 1, step = 0.05 }}\nlevels = {{ 0 = "none" }}', "r")
    levels = rubric.aspects[0].levels
    assert len(levels) == 21
    assert levels[0] == Level("0", 0.0, "none")
    assert levels[3] == Level("0.15", 0.15, "")
    assert rubric.aspects[0].choices == "0 to 1 in steps of 0.05"


@pytest.mark.parametrize(
    ("text", "code", "values"),
    [
        ("x = ", "invalid_value", ["TOML"]),
        ("aspekts = 1", "unknown_name", ["aspekts", "about", "'aspects'"]),
        (f'reasons = "last"\n{ASPECT}{LEVELS}', "invalid_value", ["reasons", "'first'", "'none'", "'last'"]),
        (f"higher_is_better = 1\n{ASPECT}{LEVELS}", "invalid_value", ["higher_is_better", 1]),
        (f"about = 1\n{ASPECT}{LEVELS}", "invalid_value", ["about", 1]),
        ("", "invalid_value", ["[aspects.NAME]"]),
        ("aspects = 3", "invalid_value", ["[aspects.NAME]"]),
        ("aspects = { a = 3 }", "invalid_value", ["aspects.a", 3]),
        ('[aspects."a b"]', "invalid_value", ["'a b'"]),
        ("[aspects.id]", "invalid_value", ["'id'", "reserved"]),
        ("[aspects.All]", "invalid_value", ["'All'", "reserved"]),
        ("[aspects.a]\n[aspects.A]", "invalid_value", ["'A'", "twice"]),
        ("[aspects.a]\nquestions = 1", "unknown_name", ["aspects.a.questions", "'question'"]),
        ("[aspects.a]\n" + LEVELS, "missing_value", ["aspects.a"]),
        (f"{ASPECT}levels = 3", "invalid_value", ["aspects.a.levels", 3]),
        (ASPECT, "too_little_data", ["aspects.a", 0]),
        (f'{ASPECT}levels = {{ 1 = "x" }}', "too_little_data", ["aspects.a", 1]),
        (f'{ASPECT}levels = {{ 1 = "x", 01 = "y" }}', "invalid_value", ["aspects.a.levels", "1, 01"]),
        (f'{ASPECT}[aspects.a.levels]\n0.5 = "x"', "invalid_value", ["aspects.a.levels", '("0.5" = ']),
        (f'{ASPECT}levels = {{ good = "x" }}', "invalid_value", ["aspects.a.levels.good", "good = {"]),
        (f"{ASPECT}levels = {{ 1 = 2 }}", "invalid_value", ["aspects.a.levels.1", 2]),
        (f'{ASPECT}levels = {{ good = {{ value = 1 }}, bad = "x" }}', "missing_value", ["aspects.a.levels.bad"]),
        (f"{ASPECT}levels = {{ good = {{ value = true }} }}", "missing_value", ["aspects.a.levels.good"]),
        (f"{ASPECT}levels = {{ good = {{ value = inf }} }}", "missing_value", ["aspects.a.levels.good"]),
        (f"{ASPECT}levels = {{ 3 = {{ value = 1 }} }}", "invalid_value", ["aspects.a.levels", "'3'"]),
        (
            f"{ASPECT}levels = {{ good = {{ value = 1, mean = 2 }} }}",
            "unknown_name",
            ["aspects.a.levels.good.mean", "'meaning'"],
        ),
        (f"{ASPECT}scale = 10", "invalid_value", ["aspects.a.scale", "got 10"]),
        (f"{ASPECT}scale = {{ from = 1 }}", "invalid_value", ["aspects.a.scale", "'from': 1"]),
        (f"{ASPECT}scale = {{ from = 3, to = 1 }}", "invalid_value", ["aspects.a.scale", "from < to"]),
        (f"{ASPECT}scale = {{ from = 0, to = 1, step = 0.3 }}", "invalid_value", ["aspects.a.scale", 0.3]),
        (f"{ASPECT}scale = {{ from = 0, to = 9999 }}", "invalid_value", ["aspects.a.scale", 1001]),
        (f'{ASPECT}scale = {{ from = 1, to = 3 }}\nlevels = {{ 4 = "x" }}', "invalid_value", ["aspects.a.levels", 4]),
    ],
)
def test_a_rubric_with_a_fault_is_refused_with_its_place(text, code, values):
    with raises_code(SpecError, code, "r: ", *values):
        parse_rubric(text, "r")


def test_a_rubric_that_cannot_be_found_is_refused_with_those_that_can(tmp_path):
    with raises_code(SpecError, "unknown_name", "'faithfulness'", "'reliability'", "'reliabilty'"):
        load_rubric("reliabilty")
    (tmp_path / "odd.toml").write_bytes(b"\xff")
    with raises_code(SpecError, "invalid_value", "odd.toml", "8"):
        load_rubric(str(tmp_path / "odd.toml"))
    with raises_code(SpecError, "unknown_name"):
        load_rubric(str(tmp_path / "od.toml"))


def test_an_aspect_that_a_rubric_has_not_is_refused():
    with raises_code(SpecError, "unknown_name", "'reliability'", "'corectness'", "'all'"):
        load_rubric("reliability").aspect("corectness")


def test_what_a_rubric_needs_is_one_of_the_fields_of_records():
    aspect = '[aspects.a]\nquestion = "Good?"\nlevels = { 1 = "No.", 2 = "Yes." }\n'
    assert parse_rubric(f'needs = ["source", "references"]\n{aspect}', "r").needs == ("source", "references")
    assert parse_rubric(aspect, "r").needs == ()
    for needs in ('"source"', '["sources"]', "[1]", "[[]]"):
        with raises_code(SpecError, "invalid_value", "needs"):
            parse_rubric(f"needs = {needs}\n{aspect}", "r")
