"""Train one English encoder with four heads: support, preference, fluency and tags.

    python english_train.py BASE.pt KIND DATA OUT.pt --rate 2e-4 --seconds 600

KIND is `gte` or `nomic`, BASE.pt comes from `english_model.py` or an earlier training. DATA is a folder with
support.json (`english_support.py`), pairs.json (`english_pairs.py`), fluency.json (`fluency_data.py`) and BERT's
uncased tokenizer.json. Batches of the tasks are drawn in the shares of --tasks. The learning rate falls to 0 with the
tokens of --tokens or the seconds, whichever run out first. Weights are saved before the last report.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from english_model import SHAPES, Encoder, Span, load_encoder, mean_spans
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

Ids = list[int]
CLS, SEP = 101, 102
#: Tokens from this one on are words that tell texts apart; the ones before are marks, letters and small words.
_RARE = 2_100
_MAX_SENTENCE, _MAX_ANSWER, _MAX_INSTRUCTION, _MAX_TEXT = 120, 300, 60, 250
_WARMUP_STEPS = 150
#: Tokens with an error weigh more: they are about one in ten.
_ERROR_WEIGHT = 3.0
_TAGS_WEIGHT = 0.5


class Example(NamedTuple):
    """Rows of tokens with the length of their first part (all of it: one part), and what a task learns from them."""

    rows: tuple[tuple[Ids, int], ...]
    target: Any
    name: str

    @property
    def longest(self) -> int:
        return max(len(ids) for ids, _ in self.rows)


class Outputs(NamedTuple):
    """Logits of one kind with their labels, weights and the names of their data sets."""

    kind: str
    logits: Tensor
    labels: Tensor
    weights: Tensor
    names: list[str]


class Reader:
    """Tokenizes texts, and builds the examples of all tasks."""

    def __init__(self, data: Path, length: int) -> None:
        from tokenizers import Tokenizer

        self.tokenizer = Tokenizer.from_file(str(data / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()
        self.data, self.length = data, length

    def load(self, name: str) -> Any:
        return json.loads((self.data / name).read_text(encoding="utf-8"))

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        result: list[Ids] = []
        for start in range(0, len(texts), 20_000):
            part = self.tokenizer.encode_batch(list(texts[start : start + 20_000]), add_special_tokens=False)
            result += [encoding.ids for encoding in part]
        return result

    # ---- Support: `[CLS] sentences [SEP] window of the source [SEP]`

    def read_support(self) -> tuple[list[Example], list[Example]]:
        stored = self.load("support.json")
        used = sorted({row[0] for part in ("train", "dev") for row in stored[part]})
        passages = dict(zip(used, self.encode([stored["passages"][number] for number in used]), strict=True))
        train, dev = (self._support_examples(stored[part], passages) for part in ("train", "dev"))
        return train, dev

    def _support_examples(self, rows: Sequence[Any], passages: dict[int, Ids]) -> list[Example]:
        sentences = iter(self.encode([text for _, texts, _ in rows for text, _, _ in texts]))
        examples = []
        for passage, texts, name in rows:
            ids, spans = [CLS], []
            for _, label, weight in texts:
                tokens = next(sentences)[:_MAX_SENTENCE]
                if tokens and (not spans or len(ids) + len(tokens) <= self.length // 2):
                    spans.append((len(ids), len(ids) + len(tokens), label, weight))
                    ids += tokens
            if spans:
                ids.append(SEP)
                window = choose_window(passages[passage], ids, self.length - len(ids) - 1)
                examples.append(Example((([*ids, *window, SEP], len(ids)),), spans, name))
        return examples

    # ---- Preference: `[CLS] instruction [SEP] field [SEP] … answer [SEP]`, as `metrist.models.reward_layout` builds it

    def read_pairs(self) -> tuple[list[Example], list[Example]]:
        stored = self.load("pairs.json")
        ids = self.encode(stored["texts"])
        train, dev = ([self._pair(row, ids) for row in stored[part]] for part in ("train", "dev"))
        return train, dev

    def _pair(self, row: Sequence[Any], ids: Sequence[Ids]) -> Example:
        kind, instruction, context, good, bad, certainty, weight = row
        rows = tuple(
            self.lay_out(ids[instruction], [ids[text] for _, text in context], ids[text]) for text in (good, bad)
        )
        return Example(rows, (certainty, weight), kind)

    def lay_out(self, instruction: Ids, fields: Sequence[Ids], answer: Ids) -> tuple[Ids, int]:
        """Return a row and where its answer begins; a long context loses its middle."""
        answer = answer[:_MAX_ANSWER]
        before = [CLS, *instruction[:_MAX_INSTRUCTION], SEP]
        context = [token for field in fields for token in (*field, SEP)]
        room = self.length - len(before) - len(answer) - 1
        if len(context) > room:
            context = [*context[: room // 2], *context[room // 2 - room :]]
        return [*before, *context, *answer, SEP], len(before) + len(context)

    # ---- Fluency: `[CLS] text [SEP]`

    def read_fluency(self) -> tuple[list[Example], list[Example]]:
        stored = self.load("fluency.json")
        train, dev = (self._fluency_examples(stored[part]) for part in ("train", "dev"))
        return train, dev

    def _fluency_examples(self, stored: dict[str, Any]) -> list[Example]:
        texts, pairs, tags = stored["texts"], stored["pairs"], stored["tags"]
        examples = [
            Example((_frame(ids),), ("text", label, weight), name)
            for ids, (_, label, weight, name) in zip(self.encode([row[0] for row in texts]), texts, strict=True)
        ]
        better, worse = (self.encode([row[side] for row in pairs]) for side in (0, 1))
        examples += [
            Example((_frame(first), _frame(second)), ("pair", 1.0, 1.0), row[2])
            for first, second, row in zip(better, worse, pairs, strict=True)
        ]
        for encoding, (_, spans, name) in zip(
            self.tokenizer.encode_batch([row[0] for row in tags], add_special_tokens=False), tags, strict=True
        ):
            labels = [float(any(_overlaps(place, span) for span in spans)) for place in encoding.offsets[:_MAX_TEXT]]
            examples.append(Example((_frame(encoding.ids),), ("tags", labels, 1.0), name))
        return [example for example in examples if all(len(ids) > 2 for ids, _ in example.rows)]


def _frame(ids: Ids) -> tuple[Ids, int]:
    row = [CLS, *ids[:_MAX_TEXT], SEP]
    return row, len(row)


def _overlaps(place: tuple[int, int], span: Sequence[int]) -> bool:
    """Whether a token overlaps a span; an empty span marks the token that it touches."""
    start, end = span
    return (start < place[1] and place[0] < end) or (start == end and place[0] <= start <= place[1])


def choose_window(passage: Ids, sentence: Ids, room: int) -> Ids:
    """Return the window of a passage that has most of the sentence's rarer tokens."""
    if len(passage) <= room:
        return passage
    tokens = np.array(passage)
    hits = np.isin(tokens, np.array(sorted(set(sentence)))) & (tokens > _RARE)
    sums = np.concatenate(([0], np.cumsum(hits)))
    starts = np.arange(0, len(tokens) - room + 1, 16)
    best = int(starts[int(np.argmax(sums[starts + room] - sums[starts]))])
    return passage[best : best + room]


