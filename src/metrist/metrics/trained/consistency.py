"""Whether the source supports each sentence of an output, by a model that was trained on human judgments of support."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from metrist.errors import SpecError, agree, format_count
from metrist.metrics.base import Shard, check_choice
from metrist.metrics.errors.answers import MAX_PENALTY, MIN_PENALTY
from metrist.metrics.errors.aspect_tables import find_table
from metrist.metrics.errors.evidence import compare
from metrist.metrics.model_metric import SHORT_NAMES, ModelMetric, warn_of_other_language
from metrist.metrics.trained.support import MIN_ROOM, CharacterSpan, Support, SupportReader, Word
from metrist.models.loading import load_text_encoder
from metrist.ratings import Error
from metrist.records import Need, Record
from metrist.scores import Failure, FailureKind, Score, Scores

Numbers = NDArray[np.float64]
Aggregation = Literal["mean", "geometric_mean", "minimum", "product"]

SENTENCES, SUPPORTED, MEAN, MINIMUM = "sentences", "supported", "mean", "minimum"
_AGGREGATIONS: Mapping[Aggregation, Callable[[Numbers], float]] = {
    "mean": lambda support: float(support.mean()),
    "geometric_mean": lambda support: float(np.exp(np.log(support).mean())),
    "minimum": lambda support: float(support.min()),
    "product": lambda support: float(support.prod()),
}
#: What tables of errors call a statement that the source does not support.
_ASPECTS = ("Fact Consistency", "Accuracy")
#: A minor error may cost this much at most, as a penalty and as a share of the range of penalties.
_MAX_MINOR = 2.5
_MINOR_SHARE = (_MAX_MINOR - MIN_PENALTY) / (MAX_PENALTY - MIN_PENALTY)

#: A sentence with at least this probability is supported rather than not.
_EVEN = 0.5
#: Signs that belong to the number that follows.
_SIGNS_BEFORE = tuple("$£€¥#")
#: Longest quotation of the source in an explanation, in characters.
_MAX_QUOTE = 300
#: Characters of sources that are kept in memory at once.
_SOURCE_CHARACTERS = 4_000_000

_EMPTY_OUTPUT = Failure(FailureKind.missing_input, "the output is empty: there is nothing to check")
_EMPTY_SOURCE = Failure(FailureKind.missing_input, "the source is empty: there is nothing to check the output against")


@dataclass(frozen=True, kw_only=True)
class Consistency(ModelMetric):
    """The probability that the source supports the output, sentence by sentence."""

    # 'small' and 'large' are short for the English models that ship.
    model: str = "metrist:english-small"
    aggregation: Aggregation = "mean"
    #: A sentence with a lower probability is an error.
    threshold: float = 0.5
    #: Tokens that the model reads at once: sentences and a window of the source. None: as in its training.
    window: int | None = None

    extra: ClassVar[str | None] = "standard"
    catalog_name: ClassVar[str | None] = "consistency"
    needs: ClassVar[tuple[Need, ...]] = ("source",)
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)
    reports_errors: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "model", SHORT_NAMES.get(self.model, self.model))
        self.name_extra(self.model)
        check_choice(self, "aggregation", _AGGREGATIONS)
        if not 0 < self.threshold < 1:
            raise SpecError(f"{self.name}: threshold must be a probability between 0 and 1, got {self.threshold!r}")
        least = 2 * MIN_ROOM
        if self.window is not None and self.window < least:
            raise SpecError(f"{self.name}: window must be at least {least} tokens, got {self.window!r}")

    def score(self, shard: Shard) -> Scores:
        scores: list[Score | None] = [None] * len(shard)
        positions: dict[str, list[int]] = {}
        for i, record in enumerate(shard.records):
            if not record.output.strip():
                scores[i] = Score.failed(_EMPTY_OUTPUT)
            elif not (record.source or "").strip():
                scores[i] = Score.failed(_EMPTY_SOURCE)
            else:
                positions.setdefault(record.source or "", []).append(i)
        if positions:
            encoder = load_text_encoder(self.model, runtime=shard.runtime)
            # What one window leaves in doubt is held against the others, even if less would be no error.
            reader = SupportReader(encoder, window=self.window, threshold=max(self.threshold, _EVEN))
            for sources in _group_sources(positions):
                chosen = [i for source in sources for i in positions[source]]
                results = reader.read([(shard.records[i].source or "", shard.records[i].output) for i in chosen])
                for i, result in zip(chosen, results, strict=True):
                    scores[i] = self._score(shard.records[i], result)
        return Scores.of(score for score in scores if score is not None)

    def describe_misuse(self, records: Sequence[Record]) -> list[str]:
        return warn_of_other_language(self.label, self.model, records)

    def remarks(self, scores: Scores) -> list[str]:
        """How many sentences are unsupported, in how many outputs."""
        remarks = super().remarks(scores)
        if SENTENCES not in scores.parts:
            return remarks
        sentences, supported = (int(np.nansum(scores.parts[name])) for name in (SENTENCES, SUPPORTED))
        outputs = len(scores.errors)
        if not outputs:
            return remarks
        return [
            *remarks,
            f"{self.label}: {sentences - supported:,} of {format_count(sentences, 'sentence')} in "
            f"{format_count(outputs, 'output')} {agree(sentences - supported, 'is', 'are')} unlikely to be supported "
            "by the source; `metrist explain` shows them",
        ]

    def _score(self, record: Record, result: Support | Failure) -> Score:
        if isinstance(result, Failure):
            return Score.failed(result)
        probabilities = result.probabilities
        low = np.flatnonzero(probabilities < self.threshold).tolist()
        return Score(
            value=_AGGREGATIONS[self.aggregation](probabilities),
            parts={
                SENTENCES: float(len(probabilities)),
                SUPPORTED: float(len(probabilities) - len(low)),
                MEAN: float(probabilities.mean()),
                MINIMUM: float(probabilities.min()),
            },
            errors=tuple(self._find_errors(record, result)),
        )

    def _find_errors(self, record: Record, result: Support) -> Iterator[Error]:
        """The marked words of unsupported sentences, or these sentences as a whole if no word stands out; and words of
        other sentences that the model is very sure about."""
        for sentence, span in enumerate(result.spans):
            probability = float(result.probabilities[sentence])
            supported = probability >= self.threshold
            marks = [mark for mark in result.find_marks(sentence, supported=supported) if _has_letters(record, mark)]
            for mark in marks:
                doubt = mark.probability * (1 - probability)
                # What a sentence has wrong that is supported as a whole is minor.
                doubt = min(doubt, _MINOR_SHARE) if probability >= _EVEN else doubt
                claim = f"The source is unlikely to support these words (probability {1 - mark.probability:.2f})."
                yield self._make_error(record, result, sentence, _add_signs(record.output, mark), doubt, claim)
            if not supported and not marks:
                claim = f"The source is unlikely to support this (probability {probability:.2f})."
                yield self._make_error(record, result, sentence, span, 1 - probability / self.threshold, claim)

    def _make_error(
        self, record: Record, result: Support, sentence: int, span: CharacterSpan, doubt: float, claim: str
    ) -> Error:
        start, end = span
        source, passage = record.source or "", result.evidence(sentence)
        findings, revision = compare(record.output, span, result.spans[sentence], source, passage)
        penalty = MIN_PENALTY + (MAX_PENALTY - MIN_PENALTY) * doubt
        table = find_table(record.task)
        names = table.names if table else ()
        return Error(
            aspect=next((name for name in _ASPECTS if name in names), _ASPECTS[0]),
            severity="minor" if penalty <= _MAX_MINOR else "major",
            penalty=round(penalty, 2),
            explanation=" ".join([claim, *findings, _quote_passage(source, passage)]),
            revision=revision,
            text=record.output[start:end],
            start=start,
            end=end,
            source_start=passage[0] if passage else None,
            source_end=passage[1] if passage else None,
        )


def _has_letters(record: Record, mark: Word) -> bool:
    """Whether marked characters are more than punctuation."""
    return any(character.isalnum() for character in record.output[mark.start : mark.end])


def _add_signs(text: str, mark: Word) -> CharacterSpan:
    """The marked characters with the sign of an amount beside them."""
    start = mark.start - (text[mark.start - 1 : mark.start] in _SIGNS_BEFORE if mark.start else 0)
    return start, mark.end + (text[mark.end : mark.end + 1] == "%")


def _group_sources(sources: Mapping[str, object]) -> Iterator[list[str]]:
    """The distinct sources in groups that fit into memory together."""
    group: list[str] = []
    for source in sources:
        if group and sum(map(len, group)) + len(source) > _SOURCE_CHARACTERS:
            yield group
            group = []
        group.append(source)
    if group:
        yield group


def _quote_passage(source: str, passage: CharacterSpan | None) -> str:
    if passage is None:
        return "No passage of it shares a word of substance with the sentence."
    start, end = passage
    quote = " ".join(source[start:end].split())
    if len(quote) > _MAX_QUOTE:
        quote = f"{quote[:_MAX_QUOTE].rstrip()}…"
    return f"The nearest passage, characters {start} to {end} of the source: “{quote}”"
