"""Layers cut out of small random models of many kinds, against the hidden states that transformers gives."""

from __future__ import annotations

import warnings

import pytest

from error_codes import raises_code
from metrist.errors import ModelError
from metrist.models.encoder import find_layers, get_encoder

SMALL = {"vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 16}
KINDS = {
    "Bert": SMALL,
    "Roberta": SMALL,
    "Electra": {**SMALL, "embedding_size": 16},
    "Albert": {**SMALL, "embedding_size": 16},
    "MPNet": SMALL,
    "DebertaV2": SMALL,
    "DistilBert": {"vocab_size": 20, "dim": 16, "n_layers": 3, "n_heads": 2, "hidden_dim": 16},
    "XLM": {"vocab_size": 20, "emb_dim": 16, "n_layers": 3, "n_heads": 2},
    "XLNet": {"vocab_size": 20, "d_model": 16, "n_layer": 3, "n_head": 2, "d_inner": 16},
    "Bart": {"vocab_size": 20, "d_model": 16, "encoder_layers": 3, "decoder_layers": 1, "encoder_attention_heads": 2,
             "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16},
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_layers_give_the_hidden_states_of_the_whole(kind):
    import torch
    import transformers

    torch.manual_seed(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Reading the code of DeBERTa makes torch warn.
        model = getattr(transformers, f"{kind}Model")(getattr(transformers, f"{kind}Config")(**KINDS[kind]))
    encoder = get_encoder(model.eval())
    stack = find_layers(encoder, kind)
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    assert stack.size == 3
    with torch.no_grad():
        expected = encoder(input_ids=ids, output_hidden_states=True).hidden_states
        for layer in (1, 2, 3):
            with stack.first(layer):
                result = encoder(input_ids=ids)[0]
            assert (result - expected[layer]).abs().max() < 1e-6
    assert stack.size == 3


def test_layers_come_back_after_a_fault():
    import torch

    owner = torch.nn.Module()
    owner.layer = torch.nn.ModuleList([torch.nn.Identity(), torch.nn.Identity()])
    stack = find_layers(owner, "two")

    def fault():
        with stack.first(1):
            raise ValueError(f"{stack.size} inside")

    with pytest.raises(ValueError, match="1 inside"):
        fault()
    assert stack.size == 2


def test_a_model_whose_layers_are_not_found_is_refused():
    import torch

    with raises_code(ModelError, "unsupported", "odd", "Linear"):
        find_layers(torch.nn.Linear(1, 1), "odd")
