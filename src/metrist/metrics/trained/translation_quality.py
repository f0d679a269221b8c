"""How good a translation is, with its errors, by a multilingual model that was trained on human judgments.

The model reads `[CLS] output [SEP] reference [SEP] source [SEP]`, without what a record lacks, and gives four numbers
for each token of the output: two whose means say how good the output is (one was trained to predict ratings, the other
to order outputs of the same source), and two that mark errors and major errors. Where the model's combination asks for
it, it also reads output and reference (or source) each alone, and matches their tokens.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from itertools import islice, product
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrist import threads
from metrist.errors import ModelError, SpecError, agree, format_count
from metrist.metrics.base import Shard
from metrist.metrics.lexical.chrf import Chrf
from metrist.metrics.model_metric import ModelMetric
from metrist.models import loading
from metrist.models.batching import split_batches
from metrist.models.text_encoder import TextEncoder
from metrist.models.weights import find_weights
from metrist.models.windows import Ids, Numbers, TokenizedText, Window, align_windows, read_tokens
from metrist.ratings import Error
from metrist.records import Record
from metrist.scores import Failure, FailureKind, Score, Scores
from metrist.sentences import split_sentences

#: The head of the encoder and what its outputs are.
HEAD = "translation"
QUALITY, RANKING, ERROR, MAJOR = range(4)
#: The key of config.json that holds the combination of the numbers.
SETTINGS = "translation"

#: Parts of a score.
USES_SOURCE, USES_REFERENCE, UNKNOWN, WINDOWS = "uses_source", "uses_reference", "unknown", "windows"
MARKED, CHRF, COPIED = "marked", "chrf", "copied"
#: Mean cosine of each token of the output with the token of the other text that is most like it, and the other way
#: around, by the states of texts that were read alone.
REFERENCE_MATCHES = "reference_precision", "reference_recall"
SOURCE_MATCHES = "source_precision", "source_recall"

#: Weights of errors in the Multidimensional Quality Metrics framework, as in the WMT ratings of the training.
_PENALTIES = {"minor": 1.0, "major": 5.0}
#: What the tags do not tell is what kind of error it is.
_ASPECT = "Translation"
#: Most references that are read, since each costs a pass of the model.
_MAX_REFERENCES = 4
#: Tokens of records that are computed together; it bounds memory and changes no number.
_BLOCK_TOKENS = 200_000
#: An output of at least so many words of which at least this share stands in the source in the same order is not a
#: translation. The model itself does not see that: a copy says what the source says.
_MIN_COPY_WORDS, _MAX_COPIED = 5, 0.9
#: Words that are looked at for copying: comparing takes up to the square of their number.
_COPY_WORDS = 300
#: With more unknown pieces than this, most of an output is not read.
_MANY_UNKNOWN = 0.05

#: Words of letters, in scripts that put spaces between them. Others have no word boundaries to look at.
_WORD = re.compile(r"[^\W\d_]+")
_SPACELESS = re.compile(r"[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")

_EMPTY_OUTPUT = Failure(FailureKind.missing_input, "the output is empty: there is no translation to judge")
_NOTHING_TO_COMPARE = Failure(
    FailureKind.missing_input, "the record has neither a source nor a reference to judge the translation by"
)
_UNREADABLE = Failure(FailureKind.missing_input, "the output has nothing that the model can read")


@dataclass(frozen=True, kw_only=True)
class TranslationQuality(ModelMetric):
    """The quality of a translation from 0 to 1, estimated from the source, from references where there are any, or from
    references alone."""

    model: str = "metrist:multilingual"
    #: Whether references are read; without, outputs are judged by their sources alone.
    references: bool = True
    #: A token whose probability of belonging to an error is higher is part of one. None: the model's own threshold.
    threshold: float | None = None

    extra: ClassVar[str | None] = "standard"
    catalog_name: ClassVar[str | None] = "translation_quality"
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)
    reports_errors: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threshold is not None and not 0 < self.threshold < 1:
            raise SpecError(f"{self.name}: threshold must be a probability between 0 and 1, got {self.threshold!r}")

    def score(self, shard: Shard) -> Scores:
        scores: list[Score | None] = [None] * len(shard)
        readable: list[int] = []
        for i, record in enumerate(shard.records):
            if not record.output.strip():
                scores[i] = Score.failed(_EMPTY_OUTPUT)
            elif not (_has_source(record) or self._list_references(record)):
                scores[i] = Score.failed(_NOTHING_TO_COMPARE)
            else:
                readable.append(i)
        if readable:
            encoder = loading.load_text_encoder(self.model, runtime=shard.runtime)
            combination = read_combination(self.model)
            threshold = combination.threshold if self.threshold is None else self.threshold
            reader = _RecordScorer(encoder, self, combination, threshold)
            for i, score in zip(readable, reader.score([shard.records[i] for i in readable]), strict=True):
                scores[i] = score
        return Scores.of(score for score in scores if score is not None)

    def remarks(self, scores: Scores) -> list[str]:
        remarks = super().remarks(scores)
        scored = int(np.count_nonzero(~np.isnan(scores.values)))

        def count(part: str, chosen: Any) -> int:
            values = scores.parts.get(part)
            return 0 if values is None else int(np.count_nonzero(chosen(values[~np.isnan(scores.values)])))

        def add(number: int, text: str) -> None:
            if number:
                remarks.append(f"{self.label}: {number:,} of {format_count(scored, 'output')} {text}")

        number = count(USES_SOURCE, lambda values: values == 0)
        add(number, f"{agree(number, 'was', 'were')} judged by references alone, for want of a source")
        without = count(USES_REFERENCE, lambda values: values == 0)
        if without < scored:
            was = agree(without, "was", "were")
            add(without, f"{was} judged without a reference; do not compare them with those that were judged with one")
        number = count(WINDOWS, lambda values: values > 1)
        add(number, f"{agree(number, 'was', 'were')} too long to be read at once, and read in parts")
        number = count(COPIED, lambda values: values > _MAX_COPIED)
        add(number, f"{agree(number, 'repeats its source', 'repeat their sources')} and got the value 0")
        number = count(UNKNOWN, lambda values: values > _MANY_UNKNOWN)
        add(
            number,
            f"{agree(number, 'has', 'have')} many characters that the model does not know: take them for guesses",
        )
        return remarks

    def describe_misuse(self, records: Sequence[Record]) -> list[str]:
        warnings = []
        other = [record.task for record in records if record.task and record.task not in ("translation", "mt")]
        if records and len(other) > len(records) / 2:
            warnings.append(
                f"{self.label}: the task of these records is {other[0]!r}, but the metric judges translations"
            )
        if not any(record.language for record in records):
            return warnings
        learned = read_combination(self.model).languages
        named = {language for record in records for language in _list_languages(record.language)}
        if learned and (unlearned := sorted(named - learned)):
            judgments = f"judgments of translations from or into {', '.join(unlearned)}"
            warnings.append(
                f"{self.label}: the model was not trained on {judgments}, and agrees less with people there"
            )
        return warnings

    def _list_references(self, record: Record) -> list[str]:
        """The references to read: different ones, and not too many."""
        if not self.references:
            return []
        return list(dict.fromkeys(text for text in record.references if text.strip()))[:_MAX_REFERENCES]


# --- The combination of the model's numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """How the numbers of a pass become a value, from the model's config.json: for each mode (`source`, `both`,
    `reference`) a weight for each feature, and a `constant`."""

    weights: Mapping[str, Mapping[str, float]]
    threshold: float
    languages: frozenset[str] = field(default_factory=frozenset)
    #: The layer whose states are matched; None: the last one.
    layer: int | None = None
    #: Whether sentences are read one by one, each beside what it translates, where there is no reference.
    sentences: bool = False

    def uses(self, mode: str, names: Iterable[str]) -> bool:
        """Whether one of these features has a weight in a mode."""
        return any(self.weights[mode].get(name) for name in names)

    def combine(self, mode: str, features: Mapping[str, float]) -> float:
        """The value, 0 to 1."""
        weights = self.weights[mode]
        total = weights["constant"] + sum(weights.get(name, 0.0) * number for name, number in features.items())
        # exp overflows beyond 709.
        return 1 / (1 + math.exp(-max(-500.0, min(500.0, total))))


MODES = ("source", "both", "reference")
FEATURES = ("constant", "quality", "ranking", "marked", "chrf")
#: Features that a combination may do without: their weight is 0 then, and they are not computed.
OPTIONAL_FEATURES = (*REFERENCE_MATCHES, *SOURCE_MATCHES)


def read_combination(model: str) -> Combination:
    """Read the combination of a model; raise ModelError if the folder holds another kind of model."""
    from metrist.models.devices import Options

    config = find_weights(Options(model=model)).config
    try:
        settings = config[SETTINGS]
        weights = {mode: {name: float(settings["weights"][mode][name]) for name in FEATURES} for mode in MODES}
        for mode, own in weights.items():
            own |= {name: float(settings["weights"][mode].get(name, 0.0)) for name in OPTIONAL_FEATURES}
        numbers = [number for of_mode in weights.values() for number in of_mode.values()]
        threshold = float(settings["threshold"])
        if not all(map(math.isfinite, numbers)) or not 0 < threshold < 1:
            raise ValueError("has weights that are not finite, or a threshold that is not between 0 and 1,")
        layer = settings.get("layer")
        if layer is not None and (type(layer) is not int or not 1 <= layer <= config["layers"]):
            raise ValueError(f"has the layer {layer!r}, expected 1 to {config['layers']},")
        return Combination(
            weights=weights,
            threshold=threshold,
            languages=frozenset(map(str, settings.get("languages", ()))),
            layer=layer,
            sentences=settings.get("sentences") is True,
        )
    except (KeyError, TypeError, ValueError) as fault:
        reason = f"has no {fault}" if isinstance(fault, KeyError) else str(fault)
        raise ModelError(
            f"{model}: config.json {reason} under {SETTINGS!r}; expected a model for translation_quality, such as "
            "metrist:multilingual",
            code="invalid_value",
        ) from None


# --- Reading records


class _Pass(NamedTuple):
    """One sequence of the model: a record's output, or a window of it, beside a reference and the source."""

    record: int
    #: Which reference, 0 if there is none.
    reference: int
    #: The output's tokens: those of the window are start to end.
    start: int
    end: int
    output_ids: Ids
    #: The tokens that the window has of reference and source; none if the record lacks it.
    reference_ids: Ids | None
    source_ids: Ids | None
    is_sentence: bool = False


