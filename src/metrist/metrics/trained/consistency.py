"""Whether the source supports each sentence of an output, by a model that was trained on human judgments of support."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from metrist.errors import SpecError, agree, format_count
from metrist.metrics.base import Shard
from metrist.metrics.errors.answers import MAX_PENALTY, MIN_PENALTY
from metrist.metrics.errors.evidence import compare
from metrist.metrics.trained.sentence_metric import MAX_MINOR, MEAN, MINIMUM, SENTENCES, SentenceMetric, Word
from metrist.metrics.trained.support import MIN_ROOM, Support, SupportReader
from metrist.models.batching import split_batches
from metrist.models.loading import load_text_encoder
from metrist.models.windows import CharacterSpan
from metrist.ratings import Error
from metrist.records import Need, Record
from metrist.scores import Failure, FailureKind, Score, Scores

Numbers = NDArray[np.float64]
Aggregation = Literal["mean", "geometric_mean", "minimum", "product"]

SUPPORTED = "supported"
_AGGREGATIONS: Mapping[Aggregation, Callable[[Numbers], float]] = {
    "mean": lambda support: float(support.mean()),
    "geometric_mean": lambda support: float(np.exp(np.log(support).mean())),
    "minimum": lambda support: float(support.min()),
    "product": lambda support: float(support.prod()),
}
#: What a minor error may cost at most, as a share of the range of penalties.
_MINOR_SHARE = (MAX_MINOR - MIN_PENALTY) / (MAX_PENALTY - MIN_PENALTY)
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
class Consistency(SentenceMetric):
    """The probability that the source supports the output, sentence by sentence."""

    aggregation: Aggregation = "mean"
    #: A sentence with a lower probability is an error.
    threshold: float = 0.5
    #: Tokens that the model reads at once: sentences and a window of the source. None: as in its training.
    window: int | None = None

    catalog_name: ClassVar[str | None] = "consistency"
    needs: ClassVar[tuple[Need, ...]] = ("source",)
    aspects: ClassVar[tuple[str, ...]] = ("Fact Consistency", "Accuracy")

    def __post_init__(self) -> None:
        super().__post_init__()
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
            # As many sources at once as fit into memory together.
            sources = list(positions)
            for batch in split_batches([len(source) for source in sources], _SOURCE_CHARACTERS, padded=False):
                chosen = [i for at in batch for i in positions[sources[at]]]
                results = reader.read([(shard.records[i].source or "", shard.records[i].output) for i in chosen])
                for i, result in zip(chosen, results, strict=True):
                    scores[i] = self._score(shard.records[i], result)
        return Scores.of(score for score in scores if score is not None)

    def remarks(self, scores: Scores) -> list[str]:
        """How many sentences are unsupported, in how many outputs."""
        remarks = super().remarks(scores)
        if SENTENCES not in scores.parts:
            return remarks
        unsupported = np.nan_to_num(scores.parts[SENTENCES] - scores.parts[SUPPORTED])
        # Words may be marked in a sentence that is supported as a whole.
        count, outputs = int(unsupported.sum()), int(np.count_nonzero(unsupported))
        if not count:
            return remarks
        return [
            *remarks,
            f"{self.label}: {count:,} of {format_count(int(np.nansum(scores.parts[SENTENCES])), 'sentence')} in "
            f"{format_count(outputs, 'output')} {agree(count, 'is', 'are')} unlikely to be supported by the source; "
            "`metrist explain` shows them",
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
            words = result.find_marks(sentence, supported=supported)
            # Punctuation alone is no error.
            marks = [mark for mark in words if any(map(str.isalnum, record.output[mark.start : mark.end]))]
            for mark in marks:
                doubt = mark.probability * (1 - probability)
                # What a sentence has wrong that is supported as a whole is minor.
                doubt = min(doubt, _MINOR_SHARE) if probability >= _EVEN else doubt
                claim = f"The source is unlikely to support these words (probability {1 - mark.probability:.2f})."
                yield self._explain_error(record, result, sentence, _add_signs(record.output, mark), doubt, claim)
            if not supported and not marks:
                claim = f"The source is unlikely to support this (probability {probability:.2f})."
                yield self._explain_error(record, result, sentence, span, 1 - probability / self.threshold, claim)

    def _explain_error(
        self, record: Record, result: Support, sentence: int, span: CharacterSpan, doubt: float, claim: str
    ) -> Error:
        source, passage = record.source or "", result.evidence(sentence)
        findings, revision = compare(record.output, span, result.spans[sentence], source, passage)
        return self.make_error(
            record,
            span,
            MIN_PENALTY + (MAX_PENALTY - MIN_PENALTY) * doubt,
            " ".join([claim, *findings, _quote_passage(source, passage)]),
            revision=revision,
            source_start=passage[0] if passage else None,
            source_end=passage[1] if passage else None,
        )


def _add_signs(text: str, mark: Word) -> CharacterSpan:
    """The marked characters with the sign of an amount beside them."""
    start = mark.start - (text[mark.start - 1 : mark.start] in _SIGNS_BEFORE if mark.start else 0)
    return start, mark.end + (text[mark.end : mark.end + 1] == "%")


def _quote_passage(source: str, passage: CharacterSpan | None) -> str:
    if passage is None:
        return "No passage of it shares a word of substance with the sentence."
    start, end = passage
    quote = " ".join(source[start:end].split())
    if len(quote) > _MAX_QUOTE:
        quote = f"{quote[:_MAX_QUOTE].rstrip()}…"
    return f"The nearest passage, characters {start} to {end} of the source: “{quote}”"
