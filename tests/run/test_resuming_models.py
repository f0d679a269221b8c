"""A run by a metric that holds a model, killed by kill -9 and started again, ends with the same bytes; what its model
had computed before is not computed again."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from metrist.models.cache import CacheFile
from metrist.run import load
from run_contents import contents

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks processes to kill them")

# The model is loaded once, and each run is a child: loading the libraries anew would take most of the time.
SCRIPT = """
import json, metrist, os, random, signal, sys, time
from pathlib import Path
source, model, folder = map(Path, sys.argv[1:])
from metrist.metrics.registry import build
from metrist.run import score
metrics = [build(f"likelihood(model={str(model)!r})"), build("chrf")]
from metrist.models.loading import load_seq2seq
load_seq2seq(metrics[0].options)

def begin(name, limit=None):
    # With a limit, the child reports its first shard, and never goes beyond that many.
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        calls = 0
        def pause(*_):
            nonlocal calls
            calls += 1
            os.write(writer, b".")
            time.sleep(0.1 if calls < limit else 600)
        cache = folder / f"{name}-cache"
        progress = pause if limit else False
        score(source, metrics, out=folder / name, shard_size=4, tokens=True, cache=cache, progress=progress)
        os._exit(0)
    os.close(writer)
    if limit:
        assert os.read(reader, 1), "the run ended before its first shard"
    os.close(reader)
    return child

assert os.waitpid(begin("calm"), 0)[1] == 0
rng = random.Random(1)
kills = 0
for _ in range(3):
    child = begin("killed", limit=6)
    time.sleep(rng.uniform(0.0, 0.6))
    os.kill(child, signal.SIGKILL)
    kills += os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
unfinished = len(metrist.open_run(folder / "killed").finished_metrics()) < 2
assert os.waitpid(begin("killed"), 0)[1] == 0
print(json.dumps({"kills": kills, "unfinished": unfinished}))
"""


def test_a_killed_run_with_a_model_ends_with_the_same_bytes(tmp_path: Path, tiny: Callable[[str], Path]) -> None:
    rng = random.Random(3)
    words = ["the", "a", "small", "old", "cat", "dog", "sat", "ran", "on", "over", "mat", "river", "and", "was", "good"]
    with (tmp_path / "in.jsonl").open("w") as file:
        for n in range(120):
            source, output, reference = (" ".join(rng.choices(words, k=rng.randint(3, 9))) for _ in range(3))
            row = {"item": str(n // 2), "system": f"s{n % 2}", "output": output, "source": source}
            file.write(json.dumps({**row, "references": [reference]}) + "\n")
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "in.jsonl"), str(tiny("bart")), str(tmp_path)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "METRIST_DEVICE": "cpu"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout.splitlines()[-1]) == {"kills": 3, "unfinished": True}
    assert contents(tmp_path / "killed") == contents(tmp_path / "calm")
    results = load(tmp_path / "killed")
    assert len(results.scores[results.metrics[0].text].tokens) == 120
    entries = [CacheFile(tmp_path / f"{name}-cache").contents().entries for name in ("calm", "killed")]
    assert entries[0] == entries[1] > 100
