"""int8 by ctranslate2 says what the torch engine says, up to the rounding of weights; converted once, kept whole."""

from __future__ import annotations

import builtins
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from metrist.errors import MissingExtra, ModelError
from metrist.models import loading
from metrist.models.ctranslate import CTranslateSeq2Seq
from metrist.models.ctranslate_conversion import ABOUT, cache_folder
from metrist.models.options import Options

Tiny = Callable[[str], Path]

PAIRS = [
    ("the cat sat on the mat .", "a small dog ran"),
    ("the cat sat on the mat .", "it was not very good"),
    ("the president said that the report is old news", "they said that the report is very bad ! !"),
    ("the cat sat on the mat .", ""),
    ("", "a cat"),
    ("news " * 300, "the " * 300),
    ("the cat sat on the mat .", "a small dog ran"),
]
KINDS = ("bart", "t5", "marian")
each_kind = pytest.mark.parametrize("kind", KINDS)


def more_kinds(kind: str, folder: Path) -> Path:
    """Tiny random models of the architectures that no other test needs."""
    import torch
    from transformers import MT5Config, MT5ForConditionalGeneration, PegasusConfig, PegasusForConditionalGeneration

    import tiny_models

    tokens = {"vocab_size": tiny_models._SIZE, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    sizes = {"encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "init_std": 0.3}
    with torch.random.fork_rng():
        torch.manual_seed(11)
        if kind == "mt5":
            small = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
            MT5ForConditionalGeneration(MT5Config(**tokens, **small)).save_pretrained(folder)
        else:
            config = PegasusConfig(**tokens, **sizes, **heads, d_model=32, max_position_embeddings=64)
            PegasusForConditionalGeneration(config).save_pretrained(folder)
    tiny_models._tokenizer(begins=False, ends=True).save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.delenv("METRIST_DEVICE", raising=False)
    return folder


def options(folder: Path) -> Options:
    return Options(model=str(folder), dtype="int8")


@pytest.mark.parametrize("kind", [*KINDS, "mt5", "pegasus"])
def test_in_float32_every_token_has_the_log_probability_of_plain_transformers(
    kind: str, tiny: Tiny, tmp_path: Path
) -> None:
    """Expected: transformers' own forward pass with the target as labels, one pair at a time."""
    import torch
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    folder = tiny(kind) if kind in KINDS else more_kinds(kind, tmp_path)
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    found = CTranslateSeq2Seq.load(options(folder), "float32").log_probs(PAIRS[:4])
    for at, (condition, target) in enumerate(PAIRS[:4]):
        ids, labels = (tokenizer(text, return_tensors="pt").input_ids for text in (condition, target))
        with torch.no_grad():
            every = torch.log_softmax(model(input_ids=ids, labels=labels).logits[0], dim=-1)
        expected = every.gather(1, labels[0][:, None])[:, 0].numpy()
        assert found.tokens[found.starts[at] : found.starts[at + 1]].tolist() == labels[0].tolist()
        assert found.of(at) == pytest.approx(expected, rel=5e-6, abs=1e-5)
        assert found.of(at).mean() == pytest.approx(expected.mean(), abs=1e-5)


@each_kind
def test_tokens_cuts_and_failures_are_those_of_the_torch_engine(kind: str, tiny: Tiny) -> None:
    from metrist.models.seq2seq import Seq2Seq

    folder = tiny(kind)
    expected = Seq2Seq.load(Options(model=str(folder)))
    model = CTranslateSeq2Seq.load(options(folder), "float32")
    for most in (None, 6):
        ours, theirs = model.log_probs(PAIRS, most), expected.log_probs(PAIRS, most)
        for name in ("tokens", "starts", "condition_cut", "target_cut"):
            assert getattr(ours, name).tolist() == getattr(theirs, name).tolist()
        assert ours.failures == theirs.failures
        assert ours.logprobs == pytest.approx(theirs.logprobs, rel=5e-6, abs=1e-5)
        assert model.pieces(PAIRS[5][1], most) == expected.pieces(PAIRS[5][1], most)
        assert model.windows(PAIRS[5][0], most) == expected.windows(PAIRS[5][0], most)


@each_kind
def test_int8_differs_by_rounding_and_says_so(kind: str, tiny: Tiny) -> None:
    from metrist.models.seq2seq import Seq2Seq

    model = CTranslateSeq2Seq.load(options(tiny(kind)))
    exact = Seq2Seq.load(Options(model=str(tiny(kind)))).log_probs(PAIRS).logprobs
    apart = np.abs(model.log_probs(PAIRS).logprobs - exact)
    assert 1e-4 < apart.max() < 0.5
    assert apart.mean() < 0.1
    assert model.facts["compute"].startswith("ctranslate2 4")
    assert "int8" in model.facts["compute"]
    assert model.facts["dtype"].startswith("int8")


def test_scores_do_not_depend_on_batch_mates_order_or_budget(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    model = CTranslateSeq2Seq.load(options(tiny("bart")))
    together = model.log_probs(PAIRS)
    monkeypatch.setenv("METRIST_BATCH_TOKENS", "1")
    backwards = model.log_probs(PAIRS[::-1])
    for at, pair in enumerate(PAIRS):
        alone = model.log_probs([pair]).of(0)
        assert together.of(at) == pytest.approx(alone, abs=1e-5)
        assert backwards.of(len(PAIRS) - 1 - at) == pytest.approx(alone, abs=1e-5)


def test_an_int8_option_leads_here(tiny: Tiny) -> None:
    assert isinstance(loading.seq2seq(options(tiny("bart"))), CTranslateSeq2Seq)


def test_a_model_is_converted_once_and_found_again(tiny: Tiny, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    CTranslateSeq2Seq.load(options(tiny("bart")))
    (folder,) = (cache / "metrist" / "ctranslate2").iterdir()
    assert folder.parent == cache_folder()
    assert json.loads((folder / ABOUT).read_text())["target_positions"] == 128

    def refuse(*_: object) -> None:
        raise AssertionError("converted again")

    monkeypatch.setattr("metrist.models.ctranslate_conversion._make", refuse)
    CTranslateSeq2Seq.load(options(tiny("bart")))


def test_a_conversion_that_fails_leaves_nothing_behind(
    tiny: Tiny, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("no such layer")

    monkeypatch.setattr("metrist.models.ctranslate_conversion._write", fail)
    with pytest.raises(ModelError, match=r"ctranslate2 cannot convert .* \(no such layer\); set dtype='float32'"):
        CTranslateSeq2Seq.load(options(tiny("bart")))
    assert list((cache / "metrist" / "ctranslate2").iterdir()) == []


def test_a_model_that_was_converted_wrongly_is_refused(
    tiny: Tiny, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As T5 was before its outputs' scale was looked up in the right place."""
    from metrist.models import ctranslate_conversion as conversion

    right = conversion._spec

    def wrong(*given: object) -> object:
        spec = right(*given)
        spec.decoder.scale_outputs = 0.2
        return spec

    monkeypatch.setattr(conversion, "_spec", wrong)
    with pytest.raises(ModelError, match=r"does not say the same after its conversion by ctranslate2 \(a token's"):
        CTranslateSeq2Seq.load(options(tiny("t5")))
    assert list((cache / "metrist" / "ctranslate2").iterdir()) == []


KILLED = """
import os, signal, sys
from metrist.models import ctranslate_conversion
from metrist.models.options import Options
from metrist.models.weights import find

def killed(folder, *given):
    (folder / "model.bin").write_bytes(b"half of it")
    os.kill(os.getpid(), signal.SIGKILL)
ctranslate_conversion._convert = killed
options = Options(model=sys.argv[1], dtype="int8")
ctranslate_conversion.converted(find(options), options, "int8")
"""


def test_a_conversion_that_is_killed_is_done_anew(tiny: Tiny, cache: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tiny("bart"))], env={**os.environ}, check=False)
    assert done.returncode == -9
    assert len(CTranslateSeq2Seq.load(options(tiny("bart"))).log_probs(PAIRS)) == len(PAIRS)
    assert len(list((cache / "metrist" / "ctranslate2").glob("[!.]*"))) == 1


def test_a_process_that_converted_at_the_same_time_wins_peacefully(
    tiny: Tiny, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from metrist.models import ctranslate_conversion as conversion

    write = conversion._write

    def slow(folder: Path, *more: object) -> None:
        write(folder, *more)
        monkeypatch.setattr(conversion, "_write", write)
        CTranslateSeq2Seq.load(options(tiny("bart")))  # The other one, which is done first.

    monkeypatch.setattr(conversion, "_write", slow)
    assert len(CTranslateSeq2Seq.load(options(tiny("bart"))).log_probs(PAIRS)) == len(PAIRS)
    assert len(list((cache / "metrist" / "ctranslate2").iterdir())) == 1


def test_other_architectures_are_refused_with_those_that_work(tiny: Tiny) -> None:
    with pytest.raises(
        ModelError, match=r"is a gpt2 model, and int8 is for bart, marian, mt5, pegasus, t5 models; set dtype='float32'"
    ):
        CTranslateSeq2Seq.load(options(tiny("gpt2")))


def test_without_ctranslate2_the_extra_is_named(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *given: object, **more: object) -> object:
        if name == "ctranslate2":
            raise ImportError(name)
        return real(name, *given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtra, match=r"dtype='int8' needs an optional dependency: pip install 'metrist\[fast\]'"):
        CTranslateSeq2Seq.load(options(tiny("bart")))


def test_int8_on_a_card_is_refused(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METRIST_DEVICE", "cuda:0")
    with pytest.raises(ModelError, match="dtype='int8' runs on the CPU, but METRIST_DEVICE is 'cuda:0': unset it"):
        CTranslateSeq2Seq.load(options(tiny("bart")))


def test_a_cache_that_cannot_be_written_is_named(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ModelError, match=r"cannot be kept in .*: let XDG_CACHE_HOME name a folder that can be"):
        CTranslateSeq2Seq.load(options(tiny("bart")))
