"""The metrics that a service offers: those that the operator named when it was started, and no others.

A request names a metric by its name or its text. The text is parsed as literals, to find the metric whatever its
spacing, and is never built or imported.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from metrist.errors import MetristError, RunError, SpecError, did_you_mean
from metrist.metrics.base import Metric, calls_llm, is_resident
from metrist.metrics.cards import metric_card
from metrist.metrics.comparator import ByScore, Comparator
from metrist.metrics.registry import ALIASES, build_all
from metrist.records import Pair, Record
from metrist.report.cells import shorten
from metrist.run.tasks import Task, perform
from metrist.runtime import Runtime
from metrist.spec import parse

LaneName = Literal["text", "model", "program", "llm"]
LANES: tuple[LaneName, ...] = ("text", "model", "program", "llm")
#: The longest name that a message repeats.
_SHOWN = 100


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OfferedMetric:
    """A metric that a page or the service offers. `comparator` is None where no score is better than another."""

    metric: Metric
    #: The metric's name and text, which take a while to work out.
    label: str
    text: str
    comparator: Comparator | None
    comparator_text: str | None
    lane: LaneName
    explains: bool
    calls_llm: bool

    @property
    def bounds(self) -> tuple[float | None, float | None]:
        """The lowest and highest value; None where there is none."""
        low, high = (bound if math.isfinite(bound) else None for bound in self.metric.bounds)
        return low, high

    @property
    def can_score(self) -> bool:
        """Whether the metric scores single outputs."""
        return not isinstance(self.metric, Comparator)

    def describe(self) -> dict[str, Any]:
        """What GET /v1/metrics says of it."""
        low, high = self.bounds
        return {
            "name": self.label,
            "text": self.text,
            "measures": metric_card(self.metric).measures,
            "signature": self.metric.signature,
            "needs": list(self.metric.needs),
            "higher_is_better": self.metric.higher_is_better,
            "low": low,
            "high": high,
            "explains": self.explains,
            "scores": self.can_score,
            "compares": self.comparator is not None,
            "calls_llm": self.calls_llm,
        }


class UnknownMetric(MetristError):
    """A request names a metric that the service does not offer."""


class Catalog:
    """The offered metrics by name and by text, and all metrics and comparators by the texts that lanes know them by."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        if not metrics:
            raise RunError("a service needs metrics: name at least one, such as -m chrf", code="missing_value")
        self.offered = [offer_metric(metric) for metric in metrics]
        self._by_name = {offer.text: offer for offer in self.offered}
        self._by_name |= {offer.label: offer for offer in self.offered}
        self.by_text: dict[str, Metric] = {offer.text: offer.metric for offer in self.offered}
        self.by_text |= {o.comparator_text or "": o.comparator for o in self.offered if o.comparator is not None}

    def find(self, name: str) -> OfferedMetric:
        """Return the metric that a request names."""
        if offer := self._by_name.get(name):
            return offer
        text = ALIASES.get(name.strip().lower(), name)
        try:
            text = str(parse(text))
        except SpecError:
            text = ""
        if offer := self._by_name.get(text):
            return offer
        labels = [offer.label for offer in self.offered]
        shown = shorten(name, _SHOWN)
        hint = did_you_mean(shown, labels)
        raise UnknownMetric(f"this service has no metric {shown!r}; it offers {', '.join(labels)}{hint}")

    def by_default(self, *, compare: bool = False) -> list[OfferedMetric]:
        """The metrics of a request that names none: all that cost nothing."""
        return [
            offer
            for offer in self.offered
            if not offer.calls_llm and (offer.comparator is not None if compare else offer.can_score)
        ]


def build_catalog(texts: Sequence[str]) -> Catalog:
    """Build the metrics of a command line. Import paths are allowed there."""
    return Catalog(build_all(list(texts)) if texts else ())


def offer_metric(metric: Metric) -> OfferedMetric:
    """Work out what can be done with a metric, and where it runs."""
    llm = calls_llm(metric)
    lane: LaneName = "model" if is_resident(metric) else "text"
    if llm:
        lane = "llm"
    elif metric.programs:
        lane = "program"
    comparator: Comparator | None = metric if isinstance(metric, Comparator) else None
    if comparator is None and metric.higher_is_better is not None:
        comparator = ByScore(metric=metric)
    return OfferedMetric(
        metric=metric,
        label=metric.label,
        text=metric.text,
        comparator=comparator,
        comparator_text=None if comparator is None else comparator.text,
        lane=lane,
        explains=comparator is not metric and (metric.reports_errors or llm or bool(metric.programs)),
        calls_llm=llm,
    )


def warm(catalog: Catalog, runtime: Runtime) -> None:
    """Load what the metrics hold, by scoring a sentence; LLMs and programs are not called."""
    text = "The cat sat on the mat."
    record = Record(item="1", system="warm", output=text, source=text, references=(text,), instruction=text)
    for offer in catalog.offered:
        if offer.lane in ("text", "model"):
            unit = record if offer.can_score else Pair(first=record, second=record)
            metrics: Mapping[str, Metric] = {offer.text: offer.metric}
            perform(metrics, Task(start=0, units=(unit,), metrics=(offer.text,), runtime=runtime))
