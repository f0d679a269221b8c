"""Loaded models, one per process for equal options: the only door through which metrics come to a model."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from metrist.errors import ModelError
from metrist.models import weights
from metrist.models.devices import CACHE, Options, device, import_torch
from metrist.models.protocols import EncoderModel, LikelihoodModel, TextModel

if TYPE_CHECKING:
    from metrist.models.causal import Causal
from metrist.models.protocols import RewardScorer

#: Models that a process keeps at a time. A run scores shard by shard with each of its metrics in turn.
_KEPT = 4


def load_seq2seq(options: Options) -> LikelihoodModel:
    """A sequence-to-sequence model: the condition goes into the encoder, the target into the decoder."""
    return _kept(_seq2seq(options, device(), _content(options)))


def load_causal(options: Options) -> LikelihoodModel:
    """A causal language model: the condition stands before the target and is not scored."""
    return _kept(_causal(options, device(), _content(options)))


def load_reader(options: Options) -> TextModel:
    """A causal language model that reads whole texts."""
    model = _causal(options, device(), _content(options))
    if not os.environ.get(CACHE):
        return model
    from metrist.models.cache import remembering_reader

    return remembering_reader(model)


def load_encoder(options: Options) -> EncoderModel:
    """An encoder with its layers."""
    model = _encoder(options, device(), _content(options))
    if not os.environ.get(CACHE):
        return model
    from metrist.models.cache import remembering_encoder

    return remembering_encoder(model)


def _content(options: Options) -> str:
    """What a user's folder holds: one that was trained anew under its old name is another model. What hub names mean is
    not asked again for every shard."""
    return weights.find_weights(options).fingerprint if Path(options.model).expanduser().is_dir() else ""


def _kept(model: LikelihoodModel) -> LikelihoodModel:
    """The model, with a store of what it said before where the user named a folder for it."""
    if not os.environ.get(CACHE):
        return model
    from metrist.models.cache import remembering

    return remembering(model)


@lru_cache(maxsize=_KEPT)
def _seq2seq(options: Options, _device: str, _content: str) -> LikelihoodModel:
    found = weights.find_weights(options)
    if options.languages and found.plain:
        raise ModelError(f"{options.model} takes no language in this form; leave language={options.languages[1]!r} out")
    if found.plain:
        from metrist.models.numpy_inference.scorers import NumpySeq2Seq

        _refuse_settings(options)
        return NumpySeq2Seq.load(found)
    from metrist.models.seq2seq import Seq2Seq

    return Seq2Seq.load(options)


def _refuse_settings(options: Options) -> None:
    if options.dtype != "float32":
        raise ModelError(f"{options.model} comes in one number format of its own; leave dtype={options.dtype!r} out")


@lru_cache(maxsize=_KEPT)
def _causal(options: Options, _device: str, _content: str) -> Causal:
    import_torch(f"the model {options.model!r}")
    from metrist.models.causal import Causal

    return Causal.load(options)


@lru_cache(maxsize=_KEPT)
def _encoder(options: Options, _device: str, _content: str) -> EncoderModel:
    from metrist.models.encoder import Encoder

    return Encoder.load(options)


# Reward models: an instruction, a context and an answer become one number, higher for better answers.
#
# Numbers of one model are comparable with each other only; their zero and their unit mean nothing.


#: Models that a process keeps at a time: a run asks for all of an ensemble again with every shard.
_KEPT_REWARD = 8


def load_reward(options: Options) -> RewardScorer:
    """The reward model that the options name; equal options share one in a process."""
    content = weights.find_weights(options).fingerprint if Path(options.model).expanduser().is_dir() else ""
    return _load(options, device(), content)


@lru_cache(maxsize=_KEPT_REWARD)
def _load(options: Options, _device: str, _content: str) -> RewardScorer:
    found = weights.find_weights(options)
    if found.plain:
        from metrist.models.numpy_inference.scorers import NumpyReward

        if options.dtype != "float32":
            raise ModelError(
                f"{options.model} comes in one number format of its own; leave dtype={options.dtype!r} out"
            )
        return NumpyReward(found)
    import_torch(f"the preference model {options.model!r}")
    from metrist.models.reward_model import TorchReward

    return TorchReward.load(options)
