"""Options of `metrist train`: where the data comes from, and how a metric is trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import typer

from metrist.errors import SpecError
from metrist.settings import ReadingSettings, as_arguments, list_changed, reuse_setting, select_arguments, setting
from metrist.train import HELD_OUT, TUNING
from metrist.train.recipe import Recipe, RecipeSettings, Schedule

if TYPE_CHECKING:
    from metrist.models.devices import Options
    from metrist.train.error_analysis import ErrorAnalysisTask


#: Which side of a long context is kept.
KeepName = Literal["end", "start", "both"]
#: Bits per stored weight; float32 loses nothing, and 16 bits (float16) next to nothing.
BitsName = Literal["16", "8", "6", "4", "float32"]


def read_bits(name: BitsName) -> int | None:
    return None if name == "float32" else int(name)


BITS_HELP = "Bits per weight of a model tuned from metrist's own format; few undo small changes."
Files = Annotated[list[Path] | None, typer.Argument(metavar="FILE…", help="The same as --data FILE.")]


def _by_base(name: str, defaults: Mapping[str, float]) -> Any:
    """Declare a setting of the recipe whose default depends on the base."""
    shown = f"{defaults[name]:g}; {TUNING[name]:g} for a base in metrist's own format"
    return reuse_setting(RecipeSettings, name, shown=shown)


# ---- Data


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Where a training takes its data from: files, or a run."""

    data: list[Path] | None = setting(
        None,
        "Pairs of a better and a worse answer: prompt, chosen, rejected; or ratings; or a file of `metrist "
        "build pairs`; repeatable.",
        metavar="FILE",
    )
    from_run: Path | None = setting(
        None, "Learn what a metric or comparator of this run said, such as an LLM judge.", metavar="RUN"
    )
    metric: str | None = setting(None, "With --from-run: which metric, or part: judge:accuracy.", "-m", metavar="SPEC")
    texts: list[Path] | None = setting(
        None, "The records of the run, which stores no texts; repeatable.", metavar="FILE"
    )

    def paths(self, files: list[Path] | None, reading: ReadingSettings, **only_with_run: object) -> list[Path]:
        """Return the files to train on: none if a run is named. `only_with_run` are further options of a run."""
        if self.from_run is None:
            options = {"metric": self.metric, "texts": self.texts, **only_with_run}
            if unused := next((name for name, value in options.items() if value), None):
                raise SpecError(f"--{unused} is for --from-run RUN", code="conflict")
            return merge_files(files, self.data)
        if files or self.data:
            raise SpecError(
                "--from-run learns from a run: leave out other files, or give them as --texts", code="conflict"
            )
        if changed := list_changed(reading):
            raise SpecError(f"`{changed[0]}` is for files, and --from-run learns from a run", code="conflict")
        return []


@dataclass(frozen=True, kw_only=True)
class SupportDataOptions(DataOptions):
    """The same options for `metrist train consistency`."""

    data: list[Path] | None = reuse_setting(
        DataOptions,
        "data",
        help="Outputs with sources, and with ratings of support or errors with their places; repeatable.",
    )


def merge_files(files: list[Path] | None, data: list[Path] | None) -> list[Path]:
    if not files and not data:
        raise SpecError("no training data is named; give a file: metrist train … FILE", code="missing_value")
    from metrist.io.rows import open_source

    paths = [*(files or []), *(data or [])]
    for path in paths:
        open_source(path)  # A file that does not exist is told before anything else that is missing.
    return paths


# ---- Training


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(RecipeSettings):
    """Options of every training, with the defaults of `metrist train likelihood`."""

    _defaults: ClassVar[Mapping[str, float]] = {"epochs": 1, "batch": 20, "lr": 5e-5}
    #: The share of the data that is held out where `dev` says nothing.
    _share: ClassVar[str] = HELD_OUT
    epochs: int | None = _by_base("epochs", _defaults)
    batch: int | None = _by_base("batch", _defaults)
    out: Path | None = setting(None, "The folder for the trained model.", "-o", metavar="DIR", shown="my-KIND")
    dev: str | None = setting(
        None,
        "Development pairs: a file, or a share such as 0.05; 0 for none.",
        metavar="FILE/SHARE",
        shown="0.2 for a base in metrist's own format",
    )
    checkpoint_every: int = setting(500, "Steps between checkpoints.", min=1)
    keep_checkpoints: bool = setting(False, "Do not delete the last checkpoints at the end.")
    resume: bool = setting(False, "Only continue a training that was stopped; never start one.")
    revision: str | None = setting(None, "The base model's revision on the hub.")
    trust_remote_code: bool = setting(False, "Run Python code that comes with the base model.")
    dry_run: bool = setting(False, "Describe the training data and steps, and stop.")

    def recipe(self, base: Options) -> Recipe:
        """Return the recipe, with defaults that depend on the base."""
        defaults = self._choose_defaults(base)
        values = select_arguments(Recipe, as_arguments(self))
        return Recipe(**values | {name: value for name, value in defaults.items() if values[name] is None})

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
        dev = self.dev or self._share
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
    epochs: int | None = _by_base("epochs", _defaults)
    batch: int | None = _by_base("batch", _defaults)
    lr: float | None = _by_base("lr", _defaults)
    warmup: float = 0.1
    weight_decay: float = 0.01
    bucket: int = 20
    checkpoint_every: int = 1_000


