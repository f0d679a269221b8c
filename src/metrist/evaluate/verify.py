"""`verify`: is a run folder what it claims to be? Files are checked by their hashes, and a sample is scored again."""

from __future__ import annotations

import hashlib
import heapq
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from metrist.errors import MetristError, RunError, agree, format_count
from metrist.io.remote import is_remote
from metrist.metrics.base import Metric, calls_llm
from metrist.metrics.registry import build
from metrist.records import Record
from metrist.report.tables import Column, Table
from metrist.run.columns import remove_columns
from metrist.run.inputs import find_changed_inputs, read_inputs
from metrist.run.loading import StoredMetric, build_stored_metric
from metrist.run.pipeline import score
from metrist.run.remote_folder import fetch_inputs, fetch_run
from metrist.run.run_folder import Complete, MetricFolder, RunFolder, is_run_folder, read_shard
from metrist.run.shard_file import Torn, digest_of, hash_units
from metrist.runtime import Runtime
from metrist.scores import Scores

CheckName = Literal["files", "inputs", "signature", "scores"]
#: Differences up to this, absolute or relative, are those of other batches and processors.
TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check, of one metric or of the whole run. `passed` is None for what could not be checked."""

    check: CheckName
    metric: str = ""
    passed: bool | None
    message: str

    def to_dict(self) -> dict[str, Any]:
        """The finding as plain data."""
        return {"check": self.check, "metric": self.metric, "passed": self.passed, "message": self.message}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What `verify` found in a run folder."""

    run: str
    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        """Whether no check failed, and at least one metric's scores were computed again."""
        checked = any(finding.check == "scores" and finding.passed for finding in self.findings)
        return checked and not any(finding.passed is False for finding in self.findings)

    @property
    def summary(self) -> str:
        """One line: how many checks there were, failed and could not be made."""
        failed = sum(finding.passed is False for finding in self.findings)
        skipped = sum(finding.passed is None for finding in self.findings)
        parts = [f"{failed} failed" if failed else "none failed"]
        parts += [f"{skipped} could not be made"] if skipped else []
        return f"{format_count(len(self.findings), 'check')}, {', '.join(parts)}"

    def to_dict(self) -> dict[str, Any]:
        """The verification as plain data."""
        return {"run": self.run, "passed": self.passed, "findings": [finding.to_dict() for finding in self.findings]}

    def table(self) -> Table:
        """One row per check, those that failed first."""
        words = {False: "FAILED", None: "not checked", True: "passed"}
        order = [False, None, True]
        rows = [
            [words[finding.passed], finding.check, finding.metric, finding.message]
            for finding in sorted(self.findings, key=lambda finding: order.index(finding.passed))
        ]
        columns = [Column(name, "left") for name in ("verdict", "check", "metric", "why")]
        return Table(title=f"metrist verify {self.run}: {self.summary}", columns=columns, rows=rows)

    def __str__(self) -> str:
        return self.table().text()

    def _repr_html_(self) -> str:
        return self.table().render("html")


def verify(
    run: str | os.PathLike[str],
    files: Sequence[str | os.PathLike[str]] = (),
    *,
    metrics: Iterable[str] = (),
    sample: int = 100,
    seed: int = 0,
    tolerance: float = TOLERANCE,
    allow_llm: bool = False,
    runtime: Runtime | None = None,
    **reading: Any,
) -> Verification:
    """Check the files of a run folder, its inputs and signatures, and score a sample of its outputs again.

    `run` may be a URL (s3://…): its files are copied, with the inputs in the same bucket, and nothing is written there.
    `files` are the run's inputs where they are no longer found, `reading` options of `read_records`. Metrics from
    outside the catalog are imported only if `metrics` names them. `sample` outputs are chosen by `seed`. Metrics that
    call an LLM are scored again only with `allow_llm`: their answers may differ, and cost money.
    """
    if isinstance(run, str) and is_remote(run):
        path = fetch_run(run)
        fetch_inputs(run, path)
    else:
        path = Path(run)
    if not is_run_folder(path):
        raise RunError(f"{run} is not a run folder: only a run folder has the hashes that `verify` checks")
    if sample < 1:
        raise RunError(f"sample must be at least 1, got {sample}")
    folder = RunFolder(path)
    # Columns are copies of what the files hold, and whoever wrote them could have written other numbers.
    remove_columns(path)
    built = {metric.text: metric for metric in map(build, metrics)}
    parts = {name: MetricFolder(path, name) for name in folder.metric_folders()}
    pages = {name: page for name, part in parts.items() if (page := part.complete())}
    findings = [
        Finding(check="files", metric=folder.metric_folders()[name], passed=False, message="it was not finished")
        for name in parts
        if name not in pages
    ]
    findings += [_check_files(parts[name], page) for name, page in pages.items()]
    findings += _check_inputs(path, [page.metric for page in pages.values()])
    try:
        records = _draw_sample(read_inputs(path, files, **reading), sample, seed)
    except MetristError as error:
        records, missing = [], str(error)
    else:
        missing = "the inputs hold none of the outputs that were scored"
    for name, page in pages.items():
        metric = built.get(page.metric) or build_stored_metric(
            page.metric, page.signature, page.higher_is_better, Scores(values=np.empty(0))
        )
        findings.append(_check_signature(metric, page))
        if not records:
            findings.append(Finding(check="scores", metric=page.metric, passed=None, message=missing))
            continue
        findings.append(_check_scores(metric, parts[name], page, records, tolerance, allow_llm, runtime))
    return Verification(run=os.fspath(run), findings=tuple(findings))


