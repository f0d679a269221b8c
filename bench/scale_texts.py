"""Made-up records for `bench.scale`: many systems, items and ratings, written as JSONL without keeping any of them."""

from __future__ import annotations

import json
import random
from pathlib import Path

#: Distinct words that texts are made of.
WORDS = 20_000
SYSTEMS = 10
#: Bytes written at a time.
_BUFFER = 1 << 20


def write_records(
    path: Path, records: int, *, systems: int = SYSTEMS, words: tuple[int, int] = (8, 20), seed: int = 1
) -> None:
    """Write records of `systems` systems item by item. References have so many `words`. Each output is the reference
    with some words changed, the more the worse the system is, and has one rating, from 0 to 4, that falls with the
    changes."""
    rng = random.Random(seed)
    choose = rng.choices
    vocabulary = ["".join(choose("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(WORDS)]
    # Few words are frequent, as in real text.
    pool = [vocabulary[int(WORDS ** rng.random()) - 1] for _ in range(1 << 16)]
    uniform, mask = rng.random, (1 << 16) - 1
    with path.open("w", encoding="ascii", buffering=_BUFFER) as file:
        for number in range(records):
            item, system = divmod(number, systems)
            if not system:
                length = rng.randint(*words)
                reference = choose(pool, k=length)
                text = json.dumps([" ".join(reference)])
            rate = 0.08 + 0.04 * system
            first = rng.getrandbits(16)
            output = [pool[(first + n) & mask] if uniform() < rate else word for n, word in enumerate(reference)]
            changed = sum(a is not b for a, b in zip(output, reference, strict=True))
            rating = max(0, min(4, round(4 - 8 * changed / length + uniform() - 0.5)))
            file.write(
                f'{{"item": "item-{item}", "system": "system-{system}", "output": {json.dumps(" ".join(output))}, '
                f'"references": {text}, "ratings": {{"quality": {rating}}}}}\n'
            )
