"""Whether an answer addresses its question, and which retrieved passages bear on it; and `rag`, which joins both with
`consistency`. A cross-encoder reads the question and a text together."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import msgspec
import numpy as np

from metrist.errors import ModelError, SpecError, format_count
from metrist.metrics import registry
from metrist.metrics.base import Metric, Shard
from metrist.metrics.model_metric import ShippedModelMetric
from metrist.metrics.trained.consistency import is_question
from metrist.metrics.trained.sentence_metric import sigmoid
from metrist.metrics.trained.support import read_settings
from metrist.models import loading
from metrist.models.batching import split_batches
from metrist.models.windows import TokenizedText, list_windows
from metrist.records import Need, Record
from metrist.scores import Failure, FailureKind, Score, Scores

if TYPE_CHECKING:
    from metrist.models.text_encoder import TextEncoder

#: The head of the encoder, a layer on the first token, and what a model's folder says about what follows it.
HEAD, SETTINGS = "pooler", "relevance.json"
PASSAGES, RELEVANT, BEST = "passages", "relevant", "best"
#: Tokens of a question that are read, and texts that are kept in memory at once.
_MOST_QUESTION, _TEXTS = 192, 2_048
#: A block of at most so many words without the end of a sentence is a heading of the next one.
_HEADING_WORDS = 12
_BLOCK_END, _SENTENCE_END = re.compile(r"\n\s*\n"), re.compile(r"[.!?…:;]\W*\Z")

_NO_QUESTION = Failure(FailureKind.missing_input, "there is neither an instruction nor a question as the source")
_EMPTY_OUTPUT = Failure(FailureKind.missing_input, "the output is empty: there is nothing to judge")
_EMPTY_SOURCE = Failure(FailureKind.missing_input, "the source is empty: there are no passages")
_UNREADABLE = Failure(FailureKind.other, "the question or the text has nothing that the model can read")


class RelevanceSettings(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="metrist_relevance", tag=1
):
    """What follows the head: `weights` times the hyperbolic tangent of its outputs, plus `bias`, is a logit."""

    weights: tuple[float, ...] = ()
    bias: float = 0.0
    #: The logit times `scale` plus `shift` is calibrated.
    scale: float = 1.0
    shift: float = 0.0

    @staticmethod
    def read(folder: Path | None) -> RelevanceSettings:
        settings = read_settings(folder, SETTINGS, RelevanceSettings)
        if not settings.weights:
            raise ModelError(f"{folder} has no {SETTINGS}, so it is not a model of relevance", code="missing_file")
        return settings


def read_relevance(encoder: TextEncoder, settings: RelevanceSettings, pairs: Sequence[tuple[str, str]]) -> list[float]:
    """The probability that each text bears on its question; NaN where the model can read nothing. A text is as relevant
    as its most relevant window."""
    texts = list(dict.fromkeys(text for pair in pairs for text in pair))
    ids = {text.text: text.ids for text in TokenizedText.read(texts, encoder)}
    rows = []
    for number, (question, text) in enumerate(pairs):
        first = ids[question][:_MOST_QUESTION]
        if len(first) and len(ids[text]):
            windows = list_windows(len(ids[text]), [], encoder.max_tokens - 3 - len(first))
            rows += [(number, encoder.join(first, ids[text][start:end])) for start, end in windows]
    # The layer reads the first token of a sequence, which stands for the whole.
    states = encoder.score_spans(HEAD, [row for _, row in rows], [[(0, 1)]] * len(rows))
    logits = np.full(len(pairs), -np.inf)
    weights = np.array(settings.weights)
    for (number, _), (state,) in zip(rows, states, strict=True):
        logits[number] = max(logits[number], float((weights * np.tanh(state)).sum()) + settings.bias)
    return [
        sigmoid(settings.scale * logit + settings.shift) if math.isfinite(logit) else math.nan
        for logit in logits.tolist()
    ]


@dataclass(frozen=True, kw_only=True)
class _RelevanceMetric(ShippedModelMetric):
    model: str = "metrist:english-relevance"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.name_extra(self.model)

    def read(self, shard: Shard, pairs: Sequence[tuple[str, str]]) -> Mapping[tuple[str, str], float]:
        """The probabilities of pairs of a question and a text; each is read once in a shard."""
        known = shard.results(("relevance", self.model))
        if unread := [pair for pair in dict.fromkeys(pairs) if pair not in known]:
            encoder = loading.load_text_encoder(self.model, runtime=shard.runtime)
            settings = RelevanceSettings.read(encoder.folder)
            for batch in split_batches([1] * len(unread), _TEXTS, padded=False):
                own = [unread[at] for at in batch]
                known.update(zip(own, read_relevance(encoder, settings, own), strict=True))
        return known


def find_question(record: Record) -> str:
    """What an output answers: a source that is one question, else the instruction, else the source."""
    source, instruction = (record.source or "").strip(), (record.instruction or "").strip()
    return source if is_question(source) else instruction or source


@dataclass(frozen=True, kw_only=True)
class AnswerRelevance(_RelevanceMetric):
    """The probability that the output addresses its question, right or wrong."""

    catalog_name: ClassVar[str | None] = "answer_relevance"

    def score(self, shard: Shard) -> Scores:
        return self.score_known_languages(shard, self._score)

    def _score(self, shard: Shard) -> Scores:
        pairs = [(find_question(record), record.output) for record in shard.records]
        known = self.read(shard, [pair for pair in pairs if pair[0] and pair[1].strip()])

        def score(question: str, output: str) -> Score:
            if not output.strip():
                return Score.failed(_EMPTY_OUTPUT)
            if not question:
                return Score.failed(_NO_QUESTION)
            value = known[question, output]
            return Score.failed(_UNREADABLE) if math.isnan(value) else Score(value=value)

        return Scores.of(score(*pair) for pair in pairs)


class Passage(NamedTuple):
    """Characters `start` to `end` of a source."""

    start: int
    end: int


def split_passages(source: str) -> list[Passage]:
    """The blocks of a source between blank lines; a heading belongs to the block after it."""
    passages: list[Passage] = []
    begin: int | None = None
    ends = [*_BLOCK_END.finditer(source)]
    starts = [0, *(match.end() for match in ends)]
    for start, end in zip(starts, [*(match.start() for match in ends), len(source)], strict=True):
        block = source[start:end].strip()
        if not block:
            continue
        start = source.index(block, start)
        begin = start if begin is None else begin
        is_heading = len(block.split()) <= _HEADING_WORDS and not _SENTENCE_END.search(block)
        if not is_heading:
            passages.append(Passage(begin, start + len(block)))
            begin = None
    if begin is not None:
        passages.append(Passage(begin, len(source.rstrip())))
    return passages


@dataclass(frozen=True, kw_only=True)
class ContextRelevance(_RelevanceMetric):
    """The share of retrieved passages that bear on the question: the mean of their probabilities."""

    #: A passage with at least this probability is relevant.
    threshold: float = 0.5

    needs: ClassVar[tuple[Need, ...]] = ("source", "instruction")
    catalog_name: ClassVar[str | None] = "context_relevance"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.threshold < 1:
            raise SpecError(f"{self.name}: threshold must be a probability between 0 and 1, got {self.threshold!r}")

    def score(self, shard: Shard) -> Scores:
        return self.score_known_languages(shard, self._score)

    def _score(self, shard: Shard) -> Scores:
        records = [((record.instruction or "").strip(), record.source or "") for record in shard.records]
        passages = {source: split_passages(source) for _, source in dict.fromkeys(records)}
        pairs = [(question, source[p.start : p.end]) for question, source in records for p in passages[source]]
        known = self.read(shard, [pair for pair in pairs if pair[0]])

        def score(question: str, source: str) -> Score:
            if not question or not passages[source]:
                return Score.failed(_EMPTY_SOURCE if question else _NO_QUESTION)
            values = np.array([known[question, source[p.start : p.end]] for p in passages[source]])
            if not np.isfinite(values).all():
                return Score.failed(_UNREADABLE)
            relevant = [str(number) for number, value in enumerate(values, 1) if value >= self.threshold]
            count = f"{len(relevant)} of {format_count(len(values), 'passage')}"
            return Score(
                value=float(values.mean()),
                parts={PASSAGES: float(len(values)), RELEVANT: float(len(relevant)), BEST: float(values.max())},
                explanation=f"relevant: {count} ({', '.join(relevant) or 'none'})",
            )

        return Scores.of(score(*record) for record in records)


@dataclass(frozen=True, kw_only=True)
class Rag(Metric):
    """How good an answer from retrieved passages is: the mean of whether the passages bear on the question, whether the
    answer does, and whether the passages support the answer."""

    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)
    extra: ClassVar[str | None] = "standard"
    resident: ClassVar[bool] = True
    needs: ClassVar[tuple[Need, ...]] = ("source", "instruction")
    reports_errors: ClassVar[bool] = True
    catalog_name: ClassVar[str | None] = "rag"

    @cached_property
    def components(self) -> dict[str, Metric]:
        return {name: registry.build(name) for name in ("context_relevance", "answer_relevance", "consistency")}

    @property
    def aspect_parts(self) -> Mapping[str, tuple[float, float]]:
        return {name: metric.bounds for name, metric in self.components.items()}

    def facts(self) -> Mapping[str, str]:
        return {
            f"{name} {key}": fact for name, metric in self.components.items() for key, fact in metric.facts().items()
        }

    def score(self, shard: Shard) -> Scores:
        columns = {name: metric.score(shard) for name, metric in self.components.items()}
        joined = []
        for row in zip(*columns.values(), strict=True):
            scores = dict(zip(columns, row, strict=True))
            failures = {name: score.failure for name, score in scores.items() if score.failure is not None}
            if failures:
                kind = next(iter(failures.values())).kind
                message = "; ".join(f"{name}: {failure}" for name, failure in failures.items())
                joined.append(Score.failed(message, kind))
                continue
            values = {name: score.value for name, score in scores.items()}
            errors = tuple(error for score in row for error in score.errors)
            explanation = scores["context_relevance"].explanation
            mean = sum(values.values()) / len(values)
            joined.append(Score(value=mean, parts=values, errors=errors, explanation=explanation))
        return Scores.of(joined)

    def describe_misuse(self, records: Sequence[Record]) -> list[str]:
        warnings = (warning for metric in self.components.values() for warning in metric.describe_misuse(records))
        return list(dict.fromkeys(f"{self.label}: {warning}" for warning in warnings))
