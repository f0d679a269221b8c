"""`metrist train`: train a likelihood, preference or consistency metric, and export a trained one."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from metrist.cli.options import SkipBad, TiesName, expand_options
from metrist.cli.train_study import SuiteOptions, run_suite
from metrist.errors import SpecError, format_count
from metrist.train import HELD_OUT, TUNING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from metrist.models.devices import Options
    from metrist.models.reward_layout import RewardLayout
    from metrist.train.distillation import DistillationTask
    from metrist.train.recipe import Recipe
    from metrist.train.task import TrainingPlan, TrainingTask


class ScheduleName(StrEnum):
    """How the learning rate falls."""

    linear = "linear"
    cosine = "cosine"
    constant = "constant"


class DtypeName(StrEnum):
    """The number format to compute in; weights are stored as float32."""

    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"


class PoolingName(StrEnum):
    """Which of the model's vectors represents the answer."""

    auto = "auto"
    answer = "answer"
    mean = "mean"
    first = "first"
    last = "last"


class KeepName(StrEnum):
    """Which side of a long context is kept."""

    end = "end"
    start = "start"
    both = "both"


class BitsName(StrEnum):
    """Bits per stored weight; float32 loses nothing, and 16 bits (float16) next to nothing."""

    sixteen = "16"
    eight = "8"
    six = "6"
    four = "4"
    float32 = "float32"

    @property
    def number(self) -> int | None:
        return None if self is BitsName.float32 else int(self)


#: The description of each pooling in a dry run.
_POOLINGS = {
    "answer": "mean over its tokens and the closing separator",
    "mean": "mean over all tokens",
    "first": "that of the first token",
    "last": "that of the last token",
}

