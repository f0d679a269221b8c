"""Which module reads which data set."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from metrist import criteria
from metrist.data.heap import Wording, instructed
from metrist.data.originals import datasets
from metrist.data.originals.rows import PathLike
from metrist.data.pairs import GoodBad
from metrist.errors import InputError, SpecError, did_you_mean


@dataclass(frozen=True, slots=True)
class Original:
    """A data set, its criteria's codes, and what makes pairs of its files."""

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
    """The data sets of the suite, in the paper's order."""
    suite = criteria.suite("heap")
    codes = {name: tuple(one.code for one in suite.criteria if one.data_set == name) for name in _READERS}
    return tuple(Original(name, codes[name], pairs) for name, pairs in _READERS.items())


def read(name: str, *paths: PathLike, wording: Wording = 0) -> list[GoodBad]:
    """The pairs of a data set, or of one criterion by its code, out of the files that the data set was published in.

    Each pair has its criterion's instruction in the chosen wording, and no split.
    """
    original, codes = _find_data_set(name)
    if not paths:
        raise InputError(f"{original.name} wants the files that it was published in; none was given")
    pairs = instructed(original.pairs(paths, codes), wording)
    if not pairs:
        raise InputError(f"{', '.join(map(str, paths))}: gives no pairs of {', '.join(codes)}")
    return pairs


def _find_data_set(name: str) -> tuple[Original, tuple[str, ...]]:
    for original in data_sets():
        if _plain(name) == _plain(original.name):
            return original, original.codes
        for code in original.codes:
            if _plain(name) == _plain(code):
                return original, (code,)
    known = [one for original in data_sets() for one in (original.name, *original.codes)]
    there = ", ".join(original.name for original in data_sets())
    raise SpecError(
        f"no data set or criterion of HEAP named {name!r}{did_you_mean(name, known) or f'; there are {there}'}"
    )


def _plain(name: str) -> str:
    """A name as it may be typed: capitals, spaces and hyphens do not matter."""
    return "".join(one for one in name.lower() if one.isalnum())
