"""How sequence-to-sequence models are loaded, shared and refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from seq2seq_models import PAIRS, agree

from error_codes import raises_code
from metrist.errors import ModelError
from metrist.models import loading
from metrist.models.devices import Options
from metrist.models.seq2seq import Seq2Seq, find_label_shift

Tiny = Callable[[str], Path]


def test_facts_name_weights_dtype_and_kind(loaded: Callable[[str], Seq2Seq], seq2seq_folder: Tiny) -> None:
    from metrist.models.weights import find_weights

    fingerprint = find_weights(Options(model=str(seq2seq_folder("t5")))).fingerprint
    assert loaded("t5").facts == {"weights": fingerprint, "dtype": "float32", "model_type": "t5"}


def test_equal_options_share_one_loaded_model(seq2seq_folder: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("METRIST_CACHE", raising=False)
    options = Options(model=str(seq2seq_folder("bart")))
    assert loading.load_seq2seq(options) is loading.load_seq2seq(Options(model=str(seq2seq_folder("bart"))))


def test_a_folder_with_new_weights_is_loaded_anew(seq2seq_folder: Tiny, tmp_path: Path) -> None:
    place = shutil.copytree(seq2seq_folder("bart"), tmp_path / "model")
    old = loading.load_seq2seq(Options(model=str(place))).log_probs(PAIRS).logprobs
    shutil.copytree(seq2seq_folder("marian"), place, dirs_exist_ok=True)
    new = loading.load_seq2seq(Options(model=str(place))).log_probs(PAIRS[:1])
    np.testing.assert_array_equal(
        new.logprobs, loading.load_seq2seq(Options(model=str(seq2seq_folder("marian")))).log_probs(PAIRS[:1]).logprobs
    )
    assert not np.array_equal(new.logprobs, old[: len(new.logprobs)])


def test_loading_and_scoring_print_nothing_and_leave_logging_as_it_was(
    seq2seq_folder: Tiny, capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    from transformers.utils import logging

    before = logging.get_verbosity(), logging.is_progress_bar_enabled()
    folder = seq2seq_folder("led")
    capfd.readouterr()
    Seq2Seq.load(Options(model=str(folder))).log_probs([("the cat " * 400, "dog " * 400)])
    assert capfd.readouterr() == ("", "")
    assert not recwarn.list
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before


def test_a_device_map_gives_the_same_values(
    loaded: Callable[[str], Seq2Seq], seq2seq_folder: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METRIST_DEVICE", "map")
    engine = Seq2Seq.load(Options(model=str(seq2seq_folder("bart"))))
    assert type(engine._path.decoder).__name__ == "PaddedDecoder"
    agree(engine.log_probs(PAIRS), [loaded("bart").log_probs(PAIRS).of(at) for at in range(len(PAIRS))])


def test_a_folder_of_another_kind_of_model_is_refused_in_one_line(tiny: Tiny) -> None:
    with raises_code(ModelError, "model_unusable", "gpt2", "BART or T5"):
        Seq2Seq.load(Options(model=str(tiny("gpt2"))))


def test_a_model_with_code_of_its_own_is_refused_with_the_settings_name(seq2seq_folder: Tiny, tmp_path: Path) -> None:
    own = shutil.copytree(seq2seq_folder("bart"), tmp_path / "own")
    (own / "config.json").write_text(
        '{"model_type": "of-its-own", "auto_map": {"AutoConfig": "code.C", "AutoModelForSeq2SeqLM": "code.M"}}'
    )
    with raises_code(ModelError, "model_unusable", "trust_remote_code=True"):
        Seq2Seq.load(Options(model=str(own)))


def test_weights_that_are_damaged_are_refused(seq2seq_folder: Tiny, tmp_path: Path) -> None:
    damaged = shutil.copytree(seq2seq_folder("bart"), tmp_path / "damaged")
    (damaged / "model.safetensors").write_bytes(b"not weights at all")
    with raises_code(ModelError, "model_unusable", str(damaged), "(bart)"):
        Seq2Seq.load(Options(model=str(damaged)))


def test_a_decoder_without_a_start_token_is_refused() -> None:
    config = SimpleNamespace(decoder_start_token_id=None, pad_token_id=None)
    with raises_code(ModelError, "invalid_value", "config.json", "decoder_start_token_id"):
        find_label_shift(SimpleNamespace(config=config), "m")


def test_labels_are_shifted_as_the_model_does_even_in_an_unknown_way() -> None:
    def own(labels: Any) -> Any:
        return labels.flip(1)

    model = SimpleNamespace(
        config=SimpleNamespace(decoder_start_token_id=2, pad_token_id=1), prepare_decoder_input_ids_from_labels=own
    )
    assert find_label_shift(model, "m")(np.array([4, 5, 6, 9])).tolist() == [9, 6, 5, 4]


def test_learned_positions_must_be_there_though_computed_ones_need_not(tiny: Tiny, tmp_path: Path) -> None:
    for kind in ("bart", "marian"):
        shutil.copytree(tiny(kind), tmp_path / kind)
        weights = load_file(tmp_path / kind / "model.safetensors")
        stored = {name: one.clone() for name, one in weights.items() if "embed_positions" not in name}
        save_file(stored, tmp_path / kind / "model.safetensors", metadata={"format": "pt"})
    Seq2Seq.load(Options(model=str(tmp_path / "marian")))
    with raises_code(ModelError, "model_unusable", "lacks 2", "embed_positions"):
        Seq2Seq.load(Options(model=str(tmp_path / "bart")))


@pytest.mark.parametrize("remaining", [[], ["tokenizer_config.json"]])
def test_a_folder_without_a_tokenizer_is_refused(tiny: Tiny, tmp_path: Path, remaining: list[str]) -> None:
    """transformers would make one without words."""
    folder = shutil.copytree(tiny("t5"), tmp_path / "model")
    for path in folder.glob("*token*"):
        if path.name not in remaining:
            path.unlink()
    with raises_code(ModelError, "no_data", "tokenizer.json", str(folder)):
        Seq2Seq.load(Options(model=str(folder)))