Files = Annotated[list[Path] | None, typer.Argument(metavar="FILE…", help="The same as --data FILE.")]
FromRun = Annotated[
    Path | None,
    typer.Option(
        "--from-run", metavar="RUN", help="Learn what a metric or comparator of this run said, such as an LLM judge."
    ),
]
JudgeMetric = Annotated[
    str | None,
    typer.Option("-m", "--metric", metavar="SPEC", help="With --from-run: which metric, or part: judge:accuracy."),
]
Texts = Annotated[
    list[Path] | None,
    typer.Option("--texts", metavar="FILE", help="The records of the run, which stores no texts; repeatable."),
]
Bits = Annotated[
    BitsName,
    typer.Option("--bits", help="Bits per weight of a model tuned from metrist's own format; few undo small changes."),
]
_OWN_FORMAT = "for a base in metrist's own format"
Warmup = Annotated[float, typer.Option("--warmup", help="Share of the steps in which the learning rate rises.")]
WeightDecay = Annotated[float, typer.Option("--weight-decay", help="AdamW's weight decay.")]
Bucket = Annotated[
    int, typer.Option("--bucket", min=1, help="Batches drawn together by length, to reduce padding; 1: none.")
]
CheckpointEvery = Annotated[int, typer.Option("--checkpoint-every", min=1, help="Steps between checkpoints.")]


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """Options of every training, with the defaults of `metrist train likelihood`."""

    _defaults: ClassVar[Mapping[str, float]] = {"epochs": 1, "batch": 20, "lr": 5e-5}

    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="DIR", help="The folder for the trained model.", show_default="my-KIND"),
    ] = None
    dev: Annotated[
        str | None,
        typer.Option(
            "--dev",
            metavar="FILE/SHARE",
            help="Development pairs: a file, or a share such as 0.05; 0 for none.",
            show_default="0.2 for a base in metrist's own format",
        ),
    ] = None
    epochs: Annotated[
        int | None,
        typer.Option("--epochs", min=1, help="Number of passes over the pairs.", show_default=f"1; 3 {_OWN_FORMAT}"),
    ] = None
    batch: Annotated[
        int | None, typer.Option("--batch", min=1, help="Pairs per update.", show_default=f"20; 16 {_OWN_FORMAT}")
    ] = None
    lr: Annotated[float | None, typer.Option("--lr", help="Peak learning rate.", show_default="5e-05")] = None
    schedule: Annotated[
        ScheduleName, typer.Option("--schedule", help="How the learning rate falls after the warm-up.")
    ] = ScheduleName.linear
    warmup: Warmup = 0.0
    weight_decay: WeightDecay = 0.0
    clip: Annotated[float, typer.Option("--clip", help="Maximum norm of the gradients; 0: no limit.")] = 1.0
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of order, split and dropout.")] = 0
    dtype: Annotated[
        DtypeName, typer.Option("--dtype", help="Number format to compute in; auto: bfloat16 on GPUs that support it.")
    ] = DtypeName.auto
    max_tokens: Annotated[
        int | None,
        typer.Option("--max-tokens", min=1, help="Tokens to compute at once.", show_default="as fits the device"),
    ] = None
    bucket: Bucket = 1
    eval_every: Annotated[
        int | None, typer.Option("--eval-every", min=1, help="Steps between evaluations.", show_default="an epoch")
    ] = None
    patience: Annotated[
        int | None, typer.Option("--patience", min=1, help="Stop after N evaluations without improvement.", metavar="N")
    ] = None
    checkpoint_every: CheckpointEvery = 500
    keep_checkpoints: Annotated[
        bool, typer.Option("--keep-checkpoints", help="Do not delete the last checkpoints at the end.")
    ] = False
    resume: Annotated[
        bool, typer.Option("--resume", help="Only continue a training that was stopped; never start one.")
    ] = False
    revision: Annotated[str | None, typer.Option("--revision", help="The base model's revision on the hub.")] = None
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run Python code that comes with the base model.")
    ] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Describe the training data and steps, and stop.")] = False

    def recipe(self, base: Options) -> Recipe:
        """Return the recipe, with defaults that depend on the base."""
        from metrist.models.weights import find_weights
        from metrist.train.recipe import Recipe

        defaults = TUNING if find_weights(base).runs_on_numpy else self._defaults
        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(Recipe)}
        values |= {name: value for name, value in defaults.items() if values[name] is None}
        values |= {"schedule": self.schedule.value, "dtype": self.dtype.value, "clip": self.clip or None}
        return Recipe(**values)

    def base_model(self, name: str, languages: tuple[str, str] | None = None) -> Options:
        from metrist.models.devices import Options

        return Options(
            model=name, revision=self.revision, trust_remote_code=self.trust_remote_code, languages=languages
        )

    def folder(self, kind: str) -> Path:
        return self.out or Path(f"my-{kind}")

    def development(self, base: Options) -> tuple[str | None, str | None]:
        """Return the development data that is named, and the share to hold out if the data has none."""
        from metrist.models.weights import find_weights

        if self.dev is None:
            return None, HELD_OUT if find_weights(base).runs_on_numpy else None
        return (None, None) if _is_zero(self.dev) else (self.dev, None)


def _is_zero(text: str) -> bool:
    try:
        return float(text) == 0
    except ValueError:
        return False


def _merge_files(files: list[Path] | None, data: list[Path] | None) -> list[Path]:
    if not files and not data:
        raise SpecError("no training data is named; give a file: metrist train … FILE")
    return [*(files or []), *(data or [])]


def _choose_files(
    files: list[Path] | None, data: list[Path] | None, run: Path | None, only_with_run: Mapping[str, object]
) -> list[Path]:
    """Return the files to train on: none if a run is named."""
    if run is None:
        if unused := next((name for name, value in only_with_run.items() if value), None):
            raise SpecError(f"{unused} is for --from-run RUN")
        return _merge_files(files, data)
    if files or data:
        raise SpecError("--from-run learns from a run: leave out other files, or give them as --texts")
    return []


