"""Options of `metrist train`: where the data comes from, and how a metric is trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import typer

from metrist.errors import SpecError
from metrist.train import HELD_OUT, TUNING

if TYPE_CHECKING:
    from metrist.models.devices import Options
    from metrist.train.error_analysis import ErrorAnalysisTask
    from metrist.train.recipe import Recipe


#: How the learning rate falls.
ScheduleName = Literal["linear", "cosine", "constant"]
#: The number format to compute in; weights are stored as float32.
DtypeName = Literal["auto", "float32", "bfloat16"]
#: Which of the model's vectors represents the answer.
PoolingName = Literal["auto", "answer", "mean", "first", "last"]
#: Which side of a long context is kept.
KeepName = Literal["end", "start", "both"]
#: Bits per stored weight; float32 loses nothing, and 16 bits (float16) next to nothing.
BitsName = Literal["16", "8", "6", "4", "float32"]


def read_bits(name: BitsName) -> int | None:
    return None if name == "float32" else int(name)


Files = Annotated[list[Path] | None, typer.Argument(metavar="FILE…", help="The same as --data FILE.")]
Bits = Annotated[
    BitsName,
    typer.Option("--bits", help="Bits per weight of a model tuned from metrist's own format; few undo small changes."),
]
Licence = Annotated[
    str | None, typer.Option("--licence", help="The licence to name in the card, after those of base and data.")
]
_OWN_FORMAT = "for a base in metrist's own format"
Warmup = Annotated[float, typer.Option("--warmup", help="Share of the steps in which the learning rate rises.")]
WeightDecay = Annotated[float, typer.Option("--weight-decay", help="AdamW's weight decay.")]
Bucket = Annotated[
    int, typer.Option("--bucket", min=1, help="Batches drawn together by length, to reduce padding; 1: none.")
]
CheckpointEvery = Annotated[int, typer.Option("--checkpoint-every", min=1, help="Steps between checkpoints.")]


# ---- Data


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Where a training takes its data from: files, or a run."""

    files: Files = None
    data: Annotated[
        list[Path] | None,
        typer.Option(
            "--data",
            metavar="FILE",
            help="Pairs of a better and a worse answer: prompt, chosen, rejected; or ratings; or a file of `metrist "
            "build pairs`; repeatable.",
        ),
    ] = None
    from_run: Annotated[
        Path | None,
        typer.Option(
            "--from-run",
            metavar="RUN",
            help="Learn what a metric or comparator of this run said, such as an LLM judge.",
        ),
    ] = None
    metric: Annotated[
        str | None,
        typer.Option("-m", "--metric", metavar="SPEC", help="With --from-run: which metric, or part: judge:accuracy."),
    ] = None
    texts: Annotated[
        list[Path] | None,
        typer.Option("--texts", metavar="FILE", help="The records of the run, which stores no texts; repeatable."),
    ] = None

    def paths(self, **only_with_run: object) -> list[Path]:
        """Return the files to train on: none if a run is named. `only_with_run` are further options of a run."""
        if self.from_run is None:
            options = {"metric": self.metric, "texts": self.texts, **only_with_run}
            if unused := next((name for name, value in options.items() if value), None):
                raise SpecError(f"--{unused} is for --from-run RUN")
            return merge_files(self.files, self.data)
        if self.files or self.data:
            raise SpecError("--from-run learns from a run: leave out other files, or give them as --texts")
        return []


@dataclass(frozen=True, kw_only=True)
class SupportDataOptions(DataOptions):
    """The same options for `metrist train consistency`."""

    data: Annotated[
        list[Path] | None,
        typer.Option(
            "--data",
            metavar="FILE",
            help="Outputs with sources, and with ratings of support or errors with their places; repeatable.",
        ),
    ] = None


def merge_files(files: list[Path] | None, data: list[Path] | None) -> list[Path]:
    if not files and not data:
        raise SpecError("no training data is named; give a file: metrist train … FILE")
    return [*(files or []), *(data or [])]


# ---- Training


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
    ] = "linear"
    warmup: Warmup = 0.0
    weight_decay: WeightDecay = 0.0
    clip: Annotated[float, typer.Option("--clip", help="Maximum norm of the gradients; 0: no limit.")] = 1.0
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of order, split and dropout.")] = 0
    dtype: Annotated[
        DtypeName, typer.Option("--dtype", help="Number format to compute in; auto: bfloat16 on GPUs that support it.")
    ] = "auto"
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
        from metrist.train.recipe import Recipe

        defaults = self._choose_defaults(base)
        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(Recipe)}
        values |= {name: value for name, value in defaults.items() if values[name] is None}
        values |= {"schedule": self.schedule, "dtype": self.dtype, "clip": self.clip or None}
        return Recipe(**values)

    def _choose_defaults(self, base: Options) -> Mapping[str, float]:
        from metrist.models.weights import find_weights

        return TUNING if find_weights(base).runs_on_numpy else self._defaults

    def task_settings(self, kind: str, base: Options) -> dict[str, Any]:
        """Return the settings that every task has."""
        return {
            "base": base,
            "out": self.folder(kind),
            "recipe": self.recipe(base),
            "resume": self.resume,
            "checkpoint_every": self.checkpoint_every,
            "keep_checkpoints": self.keep_checkpoints,
        }

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

    def held_out(self) -> str | None:
        """Return the development data that is named, or the usual share; None for none."""
        dev = self.dev or HELD_OUT
        return None if _is_zero(dev) else dev


