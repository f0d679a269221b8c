"""Train translation_quality: predicted ratings, order among translations of one source, error tags, token alignment.

    python translation_train.py BASE PACK.npz.xz OUT --setting a --seconds 300
    python translation_train.py BASE PACK.npz.xz OUT --setting a --seconds 300 --all --start OUT/a.pt --name final
    python translation_train.py BASE PACK.npz.xz OUT --choose a b

BASE is written by translation_pieces.py, PACK by translation_pack.py. The first call leaves the hard sets out and
measures agreement with people on them; the second goes on with them, and measures on the sources that are never trained
on; the third prints the setting that did best on the hard sets. OUT gets `NAME.pt` (half precision, without the word
pieces, which stay as they are), `NAME.json` (agreement) and `NAME.npz` (the numbers of each held-out output, for
translation_fit.py).

A step reads whole groups: up to 20 translations of one source, each as `[CLS] output [SEP] reference [SEP] source
[SEP]` without the reference (half of the time) or without the source (some of the time), and outputs with made faults.
Of some groups, each text is also read alone, and the states of output and reference, and of output and source, are
aligned token by token: how well they match is trained to order the outputs, too.

The head `quality` learns ratings by regression alone; order and made faults are learned by the head `ranking`. Workers
put the sequences of a step one after the other, without padding.
"""

from __future__ import annotations

import argparse
import io
import json
import lzma
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import norm, rankdata, spearmanr  # type: ignore[import-untyped]
from torch import nn
from torch.nn import functional

Array = NDArray[Any]
Tensors = dict[str, torch.Tensor]
Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, "Sequences"], torch.Tensor]
BEGIN, END = 0, 2
TRAIN, HARD, DEV = range(3)
MAX_TOKENS, MAX_SIDE, MAX_OUTPUTS = 480, 200, 20
HEADS = ("quality", "ranking", "error", "major")
ALIGNMENTS = ("reference precision", "reference recall", "source precision", "source recall")
WIDTH, INNER, ATTENTION_HEADS, LAYERS, POSITIONS = 384, 1536, 12, 12, 512
#: The layer whose states are aligned: half of the work of the last one, and no worse (LOG-translation.md).
ALIGNED_LAYER = 6
#: Families with direct assessments, and those whose ratings are compared over sources as well.
DIRECT = ("mlqe-pe", "wmt-qe23-da")
RATED = (*DIRECT, "indicmt-eval")
#: Probabilities above which a token may be taken for a part of an error.
THRESHOLDS = (0.2, 0.3, 0.4, 0.5)
device = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass(frozen=True)
class Setting:
    """What a training may differ in; the last six are weights of losses."""

    rate: float = 2e-4
    #: The rate of a layer, relative to the one above it.
    layer_rate: float = 0.9
    dropout: float = 0.1
    #: The share of tokens whose word is hidden.
    hidden: float = 0.05
    decay: float = 0.01
    #: Tokens of a step.
    tokens: int = 49_152
    warm_up: int = 80
    averaging: float = 0.998
    #: How often an epoch has the groups of direct assessments, of paragraphs, of parallel texts.
    direct: float = 1.5
    joined: float = 0.4
    parallel: float = 0.3
    #: The share of groups whose texts are also read alone and aligned.
    aligned: float = 0.3
    #: The teacher's share in the ratings that outputs are ordered by, and that of chrF where there is no teacher.
    teacher: float = 0.5
    overlap: float = 0.1
    #: Whether direct assessments are regressed as normal scores of their ranks.
    ranks: bool = False
    #: The weight of an MQM rating in the regression, beside 1 for a direct assessment; those of one source share it.
    mqm: float = 0.7
    seed: int = 0
    order: float = 1.0
    centre: float = 0.5
    regression: float = 1.5
    tags: float = 0.4
    made: float = 0.3
    alignment: float = 0.5


SETTINGS = {
    "a": Setting(),
    "b": Setting(
        rate=1.5e-4, layer_rate=0.8, direct=2.5, regression=2.5, ranks=True, mqm=0.5, teacher=0.7, parallel=0.5, seed=1
    ),
}


# ---- The encoder


class Sequences(NamedTuple):
    """Sequences of tokens one after the other, the longest last."""

    #: Where each begins, and the end.
    starts: torch.Tensor
    longest: int
    #: The same on the CPU.
    bounds: list[int]


def attend_flat(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, sequences: Sequences) -> torch.Tensor:
    """Attention within each sequence, [tokens, heads, size], by a kernel for GPUs."""
    from torch.nn.attention.varlen import varlen_attn

    starts, longest = sequences.starts, sequences.longest
    mixed: torch.Tensor = varlen_attn(query, key, value, starts, starts, longest, longest)  # type: ignore[assignment]
    return mixed


def attend_padded(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, sequences: Sequences) -> torch.Tensor:
    """The same with padding, in blocks of sequences of similar length."""
    bounds, results, first = sequences.bounds, [], 0
    while first < len(bounds) - 1:
        last = first + 1
        least = width = bounds[first + 1] - bounds[first]
        while last < len(bounds) - 1 and least <= bounds[last + 1] - bounds[last] <= 1.25 * least + 8:
            last += 1
            width = bounds[last] - bounds[last - 1]
        own = slice(bounds[first], bounds[last])
        starts = sequences.starts[first : last + 1] - bounds[first]
        sizes = starts[1:] - starts[:-1]
        at = torch.arange(width, device=query.device)
        inside = at < sizes[:, None]
        places = (starts[:-1, None] + at).clamp(max=bounds[last] - bounds[first] - 1).flatten()

        def pad(part: torch.Tensor) -> torch.Tensor:
            return part[own].index_select(0, places).view(len(sizes), width, ATTENTION_HEADS, -1).transpose(1, 2)  # noqa: B023

        mixed = functional.scaled_dot_product_attention(
            pad(query), pad(key), pad(value), attn_mask=inside[:, None, None]
        )
        results.append(mixed.transpose(1, 2)[inside])
        first = last
    return torch.cat(results)


