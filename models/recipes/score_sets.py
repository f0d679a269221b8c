"""Score the data sets of the table of shipped metrics with several processes, for a machine with many cores.

    python score_sets.py DATA SCORES [--metric M ...] [--set NAME ...] [--workers N] [--seconds S]

SCORES is the folder that `metrist reproduce --scores` reads. Scores that are there already are not computed again.
After S seconds no new piece is begun, and what is done is stored.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Mapping
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from metrist.metrics import registry
from metrist.records import Record
from metrist.run import score
from metrist.run.results import NothingScored
from metrist.studies.reproduce.agreement import METRICS_TABLE, QUALITY, parse_sets
from metrist.studies.reproduce.figures import DataFolder
from metrist.studies.reproduce.published import read_table_file

#: Records of a piece of work: small, so that processes end at about the same time.
PIECE = 24
Piece = tuple[str, str, list[Record]]


def list_pieces(folder: DataFolder, metrics: list[str], names: list[str]) -> Iterator[Piece]:
    """Yield (metric, data set, records) for what is not stored yet; outputs of one source stay together."""
    entries = {name_metric(entry): entry for entry in read_table_file(METRICS_TABLE)["metrics"]}
    for metric in metrics:
        settings = entries.get(metric, {})
        needs = registry.build(metric).needs
        for rated in parse_sets():
            if (names and rated.data not in names) or not folder.has(rated.data):
                continue
            if rated.task not in settings.get("tasks", [rated.task]) or (settings.get("english") and not rated.english):
                continue
            if not all(folder.has_field(rated.data, need) for need in needs):
                continue
            stored = folder.load_scores(rated.data, metric, "all")
            records = folder.select(rated.data, "all", rated.every, rated.part)
            missing = [record for record in records if (record.item, record.system) not in stored]
            missing.sort(key=lambda record: record.source or "")
            for start in range(0, len(missing), PIECE):
                yield metric, rated.data, missing[start : start + PIECE]


def name_metric(entry: Mapping[str, str]) -> str:
    """Return the text of a column's metric; most columns are called by it."""
    return entry.get("metric", entry["label"])


def score_piece(piece: Piece) -> tuple[str, str, dict[tuple[str, str], float]]:
    """Score one piece of work; nothing for one that would begin too late."""
    metric, data, records = piece
    if time.time() > _limits["end"]:
        return metric, data, {}
    try:
        results = score(records, metric, executor="serial")
    except NothingScored as nothing:
        results = nothing.results
    values = results.scores[results.metrics[0].label].values.tolist()
    return metric, data, dict(zip(zip(results.items, results.systems, strict=True), values, strict=True))


_limits: dict[str, float] = {}


def _begin(end: float) -> None:
    _limits["end"] = end


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("scores", type=Path)
    parser.add_argument("--metric", action="append", dest="metrics")
    parser.add_argument("--set", action="append", dest="sets", default=[])
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=1e9)
    options = parser.parse_args()
    start = time.time()
    folder = DataFolder(options.data, options.scores)
    texts = [name_metric(entry) for entry in read_table_file(METRICS_TABLE)["metrics"]]
    # The table combines quality from the scores of its parts.
    metrics = options.metrics or [text for text in texts if text.partition("(")[0] != QUALITY]
    # A metric of the table that is not in the catalog yet is left out; an import path is not in the catalog either.
    present = [metric for metric in metrics if metric.partition("(")[0] in registry.names() or "." in metric]
    pieces = list(list_pieces(folder, present, options.sets))
    left: dict[tuple[str, str], int] = {}
    for metric, data, _ in pieces:
        left[metric, data] = left.get((metric, data), 0) + 1
    print(f"{sum(len(piece[2]) for piece in pieces):,} outputs in {len(pieces):,} pieces", flush=True)
    done: dict[tuple[str, str], dict[tuple[str, str], float]] = {}
    # A new interpreter for each process: threads of the parent's libraries do not survive a fork.
    with get_context("spawn").Pool(options.workers, _begin, (start + options.seconds,)) as pool:
        for metric, data, values in pool.imap_unordered(score_piece, pieces):
            done.setdefault((metric, data), {}).update(values)
            left[metric, data] -= 1
            if not left[metric, data]:
                save(folder, metric, data, done[metric, data])
                print(f"{time.time() - start:6.0f} s  {metric}  {data}  {len(done[metric, data]):,} scored", flush=True)


def save(folder: DataFolder, metric: str, data: str, values: Any) -> None:
    """Add scores to the stored ones."""
    folder.save_scores(data, metric, "all", {**folder.load_scores(data, metric, "all"), **values})


if __name__ == "__main__":
    main()
