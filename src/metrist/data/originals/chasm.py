"""CHASM: hateful messages and the replies of three systems, rated from 0 to 4 (Ashida and Komachi, 2022).

counter_conan.json and counter_sbic.json hold one object each. An entry has `post` (`text`, `score`: nine ratings of how
offensive it is) and, for GPT-2, GPT-Neo and GPT-3, `text` and `score` with three ratings each of `off`, `stance` and
`info`.

CNI, CNO, CNSt: replies to one message, by the floor of the mean rating; the more offensive reply is CNO's good one.
HSO: messages against each other, the more offensive one being good. As in the code of HEAP's authors, the first 66 % of
the messages meet only one another, and so do the others; give both files together, in the order above.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

from metrist.data.good_bad import GoodBad
from metrist.data.originals.ordering import Answer, Question, floor_mean, rated, two_by_two, winners_first
from metrist.data.originals.row import Row, entries
from metrist.data.originals.table import PathLike

_SYSTEMS = ("GPT-2", "GPT-Neo", "GPT-3")
_SCORES = {"CNI": "info", "CNO": "off", "CNSt": "stance"}
_FIRST_PART = 0.66


def pairs(paths: Sequence[PathLike], codes: Collection[str]) -> Iterator[GoodBad]:
    """The pairs of CNI, CNO, CNSt and HSO, criterion after criterion."""
    found = list(entries(paths))
    for code in _SCORES:
        for item, row in found if code in codes else ():
            question = Question(code=code, context=(row.text("post", "text"),), item=item)
            yield from winners_first(question, [_reply(row, system, _SCORES[code]) for system in _SYSTEMS])
    if "HSO" in codes:
        yield from _messages([row for _, row in found])


def _reply(row: Row, system: str, score: str) -> Answer:
    return rated(row.text(system, "text"), floor_mean(row.numbers(system, "score", score)), system)


def _messages(found: list[Row]) -> Iterator[GoodBad]:
    posts = [rated(row.text("post", "text"), floor_mean(row.numbers("post", "score"))) for row in found]
    end = math.floor(len(posts) * _FIRST_PART)
    for item, part in (("first part", posts[:end]), ("second part", posts[end:])):
        yield from two_by_two(Question(code="HSO", context=(), item=item), part)
