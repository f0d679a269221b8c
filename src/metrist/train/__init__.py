"""Training: one loop for all metrics that learn, and the tasks it trains.

    metrist.train.train_preference("pairs.csv", "my-preference")
    metrist.train.train_likelihood("pairs.jsonl", "my-likelihood", epochs=2)
    metrist.train.train_consistency("judged.jsonl", "my-consistency")
    metrist.train.train_error_analysis("examples.jsonl", "my-analyst", base="Qwen/Qwen2.5-1.5B-Instruct")

`metrist.train.fit` has the loop behind them; the modules `preference`, `likelihood`, `consistency` and `error_analysis`
have their tasks.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metrist.settings import ReadingSettings

if TYPE_CHECKING:
    from metrist.models.devices import Options
    from metrist.train.recipe import Recipe

__all__ = ["train_consistency", "train_error_analysis", "train_likelihood", "train_preference"]

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
    share of the pairs. `settings` are those of a recipe (`epochs`, `batch`, `lr`, `seed`, …), of a `PreferenceTask` and
    of how files are read (`fields`, `skip_bad`, …).
    """
    from metrist.models.devices import Options
    from metrist.train.answer_pairs import load_preference_pairs
    from metrist.train.fit import fit
    from metrist.train.preference import RECIPE, PreferenceTask, base_instructions

    options, reading = Options(model=base), _take_reading(settings)
    recipe, others = split_settings(RECIPE, options, settings)
    pairs = load_preference_pairs(
        _list_paths(data),
        dev,
        seed=recipe.seed,
        learned=base_instructions(options),
        default_dev=HELD_OUT if _is_tuned(options) else None,
        criterion=criterion,
        **reading,
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
    recipe, others = split_settings(Recipe(), options, settings)
    held_out = HELD_OUT if _is_tuned(options) else None
    task = LikelihoodTask(
        data=_list_paths(data), base=options, out=Path(out), dev=dev or held_out, recipe=recipe, **others
    )
    return fit(task)


def train_consistency(
    data: _Files,
    out: str | os.PathLike[str],
    *,
    base: str = "metrist:english-small",
    dev: str | None = None,
    aspect: str | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Train an encoder to tell which sentences their source supports, as `metrist train consistency` does, and return
    its card. The same call resumes a stopped training.

    `data` are files of outputs with sources and with ratings of support (`aspect` names the rating) or errors with
    their places; `dev` is a file or a share of the sources. `settings` are those of a recipe, of a `ConsistencyTask`
    and of how files are read (`fields`, `skip_bad`, …).
    """
    from metrist.models.devices import Options
    from metrist.train.consistency import RECIPE, ConsistencyTask, divide_examples, read_support_examples
    from metrist.train.fit import fit

    reading = _take_reading(settings)
    recipe, others = split_settings(RECIPE, None, settings)
    files = read_support_examples(_list_paths(data), aspect, base, **reading)
    divided = divide_examples(files.examples, dev or HELD_OUT, recipe.seed, aspect, base, **reading)
    task = ConsistencyTask(
        train=divided.train, dev=divided.dev, base=Options(model=base), out=Path(out), recipe=recipe, **others
    )
    return fit(task)


def train_error_analysis(
    data: _Files,
    out: str | os.PathLike[str],
    *,
    base: str,
    dev: str | None = "0.05",
    preset: str = "lora",
    evaluate_on: _Files = (),
    outputs: int = 200,
    compare_base: bool = False,
    **settings: Any,
) -> dict[str, Any]:
    """Fine-tune an LLM to list errors, as `metrist train error-analysis` does, evaluate it and return its card. The
    same call resumes a stopped training.

    `data` are files of `metrist build error-analysis`; `dev` is a file or a share of them, None for none. `evaluate_on`
    are records with ratings, errors or references; up to `outputs` of each file and of the held-out analyses are
    analysed, 0 for none. `settings` are those of a recipe and of an `ErrorAnalysisTask`, which override the preset's.
    """
    from metrist.models.devices import Options
    from metrist.train.analyst_evaluation import AnalystEvaluation, read_evaluation_set
    from metrist.train.error_analysis import ErrorAnalysisTask, find_preset
    from metrist.train.fit import fit

    chosen = find_preset(preset)
    recipe, others = split_settings(chosen.recipe, None, settings)
    sets = (
        tuple(read_evaluation_set(path, outputs, recipe.seed) for path in _list_paths(evaluate_on)) if outputs else ()
    )
    task = ErrorAnalysisTask(
        data=_list_paths(data),
        dev=dev,
        base=Options(model=base),
        out=Path(out),
        recipe=recipe,
        evaluate=AnalystEvaluation(sets, outputs, recipe.seed, compare_base) if outputs else None,
        **{"method": chosen.method, **others},
    )
    return fit(task)


def _list_paths(data: _Files) -> tuple[Path, ...]:
    return (Path(data),) if isinstance(data, str | os.PathLike) else tuple(map(Path, data))


def _take_reading(settings: dict[str, Any]) -> dict[str, Any]:
    """Take the settings of how files are read out of others."""
    return {own.name: settings.pop(own.name) for own in fields(ReadingSettings) if own.name in settings}


def _is_tuned(base: Options) -> bool:
    from metrist.models.weights import find_weights

    return find_weights(base).runs_on_numpy


def split_settings(recipe: Recipe, base: Options | None, settings: dict[str, Any]) -> tuple[Recipe, dict[str, Any]]:
    """The recipe with the settings that are its own, and the other settings. A base in metrist's own format has other
    defaults; None leaves those of the recipe."""
    names = {field.name for field in fields(recipe)}
    own = {name: value for name, value in settings.items() if name in names}
    others = {name: value for name, value in settings.items() if name not in names}
    return replace(recipe, **({**TUNING, **own} if base and _is_tuned(base) else own)), others
