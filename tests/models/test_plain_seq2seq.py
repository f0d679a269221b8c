"""The model without torch matches transformers with the same weights, one pair at a time, in float32."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from error_codes import raises_code
from metrist import threads
from metrist.errors import MissingExtra, ModelError
from metrist.models.numpy_inference import t5
from metrist.models.numpy_inference.export import Depths, export_t5
from metrist.models.numpy_inference.storage import read_arrays
from metrist.models.numpy_inference.t5 import T5, NumpySeq2Seq
from metrist.models.weights import Weights

Tiny = Callable[[str], Path]

LONG = "the old cat sat on the mat and she said that it was not very good . " * 12
PAIRS = [
    ("the cat sat on the mat", "a cat sat"),
    ("the cat sat on the mat", "paris is a city , not a president !"),
    (LONG, "the old cat sat"),
    (LONG, LONG),
    ("he ran", LONG[:200]),
    ("", "the report"),
    ("the report", ""),
    ("the cat sat on the mat", "a cat sat"),
]


def exact(_name: str) -> None:
    """Quantize no matrix."""


def export(source: Path, out: Path, depths: Depths = exact, **facts: Any) -> NumpySeq2Seq:
    folder = export_t5(source, out, depths, **facts)
    return NumpySeq2Seq(Weights(name="tiny", folder=folder, fingerprint="f00"))


@pytest.fixture(scope="module")
def model(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> NumpySeq2Seq:
    return export(tiny("t5"), tmp_path_factory.mktemp("plain"))


def score_one_at_a_time(source: Path, pairs: Sequence[tuple[str, str]], **changed: Any) -> list[np.ndarray]:
    """Log-probabilities of the targets' tokens by transformers, from the folder's weights or `changed` ones."""
    import torch
    from transformers import AutoTokenizer, T5ForConditionalGeneration

    reference = T5ForConditionalGeneration.from_pretrained(source).eval()
    if changed:
        reference.lm_head.weight = torch.nn.Parameter(torch.empty_like(reference.lm_head.weight))
        tensors = {name: torch.from_numpy(array) for name, array in changed.items()}
        missing, unexpected = reference.load_state_dict(tensors, strict=False)
        assert not unexpected
        assert all(name.endswith("embed_tokens.weight") for name in missing)
    tokenizer = AutoTokenizer.from_pretrained(source)
    logprobs = []
    for condition, target in pairs:
        fed, labels = (tokenizer(text, return_tensors="pt").input_ids for text in (condition, target))
        with torch.no_grad():
            logits = reference(input_ids=fed, labels=labels).logits
        logprobs.append(logits.log_softmax(-1).gather(2, labels[..., None])[0, :, 0].numpy())
    return logprobs


def assert_close(
    model: NumpySeq2Seq, expected: Sequence[np.ndarray], pairs: Sequence[tuple[str, str]] = PAIRS, error: float = 1e-5
) -> None:
    result = model.log_probs(pairs)
    assert len(result) == len(pairs)
    for number, row in enumerate(expected):
        # Random weights give tokens of -30, where float32 itself has steps of 2e-6.
        np.testing.assert_allclose(result.of(number), row, rtol=1e-6, atol=error)
        assert abs(result.of(number).mean() - row.mean()) < error


def test_log_probabilities_equal_those_of_transformers(model: NumpySeq2Seq, tiny: Tiny) -> None:
    assert_close(model, score_one_at_a_time(tiny("t5"), PAIRS))


@pytest.mark.parametrize("kind", ["tied and scaled", "with a head of its own"])
def test_every_kind_of_head_is_understood(kind: str, tiny: Tiny, tmp_path: Path) -> None:
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    config = json.loads((tiny("t5") / "config.json").read_text())
    config |= {"tie_word_embeddings": kind == "tied and scaled"}
    config.pop("scale_decoder_outputs", None)
    torch.manual_seed(1)
    model = T5ForConditionalGeneration(T5Config(**config))
    if kind == "with a head of its own":
        model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))
    shutil.copytree(tiny("t5"), tmp_path / "from")
    model.save_pretrained(tmp_path / "from")
    assert_close(
        export(tmp_path / "from", tmp_path / "to"), score_one_at_a_time(tmp_path / "from", PAIRS[:4]), PAIRS[:4]
    )


@pytest.mark.parametrize("bits", [(8, None), (6, 16)])
def test_quantized_weights_compute_as_in_float32(bits: tuple[int, int | None], tiny: Tiny, tmp_path: Path) -> None:
    model = export(tiny("t5"), tmp_path, lambda name: None if "relative_attention" in name else bits)
    arrays = read_arrays(tmp_path / "weights.safetensors")
    assert len(np.unique(arrays["shared.weight"][4])) < 2 ** bits[0]
    # Rows of products may be rounded to 16 bits.
    assert_close(model, score_one_at_a_time(tiny("t5"), PAIRS, **arrays), error=2e-3)


def test_batch_mates_order_and_budget_do_not_matter(model: NumpySeq2Seq, monkeypatch: pytest.MonkeyPatch) -> None:
    together = model.log_probs(PAIRS)
    backwards = model.log_probs(PAIRS[::-1])
    monkeypatch.setattr(model, "_batch_tokens", 1)
    small = model.log_probs(PAIRS)
    for number, pair in enumerate(PAIRS):
        alone = model.log_probs([pair]).of(0)
        for result in (together.of(number), backwards.of(len(PAIRS) - 1 - number), small.of(number)):
            np.testing.assert_allclose(result, alone, rtol=1e-6, atol=1e-5)


def test_targets_that_begin_alike_and_a_divided_head_change_nothing(
    model: NumpySeq2Seq, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = ["a cat sat", LONG, "a cat", "a cat sat on", "a  cat  sat", LONG + "a dog", "it was", "", LONG[:200]]
    pairs = [(condition, target) for condition in ("he ran", LONG) for target in targets]
    expected = [model.log_probs([pair]).of(0) for pair in pairs]
    monkeypatch.setattr(t5, "_HEAD_WORDS", 7)
    together = export(tiny("t5"), tmp_path).log_probs(pairs)
    for number, alone in enumerate(expected):
        np.testing.assert_allclose(together.of(number), alone, rtol=1e-6, atol=1e-5)


def test_conditions_are_divided_among_cores(model: NumpySeq2Seq, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[int] = []
    encode, alone = T5.encode, model.log_probs(PAIRS).logprobs
    monkeypatch.setattr(T5, "encode", lambda self, ids: encoded.append(len(ids)) or encode(self, ids))
    monkeypatch.setattr(t5, "_LEAST_TOKENS", 1)
    monkeypatch.setattr(threads, "thread_count", lambda **_: 3)
    np.testing.assert_allclose(model.log_probs(PAIRS).logprobs, alone, rtol=1e-6, atol=1e-5)
    assert len(encoded) > 1
    assert sum(encoded) == len({condition for condition, _ in PAIRS})


def test_equal_work_is_done_once(model: NumpySeq2Seq, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[int] = []
    decoded: list[int] = []
    encode, log_probs = T5.encode, T5.log_probs
    monkeypatch.setattr(T5, "encode", lambda self, ids: encoded.append(len(ids)) or encode(self, ids))
    monkeypatch.setattr(T5, "log_probs", lambda self, m, ids, c: decoded.append(len(ids)) or log_probs(self, m, ids, c))
    monkeypatch.setattr(model, "_batch_tokens", 64)
    model.log_probs(PAIRS)
    assert sum(encoded) == len({condition for condition, _ in PAIRS})
    assert sum(decoded) == len(set(PAIRS))


def test_texts_are_cut_as_the_tokenizer_cuts_and_the_cut_is_counted(model: NumpySeq2Seq, tiny: Tiny) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny("t5"))
    result = model.log_probs([(LONG, LONG), ("he ran", "he ran")], max_tokens=10)
    length = len(tokenizer(LONG).input_ids)
    assert result.tokens[:10].tolist() == tokenizer(LONG, truncation=True, max_length=10).input_ids
    assert result.condition_cut.tolist() == result.target_cut.tolist() == [length - 10, 0]
    assert result.starts.tolist() == [0, 10, 13]


def test_max_tokens_of_the_folder_is_a_limit(tiny: Tiny, tmp_path: Path) -> None:
    model = export(tiny("t5"), tmp_path, max_tokens=16)
    result = model.log_probs([("he ran", "cat " * 20_000)])
    assert len(result.of(0)) == 16
    assert result.target_cut.tolist() == [20_001 - 16]


def test_windows_fit_and_cover_the_text(model: NumpySeq2Seq) -> None:
    windows = model.windows(LONG, max_tokens=20)
    assert len(windows) > 1
    assert model.log_probs([(window, "x") for window in windows], max_tokens=20).condition_cut.max() == 0
    assert set(LONG.split()) == {word for window in windows for word in window.split()}
    assert model.windows("he ran", max_tokens=20) == ["he ran"]


def test_pieces_are_as_many_as_log_probabilities(model: NumpySeq2Seq) -> None:
    assert model.pieces("the cat zq") == ["the", "cat", "z", "##q", "</s>"]
    assert len(model.pieces(LONG, 7)) == len(model.log_probs([("a", LONG)], 7).of(0)) == 7


def test_the_template_of_a_folder_frames_its_conditions(tiny: Tiny, tmp_path: Path) -> None:
    model = export(tiny("t5"), tmp_path, condition_template="in summary , {text} !")
    expected = score_one_at_a_time(tiny("t5"), [("in summary , he ran !", "he ran")])
    assert_close(model, expected, [("he ran", "he ran")])
    cut = model.log_probs([(LONG, "he ran")], max_tokens=20)
    words = "in summary , " + " ".join(LONG.split()[:15]) + " !"
    assert_close(model, [cut.of(0)], [(words.removeprefix("in summary , ").removesuffix(" !"), "he ran")])


def test_no_pairs_give_no_likelihoods(model: NumpySeq2Seq) -> None:
    assert len(model.log_probs([])) == 0


def test_lone_surrogates_are_scored_as_unknown(model: NumpySeq2Seq) -> None:
    assert np.isfinite(model.log_probs([("a \ud800 b", "\udfff")]).logprobs).all()


def test_facts_name_the_weights(model: NumpySeq2Seq) -> None:
    assert model.facts["weights"] == "f00"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"metrist_format": None}, r"config\.json: has no 'metrist_format'; this folder is not a model"),
        ({"metrist_format": 9}, r"config\.json: has format 9, but this metrist reads 1"),
        ({"architecture": "bert"}, r"config\.json: is a 'bert' model, expected 't5'"),
        ({"num_heads": None}, r"neither config\.json nor weights\.safetensors has 'num_heads'; the folder is damaged"),
        ({"num_layers": 3}, r"neither config\.json nor weights\.safetensors has 'encoder\.block\.2\.layer\.0\."),
    ],
)
def test_a_damaged_configuration_is_named(changed: dict[str, Any], message: str, tiny: Tiny, tmp_path: Path) -> None:
    folder = export_t5(tiny("t5"), tmp_path, exact)
    config = {**json.loads((folder / "config.json").read_text()), **changed}
    (folder / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    with pytest.raises(ModelError, match=message):
        NumpySeq2Seq(Weights(name="x", folder=folder, fingerprint=""))


def test_a_folder_without_files_is_named(tiny: Tiny, tmp_path: Path) -> None:
    weights = Weights(name="x", folder=tmp_path, fingerprint="")
    with raises_code(ModelError, "model_unusable", "config.json"):
        NumpySeq2Seq(weights)
    export_t5(tiny("t5"), tmp_path, exact)
    (tmp_path / "tokenizer.json").write_text("{}")
    with raises_code(ModelError, "unreadable", "tokenizer.json"):
        NumpySeq2Seq(weights)


def test_without_tokenizers_the_extra_is_named(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export_t5(tiny("t5"), tmp_path, exact)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with raises_code(MissingExtra, "missing_dependency", "'metrist[standard]'"):
        NumpySeq2Seq(Weights(name="x", folder=tmp_path, fingerprint=""))


def test_only_t5_with_gated_gelu_is_exported(tiny: Tiny, tmp_path: Path) -> None:
    with raises_code(ModelError, "unsupported", "config.json", "'bart'", "'t5'"):
        export_t5(tiny("bart"), tmp_path, exact)
