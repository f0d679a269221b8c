"""Checkpoints: whole, few, readable, and never wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from toy_training import toy

from metrist.errors import RunError
from metrist.train.checkpoints import Checkpoints, TrainingState, collect_weights, load_weights


def optimizer_of(model: torch.nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def trained(folder: Path, **settings: object) -> Checkpoints:
    training = toy(folder, every=7, **settings)
    training.run()
    return training.checkpoints


def test_the_last_two_and_the_best_are_kept(tmp_path: Path) -> None:
    checkpoints = trained(tmp_path, lr=0.5, eval_every=6, schedule="constant", seed=1)
    states = {
        step: json.loads((tmp_path / f"step-{step:08d}" / "state.json").read_text()) for step in checkpoints.steps()
    }
    latest = sorted(states)[-2:]
    assert latest == [42, 48]
    assert set(states) == {*latest, *(states[step]["best_step"] for step in latest)}
    assert states[48]["best_step"] not in latest, "the rate should be too high for the last weights to be the best"


def test_a_checkpoint_holds_no_pickle(tmp_path: Path) -> None:
    trained(tmp_path)
    files = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {"model.safetensors", "optimizer.safetensors", "state.json"}


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
def test_a_damaged_checkpoint_is_passed_over_and_told(tmp_path: Path, name: str) -> None:
    checkpoints = trained(tmp_path)
    calm = toy(tmp_path / "calm")
    calm.run()
    damaged = tmp_path / "step-00000048" / name
    damaged.write_bytes(damaged.read_bytes()[:-40])
    said: list[str] = []
    resumed = toy(tmp_path, every=7)
    at = checkpoints.resume(resumed.model, optimizer_of(resumed.model), said.append)
    assert at is not None
    assert at.step == 42
    assert f"{damaged.parent} cannot be read" in said[0]
    assert said[0].endswith(" and is passed over")
    resumed.run()
    assert all(torch.equal(a, b) for a, b in zip(calm.model.parameters(), resumed.model.parameters(), strict=True))


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    checkpoints = trained(tmp_path)
    other = torch.nn.Linear(6, 1)
    said: list[str] = []
    assert checkpoints.resume(other, optimizer_of(other), said.append) is None
    assert "its weights are of another model: " in said[0]
    assert said[-1] == "no checkpoint can be read: from the start"


def test_an_unfinished_checkpoint_is_not_taken_for_one(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "none")
    model = torch.nn.Linear(2, 1)
    assert checkpoints.steps() == []
    checkpoints.write(TrainingState(max_tokens=1, step=3), model, optimizer_of(model))
    (tmp_path / "none" / ".step-00000009.part").mkdir()
    (tmp_path / "none" / "notes").mkdir()
    assert checkpoints.steps() == [3]
    checkpoints.write(TrainingState(max_tokens=1, step=9), model, optimizer_of(model))
    checkpoints.write(TrainingState(max_tokens=1, step=9), model, optimizer_of(model))
    assert checkpoints.steps() == [3, 9]
    checkpoints.remove()
    assert not checkpoints.folder.exists()


def test_a_checkpoint_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    model = torch.nn.Linear(2, 1)
    checkpoints = Checkpoints(tmp_path)
    (tmp_path / ".step-00000001.part").write_text("in the way")
    with pytest.raises(RunError, match=r"step-00000001: cannot be written: File exists"):
        checkpoints.write(TrainingState(max_tokens=1, step=1), model, optimizer_of(model))


def test_a_disk_that_is_full_leaves_no_half_checkpoint(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource", reason="limits the size of files")
    model, checkpoints = torch.nn.Linear(200, 200), Checkpoints(tmp_path)
    checkpoints.write(TrainingState(max_tokens=1, step=1), model, optimizer_of(model))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(RunError, match=r"step-00000002: cannot be written: .*File too large"):
            checkpoints.write(TrainingState(max_tokens=1, step=2), model, optimizer_of(model))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"], "the half was removed: the disk is full"


def test_checkpoints_are_some_steps_apart(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="checkpoints are written every so many steps, at least 1, got 0"):
        Checkpoints(tmp_path, every=0)


def test_shared_weights_are_written_once_and_come_back_shared() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    model[1].weight = model[0].weight
    weights = {name: tensor.clone() + 1 for name, tensor in collect_weights(model).items()}
    assert list(weights) == ["0.weight", "0.bias", "1.bias"]
    load_weights(model, weights)
    assert model[1].weight is model[0].weight
    assert torch.equal(model[1].weight, weights["0.weight"])


def test_weights_of_a_checkpoint_without_its_optimizer_are_not_kept(tmp_path: Path) -> None:
    """From the start is from the start: not from weights that a readable half of a checkpoint had."""
    checkpoints = trained(tmp_path)
    fresh = toy(tmp_path / "fresh").model
    before = {name: tensor.clone() for name, tensor in collect_weights(fresh).items()}
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(3))])  # Of another shape: only it does not fit.
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]})
    said: list[str] = []
    for step in checkpoints.steps():
        (tmp_path / f"step-{step:08d}" / "optimizer.safetensors").write_bytes(
            (tmp_path / f"step-{step:08d}" / "model.safetensors").read_bytes()
        )
    assert checkpoints.resume(fresh, optimizer, said.append) is None
    assert said[-1] == "no checkpoint can be read: from the start"
    assert all(torch.equal(tensor, before[name]) for name, tensor in collect_weights(fresh).items())
