"""Pairs per second of metrist and each installed peer, on one core and on all: `python -m bench.lexical [--write]`.

All tools are timed on one core in one process that is pinned to that core, and on all cores in another process. On one
core CPU time is measured, which other work on the machine disturbs less; on all cores wall-clock time. There, peers
without threads get a pool of warm processes and shards of 1,024 pairs; `metrist.score` uses its default executor.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from typing import Any

from bench.contenders import Contender, Prepare, Run, contenders
from bench.document import DOCUMENT, machine, write_section
from bench.texts import SETS, TextPair

ROUNDS = 5
ENOUGH_SECONDS = 6.0
SHARD = 1024


def main() -> None:
    arguments = _arguments()
    if arguments.cores:
        _measure(arguments.cores, arguments.only)
        return
    single, multi = (_in_child(cores, arguments.only) for cores in ("one", "all"))
    report = "\n\n".join([_describe_setup(), *(_table(name, single, multi) for name in SETS)])
    print(report)
    if arguments.write:
        write_section("bench-lexical", report)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.lexical", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"put the tables into {DOCUMENT.name}")
    parser.add_argument("--only", default="", help="only metrics whose name holds this")
    parser.add_argument("--cores", choices=("one", "all"), help=argparse.SUPPRESS)
    return parser.parse_args()


# ---- Measuring: in a child process, one line of JSON per contender and set ----


def _in_child(cores: str, only: str) -> dict[tuple[str, str, str], dict[str, Any]]:
    threads = "1" if cores == "one" else str(os.cpu_count())
    limits = ("RAYON_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    environment = {**os.environ, **dict.fromkeys(limits, threads)}
    command = [sys.executable, "-m", "bench.lexical", "--cores", cores, "--only", only]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        rows = [json.loads(line) for line in child.stdout]
    if child.returncode:
        sys.exit(child.returncode)
    return {(row["set"], row["metric"], row["tool"]): row for row in rows}


def _measure(cores: str, only: str) -> None:
    if cores == "one" and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    for name, read in SETS.items():
        pairs = read()
        for metric, group in groupby(contenders(), key=lambda contender: contender.metric):
            if only.lower() in metric.lower():
                _measure_group(cores, name, pairs, list(group))


def _measure_group(cores: str, name: str, pairs: list[TextPair], group: list[Contender]) -> None:
    """Time the tools in turn, round by round, so that a slow moment of the machine affects all of them."""
    timers = {c.tool: _timer(cores, c, _sample(pairs, c.sample)) for c in group}
    seconds: dict[str, list[float]] = {c.tool: [] for c in group}
    for _ in range(ROUNDS):
        for tool, timer in timers.items():
            if timer is not None and sum(seconds[tool]) < ENOUGH_SECONDS:
                seconds[tool].append(timer())
    for contender in group:
        size, best = len(_sample(pairs, contender.sample)), min(seconds[contender.tool], default=None)
        rate = None if best is None else size / best
        row = {"set": name, "metric": contender.metric, "tool": contender.tool, "pairs": size, "rate": rate}
        print(json.dumps(row), flush=True)
        print(f"{cores:4} {name:24} {contender.metric:28} {contender.tool:12} {rate and round(rate)}", file=sys.stderr)


def _sample(pairs: list[TextPair], most: int | None) -> list[TextPair]:
    """Evenly spaced pairs of the set."""
    return pairs if most is None or most >= len(pairs) else pairs[:: -(-len(pairs) // most)]


def _fresh(pairs: Sequence[TextPair]) -> list[TextPair]:
    """New strings, as a reader makes them, without cached hashes."""
    return [TextPair(output[:1] + output[1:], reference[:1] + reference[1:]) for output, reference in pairs]


def _timer(cores: str, contender: Contender, pairs: list[TextPair]) -> Callable[[], float] | None:
    """A function that does one run and returns its seconds; None if the tool cannot run."""
    if cores == "all" and contender.all_cores == "no":
        return None
    try:
        prepare = contender.start()
    except (ImportError, LookupError):
        return None
    prepare(pairs[:2])()
    if cores == "one":
        return lambda: _timed(time.process_time, prepare(_fresh(pairs)))
    if contender.all_cores == "itself":
        return lambda: _timed(time.perf_counter, prepare(_fresh(pairs)))
    return lambda: _timed_in_pool(contender, pairs)


def _timed(clock: Callable[[], float], run: Run) -> float:
    start = clock()
    run()
    return clock() - start


def _timed_in_pool(contender: Contender, pairs: list[TextPair]) -> float:
    cores = os.cpu_count() or 1
    size = min(SHARD, -(-len(pairs) // cores))
    shards = [pairs[i : i + size] for i in range(0, len(pairs), size)]
    number = contenders().index(contender)
    with ProcessPoolExecutor(cores) as pool:
        list(pool.map(_work, [number] * cores * 4, [pairs[:2]] * cores * 4))
        return _timed(time.perf_counter, lambda: list(pool.map(_work, [number] * len(shards), shards)))


@cache
def _started(number: int) -> Prepare:
    return contenders()[number].start()


def _work(number: int, pairs: Sequence[TextPair]) -> None:
    _started(number)(pairs)()


# ---- Report ----

Rows = dict[tuple[str, str, str], dict[str, Any]]


def _table(name: str, single: Rows, multi: Rows) -> str:
    lines = [
        f"### {name}",
        "",
        "| metric | tool | pairs timed | one core, pairs/s | kernels are | metrist.score is | all cores, pairs/s |",
        "|---|---|--:|--:|--:|--:|--:|",
        *_lines(name, single, multi),
    ]
    return "\n".join(lines)


def _lines(name: str, single: Rows, multi: Rows) -> Iterator[str]:
    for (where, metric, tool), row in single.items():
        if where != name:
            continue
        if row["rate"] is None:
            yield f"| {metric} | {tool} | – | not installed | | | |"
            continue
        ratios = ["", ""]
        if not tool.startswith("metrist"):
            ratios = [
                f"{single[name, metric, ours]['rate'] / row['rate']:.1f}×" for ours in ("metrist", "metrist.score")
            ]
        rate_all = multi[name, metric, tool]["rate"]
        cells = [metric, _versioned(tool), f"{row['pairs']:,}", _round(row["rate"]), *ratios]
        yield f"| {' | '.join(cells)} | {_round(rate_all) if rate_all else ''} |"


def _round(rate: float) -> str:
    """Round to three digits; more would be noise."""
    return f"{float(f'{rate:.3g}'):,.0f}" if rate >= 10 else f"{rate:.1f}"


def _versioned(tool: str) -> str:
    try:
        return f"{tool} {version(tool)}"
    except PackageNotFoundError:
        return tool


def _describe_setup() -> str:
    return (
        f"Measured by `make bench-lexical` on {os.cpu_count()} cores of {machine()}. One core: CPU time; all cores: "
        f"wall-clock time. Best of {ROUNDS} rounds, fewer where one takes seconds. Each record has one output and one "
        "reference, and every run starts cold: texts are split and counted again. `metrist` is the metrics alone, on "
        "one shard; `metrist.score` is the public function on records in memory, with `executor='serial'` on one core "
        "and the default executor on all. The two ratios compare these two with each peer on one core."
    )


if __name__ == "__main__":
    main()
