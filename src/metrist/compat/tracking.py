"""The scores of a run in an experiment tracker: MLflow, Weights & Biases or TensorBoard.

Each gets a number per system and metric with its interval and coverage, the signatures of the metrics, and the report
as a file where it keeps files. Accounts and servers are set as the tracker documents it, such as by
MLFLOW_TRACKING_URI and WANDB_MODE.
"""

from __future__ import annotations

import math
import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from metrist._version import __version__
from metrist.errors import RunError, describe_exception, find_pip, unknown_name
from metrist.run.results import DRAWS, Results, SystemScore

#: What MLflow does not allow in a name.
_FORBIDDEN = re.compile(r"[^\w./ -]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What is logged: the scores of systems, settings such as signatures, files, and the step of a training."""

    scores: Sequence[SystemScore]
    settings: Mapping[str, str]
    files: Sequence[Path] = ()
    step: int | None = None

    @property
    def values(self) -> dict[str, float]:
        """The numbers by name: `chrf`, `chrf.low`, `chrf.high`, `chrf.coverage`; `careful/chrf` of several systems."""
        several = len({score.system for score in self.scores}) > 1
        return {
            f"{score.system}/{name}" if several else name: value
            for score in self.scores
            for name, value in name_numbers(score).items()
        }


def name_numbers(score: SystemScore) -> dict[str, float]:
    """The numbers of a score that are not NaN, by name."""
    named = {"": score.value, ".low": score.low, ".high": score.high, ".coverage": score.coverage}
    return {f"{score.metric}{name}": float(value) for name, value in named.items() if not math.isnan(value)}


def log_to_mlflow(place: str, content: Content) -> str:
    import mlflow

    if place:
        mlflow.set_tracking_uri(place)
    active = mlflow.active_run()
    with nullcontext(active) if active else mlflow.start_run() as run:
        numbers = {_mlflow_name(name): value for name, value in content.values.items()}
        mlflow.log_metrics(numbers, step=content.step)
        # Tags can be set again at each step of a training; parameters cannot.
        mlflow.set_tags({f"metrist.{_mlflow_name(name)}": text for name, text in content.settings.items()})
        for path in content.files:
            mlflow.log_artifact(str(path), "metrist")
    return f"MLflow run {run.info.run_id} of {mlflow.get_tracking_uri()}"


def _mlflow_name(name: str) -> str:
    return re.sub(r"_(?=[./]|$)", "", _FORBIDDEN.sub("_", name))


def log_to_wandb(place: str, content: Content) -> str:
    import wandb

    with nullcontext(wandb.run) if wandb.run else wandb.init(project=place or None, job_type="metrist") as run:
        run.config.update({"metrist": dict(content.settings)}, allow_val_change=True)
        run.log(content.values, step=content.step)
        if content.files:
            artifact = wandb.Artifact(f"metrist-{run.id}", type="report")
            for path in content.files:
                artifact.add_file(str(path))
            run.log_artifact(artifact)
    return f"Weights & Biases run {run.id} in {run.dir}"


def log_to_tensorboard(place: str, content: Content) -> str:
    """Write scalars, a folder per system, so that systems share a chart. TensorBoard keeps no files."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    folder = Path(place or "runs")
    for system in dict.fromkeys(score.system for score in content.scores):
        writer = EventFileWriter(str(folder / re.sub(r"[^\w.-]+", "_", system)))
        numbers = [name_numbers(score) for score in content.scores if score.system == system]
        tagged = [Summary.Value(tag=tag, simple_value=value) for named in numbers for tag, value in named.items()]
        writer.add_event(Event(wall_time=time.time(), step=content.step or 0, summary=Summary(value=tagged)))
        writer.close()
    return f"TensorBoard folder {folder}"


#: What logs content to a server, a project or a folder, and tells where it is. Of an empty place, the tracker's own
#: settings decide.
TRACKERS: Mapping[str, Callable[[str, Content], str]] = {
    "mlflow": log_to_mlflow,
    "wandb": log_to_wandb,
    "tensorboard": log_to_tensorboard,
}


def check_trackers(trackers: Sequence[str]) -> None:
    """Refuse trackers that are unknown or not installed."""
    for text in trackers:
        name = text.partition(":")[0]
        if name not in TRACKERS:
            raise unknown_name("tracker", name, TRACKERS)
        if find_spec(name) is None:
            raise RunError(
                f"logging to {name} needs its package: {find_pip()} install {name}", code="missing_dependency"
            )


def log_results(
    results: Results,
    *trackers: str,
    step: int | None = None,
    report: bool = True,
    draws: int = DRAWS,
    seed: int = 0,
) -> list[str]:
    """Log results to `mlflow`, `mlflow:URI`, `wandb`, `wandb:PROJECT`, `tensorboard` or `tensorboard:FOLDER`, and tell
    where they are. `step` is the step of a training; without `report`, no page is made."""
    check_trackers(trackers)
    settings = {"version": __version__, **results.signatures}
    scores = results.system_scores(draws=draws, seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        files = []
        if report:
            from metrist.evaluate.report import build_report

            page = Path(folder, "report.html")
            page.write_text(build_report(results, seed=seed).html(), encoding="utf-8")
            files.append(page)
        content = Content(scores=scores, settings=settings, files=files, step=step)
        places = []
        for text in trackers:
            name, _, place = text.partition(":")
            try:
                places.append(TRACKERS[name](place, content))
            except Exception as error:  # Each tracker has exceptions of its own.
                raise RunError(f"cannot log to {text}: {describe_exception(error)}") from error
    return places
