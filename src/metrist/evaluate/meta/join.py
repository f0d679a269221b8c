"""Record files with judgments and scores, run folders and result files, in any mix, joined by item and system."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from metrist.errors import InputError, RunError
from metrist.evaluate.meta.columns_builder import Gathering, error_spans
from metrist.evaluate.meta.dataset import Cost, Judged, Scored, Spans, chosen, unknown
from metrist.io import Reader, read_records, read_rows
from metrist.io.compression import uncompressed_name
from metrist.run import Results, load
from metrist.run.run_folder import RunFolder, is_run_folder
from metrist.stats import Floats

_RESULT_FIELDS = {"item", "system", "metric", "value", "signature"}
#: Words in a metric's name that say "fewer is better" to a reader; they only ever cause a note.
_LOWER_WORDS = frozenset(
    {"ter", "wer", "cer", "hter", "perplexity", "ppl", "loss", "error", "errors", "distance", "edits"}
)


def join(
    data: Any,
    *,
    item_key: Sequence[str] = (),
    fields: Mapping[str, str] | None = None,
    skip_bad: bool = False,
    system: str | None = None,
    parts: Sequence[str] = (),
    lower_is_better: Sequence[str] = (),
) -> Judged:
    """Everything that the sources say of each output. A source is a path (records with `ratings`, `scores`, `errors`;
    a run folder; a .jsonl file that `metrist score` wrote), a `Results`, or whatever `read_records` takes.

    `parts` takes these parts of the runs' scores (`recall`) in place of their values. `lower_is_better` names the
    aspects and metrics whose larger values are worse, where the data do not say so themselves.
    """
    if isinstance(data, Judged):
        return _turned(data, lower_is_better)
    records, runs = _sorted_out(data)
    gathering, notes = Gathering(), []
    for reader in _readers(records, item_key=item_key, fields=fields, skip_bad=skip_bad, system=system):
        for entry in reader.entries():
            gathering.add(entry)
        notes += _skipped(reader)
    scores, errors = _from_runs(gathering, runs, parts)
    judged = Judged(
        items=gathering.items(),
        systems=gathering.systems(),
        columns=gathering.columns(),
        lengths=gathering.lengths(),
        raters=tuple(gathering.raters.number),
        ratings=gathering.ratings(),
        scores=_merged(_padded(gathering.scores().values(), len(gathering.outputs)), scores, gathering),
        preferences=gathering.preferences(),
        choices=gathering.choices(),
        errors=gathering.errors(),
        metric_errors=errors,
        label_sets=gathering.labels.closed(),
        notes=(*notes, *gathering.repeats(), *(note for _, results in runs for note in results.notes)),
    )
    return _turned(judged, lower_is_better)


def _sorted_out(data: Any) -> tuple[list[Any], list[tuple[str, Results]]]:
    """Sources of records, and results with the name that messages call them by."""
    many = isinstance(data, list | tuple) and data and all(_is_source(one) for one in data)
    records: list[Any] = []
    runs: list[tuple[str, Results]] = []
    for source in data if many else [data]:
        if isinstance(source, Results):
            runs.append((f"the results {len(runs) + 1}", source))
        elif isinstance(source, str | os.PathLike) and _holds_results(Path(source)):
            runs.append((str(source), load(source)))
        else:
            records.append(source)
    return records, runs


def _is_source(one: Any) -> bool:
    return isinstance(one, str | os.PathLike | Results | Reader)


def _holds_results(path: Path) -> bool:
    if path.is_dir():
        return True
    if path.suffix == "" or Path(uncompressed_name(path)).suffix.lower() != ".jsonl" or not path.is_file():
        return False
    first = next(iter(read_rows(path)), None)
    return first is not None and isinstance(first[1], Mapping) and set(first[1]) >= _RESULT_FIELDS


def _readers(sources: Sequence[Any], **options: Any) -> Iterator[Reader]:
    """One reader for all files, so that a row that contradicts another file's is found; one each for the rest."""
    paths = [source for source in sources if isinstance(source, str | os.PathLike)]
    if paths:
        yield read_records([os.fspath(path) for path in paths] if len(paths) > 1 else paths[0], **options)
    for source in sources:
        if not isinstance(source, str | os.PathLike):
            yield read_records(source, **options)


def _skipped(reader: Reader) -> list[str]:
    count = reader.skipped.count
    if not count:
        return []
    rows = "1 bad row was" if count == 1 else f"{count:,} bad rows were"
    return [f"{rows} left out; the first: {reader.skipped.messages[0]}"]


