"""`metrist train error-analysis`: fine-tune a language model that lists errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from metrist.cli.train_options import (
    AblationName,
    AnalysisTrainingOptions,
    EvaluationOptions,
    Files,
    merge_files,
)
from metrist.errors import SpecError, format_count
from metrist.settings import as_arguments, setting
from metrist.train.recipe import AnalystSettings

if TYPE_CHECKING:
    from metrist.train.error_analysis import ErrorAnalysisTask
    from metrist.train.task import TrainingCallback


def error_analysis(
    *,
    files: Files = None,
    data: list[Path] | None = setting(None, "Analyses of `metrist build error-analysis`; repeatable.", metavar="FILE"),
    base: str = setting(..., "The causal language model to fine-tune.", metavar="MODEL"),
    training: AnalysisTrainingOptions,
    analyst: AnalystSettings,
    alpha: float | None = setting(None, "Scale of the adapter.", shown="twice the rank"),
    evaluation: EvaluationOptions,
    ablate: AblationName | None = setting(
        None, "Train on each channel or task alone and on everything, and compare them."
    ),
) -> None:
    from metrist.cli.training import describe_plan, print_plan, run_training
    from metrist.train.error_analysis import ErrorAnalysisPlan, ErrorAnalysisTask, find_preset
    from metrist.train.fit import plan_training

    method = training.method or find_preset(training.preset).method
    task = ErrorAnalysisTask(
        data=tuple(merge_files(files, data)),
        dev=training.held_out(),
        method=method,
        alpha=2.0 * analyst.rank if alpha is None else alpha,
        **as_arguments(analyst),
        **training.task_settings("analyst", training.base_model(base)),
    )
    task = evaluation.attach(task)
    if ablate is not None:
        _run_ablation(task, ablate, dry_run=training.dry_run)
        return
    if not training.dry_run:
        run_training(task)
        return
    plan = plan_training(task)
    assert isinstance(plan, ErrorAnalysisPlan)
    print_plan(
        plan.remarks(),
        f"training analyses  {len(plan.train):,}, {int(plan.train.weights.sum()):,} tokens of them to learn",
        *describe_plan(plan, task.recipe.epochs, "analysis"),
        f"trained            {'an adapter of rank ' + str(analyst.rank) if method == 'lora' else 'all weights'}",
        f"prompt             {'in the chat template' if plan.facts.turns == 'chat' else 'bare'}",
    )


def _run_ablation(task: ErrorAnalysisTask, ablate: AblationName, *, dry_run: bool) -> None:
    from metrist.cli.output import print_note, print_table, print_text
    from metrist.cli.progress import training_progress
    from metrist.studies.ablation import Variant, plan_ablation, run_ablation
    from metrist.train.distributed import is_first_process

    if task.channels or task.tasks or task.resume:
        raise SpecError(
            "--ablate trains on each part of the data in turn, and resumes by itself: leave out --channels, --tasks "
            "and --resume"
        )
    if dry_run:
        for variant in plan_ablation(task, ablate):
            print_text(f"{variant.name:24} {format_count(variant.analyses, 'analysis', 'analyses')}")
        return

    @contextmanager
    def progress(variant: Variant) -> Iterator[TrainingCallback]:
        if is_first_process():
            print_note(f"{variant.name}: {format_count(variant.analyses, 'analysis', 'analyses')} to learn from")
        with training_progress() as callback:
            yield callback

    table = run_ablation(task, ablate, progress)
    if is_first_process():
        print_table(table, "text")
