"""Train the shipped preference model on pairs that `preference_pairs.py` wrote.

    python preference_small.py PAIRS.jsonl.gz BASE OUT               trains; the same command goes on after a stop
    python preference_small.py PAIRS.jsonl.gz BASE OUT --ship DIR    puts the finished one into metrist's own form too
    python preference_small.py PAIRS.jsonl.gz BASE OUT --seed 10     another of the trainings that it was chosen from

BASE is what `preference_base.py` wrote: the first six layers of bge-small-en-v1.5 (MIT). What was tried stands in
LOG-preference-small.md.
"""

from __future__ import annotations

import argparse
import json
import random
from dataclasses import replace
from pathlib import Path

from metrist.data.pairs_file import read_good_bad
from metrist.models.options import Options
from metrist.models.reward_layout import Layout
from metrist.train.preference import Request, train
from metrist.train.recipe import Recipe
from metrist.train.watching import Evaluation, Progress

#: The best of six by the sets of `preference_choice.py`.
SEED = 11
RECIPE = Recipe(epochs=1, batch=64, lr=1.5e-4, warmup=0.06, weight_decay=0.01, bucket=20, seed=SEED, max_tokens=32_768)
#: Twice through all pairs the model knew their makers' habits, and people's judgments of other sets less well.
PAIRS, DEV_PAIRS = 60_000, 1_500
#: Summaries need the beginning of their source, replies the end of their dialogue.
LAYOUT = Layout(max_length=384, keep="both")
#: Criteria have from 300 to 11,000 pairs: large ones count more, not in proportion.
BALANCE = 0.5
BITS, GROUP = 8, 64


class Lines:
    def moved(self, progress: Progress) -> None:
        if progress.step % 200 == 0:
            print(f"step {progress.step:,} of {progress.steps:,}: loss {progress.loss:.4f}", flush=True)

    def evaluated(self, evaluation: Evaluation, name: str) -> None:
        print(f"step {evaluation.step:,}: {name} {evaluation.figure:.4f}", flush=True)

    def said(self, remark: str) -> None:
        print(remark, flush=True)


def request(pairs: Path, base: str, out: Path, seed: int) -> Request:
    """The training: so many of the pairs as suffice, drawn by the seed too."""
    read, rng = read_good_bad(pairs), random.Random(seed)
    sides = {side: [pair for pair in read if pair.split == side] for side in ("train", "dev")}
    return Request(
        train=rng.sample(sides["train"], PAIRS),
        dev=rng.sample(sides["dev"], DEV_PAIRS),
        base=Options(model=base),
        out=out,
        layout=LAYOUT,
        recipe=replace(RECIPE, seed=seed),
        balance=BALANCE,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", type=Path)
    parser.add_argument("base")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--ship", type=Path)
    asked = parser.parse_args()
    print(json.dumps(train(request(asked.pairs, asked.base, asked.out, asked.seed), Lines()), indent=2))
    if asked.ship:
        from metrist.models.plain.export import export_reward

        export_reward(asked.out, asked.ship, bits=BITS, group=GROUP)


if __name__ == "__main__":
    main()
