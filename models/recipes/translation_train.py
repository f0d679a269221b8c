"""Train translation_quality: predicted ratings, order among translations of one source, and error tags.

    python translation_train.py BASE GROUPS.json.xz OUT [--setting a] [--seconds 480]

BASE is written by translation_pieces.py, GROUPS by translation_data.py. OUT gets `NAME.pt` (half precision, without the
word pieces, which stay as they are), `NAME.json` (agreement on the sources that were held out) and `NAME.npz`
(numbers of each held-out output, for translation_export.py). `--mean A.pt B.pt` measures the mean of several trainings
instead.

A step reads whole groups: up to 20 translations of one source, each as `[CLS] output [SEP] reference [SEP] source
[SEP]` without the reference (half the time) or without the source (some of the time), and translations with a made
fault whose place is known. Segments that follow each other in a document are joined some of the time, so that the model
also sees paragraphs.
"""

from __future__ import annotations

import argparse
import collections
import json
import lzma
import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr  # type: ignore[import-untyped]
from tokenizers import Tokenizer
from torch import nn
from torch.nn import functional

Ids = NDArray[np.int32]
Tags = NDArray[np.int8]
BEGIN, PAD, END = 0, 1, 2
MAX_TOKENS, MAX_SIDE, MAX_OUTPUTS, CHUNK_TOKENS = 480, 200, 20, 16_384
HEADS = ("quality", "ranking", "error", "major")
WIDTH, INNER, ATTENTION_HEADS, LAYERS, POSITIONS = 384, 1536, 12, 12, 512
device = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass(frozen=True)
class Setting:
    """What a training may differ in; the last five are weights of losses."""

    rate: float = 2e-4
    dropout: float = 0.1
    decay: float = 0.01
    epochs: float = 8.0
    #: Tokens of a step.
    tokens: int = 49_152
    warm_up: int = 150
    averaging: float = 0.998
    #: The share of groups that are joined with those that follow.
    joined: float = 0.3
    #: How much chrF against the references is added to the ratings that outputs are ordered by.
    denoise: float = 0.0
    seed: int = 0
    order: float = 1.0
    centre: float = 0.5
    regression: float = 0.5
    tags: float = 0.5
    made: float = 0.3


SETTINGS = {
    "a": Setting(),
    "b": Setting(order=2.0, centre=1.0, regression=0.3, denoise=0.3, seed=1),
    "c": Setting(rate=4e-4, denoise=0.3, joined=0.45, decay=0.05, seed=2),
}


# ---- The encoder


