"""What metrics have in common that judge an output sentence by sentence and mark words: settings, errors, words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from metrist.errors import SpecError
from metrist.metrics.errors.aspect_tables import find_table
from metrist.metrics.model_metric import SHORT_NAMES, ShippedModelMetric
from metrist.models.windows import CharacterSpan
from metrist.ratings import Error
from metrist.records import Record

#: Parts of a score.
SENTENCES, MEAN, MINIMUM = "sentences", "mean", "minimum"
#: A minor error may cost this much at most.
MAX_MINOR = 2.5


@dataclass(frozen=True, kw_only=True)
class SentenceMetric(ShippedModelMetric):
    """Base of metrics from the English models that ship. A score is the aggregation of a probability per sentence."""

    # 'small' and 'large' are short for the models.
    model: str = "metrist:english-small"
    aggregation: str = "mean"
    threshold: float = 0.5

    reports_errors: ClassVar[bool] = True
    #: A number that changes with the rules around the model, so that scores by different rules are never mixed.
    rules: ClassVar[str]
    #: What tables of errors call what the metric finds; the first one if a task's table has none of them.
    aspects: ClassVar[tuple[str, ...]]

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "model", SHORT_NAMES.get(self.model, self.model))
        self.name_extra(self.model)
        if not 0 < self.threshold < 1:
            raise SpecError(f"{self.name}: threshold must be a probability between 0 and 1, got {self.threshold!r}")

    def facts(self) -> Mapping[str, str]:
        return {**super().facts(), "rules": self.rules}

    def make_error(self, record: Record, span: CharacterSpan, penalty: float, explanation: str, **fields: Any) -> Error:
        """An error in characters of the output."""
        start, end = span
        table = find_table(record.task)
        names = table.names if table else ()
        return Error(
            aspect=next((name for name in self.aspects if name in names), self.aspects[0]),
            severity="minor" if penalty <= MAX_MINOR else "major",
            penalty=round(penalty, 2),
            explanation=explanation,
            text=record.output[start:end],
            start=start,
            end=end,
            **fields,
        )


class Word(NamedTuple):
    """Characters `start` to `end` of a text, and the probability that they are wrong."""

    start: int
    end: int
    probability: float


def join_tokens(
    text: str, starts: Sequence[int], ends: Sequence[int], probabilities: Sequence[float]
) -> Iterator[Word]:
    """Join the tokens of a word. It is as doubtful as its most doubtful token."""
    word: Word | None = None
    for start, end, probability in zip(starts, ends, probabilities, strict=True):
        if word and start == word.end and text[start - 1 : start + 1].isalnum():
            word = Word(word.start, end, max(word.probability, probability))
            continue
        if word:
            yield word
        word = Word(start, end, probability)
    if word:
        yield word


def merge_words(text: str, words: Sequence[Word], threshold: float) -> list[Word]:
    """The words above the threshold; those that follow each other are one, as doubtful as the most doubtful."""
    merged: list[Word] = []
    previous = None
    for word in words:
        if word.probability <= threshold:
            previous = None
            continue
        if previous is not None and not text[previous.end : word.start].strip():
            merged[-1] = Word(merged[-1].start, word.end, max(merged[-1].probability, word.probability))
        else:
            merged.append(word)
        previous = word
    return merged


def sigmoid(logit: float) -> float:
    return 1 / (1 + math.exp(-max(-700.0, min(700.0, logit))))
