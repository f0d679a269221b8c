"""Write a causal model as one GGUF file, which llama.cpp and programs that build on it read.

Models of the architectures Llama, Mistral and Qwen2 with a byte-level BPE tokenizer can be written, in half precision
or in 8 bits. transformers reads the files with `gguf_file=`. That llama.cpp gives the same answers has not been tried.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from metrist.documents import read_json_object
from metrist.errors import ModelError, SpecError

Precision = Literal["f16", "q8_0"]
#: The file beside a merged model.
GGUF_FILE = "model.gguf"
_ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2"}
#: The parts of a layer: transformers' names, and those of GGUF.
_PARTS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
_WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
#: Weights of a row that 8-bit blocks share a scale for.
_BLOCK = 32


def export_gguf(model: str, out: str | Path, *, adapter: str | None = None, precision: Precision = "f16") -> Path:
    """Write a model, with an adapter merged into it where one is named, as a GGUF file; return its path."""
    import torch

    from metrist.models.devices import Options, Placement
    from metrist.models.pretrained import quiet_transformers, read_model, read_tokenizer
    from metrist.models.weights import find_adapter, find_weights

    options = Options(model=model)
    weights = find_weights(options)
    if adapter is None:
        write_gguf(weights.folder, Path(out), precision)
        return Path(out)
    from metrist.models.lora import load_adapter

    place = Placement(device=torch.device("cpu"), dtype=torch.float32, tokens=1)
    loaded = read_model("AutoModelForCausalLM", weights, options, place)
    load_adapter(loaded, find_adapter(adapter))
    with tempfile.TemporaryDirectory(prefix="metrist-gguf-") as folder, quiet_transformers():
        loaded.save_pretrained(folder)
        read_tokenizer(weights, options).save_pretrained(folder)
        write_gguf(Path(folder), Path(out), precision)
    return Path(out)


def write_gguf(folder: Path, out: Path, precision: Precision = "f16") -> None:
    """Write a folder as transformers saves it (config.json, tokenizer.json, safetensors) as a GGUF file."""
    if precision not in get_args(Precision):
        raise SpecError(
            f"no precision {precision!r}; expected one of {', '.join(get_args(Precision))}", code="unknown_name"
        )
    try:
        import gguf
    except ImportError:
        raise SpecError("writing GGUF needs the package gguf: pip install gguf", code="missing_dependency") from None
    config = read_json_object(folder / "config.json", ModelError)
    architecture = check_architecture(config)
    tokenizer = read_json_object(folder / "tokenizer.json", ModelError)
    writer = gguf.GGUFWriter(out, architecture)
    try:
        _add_settings(writer, config, gguf, precision)
        _add_tokenizer(writer, folder, tokenizer, config)
        for name, weight in _read_weights(folder, config):
            if weight.ndim == 1:
                writer.add_tensor(name, weight)  # Scales and biases stay in float32.
            elif precision == "q8_0" and weight.shape[-1] % _BLOCK == 0:
                kind = gguf.GGMLQuantizationType.Q8_0
                writer.add_tensor(name, gguf.quants.quantize(weight, kind), raw_dtype=kind)
            else:
                writer.add_tensor(name, weight.astype(np.float16))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()


def check_architecture(config: Mapping[str, Any]) -> str:
    """Return GGUF's name of a model's architecture; raise an error if it cannot be written."""
    kind = str(config.get("model_type"))
    if kind not in _ARCHITECTURES:
        raise ModelError(
            f"a {kind!r} model cannot be written as GGUF ({', '.join(_ARCHITECTURES)} can); save a merged model",
            code="cannot_write",
        )
    if config.get("sliding_window") and config.get("use_sliding_window", kind == "mistral"):
        raise ModelError("a model whose attention has a sliding window cannot be written as GGUF", code="cannot_write")
    if _find_rope(config).get("rope_type", "default") != "default":
        raise ModelError("a model with scaled positions (rope_scaling) cannot be written as GGUF", code="cannot_write")
    return _ARCHITECTURES[kind]


def _find_rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings of positions, which newer configurations have in one object."""
    return config.get("rope_parameters") or config.get("rope_scaling") or {}


