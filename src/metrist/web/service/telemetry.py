"""Counts, logs and traces of the service. None of them holds a text, a key or a token unless the operator asks for it.

Worker processes count in one shared block of memory, a row each, so that any of them can answer GET /metrics for all.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import product
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from metrist._version import __version__
from metrist.errors import MissingExtra
from metrist.web.service.settings import LogLevel

#: Statuses that the service answers with; any other is counted as 500.
STATUSES = (200, 400, 401, 403, 404, 405, 408, 413, 415, 421, 422, 429, 431, 500, 502, 503, 504)
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
_MAX_LOG = 1000


class Counters:
    """All series of the service, at fixed places in a row of numbers; their labels are known at the start."""

    def __init__(self, endpoints: Sequence[str], lanes: Sequence[str], metrics: Sequence[str]) -> None:
        self._help: dict[str, tuple[str, str]] = {}
        #: Places by name and labels; a histogram has one for each bucket, then the sum.
        self._places: dict[str, dict[tuple[tuple[str, str], ...], int]] = {}
        self._bounds: dict[str, tuple[float, ...]] = {}
        self.width = 0
        by_endpoint = {"endpoint": endpoints}
        statuses = [str(status) for status in STATUSES]
        self._declare("metrist_requests_total", "counter", "Requests answered", {**by_endpoint, "status": statuses})
        self._declare("metrist_records_total", "counter", "Records and pairs in requests", by_endpoint)
        self._declare("metrist_request_seconds", "histogram", "Time from request to answer", by_endpoint, _SECONDS)
        by_lane = {"lane": lanes}
        self._declare("metrist_batch_records", "histogram", "Records per batch", by_lane, _SIZES)
        self._declare("metrist_batch_seconds", "histogram", "Time that a batch took", by_lane, _SECONDS)
        self._declare("metrist_queue_records", "gauge", "Records that wait or are being scored", by_lane)
        self._declare("metrist_unscored_total", "counter", "Records that a metric gave no score", {"metric": metrics})
        verdicts = {"verdict": ("pass", "fail"), "decided_by": ("checks", "policy")}
        self._declare("metrist_guard_total", "counter", "Verdicts of guards", verdicts)
        self._declare("metrist_requests_in_progress", "gauge", "Requests that are being answered", {})
        self._declare("metrist_workers_ready", "gauge", "Worker processes that are ready", {})
        self._declare("metrist_worker_starts_total", "counter", "Starts of worker processes", {})
        self._rows: NDArray[np.float64] = np.zeros((1, self.width))
        self._row = self._rows[0]

    def _declare(
        self,
        name: str,
        kind: str,
        text: str,
        labels: Mapping[str, Iterable[str]],
        bounds: tuple[float, ...] = (),
    ) -> None:
        self._help[name] = (kind, text)
        self._bounds[name] = bounds
        places = self._places[name] = {}
        for values in product(*labels.values()):
            places[tuple(zip(labels, values, strict=True))] = self.width
            self.width += len(bounds) + 2 if bounds else 1

    def share(self, memory: Any, rows: int, own: int) -> None:
        """Count in a row of memory that processes share. What an earlier process counted there stays, gauges aside."""
        self._rows = np.frombuffer(memory, dtype=np.float64).reshape(rows, self.width)
        self._row = self._rows[own]
        for name, (kind, _) in self._help.items():
            if kind == "gauge":
                for place in self._places[name].values():
                    self._row[place] = 0

    def add(self, name: str, amount: float = 1.0, **labels: str) -> None:
        """Add to a counter or gauge."""
        self._row[self._places[name][tuple(labels.items())]] += amount

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Add a value to a histogram."""
        bounds = self._bounds[name]
        place = self._places[name][tuple(labels.items())]
        self._row[place + bisect_left(bounds, value)] += 1
        self._row[place + len(bounds) + 1] += value

    def total(self, name: str) -> float:
        """The sum of a counter or gauge over all labels and processes."""
        return float(sum(self._rows[:, place].sum() for place in self._places[name].values()))

    @property
    def rows(self) -> int:
        """The number of processes that count."""
        return len(self._rows)

    def render(self) -> str:
        """All series in Prometheus' text format, summed over the processes."""
        sums = self._rows.sum(axis=0)
        lines = [
            "# HELP metrist_info The version of metrist",
            "# TYPE metrist_info gauge",
            f'metrist_info{{version="{__version__}"}} 1',
        ]
        for name, (kind, text) in self._help.items():
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
            for labels, place in self._places[name].items():
                if kind != "histogram":
                    lines.append(f"{name}{_format_labels(labels)} {sums[place]:.15g}")
                    continue
                count = 0.0
                bounds = self._bounds[name]
                for number, bound in enumerate((*bounds, "+Inf")):
                    count += sums[place + number]
                    lines.append(f"{name}_bucket{_format_labels((*labels, ('le', str(bound))))} {count:.15g}")
                lines.append(f"{name}_sum{_format_labels(labels)} {sums[place + len(bounds) + 1]:.15g}")
                lines.append(f"{name}_count{_format_labels(labels)} {count:.15g}")
        return "\n".join([*lines, ""])


def _format_labels(labels: Sequence[tuple[str, str]]) -> str:
    def escape(value: str) -> str:
        return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    return "{" + ",".join(f'{name}="{escape(value)}"' for name, value in labels) + "}" if labels else ""


class Log:
    """Writes one JSON object per line to standard error. Lines are kept for a moment and written together."""

    def __init__(self, level: LogLevel = "requests", stream: BinaryIO | None = None) -> None:
        self._level = level
        self._stream = stream
        self._lines: list[str] = []
        self._timer: asyncio.TimerHandle | None = None
        self._process = os.getpid()

    def request(self, *, failed: bool, **fields: Any) -> None:
        """Note an answered request; with the level 'errors' only one that the service failed at."""
        if self._level == "requests" or (failed and self._level == "errors"):
            self._write("error" if failed else "info", "request", fields)

    def event(self, event: str, *, level: str = "info", **fields: Any) -> None:
        """Note an event of the service itself."""
        if self._level != "off":
            self._write(level, event, fields)

    def _write(self, level: str, event: str, fields: Mapping[str, Any]) -> None:
        now = time.time()
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))
        line = {"time": f"{moment}.{int(now % 1 * 1000):03d}Z", "level": level, "event": event}
        self._lines.append(json.dumps({**line, "process": self._process, **fields}, separators=(",", ":")))
        if len(self._lines) >= _MAX_LOG:
            self.flush()
        elif self._timer is None:
            try:
                self._timer = asyncio.get_running_loop().call_later(0.1, self.flush)
            except RuntimeError:  # Outside of the event loop.
                self.flush()

    def flush(self) -> None:
        """Write what was kept."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        lines, self._lines = self._lines, []
        if lines:
            stream = self._stream or sys.stderr.buffer
            try:
                stream.write("".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace"))
                stream.flush()
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

    @property
    def enabled(self) -> bool:
        """Whether spans are recorded."""
        return self._tracer is not None

    def start(
        self, name: str, attributes: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> AbstractContextManager[Any]:
        """A span as a context manager; `headers` may name the span of the client that it belongs to."""
        if self._tracer is None or self._extract is None:
            return nullcontext()
        context = self._extract(headers) if headers else None
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
