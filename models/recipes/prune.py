"""A smaller vocabulary: pieces that texts use stay, the others go with their rows of the embeddings and the head.

Single characters always stay, so that whatever could be written with the old pieces can be written with the new ones;
a word whose piece is gone is written with shorter ones.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from agreement import DATA, rows
from rebuild import Arrays

#: Families that the shipped model is judged on: their texts choose nothing and train nothing.
JUDGED = {"summeval", "realsumm", "newsroom", "qags", "rank19", "bagel", "sfres", "sfhot"}
#: Distinct texts taken of each side of a file: data sets shall not count by their size alone.
_PER_FILE = 4000
#: The last pieces of T5's vocabulary stand for gaps in its first training; no text has them.
_SENTINELS = 100
#: What a piece counts in a text that is not English: the model knows little of other languages.
_FOREIGN = 0.1


def usable() -> list[str]:
    """Names of the files that weights which ship may learn from, less the judged families."""
    with (DATA / "INDEX.tsv").open(encoding="utf-8") as file:
        index = list(csv.DictReader(file, delimiter="\t"))
    return [row["file"] for row in index if row["may_train"] in ("yes", "card") and row["family"] not in JUDGED]


def languages(name: str) -> tuple[str, str]:
    """The language of a file's sources and of its outputs, which its name says where it is not English."""
    said = name.partition(".")[2] or "en"
    source, _, output = said.partition("-")
    return source, output or source


def texts(name: str) -> Iterator[tuple[str, list[str]]]:
    """(language, distinct texts) of a file's sources and of its outputs and references."""
    sides: tuple[dict[str, None], dict[str, None]] = ({}, {})
    for row in rows(name):
        outputs = [row.get("output"), *(row.get("references") or ()), *(row.get("outputs") or ())]
        outputs += [text for side in ("good", "bad") for _, text in row.get(side) or ()]
        for side, fields in zip(sides, ([row.get("source")], outputs), strict=True):
            if len(side) < _PER_FILE:
                side |= dict.fromkeys(text for text in fields if isinstance(text, str))
    yield from zip(languages(name), map(list, sides), strict=True)


def counts(tokenizer: Any) -> Counter[int]:
    """How often the usable texts have each piece, English ones above all."""
    found: Counter[int] = Counter()
    for name in usable():
        for language, some in texts(name):
            seen = Counter(n for one in tokenizer.encode_batch(some, add_special_tokens=False) for n in one.ids)
            weight = 1 if language == "en" else _FOREIGN
            found.update({n: times * weight for n, times in seen.items()})
    return found


def by_use(tokenizer: Any) -> list[int]:
    """All pieces but the special ones, the most used first.

    Pieces with the same count are taken in the vocabulary's order, which is that of their frequency on the web.
    """
    seen = counts(tokenizer)
    return sorted(range(3, len(_vocabulary(tokenizer)) - _SENTINELS), key=lambda n: (-seen[n], n))


def kept_of(tokenizer: Any, order: list[int], size: int) -> list[int]:
    """The pieces to keep, in their old order: special ones, single characters, then the first of `order`."""
    kept = {0, 1, 2}
    kept |= {n for n, (piece, _) in enumerate(_vocabulary(tokenizer)) if len(piece.removeprefix("▁")) <= 1}
    for n in order:
        if len(kept) >= size:
            break
        kept.add(n)
    return sorted(kept)


def _vocabulary(tokenizer: Any) -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = json.loads(tokenizer.to_str())["model"]["vocab"]
    return found


def pruned_tokenizer(tokenizer: Any, kept: list[int]) -> Any:
    """The tokenizer with these pieces alone, numbered anew."""
    from tokenizers import Tokenizer

    told = json.loads(tokenizer.to_str())
    told["model"]["vocab"] = [told["model"]["vocab"][n] for n in kept]
    told["added_tokens"] = [token for token in told["added_tokens"] if token["id"] < 3]
    return Tokenizer.from_str(json.dumps(told))


def pruned_weights(weights: Arrays, kept: list[int]) -> Arrays:
    """The weights with these rows of the vocabulary alone."""
    return {
        name: np.ascontiguousarray(array[kept]) if name in ("shared.weight", "lm_head.weight") else array
        for name, array in weights.items()
    }


def longer_by(before: Any, after: Any, name: str) -> float:
    """By which share a data set's texts grow in tokens."""
    all_texts = [text for _, some in texts(name) for text in some]
    lengths = [sum(len(one.ids) for one in tokenizer.encode_batch(all_texts)) for tokenizer in (before, after)]
    return lengths[1] / lengths[0] - 1
