"""Train one English encoder with four heads: support, preference, fluency and tags.

    python english_train.py BASE.pt KIND DATA OUT.pt --rate 2e-4 --seconds 600

KIND is `gte` or `nomic`, BASE.pt comes from `english_model.py` or an earlier training. DATA is a folder with
support.json (`english_support.py`), pairs.json (`english_pairs.py`), fluency.json (`fluency_data.py`) and BERT's
uncased tokenizer.json. Every step reads rows of all tasks, in the shares of --tasks. The learning rate falls to 0 with
the tokens of --tokens or the seconds, whichever run out first. From --round-from of the training on, weights and rows
are rounded as in the exported model with --bits. Weights are saved before the last report. The rewards of the pairs'
`choice` rows, with which trainings are compared, are written beside OUT.pt.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from english_model import HEADS, SHAPES, Bits, Encoder, Packed, load_encoder, mean_spans, prefetch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

Ids = NDArray[np.uint16]
_CLS, _SEP = np.array([101], np.uint16), np.array([102], np.uint16)
_NOTHING = np.array([], np.uint16)
#: Tokens from this one on are words that tell texts apart; the ones before are marks, letters and small words.
_RARE = 2_100
_MAX_SENTENCE, _MAX_ANSWER, _MAX_INSTRUCTION, _MAX_TEXT = 120, 300, 60, 250
_WARMUP_STEPS = 150
#: Tokens with an error weigh more: they are about one in ten.
_ERROR_WEIGHT = 3.0
_TAGS_WEIGHT = 0.5


class Row(NamedTuple):
    """The tokens of a row, and how many of them are its first part."""

    ids: Ids
    first: int


class Example(NamedTuple):
    """Rows of tokens, and what a task learns from them."""

    rows: tuple[Row, ...]
    target: Any
    name: str

    @property
    def tokens(self) -> int:
        return sum(len(row.ids) for row in self.rows)


class Batch(NamedTuple):
    """Packed rows with spans of them and what is learned from the spans: a logit is the head's output on one span, or
    its lead over the output on another one."""

    rows: Packed
    #: The tokens of all spans, the span of each, and the length and the head of each span.
    span_tokens: Tensor
    span_of_token: Tensor
    span_lengths: Tensor
    span_heads: Tensor
    #: For each logit its span, the one that it leads (-1: none), its label, its weight and its kind.
    better: Tensor
    worse: Tensor
    labels: Tensor
    weights: Tensor
    kinds: Tensor
    names: list[str]
    tokens: int


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
            result += [np.array(encoding.ids, np.uint16) for encoding in part]
        return result

    # ---- Support: `[CLS] sentences [SEP] window of the source [SEP]`

    def read_support(self) -> tuple[list[Example], list[Example]]:
        stored = self.load("support.json")
        used = sorted({row[0] for part in ("train", "dev") for row in stored[part]})
        passages = dict(zip(used, self.encode([stored["passages"][number] for number in used]), strict=True))
        train, dev = (self._support_examples(stored[part], passages) for part in ("train", "dev"))
        return train, dev

    def _support_examples(self, rows: Sequence[Any], passages: dict[int, Ids]) -> list[Example]:
        sentences = iter(self.encode([text for _, texts, _ in rows for text, *_ in texts]))
        examples = []
        for passage, texts, name in rows:
            parts, size, spans = [_CLS], 1, []
            for _, label, weight, *_ in texts:
                tokens = next(sentences)[:_MAX_SENTENCE]
                if len(tokens) and (not spans or size + len(tokens) <= self.length // 2):
                    spans.append((size, size + len(tokens), label, weight))
                    parts.append(tokens)
                    size += len(tokens)
            if spans:
                ids = np.concatenate((*parts, _SEP))
                window = choose_window(passages[passage], ids, self.length - len(ids) - 1)
                examples.append(Example((Row(np.concatenate((ids, window, _SEP)), len(ids)),), spans, name))
        return examples

    # ---- Preference: `[CLS] instruction [SEP] field [SEP] … answer [SEP]`, as `metrist.models.reward_layout` builds it

    def read_pairs(self) -> tuple[list[Example], list[Example]]:
        stored = self.load("pairs.json")
        ids = self.encode(stored["texts"])
        train, dev = ([self._pair(row, ids) for row in stored[part]] for part in ("train", "dev"))
        return train, dev

    def _pair(self, row: Sequence[Any], ids: Sequence[Ids]) -> Example:
        kind, instruction, context, good, bad, certainty, weight = row
        fields = [ids[text] for _, text in context]
        rows = tuple(self.lay_out(ids[instruction], fields, ids[text]) for text in (good, bad))
        return Example(rows, (certainty, weight), kind)

    def read_choice(self) -> list[Example]:
        """Return the rows with which trainings are compared: a set, a group, an instruction, fields, an output and its
        value."""
        stored = self.load("pairs.json")
        ids = self.encode(stored["texts"])
        return [
            Example((self.lay_out(ids[instruction], [ids[text] for _, text in context], ids[output]),), value, name)
            for name, _, instruction, context, output, value in stored.get("choice", [])
        ]

    def lay_out(self, instruction: Ids, fields: Sequence[Ids], answer: Ids) -> Row:
        """Return a row whose first part ends where its answer begins; a long context loses its middle."""
        answer = answer[:_MAX_ANSWER]
        before = [_CLS, instruction[:_MAX_INSTRUCTION], _SEP]
        context = np.concatenate([_NOTHING, *(part for field in fields for part in (field, _SEP))])
        room = self.length - sum(map(len, before)) - len(answer) - 1
        if len(context) > room:
            context = np.concatenate((context[: room // 2], context[room // 2 - room :]))
        row = np.concatenate((*before, context, answer, _SEP))
        return Row(row, len(row) - len(answer) - 1)

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
            ids = np.array(encoding.ids, np.uint16)
            examples.append(Example((_frame(ids),), ("tags", labels, 1.0), name))
        return [example for example in examples if all(len(row.ids) > 2 for row in example.rows)]


def _frame(ids: Ids) -> Row:
    row = np.concatenate((_CLS, ids[:_MAX_TEXT], _SEP))
    return Row(row, len(row))


def _overlaps(place: tuple[int, int], span: Sequence[int]) -> bool:
    """Whether a token overlaps a span; an empty span marks the token that it touches."""
    start, end = span
    return (start < place[1] and place[0] < end) or (start == end and place[0] <= start <= place[1])


def choose_window(passage: Ids, sentence: Ids, room: int) -> Ids:
    """Return the window of a passage that has most of the sentence's rarer tokens."""
    if len(passage) <= room:
        return passage
    hits = np.isin(passage, sentence) & (passage > _RARE)
    sums = np.concatenate(([0], np.cumsum(hits)))
    starts = np.arange(0, len(passage) - room + 1, 16)
    best = int(starts[int(np.argmax(sums[starts + room] - sums[starts]))])
    return passage[best : best + room]


