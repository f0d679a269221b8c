"""Benchmark the store: `python -m bench.store [--records N] [--write]`.

CPU seconds on one core, in one run: scoring records that are in memory; pyarrow's reading of the same JSONL and writing
of the same tables; `metrist.score` from the file into a run folder. The bar is 1.6 times the sum of the first two.
"""

from __future__ import annotations

import argparse
import io
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.json
import pyarrow.parquet as pq

import metrist
from bench.document import machine, write_section
from bench.scale_texts import write_records

METRICS = ("rouge1", "rougeL", "chrf")


def take_time(call: Callable[[], Any]) -> tuple[float, Any]:
    """The CPU seconds of a call, and its result."""
    began = time.process_time()
    result = call()
    return time.process_time() - began, result


def write_tables(run: Path) -> float:
    """Write the tables of a run again, as pyarrow does, and return the CPU seconds."""
    parts = [pq.read_table(path) for path in (run / "records").glob("*.parquet")]
    folders = [[pq.read_table(path) for path in folder.glob("*.parquet")] for folder in (run / "scores").iterdir()]
    tables = [pa.concat_tables(parts), *map(pa.concat_tables, folders)]
    began = time.process_time()
    for table in tables:
        pq.write_table(table, io.BytesIO(), compression="zstd", use_dictionary=False)
    return time.process_time() - began


def measure(folder: Path, records: int) -> str:
    """The section of the page."""
    data, run = folder / "records.jsonl", folder / "run"
    write_records(data, records, words=(16, 32))
    in_memory = list(metrist.read_records(data))
    options: dict[str, Any] = {"executor": "serial", "progress": False}
    metrist.score(data, METRICS, out=folder / "first", **options)  # Imports, and the disk's cache.
    scoring, _ = take_time(lambda: metrist.score(in_memory, METRICS, **options))
    stored, _ = take_time(lambda: metrist.score(data, METRICS, out=run, **options))
    block = pyarrow.json.ReadOptions(use_threads=False, block_size=1 << 24)
    reading, _ = take_time(lambda: pyarrow.json.read_json(data, read_options=block))
    writing = write_tables(run)
    size = sum(path.stat().st_size for path in run.rglob("*") if path.is_file())
    ratio = stored / (scoring + reading + writing)
    lines = [
        f"Measured by `python -m bench.store` on one core of {machine()}: {records:,} made-up records "
        f"({data.stat().st_size / 1e6:.0f} MB of JSONL), {', '.join(METRICS)}; CPU seconds.",
        "",
        "| scoring in memory | pyarrow: read | pyarrow: write | score into a run folder | ratio | folder, MB |",
        "|--:|--:|--:|--:|--:|--:|",
        f"| {scoring:.2f} | {reading:.2f} | {writing:.2f} | {stored:.2f} | {ratio:.2f} | {size / 1e6:.0f} |",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.store", description=__doc__)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--write", action="store_true", help="put the table into the page of benchmarks")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = measure(Path(folder), arguments.records)
    print(text)
    if arguments.write:
        write_section("bench-store", text)


if __name__ == "__main__":
    main()
