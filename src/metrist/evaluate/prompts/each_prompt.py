"""A likelihood metric asked for all its prompts one by one, so that a run scores them in one pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from metrist.metrics.base import Metric
from metrist.metrics.likelihood.layout import NONE
from metrist.metrics.likelihood.likelihood import Likelihood
from metrist.metrics.shard import Shard
from metrist.records import Need
from metrist.scores import Scores


@dataclass(frozen=True, kw_only=True)
class EachPrompt(Metric):
    """The metric's score with each of its prompts alone, as parts; the value is their mean."""

    metric: Likelihood

    resident: ClassVar[bool] = True

    @property
    def text(self) -> str:
        """What messages call it: the metric, without the long list of its prompts."""
        return replace(self.metric, prompts=NONE).text

    @property
    def needs(self) -> tuple[Need, ...]:
        return self.metric.needs

    def facts(self) -> Mapping[str, str]:
        return self.metric.facts()

    def score(self, shard: Shard) -> Scores:
        return self.metric.each_prompt(shard)
