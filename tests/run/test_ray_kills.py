"""Kill workers, nodes and the command itself at random moments of runs on Ray: nothing is lost or computed twice."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ray_nodes import Nodes, find_strays, kill_worker, start, start_nodes, wait_for_scores, write_records

from metrist.run import score
from run_contents import contents
from torture_table import TortureRow

pytest.importorskip("ray", reason="Ray is not installed: pip install 'metrist[ray]'")
pytestmark = [
    pytest.mark.torture,
    pytest.mark.skipif(sys.platform != "linux", reason="finds processes through /proc"),
    pytest.mark.filterwarnings("default"),
]

METRICS = "rouge1,rougeL,bleu,chrf"
#: Kills of each kind; METRIST_RAY_KILLS sets another number.
ROUNDS = int(os.environ.get("METRIST_RAY_KILLS", "5"))


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with start_nodes(2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ray") / "in.jsonl"
    write_records(path, 6000)
    return path


@pytest.fixture(scope="module")
def expected(records: Path) -> dict[str, Any]:
    out = records.parent / "serial"
    score(records, METRICS.split(","), out=out, shard_size=100, executor="serial")
    return list_rows(out)


def list_rows(out: Path) -> dict[str, Any]:
    """The rows of a run by their tables and numbers. A score that is there twice, or in a stray part, has a number of
    its own."""
    found = contents(out)
    rows = {
        f"{name} {n}": row for name, listed in found.items() if isinstance(listed, list) for n, row in enumerate(listed)
    }
    return {"manifest": found["manifest"], **rows, **dict.fromkeys(find_strays(out), "stray")}


@pytest.mark.parametrize("victim", ["worker", "node", "command"])
def test_killing_loses_nothing(
    victim: str,
    nodes: Nodes,
    records: Path,
    expected: dict[str, Any],
    torture_row: Callable[[str], TortureRow],
) -> None:
    row = torture_row("kill -9: Ray workers, nodes and driver")
    rng = random.Random(f"{victim} 1")
    scores = 6000 * len(METRICS.split(","))
    for n in range(ROUNDS):
        out = records.parent / f"{victim}-{n}"
        process = start(records, out, METRICS, nodes.address)
        with row.attempt():
            assert wait_for_scores(process, out, rng.randrange(1, 19 * scores // 20)), process.communicate()
            if victim == "worker":
                kill_worker(nodes.address)
            elif victim == "node":
                nodes.kill_one()
            else:
                process.kill()
                process.communicate()
                process = start(records, out, METRICS, nodes.address)
            _, errors = process.communicate(timeout=600)
            assert process.returncode == 0, errors
        row.compare(expected, list_rows(out))
