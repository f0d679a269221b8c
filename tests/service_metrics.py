"""Metrics for tests of the service: they wait, break, take their time or report errors."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import ClassVar

from metrist.errors import ModelError
from metrist.metrics.base import Metric
from metrist.ratings import Error
from metrist.records import Need, Record
from metrist.scores import Score

#: `Waiting` scores nothing until this is set.
GATE = threading.Event()


@dataclass(frozen=True, kw_only=True)
class Waiting(Metric):
    """The length of the output, once the gate is open."""

    resident: ClassVar[bool] = True

    def score_record(self, record: Record) -> float:
        if record.system != "warm":
            assert GATE.wait(30)
        return float(len(record.output))


@dataclass(frozen=True, kw_only=True)
class Held(Metric):
    """The length of the output; one that begins with 'long' waits for the gate."""

    resident: ClassVar[bool] = True

    def score_record(self, record: Record) -> float:
        if record.output.startswith("long"):
            assert GATE.wait(30)
        return float(len(record.output))


class Redirected(Metric):
    """Fails with a message of metrist's own, which quotes a key."""

    def score_record(self, record: Record) -> float:
        if record.system == "warm":
            return 0.0
        raise ModelError("it redirects to 'https://llm.example/?key=sk-secret-key'")


class Timed(Metric):
    """Takes a millisecond for ten characters, by a clock of its own."""

    now: ClassVar[float] = 0.0
    needs: ClassVar[tuple[Need, ...]] = ("source",)

    def score_record(self, record: Record) -> float:
        Timed.now += (len(record.output) + len(record.source or "")) / 10_000
        return 1.0


class Breaking(Metric):
    """Fails at some outputs."""

    def score_record(self, record: Record) -> float:
        if record.output == "break":
            raise ZeroDivisionError("secret words of the output")
        return float(len(record.output))


class Marking(Metric):
    """Marks the word 'bad'."""

    reports_errors: ClassVar[bool] = True

    def score_record(self, record: Record) -> Score | None:
        if not record.output:
            return None
        start = record.output.find("bad")
        if start < 0:
            return Score(value=1.0)
        error = Error(aspect="Accuracy", severity="major", penalty=3.0, text="bad", start=start, end=start + 3)
        return Score(value=0.0, errors=(error,), explanation="a bad word")