@dataclass(frozen=True, kw_only=True)
class PreferenceTrainingOptions(TrainingOptions):
    """The same options with the defaults of `metrist train preference`."""

    _defaults: ClassVar[Mapping[str, float]] = {"epochs": 5, "batch": 32, "lr": 2e-5}

    epochs: Annotated[
        int | None,
        typer.Option("--epochs", min=1, help="Number of passes over the pairs.", show_default=f"5; 3 {_OWN_FORMAT}"),
    ] = None
    batch: Annotated[
        int | None, typer.Option("--batch", min=1, help="Pairs per update.", show_default=f"32; 16 {_OWN_FORMAT}")
    ] = None
    lr: Annotated[
        float | None, typer.Option("--lr", help="Peak learning rate.", show_default=f"2e-05; 5e-05 {_OWN_FORMAT}")
    ] = None
    warmup: Warmup = 0.1
    weight_decay: WeightDecay = 0.01
    bucket: Bucket = 20
    checkpoint_every: CheckpointEvery = 1_000


@expand_options
def likelihood(
    *,
    files: Files = None,
    data: Annotated[
        list[Path] | None,
        typer.Option("--data", metavar="FILE", help="Pairs of texts: text and summary, paraphrases, …; repeatable."),
    ] = None,
    base: Annotated[
        str, typer.Option("--base", metavar="MODEL", help="The sequence-to-sequence model to fine-tune.")
    ] = "metrist:likelihood-small",
    training: TrainingOptions,
    pairs: Annotated[int, typer.Option("--pairs", min=0, help="Number of pairs to sample; 0: all.")] = 30_000,
    max_length: Annotated[
        int | None,
        typer.Option("--max-length", min=2, help="Truncate texts to this many tokens.", show_default="model's limit"),
    ] = None,
    languages: Annotated[
        str | None,
        typer.Option(
            "--languages",
            metavar="A,B",
            help="Languages of conditions and targets, as the model names them.",
        ),
    ] = None,
    bits: Bits = BitsName.sixteen,
    skip_bad: SkipBad = False,
) -> None:
    """Fine-tune a sequence-to-sequence model for likelihood metrics; the same command resumes after a stop."""
    from metrist.train.likelihood import LikelihoodPlan, LikelihoodTask

    options = training.base_model(base, _parse_languages(languages))
    dev, default_dev = training.development(options)
    task = LikelihoodTask(
        data=tuple(_merge_files(files, data)),
        base=options,
        out=training.folder("likelihood"),
        dev=dev or default_dev,
        pairs=pairs,
        max_length=max_length,
        recipe=training.recipe(options),
        bits=bits.number,
        skip_bad=skip_bad,
        resume=training.resume,
        checkpoint_every=training.checkpoint_every,
        keep_checkpoints=training.keep_checkpoints,
    )
    if not training.dry_run:
        _run_training(task)
        return
    plan = _plan_training(task)
    assert isinstance(plan, LikelihoodPlan)
    conditions, targets, tokens = plan.train.cut
    _print_plan(
        plan.data.remarks(),
        f"training pairs     {len(plan.train):,}",
        *_describe_plan(plan, task.recipe.epochs),
        f"too long           {format_count(conditions, 'condition')}, {format_count(targets, 'target')}; "
        f"{format_count(tokens, 'token')} cut",
    )


