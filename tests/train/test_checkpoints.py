"""Checkpoints are complete, few, readable and never mixed up; the disk space is checked before training."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from toy_training import toy

from error_codes import raises_code
from metrist.errors import RunError
from metrist.train.checkpoints import Checkpoints, TrainingState, collect_weights, estimate_disk_space, load_weights


def make_optimizer(model: torch.nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def train(folder: Path, **settings: object) -> Checkpoints:
    training = toy(folder, every=7, **settings)
    training.run()
    return training.checkpoints


def test_the_last_two_and_the_best_are_kept(tmp_path: Path) -> None:
    checkpoints = train(tmp_path, lr=0.5, eval_every=6, schedule="constant", seed=1)
    states = {
        step: json.loads((tmp_path / f"step-{step:08d}" / "state.json").read_text()) for step in checkpoints.steps()
    }
    latest = sorted(states)[-2:]
    assert latest == [42, 48]
    assert set(states) == {*latest, *(states[step]["best_step"] for step in latest)}
    assert states[48]["best_step"] not in latest, "the rate should be too high for the last weights to be the best"


def test_a_checkpoint_holds_no_pickle(tmp_path: Path) -> None:
    train(tmp_path)
    files = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert files == {"model.safetensors", "optimizer.safetensors", "state.json"}


@pytest.mark.parametrize("way", ["cut", "changed"])
@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
def test_a_damaged_checkpoint_is_skipped_and_reported(tmp_path: Path, name: str, way: str) -> None:
    checkpoints = train(tmp_path)
    calm = toy(tmp_path / "calm")
    calm.run()
    damaged = tmp_path / "step-00000048" / name
    data = damaged.read_bytes()
    if way == "cut":
        damaged.write_bytes(data[:-40])
    else:  # One bit of a weight or a moment, or one digit of the state.
        damaged.write_bytes(data.replace(b'"tokens": ', b'"tokens": 1') if name == "state.json" else flip_bit(data))
    messages: list[str] = []
    resumed = toy(tmp_path, every=7)
    state = checkpoints.resume(resumed.model, make_optimizer(resumed.model), messages.append)
    assert state is not None
    assert state.step == 42
    assert f"skipping the checkpoint {damaged.parent}" in messages[0]
    resumed.run()
    assert all(torch.equal(a, b) for a, b in zip(calm.model.parameters(), resumed.model.parameters(), strict=True))


def flip_bit(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def test_damaged_best_weights_are_not_used(tmp_path: Path) -> None:
    checkpoints = train(tmp_path, lr=0.5, eval_every=6, schedule="constant", seed=1)
    state = checkpoints._read_state(48)[0]
    assert state.best_step not in (None, 48)
    best = tmp_path / f"step-{state.best_step:08d}" / "model.safetensors"
    best.write_bytes(flip_bit(best.read_bytes()))
    model = toy(tmp_path, every=7).model
    with raises_code(RunError, "unreadable"):
        checkpoints.load_best(model, state)
    messages: list[str] = []
    resumed = checkpoints.resume(model, make_optimizer(model), messages.append)
    assert resumed is None or resumed.best_step != state.best_step
    assert "step-00000048" in messages[0]


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    checkpoints = train(tmp_path)
    other = torch.nn.Linear(6, 1)
    messages: list[str] = []
    assert checkpoints.resume(other, make_optimizer(other), messages.append) is None
    assert "another model" in messages[0]
    assert "no checkpoint can be read" in messages[-1]


def test_an_incomplete_checkpoint_is_ignored(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "none")
    model = torch.nn.Linear(2, 1)
    assert checkpoints.steps() == []
    checkpoints.write(TrainingState(max_tokens=1, step=3), model, make_optimizer(model))
    (tmp_path / "none" / ".step-00000009.part").mkdir()
    (tmp_path / "none" / "notes").mkdir()
    assert checkpoints.steps() == [3]
    checkpoints.write(TrainingState(max_tokens=1, step=9), model, make_optimizer(model))
    checkpoints.write(TrainingState(max_tokens=1, step=9), model, make_optimizer(model))
    assert checkpoints.steps() == [3, 9]
    checkpoints.remove()
    assert not checkpoints.folder.exists()


def test_a_checkpoint_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    model = torch.nn.Linear(2, 1)
    checkpoints = Checkpoints(tmp_path)
    (tmp_path / ".step-00000001.part").write_text("in the way")
    with raises_code(RunError, "cannot_write", "-00000001"):
        checkpoints.write(TrainingState(max_tokens=1, step=1), model, make_optimizer(model))


def test_a_full_disk_leaves_no_incomplete_checkpoint(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource", reason="limits the size of files")
    model, checkpoints = torch.nn.Linear(200, 200), Checkpoints(tmp_path)
    checkpoints.write(TrainingState(max_tokens=1, step=1), model, make_optimizer(model))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with raises_code(RunError, "cannot_write", "-00000002"):
            checkpoints.write(TrainingState(max_tokens=1, step=2), model, make_optimizer(model))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"], "the incomplete checkpoint was not removed"


def test_checkpoints_are_at_least_one_step_apart(tmp_path: Path) -> None:
    with raises_code(RunError, "invalid_value", "got 0"):
        Checkpoints(tmp_path, every=0)


def test_shared_weights_are_written_once_and_come_back_shared() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    model[1].weight = model[0].weight
    weights = {name: tensor.clone() + 1 for name, tensor in collect_weights(model).items()}
    assert list(weights) == ["0.weight", "0.bias", "1.bias"]
    load_weights(model, weights)
    assert model[1].weight is model[0].weight
    assert torch.equal(model[1].weight, weights["0.weight"])


def test_weights_of_a_checkpoint_without_its_optimizer_state_are_not_used(tmp_path: Path) -> None:
    """Starting over uses the original weights, not those from the readable half of a checkpoint."""
    checkpoints = train(tmp_path)
    fresh = toy(tmp_path / "fresh").model
    before = {name: tensor.clone() for name, tensor in collect_weights(fresh).items()}
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(3))])  # Only its shape does not match.
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))]})
    messages: list[str] = []
    for step in checkpoints.steps():
        (tmp_path / f"step-{step:08d}" / "optimizer.safetensors").write_bytes(
            (tmp_path / f"step-{step:08d}" / "model.safetensors").read_bytes()
        )
    assert checkpoints.resume(fresh, optimizer, messages.append) is None
    assert "no checkpoint can be read" in messages[-1]
    assert all(torch.equal(tensor, before[name]) for name, tensor in collect_weights(fresh).items())


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
