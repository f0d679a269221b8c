"""Reward models: an instruction, a context and an answer become one number, higher for better answers.

Numbers of one model are comparable with each other only; their zero and their unit mean nothing.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from metrist.errors import ModelError
from metrist.models import weights
from metrist.models.devices import torch_for
from metrist.models.options import Options, device
from metrist.models.rewards import Reward

#: Models that a process keeps at a time: a run asks for all of an ensemble again with every shard.
_KEPT = 8


def load(options: Options) -> Reward:
    """The reward model that the options name; equal options share one in a process."""
    content = weights.find(options).fingerprint if Path(options.model).expanduser().is_dir() else ""
    return _load(options, device(), content)


@lru_cache(maxsize=_KEPT)
def _load(options: Options, _device: str, _content: str) -> Reward:
    found = weights.find(options)
    if found.plain:
        from metrist.models.numpy_inference.reward import PlainReward

        if options.dtype != "float32":
            raise ModelError(
                f"{options.model} comes in one number format of its own; leave dtype={options.dtype!r} out"
            )
        return PlainReward(found)
    torch_for(f"the preference model {options.model!r}")
    from metrist.models.reward_torch import TorchReward

    return TorchReward.load(options)
