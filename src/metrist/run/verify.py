"""`verify`: is a run folder what it claims to be? Files are checked by their hashes, and a sample is scored again."""

from __future__ import annotations

import hashlib
import heapq
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from metrist.errors import MetristError, RunError, agree, format_count
from metrist.io.hashes import hash_records
from metrist.metrics.base import Metric, calls_llm
from metrist.metrics.registry import build
from metrist.records import Record, RecordColumns
from metrist.report.tables import Column, Table
from metrist.run.inputs import find_changed_inputs, read_inputs
from metrist.run.loading import UnavailableMetric as UnavailableMetric
from metrist.run.loading import build_stored_metric
from metrist.run.manifest import Damaged, Part, StoredMetric, Version
from metrist.run.run import Run, is_run, open_run
from metrist.run.score_tables import HashIndex
from metrist.run.scoring import score
from metrist.run.tables import read_hashes, read_records_table
from metrist.runtime import Runtime
from metrist.scores import Scores, take_stats
from metrist.settings import checks_types

CheckName = Literal["files", "inputs", "signature", "scores"]
#: Differences up to this, absolute or relative, are those of other batches and processors.
TOLERANCE = 1e-6
#: Records that are hashed at once.
_BLOCK = 4096
_NO_CODE = "its code is not available here: name it with -m to have it imported"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationCheck:
    """The result of one check, of one metric or of the whole run. `passed` is None for what could not be checked."""

    check: CheckName
    metric: str = ""
    passed: bool | None
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What `verify` found in a run folder."""

    run: str
    findings: tuple[VerificationCheck, ...]

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
        return {"run": self.run, "passed": self.passed, "findings": list(map(asdict, self.findings))}

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


@checks_types
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

    `run` may be a URL (s3://…); nothing is written there. `files` are the inputs of a run without texts where they are
    no longer found, `reading` options of `read_records`. Metrics from outside the catalog are imported only if
    `metrics` names them. `sample` outputs are chosen by `seed`. Metrics that call an LLM are scored again only with
    `allow_llm`: their answers may differ, and cost money.
    """
    if not is_run(run):
        raise RunError(
            f"{run} is not a run folder: only a run folder has the hashes that `verify` checks", code="invalid_value"
        )
    if sample < 1:
        raise RunError(f"sample must be at least 1, got {sample}", code="invalid_value")
    opened = open_run(run)
    built = {metric.text: metric for metric in map(build, metrics)}
    finished = [(metric, version) for metric in opened.manifest.metrics if (version := metric.finished)]
    findings = [
        VerificationCheck(check="files", metric=metric.text, passed=False, message="it was not finished")
        for metric in opened.manifest.metrics
        if not metric.finished
    ]
    findings += [_check_records(opened), *(_check_scores_files(opened, *stored) for stored in finished)]
    changed, notes = find_changed_inputs(opened, [metric.text for metric, _ in finished])
    findings += [VerificationCheck(check="inputs", passed=False, message=change.message) for change in changed]
    findings += [VerificationCheck(check="inputs", passed=None, message=note) for note in notes]
    if not changed and not notes:
        findings.append(VerificationCheck(check="inputs", passed=True, message="all files are as they were scored"))
    try:
        records = _draw_sample(read_inputs(opened, files, **reading), sample, seed)
    except MetristError as error:
        records, missing = [], str(error)
    else:
        missing = "the inputs hold none of the outputs that were scored"
    for stored, version in finished:
        metric = built.get(stored.text) or build_stored_metric(
            stored.text, version.signature, stored.higher_is_better, Scores(values=np.empty(0))
        )
        findings.append(_check_signature(metric, stored.text, version.signature))
        if not records:
            findings.append(VerificationCheck(check="scores", metric=stored.text, passed=None, message=missing))
            continue
        findings.append(_check_scores(metric, opened, stored, records, tolerance, allow_llm, runtime))
    return Verification(run=os.fspath(run), findings=tuple(findings))


def _read_part(run: Run, folder: str, part: Part) -> pa.Table:
    """A part whose bytes are those that its name stands for; else `Damaged`."""
    run.store.verify_part(folder, part)
    return run.store.read_part(folder, part)


def _check_records(run: Run) -> VerificationCheck:
    """Whether the tables of the inputs are whole, and the hashes of records those of their texts."""
    problems, files, count = list[str](), 0, 0
    for one in run.manifest.inputs:
        for folder, part in ((folder, part) for folder, parts in one.tables.items() for part in parts):
            files += 1
            try:
                table = _read_part(run, folder, part)
                if folder == "records":
                    count += len(table)
                    if run.has_texts and not np.array_equal(
                        hash_records(read_records_table(table)), read_hashes(table["record"])
                    ):
                        raise Damaged(f"{folder}/{part.file} has a record with another hash than that of its texts")
            except Damaged as error:
                problems.append(str(error))
            except (KeyError, ValueError, TypeError, pa.ArrowException) as error:
                problems.append(f"{folder}/{part.file} is no table of records: {error}")
    expected = sum(one.records for one in run.manifest.inputs)
    if not problems and count != expected:
        problems.append(f"the files hold {format_count(count, 'record')}, expected {expected:,}")
    return _conclude_files(run, "", problems, files, format_count(count, "record"))


def _check_scores_files(run: Run, metric: StoredMetric, version: Version) -> VerificationCheck:
    """Whether all files of a metric are there, whole, and of this metric and signature."""
    problems, count = list[str](), 0
    for part in version.parts:
        try:
            table = _read_part(run, metric.place, part)
            facts = json.loads((table.schema.metadata or {}).get(b"metrist", b"{}"))
        except (Damaged, ValueError) as error:
            problems.append(str(error))
            continue
        count += len(table)
        if facts.get("signature") != version.signature:
            problems.append(f"{metric.place}/{part.file} has another signature: {facts.get('signature')!r}")
    return _conclude_files(run, metric.text, problems, len(version.parts), format_count(count, "score"))


