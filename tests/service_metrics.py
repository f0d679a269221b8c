"""Metrics for tests of the service: one that waits, one that breaks, one that reports errors."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import ClassVar

from metrist.metrics.base import Metric
from metrist.ratings import Error
from metrist.records import Record
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
