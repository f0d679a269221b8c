"""A run by a metric that holds a model, killed by kill -9 and started again, ends with the same bytes; what its model
had computed before is not computed again."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from forked_processes import exit_code, forked
from metrist import open_run
from metrist.metrics.registry import build
from metrist.models.cache import CacheFile
from metrist.models.loading import load_seq2seq
from metrist.run import load, score
from run_contents import contents

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks processes to kill them")


def score_slowly(folder: Path, model: Path, started: int) -> None:
    """Report the first shard through a pipe, and go no further than the sixth."""
    shards = 0

    def pause(*_: object) -> None:
        nonlocal shards
        shards += 1
        os.write(started, b".")
        time.sleep(0.1 if shards < 6 else 600)

    score_all(folder, "killed", model, pause)


def score_all(folder: Path, name: str, model: Path, progress: Callable[..., None] | bool = False) -> None:
    metrics = [f"likelihood(model={str(model)!r})", "chrf"]
    cache = folder / f"{name}-cache"
    score(folder / "in.jsonl", metrics, out=folder / name, shard_size=4, tokens=True, cache=cache, progress=progress)


def test_a_killed_run_with_a_model_ends_with_the_same_bytes(
    tmp_path: Path, tiny: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METRIST_DEVICE", "cpu")
    monkeypatch.setattr(os, "fsync", lambda _: None)  # Processes die here, not the machine.
    rng = random.Random(3)
    words = ["the", "a", "small", "old", "cat", "dog", "sat", "ran", "on", "over", "mat", "river", "and", "was", "good"]
    with (tmp_path / "in.jsonl").open("w") as file:
        for n in range(120):
            source, output, reference = (" ".join(rng.choices(words, k=rng.randint(3, 9))) for _ in range(3))
            row = {"item": str(n // 2), "system": f"s{n % 2}", "output": output, "source": source}
            file.write(json.dumps({**row, "references": [reference]}) + "\n")
    model = tiny("bart")
    metric: Any = build(f"likelihood(model={str(model)!r})")
    load_seq2seq(metric.options)  # Once for all processes.
    assert exit_code(forked(partial(score_all, tmp_path, "calm", model))) == 0
    for _ in range(3):
        reader, writer = os.pipe()
        process = forked(partial(score_slowly, tmp_path, model, writer))
        os.close(writer)
        assert os.read(reader, 1), "the run ended before its first shard"
        os.close(reader)
        time.sleep(rng.uniform(0.0, 0.6))
        os.kill(process, signal.SIGKILL)
        assert exit_code(process) == -signal.SIGKILL
    assert len(open_run(tmp_path / "killed").finished_metrics()) < 2
    assert exit_code(forked(partial(score_all, tmp_path, "killed", model))) == 0
    assert contents(tmp_path / "killed") == contents(tmp_path / "calm")
    results = load(tmp_path / "killed")
    assert len(results.scores[results.metrics[0].text].tokens) == 120
    entries = [CacheFile(tmp_path / f"{name}-cache").contents().entries for name in ("calm", "killed")]
    assert entries[0] == entries[1] > 100
