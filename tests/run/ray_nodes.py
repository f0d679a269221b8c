"""A local Ray cluster for tests, its processes, and commands that use it."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from metrist.run.store import Store

#: `score` in a process of its own, which can be killed. The address comes last.
SCRIPT = """
import sys
from metrist.run import cluster, score
from metrist.run.executors import Ray
source, out, metrics, address = sys.argv[1:]
cluster.SLICE_BYTES = 1 << 16, 1 << 16
cluster.SAVE_SECONDS = 0.0
results = score(source, metrics.split(","), out=out, shard_size=100, executor=Ray(address=address, start_timeout=120))
print(results.notes)
"""


class Nodes:
    """Nodes of one CPU each on this machine; the first stays."""

    def __init__(self, count: int) -> None:
        os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
        from ray.cluster_utils import Cluster

        self._options = {"num_cpus": 1, "object_store_memory": 100 << 20, "include_dashboard": False}
        self._cluster: Any = Cluster()
        self.add()
        self.others = [self.add() for _ in range(count - 1)]
        self.address: str = self._cluster.address

    def add(self) -> Any:
        for _ in range(2):
            with contextlib.suppress(Exception):  # On a busy machine a node may take longer than Ray waits.
                return self._cluster.add_node(**self._options)
        return self._cluster.add_node(**self._options)

    def kill_one(self) -> None:
        """Kill a node and have another one join."""
        self._cluster.remove_node(self.others.pop(), allow_graceful=False)
        self.others.append(self.add())

    def stop(self) -> None:
        self._cluster.shutdown()


@contextlib.contextmanager
def start_nodes(count: int) -> Iterator[Nodes]:
    nodes = Nodes(count)
    try:
        yield nodes
    finally:
        nodes.stop()


def list_workers(address: str) -> list[int]:
    """The processes of metrist's actors on the nodes of a cluster: children of a process that names its address."""
    workers = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (folder / "cmdline").read_bytes().startswith(b"ray::_Actor"):
                parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
                if address.encode() in Path("/proc", parent, "cmdline").read_bytes():
                    workers.append(int(folder.name))
    return workers


def kill_worker(address: str) -> bool:
    """Kill the first worker there is."""
    for pid in list_workers(address)[:1]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            return True
    return False


def start(source: Path, out: Path, metrics: str, address: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SCRIPT, str(source), str(out), metrics, address]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def list_parts(out: Path) -> dict[str, int]:
    """The listed parts of scores with their rows."""
    manifest = Store(out).read_manifest()
    versions = [
        (metric.place, version) for metric in (manifest.metrics if manifest else ()) for version in metric.versions
    ]
    return {f"{place}/{part.file}": part.rows for place, version in versions for part in version.parts}


def wait_for_scores(process: subprocess.Popen[str], out: Path, count: int) -> bool:
    """Wait until a run has listed so many scores; False if it ended before."""
    while sum(list_parts(out).values()) < count:
        if process.poll() is not None:
            return False
        time.sleep(0.02)
    return True


def find_strays(out: Path) -> set[str]:
    """Parts that nobody lists: pandas and others would read their rows, too."""
    manifest = Store(out).read_manifest()
    listed = set(manifest.list_parts()) if manifest else set()
    return {str(path.relative_to(out)) for path in out.rglob("*.parquet")} - listed


def write_records(path: Path, count: int) -> None:
    rng = random.Random(3)
    words = [f"w{n}" for n in range(500)]
    with path.open("w") as file:
        for n in range(count):
            texts = [" ".join(rng.choices(words, k=rng.randint(5, 30))) for _ in range(2)]
            row = {"item": str(n // 4), "system": f"s{n % 4}", "output": texts[0], "references": [texts[1]]}
            file.write(json.dumps(row) + "\n")