# ---- Batches

KINDS = ("support", "preference", "text", "pair", "tags")


class BatchBuilder:
    """Packs the rows of examples. A task's method says which spans they have and what is learned from them."""

    def __init__(self, *, typed: bool) -> None:
        self._typed = typed
        self._rows: list[Ids] = []
        self._firsts: list[int] = []
        self._size = 0
        self._spans: list[tuple[int, int, int]] = []
        self._logits: list[tuple[int, int, float, float, int]] = []
        self._names: list[str] = []

    def _add_row(self, row: Row, *, two_parts: bool = False) -> int:
        """Add a row, return where it starts."""
        self._rows.append(row.ids)
        self._firsts.append(row.first if two_parts and self._typed else len(row.ids))
        self._size += len(row.ids)
        return self._size - len(row.ids)

    def _add_span(self, start: int, end: int, head: str) -> int:
        self._spans.append((start, end, HEADS.index(head)))
        return len(self._spans) - 1

    def _add_logit(self, kind: str, name: str, better: int, label: float, weight: float, worse: int = -1) -> None:
        self._logits.append((better, worse, label, weight, KINDS.index(kind)))
        self._names.append(name)

    def add_support(self, example: Example) -> None:
        at = self._add_row(example.rows[0], two_parts=True)
        for start, end, label, weight in example.target:
            self._add_logit("support", example.name, self._add_span(at + start, at + end, "support"), label, weight)

    def add_preference(self, example: Example) -> None:
        good, bad = (self._add_answer(row) for row in example.rows)
        certainty, weight = example.target
        self._add_logit("preference", example.name, good, certainty, weight, bad)

    def add_choice(self, example: Example) -> None:
        self._add_logit("preference", example.name, self._add_answer(example.rows[0]), example.target, 1.0)

    def _add_answer(self, row: Row) -> int:
        at = self._add_row(row)
        return self._add_span(at + row.first, at + len(row.ids), "preference")

    def add_fluency(self, example: Example) -> None:
        kind, label, weight = example.target
        name = f"{kind} {example.name}"
        starts = [self._add_row(row) for row in example.rows]
        if kind == "tags":
            for token, is_error in enumerate(label):
                span = self._add_span(starts[0] + 1 + token, starts[0] + 2 + token, "tags")
                self._add_logit(kind, name, span, is_error, _ERROR_WEIGHT if is_error else 1.0)
            return
        spans = [
            self._add_span(start + 1, start + len(row.ids) - 1, "fluency")
            for start, row in zip(starts, example.rows, strict=True)
        ]
        self._add_logit(kind, name, spans[0], label, weight, spans[1] if kind == "pair" else -1)

    def build(self) -> Batch:
        lengths = np.array([len(row) for row in self._rows])
        starts = np.concatenate(([0], np.cumsum(lengths)))
        places = np.arange(self._size) - np.repeat(starts[:-1], lengths)
        types = places >= np.repeat(self._firsts, lengths)
        rows = Packed(
            torch.from_numpy(np.concatenate(self._rows).astype(np.int64)),
            torch.from_numpy(types.astype(np.int64)),
            torch.from_numpy(places),
            torch.from_numpy(starts.astype(np.int32)),
            int(lengths.max()),
        )
        span_starts, span_ends, heads = (np.array(column) for column in zip(*self._spans, strict=True))
        counts = span_ends - span_starts
        offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        better, worse, labels, weights, kinds = zip(*self._logits, strict=True)
        return Batch(
            rows,
            torch.from_numpy(np.repeat(span_starts, counts) + offsets),
            torch.from_numpy(np.repeat(np.arange(len(counts)), counts)),
            torch.from_numpy(counts.astype(np.float32)),
            torch.from_numpy(heads),
            torch.tensor(better),
            torch.tensor(worse),
            torch.tensor(labels, dtype=torch.float32),
            torch.tensor(weights, dtype=torch.float32),
            torch.tensor(kinds),
            self._names,
            self._size,
        )


