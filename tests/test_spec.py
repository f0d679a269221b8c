"""A metric's text is its identity."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrist.errors import SpecError
from metrist.spec import Spec, parse, split_list, split_name

NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,8}(\.[a-z_][a-z0-9_]{0,8})?", fullmatch=True).filter(
    lambda name: not {"as", "if", "in", "is", "or", "and", "def", "del", "for", "not", "try"} & set(name.split("."))
)
KEYS = st.sampled_from(["stem", "order", "model", "reduce"])
LITERALS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()
)
VALUES = st.recursive(
    LITERALS | st.builds(Spec, st.sampled_from(["llm", "bart_large"])),
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple)
        | st.builds(Spec, st.just("judge"), st.dictionaries(KEYS, inner, max_size=2))
    ),
    max_leaves=6,
)


@given(st.builds(Spec, st.sampled_from(["rougeL", "my_module.Mine"]), st.dictionaries(KEYS, VALUES, max_size=3)))
def test_a_printed_spec_reads_back_to_an_equal_one(spec: Spec) -> None:
    assert parse(str(spec)) == spec


@given(st.text(max_size=80))
def test_any_text_is_read_or_refused_with_a_spec_error(text: str) -> None:
    with contextlib.suppress(SpecError):
        assert isinstance(parse(text), Spec)


def test_nested_calls_and_negative_numbers_are_read() -> None:
    assert parse("judge(llm=openai(model='m'), levels=[1, -2.5])") == Spec(
        "judge", {"llm": Spec("openai", {"model": "m"}), "levels": (1, -2.5)}
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("chrf(2)", r"settings are given by name, as in chrf\(word_order=2\)"),
        ("chrf(word_order=1+1)", r"'1\+1' is neither a literal nor a name"),
        ("chrf(**x)", r"'\*\*' cannot be used here"),
        ("__import__('os').system('ls')", "settings are given by name"),
        ("(lambda: 1)()", "only a name can be called"),
        ("'chrf'", "expected a name such as"),
        ("chrf(word_order=", "was never closed at character"),
        ("chrf(word_order=2, word_order=3)", "repeated"),
        ("", "cannot read the metric ''"),
        ("a" * 20_000, "20,000 characters is too long"),
        ("f(x=" * 1900 + "1" + ")" * 1900, "cannot read the metric"),
        ("chrf(beta=b'2')", "is neither a literal nor a name"),
        ("judge(llm=gpt-4o-mini, rubric='r')", r"; write llm=openai\(model='gpt-4o-mini'\)"),
        ("judge(llm=claude-3-5)", r"; write llm=openai\(model='claude-3-5'\)"),
    ],
)
def test_invalid_specs_are_refused_with_the_reason(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse(text)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("rougeL", ["rougeL"]),
        ("rougeL, chrf ,bleu", ["rougeL", "chrf", "bleu"]),
        ("chrf(beta=1, word_order=2),rougeL", ["chrf(beta=1, word_order=2)", "rougeL"]),
        ("a=external(command='x, y)\\'(,'),b=chrf", ["a=external(command='x, y)\\'(,')", "b=chrf"]),
        ('panel(judges=[judge(llm=a, x=","), b]),chrf', ['panel(judges=[judge(llm=a, x=","), b])', "chrf"]),
        ("rougeL,", ["rougeL"]),
        ("", [""]),
        (",", [","]),
        ("chrf(", ["chrf("]),
    ],
)
def test_commas_outside_brackets_and_quotes_separate_metrics(text: str, pieces: list[str]) -> None:
    assert split_list(text) == pieces


@given(st.lists(st.builds(Spec, NAMES, st.dictionaries(KEYS, VALUES)), min_size=1, max_size=4))
def test_any_list_of_specs_is_split_where_it_was_joined(specs: list[Spec]) -> None:
    assert [parse(piece) for piece in split_list(",".join(map(str, specs)))] == specs


@pytest.mark.parametrize(
    ("text", "name", "rest"),
    [
        ("judge=judge(llm=openai(model='m'))", "judge", "judge(llm=openai(model='m'))"),
        (" gpt-4.1 = judge(llm=x)", "gpt-4.1", "judge(llm=x)"),
        ("chrf(word_order=2)", None, "chrf(word_order=2)"),
        ("rougeL", None, "rougeL"),
        ("=rougeL", "", "rougeL"),
    ],
)
def test_a_name_stands_before_the_metric(text: str, name: str | None, rest: str) -> None:
    assert split_name(text) == (name, rest)
