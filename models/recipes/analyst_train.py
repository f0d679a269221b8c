"""Train the error analyst on a GPU, and let it and its base judge outputs.

    python analyst_train.py main FOLDER OUT --seconds 600 --until 800
    python analyst_train.py base FOLDER OUT --until 800

FOLDER is what `analyst_pack.py` writes: weights, rows of tokens and prompts. `main` trains an adapter for `--seconds`
and then answers all prompts; `base` lets the base answer a half of them, trains on single channels and on all with
equal numbers of tokens, and answers a quarter with each. Both can run beside each other. Answers are tokens, which
`analyst_judge.py` reads. All times are counted from the start; no answers are begun after `--until`.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from analyst_model import Adapter, Qwen2

STARTED = time.monotonic()
#: Tokens of the first line of an answer count more: they tell how many errors there are.
HEADER_WEIGHT = 3.0


def clock() -> float:
    return time.monotonic() - STARTED


class Log:
    """Lines with the time, printed and kept."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name

    def __call__(self, text: str) -> None:
        line = f"{clock():6.1f} {self.name}: {text}"
        print(line, flush=True)
        with self.path.open("a") as file:
            file.write(line + "\n")


class Rows:
    """Tokens of examples, one after another; `starts` is where the analysis begins, `headers` where its second line
    does."""

    def __init__(self, path: Path) -> None:
        data = np.load(path)
        self.tokens, self.ends = data["tokens"], data["ends"]
        self.starts, self.headers, self.channels = data["starts"], data["headers"], data["channels"]
        self.names = [str(name) for name in data["names"]]

    def get(self, number: int) -> np.ndarray:
        begin = self.ends[number - 1] if number else 0
        return self.tokens[begin : self.ends[number]]

    def lengths(self) -> np.ndarray:
        return np.diff(self.ends, prepend=0)