# ---- Training


class Trainer:
    """Computes the outputs of each task's examples."""

    def __init__(self, model: Encoder, device: str) -> None:
        self.model, self.device = model.to(device), device

    def encode(self, rows: Sequence[tuple[Ids, int]], parts: Sequence[int]) -> Tensor:
        """Return the states of rows; `parts` is where the second part of each begins."""
        shape = len(rows), max(len(ids) for ids, _ in rows)
        ids, mask, types = (np.zeros(shape, np.int64) for _ in range(3))
        for at, ((tokens, _), part) in enumerate(zip(rows, parts, strict=True)):
            ids[at, : len(tokens)], mask[at, : len(tokens)] = tokens, 1
            if self.model.shape.kind == "bert":
                types[at, part : len(tokens)] = 1
        with torch.autocast(self.device, dtype=torch.bfloat16, enabled=self.device == "cuda"):
            states: Tensor = self.model(*(torch.from_numpy(array).to(self.device) for array in (ids, mask, types)))
        return states

    def apply(self, head: str, states: Tensor, spans: Sequence[Span]) -> Tensor:
        logits: Tensor = self.model.heads[head](mean_spans(states, spans))[:, 0].float()
        return logits

    def numbers(self, values: Sequence[float]) -> Tensor:
        return torch.tensor(values, device=self.device, dtype=torch.float32)

    def support(self, examples: Sequence[Example]) -> Iterator[Outputs]:
        rows = [example.rows[0] for example in examples]
        states = self.encode(rows, [first for _, first in rows])
        spans = [(at, *span[:2]) for at, example in enumerate(examples) for span in example.target]
        labels, weights = zip(*(span[2:] for example in examples for span in example.target), strict=True)
        names = [example.name for example in examples for _ in example.target]
        yield Outputs(
            "support", self.apply("support", states, spans), self.numbers(labels), self.numbers(weights), names
        )

    def preference(self, examples: Sequence[Example]) -> Iterator[Outputs]:
        rewards = self.rewards([row for example in examples for row in example.rows])
        certainty, weights = zip(*(example.target for example in examples), strict=True)
        names = [example.name for example in examples]
        leads = rewards[0::2] - rewards[1::2]
        yield Outputs("preference", leads, self.numbers(certainty), self.numbers(weights), names)

    def rewards(self, rows: Sequence[tuple[Ids, int]]) -> Tensor:
        states = self.encode(rows, [len(ids) for ids, _ in rows])
        return self.apply("preference", states, [(at, start, len(ids)) for at, (ids, start) in enumerate(rows)])

    def fluency(self, examples: Sequence[Example]) -> Iterator[Outputs]:
        rows = [row for example in examples for row in example.rows]
        states = self.encode(rows, [len(ids) for ids, _ in rows])
        kinds: dict[str, list[tuple[int, Example]]] = defaultdict(list)
        at = 0
        for example in examples:
            kinds[example.target[0]].append((at, example))
            at += len(example.rows)
        spans = [(row, 1, len(ids) - 1) for row, (ids, _) in enumerate(rows)]
        for kind, members in kinds.items():
            names = [f"{kind} {example.name}" for _, example in members]
            if kind == "tags":
                places = [(row, 1 + token, 2 + token) for row, item in members for token in range(len(item.target[1]))]
                labels = [label for _, example in members for label in example.target[1]]
                weights = [_ERROR_WEIGHT if label else 1.0 for label in labels]
                names = [name for name, (_, item) in zip(names, members, strict=True) for _ in item.target[1]]
                logits = self.apply("tags", states, places)
            else:
                labels, weights = ([example.target[part] for _, example in members] for part in (1, 2))
                logits = self.apply("fluency", states, [spans[row] for row, _ in members])
                if kind == "pair":
                    logits = logits - self.apply("fluency", states, [spans[row + 1] for row, _ in members])
            yield Outputs(kind, logits, self.numbers(labels), self.numbers(weights), names)


