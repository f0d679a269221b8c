"""The one training loop: likelihood models, preference models and whatever else learns go through it.

One step: draw a batch, seed the dice, compute the gradients part by part, clip, update. Between steps: read the losses,
evaluate, write a checkpoint, stop if asked to. A step depends on the seed, its number and the weights alone, so a
training that was killed goes on from its latest checkpoint as if nothing had happened, on a CPU to the last bit.
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
from metrist.train.batches import Chosen, Sampler, sort_by_length, split_parts
from metrist.train.checkpoints import Checkpoints, TrainingState
from metrist.train.distributed import ProcessGroup
from metrist.train.recipe import Recipe
from metrist.train.task import Batch, Evaluation, Examples, NoCallback, Objective, TrainingCallback, TrainingProgress

#: Losses are read so many steps apart: reading one makes the CPU wait for the GPU.
_READ_EVERY = 10
#: Tokens computed at once where a recipe does not say.
_MAX_TOKENS = 4_096
_T = TypeVar("_T")


class TrainingInterrupted(KeyboardInterrupt):
    """The training was asked to stop, and did so after writing a checkpoint."""

    def __init__(self, step: int) -> None:
        super().__init__(f"stopped after step {step}")
        self.step = step


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOutcome:
    """How a training went. `steps` may be fewer than planned when it stopped early; `best` is the evaluation whose
    weights the model has now (None without development data: then it has the last ones). `loss` is the mean of the
    last steps, None where another process computed them."""

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
    """A model, what it learns from, and how. `run()` trains it. `rates` are multiples of the recipe's learning rate for
    parameters whose names begin so."""

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

    at: TrainingState = field(init=False)
    _optimizer: torch.optim.Optimizer = field(init=False)
    _drawn: Sequence[Chosen] = field(init=False, default=())
    _unread: list[Tensor] = field(init=False, default_factory=list)
    _loss: float | None = field(init=False, default=None)
    _began: float = field(init=False, default=0.0)

    @property
    def steps(self) -> int:
        """How many updates the recipe asks for."""
        return self.recipe.epochs * self.sampler.steps

    def run(self) -> TrainingOutcome:
        """Train from the latest checkpoint, or from the beginning, to the end; the model then has its best weights."""
        with _stop_requests() as asked, torch.random.fork_rng(self._cards()):
            self._begin()
            while self.at.step < self.steps and not self._patience_is_spent():
                self._update()
                self._look_around(asked)
        self.checkpoints.put_best(self.model, self.at)
        self.model.eval()
        self.processes.wait()  # Checkpoints may be removed only when all processes have read the best.
        return self._outcome()

    def _cards(self) -> list[str]:
        return [self.processes.device] if torch.device(self.processes.device).type == "cuda" else []

    def _begin(self) -> None:
        self._began = time.monotonic()
        self.model.to(self.processes.device).train()
        self._optimizer = _adamw(self.model, self.recipe, self.rates)
        resumed = self.checkpoints.resume(self.model, self._optimizer, self.callback.on_message)
        self.at = resumed or TrainingState(max_tokens=self.recipe.max_tokens or _MAX_TOKENS)
        # Asked for fewer after a stop: there was too little memory, perhaps, and nobody to say so.
        self.at.max_tokens = min(self.at.max_tokens, self.recipe.max_tokens or self.at.max_tokens)
        if self.processes.is_first:
            to_come = sum(map(self._is_kept, range(self.at.step + 1, self.steps + 1)))
            self.checkpoints.make_room(self.model, to_come)
        if resumed:
            self._began -= resumed.seconds
            self.callback.on_message(f"going on after step {resumed.step:,} of {self.steps:,}")
        elif self.dev is not None:
            self.at.before = self._figure(self.dev)
            self.callback.on_evaluation(Evaluation(step=0, figure=self.at.before), self.objective.figure)

    def _update(self) -> None:
        chosen = self._batch()
        loss = self._gradients(chosen)
        self.processes.add_gradients(self.model.parameters())
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip or math.inf)
        for group in self._optimizer.param_groups:
            group["lr"] = group["rate"] * self.recipe.learning_rate(self.at.step, self.steps)
        self._optimizer.step()
        self._unread.append(torch.stack([self.processes.total(loss), norm.to(loss)]))
        self.at.step += 1
        self.at.tokens += int(self.examples.lengths[chosen].sum())

    def _batch(self) -> Chosen:
        epoch, number = divmod(self.at.step, self.sampler.steps)
        if number == 0 or not self._drawn:
            self._drawn = self.sampler.batches(epoch)
        return self._drawn[number]

    def _gradients(self, chosen: Chosen) -> Tensor:
        """The loss of this process's share of a batch, after its gradients were computed."""
        whole = float(self.examples.weights[chosen].sum())
        spaces = self.examples.spaces
        mine = sort_by_length(chosen, spaces)[self.processes.rank :: self.processes.world]

        def accumulate() -> Tensor:
            _seed(self.recipe.seed, self.at.step, self.processes)
            self._optimizer.zero_grad(set_to_none=True)
            total = torch.zeros((), device=self.processes.device)
            for part in split_parts(mine, spaces, self.at.max_tokens):
                batch = self._moved(self.examples, part)
                with self._precision():
                    loss = self.objective.loss(self.model, batch).float() / whole
                loss.backward()  # type: ignore[no-untyped-call]
                total += loss.detach()
            return total

        return self._within_memory(accumulate, spaces[mine])

    def _figure(self, dev: Examples) -> float:
        """The development figure of the weights as they are."""
        mine = sort_by_length(np.arange(len(dev.spaces)), dev.spaces)[self.processes.rank :: self.processes.world]

        def judge() -> Tensor:
            found = [torch.zeros(0)]
            for part in split_parts(mine, dev.spaces, self.at.max_tokens):
                with self._precision():
                    found.append(self.objective.judge(self.model, self._moved(dev, part)).float().cpu())
            return torch.cat(found).double().sum()

        self.model.eval()
        with torch.no_grad():
            total = self._within_memory(judge, dev.spaces[mine])
        self.model.train()
        # Only processes with a CUDA device, or none, come in several: those know doubles, which MPS does not.
        total = total.to(self.processes.device) if self.processes.world > 1 else total
        figure = float(self.processes.total(total)) / len(dev.lengths)
        if not math.isfinite(figure):
            raise RunError(
                f"the {self.objective.figure} of the development data is {figure} after step {self.at.step:,}; "
                "--dtype float32 helps where bfloat16 is too coarse for the model"
            )
        return figure

    def _within_memory(self, work: Callable[[], _T], lengths: np.ndarray[Any, np.dtype[np.int64]]) -> _T:
        """Do the work; where memory runs out, do it again with half as many tokens at once."""
        while True:
            try:
                return work()
            except RuntimeError as fault:
                if not is_out_of_memory(fault):
                    raise
            # Outside of the handler: the exception itself would keep the tensors of the failed attempt alive.
            self._halve(lengths)

    def _halve(self, lengths: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        longest = int(lengths.max())
        at_once = min(self.at.max_tokens, longest * len(lengths))
        if at_once < 2 * longest:
            raise ModelError(
                f"one example of {longest:,} tokens does not fit into the memory of {self.processes.device}; "
                "--max-length cuts texts shorter, and a smaller base model needs less"
            )
        self.at.max_tokens = at_once // 2
        self._optimizer.zero_grad(set_to_none=True)
        free_memory(torch.device(self.processes.device))
        self.callback.on_message(
            f"out of memory: {self.at.max_tokens:,} tokens at once from now on; the gradients are the same"
        )

    def _look_around(self, asked: Callable[[], bool]) -> None:
        """After a step: read the losses, evaluate, keep a checkpoint and stop, each if it is time to."""
        step, at_end = self.at.step, self.at.step == self.steps
        reading = at_end or step % _READ_EVERY == 0
        # Several processes must stop after the same step, so they ask each other, and not all the time.
        stop = asked() if self.processes.world == 1 else reading and self.processes.any(asked())
        keeping = stop or self._is_kept(step)
        if reading or keeping:
            self._read_losses()
        if self.dev is not None and self._is_judged(step):
            self._evaluate(self.dev)
        if keeping:
            self._keep()
        if stop and not at_end:
            raise TrainingInterrupted(step)

    def _is_judged(self, step: int) -> bool:
        return self.dev is not None and (
            step == self.steps or step % (self.recipe.eval_every or self.sampler.steps) == 0
        )

    def _is_kept(self, step: int) -> bool:
        """Whether a checkpoint is due after this step."""
        return step == self.steps or step % self.checkpoints.every == 0 or self._is_judged(step)

    def _read_losses(self) -> None:
        """See that all losses and gradients are finite, before anything that came of them is kept."""
        read = torch.stack(self._unread).cpu().tolist()
        first = self.at.step - len(read) + 1
        self._unread.clear()
        for step, (loss, norm) in enumerate(read, first):
            if not (math.isfinite(loss) and math.isfinite(norm)):
                raise RunError(_not_finite(step, loss, norm, self.checkpoints))
        self._loss = sum(loss for loss, _ in read) / len(read)
        self.callback.on_progress(
            TrainingProgress(
                step=self.at.step,
                steps=self.steps,
                loss=self._loss,
                lr=self._optimizer.param_groups[0]["lr"],
                tokens=self.at.tokens,
            )
        )

    def _evaluate(self, dev: Examples) -> None:
        evaluation = Evaluation(step=self.at.step, figure=self._figure(dev))
        self.at.evaluations.append(evaluation)
        best = self.at.best
        if best is None or evaluation.figure > best.figure:
            self.at.best_step = evaluation.step
        self.callback.on_evaluation(evaluation, self.objective.figure)

    def _keep(self) -> None:
        self.at.seconds = time.monotonic() - self._began
        if self.processes.is_first:
            self.checkpoints.write(self.at, self.model, self._optimizer)
        self.processes.wait()

    def _patience_is_spent(self) -> bool:
        return self.recipe.patience is not None and self.at.stale >= self.recipe.patience

    def _moved(self, examples: Examples, part: Chosen) -> Batch:
        tensors = examples.collate(part).items()
        if not self._cards():
            return {name: tensor.to(self.processes.device) for name, tensor in tensors}
        # From pinned memory the copy runs beside what the card computes.
        return {name: tensor.pin_memory().to(self.processes.device, non_blocking=True) for name, tensor in tensors}

    def _precision(self) -> torch.autocast:
        kind = torch.device(self.processes.device).type
        return torch.autocast(kind, dtype=torch.bfloat16, enabled=self.recipe.dtype == "bfloat16")

    def _outcome(self) -> TrainingOutcome:
        return TrainingOutcome(
            steps=self.at.step,
            planned=self.steps,
            tokens=self.at.tokens,
            seconds=self.at.seconds,
            loss=self._loss,
            before=self.at.before,
            best=self.at.best,
            evaluations=tuple(self.at.evaluations),
        )


def _adamw(model: Any, recipe: Recipe, rates: Mapping[str, float]) -> torch.optim.AdamW:
    """AdamW; biases and the scales of norms are not pulled towards zero."""
    learned = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    groups: dict[tuple[float, bool], list[torch.nn.Parameter]] = {(1.0, True): [], (1.0, False): []}
    for name, parameter in learned.items():
        rate = next((rate for start, rate in rates.items() if name.startswith(start)), 1.0)
        groups.setdefault((rate, parameter.ndim > 1), []).append(parameter)
    told = [
        {"params": some, "weight_decay": recipe.weight_decay if decays else 0.0, "rate": rate}
        for (rate, decays), some in groups.items()
        if some
    ]
    fused = all(parameter.is_cuda for parameter in learned.values())
    return torch.optim.AdamW(told, lr=recipe.lr, fused=fused or None)


def _seed(seed: int, step: int, processes: ProcessGroup) -> None:
    """Dropout of each step and process has its own seed: nothing depends on what was drawn before."""
    made = int(np.random.SeedSequence([seed, step, processes.rank]).generate_state(1, np.uint64)[0] >> np.uint64(1))
    # Told to all devices, a seed costs a processor that has no card a picture of the stack.
    seeded = torch.default_generator.manual_seed if processes.device == "cpu" else torch.manual_seed
    seeded(made)


def _not_finite(step: int, loss: float, norm: float, checkpoints: Checkpoints) -> str:
    found = f"its loss is {loss}" if not math.isfinite(loss) else f"its gradients have the norm {norm}"
    kept = checkpoints.steps()
    last = f"the last good checkpoint, of step {kept[-1]:,}, is kept" if kept else "no checkpoint was written before it"
    return f"step {step:,} went wrong: {found}; {last}. Try a lower --lr, a longer --warmup or --dtype float32"


@contextmanager
def _stop_requests() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed, or the process told to end, since; a second time stops at once. A background job that
    was started with SIGINT ignored keeps ignoring it."""
    asked: list[int] = []

    def note(number: int, _frame: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False  # Only a program's main thread is told of signals.
        return
    heeded = [signal.SIGTERM]
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        heeded.append(signal.SIGINT)
    before = {number: signal.signal(number, note) for number in heeded}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