class Block(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH, eps=1e-12), nn.LayerNorm(WIDTH, eps=1e-12)
        self.dropout = nn.Dropout(dropout)

    def forward(self, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        rows, length, _ = states.shape
        query, key, value = self.qkv(states).view(rows, length, 3, ATTENTION_HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        mixed = self.out(mixed.transpose(1, 2).reshape(rows, length, WIDTH))
        states = self.norm1(states + self.dropout(mixed))
        inner = self.down(functional.gelu(self.up(states)))
        normalized: torch.Tensor = self.norm2(states + self.dropout(inner))
        return normalized


class Encoder(nn.Module):
    """multilingual-e5-small with linear heads; the word pieces are not trained."""

    def __init__(self, words: int, dropout: float) -> None:
        super().__init__()
        self.words, self.types = nn.Embedding(words, WIDTH), nn.Embedding(2, WIDTH)
        self.places = nn.Embedding(POSITIONS, WIDTH)
        self.norm, self.dropout = nn.LayerNorm(WIDTH, eps=1e-12), nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(LAYERS))
        self.heads = nn.ModuleDict({name: nn.Linear(WIDTH, 1) for name in HEADS})
        self.words.weight.requires_grad_(False)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
        states: torch.Tensor = self.words(ids) + self.types(types) + self.places.weight[: ids.shape[1]]
        states = self.dropout(self.norm(states))
        for block in self.blocks:
            states = block(states, mask[:, None, None, :])
        return states


def load_base(path: Path) -> dict[str, torch.Tensor]:
    """Read the arrays of translation_pieces.py, Q4_0 blocks as floats."""
    stored, state = np.load(path), {}
    for name in stored.files:
        array = stored[name]
        if name.startswith("q4/"):
            rows, count, size = array.shape
            flat = array.reshape(-1, size)
            scale = flat[:, :2].copy().view("<f2").astype(np.float32)
            quants = np.concatenate((flat[:, 2:] & 15, flat[:, 2:] >> 4), 1).astype(np.float32) - 8
            array = (quants * scale).reshape(rows, count * 32)
        state[name.removeprefix("q4/")] = torch.from_numpy(array.astype(np.float32))
    return state


# ---- Groups


@dataclass(frozen=True)
class Output:
    ids: Ids
    value: float | None
    raw: float | None
    system: str
    tags: Tags | None
    #: The numbers of its texts, by which a reference is told from the output itself.
    texts: tuple[int, ...]
    #: chrF against the references.
    overlap: float | None


@dataclass(frozen=True)
class Group:
    name: str
    part: str
    source: Ids
    references: Sequence[tuple[Ids, tuple[int, ...]]]
    outputs: list[Output]
    pairs: list[tuple[int, int]] | None
    key: str
    following: int | None = None


def read_groups(path: Path, tokenizer: Tokenizer) -> list[Group]:
    with lzma.open(path, "rt", encoding="utf-8") as file:
        data = json.load(file)
    texts: list[str] = data["texts"]
    encodings = tokenizer.encode_batch(texts, add_special_tokens=False)
    ids = [np.array(encoding.ids[:300] or [3], np.int32) for encoding in encodings]
    groups = []
    for group in data["groups"]:
        outputs = []
        for output in group["outputs"]:
            number = output["text"]
            others = [texts[reference] for reference in group["references"] if reference != number]
            tags = None
            if output["spans"] is not None:
                tags = place_tags(texts[number], encodings[number].offsets[:300] or [(0, 0)], output["spans"])
            overlap = float(np.mean([chrf(texts[number], other) for other in others])) if others else None
            outputs.append(
                Output(ids[number], output["value"], output["raw"], output["system"], tags, (number,), overlap)
            )
        references = [(ids[reference], (reference,)) for reference in group["references"]]
        pairs = None if group["pairs"] is None else [(better, worse) for better, worse in group["pairs"]]
        groups.append(
            Group(group["name"], group["part"], ids[group["source"]], references, outputs, pairs, group["key"])
        )
    return link_documents(groups)


def place_tags(text: str, offsets: Sequence[tuple[int, int]], spans: Sequence[Sequence[int]]) -> Tags:
    tags = np.zeros(len(offsets), np.int8)
    for start, end, severity in spans:
        for token, (first, last) in enumerate(offsets):
            blank = end - start > 1 and not text[max(first, start) : min(last, end)].strip()
            if first < end and start < last and not blank:
                tags[token] = max(tags[token], severity)
    return tags


def chrf(output: str, reference: str) -> float:
    """Return the mean F2 of character n-grams, n = 1 to 6, without white space."""
    output, reference = output.replace(" ", ""), reference.replace(" ", "")
    values = []
    for size in range(1, 7):
        ours, theirs = (
            collections.Counter(text[start : start + size] for start in range(len(text) - size + 1))
            for text in (output, reference)
        )
        if ours and theirs:
            matches = (ours & theirs).total()
            precision, recall = matches / ours.total(), matches / theirs.total()
            values.append(5 * precision * recall / (4 * precision + recall) if matches else 0.0)
    return float(np.mean(values)) if values else 0.0


def link_documents(groups: list[Group]) -> list[Group]:
    """Link each group with the one that follows it in its document."""
    lines: dict[tuple[str, str, str], list[tuple[int, int]]] = collections.defaultdict(list)
    for number, group in enumerate(groups):
        key = group.key.split("|")[0]
        document, _, place = key.rpartition(":")
        if group.name.startswith(("wmt22", "bio-mqm", "wmt-qe23-mqm")) and place.isdigit():
            lines[group.name, group.part, document].append((int(place), number))
    linked = list(groups)
    for line in lines.values():
        numbers = [number for _, number in sorted(line)]
        for number, following in pairwise(numbers):
            linked[number] = replace(linked[number], following=following)
    return linked


class Material:
    """All groups, what is needed to join and to damage them, and the scales of MQM scores."""

    def __init__(self, groups: list[Group], tokenizer: Tokenizer) -> None:
        self.groups = groups
        pieces = [tokenizer.id_to_token(number) or "" for number in range(tokenizer.get_vocab_size())]
        self.starts_word = np.array([piece.startswith("\u2581") for piece in pieces])
        self.has_digit = np.array([any(map(str.isdigit, piece)) for piece in pieces])
        self.digits = np.flatnonzero(self.has_digit)
        self.train = [number for number, group in enumerate(groups) if group.part == "train"]
        self.by_name: dict[str, list[int]] = collections.defaultdict(list)
        for number in self.train:
            self.by_name[groups[number].name].append(number)
        squashed: dict[str, list[float]] = collections.defaultdict(list)
        for group in groups:
            squashed[group.name] += [squash(o.raw) for o in group.outputs if o.raw is not None and o.raw <= 0]
        self.scales = {
            name: (float(np.mean(own)), max(float(np.std(own)), 0.05)) for name, own in squashed.items() if own
        }

    def join(self, first: Group, count: int) -> Group | None:
        """Return `count` groups in a row as one, with the outputs of the systems that all of them have."""
        parts = [first]
        while len(parts) < count and (following := parts[-1].following) is not None:
            parts.append(self.groups[following])
        by_system = [{output.system: output for output in part.outputs} for part in parts]
        common = sorted(set.intersection(*map(set, by_system)))
        if len(parts) < 2 or len(common) < 3 or sum(len(part.source) for part in parts) > MAX_SIDE:
            return None
        mean, deviation = self.scales[first.name]
        outputs = []
        for system in common:
            own = [outputs_of[system] for outputs_of in by_system]
            raw = sum(output.raw or 0.0 for output in own)
            tags = [output.tags for output in own if output.tags is not None]
            overlaps = [output.overlap for output in own if output.overlap is not None]
            outputs.append(
                Output(
                    ids=np.concatenate([output.ids for output in own]),
                    # Longer texts have more errors.
                    value=(squash(raw) - mean - 0.6 * math.log(len(parts))) / deviation,
                    raw=raw,
                    system=system,
                    tags=np.concatenate(tags) if len(tags) == len(own) else None,
                    texts=tuple(text for output in own for text in output.texts),
                    overlap=float(np.mean(overlaps)) if len(overlaps) == len(own) else None,
                )
            )
        references = [
            (
                np.concatenate([part.references[number][0] for part in parts]),
                tuple(text for part in parts for text in part.references[number][1]),
            )
            for number in range(min(len(part.references) for part in parts))
        ]
        source = np.concatenate([part.source for part in parts])
        return Group(first.name, first.part, source, references, outputs, None, first.key)

    def split_words(self, ids: Ids) -> list[tuple[int, int]]:
        """Return start and end of each word; in languages without spaces each piece is one."""
        starts = np.flatnonzero(self.starts_word[ids])
        if len(starts) <= len(ids) / 8 + 1:
            starts = np.arange(len(ids))
        bounds = sorted({0, *starts.tolist(), len(ids)})
        return list(pairwise(bounds))

    def damage(
        self, ids: Ids, tags: Tags | None, source: Ids, other: Ids, rng: random.Random
    ) -> tuple[Ids, Tags] | None:
        """Return the text with one to three faults, and tags that tell where; None if none was made."""
        bounds = self.split_words(ids)
        if len(bounds) < 4:
            return None
        clean = np.zeros(len(ids), np.int8) if tags is None else tags
        words = [(ids[start:end], clean[start:end].copy()) for start, end in bounds]
        times = 1 if len(words) < 12 or rng.random() < 0.5 else rng.randint(1, 3)
        made = sum(self._damage_once(words, source, other, rng) for _ in range(times))
        if not made:
            return None
        return np.concatenate([word for word, _ in words]), np.concatenate([own for _, own in words])

    def _damage_once(self, words: list[tuple[Ids, Tags]], source: Ids, other: Ids, rng: random.Random) -> bool:
        kind, at = rng.random(), rng.randrange(len(words))
        size = min(rng.choice((1, 1, 1, 2, 3)), len(words) - 1 - at, len(words) // 3) or 1

        def tag(word: Ids, severity: int) -> tuple[Ids, Tags]:
            return word, np.full(len(word), severity, np.int8)

        if kind < 0.2:  # Words left out: the next one carries the tag.
            if at + size >= len(words):
                return False
            del words[at : at + size]
            words[at] = words[at][0], np.maximum(words[at][1], 2)
            return True
        if kind < 0.3:  # Two words in each other's place.
            with_word = min(len(words) - 1, at + rng.randint(1, 4))
            if np.array_equal(words[at][0], words[with_word][0]):
                return False
            first, second = words[at], words[with_word]
            words[at], words[with_word] = tag(second[0], 1), tag(first[0], 1)
            return True
        if kind < 0.45 or 0.55 <= kind < 0.85:  # A word of the source, or words of another output.
            foreign = source if kind < 0.45 else other
            if len(foreign) < 4:
                return False
            bounds = self.split_words(foreign)
            start = rng.randrange(len(bounds))
            last = min(len(bounds), start + (1 if kind < 0.45 else size)) - 1
            new = foreign[bounds[start][0] : bounds[last][1]]
            if np.array_equal(new, words[at][0]):
                return False
            added = kind >= 0.45 and rng.random() < 0.2
            words[at : at if added else at + size] = [tag(new, 2)]
            return True
        if kind < 0.55:  # Another number.
            places = [place for place, (word, _) in enumerate(words) if self.has_digit[word].any()]
            if not places:
                return False
            place = rng.choice(places)
            new = words[place][0].copy()
            new[np.flatnonzero(self.has_digit[new])[0]] = rng.choice(self.digits)
            words[place] = tag(new, 2)
            return True
        if kind < 0.93:  # A word twice.
            words.insert(at, tag(words[at][0], 1))
            return True
        if len(words[at][0]) < 2:
            return False
        words[at] = tag(words[at][0][:-1], 1)  # A word cut short.
        return True


def squash(points: float) -> float:
    """Return a compressed MQM score, as in translation_data.py."""
    return -math.log1p(max(0.0, -points))


# ---- Batches


@dataclass
class Example:
    ids: Ids
    #: Tokens of the first part: `[CLS] output [SEP]`.
    first: int
    value: float | None
    overlap: float | None
    tags: Tags | None
    #: For a damaged output: the example that it was made from.
    parent: int | None


def lay_out(output: Ids, source: Ids | None, references: Sequence[Ids]) -> tuple[Ids, int]:
    rest = [side[:MAX_SIDE] for side in (*references, *([source] if source is not None else []))]
    output = output[:MAX_SIDE]
    room = MAX_TOKENS - 2 - len(output) - len(rest)
    while (excess := sum(map(len, rest)) - room) > 0:
        longest = max(range(len(rest)), key=lambda side: len(rest[side]))
        rest[longest] = rest[longest][: len(rest[longest]) - excess]
    parts: list[Any] = [[BEGIN], output, [END]]
    for side in rest:
        parts += [side, [END]]
    return np.concatenate(parts).astype(np.int32), len(output) + 2


def make_examples(
    group: Group, material: Material, rng: random.Random
) -> tuple[list[Example], list[tuple[int, int]] | None]:
    """Return the outputs of a group as examples, with some damaged ones, and the pairs that people ranked."""
    chosen = list(range(len(group.outputs)))
    if len(chosen) > MAX_OUTPUTS:
        chosen = sorted(rng.sample(chosen, MAX_OUTPUTS))
    mode, chance = "source", rng.random()
    if group.references and chance < 0.5:
        mode = "both" if chance < 0.36 else "reference"
    which = rng.randrange(len(group.references)) if group.references else 0
    examples: list[Example] = []

    def add(output: Output, ids: Ids, tags: Tags | None, parent: int | None) -> bool:
        references = []
        if mode != "source":
            texts = None if parent is not None else output.texts
            others = [reference for reference, numbers in group.references if numbers != texts]
            if not others:
                return False
            references = [others[which % len(others)]]
        sequence, first = lay_out(ids, None if mode == "reference" else group.source, references)
        value, overlap = (None, None) if parent is not None else (output.value, output.overlap)
        examples.append(Example(sequence, first, value, overlap, None if tags is None else tags[: first - 2], parent))
        return True

    places = {
        number: len(examples) - 1
        for number in chosen
        if add(group.outputs[number], group.outputs[number].ids, group.outputs[number].tags, None)
    }
    pairs = None
    if group.pairs is not None:
        pairs = [(places[better], places[worse]) for better, worse in group.pairs if {better, worse} <= places.keys()]
    good = [number for number in places if (value := group.outputs[number].value) is None or value > -0.5]
    wanted = (2 if len(chosen) > 3 else 1 if len(chosen) == 1 and rng.random() < 0.6 else 0) if good else 0
    for _ in range(wanted):
        number = rng.choice(good)
        output = group.outputs[number]
        other = material.groups[rng.choice(material.by_name[group.name])].outputs[0].ids
        chance = rng.random()
        if chance < 0.07:
            add(output, other, None, places[number])
        elif chance < 0.11:
            add(output, group.source, None, places[number])
        elif (damaged := material.damage(output.ids, output.tags, group.source, other, rng)) is not None:
            add(output, *damaged, places[number])
    return examples, pairs


class Batches(torch.utils.data.IterableDataset[dict[str, Any]]):
    """Batches of whole groups without end; each worker process has its share of the groups."""

    def __init__(self, material: Material, setting: Setting) -> None:
        self.material, self.setting = material, setting

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = torch.utils.data.get_worker_info()
        number, count = (worker.id, worker.num_workers) if worker else (0, 1)
        rng = random.Random(self.setting.seed * 1000 + number)
        while True:
            order = self.material.train[number::count]
            rng.shuffle(order)
            batch: list[tuple[list[Example], list[tuple[int, int]] | None]] = []
            size = 0
            for place in order:
                group = self.material.groups[place]
                if group.following is not None and rng.random() < self.setting.joined:
                    group = self.material.join(group, rng.choice((2, 2, 3, 4))) or group
                examples, pairs = make_examples(group, self.material, rng)
                tokens = sum(len(example.ids) for example in examples)
                if batch and size + tokens > self.setting.tokens:
                    yield collate(batch, self.setting)
                    batch, size = [], 0
                if examples:
                    batch.append((examples, pairs))
                    size += tokens


def collate(batch: list[tuple[list[Example], list[tuple[int, int]] | None]], setting: Setting) -> dict[str, Any]:
    flat = [example for examples, _ in batch for example in examples]
    chunks = chunk_by_length([len(example.ids) for example in flat], CHUNK_TOKENS)
    better, worse, weights, parents, damaged, rated = [], [], [], [], [], []
    base = 0
    for number, (examples, pairs) in enumerate(batch):
        values = {i: example.value for i, example in enumerate(examples) if example.value is not None}
        overlaps = [examples[i].overlap for i in values]
        known = [overlap for overlap in overlaps if overlap is not None]
        if setting.denoise and len(values) > 3 and len(known) == len(overlaps) and np.std(known) > 1e-6:
            scores = (np.array(known) - np.mean(known)) / np.std(known)
            values = {i: values[i] + setting.denoise * score for i, score in zip(values, scores.tolist(), strict=True)}
        rated += [(base + i, number, value) for i, value in values.items()]
        ordered = [
            (i, j, min(values[i] - values[j], 2.0)) for i in values for j in values if values[i] - values[j] > 0.05
        ]
        if pairs is not None:
            ordered = [(i, j, 1.0) for i, j in pairs]
        total = sum(weight for _, _, weight in ordered)
        for i, j, weight in ordered:
            better.append(base + i)
            worse.append(base + j)
            weights.append(weight / total * math.sqrt(len(examples)))
        for i, example in enumerate(examples):
            if example.parent is not None:
                parents.append(base + example.parent)
                damaged.append(base + i)
        base += len(examples)
    places = np.empty(len(flat), np.int64)
    places[np.concatenate(chunks)] = np.arange(len(flat))
    values_of = [math.nan if example.value is None else example.value for example in flat]
    return {
        "chunks": [pad([flat[i] for i in chunk]) for chunk in chunks],
        "places": torch.from_numpy(places),
        "values": torch.tensor(values_of, dtype=torch.float32),
        "better": torch.tensor(better, dtype=torch.long),
        "worse": torch.tensor(worse, dtype=torch.long),
        "weights": torch.tensor(weights, dtype=torch.float32),
        "parents": torch.tensor(parents, dtype=torch.long),
        "damaged": torch.tensor(damaged, dtype=torch.long),
        "rated": torch.tensor([i for i, _, _ in rated], dtype=torch.long),
        "group": torch.tensor([number for _, number, _ in rated], dtype=torch.long),
        "ordering": torch.tensor([value for _, _, value in rated], dtype=torch.float32),
        "groups": len(batch),
        "tokens": sum(len(example.ids) for example in flat),
    }


def chunk_by_length(lengths: Sequence[int], tokens: int) -> list[NDArray[np.int64]]:
    """Return positions in chunks of similar length, each of at most so many tokens with padding."""
    chunks: list[list[int]] = [[]]
    for number in sorted(range(len(lengths)), key=lengths.__getitem__):
        if chunks[-1] and (len(chunks[-1]) + 1) * lengths[number] > tokens:
            chunks.append([])
        chunks[-1].append(number)
    return [np.array(chunk) for chunk in chunks]


def pad(examples: Sequence[Example]) -> tuple[torch.Tensor, ...]:
    """Return ids, lengths of the first parts, lengths, and tags (-1: none)."""
    width = max(len(example.ids) for example in examples)
    ids = np.full((len(examples), width), PAD, np.int64)
    tags = np.full((len(examples), width), -1, np.int8)
    for row, example in enumerate(examples):
        ids[row, : len(example.ids)] = example.ids
        if example.tags is not None:
            tags[row, 1 : 1 + len(example.tags)] = example.tags
    first = torch.tensor([example.first for example in examples])
    lengths = torch.tensor([len(example.ids) for example in examples])
    return torch.from_numpy(ids), first, lengths, torch.from_numpy(tags)


# ---- Losses


def run_chunk(network: Encoder, chunk: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return quality and ranking of each example, [examples, 2], the logits of its tokens, [..., 2], and their tags."""
    ids, first, lengths, tags = (tensor.to(device, non_blocking=True) for tensor in chunk)
    place = torch.arange(ids.shape[1], device=device)[None]
    mask = place < lengths[:, None]
    types = ((place >= first[:, None]) & mask).long()
    with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
        states = network(ids, mask, types)
    states = states.float()
    own = ((place >= 1) & (place < first[:, None] - 1)).float()[..., None]
    mean = (states * own).sum(1) / own.sum(1).clamp(min=1)
    whole = torch.cat([network.heads[name](mean) for name in HEADS[:2]], -1)
    return whole, torch.cat([network.heads[name](states) for name in HEADS[2:]], -1), tags


def compute_loss(network: Encoder, batch: dict[str, Any], setting: Setting) -> torch.Tensor:
    results = [run_chunk(network, chunk) for chunk in batch["chunks"]]
    on_device = {name: value.to(device) for name, value in batch.items() if isinstance(value, torch.Tensor)}
    whole = torch.cat([scores for scores, _, _ in results])[on_device["places"]]
    loss = torch.zeros((), device=device)
    for scores, share in ((whole[:, 0], 0.3), (whole[:, 1], 1.0)):
        if len(batch["better"]):
            leads = scores[on_device["better"]] - scores[on_device["worse"]]
            weights = on_device["weights"]
            loss = loss + share * setting.order * (functional.softplus(-leads) * weights).sum() / weights.sum()
        if len(batch["parents"]):
            leads = scores[on_device["parents"]] - scores[on_device["damaged"]]
            loss = loss + share * setting.made * functional.softplus(1 - leads).mean()
    loss = loss + setting.centre * compute_centred_loss(whole[:, 1], on_device, batch["groups"])
    known = ~on_device["values"].isnan()
    if known.any():
        loss = loss + setting.regression * functional.smooth_l1_loss(whole[known, 0], on_device["values"][known])
    return loss + setting.tags * compute_tag_loss(results)


def compute_centred_loss(scores: torch.Tensor, batch: dict[str, torch.Tensor], groups: int) -> torch.Tensor:
    """Compare differences from the mean of a group, so that equal ratings count as well."""
    group, chosen = batch["group"], scores[batch["rated"]]
    zeros = torch.zeros(groups, device=device)
    count = zeros.index_add(0, group, torch.ones_like(chosen)).clamp(min=1)
    centred = [own - (zeros.index_add(0, group, own) / count)[group] for own in (chosen, batch["ordering"])]
    several = count[group] >= 3
    if not several.any():
        return torch.zeros((), device=device)
    return functional.smooth_l1_loss(centred[0][several], centred[1][several])


def compute_tag_loss(results: Sequence[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    total, count = torch.zeros((), device=device), torch.zeros((), device=device)
    for _, logits, tags in results:
        tagged = tags >= 0
        error, major = (tags[tagged] > 0).float(), (tags[tagged] > 1).float()
        cross_entropy = functional.binary_cross_entropy_with_logits
        losses = cross_entropy(logits[tagged], torch.stack((error, major), -1), reduction="none")
        total = total + (losses[:, 0] * (1 + error + major) + losses[:, 1] * (1 + major)).sum()
        count = count + tagged.sum()
    return total / count.clamp(min=1)


# ---- Agreement on held-out sources


def compute_acc_eq(groups: Sequence[tuple[NDArray[Any], NDArray[Any]]]) -> float:
    """Return the accuracy of pairs with the best threshold for ties, by item (as metrist's acc_eq)."""
    differences, gains, zero, count = [], [], 0.0, 0
    for scores, values in groups:
        first, second = np.triu_indices(len(scores), 1)
        if not len(first):
            continue
        lead, truth = scores[first] - scores[second], np.sign(values[first] - values[second])
        right = np.sign(lead) == truth
        zero += right.mean()
        count += 1
        differences.append(np.abs(lead))
        gains.append(((truth == 0).astype(float) - right) / len(first))
    order = np.argsort(np.concatenate(differences), kind="stable")
    return float((zero + np.concatenate(([0], np.cumsum(np.concatenate(gains)[order])))).max() / max(count, 1))


@torch.no_grad()
def score_examples(network: Encoder, examples: Sequence[Example]) -> NDArray[np.float32]:
    """Return quality, ranking and the expected MQM penalty of each example."""
    network.eval()
    results = np.zeros((len(examples), 3), np.float32)
    for chunk in chunk_by_length([len(example.ids) for example in examples], 4 * CHUNK_TOKENS):
        chosen = [examples[number] for number in chunk]
        whole, logits, _ = run_chunk(network, pad(chosen))
        errors = (logits.sigmoid() * torch.tensor([1.0, 4.0], device=device)).sum(-1)
        place = torch.arange(errors.shape[1], device=device)[None]
        first = torch.tensor([example.first for example in chosen], device=device)
        own = (place >= 1) & (place < first[:, None] - 1)
        results[chunk] = torch.cat((whole, (errors * own).sum(1, keepdim=True)), 1).cpu().numpy()
    network.train()
    return results


def measure(network: Encoder, material: Material, out: Path) -> dict[str, Any]:
    """Measure agreement on every held-out data set, with source, reference or both, and keep the numbers."""
    table: dict[str, Any] = {}
    arrays: dict[str, Any] = {}
    parts = [(group.name, group) for group in material.groups if group.part != "train"]
    for name in sorted({name for name, _ in parts}):
        groups = [group for own, group in parts if own == name][:2000]
        for kind in ("source", "both", "reference", "joined source", "joined both"):
            chosen: list[Group] = groups
            if kind.startswith("joined"):
                if not name.startswith("wmt22"):
                    continue
                chosen = [joined for group in groups[::3] if (joined := material.join(group, 3)) is not None]
            examples, owners = list_held_out(chosen, kind)
            if examples:
                scores = score_examples(network, examples)
                table[f"{name} {kind}"] = summarize(scores, examples, owners, chosen)
                values = [math.nan if example.value is None else example.value for example in examples]
                overlaps = [math.nan if example.overlap is None else example.overlap for example in examples]
                arrays[f"{name} {kind}"] = np.column_stack((scores, values, overlaps, owners))
    np.savez_compressed(out.with_suffix(".npz"), **arrays)
    out.with_suffix(".json").write_text(json.dumps(table, indent=1))
    return table


def list_held_out(groups: Sequence[Group], kind: str) -> tuple[list[Example], list[tuple[int, int]]]:
    """Return the examples of a mode, with the numbers of group and output. Human translations are left out."""
    examples, owners = [], []
    for number, group in enumerate(groups):
        for place, output in enumerate(group.outputs):
            others = [reference for reference, texts in group.references if texts != output.texts]
            references = [] if kind.endswith("source") else others[:1]
            if "ref" in output.system.lower() or (not references and not kind.endswith("source")):
                continue
            ids, first = lay_out(output.ids, None if kind == "reference" else group.source, references)
            examples.append(Example(ids, first, output.value, output.overlap, output.tags, None))
            owners.append((number, place))
    return examples, owners


def summarize(
    scores: NDArray[np.float32], examples: Sequence[Example], owners: Sequence[tuple[int, int]], groups: Sequence[Group]
) -> dict[str, Any]:
    """Return Spearman over all outputs and acc_eq by source, or the accuracy of ranked pairs, for each number."""
    columns = {"quality": scores[:, 0], "ranking": scores[:, 1], "tags": -scores[:, 2]}
    columns["sum"] = columns["quality"] + columns["ranking"]
    by_group: dict[int, list[int]] = collections.defaultdict(list)
    for row, (number, _) in enumerate(owners):
        by_group[number].append(row)
    if groups[0].pairs is not None:
        at = {owner: row for row, owner in enumerate(owners)}
        pairs = [
            (at[number, better], at[number, worse])
            for number, group in enumerate(groups)
            for better, worse in group.pairs or ()
            if (number, better) in at and (number, worse) in at
        ]
        return {
            name: {"pairs": float(np.mean([column[i] > column[j] for i, j in pairs]))}
            for name, column in columns.items()
        }
    values = np.array([example.value for example in examples])
    several = [np.array(rows) for rows in by_group.values() if len(rows) > 1]
    return {
        name: {"spearman": float(spearmanr(column, values)[0])}
        | ({"acc_eq": compute_acc_eq([(column[rows], values[rows]) for rows in several])} if several else {})
        for name, column in columns.items()
    }


# ---- Training


def train(network: Encoder, material: Material, setting: Setting, seconds: float, workers: int) -> None:
    """Train for a number of epochs or seconds, whichever ends first; leave the running mean of the weights."""
    trained = [(name, parameter) for name, parameter in network.named_parameters() if parameter.requires_grad]
    tables = ("places", "types")
    decayed = [p for name, p in trained if p.ndim > 1 and not name.startswith(tables)]
    others = [p for name, p in trained if p.ndim <= 1 or name.startswith(tables)]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": setting.decay}, {"params": others, "weight_decay": 0.0}],
        lr=setting.rate,
        betas=(0.9, 0.98),
    )
    means = [parameter.detach().clone() for _, parameter in trained]
    groups = [material.groups[number] for number in material.train]
    # References, faults and joined texts add about half of the tokens of sources and outputs.
    epoch = 1.5 * sum(len(group.source) + len(output.ids) for group in groups for output in group.outputs)
    loader = torch.utils.data.DataLoader(Batches(material, setting), batch_size=None, num_workers=workers)
    begin, seen = time.monotonic(), 0
    for step, batch in enumerate(loader):
        share = max(seen / (epoch * setting.epochs), (time.monotonic() - begin) / seconds)
        if share >= 1:
            break
        for parameters in optimizer.param_groups:
            parameters["lr"] = setting.rate * min(1, (step + 1) / setting.warm_up) * max(0.02, 1 - share)
        loss = compute_loss(network, batch, setting)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_([parameter for _, parameter in trained], 1.0)
        if torch.isfinite(norm):
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seen += batch["tokens"]
        keep = min(setting.averaging, (step + 2) / (step + 21))
        with torch.no_grad():
            torch._foreach_lerp_(means, [parameter.detach() for _, parameter in trained], 1 - keep)
        if step % 100 == 0:
            print(f"step {step}, {seen / epoch:.2f} epochs, loss {loss.item():.3f}", flush=True)
    with torch.no_grad():
        for (_, parameter), mean in zip(trained, means, strict=True):
            parameter.copy_(mean)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", type=Path)
    parser.add_argument("groups", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--setting", choices=SETTINGS, default="a")
    parser.add_argument("--seconds", type=float, default=480)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--mean", type=Path, nargs="+")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    setting = SETTINGS[arguments.setting]
    torch.manual_seed(setting.seed)
    tokenizer = Tokenizer.from_file(str(arguments.base / "tokenizer.json"))
    material = Material(read_groups(arguments.groups, tokenizer), tokenizer)
    state = load_base(arguments.base / "base.npz")
    network = Encoder(len(state["words.weight"]), setting.dropout)
    for head in network.heads.values():
        nn.init.normal_(head.weight, std=0.02)  # type: ignore[arg-type]
        nn.init.zeros_(head.bias)  # type: ignore[arg-type]
    network.load_state_dict(state, strict=False)
    if arguments.mean:
        states = [torch.load(path, weights_only=True) for path in arguments.mean]
        mean = {name: torch.stack([state[name].float() for state in states]).mean(0) for name in states[0]}
        network.load_state_dict(mean, strict=False)
        network.to(device)
    else:
        network.to(device)
        train(network, material, setting, arguments.seconds, arguments.workers)
    name = arguments.out / ("mean" if arguments.mean else arguments.setting)
    trained = {name: p.detach().half().cpu() for name, p in network.named_parameters() if p.requires_grad}
    torch.save(trained, name.with_suffix(".pt"))
    for row, figures in measure(network, material, name).items():
        print(row, figures, flush=True)


if __name__ == "__main__":
    main()
