"""How well a text is written: grammar, spelling and natural wording, sentence by sentence, by a model that was trained
on judgments of acceptability and on marked errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

import numpy as np

from metrist.errors import agree, format_count
from metrist.metrics.base import Shard
from metrist.metrics.errors.answers import MAX_PENALTY, MIN_PENALTY
from metrist.metrics.trained.sentence_metric import (
    MEAN,
    MINIMUM,
    SENTENCES,
    SentenceMetric,
    Word,
    join_tokens,
    merge_words,
    sigmoid,
)
from metrist.models import loading
from metrist.models.windows import Numbers, SentencePart, TokenizedText, read_tokens
from metrist.records import Record
from metrist.scores import Failure, FailureKind, Score, Scores

if TYPE_CHECKING:
    from metrist.models.text_encoder import TextEncoder

Aggregation = Literal["mean", "minimum"]

FAULTS = "faults"
#: The heads of the encoder: one logit for a sentence, and one for each of its tokens.
HEAD, ERROR_HEAD = "fluency", "tags"
#: Longest sentence in tokens; longer ones are judged in parts. The training had none that were longer.
_MAX_SENTENCE = 126
_AGGREGATIONS: Mapping[Aggregation, Callable[[Numbers], float]] = {
    "mean": lambda values: float(values.mean()),
    "minimum": lambda values: float(values.min()),
}
#: A stretch of so many doubtful words has the highest penalty.
_BROKEN = 6
_REPEATED = re.compile(r"\b(\w+)\s+\1\b", re.IGNORECASE)

_EMPTY = Failure(FailureKind.missing_input, "the output is empty: there is nothing to judge")
_UNREADABLE = Failure(FailureKind.other, "the output has nothing that the model can read")


@dataclass(frozen=True, kw_only=True)
class Fluency(SentenceMetric):
    """The probability that a careful reader would find nothing to correct, averaged over the sentences."""

    aggregation: Aggregation = "mean"
    #: A word with a higher probability of being wrong is an error.
    threshold: float = 0.5

    catalog_name: ClassVar[str | None] = "fluency"
    rules: ClassVar[str] = "2"
    aspects: ClassVar[tuple[str, ...]] = ("Fluency", "Language", "Clarity")

    def score(self, shard: Shard) -> Scores:
        unknown = [self.find_unknown_language(record) for record in shard.records]
        known = (record.output for record, failure in zip(shard.records, unknown, strict=True) if failure is None)
        outputs = [output for output in dict.fromkeys(known) if output.strip()]
        if not outputs:
            return Scores.of(Score.failed(failure or _EMPTY) for failure in unknown)
        results = shard.results(("fluency", self.model))
        if unread := [output for output in outputs if output not in results]:
            encoder = loading.load_text_encoder(self.model, runtime=shard.runtime)
            results.update(zip(unread, FluencyReader(encoder).read(unread), strict=True))
        return Scores.of(
            Score.failed(failure) if failure else self._score(record, results.get(record.output))
            for record, failure in zip(shard.records, unknown, strict=True)
        )

    def remarks(self, scores: Scores) -> list[str]:
        remarks = super().remarks(scores)
        errors = sum(map(len, scores.errors.values()))
        if not errors:
            return remarks
        marked = f"{format_count(errors, 'probable error')} of language {agree(errors, 'is', 'are')} marked"
        outputs = f"{len(scores.errors):,} of {format_count(len(scores), 'output')}"
        return [*remarks, f"{self.label}: {marked} in {outputs}; `metrist explain` shows them"]

    def _score(self, record: Record, sentences: list[JudgedSentence] | None) -> Score:
        if sentences is None:
            return Score.failed(_EMPTY)
        if not sentences:
            return Score.failed(_UNREADABLE)
        values = np.array([sentence.value for sentence in sentences])
        errors = []
        for sentence in sentences:
            for start, end, probability in merge_words(record.output, sentence.words, self.threshold):
                doubt = (probability - self.threshold) / (1 - self.threshold)
                # A slip in a word or two is minor; what a reader has to put together anew is major.
                share = min(1.0, len(record.output[start:end].split()) / _BROKEN)
                penalty = MIN_PENALTY + (MAX_PENALTY - MIN_PENALTY) * doubt * share
                explanation = _explain(record.output, start, end, probability)
                errors.append(self.make_error(record, (start, end), penalty, explanation))
        return Score(
            value=_AGGREGATIONS[self.aggregation](values),
            parts={
                SENTENCES: float(len(values)),
                MEAN: float(values.mean()),
                MINIMUM: float(values.min()),
                FAULTS: float(len(errors)),
            },
            errors=tuple(errors),
        )


class JudgedSentence(NamedTuple):
    """The probability that there is nothing to correct in a sentence, and its words."""

    value: float
    words: list[Word]


@dataclass(frozen=True)
class FluencyReader:
    """Has an encoder read the sentences of outputs, each on its own."""

    encoder: TextEncoder

    def read(self, outputs: Sequence[str]) -> list[list[JudgedSentence]]:
        """The sentences of each output. None depends on the sentences around it; equal ones are read once."""
        texts = TokenizedText.read(outputs, self.encoder)
        pieces = [text.pieces(min(_MAX_SENTENCE, self.encoder.max_tokens - 2)) for text in texts]
        pairs = [(text, piece) for text, own in zip(texts, pieces, strict=True) for piece in own]
        distinct = {ids.tobytes(): ids for text, piece in pairs for ids in [text.ids[piece.first : piece.last]]}
        windows = ((key, ids, None) for key, ids in distinct.items())
        # A head on the mean of the tokens is the mean of the head on each: one pass serves both heads.
        logits = dict(read_tokens(self.encoder, (HEAD, ERROR_HEAD), windows))

        def judge(text: TokenizedText, piece: SentencePart) -> JudgedSentence:
            tokens = slice(piece.first, piece.last)
            values, errors = logits[text.ids[tokens].tobytes()].T
            starts, ends = text.starts[tokens].tolist(), text.ends[tokens].tolist()
            words = join_tokens(text.text, starts, ends, list(map(sigmoid, errors.tolist())))
            return JudgedSentence(sigmoid(float(values.mean())), list(words))

        return [[judge(text, piece) for piece in own] for text, own in zip(texts, pieces, strict=True)]


def _explain(text: str, start: int, end: int, probability: float) -> str:
    before = text[max(0, start - 40) : start].split()[-1:]
    doubled = _REPEATED.search(" ".join([*before, text[start:end]]))
    # A word may be doubled on purpose ("had had"); only a marked one is reported.
    what = f"“{doubled[1]}” is repeated" if doubled else "the wording is wrong, or a word is missing before it"
    return f"Probably {what} (probability {probability:.2f})."