def _parse_languages(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    first, comma, second = text.partition(",")
    if not (first and comma and second):
        raise SpecError(f"--languages must be two names, such as en_XX,de_DE, got {text!r}")
    return first, second


@expand_options
def preference(
    *,
    files: Files = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            "--data",
            metavar="FILE",
            help="Pairs of a better and a worse answer: prompt, chosen, rejected; or ratings; or a file of `metrist "
            "build pairs`; repeatable.",
        ),
    ] = None,
    from_run: FromRun = None,
    metric: JudgeMetric = None,
    texts: Texts = None,
    across: Annotated[
        bool,
        typer.Option("--across", help="With --from-run: compare outputs of different items, if each item has one."),
    ] = False,
    base: Annotated[
        str,
        typer.Option(
            "--base",
            metavar="MODEL",
            help="The model to fine-tune: a shipped one, or an encoder, BART, T5 or a causal one of transformers.",
        ),
    ] = "metrist:preference-small",
    training: PreferenceTrainingOptions,
    labelled: Annotated[
        bool | None,
        typer.Option(
            "--labelled/--unlabelled",
            help="Put the fields' names before their texts.",
            show_default="unlabelled, or as the base was trained",
        ),
    ] = None,
    keep: Annotated[
        KeepName | None,
        typer.Option(
            "--keep",
            help="Which side of a too long context is kept; both: cut the middle.",
            show_default="end, or as the base was trained",
        ),
    ] = None,
    pooling: Annotated[
        PoolingName,
        typer.Option(
            "--pooling",
            help="What is scored: the mean over the answer's or all tokens, the first or the last token; auto: by the "
            "model's kind.",
        ),
    ] = PoolingName.auto,
    balance: Annotated[
        float,
        typer.Option("--balance", min=0, max=1, help="1: weight criteria by their pairs; 0: weight them equally."),
    ] = 1.0,
    ties: Annotated[
        TiesName, typer.Option("--ties", help="Drop ties, or learn that neither answer is better.")
    ] = TiesName.drop,
    regression: Annotated[
        float, typer.Option("--regression", min=0, help="Weight of an added loss on the ratings, if there are any.")
    ] = 0.0,
    max_length: Annotated[
        int | None,
        typer.Option(
            "--max-length",
            min=2,
            help="Tokens of instruction, context and answer together.",
            show_default="512, or as the base was trained",
        ),
    ] = None,
    head_lr: Annotated[
        float | None, typer.Option("--head-lr", help="Learning rate of the last layer.", show_default="that of --lr")
    ] = None,
    licence: Annotated[
        str | None, typer.Option("--licence", help="The licence to name in the card, after those of base and data.")
    ] = None,
    bits: Annotated[
        BitsName | None,
        typer.Option(
            "--bits",
            help="Bits per weight of a model tuned from metrist's own format; few undo small changes.",
            show_default="16; 7 for a text encoder",
        ),
    ] = None,
    criterion: Annotated[
        str | None,
        typer.Option(
            "--criterion",
            metavar="NAME",
            help="What the pairs of a file that does not say so teach, such as fluency.",
            show_default="overall",
        ),
    ] = None,
    suite: SuiteOptions,
) -> None:
    """Train a model to give better answers higher scores; the same command resumes after a stop."""
    from metrist.train.dataset import load_preference_pairs
    from metrist.train.distributed import is_first_process
    from metrist.train.preference import PreferencePlan, PreferenceTask, base_instructions

    paths = _choose_files(files, data, from_run, {"--metric": metric, "--texts": texts, "--across": across})
    if suite.suite is not None and from_run is not None:
        raise SpecError("--suite trains on a file of pairs: leave out --from-run")
    unsupported = {
        "--dev": training.dev,
        "--seed": training.seed,
        "--licence": licence,
        "--criterion": criterion,
        "--keep-checkpoints": training.keep_checkpoints,
        "--resume": training.resume,
    }
    suite.check(paths, unsupported)
    options = training.base_model(base)
    settings: dict[str, Any] = {
        "base": options,
        "layout": _choose_layout(labelled, keep, max_length),
        "pooling": pooling.value,
        "recipe": training.recipe(options),
        "balance": balance,
        "ties": ties.value,
        "regression": regression,
        "head_lr": head_lr,
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
    settings |= {
        "out": training.folder("preference"),
        "bits": bits.number if bits else "auto",
        "resume": training.resume,
        "checkpoint_every": training.checkpoint_every,
        "keep_checkpoints": training.keep_checkpoints,
        "licence": licence,
    }
    task: PreferenceTask
    if from_run is not None:
        task, remarks = _prepare_distillation(
            from_run, metric, texts or [], training, settings, across=across, criterion=criterion
        )
    else:
        dev, default_dev = training.development(options)
        dataset = load_preference_pairs(
            paths,
            dev,
            seed=training.seed,
            learned=base_instructions(options),
            default_dev=default_dev,
            criterion=criterion,
        )
        task = PreferenceTask(train=dataset.train, dev=dataset.dev, data=dataset.describe(), **settings)
        remarks = dataset.remarks()
    if not training.dry_run:
        _run_training(task, remarks if is_first_process() else ())
        return
    plan = _plan_training(task)
    assert isinstance(plan, PreferencePlan)
    pooled, max_tokens = _POOLINGS[plan.settings.pooling], plan.settings.layout.max_length
    _print_plan(
        (*remarks, *plan.remarks()),
        f"training pairs     {len(plan.train):,} of {len(set(plan.train.criteria)):,} criteria",
        *_describe_plan(plan, task.recipe.epochs),
        f"padding            {plan.padding:.1%} of what is computed",
        f"an answer's vector {pooled}, in rows of {max_tokens:,} tokens at most",
    )


def _prepare_distillation(
    run: Path,
    metric: str | None,
    texts: list[Path],
    training: TrainingOptions,
    settings: Mapping[str, Any],
    *,
    across: bool,
    criterion: str | None,
) -> tuple[DistillationTask, list[str]]:
    """Return the training that learns from a run, and what the user should know about it."""
    from metrist.evaluate.distill import read_judge
    from metrist.train.distillation import DistillationTask, make_pairs

    dev = training.dev or HELD_OUT
    outputs = read_judge(run, metric, texts=texts, criterion=criterion)
    pairs = make_pairs(outputs, None if _is_zero(dev) else dev, seed=training.seed, across=across)
    task = DistillationTask(
        train=pairs.train, dev=pairs.dev, held_out=pairs.held_out, across=across, data=pairs.facts, **settings
    )
    return task, pairs.notes


@dataclass(frozen=True, kw_only=True)
class ConsistencyTrainingOptions(TrainingOptions):
    """The same options with the defaults of `metrist train consistency`."""

    dev: Annotated[
        str | None,
        typer.Option(
            "--dev",
            metavar="FILE/SHARE",
            help="Development data: a file, or a share of the sources such as 0.1; 0 for none.",
            show_default="0.2",
        ),
    ] = None
    epochs: Annotated[
        int | None, typer.Option("--epochs", min=1, help="Number of passes over the outputs.", show_default="3")
    ] = None
    batch: Annotated[int | None, typer.Option("--batch", min=1, help="Outputs per update.", show_default="16")] = None
    lr: Annotated[float | None, typer.Option("--lr", help="Peak learning rate.", show_default="3e-05")] = None
    warmup: Warmup = 0.1
    weight_decay: WeightDecay = 0.01
    bucket: Bucket = 20

    def recipe(self, base: Options) -> Recipe:  # noqa: ARG002
        """Return the recipe; every base is one that ships, or was trained from one."""
        from metrist.train.consistency import RECIPE
        from metrist.train.recipe import Recipe

        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(Recipe)}
        values |= {name: getattr(RECIPE, name) for name in ("epochs", "batch", "lr") if values[name] is None}
        values |= {"schedule": self.schedule.value, "dtype": self.dtype.value, "clip": self.clip or None}
        return Recipe(**values)


