"""TuringAdvice: advice from Reddit and from systems, compared for helpfulness.

A line of the evaluation's JSONL has `situation` (`title`, `selftext`, `id`), `best_advice` (`bestadvice_body`), and by
system `model_advice` (its text) and `turk_ratings` (`is_preferred`: whether people preferred it to the best advice).

AH: each system's advice against the best advice of the same situation. HEAP joins title and text with nothing between.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from metrist.data.good_bad import GoodBad
from metrist.data.originals.ordering import Answer, Question
from metrist.data.originals.row import rows
from metrist.data.originals.table import PathLike

_BEST = "best_advice"


def pairs(paths: Sequence[PathLike], codes: Collection[str]) -> Iterator[GoodBad]:
    """The pairs of AH."""
    for row in rows(paths) if "AH" in codes else ():
        situation = row.text("situation", "title") + row.text("situation", "selftext")
        question = Question(code="AH", context=(situation,), item=row.text("situation", "id"))
        best = Answer(text=row.text(_BEST, "bestadvice_body"), system=_BEST)
        for system in row.names("model_advice"):
            preferred = row.truth("turk_ratings", system, "is_preferred")
            advice = Answer(text=row.text("model_advice", system), system=system)
            good, bad = (advice, best) if preferred else (best, advice)
            yield question.pair(good, bad)
