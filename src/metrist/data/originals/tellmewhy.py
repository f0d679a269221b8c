"""TellMeWhy: why-questions about short stories, three answers each.

The annotated subset (test_caters_subset, CSV or JSON) has one row an answer: `narrative`, `question`, `answer`,
`is_ques_answerable` (Answerable or Not Answerable), `val_ann` and `gram_ann` (three ratings from -2 to 2 each) and
`question_meta`. Other files of the data set have no ratings and give pairs of QA only.

AG, AV: answers to one question, by the floor of the mean grammar or validity rating.
QA: questions about one narrative, an answerable one against one that is not. A question stands in the file once for
each of its answers, and HEAP pairs rows, so that one pair of questions comes several times.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from metrist.data.good_bad import GoodBad
from metrist.data.originals.ordering import Answer, Question, floor_mean, grouped, rated, two_by_two, winners_first
from metrist.data.originals.row import Row, rows
from metrist.data.originals.table import PathLike

_RATINGS = {"AG": "gram_ann", "AV": "val_ann"}
_ANSWERABLE = {"Answerable": 1.0, "Not Answerable": 0.0}


def pairs(paths: Sequence[PathLike], codes: Collection[str]) -> Iterator[GoodBad]:
    """The pairs of AG, AV and QA."""
    found = list(rows(paths))
    for code, column in _RATINGS.items():
        if code in codes:
            yield from _by_rating(found, code, column)
    if "QA" in codes:
        yield from _by_answerability(found)


def _by_rating(found: list[Row], code: str, column: str) -> Iterator[GoodBad]:
    with_ratings = (row for row in found if row.has(column) and row.value(column) not in ("", "[]", []))
    for group in grouped(((row.text("narrative"), row.text("question")), row) for row in with_ratings):
        context = group[0].text("narrative"), group[0].text("question")
        answers = [rated(row.text("answer"), floor_mean(row.numbers(column))) for row in group]
        yield from winners_first(Question(code=code, context=context, item=group[0].text("question_meta")), answers)


def _by_answerability(found: list[Row]) -> Iterator[GoodBad]:
    for number, group in enumerate(grouped((row.text("narrative"), row) for row in found), 1):
        question = Question(code="QA", context=(group[0].text("narrative"),), item=f"narrative {number}")
        yield from two_by_two(question, [_question(row) for row in group])


def _question(row: Row) -> Answer:
    judged = row.text("is_ques_answerable")
    if judged not in _ANSWERABLE:
        raise row.wrong(f"'is_ques_answerable' must be Answerable or Not Answerable, got {judged!r}")
    return Answer(text=row.text("question"), rank=_ANSWERABLE[judged])
