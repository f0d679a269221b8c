"""Benchmark large runs on one machine: `python -m bench.scale [--records N] [--folder DIR] [--write]`.

Each command runs in a process of its own, on made-up records (see `scale_texts`): wall-clock seconds, CPU seconds and
the peak of its memory, mapped files included. `--folder` keeps records and run, so that a second call goes on there.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from bench.document import DOCUMENT, machine, write_section
from bench.scale_texts import SYSTEMS, write_records

METRICS = ("rouge1", "rouge2", "rougeL", "bleu", "chrf", "token_f1")


class Measured(NamedTuple):
    """What one command took."""

    command: str
    wall: float
    cpu: float
    megabytes: float


def list_commands(data: Path, run: Path) -> dict[str, list[str]]:
    """The commands to measure, by what the table calls them."""
    metrics = [word for metric in METRICS for word in ("-m", metric)]
    return {
        "score (6 metrics, into a run folder)": ["score", f"{data}", *metrics, "-o", f"{run}/", "--workers", "1"],
        "compare (45 pairs × 6 metrics, 10,000 draws)": ["compare", f"{run}/"],
        "meta (acc_eq with intervals, 6 metrics, 1,000 draws)": ["meta", f"{run}/"],
        "check (a minimum)": ["check", f"{run}/", "--min", "bleu=1"],
        "worst (10 outputs with texts)": ["worst", f"{run}/", "-m", "bleu"],
        "export (JSONL)": ["export", f"{run}/", "-o", f"{run.with_suffix('.jsonl')}"],
    }


def measure(name: str, arguments: list[str]) -> Measured:
    """Run a command to its end."""
    began = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", "metrist", *arguments], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"metrist {' '.join(arguments)} failed")
    # Kilobytes, but bytes on a Mac.
    peak = usage.ru_maxrss / (1 << 10 if sys.platform != "darwin" else 1 << 20)
    measured = Measured(name, time.monotonic() - began, usage.ru_utime + usage.ru_stime, peak)
    print(f"{name:55} {measured.wall:9.0f} s {measured.cpu:9.0f} s CPU {peak:7.0f} MB", file=sys.stderr)
    return measured


def report(records: int, rows: list[Measured]) -> str:
    """The section of the page."""
    lines = [
        f"Measured by `python -m bench.scale --records {records}` on {os.cpu_count()} cores of {machine()}, load "
        f"average {os.getloadavg()[0]:.1f} at the end: {records:,} made-up records of {SYSTEMS} systems, each with one "
        "reference and one rating. The peak is that of the process, mapped files included.",
        "",
        "| command | CPU, s | wall clock, s | records per CPU second | peak memory, MB |",
        "|---|--:|--:|--:|--:|",
    ]
    for row in rows:
        verb, _, about = row.command.partition(" ")
        numbers = (row.cpu, row.wall, records / row.cpu, row.megabytes)
        lines.append(f"| `metrist {verb}` {about} | {' | '.join(f'{number:,.0f}' for number in numbers)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help="where records and run are kept; by default they are deleted")
    parser.add_argument("--only", nargs="*", help="the first words of the commands to measure")
    parser.add_argument("--write", action="store_true", help=f"put the table into {DOCUMENT.name}")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        data, run = folder / f"records-{arguments.records}.jsonl", folder / f"run-{arguments.records}"
        if not data.exists():
            write_records(data, arguments.records)
        commands = list_commands(data, run)
        if arguments.only:
            commands = {name: words for name, words in commands.items() if words[0] in arguments.only}
        text = report(arguments.records, [measure(name, words) for name, words in commands.items()])
    print(text)
    if arguments.write:
        write_section("bench-scale", text)


if __name__ == "__main__":
    main()
