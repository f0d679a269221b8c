"""Training: one loop for all metrics that learn, and the tasks it trains.

    metrist.train.train_preference("pairs.csv", "my-preference")
    metrist.train.train_likelihood("pairs.jsonl", "my-likelihood", epochs=2)

`metrist.train.fit` has the loop behind both, `metrist.train.preference` and `metrist.train.likelihood` their tasks.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from metrist.models.devices import Options
    from metrist.train.recipe import Recipe

__all__ = ["train_likelihood", "train_preference"]

_Files = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
#: What suits some hundred pairs and a base in metrist's own format, which is small.
TUNING = {"epochs": 3, "batch": 16, "lr": 5e-5}
#: A model in metrist's own format is tuned on few pairs: this share of them shows what that changed.
HELD_OUT = "0.2"


def train_preference(
    data: _Files,
    out: str | os.PathLike[str],
    *,
    base: str = "metrist:preference-small",
    dev: str | None = None,
    criterion: str | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Train a model to give better answers higher scores, as `metrist train preference` does, and return its card. The
    same call resumes a stopped training.

    `data` are files of pairs (prompt, chosen, rejected), of ratings, or of `metrist build pairs`; `dev` is a file or a
    share of the pairs. `settings` are those of a recipe (`epochs`, `batch`, `lr`, `seed`, …) and of a `PreferenceTask`.
    """
    from metrist.models.devices import Options
    from metrist.train.dataset import load_preference_pairs
    from metrist.train.fit import fit
    from metrist.train.preference import RECIPE, PreferenceTask, base_instructions

    options = Options(model=base)
    recipe, others = _split_settings(RECIPE, options, settings)
    pairs = load_preference_pairs(
        _list_paths(data),
        dev,
        seed=recipe.seed,
        learned=base_instructions(options),
        default_dev=HELD_OUT if _is_tuned(options) else None,
        criterion=criterion,
    )
    task = PreferenceTask(
        train=pairs.train,
        dev=pairs.dev,
        base=options,
        out=Path(out),
        recipe=recipe,
        **{"data": pairs.describe(), **others},
    )
    return fit(task)


def train_likelihood(
    data: _Files,
    out: str | os.PathLike[str],
    *,
    base: str = "metrist:likelihood-small",
    dev: str | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Fine-tune a sequence-to-sequence model for likelihood metrics, as `metrist train likelihood` does, and return its
    card. The same call resumes a stopped training.

    `data` are files of pairs of texts; `dev` is a file or a share of the pairs. `settings` are those of a recipe and of
    a `LikelihoodTask`.
    """
    from metrist.models.devices import Options
    from metrist.train.fit import fit
    from metrist.train.likelihood import LikelihoodTask
    from metrist.train.recipe import Recipe

    options = Options(model=base)
    recipe, others = _split_settings(Recipe(), options, settings)
    held_out = HELD_OUT if _is_tuned(options) else None
    task = LikelihoodTask(
        data=_list_paths(data), base=options, out=Path(out), dev=dev or held_out, recipe=recipe, **others
    )
    return fit(task)


def _list_paths(data: _Files) -> tuple[Path, ...]:
    return (Path(data),) if isinstance(data, str | os.PathLike) else tuple(map(Path, data))


def _is_tuned(base: Options) -> bool:
    from metrist.models.weights import find_weights

    return find_weights(base).runs_on_numpy


def _split_settings(recipe: Recipe, base: Options, settings: dict[str, Any]) -> tuple[Recipe, dict[str, Any]]:
    """The recipe with the settings that are its own, and the other settings."""
    names = {field.name for field in fields(recipe)}
    own = {name: value for name, value in settings.items() if name in names}
    others = {name: value for name, value in settings.items() if name not in names}
    return replace(recipe, **({**TUNING, **own} if _is_tuned(base) else own)), others
