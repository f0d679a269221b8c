"""CommonGen: sentences made of given words, compared two by two for common sense.

The raters' sheets (CSV, one a rater) have blocks: a line `Concept set: …`, a line `Reference: …`, then lines of two
sentences and a score from -1 (the second is much more realistic) to 1 (the first is). What stands before the first
block is the instruction to the raters.

CR: the sentence that the raters' scores favour on the average; a mean of 0 makes no pair. Scores left blank are passed
over. Give all sheets together: the same two sentences stand in several.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from metrist.data.good_bad import GoodBad
from metrist.data.originals.ordering import Answer, Question, grouped
from metrist.data.originals.table import PathLike, cells
from metrist.errors import InputError
from metrist.io.compression import display_name
from metrist.io.fields import as_number
from metrist.io.row_model import Fault

_CONCEPTS, _REFERENCE = "Concept set:", "Reference:"


@dataclass(frozen=True, slots=True)
class _Compared:
    concepts: str
    reference: str
    first: str
    second: str
    score: float | None

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.concepts, self.reference, self.first, self.second


def pairs(paths: Sequence[PathLike], codes: Collection[str]) -> Iterator[GoodBad]:
    """The pairs of CR."""
    compared = (one for path in paths for one in _sheet(path)) if "CR" in codes else ()
    for group in grouped((one.key, one) for one in compared):
        total = sum(one.score for one in group if one.score is not None)
        if total:
            one = group[0]
            first, second = Answer(text=one.first), Answer(text=one.second)
            good, bad = (first, second) if total > 0 else (second, first)
            question = Question(code="CR", context=(one.concepts, one.reference), item=one.concepts)
            yield question.pair(good, bad)


def _sheet(path: PathLike) -> Iterator[_Compared]:
    name = display_name(path)
    concepts = reference = ""
    for line, found in cells(path):
        head = found[0].strip()
        if head.startswith(_CONCEPTS):
            concepts, reference = head.removeprefix(_CONCEPTS).strip(), ""
        elif head.startswith(_REFERENCE):
            reference = head.removeprefix(_REFERENCE).strip()
        elif concepts and reference:
            yield _compared(concepts, reference, found, f"{name}:{line}")
    if not concepts:
        raise InputError(f"{name}: has no line 'Concept set: …'; wanted a sheet of CommonGen's human evaluation")


def _compared(concepts: str, reference: str, found: list[str], place: str) -> _Compared:
    if len(found) < 3 or not found[0] or not found[1]:
        raise InputError(f"{place}: wanted two sentences and a score, got {found}")
    try:
        score = as_number("the score", found[2]) if found[2].strip() else None
    except Fault as fault:
        raise InputError(f"{place}: {fault}") from None
    return _Compared(concepts, reference, found[0], found[1], score)
