"""Reading takes less memory than the file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import resource, sys
from metrist.io import read_records

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

list(read_records([{"item": 1, "output": "warm"}]))
before = peak()
count = sum(1 for _ in read_records(sys.argv[1]))
print(count, peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss counts KiB on Linux only")
@pytest.mark.parametrize("name", ["big.jsonl", "big.json", "big.csv"])
def test_reading_takes_far_less_memory_than_the_file(name: str, tmp_path: Path) -> None:
    path, text, count = tmp_path / name, "some words " * 540, 10_000
    with path.open("w") as file:
        if name.endswith("csv"):
            file.write("item,output\n")
            file.writelines(f"{i},{text}\n" for i in range(count))
        else:
            rows = (json.dumps({"item": i, "output": text}) for i in range(count))
            file.write("[" + ",\n".join(rows) + "]" if name == "big.json" else "\n".join(rows))
    assert path.stat().st_size > 59_000_000
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(path)], capture_output=True, text=True, check=True)
    read, growth = map(int, done.stdout.split())
    assert read == count
    assert growth * 1024 < path.stat().st_size / 4