@expand_options
def consistency(
    *,
    files: Files = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            "--data",
            metavar="FILE",
            help="Outputs with sources, and with ratings of support or errors with their places; repeatable.",
        ),
    ] = None,
    from_run: FromRun = None,
    metric: JudgeMetric = None,
    texts: Texts = None,
    aspect: Annotated[
        str | None,
        typer.Option(
            "-a",
            "--aspect",
            metavar="NAME",
            help="The rating that says whether the source supports an output.",
            show_default="consistency, faithfulness, …",
        ),
    ] = None,
    base: Annotated[
        str, typer.Option("--base", metavar="MODEL", help="The text encoder to fine-tune.")
    ] = "metrist:english-small",
    training: ConsistencyTrainingOptions,
    window: Annotated[int, typer.Option("--window", min=128, help="Tokens that the model reads at once.")] = 512,
    bits: Annotated[int, typer.Option("--bits", min=2, max=7, help="Bits per stored weight.")] = 7,
    licence: Annotated[
        str | None, typer.Option("--licence", help="The licence to name in the card, after those of base and data.")
    ] = None,
) -> None:
    """Train a model to tell which sentences the source supports; the same command resumes after a stop."""
    from metrist.evaluate.distill import read_judged_run
    from metrist.train.consistency import ConsistencyTask, divide_examples, read_support_examples

    paths = _choose_files(files, data, from_run, {"--metric": metric, "--texts": texts})
    if from_run is not None:
        examples = read_judged_run(from_run, metric, texts=texts or (), aspect=aspect)
    else:
        examples = read_support_examples(paths, aspect)
    dev = training.dev or HELD_OUT
    divided = divide_examples(examples.examples, None if _is_zero(dev) else dev, training.seed, aspect)
    options = training.base_model(base)
    task = ConsistencyTask(
        train=divided.train,
        dev=divided.dev,
        base=options,
        out=training.folder("consistency"),
        recipe=training.recipe(options),
        window=window,
        bits=bits,
        licence=licence,
        resume=training.resume,
        checkpoint_every=training.checkpoint_every,
        keep_checkpoints=training.keep_checkpoints,
        data={"labels": "; ".join(examples.notes)},
    )
    if not training.dry_run:
        _run_training(task, examples.notes)
        return
    plan = _plan_training(task)
    _print_plan(
        (*examples.notes, *plan.remarks()),
        f"training outputs   {len(divided.train):,} in {format_count(len(plan.train), 'row')}",
        *_describe_plan(plan, task.recipe.epochs, "row"),
    )


