"""Train the shipped preference model: MiniLM on all pairs that `preference_pairs.py` wrote.

    python preference_small.py PAIRS.jsonl.gz BASE OUT          trains; the same command goes on after a stop
    python preference_small.py PAIRS.jsonl.gz BASE OUT --ship DIR   puts the finished one into metrist's own form too

BASE is all-MiniLM-L6-v2 (Apache-2.0). What was tried stands in LOG-preference-small.md.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from metrist.data.pairs_file import read_good_bad
from metrist.models.options import Options
from metrist.models.reward_layout import Layout
from metrist.train.preference import Request, train
from metrist.train.recipe import Recipe
from metrist.train.watching import Evaluation, Progress

RECIPE = Recipe(epochs=3, batch=64, lr=1e-4, warmup=0.06, weight_decay=0.01, bucket=20, seed=0)
#: Summaries need the beginning of their source, replies the end of their dialogue.
LAYOUT = Layout(max_length=384, keep="both")
#: Criteria have from 300 to 11,000 pairs: large ones count more, not in proportion.
BALANCE = 0.5
BITS = 8


class Lines:
    def moved(self, progress: Progress) -> None:
        if progress.step % 200 == 0:
            print(f"step {progress.step:,} of {progress.steps:,}: loss {progress.loss:.4f}", flush=True)

    def evaluated(self, evaluation: Evaluation, name: str) -> None:
        print(f"step {evaluation.step:,}: {name} {evaluation.figure:.4f}", flush=True)

    def said(self, remark: str) -> None:
        print(remark, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", type=Path)
    parser.add_argument("base")
    parser.add_argument("out", type=Path)
    parser.add_argument("--ship", type=Path)
    asked = parser.parse_args()
    pairs = read_good_bad(asked.pairs)
    request = Request(
        train=[pair for pair in pairs if pair.split == "train"],
        dev=[pair for pair in pairs if pair.split == "dev"],
        base=Options(model=asked.base),
        out=asked.out,
        layout=LAYOUT,
        recipe=RECIPE,
        balance=BALANCE,
    )
    print(json.dumps(train(request, Lines()), indent=2))
    if asked.ship:
        from metrist.models.plain.export import export_reward

        export_reward(asked.out, asked.ship, bits=BITS)


if __name__ == "__main__":
    main()
