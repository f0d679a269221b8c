"""Where models run and what they keep: set for one call, in this process and its workers, and put back."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from metrist.errors import RunError
from metrist.run import score
from metrist.run.surroundings import surroundings

NAMES = ("METRIST_DEVICE", "METRIST_BATCH_TOKENS", "METRIST_CACHE")

TELLING = f"""
NAMES = {NAMES!r}
@dataclass(frozen=True)
class Telling(Metric):
    def score(self, shard):
        said = " ".join(str(os.environ.get(name)) for name in NAMES)
        return Scores.of(Score(value=1.0, explanation=said) for _ in shard.records)
"""


def now() -> list[str | None]:
    return [os.environ.get(name) for name in NAMES]


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def test_what_is_set_is_put_back_whatever_happens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("METRIST_DEVICE", "cuda:1")
    with surroundings(device="cpu", batch_tokens=512, cache=tmp_path):
        assert now() == ["cpu", "512", str(tmp_path)]
        with surroundings(batch_tokens=64):
            assert now() == ["cpu", "64", str(tmp_path)]
        with pytest.raises(RunError, match="must be at least 1"):
            score([{"item": "1", "output": "a"}], "length", shard_size=0, device="mps")
        assert now() == ["cpu", "512", str(tmp_path)]
    assert now() == ["cuda:1", None, None]


@pytest.mark.parametrize("executor", ["serial", "processes"])
def test_metrics_see_it_here_and_in_workers(
    rows: list[dict[str, Any]],
    module: Callable[[str], ModuleType],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    executor: str,
) -> None:
    metric = module(TELLING).Telling()
    monkeypatch.chdir(tmp_path)
    settings: Any = {"device": "cpu", "batch_tokens": 9, "cache": "kept"}
    results = score(rows, [metric], executor=executor, shard_size=16, **settings)
    assert set(results.scores[metric.text].explanations.values()) == {f"cpu 9 {tmp_path / 'kept'}"}
    assert now() == [None, None, None]


def test_it_is_no_part_of_a_result_s_identity(
    rows: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = score(rows, "chrf", out=tmp_path / "run")
    monkeypatch.setattr("metrist.run.tasks.score_shard", None)
    again = score(rows, "chrf", out=tmp_path / "run", device="cpu", batch_tokens=4, cache=tmp_path / "c")
    assert again.signatures == first.signatures


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_tokens": 0}, "batch_tokens"),
        ({"cache": __file__}, "cache must be a folder"),
    ],
)
def test_what_cannot_be_is_refused_before_the_run(settings: Any, message: str) -> None:
    with pytest.raises(RunError, match=message):
        score([{"item": "1", "output": "a"}], "length", **settings)