def _choose_layout(labelled: bool | None, keep: KeepName | None, max_length: int | None) -> RewardLayout | None:
    """Return the layout that the options select; None if they leave it to the base."""
    from metrist.models.reward_layout import RewardLayout

    values = {"labelled": labelled, "keep": keep and keep.value, "max_length": max_length}
    selected: dict[str, Any] = {name: value for name, value in values.items() if value is not None}
    return RewardLayout(**selected) if selected else None


def _plan_training(task: TrainingTask) -> TrainingPlan:
    from metrist.train.fit import plan_training

    return plan_training(task)


def _describe_plan(plan: TrainingPlan, epochs: int, noun: str = "pair") -> list[str]:
    lengths = plan.train.lengths
    return [
        f"{f'development {noun}s':18} {len(plan.dev) if plan.dev else 0:,}",
        f"steps              {plan.steps:,} ({format_count(epochs, 'epoch')} of {plan.steps // epochs:,})",
        f"tokens             {int(lengths.sum()):,} an epoch; {lengths.mean():.0f} a {noun}, at most {lengths.max():,}",
    ]


def _print_plan(notes: Iterable[str], *lines: str) -> None:
    from metrist.cli.output import print_note, print_text

    for note in notes:
        print_note(note)
    for line in lines:
        print_text(line)


def _run_training(task: TrainingTask, notes: Iterable[str] = ()) -> None:
    """Train with progress on the terminal, then print the figures and how to use the model."""
    from metrist.cli.output import print_note
    from metrist.cli.training_progress import training_progress
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
    from metrist.cli.output import format_count, print_note, print_text

    figures = card["figures"]
    if figures:
        before, after = figures["before"], figures["after"]
        data = "outputs" if card["kind"] == "consistency" else "pairs"
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
    print_text(f'use it: metrist score … -m "{card["metric"]}"')


def _print_agreement(agreement: Mapping[str, Any]) -> None:
    """Print how far the metric, its base and length agree with the judge, and in short how far all of them do with
    people; the card has more."""
    from metrist.cli.output import print_text
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


def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a trained preference model, a BERT.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="The folder to write.")],
    bits: Annotated[BitsName, typer.Option("--bits", help="Bits per weight.")] = BitsName.eight,
    group: Annotated[
        int | None, typer.Option("--group", min=1, help="Columns that share a scale.", show_default="a whole row")
    ] = None,
) -> None:
    """Export a trained preference model to metrist's own format, which is small and needs no torch."""
    from metrist.cli.output import print_text
    from metrist.models.numpy_inference.export import export_reward

    export_reward(folder, out, bits.number, group)
    size = sum(path.stat().st_size for path in out.iterdir()) / 1e6
    print_text(f"wrote {out} ({size:,.1f} MB); score with preference(model='{out}')")
