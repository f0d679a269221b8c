"""Development data set apart from training data, with equal texts on one side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from metrist.errors import InputError
from metrist.train.text_pairs import TextPair


def split(pairs: Sequence[TextPair], share: float, seed: int) -> tuple[list[TextPair], list[TextPair]]:
    """Training and development pairs, each in the order given. Pairs that share a text, on whichever side, stay
    together, so that no development text was seen in training; the share is reached as nearly as that allows."""
    together: dict[int, list[int]] = {}
    for number, group in enumerate(_groups(pairs)):
        together.setdefault(group, []).append(number)
    members = list(together.values())
    wanted = max(1, round(share * len(pairs)))
    chosen: set[int] = set()
    for at in np.random.default_rng([seed, 1]).permutation(len(members)):
        if len(chosen) + len(members[at]) <= wanted:
            chosen.update(members[at])
    if not chosen:
        least = min(map(len, members))
        raise InputError(
            f"{wanted:,} of {len(pairs):,} pairs cannot be set apart: the smallest group of pairs that share a text "
            f"has {least:,}; give development data of its own (--dev FILE) or a larger share"
        )
    kept = [pair for number, pair in enumerate(pairs) if number not in chosen]
    return kept, [pairs[number] for number in sorted(chosen)]


def shared_texts(pairs: Sequence[TextPair], dev: Sequence[TextPair]) -> int:
    """How many development pairs have a text that training sees too."""
    seen = {text for pair in pairs for text in pair}
    return sum(bool(seen.intersection(pair)) for pair in dev)


def sample(pairs: Sequence[TextPair], count: int, seed: int) -> list[TextPair]:
    """At most so many pairs, drawn at random, in the order given; all of them for 0."""
    if not count or len(pairs) <= count:
        return list(pairs)
    drawn = np.random.default_rng([seed, 2]).choice(len(pairs), size=count, replace=False)
    return [pairs[number] for number in np.sort(drawn)]


def _groups(pairs: Sequence[TextPair]) -> list[int]:
    """For each pair, the number of its group: pairs are together if a chain of shared texts joins them."""
    numbers: dict[str, int] = {}
    parent: list[int] = []

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = node = parent[parent[node]]
        return node

    for pair in pairs:
        ends = []
        for text in pair:
            if text not in numbers:
                numbers[text] = len(parent)
                parent.append(len(parent))
            ends.append(root(numbers[text]))
        parent[max(ends)] = min(ends)
    return [root(numbers[condition]) for condition, _ in pairs]
