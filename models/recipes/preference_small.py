"""Train the shipped preference model on pairs that `preference_pairs.py` wrote: a large model first, then a small one
that learns how sure the large one is.

    python preference_small.py teacher PAIRS.jsonl.gz LARGE TEACHER        a GPU: two minutes on an H200
    python preference_soften.py PAIRS.jsonl.gz TEACHER SOFT.jsonl.gz       a GPU: five minutes
    python preference_small.py student SOFT.jsonl.gz BASE OUT              two CPU cores: an hour
    python preference_small.py student SOFT.jsonl.gz BASE OUT --ship DIR   the finished one in metrist's own form too

LARGE is all-mpnet-base-v2 (Apache-2.0), BASE what `preference_base.py` wrote: the first six layers of bge-small-en-v1.5
(MIT). The same command goes on after a stop. What was tried stands in LOG-preference-small.md.
"""

from __future__ import annotations

import argparse
import json
import random
from dataclasses import dataclass
from pathlib import Path

from metrist.data.pairs_file import read_good_bad
from metrist.models.options import Options
from metrist.models.reward_layout import Layout
from metrist.train.preference import Request, train
from metrist.train.recipe import Recipe
from metrist.train.watching import Evaluation, Progress


@dataclass(frozen=True, slots=True)
class Plan:
    """How many pairs are drawn to learn from and to watch by, and how is learned from them."""

    pairs: int
    dev_pairs: int
    recipe: Recipe


#: Once through part of the pairs: twice through all, models knew their makers' habits, and people's judgments of
#: other sets less well.
PLANS = {
    "teacher": Plan(
        60_000, 1_500, Recipe(epochs=1, batch=64, lr=3e-5, warmup=0.06, weight_decay=0.01, bucket=20, max_tokens=32_768)
    ),
    "student": Plan(
        42_000,
        600,
        Recipe(
            epochs=1, batch=32, lr=1.2e-4, warmup=0.06, weight_decay=0.01, bucket=20, max_tokens=8_192, dtype="bfloat16"
        ),
    ),
}
SEED = 0
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


def request(plan: Plan, pairs: Path, base: str, out: Path) -> Request:
    """The training: so many of the pairs as suffice, drawn by the seed too."""
    read, rng = read_good_bad(pairs), random.Random(SEED)
    sides = {side: [pair for pair in read if pair.split == side] for side in ("train", "dev")}
    return Request(
        train=rng.sample(sides["train"], plan.pairs),
        dev=rng.sample(sides["dev"], plan.dev_pairs),
        base=Options(model=base),
        out=out,
        layout=LAYOUT,
        recipe=plan.recipe,
        balance=BALANCE,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", choices=PLANS)
    parser.add_argument("pairs", type=Path)
    parser.add_argument("base")
    parser.add_argument("out", type=Path)
    parser.add_argument("--ship", type=Path)
    asked = parser.parse_args()
    print(json.dumps(train(request(PLANS[asked.plan], asked.pairs, asked.base, asked.out), Lines()), indent=2))
    if asked.ship:
        from metrist.models.plain.export import export_reward

        export_reward(asked.out, asked.ship, bits=BITS, group=GROUP)


if __name__ == "__main__":
    main()
