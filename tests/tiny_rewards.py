"""Tiny preference models: a random BERT with a random head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from metrist.models.reward_layout import RewardLayout


def in_torch(
    base: Path,
    folder: Path,
    *,
    pooling: str = "auto",
    layout: RewardLayout | None = None,
    seed: int = 3,
    criteria: Mapping[str, str] | None = None,
    fields: Mapping[str, tuple[str, ...]] | None = None,
    centre: float = 0.0,
    spread: float = 1.0,
) -> Path:
    """Write a preference model of the base, as a training does, and return the folder."""
    from transformers import AutoTokenizer

    from metrist.models.devices import Options
    from metrist.models.pretrained import quiet_transformers
    from metrist.models.reward_model import TorchReward

    reward = TorchReward.untrained(Options(model=str(base)), layout or RewardLayout(), pooling, seed)
    # Random heads are small; make the rewards differ visibly.
    reward.model.head.weight.data *= 20
    learned = {"criteria": dict(criteria or {}), "fields": dict(fields or {})}
    settings = replace(reward.settings, **learned, centre=centre, spread=spread)
    folder.mkdir(parents=True, exist_ok=True)
    with quiet_transformers():
        reward.model.save(folder, AutoTokenizer.from_pretrained(base), settings)
    return folder


def plain(base: Path, folder: Path, *, bits: int | None = None, **settings: object) -> Path:
    """Write such a model in metrist's own format."""
    from metrist.models.numpy_inference.export import export_reward

    trained = in_torch(base, folder.with_name(f"{folder.name}-torch"), **settings)
    return export_reward(trained, folder, bits=bits)
