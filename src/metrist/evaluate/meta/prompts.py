"""Find out which prompts help a likelihood metric, on data that people have judged.

The BARTScore paper chose its translation prompt this way (section 4.2.2) and studied where prompts help (section
4.4.2).
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any, ClassVar

import numpy as np

from metrist.errors import SpecError, format_count
from metrist.evaluate.meta import MetaEvaluation, MetaPlan, evaluate, join
from metrist.evaluate.meta.dataset import MetricScores
from metrist.evaluate.plans import as_names
from metrist.metrics.base import Metric, Shard
from metrist.metrics.likelihood.layout import NONE, read_phrases
from metrist.metrics.likelihood.likelihood import NO_PROMPT, Likelihood
from metrist.metrics.registry import build
from metrist.names import NameColumn, find_outputs
from metrist.records import Need
from metrist.report.tables import Change, Column, Count, Number, Share, Table, or_none
from metrist.run import Progress, Results, score
from metrist.scores import Scores

__all__ = ["ALL", "PromptAgreement", "PromptStudy", "aspect_groups", "search_prompts"]

#: Row for the mean of the scores with each prompt.
ALL = "(mean of all prompts)"


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptAgreement:
    """One prompt's agreement with people on one aspect; `gain` is its lead over no prompt."""

    prompt: str
    aspect: str
    value: float
    gain: float
    n: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PromptStudy:
    """Agreement of every prompt with people on every aspect. `aspect_groups` maps aspects, in lower case, to groups."""

    metric: str
    measure: str
    group: str
    figures: tuple[PromptAgreement, ...]
    aspect_groups: Mapping[str, str]
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return (
            f"PromptStudy({format_count(len(self.prompts), 'prompt')} on {', '.join(self.aspects)}; best {self.best!r})"
        )

    @property
    def aspects(self) -> list[str]:
        """The aspects that prompts were tried on."""
        return list(dict.fromkeys(figure.aspect for figure in self.figures))

    @property
    def prompts(self) -> list[str]:
        """The prompts that were tried."""
        names = dict.fromkeys(figure.prompt for figure in self.figures)
        return [prompt for prompt in names if prompt not in (NO_PROMPT, ALL)]

    @property
    def best(self) -> str:
        """The prompt with the highest mean agreement over the aspects; `NO_PROMPT` where none does better."""
        return self.rank([NO_PROMPT, *self.prompts])[0]

    def value(self, prompt: str, aspect: str) -> float:
        """A prompt's agreement with people on one aspect."""
        return next(figure.value for figure in self.figures if (figure.prompt, figure.aspect) == (prompt, aspect))

    def mean(self, prompt: str) -> float:
        """A prompt's mean agreement over the aspects."""
        return float(np.mean([self.value(prompt, aspect) for aspect in self.aspects]))

    def rank(self, prompts: Sequence[str]) -> list[str]:
        """Prompts by mean agreement, best first; those without a figure last."""
        means = {prompt: self.mean(prompt) for prompt in prompts}
        return sorted(prompts, key=lambda prompt: math.inf if math.isnan(means[prompt]) else -means[prompt])

    def share_that_help(self, aspect: str) -> float:
        """The share of prompts that agree better with people on this aspect than no prompt does."""
        without = self.value(NO_PROMPT, aspect)
        return float(np.mean([self.value(prompt, aspect) > without for prompt in self.prompts]))

    def shares_by_group(self) -> dict[str, float]:
        """The mean of `share_that_help` over the aspects of each group."""
        shares: dict[str, list[float]] = {}
        for aspect in self.aspects:
            if group := self.aspect_groups.get(aspect.lower()):
                shares.setdefault(group, []).append(self.share_that_help(aspect))
        return {group: float(np.mean(values)) for group, values in shares.items()}

    def table(self) -> Table:
        """One row per prompt, best first, with rows for no prompt and for the mean of all."""
        several = len(self.aspects) > 1
        columns = [Column("prompt"), *(Column(aspect, "right") for aspect in self.aspects)]
        columns += [*([Column("mean", "right")] if several else []), Column("gain", "right")]
        rows = []
        for prompt in self.rank([NO_PROMPT, ALL, *self.prompts]):
            values = [Number(self.value(prompt, aspect), 4) for aspect in self.aspects]
            gain = Change(self.mean(prompt) - self.mean(NO_PROMPT), decimals=4) if prompt != NO_PROMPT else ""
            mean = [Number(self.mean(prompt), 4)] if several else []
            rows.append([prompt, *values, *mean, gain])
        title = f"prompts by agreement with humans ({self.measure}, group: {self.group}): {self.metric}"
        return Table(title=title, columns=columns, rows=rows, notes=self.notes)

    def shares(self) -> Table:
        """Where prompts help: one row per aspect, and the mean per group of aspects."""
        heads = ("aspect", "group", "prompts that help", "no prompt", "best prompt", "gain", "n")
        rows: list[list[Any]] = []
        for aspect in self.aspects:
            figures = [figure for figure in self.figures if figure.aspect == aspect and figure.prompt in self.prompts]
            best = max(figures, key=lambda figure: -math.inf if math.isnan(figure.value) else figure.value)
            rows.append(
                [
                    aspect,
                    self.aspect_groups.get(aspect.lower(), ""),
                    Share(self.share_that_help(aspect)),
                    Number(self.value(NO_PROMPT, aspect), 4),
                    best.prompt,
                    Change(best.gain, decimals=4),
                    Count(best.n),
                ]
            )
        rows += [["(mean)", group, Share(share), "", "", "", ""] for group, share in self.shares_by_group().items()]
        columns = [Column(head, "left" if head in ("aspect", "group", "best prompt") else "right") for head in heads]
        return Table(
            title=f"where prompts help ({format_count(len(self.prompts), 'prompt')})", columns=columns, rows=rows
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data; NaN is None."""
        return {
            "metric": self.metric,
            "measure": self.measure,
            "group": self.group,
            "best": self.best,
            "rows": [
                {
                    "prompt": figure.prompt,
                    "aspect": figure.aspect,
                    "value": or_none(figure.value),
                    "gain": or_none(figure.gain),
                    "n": figure.n,
                }
                for figure in self.figures
            ],
            "share_that_help": {aspect: or_none(self.share_that_help(aspect)) for aspect in self.aspects},
            "share_by_group": {group: or_none(share) for group, share in self.shares_by_group().items()},
            "notes": list(self.notes),
        }

    def to_json(self) -> str:
        """The same as JSON."""
        return json.dumps(self.to_dict(), indent=1)


def aspect_groups(added: Mapping[str, str] | None = None) -> Mapping[str, str]:
    """Map aspects, in lower case, to semantic overlap, linguistic quality or factual correctness. `added` entries
    take precedence and may name new groups."""
    file = resources.files("metrist.evaluate.meta") / "aspect_groups.toml"
    table = tomllib.loads(file.read_text(encoding="utf-8"))
    shipped = {aspect: group for group, aspects in table.items() for aspect in aspects}
    return {**shipped, **{aspect.lower(): group for aspect, group in (added or {}).items()}}


@dataclass(frozen=True, kw_only=True)
class EachPrompt(Metric):
    """A likelihood metric's score with each of its prompts alone, as parts, so that one run scores them all; the value
    is their mean."""

    metric: Likelihood

    resident: ClassVar[bool] = True

    @property
    def text(self) -> str:
        """The metric's text without its long list of prompts."""
        return replace(self.metric, prompts=NONE).text

    @property
    def needs(self) -> tuple[Need, ...]:
        return self.metric.needs

    def facts(self) -> Mapping[str, str]:
        return self.metric.facts()

    def score(self, shard: Shard) -> Scores:
        return self.metric.each_prompt(shard)


def search_prompts(
    data: Any,
    metric: str | Metric,
    aspects: str | Sequence[str] = (),
    *,
    prompts: str | Sequence[str] | None = None,
    measure: str | None = None,
    group: str = "item",
    gold: str = "mean",
    preferences: bool | None = None,
    groups: Mapping[str, str] | None = None,
    executor: Any = None,
    progress: Progress | None = None,
    score_options: Mapping[str, Any] | None = None,
    **reading: Any,
) -> PromptStudy:
    """Measure how well a likelihood metric agrees with people with each prompt alone, without any, and with all.

    `data` holds records with ratings or preferences, and is read twice; `preferences` says which count, by default
    preferences where there are no ratings. `measure` defaults to spearman, for preferences to darr_wmt17. `prompts`
    takes what a metric's setting of that name takes; by default the metric's own prompts, or the shipped set for its
    direction. `groups` adds aspects to `aspect_groups`. `score_options` are passed to `score` (device, batch_tokens,
    cache), `reading` to `read_records`.
    """
    each = EachPrompt(metric=_with_prompts(metric, prompts))
    judged = join(data, **reading)
    if preferences is None:
        preferences = bool(judged.preferences) and not judged.ratings
    plan = MetaPlan(
        aspects=as_names(aspects),
        measures=(measure or ("darr_wmt17" if preferences else "spearman"),),
        group=group,
        gold=gold,
        preferences=preferences,
        draws=0,
        test="none",
    )
    results = score(data, each, executor=executor, progress=progress, **(score_options or {}), **reading)
    (scores,) = results.scores.values()
    # One column per prompt and one for their mean, in the order of the judged outputs. An output without a score gets
    # row -1, the NaN that is appended.
    items, systems = (NameColumn(labels.codes, labels.names) for labels in (judged.items, judged.systems))
    rows = find_outputs(items, systems, results.items, results.systems)
    columns = {prompt: np.append(values, np.nan)[rows] for prompt, values in scores.parts.items()}
    columns[ALL] = np.mean([values for prompt, values in columns.items() if prompt != NO_PROMPT], axis=0)
    by_prompt = {
        prompt: MetricScores(name=prompt, values=values, higher_is_better=True) for prompt, values in columns.items()
    }
    evaluation = evaluate(replace(judged, scores=by_prompt, choices={}), plan)
    return PromptStudy(
        metric=each.text,
        measure=plan.measures[0],
        group="pairs" if preferences else group,
        figures=_prompt_figures(evaluation),
        aspect_groups=aspect_groups(groups),
        notes=(*_study_notes(evaluation, results), *results.notes),
    )


def _with_prompts(metric: str | Metric, prompts: str | Sequence[str] | None) -> Likelihood:
    """Build the metric with an empty prompt followed by the prompts to try."""
    likelihood = build(metric)
    if not isinstance(likelihood, Likelihood):
        raise SpecError(
            f"{likelihood.name} takes no prompts: expected a likelihood metric, such as bartscore or likelihood"
        )
    if prompts is None:
        default = "source-output" if likelihood.direction == "source->output" else "reference-output"
        prompts = likelihood.prompts if likelihood.prompts != NONE else default
    phrases = [phrase for phrase in read_phrases(prompts) if phrase]
    if not phrases:
        raise SpecError("no prompt to try: name a set, a file with one phrase a line, or phrases")
    return replace(likelihood, prompts=("", *dict.fromkeys(phrases)))


def _prompt_figures(evaluation: MetaEvaluation) -> tuple[PromptAgreement, ...]:
    figures = [figure for figure in evaluation.figures if figure.metric in evaluation.metrics()]
    without = {figure.aspect: figure.value for figure in figures if figure.metric == NO_PROMPT}
    return tuple(
        PromptAgreement(
            prompt=figure.metric,
            aspect=figure.aspect,
            value=figure.value,
            gain=figure.value - without[figure.aspect],
            n=figure.n,
        )
        for figure in figures
    )


def _study_notes(evaluation: MetaEvaluation, results: Results) -> list[str]:
    (scores,) = results.scores.values()
    # Not of all figures: that of the raters counts each output once per rater.
    outputs = max(figure.n for figure in _prompt_figures(evaluation))
    tried = len(evaluation.metrics()) - 2
    judged = "pairs" if evaluation.plan.preferences else "outputs"
    notes = [
        f"The best of {tried} prompts was chosen on these {outputs:,} {judged}, so its figure flatters it: report its "
        "agreement on data that it was not chosen on."
    ]
    failures = list(scores.failures.values())
    if failures:
        notes.append(f"{len(failures):,} of {format_count(len(scores), 'output')} not scored, such as: {failures[0]}")
    return [*notes, *evaluation.notes]
