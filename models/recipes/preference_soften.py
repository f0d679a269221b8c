"""Label pairs with the probabilities of larger models, so that a small one learns how certain a preference is.

    python preference_soften.py sample PAIRS OUT --pairs 60000 --seed 0     the pairs of a teacher's training
    python preference_soften.py soften PAIRS OUT TEACHER ...                the pairs of the student's

TEACHER is a folder of `metrist train preference`. A training pair's label becomes a mixture of the human label and the
teachers' probability, which can weaken it but never reverse it: if people and teachers disagree, people are right. Only
the teachers label new pairs of known answers: pairs of people cover one criterion each, and only answers that were once
compared. Half of the new pairs have another criterion; the other half pair two answers to the same context.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from made_pairs import ALONE
from sets import draw

from metrist import criteria
from metrist.data.pairs import Fields, GoodBad, read_good_bad, write_good_bad
from metrist.models import loading
from metrist.models.devices import Options
from metrist.train.answer_pairs import score_pairs

WITH_CONTEXT = (
    "coherence", "consistency", "correctness", "coverage", "engagingness", "helpfulness", "informativeness", "overall",
    "relevance",
)  # fmt: skip
#: New pairs, and pairs to label: four minutes on an H200.
NEW, LABELLED = 120_000, 160_000
#: The teachers' share in a label, the lowest certainty of a pair that people labelled, and what the rewards of a
#: trained model, which are overconfident, are divided by.
_SHARE, _LEAST, _COOLING = 0.7, 0.65, 2.0
#: Offensive answers are not judged by other criteria; a context with many answers is drawn more often, up to here.
_EXCLUDED, _MOST_ANSWERS = "HSO", 30


def make_new_pairs(pairs: Sequence[GoodBad], count: int, rng: random.Random) -> list[GoodBad]:
    """Make pairs of known answers; which side is the good one has no meaning yet."""
    known = [pair for pair in pairs if pair.criterion != _EXCLUDED]
    result = []
    for pair in draw(known, count // 2, rng):
        context = pair.good[:-1] if pair.good[:-1] == pair.bad[:-1] else ()
        result.append(_make_pair(context, pair.good[-1], pair.bad[-1], rng))
    answers: dict[Fields, dict[tuple[str, str], None]] = {}
    for pair in known:
        for side in (pair.good, pair.bad):
            answers.setdefault(side[:-1], {})[side[-1]] = None
    several = [(context, list(own)) for context, own in answers.items() if context and len(own) >= 3]
    weights = [min(len(own), _MOST_ANSWERS) for _, own in several]
    for context, own in rng.choices(several, weights, k=count // 2) if several else ():
        result.append(_make_pair(context, *rng.sample(own, 2), rng))
    return result


def _make_pair(context: Fields, first: tuple[str, str], second: tuple[str, str], rng: random.Random) -> GoodBad:
    """Draw a suitable criterion: three in ten pairs lose their context and get one about their wording."""
    if not context or rng.random() < 0.3:
        name, context = rng.choice((*sorted(ALONE), "overall")), ()
    else:
        name = rng.choice(WITH_CONTEXT)
    instruction = rng.choices(criteria.find(name).instructions, (2, 1, 1))[0]
    good, bad = (*context, first), (*context, second)
    return GoodBad(criterion=name, good=good, bad=bad, split="train", instruction=instruction)


def soften(pairs: Sequence[GoodBad], folders: Sequence[str], labelled: int, rng: random.Random) -> list[GoodBad]:
    """Label training pairs and new ones with the teachers' mean probability."""
    learned = [pair for pair in pairs if pair.split == "train"]
    new = make_new_pairs(learned, round(labelled * NEW / LABELLED), rng)
    drawn = sorted(draw(range(len(learned) + len(new)), labelled, rng))
    chosen = [learned[at] if at < len(learned) else new[at - len(learned)] for at in drawn]
    teachers = [loading.load_reward(Options(model=folder)) for folder in folders]
    scores = [score_pairs(teacher, chosen) for teacher in teachers]
    leads = np.mean([score.good - score.bad for score in scores], axis=0)
    result = []
    for at, pair, lead in zip(drawn, chosen, leads.tolist(), strict=True):
        probability = 1 / (1 + np.exp(-lead / _COOLING))
        if at < len(learned):
            certainty = max(_LEAST, (1 - _SHARE) * pair.certainty + _SHARE * probability)
            result.append(replace(pair, certainty=float(certainty)))
        elif probability >= 0.5:
            result.append(replace(pair, certainty=float(probability)))
        else:
            result.append(replace(pair, good=pair.bad, bad=pair.good, certainty=float(1 - probability)))
    return [*result, *(pair for pair in pairs if pair.split != "train")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("sample", "soften"))
    parser.add_argument("pairs", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("teachers", nargs="*")
    parser.add_argument("--pairs", type=int, dest="count", default=60_000)
    parser.add_argument("--dev", type=int, default=1_500)
    parser.add_argument("--labelled", type=int, default=LABELLED)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    pairs, rng = read_good_bad(arguments.pairs), random.Random(arguments.seed)
    dev = draw([pair for pair in pairs if pair.split == "dev"], arguments.dev, rng)
    train = [pair for pair in pairs if pair.split == "train"]
    if arguments.step == "sample":
        result = [*draw(train, arguments.count, rng), *dev]
    else:
        result = soften([*train, *dev], arguments.teachers, arguments.labelled, rng)
    write_good_bad(arguments.out, result)
    print(f"{len(result):,} pairs")


if __name__ == "__main__":
    main()