def batches(examples: Sequence[Example], tokens: int, rng: random.Random | None) -> list[list[Example]]:
    """Return batches of similar length, of at most `tokens` tokens with padding; in random order if `rng` is given."""
    order = list(examples)
    if rng:
        rng.shuffle(order)
    result: list[list[Example]] = []
    for start in range(0, len(order), 4096):
        batch: list[Example] = []
        rows = 0
        for example in sorted(order[start : start + 4096], key=lambda example: example.longest):
            if batch and (rows + len(example.rows)) * example.longest > tokens:
                result.append(batch)
                batch, rows = [], 0
            batch.append(example)
            rows += len(example.rows)
        result.append(batch)
    if rng:
        rng.shuffle(result)
    return result


def area(scores: NDArray[np.float64], labels: NDArray[np.float64]) -> float:
    """Return the area under the ROC curve; NaN if all labels are on one side."""
    from scipy.stats import rankdata

    positive = labels > 0.5
    count, rest = int(positive.sum()), int((~positive).sum())
    if not count or not rest:
        return float("nan")
    return float((rankdata(scores)[positive].sum() - count * (count + 1) / 2) / (count * rest))


@torch.no_grad()
def report(label: str, compute: Callable[[Sequence[Example]], Iterator[Outputs]], dev: Sequence[Example]) -> None:
    """Print the accuracy on pairs, and the area under the curve elsewhere, by data set."""
    columns: dict[str, list[tuple[float, float]]] = defaultdict(list)
    is_pair = set()
    for batch in batches(dev, 98_304, None):
        for outputs in compute(batch):
            for name, logit, value in zip(outputs.names, outputs.logits.tolist(), outputs.labels.tolist(), strict=True):
                columns[name].append((logit, value))
                if outputs.kind in ("pair", "preference"):
                    is_pair.add(name)
    figures = {}
    for name, pairs in sorted(columns.items()):
        logits, labels = (np.array(column) for column in zip(*pairs, strict=True))
        figures[name] = float((logits > 0).mean()) if name in is_pair else area(logits, labels)
    every = [pair for name, pairs in columns.items() if name not in is_pair for pair in pairs]
    total = area(*(np.array(column) for column in zip(*every, strict=True))) if every else float("nan")
    print(label, f"all {total:.4f}", {name: round(figure, 3) for name, figure in figures.items()}, flush=True)