def make_batches(rows: Rows, numbers: np.ndarray, most: list[int], seed: int) -> Iterator[dict[str, Any]]:
    """Batches of rows of similar lengths, forever; `most[0]` is the number of tokens of a batch with padding."""
    lengths = rows.lengths()
    rng = np.random.default_rng(seed)
    while True:
        order = rng.permutation(numbers)
        for first in range(0, len(order), 1024):
            window = order[first : first + 1024]
            window = window[np.argsort(lengths[window], kind="stable")]
            groups: list[list[int]] = []
            for number in window:
                width = -(-int(lengths[number]) // 8) * 8
                if not groups or width * (len(groups[-1]) + 1) > most[0]:
                    groups.append([])
                groups[-1].append(int(number))
            for at in rng.permutation(len(groups)):
                yield collate(rows, groups[at])


def collate(rows: Rows, group: list[int]) -> dict[str, Any]:
    texts = [rows.get(number) for number in group]
    width = -(-max(map(len, texts)) // 8) * 8
    ids = np.zeros((len(group), width), np.int64)
    weights = np.zeros((len(group), width), np.float32)
    for line, (number, text) in enumerate(zip(group, texts, strict=True)):
        ids[line, : len(text)] = text
        # The weight of the token that a place predicts.
        weights[line, rows.starts[number] - 1 : len(text) - 1] = 1
        weights[line, rows.starts[number] - 1 : rows.headers[number] - 1] = HEADER_WEIGHT
    places = np.flatnonzero(weights)
    following = np.concatenate([ids[:, 1:], ids[:, :1]], axis=1).reshape(-1)[places]
    batch = {"ids": ids, "places": places, "labels": following, "weights": weights.reshape(-1)[places]}
    return {name: torch.from_numpy(value) for name, value in batch.items()} | {
        "tokens": sum(map(len, texts)),
        "weight": float(weights.sum()),
    }


def prefetch(batches: Iterator[dict[str, Any]], device: str) -> Iterator[dict[str, Any]]:
    queue: Queue[dict[str, Any]] = Queue(8)

    def fill() -> None:
        for batch in batches:
            pinned = {
                name: value.pin_memory() if isinstance(value, torch.Tensor) and device == "cuda" else value
                for name, value in batch.items()
            }
            queue.put(pinned)

    Thread(target=fill, daemon=True).start()
    while True:
        batch = queue.get()
        yield {
            name: value.to(device, non_blocking=True) if isinstance(value, torch.Tensor) else value
            for name, value in batch.items()
        }


def compute_losses(model: Qwen2, adapter: Adapter | None, batch: dict[str, Any]) -> torch.Tensor:
    """The cross-entropy of each token of the analyses; only they go through the output layer."""
    states = model.states(batch["ids"], adapter)
    states = states.reshape(-1, states.shape[-1])[batch["places"]]
    losses = []
    for part, labels in zip(states.split(4096), batch["labels"].split(4096), strict=True):
        losses.append(F.cross_entropy(F.linear(part, model.embedding).float(), labels, reduction="none"))
    return torch.cat(losses)


@torch.no_grad()
def judge_dev(model: Qwen2, adapter: Adapter | None, rows: Rows, most: int) -> float:
    lengths = rows.lengths()
    order = np.argsort(lengths, kind="stable")
    total, weight = 0.0, 0
    group: list[int] = []
    for number in [*map(int, order), -1]:
        if group and (number < 0 or int(lengths[number]) * (len(group) + 1) > most):
            batch = collate(rows, group)
            batch = {k: v.to(model.device) if isinstance(v, torch.Tensor) else v for k, v in batch.items()}
            losses = compute_losses(model, adapter, batch)
            total, weight = total + float(losses.sum()), weight + len(losses)
            group = []
        group.append(number)
    return total / weight


def train(
    model: Qwen2, rows: Rows, numbers: np.ndarray, dev: Rows, log: Log, options: argparse.Namespace, *,
    end: float = 1e9, tokens: int = 10**12, most: int, seed: int = 0,
) -> Adapter:  # fmt: skip
    """Train an adapter until a time, or on a number of tokens; the learning rate falls with what is used of it."""
    adapter = Adapter(model, options.rank, 2.0 * options.rank, seed)
    parameters = adapter.parameters()
    optimizer = torch.optim.AdamW(parameters, lr=options.lr, weight_decay=0.0, betas=(0.9, 0.98))
    size = [most]
    batches = prefetch(make_batches(rows, numbers, size, seed), str(model.device.type))
    begun, seen, step, marked, loss_sum, loss_weight = clock(), 0, 0, 0, 0.0, 0.0
    mark = begun
    while True:
        used = max((clock() - begun) / max(end - begun, 1), seen / tokens)
        if used >= 1:
            break
        rate = (
            min(used / 0.04, 0.5 * (1 + math.cos(math.pi * used)))
            if used < 0.5
            else 0.5 * (1 + math.cos(math.pi * used))
        )
        for group in optimizer.param_groups:
            group["lr"] = options.lr * max(rate, 0.01)
        optimizer.zero_grad(set_to_none=True)
        parts, total = [], 0.0
        for _ in range(options.accumulate):
            batch = next(batches)
            try:
                losses = compute_losses(model, adapter, batch)
                loss = (losses * batch["weights"]).sum()
                # The sum over a step is divided by about its weight, known before the first batch is computed.
                (loss / (options.accumulate * batch["weight"])).backward()
            except torch.OutOfMemoryError:
                losses = loss = None
                torch.cuda.empty_cache()
                size[0] = int(size[0] * 0.8)
                log(f"out of memory; batches of {size[0]} tokens from now on")
                continue
            parts.append(loss.detach())
            total += batch["weight"]
            seen += batch["tokens"]
        torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        optimizer.step()
        step += 1
        loss_sum, loss_weight = loss_sum + sum(parts), loss_weight + total
        if step % options.every == 0:
            mean = float(loss_sum) / max(loss_weight, 1)
            rate = (seen - marked) / (clock() - mark)
            memory = torch.cuda.max_memory_allocated() / 2**30 if model.device.type == "cuda" else 0
            progress = f"step {step}, {seen / 1e6:.2f} M tokens, {rate:,.0f} tokens/s, loss {mean:.4f}, {used:.0%}"
            log(f"{progress}, {memory:.0f} GiB")
            mark, marked, loss_sum, loss_weight = clock(), seen, 0.0, 0.0
        if step % options.check == 0:
            log(f"held-out loss {judge_dev(model, adapter, dev, most):.4f}")
            mark = clock()
    log(f"trained {step} steps, {seen:,} tokens; held-out loss {judge_dev(model, adapter, dev, most):.4f}")
    return adapter


def save_adapter(adapter: Adapter, folder: Path) -> None:
    from safetensors.torch import save

    data = save(adapter.tensors())
    for number, first in enumerate(range(0, len(data), 15_000_000)):
        (folder / f"adapter.{number:02d}").write_bytes(data[first : first + 15_000_000])


def answer(
    model: Qwen2, folder: Path, out: Path, name: str, portions: int, log: Log, options: argparse.Namespace
) -> None:
    """Answer the prompts of the first portions, and write the answers after each portion."""
    data = np.load(folder / "prompts.npz")
    tokens, ends, portion = data["tokens"], data["ends"], data["portions"]
    watch = (int(data["place"]), [int(token) for token in data["digits"]])
    lengths = np.diff(ends, prepend=0)
    end = int(data["end"])
    numbers: list[int] = []
    answers: list[np.ndarray] = []
    digits: list[np.ndarray] = []
    for one in range(portions):
        chosen = np.flatnonzero(portion == one)
        # The longest first: they need most memory.
        chosen = chosen[np.argsort(-lengths[chosen], kind="stable")]
        first = 0
        while first < len(chosen):
            count = max(1, min(512, options.cache_tokens // int(lengths[chosen[first]] + options.most)))
            group = chosen[first : first + count]
            if clock() > options.until:
                log(f"{name}: no time for the rest")
                one = portions
                break
            begun = clock()
            given, seen = model.generate(
                [tokens[ends[n] - lengths[n] : ends[n]] for n in group], options.most, end, watch
            )
            assert seen is not None
            numbers += [int(n) for n in group]
            answers += [np.array(tokens_, np.int32) for tokens_ in given]
            digits.append(seen)
            first += count
            mean = np.mean([len(one_answer) for one_answer in given])
            log(f"{name}: {len(group)} answers of {mean:.0f} tokens in {clock() - begun:.1f} s")
            np.savez_compressed(
                out / f"answers-{name}.npz", numbers=np.array(numbers), digits=np.concatenate(digits),
                tokens=np.concatenate(answers), ends=np.cumsum([len(a) for a in answers]),
            )  # fmt: skip
        if one == portions:
            break


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("main", "base"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--until", type=float, default=800)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--tokens", type=int, default=12288, help="tokens computed at once")
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--check", type=int, default=200)
    parser.add_argument("--most", type=int, default=320, help="tokens of an answer")
    parser.add_argument("--cache-tokens", type=int, default=500_000, help="tokens of prompts and answers at once")
    parser.add_argument("--portions", type=int, default=4)
    parser.add_argument("--ablation-tokens", type=int, default=1_500_000)
    parser.add_argument("--ablations", default="human,synthetic,all")
    parser.add_argument("--memory", type=float, default=0.42, help="share of the GPU's memory")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    log = Log(options.out / f"log-{options.what}.txt", options.what)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_per_process_memory_fraction(options.memory)
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True
    model = Qwen2.read(options.folder, device, torch.bfloat16)
    log(f"model read on {device}, {torch.__version__}; settings {json.dumps(vars(options), default=str)}")
    rows, dev = Rows(options.folder / "rows.npz"), Rows(options.folder / "dev.npz")
    everything = np.arange(len(rows.ends))
    if options.what == "main":
        adapter = train(model, rows, everything, dev, log, options, end=options.seconds, most=options.tokens)
        save_adapter(adapter, options.out)
        log("adapter written")
        answer(adapter.merge(model), options.folder, options.out, "main", options.portions, log, options)
    else:
        answer(model, options.folder, options.out, "base", max(1, options.portions // 2), log, options)
        for name in filter(None, options.ablations.split(",")):
            if clock() > options.until - 60:
                log(f"no time for {name}")
                break
            wanted = {"human": ("human",), "synthetic": ("synthetic",)}.get(name, tuple(rows.names))
            # References, which have no errors, belong to the data of every setting.
            codes = [rows.names.index(channel) for channel in {*wanted, "reference"} & set(rows.names)]
            numbers = np.flatnonzero(np.isin(rows.channels, codes))
            log(f"{name}: {len(numbers):,} examples")
            adapter = train(
                model, rows, numbers, dev, log, options,
                tokens=options.ablation_tokens, end=options.until, most=options.tokens,
            )  # fmt: skip
            merged = adapter.merge(model)
            answer(merged, options.folder, options.out, name, 1, log, options)
    log("done")


if __name__ == "__main__":
    main()