def _is_zero(text: str) -> bool:
    try:
        return float(text) == 0
    except ValueError:
        return False


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

    def _choose_defaults(self, base: Options) -> Mapping[str, float]:  # noqa: ARG002
        """Every base is one that ships, or was trained from one."""
        from metrist.train.consistency import RECIPE

        return {"epochs": RECIPE.epochs, "batch": RECIPE.batch, "lr": RECIPE.lr}


#: What is trained: a LoRA adapter beside frozen weights, or all weights.
MethodName = Literal["lora", "full"]
#: What is written: an adapter beside the base, a model of its own, or that and a GGUF file.
StoredName = Literal["adapter", "merged", "gguf"]
#: How the prompt is given: through the model's chat template, or bare.
TurnsName = Literal["chat", "none"]


_PRESET = "by the preset"


@dataclass(frozen=True, kw_only=True)
class AnalysisTrainingOptions(TrainingOptions):
    """The same options with the presets of `metrist train error-analysis`."""

    preset: Annotated[
        str,
        typer.Option(
            "--preset",
            metavar="NAME",
            help="Settings that go together: lora, or those of the TIGERScore paper (all weights): tigerscore-7b, "
            "tigerscore-13b.",
        ),
    ] = "lora"
    dev: Annotated[
        str | None,
        typer.Option(
            "--dev",
            metavar="FILE/SHARE",
            help="Held-out analyses: a file, or a share such as 0.1; 0 for none.",
            show_default="0.05",
        ),
    ] = None
    epochs: Annotated[
        int | None, typer.Option("--epochs", min=1, help="Number of passes over the analyses.", show_default=_PRESET)
    ] = None
    batch: Annotated[int | None, typer.Option("--batch", min=1, help="Analyses per update.", show_default=_PRESET)] = (
        None
    )
    lr: Annotated[float | None, typer.Option("--lr", help="Peak learning rate.", show_default=_PRESET)] = None
    schedule: Annotated[
        ScheduleName, typer.Option("--schedule", help="How the learning rate falls after the warm-up.")
    ] = "cosine"
    warmup: Warmup = 0.1
    method: Annotated[
        MethodName | None,
        typer.Option("--method", help="Train an adapter (LoRA) or all weights.", show_default=_PRESET),
    ] = None

    def _choose_defaults(self, base: Options) -> Mapping[str, float]:  # noqa: ARG002
        from metrist.train.error_analysis import find_preset

        recipe = find_preset(self.preset).recipe
        return {"epochs": recipe.epochs, "batch": recipe.batch, "lr": recipe.lr}

    def held_out(self) -> str | None:
        dev = self.dev or "0.05"
        return None if _is_zero(dev) else dev


#: What the trainings of an ablation learn from: one channel each, or one task each, and everything.
AblationName = Literal["channel", "task"]


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """What a trained error analyst is evaluated on."""

    eval_files: Annotated[
        list[Path] | None,
        typer.Option(
            "--eval",
            metavar="FILE",
            help="Records with ratings, errors or references to evaluate the trained analyst on; repeatable.",
        ),
    ] = None
    eval_outputs: Annotated[
        int,
        typer.Option(
            "--eval-outputs",
            metavar="N",
            min=0,
            help="Outputs to analyse of the held-out data and of each file; 0: none.",
        ),
    ] = 200
    compare_base: Annotated[
        bool, typer.Option("--compare-base", help="Evaluate the base with the same prompt, too.")
    ] = False

    def attach(self, task: ErrorAnalysisTask) -> ErrorAnalysisTask:
        """Return the task with this evaluation."""
        from metrist.train.analyst_evaluation import AnalystEvaluation, read_evaluation_set

        if not self.eval_outputs:
            return task
        sets = [read_evaluation_set(path, self.eval_outputs, task.recipe.seed) for path in self.eval_files or ()]
        return replace(
            task, evaluate=AnalystEvaluation(tuple(sets), self.eval_outputs, task.recipe.seed, self.compare_base)
        )
