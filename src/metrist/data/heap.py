"""The HEAP suite's pairs, with the words in which each criterion is asked."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace

from metrist import criteria
from metrist.criteria import Criterion
from metrist.data.pairs import GoodBad, read_good_bad
from metrist.errors import InputError, SpecError

Wording = int | Mapping[str, int]


def heap_pairs(path: str | os.PathLike[str], wording: Wording = 0) -> list[GoodBad]:
    """The pairs of a file in the suite's form, each with its criterion's instruction.

    `wording` chooses among a criterion's wordings, one number for all or one for each code. A file's own
    instructions are replaced: they may be another suite's.
    """
    pairs = read_good_bad(path)
    known = {one.code: one for one in criteria.suite("heap").criteria}
    for number, pair in enumerate(pairs, 1):
        fault = _fault(known.get(pair.criterion), pair)
        if fault:
            raise InputError(f"{os.fspath(path)}: pair {number}: {fault}")
    return instructed(pairs, wording)


def instructed(pairs: Iterable[GoodBad], wording: Wording = 0) -> list[GoodBad]:
    """The pairs with their criteria's instructions in the chosen wording; codes that are not named take the first."""
    texts: dict[str, str] = {}
    filled = []
    for pair in pairs:
        if pair.criterion not in texts:
            texts[pair.criterion] = _instruction(criteria.find(pair.criterion), wording)
        filled.append(replace(pair, instruction=texts[pair.criterion]))
    return filled


def _instruction(criterion: Criterion, wording: Wording) -> str:
    chosen = wording if isinstance(wording, int) else wording.get(criterion.code, 0)
    if not 0 <= chosen < len(criterion.instructions):
        last = len(criterion.instructions) - 1
        raise SpecError(f"the wordings of {criterion.code!r} are numbered 0 to {last}, got {chosen}")
    return criterion.instructions[chosen]


def _fault(criterion: Criterion | None, pair: GoodBad) -> str | None:
    if criterion is None:
        return f"'task' must be a code of the suite 'heap', got {pair.criterion!r}"
    for side, fields in (("good", pair.good), ("bad", pair.bad)):
        labels = tuple(label for label, _ in fields)
        if labels != criterion.fields:
            wanted = ", ".join(criterion.fields)
            return f"{side!r} of {criterion.code} must have the fields {wanted}; got {', '.join(labels)}"
    return None
