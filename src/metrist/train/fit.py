"""Train any task: resolve the recipe, lock the folder, run or resume the loop, publish the model and its card."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metrist._version import __version__
from metrist.errors import RunError, format_count
from metrist.models.devices import Options, Placement, import_torch, resolve_placement
from metrist.models.numpy_inference import storage
from metrist.models.numpy_inference.export import restore_transformers
from metrist.models.weights import Weights, find_weights
from metrist.runtime import Runtime
from metrist.train.analyst_evaluation import render_evaluation
from metrist.train.checkpoints import Checkpoints
from metrist.train.distributed import ProcessGroup, join_processes
from metrist.train.folder import TrainingFolder, lock_folder
from metrist.train.recipe import Recipe
from metrist.train.task import NoCallback, TrainingCallback, TrainingPlan, TrainingTask

if TYPE_CHECKING:
    from metrist.train.loop import TrainingOutcome

#: Data that has its own table, or is part of one.
_OWN_TABLES = {"files", "dev_file", "criteria"}
_LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "accelerate", "numpy")
#: What the development figure says about a metric, and what it does not.
_MEANING = {
    "likelihood": "It says how well the model\npredicts such texts, not how well its scores agree with people: "
    "`metrist meta` measures that.",
    "preference": "It is the share of pairs\nwhose better answer has the higher score; a coin gets 0.5.",
    "error-analysis": "It says how\nwell the model predicts such analyses; whether they are right, only an evaluation "
    "says.",
    "consistency": "Labels of 0 and 1\nthat are guessed as 0.5 get 0.5.",
}


def fit(
    task: TrainingTask, callback: TrainingCallback | None = None, *, runtime: Runtime | None = None
) -> dict[str, Any]:
    """Train, or resume a stopped training, and return its card; a finished training is not repeated. `task.out` then
    contains the model, its tokenizer and the card."""
    import_torch(f"training a {task.kind} metric")
    placement = resolve_placement(task.base, runtime)
    processes = join_processes(str(placement.device))
    try:
        task = replace(task, recipe=task.recipe.resolve(processes.device, placement.tokens))
        with open_base(task.base) as weights:
            return _fit(task, weights, processes, callback if callback and processes.is_first else NoCallback())
    finally:
        processes.leave()


def plan_training(task: TrainingTask, *, runtime: Runtime | None = None) -> TrainingPlan:
    """Read and tokenize all data and run all checks, but load no weights and write nothing."""
    import_torch(f"training a {task.kind} metric")
    placement = resolve_placement(task.base, runtime)
    task = replace(task, recipe=task.recipe.resolve(str(placement.device), placement.tokens))
    with open_base(task.base) as weights:
        data = task.load_data()
        _open_folder(task, task.identity(weights, data))
        return task.plan(weights, data)


@contextmanager
def open_base(options: Options) -> Iterator[Weights]:
    """Find the base model. One in metrist's own format is unpacked for transformers into a temporary folder (a text
    encoder is not: its task reads it); its weights still say `runs_on_numpy`, and its training ends in the same
    format."""
    weights = find_weights(options)
    if not weights.runs_on_numpy or weights.config.get("architecture") == storage.TEXT_ENCODER:
        yield weights
        return
    with tempfile.TemporaryDirectory(prefix="metrist-base-") as temporary:
        folder = restore_transformers(weights.folder, Path(temporary))
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        yield replace(weights, folder=folder, config=config)


def training_placement(processes: ProcessGroup) -> Placement:
    """Return where a model is trained: on this process's device, in float32."""
    import torch

    return Placement(device=torch.device(processes.device), dtype=torch.float32, tokens=1)


def _fit(task: TrainingTask, weights: Weights, processes: ProcessGroup, callback: TrainingCallback) -> dict[str, Any]:
    from metrist.train.loop import Trainer

    data = task.load_data()
    with _claim_folder(task, task.identity(weights, data), processes, callback) as card:
        if card is not None:
            callback.on_message(f"{task.out} is already finished; nothing was trained")
            return card
        folder = TrainingFolder(task.out)
        plan = task.plan(weights, data)
        for remark in plan.remarks():
            callback.on_message(remark)
        learner = task.build(weights, plan, training_placement(processes))
        trainer = Trainer(
            model=learner.model,
            objective=learner.objective,
            examples=plan.train,
            dev=plan.dev,
            sampler=plan.sampler,
            recipe=task.recipe,
            checkpoints=Checkpoints(folder.checkpoints, every=task.checkpoint_every),
            processes=processes,
            callback=callback,
            rates=learner.rates,
        )
        outcome = trainer.run()
        if processes.is_first:
            facts = task.publish(weights, data, plan, trainer, folder)
            card = _make_card(
                kind=task.kind,
                fingerprint=task.fingerprint(),
                base={"model": task.base.model, "revision": task.base.revision, "fingerprint": weights.fingerprint},
                figure=learner.objective.figure,
                recipe=task.recipe,
                outcome=outcome,
                processes=processes,
                **facts,
            )
            folder.put_card(card, _render_card(card))
            if not task.keep_checkpoints:
                trainer.checkpoints.remove()
        processes.wait()
        return folder.card() or {}


