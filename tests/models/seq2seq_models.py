"""Tiny sequence-to-sequence models of every kind, texts to score, and what it means that scores agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from metrist.models.protocols import Likelihoods
from tiny_models import _SIZE, _TOKENS, _tokenizer

SOURCES = ["the cat sat on the mat .", "a very old dog ran over the river and was not good .", "paris said that " * 9]
TARGETS = ["the cat .", "dog ran", "it is a very good summary of the new city , she said .", "Unknown-words here"]
PAIRS = [(source, target) for source in SOURCES for target in TARGETS]

_SMALL = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "init_std": 0.3,
}


def _mbart() -> tuple[Any, Any]:
    from transformers import MBartConfig, MBartForConditionalGeneration

    config = MBartConfig(**_TOKENS, **_SMALL, max_position_embeddings=128, scale_embedding=True)
    return MBartForConditionalGeneration(config), _tokenizer(begins=False, ends=True)


def _pegasus() -> tuple[Any, Any]:
    from transformers import PegasusConfig, PegasusForConditionalGeneration

    config = PegasusConfig(**_TOKENS, **_SMALL, max_position_embeddings=128, decoder_start_token_id=1)
    return PegasusForConditionalGeneration(config), _tokenizer(begins=False, ends=True)


def _led() -> tuple[Any, Any]:
    from transformers import LEDConfig, LEDForConditionalGeneration

    config = LEDConfig(
        **_TOKENS,
        **_SMALL,
        max_encoder_position_embeddings=256,
        max_decoder_position_embeddings=64,
        attention_window=8,
        decoder_start_token_id=2,
    )
    return LEDForConditionalGeneration(config), _tokenizer(begins=True, ends=True)


def _mt5() -> tuple[Any, Any]:
    from transformers import MT5Config, MT5ForConditionalGeneration

    config = MT5Config(**_TOKENS, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=1)
    return MT5ForConditionalGeneration(config), _tokenizer(begins=False, ends=True)


def _scaled_t5() -> tuple[Any, Any]:
    """Tied embeddings: the decoder's output is scaled before the head."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(**_TOKENS, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=1)
    return T5ForConditionalGeneration(config), _tokenizer(begins=False, ends=True)


def _biased() -> tuple[Any, Any]:
    """A final bias that is not zero, and no pad token anywhere."""
    import torch
    from transformers import BartConfig, BartForConditionalGeneration

    tokens = {"vocab_size": _SIZE, "bos_token_id": 0, "eos_token_id": 2}
    config = BartConfig(**tokens, **_SMALL, max_position_embeddings=128, decoder_start_token_id=2)
    model = BartForConditionalGeneration(config)
    model.final_logits_bias.copy_(torch.randn(1, _SIZE))
    model.config.pad_token_id = None
    return model, _tokenizer(begins=True, ends=True, pad=False)


MAKERS = {"mbart": _mbart, "pegasus": _pegasus, "led": _led, "mt5": _mt5, "scaled t5": _scaled_t5, "biased": _biased}
#: Each kind with the way that its modules can go.
WAYS = {
    "bart": ("VarlenEncoder", "VarlenDecoder"),
    "marian": ("VarlenEncoder", "VarlenDecoder"),
    "mbart": ("VarlenEncoder", "VarlenDecoder"),
    "pegasus": ("VarlenEncoder", "VarlenDecoder"),
    "biased": ("VarlenEncoder", "VarlenDecoder"),
    "led": ("PaddedEncoder", "VarlenDecoder"),
    "t5": ("PaddedEncoder", "PaddedDecoder"),
    "mt5": ("PaddedEncoder", "PaddedDecoder"),
    "scaled t5": ("PaddedEncoder", "PaddedDecoder"),
}


def agree(result: Likelihoods, expected: Sequence[np.ndarray]) -> None:
    """Each token within 1e-5, or within the last digits of a float32 where log-probabilities are large."""
    assert len(result) == len(expected)
    assert not result.failures
    for at, one in enumerate(expected):
        np.testing.assert_allclose(result.of(at), one, rtol=1e-6, atol=1e-5)