class _RecordScorer:
    def __init__(
        self, encoder: TextEncoder, metric: TranslationQuality, combination: Combination, threshold: float
    ) -> None:
        self._encoder = encoder
        self._metric = metric
        self._combination = combination
        self._threshold = threshold
        if HEAD not in encoder.heads:
            raise ModelError(
                f"{metric.model} has no head {HEAD!r}; expected a model such as metrist:multilingual",
                code="unknown_name",
            )
        self._unknown = encoder.tokenizer.token_to_id("<unk>")

    def score(self, records: Sequence[Record]) -> Iterator[Score]:
        # A character is rarely more than one token.
        sizes = [sum(map(len, self._list_texts(record))) for record in records]
        for batch in split_batches(sizes, _BLOCK_TOKENS, padded=False):
            block = [records[at] for at in batch]
            texts = list(dict.fromkeys(text for record in block for text in self._list_texts(record)))
            tokens = {text.text: text for text in TokenizedText.read(texts, self._encoder)}
            yield from self._score_block(block, tokens)

    def _list_texts(self, record: Record) -> list[str]:
        source = [record.source or ""] if _has_source(record) else []
        return [record.output, *source, *self._metric._list_references(record)]

    def _score_block(self, records: Sequence[Record], tokens: Mapping[str, TokenizedText]) -> Iterator[Score]:
        passes = [reading for i, record in enumerate(records) for reading in self._list_passes(i, record, tokens)]
        separator = np.array([self._encoder.sizes.end_token], np.int32)
        windows = []
        for reading in passes:
            sides = [side for side in (reading.reference_ids, reading.source_ids) if side is not None]
            beside = [piece for side in sides for piece in (side, separator)]
            windows.append((reading, reading.output_ids, np.concatenate(beside[:-1])))
        by_record: dict[int, list[tuple[_Pass, Numbers]]] = {}
        for reading, numbers in read_tokens(self._encoder, HEAD, windows):
            by_record.setdefault(reading.record, []).append((reading, numbers))
        # chrF from 0 to 1, against the best reference; 0 without any.
        references = {i: texts for i, record in enumerate(records) if (texts := self._metric._list_references(record))}
        shard = Shard([replace(records[i], references=tuple(texts)) for i, texts in references.items()])
        overlaps = dict(zip(references, (Chrf().score(shard).values / 100).tolist(), strict=True))
        matches = self._match_tokens(records, passes)
        for i, record in enumerate(records):
            if i not in by_record:
                yield Score.failed(_UNREADABLE)
            else:
                overlap = overlaps.get(i, 0.0)
                yield self._score_record(record, tokens[record.output], by_record[i], overlap, matches[i])

    def _name_mode(self, record: Record) -> str:
        if not self._metric._list_references(record):
            return "source"
        return "both" if _has_source(record) else "reference"

    def _match_tokens(self, records: Sequence[Record], passes: Sequence[_Pass]) -> list[dict[str, float]]:
        """The features of matched tokens that the combination uses, for each record. Of several references, the one
        counts that matches best."""
        wanted: list[tuple[_Pass, tuple[str, str], Ids]] = []
        for reading in passes:
            mode = self._name_mode(records[reading.record])
            for names, other in ((REFERENCE_MATCHES, reading.reference_ids), (SOURCE_MATCHES, reading.source_ids)):
                # Each reference's passes have the same source.
                repeated = names is SOURCE_MATCHES and reading.reference > 0
                if other is not None and len(other) and not repeated and self._combination.uses(mode, names):
                    wanted.append((reading, names, other))
        texts = {ids.tobytes(): ids for reading, _, other in wanted for ids in (reading.output_ids, other)}
        sequences = [self._encoder.join(ids) for ids in texts.values()]
        states = self._encoder.read_states(sequences, self._combination.layer) if sequences else []
        vectors: dict[bytes, NDArray[np.float32]] = {}
        for key, state in zip(texts, states, strict=True):
            norms = np.linalg.norm(state[1:-1], axis=1, keepdims=True)
            vectors[key] = state[1:-1] / np.maximum(norms, 1e-12)

        def match(request: tuple[_Pass, tuple[str, str], Ids]) -> tuple[Numbers, Numbers]:
            reading, _, other = request
            table = vectors[reading.output_ids.tobytes()] @ vectors[other.tobytes()].T
            return table.max(1).astype(np.float64), table.max(0).astype(np.float64)

        # The windows of one reference are parts of one text.
        cosines: dict[tuple[int, tuple[str, str], int], tuple[list[Numbers], list[Numbers]]] = {}
        # Small products: the threads of the BLAS library would wait for each other longer than they compute.
        for (reading, names, _), best in zip(wanted, threads.parallel_map(match, wanted), strict=True):
            own = cosines.setdefault((reading.record, names, reading.reference), ([], []))
            for collected, values in zip(own, best, strict=True):
                collected.append(values)
        results: list[dict[str, float]] = [{} for _ in records]
        for (number, names, _), both in cosines.items():
            means = [float(np.concatenate(windows).mean()) for windows in both]
            if sum(means) > sum(results[number].get(name, -1.0) for name in names):
                results[number] |= dict(zip(names, means, strict=True))
        return results

    def _list_passes(self, number: int, record: Record, tokens: Mapping[str, TokenizedText]) -> Iterator[_Pass]:
        output = tokens[record.output]
        if not len(output.ids):
            return
        source = tokens[record.source or ""] if _has_source(record) else None
        references = self._metric._list_references(record)
        if source is not None and not references and self._combination.sentences:
            groups = align_sentences(output, source, (self._encoder.max_tokens - 3) // 2)
            for (start, end), beside in groups:
                yield _Pass(number, 0, start, end, output.ids[start:end], None, source.ids[slice(*beside)], True)
            if groups:
                return
        for at, reference in enumerate(references or [None]):
            others = [tokens[reference]] if reference is not None else []
            others += [source] if source is not None else []
            for (start, end), *rest in align_windows([output, *others], self._encoder.max_tokens - 2 - len(others)):
                texts = [side.ids[a:b] for side, (a, b) in zip(others, rest, strict=True)]
                in_reference = texts[0] if reference is not None else None
                in_source = texts[-1] if source is not None else None
                yield _Pass(number, at, start, end, output.ids[start:end], in_reference, in_source)

    def _score_record(
        self,
        record: Record,
        output: TokenizedText,
        passes: Sequence[tuple[_Pass, Numbers]],
        overlap: float,
        matches: Mapping[str, float],
    ) -> Score:
        # The numbers of each token, averaged over references; windows of one reference do not overlap.
        length = len(output.ids)
        references = 1 + max(reading.reference for reading, _ in passes)
        numbers = np.zeros((length, 4))
        for reading, result in passes:
            numbers[reading.start : reading.end] += result / references
        errors, majors = (1 / (1 + np.exp(-numbers[:, column])) for column in (ERROR, MAJOR))
        by_sentence = passes[0][0].is_sentence
        # Each sentence counts as much as the others, since raters add up the errors of all.
        parts_of = [(reading.start, reading.end) for reading, _ in passes] if by_sentence else [(0, length)]
        quality, ranking = np.mean([numbers[start:end, :2].mean(0) for start, end in parts_of], axis=0).tolist()
        copied = _measure_copying(record.output, record.source or "", self._metric._list_references(record))
        has_reference = bool(self._metric._list_references(record))
        features = {
            "quality": quality,
            "ranking": ranking,
            # As the MQM score of the ratings: major errors cost five times as much as minor ones.
            MARKED: math.log1p(float((errors + 4 * majors).sum())),
            CHRF: overlap,
            **matches,
        }
        parts = {
            **{name: number for name, number in features.items() if name != CHRF or has_reference},
            USES_SOURCE: float(_has_source(record)),
            USES_REFERENCE: float(has_reference),
            WINDOWS: 1.0 if by_sentence else float(len(passes) // references),
            UNKNOWN: float((output.ids == self._unknown).mean()),
            COPIED: copied,
        }
        if copied > _MAX_COPIED:
            return Score(value=0.0, parts=parts, errors=(_mark_copy(record.output, copied),))
        offsets = np.column_stack([output.starts, output.ends])
        return Score(
            value=self._combination.combine(self._name_mode(record), features),
            parts=parts,
            errors=tuple(mark_errors(record.output, offsets, errors, majors, self._threshold)),
        )


def _has_source(record: Record) -> bool:
    return bool((record.source or "").strip())


def _measure_copying(output: str, source: str, references: Sequence[str]) -> float:
    """The share of the output's words that stand in the source in the same order; 0 for outputs of few words, and where
    a reference repeats the source as well."""
    words, others = _list_words(output), _list_words(source)
    if len(words) < _MIN_COPY_WORDS or not others:
        return 0.0
    # Most outputs share few words with their source, which is quickly seen.
    known = set(others)
    if sum(word in known for word in words) <= _MAX_COPIED * len(words):
        return 0.0
    share = _share_in_order(words, others)
    if share > _MAX_COPIED and any(
        _share_in_order(_list_words(text) or [""], others) > _MAX_COPIED for text in references
    ):
        return 0.0
    return share


def _list_words(text: str) -> list[str]:
    found = (match[0] for match in _WORD.finditer(text.casefold()))
    return list(islice(found, _COPY_WORDS))


def _share_in_order(words: Sequence[str], others: Sequence[str]) -> float:
    blocks = SequenceMatcher(None, words, others, autojunk=False).get_matching_blocks()
    return sum(block.size for block in blocks) / len(words)


def _mark_copy(output: str, copied: float) -> Error:
    start, end = len(output) - len(output.lstrip()), len(output.rstrip())
    return Error(
        aspect=_ASPECT,
        severity="major",
        penalty=_PENALTIES["major"],
        explanation=f"Not translated: {copied:.0%} of the words are the source's, in the same order.",
        text=output[start:end],
        start=start,
        end=end,
    )


# --- Sentences

#: How many sentences of the output translate how many of the source, and what that costs beside one for one.
_GROUPS = {(1, 1): 0.0, (1, 2): 0.6, (2, 1): 0.6, (2, 2): 1.0, (1, 3): 1.5, (3, 1): 1.5}
#: Characters added to lengths, so that short sentences may differ more, and the weight of a difference.
_SMOOTHING, _LENGTH_COST = 8, 1 / 6


def align_sentences(output: TokenizedText, source: TokenizedText, most: int) -> list[tuple[Window, Window]]:
    """Return the tokens of each group of sentences of the output and of those of the source that stand beside it: the
    cheapest monotone grouping by lengths, as Gale and Church (1993) align texts. None has more than `most` tokens; an
    empty list if there is no such grouping."""
    ours, theirs = (split_sentences(text.text) or [(0, len(text.text))] for text in (output, source))
    # In SentencePiece, a token begins with the white space before it.
    bounds, others = (
        [0, *np.searchsorted(text.starts, [end for _, end in spans[:-1]]).tolist(), len(text.ids)]
        for spans, text in ((ours, output), (theirs, source))
    )
    lengths, expected = (
        np.concatenate(([0], np.cumsum([end - start for start, end in spans]))) for spans in (ours, theirs)
    )
    expected = expected * (lengths[-1] / max(1, expected[-1]))
    best: dict[Window, tuple[float, Window]] = {(0, 0): (0.0, (0, 0))}
    for i, j in product(range(len(ours)), range(len(theirs))):
        for (own, other), extra in _GROUPS.items():
            to = i + own, j + other
            if (i, j) not in best or to[0] > len(ours) or to[1] > len(theirs):
                continue
            tokens = bounds[to[0]] - bounds[i], others[to[1]] - others[j]
            if min(tokens) < 1 or max(tokens) > most:
                continue
            size, other_size = float(lengths[to[0]] - lengths[i]), float(expected[to[1]] - expected[j])
            difference = abs(math.log((size + _SMOOTHING) / (other_size + _SMOOTHING)))
            cost = best[i, j][0] + extra + _LENGTH_COST * difference * math.sqrt(size + other_size)
            if cost < best.get(to, (math.inf,))[0]:
                best[to] = cost, (i, j)
    place, groups = (len(ours), len(theirs)), []
    while place in best and place != (0, 0):
        before = best[place][1]
        groups.append(((bounds[before[0]], bounds[place[0]]), (others[before[1]], others[place[1]])))
        place = before
    return groups[::-1]


# --- Errors


def mark_errors(text: str, offsets: Ids, errors: Numbers, majors: Numbers, threshold: float) -> Iterator[Error]:
    """The errors of an output: runs of tokens that are more likely than the threshold to belong to one, widened to
    whole words."""
    last_end = 0
    # First and last position of each run of likely tokens.
    edges = np.flatnonzero(np.diff(np.concatenate(([False], errors > threshold, [False])).astype(np.int8)))
    for first, last in (edges.reshape(-1, 2) - [0, 1]).tolist():
        start, end = _widen(text, int(offsets[first, 0]), int(offsets[last, 1]))
        # Two runs within one word are one error.
        start = max(start, last_end)
        if start >= end:
            continue
        last_end = end
        probability, major = (float(values[first : last + 1].max()) for values in (errors, majors))
        severity = "major" if major > threshold else "minor"
        yield Error(
            aspect=_ASPECT,
            severity=severity,
            penalty=_PENALTIES[severity],
            explanation=f"Possibly wrong (probability {probability:.2f}; of a major error {major:.2f}).",
            text=text[start:end],
            start=start,
            end=end,
        )


def _widen(text: str, start: int, end: int) -> tuple[int, int]:
    """The span without white space around it, widened to the ends of its first and last word."""
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    if start == end:
        return start, end
    if _is_word(text[start]):
        while start > 0 and _is_word(text[start - 1]):
            start -= 1
    if _is_word(text[end - 1]):
        while end < len(text) and _is_word(text[end]):
            end += 1
    return start, end


def _is_word(character: str) -> bool:
    category = unicodedata.category(character)
    return category[0] in "LNM" and not _SPACELESS.match(character)


# --- Languages

#: Codes of three letters, and names of data sets, for the codes of two letters.
_CODES = {
    "asm": "as", "assamese": "as", "ben": "bn", "ces": "cs", "cze": "cs", "chi": "zh", "zho": "zh", "deu": "de",
    "eng": "en", "est": "et", "fra": "fr", "fre": "fr", "ger": "de", "guj": "gu", "hin": "hi", "kan": "kn",
    "kannada": "kn", "kaz": "kk", "lit": "lt", "mai": "mai", "maithili": "mai", "mal": "ml", "mar": "mr", "pan": "pa",
    "punjabi": "pa", "ron": "ro", "rum": "ro", "rus": "ru", "spa": "es", "tam": "ta", "tel": "te",
}  # fmt: skip
_PAIR = re.compile(r"([A-Za-z]{2,})(?:_[A-Za-z]{2,4})?")


def _list_languages(language: str | None) -> list[str]:
    """The languages that a record names, such as `en-de` or `de_DE`, as short codes."""
    found = [match[1].lower() for part in re.split(r"[-–>→:/ ]+", language or "") if (match := _PAIR.fullmatch(part))]
    return [_CODES.get(code, code) for code in found]
