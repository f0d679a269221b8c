"""`metrist train export`, called as a user calls it."""

from __future__ import annotations

from pathlib import Path

import pytest

import tiny_rewards
from metrist.metrics.base import Shard
from metrist.metrics.trained.preference import PreferenceMetric
from metrist.records import Record


@pytest.fixture
def trained(tiny, tmp_path: Path) -> Path:
    return tiny_rewards.in_torch(tiny("bert"), tmp_path / "trained")


def test_an_exported_model_scores_as_the_trained_one_does(metrist, trained: Path, tmp_path: Path) -> None:
    exported = metrist("train", "export", trained, "-o", tmp_path / "whole", "--bits", "float32")
    assert exported.code == 0, exported.err
    assert f"wrote {tmp_path / 'whole'} (" in exported.out
    shard = Shard([Record(item="1", system="a", output="the cat sat on the mat")])
    values = [PreferenceMetric(model=str(folder)).score(shard).values[0] for folder in (trained, tmp_path / "whole")]
    assert values[0] == pytest.approx(values[1], abs=1e-5)


def test_fewer_bits_make_smaller_files(metrist, trained: Path, tmp_path: Path) -> None:
    sizes = []
    for bits in ("float32", "8", "4"):
        out = tmp_path / bits
        assert metrist("train", "export", trained, "-o", out, "--bits", bits, "--group", 8).code == 0
        sizes.append((out / "weights.safetensors").stat().st_size)
    assert sizes[0] > sizes[1] > sizes[2]


def test_errors_say_why_a_model_cannot_be_exported(metrist, trained: Path, tmp_path: Path) -> None:
    failed = metrist("train", "export", tmp_path / "none", "-o", tmp_path / "x")
    assert failed.code == 2
    failed = metrist("train", "export", trained, "-o", tmp_path / "x", "--group", 7)
    assert failed.code == 2
    assert "a group of 7 columns does not divide" in failed.err
    assert not (tmp_path / "x").exists()
