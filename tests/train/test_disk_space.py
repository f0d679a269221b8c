"""The disk space is checked before training."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from toy_training import toy

from error_codes import raises_code
from metrist.errors import RunError
from metrist.train.checkpoints import Checkpoints, TrainingState, estimate_disk_space


def set_free_space(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=free))


@pytest.mark.parametrize(
    ("existing", "planned", "numbers"),
    [
        (0, 1, 300 + 100),  # a checkpoint (weights, two moments) and the final model
        (0, 2, 300 + 300 + 100),
        (0, 3, 300 + 300 + 300),
        (0, 9, 300 + 300 + 300),
        (1, 9, 300 + 300),
        (2, 9, 300),
        (3, 9, 300),  # the best one is older than the last two
        (2, 0, 100),
    ],
)
def test_the_estimate_matches_a_count_by_hand(existing: int, planned: int, numbers: int) -> None:
    model = torch.nn.Linear(100, 1, bias=False)
    assert estimate_disk_space(model, keep=2, existing=existing, planned=planned) == 4 * numbers


def test_frozen_weights_take_no_space_and_shared_weights_count_once() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(10, 10, bias=False), torch.nn.Linear(10, 10, bias=False))
    model[1].weight = model[0].weight
    assert estimate_disk_space(model, keep=2, existing=0, planned=9) == 3 * 4 * 300
    model.requires_grad_(False)
    # Frozen weights are those of the base, and are not stored.
    assert estimate_disk_space(model, keep=2, existing=0, planned=9) == 0


def test_a_checkpoint_is_about_as_large_as_estimated(tmp_path: Path) -> None:
    training = toy(tmp_path, epochs=1, dev=False)
    training.model = torch.nn.Sequential(torch.nn.Linear(6, 4000), torch.nn.Tanh(), torch.nn.Linear(4000, 1))
    training.run()
    size = sum(file.stat().st_size for file in tmp_path.rglob("*.safetensors"))
    estimate = estimate_disk_space(training.model, keep=1, existing=0, planned=1)
    assert size == pytest.approx(estimate * 3 / 4, rel=0.02), "without the model itself"


def test_a_training_does_not_begin_on_a_disk_that_is_too_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: 6 x 16 + 16 and 16 + 1 weights are 129, and 12 bytes each for three checkpoints 4,644."""
    training = toy(tmp_path / "checkpoints", every=7)
    set_free_space(monkeypatch, 4_643)
    with raises_code(RunError, "run_failed", "0.00"):
        training.run()
    assert not (tmp_path / "checkpoints").exists()
    set_free_space(monkeypatch, 4_644)
    training.run()


def test_sizes_are_printed_in_readable_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.device("meta"):
        model = torch.nn.Linear(1_000, 140_000, bias=False)
    set_free_space(monkeypatch, 31_000_000)
    with raises_code(RunError, "run_failed", "5.0", "31.00"):
        Checkpoints(tmp_path).prepare(model, 9)


def test_incomplete_checkpoints_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    (tmp_path / ".step-00000005.part").mkdir()
    (tmp_path / ".step-00000005.part" / "model.safetensors").touch()
    toy(tmp_path, epochs=1).run()
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000012"]


def test_a_file_system_without_free_space_information_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_path: Path) -> None:
        raise OSError

    monkeypatch.setattr(shutil, "disk_usage", fail)
    model, checkpoints = torch.nn.Linear(2, 1), Checkpoints(tmp_path)
    checkpoints.prepare(model, 1)
    checkpoints.write(TrainingState(max_tokens=1, step=1), model, torch.optim.AdamW(model.parameters()))
