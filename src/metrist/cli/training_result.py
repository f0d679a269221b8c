"""A training carried out, with its progress and its result told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metrist.cli.output import remark, say
from metrist.cli.training_progress import training_progress

if TYPE_CHECKING:
    from metrist.train.watching import Watcher


def carry_out(work: Callable[[Watcher], dict[str, Any]], out: Path) -> None:
    """Train while the terminal shows how far it is; `work` gives the card."""
    from metrist.train.ranks import is_first_process

    try:
        with training_progress() as watcher:
            card = work(watcher)
    except KeyboardInterrupt as stop:
        if str(stop) and is_first_process():  # A checkpoint was written; Ctrl-C before the first step says nothing.
            remark(f"{stop}; the same command goes on from there")
        raise
    if is_first_process():
        _tell_result(card, out)


def _tell_result(card: dict[str, Any], out: Path) -> None:
    figures = card["figures"]
    if figures:
        say(f"{figures['name']} of the development pairs: {figures['before']:.4f} before, {figures['after']:.4f} after")
        _tell_criteria(card["data"].get("criteria", {}), figures.get("by_criterion", {}))
    say(f"trained in {card['training']['seconds']:,} s: {out} (fingerprint {card['fingerprint']})")
    say(f'use it: metrist score … -m "{card["metric"]}"')


def _tell_criteria(criteria: dict[str, Any], figures: dict[str, float]) -> None:
    if len(figures) < 2:
        return
    width = max(map(len, figures))
    for name, figure in figures.items():
        say(f"  {name:{width}}  {figure:.4f}  {criteria[name]['development_pairs']:,} pairs")
