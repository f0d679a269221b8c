"""What a reward model's folder says beside its weights: `reward.json`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from metrist.errors import ModelError
from metrist.models.numpy_inference import folder as folders
from metrist.models.numpy_inference.quantised import remedy
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
        except ModelError as fault:
            raise ModelError(f"{path} cannot be used ({fault}); {_advice(folder)}") from None
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as fault:
            raise ModelError(f"{path} cannot be used ({type(fault).__name__}: {fault}); {_advice(folder)}") from None

    @staticmethod
    def of(facts: Mapping[str, Any]) -> RewardSettings:
        """From what JSON gave."""
        if _mapping("the file", facts)[KEY] != 1:
            raise ValueError(f"{KEY} is {facts[KEY]}, and this metrist knows 1")
        if facts["pooling"] not in get_args(Pooling):
            raise ValueError(f"pooling is {facts['pooling']!r}, and this metrist knows {', '.join(get_args(Pooling))}")
        frame = _mapping("frame", facts["frame"])
        # A model that gives all answers the same reward has a spread of 0.
        if (spread := _number("spread", facts["spread"])) < 0:
            raise ValueError(f"spread must be at least 0, got {spread}")
        return RewardSettings(
            pooling=facts["pooling"],
            layout=_layout(facts["layout"]),
            frame=Frame(*(_ids(part, frame[part]) for part in Frame._fields)),
            criteria={name: _text(name, said) for name, said in _mapping("criteria", facts["criteria"]).items()},
            fields={name: _labels(name, said) for name, said in _mapping("fields", facts.get("fields", {})).items()},
            centre=_number("centre", facts["centre"]),
            spread=spread,
        )


def _advice(folder: Path) -> str:
    """What helps with a folder at fault: a training writes one for torch, an export one in metrist's own form."""
    return remedy(folder) if (folder / folders.WEIGHTS).is_file() else "train the model again"


def _layout(given: Any) -> Layout:
    # All are asked for: a default in place of a lost one would give other rewards than the model learned.
    labelled, longest, keep = (_mapping("layout", given)[key] for key in ("labelled", "max_length", "keep"))
    if not isinstance(labelled, bool):
        raise ValueError(f"layout.labelled must be true or false, got {labelled!r}")
    if longest is not None and type(longest) is not int:
        raise ValueError(f"layout.max_length must be a whole number or null, got {longest!r}")
    return Layout(labelled=labelled, max_length=longest, keep=keep)


def _ids(part: str, given: Any) -> tuple[int, ...]:
    # A bool is an int to Python.
    if not isinstance(given, list) or any(type(one) is not int or one < 0 for one in given):
        raise ValueError(f"frame.{part} must be a list of tokens' numbers, got {given!r}")
    return tuple(given)


def _number(key: str, given: Any) -> float:
    if type(given) not in (int, float) or not math.isfinite(given):
        raise ValueError(f"{key} must be a finite number, got {given!r}")
    return float(given)


def _mapping(key: str, given: Any) -> Mapping[str, Any]:
    if not isinstance(given, dict):
        raise ValueError(f"{key} must be an object, got {given!r}")
    return given


def _text(name: str, given: Any) -> str:
    if not isinstance(given, str):
        raise ValueError(f"criteria.{name} must be a text, got {given!r}")
    return given


def _labels(name: str, given: Any) -> tuple[str, ...]:
    if not isinstance(given, list) or not given or not all(isinstance(one, str) for one in given):
        raise ValueError(f"fields.{name} must be a list of labels, got {given!r}")
    return tuple(given)
