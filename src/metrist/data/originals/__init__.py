"""Read the data sets that HEAP was made of, from the files that their authors published.

    originals.read("CHASM", "counter_conan.json", "counter_sbic.json")    all criteria of a data set
    originals.read("CNG", "human_evaluation.csv")                         one criterion, by its code

Pairs are made as HEAP's authors made them, in their order; `metrist.data.originals.datasets` explains how.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from metrist import criteria
from metrist.data.heap import Wording, add_instructions
from metrist.data.originals import datasets
from metrist.data.originals.rows import PathLike
from metrist.data.pairs import GoodBad
from metrist.errors import InputError, SpecError, did_you_mean

__all__ = ["Original", "data_sets", "read"]


@dataclass(frozen=True, slots=True)
class Original:
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


def data_sets() -> tuple[Original, ...]:
    """Return the data sets of the suite, in the paper's order."""
    suite = criteria.suite("heap").criteria
    return tuple(
        Original(name, tuple(criterion.code for criterion in suite if criterion.data_set == name), reader)
        for name, reader in _READERS.items()
    )


def read(name: str, *paths: PathLike, wording: Wording = 0) -> list[GoodBad]:
    """Read the pairs of a data set, or of one criterion by its code, from the files that the data set was published in.

    Each pair has its criterion's instruction in the selected wording, and no split.
    """
    original, codes = _find_data_set(name)
    if not paths:
        raise InputError(f"{original.name} needs the files that it was published in; no file is named")
    pairs = add_instructions(original.pairs(paths, codes), wording)
    if not pairs:
        raise InputError(f"{', '.join(map(str, paths))}: no pairs of {', '.join(codes)}")
    return pairs


def _find_data_set(name: str) -> tuple[Original, tuple[str, ...]]:
    originals = data_sets()
    for original in originals:
        if _simplify(name) == _simplify(original.name):
            return original, original.codes
        for code in original.codes:
            if _simplify(name) == _simplify(code):
                return original, (code,)
    known = [known_name for original in originals for known_name in (original.name, *original.codes)]
    names = ", ".join(original.name for original in originals)
    raise SpecError(
        f"no data set or criterion of HEAP named {name!r}{did_you_mean(name, known) or f'; there are {names}'}"
    )


def _simplify(name: str) -> str:
    """Ignore case, spaces and hyphens."""
    return "".join(character for character in name.lower() if character.isalnum())
