"""How far a source supports the sentences of an output: texts as tokens, windows of the source, and what a model says
of each sentence beside each window.

The model reads sentences of the output beside a window of the source. A sentence is as well supported as by the best
window. Windows that share rare words with the sentences come first, and others follow only for sentences that no window
supports yet: in the end, such a sentence was held against the whole source.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from metrist.documents import read_json
from metrist.errors import ModelError
from metrist.metrics.trained.sentence_metric import Word, join_tokens, merge_words, sigmoid
from metrist.models.numpy_inference.storage import suggest_repair
from metrist.models.reward_layout import unknown_id
from metrist.models.windows import (
    CharacterSpan,
    Ids,
    Numbers,
    SentencePart,
    TokenizedText,
    Window,
    list_windows,
    read_spans,
    read_tokens,
)
from metrist.scores import Failure, FailureKind

if TYPE_CHECKING:
    from metrist.models.text_encoder import TextEncoder

_Settings = TypeVar("_Settings", bound=msgspec.Struct)

#: The heads of the encoder: one logit per sentence, and, if the model has it, one for each token that is high where
#: the source contradicts or lacks it.
HEAD, ERROR_HEAD = "support", "errors"
#: Longest sentence in tokens, if that is at most a quarter of a window: longer ones are judged in parts.
_MAX_SENTENCE = 96
#: Longest passage of the source in tokens that is shown as evidence.
_MAX_PASSAGE = 64
#: What a model's folder says about these heads.
SETTINGS, ERROR_SETTINGS = "support.json", "errors.json"
#: The least probability of a marked word in a supported sentence.
_SURE = 0.9
#: How much is read at once if a folder does not say it: sentences, and tokens.
_SENTENCES, _WINDOW = 3, 512
#: More than any model can be trained with.
_MOST_SENTENCES, _MOST_TOKENS = 1000, 1_000_000
#: The share of a window that sentences may fill if the source needs the rest; trainings divide it in about this way.
_OUTPUT_SHARE = 9 / 16
#: The fewest tokens of a source that a window must have room for.
MIN_ROOM = 64
#: BERT's vocabulary begins with signs and function words: what comes later is rare enough to find a passage by.
_FIRST_RARE = 2100
#: The distance between the places where the best window is looked for.
_STEP = 16
#: So many windows are read without looking for the best of them.
_FEW_WINDOWS = 2

#: The fewest tokens of a copied sentence, and the most places of the source where it is looked for.
_MIN_COPY, _MOST_COPIES = 6, 100
#: Characters beside a copy that say whether a sentence begins before it, and whether one or a part of one ends after
#: it. A mark within a number, a word or an address ends nothing.
_BORDER, _WORD = 12, re.compile(r"\w")
_BEGINS = re.compile(r"(?:\A|[.!?…:;|\n\r][\"'’”»)\]]*)\s*[\"'“‘«(\[*•–-]*\s*\Z")
_ENDS = re.compile(r"[\"'’”»)\]]*(?:\s*\Z|[ \t]*[\n\r|]|\s?[.!?…,;:](?!\w))")

_UNREADABLE_OUTPUT = Failure(FailureKind.other, "the output has nothing that the model can read")
_UNREADABLE_SOURCE = Failure(FailureKind.other, "the source has nothing that the model can read")


# --- What a model's folder says


_LARGEST = sys.float_info.max
_Number = Annotated[float, msgspec.Meta(ge=-_LARGEST, le=_LARGEST)]
_Positive = Annotated[float, msgspec.Meta(gt=0, le=_LARGEST)]
_Probability = Annotated[float, msgspec.Meta(gt=0, lt=1)]


class SupportSettings(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="metrist_support", tag=1
):
    """How the head `support` of a model is used: what `support.json` in its folder says."""

    #: The most sentences that are read together: as many as in the rows of the model's training.
    sentences: Annotated[int, msgspec.Meta(ge=1, le=_MOST_SENTENCES)] = _SENTENCES
    #: Tokens that are read at once: sentences and a window of the source.
    window: Annotated[int, msgspec.Meta(ge=2 * MIN_ROOM, le=_MOST_TOKENS)] = _WINDOW
    #: A logit of the head times `scale` plus `shift` is calibrated.
    scale: _Positive = 1.0
    shift: _Number = 0.0
    #: Whether what is read of a long source are the passages that share most with the sentences, in one pass, rather
    #: than one window after another.
    passages: bool = False
    #: The probability of a sentence that is copied whole, which the model does not read; None: it reads all sentences.
    copied: _Probability | None = None

    @staticmethod
    def read(folder: Path | None) -> SupportSettings:
        return read_settings(folder, SETTINGS, SupportSettings)

    def write(self, folder: Path) -> None:
        text = json.dumps(msgspec.to_builtins(self), indent=2)
        (folder / SETTINGS).write_text(text + "\n", encoding="utf-8")


class ErrorSettings(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="metrist_errors", tag=1
):
    """How the head `errors` of a model is used: what `errors.json` in its folder says."""

    #: A logit of the head times `scale` plus `shift` is calibrated.
    scale: _Positive = 1.0
    shift: _Number = 0.0
    #: A word of an unsupported sentence is marked if its probability of being wrong is higher.
    threshold: _Probability = 0.5
    #: A supported sentence has marked words only if one of them is above this; None: .9, or the threshold if higher.
    sure: _Probability | None = None
    #: A sentence whose probability of support is higher has no marks.
    sentence: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0

    def __post_init__(self) -> None:
        if self.sure is not None and self.sure < self.threshold:
            raise ValueError(f"sure must be at least threshold ({self.threshold:g}), got {self.sure:g}")

    @staticmethod
    def read(folder: Path | None) -> ErrorSettings:
        return read_settings(folder, ERROR_SETTINGS, ErrorSettings)


def read_settings(folder: Path | None, name: str, kind: type[_Settings]) -> _Settings:
    """The settings in a file of a model's folder; the defaults if it has none."""
    path = None if folder is None else folder / name
    if path is None or not path.exists():
        return kind()
    try:
        content, version = read_json(path, ModelError), kind.__struct_config__.tag_field
        if isinstance(content, dict) and version not in content:
            raise msgspec.ValidationError(f"it has no {version!r}")
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as fault:
        raise ModelError(f"{path} cannot be used ({fault}); {suggest_repair(path.parent)}", code="unreadable") from None