def _check_files(part: MetricFolder, page: Complete) -> Finding:
    """Whether all files are there, whole, and of the records and the signature that their names promise."""
    problems, count = list[str](), 0
    for name in page.shards:
        try:
            header = read_shard(part.results / name).header
        except FileNotFoundError:
            problems.append(f"{name} is missing")
            continue
        except Torn as error:
            problems.append(f"{name} is damaged: {error}")
            continue
        count += header.count
        if header.signature != page.signature:
            problems.append(f"{name} has another signature: {header.signature!r}")
        # Files of old versions have no hashes.
        elif header.hashes and header.digest != digest_of(header.hashes, header.signature, tokens=header.tokens):
            problems.append(f"{name} is not of the records that its name stands for")
    if not problems and count != page.records:
        problems.append(f"the files hold {count:,} scores, expected {page.records:,}")
    if problems:
        more = f" (and {len(problems) - 1:,} more)" if len(problems) > 1 else ""
        return Finding(check="files", metric=page.metric, passed=False, message=problems[0] + more)
    message = f"{format_count(len(page.shards), 'file')} with {format_count(count, 'score')}, all hashes right"
    return Finding(check="files", metric=page.metric, passed=True, message=message)


def _check_inputs(path: Path, metrics: Sequence[str]) -> Iterator[Finding]:
    changed, notes = find_changed_inputs(path, metrics)
    for change in changed:
        yield Finding(check="inputs", passed=False, message=change.message)
    for note in notes:
        yield Finding(check="inputs", passed=None, message=note)
    if not changed and not notes:
        yield Finding(check="inputs", passed=True, message="all files are as they were scored")


def _check_signature(metric: Metric, page: Complete) -> Finding:
    """Whether this installation computes the metric as the run did."""
    if isinstance(metric, StoredMetric):
        message = "its code is not available here: name it with -m to have it imported"
        return Finding(check="signature", metric=page.metric, passed=None, message=message)
    try:
        signature = metric.signature
    except MetristError as error:
        return Finding(check="signature", metric=page.metric, passed=None, message=str(error))
    if signature == page.signature:
        return Finding(check="signature", metric=page.metric, passed=True, message=signature)
    old, new = set(page.signature.split(" | ")), set(signature.split(" | "))
    then = [piece for piece in page.signature.split(" | ") if piece not in new]
    now = [piece for piece in signature.split(" | ") if piece not in old]
    message = f"the run has {' | '.join(then)!r} where this installation has {' | '.join(now)!r}"
    return Finding(check="signature", metric=page.metric, passed=False, message=message)


def _draw_sample(records: Iterable[Record], size: int, seed: int) -> list[Record]:
    """The records whose hashes come first if they are hashed again with the seed: the same whatever the order of the
    input, and without holding it in memory."""
    prefix = f"{seed}:".encode()

    def keyed() -> Iterator[tuple[bytes, int, Record]]:
        for number, record in enumerate(records):
            (digest,) = hash_units([record])
            yield hashlib.sha256(prefix + digest.encode()).digest(), number, record

    return [record for *_, record in heapq.nsmallest(size, keyed())]


def _check_scores(
    metric: Metric,
    part: MetricFolder,
    page: Complete,
    records: Sequence[Record],
    tolerance: float,
    allow_llm: bool,
    runtime: Runtime | None,
) -> Finding:
    """Whether scoring some records again gives the stored scores."""

    def conclude(passed: bool | None, message: str) -> Finding:
        return Finding(check="scores", metric=page.metric, passed=passed, message=message)

    if isinstance(metric, StoredMetric):
        return conclude(None, "its code is not available here: name it with -m to have it imported")
    if calls_llm(metric) and not allow_llm:
        return conclude(None, "it calls an LLM, whose answers may differ and cost money: --llm scores it again")
    pieces, _ = part.find(0, hash_units(records), page.signature, tokens=False)
    stored = {row: (block, n) for rows, block, _ in pieces if isinstance(block, Scores) for n, row in enumerate(rows)}
    if not stored:
        return conclude(None, "none of the sampled outputs has a stored score")
    rows = sorted(stored)
    try:
        results = score([records[row] for row in rows], [metric], runtime=runtime, progress=False)
    except MetristError as error:
        return conclude(False, f"it cannot be scored again: {error}")
    again = results.scores[metric.label]
    problems, largest = list[str](), 0.0
    for position, row in enumerate(rows):
        block, number = stored[row]
        difference = _measure_difference(block, number, again, position)
        if difference > tolerance:
            record = records[row]
            now, then = again.values[position], block.values[number]
            problems.append(f"item {record.item!r} of {record.system!r} has {then:.6g} in the run and {now:.6g} now")
        else:
            largest = max(largest, difference)
    count = format_count(len(rows), "output")
    if problems:
        share = f"{len(problems):,} of {count} {agree(len(problems), 'differs', 'differ')}"
        return conclude(False, f"{share}, such as: {problems[0]}")
    return conclude(True, f"{count} scored again: {'equal' if not largest else f'equal within {largest:.1g}'}")


def _measure_difference(stored: Scores, number: int, again: Scores, position: int) -> float:
    """The largest difference between two scores, relative to numbers above 1; infinite where one is missing."""
    if (number in stored.failures) != (position in again.failures) or set(stored.parts) != set(again.parts):
        return np.inf
    then = [stored.values[number], *(column[number] for column in stored.parts.values())]
    now = [again.values[position], *(again.parts[name][position] for name in stored.parts)]
    old, new = np.asarray(then, np.float64), np.asarray(now, np.float64)
    if (np.isnan(old) != np.isnan(new)).any():
        return np.inf
    with np.errstate(invalid="ignore"):
        difference = np.where((old == new) | np.isnan(old), 0, np.abs(old - new) / np.maximum(1, np.abs(old)))
    return float(difference.max())