def to_device(batch: Batch, device: str) -> Batch:
    """Copy a batch without waiting for it."""
    if device == "cpu":
        return batch

    def move(value: Any) -> Any:
        return value.pin_memory().to(device, non_blocking=True) if isinstance(value, Tensor) else value

    return Batch(Packed(*map(move, batch.rows)), *map(move, batch[1:]))


def draw_batches(
    data: dict[str, Sequence[Example]], shares: dict[str, float], tokens: int, *, typed: bool, seed: int
) -> Iterator[Batch]:
    """Yield batches of about so many tokens, each with examples of all tasks, without end."""

    def draw(task: str, rng: random.Random) -> Iterator[Example]:
        order = list(data[task])
        while True:
            rng.shuffle(order)
            yield from order

    streams = {task: draw(task, random.Random(f"{seed} {task}")) for task in shares}
    total = sum(shares.values())
    # A long example makes its task's next batch smaller, so that the shares hold over time.
    excess = dict.fromkeys(shares, 0.0)
    while True:
        builder = BatchBuilder(typed=typed)
        for task, share in shares.items():
            room = tokens * share / total - excess[task]
            while room > 0:
                example = next(streams[task])
                getattr(builder, f"add_{task}")(example)
                room -= example.tokens
            excess[task] = -room
        yield builder.build()