# --- Sources


@dataclass(frozen=True, eq=False)
class TokenizedSource(TokenizedText):
    """A source with an index of the passages that are shown as evidence."""

    @cached_property
    def passages(self) -> list[SentencePart]:
        """Sentences and lines."""
        return self.pieces(_MAX_PASSAGE)

    def find_passage(self, ids: Ids) -> CharacterSpan | None:
        """The passage that shares most with these tokens: each counts once, the more the fewer passages have it."""
        sums = self._weigh_passages(ids)
        if not sums.any():
            return None
        best = self.passages[int(np.argmax(sums))]
        return best.start, best.end

    def select_passages(self, sentences: Sequence[Ids], room: int) -> Ids:
        """The tokens of as many passages as there is room for, in the order of the source: the best one of each
        sentence comes first, then the second ones. A source that fits is read whole."""
        if len(self.ids) <= room:
            return self.ids
        orders = [np.argsort(-self._weigh_passages(ids), kind="stable") for ids in sentences]
        chosen: list[SentencePart] = []
        for number in dict.fromkeys(np.column_stack(orders).ravel().tolist()):
            passage = self.passages[number]
            if passage.last - passage.first <= room:
                room -= passage.last - passage.first
                chosen.append(passage)
        # A passage may be longer than the room of a small window.
        return np.concatenate([self.ids[p.first : p.last] for p in sorted(chosen)]) if chosen else self.ids

    def _weigh_passages(self, ids: Ids) -> Numbers:
        """How much each passage shares with these tokens."""
        tokens, passages, weights = self._index
        shared = np.isin(tokens, ids[ids >= _FIRST_RARE])
        return np.bincount(passages[shared], weights[shared], len(self.passages)).astype(np.float64)

    def has_sentence(self, ids: Ids) -> bool:
        """Whether a sentence of the source, or its beginning up to a punctuation mark, is these tokens."""
        width, wanted = self.ids.itemsize, np.ascontiguousarray(ids, self.ids.dtype).tobytes()
        place = -1
        for _ in range(_MOST_COPIES):
            place = self._bytes.find(wanted, place + 1)
            if place < 0:
                return False
            first, offset = divmod(place, width)
            if offset:
                continue
            start, end = int(self.starts[first]), int(self.ends[first + len(ids) - 1])
            before, after = self.text[max(start - _BORDER, 0) : start], self.text[end : end + _BORDER]
            # What was cut off is neither the beginning nor the end of the text.
            before = before if start <= _BORDER else f"x{before}"
            after = after if end + _BORDER >= len(self.text) else f"{after}x"
            if _BEGINS.search(before) and _ENDS.match(after):
                return True
        return False

    @cached_property
    def _bytes(self) -> bytes:
        return self.ids.tobytes()

    @cached_property
    def _index(self) -> tuple[Ids, NDArray[np.intp], Numbers]:
        """The distinct tokens of each passage: token, passage, weight."""
        sizes = [piece.last - piece.first for piece in self.passages]
        numbers = np.repeat(np.arange(len(sizes)), sizes)
        inside = [self.ids[piece.first : piece.last] for piece in self.passages]
        pairs = np.unique(np.column_stack([np.concatenate([np.empty(0, np.int32), *inside]), numbers]), axis=0)
        _, inverse, counts = np.unique(pairs[:, 0], return_inverse=True, return_counts=True)
        weights = np.log1p(len(sizes) / counts)[inverse]
        return pairs[:, 0].astype(np.int32), pairs[:, 1].astype(np.intp), weights


