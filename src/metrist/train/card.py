"""The card of a trained metric: its data, its recipe and its results."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from metrist._version import __version__
from metrist.train.distributed import ProcessGroup
from metrist.train.recipe import Recipe

if TYPE_CHECKING:
    from metrist.train.loop import TrainingOutcome

#: Data that has its own table, or is part of one.
_OWN_TABLES = {"files", "dev_file", "criteria"}
_LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "accelerate", "numpy")


def make_card(
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
    by_criterion: Mapping[str, float] | None = None,
    licence: str | None = None,
) -> dict[str, Any]:
    """Collect the facts about a finished training for JSON. `metric` is the metric to score with; `choices` are
    settings besides the recipe."""
    return {
        "kind": kind,
        "metric": metric,
        "fingerprint": fingerprint,
        "base": dict(base),
        "data": dict(data),
        "recipe": {**asdict(recipe), **(choices or {})},
        "figures": _collect_figures(figure, outcome, by_criterion),
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


def render_card(card: Mapping[str, Any]) -> str:
    """Render the card as a Markdown page."""
    blocks = [
        f"# {card['metric']}",
        f"A {card['kind']} metric, fine-tuned with metrist from `{card['base']['model']}` "
        f"(fingerprint {card['base']['fingerprint']}). Its own fingerprint is {card['fingerprint']}.",
        "## Figures",
        "\n".join(_figure_lines(card["figures"], card["kind"])),
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
    name: str, outcome: TrainingOutcome, by_criterion: Mapping[str, float] | None
) -> dict[str, Any] | None:
    if outcome.best is None:
        return None
    return {
        "name": name,
        "before": outcome.before,
        "after": outcome.best.figure,
        "after_step": outcome.best.step,
        **({} if by_criterion is None else {"by_criterion": dict(by_criterion)}),
        "evaluations": [asdict(evaluation) for evaluation in outcome.evaluations],
    }


#: What the development figure says about a metric, and what it does not.
_MEANING = {
    "likelihood": "It says how well the model\npredicts such texts, not how well its scores agree with people: "
    "`metrist meta` measures that.",
    "preference": "It is the share of pairs\nwhose better answer has the higher score; a coin gets 0.5.",
}


def _figure_lines(figures: Mapping[str, Any] | None, kind: str) -> Iterator[str]:
    if figures is None:
        yield "There was no development data, so it is unknown whether training improved the metric."
        return
    yield f"{figures['name'].capitalize()} of the development data: {figures['before']:.4f} before training,"
    yield f"{figures['after']:.4f} after it (weights of step {figures['after_step']:,}). {_MEANING[kind]}"


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
