"""CPU time of `metrist leaderboard` on simulated votes. `python -m bench.leaderboard [--votes N] [--write]`

Votes are drawn by Davidson's model between pairs of 100 systems, one vote for each item. Commands run in a process of
their own, with start and reading.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.document import DOCUMENT, machine, write_section

SYSTEMS = 100


def write_votes(folder: Path, votes: int) -> None:
    """A table of votes with a covariate; the votes as rows of JSON; and the first tenth of these with a note, so that
    they are not read as votes only."""
    rng = np.random.default_rng(0)
    first = rng.integers(0, SYSTEMS, votes)
    second = (first + rng.integers(1, SYSTEMS, votes)) % SYSTEMS
    words = rng.normal(0, 50, votes)
    half = (first - second) / SYSTEMS + np.tanh(words / 50) / 4
    parts = np.stack([np.exp(half), np.exp(-half), np.full(votes, 0.6)])
    drawn = rng.random(votes) * parts.sum(axis=0)
    choice = np.where(drawn < parts[0], 1.0, np.where(drawn < parts[0] + parts[1], -1.0, 0.0))
    names = np.array([f"s{number}" for number in range(SYSTEMS)])
    columns = {"item": np.arange(votes).astype(str), "first": names[first], "second": names[second]}
    pq.write_table(pa.table({**columns, "choice": choice, "words": words}), folder / "votes.parquet")
    with (folder / "votes.jsonl").open("w") as all_votes, (folder / "rows.jsonl").open("w") as some:
        for item, (one, other, own) in enumerate(zip(first, second, choice, strict=True)):
            rating = (0, 1, 2)[int(own)]
            vote = f'"item": "{item}", "systems": ["s{one}", "s{other}"], "ratings": {{"better": {rating}}}'
            print(f"{{{vote}}}", file=all_votes)
            if item < votes // 10:
                print(f'{{{vote}, "note": ""}}', file=some)


def measure(*arguments: str) -> tuple[float, float]:
    """CPU seconds and MB of a command."""
    command = [sys.executable, "-m", "metrist", "leaderboard", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.leaderboard", description=__doc__)
    parser.add_argument("--votes", type=int, default=1_000_000)
    parser.add_argument("--write", action="store_true", help=f"put the table into {DOCUMENT.name}")
    options = parser.parse_args()
    lines = [
        f"Measured by `make bench-leaderboard` on {machine()}.",
        "",
        "| votes | source | command | CPU seconds | MB |",
        "|--:|---|---|--:|--:|",
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_votes(folder, options.votes)
        for votes, source, kind, more in (
            (options.votes, "votes.parquet", "table of votes", []),
            (options.votes, "votes.parquet", "table of votes", ["--control", "words"]),
            (options.votes, "votes.jsonl", "rows of JSON, only votes", []),
            (options.votes // 10, "rows.jsonl", "rows of JSON with more", []),
        ):
            seconds, size = measure(str(folder / source), *more)
            command = " ".join(["metrist leaderboard", source, *more])
            lines.append(f"| {votes:,} | {kind} | `{command}` | {seconds:.1f} | {size:,.0f} |")
            print(lines[-1])
    if options.write:
        write_section("bench-leaderboard", "\n".join(lines))


if __name__ == "__main__":
    main()
