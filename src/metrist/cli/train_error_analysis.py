"""`metrist train error-analysis`: fine-tune a language model that lists errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from metrist.cli.options import expand_options
from metrist.cli.train_options import (
    AblationName,
    AnalysisTrainingOptions,
    EvaluationOptions,
    Files,
    Licence,
    StoredName,
    TurnsName,
    merge_files,
)
from metrist.errors import SpecError, format_count

if TYPE_CHECKING:
    from metrist.train.error_analysis import ErrorAnalysisTask
    from metrist.train.task import TrainingCallback


@expand_options
def error_analysis(
    *,
    files: Files = None,
    data: Annotated[
        list[Path] | None,
        typer.Option("--data", metavar="FILE", help="Analyses of `metrist build error-analysis`; repeatable."),
    ] = None,
    base: Annotated[str, typer.Option("--base", metavar="MODEL", help="The causal language model to fine-tune.")],
    training: AnalysisTrainingOptions,
    rank: Annotated[int, typer.Option("--rank", min=1, help="Rank of the adapter.")] = 16,
    alpha: Annotated[
        float | None, typer.Option("--alpha", help="Scale of the adapter.", show_default="twice the rank")
    ] = None,
    adapter_dropout: Annotated[
        float, typer.Option("--adapter-dropout", min=0, help="Dropout before the adapter.")
    ] = 0.0,
    targets: Annotated[
        str,
        typer.Option(
            "--targets", metavar="A,B", help="Layers with an adapter, such as q_proj,v_proj.", show_default="all linear"
        ),
    ] = "",
    save: Annotated[
        StoredName | None,
        typer.Option(
            "--save", help="Write an adapter, a merged model, or that and a GGUF file.", show_default="adapter for LoRA"
        ),
    ] = None,
    turns: Annotated[
        TurnsName | None,
        typer.Option(
            "--turns", help="Use the chat template, or the bare prompt.", show_default="chat, if there is a template"
        ),
    ] = None,
    max_length: Annotated[
        int, typer.Option("--max-length", min=2, help="Tokens of a prompt and its analysis; longer ones are left out.")
    ] = 1024,
    packing: Annotated[
        bool, typer.Option("--packing/--no-packing", help="Let analyses share rows, without seeing each other.")
    ] = True,
    gradient_checkpointing: Annotated[
        bool, typer.Option("--gradient-checkpointing", help="Compute activations twice to save memory.")
    ] = False,
    shard: Annotated[
        bool,
        typer.Option("--shard", help="Divide all weights over the GPUs (FSDP), with `accelerate launch`."),
    ] = False,
    tasks: Annotated[str, typer.Option("--tasks", metavar="A,B", help="Train on these tasks only.")] = "",
    channels: Annotated[
        str, typer.Option("--channels", metavar="A,B", help="Train on these channels only: real, synthetic, human, ….")
    ] = "",
    evaluation: EvaluationOptions,
    ablate: Annotated[
        AblationName | None,
        typer.Option("--ablate", help="Train on each channel or task alone and on everything, and compare them."),
    ] = None,
    licence: Licence = None,
) -> None:
    """Fine-tune an LLM to list errors as TIGERScore does, and evaluate it; the same command resumes after a stop."""
    from metrist.cli.training import describe_plan, print_plan, run_training
    from metrist.train.error_analysis import ErrorAnalysisPlan, ErrorAnalysisTask, find_preset
    from metrist.train.fit import plan_training

    method = training.method or find_preset(training.preset).method
    task = ErrorAnalysisTask(
        data=tuple(merge_files(files, data)),
        dev=training.held_out(),
        method=method,
        rank=rank,
        alpha=2.0 * rank if alpha is None else alpha,
        adapter_dropout=adapter_dropout,
        targets=_split_names(targets),
        stored=save,
        turns=turns,
        max_length=max_length,
        packing=packing,
        gradient_checkpointing=gradient_checkpointing,
        sharded=shard,
        tasks=_split_names(tasks),
        channels=_split_names(channels),
        licence=licence,
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
        f"trained            {'an adapter of rank ' + str(rank) if method == 'lora' else 'all weights'}",
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


def _split_names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
