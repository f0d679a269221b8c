"""Errors of several analyses of one output, put together: those about the same words become one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from metrist.metrics.normalised import normalised
from metrist.ratings import Error


@dataclass(frozen=True, slots=True)
class Merged:
    """One error for several, and what each analysis takes off for it: 0 where it did not find it."""

    error: Error
    penalties: tuple[float, ...]


def merged(analyses: Sequence[Sequence[Error]]) -> tuple[Merged, ...]:
    """One error for those of different analyses whose places overlap, or whose words are the same where they have no
    place. Its penalty is their sum over the number of analyses, so that all penalties together are the analyses' mean;
    the words are those of the one with the middle penalty."""
    groups: list[dict[int, Error]] = []
    for number, errors in enumerate(analyses):
        for error in errors:
            _put(groups, number, error)
    return tuple(_merged(group, len(analyses)) for group in groups)


def spread(found: Sequence[Merged], counted: Sequence[Error]) -> float:
    """The standard deviation between the analyses of what they take off for the errors that count."""
    ids = {id(error) for error in counted}
    rows = [one.penalties for one in found if id(one.error) in ids]
    return float(np.std([math.fsum(column) for column in zip(*rows, strict=True)])) if rows else 0.0


def _merged(group: Mapping[int, Error], analyses: int) -> Merged:
    penalties = (group[n].penalty or 0.0 if n in group else 0.0 for n in range(analyses))
    return Merged(_one(list(group.values()), analyses), tuple(penalties))


def _put(groups: list[dict[int, Error]], number: int, error: Error) -> None:
    """Add the error to the group that it overlaps most, but never two errors of one analysis to the same group."""
    open_groups = [group for group in groups if number not in group]
    shares = [max(_shared(error, other) for other in group.values()) for group in open_groups]
    best = max(range(len(shares)), key=shares.__getitem__, default=None)
    if best is not None and shares[best] > 0:
        open_groups[best][number] = error
    else:
        groups.append({number: error})


def _shared(one: Error, other: Error) -> float:
    """How many characters of the two are the same, as a share of all that they cover."""
    if one.start is None or one.end is None or other.start is None or other.end is None:
        same = one.start is other.start is None and _words(one) == _words(other)
        return float(same and bool(_words(one)))
    if one.side != other.side:
        return 0.0
    both = min(one.end, other.end) - max(one.start, other.start)
    return max(both, 0) / max(max(one.end, other.end) - min(one.start, other.start), 1)


def _words(error: Error) -> str:
    return normalised(error.text).text.strip()


def _one(errors: Sequence[Error], analyses: int) -> Error:
    if analyses == 1:
        return errors[0]
    by_penalty = sorted(errors, key=lambda error: error.penalty or 0.0)
    middle = by_penalty[(len(by_penalty) - 1) // 2]
    penalty = math.fsum(error.penalty or 0.0 for error in errors) / analyses
    found = f"{middle.explanation} (found in {len(errors)} of {analyses} analyses)".strip()
    return replace(middle, penalty=penalty, explanation=found)
