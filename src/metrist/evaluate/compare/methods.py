"""`methods`: how a run was evaluated, in a paragraph for a paper. All it says comes from the run or its settings."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from metrist.errors import MetristError, RunError, SpecError, agree, escape_controls, format_count, unknown_name
from metrist.evaluate.compare.comparison import open_runs, plan_comparison
from metrist.evaluate.compare.results import TEST_CITATIONS, TEST_NAMES, ComparisonPlan, Marks
from metrist.evaluate.plans import ComparisonTest
from metrist.evaluate.selection import (
    find_signature,
    list_names,
    list_owners,
    pools_to_mean,
    select_systems,
)
from metrist.metrics.base import Metric
from metrist.metrics.cards import citation_keys, name_in_papers, short_citation
from metrist.models.weights import SHIPPED, distribution_name
from metrist.names import encode_names, select_names, take_names
from metrist.report.cells import join_names
from metrist.report.scores import sign_metrics
from metrist.report.tables import escape_latex, escape_markdown
from metrist.run.loading import UnavailableMetric
from metrist.run.results import DRAWS
from metrist.spec import Spec, parse

if TYPE_CHECKING:
    from metrist.run.results import Results

MethodsFormat = Literal["text", "markdown", "latex"]
#: What a hash in a signature is of.
_HASHES = {
    "prompt": "prompt hash",
    "rubric": "rubric hash",
    "weights": "hash of the weights",
    "code": "hash of the code",
    "calibration": "hash of the calibration",
    "idf": "hash of the idf texts",
    "baseline": "hash of the baseline",
}


def describe_methods(
    runs: Results | str | os.PathLike[str] | Sequence[Results | str | os.PathLike[str]],
    systems: Sequence[str] | None = None,
    metrics: str | Sequence[str] | None = None,
    test: ComparisonTest = "both",
    draws: int = 10_000,
    seed: int = 0,
    baseline: str | None = None,
    alpha: float = 0.05,
    interval_draws: int = DRAWS,
    form: MethodsFormat = "text",
    marks: Marks | None = None,
) -> str:
    """How the systems were evaluated, for the methods section of a paper. The arguments are those of `compare`, whose
    tests are described and not run again; `interval_draws` are those of the intervals that `score` shows. What the
    paragraph lacks, such as a metric that is not finished, is noted below it: as a comment in Markdown and LaTeX."""
    forms = get_args(MethodsFormat)
    if form not in forms:
        raise unknown_name("format", form, forms)
    plan = plan_comparison(test, draws, seed, baseline, alpha)
    marks = plan.choose_marks(marks)
    if interval_draws < 0:
        raise RunError(f"`interval_draws` must be at least 0, got {interval_draws}", code="invalid_value")
    by_name, present, columns, _ = open_runs(runs, list_names(metrics))
    opened, chosen = list(by_name.values()), list_owners(columns)
    shown = list(dict.fromkeys([*select_systems(present, systems), *([] if baseline is None else [baseline])]))
    select_systems(present, shown)
    write = _PaperWriter(form)
    sentences = [
        *_describe_data(write, opened, shown, chosen),
        *_describe_metrics(write, opened, chosen),
        *_describe_scores(write, opened, shown, chosen, interval_draws, seed),
    ]
    if len(shown) > 1:
        pairs = len(shown) - 1 if baseline is not None else math.comb(len(shown), 2)
        sentences += _describe_tests(write, plan, pairs, marks)
    notes = [write.comment(note) for run in opened for note in run.notes]
    return "\n".join([" ".join(sentences), *(["", *notes] if notes else [])])


class _PaperWriter:
    """Code, names and citations in the form of the paper."""

    def __init__(self, form: str) -> None:
        self._form = form

    def text(self, text: str) -> str:
        if self._form == "latex":
            return escape_latex(text)
        shown = escape_controls(text)
        return escape_markdown(shown) if self._form == "markdown" else shown

    def code(self, text: str) -> str:
        if self._form == "latex":
            # A signature has no spaces, and LaTeX would not break it.
            breakable = escape_latex(text).replace(r"\textbar{}", r"\textbar\allowbreak{}")
            return rf"\texttt{{{breakable}}}"
        shown = escape_controls(text)
        return f"`{shown}`" if self._form == "markdown" and "`" not in shown else self.text(text)

    def cite(self, *keys: str) -> str:
        """A citation with the space or bracket before it; empty for no key."""
        if not keys:
            return ""
        if self._form == "latex":
            return rf"~\cite{{{','.join(keys)}}}"
        if self._form == "markdown":
            return f" [{'; '.join(f'@{key}' for key in keys)}]"
        return f" ({'; '.join(map(short_citation, keys))})"

    def comment(self, note: str) -> str:
        """A line that is not part of the paper."""
        shown = escape_controls(note)
        if self._form == "markdown":
            # Two hyphens would end the comment.
            return f"<!-- Note: {shown.replace('--', '- -')} -->"
        return f"% Note: {shown}" if self._form == "latex" else f"[Note: {shown}]"

    def describe(self, name: str, keys: Sequence[str], details: Sequence[str]) -> str:
        """A name with its citation and details behind it; plain text has them in one bracket."""
        if self._form == "text":
            return f"{self.text(name)} ({'; '.join([*map(short_citation, keys), *details])})"
        return f"{self.text(name)}{self.cite(*keys)} ({'; '.join(details)})"


def _describe_data(
    write: _PaperWriter, runs: Sequence[Results], systems: Sequence[str], metrics: Sequence[Metric]
) -> Iterator[str]:
    items: set[str] = set()
    outputs: Counter[str] = Counter()
    for run in runs:
        column = encode_names(run.systems)
        rows = select_names(column, set(systems))
        items.update(take_names(encode_names(run.items), rows).names)
        counts_by_code = np.bincount(column.codes[rows], minlength=len(column.names)).tolist()
        outputs.update({name: count for name, count in zip(column.names, counts_by_code, strict=True) if count})
    least, most = min(outputs.values()), max(outputs.values())
    each = f", {least:,} to {most:,} of them for each system," if least < most else ""
    if least == most < len(items):
        each = f", {most:,} of them for each system,"
    signatures = (find_signature(run, metric) for run in runs for metric in metrics)
    versions = sorted({read_signature(signature)[1].get("metrist", "?") for signature in signatures})
    software = write.text(f"metrist {' and '.join(versions)}")
    yield (
        f"We evaluated {format_count(outputs.total(), 'output')} of {format_count(len(systems), 'system')} on "
        f"{format_count(len(items), 'item')}{each} with {software}{write.cite('metrist')}."
    )
    counts = sorted({count for run in runs for count in run.reference_counts})
    if counts and any("references" in metric.needs for metric in metrics):
        number = (
            f"{counts[0]:,} to {format_count(counts[-1], 'reference')}"
            if len(counts) > 1
            else format_count(counts[0], "reference")
        )
        yield f"Outputs are compared with {number} per item."


def _describe_metrics(write: _PaperWriter, runs: Sequence[Results], metrics: Sequence[Metric]) -> Iterator[str]:
    counts = sorted({count for run in runs for count in run.reference_counts})
    signed = {s.name: s.peer for s in sign_metrics(metrics, {metric.label: "" for metric in metrics}, counts)}
    phrases, requests = [], []
    for metric in metrics:
        signature = find_signature(runs[0], metric)
        spec, facts = read_signature(signature)
        text, name = metric.text, name_in_papers(metric)
        if spec is not None and (llms := list(_find_llms(spec))):
            text = spec.name
            if not isinstance(metric, UnavailableMetric):
                # LLMs are described by themselves: addresses of servers are private.
                nested = {key for key, _ in _list_inner_specs(metric.spec)}
                shown = {key: value for key, value in metric.spec.settings.items() if key not in nested}
                text = str(Spec(metric.spec.name, shown))
            described = join_names([write.text(_describe_llm(owner, llm)) for owner, llm in llms], None)
            verb = "asks" if len(llms) == 1 else "asks, in this order,"
            requests.append(f"{write.text(name)} {verb} {described}.")
        details = [write.code(text), *map(write.text, _list_models(metric, spec, signature))]
        if signed[metric.label]:
            details.append(f"sacreBLEU signature {write.code(signed[metric.label])}")
        for fact, value in facts.items():
            if fact in _HASHES:
                details.append(f"{_HASHES[fact]} {write.code(value)}")
            elif fact != "metrist":
                details.append(write.text(f"{fact} {value}"))
        phrases.append(write.describe(name, citation_keys(metric), details))
    yield f"The {'metric is' if len(metrics) == 1 else 'metrics are'} {join_names(phrases, None)}."
    yield from requests


def _describe_scores(
    write: _PaperWriter,
    runs: Sequence[Results],
    systems: Sequence[str],
    metrics: Sequence[Metric],
    draws: int,
    seed: int,
) -> Iterator[str]:
    means = [metric for metric in metrics if pools_to_mean(metric)]
    pooled = [write.text(name_in_papers(m)) for m in metrics if not pools_to_mean(m)]
    if pooled:
        are = agree(len(pooled), "is", "are")
        whole = f"{join_names(pooled, None)} {are} computed over all outputs of a system at once"
        yield f"{whole}; the other scores of a system are means over its outputs." if means else f"{whole}."
    else:
        yield "Scores of a system are means over its outputs."
    if draws:
        bootstrap = f"percentile bootstrap intervals{write.cite('efron-1979-bootstrap')}"
        resamples = format_count(draws, "resample")
        shown = f"Intervals of scores, where they are shown, are 95{write.text('%')} {bootstrap}"
        yield f"{shown} over items ({resamples}, seed {seed})."
    for metric in metrics:
        failed = total = 0
        for run in runs:
            own = select_names(encode_names(run.systems), set(systems))
            failed += int(np.count_nonzero(np.isnan(run[metric].values[own])))
            total += len(own)
        if failed:
            yield (
                f"{write.text(name_in_papers(metric))} has no score for {failed:,} of "
                f"{format_count(total, 'output')}, which {'is' if failed == 1 else 'are'} left out."
            )


def _describe_tests(write: _PaperWriter, plan: ComparisonPlan, pairs: int, marks: Marks) -> Iterator[str]:
    tests = plan.tests
    named = " and ".join(f"{TEST_NAMES[test]}{write.cite(TEST_CITATIONS[test])}" for test in tests)
    what = "all pairs of systems" if plan.baseline is None else f"each system against {write.text(plan.baseline)}"
    yield (
        f"For each metric we test {what} ({format_count(pairs, 'pair')}) on the items for which both have a score, "
        f"with {named}, two-sided, with {plan.draws:,} draws{' each' if len(tests) > 1 else ''} and seed {plan.seed}."
    )
    if pairs == 1:  # Nothing to correct for.
        both = "both p-values are" if len(tests) > 1 else "the p-value is"
        yield f"We call a difference significant if {both} at most {plan.alpha:g}."
    else:
        each = ", for each test by itself" if len(tests) > 1 else ""
        both = "both corrected p-values are" if len(tests) > 1 else "the corrected p-value is"
        yield (
            f"p-values are corrected for the {format_count(pairs, 'pair')} of a metric by Holm's method"
            f"{write.cite('holm-1979-simple')}{each}; we call a difference significant if {both} at most "
            f"{plan.alpha:g}."
        )
    if marks == "letters":
        letters = write.cite("piepho-2004-algorithm")
        yield f"In tables, systems that share a letter do not differ significantly by the metric{letters}."


def read_signature(signature: str) -> tuple[Spec | None, dict[str, str]]:
    """The metric with all its settings, None if it cannot be parsed, and the facts of a signature by name."""
    # Settings may hold the separator; facts follow the version of metrist.
    text, found, rest = signature.rpartition(" | metrist ")
    if not found:
        return None, {}
    facts = {}
    for fact in f"metrist {rest}".split(" | "):
        name, _, value = fact.partition(" ")
        facts[name] = value
    try:
        return parse(text), facts
    except SpecError:
        return None, facts


def _list_inner_specs(spec: Spec) -> Iterator[tuple[str, Spec]]:
    """The metrics and LLMs within a metric, by the names of the settings that hold them."""
    for name, value in spec.settings.items():
        for inner in value if isinstance(value, list | tuple) else (value,):
            if isinstance(inner, Spec):
                yield name, inner


def _find_llms(spec: Spec) -> Iterator[tuple[Mapping[str, Any], Spec]]:
    """The LLMs of a metric, those of metrics within it included, each with the settings of the metric that asks it."""
    for name, inner in _list_inner_specs(spec):
        if name == "llm":
            yield spec.settings, inner
        else:
            yield from _find_llms(inner)


def _list_models(metric: Metric, spec: Spec | None, signature: str) -> list[str]:
    """The models of a metric and of metrics within it, LLMs aside: `model metrist:likelihood-small (metrist-models
    0.1.0)`. A shipped model has a version if the installed one is that of the run; its hash is in the signature."""
    models = dict.fromkeys(_find_models(spec)) if spec else {}
    versions: dict[str, str] = {}
    for name in (name for name, _ in models if name.startswith(SHIPPED) and not isinstance(metric, UnavailableMetric)):
        with suppress(metadata.PackageNotFoundError, MetristError):
            home = distribution_name(name)
            versions[name] = f"{home} {metadata.version(home)}" if metric.signature == signature else ""
    shown = {name: revision or versions.get(name, "") for name, revision in models}
    return [f"model {name}{f' ({detail})' if detail else ''}" for name, detail in shown.items()]


def _find_models(spec: Spec) -> Iterator[tuple[str, str]]:
    if isinstance(model := spec.settings.get("model"), str):
        yield model, f"revision {revision}" if (revision := spec.settings.get("revision")) else ""
    for name, inner in _list_inner_specs(spec):
        if name != "llm":
            yield from _find_models(inner)


def _describe_llm(settings: Mapping[str, Any], llm: Spec) -> str:
    """An LLM by its model and the sampling; the server's address and keys stay out."""
    details = [llm.name] if "model" in llm.settings else []
    if "temperature" in settings:
        details.append(f"temperature {settings['temperature']:g}")
    if "max_tokens" in settings:
        details.append(f"at most {format_count(settings['max_tokens'], 'token')} per answer")
    return f"{llm.settings.get('model', llm.name)} ({', '.join(details)})"
