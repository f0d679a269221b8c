"""Fine-tuning the small likelihood model, several ways at once, on one GPU: which way agrees better with people?

Needs torch, transformers, tokenizers, safetensors, and the folder that `likelihood_small.py carry` writes: the wheel's
weights, the order in which pieces of the vocabulary are kept, training pairs, development and judged sets.

    python finetune_likelihood.py CARRIED OUT [--minutes 8]

What is printed: agreement of the wheel's model (with `--survey` also with instructions before the condition and with
smaller vocabularies), of each variant, and of the chosen one with fewer bits. The variant that agrees best on held-out
translations is written to OUT in the fewest bits that keep that agreement, in metrist's own form, the weights cut into
parts below 16 MiB (`cat weights.part* > weights.safetensors`).
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
_ROOM = 1024
_PART = 15 * 2**20
#: Seconds kept for measuring and writing what was chosen.
_RESERVE = 110
TEMPLATES = ("{text}", "summarize: {text}", "Write a summary: {text}", "{text}\n\nIn short:", "Paraphrase: {text}")
#: Bits of a weight; 64 columns share a scale.
BITS = (8, 7, 6)
#: What fewer bits may cost of the agreement that chooses.
_ALLOWED = 0.003
_GROUP = 64


@dataclass(frozen=True)
class Variant:
    """A way to train: what of, how fast, and how much the order of good and bad counts beside the good alone."""

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
#: The development set that is nearest to what is learned: held-out translations.
_CHOOSES = "translation"


class Run:
    """A model on the device with its tokenizer."""

    def __init__(self, weights: Arrays, tokenizer: Any, template: str = "{text}") -> None:
        self.model, self.tokenizer, self.template = as_t5(weights).to(_DEVICE), tokenizer, template

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        encoded = self.tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [[*one.ids[: _ROOM - 1], 1] for one in encoded]

    def logprobs(self, conditions: list[list[int]], targets: list[list[int]]) -> torch.Tensor:
        """The mean log-probability of each target's tokens."""
        fed, mask = _padded(conditions)
        labels, counted = _padded(targets)
        shifted = torch.cat([labels.new_zeros(len(labels), 1), labels[:, :-1]], 1)
        logits = self.model(input_ids=fed, attention_mask=mask, decoder_input_ids=shifted).logits.float()
        chosen = logits.gather(2, labels[..., None])[..., 0] - logits.logsumexp(2)
        return (chosen * counted).sum(1) / counted.sum(1)

    @torch.no_grad()
    def likelihood(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        self.model.eval()
        distinct = list(dict.fromkeys(pairs))
        conditions = self.ids([self.template.replace("{text}", condition) for condition, _ in distinct])
        targets = self.ids([target for _, target in distinct])
        found: dict[tuple[str, str], float] = {}
        order = sorted(range(len(distinct)), key=lambda n: len(conditions[n]) + len(targets[n]))
        for batch in _by_tokens(order, [len(conditions[n]) + len(targets[n]) for n in order], 32768):
            values = self.logprobs([conditions[n] for n in batch], [targets[n] for n in batch])
            found |= {distinct[n]: float(value) for n, value in zip(batch, values, strict=True)}
        return [found[pair] for pair in pairs]


def _padded(rows: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(map(len, rows))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    return ids.to(_DEVICE), mask.to(_DEVICE)


def _by_tokens(order: list[int], sizes: list[int], budget: int) -> Iterator[list[int]]:
    batch: list[int] = []
    for n, size in zip(order, sizes, strict=True):
        if batch and (len(batch) + 1) * size > budget:
            yield batch
            batch = []
        batch.append(n)
    if batch:
        yield batch


def train(run: Run, variant: Variant, carried: Path, deadline: float) -> None:
    """One pass over shuffled pairs, the rate falling to nothing; stops early at the deadline."""
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


def measured(name: str, likelihood: Likelihood, sets: dict[str, Any]) -> dict[str, float]:
    """Prints one line a model; the mean of each set's figures."""
    means = {one: float(np.nanmean(list(of(likelihood).values()))) for one, of in sets.items()}
    mean = float(np.mean(list(means.values())))
    print(f"{name:32} {mean:.4f}  " + "  ".join(f"{one} {value:.4f}" for one, value in means.items()), flush=True)
    return means


def weights_of(run: Run) -> Arrays:
    """The model's weights under their names, each once."""
    state = run.model.state_dict()
    return {n: v.float().cpu().numpy() for n, v in state.items() if not n.endswith("embed_tokens.weight")}


def rounded(weights: Arrays, bits: int) -> Arrays:
    """The weights as they are after being kept in so many bits."""
    from metrist.models.numpy_inference.storage import dequantize, quantize

    rounded = dict(weights)
    for name, array in weights.items():
        if array.ndim == 2 and "relative_attention_bias" not in name:
            rounded[name] = dequantize(*quantize(array, bits, _GROUP))
    return rounded


def deliver(weights: Arrays, tokenizer: Any, out: Path, bits: int) -> None:
    """The folder in metrist's own form, its weights in parts."""
    from metrist.models.numpy_inference.export import export_t5

    work = Path(tempfile.mkdtemp())
    tokenizer.save(str(work / "pieces.json"))
    folder = save(weights, work / "pieces.json", work / "transformers")
    made = export_t5(folder, work / "plain", lambda n: None if "relative_attention_bias" in n else (bits, _GROUP))
    data = (made / "weights.safetensors").read_bytes()
    for number, first in enumerate(range(0, len(data), _PART)):
        (out / f"weights.part{number}").write_bytes(data[first : first + _PART])
    for name in ("config.json", "tokenizer.json"):
        (out / name).write_bytes((made / name).read_bytes())


class Comparison:
    """The carried folder, the time that is left, and the best that was found so far."""

    def __init__(self, asked: argparse.Namespace) -> None:
        # The data's folder is read when the module is first imported.
        os.environ["METRIST_TEST_DATA"] = str(asked.carried / "data")
        import agreement
        from rebuild import read_tokenizer

        self.development, self.judged = agreement.DEVELOPMENT, agreement.SETS
        self.asked, self.end = asked, time.monotonic() + 60 * asked.minutes
        self.base, self.tokenizer = unpack(asked.carried / "base.npz"), read_tokenizer(asked.carried / "tokenizer.json")
        self.order = json.loads((asked.carried / "order.json").read_text())
        self.best, self.name, self.chosen = -1.0, "", self.base

    def pruned(self, size: int) -> tuple[Any, Arrays]:
        """Tokenizer and weights with so many pieces."""
        from prune import kept_of, pruned_tokenizer, pruned_weights

        kept = kept_of(self.tokenizer, self.order, size)
        return pruned_tokenizer(self.tokenizer, kept), pruned_weights(self.base, kept)

    def without_training(self) -> None:
        """What instructions and smaller vocabularies do to the wheel's model."""
        sets = {**self.development, "SUMMEVAL": self.judged["summeval"], "NER18": self.judged["ner18"]}
        for template in TEMPLATES:
            measured(f"base, {template!r}", Run(self.base, self.tokenizer, template).likelihood, sets)
        for size in (24000, 20000, 16000):
            pieces, weights = self.pruned(size)
            measured(f"base, {size} pieces", Run(weights, pieces).likelihood, sets)

    def try_out(self, variant: Variant, pieces: Any, start: Arrays) -> None:
        """A variant trained, and kept if it is the best so far."""
        run = Run(start, pieces)
        train(run, variant, self.asked.carried, self.end - _RESERVE)
        self.judge(variant.name, weights_of(run), pieces)

    def judge(self, name: str, weights: Arrays, pieces: Any) -> None:
        """Agreement on all sets; the development set alone decides."""
        run = Run(weights, pieces)
        found = measured(name, run.likelihood, self.development)[_CHOOSES]
        measured(f"{name}: JUDGED", run.likelihood, self.judged)
        if found > self.best:
            self.best, self.name, self.chosen = found, name, weights

    def run(self) -> None:
        """Everything asked for, as long as there is time; the best is written in any case."""
        if self.asked.survey:
            self.without_training()
        pieces, start = self.pruned(self.asked.vocabulary)
        self.judge("start", start, pieces)
        for variant in VARIANTS:
            left = self.end - _RESERVE - time.monotonic()
            if variant.name in (self.asked.only or [variant.name]) and left > 0:
                print(f"{left:.0f} s left, next: {variant}", flush=True)
                self.try_out(variant, pieces, start)
        print(f"chosen by {_CHOOSES}: {self.name} ({self.best:.4f})", flush=True)
        sets = {
            _CHOOSES: self.development[_CHOOSES],
            "SUMMEVAL": self.judged["summeval"],
            "NER18": self.judged["ner18"],
        }
        enough = BITS[0]
        for bits in BITS:
            found = measured(f"chosen, {bits} bits", Run(rounded(self.chosen, bits), pieces).likelihood, sets)
            if found[_CHOOSES] < self.best - _ALLOWED:
                break
            enough = bits
        print(f"written in {enough} bits", flush=True)
        deliver(self.chosen, pieces, self.asked.out, enough)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("carried", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--vocabulary", type=int, default=20000)
    parser.add_argument("--only", nargs="*", help="variants by name; all where none is named")
    parser.add_argument("--survey", action="store_true", help="templates and vocabularies without training, too")
    Comparison(parser.parse_args()).run()


if __name__ == "__main__":
    main()
