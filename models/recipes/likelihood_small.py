"""The training pairs of likelihood-small, and its export.

    python likelihood_small.py pairs OUT.jsonl.gz       references with good translations of the same sentence
    python likelihood_small.py export TRAINED OUT       metrist's own format, in 7 bits

`bases.py flan-t5` writes the base, `metrist train likelihood` trains it. Every ninth item of WMT22 is held out for
choices.
"""

from __future__ import annotations

import random
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from sets import draw, mean_rating, read_rows, write_lines

from metrist.models.numpy_inference.export import export_t5

Pair = dict[str, str]
#: MQM points of a good translation; bits of a weight, and columns that share a scale.
_GOOD, _BITS, _GROUP = -1, 7, 64


def list_pairs(rng: random.Random) -> Iterator[Pair]:
    """Yield English references with good translations, in both directions, and with those that people preferred."""
    by_item: dict[str, list[Pair]] = defaultdict(list)
    for row in read_rows("wmt22.zh-en"):
        if int(row["item"]) % 9 and mean_rating(row, "mqm") >= _GOOD:
            by_item[row["item"]].append({"first": row["references"][0], "second": row["output"]})
    for group in by_item.values():
        yield from draw(group, 4, rng)
    for name in ("lt-en", "gu-en", "kk-en"):
        for row in draw(read_rows(f"wmt19-darr.{name}"), 4000, rng):
            yield {"source": row["references"][0], "target": row["outputs"][0]}


def export(trained: Path, out: Path) -> None:
    """Tables of relative positions are too small to be worth quantizing."""
    export_t5(
        trained, out, lambda name: None if "relative_attention_bias" in name else (_BITS, _GROUP), max_tokens=1024
    )


def main() -> None:
    step, *paths = sys.argv[1:]
    if step == "pairs":
        print(f"{write_lines(Path(paths[0]), list_pairs(random.Random(4))):,} rows")
    else:
        export(*map(Path, paths))


if __name__ == "__main__":
    main()
