"""Build unlabelled pairs of known answers for teachers to label.

Human pairs cover one criterion each, and only answers that were once compared. Half of the new pairs have another
criterion; the other half pair two answers to the same context that were not necessarily compared.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from metrist import criteria
from metrist.data.pairs import Fields, GoodBad

#: Criteria for a text alone, and criteria that need its context.
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
#: Offensive answers are not judged by other criteria.
_EXCLUDED = "HSO"
#: A context with many answers is drawn more often, up to here.
_MOST_ANSWERS = 30


def new_pairs(pairs: Sequence[GoodBad], count: int, rng: random.Random) -> list[GoodBad]:
    """Build `count` pairs from the answers of these; which side is the good one has no meaning yet."""
    known = [pair for pair in pairs if pair.criterion != _EXCLUDED]
    result = []
    for pair in rng.sample(known, min(len(known), count // 2)):
        context = _context(pair.good) if _context(pair.good) == _context(pair.bad) else ()
        result.append(_make_pair(context, pair.good[-1], pair.bad[-1], rng))
    several = [(context, answers) for context, answers in _answers(known).items() if context and len(answers) >= 3]
    weights = [min(len(answers), _MOST_ANSWERS) for _, answers in several]
    for context, answers in rng.choices(several, weights, k=count // 2):
        first, second = rng.sample(answers, 2)
        result.append(_make_pair(context, first, second, rng))
    return result


def _context(text: Fields) -> Fields:
    return text[:-1]


def _answers(pairs: Sequence[GoodBad]) -> dict[Fields, list[tuple[str, str]]]:
    """Return the distinct answers to each context, in the order of the pairs."""
    result: dict[Fields, dict[tuple[str, str], None]] = {}
    for pair in pairs:
        for side in (pair.good, pair.bad):
            result.setdefault(_context(side), {})[side[-1]] = None
    return {context: list(answers) for context, answers in result.items()}


def _make_pair(context: Fields, first: tuple[str, str], second: tuple[str, str], rng: random.Random) -> GoodBad:
    """Draw a suitable criterion: three in ten pairs lose their context and get one about their wording."""
    if not context or rng.random() < 0.3:
        name, context = rng.choice(ALONE), ()
    else:
        name = rng.choice(WITH_CONTEXT)
    if not context and rng.random() < 0.15:
        name = "overall"
    instruction = rng.choices(criteria.find(name).instructions, (2, 1, 1))[0]
    return GoodBad(
        criterion=name, good=(*context, first), bad=(*context, second), split="train", instruction=instruction
    )
