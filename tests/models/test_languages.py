"""Models that mark languages, on a tiny random M2M100 with a vocabulary made here, beside plain transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from error_codes import raises_code
from metrist.errors import ModelError
from metrist.metrics.base import Shard
from metrist.metrics.likelihood.likelihood import PrismStyle
from metrist.models.devices import Options
from metrist.models.loading import load_seq2seq
from metrist.records import Record

TEXTS = ["the cat sat on the mat", "die katze sass auf der matte", "a dog ran", "ein hund lief", "good news today"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import sentencepiece
    import torch
    from transformers import M2M100Config, M2M100ForConditionalGeneration, M2M100Tokenizer

    place = tmp_path_factory.mktemp("m2m100")
    (place / "texts").write_text("\n".join(TEXTS * 20))
    sentencepiece.SentencePieceTrainer.train(
        input=str(place / "texts"),
        model_prefix=str(place / "made"),
        vocab_size=34,
        hard_vocab_limit=False,  # Versions of sentencepiece differ by one in how many pieces they find.
        minloglevel=2,
    )
    pieces = [line.split("\t")[0] for line in (place / "made.vocab").read_text(encoding="utf-8").splitlines()][3:]
    vocabulary = {piece: i for i, piece in enumerate(["<s>", "<pad>", "</s>", "<unk>", *pieces])}
    (place / "made.json").write_text(json.dumps(vocabulary))
    tokenizer = M2M100Tokenizer(str(place / "made.json"), str(place / "made.model"))
    config = M2M100Config(
        vocab_size=1 + max(map(tokenizer.get_lang_id, tokenizer.lang_code_to_token)),
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        max_position_embeddings=64,
        init_std=0.3,
    )
    with torch.random.fork_rng():
        torch.manual_seed(5)
        M2M100ForConditionalGeneration(config).eval().save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place


def reference(folder: Path, source: str, target: str, languages: tuple[str, str]) -> list[float]:
    """Log-probabilities of the target's tokens, that of the language first."""
    import torch
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, src_lang=languages[0], tgt_lang=languages[1])
    both = tokenizer(source, text_target=target, return_tensors="pt")
    assert both["labels"][0][0] == tokenizer.get_lang_id(languages[1])
    with torch.inference_mode():
        logits = model(input_ids=both["input_ids"], attention_mask=both["attention_mask"], labels=both["labels"]).logits
    return logits.log_softmax(-1)[0].gather(1, both["labels"][0][:, None])[:, 0].tolist()


def mean_without_the_language(*args: object) -> float:
    result = reference(*args)[1:]
    return sum(result) / len(result)


def test_the_tokenizer_is_told_both_languages(folder):
    model = load_seq2seq(Options(model=str(folder), languages=("de", "en")))
    result = model.log_probs([(TEXTS[1], TEXTS[0])])
    assert result.of(0).tolist() == pytest.approx(reference(folder, TEXTS[1], TEXTS[0], ("de", "en")), abs=1e-5)
    assert model.pieces(TEXTS[0])[0] == "__en__"
    assert model.facts["languages"] == "de->en"


def test_paraphrases_are_scored_both_ways_without_the_language_token(folder):
    record = Record(item="0", system="s", output=TEXTS[3], references=(TEXTS[1],))
    there = mean_without_the_language(folder, TEXTS[1], TEXTS[3], ("de", "de"))
    back = mean_without_the_language(folder, TEXTS[3], TEXTS[1], ("de", "de"))
    result = PrismStyle(model=str(folder), language="de").score(Shard([record]))
    assert result.values[0] == pytest.approx((there + back) / 2, abs=1e-5)


def test_translations_are_scored_from_the_source_and_its_language(folder):
    record = Record(item="0", system="s", output=TEXTS[0], source=TEXTS[1])
    metric = PrismStyle(model=str(folder), direction="source->output", language="en", source_language="de")
    expected = mean_without_the_language(folder, TEXTS[1], TEXTS[0], ("de", "en"))
    assert metric.score(Shard([record])).values[0] == pytest.approx(expected, abs=1e-5)


def test_wrong_languages_are_refused(folder, tiny):
    with raises_code(ModelError, "model_unusable", str(folder), "language='en'"):
        load_seq2seq(Options(model=str(folder)))
    with raises_code(ModelError, "unknown_name", "'english'"):
        load_seq2seq(Options(model=str(folder), languages=("en", "english")))
    with raises_code(ModelError, "conflict", "language='en'"):
        load_seq2seq(Options(model=str(tiny("bart")), languages=("en", "en")))
    with raises_code(ModelError, "unsupported", "language='en'"):
        load_seq2seq(Options(model="metrist:likelihood-small", languages=("en", "en")))
