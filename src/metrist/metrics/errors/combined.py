"""`errors`: what the shipped models that fit an output mark in it, as one list. It works offline.

`consistency` marks what the source does not support, `fluency` faults of English, and `translation_quality` errors of
translations. Each looks only at outputs that it is made for; a score says which of them did not check it, and why.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np

from metrist.errors import MissingExtra, ModelError, agree, format_count
from metrist.language import is_english
from metrist.metrics import registry
from metrist.metrics.base import Metric, Shard, check_choice
from metrist.metrics.errors.base import compute_overlap, count_words, sum_penalties
from metrist.metrics.model_metric import SHORT_NAMES
from metrist.metrics.prompt_layout import GENERAL_TASK, list_tasks, resolve_task
from metrist.metrics.trained.quality import OPINIONS, TRANSLATION, Size, infer_task, is_passage, is_question
from metrist.metrics.trained.support import ERROR_SETTINGS
from metrist.models.devices import Options
from metrist.models.weights import find_weights
from metrist.ratings import Error
from metrist.records import Record
from metrist.scores import Failure, FailureKind, Score, Scores

CONSISTENCY, FLUENCY, TRANSLATION_QUALITY = MODELS = ("consistency", "fluency", "translation_quality")
#: fluency where another model looks at the same output, which it does with another threshold.
_BESIDE = "fluency beside another model"
#: Thresholds, chosen on highlights that editors wrote for news, most of which are good, and on errors that people
#: marked. An unsupported sentence without marked words is marked whole: a model that marks words needs this seldom, and
#: with .05 leaves .60 of 100 highlights alone (.30 with .5). One that marks sentences leaves .38 of 250 without
#: a mark with .5 and .68 with .3; fluency .65 of 300 with .5 and .87 with .7, but in learners' sentences, which have no
#: source, .5 finds more (F1 of characters .32 against .24).
_WORDS, _SENTENCES, _ALONE, _WITH_OTHERS = 0.05, 0.3, 0.5, 0.7
#: Tasks whose outputs say what the source says.
_RESTATE = ("summarization", OPINIONS, "simplification", "data_to_text")
#: Tasks in which a source that is more than a few words is what the output should rest on.
_MAY_RESTATE = ("long_form_qa", GENERAL_TASK)
#: Errors of two models are one if they share at least this much of what both cover.
_SAME_ERROR = 0.5
#: What stands between the reasons of an explanation.
_BETWEEN = "; "
_EMPTY = Score.failed(Failure(FailureKind.missing_input, "the output is empty: there is nothing to look at"))


class ModelChoice(NamedTuple):
    """The models that look at an output, and why others that one might expect do not."""

    models: tuple[str, ...]
    skipped: Mapping[str, str]

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of the metrics that are computed."""
        return tuple(_BESIDE if name == FLUENCY and len(self.models) > 1 else name for name in self.models)


def choose_models(record: Record, task: str | None = None) -> ModelChoice:
    """The models that are made for a record; `task` overrides its own."""
    task = task or infer_task(record)[0]
    models, skipped = [], {}
    english = is_english(record) is not False
    has_source = bool((record.source or "").strip())
    if task == TRANSLATION:
        if has_source or any(reference.strip() for reference in record.references):
            models.append(TRANSLATION_QUALITY)
        else:
            skipped[TRANSLATION_QUALITY] = "there is neither a source nor a reference"
    elif reason := _refuse_consistency(record, task, english=english, has_source=has_source):
        skipped[CONSISTENCY] = reason
    else:
        models.append(CONSISTENCY)
    if english:
        models.append(FLUENCY)
    elif task != TRANSLATION:
        skipped[FLUENCY] = "the output is not in English"
    return ModelChoice(tuple(models), skipped)


def _refuse_consistency(record: Record, task: str, *, english: bool, has_source: bool) -> str | None:
    """Why an output is not held against its source; None if it is."""
    if not has_source:
        return "there is no source"
    if not english:
        return "the output is not in English"
    if is_english(replace(record, output=record.source or "", language=None)) is False:
        return "the source is not in English"
    if task in _RESTATE:
        return None
    if task not in _MAY_RESTATE:
        return f"outputs of the task {task.replace('_', ' ')} need not say what the source says"
    if record.instruction and task == GENERAL_TASK and not is_question(record.instruction):
        return "with an instruction and no task, the output need not say what the source says (task='summarization')"
    if not is_passage(record.source or ""):
        return "the source is a question or a few words, not a text that the output rests on"
    return None


