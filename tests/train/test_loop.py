"""The training loop, on a small model, against a loop written by hand."""

from __future__ import annotations

import math
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from toy_training import Rows, SquaredError, toy, toy_model

from error_codes import raises_code
from forked_processes import exit_code, forked
from metrist.errors import MissingExtra, ModelError, RunError
from metrist.train import loop
from metrist.train.checkpoints import collect_weights
from metrist.train.distributed import join_processes
from metrist.train.loop import TrainingInterrupted
from metrist.train.task import Evaluation, TrainingProgress


def same(first: Any, second: Any) -> bool:
    """Whether two models have the same weights to the last bit."""
    a, b = (model if isinstance(model, dict) else collect_weights(model) for model in (first, second))
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def near(first: Any, second: Any) -> float:
    a, b = (model if isinstance(model, dict) else collect_weights(model) for model in (first, second))
    return max(float((a[name] - b[name]).abs().max()) for name in a)


class Notes:
    def __init__(self) -> None:
        self.remarks: list[str] = []
        self.progress: list[TrainingProgress] = []
        self.figures: list[Evaluation] = []

    def on_progress(self, progress: TrainingProgress) -> None:
        self.progress.append(progress)

    def on_evaluation(self, evaluation: Evaluation, name: str) -> None:
        assert name == "negative squared error"
        self.figures.append(evaluation)

    def on_message(self, remark: str) -> None:
        self.remarks.append(remark)


def test_the_loop_matches_a_loop_written_by_hand(tmp_path: Path) -> None:
    """The oracle is torch's AdamW and transformers' linear schedule, whole batches at once."""
    from transformers import get_linear_schedule_with_warmup

    training = toy(tmp_path, dropout=0.0, dev=False, warmup=0.25, weight_decay=0.1, clip=0.5)
    training.run()

    model, rows, objective = toy_model(0.0), Rows(90, 1), SquaredError()
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0}], lr=1e-2
    )
    schedule = get_linear_schedule_with_warmup(optimizer, 12, 48)
    for epoch in range(4):
        for chosen in training.sampler.batches(epoch):
            loss = objective.loss(model, rows.collate(chosen)) / rows.weights[chosen].sum()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            schedule.step()
    assert near(training.model, model) < 1e-6


def test_max_tokens_does_not_change_the_weights(tmp_path: Path) -> None:
    together = toy(tmp_path / "a", dropout=0.0, max_tokens=1000)
    separate = toy(tmp_path / "b", dropout=0.0, max_tokens=1)
    first: Any = together.run()
    second: Any = separate.run()
    assert near(together.model, separate.model) < 1e-5
    assert first.best.figure == pytest.approx(second.best.figure, abs=1e-5)


def test_the_model_learns_and_callbacks_report_it(tmp_path: Path) -> None:
    notes = Notes()
    outcome: Any = toy(tmp_path, dropout=0.0, callback=notes).run()
    assert (outcome.steps, outcome.planned) == (48, 48)
    assert outcome.tokens == 4 * Rows(90, 1).lengths.sum()
    assert outcome.best.figure > 0.35 * outcome.before
    assert [evaluation.step for evaluation in notes.figures] == [0, 12, 24, 36, 48]
    assert [notes.figures[0].figure, *notes.figures[1:]] == [outcome.before, *outcome.evaluations]
    assert notes.progress[-1].step == 48
    assert notes.progress[-1].loss < 0.8 * notes.progress[0].loss
    assert outcome.loss == notes.progress[-1].loss


def test_the_development_figure_is_the_mean_over_the_examples(tmp_path: Path) -> None:
    outcome = toy(tmp_path).run()
    model, dev = toy_model().eval().requires_grad_(False), Rows(30, 2)
    rows = [dev.collate(np.array([n])) for n in range(30)]
    by_hand = [-float((model(row["x"]) - row["y"]) ** 2) for row in rows]
    assert outcome.before == pytest.approx(np.mean(by_hand), abs=1e-6)


def test_equal_seeds_give_equal_weights_and_others_do_not(tmp_path: Path) -> None:
    runs = [toy(tmp_path / str(n), seed=seed) for n, seed in enumerate((3, 3, 4))]
    for training in runs:
        torch.rand(1)  # Other draws in the process do not matter.
        training.run()
    assert same(runs[0].model, runs[1].model)
    assert not same(runs[0].model, runs[2].model)


def test_the_global_random_state_is_restored(tmp_path: Path) -> None:
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    toy(tmp_path).run()
    assert torch.equal(torch.rand(3), expected)


