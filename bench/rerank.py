"""Choices by minimum Bayes risk: metrist, mbrs, fastchrf, rouge-score. `python -m bench.rerank [--write]`

All run in one process on one core; CPU time is measured, that of worker processes included. Slow packages choose for
the first items only. A table counts choices that differ. Outputs are made of translations of WMT23: the first words of
one system's and the rest of another's.
"""

from __future__ import annotations

import argparse
import os
import random
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from bench.document import DOCUMENT, machine, write_section
from bench.texts import rows

ITEMS, OUTPUTS = 200, 64
#: CPU seconds of a round that needs no other.
ROUNDS, ENOUGH_SECONDS = 3, 10
Choose = Callable[[Sequence[Sequence[str]]], list[int]]


class Case(NamedTuple):
    """A package with a utility: how many items it chooses for, and what makes the function that chooses."""

    utility: str
    tool: str
    items: int
    start: Callable[[], Choose]


def make_items() -> list[list[str]]:
    by_item: dict[str, list[str]] = {}
    for row in rows("wmt23.en-de"):
        by_item.setdefault(row["item"], []).append(row["output"])
    rng = random.Random(0)
    items = []
    for texts in [texts for texts in by_item.values() if len(texts) > 8][:ITEMS]:
        words = [text.split() for text in texts]
        pairs = rng.sample(list(product(words, words)), OUTPUTS)
        items.append([" ".join([*first[: len(first) // 2], *second[len(second) // 2 :]]) for first, second in pairs])
    return items


def start_metrist(utility: str) -> Choose:
    import metrist

    def choose(items: Sequence[Sequence[str]]) -> list[int]:
        records = [
            metrist.Record(item=str(n), system=str(m), output=text)
            for n, texts in enumerate(items)
            for m, text in enumerate(texts)
        ]
        return [int(choice.record.system) for choice in metrist.rerank(records, mbr=utility, executor="serial")]

    return choose


def start_fastchrf() -> Choose:
    import fastchrf

    def choose(items: Sequence[Sequence[str]]) -> list[int]:
        return [_best(np.mean(table, axis=1)) for texts in items for table in fastchrf.pairwise_chrf([texts], [texts])]

    return choose


def start_mbrs(name: str, **settings: Any) -> Choose:
    from mbrs.decoders import DecoderMBR
    from mbrs.metrics import get_metric

    metric = get_metric(name)
    decoder = DecoderMBR(DecoderMBR.Config(), metric(metric.Config(**settings)))

    def choose(items: Sequence[Sequence[str]]) -> list[int]:
        return [int(decoder.decode(list(texts), list(texts)).idx[0]) for texts in items]

    return choose


def start_rouge_score() -> Choose:
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rougeL"])

    def choose(items: Sequence[Sequence[str]]) -> list[int]:
        return [
            _best(np.array([np.mean([scorer.score(b, a)["rougeL"].fmeasure for b in texts]) for a in texts]))
            for texts in items
        ]

    return choose


def _best(means: Any) -> int:
    """The first of the best, where rounding alone tells several apart."""
    return int(np.argmax(np.round(means, 9)))


CASES = (
    Case("chrf", "fastchrf", ITEMS, start_fastchrf),
    Case("chrf", "mbrs, fastchrf=True", ITEMS, lambda: start_mbrs("chrf", fastchrf=True)),
    Case("chrf", "mbrs", 20, lambda: start_mbrs("chrf", num_workers=1)),
    Case("bleu", "mbrs", 40, lambda: start_mbrs("bleu", num_workers=1)),
    Case("rougeL(tokenizer='rouge-score')", "rouge-score", 5, start_rouge_score),
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.rerank", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"put the table into {DOCUMENT.name}")
    write = parser.parse_args().write
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    items = make_items()
    lines = [
        "| utility | tool | items | ms per item | metrist, ms per item | metrist is | other choices |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for case in CASES:
        package, *variant = case.tool.split(",")
        try:
            choose, label = case.start(), ",".join([f"{package} {version(package)}", *variant])
        except (ImportError, PackageNotFoundError):
            lines.append(f"| {case.utility} | {package} | – | not installed | | | |")
            continue
        some = items[:: ITEMS // case.items]
        theirs, their_choices = time_choices(choose, some)
        ours, our_choices = time_choices(start_metrist(case.utility), some)
        others = sum(one != other for one, other in zip(our_choices, their_choices, strict=True))
        figures = f"{len(some)} | {1000 * theirs:,.1f} | {1000 * ours:,.1f} | {theirs / ours:,.1f}× | {others}"
        lines.append(f"| {case.utility} | {label} | {figures} |")
        print(lines[-1], flush=True)
    for utility in dict.fromkeys(case.utility for case in CASES if case.items < ITEMS):
        seconds, _ = time_choices(start_metrist(utility), items)
        lines.append(f"| {utility} | | {ITEMS} | | {1000 * seconds:,.1f} | | |")
    report = "\n".join([describe_setup(items), "", *lines])
    print(report)
    if write:
        write_section("bench-rerank", report)


def time_choices(choose: Choose, items: Sequence[Sequence[str]]) -> tuple[float, list[int]]:
    """CPU seconds per item, the least of some rounds, and the choices."""
    choose(items[:1])
    rounds = list[float]()
    choices = list[int]()
    while len(rounds) < ROUNDS and max(rounds, default=0) < ENOUGH_SECONDS:
        before = sum(os.times()[:4])
        choices = choose(items)
        rounds.append(sum(os.times()[:4]) - before)
    return min(rounds) / len(items), choices


def describe_setup(items: Sequence[Sequence[str]]) -> str:
    words = np.mean([len(text.split()) for texts in items for text in texts])
    return (
        f"Measured by `make bench-rerank` on one core of {machine()}. {OUTPUTS} outputs of each of {len(items)} items, "
        f"of {words:.0f} words on average; CPU time, with that of worker processes, the least of {ROUNDS} rounds, of "
        f"one where that takes {ENOUGH_SECONDS} s. metrist: `metrist.rerank` of records in memory, with the gains."
    )


if __name__ == "__main__":
    main()
