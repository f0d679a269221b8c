"""Scores and choices in words and tables. Renderers take results and ask them for system scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from metrist.errors import format_count
from metrist.names import encode_names, split_positions
from metrist.report.cells import Better, Column, Count, Estimate, MetricSignature, Number, Share, Shares, decimals_for
from metrist.report.tables import Table
from metrist.scores import Failure, FailureKind, Scores, count_reasons

#: Characters of an answer that a message quotes.
_MAX_QUOTE = 200
#: In the remark of a metric on how many of its outputs were scored.
_COVERED = "outputs were scored"


def build_score_table(
    results: Any, draws: int, seed: int, confidence: float, name_in_papers: Callable[[Any], str]
) -> Table:
    """One row per system and one column per metric. Coverage is the least, where that of metrics differs; not of their
    parts, as `quality` takes other parts for other tasks."""
    rows = results.system_scores(draws, seed, confidence)
    columns = results.columns
    headers = results.headers(columns) if len(columns) > len(results.metrics) else [metric.label for metric in columns]
    decimals: dict[str, int] = {}
    for metric in columns:
        # By the metric's bounds, or by its scores where it declares none.
        low, high = metric.bounds
        if not np.isfinite(metric.bounds).all():
            values = [row.value for row in rows if row.metric == metric.label and np.isfinite(row.value)]
            low, high = min(values, default=0.0), max(values, default=0.0)
        decimals[metric.label] = decimals_for(low, high)
    by_system: dict[str, list[Any]] = {}
    for row in rows:
        by_system.setdefault(row.system, []).append(row)
    differ = any(row.n != group[0].n for group in by_system.values() for row in group)
    lines: list[list[object]] = []
    for system, group in by_system.items():
        least = min((row for row in group if row.metric in results.scores), key=lambda row: row.coverage)
        estimates = [Estimate(row.value, row.low, row.high, decimals[row.metric]) for row in group]
        line = [system, *estimates, Count(least.n), Share(least.coverage)]
        if differ:
            line.append(Shares(dict(zip(headers, (row.coverage for row in group), strict=True))))
        lines.append(line)
    lower = [metric.label for metric in results.metrics if metric.higher_is_better is False]
    return Table(
        title="System scores",
        columns=[
            Column("system"),
            *(score_column(metric, name_in_papers, header) for metric, header in zip(columns, headers, strict=True)),
            Column("scored", "right"),
            Column("coverage", "right"),
            *([Column("coverage of")] if differ else []),
        ],
        rows=lines,
        notes=(
            *([f"Lower is better: {', '.join(lower)}"] if lower else []),
            f"{confidence:.0%} intervals: {draws:,} bootstrap resamples of the items, seed {seed}",
        ),
        remarks=_list_remarks(results),
        signatures=sign_metrics(results.metrics, results.signatures, results.reference_counts),
    )


def _list_remarks(results: Any) -> list[str]:
    remarks = []
    items = encode_names(results.items).codes
    systems = encode_names(results.systems)
    first, *others = (np.unique(items[positions]) for positions in split_positions(systems))
    if any(not np.array_equal(other, first) for other in others):
        remarks.append("The systems have outputs for different items: `metrist compare` compares them on shared ones")
    remarks += results.notes
    for label, scores in results.scores.items():
        # Metrics that ask an LLM say it in a remark of their own.
        if not any(note.startswith(f"{label}: ") and _COVERED in note for note in results.notes):
            remarks += describe_missing_scores(label, scores)
    return remarks


def score_column(metric: Any, name_in_papers: Callable[[Any], str], header: str | None = None) -> Column:
    """The column of a metric's scores, with what a table for a paper must know of the metric."""
    better: dict[bool | None, Better] = {True: "higher", False: "lower", None: "neither"}
    title = partial(name_in_papers, metric)
    return Column(header or metric.label, "right", better[metric.higher_is_better], title)


def sign_metrics(
    metrics: Sequence[Any], signatures: Mapping[str, str], reference_counts: Sequence[int]
) -> list[MetricSignature]:
    """The signatures at the foot of a table; sacreBLEU's has `?` where the number of references is not known."""
    references = str(reference_counts[0]) if len(reference_counts) == 1 else "var" if reference_counts else "?"
    return [
        MetricSignature(metric.label, signatures[metric.label], metric.peer_signature(references)) for metric in metrics
    ]


# ---- Failures in words ----


def describe_missing_scores(label: str, scores: Scores) -> list[str]:
    """How many outputs a metric did not score, and why; nothing if it scored all."""
    reasons = _list_reasons(scores.failures)
    outputs = format_count(len(scores) - scores.pending, "output")
    return [f"{label}: {len(reasons):,} of {outputs} not scored, {summarize_reasons(reasons)}"] if reasons else []


def describe_total_failure(text: str, scores: Scores) -> str | None:
    """The message about a metric that failed on every record; None if some are scored, or all pending."""
    if len(scores.failures) < len(scores) or not len(scores):
        return None
    if scores.pending == len(scores):
        return None
    reasons = _list_reasons(scores.failures)
    return describe_failures(text, "records", reasons, [scores.raws[i] for i in sorted(scores.raws)])


