"""The playground: score one output that the user types, live.

Metrics run in two processes, one for those without and one for those with models, so that a word count never waits for
a model and a metric that takes too long can be stopped. A request names a metric from a fixed list; it cannot describe
one of its own.
"""

from __future__ import annotations

import math
import multiprocessing
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from multiprocessing.connection import Connection
from typing import Annotated, Any

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from metrist.errors import MetristError, describe_exception
from metrist.metrics.base import Metric, is_resident
from metrist.metrics.prompt_layout import list_tasks
from metrist.metrics.registry import build, build_all
from metrist.records import OPTIONAL_FIELDS, Record
from metrist.web.pages import answer_json, read_body, render_page
from metrist.web.service.catalog import OfferedMetric, offer_metric

#: Offered without being named on the command line. None of them asks an LLM or downloads a model.
OFFLINE_METRICS = (
    "rougeL", "rouge2", "bleu", "chrf", "ter", "meteor", "token_f1", "exact", "length", "copy_rate",
    "consistency", "errors", "fluency", "likelihood", "preference", "translation_quality",
)  # fmt: skip
#: Characters of all texts of a request together.
MAX_CHARACTERS = 50_000
MAX_REFERENCES = 20
_NEEDS = {"source": "a source", "references": "references", "instruction": "an instruction"}
#: Seconds that a metric may take, with the loading of its model.
TIME_LIMIT = 60.0


class TextsBody(msgspec.Struct, frozen=True, kw_only=True):
    """An output with what it is judged against."""

    output: str | None = None
    instruction: str | None = None
    source: str | None = None
    task: str | None = None
    language: str | None = None
    references: Annotated[list[str], msgspec.Meta(max_length=MAX_REFERENCES)] = []

    def list_fields(self) -> dict[str, Any]:
        """The fields of the record, without empty ones; long texts are refused."""
        fields = {name: value for name in ("output", *OPTIONAL_FIELDS) if (value := getattr(self, name))}
        references = tuple(text for text in self.references if text)
        length = sum(map(len, (*fields.values(), *references)))
        if length > MAX_CHARACTERS:
            raise HTTPException(413, f"The texts have {length:,} characters; the limit is {MAX_CHARACTERS:,}.")
        return {"output": "", **fields, "references": references}


class OutputBody(TextsBody, frozen=True, kw_only=True):
    """An output and the metric that scores it."""

    metric: str


def offer_metrics(named: Sequence[str] = ()) -> list[OfferedMetric]:
    """Return the metrics that the user named, then those that are always offered."""
    own = build_all(list(named)) if named else ()
    offered: dict[str, OfferedMetric] = {}
    for metric in (*own, *map(build, OFFLINE_METRICS)):
        offered.setdefault(metric.label, offer_metric(metric))
    return list(offered.values())


def explain_misfit(metric: Metric, record: Record) -> str | None:
    """Return why a metric does not fit a record; None if it does."""
    from metrist.metrics.errors.combined import TRANSLATION_QUALITY, choose_models

    if lacking := [_NEEDS[need] for need in metric.needs if record.lacks(need)]:
        return f"needs {' and '.join(lacking)}"
    if metric.catalog_name == TRANSLATION_QUALITY:
        choice = choose_models(record)
        if TRANSLATION_QUALITY not in choice.models:
            return choice.skipped.get(TRANSLATION_QUALITY, "needs the task translation")
    return next((warning.removeprefix(f"{metric.label}: ") for warning in metric.describe_misuse([record])), None)


@dataclass
class ScoringProcess:
    """A process that scores one output at a time, and is stopped when a metric takes too long."""

    limits: Mapping[str, Any] = field(default_factory=dict)
    _process: Any = None
    _connection: Connection | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def score(self, metric: str, record: Mapping[str, Any], time_limit: float) -> dict[str, Any]:
        """Return the score as plain data; a failure says why there is none."""
        deadline = time.monotonic() + time_limit
        if not self._lock.acquire(timeout=time_limit):
            return {"failure": "other metrics are still running; try again"}
        try:
            if self._connection is None or not self._process.is_alive():
                context = multiprocessing.get_context("spawn")
                self._connection, theirs = context.Pipe()
                self._process = context.Process(target=_work, args=(theirs, dict(self.limits)), daemon=True)
                self._process.start()
                theirs.close()
            connection = self._connection
            connection.send((metric, dict(record)))
            if not connection.poll(max(0.1, deadline - time.monotonic())):
                self._stop()
                return {"failure": f"stopped after {time_limit:g} s"}
            answer: dict[str, Any] = connection.recv()
            return answer
        except (EOFError, OSError):
            self._stop()
            return {"failure": "the process that scores has ended; try again"}
        finally:
            self._lock.release()

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process.close()
        if self._connection is not None:
            self._connection.close()
        self._process = self._connection = None

    def close(self) -> None:
        """Stop the process at once, whatever it does."""
        with suppress(ValueError):  # It was closed meanwhile.
            if process := self._process:
                process.kill()


