"""`explain`: outputs with their errors and what judges say about them: found by a metric now or in an earlier run, or
annotated by people."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from metrist.errors import MetristError, RunError, SpecError, agree, did_you_mean, format_count, unknown_name
from metrist.evaluate.selection import find_metric, holds_results, open_run
from metrist.io import Reader, read_records
from metrist.io.reader import check_keywords
from metrist.llm import base as llms
from metrist.llm.estimate import CallEstimate
from metrist.metrics import registry
from metrist.metrics.base import Metric, PartMetric, calls_llm
from metrist.metrics.trained.calibrated import Calibrated
from metrist.names import encode_names, select_names
from metrist.ratings import Error
from metrist.records import Record
from metrist.report.output_card import OutputCard
from metrist.report.outputs import Explanations
from metrist.runtime import Runtime
from metrist.scores import Score
from metrist.settings import LLMSettings, checks_types, select_arguments
from metrist.spec import Spec, parse, split_name

if TYPE_CHECKING:
    from metrist.report.progress import Progress
    from metrist.run.results import Results

#: What finds errors with an LLM, and what does without.
DEFAULT_METRIC, OFFLINE_METRIC = "error_analysis", "errors"
DEFAULT_LIMIT = 20
LLM_HINT = "`llm=\"openai(model='gpt-4o-mini')\"`"
#: Outputs without errors that are kept, as a multiple of the limit: errors of some may follow in later rows.
_MOST_WAITING = 4
_Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Selection:
    """Which outputs to explain: those of an item, of a system, and at most `limit`."""

    item: str | None
    system: str | None
    limit: int | None

    def matches(self, item: str, system: str) -> bool:
        return self.item in (None, item) and self.system in (None, system)

    def describe_empty(self) -> str:
        names = [
            f"{what} {name!r}" for what, name in (("item", self.item), ("system", self.system)) if name is not None
        ]
        return f"there is no output{' of ' if names else ''}{' and '.join(names)}"


@checks_types
def explain(
    source: Any,
    metric: str | Metric | None = None,
    *,
    llm: str | None = None,
    item: str | None = None,
    system: str | None = None,
    limit: int | None = DEFAULT_LIMIT,
    texts: str | os.PathLike[str] | None = None,
    progress: Progress | bool | None = None,
    max_cost: float | None = None,
    concurrency: int | None = None,
    rpm: int | None = None,
    tpm: int | None = None,
    fresh: bool = False,
    retry_failed: bool = False,
    **reading: Any,
) -> Explanations:
    """Return outputs with their errors and judges' reasons, the worst first.

    `source` is a run (its folder, or a .jsonl file that it wrote), whose errors and reasons are shown, or records in
    any form that `read_records` takes. With `llm` or a metric, records are judged now. Without, the errors in their
    rows are shown, in the order of the rows, and then what the shipped models mark in outputs without any. `texts` are
    the records of a run that stores no texts, if they are no longer where it read them. `progress` and the limits on
    LLM calls (`max_cost` and so on) are as for `metrist.score`.
    """
    from metrist.run.loading import fetch_flat

    check_keywords(explain, reading)
    source = fetch_flat(source)
    selection = _Selection(item, system, limit)
    if llm is None and not isinstance(metric, Metric) and holds_results(source):
        return _explain_run(source, metric, texts, selection, reading)
    reader = read_records(source, **reading)
    if llm is None and metric is None:
        return _explain_offline(reader, selection, progress)
    explaining = _build_metric(metric, llm)
    runtime = Runtime.current().override(**select_arguments(LLMSettings, locals()))
    with runtime.activate():
        records, more = _select_records(reader, selection)
        outputs, notes = _judge_records(records, explaining, progress)
    cut = (
        [f"explained {format_count(len(records), 'output')}, the first of the file; `limit` allows more"]
        if more
        else []
    )
    return Explanations(outputs=outputs, notes=[*cut, *reader.skipped.describe(), *notes])


def estimate_explanations(
    source: Any,
    metric: str | Metric | None = None,
    *,
    llm: str | None = None,
    item: str | None = None,
    system: str | None = None,
    limit: int | None = DEFAULT_LIMIT,
    **reading: Any,
) -> CallEstimate:
    """Estimate the LLM calls of `explain` with the same arguments. Nothing is sent."""
    from metrist.run.estimate import estimate
    from metrist.run.loading import fetch_flat

    source = fetch_flat(source)
    if llm is None and (metric is None or (not isinstance(metric, Metric) and holds_results(source))):
        return CallEstimate()
    records, _ = _select_records(read_records(source, **reading), _Selection(item, system, limit))
    return estimate(records, [_build_metric(metric, llm)])


def _build_metric(metric: str | Metric | None, llm: str | None) -> Metric:
    """Build the metric, with the separately named LLM put into it, and check that it can say more than a number."""
    if isinstance(metric, Metric):
        built = metric
    else:
        name, text = split_name(metric or DEFAULT_METRIC)
        spec = parse(text)
        if llm is not None:
            if "llm" in spec.settings:
                raise SpecError(f"{spec.name} already names its llm: leave out `llm`", code="conflict")
            spec = Spec(spec.name, {"llm": llms.parse_llm(llm), **spec.settings})
        built = registry.build(spec).named(name)
    inner = built.metric if isinstance(built, Calibrated) else built
    # A metric from outside may report errors or reasons; only its scores can tell.
    shipped = type(inner).__module__.split(".")[0] == "metrist" and not inner.programs
    if shipped and not inner.reports_errors and not calls_llm(inner):
        # A bad score without errors would read as if there were none.
        raise SpecError(
            f"{built.text} gives numbers and no reasons: use a metric that reports errors, such as consistency, "
            f"{DEFAULT_METRIC} or tigerscore, or a judge",
            code="unsupported",
        )
    return built


def _judge_records(
    records: Sequence[Record], metric: Metric, progress: Progress | bool | None
) -> tuple[list[OutputCard], Sequence[str]]:
    """What a metric says about the records, the worst first, and its notes."""
    from metrist.run import score
    from metrist.run.results import NothingScored

    try:
        results = score(records, [metric], progress=progress)
    except NothingScored as error:
        results = error.results
    scores = results.scores[metric.label]
    outputs = []
    for i in _rank_scores(metric, scores.values).tolist():
        key = (records[i].item, records[i].system)
        outputs.append(_explain_output(metric, scores[i], key, records[i], marks_errors=bool(scores.errors)))
    return outputs, results.notes


def _select_records(reader: Iterable[Record], selection: _Selection) -> tuple[list[Record], bool]:
    """The records to judge, and whether the limit cuts off more of them."""
    matching = (record for record in reader if selection.matches(record.item, record.system))
    records = list(islice(matching, selection.limit))
    if not records:
        raise RunError(selection.describe_empty(), code="no_data")
    return records, selection.limit is not None and next(matching, None) is not None


def _explain_offline(reader: Reader, selection: _Selection, progress: Progress | bool | None) -> Explanations:
    """Show the errors that come with the records, and what the shipped models mark in the others."""
    errors, known, unmarked = _read_annotations(reader, selection)
    outputs = [
        OutputCard(item=key[0], system=key[1], record=known.get(key), errors=tuple(own))
        for key, own in islice(errors.items(), selection.limit)
    ]
    room = None if selection.limit is None else selection.limit - len(outputs)
    records = [record for key, record in known.items() if key not in errors][:room]
    if not outputs and not records:
        raise RunError(selection.describe_empty(), code="no_data")
    notes = []
    if len(outputs) < len(errors):
        total = format_count(len(errors), "output with errors in the file", "outputs with errors in the file")
        notes.append(f"{len(outputs):,} of {total}, as annotated there")
    if records:
        judged, remarks = _judge_records(records, registry.build(OFFLINE_METRIC), progress)
        outputs += judged
        notes += remarks
        notes.append(f"an LLM may find more, and other kinds of errors: {LLM_HINT}")
    left = unmarked - len(records)
    if left > 0:
        others = " without errors in the file" if errors else ""
        was = agree(left, "was", "were")
        notes.append(f"{format_count(left, 'more output')}{others} {was} not looked at; `limit` allows more")
    return Explanations(outputs=outputs, notes=[*notes, *reader.skipped.describe()])


def _read_annotations(reader: Reader, selection: _Selection) -> tuple[dict[_Key, list[Error]], dict[_Key, Record], int]:
    """Errors that come with records, by output; the records of these and of some outputs without any; and the number of
    outputs without errors."""
    errors: dict[_Key, list[Error]] = {}
    marked: dict[_Key, Record] = {}
    # Errors may come in a later row than their output.
    waiting: dict[_Key, Record] = {}
    total = 0
    for entry in reader.entries():
        for annotation in entry.errors:
            key = (annotation.item, annotation.system)
            if selection.matches(*key):
                errors.setdefault(key, []).append(annotation.error)
                if key in waiting:
                    marked[key] = waiting.pop(key)
        for record in entry.records:
            key = (record.item, record.system)
            if not selection.matches(*key):
                continue
            total += 1
            if key in errors:
                marked.setdefault(key, record)
            elif selection.limit is None or len(waiting) < _MOST_WAITING * selection.limit:
                waiting.setdefault(key, record)
    return errors, {**marked, **waiting}, total - len(marked)


def _explain_run(
    source: str | os.PathLike[str],
    metric: str | None,
    texts: str | os.PathLike[str] | None,
    selection: _Selection,
    reading: Mapping[str, Any],
) -> Explanations:
    from metrist.run.texts import OutputFacts, OutputTexts, take_scores

    results = open_run(source)
    # Errors say more than reasons: metrics that mark them come first.
    marking = [m for m in results.metrics if results.scores[m.label].errors]
    giving_reasons = [m for m in results.metrics if m not in marking and results.scores[m.label].explanations]
    chosen: Metric | None
    if metric is None:
        chosen = next(iter([*marking, *giving_reasons]), None)
    else:
        chosen = find_metric(results.metrics, metric, results.unfinished)
    if isinstance(chosen, PartMetric):
        # Errors and reasons belong to the whole metric.
        part = chosen.part
        chosen = chosen.metric
        parts = results.scores[chosen.label].parts
        if part not in parts:
            raise unknown_name(f"part of {chosen.label}", part, parts)
    if chosen is None or (chosen not in marking and chosen not in giving_reasons):
        names = chosen.label if chosen else ", ".join(metric.label for metric in results.metrics)
        raise RunError(f"{source} has no errors and no reasons by {names}: nothing to explain", code="no_data")
    ranked = _rank_outputs(results, chosen, selection)
    shown = ranked[: selection.limit]
    notes = []
    if shown != ranked:
        notes.append(f"{chosen.label}: {len(shown):,} of {len(ranked):,} outputs, the worst first")
    facts: Mapping[int, OutputFacts] = {}
    try:
        opened = OutputTexts.open(results, texts, **reading)
        facts = opened.read(shown)
        notes += opened.remarks
    except MetristError as error:
        if texts is not None:
            raise
        notes.append(f"Texts are not shown: {error} (`texts` names others)")
    judges = [m for m in giving_reasons if m is not chosen and metric is None]
    blocks = take_scores(results, shown)
    outputs = []
    for place, row in enumerate(shown):
        key = (results.items[row], results.systems[row])
        record = facts[row].record if facts else None
        score = blocks[chosen.label][place]
        explained = _explain_output(chosen, score, key, record, marks_errors=chosen in marking)
        others = {judge.label: blocks[judge.label][place] for judge in judges}
        outputs.append(replace(explained, scores={**explained.scores, **others}))
    if facts and any(output.output is None for output in outputs):
        notes.append("some outputs are not in the files that were read: name the run's records by `texts`")
    notes += [f"also with errors: {m.label} (-m)" for m in marking if m is not chosen and metric is None]
    return Explanations(outputs=outputs, notes=notes)


def _rank_outputs(results: Results, metric: Metric, selection: _Selection) -> list[int]:
    """The indices of the selected outputs, the worst score first and failed ones last."""
    rows = np.arange(len(results))
    for what, name, column in (("item", selection.item, results.items), ("system", selection.system, results.systems)):
        if name is None:
            continue
        if name not in column:
            raise RunError(
                f"this run has no {what} {name!r}{did_you_mean(name, dict.fromkeys(column))}", code="unknown_name"
            )
        rows = np.intersect1d(rows, select_names(encode_names(column), {name}))
    ranked: list[int] = rows[_rank_scores(metric, results.scores[metric.label].values[rows])].tolist()
    return ranked


def _rank_scores(metric: Metric, values: NDArray[np.float64]) -> NDArray[np.intp]:
    """The positions of the worst scores first, and of failures, which have no score, last."""
    return np.argsort(-values if metric.higher_is_better is False else values, kind="stable")


def _explain_output(
    metric: Metric, score: Score, key: _Key, record: Record | None, *, marks_errors: bool
) -> OutputCard:
    inner = metric.metric if isinstance(metric, Calibrated) else metric
    # What a metric of errors says about an output is a note on an irregular answer.
    is_note = inner.reports_errors or marks_errors
    own = Score(
        value=score.value,
        failure=score.failure,
        raw=score.raw if score.failure else None,
        explanation=None if is_note else score.explanation,
    )
    return OutputCard(
        item=key[0],
        system=key[1],
        record=record,
        errors=score.errors,
        by=metric.label,
        scores={metric.label: own},
        note=score.explanation if is_note else None,
    )
