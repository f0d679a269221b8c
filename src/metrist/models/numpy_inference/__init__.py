"""Shipped models, run by numpy alone: no torch, no runtime of another project.

A folder in this form has a config.json with the key "metrist_format" (its version), "architecture" and the sizes,
weights.safetensors with matrices of few bits and their scales, tokenizer.json, and the model's card and licences.
"""

from __future__ import annotations

from metrist.models.likelihoods import LikelihoodModel
from metrist.models.weights import Weights


def load_seq2seq(weights: Weights) -> LikelihoodModel:
    """The sequence-to-sequence model of a folder in metrist's own form."""
    from metrist.models.numpy_inference.seq2seq import PlainSeq2Seq

    return PlainSeq2Seq.load(weights)
