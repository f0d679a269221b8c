"""Whether the disk will do is known before training."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from toy_training import toy

from metrist.errors import RunError
from metrist.train.checkpoints import Checkpoints, TrainingState, space_needed


def left_free(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=free))


@pytest.mark.parametrize(
    ("there", "to_come", "numbers"),
    [
        (0, 1, 300 + 100),  # a checkpoint (weights, two moments), and in the end the model
        (0, 2, 300 + 300 + 100),
        (0, 3, 300 + 300 + 300),
        (0, 9, 300 + 300 + 300),
        (1, 9, 300 + 300),
        (2, 9, 300),
        (3, 9, 300),  # the best one is older than the last two
        (2, 0, 100),
    ],
)
def test_what_is_needed_counted_by_hand(there: int, to_come: int, numbers: int) -> None:
    model = torch.nn.Linear(100, 1, bias=False)
    assert space_needed(model, kept=2, there=there, to_come=to_come) == 4 * numbers


def test_what_is_not_learned_has_no_moments_and_shared_weights_count_once() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(10, 10, bias=False), torch.nn.Linear(10, 10, bias=False))
    model[1].weight = model[0].weight
    assert space_needed(model, kept=2, there=0, to_come=9) == 3 * 4 * 300
    model.requires_grad_(False)
    assert space_needed(model, kept=2, there=0, to_come=9) == 3 * 4 * 100


def test_a_checkpoint_is_about_as_large_as_foreseen(tmp_path: Path) -> None:
    training = toy(tmp_path, epochs=1, dev=False)
    training.model = torch.nn.Sequential(torch.nn.Linear(6, 4000), torch.nn.Tanh(), torch.nn.Linear(4000, 1))
    training.run()
    size = sum(file.stat().st_size for file in tmp_path.rglob("*.safetensors"))
    foreseen = space_needed(training.model, kept=1, there=0, to_come=1)
    assert size == pytest.approx(foreseen * 3 / 4, rel=0.02), "less the model itself"


def test_a_training_does_not_begin_on_a_disk_that_is_too_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: 6 x 16 + 16 and 16 + 1 weights are 129, and 12 bytes each for three checkpoints 4,644."""
    training = toy(tmp_path / "checkpoints", every=7)
    left_free(monkeypatch, 4_643)
    with pytest.raises(
        RunError, match=r"checkpoints of this training need 0\.00 MB on the disk, and 0\.00 MB are free; make room"
    ):
        training.run()
    assert not (tmp_path / "checkpoints").exists()
    left_free(monkeypatch, 4_644)
    training.run()


def test_sizes_are_told_in_units_that_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.device("meta"):
        model = torch.nn.Linear(1_000, 140_000, bias=False)
    left_free(monkeypatch, 31_000_000)
    with pytest.raises(RunError, match=r"need 5\.0 GB on the disk, and 31\.00 MB are free; make room there, or give"):
        Checkpoints(tmp_path).make_room(model, 9)


def test_what_a_killed_process_left_half_written_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".step-00000005.part").mkdir()
    (tmp_path / ".step-00000005.part" / "model.safetensors").touch()
    toy(tmp_path, epochs=1).run()
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000012"]


def test_a_file_system_that_does_not_say_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsaid(_path: Path) -> None:
        raise OSError

    monkeypatch.setattr(shutil, "disk_usage", unsaid)
    model, checkpoints = torch.nn.Linear(2, 1), Checkpoints(tmp_path)
    checkpoints.make_room(model, 1)
    checkpoints.write(TrainingState(max_tokens=1, step=1), model, torch.optim.AdamW(model.parameters()))
