from __future__ import annotations

import pytest
import torch

from metrist.models import varlen
from metrist.models.devices import Placement
from metrist.models.head import Head, _AlignedLinear, _choose_reduction, reduce_logits


class _Model:
    """The parts of a model that a head uses."""

    def __init__(self, words: int, *, bias: bool) -> None:
        torch.manual_seed(7)
        self.project = torch.nn.Linear(8, words, bias=bias).requires_grad_(False)
        self.final_logits_bias = torch.randn(1, words)

    def get_output_embeddings(self) -> torch.nn.Linear:
        return self.project


def _place() -> Placement:
    return Placement(device=torch.device("cpu"), dtype=torch.float32, tokens=100)


@pytest.mark.parametrize("words", [3, 64, 101])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("gpu", [True, False])
@pytest.mark.parametrize("rows", [1, 2, 100])
def test_a_head_computes_the_log_softmax_at_the_labels(words: int, bias: bool, gpu: bool, rows: int) -> None:
    model = _Model(words, bias=bias)
    head = Head(model, _place())
    if gpu:
        head._optimize_for_gpu()
    head._rows = rows
    states, labels = torch.randn(5, 8), torch.randint(words, (5,))
    logits = model.project(states) + model.final_logits_bias
    expected = torch.nn.functional.cross_entropy(logits, labels, reduction="none")
    assert torch.allclose(head.log_probs(states, labels), -expected, atol=1e-5)


def test_a_bias_of_zeros_is_not_added() -> None:
    model = _Model(5, bias=False)
    model.final_logits_bias.zero_()
    assert Head(model, _place())._bias is None


def test_the_projection_is_padded_on_a_gpu() -> None:
    assert _AlignedLinear(_Model(101, bias=True).project)(torch.randn(2, 8)).shape == (2, 128)


def test_without_triton_the_plain_reduction_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "metrist.models.fused", None)
    assert _choose_reduction(torch.device("cpu")) is reduce_logits


@pytest.mark.parametrize("attention", [varlen._flash, varlen._efficient])
def test_an_unsupported_operator_is_not_used(attention: varlen.Attention) -> None:
    assert not varlen._agrees(attention, torch.device("cpu"), torch.float32)


def test_an_operator_with_different_values_is_not_used() -> None:
    def wrong(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, b: varlen.AttentionBlocks, c: bool, s: float
    ) -> torch.Tensor:
        return varlen.loop_attention(q, k, v, b, c, s) * 1.001

    assert varlen._agrees(varlen.loop_attention, torch.device("cpu"), torch.float32)
    assert not varlen._agrees(wrong, torch.device("cpu"), torch.float32)


@pytest.mark.parametrize("causal", [True, False])
def test_packed_attention_is_softmax_of_products_within_each_block(causal: bool) -> None:
    lengths = [3, 1, 4]
    q, k, v = (torch.randn(8, 2, 4) for _ in range(3))
    blocks = varlen.AttentionBlocks(lengths, lengths, torch.device("cpu"))
    output = varlen.loop_attention(q, k, v, blocks, causal, 0.5)
    block = torch.repeat_interleave(torch.arange(3), torch.tensor(lengths))
    seen = block[:, None] == block[None]
    if causal:
        seen &= torch.ones(8, 8).tril().bool()
    weights = (torch.einsum("qhd,khd->hqk", q, k) * 0.5).masked_fill(~seen, -torch.inf).softmax(-1)
    assert torch.allclose(output, torch.einsum("hqk,khd->qhd", weights, v), atol=1e-6)
