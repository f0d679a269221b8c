"""The training loop for likelihood models, preference models and any other `TrainingTask`.

A step draws a batch, seeds the random generators, accumulates gradients part by part, clips them and updates. Between
steps the loop reads losses, evaluates, writes checkpoints and handles requests to stop. A step depends only on the
seed, its number and the weights, so a killed training resumes from its latest checkpoint with the same result; on a CPU
the result is identical to the last bit.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from metrist.errors import ModelError, RunError
from metrist.models.batching import is_out_of_memory
from metrist.models.devices import free_memory
from metrist.train.batches import Indices, Sampler, sort_by_length, split_parts
from metrist.train.checkpoints import Checkpoints, TrainingState, collect_weights
from metrist.train.distributed import ProcessGroup, gather
from metrist.train.recipe import Recipe
from metrist.train.task import Batch, Evaluation, Examples, NoCallback, Objective, TrainingCallback, TrainingProgress

#: Steps between reads of the losses on a GPU: each read makes the CPU wait for it. On a CPU, every step is read.
_READ_EVERY = 10
#: Tokens computed at once if the recipe does not set `max_tokens`.
_MAX_TOKENS = 4_096
_T = TypeVar("_T")


class TrainingInterrupted(KeyboardInterrupt):
    """The training stopped on request after writing a checkpoint."""

    def __init__(self, step: int) -> None:
        super().__init__(f"stopped after step {step}")
        self.step = step


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOutcome:
    """The result of a training. `steps` is below `planned` after early stopping. `best` is the evaluation whose weights
    the model now has; without development data it is None and the model has its last weights. `loss` is the mean of
    the latest steps, or None if this process has read no losses."""

    steps: int
    planned: int
    tokens: int
    seconds: float
    loss: float | None
    before: float | None
    best: Evaluation | None
    evaluations: tuple[Evaluation, ...]


@dataclass(slots=True, kw_only=True, eq=False)
class Trainer:
    """Trains a model; call `run()`. `rates` maps prefixes of parameter names to multiples of the recipe's learning
    rate."""

    model: Any
    objective: Objective
    examples: Examples
    sampler: Sampler
    recipe: Recipe
    checkpoints: Checkpoints
    processes: ProcessGroup
    dev: Examples | None = None
    callback: TrainingCallback = field(default_factory=NoCallback)
    rates: Mapping[str, float] = field(default_factory=dict)

    state: TrainingState = field(init=False)
    #: The trained weights of a sharded model, in the first process after the training.
    whole_weights: dict[str, Tensor] | None = field(init=False, default=None)
    _sharded: bool = field(init=False, default=False)
    _optimizer: torch.optim.Optimizer = field(init=False)
    _epoch_batches: Sequence[Indices] = field(init=False, default=())
    _unread_losses: list[Tensor] = field(init=False, default_factory=list)
    _loss: float | None = field(init=False, default=None)
    _start_time: float = field(init=False, default=0.0)

    @property
    def steps(self) -> int:
        return self.recipe.epochs * self.sampler.steps

    def run(self) -> TrainingOutcome:
        """Train to the end, from the latest checkpoint if there is one, and give the model its best weights."""
        cuda_devices = [self.processes.device] if self._device_type == "cuda" else []
        with _catch_signals() as stop_requested, torch.random.fork_rng(cuda_devices):
            self._prepare()
            patience = self.recipe.patience or math.inf
            while self.state.step < self.steps and self.state.evaluations_since_best < patience:
                self._update()
                self._finish_step(stop_requested)
        self.checkpoints.load_best(self.model, self.state)
        self.model.eval()
        if self._sharded:
            self.whole_weights = collect_weights(self.model, keep=self.processes.is_first)
        self.processes.wait()  # All processes must have read the best weights before checkpoints are removed.
        return TrainingOutcome(
            steps=self.state.step,
            planned=self.steps,
            tokens=self.state.tokens,
            seconds=self.state.seconds,
            loss=self._loss,
            before=self.state.before,
            best=self.state.best,
            evaluations=tuple(self.state.evaluations),
        )

    def release(self) -> None:
        """Free the device's memory after the training, so that the written model can be loaded there."""
        self._optimizer.zero_grad(set_to_none=True)
        self._optimizer.state.clear()
        if self._device_type != "cpu":
            if not self._sharded:  # Each process has only a part of it.
                self.model.to("cpu")
            free_memory(torch.device(self.processes.device))

    @property
    def _device_type(self) -> str:
        return torch.device(self.processes.device).type

    def _prepare(self) -> None:
        """Move the model to the device, resume from a checkpoint or evaluate the untrained model, check disk space."""
        self._start_time = time.monotonic()
        self._sharded = any(hasattr(parameter, "full_tensor") for parameter in self.model.parameters())
        self.model.to(self.processes.device).train()
        self._optimizer = _make_optimizer(self.model, self.recipe, self.rates)
        resumed = self.checkpoints.resume(self.model, self._optimizer, self.callback.on_message)
        self.state = resumed or TrainingState(max_tokens=self.recipe.max_tokens or _MAX_TOKENS)
        # The user may resume with a smaller budget, for example after the process was killed for lack of memory.
        self.state.max_tokens = min(self.state.max_tokens, self.recipe.max_tokens or self.state.max_tokens)
        if self.processes.is_first:
            planned = sum(map(self._is_checkpoint_due, range(self.state.step + 1, self.steps + 1)))
            self.checkpoints.prepare(self.model, planned)
        if resumed:
            self._start_time -= resumed.seconds
            self.callback.on_message(f"resuming after step {resumed.step:,} of {self.steps:,}")
        elif self.dev is not None:
            self.state.before = self._compute_figure(self.dev)
            self.callback.on_evaluation(Evaluation(step=0, figure=self.state.before), self.objective.figure)

    def _update(self) -> None:
        epoch, number = divmod(self.state.step, self.sampler.steps)
        if number == 0 or not self._epoch_batches:
            self._epoch_batches = self.sampler.batches(epoch)
        batch = self._epoch_batches[number]
        loss = self._accumulate_gradients(batch)
        if not self._sharded:
            self.processes.add_gradients(self.model.parameters())
        norm = gather(torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip or math.inf))
        for group in self._optimizer.param_groups:
            group["lr"] = group["rate"] * self.recipe.learning_rate(self.state.step, self.steps)
        self._optimizer.step()
        self._unread_losses.append(torch.stack([self.processes.total(loss), norm.to(loss)]))
        self.state.step += 1
        self.state.tokens += int(self.examples.lengths[batch].sum())

    def _accumulate_gradients(self, batch: Indices) -> Tensor:
        """Compute the gradients of this process's share of a batch; return its loss."""
        total_weight = float(self.examples.weights[batch].sum())
        spaces = self.examples.spaces
        own = sort_by_length(batch, spaces)[self.processes.rank :: self.processes.world]

        def accumulate() -> Tensor:
            # The dropout of each step and process has its own seed, so that it does not depend on earlier draws.
            entropy = np.random.SeedSequence([self.recipe.seed, self.state.step, self.processes.rank])
            seed = int(entropy.generate_state(1, np.uint64)[0] >> np.uint64(1))
            # Without a GPU, torch.manual_seed is slow: it records a stack trace for the lazy CUDA call.
            set_seed = torch.default_generator.manual_seed if self.processes.device == "cpu" else torch.manual_seed
            set_seed(seed)
            self._optimizer.zero_grad(set_to_none=True)
            total = torch.zeros((), device=self.processes.device)
            for part, counts in self._plan_passes(self.examples, own, batch):
                tensors = self._collate(self.examples, part)
                with self._autocast():
                    loss = self.objective.loss(self.model, tensors).float() * (counts / total_weight)
                # A sharded model's gradients are averaged over the processes.
                (loss * self.processes.world if self._sharded else loss).backward()  # type: ignore[no-untyped-call]
                total += loss.detach()
            return total

        return self._retry_on_oom(accumulate, spaces[own])

    def _compute_figure(self, dev: Examples) -> float:
        own = sort_by_length(np.arange(len(dev.spaces)), dev.spaces)[self.processes.rank :: self.processes.world]

        def judge() -> Tensor:
            figures = [torch.zeros(0)]
            for part, counts in self._plan_passes(dev, own, np.arange(len(dev.spaces))):
                with self._autocast():
                    figures.append(counts * self.objective.judge(self.model, self._collate(dev, part)).float().cpu())
            return torch.cat(figures).double().sum()

        self.model.eval()
        with torch.no_grad():
            total = self._retry_on_oom(judge, dev.spaces[own])
        self.model.train()
        # Several processes run on CUDA or the CPU, which support float64; MPS does not.
        total = total.to(self.processes.device) if self.processes.world > 1 else total
        figure = float(self.processes.total(total)) / len(dev.lengths)
        if not math.isfinite(figure):
            raise RunError(
                f"the {self.objective.figure} of the development data is {figure} after step {self.state.step:,}; "
                "try `dtype='float32'` if bfloat16 is too imprecise for the model"
            )
        return figure

    def _plan_passes(self, examples: Examples, own: Indices, batch: Indices) -> list[tuple[Indices, float]]:
        """Return the parts that this process computes at once, each with 1; for a sharded model, of which all processes
        must do equally many, also passes that do not count, with 0."""
        packed = getattr(examples, "packed", False)
        parts = [(part, 1.0) for part in split_parts(own, examples.spaces, self.state.max_tokens, packed=packed)]
        if self._sharded:
            parts += [(batch[:1], 0.0)] * (self.processes.most(len(parts)) - len(parts))
        return parts

    def _retry_on_oom(self, work: Callable[[], _T], lengths: np.ndarray[Any, np.dtype[np.int64]]) -> _T:
        """Do the work; if memory runs out, repeat it with half as many tokens at once."""
        while True:
            try:
                return work()
            except RuntimeError as fault:
                if not is_out_of_memory(fault) or self._sharded:  # Other processes would wait for this one.
                    raise
            # Outside the handler: the exception would keep the tensors of the failed attempt alive.
            longest = int(lengths.max())
            at_once = min(self.state.max_tokens, longest * len(lengths))
            if at_once < 2 * longest:
                raise ModelError(
                    f"an example of {longest:,} tokens does not fit into memory; lower `max_length`, or use a smaller "
                    "base",
                    code="out_of_memory",
                )
            self.state.max_tokens = at_once // 2
            self._optimizer.zero_grad(set_to_none=True)
            free_memory(torch.device(self.processes.device))
            self.callback.on_message(
                f"out of memory: computing {self.state.max_tokens:,} tokens at once from now on, with the same "
                "gradients"
            )

    def _finish_step(self, stop_requested: Callable[[], bool]) -> None:
        """Read the losses, evaluate, write a checkpoint and stop, each if it is due after this step."""
        step, at_end = self.state.step, self.state.step == self.steps
        reading = at_end or self._device_type == "cpu" or step % _READ_EVERY == 0
        # Several processes must stop after the same step. They agree on it only when losses are read, to save time.
        stop = stop_requested() if self.processes.world == 1 else reading and self.processes.any(stop_requested())
        checkpoint_due = stop or self._is_checkpoint_due(step)
        if reading or checkpoint_due:
            self._read_losses()
        if self.dev is not None and self._is_evaluation_due(step):
            evaluation = Evaluation(step=step, figure=self._compute_figure(self.dev))
            self.state.evaluations.append(evaluation)
            if self.state.best is None or evaluation.figure > self.state.best.figure:
                self.state.best_step = step
            self.callback.on_evaluation(evaluation, self.objective.figure)
        if checkpoint_due:
            self.state.seconds = time.monotonic() - self._start_time
            if self.processes.is_first or self._sharded:
                self.checkpoints.write(self.state, self.model, self._optimizer, first=self.processes.is_first)
            self.processes.wait()
        if stop and not at_end:
            raise TrainingInterrupted(step)

    def _is_evaluation_due(self, step: int) -> bool:
        return self.dev is not None and (
            step == self.steps or step % (self.recipe.eval_every or self.sampler.steps) == 0
        )

    def _is_checkpoint_due(self, step: int) -> bool:
        return step == self.steps or step % self.checkpoints.every == 0 or self._is_evaluation_due(step)

    def _read_losses(self) -> None:
        """Check that all losses and gradients are finite before their weights are saved; report progress."""
        losses = torch.stack(self._unread_losses).cpu().tolist()
        first = self.state.step - len(losses) + 1
        self._unread_losses.clear()
        for step, (loss, norm) in enumerate(losses, first):
            if not (math.isfinite(loss) and math.isfinite(norm)):
                reason = f"its gradients have the norm {norm}" if math.isfinite(loss) else f"its loss is {loss}"
                steps = self.checkpoints.steps()
                last = (
                    f"the last good checkpoint is of step {steps[-1]:,}" if steps else "there is no earlier checkpoint"
                )
                raise RunError(
                    f"step {step:,} diverged: {reason}; {last}. Try a lower `lr`, a longer `warmup` or "
                    "`dtype='float32'`"
                )
        self._loss = sum(loss for loss, _ in losses) / len(losses)
        self.callback.on_progress(
            TrainingProgress(
                step=self.state.step,
                steps=self.steps,
                loss=self._loss,
                lr=self._optimizer.param_groups[0]["lr"],
                tokens=self.state.tokens,
            )
        )

    def _collate(self, examples: Examples, part: Indices) -> Batch:
        tensors = examples.collate(part).items()
        if self._device_type != "cuda":
            return {name: tensor.to(self.processes.device) for name, tensor in tensors}
        # Copies from pinned memory overlap with computation on the GPU.
        return {name: tensor.pin_memory().to(self.processes.device, non_blocking=True) for name, tensor in tensors}

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self._device_type, dtype=torch.bfloat16, enabled=self.recipe.dtype == "bfloat16")