def test_training_stops_early_and_keeps_the_best_weights(tmp_path: Path) -> None:
    """A rate that is far too high makes the model worse again."""
    training = toy(tmp_path, lr=0.5, eval_every=2, patience=3, epochs=50, schedule="constant")
    outcome: Any = training.run()
    figures = [evaluation.figure for evaluation in outcome.evaluations]
    assert outcome.best.figure == max(figures)
    assert outcome.steps == outcome.best.step + 3 * 2 < outcome.planned
    again = -float(SquaredError().losses(training.model, Rows(30, 2).collate(np.arange(30))).detach().mean())
    assert again == pytest.approx(outcome.best.figure, abs=1e-5)


class Scripted(SquaredError):
    """Calls `then` on the loss of one call of `loss`, or of all calls."""

    def __init__(self, call: int | None, then: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.calls = 0
        self.call = call
        self.then = then

    def loss(self, model: Any, batch: Any) -> torch.Tensor:
        self.calls += 1
        loss = super().loss(model, batch)
        return self.then(loss) if self.call in (None, self.calls) else loss


def interrupt(loss: torch.Tensor) -> torch.Tensor:
    os.kill(os.getpid(), signal.SIGINT)
    return loss


@pytest.mark.parametrize("call", [1, 30, 60])
def test_an_interrupted_training_resumes_to_the_same_weights(tmp_path: Path, call: int) -> None:
    calm = toy(tmp_path / "calm", every=7)
    expected = calm.run()
    with pytest.raises(TrainingInterrupted, match=r"stopped after step \d+"):
        toy(tmp_path / "torn", objective=Scripted(call, interrupt)).run()
    notes = Notes()
    resumed = toy(tmp_path / "torn", callback=notes)
    outcome = resumed.run()
    assert same(calm.model, resumed.model)
    assert outcome.evaluations == expected.evaluations
    assert outcome.before == expected.before
    assert re.fullmatch(r"resuming after step \d+ of 48", notes.remarks[0])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_training_in_the_background_ignores_ctrl_c(tmp_path: Path) -> None:
    """Shells start background jobs with SIGINT ignored: Ctrl-C is meant for the job in the foreground."""
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        outcome = toy(tmp_path, objective=Scripted(30, interrupt)).run()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, handler)
    assert outcome.steps == outcome.planned


def test_a_second_interrupt_stops_at_once(tmp_path: Path) -> None:
    def twice(loss: torch.Tensor) -> torch.Tensor:
        interrupt(loss)
        return interrupt(loss)

    with pytest.raises(KeyboardInterrupt) as stop:
        toy(tmp_path, objective=Scripted(50, twice)).run()
    assert not isinstance(stop.value, TrainingInterrupted)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks processes to kill")
def test_a_training_killed_again_and_again_ends_with_the_same_weights(tmp_path: Path) -> None:
    """kill -9, as soon as a checkpoint has appeared: while the old ones are removed, or a step later."""
    calm = toy(tmp_path / "calm", every=2)
    calm.run()
    folder = tmp_path / "killed"
    for step in (2, 12, 30):
        process = forked(partial(_train_slowly, folder, step))
        while _last_step(folder) < step:
            time.sleep(0.0005)
        os.kill(process, signal.SIGKILL)
        assert exit_code(process) == -signal.SIGKILL
    notes = Notes()
    resumed = toy(folder, every=2, callback=notes)
    resumed.run()
    assert re.fullmatch(r"resuming after step 3\d of 48", notes.remarks[0])
    assert same(calm.model, resumed.model)


def _last_step(folder: Path) -> int:
    return max((int(path.name.partition("-")[2]) for path in folder.glob("step-*")), default=0)


def _train_slowly(folder: Path, step: int) -> None:
    def wait(loss: torch.Tensor) -> torch.Tensor:
        time.sleep(600 if _last_step(folder) > step + 4 else 0.01)  # Killed before it ends.
        return loss

    toy(folder, every=2, objective=Scripted(None, wait)).run()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks processes that train together")
