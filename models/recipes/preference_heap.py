"""How well preference models tell HEAP's pairs apart, in per cent: what a model knows, and what 8 bits cost it.

    python preference_heap.py PAIRS.jsonl.gz OUT SHIPPED ...

PAIRS is what `preference_pairs.py` wrote, with HEAP on its honest split. A line for each criterion and side, a column
for each model; the mean is over the 15 criteria that can be compared (without HSO).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from metrist import criteria
from metrist.data.good_bad import GoodBad
from metrist.data.pairs_file import read_good_bad
from metrist.models import reward
from metrist.models.options import Options
from metrist.models.rewards import Reward
from metrist.train.answer_pairs import judged


def accuracy(model: Reward, pairs: Sequence[GoodBad]) -> dict[str, float]:
    """By criterion; a tie of two rewards is wrong."""
    rewards = model.rewards([one for pair in pairs for one in judged(pair)]).values.reshape(-1, 2)
    right: dict[str, list[bool]] = {}
    for pair, (good, bad) in zip(pairs, rewards, strict=True):
        right.setdefault(pair.criterion, []).append(bool(good > bad))
    return {criterion: 100 * float(np.mean(told)) for criterion, told in sorted(right.items())}


def main() -> None:
    pairs, *folders = sys.argv[1:]
    suite = criteria.suite("heap")
    comparable = {code for code in suite.codes if suite.criterion(code).comparable}
    heap = [pair for pair in read_good_bad(Path(pairs)) if pair.criterion in comparable]
    models = [reward.load(Options(model=folder)) for folder in folders]
    for side in ("dev", "test"):
        known = [pair for pair in heap if pair.split == side]
        figures = [accuracy(model, known) for model in models]
        for criterion in figures[0]:
            print(side, criterion, *(f"{told[criterion]:.1f}" for told in figures), sep="\t")
        print(side, "mean", *(f"{np.mean(list(told.values())):.2f}" for told in figures), sep="\t", flush=True)


if __name__ == "__main__":
    main()
