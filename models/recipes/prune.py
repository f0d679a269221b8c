"""Shrink a vocabulary: keep the pieces that texts use, remove the others with their rows of embeddings and head.

Single characters always stay, so the new pieces can spell everything that the old ones could; a word whose piece is
removed is spelled with shorter ones.
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

#: Families that the shipped model is tested on: their texts are used for no choice and no training.
JUDGED = {"summeval", "realsumm", "newsroom", "qags", "rank19", "bagel", "sfres", "sfhot"}
#: Distinct texts per side of a file, so that large data sets do not dominate.
_PER_FILE = 4000
#: The last pieces of T5's vocabulary mark gaps in its pre-training; no text contains them.
_SENTINELS = 100
#: The weight of pieces in texts that are not English: the model knows little of other languages.
_FOREIGN = 0.1


def list_training_files() -> list[str]:
    """Return the files that shipped weights may be trained on, without the test families."""
    with (DATA / "INDEX.tsv").open(encoding="utf-8") as file:
        index = list(csv.DictReader(file, delimiter="\t"))
    return [row["file"] for row in index if row["may_train"] in ("yes", "card") and row["family"] not in JUDGED]


def languages(name: str) -> tuple[str, str]:
    """Return the languages of a file's sources and outputs; its name contains them if they are not English."""
    codes = name.partition(".")[2] or "en"
    source, _, output = codes.partition("-")
    return source, output or source


def texts(name: str) -> Iterator[tuple[str, list[str]]]:
    """Yield (language, distinct texts) of a file's sources, and of its outputs and references."""
    sides: tuple[dict[str, None], dict[str, None]] = ({}, {})
    for row in rows(name):
        outputs = [row.get("output"), *(row.get("references") or ()), *(row.get("outputs") or ())]
        outputs += [text for side in ("good", "bad") for _, text in row.get(side) or ()]
        for side, fields in zip(sides, ([row.get("source")], outputs), strict=True):
            if len(side) < _PER_FILE:
                side |= dict.fromkeys(text for text in fields if isinstance(text, str))
    yield from zip(languages(name), map(list, sides), strict=True)


def count_pieces(tokenizer: Any) -> Counter[int]:
    """Count the pieces in the training texts, English ones above all."""
    result: Counter[int] = Counter()
    for name in list_training_files():
        for language, group in texts(name):
            seen = Counter(
                n for encoding in tokenizer.encode_batch(group, add_special_tokens=False) for n in encoding.ids
            )
            weight = 1 if language == "en" else _FOREIGN
            result.update({n: times * weight for n, times in seen.items()})
    return result


def rank_pieces(tokenizer: Any) -> list[int]:
    """Return all pieces but the special ones, the most used first. Pieces with equal counts keep the vocabulary's
    order, which is that of their frequency on the web."""
    seen = count_pieces(tokenizer)
    return sorted(range(3, len(_vocabulary(tokenizer)) - _SENTINELS), key=lambda n: (-seen[n], n))


def choose_pieces(tokenizer: Any, order: list[int], size: int) -> list[int]:
    """Return the pieces to keep, in their old order: special ones, single characters, then the first of `order`."""
    selected = {0, 1, 2}
    selected |= {n for n, (piece, _) in enumerate(_vocabulary(tokenizer)) if len(piece.removeprefix("▁")) <= 1}
    for n in order:
        if len(selected) >= size:
            break
        selected.add(n)
    return sorted(selected)


def _vocabulary(tokenizer: Any) -> list[tuple[str, float]]:
    result: list[tuple[str, float]] = json.loads(tokenizer.to_str())["model"]["vocab"]
    return result


def prune_tokenizer(tokenizer: Any, selected: list[int]) -> Any:
    """Return a tokenizer with only these pieces, renumbered."""
    from tokenizers import Tokenizer

    state = json.loads(tokenizer.to_str())
    state["model"]["vocab"] = [state["model"]["vocab"][n] for n in selected]
    state["added_tokens"] = [token for token in state["added_tokens"] if token["id"] < 3]
    return Tokenizer.from_str(json.dumps(state))


def prune_weights(weights: Arrays, selected: list[int]) -> Arrays:
    """Return the weights with only these rows of the vocabulary."""
    return {
        name: np.ascontiguousarray(array[selected]) if name in ("shared.weight", "lm_head.weight") else array
        for name, array in weights.items()
    }


def growth(before: Any, after: Any, name: str) -> float:
    """Return by which share a data set's texts grow in tokens."""
    all_texts = [text for _, group in texts(name) for text in group]
    lengths = [
        sum(len(encoding.ids) for encoding in tokenizer.encode_batch(all_texts)) for tokenizer in (before, after)
    ]
    return lengths[1] / lengths[0] - 1
