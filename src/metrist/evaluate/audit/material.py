"""What a judge is audited on: a sample of items with some of their outputs, and what people said of them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from metrist.errors import RunError, did_you_mean
from metrist.io import Reader
from metrist.records import Pair, Record
from metrist.run.pairing import Votes

Floats = NDArray[np.float64]
Key = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Material:
    """Outputs of the sampled items, each item's together. `ratings` are the means over raters, by aspect; `pairs` has
    one pair of each item with two outputs, and `votes` what people chose, by aspect."""

    records: tuple[Record, ...]
    pairs: tuple[Pair, ...]
    ratings: Mapping[str, Mapping[Key, float]]
    votes: Mapping[str, Votes]
    own: str | None = None

    @property
    def items(self) -> list[str]:
        """The item of each output."""
        return [record.item for record in self.records]

    def one_each(self) -> list[int]:
        """The number of one output of each item."""
        chosen: dict[str, int] = {}
        for i in sorted(range(len(self.records)), key=lambda i: _lot(self.records[i].item, self.records[i].system)):
            chosen.setdefault(self.records[i].item, i)
        return sorted(chosen.values())

    def human(self) -> Floats:
        """What people think of each output, all aspects together: the mean of their standard scores. NaN for an output
        that lacks a rating."""
        columns = [self._standard(column) for column in self.ratings.values()]
        return np.mean(columns, axis=0) if columns else np.full(len(self.records), math.nan)

    def _standard(self, column: Mapping[Key, float]) -> Floats:
        values = np.array([column.get((one.item, one.system), math.nan) for one in self.records])
        known = values[~np.isnan(values)]
        spread = known.std() if len(known) else 0.0
        return (values - known.mean()) / spread if spread > 0 else np.where(np.isnan(values), math.nan, 0.0)


def gather(reader: Reader, items: int, outputs: int, own: str | None, aspects: Sequence[str]) -> Material:
    """The sample: so many items with so many outputs each. Hashes of the names choose, so that the same input gives the
    same sample; items with several outputs go first, and an own system's outputs are always among them."""
    by_item, ratings, votes = _read(reader)
    systems = list(dict.fromkeys(record.system for records in by_item.values() for record in records))
    if own is not None and own not in systems:
        raise RunError(f"no system named {own!r}{did_you_mean(own, systems)} (there are {', '.join(systems[:10])})")
    chosen = sorted(by_item, key=lambda item: (len(by_item[item]) < 2, _lacks(by_item[item], own), _lot(item)))[:items]
    kept = {item: _some(by_item[item], outputs, own) for item in by_item if item in set(chosen)}
    return Material(
        records=tuple(record for records in kept.values() for record in records),
        pairs=tuple(pair for records in kept.values() for pair in _pair(records, own, votes)),
        ratings=_means(ratings, aspects),
        votes=votes,
        own=own,
    )


_Read = tuple[dict[str, list[Record]], dict[str, dict[Key, list[float]]], dict[str, Votes]]


def _read(reader: Reader) -> _Read:
    by_item: dict[str, list[Record]] = {}
    votes: dict[str, Votes] = {}
    ratings: dict[str, dict[Key, list[float]]] = {}
    for entry in reader.entries():
        for record in entry.new:
            by_item.setdefault(record.item, []).append(record)
        for one in entry.ratings:
            ratings.setdefault(one.aspect, {}).setdefault((one.item, one.system), []).append(one.value)
        for preference in entry.preferences:
            votes.setdefault(preference.aspect, Votes()).add(preference)
    if not by_item:
        raise RunError(f"{', '.join(reader.names) or 'the input'}: none of the rows has an output")
    return by_item, ratings, votes


def _means(ratings: Mapping[str, Mapping[Key, Sequence[float]]], aspects: Sequence[str]) -> dict[str, dict[Key, float]]:
    if missing := [aspect for aspect in aspects if aspect not in ratings]:
        known = ", ".join(ratings) or "none"
        raise RunError(
            f"the data have no ratings of {missing[0]!r}{did_you_mean(missing[0], ratings)} (they have {known})"
        )
    return {
        aspect: {key: sum(values) / len(values) for key, values in ratings[aspect].items()}
        for aspect in aspects or ratings
    }


def _lacks(records: Iterable[Record], own: str | None) -> bool:
    return own is not None and all(record.system != own for record in records)


def _some(records: Sequence[Record], count: int, own: str | None) -> list[Record]:
    ranked = sorted(records, key=lambda one: (one.system != own, _lot(one.item, one.system)))[:count]
    return [record for record in records if record in ranked]


def _pair(records: Sequence[Record], own: str | None, votes: Mapping[str, Votes]) -> list[Pair]:
    """One pair of different outputs: with an own one, and one that people chose between, if there is such a pair. Equal
    outputs leave nothing to choose."""
    apart = [Pair(first=a, second=b) for a, b in combinations(records, 2) if a.output != b.output]

    def rank(pair: Pair) -> tuple[bool, bool, bytes]:
        both, key = (pair.first, pair.second), (pair.first.item, pair.first.system, pair.second.system)
        unvoted = not any(one.choice(key) for one in votes.values())
        return _lacks(both, own), unvoted, _lot(*sorted(key[1:]), key[0])

    return sorted(apart, key=rank)[:1]


def _lot(*names: str) -> bytes:
    return hashlib.sha256("\0".join(names).encode("utf-8", "surrogatepass")).digest()