def train(arguments: argparse.Namespace) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(arguments.seed)
    rng = random.Random(arguments.seed)
    reader = Reader(arguments.data, arguments.length)
    trainer = Trainer(load_encoder(SHAPES[arguments.kind], arguments.base, arguments.layers), device)
    compute = {"support": trainer.support, "preference": trainer.preference, "fluency": trainer.fluency}
    read = {"support": reader.read_support, "preference": reader.read_pairs, "fluency": reader.read_fluency}
    shares = {name: float(share) for name, share in (part.split(":") for part in arguments.tasks.split(","))}
    data = {name: read[name]() for name in shares}
    model = trainer.model
    # Word vectors of rare words are seen too seldom to be pulled to 0.
    decayed = [array for name, array in model.named_parameters() if array.ndim > 1 and not name.startswith("words")]
    rest = [array for name, array in model.named_parameters() if array.ndim <= 1 or name.startswith("words")]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=arguments.rate, betas=(0.9, 0.98))

    def draw(task: str) -> Iterator[list[Example]]:
        while True:
            yield from batches(data[task][0], arguments.batch, rng)

    streams = {task: draw(task) for task in shares}
    start, tokens, step = time.time(), 0, 0
    losses: dict[str, list[float]] = defaultdict(list)
    model.train()
    while (share := max(tokens / (arguments.tokens * 1e6), (time.time() - start) / arguments.seconds)) < 1:
        for group in optimizer.param_groups:
            group["lr"] = arguments.rate * min(1.0, (step + 1) / _WARMUP_STEPS) * (1 - share)
        task = rng.choices(list(shares), list(shares.values()))[0]
        batch = next(streams[task])
        total = torch.zeros((), device=device)
        for outputs in compute[task](batch):
            each = binary_cross_entropy_with_logits(outputs.logits, outputs.labels, reduction="none")
            loss = (each * outputs.weights).sum() / outputs.weights.sum()
            losses[outputs.kind].append(loss.item())
            total = total + loss * (_TAGS_WEIGHT if outputs.kind == "tags" else 1.0)
        total.backward()
        if torch.isfinite(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)):
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        tokens += sum(len(ids) for example in batch for ids, _ in example.rows)
        step += 1
        if step % 200 == 0:
            means = {kind: round(float(np.mean(values[-100:])), 4) for kind, values in losses.items()}
            print(step, means, f"{share:.2f}, {tokens / 1e6:.1f} M tokens, {time.time() - start:.0f} s", flush=True)
    torch.save({name: array.half().cpu() for name, array in model.state_dict().items()}, arguments.out)
    print(f"saved after {step} steps, {tokens / 1e6:.1f} M tokens", flush=True)
    model.eval()
    for task, (_, dev) in data.items():
        report(task, compute[task], dev)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", type=Path)
    parser.add_argument("kind", choices=sorted(SHAPES))
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rate", type=float, default=2e-4)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--tokens", type=float, default=200, help="in millions")
    parser.add_argument("--tasks", default="support:.42,preference:.43,fluency:.15")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--batch", type=int, default=49_152, help="tokens of a step")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    train(parse_arguments())
