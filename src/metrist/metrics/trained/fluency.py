"""How well a text is written: grammar, spelling and natural wording, sentence by sentence, by a model that was trained
on judgments of acceptability and on marked errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrist.errors import SpecError, agree, format_count
from metrist.metrics.base import Shard, check_choice
from metrist.metrics.errors.answers import MAX_PENALTY, MIN_PENALTY
from metrist.metrics.errors.aspect_tables import find_table
from metrist.metrics.model_metric import SHORT_NAMES, ModelMetric, warn_of_other_language
from metrist.metrics.trained.support import SupportModel, TokenizedText, Word, join_tokens, merge_words, sigmoid
from metrist.models import loading
from metrist.ratings import Error
from metrist.records import Record
from metrist.scores import Failure, FailureKind, Score, Scores

Numbers = NDArray[np.float64]
Aggregation = Literal["mean", "minimum"]

SENTENCES, MEAN, MINIMUM, FAULTS = "sentences", "mean", "minimum", "faults"
#: The heads of the encoder: one logit for a sentence, and one for each of its tokens.
HEAD, ERROR_HEAD = "fluency", "tags"
#: Longest sentence in tokens; longer ones are judged in parts. The training had none that were longer.
_MAX_SENTENCE = 126
#: Sentences that are read at once: enough to fill batches, few enough to keep in memory.
_SENTENCES_AT_ONCE = 4096
_AGGREGATIONS: Mapping[Aggregation, Callable[[Numbers], float]] = {
    "mean": lambda values: float(values.mean()),
    "minimum": lambda values: float(values.min()),
}
#: What tables of errors call a fault of language.
_ASPECTS = ("Fluency", "Language", "Clarity")
#: A minor error may cost this much at most.
_MAX_MINOR = 2.5
#: A stretch of so many doubtful words has the highest penalty.
_BROKEN = 6
_REPEATED = re.compile(r"\b(\w+)\s+\1\b", re.IGNORECASE)

_EMPTY = Failure(FailureKind.missing_input, "the output is empty: there is nothing to judge")
_UNREADABLE = Failure(FailureKind.other, "the output has nothing that the model can read")


@dataclass(frozen=True, kw_only=True)
class Fluency(ModelMetric):
    """The probability that a careful reader would find nothing to correct, averaged over the sentences."""

    # 'small' and 'large' are short for the English models that ship.
    model: str = "metrist:english-small"
    aggregation: Aggregation = "mean"
    #: A word with a higher probability of being wrong is an error.
    threshold: float = 0.5

    extra: ClassVar[str | None] = "standard"
    catalog_name: ClassVar[str | None] = "fluency"
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)
    reports_errors: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "model", SHORT_NAMES.get(self.model, self.model))
        self.name_extra(self.model)
        check_choice(self, "aggregation", _AGGREGATIONS)
        if not 0 < self.threshold < 1:
            raise SpecError(f"{self.name}: threshold must be a probability between 0 and 1, got {self.threshold!r}")

    def score(self, shard: Shard) -> Scores:
        outputs = dict.fromkeys(record.output for record in shard.records if record.output.strip())
        if not outputs:
            return Scores.of(Score.failed(_EMPTY) for _ in shard.records)
        encoder = loading.load_text_encoder(self.model, runtime=shard.runtime)
        results = dict(zip(outputs, FluencyReader(encoder).read(list(outputs)), strict=True))
        return Scores.of(self._score(record, results.get(record.output)) for record in shard.records)

    def describe_misuse(self, records: Sequence[Record]) -> list[str]:
        return warn_of_other_language(self.label, self.model, records)

    def remarks(self, scores: Scores) -> list[str]:
        """How many errors there are, in how many outputs."""
        remarks = super().remarks(scores)
        errors = sum(map(len, scores.errors.values()))
        if not errors:
            return remarks
        return [
            *remarks,
            f"{self.label}: {format_count(errors, 'probable error')} of language {agree(errors, 'is', 'are')} marked "
            f"in {len(scores.errors):,} of {format_count(len(scores), 'output')}; `metrist explain` shows them",
        ]

    def _score(self, record: Record, sentences: list[Sentence] | None) -> Score:
        if sentences is None:
            return Score.failed(_EMPTY)
        if not sentences:
            return Score.failed(_UNREADABLE)
        values = np.array([sentence.value for sentence in sentences])
        errors = tuple(error for sentence in sentences for error in self._find_errors(record, sentence))
        return Score(
            value=_AGGREGATIONS[self.aggregation](values),
            parts={
                SENTENCES: float(len(values)),
                MEAN: float(values.mean()),
                MINIMUM: float(values.min()),
                FAULTS: float(len(errors)),
            },
            errors=errors,
        )

    def _find_errors(self, record: Record, sentence: Sentence) -> Iterator[Error]:
        table = find_table(record.task)
        names = table.names if table else ()
        for start, end, probability in merge_words(record.output, sentence.words, self.threshold):
            doubt = (probability - self.threshold) / (1 - self.threshold)
            # A slip in a word or two is minor; what a reader has to put together anew is major.
            share = min(1.0, len(record.output[start:end].split()) / _BROKEN)
            penalty = MIN_PENALTY + (MAX_PENALTY - MIN_PENALTY) * doubt * share
            yield Error(
                aspect=next((name for name in _ASPECTS if name in names), _ASPECTS[0]),
                severity="minor" if penalty <= _MAX_MINOR else "major",
                penalty=round(penalty, 2),
                explanation=_explain(record.output, start, end, probability),
                text=record.output[start:end],
                start=start,
                end=end,
            )


class Sentence(NamedTuple):
    """The probability that there is nothing to correct in a sentence, and its words."""

    value: float
    words: list[Word]


@dataclass(frozen=True)
class FluencyReader:
    """Has an encoder read the sentences of outputs, each on its own."""

    encoder: SupportModel

    def read(self, outputs: Sequence[str]) -> list[list[Sentence]]:
        """The sentences of each output. None depends on the sentences around it; equal ones are read once."""
        texts = [TokenizedText.read(output, self.encoder) for output in outputs]
        pieces = [text.pieces(min(_MAX_SENTENCE, self.encoder.max_tokens - 2)) for text in texts]
        keys = [
            [text.ids[piece.first : piece.last].tobytes() for piece in own]
            for text, own in zip(texts, pieces, strict=True)
        ]
        results = self._compute(list(dict.fromkeys(key for own in keys for key in own)))
        return [
            [
                Sentence(
                    results[key][0],
                    list(
                        join_tokens(
                            text.text,
                            text.starts[piece.first : piece.last].tolist(),
                            text.ends[piece.first : piece.last].tolist(),
                            results[key][1],
                        )
                    ),
                )
                for piece, key in zip(own, own_keys, strict=True)
            ]
            for text, own, own_keys in zip(texts, pieces, keys, strict=True)
        ]

    def _compute(self, keys: Sequence[bytes]) -> dict[bytes, tuple[float, list[float]]]:
        """The value of each sentence, given by its tokens, and the probabilities of its tokens."""
        results: dict[bytes, tuple[float, list[float]]] = {}
        for start in range(0, len(keys), _SENTENCES_AT_ONCE):
            chosen = keys[start : start + _SENTENCES_AT_ONCE]
            sequences = [self.encoder.join(np.frombuffer(key, np.int32)) for key in chosen]
            # A head on the mean of the tokens is the mean of the head on each: one pass serves both heads.
            for key, logits in zip(chosen, self.encoder.score_tokens((HEAD, ERROR_HEAD), sequences), strict=True):
                values, tokens = np.asarray(logits, np.float64)[1:-1].T
                results[key] = sigmoid(float(values.mean())), [sigmoid(logit) for logit in tokens.tolist()]
        return results


def _explain(text: str, start: int, end: int, probability: float) -> str:
    before = text[max(0, start - 40) : start].split()[-1:]
    doubled = _REPEATED.search(" ".join([*before, text[start:end]]))
    # A word may be doubled on purpose ("had had"); only a marked one is reported.
    what = f"“{doubled[1]}” is repeated" if doubled else "the wording is wrong, or a word is missing before it"
    return f"Probably {what} (probability {probability:.2f})."
