"""Defeasible inference: updates that make a hypothesis more or less likely (Rudinger and others, 2020).

Two files are read. The human evaluation (JSONL) has one line an update: `premise`, `hypothesis`, `update`, `model`,
`pred_label` (attenuator or intensifier: what the update was to be) and `human_label`, three ratings from -2 (weakens a
lot) to 2 (strengthens a lot). The data set itself has `Premise` (not in its Social part), `Hypothesis`, `Update`,
`UpdateType` (weakener or strengthener), `UpdateTypeImpossible` and `AssignmentIdAnon`.

DIA, DII from the evaluation: attenuators of one premise and hypothesis, and likewise intensifiers, by the floor of the
mean rating; for attenuators its sign is turned after rounding, as HEAP's authors did.
DIA, DII from the data set, which HEAP did not use: the weakener against the strengthener that one person wrote for one
premise and hypothesis, and the other way round; those found impossible make no pair.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence

from metrist.data.good_bad import GoodBad
from metrist.data.originals.ordering import Answer, Question, floor_mean, grouped, rated, winners_first
from metrist.data.originals.row import Row, rows
from metrist.data.originals.table import PathLike

_LABELS = {"DIA": ("attenuator", -1.0), "DII": ("intensifier", 1.0)}
_TYPES = {"DIA": ("weakener", "strengthener"), "DII": ("strengthener", "weakener")}


def pairs(paths: Sequence[PathLike], codes: Collection[str]) -> Iterator[GoodBad]:
    """The pairs of DIA and DII, criterion after criterion."""
    found = list(rows(paths))
    make = _written if found and found[0].has("UpdateType") else _rated
    for code in _LABELS:
        if code in codes:
            yield from make(found, code)


def _rated(found: list[Row], code: str) -> Iterator[GoodBad]:
    label, sign = _LABELS[code]
    asked = [row for row in found if _one_of(row, "pred_label", ("attenuator", "intensifier")) == label]
    for number, group in enumerate(grouped((_sentences(row), row) for row in asked), 1):
        question = Question(code=code, context=_sentences(group[0]), item=f"hypothesis {number}")
        yield from winners_first(question, [_update(row, sign) for row in group])


def _sentences(row: Row) -> tuple[str, str]:
    return row.text("premise"), row.text("hypothesis")


def _update(row: Row, sign: float) -> Answer:
    return rated(row.text("update"), sign * floor_mean(row.numbers("human_label")), row.text("model"))


def _written(found: list[Row], code: str) -> Iterator[GoodBad]:
    better, worse = _TYPES[code]
    possible = (row for row in found if not row.truth("UpdateTypeImpossible"))
    for group in grouped((_assignment(row), row) for row in possible):
        by_type = {_one_of(row, "UpdateType", ("weakener", "strengthener")): row for row in group}
        if len(by_type) == 2:
            good, bad = (Answer(text=by_type[one].text("Update")) for one in (better, worse))
            premise = group[0].text("Premise") if group[0].has("Premise") else ""
            question = Question(
                code=code, context=(premise, group[0].text("Hypothesis")), item=group[0].text("AssignmentIdAnon")
            )
            yield question.pair(good, bad)


def _assignment(row: Row) -> Hashable:
    premise = row.text("Premise") if row.has("Premise") else ""
    return row.text("AssignmentIdAnon"), premise, row.text("Hypothesis")


def _one_of(row: Row, field: str, known: tuple[str, str]) -> str:
    found = row.text(field)
    if found not in known:
        raise row.wrong(f"{field!r} must be {known[0]} or {known[1]}, got {found!r}")
    return found
