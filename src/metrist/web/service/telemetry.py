"""Counts, logs and traces of the service. None holds a text, a key or a token unless the operator asks for it."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
    multiprocess,
)

from metrist._version import __version__
from metrist.errors import MissingExtra
from metrist.io.locks import lock, try_lock
from metrist.web.service.settings import LogLevel

#: The environment variable that has prometheus_client count in files, from where each worker reads those of all.
FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)


class Counters:
    """All series of the service. `folder` is the one in which several workers count."""

    def __init__(self, folder: str | None = None) -> None:
        self._folder = folder
        if folder is not None:  # Locked until the process has ended, however it ends.
            self._alive = Path(folder, f"alive_{os.getpid()}").open("wb")  # noqa: SIM115
            lock(self._alive, wait=True)
        self._registry = CollectorRegistry()
        disable_created_metrics()  # type: ignore[no-untyped-call]
        count = partial(Counter, registry=self._registry)
        measure = partial(Gauge, registry=self._registry, multiprocess_mode="livesum")
        observe = partial(Histogram, registry=self._registry)
        self.requests = count("metrist_requests_total", "Requests answered", ["endpoint", "status"])
        self.records = count("metrist_records_total", "Records and pairs in requests", ["endpoint"])
        self.seconds = observe("metrist_request_seconds", "Time from request to answer", ["endpoint"], buckets=_SECONDS)
        self.batch_records = observe("metrist_batch_records", "Records per batch", ["lane"], buckets=_SIZES)
        self.batch_seconds = observe("metrist_batch_seconds", "Time that a batch took", ["lane"], buckets=_SECONDS)
        self.queue = measure("metrist_queue_records", "Records that wait or are being scored", ["lane"])
        self.unscored = count("metrist_unscored_total", "Records that a metric gave no score", ["metric"])
        self.guards = count("metrist_guard_total", "Verdicts of guards", ["verdict", "decided_by"])
        self.in_progress = measure("metrist_requests_in_progress", "Requests that are being answered")
        self.workers_ready = measure("metrist_workers_ready", "Worker processes that are ready")
        self.worker_starts = count("metrist_worker_starts_total", "Starts of worker processes")
        info = measure("metrist_info", "The version of metrist", ["version"], multiprocess_mode="max")
        info.labels(__version__).set(1)

    def _collect(self) -> CollectorRegistry:
        """The series of this process, or the sums over all of them."""
        if self._folder is None:
            return self._registry
        for file in Path(self._folder).glob("gauge_live*.db"):
            pid = int(file.stem.rpartition("_")[2])
            with Path(self._folder, f"alive_{pid}").open("wb") as alive:
                if try_lock(alive):  # It has ended. What it counted stays; its gauges do not.
                    multiprocess.mark_process_dead(pid, self._folder)  # type: ignore[no-untyped-call]
        registry = CollectorRegistry()
        multiprocess.MultiProcessCollector(registry, self._folder)  # type: ignore[no-untyped-call]
        return registry

    def total(self, name: str) -> float:
        """The sum of a counter or gauge over all labels and processes."""
        samples = (sample for family in self._collect().collect() for sample in family.samples)
        return sum(sample.value for sample in samples if sample.name == name)

    def render(self) -> bytes:
        """All series in Prometheus' text format."""
        return generate_latest(self._collect())


class Log:
    """Writes one JSON object per line to standard error."""

    def __init__(self, level: LogLevel = "requests", stream: BinaryIO | None = None) -> None:
        self._level = level
        self._stream = stream or sys.stderr.buffer

    def request(self, *, failed: bool, **fields: Any) -> None:
        """Note an answered request; with the level 'errors' only one that the service failed at."""
        if self._level == "requests" or (failed and self._level == "errors"):
            self.event("request", level="error" if failed else "info", **fields)

    def event(self, event: str, *, level: str = "info", **fields: Any) -> None:
        """Note an event, with the level 'off' none."""
        if self._level == "off":
            return
        now = time.time()
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))
        line = {"time": f"{moment}.{int(now % 1 * 1000):03d}Z", "level": level, "event": event, "process": os.getpid()}
        try:
            self._stream.write(json.dumps({**line, **fields}, separators=(",", ":")).encode() + b"\n")
            self._stream.flush()
        except (OSError, ValueError):
            self._level = "off"  # Nobody reads the log any more; the service goes on.


class Tracing:
    """OpenTelemetry spans; without a tracer, nothing."""

    def __init__(self, tracer: Any = None) -> None:
        self._tracer = tracer
        self._extract: Callable[[Mapping[str, str]], Any] | None = None
        if tracer is not None:
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

            self._extract = TraceContextTextMapPropagator().extract

    def start(
        self, name: str, attributes: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> AbstractContextManager[Any]:
        """A span as a context manager; `headers` may name the span of the client that it belongs to."""
        if self._tracer is None or self._extract is None:
            return nullcontext()
        context = self._extract({"traceparent": headers.get("traceparent", "")}) if headers else None
        span: AbstractContextManager[Any] = self._tracer.start_as_current_span(
            name, context=context, attributes=dict(attributes), record_exception=False
        )
        return span


def start_tracing() -> Tracing:
    """Send spans by OTLP over HTTP to where the environment variables of OpenTelemetry say."""
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise MissingExtra("metrist serve --otel", "otel") from None
    defaults = {"service.name": "metrist", "service.version": __version__}
    provider = TracerProvider(resource=Resource.create(defaults))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return Tracing(trace.get_tracer("metrist", __version__))
