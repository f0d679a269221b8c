"""What reranking gains in human ratings: `python -m bench.rerank_quality [--write]`.

For each item one of the systems' outputs is chosen, and its human rating is compared with that of a random choice and
of the best single system, which is found on the same ratings. Intervals are over items. Needs the folder of human
judgments and the packages of models.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import metrist
from bench.document import DOCUMENT, write_section
from bench.texts import rows
from metrist.stats.resampling import pooled_interval

PAGE = DOCUMENT.parents[1] / "research" / "rerank.md"
DRAWS, SEED = 10_000, 0
#: People's translations among the systems, with which metrics compare.
REFERENCES = ("refA",)
Ratings = Mapping[str, list[float]]


class Study(NamedTuple):
    """A data set, the metrics that choose in it, and the ratings that the choice is judged by."""

    data: str
    utility: str
    metric: str
    #: Outputs without all of these ratings are left out.
    aspects: tuple[str, ...]
    ratings: Mapping[str, Callable[[Ratings], float]]
    decimals: int


def mean_of(*aspects: str) -> Callable[[Ratings], float]:
    return lambda ratings: float(np.mean([np.mean(ratings[aspect]) for aspect in aspects]))


STUDIES = (
    Study("wmt23.en-de", "chrf", "translation_quality", ("mqm",), {"MQM": mean_of("mqm")}, 2),
    Study(
        "summeval",
        "chrf",
        "consistency",
        ("coherence", "consistency", "fluency", "relevance"),
        {
            "consistency": mean_of("consistency"),
            "overall (mean of four aspects)": mean_of("coherence", "consistency", "fluency", "relevance"),
        },
        3,
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.rerank_quality", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"put the tables into {PAGE.name}")
    parser.add_argument("--out", type=Path, help="keep the scores here, from which a second call goes on")
    parser.add_argument("--items", type=int, help="choose for so many items at most, drawn at random")
    arguments = parser.parse_args()
    report = "\n\n".join(describe_study(study, arguments.items, arguments.out) for study in STUDIES)
    print(report)
    if arguments.write:
        write_section("rerank-quality", report, PAGE)


def describe_study(study: Study, limit: int | None, folder: Path | None) -> str:
    rated = [
        row
        for row in rows(study.data)
        if row["ratings"].keys() >= set(study.aspects) and row["system"] not in REFERENCES
    ]
    human = [row["ratings"] for row in rated]
    # Who has a reference needs no other output.
    left_out = ("ratings", "errors", "scores", "references")
    by_item: dict[str, list[dict[str, Any]]] = {}
    for number, row in enumerate(rated):
        record = {name: value for name, value in row.items() if name not in left_out}
        by_item.setdefault(row["item"], []).append({**record, "number": number})
    # In random order, so that fewer items are drawn from all, and scores of fewer items serve for more.
    drawn = random.Random(SEED).sample(list(by_item), len(by_item))[:limit]
    records = [record for item in drawn for record in by_item[item]]
    choices = score_all(records, study, folder)
    items: dict[str, list[dict[str, Any]]] = {}
    for choice in choices:
        items.setdefault(choice["item"], []).append(choice)
    tables = []
    for name, rate in study.ratings.items():
        ratings = {item: np.array([rate(human[each["number"]]) for each in own]) for item, own in items.items()}
        tables.append(describe_ratings(name, items, ratings, study))
    systems = len({record["system"] for record in records})
    share = "" if len(drawn) == len(by_item) else f", drawn at random from {len(by_item)}"
    outputs = f"{len(records):,} outputs of {systems} systems for {len(drawn)} items{share}"
    return f"### {study.data}: {outputs}\n\n" + "\n\n".join(tables)


def score_all(records: list[dict[str, Any]], study: Study, folder: Path | None) -> list[dict[str, Any]]:
    """The rows of all outputs, each item's in the order of the sum of both metrics."""
    if folder is None:
        return list(metrist.rerank(records, study.metric, mbr=study.utility, k=len(records), draws=0).rows())
    out = folder / f"{study.data}.jsonl"
    if not out.exists():
        metrist.rerank(records, study.metric, mbr=study.utility, k=len(records), draws=0, out=out)
    return [dict(record.extra, item=record.item, system=record.system) for record in metrist.read_records(out)]


def describe_ratings(
    name: str, items: Mapping[str, list[dict[str, Any]]], ratings: Mapping[str, Any], study: Study
) -> str:
    by_system: dict[str, list[float]] = {}
    for item, own in items.items():
        for each, rating in zip(own, ratings[item], strict=True):
            by_system.setdefault(each["system"], []).append(float(rating))
    complete = {system: values for system, values in by_system.items() if len(values) == len(items)}
    best = max(complete, key=lambda system: np.mean(complete[system]))

    def choose(number: int | None) -> list[int]:
        """The position of each item's choice by one metric, or by the sum of both."""
        if number is None:
            return [0] * len(items)
        return [
            max(range(len(own)), key=lambda n: (list(own[n]["rerank"]["scores"].values())[number], -own[n]["number"]))
            for own in items.values()
        ]

    chosen = {
        f"minimum Bayes risk, `{study.utility}`": choose(0),
        f"`{study.metric}`": choose(1),
        "sum of both": choose(None),
    }
    random = np.array([values.mean() for values in ratings.values()])
    single = np.array(
        [
            values[[each["system"] for each in own].index(best)]
            for own, values in zip(items.values(), ratings.values(), strict=True)
        ]
    )
    lines = [
        f"| choice | mean {name} | more than a random choice | more than {best}, the best system |",
        "|---|--:|--:|--:|",
        f"| random | {random.mean():.{study.decimals}f} | | |",
        f"| always {best} | {single.mean():.{study.decimals}f} | {describe_difference(single - random, study)} | |",
    ]
    for label, positions in chosen.items():
        values = np.array([own[n] for own, n in zip(ratings.values(), positions, strict=True)])
        differences = " | ".join(describe_difference(values - other, study) for other in (random, single))
        lines.append(f"| {label} | {values.mean():.{study.decimals}f} | {differences} |")
    oracle = np.mean([values.max() for values in ratings.values()])
    lines.append(f"| the output that people rate best | {oracle:.{study.decimals}f} | | |")
    return "\n".join(lines)


def describe_difference(differences: Any, study: Study) -> str:
    stats = np.column_stack([differences, np.ones(len(differences))])
    low, high = pooled_interval(stats, lambda sums: sums[..., 0] / sums[..., 1], DRAWS, np.random.default_rng(SEED))
    shown = [f"{value:+.{study.decimals}f}" for value in (differences.mean(), low, high)]
    return f"{shown[0]} [{shown[1]}, {shown[2]}]"


if __name__ == "__main__":
    main()
