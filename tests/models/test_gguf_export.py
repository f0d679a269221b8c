"""Models as GGUF files, read back by transformers."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("gguf", reason="gguf is not installed")

import torch
import transformers

from error_codes import raises_code
from metrist.errors import ModelError, SpecError
from metrist.models.gguf_export import export_gguf, rename_weight, write_gguf
from metrist.models.pretrained import quiet_transformers

Tiny = Callable[[str], Path]


def make_qwen(base: Path, folder: Path, *, tied: bool) -> Path:
    """A tiny Qwen2 with the tokenizer of another folder."""
    size = json.loads((base / "config.json").read_text())["vocab_size"]
    config = transformers.Qwen2Config(
        vocab_size=size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=tied,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    )
    with torch.random.fork_rng(), quiet_transformers():
        torch.manual_seed(3)
        model = transformers.Qwen2ForCausalLM(config)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.2)
        model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copyfile(base / name, folder / name)
    return folder


def compute_logits(folder: Path, **options: Any) -> torch.Tensor:
    with quiet_transformers(), torch.no_grad():
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options)
        logits: torch.Tensor = model.eval()(torch.arange(40)[None] * 5 % 200).logits
    return logits


@pytest.mark.parametrize("precision", ["f16", "q8_0"])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen2, tied"])
def test_a_file_has_the_model(tiny: Tiny, tmp_path: Path, kind: str, precision: Any) -> None:
    folder = tiny("analyst")
    if kind != "llama":
        (tmp_path / "model").mkdir()
        folder = make_qwen(folder, tmp_path / "model", tied="tied" in kind)
    export_gguf(str(folder), tmp_path / "out.gguf", precision=precision)
    expected = compute_logits(folder)
    found = compute_logits(tmp_path, gguf_file="out.gguf")
    most = float((expected - found).abs().max()) / float(expected.abs().max())
    assert most < (0.002 if precision == "f16" else 0.05)
    with quiet_transformers():
        own = transformers.AutoTokenizer.from_pretrained(folder)
        read = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file="out.gguf")
    assert read.chat_template == own.chat_template
    assert read.eos_token == own.eos_token
    text = "Error location 1: the dog — größer"
    assert read.decode(own(text)["input_ids"]) == text


def test_what_cannot_be_written_is_refused(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny("analyst"), folder)
    config = json.loads((folder / "config.json").read_text())
    with raises_code(SpecError, "unknown_name", "'q2'"):
        write_gguf(folder, tmp_path / "out.gguf", "q2")
    with raises_code(ModelError, "cannot_write", "'model.layers.0.x.weight'"):
        rename_weight("model.layers.0.x.weight")
    for changed, message in (
        ({"model_type": "gpt2"}, "'gpt2' model cannot be written"),
        ({"model_type": "mistral", "sliding_window": 64}, "sliding window"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "scaled positions"),
    ):
        (folder / "config.json").write_text(json.dumps(config | changed))
        with pytest.raises(ModelError, match=message):
            write_gguf(folder, tmp_path / "out.gguf")
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["byte_fallback"] = True
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with raises_code(ModelError, "unsupported", "BPE"):
        write_gguf(folder, tmp_path / "out.gguf")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with raises_code(SpecError, "missing_dependency", "pip install gguf"):
        write_gguf(folder, tmp_path / "out.gguf")
