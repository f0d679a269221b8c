"""HEAP's pairs with the instruction of each criterion."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace

from metrist import criteria
from metrist.data.pairs import GoodBad, read_good_bad
from metrist.errors import InputError, SpecError

Wording = int | Mapping[str, int]


def read_heap_pairs(path: str | os.PathLike[str], wording: Wording = 0) -> list[GoodBad]:
    """Read a file of HEAP pairs and check that each pair has the fields of its criterion.

    `wording` selects among a criterion's instructions, one number for all or one for each code. Instructions in the
    file are replaced: they may belong to another suite.
    """
    pairs = read_good_bad(path)
    suite = {criterion.code: criterion for criterion in criteria.suite("heap").criteria}
    for number, pair in enumerate(pairs, 1):
        criterion = suite.get(pair.criterion)
        if criterion is None:
            message = f"'task' must be a code of the suite 'heap', got {pair.criterion!r}"
            raise InputError(f"{os.fspath(path)}: pair {number}: {message}")
        for side, fields in (("good", pair.good), ("bad", pair.bad)):
            labels = tuple(label for label, _ in fields)
            if labels != criterion.fields:
                message = f"{side!r} of {criterion.code} must have the fields {', '.join(criterion.fields)}"
                raise InputError(f"{os.fspath(path)}: pair {number}: {message}; got {', '.join(labels)}")
    return add_instructions(pairs, wording)


def add_instructions(pairs: Iterable[GoodBad], wording: Wording = 0) -> list[GoodBad]:
    """Return the pairs with their criteria's instructions in the selected wording; codes without a number get the
    first."""
    instructions: dict[str, str] = {}
    instructed = []
    for pair in pairs:
        if pair.criterion not in instructions:
            instructions[pair.criterion] = _select_instruction(criteria.find(pair.criterion), wording)
        instructed.append(replace(pair, instruction=instructions[pair.criterion]))
    return instructed


def _select_instruction(criterion: criteria.Criterion, wording: Wording) -> str:
    number = wording if isinstance(wording, int) else wording.get(criterion.code, 0)
    if not 0 <= number < len(criterion.instructions):
        last = len(criterion.instructions) - 1
        raise SpecError(f"the wordings of {criterion.code!r} are numbered 0 to {last}, got {number}")
    return criterion.instructions[number]
