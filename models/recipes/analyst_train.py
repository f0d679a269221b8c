"""Train the error analyst on a GPU, and let it and its base judge outputs.

    python analyst_train.py main FOLDER OUT --seconds 850 --until 1300
    python analyst_train.py ablations FOLDER OUT --names all,human,story --after OUT/trained --until 1300

FOLDER is what `analyst_pack.py` writes: weights, rows of tokens and prompts. `main` trains an adapter on an epoch, or
on as much of it as fits into `--seconds`, and then answers the held-out prompts and the judged ones. `ablations`
trains other adapters and answers a quarter of the judged prompts with each: `all`, `human` and `synthetic` (channels,
with the references) and `no-omissions` on `--ablation-tokens` each, and tasks (`story`, `math`, …), each alone, on an
epoch of theirs. `base` lets the base answer a half. They can run beside each other; `--after` waits for a file.
Answers are tokens, which `analyst_judge.py` reads. All times are counted from the start, and nothing is begun after
`--until`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
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

#: Counted from the environment's STARTED (seconds since 1970), if it is set, so that processes share one clock.
STARTED = time.monotonic() - (time.time() - float(os.environ.get("STARTED") or time.time()))
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
        self.tasks, self.omissions = data["tasks"], data["omissions"]
        self.task_names = [str(name) for name in data["task_names"]]

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
    on_gpu = model.device.type == "cuda"
    optimizer = torch.optim.AdamW(parameters, lr=options.lr, weight_decay=0.0, betas=(0.9, 0.98), fused=on_gpu)
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
            memory = torch.cuda.max_memory_allocated() / 2**30 if on_gpu else 0
            progress = f"step {step}, {seen / 1e6:.2f} M tokens, {rate:,.0f} tokens/s, loss {mean:.4f}, {used:.0%}"
            log(f"{progress}, {memory:.0f} GiB")
            mark, marked, loss_sum, loss_weight = clock(), seen, 0.0, 0.0
        if step % options.check == 0:
            log(f"held-out loss {judge_dev(model, adapter, dev, most):.4f}")
            if options.what == "main":
                save_adapter(adapter, options.out, "partial")
            mark = clock()
    log(f"trained {step} steps, {seen:,} tokens; held-out loss {judge_dev(model, adapter, dev, most):.4f}")
    return adapter


def save_adapter(adapter: Adapter, folder: Path, name: str = "adapter") -> None:
    from safetensors.torch import save

    data = save(adapter.tensors())
    for number, first in enumerate(range(0, len(data), 15_000_000)):
        (folder / f"{name}.{number:02d}").write_bytes(data[first : first + 15_000_000])


def answer(
    model: Qwen2, prompts: Path, out: Path, name: str, portions: int, log: Log, options: argparse.Namespace
) -> None:
    """Answer the prompts of the first portions, and write the answers now and then."""
    data = np.load(prompts)
    tokens, ends, portion = data["tokens"], data["ends"], data["portions"]
    watch = (int(data["place"]), [int(token) for token in data["digits"]])
    lengths = np.diff(ends, prepend=0)
    end = int(data["end"])
    numbers: list[int] = []
    answers: list[np.ndarray] = []
    digits: list[np.ndarray] = []
    begun, size = clock(), options.cache_tokens
    for one in range(portions):
        chosen = np.flatnonzero(portion == one)
        # The longest first: they need most memory.
        chosen = chosen[np.argsort(-lengths[chosen], kind="stable")]
        while len(chosen):
            if clock() > options.until:
                log(f"{name}: no time for {len(chosen)} of portion {one} and what follows")
                return
            group = chosen[: max(1, min(512, size // int(lengths[chosen[0]] + options.most)))]
            try:
                given, seen = model.generate(
                    [tokens[ends[n] - lengths[n] : ends[n]] for n in group], options.most, end, watch
                )
            except torch.OutOfMemoryError:
                given = seen = None
                torch.cuda.empty_cache()
                size = size * 2 // 3
                log(f"{name}: out of memory; caches of {size:,} tokens from now on")
                if size < 4000:
                    return
                continue
            assert seen is not None
            chosen = chosen[len(group) :]
            numbers += [int(n) for n in group]
            answers += [np.array(tokens_, np.int32) for tokens_ in given]
            digits.append(seen)
            partial = out / f"partial-{name}.npz"
            np.savez_compressed(
                partial, numbers=np.array(numbers), digits=np.concatenate(digits), tokens=np.concatenate(answers),
                ends=np.cumsum([len(a) for a in answers]),
            )  # fmt: skip
            # Whoever looks at the folder at any time finds a whole file.
            partial.replace(out / f"answers-{name}.npz")
        mean = np.mean([len(given) for given in answers])
        log(f"{name}: {len(answers):,} answers of {mean:.0f} tokens after {clock() - begun:.1f} s")


def choose_numbers(rows: Rows, name: str) -> np.ndarray:
    """The examples of an ablation."""
    everything = np.arange(len(rows.ends))
    if name == "all":
        return everything
    if name == "no-omissions":
        return everything[~rows.omissions]
    if name in rows.task_names:
        return everything[rows.tasks == rows.task_names.index(name)]
    # References, which have no errors, belong to the data of every channel.
    return everything[np.isin(rows.channels, [rows.names.index(name), rows.names.index("reference")])]


def run_ablations(model: Qwen2, rows: Rows, dev: Rows, log: Log, options: argparse.Namespace) -> None:
    lengths = rows.lengths()
    for name in filter(None, options.names.split(",")):
        numbers = choose_numbers(rows, name)
        tokens = int(lengths[numbers].sum()) if name in rows.task_names else options.ablation_tokens
        # Answers take about 45 s. What would not be trained to its end is not begun.
        left = options.until - clock() - 45
        if left < 20 or tokens > left * options.speed:
            log(f"{name}: no time for {tokens:,} tokens in {left:.0f} s")
            continue
        log(f"{name}: {len(numbers):,} examples, {tokens:,} tokens")
        begun = clock()
        adapter = train(
            model, rows, numbers, dev, log, options, tokens=tokens, end=options.until - 20, most=options.tokens
        )
        options.speed = 0.9 * tokens / (clock() - begun)
        answer(adapter.merge(model), options.folder / "judged-prompts.npz", options.out, name, 1, log, options)
        if model.device.type == "cuda":
            torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("main", "ablations", "base"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=600, help="most seconds for the training of `main`")
    parser.add_argument("--until", type=float, default=800)
    parser.add_argument("--after", type=Path, help="a file to wait for; it is written when `main` is trained")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--tokens", type=int, default=10240, help="tokens computed at once")
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--check", type=int, default=200)
    parser.add_argument("--most", type=int, default=320, help="tokens of an answer")
    parser.add_argument("--cache-tokens", type=int, default=500_000, help="tokens of prompts and answers at once")
    parser.add_argument("--portions", type=int, default=4)
    parser.add_argument("--ablation-tokens", type=int, default=1_800_000)
    parser.add_argument("--names", default="all,human,synthetic")
    parser.add_argument("--speed", type=float, default=16_000, help="tokens a second that an ablation counts on")
    parser.add_argument("--memory", type=float, default=0.42, help="share of the GPU's memory")
    parser.add_argument("--log", default="", help="name of the log, if another one than what is done")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    log = Log(options.out / f"log-{options.log or options.what}.txt", options.log or options.what)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_per_process_memory_fraction(options.memory)
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True
    while options.after and not options.after.exists():
        if clock() > options.until:
            return
        time.sleep(0.5)
    model = Qwen2.read(options.folder, device, torch.bfloat16)
    log(f"model read on {device}, {torch.__version__}; settings {json.dumps(vars(options), default=str)}")
    rows, dev = Rows(options.folder / "rows.npz"), Rows(options.folder / "dev.npz")
    judged = options.folder / "judged-prompts.npz"
    if options.what == "main":
        numbers = np.arange(len(rows.ends))
        adapter = train(
            model, rows, numbers, dev, log, options,
            tokens=int(rows.lengths().sum()), end=options.seconds, most=options.tokens,
        )  # fmt: skip
        save_adapter(adapter, options.out)
        for path in options.out.glob("partial.*"):
            path.unlink()
        (options.out / "trained").touch()
        log("adapter written")
        merged = adapter.merge(model)
        if device == "cuda":
            torch.cuda.empty_cache()
        answer(merged, options.folder / "dev-prompts.npz", options.out, "main-dev", 1, log, options)
        answer(merged, judged, options.out, "main", options.portions, log, options)
    elif options.what == "base":
        answer(model, judged, options.out, "base", max(1, options.portions // 2), log, options)
    else:
        run_ablations(model, rows, dev, log, options)
    log("done")


if __name__ == "__main__":
    main()