def test_two_processes_learn_the_same_weights_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes on the CPU, over gloo, with the environment of `accelerate launch`. Without dropout: each process
    draws its own."""
    alone = toy(tmp_path / "alone", dropout=0.0)
    alone.run()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    together = {"WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "ACCELERATE_USE_CPU": "true"}
    together |= {"OMP_NUM_THREADS": 1, "MKL_NUM_THREADS": 1}  # Unset, accelerate warns of them.
    for name, value in together.items():
        monkeypatch.setenv(name, str(value))
    processes = [forked(partial(_train_as, rank, tmp_path)) for rank in range(2)]
    assert [exit_code(process) for process in processes] == [0, 0]
    for rank in range(2):
        assert near(collect_weights(alone.model), load_file(tmp_path / f"{rank}.safetensors")) < 1e-5
    assert load_file(tmp_path / "0.safetensors").keys() == collect_weights(alone.model).keys()


def _train_as(rank: int, folder: Path) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    processes = join_processes("cpu")
    assert (processes.rank, processes.world) == (rank, 2)
    training = toy(folder / "both", dropout=0.0, batch=8, processes=processes)
    training.run()
    save_file(collect_weights(training.model), folder / f"{rank}.safetensors")
    processes.leave()


def test_several_processes_need_accelerate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with raises_code(MissingExtra, "missing_dependency", "'metrist[train]'"):
        join_processes("cpu")


def test_running_out_of_memory_halves_the_token_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    freed: list[torch.device] = []
    monkeypatch.setattr("metrist.train.loop.free_memory", freed.append)

    class Narrow(SquaredError):
        def loss(self, model: Any, batch: Any) -> torch.Tensor:
            if len(batch["x"]) > 3:
                raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
            return super().loss(model, batch)

    notes = Notes()
    wide = toy(tmp_path / "a", dropout=0.0)
    narrow = toy(tmp_path / "b", dropout=0.0, objective=Narrow(), callback=notes)
    wide.run()
    narrow.run()
    assert near(wide.model, narrow.model) < 1e-5
    assert notes.remarks[0].startswith("out of memory: computing 12 tokens at once")
    assert narrow.state.max_tokens < 24
    assert freed == [torch.device("cpu")] * len(notes.remarks)


def test_an_example_that_does_not_fit_into_memory_is_an_error(tmp_path: Path) -> None:
    def full(_loss: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory")

    with raises_code(ModelError, "out_of_memory", "6", "`max_length`"):
        toy(tmp_path, objective=Scripted(1, full), batch=1, max_tokens=6, seed=_seed_with_long_first()).run()


def _seed_with_long_first() -> int:
    rows = Rows(90, 1)
    return next(n for n in range(50) if rows.lengths[np.random.default_rng([n, 0]).permutation(90)[0]] == 6)


def test_other_runtime_errors_are_not_treated_as_out_of_memory(tmp_path: Path) -> None:
    def wrong(_loss: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("shapes do not fit")

    with pytest.raises(RuntimeError, match="shapes do not fit"):
        toy(tmp_path, objective=Scripted(1, wrong)).run()


@pytest.mark.parametrize(("factor", "reason"), [(math.nan, "its loss is nan"), (math.inf, "its loss is inf")])
def test_a_loss_that_is_not_finite_stops_the_training_and_keeps_the_last_checkpoint(
    tmp_path: Path, factor: float, reason: str
) -> None:
    training = toy(tmp_path, objective=Scripted(18, lambda loss: loss * factor), max_tokens=1000, every=7)
    with pytest.raises(RunError, match=f"step 18 diverged: {reason}; .*checkpoint is of step 14.*`lr`"):
        training.run()
    assert training.checkpoints.steps() == [12, 14]
    again = toy(tmp_path, max_tokens=1000)
    again.run()
    calm = toy(tmp_path / "calm", max_tokens=1000)
    calm.run()
    assert same(again.model, calm.model)


def test_gradients_that_are_not_finite_are_detected_before_a_checkpoint_is_written(tmp_path: Path) -> None:
    """The loss itself is finite: the root of 0 is 0, its slope is not."""
    broken = Scripted(14, lambda loss: loss + (loss - loss).sqrt())
    training = toy(tmp_path, objective=broken, max_tokens=1000, every=7, dev=False)
    with raises_code(RunError, "run_failed", "14", "7"):
        training.run()
    assert training.checkpoints.steps() == [7]


def test_divergence_before_any_checkpoint_is_reported(tmp_path: Path) -> None:
    with raises_code(RunError, "run_failed", "1"):
        toy(tmp_path, objective=Scripted(1, lambda loss: loss * math.nan)).run()


def test_a_development_figure_that_is_not_finite_is_an_error(tmp_path: Path) -> None:
    class Blind(SquaredError):
        def judge(self, model: Any, batch: Any) -> torch.Tensor:
            return super().judge(model, batch) * math.nan

    with raises_code(RunError, "run_failed", "0"):
        toy(tmp_path, objective=Blind()).run()


def test_progress_is_reported_after_every_step_on_a_cpu_and_every_ten_on_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of a real model can take half a minute on a CPU."""
    notes = Notes()
    toy(tmp_path / "cpu", callback=notes, dev=False, every=1000).run()
    assert [progress.step for progress in notes.progress] == list(range(1, 49))
    notes = Notes()
    monkeypatch.setattr(loop.Trainer, "_device_type", "mps")
    toy(tmp_path / "gpu", callback=notes, dev=False, every=1000).run()
    assert [progress.step for progress in notes.progress] == [*range(loop._READ_EVERY, 48, loop._READ_EVERY), 48]


def test_a_resumed_training_accepts_a_smaller_token_budget_only(tmp_path: Path) -> None:
    """The budget in the checkpoint is known to fit into memory; a larger one is not."""
    toy(tmp_path, max_tokens=24, every=7).run()
    for requested, used in ((6, 6), (24, 24), (100, 24)):
        again = toy(tmp_path, max_tokens=requested)
        again.run()
        assert again.state.max_tokens == used