@dataclass(frozen=True, kw_only=True)
class ConsistencyTrainingOptions(TrainingOptions):
    """The same options with the defaults of `metrist train consistency`."""

    dev: str | None = reuse_setting(
        TrainingOptions,
        "dev",
        help="Development data: a file, or a share of the sources such as 0.1; 0 for none.",
        shown=HELD_OUT,
    )
    epochs: int | None = reuse_setting(RecipeSettings, "epochs", help="Number of passes over the outputs.", shown="3")
    batch: int | None = reuse_setting(RecipeSettings, "batch", help="Outputs per update.", shown="16")
    lr: float | None = reuse_setting(RecipeSettings, "lr", shown="3e-05")
    warmup: float = 0.1
    weight_decay: float = 0.01
    bucket: int = 20

    def _choose_defaults(self, base: Options) -> Mapping[str, float]:  # noqa: ARG002
        """Every base is one that ships, or was trained from one."""
        from metrist.train.consistency import RECIPE

        return {"epochs": RECIPE.epochs, "batch": RECIPE.batch, "lr": RECIPE.lr}


#: What is trained: a LoRA adapter beside frozen weights, or all weights.
MethodName = Literal["lora", "full"]


_PRESET = "by the preset"


@dataclass(frozen=True, kw_only=True)
class AnalysisTrainingOptions(TrainingOptions):
    """The same options with the presets of `metrist train error-analysis`."""

    _share: ClassVar[str] = "0.05"
    preset: str = setting(
        "lora",
        "Settings that go together: lora, or those of the TIGERScore paper (all weights): tigerscore-7b, "
        "tigerscore-13b.",
        metavar="NAME",
    )
    dev: str | None = reuse_setting(
        TrainingOptions, "dev", help="Held-out analyses: a file, or a share such as 0.1; 0 for none.", shown=_share
    )
    epochs: int | None = reuse_setting(
        RecipeSettings, "epochs", help="Number of passes over the analyses.", shown=_PRESET
    )
    batch: int | None = reuse_setting(RecipeSettings, "batch", help="Analyses per update.", shown=_PRESET)
    lr: float | None = reuse_setting(RecipeSettings, "lr", shown=_PRESET)
    schedule: Schedule = "cosine"
    warmup: float = 0.1
    method: MethodName | None = setting(None, "Train an adapter (LoRA) or all weights.", shown=_PRESET)

    def _choose_defaults(self, base: Options) -> Mapping[str, float]:  # noqa: ARG002
        from metrist.train.error_analysis import find_preset

        recipe = find_preset(self.preset).recipe
        return {"epochs": recipe.epochs, "batch": recipe.batch, "lr": recipe.lr}


#: What the trainings of an ablation learn from: one channel each, or one task each, and everything.
AblationName = Literal["channel", "task"]


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """What a trained error analyst is evaluated on."""

    eval_files: list[Path] | None = setting(
        None,
        "Records with ratings, errors or references to evaluate the trained analyst on; repeatable.",
        "--eval",
        metavar="FILE",
    )
    eval_outputs: int = setting(
        200, "Outputs to analyse of the held-out data and of each file; 0: none.", metavar="N", min=0
    )
    compare_base: bool = setting(False, "Evaluate the base with the same prompt, too.")

    def attach(self, task: ErrorAnalysisTask) -> ErrorAnalysisTask:
        """Return the task with this evaluation."""
        from metrist.train.analyst_evaluation import AnalystEvaluation, read_evaluation_set

        if not self.eval_outputs:
            return task
        sets = [read_evaluation_set(path, self.eval_outputs, task.recipe.seed) for path in self.eval_files or ()]
        return replace(
            task, evaluate=AnalystEvaluation(tuple(sets), self.eval_outputs, task.recipe.seed, self.compare_base)
        )