def describe_failures(text: str, what: str, reasons: Sequence[str], raws: Iterable[str]) -> str:
    """That a metric failed on everything, why, and the beginning of the first answer."""
    counts = count_reasons(reasons)
    why = f": {counts[0][0]}" if len(counts) == 1 else f", {summarize_reasons(reasons)}"
    return f"{text} failed on all {len(reasons):,} {what}{why}{quote_first_answer(raws)}"


def _list_reasons(failures: Mapping[int, Failure]) -> list[Failure]:
    """The reasons why outputs have no score. Pending outputs are left out: a note of the run counts them."""
    return [failures[i] for i in sorted(failures) if failures[i].kind is not FailureKind.pending]


def summarize_reasons(reasons: Sequence[str]) -> str:
    """The most frequent of some failures' reasons."""
    reason, times = count_reasons(reasons)[0]
    return f"most often ({times:,}): {reason}" if times > 1 else f"such as: {reason}"


def quote_first_answer(raws: Iterable[str]) -> str:
    """The beginning of the first answer that is not blank, as the end of a message; empty if there is none."""
    line = next((" ".join(raw.split()) for raw in raws if raw.strip()), "")
    shown = line if len(line) <= _MAX_QUOTE else f"{line[:_MAX_QUOTE]}…"
    return f"; the first answer: {shown!r}" if line else ""


# ---- Choices between two outputs ----


def build_win_table(rows: Sequence[Any], notes: Sequence[str]) -> Table:
    """Win rates, one row per comparator and system."""
    undetermined = []
    for comparator in dict.fromkeys(row.comparator for row in rows if math.isnan(row.strength)):
        own = [row for row in rows if row.comparator == comparator]
        why = "every comparison is a tie" if any(row.tied for row in own) else "no pair was judged"
        if any(row.won for row in own):
            why = "some systems never lost to others, or never won, ties aside"
        undetermined.append(f"{comparator}: strengths are not determined: {why}")
    with_lengths = any(not math.isnan(row.length_free) for row in rows)
    with_failures = any(row.failed for row in rows)
    failed = ["failed", "if lost", "if won"] if with_failures else []
    names = ["win rate", *(["length-free"] if with_lengths else []), "won", "tied", "lost", *failed, "strength"]
    return Table(
        title="Win rates",
        columns=[Column("comparator"), Column("system"), *(Column(name, "right") for name in names)],
        rows=[
            [
                row.comparator,
                row.system,
                Estimate(row.value, row.low, row.high),
                *([Estimate(row.length_free, row.length_free_low, row.length_free_high)] if with_lengths else []),
                Count(row.won),
                Count(row.tied),
                Count(row.lost),
                *([Count(row.failed), Number(row.worst), Number(row.best)] if with_failures else []),
                None if math.isnan(row.strength) else f"{row.strength:+.2f} ± {row.error:.2f}",
            ]
            for row in rows
        ],
        notes=(
            "A tie is half a win. Strength is Bradley and Terry's with ties, on the log scale, ± its standard error.",
            *(["Length-free: the win rate if both outputs were equally long."] if with_lengths else []),
            *undetermined,
            *notes,
        ),
    )


def build_comparator_table(rows: Sequence[Any], agreements: Sequence[Any]) -> Table:
    """How comparators chose, one row each, with a column of accuracy for each aspect that people chose by."""
    aspects = list(dict.fromkeys(agreement.aspect for agreement in agreements))
    estimates = {
        (agreement.comparator, agreement.aspect): Estimate(agreement.value, agreement.low, agreement.high)
        for agreement in agreements
    }
    notes = []
    if any(not math.isnan(row.flips) for row in rows):
        notes.append(
            "Flips: the share of pairs where the choice changed with the order of the two; such a pair is a tie."
        )
    # The number of pairs and the accuracy of a coin, for each comparator where they judged different pairs.
    for aspect in aspects:
        shown = [agreement for agreement in agreements if agreement.aspect == aspect and agreement.pairs]
        miss = "a tie is a miss where people prefer one"
        share = f"As people, {aspect} ({miss}): the share of pairs where the comparator chose as most people did"
        if len({(agreement.pairs, agreement.chance) for agreement in shown}) == 1:
            notes.append(f"{share}, of {shown[0].pairs:,}; a coin would reach {shown[0].chance:.3f}.")
        elif shown:
            each = ", ".join(f"{own.comparator} {own.pairs:,} and {own.chance:.3f}" for own in shown)
            notes.append(
                f"{share}. Comparators judged different pairs; how many, and what a coin would reach on them: {each}."
            )
    names = ["pairs", "judged", "ties", "flips", *(f"as people: {aspect}" for aspect in aspects)]
    cost = any("cost" in row.usage for row in rows)
    return Table(
        title="Comparators",
        columns=[
            Column("comparator"),
            *(Column(name, "right") for name in [*names, *(["US dollars"] if cost else [])]),
        ],
        rows=[
            [
                row.comparator,
                Count(row.pairs),
                Share(row.judged / row.pairs),
                Share(row.ties),
                Estimate(row.flips, row.flips_low, row.flips_high),
                *(estimates[row.comparator, aspect] for aspect in aspects),
                *([row.usage.get("cost")] if cost else []),
            ]
            for row in rows
        ],
        notes=notes,
    )