def _conclude_files(run: Run, metric: str, problems: Sequence[str], files: int, rows: str) -> VerificationCheck:
    message = f"{format_count(files, 'file')} with {rows}, all hashes right"
    if problems:
        more = f" (and {len(problems) - 1:,} more)" if len(problems) > 1 else ""
        message = problems[0].removeprefix(f"{run.store.path}/") + more
    return VerificationCheck(check="files", metric=metric, passed=not problems, message=message)


def _check_signature(metric: Metric, text: str, stored: str) -> VerificationCheck:
    """Whether this installation computes the metric as the run did."""
    passed: bool | None = None
    try:
        message = signature = metric.signature
    except MetristError as error:
        message = str(error)
    else:
        if isinstance(metric, UnavailableMetric):
            message = _NO_CODE
        elif not (passed := signature == stored):
            then, now = stored.split(" | "), signature.split(" | ")
            gone = " | ".join(piece for piece in then if piece not in now)
            new = " | ".join(piece for piece in now if piece not in then)
            message = f"the run has {gone!r} where this installation has {new!r}"
    return VerificationCheck(check="signature", metric=text, passed=passed, message=message)


def _draw_sample(records: Iterable[Record], size: int, seed: int) -> list[Record]:
    """The records whose hashes come first if they are hashed again with the seed: the same whatever the order of the
    input, and without holding it in memory."""
    prefix, source = f"{seed}:".encode(), iter(records)

    def keyed() -> Iterator[tuple[bytes, int, Record]]:
        number = 0
        while block := list(islice(source, _BLOCK)):
            for record, digest in zip(block, hash_records(RecordColumns.of(block)), strict=True):
                number += 1
                yield hashlib.sha256(prefix + digest.tobytes().hex().encode()).digest(), number, record

    return [record for *_, record in heapq.nsmallest(size, keyed())]


def _check_scores(
    metric: Metric,
    run: Run,
    stored: StoredMetric,
    records: Sequence[Record],
    tolerance: float,
    allow_llm: bool,
    runtime: Runtime | None,
) -> VerificationCheck:
    """Whether scoring some records again gives the stored scores."""

    def conclude(passed: bool | None, message: str) -> VerificationCheck:
        return VerificationCheck(check="scores", metric=stored.text, passed=passed, message=message)

    if stored.compares:
        return conclude(None, "choices between two outputs are not made again")
    if isinstance(metric, UnavailableMetric):
        return conclude(None, _NO_CODE)
    if calls_llm(metric) and not allow_llm:
        return conclude(None, "it calls an LLM, whose answers may differ and cost money: `allow_llm` scores it again")
    try:
        hashes = run.read_hashes()
        block, missing = run.read_scores(stored, hashes)
        numbers = HashIndex(hashes).find(hash_records(RecordColumns.of(records)))
        numbers[np.isin(numbers, missing)] = -1
        rows = np.flatnonzero(numbers >= 0)
        then = _take_numbers(block, numbers[rows])
    except RunError as error:
        return conclude(None, str(error))
    if not len(rows):
        return conclude(None, "none of the sampled outputs has a stored score")
    sampled = [records[row] for row in rows.tolist()]
    try:
        results = score(sampled, [metric], runtime=runtime, progress=False)
    except MetristError as error:
        return conclude(False, f"it cannot be scored again: {error}")
    now = _take_numbers(results.scores[metric.label], np.arange(len(sampled)))
    differences = _measure_differences(then, now)
    wrong = np.flatnonzero(differences > tolerance)
    count = format_count(len(sampled), "output")
    if len(wrong):
        record, old, new = sampled[wrong[0]], then["value"][wrong[0]], now["value"][wrong[0]]
        share = f"{len(wrong):,} of {count} {agree(len(wrong), 'differs', 'differ')}"
        example = f"item {record.item!r} of {record.system!r} has {old:.6g} in the run and {new:.6g} now"
        return conclude(False, f"{share}, such as: {example}")
    largest = differences.max()
    return conclude(True, f"{count} scored again: {'equal' if not largest else f'equal within {largest:.1g}'}")


def _take_numbers(scores: Scores, rows: NDArray[np.int64]) -> dict[str, NDArray[np.float64]]:
    """The values, parts and statistics of some scores."""
    parts = {f"part {name}": np.asarray(column[rows], np.float64) for name, column in scores.parts.items()}
    statistics = {f"statistic {n}": column for n, column in enumerate(take_stats(scores, rows).astype(np.float64).T)}
    return {"value": scores.values[rows], **parts, **statistics}


def _measure_differences(
    then: dict[str, NDArray[np.float64]], now: dict[str, NDArray[np.float64]]
) -> NDArray[np.float64]:
    """For each score the largest difference between two computations, relative to numbers above 1; infinite where one
    lacks a number."""
    # Where every output failed, there are no parts, and the width of the metric's statistics is not known.
    absent = {name: np.full(len(then["value"]), 0.0 if name.startswith("statistic") else np.nan) for name in then | now}
    old = np.stack([then.get(name, column) for name, column in absent.items()])
    new = np.stack([now.get(name, column) for name, column in absent.items()])
    with np.errstate(invalid="ignore"):
        differences = np.abs(old - new) / np.maximum(1, np.abs(old))
    differences[(old == new) | (np.isnan(old) & np.isnan(new))] = 0
    differences[np.isnan(old) != np.isnan(new)] = np.inf
    largest: NDArray[np.float64] = differences.max(axis=0)
    return largest
