"""Benchmark meta-evaluation against the loops that other tools run: `python -m bench.meta [--write]`.

Every row is measured in its own process on one core: seconds of CPU time, best of some rounds, and the peak memory of
the process, including Python and numpy. A peer that would take hours is timed on less data and its total time is
extrapolated, marked "ext.".
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.document import DOCUMENT, machine, run_in_child, write_section
from bench.meta_peers import calibrated_pair_by_pair, exchanged_one_by_one, kendall, kendall_peer
from metrist.stats.estimation import bootstrap
from metrist.stats.measures import measure
from metrist.stats.permutation import permutation_tests
from metrist.stats.samples import ScorePanel
from metrist.stats.tie_thresholds import best_threshold
from metrist.stats.ties import pairing

Floats = NDArray[np.float64]
ROUNDS = 3
SCORES, PEER_SCORES = 100_000, 1_000
METRICS, ITEMS, SYSTEMS, DRAWS = 30, 100, 16, 1_000
#: Draws and pairs for which a peer is timed.
PEER_DRAWS = 20


class Task(NamedTuple):
    """One row: the work, the tool, the size, the factor from what is timed to the whole, and the function to time."""

    what: str
    tool: str
    size: str
    times: float
    run: Callable[[], object]


# ---- Tasks


def tasks() -> list[Task]:
    return [*(task for kind in _KINDS for task in _calibrations(kind)), *_bootstraps(), *_permutations()]


#: Human and metric values by kind: the number of human levels and the metric's agreement with them determine the cost.
_KINDS: dict[str, Callable[[Floats, Floats], tuple[Floats, Floats]]] = {
    "12 levels": lambda quality, noise: (np.clip(np.round(quality * 2 + 6), 0, 11), quality + noise),
    "4 levels, half of the pairs tied": lambda quality, noise: (
        np.clip(np.round(quality * 1.2 - 0.4), -3, 0),
        quality + 1.5 * noise,
    ),
    "scores of two digits": lambda quality, noise: (np.round(quality), np.round(quality + noise, 2)),
    "3 levels, a metric that knows nothing (the hardest)": lambda quality, noise: (
        np.floor(3 * _ranks(quality)),
        noise,
    ),
}


def _ranks(values: Floats) -> Floats:
    return np.argsort(np.argsort(values)) / len(values)


def _calibrations(kind: str) -> list[Task]:
    what = f"exact tie calibration, {kind}"

    def ours(count: int) -> object:
        paired = pairing(*_columns(kind, count))
        return best_threshold(paired)

    growth = (SCORES / PEER_SCORES) ** 2
    rows = [Task(what, "metrist", f"{SCORES:,} scores", 1, lambda: ours(SCORES))]
    if kind == next(iter(_KINDS)):
        peer = "mt-metrics-eval's procedure, plainly"
        small = f"{PEER_SCORES:,} scores"
        columns = _columns(kind, PEER_SCORES)
        rows.append(Task(what, "metrist", small, 1, lambda: ours(PEER_SCORES)))
        rows.append(Task(what, peer, small, 1, lambda: calibrated_pair_by_pair(*columns)))
        rows.append(Task(what, peer, f"{SCORES:,} scores", growth, lambda: calibrated_pair_by_pair(*columns)))
    return rows


def _columns(kind: str, count: int) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(1)
    return _KINDS[kind](rng.normal(size=count), rng.normal(size=count))


def _panel() -> ScorePanel:
    rng = np.random.default_rng(2)
    item, system = np.divmod(np.arange(ITEMS * SYSTEMS), SYSTEMS)
    quality = rng.normal(size=len(item))
    noise = rng.normal(size=(METRICS, len(item))) * np.linspace(0.5, 3, METRICS)[:, None]
    return ScorePanel(human=np.round(quality * 2) / 2, metrics=quality + noise, item=item, system=system)


def _bootstraps() -> list[Task]:
    what, size = "bootstrap of Kendall's τ-b over items", f"{METRICS} metrics × {ITEMS * SYSTEMS:,}, {DRAWS:,} draws"
    panel = _panel()

    def loop() -> None:
        rng, tau = np.random.default_rng(0), kendall()
        for _ in range(PEER_DRAWS):
            drawn = (rng.integers(0, ITEMS, ITEMS)[:, None] * SYSTEMS + np.arange(SYSTEMS)).ravel()
            tau(panel.human[drawn], panel.metrics[0][drawn])

    def ours() -> object:
        return bootstrap(measure("kendall_b"), panel, draws=DRAWS, rng=np.random.default_rng(0))

    return [Task(what, "metrist", size, 1, ours), Task(what, kendall_peer(), size, METRICS * DRAWS / PEER_DRAWS, loop)]


def _permutations() -> list[Task]:
    panel = _panel()
    pairs = list(combinations(range(len(panel.metrics)), 2))
    what, size = (
        "permutation tests of Pearson's r, each output exchanged",
        f"{len(pairs)} pairs of metrics, {DRAWS:,} draws",
    )

    def ours() -> object:
        rng = np.random.default_rng(0)
        return permutation_tests(measure("pearson"), panel, pairs, draws=DRAWS, rng=rng, alpha=None)

    def loop() -> int:
        return exchanged_one_by_one(
            panel.human, panel.metrics[0], panel.metrics[1], PEER_DRAWS, np.random.default_rng(0)
        )

    times = len(pairs) * DRAWS / PEER_DRAWS
    return [
        Task(what, "metrist", size, 1, ours),
        Task(what, "mt-metrics-eval's procedure, plainly", size, times, loop),
    ]


# ---- Measuring


def main() -> None:
    arguments = _arguments()
    if arguments.task is not None:
        print(json.dumps(measure_task(tasks()[arguments.task])))
        return
    report = "\n\n".join([_describe_setup(), _table([_in_child(number) for number in range(len(tasks()))])])
    print(report)
    if arguments.write:
        write_section("bench-meta", report)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.meta", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"put the table into {DOCUMENT.name}")
    parser.add_argument("--task", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def _in_child(number: int) -> dict[str, Any]:
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    row: dict[str, Any] = run_in_child("bench.meta", "--task", str(number), **one_thread)
    print(f"{row['what']:75} {row['tool']:40} {row['seconds']:12.4f} s", file=sys.stderr)
    return row


def measure_task(task: Task) -> dict[str, Any]:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    seconds = []
    for _ in range(ROUNDS):
        start = time.process_time()
        task.run()
        seconds.append(time.process_time() - start)
    # Kilobytes, but bytes on a Mac.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 10 if sys.platform != "darwin" else 1 << 20)
    return {
        "what": task.what,
        "tool": task.tool,
        "size": task.size,
        "seconds": min(seconds) * task.times,
        "megabytes": peak if task.times == 1 else None,
        "extrapolated": task.times != 1,
    }


# ---- Reporting


def _table(rows: list[dict[str, Any]]) -> str:
    ours = {(row["what"], row["size"]): row["seconds"] for row in rows if row["tool"] == "metrist"}
    lines = ["| what | tool | size | seconds | peak memory, MB | metrist is |", "|---|---|---|--:|--:|--:|"]
    for row in rows:
        ratio = "" if row["tool"] == "metrist" else f"{row['seconds'] / ours[row['what'], row['size']]:,.0f}×"
        seconds = f"{_round(row['seconds'])}{' ext.' if row['extrapolated'] else ''}"
        megabytes = "" if row["megabytes"] is None else f"{row['megabytes']:.0f}"
        lines.append(f"| {row['what']} | {row['tool']} | {row['size']} | {seconds} | {megabytes} | {ratio} |")
    return "\n".join(lines)


def _round(seconds: float) -> str:
    return f"{seconds:,.0f}" if seconds >= 100 else f"{seconds:.2g}"


def _describe_setup() -> str:
    return (
        f"Measured by `make bench-meta` on one core of {machine()}, numpy {np.__version__}: CPU time, best of "
        f"{ROUNDS}. Peers that are not installed are "
        'plain implementations of their published procedure. "ext." means extrapolated, from '
        f"{PEER_SCORES:,} scores (by pairs), or from {PEER_DRAWS} draws of one metric or pair."
    )


if __name__ == "__main__":
    main()
