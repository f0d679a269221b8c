"""TimeTravel: stories whose second sentence was changed, with endings rewritten to fit (Qin and others, 2019).

Two files are read. The human evaluation (CSV of Mechanical Turk) has one row a rater: `Input.X1` (premise), `Input.X2`
(second sentence), `Input.Y` (ending), `Input.XX2` (changed second sentence), `Input.YY1` and `Input.YY2` (two
rewritten endings), `Input.YY1_MODEL` and `Input.YY2_MODEL`, `Input.STORY`, and `Answer.premise`, `Answer.second`,
`Answer.plot`, `Answer.ending`, `Answer.counterfactual`: A, B, S (the same) or IR (neither can be judged).
The data set itself has `premise`, `initial`, `counterfactual`, `original_ending`, and `edited_ending` (a list of
sentences) or `edited_endings` (a list of such lists), written by people.

SRC, SRE, SRPl, SRPr, SRS from the evaluation: the ending that a rater chose; S and IR make no pair. Each rater's choice
is a pair of its own. HEAP joins premise and changed sentence with nothing between.
SRC, SRS from the data set, which HEAP did not use: a person's rewritten ending against the original one, which was
written for another second sentence; endings left unchanged make no pair.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from metrist.data.good_bad import GoodBad
from metrist.data.originals.ordering import Answer, Question
from metrist.data.originals.row import Row, rows
from metrist.data.originals.table import PathLike
from metrist.errors import InputError

_ASKED = {"SRC": "counterfactual", "SRE": "ending", "SRPl": "plot", "SRPr": "premise", "SRS": "second"}
_WRITTEN = ("SRC", "SRS")
_CHOICES = ("A", "B", "S", "IR")


def pairs(paths: Sequence[PathLike], codes: Collection[str]) -> Iterator[GoodBad]:
    """The pairs of the five criteria, criterion after criterion."""
    found = list(rows(paths))
    if found and not found[0].has("Input.XX2"):
        yield from _written(found, codes)
        return
    for code in _ASKED:
        for row in found if code in codes else ():
            yield from _chosen(row, code)


def _chosen(row: Row, code: str) -> Iterator[GoodBad]:
    answer = f"Answer.{_ASKED[code]}"
    choice = row.text(answer)
    if choice not in _CHOICES:
        raise row.wrong(f"{answer!r} must be A, B, S or IR, got {choice!r}")
    endings = [Answer(text=row.text(f"Input.{y}"), system=row.text(f"Input.{y}_MODEL")) for y in ("YY1", "YY2")]
    if choice in ("A", "B"):
        good, bad = endings if choice == "A" else reversed(endings)
        story = row.text("Input.X1") + row.text("Input.XX2")
        context = (story, row.text("Input.Y")) if code == "SRPl" else (story,)
        yield Question(code=code, context=context, item=row.text("Input.STORY")).pair(good, bad)


def _written(found: list[Row], codes: Collection[str]) -> Iterator[GoodBad]:
    if not set(codes) & set(_WRITTEN):
        wanted = ", ".join(codes)
        raise InputError(
            f"{found[0].place}: {wanted} can be had from TimeTravel's human evaluation only, not from stories"
        )
    for code in _WRITTEN:
        for row in found if code in codes else ():
            story = row.text("premise") + row.text("counterfactual")
            question = Question(code=code, context=(story,), item=row.text("story_id"))
            original = Answer(text=row.text("original_ending"))
            for ending in _endings(row):
                if ending != original.text:
                    yield question.pair(Answer(text=ending), original)


def _endings(row: Row) -> list[str]:
    if row.has("edited_ending"):
        return [" ".join(row.texts("edited_ending"))]
    if not row.has("edited_endings"):
        raise row.wrong(
            "has neither 'edited_ending' nor 'edited_endings': this file of stories has no rewritten endings"
        )
    written = [Row(row.place, {"edited_endings": sentences}) for sentences in row.listed("edited_endings")]
    return [" ".join(one.texts("edited_endings")) for one in written]
