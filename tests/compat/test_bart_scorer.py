"""`BARTScorer` beside the authors' algorithm, written out here on plain transformers."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from error_codes import raises_code
from metrist.compat import BARTScorer
from metrist.compat.bart_scorer import _choose_device
from metrist.errors import ModelError, RunError
from metrist.metrics.likelihood.likelihood import CNN, CONVERSION

SOURCES = ["the small cat sat on the mat.", "news of the day in london", "a dog", "the small cat sat on the mat."]
TARGETS = ["the cat sat", "the president said that it was a very good day, and people ran", "", "it is not a dog!"]
Tiny = Callable[[str], Path]


def original(folder: Path, sources: Sequence[str], targets: Sequence[str], max_length: int) -> list[float]:
    """bart_score.py: batches padded on the right, targets as labels, padding left out of the sum and of the length."""
    import torch
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    scores: list[float] = []
    for i in range(0, len(sources), 4):
        given, required = (
            tokenizer(list(texts[i : i + 4]), max_length=max_length, truncation=True, padding=True, return_tensors="pt")
            for texts in (sources, targets)
        )
        with torch.no_grad():
            logits = model(
                input_ids=given.input_ids, attention_mask=given.attention_mask, labels=required.input_ids
            ).logits
        loss = torch.nn.NLLLoss(reduction="none", ignore_index=tokenizer.pad_token_id)(
            logits.log_softmax(-1).flatten(0, 1), required.input_ids.flatten()
        ).view(len(required.input_ids), -1)
        scores += (-loss.sum(1) / required.attention_mask.sum(1)).tolist()
    return scores


@pytest.fixture
def scorer(tiny: Tiny) -> BARTScorer:
    return BARTScorer(device="cpu", max_length=128, checkpoint=str(tiny("bart")))


def test_scores_equal_the_originals(scorer, tiny):
    expected = original(tiny("bart"), SOURCES, TARGETS, 128)
    result = scorer.score(SOURCES, TARGETS, batch_size=4)
    assert result == pytest.approx(expected, abs=1e-5)
    assert all(type(value) is float for value in result)
    assert scorer.score(SOURCES, TARGETS, batch_size=1) == result
    assert scorer.score([], []) == []


def test_texts_are_cut_as_the_original_cuts_them_and_that_is_told(tiny):
    short = BARTScorer(device="cpu", max_length=6, checkpoint=str(tiny("bart")))
    with pytest.warns(
        UserWarning, match=r"4 of 4 pairs had texts of more tokens than max_length=6 .* tokens were left"
    ):
        result = short.score(SOURCES[:2] * 2, TARGETS[:2] * 2)
    assert result == pytest.approx(original(tiny("bart"), SOURCES[:2] * 2, TARGETS[:2] * 2, 6), abs=1e-5)


@pytest.mark.parametrize("agg", ["mean", "max"])
def test_several_references_are_averaged_or_the_best_taken(scorer, tiny, agg):
    references = [["the cat sat", "a dog ran"], ["people", "the news"]]
    by_reference = [original(tiny("bart"), SOURCES[:2], [r[i] for r in references], 128) for i in range(2)]
    expected = np.mean(by_reference, axis=0) if agg == "mean" else np.max(by_reference, axis=0)
    assert scorer.multi_ref_score(SOURCES[:2], references, agg=agg) == pytest.approx(expected.tolist(), abs=1e-5)
    assert scorer.multi_ref_score([], []) == []


def test_faults_are_raised_and_do_not_end_the_process(scorer):
    with pytest.raises(Exception, match=r"^You have different number of references per test sample\.$"):
        scorer.multi_ref_score(["a", "b"], [["a"], ["b", "c"]])
    with pytest.raises(NotImplementedError, match="agg must be 'mean' or 'max', got 'min'"):
        scorer.multi_ref_score(["a"], [["a"]], agg="min")
    with raises_code(RunError, "invalid_value", 2, 1):
        scorer.score(["a", "b"], ["a"])


def test_a_missing_card_is_told_and_the_cpu_used(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert _choose_device("cuda:0") == "cuda:0"
    assert _choose_device("cpu") == "cpu"
    with pytest.warns(UserWarning, match="there is no cuda:1 here: BARTScorer computes on the CPU"):
        assert _choose_device("cuda:1") == "cpu"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.warns(UserWarning, match="there is no cuda here"):
        assert _choose_device("cuda") == "cpu"


def other_weights(folder: Path) -> dict[str, object]:
    """The state dict of a model that was trained further: every weight a little different."""
    from transformers import BartForConditionalGeneration

    model = BartForConditionalGeneration.from_pretrained(folder)
    return {name: (tensor * 1.1).clone() for name, tensor in model.state_dict().items()}


def test_a_state_dict_is_loaded_into_the_checkpoints_model(scorer, tiny, tmp_path):
    from safetensors.torch import save_file
    from transformers import AutoTokenizer, BartForConditionalGeneration

    weights = other_weights(tiny("bart"))
    save_file(weights, tmp_path / "para.safetensors")
    full = BartForConditionalGeneration.from_pretrained(tiny("bart"))
    full.load_state_dict(weights)
    full.save_pretrained(tmp_path / "para")
    AutoTokenizer.from_pretrained(tiny("bart")).save_pretrained(tmp_path / "para")
    expected = original(tmp_path / "para", SOURCES, TARGETS, 128)
    before = scorer.score(SOURCES, TARGETS)
    scorer.load(tmp_path / "para.safetensors")
    assert scorer.score(SOURCES, TARGETS) == pytest.approx(expected, abs=1e-5)
    assert before != pytest.approx(expected, abs=1e-3)
    scorer.load(str(tiny("bart")))
    assert scorer.score(SOURCES, TARGETS) == before
    scorer.load(str(tmp_path / "para"))
    assert scorer.score(SOURCES, TARGETS) == pytest.approx(expected, abs=1e-5)


def test_weights_of_another_model_are_refused(scorer, tiny, tmp_path):
    with raises_code(ModelError, "invalid_value", "model.safetensors", "decoder.embed_positions.weight"):
        scorer.load(tiny("t5") / "model.safetensors")
    for content in (b"", b"\xff" * 20, b"\x02\x00\x00\x00\x00\x00\x00\x00[]"):
        (tmp_path / "no.safetensors").write_bytes(content)
        with raises_code(ModelError, "unreadable", "no.safetensors"):
            scorer.load(tmp_path / "no.safetensors")


def test_a_pickled_state_dict_is_converted(scorer, tiny, tmp_path):
    import torch

    torch.save(other_weights(tiny("bart")), tmp_path / "bart.pth")
    scorer.load(tmp_path / "bart.pth")
    result = scorer.score(SOURCES, TARGETS)
    # The lines that the docs give for the same conversion.
    lines = CONVERSION.replace(CNN, str(tiny("bart"))).replace("bart_score.pth", str(tmp_path / "bart.pth"))
    exec(lines.replace("bart-large-cnn-para", str(tmp_path / "para")), {})
    assert result == pytest.approx(original(tmp_path / "para", SOURCES, TARGETS, 128), abs=1e-5)


class RunsCode:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("old_format", [False, True])
def test_a_hostile_pickle_is_refused_and_does_not_run(scorer, tiny, tmp_path, old_format):
    import pickle

    import torch

    before = scorer.score(SOURCES[:1], TARGETS[:1])
    weights = {**other_weights(tiny("bart")), "hostile": RunsCode(tmp_path / "ran")}
    if old_format:
        (tmp_path / "bart.pth").write_bytes(pickle.dumps(weights["hostile"]))
    else:
        torch.save(weights, tmp_path / "bart.pth")
    with raises_code(ModelError, "untrusted", "bart.pth"):
        scorer.load(tmp_path / "bart.pth")
    assert not (tmp_path / "ran").exists()
    assert scorer.score(SOURCES[:1], TARGETS[:1]) == before


def test_other_files_are_refused(scorer, tmp_path, monkeypatch):
    import torch

    monkeypatch.chdir(tmp_path)
    with raises_code(ModelError, "missing_file", "models/bart.pth"):
        scorer.load()
    (tmp_path / "text.pth").write_text("no pickle")
    with raises_code(ModelError, "untrusted", "text.pth"):
        scorer.load("text.pth")
    torch.save([1, 2], tmp_path / "list.pth")
    with raises_code(ModelError, "invalid_value", "list.pth"):
        scorer.load("list.pth")
    torch.save({"decoder.weight": torch.zeros(1)}, tmp_path / "small.pth")
    with raises_code(ModelError, "invalid_value", "small.pth"):
        scorer.load("small.pth")
    monkeypatch.setattr(torch, "__version__", "2.5.1")
    with raises_code(ModelError, "missing_dependency", "2.6", "2.5.1"):
        scorer.load("small.pth")


def test_model_and_tokenizer_are_those_of_transformers(scorer, tiny, tmp_path, monkeypatch):
    assert type(scorer.model).__name__ == "BartForConditionalGeneration"
    assert scorer.tokenizer("a cat")["input_ids"]
    monkeypatch.setenv("METRIST_CACHE", str(tmp_path / "cache"))
    cached = BARTScorer(device="cpu", max_length=128, checkpoint=str(tiny("bart")))
    assert cached.model is scorer.model
    assert cached.score(SOURCES, TARGETS) == pytest.approx(scorer.score(SOURCES, TARGETS))


def test_a_model_without_torch_has_no_transformers_model(scorer):
    scorer._loaded = object()
    with raises_code(ModelError, "unsupported", "model"):
        _ = scorer.model


def test_test_prints_three_scores(scorer, capsys):
    scorer.test()
    assert len(json.loads(capsys.readouterr().out)) == 3


def test_single_texts_are_refused(scorer):
    with pytest.raises(TypeError, match=r"srcs must be a list of texts"):
        scorer.score("a text", ["a"])
    with pytest.raises(TypeError, match=r"tgts must be a list of texts"):
        scorer.score(["a"], "a text")
    with pytest.raises(TypeError, match=r"tgts\[0\] must be a list of texts"):
        scorer.multi_ref_score(["a"], ["a text"])


def test_importing_the_room_is_cheap():
    import subprocess

    code = "import sys, metrist.compat; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.fixture
def published() -> BARTScorer:
    folder = os.environ.get("METRIST_TEST_BART")
    if not folder:
        pytest.skip(f"METRIST_TEST_BART names no folder with {CNN}")
    return BARTScorer(device="cpu", checkpoint=folder)


def test_published_values_come_out_with_the_published_weights(published):
    # The README of the authors' repository.
    assert published.score(["This is interesting."], ["This is fun."]) == pytest.approx([-2.510652780532837], abs=1e-5)
    sources = ["I'm super happy today.", "This is a good idea."]
    references = [["I feel good today.", "I feel sad today."], ["Not bad.", "Sounds like a good idea."]]
    expected = [-2.5008113384246826, -1.626236081123352]
    assert published.multi_ref_score(sources, references, agg="max") == pytest.approx(expected, abs=1e-5)
