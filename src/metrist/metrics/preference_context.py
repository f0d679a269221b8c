"""What a preference model is shown of a record before the output: what it learned a criterion with, as far as there is
any of it."""

from __future__ import annotations

from typing import NamedTuple

from metrist.criteria import Criterion
from metrist.models.reward_layout import Fields
from metrist.records import Record

#: What most records tell of an output's origin.
_USUAL = ("instruction", "source")
_REFERENCES = ("reference", "references")


class Shown(NamedTuple):
    """The context's fields and the output, each with its label; `wanted` says whether there should be a context."""

    fields: Fields
    wanted: bool


def shown(
    record: Record, context: tuple[str, ...] | None, learned: tuple[str, ...] | None, known: Criterion | None
) -> Shown:
    """By the user's own `context`, else by the labels that the model `learned` the criterion with (the answer's last),
    else by what the tables know of the criterion."""
    answer = learned[-1] if learned else known.answer if known else "output"
    if context is not None:
        names, told = context, _named(record, context)
    elif learned:
        names, told = learned[:-1], _as_learned(record, learned[:-1])
    else:
        names = known.fields[:-1] if known else _USUAL
        told = _as_in_tables(record, names)
    return Shown((*told, (answer, record.output)), bool(names))


def _named(record: Record, names: tuple[str, ...]) -> Fields:
    # Pairs that are built of records call the first of the references so.
    labels = {"references": "reference"}
    return tuple((labels.get(name, name), text) for name in names for text in _texts(record, name))


def _as_learned(record: Record, labels: tuple[str, ...]) -> Fields:
    """What the record has under the labels. One that it does not have (a dialogue, an article) is taken to be its
    source, or else its instruction, unless that is shown already; references nothing stands in for."""
    left = [name for name in ("source", "instruction") if name not in labels or not _texts(record, name)]
    told: list[tuple[str, str]] = []
    for label in labels:
        texts = _texts(record, label)
        while not texts and label not in _REFERENCES and left:
            texts = _texts(record, left.pop(0))
        told += [(label, text) for text in texts]
    return tuple(told)


def _as_in_tables(record: Record, names: tuple[str, ...]) -> Fields:
    if names and (set(names) <= set(_USUAL) or not all(_texts(record, name) for name in names)):
        # The record does not have the columns of the data that the criterion comes from.
        names = _USUAL
    return _named(record, names)


def _texts(record: Record, name: str) -> list[str]:
    """What the record has under that name: a field of every record (the first of its references), or a column."""
    found = record.extra.get(name)
    if name in _REFERENCES and not found:
        return [text for text in record.references or () if text.strip()][:1]
    if name in _USUAL:
        found = getattr(record, name)
    texts = [found] if isinstance(found, str) else found if isinstance(found, tuple | list) else []
    return [text for text in texts if isinstance(text, str) and text.strip()]
