"""Counter narratives by five systems, judged by two raters each (Tekiroğlu and others, 2022).

A row of the CSV is one rater's view of one hateful message: `Hate_Speech`, `TARGET`, the five systems' replies in the
columns that bear their names, and for each system its name with `_suitable`, `_specific`, `_grammar` (1 to 5),
`_choose_or_not` and `_is_best` (0 or 1).

CNSu, CNSp, CNG: replies to one message, by the floor of the raters' mean.
CCN: a reply that all raters would choose against one that not all would.
BCN: a reply that some rater named the best against each that none did, once for each rater's best; replies of two
raters' choice are not compared.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from metrist.data.good_bad import GoodBad
from metrist.data.originals.ordering import Answer, Question, floor_mean, grouped, rated, two_by_two
from metrist.data.originals.row import Row, rows
from metrist.data.originals.table import PathLike

_SYSTEMS = ("dialoGPT", "BART", "BERT", "T5", "gpt2")
_RATINGS = {"CNG": "grammar", "CNSp": "specific", "CNSu": "suitable"}


def pairs(paths: Sequence[PathLike], codes: Collection[str]) -> Iterator[GoodBad]:
    """The pairs of BCN, CCN, CNG, CNSp and CNSu, criterion after criterion."""
    messages = grouped((_key(row), row) for row in rows(paths))
    for code in ("BCN", "CCN", *_RATINGS):
        for number, group in enumerate(messages if code in codes else (), 1):
            yield from _of(code, group, f"message {number}")


def _key(row: Row) -> tuple[str, ...]:
    return tuple(row.text(column) for column in ("Hate_Speech", "TARGET", *_SYSTEMS))


def _of(code: str, group: list[Row], item: str) -> Iterator[GoodBad]:
    question = Question(code=code, context=(group[0].text("Hate_Speech"), group[0].text("TARGET")), item=item)
    if code == "BCN":
        return _best(question, group)
    replies = [_chosen(group, one) if code == "CCN" else _rated(group, one, code) for one in _SYSTEMS]
    return two_by_two(question, replies)


def _best(question: Question, group: list[Row]) -> Iterator[GoodBad]:
    named = dict.fromkeys(one for row in group for one in _SYSTEMS if row.truth(f"{one}_is_best"))
    replies = {one: Answer(text=group[0].text(one), system=one) for one in _SYSTEMS}
    for best in named:
        yield from (question.pair(replies[best], replies[other]) for other in _SYSTEMS if other not in named)


def _chosen(group: list[Row], system: str) -> Answer:
    by_all = all(row.truth(f"{system}_choose_or_not") for row in group)
    return Answer(text=group[0].text(system), rank=by_all, system=system)


def _rated(group: list[Row], system: str, code: str) -> Answer:
    ratings = [row.number(f"{system}_{_RATINGS[code]}") for row in group]
    return rated(group[0].text(system), floor_mean(ratings), system)
