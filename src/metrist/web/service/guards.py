"""Guards: whether an output passes limits on metrics, decided within a time budget.

Metrics are timed on texts of some lengths when a process starts, so that what a text takes is known before a metric is
asked. A text that takes more than half of the budget is refused at once: what is accepted then has its result in time
behind another text, too. Guards have threads of their own, and wait for no batch of other requests.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from metrist.records import Record
from metrist.run.tasks import Task, count_characters, perform
from metrist.runtime import Runtime
from metrist.web.service.batching import JobResults, Key, Lane
from metrist.web.service.catalog import Catalog, OfferedMetric
from metrist.web.service.settings import Check, Policy, ServiceSettings

#: Makes the result of a check from a job that has ended.
Judge = Callable[[Check, OfferedMetric, "asyncio.Future[JobResults]"], dict[str, Any]]
#: Seconds that a guard has by default where an ordinary text takes no longer than half of them.
DEFAULT_BUDGET = 0.3
#: Characters of an ordinary text: an article and its summary.
ORDINARY = 4000
#: Characters of the texts that metrics are timed on.
_LENGTHS = (500, 1000, 2000, ORDINARY, 8000, 16_000)
#: Seconds after which no longer text is tried.
_LONG_ENOUGH = 0.5
#: The part of a budget that one text may take.
_SHARE = 0.5
_WORDS = (
    "the of and a to in is was for on that with as by at from its which were after before report says council city "
    "river north bridge winter season team player match coach police market price company bank year million people "
    "school student teacher hospital doctor minister government plan vote road train station house family water"
)


class ScoringTime:
    """The seconds that a metric took for texts of some lengths."""

    def __init__(self, characters: Sequence[int], seconds: Sequence[float]) -> None:
        self._characters = [0, *characters]
        # What interrupted the shorter of two texts is not the metric's: it takes no longer than the other.
        self._seconds = [0.0, *np.minimum.accumulate(seconds[::-1])[::-1].tolist()]

    def estimate(self, characters: int) -> float:
        """The seconds for a text; beyond the longest one that was timed, in proportion."""
        longest = self._characters[-1]
        return float(np.interp(characters, self._characters, self._seconds)) * max(1.0, characters / longest)

    def fit(self, seconds: float) -> int:
        """The characters of a text that takes so long."""
        slowest = max(self._seconds[-1], 1e-6)
        return int(np.interp(seconds, self._seconds, self._characters) * max(1.0, seconds / slowest))


def measure_scoring_time(offer: OfferedMetric, runtime: Runtime) -> ScoringTime:
    """Time a metric on made-up texts, whose outputs have a fifth of the characters."""
    rng = random.Random(0)
    characters, seconds = list[int](), list[float]()
    for length in _LENGTHS:
        texts: dict[str, Any] = {
            need: _write_text(rng, length * 4 // 5 // len(offer.metric.needs)) for need in offer.metric.needs
        }
        output = _write_text(rng, length // 5 if texts else length)
        if "references" in texts:
            texts["references"] = (texts["references"],)
        record = Record(item="1", system="warm", output=output, **texts)
        task = Task(start=0, units=(record,), metrics=(offer.text,), runtime=runtime)
        began = time.perf_counter()
        perform({offer.text: offer.metric}, task)
        seconds.append(time.perf_counter() - began)
        characters.append(count_characters([record]))
        if seconds[-1] > _LONG_ENOUGH:
            break
    return ScoringTime(characters, seconds)


def _write_text(rng: random.Random, characters: int) -> str:
    """Sentences of common words in random order: repeated ones would be read only once."""
    text, words = "", _WORDS.split()
    while len(text) < characters:
        text += " ".join(rng.choices(words, k=rng.randint(8, 24))).capitalize() + ". "
    return text[:characters].strip() or "A"


class Guards:
    """The guards of one process."""

    def __init__(self, settings: ServiceSettings, lanes: Mapping[str, Lane]) -> None:
        self._settings = settings
        self._lanes = lanes
        self._times: dict[str, ScoringTime] = {}
        #: The metrics of the service's own checks.
        self._checked: frozenset[str] = frozenset()

    def measure(self, catalog: Catalog, runtime: Runtime) -> None:
        """Time the metrics but LLMs and programs."""
        timed = {o.text: o for o in catalog.offered if o.can_score and o.lane in ("text", "model")}
        self._times = {text: measure_scoring_time(offer, runtime) for text, offer in timed.items()}
        self._checked = frozenset(catalog.find(check.metric).text for check in self._settings.checks)

    def choose_budget(self, texts: Iterable[str]) -> float:
        """The seconds for checks by metrics of these texts where none are named: an ordinary text fits."""
        if self._settings.guard_budget is not None:
            return self._settings.guard_budget
        ordinary = sum(self._estimate(text, ORDINARY) for text in set(texts))
        return max(DEFAULT_BUDGET, math.ceil(ordinary / _SHARE * 10) / 10)

    def describe(self) -> dict[str, Any]:
        """The default budget, and how long a text may be for each metric alone."""
        fits = {text: known.fit(self.choose_budget([text]) * _SHARE) for text, known in self._times.items()}
        return {"budget_ms": self.choose_budget(self._checked) * 1000, "characters": fits}

    def _estimate(self, text: str, characters: int) -> float:
        known = self._times.get(text)
        return 0.0 if known is None else known.estimate(characters)

    def _refuse(self, offers: Sequence[OfferedMetric], record: Record, budget: float) -> dict[str, float]:
        """The metrics that have no time for a text, quick ones first, and the seconds that they would take."""
        characters = count_characters([record])
        seconds = {offer.text: self._estimate(offer.text, characters) for offer in offers}
        refused, total = dict[str, float](), 0.0
        for text in sorted(seconds, key=seconds.__getitem__):
            total += seconds[text]
            if total > budget * _SHARE:
                refused[text] = seconds[text]
        return refused

    async def check(
        self,
        checks: Sequence[Check],
        offers: Sequence[OfferedMetric],
        record: Record,
        judge: Judge,
        *,
        budget: float,
        began: float,
    ) -> list[dict[str, Any]]:
        """The results of checks, as soon as one fails or the budget is over; the rest is cancelled."""
        refused = self._refuse(offers, record, budget)
        results = [
            {"metric": offer.label, "min": check.minimum, "max": check.maximum, "result": "late"}
            for check, offer in zip(checks, offers, strict=True)
        ]
        for offer, result in zip(offers, results, strict=True):
            if offer.text in refused:
                result |= {"result": "too_long", "needed_ms": round(refused[offer.text] * 1000)}
        asked = {offer.text: offer.lane for offer in offers if offer.text not in refused}
        cheap = tuple(text for text, lane in asked.items() if lane == "text")
        keys: dict[str, tuple[str, Key]] = {t: (lane, cheap if lane == "text" else (t,)) for t, lane in asked.items()}
        jobs = {(lane, key): self._lanes[lane].submit(key, [record]) for lane, key in set(keys.values())}
        pending = set(jobs.values())
        try:
            while pending and not any(result["result"] == "fail" for result in results):
                left = began + budget - time.monotonic()
                done, pending = await asyncio.wait(pending, timeout=max(left, 0), return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    break
                for check, offer, result in zip(checks, offers, results, strict=True):
                    if offer.text in keys and (job := jobs[keys[offer.text]]) in done:
                        result |= judge(check, offer, job)
            if any(result["result"] == "fail" for result in results):
                for result in results:
                    result["result"] = "skipped" if result["result"] in ("late", "too_long") else result["result"]
            return results
        finally:
            for job in pending:
                job.cancel()


def describe_check(result: Mapping[str, Any], budget: float, policy: Policy) -> str:
    """Why a check failed, or what the policy makes of one without a result."""
    metric, value = result["metric"], result.get("value")
    decision = f"the policy is {policy}, so it {'passes' if policy == 'open' else 'fails'}"
    milliseconds = f"{budget * 1000:g} ms"
    if result["result"] == "late":
        return f"{metric} had no result within {milliseconds}; {decision}"
    if result["result"] == "too_long":
        needs = f"{metric} takes about {result['needed_ms']:,} ms for this text, more than half of {milliseconds}"
        return f"{needs}: send a shorter text or a larger budget_ms; {decision}"
    if result["result"] == "unscored":
        return f"{metric} has no score ({result['failure']['kind']}); {decision}"
    if result["min"] is not None and value is not None and value < result["min"]:
        return f"{metric} is {value:.6g}, below {result['min']:g}"
    return f"{metric} is {value:.6g}, above {result['max']:g}"
