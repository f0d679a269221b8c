"""Whether the source supports each sentence of an output, by a model that was trained on human judgments of support."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from metrist.errors import SpecError, agree, format_count
from metrist.metrics.base import Shard
from metrist.metrics.errors.answers import MAX_PENALTY, MIN_PENALTY
from metrist.metrics.errors.evidence import (
    AlignedText,
    Contradiction,
    align_values,
    compare,
    describe_difference,
    find_contradictions,
    snap_to_values,
)
from metrist.metrics.trained.sentence_metric import MAX_MINOR, MEAN, MINIMUM, SENTENCES, SentenceMetric, Word
from metrist.metrics.trained.support import MIN_ROOM, Support, SupportReader
from metrist.models.batching import split_batches
from metrist.models.loading import load_text_encoder
from metrist.models.windows import CharacterSpan
from metrist.ratings import Error
from metrist.records import Need, Record
from metrist.scores import Failure, FailureKind, Score, Scores
from metrist.sentences import split_sentences

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
#: The probability of a sentence with a number that the source's most similar sentence gives otherwise: of 312 such
#: outputs in sets that no model is judged on, 15 were supported.
_CONTRADICTED = 0.05
#: The name and value of an entry of data, as in `food = fish | price = low`, what ends one, and the fewest of them.
_ENTRY = re.compile(r"[^:=]{1,40}[:=]\s*\S")
_ENTRY_END = re.compile(r"\s*[|;\n]\s*")
_FEWEST_ENTRIES = 3
#: Longest quotation of the source in an explanation, in characters.
_MAX_QUOTE = 300
#: Characters of sources that are kept in memory at once.
_SOURCE_CHARACTERS = 4_000_000

_EMPTY_OUTPUT = Failure(FailureKind.missing_input, "the output is empty: there is nothing to check")
_QUESTION_SOURCE = Failure(
    FailureKind.missing_input,
    "the source is a question, which supports nothing: it takes the text of the answer's origin",
)
_EMPTY_SOURCE = Failure(FailureKind.missing_input, "the source is empty: there is nothing to check the output against")


@dataclass(frozen=True, kw_only=True)
class Consistency(SentenceMetric):
    """The probability that the source supports the output, sentence by sentence."""

    aggregation: Aggregation = "mean"
    #: A sentence with a lower probability is an error: of outputs below it, nine of ten are unsupported, and one
    #: supported output in 80 is below it; one in five is below .5 (summaries of news: CLIFF, EntFA, Goyal21).
    threshold: float = 0.18
    #: Whether words of supported sentences can be errors, too, where the model is very sure about one of them.
    supported_words: bool = False
    #: Tokens that the model reads at once: sentences and a window of the source. None: as in its training.
    window: int | None = None

    catalog_name: ClassVar[str | None] = "consistency"
    rules: ClassVar[str] = "3"
    needs: ClassVar[tuple[Need, ...]] = ("source",)
    aspects: ClassVar[tuple[str, ...]] = ("Fact Consistency", "Accuracy")

    def __post_init__(self) -> None:
        super().__post_init__()
        least = 2 * MIN_ROOM
        if self.window is not None and self.window < least:
            raise SpecError(f"{self.name}: window must be at least {least} tokens, got {self.window!r}")

    def facts(self) -> Mapping[str, str]:
        # Rules 4 differ from 3 in the words of supported sentences only.
        return {**super().facts(), "rules": "4" if self.supported_words else self.rules}

    def score(self, shard: Shard) -> Scores:
        scores: list[Score | None] = [None] * len(shard)
        positions: dict[str, list[int]] = {}
        for i, record in enumerate(shard.records):
            if not record.output.strip():
                scores[i] = Score.failed(_EMPTY_OUTPUT)
            elif not (record.source or "").strip():
                scores[i] = Score.failed(_EMPTY_SOURCE)
            elif is_question(record.source or ""):
                scores[i] = Score.failed(_QUESTION_SOURCE)
            elif language := self.find_unknown_language(record):
                scores[i] = Score.failed(language)
            else:
                positions.setdefault(record.source or "", []).append(i)
        if positions:
            encoder = load_text_encoder(self.model, runtime=shard.runtime)
            # What one window leaves in doubt is held against the others, even if less would be no error.
            reader = SupportReader(encoder, window=self.window, threshold=max(self.threshold, _EVEN))
            known = shard.results(("support", self.model, self.window, reader.threshold))
            # As many sources at once as fit into memory together.
            sources = list(positions)
            for batch in split_batches([len(source) for source in sources], _SOURCE_CHARACTERS, padded=False):
                chosen = [i for at in batch for i in positions[sources[at]]]
                texts = [align_values(shard.records[i].output, shard.records[i].source or "") for i in chosen]
                pairs = [(shard.records[i].source or "", text.text) for i, text in zip(chosen, texts, strict=True)]
                unknown = [pair for pair in dict.fromkeys(pairs) if pair not in known]
                known.update(zip(unknown, reader.read(unknown) if unknown else (), strict=True))
                for i, text, pair in zip(chosen, texts, pairs, strict=True):
                    scores[i] = self._score(shard.records[i], text, known[pair])
        return Scores.of(score for score in scores if score is not None)

    def find_unknown_language(self, record: Record) -> Failure | None:
        in_source = super().find_unknown_language(replace(record, output=record.source or "", language=None))
        source = in_source and Failure(in_source.kind, in_source.replace("the output", "the source", 1))
        return super().find_unknown_language(record) or source

    def remarks(self, scores: Scores) -> list[str]:
        remarks = super().remarks(scores)
        if SENTENCES not in scores.parts:
            return remarks
        sentences, supported = scores.parts[SENTENCES], scores.parts[SUPPORTED]
        unsupported, outputs = int(np.nansum(sentences - supported)), int(np.nansum(sentences > supported))
        if not unsupported:
            return remarks
        share = f"{unsupported:,} of {format_count(int(np.nansum(sentences)), 'sentence')}"
        places = f"{format_count(outputs, 'output')} {agree(unsupported, 'is', 'are')}"
        unlikely = "unlikely to be supported by the source; `metrist explain` shows them"
        return [*remarks, f"{self.label}: {share} in {places} {unlikely}"]

    def _score(self, record: Record, text: AlignedText, result: Support | Failure) -> Score:
        if isinstance(result, Failure):
            return Score.failed(result)
        if text.places:
            words = [[Word(*text.restore((w.start, w.end)), w.probability) for w in own] for own in result.words]
            spans = [text.restore(span) for span in result.spans]
            result = replace(result, text=record.output, spans=spans, words=words)
        contradictions = [find_contradictions(record.output, span, record.source or "") for span in result.spans]
        contradicted = np.array(list(map(bool, contradictions)))
        probabilities = np.where(contradicted, np.minimum(result.probabilities, _CONTRADICTED), result.probabilities)
        result = replace(result, probabilities=probabilities)
        low = np.flatnonzero(probabilities < self.threshold).tolist()
        return Score(
            value=_AGGREGATIONS[self.aggregation](probabilities),
            parts={
                SENTENCES: float(len(probabilities)),
                SUPPORTED: float(len(probabilities) - len(low)),
                MEAN: float(probabilities.mean()),
                MINIMUM: float(probabilities.min()),
            },
            errors=tuple(self._find_errors(record, result, contradictions)),
        )

    def _find_errors(
        self, record: Record, result: Support, contradictions: Sequence[Sequence[Contradiction]]
    ) -> Iterator[Error]:
        """The numbers that the source contradicts; the marked words of unsupported sentences, or these sentences as a
        whole if nothing in them stands out; and, if asked for, words of other sentences that the model is very sure
        about, unless the source is data, which has no words for what its values mean."""
        marks_supported = self.supported_words
        if marks_supported:
            entries = _ENTRY_END.split((record.source or "").strip())
            marks_supported = len(entries) < _FEWEST_ENTRIES or not all(map(_ENTRY.match, entries))
        for sentence, span in enumerate(result.spans):
            probability = float(result.probabilities[sentence])
            supported = probability >= self.threshold
            wrong = contradictions[sentence]
            found = [self._explain_contradiction(record, contradiction, probability) for contradiction in wrong]
            marks = self._find_marks(record.output, result, sentence) if not supported or marks_supported else ()
            for mark in marks:
                if any(mark.start < fact.end and mark.end > fact.start for fact, *_ in wrong):
                    continue
                doubt = mark.probability * (1 - probability)
                # What a sentence has wrong that is supported as a whole is minor.
                doubt = min(doubt, _MINOR_SHARE) if probability >= _EVEN else doubt
                claim = _claim("these words", 1 - mark.probability)
                found.append(self._explain_error(record, result, sentence, (mark.start, mark.end), doubt, claim))
            if not supported and not found:
                claim = _claim("this", probability)
                found.append(
                    self._explain_error(record, result, sentence, span, 1 - probability / self.threshold, claim)
                )
            yield from sorted(found, key=lambda error: error.start or 0)

    def _find_marks(self, output: str, result: Support, sentence: int) -> list[Word]:
        """The words that the model marks, with whole numbers, amounts and dates."""
        marks: list[Word] = []
        for mark in result.find_marks(sentence, supported=bool(result.probabilities[sentence] >= self.threshold)):
            # Punctuation alone is no error.
            if not any(map(str.isalnum, output[mark.start : mark.end])):
                continue
            start, end = snap_to_values(output, (mark.start, mark.end))
            probability = mark.probability
            if marks and start < marks[-1].end:
                last = marks.pop()
                start = last.start
                end = max(end, last.end)
                probability = max(probability, last.probability)
            marks.append(Word(start, end, probability))
        return marks

    def _explain_contradiction(self, record: Record, contradiction: Contradiction, probability: float) -> Error:
        fact, other, passage = contradiction
        difference = describe_difference(fact, other)
        return self.make_error(
            record,
            (fact.start, fact.end),
            MIN_PENALTY + (MAX_PENALTY - MIN_PENALTY) * (1 - probability),
            f"{difference.text} {_quote_passage(record.source or '', passage)}",
            revision=difference.replacement,
            source_start=passage[0],
            source_end=passage[1],
        )

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


def is_question(source: str) -> bool:
    """Whether a source is one question and nothing else."""
    return source.rstrip().endswith("?") and len(split_sentences(source)) == 1


def _claim(words: str, probability: float) -> str:
    how = "is unlikely to" if probability < _EVEN else "may not"
    return f"The source {how} support {words} (probability {probability:.2f})."


def _quote_passage(source: str, passage: CharacterSpan | None) -> str:
    if passage is None:
        return "No passage of it shares a word of substance with the sentence."
    start, end = passage
    quote = " ".join(source[start:end].split())
    if len(quote) > _MAX_QUOTE:
        quote = f"{quote[:_MAX_QUOTE].rstrip()}…"
    return f"The nearest passage, characters {start} to {end} of the source: “{quote}”"