# --- Windows of the source


def choose_window(source: Ids, sentences: Ids, room: int) -> Window:
    """The window of `room` tokens with most of the rare tokens of the sentences; the training chose it this way."""
    if len(source) <= room:
        return 0, len(source)
    # The last window ends with the source.
    starts = np.append(np.arange(0, len(source) - room, _STEP), len(source) - room)
    start = int(starts[np.argmax(_count_hits(source, sentences, starts, starts + room))])
    return start, start + room


def _count_hits(source: Ids, sentences: Ids, starts: NDArray[np.intp], ends: NDArray[np.intp]) -> NDArray[np.intp]:
    """How many tokens of each window are rare and occur in the sentences."""
    hits = np.isin(source, sentences) & (source > _FIRST_RARE)
    sums = np.concatenate([[0], np.cumsum(hits)])
    counts: NDArray[np.intp] = sums[ends] - sums[starts]
    return counts


# --- Support


@dataclass(frozen=True, eq=False)
class Support:
    """The sentences of an output by their characters, and the probability that the source supports each."""

    text: str
    spans: list[CharacterSpan]
    probabilities: Numbers
    source: TokenizedSource
    tokens: list[Ids]
    #: The words of each sentence with the probability that the source contradicts or lacks them; none if the model does
    #: not mark words, or did not read the sentence.
    words: list[list[Word]]
    #: How words are marked; None if the model does not mark any.
    marking: ErrorSettings | None = None

    def find_marks(self, sentence: int, *, supported: bool) -> list[Word]:
        """The words of a sentence that are marked, neighbours as one. A supported sentence has marks only if the model
        is sure about one of its words."""
        marking = self.marking
        if marking is None or self.probabilities[sentence] > marking.sentence:
            return []
        words = self.words[sentence]
        sure = max(_SURE, marking.threshold) if marking.sure is None else marking.sure
        if supported and not any(word.probability > sure for word in words):
            return []
        return merge_words(self.text, words, marking.threshold)

    def evidence(self, sentence: int) -> CharacterSpan | None:
        """The passage of the source that is nearest to the sentence; None if none shares a rare word."""
        return self.source.find_passage(self.tokens[sentence])


