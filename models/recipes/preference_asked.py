"""Pairs that nobody has judged, for teachers to label: what is asked of known answers is new, or which two meet.

People's pairs know one criterion each, and the answers that somebody once put side by side. Half of the new pairs ask
for a criterion drawn anew, the other half set two answers to the same context side by side, whoever was compared with
whom.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from metrist import criteria
from metrist.data.pairs import Fields, GoodBad

#: What can be asked of a text that stands alone, and what needs its context.
ALONE = ("fluency", "grammaticality", "naturalness", "understandability")
WITH_CONTEXT = (
    "coherence",
    "consistency",
    "correctness",
    "coverage",
    "engagingness",
    "helpfulness",
    "informativeness",
    "overall",
    "relevance",
)
#: Offensive answers are not asked whether they help.
_NEVER_ASKED = "HSO"
#: A context with many answers is drawn more often, up to here.
_MOST_ANSWERS = 30


def new_pairs(pairs: Sequence[GoodBad], count: int, rng: random.Random) -> list[GoodBad]:
    """So many pairs out of the answers of these; which side is the good one means nothing yet."""
    known = [pair for pair in pairs if pair.criterion != _NEVER_ASKED]
    found = []
    for pair in rng.sample(known, min(len(known), count // 2)):
        context = _context(pair.good) if _context(pair.good) == _context(pair.bad) else ()
        found.append(_asked(context, pair.good[-1], pair.bad[-1], rng))
    several = [(context, answers) for context, answers in _answers(known).items() if context and len(answers) >= 3]
    weights = [min(len(answers), _MOST_ANSWERS) for _, answers in several]
    for context, answers in rng.choices(several, weights, k=count // 2):
        one, other = rng.sample(answers, 2)
        found.append(_asked(context, one, other, rng))
    return found


def _context(text: Fields) -> Fields:
    return text[:-1]


def _answers(pairs: Sequence[GoodBad]) -> dict[Fields, list[tuple[str, str]]]:
    """The distinct answers to each context, in the order in which the pairs have them."""
    found: dict[Fields, dict[tuple[str, str], None]] = {}
    for pair in pairs:
        for side in (pair.good, pair.bad):
            found.setdefault(_context(side), {})[side[-1]] = None
    return {context: list(answers) for context, answers in found.items()}


def _asked(context: Fields, one: tuple[str, str], other: tuple[str, str], rng: random.Random) -> GoodBad:
    """A criterion that fits: three in ten pairs lose their context and are asked for their wording."""
    if not context or rng.random() < 0.3:
        name, context = rng.choice(ALONE), ()
    else:
        name = rng.choice(WITH_CONTEXT)
    if not context and rng.random() < 0.15:
        name = "overall"
    instruction = rng.choices(criteria.find(name).instructions, (2, 1, 1))[0]
    return GoodBad(criterion=name, good=(*context, one), bad=(*context, other), split="train", instruction=instruction)