@dataclass(frozen=True, kw_only=True)
class Errors(Metric):
    """Minus the sum of the penalties of all errors that the shipped models find: 0 if there is none."""

    #: The task of all records; None: each record's own, or a guess.
    task: str | None = None
    #: Of the English models: 'large' agrees better with people and takes several times as long.
    size: Size = "small"

    bounds: ClassVar[tuple[float, float]] = (-math.inf, 0.0)
    extra: ClassVar[str | None] = "standard"
    resident: ClassVar[bool] = True
    reports_errors: ClassVar[bool] = True
    catalog_name: ClassVar[str | None] = "errors"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.task is not None:
            object.__setattr__(self, "task", resolve_task(self.task) or self.task)
            check_choice(self, "task", list_tasks())
        if self.size == "large":
            object.__setattr__(self, "extra", self.size)

    @cached_property
    def components(self) -> dict[str, Metric]:
        """The metrics of the models by their names; fluency twice."""
        model = SHORT_NAMES[self.size]
        # Some models say which words of a sentence the source does not support.
        try:
            marks_words = (find_weights(Options(model=model)).folder / ERROR_SETTINGS).is_file()
        except (MissingExtra, ModelError):
            marks_words = False
        support = _WORDS if marks_words else _SENTENCES
        return {
            CONSISTENCY: registry.build(f"consistency(model='{model}', threshold={support}, supported_words=True)"),
            FLUENCY: registry.build(f"fluency(model='{model}', threshold={_ALONE})"),
            _BESIDE: registry.build(f"fluency(model='{model}', threshold={_WITH_OTHERS})"),
            TRANSLATION_QUALITY: registry.build(TRANSLATION_QUALITY),
        }

    def facts(self) -> Mapping[str, str]:
        """What the numbers of each model depend on; a model that is not installed marks nothing."""
        facts: dict[str, str] = {}
        for name, metric in self.components.items():
            try:
                facts |= {f"{name} {fact}": value for fact, value in metric.facts().items()}
            except (MissingExtra, ModelError):
                facts[name] = "not installed"
        return facts

    def score(self, shard: Shard) -> Scores:
        choices = [choose_models(record, self.task) if record.output.strip() else None for record in shard.records]
        # The models that are not installed, with what to install.
        missing = {}
        for name in dict.fromkeys(name for choice in choices if choice for name in choice.models):
            try:
                self.components[name].facts()
            except (MissingExtra, ModelError) as error:
                missing[name] = str(error).splitlines()[0]
        found: list[dict[str, Score]] = [{} for _ in shard.records]
        for name, metric in self.components.items():
            if (FLUENCY if name == _BESIDE else name) in missing:
                continue
            positions = [i for i, choice in enumerate(choices) if choice and name in choice.metrics]
            if positions:
                inner = shard.part([shard.records[i] for i in positions], tokens=False)
                for i, score in zip(positions, metric.score(inner), strict=True):
                    found[i][FLUENCY if name == _BESIDE else name] = score
        words = count_words([record.output for record in shard.records])
        return Scores.of(
            _EMPTY if choice is None else _combine(choice, missing, found[i], words[i])
            for i, choice in enumerate(choices)
        )

    def remarks(self, scores: Scores) -> list[str]:
        remarks = []
        for name in MODELS:
            counts = scores.parts.get(name)
            looked = 0 if counts is None else int(np.count_nonzero(~np.isnan(counts)))
            if counts is not None and looked:
                errors = format_count(int(np.nansum(counts)), "error")
                model = getattr(self.components[name], "model", None)
                which = f"{name} ({model})" if model else name
                remarks.append(f"{self.label}: {which} found {errors} in {format_count(looked, 'output')}")
        reasons = Counter(reason for text in scores.explanations.values() for reason in text.split(_BETWEEN))
        for reason, count in reasons.items():
            of_all = f"{count:,} of {format_count(len(scores), 'output')}"
            remarks.append(f"{self.label}: {of_all} {agree(count, 'was', 'were')} {reason}")
        return remarks


def _combine(choice: ModelChoice, missing: Mapping[str, str], scores: Mapping[str, Score], words: int) -> Score:
    failed = {name: str(score.failure) for name, score in scores.items() if score.failure is not None}
    reasons = {**choice.skipped, **{name: missing[name] for name in choice.models if name in missing}, **failed}
    explanation = _BETWEEN.join(
        f"not checked by {name} ({reason.replace(_BETWEEN, ', ')})" for name, reason in reasons.items()
    )
    scored = {name: score for name, score in scores.items() if score.failure is None}
    if not scored:
        kinds = [score.failure.kind for score in scores.values() if score.failure is not None]
        return Score.failed(explanation, kinds[0] if kinds else FailureKind.missing_input)
    errors = merge_marks({name: score.errors for name, score in scored.items()})
    counts = {name: float(len(score.errors)) for name, score in scored.items()}
    return sum_penalties(errors, words, counts, explanation)


def merge_marks(errors: Mapping[str, Sequence[Error]]) -> list[Error]:
    """The errors of several models in the order of the text, each with the name of the model that found it.

    What two models mark in about the same words is one error: the words are those of the narrower mark, the penalty and
    the severity those of the higher. A slip within a sentence that is wrong as a whole is an error of its own.
    """
    merged: list[Error] = []
    for name, own in errors.items():
        before = len(merged)
        for error in own:
            named = replace(error, rater=name)
            shares = [compute_overlap(named, other) for other in merged[:before]]
            best = max(range(before), key=shares.__getitem__, default=None)
            if best is None or shares[best] < _SAME_ERROR:
                merged.append(named)
            else:
                merged[best] = _join(merged[best], named)
    return sorted(merged, key=lambda error: (error.start is None, error.start or 0, error.end or 0))


def _join(first: Error, second: Error) -> Error:
    narrow, wide = sorted((first, second), key=lambda error: (error.end or 0) - (error.start or 0))
    heavier = max((first, second), key=lambda error: error.penalty or 0.0)
    return replace(
        narrow,
        penalty=heavier.penalty,
        severity=heavier.severity,
        aspect=heavier.aspect,
        explanation=f"{narrow.explanation} {wide.explanation}",
        revision=narrow.revision,
        rater=f"{first.rater}, {second.rater}",
        source_start=first.source_start if first.source_start is not None else second.source_start,
        source_end=first.source_end if first.source_end is not None else second.source_end,
    )