def _add_settings(writer: Any, config: Mapping[str, Any], gguf: Any, precision: Precision) -> None:
    heads = int(config["num_attention_heads"])
    width = int(config.get("head_dim") or config["hidden_size"] // heads)
    kinds = {"f16": gguf.LlamaFileType.MOSTLY_F16, "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0}
    writer.add_file_type(kinds[precision])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_block_count(int(config["num_hidden_layers"]))
    writer.add_context_length(int(config["max_position_embeddings"]))
    writer.add_embedding_length(int(config["hidden_size"]))
    writer.add_feed_forward_length(int(config["intermediate_size"]))
    writer.add_head_count(heads)
    writer.add_head_count_kv(int(config.get("num_key_value_heads") or heads))
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_rope_dimension_count(width)
    writer.add_rope_freq_base(float(_find_rope(config).get("rope_theta") or config.get("rope_theta") or 10000.0))
    writer.add_layer_norm_rms_eps(float(config["rms_norm_eps"]))
    writer.add_vocab_size(int(config["vocab_size"]))


# ---- Tokenizer


def _add_tokenizer(writer: Any, folder: Path, tokenizer: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """The vocabulary with its merges, the special tokens, and the chat template."""
    model = tokenizer["model"]
    if model.get("type") != "BPE" or model.get("byte_fallback") or "ByteLevel" not in json.dumps(tokenizer):
        raise ModelError(
            f"GGUF needs a byte-level BPE tokenizer, and this one is {model.get('type')}; save a merged model",
            code="unsupported",
        )
    vocabulary: dict[int, str] = {number: text for text, number in model["vocab"].items()}
    added = {int(token["id"]): token for token in tokenizer.get("added_tokens", ())}
    size = int(config["vocab_size"])
    texts, kinds = [], []
    for number in range(size):
        token = added.get(number)
        if token is not None:
            texts.append(token["content"])
            kinds.append(3 if token.get("special") else 4)  # A control token; one that a user defined.
        else:
            # Rows of the embedding without a token get a name that occurs in no text.
            texts.append(vocabulary.get(number, f"[PAD{number}]"))
            kinds.append(1 if number in vocabulary else 5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(_name_splitting(tokenizer, config))
    writer.add_token_list(texts)
    writer.add_token_types(kinds)
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]])
    path = folder / "tokenizer_config.json"
    settings = read_json_object(path, ModelError) if path.is_file() else {}
    numbers = {text: number for number, text in enumerate(texts)}
    for name, add in (
        ("bos_token", writer.add_bos_token_id),
        ("eos_token", writer.add_eos_token_id),
        ("pad_token", writer.add_pad_token_id),
    ):
        token = settings.get(name)
        text = token.get("content") if isinstance(token, Mapping) else token
        if text in numbers:
            add(numbers[text])
    writer.add_add_bos_token(bool(settings.get("add_bos_token", False)))
    template = settings.get("chat_template")
    if (folder / "chat_template.jinja").is_file():
        template = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    if isinstance(template, str):
        writer.add_chat_template(template)


def _name_splitting(tokenizer: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """llama.cpp's name of how a text is split before the merges."""
    if config.get("model_type") == "qwen2":
        return "qwen2"
    pieces = json.dumps(tokenizer.get("pre_tokenizer"))
    if r"\\p{N}{1,3}" in pieces:
        return "llama-bpe"
    return "smollm" if '"Digits"' in pieces else "default"


# ---- Weights


def _read_weights(folder: Path, config: Mapping[str, Any]) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """The weights with GGUF's names, in float32. GGUF's Llama rotates pairs of neighbours, and transformers' the two
    halves of a head."""
    from safetensors import safe_open

    heads = {"q_proj": int(config["num_attention_heads"])}
    heads["k_proj"] = int(config.get("num_key_value_heads") or heads["q_proj"])
    rotates_neighbours = _ARCHITECTURES[str(config["model_type"])] == "llama"
    tied = bool(config.get("tie_word_embeddings"))
    seen = set()
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - it is not a mapping
                if tied and name == "lm_head.weight":
                    continue
                own = rename_weight(name)
                seen.add(own)
                array: NDArray[np.float32] = file.get_tensor(name).float().numpy()
                part = name.split(".")[-2]
                if rotates_neighbours and part in heads:
                    halves = array.reshape(heads[part], 2, -1, *array.shape[1:])
                    array = np.ascontiguousarray(halves.swapaxes(1, 2).reshape(array.shape))
                yield own, array
    if "token_embd.weight" not in seen:
        raise ModelError(f"{folder} has no weights of a causal model")


def rename_weight(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem in _WHOLE:
        return f"{_WHOLE[stem]}.{kind}"
    match = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", stem)
    if match is None or match[2] not in _PARTS:
        raise ModelError(f"the weight {name!r} cannot be written as GGUF", code="cannot_write")
    return f"blk.{match[1]}.{_PARTS[match[2]]}.{kind}"
