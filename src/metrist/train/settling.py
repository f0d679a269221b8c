"""What a recipe leaves to the device, decided."""

from __future__ import annotations

from dataclasses import replace

from metrist.models.devices import place
from metrist.models.options import Options
from metrist.train.ranks import Ranks
from metrist.train.recipe import Recipe


def settled(recipe: Recipe, base: Options, ranks: Ranks) -> Recipe:
    """The recipe with a dtype and a number of tokens that suit the device the base model is trained on."""
    import torch

    # Learning keeps what scoring throws away, and takes about twice the room.
    tokens = recipe.max_tokens or max(1, place(base).tokens // 2)
    on_card = torch.device(ranks.device).type == "cuda" and torch.cuda.is_bf16_supported()
    dtype = recipe.dtype if recipe.dtype != "auto" else "bfloat16" if on_card else "float32"
    return replace(recipe, max_tokens=tokens, dtype=dtype)
