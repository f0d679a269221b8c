"""Run a training or a study: its progress, a live bar on a terminal and elsewhere a line now and then; its plan and its
result."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from metrist.cli.output import format_count, print_note, print_text

if TYPE_CHECKING:
    from metrist.studies.heap.training_pool import StudyCallback
    from metrist.train.task import Evaluation, TrainingCallback, TrainingPlan, TrainingProgress, TrainingTask

#: Without a terminal, a line is printed every ten seconds at first, and every minute after ten minutes.
_FIRST_SECONDS, _SECONDS = 10.0, 60.0


@contextmanager
def training_progress() -> Iterator[TrainingCallback]:
    """Yield the callback that reports a training on standard error."""
    if not sys.stderr.isatty():
        yield TrainingLog()
        return
    with _progress_bar() as bar:
        yield TrainingBar(bar, bar.add_task("training", total=None, text="loading"))


@contextmanager
def study_progress() -> Iterator[StudyCallback]:
    """Yield the callback that reports a study on standard error."""
    if not sys.stderr.isatty():
        yield StudyLog()
        return
    with _progress_bar() as bar:
        yield StudyBar(bar, bar.add_task("study", total=None, text="reading"))


@contextmanager
def _progress_bar() -> Iterator[Any]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TextColumn("{task.fields[text]}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield bar


class TrainingLog:
    """Print evaluations, messages and, now and then, the progress as lines on standard error."""

    def __init__(self) -> None:
        self._start = self._last_line = monotonic()
        self._first: tuple[float, int, int] | None = None
        self._dev: float | None = None

    def on_progress(self, progress: TrainingProgress) -> None:
        now, text = monotonic(), self._describe(progress)
        interval = min(_SECONDS, max(_FIRST_SECONDS, (now - self._start) / 10))
        if now - self._last_line >= interval and progress.step < progress.steps:  # The result reports the end.
            self._last_line = now
            self.on_message(text)

    def on_evaluation(self, evaluation: Evaluation, name: str) -> None:
        self._dev = evaluation.figure
        self.on_message(f"step {evaluation.step:,}: {name} of the development data {evaluation.figure:.4f}")

    def on_message(self, text: str) -> None:
        print_note(text)

    def _describe(self, progress: TrainingProgress) -> str:
        # The speed is measured from the first call on, without loading and tokenizing.
        now = monotonic()
        start, step, tokens = self._first = self._first or (now, progress.step, progress.tokens)
        return format_progress(progress, progress.step - step, progress.tokens - tokens, now - start, self._dev)


class TrainingBar(TrainingLog):
    """The same, above a bar with steps, speed, loss and the latest development figure."""

    def __init__(self, bar: Any, task: Any) -> None:
        super().__init__()
        self._bar = bar
        self._task = task

    def on_progress(self, progress: TrainingProgress) -> None:
        self._bar.update(self._task, completed=progress.step, total=progress.steps, text=self._describe(progress))

    def on_message(self, text: str) -> None:
        _print_above(self._bar, text)


def format_progress(progress: TrainingProgress, steps: int, tokens: int, seconds: float, dev: float | None) -> str:
    """Format step, loss, development figure, speed and time left; `steps` and `tokens` were done in `seconds`."""
    text = f"step {progress.step:,} of {progress.steps:,}, loss {progress.loss:.4f}"
    if dev is not None:
        text += f", dev {dev:.4f}"
    if steps and seconds > 0:
        remaining = timedelta(seconds=round((progress.steps - progress.step) * seconds / steps))
        text += f", {steps / seconds:.1f} steps/s, {tokens / seconds:,.0f} tokens/s, {remaining} left"
    return text


class StudyLog:
    """Print a line for each training that ends, and messages, on standard error."""

    def __init__(self) -> None:
        self.count = self.done = 0
        self.dev: dict[str, float] = {}
        self.steps: dict[str, tuple[int, int]] = {}

    def on_plan(self, count: int, finished: int) -> None:
        self.count, self.done = count, finished
        if finished:
            self.on_message(f"{finished:,} of {count:,} trainings were finished before")

    def on_start(self, name: str) -> None:
        self.steps[name] = (0, 0)

    def on_progress(self, name: str, progress: TrainingProgress) -> None:
        self.steps[name] = (progress.step, progress.steps)

    def on_evaluation(self, name: str, evaluation: Evaluation, figure: str) -> None:  # noqa: ARG002
        self.dev[name] = evaluation.figure

    def on_finish(self, name: str, seconds: float) -> None:
        self._end(name)
        dev = f", dev {self.dev[name]:.4f}" if name in self.dev else ""
        self.on_message(f"{self.done:,} of {self.count:,}: {name} in {seconds:,.1f} s{dev}")

    def on_failure(self, name: str, reason: str) -> None:
        self._end(name)
        self.on_message(f"{self.done:,} of {self.count:,}: {name} failed: {reason}")

    def on_message(self, text: str) -> None:
        print_note(text)

    def _end(self, name: str) -> None:
        self.done += 1
        self.steps.pop(name, None)


class StudyBar(StudyLog):
    """The same, above a bar with all trainings and the progress of those that are running."""

    def __init__(self, bar: Any, task: Any) -> None:
        super().__init__()
        self._bar = bar
        self._task = task

    def on_plan(self, count: int, finished: int) -> None:
        super().on_plan(count, finished)
        self._draw()

    def on_start(self, name: str) -> None:
        super().on_start(name)
        self._draw()

    def on_progress(self, name: str, progress: TrainingProgress) -> None:
        super().on_progress(name, progress)
        self._draw()

    def on_message(self, text: str) -> None:
        _print_above(self._bar, text)

    def _end(self, name: str) -> None:
        super()._end(name)
        self._draw()

    def _draw(self) -> None:
        partial = sum(step / steps for step, steps in self.steps.values() if steps)
        text = format_running(self.done, self.count, self.steps, self.dev)
        self._bar.update(self._task, completed=self.done + partial, total=self.count, text=text)


def format_running(done: int, count: int, running: Mapping[str, tuple[int, int]], dev: Mapping[str, float]) -> str:
    """Format how many trainings are done, and the first three running ones: name, share of steps, dev figure."""
    text = f"{done:,} of {count:,} trainings"
    parts = []
    for name, (step, steps) in list(running.items())[:3]:
        share = f"{step / steps:.0%}" if steps else "loading"
        parts.append(f"{name} {share}" + (f", dev {dev[name]:.3f}" if name in dev else ""))
    more = f" and {len(running) - 3} more" if len(running) > 3 else ""
    return f"{text}; {' · '.join(parts)}{more}" if parts else text


def _print_above(bar: Any, text: str) -> None:
    bar.console.print(f"metrist: {text}", markup=False, highlight=False, soft_wrap=True)


# ---- Plan and result


def describe_plan(plan: TrainingPlan, epochs: int, noun: str = "pair") -> list[str]:
    lengths = plan.train.lengths
    each = f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
    title = "held-out analyses" if noun == "analysis" else f"development {noun}s"
    return [
        f"{title:18} {len(plan.dev) if plan.dev else 0:,}",
        f"steps              {plan.steps:,} ({format_count(epochs, 'epoch')} of {plan.steps // epochs:,})",
        f"tokens             {int(lengths.sum()):,} an epoch; {lengths.mean():.0f} {each}, at most {lengths.max():,}",
    ]


def print_plan(notes: Iterable[str], *lines: str) -> None:
    for note in notes:
        print_note(note)
    for line in lines:
        print_text(line)


def run_training(task: TrainingTask, notes: Iterable[str] = ()) -> None:
    """Train with progress on the terminal, then print the figures and how to use the model."""
    from metrist.train.distributed import is_first_process
    from metrist.train.fit import fit

    for note in notes:
        print_note(note)
    try:
        with training_progress() as callback:
            card = fit(task, callback)
    except KeyboardInterrupt as stop:
        if str(stop) and is_first_process():  # Before the first step there is no checkpoint and no message.
            print_note(f"{stop}; run the same command again to continue")
        raise
    if is_first_process():
        _print_result(card, task.out)


def _print_result(card: dict[str, Any], out: Path) -> None:
    figures = card["figures"]
    if figures:
        before, after = figures["before"], figures["after"]
        data = {"consistency": "outputs", "error-analysis": "analyses"}.get(card["kind"], "pairs")
        print_text(f"{figures['name']} of the development {data}: {before:.4f} before, {after:.4f} after")
        for name, judges in (("agreement", "the labels"), ("people", "people's ratings")):
            if figures.get(f"{name}_model") is not None and figures.get(f"{name}_base") is not None:
                print_text(
                    f"  Spearman's correlation with {judges}: {figures[f'{name}_base']:.3f} before, "
                    f"{figures[f'{name}_model']:.3f} after"
                )
        if "gained" in figures:
            print_text(
                f"  of {format_count(figures['pairs'], 'development pair')}, {figures['gained']:,} became right and "
                f"{figures['lost']:,} wrong (sign test: p = {figures['sign_test_p']:.2g})"
            )
        if "longer_is_better" in figures:
            print_text(f"  the longer answer is the better one in {figures['longer_is_better']:.4f} of them")
        by_criterion = figures.get("by_criterion", {})
        if len(by_criterion) > 1:
            width = max(map(len, by_criterion))
            for name, figure in by_criterion.items():
                pairs = card["data"]["criteria"][name]["development_pairs"]
                print_text(f"  {name:{width}}  {figure:.4f}  {format_count(pairs, 'pair')}")
    if "agreement" in card:
        _print_agreement(card["agreement"])
    if "evaluation" in card:
        from metrist.train.analyst_evaluation import summarise

        for name, results in card["evaluation"]["models"].items():
            print_text(f"{name}:")
            for line in (line for result in results for line in summarise(result)):
                print_text(f"  {line}")
    print_text(f"trained in {card['training']['seconds']:,} s: {out} (fingerprint {card['fingerprint']})")
    if figures and figures.get("trained", after) > after:
        print_note(
            f"storing the weights in --bits {card['recipe']['bits']} lowered the {figures['name']} from "
            f"{figures['trained']:.4f}; more bits, or a higher --lr, keep more of the training"
        )
    if figures and after <= before:
        print_note(
            f"warning: on the development {data}, the trained model is {'no better' if after == before else 'worse'} "
            f"than {card['base']['model']}; go on using that one, or try more {data}, fewer --epochs or a lower --lr"
        )
    for part in (figures or {}, card.get("agreement", {}), card.get("evaluation", {})):
        for remark in part.get("remarks", ()):
            print_note(remark)
    print_text(f'use it: metrist score … -m "{card["metric"]}"')


def _print_agreement(agreement: Mapping[str, Any]) -> None:
    """Print how far the metric, its base and length agree with the judge, and in short how far all of them do with
    people; the card has more."""
    from metrist.train.fit import format_estimate

    rows = agreement["rows"]
    width = max((len(row["scorer"]) for row in rows), default=0)
    for target in dict.fromkeys(row["target"] for row in rows):
        chosen = [row for row in rows if row["target"] == target]
        sizes = f"{format_count(chosen[0]['pairs'], 'pair')} of {format_count(agreement['items'], 'held-out item')}"
        if target == agreement["judge"]:
            scope = "across items" if agreement["across_items"] else "within items"
            print_text(f"agreement with {target} on {sizes}: accuracy; Spearman {scope}")
            for row in chosen:
                figures = "; ".join(format_estimate(row, name) for name in ("accuracy", "spearman"))
                print_text(f"  {row['scorer']:{width}}  {figures}")
        else:
            figures = ", ".join(f"{row['scorer']} {row['accuracy']:.3f}" for row in chosen)
            print_text(f"accuracy by {target} on {sizes}: {figures}")
    for name, value in agreement["cost"].items():
        if name.startswith("judge_us_dollars"):
            cost = "an unknown sum" if value is None else f"{value:,.4g} US dollars"
            print_text(f"cost: 1,000 {name.rpartition('_')[2]} cost {cost} by the judge, nothing by this metric")
