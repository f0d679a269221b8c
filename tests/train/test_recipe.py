"""Recipes and learning rates."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    get_constant_schedule_with_warmup,
    get_cosine_schedule_with_warmup,
    get_linear_schedule_with_warmup,
)

from error_codes import raises_code
from metrist.errors import RunError
from metrist.train.recipe import Recipe


@pytest.mark.parametrize("warmup", [0.0, 0.1, 0.5])
@pytest.mark.parametrize("name", ["linear", "cosine", "constant"])
def test_learning_rates_are_those_of_transformers(name: str, warmup: float) -> None:
    steps = 40
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
    warm = round(warmup * steps)
    schedule = {
        "linear": lambda: get_linear_schedule_with_warmup(optimizer, warm, steps),
        "cosine": lambda: get_cosine_schedule_with_warmup(optimizer, warm, steps),
        "constant": lambda: get_constant_schedule_with_warmup(optimizer, warm),
    }[name]()
    expected = []
    for _ in range(steps):
        expected.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    recipe = Recipe(lr=0.3, schedule=name, warmup=warmup)
    assert [recipe.learning_rate(step, steps) for step in range(steps)] == pytest.approx(expected)


def test_the_defaults_are_the_papers() -> None:
    """BARTScore, section 3.3.2: one epoch, a batch size of 20, a learning rate of 5e-5."""
    recipe = Recipe()
    assert (recipe.epochs, recipe.batch, recipe.lr) == (1, 20, 5e-5)


@pytest.mark.parametrize(("gpu", "dtype"), [(True, "bfloat16"), (False, "float32")])
def test_defaults_depend_on_the_device(monkeypatch: pytest.MonkeyPatch, gpu: bool, dtype: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    device = "cuda:0" if gpu else "cpu"
    resolved = Recipe().resolve(device, 600)
    assert (resolved.dtype, resolved.max_tokens) == (dtype, 300)
    explicit = Recipe(dtype="float32", max_tokens=7)
    assert explicit.resolve(device, 600) == explicit


@pytest.mark.parametrize(
    ("settings", "values"),
    [
        ({"lr": 0.0}, ("`lr`", "got 0.0")),
        ({"lr": float("nan")}, ("`lr`", "got nan")),
        ({"warmup": 1.0}, ("`warmup`",)),
        ({"clip": 0.0}, ("`clip`",)),
        ({"weight_decay": -1.0}, ("`weight_decay`",)),
    ],
)
def test_invalid_settings_are_refused(settings: dict, values: tuple[str, ...]) -> None:
    with raises_code(RunError, "invalid_value", *values):
        Recipe(**settings)
