"""The card of a trained metric: base, data, recipe and figures, as JSON and as a Markdown page (`card.md.jinja`)."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from metrist._version import __version__
from metrist.errors import format_count
from metrist.models.weights import Weights
from metrist.train.analyst_evaluation import summarise
from metrist.train.distributed import ProcessGroup
from metrist.train.task import TrainingTask

if TYPE_CHECKING:
    from metrist.train.loop import TrainingOutcome

_LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "accelerate", "numpy")


def make_card(
    task: TrainingTask,
    base: Weights,
    facts: Mapping[str, Any],
    *,
    figure: str,
    outcome: TrainingOutcome,
    processes: ProcessGroup,
) -> dict[str, Any]:
    """Collect what is known about a finished training. `facts` are those of `TrainingTask.publish`; `figure` is the
    name of the development figure."""
    figures = None
    if outcome.best is not None:
        figures = {
            "name": figure,
            "before": outcome.before,
            "after": outcome.best.figure,
            "after_step": outcome.best.step,
            **({"trained": outcome.best.figure, **facts["stored"]} if facts.get("stored") else {}),
            **({"by_criterion": facts["by_criterion"]} if facts.get("by_criterion") is not None else {}),
            **({"new_head": True} if facts.get("new_head") else {}),
            "evaluations": [asdict(evaluation) for evaluation in outcome.evaluations],
        }
        if worse := compare_with_base(task.kind, task.base.model, figures):
            figures["remarks"] = [worse, *figures.get("remarks", ())]
    return {
        "kind": task.kind,
        "metric": facts["metric"],
        "fingerprint": task.fingerprint(),
        "base": {"model": task.base.model, "revision": task.base.revision, "fingerprint": base.fingerprint},
        "data": facts["data"],
        "recipe": {**asdict(task.recipe), **(facts.get("choices") or {})},
        "figures": figures,
        **{name: facts[name] for name in ("agreement", "evaluation") if facts.get(name)},
        "training": {
            "steps": outcome.steps,
            "planned_steps": outcome.planned,
            "tokens": outcome.tokens,
            "seconds": round(outcome.seconds, 1),
            "last_loss": outcome.loss,
            "device": processes.device,
            "processes": processes.world,
        },
        "licence": facts.get("licence"),
        "versions": _collect_versions(),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }


#: What the development data of a kind of training are; of others, pairs.
DEVELOPMENT_DATA = {"consistency": "outputs", "error-analysis": "analyses"}


def compare_with_base(kind: str, base: str, figures: Mapping[str, Any]) -> str | None:
    """Return a warning if the trained model is not better than its base on the development data; None if it is."""
    before, after = figures["before"], figures["after"]
    worse = []
    if after <= before:
        first = " with a new head" if figures.get("new_head") else ""
        change = f"is still {after:.4f}" if after == before else f"fell from {before:.4f}{first} to {after:.4f}"
        worse.append(f"the {figures['name']} {change}")
    for name, judges in (("agreement", "the labels"), ("people", "people's ratings")):
        own, other = figures.get(f"{name}_model"), figures.get(f"{name}_base")
        if other is not None and (own is None or own < other):
            shown = "none, as all scores are equal" if own is None else f"{own:.3f}"
            worse.append(f"Spearman's correlation with {judges} fell from {other:.3f} to {shown}")
    if not worse:
        return None
    data, rival = DEVELOPMENT_DATA.get(kind, "pairs"), figures.get("compared_with", base)
    return (
        f"warning: on the development {data}, the trained model is no better than {rival}: {'; '.join(worse)}. Go on "
        f"using that one, or try more {data}, fewer epochs or a lower learning rate"
    )


def _collect_versions() -> dict[str, str]:
    versions = {"metrist": __version__, "python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def render_card(card: Mapping[str, Any]) -> str:
    """Render a card as a Markdown page."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("metrist.train", "."),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "cell": _format_cell,
        "count": format_count,
        "estimate": format_estimate,
        "summary": summarise,
    }
    data = card["data"]
    accuracies = (card["figures"] or {}).get("by_criterion") or {}
    criteria = [
        {"criterion": name, **facts, "dev_accuracy": f"{accuracies[name]:.4f}" if name in accuracies else ""}
        for name, facts in data.get("criteria", {}).items()
    ]
    return environment.get_template("card.md.jinja").render(
        {"agreement": None, "evaluation": None, **card},
        files=[*data.get("files", ()), *filter(None, [data.get("dev_file")])],
        criteria=criteria,
        counts={name: value for name, value in data.items() if name not in ("files", "dev_file", "criteria")},
    )


def _format_cell(value: Any) -> str:
    return "" if value is None else str(value).replace("|", "\\|")


def format_estimate(row: Mapping[str, Any], name: str) -> str:
    """Format a figure of an agreement with its interval."""
    if row[name] is None:
        return "n/a"
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    return f"{row[name]:.3f}" + ("" if low is None or high is None else f" [{low:.3f}, {high:.3f}]")