def _make_optimizer(model: Any, recipe: Recipe, rates: Mapping[str, float]) -> torch.optim.AdamW:
    """Create AdamW without weight decay for biases and the scales of norms."""
    learned = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    groups: dict[tuple[float, bool], list[torch.nn.Parameter]] = {(1.0, True): [], (1.0, False): []}
    for name, parameter in learned.items():
        rate = next((rate for prefix, rate in rates.items() if name.startswith(prefix)), 1.0)
        groups.setdefault((rate, parameter.ndim > 1), []).append(parameter)
    param_groups = [
        {"params": parameters, "weight_decay": recipe.weight_decay if decays else 0.0, "rate": rate}
        for (rate, decays), parameters in groups.items()
        if parameters
    ]
    fused = all(parameter.is_cuda for parameter in learned.values())
    return torch.optim.AdamW(param_groups, lr=recipe.lr, fused=fused or None)


@contextmanager
def _catch_signals() -> Iterator[Callable[[], bool]]:
    """Yield a function that says whether SIGINT or SIGTERM has arrived; a second signal interrupts at once. SIGINT
    stays ignored if it was ignored before, as in background jobs."""
    received: list[int] = []

    def handle(number: int, _frame: object) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False  # Only the main thread can handle signals.
        return
    signals = [signal.SIGTERM]
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signals.append(signal.SIGINT)
    previous = {number: signal.signal(number, handle) for number in signals}
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
