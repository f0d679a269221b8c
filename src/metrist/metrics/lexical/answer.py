"""Metrics for short answers: exact match and token F1, as in SQuAD (Rajpurkar et al., 2016), and the final answers of
worked solutions, extracted from outputs and references and compared exactly.

The answer is in the last `\\boxed{…}`; else behind the last `####`, "answer is", "answer:" or `A:` of a line; else a
choice such as (B); else it is the last number. Numbers are compared as fractions: 1,000 = 1000.00, 1 1/2 = 1.5, and
0.5 = 1/2 = \\frac{1}{2}. A unit that both have must be the same; what is no number is compared without case and spaces,
or by sympy.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from metrist.errors import ModelError
from metrist.kernels import clipped_matches
from metrist.metrics.base import Metric, Reduce, Shard, check_choice, pairs_of, reduce_references
from metrist.metrics.lexical import tokenizers
from metrist.metrics.lexical.rouge import precision_recall_f
from metrist.metrics.lexical.tokenizers import WordMetric
from metrist.records import Need
from metrist.scores import Scores

NORMALISERS: Mapping[str, Callable[[str], str]] = {
    "none": lambda text: text,
    "case": lambda text: " ".join(text.casefold().split()),
    "squad": tokenizers.normalise_answer,
}


@dataclass(frozen=True)
class Exact(Metric):
    """1 if the output equals a reference, else 0."""

    normalise: str = "none"
    reduce: Reduce = "native"

    needs: ClassVar[tuple[Need, ...]] = ("references",)
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)
    catalog_name: ClassVar[str | None] = "exact"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "normalise", NORMALISERS)

    def score(self, shard: Shard) -> Scores:
        pairs = pairs_of(shard)
        seen: dict[str, int] = {}
        normalise = NORMALISERS[self.normalise]
        numbers = np.array([seen.setdefault(normalise(text), len(seen)) for text in pairs.texts], np.int64)
        equal = (numbers[pairs.outputs] == numbers[pairs.references]).astype(np.float64)
        return Scores(values=reduce_references(equal, equal, pairs.starts, self.reduce))


@dataclass(frozen=True)
class TokenF1(WordMetric):
    """F1 of the words that output and reference share."""

    tokenizer: str = "squad"
    reduce: Reduce = "native"

    needs: ClassVar[tuple[Need, ...]] = ("references",)
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)
    catalog_name: ClassVar[str | None] = "token_f1"

    def score(self, shard: Shard) -> Scores:
        pairs, tokens = pairs_of(shard), tokenizers.tokenise_shard(shard, self.tokenizer)
        output_lengths, reference_lengths = tokens.lengths[pairs.outputs], tokens.lengths[pairs.references]
        shared = clipped_matches(tokens, pairs.outputs, pairs.references, 1)[:, 0]
        rows = precision_recall_f(shared, output_lengths, reference_lengths)
        # Two answers without words agree, as in SQuAD 2.0.
        rows[(output_lengths == 0) & (reference_lengths == 0)] = 1.0
        precision, recall, f = reduce_references(rows, rows[:, 2], pairs.starts, self.reduce).T
        return Scores(values=f, parts={"precision": precision, "recall": recall})


# ---- Final answers

#: Characters of an answer that is looked at; a longer one is compared as text.
_LONGEST = 200
_SPELLINGS = """
% percent; $ dollar dollars usd; € euro euros; £ pound pounds; cent cents; ° degree degrees; mm; cm; m meter meters;
km kilometers; in inch inches; ft foot feet; mile miles; g gram grams; kg; lb lbs; l liter liters; ml; s second seconds;
min minute minutes; h hour hours
"""
_UNITS = {word: words.split()[0] for words in _SPELLINGS.split(";") for word in words.split()}
_MARKED = re.compile(r"(?:####|\banswer(?: is|:)|^A:)[ \t]*[:=]?[ \t]*(\S[^\n]*)", re.MULTILINE | re.IGNORECASE)
_CHOICE = re.compile(r"\(([A-J])\)(?=\W|$)")
_NUMBER = r"(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d{1,100})(?:\.\d{1,100})?|\.\d{1,100})"
_VALUE = re.compile(
    rf"[$€£]?(?:(?<![\w)])(?P<sign>[-−]))?[$€£]?(?:(?P<whole>\d{{1,9}})[ ]+(?=\d+/))?"
    rf"(?P<number>{_NUMBER})(?:e(?P<power>[-+]?\d{{1,3}})(?!\w))?(?:[ ]?/[ ]?(?P<divisor>\d{{1,9}}))?"
    rf"(?:[ ]?(?P<unit>{'|'.join(map(re.escape, sorted(_UNITS, key=len, reverse=True)))})(?![A-Za-z]))?",
    re.IGNORECASE,
)
#: Words behind a number that are no unit.
_WORDS = re.compile(r"(?:\s+[^\W\d_]{3,})+$")


@dataclass(frozen=True)
class FinalAnswer:
    """An answer as a number with its unit, or as the letter of a choice or another text. `formula` is for sympy."""

    text: str
    number: Fraction | None = None
    unit: str = ""
    formula: str = ""


@dataclass(frozen=True)
class Answer(Metric):
    """1 if the final answers of the output and of a reference are equal, else 0."""

    symbolic: bool = False
    reduce: Reduce = "native"

    needs: ClassVar[tuple[Need, ...]] = ("references",)
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)
    catalog_name: ClassVar[str | None] = "answer"

    def facts(self) -> Mapping[str, str]:
        return {"sympy": str(_import_sympy().__version__)} if self.symbolic else {}

    def score(self, shard: Shard) -> Scores:
        pairs = pairs_of(shard)
        found = [extract_answer(text) for text in pairs.texts]
        # A text without any of that, such as the reference Paris, is an answer as a whole.
        answers = [answer or _parse(text) for answer, text in zip(found, pairs.texts, strict=True)]
        equal = np.array(
            [
                are_equal(answers[output], answers[reference], symbolic=self.symbolic)
                for output, reference in zip(pairs.outputs.tolist(), pairs.references.tolist(), strict=True)
            ],
            np.float64,
        )
        extracted = [found[output] is not None for output in pairs.outputs[pairs.starts[:-1]].tolist()]
        return Scores(
            values=reduce_references(equal, equal, pairs.starts, self.reduce),
            parts={"extracted": np.array(extracted, np.float64)},
        )


def extract_answer(text: str) -> FinalAnswer | None:
    """The final answer of a text; None if it has none."""
    text = re.sub(r"<<[^<>]{0,200}>>", "", text)  # The calculator notes of GSM8K.
    start = max(text.rfind(r"\boxed{"), text.rfind(r"\fbox{"))
    if start >= 0:
        # What is in the last box, whose braces are counted.
        begin = text.index("{", start) + 1
        depth = 1
        for place in range(begin, min(len(text), begin + 10 * _LONGEST)):
            depth += (text[place] == "{") - (text[place] == "}")
            if depth == 0:
                return _parse(text[begin:place])
    marked = _MARKED.findall(text)
    if marked and (answer := _parse_phrase(marked[-1])):
        return answer
    if choices := _CHOICE.findall(text):
        return FinalAnswer(choices[-1])
    if re.fullmatch(r"\s*[A-Ja-j][.)]?\s*", text):
        return FinalAnswer(text.strip(" .)\n").upper())
    values = list(_VALUE.finditer(_replace_latex(text)))
    return _read_value(values[-1]) if values else None


def _replace_latex(text: str) -> str:
    text = re.sub(r"\\(?:left|right|displaystyle|[!,;: ]|[()\[\]])", "", text).replace("{,}", ",")
    text = text.replace("\\%", "%").replace("\\$", "$")
    text = re.sub(r"\\[dt]?frac(?:(\d)(\d)|{([^{}]{1,50})}{([^{}]{1,50})})", _write_fraction, text)
    text = re.sub(r"\\(?:text|mathrm|mbox)\{([^{}]*)\}", r" \1", text)
    text = re.sub(r"\^\{?\\circ\}?", "°", text)
    return re.sub(r"\$([^$\n]*[^$\s])\$", r"\1", text)


def _write_fraction(match: re.Match[str]) -> str:
    above, below = match[1] or match[3], match[2] or match[4]
    if not (above.isdecimal() and below.isdecimal()):
        return f"(({above})/({below}))"
    is_mixed = match.string[: match.start()][-1:].isdecimal()
    return f"{' ' if is_mixed else ''}{above}/{below}"


def _parse(text: str) -> FinalAnswer:
    """An answer that nothing but a unit or words stand beside."""
    plain = _replace_latex(text).strip(" .\n")
    if len(plain) <= _LONGEST:
        value = _VALUE.fullmatch(plain) or _VALUE.fullmatch(_WORDS.sub("", plain))
        if value is not None and (answer := _read_value(value)).number is not None:
            return answer
    if choice := re.fullmatch(r"\(?([A-Ja-j])\)?", plain):
        return FinalAnswer(choice[1].upper())
    return FinalAnswer("".join(plain.casefold().split()), formula=plain)


def _parse_phrase(text: str) -> FinalAnswer | None:
    """An answer with words behind it, such as: 5 apples a day."""
    text = _replace_latex(text).strip(" .*")
    choice = re.match(r"\(?([A-J])[).:](?=\W|$)|([A-Ja-j])$", text)
    if choice:
        return FinalAnswer((choice[1] or choice[2]).upper())
    values = list(_VALUE.finditer(text))
    whole = _parse(text)
    return whole if whole.number is not None or not values or _is_formula(whole.formula) else _read_value(values[-1])


def _read_value(match: re.Match[str]) -> FinalAnswer:
    text = "".join(match[0].casefold().split())
    symbol = next((sign for sign in "$€£" if sign in match[0]), "")
    unit = _UNITS.get((match["unit"] or symbol).lower(), "")
    number = Fraction(match["number"].replace(",", "")) * Fraction(10) ** int(match["power"] or 0)
    if match["divisor"]:
        divisor = int(match["divisor"])
        if divisor == 0:
            return FinalAnswer(text)
        number /= divisor
    number += int(match["whole"] or 0)
    return FinalAnswer(text, number=-number if match["sign"] else number, unit=unit)


def are_equal(first: FinalAnswer | None, second: FinalAnswer | None, *, symbolic: bool = False) -> bool:
    if first is None or second is None:
        return False
    if first.number is not None and second.number is not None:
        return first.number == second.number and (not first.unit or not second.unit or first.unit == second.unit)
    if first.text == second.text:
        return True
    return symbolic and _are_same_formula(_write_formula(first), _write_formula(second))


# ---- Formulas

_FUNCTIONS = frozenset(["sqrt", "sin", "cos", "tan", "log", "ln", "exp", "pi"])
_FORMULA = re.compile(r"[0-9a-zA-Z+\-*/^().\s]{1,100}")


def _write_formula(answer: FinalAnswer) -> str:
    """The answer as sympy reads it, without what stands before an equals sign."""
    if answer.number is not None:
        return f"({answer.number.numerator})/({answer.number.denominator})"
    text = re.sub(r"\\(?:cdot|times)", "*", answer.formula).replace("**", "^").rpartition("=")[2]
    text = re.sub(r"\\(sqrt|sin|cos|tan|log|ln|exp|pi)", r" \1 ", text).replace("{", "(").replace("}", ")")
    text = re.sub(r"(?<=[\d)])\s*(?=[a-zA-Z(])|(?<=\))\s*(?=\d)", "*", text)
    return re.sub(r"\b(sqrt|sin|cos|tan|log|ln|exp)\s+\(", r"\1(", text).strip()


def _is_formula(text: str) -> bool:
    """Whether sympy may read a text: few signs, single letters and known functions, and no tower of powers. It would
    otherwise run code, or compute 9^9^9."""
    if not _FORMULA.fullmatch(text):
        return False
    names = re.findall(r"[a-zA-Z]+", text)
    powers = re.findall(r"\^\s*\(?\s*(-?)\s*(\d{1,2}|[a-zA-Z])\s*\)?(?!\s*[\d.^a-zA-Z(*])", text)
    return (
        all(len(name) == 1 or name in _FUNCTIONS for name in names)
        and text.count("^") == len(powers) <= 4
        and text.count("(") <= 10
        and not re.search(r"\d{16}|\)\s*\^\s*\(?\s*-?\s*\d{2}", text)
        and sum(name in _FUNCTIONS for name in names) <= 4
    )


@lru_cache(maxsize=10_000)
def _are_same_formula(first: str, second: str) -> bool:
    if not (_is_formula(first) and _is_formula(second)):
        return False
    sympy = _import_sympy()
    letters = {
        name: sympy.Symbol(name) for name in re.findall(r"(?<![a-zA-Z])[a-zA-Z](?![a-zA-Z])", first + " " + second)
    }
    try:
        left, right = (sympy.sympify(text, locals=letters, convert_xor=True) for text in (first, second))
        return bool(sympy.simplify(left - right) == 0)
    except (sympy.SympifyError, TypeError, ValueError, ArithmeticError, RecursionError, AttributeError, SyntaxError):
        return False


def _import_sympy() -> Any:
    try:
        return importlib.import_module("sympy")
    except ImportError:
        raise ModelError(
            "answer(symbolic=True) needs sympy, which is not installed: pip install sympy", code="missing_dependency"
        ) from None