class SupportRow(NamedTuple):
    """Sentences beside a window of the source: the sequence, the tokens of each sentence in it, and the characters of
    each in the output."""

    sequence: tuple[Ids, int]
    spans: list[tuple[int, int]]
    characters: list[CharacterSpan]


@dataclass(eq=False)
class _SentenceGroup:
    """Sentences of an output that are read together, and the windows of the source that are left for them."""

    source: Ids
    sentences: list[Ids]
    logits: Numbers
    #: Sentences that no window supports yet.
    open: list[int]
    #: The lowest logit of each token's error over the windows, by sentence: what one window supports is supported.
    errors: dict[int, Numbers] = field(default_factory=dict)
    #: Windows that were read, those of this round, and those that are left; None: not chosen yet.
    read: list[Window] = field(default_factory=list)
    requested: list[Window] = field(default_factory=list)
    left: list[Window] | None = None


#: Sentences, their tokens, the window of the source beside them, and the place of each sentence in the tokens.
_SentenceWindow = tuple[_SentenceGroup, Ids, Ids, list[Window]]


@dataclass(frozen=True, eq=False)
class SupportReader:
    """Holds the sentences of outputs against their sources. Equal texts are tokenized once, equal pairs read once, and
    the result of a pair does not depend on the others."""

    encoder: TextEncoder
    threshold: float
    #: Tokens that are read at once; None: what the settings say.
    window: int | None = None
    #: None: those of the model's folder.
    override: SupportSettings | None = None

    @cached_property
    def settings(self) -> SupportSettings:
        return self.override or SupportSettings.read(self.encoder.folder)

    @cached_property
    def marking(self) -> ErrorSettings | None:
        """How words are marked; None if the model has no head for that."""
        return ErrorSettings.read(self.encoder.folder) if ERROR_HEAD in self.encoder.heads else None

    def read(self, pairs: Sequence[tuple[str, str]]) -> list[Support | Failure]:
        """The support of each (source, output) pair, or why there is none."""
        distinct = list(dict.fromkeys(pairs))
        source_texts = list(dict.fromkeys(source for source, _ in distinct))
        output_texts = list(dict.fromkeys(output for _, output in distinct))
        sources = {source.text: source for source in TokenizedSource.read(source_texts, self.encoder)}
        outputs = {output.text: output for output in TokenizedText.read(output_texts, self.encoder)}
        results: dict[tuple[str, str], Support | Failure] = {}
        work: dict[tuple[str, str], list[_SentenceGroup]] = {}
        places: dict[tuple[str, str], dict[bytes, list[int]]] = {}
        cut: dict[tuple[str, str], list[SentencePart]] = {}
        for pair in distinct:
            source, output = sources[pair[0]], outputs[pair[1]]
            pieces = self._select_pieces(output)
            if not pieces:
                results[pair] = _UNREADABLE_OUTPUT
            elif not (source.ids != self._unknown).any():
                results[pair] = _UNREADABLE_SOURCE
            else:
                tokens = [output.ids[piece.first : piece.last] for piece in pieces]
                spans = [(piece.start, piece.end) for piece in pieces]
                copied = np.full(len(spans), self.settings.copied or 0.0)
                words: list[list[Word]] = [[] for _ in pieces]
                results[pair] = Support(output.text, spans, copied, source, tokens, words, self.marking)
                # The sentences that are read, by their tokens: one that is repeated is read once.
                places[pair], cut[pair] = {}, pieces
                for i, piece in enumerate(pieces):
                    if not self._is_copied(output, piece, source):
                        places[pair].setdefault(tokens[i].tobytes(), []).append(i)
                work[pair] = list(self._split_work(source, [tokens[at[0]] for at in places[pair].values()]))
        self._run([unit for units in work.values() for unit in units])
        for pair, units in work.items():
            result = results[pair]
            assert isinstance(result, Support)
            logits = np.concatenate([np.empty(0), *(unit.logits for unit in units)])
            probabilities = 1 / (1 + np.exp(-np.clip(logits, -60, 60)))
            errors = [unit.errors.get(i) for unit in units for i in range(len(unit.sentences))]
            for own, probability, of_tokens in zip(places[pair].values(), probabilities, errors, strict=True):
                result.probabilities[own] = probability
                if of_tokens is not None:
                    for i in own:
                        result.words[i] = self._join_words(outputs[pair[1]], cut[pair][i], of_tokens)
        return [results[pair] for pair in pairs]

    def lay_out(self, source: str, output: str) -> list[SupportRow]:
        """The rows of the first round, as a training reads them: all sentences, each beside the best window."""
        [tokens] = TokenizedText.read([output], self.encoder)
        [source_tokens] = TokenizedSource.read([source], self.encoder)
        pieces = self._select_pieces(tokens)
        if not pieces or not (source_tokens.ids != self._unknown).any():
            return []
        rows, at = [], 0
        for unit in self._split_work(source_tokens, [tokens.ids[piece.first : piece.last] for piece in pieces]):
            self._request(unit)
            [(_, own, beside, spans)] = self._build_windows(unit)
            # A special token comes first.
            in_sequence = [(start + 1, end + 1) for start, end in spans]
            characters = [(piece.start, piece.end) for piece in pieces[at : at + len(spans)]]
            rows.append(SupportRow(self.encoder.join(own, beside), in_sequence, characters))
            at += len(spans)
        return rows

    def _join_words(self, output: TokenizedText, piece: SentencePart, logits: Numbers) -> list[Word]:
        assert self.marking is not None
        calibrated = (self.marking.scale * logits + self.marking.shift).tolist()
        starts, ends = (column[piece.first : piece.last].tolist() for column in (output.starts, output.ends))
        return list(join_tokens(output.text, starts, ends, list(map(sigmoid, calibrated))))

    def _is_copied(self, output: TokenizedText, piece: SentencePart, source: TokenizedSource) -> bool:
        """Whether the source has this sentence word for word; marks before and after it do not count."""
        if self.settings.copied is None or piece.last - piece.first < _MIN_COPY:
            return False
        words = [
            i for i in range(piece.first, piece.last) if _WORD.search(output.text, output.starts[i], output.ends[i])
        ]
        if not words or words[-1] + 1 - words[0] < _MIN_COPY:
            return False
        ids = output.ids[words[0] : words[-1] + 1]
        return not (ids == self._unknown).any() and source.has_sentence(ids)

    @cached_property
    def _unknown(self) -> int | None:
        return unknown_id(self.encoder.tokenizer)

    def _select_pieces(self, output: TokenizedText) -> list[SentencePart]:
        """The sentences of an output of which the model knows at least one token."""
        pieces = output.pieces(min(_MAX_SENTENCE, self._limit // 4))
        return [piece for piece in pieces if (output.ids[piece.first : piece.last] != self._unknown).any()]

    @property
    def _limit(self) -> int:
        return min(self.window or self.settings.window, self.encoder.max_tokens)

    def _split_work(self, source: TokenizedSource, sentences: Sequence[Ids]) -> Iterator[_SentenceGroup]:
        """Neighbouring sentences that fit beside a window of the source, or, if they are few, beside all of it. More
        than about half of the tokens are not theirs even if the source is short: no training has such rows."""
        # Three special tokens.
        room = self._limit - 3
        few = _SENTENCES * _MAX_SENTENCE
        most = max(int(_OUTPUT_SHARE * room), min(room - len(source.ids), room - MIN_ROOM, few))
        limit = self.settings.sentences
        group: list[Ids] = []
        for number, tokens in enumerate(sentences):
            # The last few sentences are not worth a pass of their own.
            closing = len(group) + len(sentences) - number <= limit + limit // 6
            if (len(group) >= limit and not closing) or (group and sum(map(len, group)) + len(tokens) > most):
                yield self._make_group(source, group)
                group = []
            group.append(tokens)
        if group:
            yield self._make_group(source, group)

    def _make_group(self, source: TokenizedSource, sentences: list[Ids]) -> _SentenceGroup:
        ids = source.ids
        if self.settings.passages:
            ids = source.select_passages(sentences, self._limit - 3 - sum(map(len, sentences)))
        return _SentenceGroup(ids, sentences, np.full(len(sentences), -np.inf), list(range(len(sentences))))

    def _run(self, work: Sequence[_SentenceGroup]) -> None:
        """Read windows in rounds, over all outputs at once, until each sentence is supported or its source read. The
        number of windows doubles with each round: a long source does not take a round for each of them."""
        limit = math.log(self.threshold / (1 - self.threshold))
        active = list(work)
        while active:
            for unit in active:
                self._request(unit)
            active = [unit for unit in active if unit.requested]
            # Read the requested windows, and keep the highest logit of each open sentence.
            windows = (window for unit in active for window in self._build_windows(unit))
            for unit, logits in self._read_logits(windows):
                column = self.settings.scale * logits.reshape(len(unit.open), -1)[:, 0] + self.settings.shift
                unit.logits[unit.open] = np.maximum(unit.logits[unit.open], column)
            for unit in active:
                unit.open = [i for i in unit.open if unit.logits[i] < limit]
            active = [unit for unit in active if unit.open]

    def _request(self, unit: _SentenceGroup) -> None:
        """Choose the windows of the next round: the best one, then those for the rest of the source; none are left when
        it has been read. If the rest is long, the best window for what is still unsupported comes before it."""
        sentences = np.concatenate([unit.sentences[i] for i in unit.open])
        room = self._limit - 3 - len(sentences)
        if not unit.read:
            unit.requested = [choose_window(unit.source, sentences, room)]
        elif unit.left is None:
            windows = list_windows(len(unit.source), unit.read, room)
            best = choose_window(unit.source, sentences, room)
            was_read = any(start <= best[0] and best[1] <= end for start, end in unit.read)
            if len(windows) > _FEW_WINDOWS and not was_read:
                unit.requested = [best]
                windows = list_windows(len(unit.source), [*unit.read, best], room)
            else:
                unit.requested = []
            table = np.array(windows, np.intp).reshape(-1, 2)
            hits = _count_hits(unit.source, sentences, table[:, 0], table[:, 1])
            unit.left = [windows[i] for i in np.argsort(-hits, kind="stable")]
        else:
            unit.requested = []
        if not unit.requested and unit.left:
            count = len(unit.read)
            unit.requested, unit.left = unit.left[:count], unit.left[count:]
        unit.read += unit.requested

    def _read_logits(self, windows: Iterator[_SentenceWindow]) -> Iterator[tuple[_SentenceGroup, Numbers]]:
        """The head's outputs for the open sentences beside each window. If the model marks words, keep the lowest error
        logit of each token, too."""
        if self.marking is None:
            yield from read_spans(self.encoder, HEAD, windows)
            return
        # A head on the mean of the tokens is the mean of the head on each: one pass serves both heads.
        rows = (((unit, spans), own, beside) for unit, own, beside, spans in windows)
        for (unit, spans), numbers in read_tokens(self.encoder, (HEAD, ERROR_HEAD), rows):
            for sentence, (start, end) in zip(unit.open, spans, strict=True):
                errors = numbers[start:end, -1]
                unit.errors[sentence] = np.minimum(unit.errors.get(sentence, errors), errors)
            yield unit, np.array([numbers[start:end].mean(0) for start, end in spans])

    def _build_windows(self, unit: _SentenceGroup) -> Iterator[_SentenceWindow]:
        """The open sentences beside each requested window, with the tokens of each sentence."""
        tokens = [unit.sentences[i] for i in unit.open]
        ends = np.cumsum([len(sentence) for sentence in tokens]).tolist()
        spans = [(end - len(sentence), end) for end, sentence in zip(ends, tokens, strict=True)]
        for start, end in unit.requested:
            yield unit, np.concatenate(tokens), unit.source[start:end], spans
