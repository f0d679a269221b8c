"""One training from its order to its results."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from metrist.data.heap import add_instructions
from metrist.data.pairs import GoodBad
from metrist.errors import InputError
from metrist.models.devices import Options, import_torch
from metrist.models.loading import load_reward
from metrist.models.protocols import RewardScorer
from metrist.studies.heap.dataset import Material, read, side, split_material
from metrist.studies.heap.jobs import RESULTS, Answers, Order, Result
from metrist.train.examples import score_pairs
from metrist.train.fit import fit
from metrist.train.folder import TrainingFolder
from metrist.train.preference import PreferenceTask
from metrist.train.task import TrainingCallback


def run(order: Order, watcher: TrainingCallback) -> Result:
    """Train, judge the pairs of the order's side, and write the results; a finished one is only read."""
    done = order.result()
    if done is not None:
        return done
    material = _material(order.pairs)
    pairs = add_instructions(split_material(order.study, order.job.split, material), order.settings.instructions)
    judged = side(pairs, order.side, order.job.judged)
    if not judged:
        raise InputError(f"{order.pairs} has no {order.side} pairs of {', '.join(order.job.judged)}")
    order.folder.mkdir(parents=True, exist_ok=True)
    if not TrainingFolder(order.folder / "model").is_begun:
        # A process that was killed before it noted what was asked for leaves a folder that nothing can go on with.
        shutil.rmtree(order.folder / "model", ignore_errors=True)
    card = _trained(order, pairs, material, watcher) if order.job.learns else {}
    result = Result(
        job=order.job,
        settings=order.decides(),
        answers=_answers(_reward(order), judged),
        sizes=material.sizes,
        training={name: card.get(name) for name in ("fingerprint", "figures", "training")},
    )
    result.write(order.folder / RESULTS)
    if not order.keep_model:
        shutil.rmtree(order.folder / "model", ignore_errors=True)
    return result


@lru_cache(maxsize=2)
def _material(path: Path) -> Material:
    return read(path)


def _trained(
    order: Order, pairs: Sequence[GoodBad], material: Material, watcher: TrainingCallback
) -> Mapping[str, Any]:
    """The card of the model, which lies in the order's folder then."""
    settings, learns = order.settings.seeded(order.job.seed), order.job.learns
    request = PreferenceTask(
        train=side(pairs, "train", learns),
        dev=_at_most(side(pairs, "dev", learns), settings.dev_most),
        base=settings.base,
        out=order.folder / "model",
        layout=settings.layout,
        pooling=settings.pooling,
        recipe=settings.recipe,
        balance=settings.balance,
        ties=settings.ties,
        regression=settings.regression,
        head_lr=settings.head_lr,
        checkpoint_every=order.checkpoint_every,
        data=_facts(order, material),
    )
    return fit(request, watcher)


def _facts(order: Order, material: Material) -> dict[str, Any]:
    """What the card says of the data, besides its counts."""
    facts = {"files": [material.described()], "setup": order.job.setup, "split": order.job.split}
    return facts | ({"chosen_on_development_pairs": order.chosen} if order.chosen else {})


def _reward(order: Order) -> RewardScorer:
    """The trained model; where nothing was learned, the base model with a head that the seed draws."""
    if order.job.learns:
        return load_reward(Options(model=str(order.folder / "model")))
    import_torch("the base model of a study")
    from metrist.models.reward_model import TorchReward

    settings = order.settings
    return TorchReward.untrained(settings.base, settings.layout, settings.pooling, order.job.seed)


def _at_most(pairs: Sequence[GoodBad], most: int | None) -> list[GoodBad]:
    """So many pairs of each criterion, spread over all that it has: neighbours share a context."""
    if most is None:
        return list(pairs)
    places: dict[str, list[int]] = {}
    for place, pair in enumerate(pairs):
        places.setdefault(pair.criterion, []).append(place)
    kept: set[int] = set()
    for found in places.values():
        chosen = np.linspace(0, len(found) - 1, min(most, len(found))).round().astype(int)
        kept.update(found[one] for one in chosen)
    return [pair for place, pair in enumerate(pairs) if place in kept]


def _answers(reward: RewardScorer, pairs: Sequence[GoodBad]) -> dict[str, Answers]:
    scores = score_pairs(reward, pairs)
    found = {}
    for code in Counter(pair.criterion for pair in pairs):
        at = np.array([place for place, pair in enumerate(pairs) if pair.criterion == code])
        found[code] = Answers.of([pairs[place] for place in at], scores.good[at], scores.bad[at])
    return found
