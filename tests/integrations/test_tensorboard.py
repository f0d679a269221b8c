"""Scores in files that TensorBoard itself reads: `make test-tensorboard`."""

from __future__ import annotations

from pathlib import Path

import pytest

import metrist
from metrist.compat.tracking import log_results

pytest.importorskip("tensorboard", reason="tensorboard is not installed (make test-tensorboard)")

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

DEMO = Path(__file__).parents[2] / "demo" / "sample.jsonl"


def test_each_system_has_its_scores_at_each_step(tmp_path: Path) -> None:
    results = metrist.score(DEMO, ["rougeL", "ter"])
    for step in (100, 200):
        log_results(results, f"tensorboard:{tmp_path}", step=step, report=False)
    systems = {score.system for score in results.system_scores(draws=0)}
    assert {folder.name for folder in tmp_path.iterdir()} == systems
    for score in results.system_scores():
        events = EventAccumulator(str(tmp_path / score.system))
        events.Reload()
        for name, value in (("", score.value), (".low", score.low), (".high", score.high), (".coverage", 1)):
            points = events.Scalars(f"{score.metric}{name}")
            assert [point.step for point in points] == [100, 200]
            assert [point.value for point in points] == pytest.approx([value] * 2, rel=1e-6)