# ---- Training


def compute_logits(model: Encoder, batch: Batch, device: str) -> Tensor:
    with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
        states = model(batch.rows)
    means = mean_spans(states, batch.span_tokens, batch.span_of_token, batch.span_lengths)
    matrix = torch.cat([model.heads[name].weight for name in HEADS])
    bias = torch.cat([model.heads[name].bias for name in HEADS])
    outputs = (means * matrix[batch.span_heads]).sum(1) + bias[batch.span_heads]
    return outputs[batch.better] - torch.where(batch.worse >= 0, outputs[batch.worse], 0.0)


def compute_losses(logits: Tensor, batch: Batch) -> Tensor:
    """Return the mean loss of each kind."""
    each = binary_cross_entropy_with_logits(logits, batch.labels, reduction="none") * batch.weights
    sums = torch.zeros(2, len(KINDS), device=logits.device)
    sums = sums.index_add(1, batch.kinds, torch.stack((each, batch.weights)))
    return sums[0] / sums[1].clamp_min(1e-6)


def area(scores: NDArray[np.float64], labels: NDArray[np.float64]) -> float:
    """Return the area under the ROC curve; NaN if all labels are on one side."""
    from scipy.stats import rankdata

    positive = labels > 0.5
    count, rest = int(positive.sum()), int((~positive).sum())
    if not count or not rest:
        return float("nan")
    return float((rankdata(scores)[positive].sum() - count * (count + 1) / 2) / (count * rest))


@torch.no_grad()
def score(
    model: Encoder, examples: Sequence[Example], task: str, device: str
) -> Iterator[tuple[str, str, float, float]]:
    """Yield the name, the kind, the logit and the label of everything that the examples hold, in their order."""
    typed = model.shape.kind == "bert"
    start = 0
    while start < len(examples):
        builder, size = BatchBuilder(typed=typed), 0
        while start < len(examples) and size < 65_536:
            getattr(builder, f"add_{task}")(examples[start])
            size += examples[start].tokens
            start += 1
        batch = to_device(builder.build(), device)
        logits = compute_logits(model, batch, device)
        kinds = [KINDS[kind] for kind in batch.kinds.tolist()]
        yield from zip(batch.names, kinds, logits.tolist(), batch.labels.tolist(), strict=True)


def report(model: Encoder, examples: Sequence[Example], task: str, device: str) -> None:
    """Print the accuracy on pairs, and the area under the curve elsewhere, by data set."""
    columns: dict[str, list[tuple[float, float]]] = defaultdict(list)
    is_pair = set()
    for name, kind, logit, label in score(model, examples, task, device):
        columns[name].append((logit, label))
        if kind in ("pair", "preference"):
            is_pair.add(name)
    figures = {}
    for name, pairs in sorted(columns.items()):
        logits, labels = (np.array(column) for column in zip(*pairs, strict=True))
        figures[name] = float((logits > 0).mean()) if name in is_pair else area(logits, labels)
    every = [pair for name, pairs in columns.items() if name not in is_pair for pair in pairs]
    total = area(*(np.array(column) for column in zip(*every, strict=True))) if every else float("nan")
    print(task, f"all {total:.4f}", {name: round(figure, 3) for name, figure in figures.items()}, flush=True)


