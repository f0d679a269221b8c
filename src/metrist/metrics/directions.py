"""Which text is to be likely given which: the directions of a likelihood metric, and their pairs of texts.

Paper 002 calls source->output faithfulness, reference->output precision, output->reference recall, and the mean of the
last two F. An output has one pair per way and reference; here records become pairs, and pairs become records again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from metrist.metrics.references import best_or_mean
from metrist.records import Need, Record
from metrist.scores import Failure, FailureKind

Direction = Literal["source->output", "reference->output", "output->reference", "f"]
DIRECTIONS: tuple[str, ...] = get_args(Direction)
Field = Literal["source", "reference", "output"]
Numbers = NDArray[np.float64]


class Way(NamedTuple):
    """One way to go: from the field that is given to the field whose words are to be likely."""

    condition: Field
    target: Field


_PRECISION, _RECALL = Way("reference", "output"), Way("output", "reference")
WAYS: Mapping[str, tuple[Way, ...]] = {
    "source->output": (Way("source", "output"),),
    "reference->output": (_PRECISION,),
    "output->reference": (_RECALL,),
    "f": (_PRECISION, _RECALL),
}
#: What the ways of a direction that has several are called among a score's parts.
_PARTS = {_PRECISION: "precision", _RECALL: "recall"}


def needs_of(direction: Direction) -> tuple[Need, ...]:
    """What a record must have besides its output."""
    return ("source",) if direction == "source->output" else ("references",)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Asked:
    """The pairs (condition, target) of a shard, one list per way. In each list the pairs of the n-th record that can be
    scored, which is record `able[n]`, are `starts[n]:starts[n + 1]`: one per reference. The rest has `failures`."""

    ways: tuple[Way, ...]
    pairs: tuple[list[tuple[str, str]], ...]
    starts: NDArray[np.int64]
    able: list[int]
    failures: Mapping[int, str]

    @property
    def size(self) -> int:
        """Pairs of one way."""
        return int(self.starts[-1])

    def records_of_pairs(self) -> NDArray[np.int64]:
        """For each pair of a way, which of the records in `able` it belongs to."""
        return np.repeat(np.arange(len(self.able)), np.diff(self.starts))

    def reduced(self, values: Numbers, reduce: str, **columns: Numbers) -> tuple[Numbers, dict[str, Numbers]]:
        """Values of shape (ways, pairs) as one value per record in `able`, with its parts: the ways' own values where
        there are several, and further columns of one number a pair. References are averaged, or ('max') the one with
        the highest value is taken with all that belongs to it."""
        whole = values.mean(axis=0)
        parts = {_PARTS[way]: row for way, row in zip(self.ways, values, strict=True)} if len(self.ways) > 1 else {}
        parts |= columns
        rows = np.column_stack([whole, *parts.values()]) if parts else whole[:, None]
        kept = best_or_mean(rows, whole, self.starts, "max" if reduce == "max" else "mean")
        return kept[:, 0], dict(zip(parts, kept[:, 1:].T, strict=True))


def asked(records: Sequence[Record], direction: Direction) -> Asked:
    """The pairs to score. A record of which a text is empty has none: there are no words to be likely, or nothing to
    make them so."""
    ways = WAYS[direction]
    empty = ((i, _empty(record, ways[0])) for i, record in enumerate(records))
    failures = {i: Failure(FailureKind.missing_input, reason) for i, reason in empty if reason}
    able = [i for i in range(len(records)) if i not in failures]
    pairs = tuple([pair for i in able for pair in _pairs(records[i], way)] for way in ways)
    counts = [1 if direction == "source->output" else len(records[i].references) for i in able]
    starts = np.cumsum([0, *counts], dtype=np.int64)
    return Asked(
        ways=ways,
        pairs=pairs,
        starts=starts,
        able=able,
        failures=failures,
    )


def _pairs(record: Record, way: Way) -> Iterator[tuple[str, str]]:
    match way:
        case Way(condition="source"):
            yield record.source or "", record.output
        case Way(condition="reference"):
            yield from ((reference, record.output) for reference in record.references)
        case _:
            yield from ((record.output, reference) for reference in record.references)


def _empty(record: Record, way: Way) -> str | None:
    """Which text is empty, in words. A direction's ways look at the same texts."""
    if not record.output.strip():
        return "the output is empty: it has no words to be likely"
    if "source" in way:
        return None if (record.source or "").strip() else "the source is empty: it makes no words likely"
    for number, reference in enumerate(record.references, start=1):
        if not reference.strip():
            which = "the reference" if len(record.references) == 1 else f"reference {number}"
            return f"{which} is empty: it has no words to be likely"
    return None
