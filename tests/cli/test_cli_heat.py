"""`metrist heat`, `metrist cache`, and the options of `metrist score` for metrics with a model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from metrist.models.cache import CacheFile

TELLING = """
@dataclass(frozen=True)
class Telling(Metric):
    resident = True
    def score(self, shard):
        runtime = shard.runtime
        said = f"{runtime.device} {runtime.batch_tokens} {runtime.cache}"
        tokens = [{"condition": "source", "target": "output", "pieces": [said], "logprobs": [-9.0]}]
        return Scores.of(Score(value=1.0, tokens=tokens if shard.tokens else None) for _ in shard.records)
    def remarks(self, scores):
        return ["texts were cut"]


@dataclass(frozen=True)
class Another(Telling):
    pass
"""


@pytest.fixture
def run(metrist, outputs: Path, tmp_path: Path, module: Callable[[str], ModuleType]) -> Path:
    module(TELLING)
    options = ("--tokens", "--device", "cpu", "--batch-tokens", "77", "--cache", tmp_path / "kept")
    answer = metrist("score", outputs, "-m", "own_metrics.Telling", *options, "-o", tmp_path / "run")
    assert answer.code == 0, answer.err
    assert "texts were cut" in answer.out.splitlines()
    return tmp_path / "run"


def test_options_reach_the_metric_and_tokens_are_kept(metrist, run: Path, tmp_path: Path) -> None:
    answer = metrist("heat", run, "--limit", 2, "--system", "bad")
    assert answer.code == 0
    assert answer.out.count("system bad") == 2
    assert f"[cpu 77 {tmp_path / 'kept'} -9.0]" in answer.out


def test_a_page_is_self_contained(metrist, run: Path, tmp_path: Path) -> None:
    answer = metrist("heat", run, "-m", "own_metrics.Telling", "--item", "7", "-o", tmp_path / "page.html")
    assert (answer.code, answer.out, answer.err) == (0, "", f"metrist: wrote 2 outputs to {tmp_path / 'page.html'}\n")
    assert (tmp_path / "page.html").read_text().endswith("</html>\n")
    refused = metrist("heat", run, "-o", tmp_path / "none" / "page.html")
    assert refused.code == 2
    assert "cannot be written" in refused.err


def test_a_page_of_several_metrics_says_so(metrist, run: Path, outputs: Path, tmp_path: Path) -> None:
    metrist("score", outputs, "-m", "own_metrics.Another", "--tokens", "-o", run)
    answer = metrist("heat", run, "--limit", 3, "-o", tmp_path / "page.html")
    assert answer.err == f"metrist: wrote 6 outputs of 2 metrics to {tmp_path / 'page.html'}\n"


def test_comparisons_show_notes(metrist, run: Path) -> None:
    answer = metrist("compare", run, "-m", "own_metrics.Telling", "--draws", 100)
    assert answer.code == 0
    assert "texts were cut" in answer.out


def test_a_cache_prints_its_size_and_can_be_cleared(metrist, tmp_path: Path) -> None:
    CacheFile(tmp_path).keep({b"k" * 32: bytes(2_000_000)})
    answer = metrist("cache", tmp_path)
    assert answer.out.startswith(f"{tmp_path}: 1 entries, 2.")
    cleared = metrist("cache", tmp_path, "--clear")
    assert cleared.out.startswith(f"{tmp_path}: 0 entries, 0.")
    nowhere = metrist("cache", tmp_path / "none")
    assert nowhere.code == 2
    assert "has no cache" in nowhere.err
    assert not (tmp_path / "none").exists()
