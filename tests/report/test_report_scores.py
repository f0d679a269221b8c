"""Failures in words: reasons are counted without the names of the outputs."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

from metrist.metrics.base import Metric
from metrist.records import Record
from metrist.run import score
from metrist.scores import Score

#: As a metric of one's own may say it of records that lack a field.
NAMED = "m needs source, but item {!r} of system {!r} has none"


class Picky(Metric):
    catalog_name = "picky"

    def score_record(self, record: Record) -> Score:
        if record.item == "20":
            return Score(value=1.0)
        return Score.failed(NAMED.format(record.item, record.system) if int(record.item) % 3 else "the output is empty")


def test_reasons_are_counted_without_the_names_of_outputs() -> None:
    rows = [{"item": str(n), "system": "a", "output": "x", "references": ["x"]} for n in range(21)]
    remarks = score(rows, [Picky(), "rougeL"], progress=False).table().remarks
    expected, times = Counter("empty" if n % 3 == 0 else "source" for n in range(20)).most_common(1)[0]
    (remark,) = [remark for remark in remarks if remark.startswith("picky")]
    assert (expected, times) == ("source", 13)
    assert "most often (13): m needs source, but item … of system … has none" in remark


class Judging(Metric):
    """Aspects as parts, of which each output has one, as parts of `quality` are for one task."""

    catalog_name = "judging"
    aspect_parts: ClassVar = {"for summaries": (0.0, 1.0), "for answers": (0.0, 1.0)}

    def score_record(self, record: Record) -> Score:
        return Score(value=0.5, parts={["for summaries", "for answers"][int(record.item) % 2]: 0.5})


def test_parts_do_not_lower_the_coverage_of_a_metric() -> None:
    rows = [{"item": str(n), "system": "a", "output": "x"} for n in range(4)]
    (row,) = score(rows, [Judging()], progress=False).table().to_dict()["rows"]
    assert (row["scored"], row["coverage"]) == (4, 1.0)
    assert row["coverage of"]["judging:for answers"] == 0.5