def train(arguments: argparse.Namespace) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(arguments.seed)
    begin = time.time()
    reader = Reader(arguments.data, arguments.length)
    model = load_encoder(SHAPES[arguments.kind], arguments.base, arguments.layers).to(device)
    read = {"support": reader.read_support, "preference": reader.read_pairs, "fluency": reader.read_fluency}
    shares = {name: float(share) for name, share in (part.split(":") for part in arguments.tasks.split(","))}
    data = {name: read[name]() for name in shares}
    for name, (examples, dev) in data.items():
        tokens = sum(example.tokens for example in examples)
        print(f"{name}: {len(examples):,} examples, {tokens / 1e6:.1f} M tokens, {len(dev):,} held out", flush=True)
    print(f"read in {time.time() - begin:.0f} s", flush=True)
    # Word vectors of rare words are seen too seldom to be pulled to 0.
    decayed = [array for name, array in model.named_parameters() if array.ndim > 1 and not name.startswith("words")]
    rest = [array for name, array in model.named_parameters() if array.ndim <= 1 or name.startswith("words")]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=arguments.rate, betas=(0.9, 0.98), fused=device == "cuda")
    task_of_kind = {"support": "support", "preference": "preference"}
    weights = torch.tensor([shares.get(task_of_kind.get(kind, "fluency"), 0.0) for kind in KINDS], device=device)
    weights[KINDS.index("tags")] *= _TAGS_WEIGHT
    typed = model.shape.kind == "bert"
    examples_by_task = {name: train for name, (train, _) in data.items()}
    stream = draw_batches(examples_by_task, shares, arguments.batch, typed=typed, seed=arguments.seed)
    batches = prefetch(to_device(batch, device) for batch in stream)
    start, tokens, step, skipped, rounds = time.time(), 0, 0, 0, False
    losses: list[Tensor] = []
    model.train()
    while (share := max(tokens / (arguments.tokens * 1e6), (time.time() - start) / arguments.seconds)) < 1:
        if share >= arguments.round_from and not rounds:
            model.start_rounding(Bits(matrices=arguments.bits, words=arguments.word_bits))
            rounds = True
        for group in optimizer.param_groups:
            group["lr"] = arguments.rate * min(1.0, (step + 1) / _WARMUP_STEPS) * (1 - share)
        batch = next(batches)
        by_kind = compute_losses(compute_logits(model, batch, device), batch)
        (by_kind * weights).sum().backward()
        if torch.isfinite(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)):
            optimizer.step()
        else:
            skipped += 1
        optimizer.zero_grad(set_to_none=True)
        losses.append(by_kind.detach())
        tokens += batch.tokens
        step += 1
        if step % 100 == 0:
            means = torch.stack(losses).mean(0).tolist()
            losses.clear()
            figures = {kind: round(mean, 4) for kind, mean in zip(KINDS, means, strict=True)}
            elapsed = time.time() - start
            print(f"{step} {figures} {share:.2f}, {tokens / 1e6:.1f} M tokens, {elapsed:.0f} s", flush=True)
    torch.save(model.collect_state(), arguments.out)
    print(f"saved after {step} steps, {tokens / 1e6:.1f} M tokens; {skipped} steps skipped", flush=True)
    model.eval()
    if "preference" in shares:
        rewards = [logit for _, _, logit, _ in score(model, reader.read_choice(), "choice", device)]
        arguments.out.with_suffix(".choice.json").write_text(json.dumps(rewards), encoding="utf-8")
    for task, (_, dev) in data.items():
        report(model, dev, task, device)


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
    parser.add_argument("--bits", type=int, default=7, help="of the matrices that will be exported")
    parser.add_argument("--word-bits", type=int, default=6)
    parser.add_argument("--round-from", type=float, default=0.6, help="share of the training")
    return parser.parse_args()


if __name__ == "__main__":
    train(parse_arguments())
