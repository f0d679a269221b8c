"""Perplexity. Expected values come from plain transformers: the loss that it computes of one text alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from metrist.metrics.base import Shard
from metrist.metrics.likelihood.causal import Perplexity
from metrist.records import Record

TEXTS = ["the cat sat on the mat .", "good", "paris is not london , said the president"]


def shard(*outputs: str, tokens: bool = False) -> Shard:
    return Shard([Record(item=str(i), system="s", output=text) for i, text in enumerate(outputs)], tokens=tokens)


@pytest.fixture
def metric(tiny: Callable[[str], Path]) -> Callable[..., Perplexity]:
    return lambda kind="gpt2", **settings: Perplexity(model=str(tiny(kind)), **settings)


@torch.no_grad()
def plain(folder: Path, text: str) -> tuple[float, int]:
    """The sum of log-probabilities and the number of tokens: transformers' loss is their mean, begun by <s>."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = torch.tensor([[0, *tokenizer(text, add_special_tokens=False)["input_ids"]]])
    return -float(model(ids, labels=ids).loss) * (ids.shape[1] - 1), ids.shape[1] - 1


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_it_is_the_exponential_of_the_loss_that_transformers_computes(tiny, metric, kind):
    result = metric(kind).score(shard(*TEXTS))
    for n, text in enumerate(TEXTS):
        total, count = plain(tiny(kind), text)
        assert math.log(result.values[n]) == pytest.approx(-total / count, abs=1e-5)
        assert result.parts["logprob"][n] == pytest.approx(total / count, abs=1e-5)
        assert result.parts["tokens"][n] == count


def test_per_character_the_same_surprise_is_spread_over_the_characters(tiny, metric):
    result = metric(normalise="character").score(shard(*TEXTS))
    for n, text in enumerate(TEXTS):
        assert math.log(result.values[n]) == pytest.approx(-plain(tiny("gpt2"), text)[0] / len(text), abs=1e-5)


@pytest.mark.parametrize(("normalise", "size"), [("token", None), ("character", len)])
def test_a_systems_score_is_the_perplexity_of_all_its_outputs_together(tiny, metric, normalise, size):
    perplexity = metric(normalise=normalise)
    result = perplexity.score(shard(*TEXTS, ""))
    sums = [plain(tiny("gpt2"), text) for text in TEXTS]
    total, count = sum(s for s, _ in sums), sum(len(t) if size else n for t, (_, n) in zip(TEXTS, sums, strict=True))
    pooled = float(perplexity.pool(result.stats.sum(axis=0)))
    assert math.log(pooled) == pytest.approx(-total / count, abs=1e-5)
    assert pooled != pytest.approx(float(np.nanmean(result.values)), rel=0.01)
    assert np.isnan(perplexity.pool(np.zeros(2)))
    assert perplexity.pool(np.stack([result.stats[0], result.stats[1]])) == pytest.approx(result.values[:2])


def test_an_empty_output_has_no_perplexity(metric):
    result = metric().score(shard("", "the cat", " \n "))
    assert list(result.failures) == [0, 2]
    assert all("output is empty" in failure for failure in result.failures.values())
    assert result.stats[0].tolist() == [0, 0]
    only = metric().score(shard(""))
    assert list(only.failures) == [0]
    assert len(metric().score(shard())) == 0


def test_a_long_output_is_read_in_windows_without_losing_a_token(metric):
    words = " ".join(["the", "cat", "sat"] * 100)
    perplexity = metric()
    result = perplexity.score(shard(words, "the cat"))
    assert result.parts["tokens"].tolist() == [300, 2]
    # <s> and 127 tokens fill the context of 128; each further window adds 64 after 63 that were read before.
    assert result.parts["windows"].tolist() == [1 + math.ceil((300 - 127) / 64), 1]
    assert result.parts["cut_tokens"].tolist() == [0, 0]
    (remark,) = perplexity.remarks(result)
    assert remark == f"{perplexity.text}: 1 of 2 outputs was too long for the model and read in windows"
    assert perplexity.remarks(perplexity.score(shard("the cat"))) == []


def test_max_tokens_makes_windows_smaller(metric):
    result = metric(max_tokens=8).score(shard(*TEXTS))
    assert result.parts["windows"].tolist() == [1, 1, 2]
    assert result.values[0] == pytest.approx(metric().score(shard(TEXTS[0])).values[0], rel=1e-5)
    assert result.values[2] != pytest.approx(metric().score(shard(TEXTS[2])).values[0], rel=1e-5)


def test_a_token_of_zero_probability_is_a_failure(tiny, tmp_path):
    model = transformers.GPT2LMHeadModel.from_pretrained(tiny("gpt2"))
    with torch.no_grad():
        model.transformer.ln_f.weight.mul_(1e6)
    model.save_pretrained(tmp_path)
    transformers.AutoTokenizer.from_pretrained(tiny("gpt2")).save_pretrained(tmp_path)
    result = Perplexity(model=str(tmp_path)).score(shard("the cat sat"))
    assert list(result.failures) == [0]
    assert "zero probability" in result.failures[0]


def test_tokens_are_told_when_asked_for(metric):
    result = metric().score(shard("the cat", tokens=True))
    (reading,) = result.tokens[0]
    assert reading["pieces"] == ["the", "cat"]
    assert (reading["condition"], reading["target"]) == ("nothing", "output")
    assert -np.mean(reading["logprobs"]) == pytest.approx(math.log(result.values[0]), abs=1e-4)
