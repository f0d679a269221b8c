"""The table of `make torture`: how often each fault was tried, and what was lost.

A test marked `torture` counts in a row that `torture_row` gives it. A fault is survived where the program went on,
ended with a clear error, or gave its whole result when it was started again. Lost is what had been confirmed, or has to
be in the result, and is missing or different: scores, answers, clicks, files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

#: All faults, in the order of the table.
FAULTS = (
    "kill -9 before every change: score",
    "kill -9 before every change: score by URL",
    "kill -9 before every change: prefer, remove",
    "kill -9 before every change: rerank, leaderboard",
    "kill -9: score, lexical metrics",
    "kill -9: score, slow model",
    "kill -9: score, LLM calls",
    "kill -9: prefer, judge over a faulty server",
    "kill -9: train",
    "kill -9: annotate",
    "kill -9: a worker of serve under load",
    "kill -9: serve under load",
    "SIGTERM: serve under load",
    "hostile clients: metrist serve",
    "hostile files: bombs, devices",
    "hostile texts: marks of prompts",
    "hostile LLM servers: keys, token counts",
    "hostile scores: 1e12, 1e308",
    "hostile URLs",
    "kill -9: Ray workers, nodes and driver",
    "disk full: score",
    "disk full: score, LLM cache",
    "disk full: query, spill folder",
    "disk full: train",
    "disk full: annotate",
    "disk full: export, report",
    "disk full: rerank, leaderboard",
    "read-only folders",
    "clock jumps",
    "two processes: run folder, with readers",
    "two processes: run by URL",
    "two processes: LLM cache",
    "two processes: annotation project",
    "two processes: model folder",
    "two processes: leaderboard",
    "corrupted: manifest, parts and log of a run",
    "corrupted: manifest of another format",
    "corrupted: LLM cache",
    "corrupted: annotation clicks",
    "corrupted: checkpoints",
    "fuzz: records in every format",
    "fuzz: specs, settings, rubrics",
    "fuzz: run folders",
    "fuzz: LLM answers",
    "fuzz: error analyses",
    "fuzz: weights, archives of other tools",
    "fuzz: metrist serve, by schemathesis",
    "fuzz: pages of view, playground, annotate",
    "memory limit: score, compare, export, query",
    "memory limit: serve, train",
)
PROPERTY = "torture"


@dataclass
class TortureRow:
    """What happened under one fault, in one test."""

    fault: str
    tried: int = 0
    survived: int = 0
    lost: int = 0

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Try the fault once; it is survived if the block ends without an exception."""
        self.tried += 1
        yield
        self.survived += 1

    def compare(self, expected: Mapping[Any, Any], found: Mapping[Any, Any]) -> None:
        """Count as lost what is missing, different, or there without a reason."""
        wrong = [key for key in expected.keys() | found.keys() if key not in found or expected.get(key) != found[key]]
        for key in wrong[:5]:
            print(f"{self.fault}: {key!r} is {found.get(key, 'missing')!r:.200}, not {expected.get(key)!r:.200}")
        self.lost += len(wrong)

    def check(self) -> None:
        """Fail unless all was survived and nothing lost."""
        assert self.tried, f"{self.fault}: not tried"
        assert self.survived == self.tried, f"{self.fault}: survived {self.survived} of {self.tried}"
        assert not self.lost, f"{self.fault}: lost {self.lost}"


def collect_rows(reports: Iterable[Any]) -> list[TortureRow]:
    """The rows of all tests, from the reports of their ends, one per fault."""
    rows: dict[str, TortureRow] = {}
    for report in reports:
        if getattr(report, "when", None) != "teardown":
            continue
        for name, counts in report.user_properties:
            if name == PROPERTY:
                row = rows.setdefault(counts["fault"], TortureRow(counts["fault"]))
                row.tried += counts["tried"]
                row.survived += counts["survived"]
                row.lost += counts["lost"]
    return sorted(rows.values(), key=lambda row: FAULTS.index(row.fault))


def describe(row: TortureRow) -> tuple[str, dict[str, Any]]:
    """The row as a property of its test, which reports carry between processes."""
    return PROPERTY, asdict(row)


def format_table(rows: Sequence[TortureRow], *, complete: bool = False) -> str:
    """The rows in Markdown; with `complete`, also the faults that were not tried."""
    lines = ["| fault | tried | survived | lost |", "|---|--:|--:|--:|"]
    by_fault = {row.fault: row for row in rows}
    for fault in FAULTS if complete else by_fault:
        row = by_fault.get(fault)
        counts = f"{row.tried:,} | {row.survived:,} | {row.lost:,}" if row and row.tried else "not tried | |"
        lines.append(f"| {fault} | {counts} |")
    return "\n".join(lines)


def read_contents(folder: Path, *, without: Iterable[str] = ("timings",)) -> dict[str, bytes]:
    """All files of a folder by their path."""
    files = (path for path in folder.rglob("*") if path.is_file() and not {*without} & {*path.parts})
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}
