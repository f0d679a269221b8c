"""Benchmark and prove runs on Ray: `python -m bench.ray_cluster [--records N] [--folder DIR] [--write]`.

A local cluster of two nodes with one CPU each scores made-up records (see `scale_texts`). In the first run a worker, a
node and the command itself are killed by SIGKILL, and a new node joins; the same command then finishes the rest. The
run must hold the rows of a serial run. Further runs measure the rates of one worker and of two, from the start of
Python to the end of `metrist.score`. CPU seconds are those of the command, and of the actors as /proc shows them (Linux
only).
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from bench.document import DOCUMENT, machine, write_section
from bench.scale import METRICS
from bench.scale_texts import SYSTEMS, write_records
from metrist.run.run import open_run
from metrist.run.store import Store

OBJECT_STORE = 200 << 20
_TICKS = os.sysconf("SC_CLK_TCK")


class Measured(NamedTuple):
    """What one command took: wall-clock seconds, and CPU seconds of the command and of its workers."""

    name: str
    records: int
    wall: float
    command_cpu: float
    worker_cpu: float
    #: CPU seconds of the worker that took most.
    busiest_cpu: float
    #: CPU seconds of everything else on the machine, Ray's own processes included.
    other_cpu: float
    megabytes: float


class LocalCluster:
    """Nodes of one CPU each on this machine."""

    def __init__(self, nodes: int) -> None:
        os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
        from ray.cluster_utils import Cluster

        self._options = {"num_cpus": 1, "object_store_memory": OBJECT_STORE, "include_dashboard": False}
        self._cluster: Any = Cluster()
        self.add_node()
        self.nodes = [self.add_node() for _ in range(nodes - 1)]
        self.address: str = self._cluster.address

    def add_node(self) -> Any:
        for _ in range(2):
            with suppress(Exception):  # On a busy machine a node may take longer than Ray waits.
                return self._cluster.add_node(**self._options)
        return self._cluster.add_node(**self._options)

    def kill_node(self, node: Any) -> None:
        self._cluster.remove_node(node, allow_graceful=False)

    def stop(self) -> None:
        self._cluster.shutdown()


def list_workers(executor: str) -> dict[int, float]:
    """The CPU seconds of each of metrist's actors on the nodes of a cluster, whose parents name its address."""
    address = executor.removeprefix("ray:").encode()
    workers = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "cmdline").read_bytes().startswith(b"ray::_Actor"):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                if address in Path("/proc", fields[1], "cmdline").read_bytes():
                    workers[int(folder.name)] = (int(fields[11]) + int(fields[12])) / _TICKS
        except OSError:
            continue  # It has ended since.
    return workers


#: `metrist.score` in a process of its own: data, run, executor and workers come last.
_SCRIPT = """
import sys
from metrist.run import score
from metrist.run.executors import find_executor
data, run, executor, workers = sys.argv[1:]
score(data, {metrics}, out=run, executor=find_executor(executor, int(workers) or None))
"""


def start(data: Path, run: Path, executor: str, workers: int) -> subprocess.Popen[bytes]:
    # Names relative to the folder are the same wherever it is.
    words = [data.name, f"{run.name}/", executor, f"{workers}"]
    return subprocess.Popen([sys.executable, "-c", _SCRIPT.format(metrics=METRICS), *words], cwd=run.parent)


def measure(name: str, records: int, data: Path, run: Path, executor: str, workers: int = 0) -> Measured:
    """Run the command to its end."""
    began, busy, cpu = time.monotonic(), count_busy(), dict[int, float]()
    process = start(data, run, executor, workers)
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            break
        cpu |= list_workers(executor) if executor != "serial" else {}
        time.sleep(0.5)
    if status:
        sys.exit(f"{name} failed")
    wall, own = time.monotonic() - began, usage.ru_utime + usage.ru_stime
    workers_cpu = sum(cpu.values())
    other = count_busy() - busy - own - workers_cpu
    busiest = max(cpu.values(), default=0.0)
    print(
        f"{name:16} {wall:6.1f} s; CPU: {own:.1f} s, workers {workers_cpu:.1f} s (one {busiest:.1f} s), others "
        f"{other:.1f} s",
        file=sys.stderr,
    )
    return Measured(name, records, wall, own, workers_cpu, busiest, other, usage.ru_maxrss / 1024)


def count_busy() -> float:
    """The CPU seconds that the machine was busy since it started."""
    fields = Path("/proc/stat").read_text().partition("\n")[0].split()[1:]
    return sum(int(fields[n]) for n in (0, 1, 2, 5, 6)) / _TICKS


def list_parts(run: Path) -> dict[str, int]:
    """The listed score parts of a run with their rows."""
    manifest = Store(run).read_manifest()
    versions = [(m.folder, version) for m in (manifest.metrics if manifest else ()) for version in m.versions]
    return {f"{folder}/{part.file}": part.rows for folder, version in versions for part in version.parts}


