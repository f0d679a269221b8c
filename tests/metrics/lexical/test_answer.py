"""Final answers. Whether two answers are equal was decided by hand; the worked solutions of gsm8k-solutions carry the
label `correct` of their authors."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

import pytest

from error_codes import raises_code
from metrist.errors import ModelError
from metrist.io.reader import read_records
from metrist.metrics.base import Shard
from metrist.metrics.lexical.answer import Answer, are_equal, extract_answer
from metrist.metrics.registry import build
from real_records import record

EQUAL = [
    ("42", "42"),
    ("It is 1,000.", "1000.00"),
    (r"so \boxed{\frac{1}{2}}", "0.5"),
    (r"\boxed{\dfrac12}", "1/2"),
    (r"\boxed{-\frac{3}{4}}", "-0.75"),
    ("1 1/2", "1.5"),
    (r"\boxed{1\frac{1}{2}}", "3/2"),
    (r"$\boxed{12{,}345}$", "12345"),
    (r"first \boxed{3}, then \boxed{4}", "#### 4"),
    (r"\boxed{\text{Paris}}", r"\boxed{paris}"),
    (r"\boxed{x^{2} + 1}", r"\boxed{x^{2}+1}"),
    ("3 + 4 = 7\n#### 7", "A: 7"),
    ("2 * 9 = <<2*9=18>>18\nA: 18", "18"),
    ("The answer is 5 apples.", "5"),
    ("The final answer is: 5", "5"),
    ("Answer: **26**", "26"),
    ("The answer is $18 a day.", "18 dollars"),
    ("The answer is 18 dollars.", "$18"),
    ("It costs $18", "18"),
    ("50%", "50 percent"),
    ("50", "50%"),
    (r"\boxed{50\%}", "50%"),
    ("12 cm", r"\boxed{12\text{ cm}}"),
    ("12 meters", "12 m"),
    (r"\boxed{90^\circ}", "90 degrees"),
    ("1e3", "1000"),
    ("-5", "−5"),
    (".5", "0.50"),
    ("The answer is (B).", "B"),
    ("The answer is b", "(B)"),
    ("I choose (C)", "The answer is C) Paris"),
    ("B", "b."),
    (r"\boxed{\left(3, 4\right)}", r"\boxed{(3,4)}"),
]
UNEQUAL = [
    ("42", "43"),
    ("12 cm", "12 mm"),
    ("$5", "5 cents"),
    ("50%", "0.5"),
    ("0.333", "1/3"),
    ("(B)", "(C)"),
    ("no number here", "7"),
    ("1/0", "1"),
    (r"\boxed{5x}", "5"),
    ("", "0"),
    (r"\boxed{2(x+1)}", r"\boxed{2x+2}"),
    (r"\boxed{unclosed 3", r"\boxed{4}"),
]


@pytest.mark.parametrize(("output", "reference"), EQUAL)
def test_equal_answers_in_other_forms(output: str, reference: str) -> None:
    assert are_equal(extract_answer(output), extract_answer(reference))
    assert are_equal(extract_answer(reference), extract_answer(output))


@pytest.mark.parametrize(("output", "reference"), UNEQUAL)
def test_different_answers(output: str, reference: str) -> None:
    assert not are_equal(extract_answer(output), extract_answer(reference))


def test_the_best_reference_counts_and_a_part_tells_what_was_found() -> None:
    scores = Answer().score(Shard([record("so 7", "8", "7"), record("so 9", "8", "7"), record("none", "8")]))
    assert scores.values.tolist() == [1, 0, 0]
    assert scores.parts["extracted"].tolist() == [1, 1, 0]


def test_a_reference_may_be_a_word() -> None:
    shard = Shard(
        [record(r"So it is \boxed{\text{Paris}}.", "Paris"), record("paris", "Paris"), record("Rome", "Paris")]
    )
    assert Answer().score(shard).values.tolist() == [1, 1, 0]


def test_solutions_are_right_where_their_authors_say_so(data: Callable[[str], Path]) -> None:
    """Counted in gsm8k-solutions: 5,276 solutions, 2,001 of which OpenAI labels correct."""
    right = labels = rows = 0
    entries = list(read_records(data("gsm8k-solutions")).entries())
    scores = Answer().score(Shard([entry.new[0] for entry in entries]))
    for entry, value in zip(entries, scores.values.tolist(), strict=True):
        (rating,) = entry.ratings
        right += value == rating.value
        labels += rating.value == 1
        rows += 1
    assert (right, labels, rows) == (5276, 2001, 5276)


# ---- Formulas


@pytest.mark.parametrize(
    ("first", "second", "equal"),
    [
        ("2(x+1)", "2x+2", True),
        (r"\frac{x}{2}", "0.5x", True),
        (r"\sqrt{8}", r"2\sqrt{2}", True),
        ("y = x^2 + 2x + 1", "(x+1)^2", True),
        (r"\frac{\pi}{2}", "pi/2", True),
        ("x + 1", "x + 2", False),
        ("E", "2.718281828", False),
        ("sin(x)", "cos(x)", False),
    ],
)
def test_formulas_are_compared_by_sympy(first: str, second: str, equal: bool) -> None:
    pytest.importorskip("sympy", reason="symbolic answers need sympy")
    shard = Shard([record(rf"\boxed{{{first}}}", rf"\boxed{{{second}}}")])
    assert Answer(symbolic=True).score(shard).values.tolist() == [equal]


@pytest.mark.parametrize(
    "text",
    [
        "9**9**9",
        "9^9^9",
        "(9^99)^99",
        "9^(9^9)",
        "9^999999",
        "x^(y^z^w)",
        "99999999999999999999^9",
        "__import__('os')",
        "x.real",
        "exec(x)",
        "lambda: 1",
        "[x for x in y]",
        "x" * 101,
        "(" * 50 + "x" + ")" * 50,
    ],
)
def test_hostile_formulas_are_refused_by_their_shape(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metrist.metrics.lexical.answer._import_sympy", lambda: pytest.fail("sympy was called"))
    assert not are_equal(extract_answer(rf"\boxed{{{text}}}"), extract_answer(r"\boxed{x + 1}"), symbolic=True)


def test_without_sympy_the_setting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: str) -> None:
        raise ImportError

    monkeypatch.setattr(importlib, "import_module", fail)
    with raises_code(ModelError, "missing_dependency"):
        Answer(symbolic=True).facts()


def test_the_catalog_has_it() -> None:
    assert build("answer(symbolic=True)") == Answer(symbolic=True)
