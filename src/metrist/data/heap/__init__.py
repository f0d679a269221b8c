"""HEAP's pairs, from one file or from the data sets that HEAP was made of.

    read_heap_pairs("heap-pairs.jsonl.xz")                             pairs in HEAP's format
    read_data_set("CHASM", "counter_conan.json", "counter_sbic.json")  all criteria of a published data set
    read_data_set("CNG", "human_evaluation.csv")                       one criterion, by its code

Pairs of a data set are made as HEAP's authors made them, in their order; `metrist.data.heap.datasets` explains how.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from metrist import criteria
from metrist.data.heap import datasets
from metrist.data.heap.rows import PathLike
from metrist.data.pairs import GoodBad, read_good_bad
from metrist.documents import read_toml
from metrist.errors import InputError, SpecError, did_you_mean

__all__ = [
    "HeapDataSet",
    "Wording",
    "add_instructions",
    "list_data_sets",
    "list_skipped",
    "read_data_set",
    "read_heap_pairs",
    "read_instructions",
]

#: The number of the instruction's wording, for all criteria or by code; by code also a text of one's own.
Wording = int | Mapping[str, int | str]


def read_heap_pairs(path: PathLike, wording: Wording = 0) -> list[GoodBad]:
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
                raise InputError(
                    f"{os.fspath(path)}: pair {number}: {message}; got {', '.join(labels)}", code="invalid_value"
                )
    return add_instructions(pairs, wording)


def add_instructions(pairs: Iterable[GoodBad], wording: Wording = 0) -> list[GoodBad]:
    """Return the pairs with their criteria's instructions in the selected wording; codes without a number get the
    first."""
    instructions: dict[str, str] = {}
    instructed = []
    for pair in pairs:
        if pair.criterion not in instructions:
            criterion = criteria.find(pair.criterion)
            number = wording if isinstance(wording, int) else wording.get(criterion.code, 0)
            if not isinstance(number, str) and not 0 <= number < len(criterion.instructions):
                last = len(criterion.instructions) - 1
                raise SpecError(f"the wordings of {criterion.code!r} are numbered 0 to {last}, got {number}")
            text = number if isinstance(number, str) else criterion.instructions[number]
            instructions[pair.criterion] = text
        instructed.append(replace(pair, instruction=instructions[pair.criterion]))
    return instructed


def read_instructions(path: PathLike) -> Mapping[str, str]:
    """Read a TOML file of instructions by criterion, such as those of the paper."""
    table = read_toml(Path(path), InputError)
    suite = criteria.suite("heap")
    for name, text in table.items():
        if not isinstance(text, str) or not text.strip():
            raise InputError(f"{path}: {name} must be an instruction, got {text!r}", code="invalid_value")
    return {suite.criterion(name).code: text for name, text in table.items()}


@dataclass(frozen=True, slots=True)
class HeapDataSet:
    """A data set, its criteria's codes, and the function that makes pairs of its files."""

    name: str
    codes: tuple[str, ...]
    pairs: Callable[[Sequence[PathLike], Collection[str]], Iterator[GoodBad]]


_READERS = {
    "TuringAdvice": datasets.read_turing_advice,
    "TellMeWhy": datasets.read_tellmewhy,
    "HellaSwag": datasets.read_hellaswag,
    "CommonGen": datasets.read_commongen,
    "counter narratives": datasets.read_counter_narratives,
    "CHASM": datasets.read_chasm,
    "TimeTravel": datasets.read_timetravel,
    "Defeasible Inference": datasets.read_defeasible_inference,
}


def list_data_sets() -> tuple[HeapDataSet, ...]:
    """Return the data sets of the suite, in the paper's order."""
    suite = criteria.suite("heap").criteria
    return tuple(
        HeapDataSet(name, tuple(criterion.code for criterion in suite if criterion.data_set == name), reader)
        for name, reader in _READERS.items()
    )


def read_data_set(name: str, *paths: PathLike, wording: Wording = 0) -> list[GoodBad]:
    """Read the pairs of a data set, or of one criterion by its code, from the files that the data set was published in.

    Each pair has its criterion's instruction in the selected wording, and no split.
    """
    data_set, codes = _find_data_set(name)
    if not paths:
        raise InputError(
            f"{data_set.name} needs the files that it was published in; no file is named", code="missing_value"
        )
    pairs = add_instructions(data_set.pairs(paths, codes), wording)
    if not pairs:
        raise InputError(f"{', '.join(map(str, paths))}: no pairs of {', '.join(codes)}")
    return pairs


def list_skipped(name: str, *paths: PathLike) -> list[str]:
    """Say how many rows `read_data_set` skips because they lack an answer, one sentence per criterion."""
    data_set, codes = _find_data_set(name)
    return datasets.count_unanswered(paths, codes) if data_set.name == "TimeTravel" else []


def _find_data_set(name: str) -> tuple[HeapDataSet, tuple[str, ...]]:
    known_sets = list_data_sets()
    for data_set in known_sets:
        if _simplify(name) == _simplify(data_set.name):
            return data_set, data_set.codes
        for code in data_set.codes:
            if _simplify(name) == _simplify(code):
                return data_set, (code,)
    known = [known_name for data_set in known_sets for known_name in (data_set.name, *data_set.codes)]
    names = ", ".join(data_set.name for data_set in known_sets)
    raise SpecError(
        f"no data set or criterion of HEAP named {name!r}{did_you_mean(name, known) or f'; there are {names}'}",
        code="unknown_name",
    )


def _simplify(name: str) -> str:
    """Ignore case, spaces and hyphens."""
    return "".join(character for character in name.lower() if character.isalnum())