def kill_and_resume(cluster: LocalCluster, data: Path, run: Path, scores: int) -> list[str]:
    """Kill a worker, a node and the command, each after about a fifth of all scores; then finish the run."""
    events = list[str]()
    process = start(data, run, f"ray:{cluster.address}", 2)

    def wait_for(share: float) -> None:
        while (done := sum(list_parts(run).values())) < share * scores:
            if process.poll() is not None:
                sys.exit(f"the run ended early, with {done} of {scores} scores")
            time.sleep(0.2)
        print(f"{done} of {scores} scores are there", file=sys.stderr)

    wait_for(0.2)
    os.kill(min(list_workers(cluster.address)), signal.SIGKILL)
    events.append("a worker")
    wait_for(0.4)
    cluster.kill_node(cluster.nodes.pop())
    events.append("a node")
    wait_for(0.6)
    process.kill()
    process.wait()
    events.append("the command")
    cluster.nodes.append(cluster.add_node())
    before = list_parts(run)
    process = start(data, run, f"ray:{cluster.address}", 0)
    if process.wait():
        sys.exit("the resumed run failed")
    gone = before.keys() - list_parts(run).keys()
    print(f"{len(before)} parts before the command was killed, {len(gone)} of them scored again", file=sys.stderr)
    if gone:
        sys.exit(f"{len(gone)} listed parts were scored again")
    return events


def hash_run(run: Path) -> tuple[str, int]:
    """A hash of all rows of a run, and the number of scores in its parts."""
    opened, total = open_run(run), hashlib.sha256()
    columns = ["metric", "record", "value", "parts", "statistics", "failure"]
    for table in (opened.records(), opened.ratings(), opened.scores(columns=columns)):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table.combine_chunks())
        total.update(sink.getvalue())
    return total.hexdigest(), sum(list_parts(run).values())


def prove(cluster: LocalCluster, folder: Path, records: int) -> str:
    """Kill and resume a run, and compare it with a serial one."""
    data = make_records(folder, records)
    if not (folder / "serial").exists():
        measure("serial", records, data, folder / "serial", "serial")
    expected, scores = hash_run(folder / "serial")
    events = kill_and_resume(cluster, data, folder / "ray", scores)
    digest, found = hash_run(folder / "ray")
    if (digest, found) != (expected, scores) or found != len(METRICS) * records:
        sys.exit(f"the run on Ray differs from the serial one: {found:,} and {scores:,} scores")
    return (
        f"**Killed and resumed.** In a run over {records:,} records, SIGKILL ended {', then '.join(events)}; a node "
        f"joined, and the same command finished the rest. The folder holds {scores:,} scores ({len(METRICS)} × "
        f"{records:,}, none twice), and records, ratings and scores are those of the serial run to the last bit "
        f"(SHA-256 `{digest[:16]}…`)."
    )


def compare_rates(cluster: LocalCluster, folder: Path, records: int, rounds: int) -> str:
    """A table of serial runs and runs with one worker and two, each the fastest of several."""
    data = make_records(folder, records)
    kinds = [
        ("serial", "serial", 0),
        *((f"Ray, {n} worker{'s' * (n > 1)}", f"ray:{cluster.address}", n) for n in (1, 2)),
    ]
    found: dict[str, list[Measured]] = {name: [] for name, _, _ in kinds}
    for n in range(rounds):
        for name, executor, workers in kinds:
            found[name].append(measure(name, records, data, folder / f"rate-{workers}-{n}", executor, workers))
    rows = [min(measured, key=lambda row: row.wall) for measured in found.values()]
    lines = [
        "| executor | records | wall clock, s | records per second | CPU of the command, s | CPU of workers, s "
        "| of the busiest, s | CPU of all else, s | peak of the command, MB |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        numbers = (row.records, row.wall, row.records / row.wall, *row[3:])
        lines.append(f"| {row.name} | {' | '.join(f'{number:,.0f}' for number in numbers)} |")
    _, one, two = rows
    paths = [row.command_cpu + row.busiest_cpu for row in (one, two)]
    lines += [
        "",
        f"From one worker to two: {one.wall / two.wall:.2f} times the rate; the fastest of {rounds} runs each. The CPU "
        f"seconds of the command and its busiest worker together fall by a factor of {paths[0] / paths[1]:.2f}: what "
        "an idle machine would show.",
    ]
    return "\n".join(lines)


def make_records(folder: Path, count: int) -> Path:
    path = folder / f"d{count}.jsonl"
    if not path.exists():
        write_records(path, count)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.ray_cluster", description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000, help="records of the run that is killed; 0: none")
    parser.add_argument("--rate-records", type=int, default=400_000, help="records of each measured run; 0: none")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each kind that measure rates")
    parser.add_argument("--folder", type=Path, help="where records and runs are kept; by default they are deleted")
    parser.add_argument("--write", action="store_true", help=f"put the table into {DOCUMENT.name}")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        cluster = LocalCluster(2)
        try:
            parts = [prove(cluster, folder, arguments.records)] if arguments.records else []
            if arguments.rate_records:
                parts.append(compare_rates(cluster, folder, arguments.rate_records, arguments.rounds))
        finally:
            cluster.stop()
    head = (
        f"Measured by `python -m bench.ray_cluster --records {arguments.records} --rate-records "
        f"{arguments.rate_records}` on {os.cpu_count()} cores of {machine()}, load average {os.getloadavg()[0]:.1f} at "
        f"the end: made-up records of {SYSTEMS} systems, {len(METRICS)} lexical metrics, a local Ray cluster of two "
        "nodes with one CPU each."
    )
    text = "\n\n".join([head, *parts])
    print(text)
    if arguments.write:
        write_section("bench-ray", text)


if __name__ == "__main__":
    main()
