"""Run a training and print its plan and its result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metrist.cli.output import format_count, print_note, print_text
from metrist.cli.progress import training_progress

if TYPE_CHECKING:
    from metrist.train.task import TrainingPlan, TrainingTask


def describe_plan(plan: TrainingPlan, epochs: int, noun: str = "pair") -> list[str]:
    lengths = plan.train.lengths
    each = f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
    title = "held-out analyses" if noun == "analysis" else f"development {noun}s"
    return [
        f"{title:18} {len(plan.dev) if plan.dev else 0:,}",
        f"steps              {plan.steps:,} ({format_count(epochs, 'epoch')} of {plan.steps // epochs:,})",
        f"tokens             {int(lengths.sum()):,} an epoch; {lengths.mean():.0f} {each}, at most {lengths.max():,}",
    ]


def print_plan(notes: Iterable[str], *lines: str) -> None:
    for note in notes:
        print_note(note)
    for line in lines:
        print_text(line)


def run_training(task: TrainingTask, notes: Iterable[str] = ()) -> None:
    """Train with progress on the terminal, then print the figures and how to use the model."""
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
    figures = card["figures"]
    if figures:
        before, after = figures["before"], figures["after"]
        data = {"consistency": "outputs", "error-analysis": "analyses"}.get(card["kind"], "pairs")
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
            f"{figures['trained']:.4f}; more bits, or a higher --lr, keep more of the training"
        )
    if figures and after <= before:
        print_note(
            f"warning: on the development {data}, the trained model is {'no better' if after == before else 'worse'} "
            f"than {card['base']['model']}; go on using that one, or try more {data}, fewer --epochs or a lower --lr"
        )
    for part in (figures or {}, card.get("agreement", {}), card.get("evaluation", {})):
        for remark in part.get("remarks", ()):
            print_note(remark)
    print_text(f'use it: metrist score … -m "{card["metric"]}"')


def _print_agreement(agreement: Mapping[str, Any]) -> None:
    """Print how far the metric, its base and length agree with the judge, and in short how far all of them do with
    people; the card has more."""
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
