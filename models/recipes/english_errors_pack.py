"""Pack the rows of a training of the head `errors` into arrays, so that the training only copies them.

    python english_errors_pack.py DATA PACK/support.npz --tasks support
    python english_errors_pack.py DATA PACK/others.npz --tasks preference fluency [--rows 60000 --dev-rows 3000]

DATA is the folder that `english_train.py` reads: support.json, pairs.json, fluency.json and tokenizer.json. The rows of
the head `support` have a label for each token of their sentences: 1 if the passage does not support it, 0 if it does,
-1 if nothing is known. The rows of the other heads are there to keep these heads as they are: --rows limits them.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from english_errors_train import HUMAN
from english_model import HEADS
from english_train import Example, Ids, Reader, choose_window
from numpy.typing import NDArray

_CLS, _SEP = np.array([101], np.uint16), np.array([102], np.uint16)
_MAX_SENTENCE = 120
_NO_LABEL = -1
#: A sentence with a lower label has an error somewhere.
_WRONG = 0.15
#: Sets of captions, tables and claims, of which a part is enough.
_FAR, _MOST_OF_FAR = ("esnli", "infotabs", "climate-fever"), 3_000


class Packer:
    """Collects the rows of one part of the data.

    A unit is a span of a row with the head that reads it, a label (NaN: none) and the unit that it should exceed (-1:
    none). `any` says that a token of the unit is an error, nobody knows which."""

    def __init__(self) -> None:
        self.ids: list[Ids] = []
        self.labels: list[NDArray[np.int8]] = []
        self.firsts: list[int] = []
        self.sets: list[int] = []
        self.names: dict[str, int] = {}
        self.units: list[tuple[int, int, int, int, float, int, bool]] = []

    def add_row(self, ids: Ids, first: int, name: str, labels: NDArray[np.int8] | None = None) -> int:
        self.ids.append(ids)
        self.labels.append(np.full(len(ids), _NO_LABEL, np.int8) if labels is None else labels)
        self.firsts.append(first)
        self.sets.append(self.names.setdefault(name, len(self.names)))
        return len(self.ids) - 1

    def add_unit(
        self, row: int, start: int, end: int, head: str, label: float, *, worse: int = -1, anywhere: bool = False
    ) -> int:
        self.units.append((row, start, end, HEADS.index(head), label, worse, anywhere))
        return len(self.units) - 1

    def arrays(self, prefix: str) -> dict[str, NDArray[Any]]:
        rows, starts, ends, heads, labels, worse, anywhere = zip(*self.units, strict=True)
        parts = {
            "ids": np.concatenate(self.ids).astype(np.uint16),
            "labels": np.concatenate(self.labels),
            "lengths": np.array([len(ids) for ids in self.ids], np.uint16),
            "firsts": np.array(self.firsts, np.uint16),
            "sets": np.array(self.sets, np.uint16),
            "names": np.array(list(self.names)),
            "unit_rows": np.array(rows, np.int32),
            "unit_starts": np.array(starts, np.uint16),
            "unit_ends": np.array(ends, np.uint16),
            "unit_heads": np.array(heads, np.uint8),
            "unit_labels": np.array(labels, np.float32),
            "unit_worse": np.array(worse, np.int32),
            "unit_any": np.array(anywhere, bool),
        }
        return {f"{prefix}.{name}": array for name, array in parts.items()}


def pack_support(reader: Reader, stored: dict[str, Any], part: str) -> Packer:
    packer, rows = Packer(), stored[part]
    used = sorted({row[0] for row in rows})
    passages = dict(zip(used, reader.encode([stored["passages"][number] for number in used]), strict=True))
    texts = [sentence[0] for _, sentences, _ in rows for sentence in sentences]
    encodings = (
        encoding
        for start in range(0, len(texts), 20_000)
        for encoding in reader.tokenizer.encode_batch(texts[start : start + 20_000], add_special_tokens=False)
    )
    for passage, sentences, name in rows:
        parts, labels, units, size = [_CLS], [np.array([_NO_LABEL], np.int8)], [], 1
        for _, label, _, errors, unsure in sentences:
            encoding = next(encodings)
            ids = np.array(encoding.ids, np.uint16)[:_MAX_SENTENCE]
            if not len(ids) or (units and size + len(ids) > reader.length // 2):
                continue
            parts.append(ids)
            labels.append(label_tokens(encoding.offsets[: len(ids)], errors, unsure))
            units.append((size, size + len(ids), label, errors is None and label < _WRONG))
            size += len(ids)
        if not units:
            continue
        own = np.concatenate((*parts, _SEP))
        window = choose_window(passages[passage], own, reader.length - len(own) - 1)
        ids = np.concatenate((own, window, _SEP))
        known = np.concatenate((*labels, np.full(len(ids) - size, _NO_LABEL, np.int8)))
        row = packer.add_row(ids, len(own), name, known)
        for start, end, label, anywhere in units:
            packer.add_unit(row, start, end, "support", label, anywhere=anywhere)
    return packer


def limit_sets(rows: Sequence[Any]) -> list[Any]:
    """Keep some rows of the sets that are farthest from summaries; rows are in random order."""
    counts: Counter[str] = Counter()
    kept = []
    for row in rows:
        counts[row[2]] += 1
        if row[2] not in _FAR or counts[row[2]] <= _MOST_OF_FAR:
            kept.append(row)
    return kept


def label_tokens(
    offsets: Sequence[tuple[int, int]], errors: Iterable[Sequence[int]] | None, unsure: Iterable[Sequence[int]]
) -> NDArray[np.int8]:
    """Return 1 for tokens in errors, -1 for unsure ones and if nobody marked errors, and 0 for the rest."""
    if errors is None:
        return np.full(len(offsets), _NO_LABEL, np.int8)
    starts, ends = np.array(offsets, np.int64).reshape(-1, 2).T
    labels = np.zeros(len(offsets), np.int8)
    for spans, label in ((errors, 1), (unsure, _NO_LABEL)):
        for first, last in spans:
            labels[(starts < last) & (ends > first)] = label
    return labels


def pack_preference(examples: Sequence[Example], count: int, rng: random.Random) -> Packer:
    packer = Packer()
    for example in rng.sample(examples, min(count, len(examples))):
        units = []
        for row in reversed(example.rows):
            number = packer.add_row(row.ids, len(row.ids), example.name)
            worse = units[0] if units else -1
            units.append(packer.add_unit(number, row.first, len(row.ids), "preference", np.nan, worse=worse))
    return packer


def pack_fluency(examples: Sequence[Example], count: int, rng: random.Random) -> Packer:
    packer = Packer()
    for example in rng.sample(examples, min(count, len(examples))):
        kind, label, _ = example.target
        name, units = f"{kind} {example.name}", []
        for row in reversed(example.rows):
            labels = None
            if kind == "tags":
                labels = np.full(len(row.ids), _NO_LABEL, np.int8)
                labels[1 : 1 + len(label)] = np.array(label, np.int8)
            number = packer.add_row(row.ids, len(row.ids), name, labels)
            worse = units[0] if units else -1
            value = label if kind == "text" else np.nan
            units.append(packer.add_unit(number, 1, len(row.ids) - 1, "fluency", value, worse=worse))
    return packer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tasks", nargs="+", default=["support", "preference", "fluency"])
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--dev-rows", type=int, default=3_000)
    parser.add_argument("--seed", type=int, default=16)
    arguments = parser.parse_args()
    reader, rng = Reader(arguments.data, 512), random.Random(arguments.seed)
    arrays: dict[str, NDArray[Any]] = {}
    packers: dict[str, Packer] = {}
    sides = (("train", arguments.rows), ("dev", arguments.dev_rows))
    if "support" in arguments.tasks:
        stored = reader.load("support.json")
        marked, others = ([row for row in stored["dev"] if (row[2] in HUMAN) is human] for human in (True, False))
        stored["dev"] = [*marked, *rng.sample(others, min(2 * arguments.dev_rows, len(others)))]
        stored["train"] = limit_sets(stored["train"])
        packers |= {f"{part}.support": pack_support(reader, stored, part) for part, _ in sides}
    for task, read, pack in (
        ("preference", reader.read_pairs, pack_preference),
        ("fluency", reader.read_fluency, pack_fluency),
    ):
        if task in arguments.tasks:
            for (part, count), examples in zip(sides, read(), strict=True):
                packers[f"{part}.{task}"] = pack(examples, count, rng)
    for name, packer in packers.items():
        arrays |= packer.arrays(name)
        tokens = sum(map(len, packer.ids))
        labels = np.concatenate(packer.labels)
        print(
            f"{name}: {len(packer.ids):,} rows, {tokens / 1e6:.1f} M tokens, {len(packer.units):,} units, "
            f"{int((labels == 0).sum()):,} right and {int((labels == 1).sum()):,} wrong tokens"
        )
    np.savez_compressed(arguments.out, **arrays)


if __name__ == "__main__":
    main()
