"""`answer_preference`: which of two answers people would choose, and which one if length did not count.

People choose the longer of two answers more often, whatever else they see. The probability that they choose the first
of two is 1 / (1 + exp(v2 - v1)), where the value v of an answer is a weight times its `preference` plus a weight times
the logarithm of its length: the length control of AlpacaEval, turned around. The length-free part is the preference
without what it owes to length. models/recipes/answer_weights.py fits the weights.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib import resources
from typing import Any, ClassVar

import msgspec
import numpy as np

from metrist.metrics import registry
from metrist.metrics.base import LENGTH_FREE, Metric, Shard, check_choice, hash_file
from metrist.metrics.trained.quality import Size
from metrist.records import Record
from metrist.scores import Score, Scores

LENGTH, PREFERENCE = "length", "preference"


class AnswerWeights(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fit for one size: how much a unit of preference counts; how much a unit of log length counts with people, all
    told; how much of that the preference itself owes to length; and the log length and preference of a typical
    answer."""

    preference: float
    length: float
    owed: float
    typical_length: float
    typical_preference: float


@cache
def load_weights() -> Mapping[str, AnswerWeights]:
    content = tomllib.loads(find_table().read_text(encoding="utf-8"))
    return msgspec.convert(content, dict[str, AnswerWeights])


def find_table() -> Any:
    return resources.files(__package__) / "answer_preference.toml"


@dataclass(frozen=True, kw_only=True)
class AnswerPreference(Metric):
    """How much people would prefer an answer over others to the same question, length included. The part `length_free`
    is the same as if all answers were equally long."""

    #: Of the English model behind it.
    size: Size = "small"

    extra: ClassVar[str | None] = "standard"
    resident: ClassVar[bool] = True
    aspect_parts: ClassVar[Mapping[str, tuple[float, float]]] = {LENGTH_FREE: (-np.inf, np.inf)}
    catalog_name: ClassVar[str | None] = "answer_preference"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "size", load_weights())
        object.__setattr__(self, "extra", self.inner.extra)

    @cached_property
    def inner(self) -> Metric:
        return registry.build(f"preference(model='{self.size}')")

    def facts(self) -> Mapping[str, str]:
        return {**self.inner.facts(), "length": hash_file(str(find_table()))}

    def score(self, shard: Shard) -> Scores:
        weights = load_weights()[self.size]
        scores = self.inner.score(shard)
        longer = np.log1p([len(record.output) for record in shard.records]) - weights.typical_length
        preferred = weights.preference * (scores.values - weights.typical_preference)
        length_free = preferred - weights.owed * longer
        for_length = np.where(np.isnan(scores.values), np.nan, weights.length * longer)
        parts = {LENGTH_FREE: length_free, LENGTH: for_length, PREFERENCE: scores.values, **scores.parts}
        return replace(scores, values=length_free + for_length, parts=parts)

    def against(self, first: Score, second: Score) -> str:
        """The two scores, and the probabilities that people choose the first answer, with and without length."""
        with_length, without = (
            1 / (1 + np.exp(b - a))
            for a, b in ((first.value, second.value), (first.parts[LENGTH_FREE], second.parts[LENGTH_FREE]))
        )
        chosen = f"people choose the first with a probability of {with_length:.3f}"
        return f"{super().against(first, second)}; {chosen}, or {without:.3f} if length did not count"

    def describe_misuse(self, records: Sequence[Record]) -> list[str]:
        return self.inner.describe_misuse(records)

    def remarks(self, scores: Scores) -> list[str]:
        return self.inner.remarks(scores)

    def _code(self) -> Mapping[str, str]:
        return self.inner._code()
