"""What is wrong with outputs: the errors that a metric finds now, found in an earlier run, or that people found."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metrist.errors import MetristError, RunError, SpecError, did_you_mean
from metrist.evaluate.selection import find_metric
from metrist.io import Reader, read_records, read_rows
from metrist.io.reader import check_keywords
from metrist.llm import base as llms
from metrist.llm.budget import Estimate
from metrist.metrics import registry
from metrist.metrics.base import Metric
from metrist.metrics.calibrated import Calibrated
from metrist.metrics.errors.base import ErrorMetric
from metrist.ratings import Error
from metrist.records import Record
from metrist.report.errors import ExplainedOutput, Explanations
from metrist.run.flat_file import COLUMNS
from metrist.run.run_folder import RunFolder, is_run_folder
from metrist.runtime import Runtime
from metrist.scores import Scores
from metrist.spec import Spec, parse

if TYPE_CHECKING:
    from metrist.run.results import Results

DEFAULT = "error_analysis"
LIMIT = 20
_Key = tuple[str, str]


def explain(
    source: Any,
    metric: str | Metric | None = None,
    *,
    llm: str | None = None,
    item: str | None = None,
    system: str | None = None,
    limit: int | None = LIMIT,
    texts: str | os.PathLike[str] | None = None,
    max_cost: float | None = None,
    concurrency: int | None = None,
    rpm: int | None = None,
    tpm: int | None = None,
    **reading: Any,
) -> Explanations:
    """Outputs with their errors.

    `source` is a run (its folder, or a .jsonl file that it wrote), whose errors are shown, or records in any form that
    `read_records` takes. With `llm`, or with a metric, records are judged now; without, the errors that came with them
    are shown. `texts` are the records of a run, which holds none itself, where they do not lie where the run read them.
    What LLMs may cost (`max_cost`) and how fast they are asked is as for `metrist.score`.
    """
    check_keywords(explain, reading)
    if llm is None and not isinstance(metric, Metric) and _is_run(source):
        return _of_run(source, metric, texts, item=item, system=system, limit=limit)
    reader = read_records(source, **reading)
    if llm is None and metric is None:
        return _of_people(reader, item=item, system=system, limit=limit)
    asked = asked_metric(metric, llm)
    _check_finds_errors(asked)
    runtime = Runtime.current().override(max_cost=max_cost, concurrency=concurrency, rpm=rpm, tpm=tpm)
    with runtime.activate():
        return _of_metric(reader, asked, item=item, system=system, limit=limit)


def _check_finds_errors(metric: Metric) -> None:
    """Refuse a metric that gives a number alone: no errors under a bad grade would read as if there were none. What a
    metric from outside finds is its own matter, and only its scores tell."""
    within = metric.metric if isinstance(metric, Calibrated) else metric
    ours = type(within).__module__.split(".")[0] == "metrist" and not within.programs
    if ours and not isinstance(within, ErrorMetric):
        raise SpecError(
            f"{metric.text} gives scores, and reports no errors that could be shown: take one that does, "
            f"{DEFAULT} or tigerscore"
        )


def asked_metric(metric: str | Metric | None, llm: str | None) -> Metric:
    """The metric, with the LLM put into it where that is named apart."""
    if isinstance(metric, Metric):
        return metric
    spec = parse(metric or DEFAULT)
    if llm is None:
        return registry.build(spec)
    if "llm" in spec.settings:
        raise SpecError(f"{spec.name} already says its llm: leave out --llm")
    return registry.build(Spec(spec.name, {"llm": llms.parse_llm(llm), **spec.settings}))


def _is_run(source: Any) -> bool:
    if not isinstance(source, str | os.PathLike):
        return False
    place = Path(source)
    if place.is_dir():
        return True
    if place.suffix != ".jsonl" or not place.is_file():
        return False
    try:
        _, first = next(iter(read_rows(place)))
    except (StopIteration, MetristError):
        return False
    return isinstance(first, Mapping) and all(name in first for name in COLUMNS)


def estimate_explanations(
    source: Any,
    metric: str | Metric | None = None,
    *,
    llm: str | None = None,
    item: str | None = None,
    system: str | None = None,
    limit: int | None = LIMIT,
    **reading: Any,
) -> Estimate:
    """The questions that `explain` with the same arguments would ask. Nothing is sent."""
    from metrist.run.pipeline import estimate

    if llm is None and (metric is None or (not isinstance(metric, Metric) and _is_run(source))):
        return Estimate()
    records, _ = _wanted(read_records(source, **reading), item, system, limit)
    asked = asked_metric(metric, llm)
    _check_finds_errors(asked)
    return estimate(records, [asked])


def _wanted(
    reader: Iterable[Record], item: str | None, system: str | None, limit: int | None
) -> tuple[list[Record], bool]:
    """The records to be judged, and whether there are more of them than the limit allows."""
    wanted = (one for one in reader if item in (None, one.item) and system in (None, one.system))
    records = list(islice(wanted, limit))
    if not records:
        raise RunError(_nothing(item, system))
    # One more may be there: a reader that has been read to its end says nothing.
    return records, next(wanted, None) is not None if limit is not None else False


def _of_metric(
    reader: Reader, metric: Metric, *, item: str | None, system: str | None, limit: int | None
) -> Explanations:
    from metrist.run import score
    from metrist.run.results import NothingScored

    records, more = _wanted(reader, item, system, limit)
    try:
        results = score(records, [metric])
    except NothingScored as fault:
        results = fault.results
    scores = results.scores[metric.text]
    outputs = [_explained(metric.text, scores, n, record) for n, record in enumerate(records)]
    cut = [f"the first {len(records):,} outputs (--limit)"] if more else []
    return Explanations(outputs=outputs, notes=[*cut, *_skipped(reader), *results.notes])


def _skipped(reader: Reader) -> list[str]:
    """Which bad rows were left out."""
    skipped = reader.skipped
    if not skipped.count:
        return []
    rows = "1 bad row was" if skipped.count == 1 else f"{skipped.count:,} bad rows were"
    return [f"{rows} skipped, the first: {skipped.messages[0]}"]


def _of_people(reader: Reader, *, item: str | None, system: str | None, limit: int | None) -> Explanations:
    found: list[ExplainedOutput] = []
    total = 0
    for output in _with_errors(reader):
        if item in (None, output.item) and system in (None, output.system):
            total += 1
            if limit is None or len(found) < limit:
                found.append(output)
    if not found:
        raise RunError(
            f"{_nothing(item, system)} with errors: the rows have none of their own, and --llm says who is to find them"
        )
    cut = [f"{len(found):,} of {total:,} outputs with errors (--limit)"] if total > len(found) else []
    return Explanations(outputs=found, notes=[*cut, *_skipped(reader)])


def _with_errors(reader: Reader) -> Iterator[ExplainedOutput]:
    for entry in reader.entries():
        errors: dict[_Key, list[Error]] = {}
        for one in entry.errors:
            errors.setdefault((one.item, one.system), []).append(one.error)
        records = {(record.item, record.system): record for record in entry.records}
        for key, found in errors.items():
            yield _output(key, records.get(key), tuple(found))


def _of_run(
    source: str | os.PathLike[str],
    metric: str | None,
    texts: str | os.PathLike[str] | None,
    *,
    item: str | None,
    system: str | None,
    limit: int | None,
) -> Explanations:
    from metrist.run import load

    results = load(source)
    told = [one for one in results.metrics if results.scores[one.text].errors]
    chosen = find_metric(results.metrics, metric) if metric is not None else told[0] if told else None
    if chosen is None or not results.scores[chosen.text].errors:
        named = ", ".join(one.text for one in results.metrics)
        raise RunError(f"{source} holds no errors by {chosen.text if chosen else named}: nothing to explain")
    scores = results.scores[chosen.text]
    places = _places(results, scores, item=item, system=system)
    records = _texts_of(source, texts)
    shown = places[:limit]
    outputs = [
        _explained(chosen.text, scores, n, records.get(key), key)
        for n in shown
        for key in [(results.items[n], results.systems[n])]
    ]
    cut = [f"{chosen.text}: {len(shown):,} of {len(places):,} outputs, the worst first"] if shown != places else []
    lost = [_NO_TEXTS] if any(one.output is None for one in outputs) else []
    others = [f"also with errors: {one.text} (-m)" for one in told if one.text != chosen.text and metric is None]
    return Explanations(outputs=outputs, notes=[*cut, *lost, *others])


_NO_TEXTS = "A run holds no texts: --texts FILE says where the records are that it scored"


def _places(results: Results, scores: Scores, *, item: str | None, system: str | None) -> list[int]:
    for what, name, known in (("item", item, results.items), ("system", system, results.systems)):
        if name is not None and name not in known:
            raise RunError(f"this run has no {what} {name!r}{did_you_mean(name, dict.fromkeys(known))}")
    wanted = [
        n
        for n, (one, other) in enumerate(zip(results.items, results.systems, strict=True))
        if item in (None, one) and system in (None, other)
    ]
    # Failed outputs have no value to stand before others by.
    return sorted(wanted, key=lambda n: (n in scores.failures, scores.values[n]))


def _texts_of(source: str | os.PathLike[str], texts: str | os.PathLike[str] | None) -> Mapping[_Key, Record]:
    """The records of a run, from the files that it read if they are still there."""
    if texts is not None:
        files: Sequence[Any] = [texts]
    else:
        place = Path(source)
        named = RunFolder(place).inputs if place.is_dir() and is_run_folder(place) else ()
        files = [name for name in named if Path(name).is_file()]
        if not files or len(files) < len(named):
            return {}
    return {(record.item, record.system): record for record in read_records(files)}


def _explained(
    by: str, scores: Scores, position: int, record: Record | None, key: _Key | None = None
) -> ExplainedOutput:
    score = scores[position]
    where = key or (record.item, record.system) if record else key or ("", "")
    said = {"failure": score.failure, "note": score.explanation, "raw": score.raw if score.failure else None}
    return _output(where, record, score.errors, by=by, value=score.value, **said)


def _output(key: _Key, record: Record | None, errors: tuple[Error, ...], **more: Any) -> ExplainedOutput:
    return ExplainedOutput(
        item=key[0],
        system=key[1],
        output=record.output if record else None,
        source=record.source if record else None,
        task=record.task if record else None,
        language=record.language if record else None,
        errors=errors,
        **more,
    )


def _nothing(item: str | None, system: str | None) -> str:
    wanted = [f"{what} {name!r}" for what, name in (("item", item), ("system", system)) if name is not None]
    return f"there is no output{' of ' if wanted else ''}{' and '.join(wanted)}"