def choose_attention() -> Attention:
    """Return the kernel for GPUs if it is there and agrees with the plain one."""
    if device == "cpu":
        return attend_padded
    try:
        bounds = [0, 5, 12, 40, 100]
        sequences = Sequences(torch.tensor(bounds, dtype=torch.int32, device=device), 60, bounds)
        results = []
        for attend in (attend_flat, attend_padded):
            torch.manual_seed(0)
            joined = torch.randn(100, 3, ATTENTION_HEADS, 32, device=device).bfloat16().requires_grad_()
            with torch.autocast(device, dtype=torch.bfloat16):
                mixed = attend(joined[:, 0], joined[:, 1], joined[:, 2], sequences)
            mixed.float().square().sum().backward()  # type: ignore[no-untyped-call]
            results.append(torch.cat([mixed[:, None], joined.grad], 1).float())  # type: ignore[list-item]
        difference = (results[0] - results[1]).abs().max().item()
        print(f"attention without padding differs by {difference:.4f}", flush=True)
        return attend_flat if difference < 0.1 else attend_padded
    except Exception as fault:
        print(f"attention with padding: {fault!r}", flush=True)
        return attend_padded


class Block(nn.Module):
    def __init__(self, dropout: float, attend: Attention) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH, eps=1e-12), nn.LayerNorm(WIDTH, eps=1e-12)
        self.dropout, self.attend = nn.Dropout(dropout), attend

    def forward(self, states: torch.Tensor, sequences: Sequences) -> torch.Tensor:
        query, key, value = self.qkv(states).view(len(states), 3, ATTENTION_HEADS, -1).unbind(1)
        mixed = self.out(self.attend(query, key, value, sequences).reshape(len(states), WIDTH))
        states = self.norm1(states + self.dropout(mixed))
        inner = self.down(functional.gelu(self.up(states)))
        normalized: torch.Tensor = self.norm2(states + self.dropout(inner))
        return normalized


