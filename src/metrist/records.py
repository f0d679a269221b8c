"""Records: outputs to be judged, with what they are judged against."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from metrist.errors import InputError

Need = Literal["source", "references", "instruction"]

#: Optional fields that hold one text each: what an output was made from and asked to be, and tags to group outputs by.
CONTEXT_FIELDS = ("source", "instruction")
TAG_FIELDS = ("task", "language")
OPTIONAL_FIELDS = (*CONTEXT_FIELDS, *TAG_FIELDS)
#: All fields that hold one text, in the order of `original` in run folders, and their columns in `RecordColumns`.
TEXT_FIELDS = ("item", "system", "output", *OPTIONAL_FIELDS)
COLUMN_NAMES = {name: f"{name}s" for name in TEXT_FIELDS}

_EMPTY: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One system's output for one item. `extra` holds the columns that metrist does not know."""

    item: str
    system: str
    output: str
    source: str | None = None
    references: tuple[str, ...] = ()
    instruction: str | None = None
    task: str | None = None
    language: str | None = None
    extra: Mapping[str, Any] = field(default_factory=lambda: _EMPTY, hash=False)

    def lacks(self, need: Need) -> bool:
        """Whether the record does not have this field."""
        return not self.references if need == "references" else getattr(self, need) is None

    def __reduce__(self) -> tuple[Any, ...]:
        # Records are sent to worker processes by the thousand: a flat tuple pickles three times faster than the state
        # of a slotted dataclass, and a mapping proxy cannot be pickled.
        return _record, (
            self.item,
            self.system,
            self.output,
            self.source,
            self.references,
            self.instruction,
            self.task,
            self.language,
            dict(self.extra),
        )


def _record(
    item: str,
    system: str,
    output: str,
    source: str | None,
    references: tuple[str, ...],
    instruction: str | None,
    task: str | None,
    language: str | None,
    extra: dict[str, Any],
) -> Record:
    return Record(
        item=item,
        system=system,
        output=output,
        source=source,
        references=references,
        instruction=instruction,
        task=task,
        language=language,
        extra=extra or _EMPTY,
    )


def records_from_lists(
    predictions: Any, references: Any = None, sources: Any = None, *, system: str | None = None
) -> list[Record]:
    """Records from lists of equal length, as other packages take them.

    `predictions` are the outputs of one system, or a mapping from systems to their outputs. `references` has one text,
    or a list of texts, for each. Items are numbered from 1.
    """
    if isinstance(predictions, Mapping):
        if system is not None:
            raise InputError("predictions is a mapping from systems to outputs: leave out system", code="conflict")
        by_system = {str(name): _list_texts(f"predictions[{name!r}]", texts) for name, texts in predictions.items()}
    else:
        by_system = {system or "predictions": _list_texts("predictions", predictions)}
    if not any(by_system.values()):
        raise InputError("predictions is empty: expected a list of texts", code="no_data")
    count = max(map(len, by_system.values()))
    for name, outputs in by_system.items():
        if len(outputs) != count:
            raise InputError(
                f"predictions[{name!r}]: expected {count:,} texts, as of another system, got {len(outputs):,}",
                code="invalid_value",
            )
    several = [()] * count if references is None else _list_references(references, count)
    inputs = [None] * count if sources is None else _list_texts("sources", sources)
    if len(inputs) != count:
        raise InputError(
            f"sources: expected one for each prediction ({count:,}), got {len(inputs):,}", code="invalid_value"
        )
    return [
        Record(item=str(number), system=name, output=output, references=texts, source=source)
        for name, outputs in by_system.items()
        for number, (output, texts, source) in enumerate(zip(outputs, several, inputs, strict=True), 1)
    ]


def _list_texts(name: str, values: Any) -> list[str]:
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        hint = f"; a file is read with metrist.score({values!r}, metrics)" if isinstance(values, str) else ""
        raise InputError(f"{name} must be a list of texts, got {_describe(values)}{hint}", code="invalid_value")
    texts = list(values)
    for position, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(f"{name}[{position}] must be a text, got {_describe(text)}", code="invalid_value")
    return texts