def _work(connection: Connection, limits: dict[str, Any]) -> None:
    """Answer requests until the connection closes."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all processes of the terminal; the server ends this.
    with suppress(EOFError, OSError):
        while True:
            metric, fields = connection.recv()
            try:
                answer = score_one(metric, fields, limits)
            except MetristError as error:
                answer = {"failure": str(error)}
            except Exception as error:
                answer = {"failure": describe_exception(error)}
            connection.send(answer)


def score_one(metric: str, fields: Mapping[str, Any], limits: Mapping[str, Any]) -> dict[str, Any]:
    """Return the score of one output, with errors, reasons and words by how unlikely they are, as plain data."""
    from metrist.evaluate.selection import choose_decimals
    from metrist.report.cells import or_none
    from metrist.report.output_card import list_error
    from metrist.run import score
    from metrist.run.results import NothingScored

    record = Record(item="1", system="output", **fields)
    try:
        results = score([record], [metric], executor="serial", tokens=True, progress=False, **limits)
    except NothingScored as nothing_scored:
        results = nothing_scored.results
    (built,) = results.metrics
    given = results[built][0]
    heat = results.heat(built).outputs if given.tokens else []
    value = or_none(given.value)
    return {
        "value": value,
        "decimals": 3 if value is None else choose_decimals(built, value),
        "failure": given.failure,
        "explanation": given.explanation,
        "errors": [list_error(n, error, built.label, record) for n, error in enumerate(given.errors, 1)],
        "parts": {name: value for name, value in given.parts.items() if math.isfinite(value)},
        "readings": [reading for card in heat for reading in card.for_script()["readings"]],
    }


@dataclass(frozen=True, kw_only=True)
class Playground:
    """The page and its API. `metrics` are those that `offer_metrics` gives without names where they are None, made when
    they are first asked for. `limits` are those of LLM calls, such as `max_cost`."""

    metrics: Sequence[OfferedMetric] | None = None
    limits: Mapping[str, Any] = field(default_factory=dict)
    time_limit: float = TIME_LIMIT
    with_viewer: bool = True
    _processes: dict[bool, ScoringProcess] = field(default_factory=dict)

    def routes(self) -> list[BaseRoute]:
        return [
            *([] if self.with_viewer else [Route("/", self.show_page)]),
            Route("/play", self.show_page),
            Route("/api/metrics", self.send_metrics),
            Route("/api/misfits", self.send_misfits, methods=["POST"]),
            Route("/api/score", self.send_score, methods=["POST"]),
        ]

    @cached_property
    def _offered(self) -> Sequence[OfferedMetric]:
        return offer_metrics() if self.metrics is None else self.metrics

    def close(self) -> None:
        for process in self._processes.values():
            process.close()

    async def show_page(self, request: Request) -> Response:  # noqa: ARG002
        return render_page(
            "playground.html",
            "metrist: playground",
            scripts=["playground.js"],
            styles=["playground.css"],
            with_viewer=self.with_viewer,
            tasks=("", *list_tasks()),
        )

    async def send_metrics(self, request: Request) -> Response:  # noqa: ARG002
        metrics = [
            {
                "label": offer.label,
                "needs": list(offer.metric.needs),
                "higher": offer.metric.higher_is_better,
                "low": offer.bounds[0],
                "high": offer.bounds[1],
                "paid": offer.calls_llm,
                "model": is_resident(offer.metric),
            }
            for offer in self._offered
        ]
        return answer_json({"metrics": metrics, "characters": MAX_CHARACTERS})

    async def send_misfits(self, request: Request) -> Response:
        """The metrics that do not fit the texts, with the reasons."""
        record = Record(item="1", system="output", **(await read_body(request, TextsBody)).list_fields())
        reasons = {offer.label: explain_misfit(offer.metric, record) for offer in self._offered}
        return answer_json({"misfits": {label: reason for label, reason in reasons.items() if reason}})

    async def send_score(self, request: Request) -> Response:
        body = await read_body(request, OutputBody)
        offer = next((offer for offer in self._offered if offer.label == body.metric), None)
        if offer is None:
            raise HTTPException(400, "There is no such metric here.")
        fields = body.list_fields()
        process = self._processes.setdefault(is_resident(offer.metric), ScoringProcess(self.limits))
        metric = offer.text if offer.label == offer.text else f"{offer.label}={offer.text}"
        start = time.perf_counter()
        answer = await run_in_threadpool(process.score, metric, fields, self.time_limit)
        return answer_json({**answer, "seconds": round(time.perf_counter() - start, 3)})
