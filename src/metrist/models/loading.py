"""Loaded models, one per process for equal options: the only door through which metrics come to a model."""

from __future__ import annotations

from functools import lru_cache

from metrist.models.likelihoods import LikelihoodModel
from metrist.models.options import Options, device
from metrist.models.states import EncoderModel

#: Models that a process keeps at a time. A run scores shard by shard with each of its metrics in turn.
_KEPT = 4


def seq2seq(options: Options) -> LikelihoodModel:
    """A sequence-to-sequence model: the condition goes into the encoder, the target into the decoder."""
    return _seq2seq(options, device())


def causal(options: Options) -> LikelihoodModel:
    """A causal language model: the condition stands before the target and is not scored."""
    return _causal(options, device())


def encoder(options: Options) -> EncoderModel:
    """An encoder with its layers."""
    return _encoder(options, device())


@lru_cache(maxsize=_KEPT)
def _seq2seq(options: Options, _device: str) -> LikelihoodModel:
    if options.dtype == "int8":
        from metrist.models.ctranslate import CTranslateSeq2Seq

        return CTranslateSeq2Seq.load(options)
    from metrist.models.seq2seq import Seq2Seq

    return Seq2Seq.load(options)


@lru_cache(maxsize=_KEPT)
def _causal(options: Options, _device: str) -> LikelihoodModel:
    from metrist.models.causal import Causal

    return Causal.load(options)


@lru_cache(maxsize=_KEPT)
def _encoder(options: Options, _device: str) -> EncoderModel:
    from metrist.models.encoder import Encoder

    return Encoder.load(options)
