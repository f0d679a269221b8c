"""Which fields of a record a judge gets to see, and under which labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from metrist.data.good_bad import Fields
from metrist.records import Record

_LABELS = {"references": "reference"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The context's fields in their order, then the output. A context field is `source`, `references` (the first one
    counts), `instruction`, or any further column that holds text. `labels` renames fields, `output` too."""

    context: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)

    def lay_out(self, record: Record) -> Fields | None:
        """The record's fields, or None where a context field has no text."""
        context = tuple((self._label(name), text) for name in self.context if (text := _text(record, name)))
        return (*context, (self._label("output"), record.output)) if len(context) == len(self.context) else None

    def _label(self, name: str) -> str:
        return self.labels.get(name, _LABELS.get(name, name))


def _text(record: Record, name: str) -> str | None:
    if name == "references":
        return record.references[0] if record.references else None
    if name in ("source", "instruction"):
        return getattr(record, name) or None
    value = record.extra.get(name)
    return value if isinstance(value, str) and value else None