class Encoder(nn.Module):
    """multilingual-e5-small with linear heads; the word pieces are not trained."""

    def __init__(self, words: int, setting: Setting) -> None:
        super().__init__()
        self.words, self.types = nn.Embedding(words, WIDTH), nn.Embedding(2, WIDTH)
        self.places = nn.Embedding(POSITIONS, WIDTH)
        self.norm, self.dropout = nn.LayerNorm(WIDTH, eps=1e-12), nn.Dropout(setting.dropout)
        attend = choose_attention()
        self.blocks = nn.ModuleList(Block(setting.dropout, attend) for _ in range(LAYERS))
        self.heads = nn.ModuleDict({name: nn.Linear(WIDTH, 1) for name in HEADS})
        #: Scales of cosines in the loss of alignments; they are not exported.
        self.alignments = nn.Parameter(torch.full((len(ALIGNMENTS),), 8.0))
        self.words.weight.requires_grad_(False)
        self.hidden = setting.hidden
        for head in self.heads.values():
            nn.init.normal_(head.weight, std=0.02)  # type: ignore[arg-type]
            nn.init.zeros_(head.bias)  # type: ignore[arg-type]

    def forward(self, batch: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the states of the tokens of rows after all layers, and those of texts alone after the aligned one."""
        rows, singles = batch["rows"], batch["singles"]
        parts = [rows] if singles is None else [rows, singles]
        ids, types, places = (torch.cat([part[name] for part in parts]).long() for name in ("ids", "types", "places"))
        words = self.words(ids)
        if self.training and self.hidden:
            words = words * (torch.rand(ids.shape, device=ids.device) >= self.hidden)[..., None]
        # Few types and places: a product is faster backward than a lookup.
        states: torch.Tensor = (
            words + self.types.weight[0] + types[:, None] * (self.types.weight[1] - self.types.weight[0])
        )
        states = self.dropout(self.norm(states + self.places(places)))
        alone = None
        sequences = join_sequences([make_sequences(part) for part in parts])
        for layer, block in enumerate(self.blocks):
            if layer == ALIGNED_LAYER and singles is not None:
                states, alone = states[: len(rows["ids"])], states[len(rows["ids"]) :]
                sequences = make_sequences(rows)
            states = block(states, sequences)
        return states, alone


def make_sequences(part: dict[str, Any]) -> Sequences:
    return Sequences(part["starts"], part["longest"], part["bounds"])


def join_sequences(parts: Sequence[Sequences]) -> Sequences:
    if len(parts) == 1:
        return parts[0]
    first, second = parts
    end = first.bounds[-1]
    return Sequences(
        torch.cat((first.starts, second.starts[1:] + end)),
        max(first.longest, second.longest),
        first.bounds + [bound + end for bound in second.bounds[1:]],
    )


def load_base(path: Path) -> Tensors:
    """Read the arrays of translation_pieces.py, Q4_0 blocks as floats. `rows` are the pieces that are there, after the
    number of all pieces, where those that the data does not have were left out."""
    stored, state = np.load(path), {}
    for name in stored.files:
        array = stored[name]
        if name.startswith("q4/"):
            rows, count, size = array.shape
            flat = array.reshape(-1, size)
            scale = flat[:, :2].copy().view("<f2").astype(np.float32)
            quants = np.concatenate((flat[:, 2:] & 15, flat[:, 2:] >> 4), 1).astype(np.float32) - 8
            array = (quants * scale).reshape(rows, count * 32)
        if name != "rows":
            state[name.removeprefix("q4/")] = torch.from_numpy(array.astype(np.float32))
    if "rows" in stored.files:
        total, *places = stored["rows"].tolist()
        words = torch.zeros(total, WIDTH)
        words[torch.tensor(places)] = state["words.weight"]
        state["words.weight"] = words
    return state


# ---- Data


class Pack:
    """The arrays of translation_pack.py, with the joined texts added."""

    def __init__(self, path: Path) -> None:
        stored = np.load(io.BytesIO(lzma.decompress(path.read_bytes())))
        self.arrays: dict[str, Array] = {name: stored[name] for name in stored.files}
        arrays = self.arrays
        starts, lengths = arrays["text_starts"][:-1], np.diff(arrays["text_starts"])
        parts = arrays["joins"]
        sizes = lengths[parts]
        ends = np.cumsum(sizes)
        places = np.repeat(starts[parts] - (ends - sizes), sizes) + np.arange(sizes.sum())
        self.tokens = np.concatenate((arrays["tokens"], arrays["tokens"][places])).astype(np.int32)
        self.tags = np.concatenate((arrays["tags"], arrays["tags"][places]))
        bounds = np.concatenate(([0], ends))[arrays["join_starts"]]
        self.starts = np.concatenate((starts, bounds[:-1] + len(arrays["tokens"]))).astype(np.int64)
        self.lengths = np.minimum(np.concatenate((lengths, np.diff(bounds))), MAX_SIDE).astype(np.int64)
        self.names = arrays["names"].tolist()
        self.pieces = int(arrays["pieces"][0])
        self.families = np.array([name.partition(".")[0] for name in self.names])[arrays["set"]]
        self.values = arrays["value"].astype(np.float64)

    def slice(self, name: str, starts: str, group: int) -> Array:
        bounds = self.arrays[starts]
        part: Array = self.arrays[name][bounds[group] : bounds[group + 1]]
        return part

    def rank_values(self) -> None:
        """Replace direct assessments by the normal scores of their ranks in their data set."""
        sets = np.repeat(self.arrays["set"], np.diff(self.arrays["output_starts"]))
        for number, name in enumerate(self.names):
            own = np.flatnonzero((sets == number) & ~np.isnan(self.values))
            if name.startswith(DIRECT) and len(own):
                self.values[own] = norm.ppf((rankdata(self.values[own]) - 0.5) / len(own))

    def measure_rows(self, rows: Array) -> Array:
        """Return the tokens of output, reference and source of each row, cut such that a sequence fits."""
        sizes = np.where(rows >= 0, self.lengths[rows], 0)
        room = MAX_TOKENS - 1 - (rows >= 0).sum(1) - sizes[:, 0]
        several = (rows[:, 1:] >= 0).sum(1)
        # What a shorter side leaves is the longer one's.
        shorter = np.minimum(sizes[:, 1:].min(1), room // np.maximum(several, 1))
        for side in (1, 2):
            sizes[:, side] = np.minimum(
                sizes[:, side], np.where(several > 1, np.maximum(room // 2, room - shorter), room)
            )
        over = sizes[:, 1:].sum(1) - room
        sizes[:, 2] -= np.maximum(over, 0)
        return sizes

    def write_sequences(self, rows: Array) -> dict[str, Any]:
        """Write the sequences of rows (output, reference, source; -1: none) one after the other, the longest last:
        tokens, types, places, and where sequences begin; of the outputs' tokens the places, rows and tags, and the
        number of them in each row; of each row the place of its first token."""
        sizes = self.measure_rows(rows)
        there = rows >= 0
        lengths = sizes.sum(1) + 1 + there.sum(1)
        if lengths.max() > MAX_TOKENS or rows.max() >= len(self.starts):
            raise ValueError(f"a row has {lengths.max()} tokens and the text {rows.max()}")
        order = np.argsort(lengths, kind="stable")
        bounds = np.concatenate(([0], np.cumsum(lengths[order])))
        first = np.empty(len(rows), np.int64)
        first[order] = bounds[:-1]
        total = int(bounds[-1])
        ids, types = np.full(total, END, np.int32), np.zeros(total, np.int8)
        ids[bounds[:-1]] = BEGIN
        begin = first + 1
        own = owner = tags = np.zeros(0, np.int64)
        for side in range(3):
            numbers = sizes[:, side]
            ends = np.cumsum(numbers)
            inside = np.arange(ends[-1]) - np.repeat(ends - numbers, numbers)
            places = np.repeat(begin, numbers) + inside
            source = np.repeat(np.where(there[:, side], self.starts[rows[:, side]], 0), numbers) + inside
            ids[places] = self.tokens[source]
            if side == 0:
                own, owner, tags = places, np.repeat(np.arange(len(rows)), numbers), self.tags[source]
            else:
                types[places] = 1
                types[(begin + numbers)[there[:, side]]] = 1
            begin = begin + numbers + there[:, side]
        positions = np.arange(total) - np.repeat(bounds[:-1], lengths[order])
        return {
            "ids": ids,
            "types": types,
            "places": positions.astype(np.int16),
            "starts": bounds.astype(np.int32),
            "longest": int(lengths.max()),
            "bounds": bounds.tolist(),
            "own": own.astype(np.int32),
            "owner": owner.astype(np.int32),
            "tags": tags.astype(np.int8),
            "sizes": sizes[:, 0].astype(np.int32),
            "first": first.astype(np.int32),
        }


class Drawing:
    """Rows of a step and what is known about them. Rows are numbers of texts: output, reference, source, or -1."""

    def __init__(self, pack: Pack, setting: Setting, rng: np.random.Generator) -> None:
        self.pack, self.setting, self.rng = pack, setting, rng
        self.rows: list[tuple[int, int, int]] = []
        self.values: list[float] = []
        self.row_weights: list[float] = []
        self.groups = 0
        self.tokens = 0
        #: Per kind: rows of pairs (better, worse) with a weight; (row, group, label); rows of a parent and its damage.
        self.pairs: list[Array] = []
        self.weights: list[Array] = []
        self.labels: list[tuple[int, int, float]] = []
        self.made: list[tuple[int, int]] = []
        self.singles: dict[int, int] = {}
        #: Rows with the texts that are aligned: row, output, reference, source.
        self.aligned: list[tuple[int, int, int, int]] = []

    def add(self, group: int) -> None:
        """Add the outputs of a group."""
        pack, setting, rng, arrays = self.pack, self.setting, self.rng, self.pack.arrays
        begin, end = arrays["output_starts"][group : group + 2].tolist()
        parents, texts, same = (arrays[name][begin:end].tolist() for name in ("parent", "text", "same"))
        references = pack.slice("references", "reference_starts", group).tolist()
        source = int(arrays["source"][group])
        chosen = [at for at, parent in enumerate(parents) if parent < 0]
        made = [at for at, parent in enumerate(parents) if parent >= 0]
        if len(chosen) > MAX_OUTPUTS:
            chosen = np.sort(rng.choice(chosen, MAX_OUTPUTS, replace=False)).tolist()
        if len(chosen) > 1 and len(made) > 2:
            made = np.sort(rng.choice(made, 2, replace=False)).tolist()
        chance = rng.random() if references else 1.0
        which = int(rng.integers(len(references))) if references else 0
        aligned = bool(rng.random() < setting.aligned)
        values = pack.values[begin:end].tolist()
        # Faults of a single output with a rating teach less than other ratings do.
        weight = 1.0 if pack.families[group] in RATED else setting.mqm * len(chosen) ** -0.5
        place: dict[int, int] = {}
        for output in (*chosen, *made):
            parent = parents[output]
            if parent >= 0 and parent not in place:
                continue
            others = [text for at, text in enumerate(references) if at != same[output]]
            if chance < 0.5 and not others:
                continue
            reference = others[which % len(others)] if others else -1
            row = (texts[output], reference if chance < 0.5 else -1, source if not 0.36 <= chance < 0.5 else -1)
            place[output] = len(self.rows)
            self.rows.append(row)
            self.values.append(values[output])
            self.row_weights.append(weight)
            self.tokens += sum([int(pack.lengths[text]) for text in row if text >= 0]) + 4
            if parent >= 0:
                self.made.append((place[parent], place[output]))
            if aligned:
                own = [self._single(text) for text in (texts[output], reference, source)]
                self.aligned.append((place[output], own[0], own[1], own[2]))
        rated = [output for output in chosen if output in place]
        self._order(group, begin, rated, place)
        self.groups += 1

    def _single(self, text: int) -> int:
        if text < 0:
            return -1
        if text not in self.singles:
            self.singles[text] = len(self.singles)
            self.tokens += int(self.pack.lengths[text]) + 2
        return self.singles[text]

    def _order(self, group: int, begin: int, rated: Sequence[int], place: dict[int, int]) -> None:
        """Note which outputs of a group are better than which."""
        arrays, setting = self.pack.arrays, self.setting
        if len(ranked := self.pack.slice("pairs", "pair_starts", group)):
            pairs = [
                (place[better], place[worse]) for better, worse in ranked.tolist() if {better, worse} <= place.keys()
            ]
            if pairs:
                self.pairs.append(np.array(pairs))
                self.weights.append(np.full(len(pairs), np.sqrt(len(rated)) / len(pairs), np.float32))
            return
        if len(rated) < 2:
            return
        at = begin + np.array(rated, np.int64)
        labels = arrays["value"][at].astype(np.float64)
        if np.isnan(labels).any():
            return
        teacher, overlap = arrays["teacher"][at], arrays["overlap"][at]
        if not np.isnan(teacher).any():
            labels = (1 - setting.teacher) * labels + setting.teacher * teacher
        elif len(rated) > 3 and not np.isnan(overlap).any() and overlap.std() > 1e-6:
            labels = labels + setting.overlap * (overlap - overlap.mean()) / overlap.std()
        rows = np.array([place[output] for output in rated])
        self.labels += [(int(row), self.groups, float(label)) for row, label in zip(rows, labels, strict=True)]
        leads = labels[:, None] - labels
        better, worse = np.nonzero(leads > 0.05)
        if len(better):
            weights = np.minimum(leads[better, worse], 2.0)
            self.pairs.append(np.stack((rows[better], rows[worse]), 1))
            self.weights.append((weights / weights.sum() * np.sqrt(len(rated))).astype(np.float32))

    def finish(self) -> Step:
        """Return the arrays of a step, with every number checked: one out of range would stop a GPU."""
        rows = np.array(self.rows, np.int64)
        singles = np.full((len(self.singles), 3), -1, np.int64)
        singles[:, 0] = list(self.singles)
        pairs = np.concatenate(self.pairs) if self.pairs else np.zeros((0, 2), np.int64)
        weights = np.concatenate(self.weights) if self.weights else np.zeros(0, np.float32)
        made = np.array(self.made, np.int64).reshape(-1, 2)
        labels = np.array([label for _, _, label in self.labels], np.float32)
        owners = np.array([(row, group) for row, group, _ in self.labels], np.int64).reshape(-1, 2)
        aligned = np.array(self.aligned, np.int64).reshape(-1, 4)
        # Pairs among aligned rows, by their place in `aligned`.
        place = np.full(len(rows), -1)
        place[aligned[:, 0]] = np.arange(len(aligned))
        both = np.concatenate((pairs, made))
        shares = np.concatenate(
            (weights / max(weights.sum(), 1e-6), np.full(len(made), self.setting.made / max(1, len(made)), np.float32))
        )
        near = place[both]
        kept = (near >= 0).all(1)
        for numbers, limit in (
            (pairs, len(rows)),
            (made, len(rows)),
            (owners[:, 0], len(rows)),
            (near[kept], len(aligned)),
        ):
            if numbers.size and not (numbers.min() >= 0 and numbers.max() < limit):
                raise ValueError(
                    f"a step has numbers from {numbers.min()} to {numbers.max()}, expected 0 to {limit - 1}"
                )
        values = np.array(self.values, np.float32)
        row_weights = np.where(np.isnan(values), 0, np.array(self.row_weights, np.float32))
        counts = np.bincount(owners[:, 1], minlength=self.groups) if len(owners) else np.zeros(self.groups, np.int64)
        return Step(
            {
                "rows": self.pack.write_sequences(rows),
                "singles": self.pack.write_sequences(singles) if len(singles) else None,
                "tokens": self.tokens,
                "pairs": pairs,
                "weights": weights / max(float(weights.sum()), 1e-6),
                "made": made,
                "owners": owners,
                "labels": labels,
                "several": (counts[owners[:, 1]] >= 3).astype(np.float32),
                "counts": np.maximum(counts, 1).astype(np.float32),
                "values": np.nan_to_num(values),
                "row weights": (row_weights / max(float(row_weights.sum()), 1e-6)).astype(np.float32),
                "aligned": aligned,
                "aligned pairs": near[kept],
                "aligned weights": shares[kept].astype(np.float32),
            }
        )


class Step:
    """The content of a step. Workers send arrays through a pipe: shared memory would take a file for each tensor."""

    def __init__(self, content: dict[str, Any]) -> None:
        self.content = content

    def pin_memory(self) -> Step:
        """Called by the loader. Pinned memory is kept until a copy to the device is done; other memory may be used
        again before, and the device would read what stands there then."""
        return Step(to_tensors(self.content, lambda tensor: tensor.pin_memory()))


def to_tensors(content: dict[str, Any], place: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, Any]:
    def convert(value: Any) -> Any:
        if isinstance(value, dict):
            return to_tensors(value, place)
        if isinstance(value, np.ndarray):
            value = torch.from_numpy(np.ascontiguousarray(value))
        return place(value) if isinstance(value, torch.Tensor) else value

    return {name: convert(value) for name, value in content.items()}


def to_device(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(device, non_blocking=True)


class Batches(torch.utils.data.IterableDataset[Step]):
    """Steps of whole groups without end; each worker process has its share of the groups."""

    def __init__(self, pack: Pack, setting: Setting, parts: Sequence[int]) -> None:
        self.pack, self.setting = pack, setting
        arrays = pack.arrays
        self.groups = np.flatnonzero(np.isin(arrays["part"], parts))
        shares = np.ones(len(self.groups))
        shares[np.isin(pack.families[self.groups], RATED)] = setting.direct
        shares[pack.families[self.groups] == "parallel"] = setting.parallel
        shares[arrays["joined"][self.groups] > 0] = setting.joined
        self.shares = shares

    def __iter__(self) -> Iterator[Step]:
        worker = torch.utils.data.get_worker_info()
        number, count = (worker.id, worker.num_workers) if worker else (0, 1)
        rng = np.random.default_rng((self.setting.seed, number))
        while True:
            times = np.floor(self.shares + rng.random(len(self.groups))).astype(np.int64)
            order = rng.permutation(np.repeat(self.groups, times))[number::count]
            drawing = Drawing(self.pack, self.setting, rng)
            for group in order.tolist():
                drawing.add(group)
                if drawing.tokens >= self.setting.tokens:
                    yield drawing.finish()
                    drawing = Drawing(self.pack, self.setting, rng)


# ---- Passes


class Numbers(NamedTuple):
    """Quality and ranking of each row; logits of error and major error of each token of an output; unit vectors of the
    tokens of texts that were read alone."""

    whole: torch.Tensor
    tokens: torch.Tensor
    alone: torch.Tensor | None


def read(network: Encoder, batch: dict[str, Any]) -> Numbers:
    """Read the rows of a batch on the device, and its texts alone."""
    with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
        states, alone = network(batch)
    rows, heads = batch["rows"], network.heads
    # In 16 bits, outputs that differ little would be equal.
    own = states.float().index_select(0, rows["own"])
    sums = torch.zeros(len(rows["sizes"]), WIDTH, device=device).index_add(0, rows["owner"], own)
    mean = sums / rows["sizes"][:, None].clamp(min=1)
    whole = torch.cat([heads[name](mean) for name in HEADS[:2]], -1)
    tokens = torch.cat([heads[name](own) for name in HEADS[2:]], -1)
    return Numbers(whole, tokens, None if alone is None else functional.normalize(alone.float(), dim=-1))


def align(vectors: torch.Tensor, singles: dict[str, Any], pairs: torch.Tensor) -> torch.Tensor:
    """Return precision and recall of greedy matching, [pairs, 2], of texts (output, other); 0 where one is missing."""
    width = singles["longest"] - 2
    at = torch.arange(width, device=device)[None]
    sides, masks = [], []
    for column in range(2):
        text = pairs[:, column].clamp(min=0)
        masks.append(at < singles["sizes"][text][:, None])
        places = (singles["first"][text][:, None] + 1 + at).clamp(max=len(vectors) - 1)
        sides.append(vectors.index_select(0, places.flatten()).view(len(pairs), width, WIDTH))
    cosines = torch.bmm(sides[0], sides[1].transpose(1, 2))
    results = []
    for ours, theirs, table in ((masks[0], masks[1], cosines), (masks[1], masks[0], cosines.transpose(1, 2))):
        best = table.masked_fill(~theirs[:, None], -1.0).amax(2)
        results.append((best * ours).sum(1) / ours.sum(1).clamp(min=1))
    known = (pairs >= 0).all(1)
    return torch.stack(results, 1) * known[:, None]


# ---- Losses


def compute_loss(network: Encoder, batch: dict[str, Any], setting: Setting) -> torch.Tensor:
    whole, tokens, alone = read(network, batch)
    quality, ranking = whole.unbind(1)
    losses = functional.smooth_l1_loss(quality, batch["values"], reduction="none")
    loss: torch.Tensor = setting.regression * (losses * batch["row weights"]).sum()
    if len(batch["pairs"]):
        leads = ranking[batch["pairs"][:, 0]] - ranking[batch["pairs"][:, 1]]
        loss = loss + setting.order * (functional.softplus(-leads) * batch["weights"]).sum()
    if len(batch["made"]):
        leads = ranking[batch["made"][:, 0]] - ranking[batch["made"][:, 1]]
        loss = loss + setting.made * functional.softplus(1 - leads).mean()
    if len(batch["labels"]):
        loss = loss + setting.centre * compute_centred_loss(ranking, batch)
    loss = loss + setting.tags * compute_tag_loss(tokens, batch["rows"]["tags"])
    if alone is not None and len(batch["aligned pairs"]):
        loss = loss + setting.alignment * compute_alignment_loss(network, alone, batch)
    return loss


def compute_centred_loss(scores: torch.Tensor, known: Tensors) -> torch.Tensor:
    """Compare differences from the mean of a group, so that equal ratings count as well."""
    rows, groups = known["owners"].unbind(1)
    counts = known["counts"]
    centred = []
    for own in (scores[rows], known["labels"]):
        means = torch.zeros_like(counts).index_add(0, groups, own) / counts
        centred.append(own - means[groups])
    losses = functional.smooth_l1_loss(centred[0], centred[1], reduction="none")
    return (losses * known["several"]).sum() / known["several"].sum().clamp(min=1)


def compute_tag_loss(logits: torch.Tensor, tags: torch.Tensor) -> torch.Tensor:
    tagged, error, major = (tags >= 0).float(), (tags > 0).float(), (tags > 1).float()
    cross_entropy = functional.binary_cross_entropy_with_logits
    losses = cross_entropy(logits, torch.stack((error, major), -1), reduction="none")
    total = ((losses[:, 0] * (1 + error + major) + losses[:, 1] * (1 + major)) * tagged).sum()
    return total / tagged.sum().clamp(min=1)


def compute_alignment_loss(network: Encoder, alone: torch.Tensor, batch: dict[str, Any]) -> torch.Tensor:
    """Order outputs by their match with the reference, and by their match with the source."""
    aligned, pairs = batch["aligned"], batch["aligned pairs"]
    loss = torch.zeros((), device=device)
    for kind, column in enumerate((2, 3)):
        texts = aligned[:, (1, column)]
        matches = align(alone, batch["singles"], texts)
        scores = (matches * network.alignments[2 * kind : 2 * kind + 2]).sum(1)
        there = (texts >= 0).all(1).float()
        weights = batch["aligned weights"] * there[pairs[:, 0]] * there[pairs[:, 1]]
        leads = scores[pairs[:, 0]] - scores[pairs[:, 1]]
        loss = loss + (functional.softplus(-leads) * weights).sum() / weights.sum().clamp(min=1e-6)
    return loss


# ---- Agreement on held-out sets


def compute_acc_eq(groups: Sequence[tuple[Array, Array]]) -> float:
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
    if not count:
        return float("nan")
    order = np.argsort(np.concatenate(differences), kind="stable")
    return float((zero + np.concatenate(([0], np.cumsum(np.concatenate(gains)[order])))).max() / count)


@torch.no_grad()
def score_rows(network: Encoder, pack: Pack, rows: Array, texts: Array) -> tuple[NDArray[np.float32], Array]:
    """Return quality, ranking, the expected MQM penalty and the four alignments of each row, and F1 of the tags at each
    threshold; `texts` are output, reference and source, whether the row has them or not."""
    network.eval()
    thresholds = torch.tensor(THRESHOLDS, device=device)
    #: Tokens that are marked by the model, by people, by both.
    counts = torch.zeros(len(THRESHOLDS), 3, device=device)
    results = np.zeros((len(rows), 3 + len(ALIGNMENTS)), np.float32)
    penalties = torch.tensor([1.0, 4.0], device=device)
    for begin in range(0, len(rows), 1_024):
        part = slice(begin, min(begin + 1_024, len(rows)))
        numbers, inverse = np.unique(texts[part], return_inverse=True)
        near = inverse.reshape(-1, 3) - (numbers[0] < 0)
        numbers = numbers[numbers >= 0]
        singles = np.full((len(numbers), 3), -1, np.int64)
        singles[:, 0] = numbers
        content = {"rows": pack.write_sequences(rows[part]), "singles": pack.write_sequences(singles)}
        batch = to_tensors(content, to_device)
        whole, logits, alone = read(network, batch)
        own, tags = batch["rows"]["owner"], batch["rows"]["tags"]
        weighted = (logits.sigmoid() * penalties).sum(-1)
        penalty = torch.zeros(len(whole), device=device).index_add(0, own, weighted)
        known = (tags >= 0)[:, None]
        marked = (logits[:, :1].sigmoid() > thresholds) & known
        wrong = ((tags > 0)[:, None] & known).expand(marked.shape)
        counts += torch.stack([flags.sum(0).float() for flags in (marked, wrong, marked & wrong)], 1)
        columns = [whole, penalty[:, None]]
        pairs = torch.from_numpy(near).to(device)
        for column in (1, 2):
            # The cosines of all pairs at once would not fit.
            columns.append(
                torch.cat([align(alone, batch["singles"], block[:, (0, column)]) for block in torch.split(pairs, 256)])  # type: ignore[arg-type]
            )
        results[part] = torch.cat(columns, 1).cpu().numpy()
    network.train()
    totals = counts.cpu().numpy()
    return results, 2 * totals[:, 2] / np.maximum(totals[:, 0] + totals[:, 1], 1)


def measure(network: Encoder, pack: Pack, part: int, out: Path, most: int) -> dict[str, Any]:
    """Measure agreement on every held-out set, with source, reference or both, and keep the numbers."""
    arrays = pack.arrays
    table: dict[str, Any] = {}
    stored: dict[str, Array] = {}
    chosen = (arrays["part"] == part) & ~arrays["seen"] & (pack.families != "parallel")
    for at, name in enumerate(pack.names):
        for joined in (False, True):
            numbers = np.flatnonzero(chosen & (arrays["set"] == at) & ((arrays["joined"] > 0) == joined))
            outputs = np.diff(arrays["output_starts"])[numbers].mean() if len(numbers) else 1
            # Correlations over sources need more outputs than the order within sources.
            wanted = most if name.startswith(RATED) else most / 2
            numbers = numbers[:: max(1, int(len(numbers) * outputs / wanted))]
            for mode in ("source", "both", "reference"):
                rows, texts, owners = list_rows(pack, numbers, mode)
                if len(rows) < 2:
                    continue
                scores, agreement = score_rows(network, pack, rows, texts)
                key = f"{name} {'joined ' if joined else ''}{mode}"
                extra = np.stack([arrays[column][owners[:, 2]] for column in ("value", "overlap")], 1)
                facts = np.stack((arrays["number"][owners[:, 0]], arrays["place"][owners[:, 2]]), 1)
                stored[key] = np.column_stack((scores, extra, owners[:, 0], facts)).astype(np.float32)
                table[key] = summarize(pack, stored[key], owners, mode)
                if agreement.any():
                    table[key]["F1"] = dict(zip(map(str, THRESHOLDS), agreement.tolist(), strict=True))
    np.savez_compressed(out.with_suffix(".npz"), **stored)  # type: ignore[arg-type]
    choice = summarize_all(table)
    table["choice"] = choice
    out.with_suffix(".json").write_text(json.dumps(table, indent=1))
    return table


def list_rows(pack: Pack, groups: Array, mode: str) -> tuple[Array, Array, Array]:
    """Return rows, their texts, and (group, place, output) of each. Human translations and made faults are left out."""
    arrays = pack.arrays
    rows, texts, owners = [], [], []
    for group in groups.tolist():
        begin, end = arrays["output_starts"][group : group + 2].tolist()
        references = pack.slice("references", "reference_starts", group).tolist()
        source = int(arrays["source"][group])
        for output in range(begin, end):
            others = [text for at, text in enumerate(references) if at != arrays["same"][output]]
            if arrays["parent"][output] >= 0 or arrays["human"][output] or (not others and mode != "source"):
                continue
            reference, text = others[0] if others else -1, int(arrays["text"][output])
            rows.append((text, -1 if mode == "source" else reference, -1 if mode == "reference" else source))
            texts.append((text, reference, source))
            owners.append((group, output - begin, output))
    return tuple(np.array(part, np.int64).reshape(-1, 3) for part in (rows, texts, owners))  # type: ignore[return-value]


def summarize(pack: Pack, numbers: Array, owners: Array, mode: str) -> dict[str, Any]:
    """Return, for each number: Spearman over all outputs; by source acc_eq, and the share of ranked pairs in order."""
    columns = {"quality": numbers[:, 0], "ranking": numbers[:, 1], "tags": -np.log1p(numbers[:, 2])}
    columns["sum"] = columns["quality"] + columns["ranking"]
    kinds = [0, 1] if mode == "reference" else [2, 3] if mode == "source" else [0, 1, 2, 3]
    columns |= {ALIGNMENTS[kind]: numbers[:, 3 + kind] for kind in kinds}
    if mode != "source":
        columns["overlap"] = numbers[:, 8]
        columns["all"] = columns["sum"] + 8 * (numbers[:, 3] + numbers[:, 4])
    values = numbers[:, 7]
    by_group: dict[int, list[int]] = defaultdict(list)
    for row, group in enumerate(owners[:, 0].tolist()):
        by_group[group].append(row)
    pairs = list_pairs(pack, owners, by_group, values)
    several = [np.array(rows) for rows in by_group.values() if len(rows) > 1]
    results: dict[str, Any] = {"outputs": len(numbers), "groups": len(by_group)}
    for name, column in columns.items():
        result = {}
        if len(pairs):
            result["pairs"] = float((column[pairs[:, 0]] > column[pairs[:, 1]]).mean())
        if not np.isnan(values).any():
            result["spearman"] = float(spearmanr(column, values)[0])
            if several:
                result["acc_eq"] = compute_acc_eq([(column[rows], values[rows]) for rows in several])
        results[name] = result
    return results


def list_pairs(pack: Pack, owners: Array, by_group: dict[int, list[int]], values: Array) -> Array:
    """Return (better, worse) rows: pairs that people ranked, or outputs of one source with different ratings."""
    pairs = []
    for group, rows in by_group.items():
        place = {int(owners[row, 1]): row for row in rows}
        ranked = pack.slice("pairs", "pair_starts", group).tolist()
        pairs += [(place[better], place[worse]) for better, worse in ranked if {better, worse} <= place.keys()]
        if not ranked and len(rows) > 1:
            own = values[rows]
            better, worse = np.nonzero(own[:, None] > own)
            pairs += [(rows[i], rows[j]) for i, j in zip(better.tolist(), worse.tolist(), strict=True)]
    return np.array(pairs, np.int64).reshape(-1, 2)


def summarize_all(table: dict[str, Any]) -> dict[str, float]:
    """Return what trainings are chosen by: the order of outputs of one source, without and with a reference (mean of
    acc_eq and pairs), the correlation with ratings over sources, each a mean over data sets, and the sum of the three.
    """

    def average(mode: str, column: str, figures: Sequence[str], families: tuple[str, ...]) -> float:
        found = [
            results[column][figure]
            for key, results in table.items()
            for figure in figures
            if key.startswith(families) and key.endswith(f" {mode}") and figure in results.get(column, {})
        ]
        # Of a very small set, all numbers or ratings may be equal.
        found = [number for number in found if not np.isnan(number)]
        return float(np.mean(found)) if found else 0.0

    choice = {
        "order": average("source", "ranking", ("acc_eq", "pairs"), ("wmt22", "wmt-qe23-mqm", "wmt19", "bio")),
        "order with reference": average("both", "all", ("acc_eq", "pairs"), ("wmt22", "wmt-qe23-mqm", "wmt19", "bio")),
        "ratings": average("source", "quality", ("spearman",), RATED),
    }
    return choice | {"sum": sum(choice.values())}


# ---- Training


def list_rates(network: Encoder, setting: Setting) -> list[dict[str, Any]]:
    """Return groups of parameters: lower layers learn more slowly, tables and biases do not decay."""
    groups: dict[tuple[float, float], list[nn.Parameter]] = defaultdict(list)
    for name, parameter in network.named_parameters():
        if not parameter.requires_grad:
            continue
        parts = name.split(".")
        height = int(parts[1]) + 1 if parts[0] == "blocks" else 0
        share = 1.0 if parts[0] in ("heads", "alignments") else setting.layer_rate ** (LAYERS - height)
        decay = setting.decay if parameter.ndim > 1 and parts[0] == "blocks" else 0.0
        groups[share * (10 if parts[0] == "alignments" else 1), decay].append(parameter)
    return [
        {"params": parameters, "weight_decay": decay, "share": share} for (share, decay), parameters in groups.items()
    ]


def train(
    network: Encoder, pack: Pack, setting: Setting, parts: Sequence[int], seconds: float, workers: int, steps: int
) -> None:
    """Train for so many seconds (or steps, if fewer); leave the running mean of the weights."""
    network.train()
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(
        list_rates(network, setting), lr=setting.rate, betas=(0.9, 0.98), fused=device == "cuda"
    )
    means = [parameter.detach().clone() for parameter in trained]
    batches = Batches(pack, setting, parts)
    loader = torch.utils.data.DataLoader(
        batches,
        batch_size=None,
        num_workers=workers,
        prefetch_factor=16 if workers else None,
        pin_memory=device == "cuda",
    )
    begin, seen, losses = time.monotonic(), 0, []
    print(f"{len(batches.groups):,} groups, {batches.shares.sum():,.0f} of them an epoch", flush=True)
    for step, drawn in enumerate(loader):
        share = max((time.monotonic() - begin) / seconds, step / steps)
        if share >= 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = setting.rate * group["share"] * min(1, (step + 1) / setting.warm_up) * max(0.02, 1 - share)
        batch = to_tensors(drawn.content, to_device)
        loss = compute_loss(network, batch, setting)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(trained, 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seen += batch["tokens"]
        keep = min(setting.averaging, (step + 2) / (step + 21))
        with torch.no_grad():
            torch._foreach_lerp_(means, [parameter.detach() for parameter in trained], 1 - keep)
        losses.append(loss.detach())
        if (step + 1) % (100 if device == "cuda" else 5) == 0:
            passed = time.monotonic() - begin
            recent = torch.stack(losses).mean().item()
            speed = seen / passed
            print(
                f"step {step + 1}, {passed:.0f} s, {seen / 1e6:.1f} M tokens, {speed:,.0f} a second, loss {recent:.3f}",
                flush=True,
            )
            losses.clear()
    with torch.no_grad():
        for parameter, mean in zip(trained, means, strict=True):
            parameter.copy_(mean)
    print(f"{step} steps, {seen / 1e6:.1f} M tokens, {time.monotonic() - begin:.0f} s", flush=True)


def choose(out: Path, names: Sequence[str]) -> str:
    found = {}
    for name in names:
        if (file := out / f"{name}.json").exists():
            found[name] = json.loads(file.read_text())["choice"]["sum"]
    return max(found, key=lambda name: found[name]) if found else names[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", type=Path)
    parser.add_argument("pack", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--setting", choices=SETTINGS, default="a")
    parser.add_argument("--seconds", type=float, default=150)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--tokens", type=int, help="of a step, for a trial on a CPU")
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--all", action="store_true", help="train on the hard sets, too")
    parser.add_argument("--start", type=Path, help="a training to go on with")
    parser.add_argument("--name", help="of the files in OUT")
    parser.add_argument("--most", type=int, default=4_000, help="outputs of a held-out set")
    parser.add_argument("--choose", nargs="+", metavar="NAME")
    arguments = parser.parse_args()
    if arguments.choose:
        print(choose(arguments.out, arguments.choose))
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    setting = SETTINGS[arguments.setting]
    setting = replace(setting, tokens=arguments.tokens or setting.tokens)
    torch.manual_seed(setting.seed)
    torch.set_float32_matmul_precision("high")
    pack = Pack(arguments.pack)
    state = load_base(arguments.base / "base.npz")
    if len(state["words.weight"]) != pack.pieces:
        raise SystemExit(f"{arguments.base} has {len(state['words.weight']):,} pieces, the pack has {pack.pieces:,}")
    network = Encoder(pack.pieces, setting)
    network.load_state_dict(state, strict=False)
    if arguments.start:
        start = torch.load(arguments.start, weights_only=True)
        network.load_state_dict({name: array.float() for name, array in start.items()}, strict=False)
    network.to(device)
    if setting.ranks:
        pack.rank_values()
    parts, held_out = ((TRAIN, HARD), DEV) if arguments.all else ((TRAIN,), HARD)
    train(network, pack, setting, parts, arguments.seconds, arguments.workers, arguments.steps)
    name = arguments.out / (arguments.name or arguments.setting)
    trained = {name: p.detach().half().cpu() for name, p in network.named_parameters() if p.requires_grad}
    torch.save(trained, name.with_suffix(".pt"))
    begin = time.monotonic()
    table = measure(network, pack, held_out, name, arguments.most)
    print(f"measured in {time.monotonic() - begin:.0f} s, {json.dumps(table['choice'])}", flush=True)
    for key, row in table.items():
        if key != "choice":
            figures = {name: {k: round(v, 3) for k, v in own.items()} for name, own in row.items() if type(own) is dict}
            print(key, row["outputs"], row["groups"], json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