def _from_runs(
    gathering: Gathering, runs: Sequence[tuple[str, Results]], parts: Sequence[str]
) -> tuple[list[Scored], dict[str, Spans]]:
    _check_parts(runs, parts)
    scores: list[Scored] = []
    errors: dict[str, Spans] = {}
    for name, results in runs:
        at = np.fromiter((gathering.number(*key) for key in zip(results.items, results.systems, strict=True)), np.intp)
        costs = _costs(Path(name), results)
        for metric in results.metrics:
            found = results.scores[metric.text]
            for label, values in _columns(metric.text, found.values, found.parts, parts):
                column = np.full(len(gathering.outputs), np.nan)
                column[at] = values
                direction = metric.higher_is_better
                made = Scored(
                    name=label,
                    values=column,
                    higher_is_better=direction,
                    origin=name,
                    cost=costs.get(metric.text, Cost()),
                )
                scores.append(made)
            if found.errors:
                pairs = ((int(at[row]), error) for row, listed in found.errors.items() for error in listed)
                errors[metric.text] = error_spans(pairs)
    return _padded(scores, len(gathering.outputs)), errors


def _columns(
    text: str, values: Floats, parts: Mapping[str, Floats], wanted: Sequence[str]
) -> Iterator[tuple[str, Floats]]:
    there = [part for part in wanted if part in parts]
    if not there:
        yield text, values
    for part in there:
        yield f"{text}:{part}", parts[part]


def _check_parts(runs: Sequence[tuple[str, Results]], wanted: Sequence[str]) -> None:
    known = list(dict.fromkeys(part for _, run in runs for scores in run.scores.values() for part in scores.parts))
    if wanted and not runs:
        raise RunError("parts are kept in runs: give a run folder, or a .jsonl file that `metrist score` wrote")
    for part in wanted:
        if part not in known:
            raise RunError(unknown("part", part, known))


def _padded(scores: Iterable[Scored], outputs: int) -> list[Scored]:
    """The columns made as long as the last source made the list of outputs."""
    return [replace(one, values=np.append(one.values, np.full(outputs - len(one.values), np.nan))) for one in scores]


def _merged(stored: Sequence[Scored], from_runs: Sequence[Scored], gathering: Gathering) -> dict[str, Scored]:
    """One column per metric. Two sources may both score an output only if they say the same."""
    merged: dict[str, Scored] = {}
    for one in [*stored, *from_runs]:
        if one.name not in merged:
            merged[one.name] = one
            continue
        other = merged[one.name]
        both = ~np.isnan(one.values) & ~np.isnan(other.values)
        differ = np.flatnonzero(both & (one.values != other.values))
        if len(differ):
            item, system = list(gathering.outputs)[differ[0]]
            raise InputError(
                f"{one.name} is in {other.origin} and in {one.origin} with different scores: item {item!r} of system "
                f"{system!r} has {other.values[differ[0]]:g} and {one.values[differ[0]]:g}; leave one of the two out"
            )
        direction = other.higher_is_better if one.higher_is_better is None else one.higher_is_better
        values = np.where(np.isnan(other.values), one.values, other.values)
        merged[one.name] = replace(one, values=values, higher_is_better=direction)
    return merged


def _turned(judged: Judged, lower_is_better: Sequence[str]) -> Judged:
    """The data with the named metrics marked, and the named aspects negated: from here on larger is better."""
    chosen("aspect or metric", lower_is_better, [*judged.ratings, *judged.scores])
    ratings = {
        aspect: replace(found, value=-found.value) if aspect in lower_is_better else found
        for aspect, found in judged.ratings.items()
    }
    scores = {
        name: replace(one, higher_is_better=False) if name in lower_is_better else one
        for name, one in judged.scores.items()
    }
    return replace(judged, ratings=ratings, scores=scores)


def looks_lower(name: str) -> bool:
    """Whether a metric's name suggests that lower is better (`TER`, `sentence-WER`, `perplexity`)."""
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
    return any(word.lower() in _LOWER_WORDS or word == "PER" for word in words)


def _costs(path: Path, results: Results) -> dict[str, Cost]:
    if not is_run_folder(path):
        return {}
    folder = RunFolder(path)
    return {metric: _cost(folder.metric(metric).timings) for metric in results.scores}


def _cost(timings: Path) -> Cost:
    """Seconds and money per output over all shards of a metric. Timings are notes: one that is gone or torn is missed
    by nobody."""
    seconds = money = 0.0
    records, paid = 0, False
    for path in sorted(timings.glob("*.json")):
        try:
            facts = json.loads(path.read_bytes())
            seconds, records = seconds + float(facts["seconds"]), records + int(facts["records"])
            usages = facts.get("usage") or {}
            spent = [float(usage["cost"]) for usage in usages.values() if isinstance(usage, dict) and "cost" in usage]
        except (OSError, ValueError, TypeError, KeyError):
            continue
        money, paid = money + sum(spent), paid or bool(spent)
    if not records:
        return Cost()
    return Cost(seconds=seconds / records, money=money / records if paid else np.nan)
