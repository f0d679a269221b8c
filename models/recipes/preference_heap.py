"""Measure the accuracy of preference models on HEAP's pairs, in per cent, before and after quantization.

    python preference_heap.py PAIRS.jsonl.gz OUT SHIPPED ...

PAIRS is the output of `preference_pairs.py`, with HEAP on its honest split. Prints a line per criterion and side and a
column per model; the mean is over the 15 comparable criteria (without HSO).
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
            print(side, criterion, *(f"{100 * accuracy[criterion]:.1f}" for accuracy in figures), sep="\t")
        print(
            side,
            "mean",
            *(f"{100 * np.mean(list(accuracy.values())):.2f}" for accuracy in figures),
            sep="\t",
            flush=True,
        )


if __name__ == "__main__":
    main()
