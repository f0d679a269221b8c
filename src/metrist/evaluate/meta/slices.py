"""The slices of one aspect: each with its own best systems, small ones left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from metrist.errors import RunError
from metrist.evaluate.meta.dataset import ALL, JudgedDataset, Slice, make_slices, select_outputs, system_means
from metrist.evaluate.plans import MetaPlan
from metrist.stats import Codes, Floats
from metrist.stats.significance import best_first

_MAX_LISTED = 8


class ChosenSlices(NamedTuple):
    """The slice of all outputs, then those of the plan's columns; and what was done to them."""

    slices: list[Slice]
    notes: list[str]


def rated_slices(dataset: JudgedDataset, plan: MetaPlan, aspect: str, gold: Floats, outputs: Codes) -> ChosenSlices:
    """Return the slices of the outputs that take part; those of columns have their own best systems."""
    whole = Slice(name=ALL, outputs=outputs)
    if plan.top_k is not None:
        outputs = select_outputs(dataset, systems=plan.systems, exclude_systems=plan.exclude_systems)

    def rank(members: Codes) -> list[int]:
        return best_first(system_means(dataset, gold, members))

    def keep(members: Codes, systems: Sequence[int]) -> Codes:
        return members[np.isin(dataset.systems.codes[members], systems)]

    def count(members: Codes) -> int:
        return int(np.isfinite(gold[members]).sum())

    slices = [whole, *make_slices(dataset, plan.slices, outputs)[1:]]
    return limit_slices(plan, slices, rank, keep, count, "rated outputs", aspect if len(plan.aspects) > 1 else "")


def limit_slices(
    plan: MetaPlan,
    slices: Sequence[Slice],
    rank: Callable[[Codes], list[int]],
    keep: Callable[[Codes, Sequence[int]], Codes],
    count: Callable[[Codes], int],
    unit: str,
    aspect: str = "",
) -> ChosenSlices:
    """Keep the best systems of each slice but the first, which has them already; then leave out small slices.

    `rank` gives the systems of a slice's members, best first, `keep` its members that are of these systems only, and
    `count` how many of them people judged; `aspect` is named in notes.
    """
    if plan.top_k is None and not plan.min_samples:
        return ChosenSlices(list(slices), [])
    whole, *others = slices
    kept, small, short = list[Slice](), list[str](), list[str]()
    for part in others:
        members = part.outputs
        if plan.top_k is not None:
            ranked = rank(members)
            members = keep(members, ranked[: plan.top_k])
            if len(ranked) < plan.top_k:
                short.append(f"{part.name} ({len(ranked)})")
        size = count(members)
        if size < max(1, plan.min_samples):
            small.append(f"{part.name} ({size:,})")
        else:
            kept.append(replace(part, outputs=members))
    if max(count(part.outputs) for part in kept or [whole]) < plan.min_samples or (others and not kept):
        raise RunError(
            f"no slice has {plan.min_samples or 1:,} {unit} or more: lower `min_samples`", code="too_little_data"
        )
    if not count(whole.outputs):
        small.insert(0, f"{whole.name} (0)")
    notes, about = [], f"{aspect}: " if aspect else ""
    if small:
        few = f"fewer than {plan.min_samples:,}" if plan.min_samples else "no"
        notes.append(f"{about}Left out, {few} {unit}: {_list(small)}.")
    if plan.top_k is not None and others:
        notes.append(f"Each slice has its own {plan.top_k} best systems; tables of single analyses keep those of all.")
    if short:
        notes.append(f"{about}Fewer than {plan.top_k} systems, so all of them: {_list(short)}.")
    return ChosenSlices([whole, *kept] if count(whole.outputs) else kept, notes)


def _list(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_LISTED:,} more" if len(names) > _MAX_LISTED else ""
    return ", ".join(names[:_MAX_LISTED]) + more
