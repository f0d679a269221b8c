"""`metrist train`: train a likelihood, preference or consistency metric or an error analyst, and export one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metrist.cli.output import print_note, print_table, print_text
from metrist.cli.train_options import (
    BITS_HELP,
    AblationName,
    AnalysisTrainingOptions,
    BitsName,
    ConsistencyTrainingOptions,
    DataOptions,
    EvaluationOptions,
    Files,
    KeepName,
    PreferenceTrainingOptions,
    SupportDataOptions,
    TrainingOptions,
    merge_files,
    read_bits,
)
from metrist.cli.train_study import SuiteOptions, run_suite
from metrist.errors import SpecError, format_count
from metrist.report.progress import ProgressSource, show_progress
from metrist.settings import ReadingSettings, as_arguments, list_changed, reuse_setting, setting
from metrist.train.recipe import AnalystSettings, PreferenceSettings

if TYPE_CHECKING:
    from metrist.models.devices import Options
    from metrist.models.reward_layout import RewardLayout
    from metrist.train.error_analysis import ErrorAnalysisTask
    from metrist.train.preference import PreferenceTask
    from metrist.train.task import Evaluation, TrainingCallback, TrainingPlan, TrainingProgress, TrainingTask


#: The description of each pooling in a dry run.
_POOLINGS = {
    "answer": "mean over its tokens and the closing separator",
    "mean": "mean over all tokens",
    "first": "that of the first token",
    "last": "that of the last token",
}


def _parse_languages(text: str) -> tuple[str, str]:
    first, comma, second = text.partition(",")
    if not (first and comma and second):
        raise SpecError(f"must be two names, such as en_XX,de_DE, got {text!r}")
    return first, second


def likelihood(
    *,
    files: Files = None,
    data: list[Path] | None = setting(
        None, "Pairs of texts: text and summary, paraphrases, …; repeatable.", metavar="FILE"
    ),
    base: str = setting("metrist:likelihood-small", "The sequence-to-sequence model to fine-tune.", metavar="MODEL"),
    training: TrainingOptions,
    pairs: int = setting(30_000, "Number of pairs to sample; 0: all.", min=0),
    max_length: int | None = setting(None, "Truncate texts to this many tokens.", min=2, shown="model's limit"),
    languages: tuple[str, str] | None = setting(
        None, "Languages of conditions and targets, as the model names them.", metavar="A,B", parse=_parse_languages
    ),
    bits: BitsName = setting("16", BITS_HELP),
    skip_bad: bool = reuse_setting(ReadingSettings, "skip_bad"),
    fields: Mapping[str, str] = reuse_setting(ReadingSettings, "fields"),
) -> None:
    from metrist.train.fit import plan_training
    from metrist.train.likelihood import LikelihoodPlan, LikelihoodTask

    paths = merge_files(files, data)
    options = training.base_model(base, languages)
    dev, default_dev = training.development(options)
    task = LikelihoodTask(
        data=tuple(paths),
        dev=dev or default_dev,
        pairs=pairs,
        max_length=max_length,
        bits=read_bits(bits),
        skip_bad=skip_bad,
        fields=fields,
        **training.task_settings("likelihood", options),
    )
    if not training.dry_run:
        run_training(task)
        return
    plan = plan_training(task)
    assert isinstance(plan, LikelihoodPlan)
    conditions, targets, tokens = plan.train.cut
    print_plan(
        plan.data.remarks(),
        f"training pairs     {len(plan.train):,}",
        *describe_plan(plan, task.recipe.epochs),
        f"too long           {format_count(conditions, 'condition')}, {format_count(targets, 'target')}; "
        f"{format_count(tokens, 'token')} cut",
    )


def preference(
    files: Files = None,
    *,
    data: DataOptions,
    across: bool = setting(False, "With --from-run: compare outputs of different items, if each item has one."),
    base: str = setting(
        "metrist:preference-small",
        "The model to fine-tune: a shipped one, or an encoder, BART, T5 or a causal one of transformers.",
        metavar="MODEL",
    ),
    training: PreferenceTrainingOptions,
    labelled: bool | None = setting(
        None,
        "Put the fields' names before their texts.",
        "--labelled/--unlabelled",
        shown="unlabelled, or as the base was trained",
    ),
    keep: KeepName | None = setting(
        None, "Which side of a too long context is kept; both: cut the middle.", shown="end, or as the base was trained"
    ),
    preferences: PreferenceSettings,
    max_length: int | None = setting(
        None, "Tokens of instruction, context and answer together.", min=2, shown="512, or as the base was trained"
    ),
    licence: str | None = reuse_setting(AnalystSettings, "licence"),
    bits: BitsName | None = setting(None, BITS_HELP, shown="16; 7 for a text encoder"),
    criterion: str | None = setting(
        None, "What the pairs of a file that does not say so teach, such as fluency.", metavar="NAME", shown="overall"
    ),
    suite: SuiteOptions,
    reading: ReadingSettings,
) -> None:
    from metrist.train.distributed import is_first_process
    from metrist.train.fit import plan_training
    from metrist.train.preference import PreferencePlan

    paths = data.paths(files, reading, across=across)
    if suite.suite is not None and data.from_run is not None:
        raise SpecError("--suite trains on a file of pairs: leave out --from-run", code="conflict")
    unsupported = {
        **{name: getattr(training, name) for name in ("dev", "seed", "keep_checkpoints", "resume")},
        "licence": licence,
        "criterion": criterion,
        **dict.fromkeys(list_changed(reading), True),
    }
    suite.check(paths, unsupported)
    options = training.base_model(base)
    settings: dict[str, Any] = {
        "base": options,
        "layout": _choose_layout(labelled, keep, max_length),
        "recipe": training.recipe(options),
        **as_arguments(preferences),
    }
    if suite.suite is not None:
        run_suite(
            suite,
            settings,
            paths[0],
            training.folder("preference"),
            checkpoint_every=training.checkpoint_every,
            dry_run=training.dry_run,
        )
        return
    settings |= training.task_settings("preference", options)
    settings |= {"bits": read_bits(bits) if bits else "auto", "licence": licence}
    if data.from_run is not None:
        task, remarks = _prepare_distillation(data, training, settings, across=across, criterion=criterion)
    else:
        task, remarks = _prepare_preference(paths, training, settings, options, criterion, reading)
    if not training.dry_run:
        run_training(task, remarks if is_first_process() else ())
        return
    plan = plan_training(task)
    assert isinstance(plan, PreferencePlan)
    print_plan(
        (*remarks, *plan.remarks()),
        f"training pairs     {len(plan.train):,} of {len(set(plan.train.criteria)):,} criteria",
        *describe_plan(plan, task.recipe.epochs),
        f"padding            {plan.padding:.1%} of what is computed",
        f"an answer's vector {_POOLINGS[plan.settings.pooling]}, in rows of {plan.settings.layout.max_length:,} tokens "
        "at most",
    )


def _prepare_preference(
    paths: list[Path],
    training: TrainingOptions,
    settings: dict[str, Any],
    base: Options,
    criterion: str | None,
    reading: ReadingSettings,
) -> tuple[PreferenceTask, list[str]]:
    """Return the training that learns from files, and what the user should know about it."""
    from metrist.train.answer_pairs import load_preference_pairs
    from metrist.train.preference import PreferenceTask, base_instructions

    dev, default_dev = training.development(base)
    dataset = load_preference_pairs(
        paths,
        dev,
        seed=training.seed,
        learned=base_instructions(base),
        default_dev=default_dev,
        criterion=criterion,
        **as_arguments(reading),
    )
    task = PreferenceTask(train=dataset.train, dev=dataset.dev, data=dataset.describe(), **settings)
    return task, dataset.remarks()


def _prepare_distillation(
    data: DataOptions, training: TrainingOptions, settings: dict[str, Any], *, across: bool, criterion: str | None
) -> tuple[PreferenceTask, list[str]]:
    """Return the training that learns from a run, and what the user should know about it."""
    from metrist.evaluate.distill import read_judge
    from metrist.train.distillation import DistillationTask, make_pairs

    assert data.from_run is not None
    outputs = read_judge(data.from_run, data.metric, texts=data.texts or [], criterion=criterion)
    pairs = make_pairs(outputs, training.held_out(), seed=training.seed, across=across)
    task = DistillationTask(
        train=pairs.train, dev=pairs.dev, held_out=pairs.held_out, across=across, data=pairs.facts, **settings
    )
    return task, pairs.notes


def consistency(
    files: Files = None,
    *,
    data: SupportDataOptions,
    aspect: str | None = setting(
        None,
        "The rating that says whether the source supports an output.",
        "-a",
        metavar="NAME",
        shown="consistency, faithfulness, …",
    ),
    base: str = setting("metrist:english-small", "The text encoder to fine-tune.", metavar="MODEL"),
    training: ConsistencyTrainingOptions,
    window: int = setting(512, "Tokens that the model reads at once.", min=128),
    bits: int = setting(7, "Bits per stored weight.", min=2, max=7),
    licence: str | None = reuse_setting(AnalystSettings, "licence"),
    reading: ReadingSettings,
) -> None:
    from metrist.evaluate.distill import read_judged_run
    from metrist.train.consistency import ConsistencyTask, divide_examples, read_support_examples
    from metrist.train.fit import plan_training

    paths = data.paths(files, reading)
    if data.from_run is not None:
        examples = read_judged_run(data.from_run, data.metric, texts=data.texts or (), aspect=aspect, base=base)
    else:
        examples = read_support_examples(paths, aspect, base, **as_arguments(reading))
    divided = divide_examples(
        examples.examples, training.held_out(), training.seed, aspect, base, **as_arguments(reading)
    )
    task = ConsistencyTask(
        train=divided.train,
        dev=divided.dev,
        window=window,
        bits=bits,
        licence=licence,
        data={"labels": "; ".join(examples.notes)},
        **training.task_settings("consistency", training.base_model(base)),
    )
    if not training.dry_run:
        run_training(task, examples.notes)
        return
    plan = plan_training(task)
    print_plan(
        (*examples.notes, *plan.remarks()),
        f"training outputs   {len(divided.train):,} in {format_count(len(plan.train), 'row')}",
        *describe_plan(plan, task.recipe.epochs, "row"),
    )


def _choose_layout(labelled: bool | None, keep: KeepName | None, max_length: int | None) -> RewardLayout | None:
    """Return the layout that the options select; None if they leave it to the base."""
    from metrist.models.reward_layout import RewardLayout

    values = {"labelled": labelled, "keep": keep, "max_length": max_length}
    selected: dict[str, Any] = {name: value for name, value in values.items() if value is not None}
    return RewardLayout(**selected) if selected else None


def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a trained preference model, a BERT.")],
    out: Path = setting(..., "The folder to write.", "-o", metavar="DIR"),
    bits: BitsName = setting("8", "Bits per weight."),
    group: int | None = setting(None, "Columns that share a scale.", min=1, shown="a whole row"),
) -> None:
    from metrist.models.numpy_inference.export import export_reward

    export_reward(folder, out, read_bits(bits), group)
    size = sum(path.stat().st_size for path in out.iterdir()) / 1e6
    print_text(f"wrote {out} ({size:,.1f} MB); score with preference(model='{out}')")


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
    skip_bad: bool = reuse_setting(ReadingSettings, "skip_bad"),
    fields: Mapping[str, str] = reuse_setting(ReadingSettings, "fields"),
) -> None:
    from metrist.train.error_analysis import ErrorAnalysisPlan, ErrorAnalysisTask, find_preset
    from metrist.train.fit import plan_training

    method = training.method or find_preset(training.preset).method
    task = ErrorAnalysisTask(
        data=tuple(merge_files(files, data)),
        dev=training.held_out(),
        skip_bad=skip_bad,
        fields=fields,
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
        f"prompt             {'in the chat template' if plan.turns == 'chat' else 'bare'}",
    )


def _run_ablation(task: ErrorAnalysisTask, ablate: AblationName, *, dry_run: bool) -> None:
    from metrist.studies.ablation import Variant, plan_ablation, run_ablation
    from metrist.train.distributed import is_first_process

    if task.channels or task.tasks or task.resume:
        raise SpecError(
            "--ablate trains on each part of the data in turn, and resumes by itself: leave out --channels, --tasks "
            "and --resume",
            code="conflict",
        )
    if dry_run:
        for variant in plan_ablation(task, ablate):
            print_text(f"{variant.name:24} {format_count(variant.analyses, 'analysis', 'analyses')}")
        return

    @contextmanager
    def progress(variant: Variant) -> Iterator[TrainingCallback]:
        if is_first_process():
            print_note(f"{variant.name}: {format_count(variant.analyses, 'analysis', 'analyses')} to learn from")
        with show_progress(report := TrainingReport()):
            yield report

    table = run_ablation(task, ablate, progress)
    if is_first_process():
        print_table(table, "text")


def describe_plan(plan: TrainingPlan, epochs: int, noun: str = "pair") -> list[str]:
    lengths = plan.train.lengths
    each = f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
    title = "held-out analyses" if noun == "analysis" else f"development {noun}s"
    steps = plan.sampler.steps
    return [
        f"{title:18} {len(plan.dev) if plan.dev else 0:,}",
        f"steps              {epochs * steps:,} ({format_count(epochs, 'epoch')} of {steps:,})",
        f"tokens             {int(lengths.sum()):,} an epoch; {lengths.mean():.0f} {each}, at most {lengths.max():,}",
    ]


def print_plan(notes: Iterable[str], *lines: str) -> None:
    print_note(*notes)
    for line in lines:
        print_text(line)


def run_training(task: TrainingTask, notes: Iterable[str] = ()) -> None:
    """Train with progress on the terminal, then print the figures and how to use the model."""
    from metrist.train.distributed import is_first_process
    from metrist.train.fit import fit

    print_note(*notes)
    try:
        with show_progress(report := TrainingReport()):
            card = fit(task, report)
    except KeyboardInterrupt as stop:
        if str(stop) and is_first_process():  # Before the first step there is no checkpoint and no message.
            print_note(f"{stop}; run the same command again to continue")
        raise
    if is_first_process():
        print_result(card, task.out)


def print_result(card: dict[str, Any], out: Path) -> None:
    """Print the figures of a training and how to use the model."""
    from metrist.train.card import DEVELOPMENT_DATA

    figures = card["figures"]
    if figures:
        before, after = figures["before"], figures["after"]
        data = DEVELOPMENT_DATA.get(card["kind"], "pairs")
        first = " with a new head" if figures.get("new_head") else ""
        print_text(f"{figures['name']} of the development {data}: {before:.4f} before{first}, {after:.4f} after")
        for name, judges in (("agreement", "the labels"), ("people", "people's ratings")):
            if figures.get(f"{name}_model") is not None and figures.get(f"{name}_base") is not None:
                print_text(
                    f"  Spearman's correlation with {judges}: {figures[f'{name}_base']:.3f} by "
                    f"{figures['compared_with']}, {figures[f'{name}_model']:.3f} by the trained model"
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
            f"{figures['trained']:.4f} to {after:.4f}; more bits, or a higher --lr, keep more of the training"
        )
    for part in (figures or {}, card.get("agreement", {}), card.get("evaluation", {})):
        print_note(*part.get("remarks", ()))
    print_text(f'use it: metrist score … -m "{card["metric"]}"')


def _print_agreement(agreement: Mapping[str, Any]) -> None:
    """Print how far the metric, its base and length agree with the judge, and in short how far all of them do with
    people; the card has more."""
    from metrist.train.card import format_estimate

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


class TrainingReport(ProgressSource):
    """Steps, speed, loss and the latest development figure of a training. Evaluations and messages are notes."""

    def __init__(self) -> None:
        super().__init__()
        self._first: tuple[float, TrainingProgress] | None = None
        self._progress: TrainingProgress | None = None
        self._dev: float | None = None

    @property
    def position(self) -> tuple[float, float | None]:
        return (self._progress.step, self._progress.steps) if self._progress else (0, None)

    def on_progress(self, progress: TrainingProgress) -> None:
        # The speed is measured from the first call on, without loading and tokenizing.
        self._first = self._first or (monotonic(), progress)
        self._progress = progress
        self.on_change()

    def on_evaluation(self, evaluation: Evaluation, name: str) -> None:
        self._dev = evaluation.figure
        self.note(f"step {evaluation.step:,}: {name} of the development data {evaluation.figure:.4f}")

    def on_message(self, text: str) -> None:
        self.note(text)

    def describe(self) -> str:
        if self._first is None or self._progress is None:
            return "training: loading"
        start, first = self._first
        progress = self._progress
        seconds = monotonic() - start
        text = f"step {progress.step:,} of {progress.steps:,}, loss {progress.loss:.4f}"
        if self._dev is not None:
            text += f", dev {self._dev:.4f}"
        steps = progress.step - first.step
        if steps and seconds > 0:
            remaining = timedelta(seconds=round((progress.steps - progress.step) * seconds / steps))
            tokens = progress.tokens - first.tokens
            text += f", {steps / seconds:.1f} steps/s, {tokens / seconds:,.0f} tokens/s, {remaining} left"
        return text
