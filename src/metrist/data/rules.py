"""How judgments become pairs: the choices a user has, checked when they are made."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, get_args

from metrist.data.aggregate import How
from metrist.errors import SpecError

Within = Literal["item", "all"]
Ties = Literal["drop", "soft"]
Certainty = Literal["full", "shares"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """`within` sets outputs of one item against each other, or any two outputs; `margin` is the least difference of two
    aggregated ratings; `ties` are dropped, or kept with certainty .5; `cap` is the most pairs an item may take part in;
    `certainty` is 1, or the share of raters who agree with the order. `seed` decides what a cap leaves out."""

    within: Within = "item"
    aggregate: How = "mean"
    margin: float = 0.0
    ties: Ties = "drop"
    certainty: Certainty = "full"
    cap: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        _one_of("within", self.within, get_args(Within))
        _one_of("aggregate", self.aggregate, get_args(How))
        _one_of("ties", self.ties, get_args(Ties))
        _one_of("certainty", self.certainty, get_args(Certainty))
        if not (math.isfinite(self.margin) and self.margin >= 0):
            raise SpecError(f"margin must be a number from 0 up, got {self.margin!r}")
        if self.cap is not None and self.cap < 1:
            raise SpecError(f"cap must be 1 or more, got {self.cap!r}")


def _one_of(name: str, value: str, known: Collection[str]) -> None:
    if value not in known:
        raise SpecError(f"{name} must be one of {', '.join(known)}, got {value!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """What the pairs of one aspect teach: a criterion with its instruction. Where it is `opposite`, the lower rating is
    the good one. A `choice` marks the outputs that were chosen among several with 1 and says nothing of the others."""

    aspect: str
    criterion: str
    instruction: str = ""
    opposite: bool = False
    choice: bool = False