def _open_folder(task: TrainingTask, identity: Mapping[str, Any]) -> TrainingFolder:
    """Check that this training may start or resume in its folder; write nothing."""
    folder = TrainingFolder(task.out)
    if task.resume and not folder.is_begun:
        raise RunError(f"{task.out} has no training to resume; leave out `resume` to start one")
    folder.check(identity)
    return folder


@contextmanager
def _claim_folder(
    task: TrainingTask, identity: Mapping[str, Any], processes: ProcessGroup, callback: TrainingCallback
) -> Iterator[dict[str, Any] | None]:
    """Lock the folder and store the task's identity in it; yield the card of a finished training."""
    folder = _open_folder(task, identity)
    card = folder.card()
    processes.wait()  # All processes read the folder before the first one writes to it.
    if card is not None:
        yield card  # Nothing is written, so the folder need not be writable.
        return
    with lock_folder(task.out, processes):
        folder.check(identity)  # Again: another process may have trained here before we had the lock.
        card = folder.card()
        if card is None and folder.is_begun and not Checkpoints(folder.checkpoints).steps():
            callback.on_message(f"{task.out} has no checkpoint yet: starting from the beginning")
        processes.wait()
        if card is None and processes.is_first:
            folder.begin(identity)
        yield card


# ---- The card: data, recipe and results of a trained metric