def _list_references(values: Any, count: int) -> list[tuple[str, ...]]:
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise InputError(f"references must be a list, got {_describe(values)}", code="invalid_value")
    rows = list(values)
    if len(rows) != count:
        counts = f"references: expected an entry for each prediction ({count:,}), got {len(rows):,}"
        by_set = rows and all(not isinstance(row, str) and isinstance(row, Sized) and len(row) == count for row in rows)
        hint = "; each entry is a set of references for all predictions: turn them round with zip(*references)"
        raise InputError(f"{counts}{hint if by_set else ''}")
    return [
        (row,) if isinstance(row, str) else tuple(_list_texts(f"references[{position}]", row))
        for position, row in enumerate(rows)
    ]


def _describe(value: Any) -> str:
    shown = repr(value)
    return f"{shown if len(shown) <= 60 else f'{shown[:60]}…'} ({type(value).__name__})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two outputs of one item, to be compared."""

    first: Record
    second: Record


Unit = Record | Pair


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordColumns(Sequence[Record]):
    """Records as columns, from which a `Record` is made only where one is asked for.

    All columns have one entry per record. `extras` is None where no record has extra columns.
    """

    items: Sequence[str]
    systems: Sequence[str]
    outputs: Sequence[str]
    sources: Sequence[str | None]
    references: Sequence[tuple[str, ...]]
    instructions: Sequence[str | None]
    tasks: Sequence[str | None]
    languages: Sequence[str | None]
    extras: Sequence[Mapping[str, Any]] | None = None

    @classmethod
    def of(cls, records: Sequence[Record]) -> RecordColumns:
        """The columns of some records."""
        if isinstance(records, RecordColumns):
            return records
        return cls(
            items=[record.item for record in records],
            systems=[record.system for record in records],
            outputs=[record.output for record in records],
            sources=[record.source for record in records],
            references=[record.references for record in records],
            instructions=[record.instruction for record in records],
            tasks=[record.task for record in records],
            languages=[record.language for record in records],
            extras=[record.extra for record in records] if any(record.extra for record in records) else None,
        )

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self._map(lambda column: column[index])
        return Record(
            item=self.items[index],
            system=self.systems[index],
            output=self.outputs[index],
            source=self.sources[index],
            references=self.references[index],
            instruction=self.instructions[index],
            task=self.tasks[index],
            language=self.languages[index],
            extra=(self.extras[index] or _EMPTY) if self.extras else _EMPTY,
        )

    def __iter__(self) -> Iterator[Record]:
        return map(self.__getitem__, range(len(self)))

    def take(self, positions: Sequence[int]) -> RecordColumns:
        """The records at these positions."""
        return self._map(lambda column: [column[n] for n in positions])

    def _map(self, select: Callable[[Any], Any]) -> RecordColumns:
        columns: dict[str, Any] = {}
        for each in fields(self):
            column = getattr(self, each.name)
            columns[each.name] = None if column is None else select(column)
        return RecordColumns(**columns)


#: Bytes of a record's hash: the first half of a SHA-256.
HASH_BYTES = 16
Hashes = NDArray[np.uint8]


def hash_units(units: Sequence[Unit]) -> Hashes:
    """For each record or pair, a hash of everything that metrics see of it, one row of bytes each. Two with the same
    hash get the same score, so that it is computed once."""
    digests = bytearray()
    for unit in units:
        try:
            text = _ENCODER.encode(_content(unit)).encode("utf-8", "surrogatepass")
        except RecursionError:
            item = unit.first.item if isinstance(unit, Pair) else unit.item
            raise InputError(f"item {item!r}: an extra column is nested too deeply; drop it") from None
        digests += hashlib.sha256(text).digest()[:HASH_BYTES]
    return np.frombuffer(bytes(digests), np.uint8).reshape(-1, HASH_BYTES)


def halve_hashes(hashes: Hashes) -> NDArray[np.uint64]:
    """The first half of each hash as a number: two texts have the same in one of 10^19 cases."""
    return np.ascontiguousarray(hashes[:, :8]).view(np.uint64).reshape(-1)


def _content(unit: Unit) -> Any:
    if isinstance(unit, Pair):
        return _content(unit.first), _content(unit.second)
    r = unit  # Hashes on disk depend on this order.
    extra = sorted(r.extra.items(), key=str) if r.extra else None
    return r.item, r.system, r.output, r.source, r.references, r.instruction, r.task, r.language, extra


def _plain(value: object) -> Any:
    return dict(value) if isinstance(value, Mapping) else repr(value)


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_plain)
