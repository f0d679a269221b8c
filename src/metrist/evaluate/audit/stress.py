"""`stress`: does a metric see faults that were put into good texts, and does it leave harmless changes alone?

Every item is scored as it is, with one fault of each kind, with one to four faults, and with changes that do no harm.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib import resources
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from metrist.data.faults import HARMLESS, KINDS
from metrist.data.perturbations import apply_edits, check_kinds, list_kinds, perturb
from metrist.errors import InputError, SpecError, did_you_mean, format_count
from metrist.records import Record
from metrist.report.tables import Column, Share, Table, to_plain
from metrist.stats.significance import coin_tail

if TYPE_CHECKING:
    from metrist.metrics.base import Metric

Floats = NDArray[np.float64]
Outcome = Literal["pass", "blind", "rises", "over-sensitive", "fail", "too few"]
TestGroup = Literal["fault", "harmless", "series", "severity"]

#: Faults of the longest series.
MOST_FAULTS = 4
#: A test needs so many items that took the change.
_LEAST_ITEMS = 5
_ORIGINAL = "original"
SEVERITY_TEST, SERIES_TEST = "major below minor", "more faults, lower score"
_GROUPS = ("all", "fault", "harmless", "series", "severity")


@dataclass(frozen=True, slots=True, kw_only=True)
class StressTest:
    """One test of one metric. `falls`, `same` and `rises` are the shares of the items whose score got worse, stayed and
    got better; `change` is the mean change in standard deviations of the original scores, negative for worse."""

    metric: str
    test: str
    group: TestGroup
    outcome: Outcome
    items: int
    falls: float = math.nan
    same: float = math.nan
    rises: float = math.nan
    change: float = math.nan

    @property
    def passed(self) -> bool:
        return self.outcome == "pass"


@dataclass(frozen=True, slots=True, kw_only=True)
class StressReport:
    """The tests of all metrics."""

    tests: tuple[StressTest, ...]
    items: int

    def find_failures(self, required: Sequence[str] = ("all",)) -> list[StressTest]:
        """The tests that were required (by name, or by the name of a group) and did not pass. Tests with too few items
        do not count unless they are named."""
        return [
            test
            for test in self.tests
            if not test.passed
            and (test.test in required or (test.outcome != "too few" and ("all" in required or test.group in required)))
        ]

    def table(self) -> Table:
        """A row for each test, a column for each metric: the outcome, and the share of items whose score got worse."""
        metrics = list(dict.fromkeys(test.metric for test in self.tests))
        cells = {(test.test, test.metric): test for test in self.tests}
        names = list(dict.fromkeys(test.test for test in self.tests))
        rows = []
        for name in names:
            row: list[Any] = [name, max(cells[name, metric].items for metric in metrics)]
            for metric in metrics:
                test = cells[name, metric]
                row += [test.outcome, None if math.isnan(test.falls) else Share(test.falls)]
            rows.append(row)
        columns = [Column("test"), Column("items", "right")]
        for metric in metrics:
            columns += [Column(metric), Column(f"{metric} worse", "right")]
        return Table(
            title=f"Stress test on {format_count(self.items, 'item')}",
            columns=columns,
            rows=rows,
            notes=[
                "worse: items whose score got worse. blind: too few did; rises: more got better than worse; "
                "over-sensitive: a harmless change moves the score half as much as a major fault, or more."
            ],
        )

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data; NaN is None."""
        tests = [{key: to_plain(value) for key, value in asdict(test).items()} for test in self.tests]
        return {"items": self.items, "tests": tests}


def check_tests(names: Sequence[str]) -> None:
    """Raise SpecError for a name that is neither a test nor a group of tests."""
    known = [*_GROUPS, *KINDS, *HARMLESS, SEVERITY_TEST, SERIES_TEST]
    for name in names:
        if name not in known:
            raise SpecError(
                f"there is no test {name!r}{did_you_mean(name, known)} (available: {', '.join(known)})",
                code="unknown_name",
            )