def _make_card(
    *,
    kind: str,
    metric: str,
    fingerprint: str,
    base: Mapping[str, Any],
    data: Mapping[str, Any],
    figure: str,
    recipe: Recipe,
    outcome: TrainingOutcome,
    processes: ProcessGroup,
    choices: Mapping[str, Any] | None = None,
    stored: Mapping[str, Any] | None = None,
    by_criterion: Mapping[str, float] | None = None,
    agreement: Mapping[str, Any] | None = None,
    evaluation: Mapping[str, Any] | None = None,
    licence: str | None = None,
) -> dict[str, Any]:
    """Collect the facts about a finished training for JSON. `metric` is the metric to score with; `choices` are
    settings besides the recipe; `stored` are figures of the model as it was written, where that rounds its weights;
    `agreement` is that with the judge whose scores were learned, `evaluation` what an error analyst finds in held-out
    data."""
    return {
        "kind": kind,
        "metric": metric,
        "fingerprint": fingerprint,
        "base": dict(base),
        "data": dict(data),
        "recipe": {**asdict(recipe), **(choices or {})},
        "figures": _collect_figures(figure, outcome, stored, by_criterion),
        **({"agreement": dict(agreement)} if agreement else {}),
        **({"evaluation": dict(evaluation)} if evaluation else {}),
        "training": {
            "steps": outcome.steps,
            "planned_steps": outcome.planned,
            "tokens": outcome.tokens,
            "seconds": round(outcome.seconds, 1),
            "last_loss": outcome.loss,
            "device": processes.device,
            "processes": processes.world,
        },
        "licence": licence,
        "versions": _collect_versions(),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _render_card(card: Mapping[str, Any]) -> str:
    """Render the card as a Markdown page."""
    blocks = [
        f"# {card['metric']}",
        f"{'An' if card['kind'][0] in 'aeiou' else 'A'} {card['kind']} metric, fine-tuned with metrist from "
        f"`{card['base']['model']}` "
        f"(fingerprint {card['base']['fingerprint']}). Its own fingerprint is {card['fingerprint']}.",
        "## Figures",
        "\n".join(_figure_lines(card["figures"], card["kind"])),
        *(_agreement_blocks(card["agreement"]) if "agreement" in card else ()),
        *(render_evaluation(card["evaluation"]) if "evaluation" in card else ()),
        "## Data",
        *_data_blocks(card["data"], (card["figures"] or {}).get("by_criterion") or {}),
        "## Recipe",
        _table(("setting", "value"), [(name, _cell(value)) for name, value in card["recipe"].items()]),
        "## Training",
        _table(("", ""), [(name.replace("_", " "), _cell(value)) for name, value in card["training"].items()]),
        *([f"Licence: {card['licence']}"] if card["licence"] else []),
        f"Finished {card['finished']}, with " + ", ".join(f"{k} {v}" for k, v in card["versions"].items()) + ".",
    ]
    return "\n\n".join(blocks) + "\n"


def _collect_figures(
    name: str,
    outcome: TrainingOutcome,
    stored: Mapping[str, Any] | None,
    by_criterion: Mapping[str, float] | None,
) -> dict[str, Any] | None:
    if outcome.best is None:
        return None
    return {
        "name": name,
        "before": outcome.before,
        "after": outcome.best.figure,
        "after_step": outcome.best.step,
        **({"trained": outcome.best.figure, **stored} if stored else {}),
        **({} if by_criterion is None else {"by_criterion": dict(by_criterion)}),
        "evaluations": [asdict(evaluation) for evaluation in outcome.evaluations],
    }


def _figure_lines(figures: Mapping[str, Any] | None, kind: str) -> Iterator[str]:
    if figures is None:
        yield "There was no development data, so it is unknown whether training improved the metric."
        return
    yield f"{figures['name'].capitalize()} of the development data: {figures['before']:.4f} before training,"
    yield f"{figures['after']:.4f} after it (weights of step {figures['after_step']:,}). {_MEANING.get(kind, '')}"
    if "longer_is_better" in figures:
        yield f"The longer answer is the better one in {figures['longer_is_better']:.4f} of the pairs."
    yield from (f"{remark[0].upper()}{remark[1:]}." for remark in figures.get("remarks", ()))


def _agreement_blocks(agreement: Mapping[str, Any]) -> Iterator[str]:
    yield "## Agreement on held-out items"
    yield (
        f"On {format_count(agreement['items'], 'item')} with {format_count(agreement['outputs'], 'output')} that share "
        "no text with the training data. The best epoch was chosen\non them, so the figures of this metric are a "
        "little too good. Accuracy is the share of pairs in the target's order (equal scores are half right);\n"
        + (
            "both it and Spearman's correlation compare outputs of different items."
            if agreement["across_items"]
            else "Spearman's correlation is the mean over items (0 if all scores are equal); 95 % intervals over items."
        )
    )
    for target in dict.fromkeys(row["target"] for row in agreement["rows"]):
        yield f"Agreement with {'the judge, ' if target == agreement['judge'] else ''}{target}:"
        rows = [
            (
                _cell(row["scorer"]),
                f"{row['pairs']:,}",
                format_estimate(row, "accuracy"),
                format_estimate(row, "spearman"),
            )
            for row in agreement["rows"]
            if row["target"] == target
        ]
        yield _table(("scorer", "pairs", "accuracy", "Spearman"), rows)
    yield from (f"{remark[0].upper()}{remark[1:]}." for remark in agreement.get("remarks", ()))
    yield "## Cost"
    facts = agreement["cost"].items()
    yield _table(
        ("", ""), [(name.replace("_", " "), "unknown" if value is None else _cell(value)) for name, value in facts]
    )


def format_estimate(row: Mapping[str, Any], name: str) -> str:
    """Format a figure of an agreement with its interval."""
    if row[name] is None:
        return "n/a"
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    return f"{row[name]:.3f}" + ("" if low is None or high is None else f" [{low:.3f}, {high:.3f}]")


def _data_blocks(data: Mapping[str, Any], by_criterion: Mapping[str, float]) -> Iterator[str]:
    files = [*data.get("files", ()), *([data["dev_file"]] if data.get("dev_file") else [])]
    if files:
        yield _table_of_rows(files)
    if data.get("criteria"):
        rows = []
        for name, facts in data["criteria"].items():
            accuracy = f"{by_criterion[name]:.4f}" if name in by_criterion else ""
            rows.append({"criterion": name, **facts, "dev_accuracy": accuracy})
        yield _table_of_rows(rows)
    counts = [(name.replace("_", " "), _cell(value)) for name, value in data.items() if name not in _OWN_TABLES]
    yield _table(("", ""), counts)


def _table_of_rows(rows: Sequence[Mapping[str, Any]]) -> str:
    names = list(rows[0])
    return _table([name.replace("_", " ") for name in names], [[_cell(row[name]) for name in names] for row in rows])


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(value: Any) -> str:
    return "" if value is None else str(value).replace("|", "\\|")


def _collect_versions() -> dict[str, str]:
    versions = {"metrist": __version__, "python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
