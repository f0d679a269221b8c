"""How well preference models tell HEAP's pairs apart, in per cent: what a model knows, and what 8 bits cost it.

    python preference_heap.py PAIRS.jsonl.gz OUT SHIPPED ...

PAIRS is what `preference_pairs.py` wrote, with HEAP on its honest split. A line for each criterion and side, a column
for each model; the mean is over the 15 criteria that can be compared (without HSO).
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from metrist import criteria
from metrist.data.pairs import read_good_bad
from metrist.models import loading
from metrist.models.devices import Options
from metrist.train.examples import accuracy_by_criterion, score_pairs


def main() -> None:
    pairs, *folders = sys.argv[1:]
    suite = criteria.suite("heap")
    comparable = {code for code in suite.codes if suite.criterion(code).comparable}
    heap = [pair for pair in read_good_bad(Path(pairs)) if pair.criterion in comparable]
    models = [loading.load_reward(Options(model=folder)) for folder in folders]
    for side in ("dev", "test"):
        known = [pair for pair in heap if pair.split == side]
        figures = [accuracy_by_criterion(known, score_pairs(model, known)) for model in models]
        for criterion in sorted(figures[0]):
            print(side, criterion, *(f"{100 * told[criterion]:.1f}" for told in figures), sep="\t")
        print(side, "mean", *(f"{100 * np.mean(list(told.values())):.2f}" for told in figures), sep="\t", flush=True)


if __name__ == "__main__":
    main()
