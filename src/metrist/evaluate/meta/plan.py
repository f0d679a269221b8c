"""How a meta-evaluation is made: every choice that its numbers depend on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from metrist.errors import RunError, did_you_mean

Correction = Literal["holm", "benjamini-hochberg", "none"]
Average = Literal["macro", "micro"]
Resample = Literal["items", "systems", "both"]

GROUPS = ("item", "none", "system", "system-level")
EPSILON_OVER = ("all", "slice", "crossfit")
TESTS = ("auto", "permutation", "bootstrap", "sign", "williams", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The settings of `meta_evaluate`, checked. `group` and `epsilon_over` may also name a column."""

    aspects: tuple[str, ...] = ()
    measures: tuple[str, ...] = ("acc_eq",)
    group: str = "item"
    slices: tuple[str, ...] = ()
    gold: str = "mean"
    preferences: bool = False
    epsilon_over: str = "all"
    average: Average = "macro"
    group_average: Average = "macro"
    resample: Resample = "items"
    draws: int = 1000
    seed: int = 0
    confidence: float = 0.95
    alpha: float = 0.05
    correction: Correction = "holm"
    test: str = "auto"
    metrics: tuple[str, ...] | None = None
    systems: tuple[str, ...] | None = None
    exclude_systems: tuple[str, ...] = ()
    top_k: int | None = None
    marked: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        one_of("average", self.average, get_args(Average))
        one_of("average", self.group_average, get_args(Average))
        one_of("resampling", self.resample, get_args(Resample))
        one_of("correction", self.correction, get_args(Correction))
        one_of("test", self.test, TESTS)
        if self.draws < 0 or not 0 < self.confidence < 1 or not 0 < self.alpha < 1:
            raise RunError(
                "wanted draws of at least 0, and confidence and alpha between 0 and 1, got "
                f"{self.draws}, {self.confidence} and {self.alpha}"
            )
        if not self.measures:
            raise RunError("no measure was asked for: name at least one, such as acc_eq or kendall_b")

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain data."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}


def one_of(what: str, name: str, known: tuple[str, ...]) -> None:
    """Refuse a name that is none of these."""
    if name not in known:
        raise RunError(f"no {what} {name!r}; known are {', '.join(known)}{did_you_mean(name, known)}")


def names(value: str | Iterable[str]) -> tuple[str, ...]:
    """One name, or several, as several."""
    return (value,) if isinstance(value, str) else tuple(dict.fromkeys(value))