def read_examples() -> list[Record]:
    """Short news reports with a good summary and a reference, written for this purpose."""
    text = (resources.files("metrist.evaluate.audit") / "stress_examples.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.splitlines()]
    return [
        Record(
            item=row["item"],
            system=_ORIGINAL,
            output=row["output"],
            source=row["source"],
            references=(row["reference"],),
            task=row["task"],
            language="en",
        )
        for row in rows
    ]


def stress(
    metrics: str | Metric | Sequence[str | Metric],
    records: Any = None,
    *,
    items: int = 100,
    kinds: Sequence[str] | None = None,
    least: float = 0.7,
    seed: int = 0,
    **options: Any,
) -> StressReport:
    """Put faults into good texts and see which metrics notice.

    `records` are good outputs, in anything that `metrist.read_records` accepts or returns; the first one of each item
    is used, of at most `items` items. Without records, twenty short reports with summaries that come with metrist are
    used. A metric passes a fault if the scores of a share of at least `least` of the items get worse. `options` are
    those of `metrist.score`.
    """
    from metrist.metrics.registry import build_all
    from metrist.run import score

    if not 0 < least <= 1:
        raise SpecError(f"least must be a share above 0 and up to 1, got {least}")
    if items < _LEAST_ITEMS:
        raise SpecError(f"items must be at least {_LEAST_ITEMS}, got {items}")
    built = build_all(metrics)
    for metric in built:
        if metric.higher_is_better is None:
            raise SpecError(f"{metric.label} has no better and worse: a stress test needs a metric that does")
    originals = choose_records(records, items)
    names = list(kinds) if kinds is not None else sorted_kinds(originals)
    check_kinds(names)
    variants = make_variants(originals, names, seed)
    results = score([*originals, *(record for made in variants.values() for record in made)], built, **options)
    tests: list[StressTest] = []
    for metric in results.columns:
        grid = results.grid(metric)
        rows = dict(zip(grid.systems, grid.values, strict=True))
        tests += judge(metric.label, rows, names, least)
    return StressReport(tests=tuple(tests), items=len(originals))


def choose_records(records: Any, items: int) -> list[Record]:
    """One record of each item, under one system name."""
    from metrist.io.reader import Reader, read_records

    if records is None:
        return read_examples()[:items]
    first: dict[str, Record] = {}
    for record in records if isinstance(records, Reader) else read_records(records):
        if record.output.strip():
            first.setdefault(record.item, record)
        if len(first) >= items:
            break
    if len(first) < _LEAST_ITEMS:
        raise InputError(
            f"a stress test needs outputs for at least {_LEAST_ITEMS} items, found {format_count(len(first), 'item')}",
            code="too_little_data",
        )
    return [replace(record, system=_ORIGINAL) for record in first.values()]


def sorted_kinds(records: Sequence[Record]) -> list[str]:
    """The faults that are made for the records' tasks, and the harmless changes."""
    tasks = {record.task for record in records}
    suitable = {name for task in tasks for name in list_kinds(task)}
    return [*(name for name in KINDS if name in suitable), *HARMLESS]


def make_variants(records: Sequence[Record], kinds: Sequence[str], seed: int) -> dict[str, list[Record]]:
    """The records with one fault of each kind, and with one to four faults of several kinds, by system name."""
    variants: dict[str, list[Record]] = {name: [] for name in kinds}
    for count in range(1, MOST_FAULTS + 1):
        variants[format_count(count, "fault")] = []
    for number, record in enumerate(records):
        donor = records[(number + 1 + seed) % len(records)]
        for name in kinds:
            if perturbed := perturb(record, [name], seed=seed, donor=donor):
                variants[name].append(replace(perturbed.record, system=name))
        # Kinds that leave room for others.
        small = [name for name in kinds if name in KINDS and KINDS[name].penalty < 5 and name not in _LARGE]
        rng = random.Random(f"{seed}\0{record.item}")
        for _ in range(8):
            if len(small) < MOST_FAULTS:
                break
            perturbed = perturb(record, rng.sample(small, MOST_FAULTS), seed=seed, donor=donor)
            if perturbed is not None:
                edits = rng.sample(perturbed.edits, MOST_FAULTS)
                for count in range(1, MOST_FAULTS + 1):
                    part = apply_edits(record, edits[:count]).record
                    name = format_count(count, "fault")
                    variants[name].append(replace(part, system=name))
                break
    return variants


_LARGE = frozenset(["truncation", "shuffle", "omission", "repetition"])


def judge(metric: str, rows: dict[str, Floats], kinds: Sequence[str], least: float) -> list[StressTest]:
    """The tests of one metric; rows have its scores by variant and item, NaN where there is none, larger for better."""
    original = rows[_ORIGINAL]
    spread = float(np.nanstd(original)) or 1.0
    changes = {name: rows[name] - original for name in kinds if name in rows}
    known = {name: changes[name][~np.isnan(changes[name])] if name in changes else np.empty(0) for name in kinds}
    tests = []
    drops: dict[str | None, list[float]] = {"minor": [], "major": []}
    for name in (name for name in kinds if name in KINDS):
        change = known[name]
        rises, falls = int((change > 0).sum()), int((change < 0).sum())
        outcome: Outcome = "rises" if rises > falls and coin_tail(rises, rises + falls) < 0.05 else "blind"
        if len(change) and falls / len(change) >= least:
            outcome = "pass"
        tests.append(_make_test(metric, name, "fault", outcome, change, spread))
        if len(change) >= _LEAST_ITEMS:
            drops[KINDS[name].severity].append(float(-change.mean()))
    if drops["minor"] and drops["major"]:
        # Whether major faults cost more than minor ones, over the faults that an item took.
        with np.errstate(all="ignore"):
            faults = [(KINDS[name].severity, own) for name, own in changes.items() if name in KINDS]
            minor = np.nanmean([own for severity, own in faults if severity == "minor"], 0)
            major = np.nanmean([own for severity, own in faults if severity == "major"], 0)
        change = (major - minor)[~np.isnan(major - minor)]
        outcome = "pass" if len(change) and (change < 0).mean() >= least else "fail"
        tests.append(_make_test(metric, SEVERITY_TEST, "severity", outcome, change, spread))
    names = [_ORIGINAL, *(format_count(count, "fault") for count in range(1, MOST_FAULTS + 1))]
    if all(name in rows for name in names):
        # Whether each further fault lowers the mean, and the last one is below the first for a share of the items.
        series = np.array([rows[name] for name in names])
        series = series[:, ~np.isnan(series).any(axis=0)]
        change = series[-1] - series[1]
        passed = len(change) and (change < 0).mean() >= least and (np.diff(series.mean(axis=1)) < 0).all()
        tests.append(_make_test(metric, SERIES_TEST, "series", "pass" if passed else "fail", change, spread))
    for name in (name for name in kinds if name in HARMLESS):
        outcome = "too few"
        if drops["major"] and len(known[name]):
            limit = 0.5 * float(np.mean(drops["major"]))
            outcome = "pass" if np.abs(known[name]).mean() < limit else "over-sensitive"
        tests.append(_make_test(metric, name, "harmless", outcome, known[name], spread))
    return tests


def _make_test(metric: str, test: str, group: TestGroup, outcome: Outcome, change: Floats, spread: float) -> StressTest:
    """The outcome counts if enough items took the change."""
    shares: dict[str, float] = {}
    if len(change):
        signs = {"falls": change < 0, "same": change == 0, "rises": change > 0}
        shares = {name: float(own.mean()) for name, own in signs.items()}
        shares["change"] = float(change.mean() / spread)
    outcome = outcome if len(change) >= _LEAST_ITEMS else "too few"
    return StressTest(metric=metric, test=test, group=group, outcome=outcome, items=len(change), **shares)
