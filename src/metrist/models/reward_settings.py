"""What a reward model's folder says beside its weights: `reward.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from metrist.errors import ModelError
from metrist.models.reward_layout import Frame, Layout

Pooling = Literal["answer", "mean", "first", "last"]

#: The file's name, and the key by which it is known.
NAME = "reward.json"
KEY = "metrist_reward"
#: The file with the weights that turn a vector into a reward: 'weight' (1 × width) and 'bias' (1).
HEAD = "reward_head.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardSettings:
    """How answers are read, and what is known of the rewards. `criteria` has the instruction that each criterion was
    learned with, `fields` the labels of what was mostly shown for it, the answer's last; `centre` and `spread` are mean
    and standard deviation of the rewards of training answers."""

    pooling: Pooling
    layout: Layout
    frame: Frame
    criteria: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    centre: float = 0.0
    spread: float = 1.0

    def write(self, folder: Path) -> None:
        """Put them into a model's folder."""
        facts = {KEY: 1, **asdict(self), "frame": self.frame._asdict()}
        (folder / NAME).write_text(json.dumps(facts, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    @staticmethod
    def read(folder: Path, name: str) -> RewardSettings:
        """Those of a model's folder; `name` is what the user called it."""
        path = folder / NAME
        if not path.is_file():
            raise ModelError(
                f"{name} has no {NAME}, so it is no preference model; `metrist train preference --base {name}` makes "
                "one of it"
            )
        try:
            return RewardSettings.of(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, KeyError, TypeError) as fault:
            raise ModelError(
                f"{path} cannot be used ({type(fault).__name__}: {fault}); train the model again"
            ) from None

    @staticmethod
    def of(facts: Mapping[str, Any]) -> RewardSettings:
        """From what JSON gave."""
        if facts[KEY] != 1:
            raise ValueError(f"{KEY} is {facts[KEY]}, and this metrist knows 1")
        if facts["pooling"] not in get_args(Pooling):
            raise ValueError(f"pooling is {facts['pooling']!r}, and this metrist knows {', '.join(get_args(Pooling))}")
        frame = facts["frame"]
        return RewardSettings(
            pooling=facts["pooling"],
            layout=Layout(**facts["layout"]),
            frame=Frame(*(tuple(map(int, frame[part])) for part in Frame._fields)),
            criteria=dict(facts["criteria"]),
            fields={name: tuple(labels) for name, labels in facts.get("fields", {}).items()},
            centre=float(facts["centre"]),
            spread=float(facts["spread"]),
        )
