from __future__ import annotations

import pytest

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
    ("text", "message"),
    [
        ("x = ", "r: is not TOML: Invalid value"),
        ("aspekts = 1", "r: unknown key aspekts; .*about, .*did you mean 'aspects'"),
        (f'reasons = "last"\n{ASPECT}{LEVELS}', "r: reasons must be 'first' or 'none', got 'last'"),
        (f"higher_is_better = 1\n{ASPECT}{LEVELS}", "r: higher_is_better must be true or false, got 1"),
        (f"about = 1\n{ASPECT}{LEVELS}", "r: about must be a string, got 1"),
        ("", r"r: expected at least one table \[aspects.NAME\] with a question and levels"),
        ("aspects = 3", r"r: expected at least one table \[aspects.NAME\]"),
        ("aspects = { a = 3 }", "r: aspects.a must be a table with a question and levels, got 3"),
        ('[aspects."a b"]', "r: an aspect's name .*got 'a b'"),
        ("[aspects.id]", "r: the aspect name 'id' is reserved"),
        ("[aspects.All]", "r: the aspect name 'All' is reserved"),
        ("[aspects.a]\n[aspects.A]", r"r: the aspect name 'A' occurs twice"),
        (
            "[aspects.a]\nquestions = 1",
            "r: unknown key aspects.a.questions; .*did you mean 'question'",
        ),
        ("[aspects.a]\n" + LEVELS, "r: aspects.a needs a question"),
        (f"{ASPECT}levels = 3", "r: aspects.a.levels must be a table of grades with their meanings, got 3"),
        (ASPECT, "r: aspects.a needs at least two levels of different value, got 0"),
        (f'{ASPECT}levels = {{ 1 = "x" }}', "r: aspects.a needs at least two levels of different value, got 1"),
        (f'{ASPECT}levels = {{ 1 = "x", 01 = "y" }}', "r: aspects.a.levels .*level twice: 1, 01"),
        (f'{ASPECT}[aspects.a.levels]\n0.5 = "x"', r'r: aspects.a.levels: write a decimal grade in quotes \("0.5"'),
        (f'{ASPECT}levels = {{ good = "x" }}', r"r: aspects.a.levels.good must be a number, or a category: good = \{"),
        (f"{ASPECT}levels = {{ 1 = 2 }}", "r: aspects.a.levels.1 must be a string, got 2"),
        (
            f'{ASPECT}levels = {{ good = {{ value = 1 }}, bad = "x" }}',
            r"r: aspects.a.levels.bad needs a value: bad = \{ value = 1",
        ),
        (f"{ASPECT}levels = {{ good = {{ value = true }} }}", "r: aspects.a.levels.good needs a value"),
        (f"{ASPECT}levels = {{ good = {{ value = inf }} }}", "r: aspects.a.levels.good needs a value"),
        (
            f"{ASPECT}levels = {{ 3 = {{ value = 1 }} }}",
            "r: aspects.a.levels: a category needs a name in words",
        ),
        (
            f"{ASPECT}levels = {{ good = {{ value = 1, mean = 2 }} }}",
            "r: unknown key aspects.a.levels.good.mean; .*value, meaning.*did you mean 'meaning'",
        ),
        (f"{ASPECT}scale = 10", r"r: aspects.a.scale must be \{ from = 1, to = 10, step = 1 \}, got 10"),
        (f"{ASPECT}scale = {{ from = 1 }}", r"r: aspects.a.scale must be \{ from"),
        (f"{ASPECT}scale = {{ from = 3, to = 1 }}", "got"),
        (f"{ASPECT}scale = {{ from = 0, to = 1, step = 0.3 }}", "at most 1001 levels.*got"),
        (f"{ASPECT}scale = {{ from = 0, to = 9999 }}", "at most 1001 levels"),
        (
            f'{ASPECT}scale = {{ from = 1, to = 3 }}\nlevels = {{ 4 = "x" }}',
            "r: aspects.a.levels has 4, which is not on its scale",
        ),
    ],
)
def test_a_rubric_with_a_fault_is_refused_with_its_place(text, message):
    with pytest.raises(SpecError, match=message):
        parse_rubric(text, "r")


def test_a_rubric_that_cannot_be_found_is_refused_with_those_that_can(tmp_path):
    with pytest.raises(
        SpecError,
        match=r"rubric must be 'faithfulness', 'reliability', .* or a TOML file; "
        r"'reliabilty' cannot be read \(No such file or directory\); did you mean 'reliability'\?",
    ):
        load_rubric("reliabilty")
    (tmp_path / "odd.toml").write_bytes(b"\xff")
    with pytest.raises(SpecError, match=r"odd\.toml: a rubric must be a text file in UTF-8"):
        load_rubric(str(tmp_path / "odd.toml"))
    with pytest.raises(SpecError, match=r"did you mean '.*odd\.toml'\?"):
        load_rubric(str(tmp_path / "od.toml"))


def test_an_aspect_that_a_rubric_has_not_is_refused():
    with pytest.raises(
        SpecError,
        match="the rubric 'reliability' has no aspect 'corectness'; it has 'all', "
        "'naturalness', 'relatedness', 'correctness'; did you mean 'correctness'",
    ):
        load_rubric("reliability").aspect("corectness")
