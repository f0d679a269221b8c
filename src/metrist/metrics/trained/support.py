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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from metrist.documents import read_json
from metrist.errors import ModelError
from metrist.models.numpy_inference.storage import suggest_repair
from metrist.models.reward_layout import unknown_id
from metrist.scores import Failure, FailureKind
from metrist.sentences import split_sentences

Ids = NDArray[np.int32]
Numbers = NDArray[np.float64]
_T = TypeVar("_T")

#: The heads of the encoder: one logit per sentence, and, if the model has it, one for each token that is high where
#: the source contradicts or lacks it.
HEAD, ERROR_HEAD = "support", "errors"
#: Longest sentence in tokens, if that is at most a quarter of a window: longer ones are judged in parts.
_MAX_SENTENCE = 96
#: Longest passage of the source in tokens that is shown as evidence.
_MAX_PASSAGE = 64
#: What a model's folder says about these heads.
SETTINGS, ERROR_SETTINGS = "support.json", "errors.json"
_VERSION_KEY, _VERSION = "metrist_support", 1
_ERROR_VERSION_KEY = "metrist_errors"
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
#: Tokens that a window shares with what was read before, so that a statement across the border is read whole.
_OVERLAP = 48
#: Characters that are tokenized at once, and sequences that are kept in memory at once.
_TOKENIZED_CHARACTERS, _SEQUENCES = 50_000, 4_096

#: The fewest tokens of a copied sentence, and the most places of the source where it is looked for.
_MIN_COPY, _MOST_COPIES = 6, 100
#: Characters beside a copy that say whether a sentence begins before it, and whether one or a part of one ends after
#: it. A mark within a number, a word or an address ends nothing.
_BORDER, _WORD = 12, re.compile(r"\w")
_BEGINS = re.compile(r"(?:\A|[.!?…:;|\n\r][\"'’”»)\]]*)\s*[\"'“‘«(\[*•–-]*\s*\Z")
_ENDS = re.compile(r"[\"'’”»)\]]*(?:\s*\Z|[ \t]*[\n\r|]|\s?[.!?…,;:](?!\w))")

_UNREADABLE_OUTPUT = Failure(FailureKind.other, "the output has nothing that the model can read")
_UNREADABLE_SOURCE = Failure(FailureKind.other, "the source has nothing that the model can read")


class SupportModel(Protocol):
    """What is needed of an encoder: `TextEncoder` of `metrist.models.text_encoder`."""

    @property
    def max_tokens(self) -> int: ...

    @property
    def heads(self) -> tuple[str, ...]: ...

    @property
    def folder(self) -> Path | None: ...

    @property
    def tokenizer(self) -> Any: ...

    def encode(self, texts: Sequence[str]) -> Sequence[tuple[Ids, NDArray[np.int64]]]:
        """The tokens of each text, and the first character and the end of each token."""
        ...

    def join(self, first: Ids, second: Ids | None = None) -> tuple[Ids, int]:
        """Two texts as one sequence with special tokens, one of them before the first text."""
        ...

    def score_spans(
        self, head: str, sequences: Sequence[tuple[Ids, int]], spans: Sequence[Sequence[tuple[int, int]]]
    ) -> list[NDArray[np.float64]]:
        """The head's output for each span of each sequence."""
        ...

    def score_tokens(
        self, head: str | Sequence[str], sequences: Sequence[tuple[Ids, int]]
    ) -> list[NDArray[np.float64]]:
        """The outputs of the heads, side by side, for each token of each sequence's first part."""
        ...


# --- What a model's folder says


@dataclass(frozen=True, slots=True, kw_only=True)
class SupportSettings:
    """How the head `support` of a model is used: what `support.json` in its folder says."""

    #: The most sentences that are read together: as many as in the rows of the model's training.
    sentences: int = _SENTENCES
    #: Tokens that are read at once: sentences and a window of the source.
    window: int = _WINDOW
    #: A logit of the head times `scale` plus `shift` is calibrated.
    scale: float = 1.0
    shift: float = 0.0
    #: The probability of a sentence that is copied whole, which the model does not read; None: it reads all sentences.
    copied: float | None = None

    @staticmethod
    def read(folder: Path | None) -> SupportSettings:
        """Read the settings of a model's folder; the defaults if it has none."""
        return _read_settings(folder, SETTINGS, SupportSettings.from_json) or SupportSettings()

    @staticmethod
    def from_json(facts: Any) -> SupportSettings:
        """Validate the content of `support.json`; raise ValueError for what cannot be used."""
        _check_names(facts, _VERSION_KEY, tuple(SupportSettings.__dataclass_fields__))
        return SupportSettings(
            sentences=_read_count(facts, "sentences", 1, _SENTENCES, _MOST_SENTENCES),
            window=_read_count(facts, "window", 2 * MIN_ROOM, _WINDOW, _MOST_TOKENS),
            scale=_read_number(facts, "scale", 1.0, above=0.0),
            shift=_read_number(facts, "shift", 0.0),
            copied=None if facts.get("copied") is None else _read_number(facts, "copied", 0.5, above=0.0, below=1.0),
        )

    def write(self, folder: Path) -> None:
        """Write `support.json` into a model's folder."""
        facts = {_VERSION_KEY: _VERSION, **asdict(self)}
        (folder / SETTINGS).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorSettings:
    """How the head `errors` of a model is used: what `errors.json` in its folder says."""

    #: A logit of the head times `scale` plus `shift` is calibrated.
    scale: float = 1.0
    shift: float = 0.0
    #: A word of an unsupported sentence is marked if its probability of being wrong is higher.
    threshold: float = 0.5
    #: The same for words of a supported sentence.
    sure: float = 0.9
    #: A sentence whose probability of support is higher has no marks.
    sentence: float = 1.0

    @staticmethod
    def read(folder: Path | None) -> ErrorSettings:
        """Read the settings of a model's folder; the defaults if it has none."""
        return _read_settings(folder, ERROR_SETTINGS, ErrorSettings.from_json) or ErrorSettings()

    @staticmethod
    def from_json(facts: Any) -> ErrorSettings:
        """Validate the content of `errors.json`; raise ValueError for what cannot be used."""
        _check_names(facts, _ERROR_VERSION_KEY, tuple(ErrorSettings.__dataclass_fields__))
        threshold = _read_number(facts, "threshold", 0.5, above=0.0, below=1.0)
        sure = _read_number(facts, "sure", max(0.9, threshold), above=0.0, below=1.0)
        if sure < threshold:
            raise ValueError(f"sure must be at least threshold ({threshold:g}), got {sure:g}")
        return ErrorSettings(
            scale=_read_number(facts, "scale", 1.0, above=0.0),
            shift=_read_number(facts, "shift", 0.0),
            threshold=threshold,
            sure=sure,
            sentence=_read_number(facts, "sentence", 1.0, above=0.0, below=math.nextafter(1.0, 2.0)),
        )


def _read_settings(folder: Path | None, name: str, parse: Callable[[Any], _T]) -> _T | None:
    """The settings in a file of a model's folder; None if it has none."""
    path = None if folder is None else folder / name
    if path is None or not path.exists():
        return None
    try:
        return parse(read_json(path, ModelError))
    except (ValueError, RecursionError, OverflowError) as fault:
        raise ModelError(f"{path} cannot be used ({fault}); {suggest_repair(path.parent)}") from None


def _check_names(facts: Any, version_key: str, names: tuple[str, ...]) -> None:
    """Raise ValueError if settings are of another version or have unknown names."""
    if not isinstance(facts, dict) or facts.get(version_key) != _VERSION:
        raise ValueError(f"expected an object with {version_key!r} {_VERSION}, which this metrist reads")
    if unknown := sorted(facts.keys() - {version_key, *names}):
        raise ValueError(f"{unknown[0]!r} is not a setting; expected {', '.join(map(repr, names))}")


def _read_count(facts: dict[str, Any], name: str, least: int, default: int, most: int) -> int:
    count = facts.get(name, default)
    # type(): a bool is an int.
    if type(count) is not int or not least <= count <= most:
        raise ValueError(f"{name} must be an integer from {least} to {most:,}, got {count!r}")
    return count


def _read_number(
    facts: dict[str, Any], name: str, default: float, *, above: float = -math.inf, below: float = math.inf
) -> float:
    number = facts.get(name, default)
    if type(number) not in (int, float) or not above < number < below:
        raise ValueError(f"{name} must be a number above {above:g} and below {below:g}, got {number!r}")
    return float(number)


# --- Texts as tokens

CharacterSpan = tuple[int, int]
#: First token of a source and the end, exclusive.
Window = tuple[int, int]


class Piece(NamedTuple):
    """A sentence, or a part of a long one: characters `start` to `end` of the text and tokens `first` to `last`, ends
    exclusive."""

    start: int
    end: int
    first: int
    last: int


@dataclass(frozen=True, eq=False)
class TokenizedText:
    """A text's tokens with the characters that each stands for."""

    text: str
    ids: Ids
    starts: Ids
    ends: Ids

    @staticmethod
    def read(text: str, encoder: SupportModel) -> TokenizedText:
        """Tokenize a text of any length, some of it at a time: each encoding takes far more memory than its text."""
        columns: list[Ids] = []
        for start, end in _cut_text(text):
            [(ids, offsets)] = encoder.encode([text[start:end]])
            columns.append(np.column_stack([ids, offsets + start]).astype(np.int32))
        table = np.concatenate([np.empty((0, 3), np.int32), *columns])
        return TokenizedText(text, *(np.ascontiguousarray(column) for column in table.T))

    def pieces(self, most: int) -> list[Piece]:
        """The sentences that have tokens, in parts of at most `most` tokens, divided between words where possible."""
        pieces: list[Piece] = []
        spans = split_sentences(self.text)
        bounds = np.searchsorted(self.starts, np.array(spans, np.int64).reshape(-1, 2)).tolist()
        # A part of a sentence begins where a word begins.
        word_starts = np.concatenate([[True], self.starts[1:] > self.ends[:-1]]) if len(self.ids) else np.empty(0, bool)
        for (start, end), (first, last) in zip(spans, bounds, strict=True):
            if first == last:
                continue
            cuts = [first, *_cut_tokens(word_starts, first, last, most), last]
            places = [start, *(int(self.starts[cut]) for cut in cuts[1:-1])]
            ends = [*(int(self.ends[cut - 1]) for cut in cuts[1:-1]), end]
            pieces += map(Piece, places, ends, cuts[:-1], cuts[1:])
        return pieces


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


def _cut_text(text: str) -> Iterator[CharacterSpan]:
    """Parts of a text that can be tokenized one by one: they end at white space if there is any."""
    start = 0
    while len(text) - start > _TOKENIZED_CHARACTERS:
        end = start + _TOKENIZED_CHARACTERS
        space = max(text.rfind(" ", start, end), text.rfind("\n", start, end))
        end = space if space > start else end
        yield start, end
        start = end
    yield start, len(text)


def _cut_tokens(word_starts: NDArray[np.bool_], first: int, last: int, most: int) -> Iterator[int]:
    """Where to divide tokens `first` to `last` into parts of about equal length, at most `most` tokens each."""
    begin = first
    while last - begin > most:
        parts = -(-(last - begin) // most)
        cut = begin + -(-(last - begin) // parts)
        words = np.flatnonzero(word_starts[begin + 1 : cut + 1])
        # In a single endless word there is no better place.
        begin = begin + 1 + int(words[-1]) if len(words) and words[-1] >= (cut - begin) // 2 else cut
        yield begin


@dataclass(frozen=True, eq=False)
class TokenizedSource(TokenizedText):
    """A source with an index of the passages that are shown as evidence."""

    @cached_property
    def passages(self) -> list[Piece]:
        """Sentences and lines."""
        return self.pieces(_MAX_PASSAGE)

    def find_passage(self, ids: Ids) -> CharacterSpan | None:
        """The passage that shares most with these tokens: each counts once, the more the fewer passages have it."""
        tokens, passages, weights = self._index
        shared = np.isin(tokens, ids[ids >= _FIRST_RARE])
        if not shared.any():
            return None
        sums = np.bincount(passages[shared], weights[shared], len(self.passages))
        best = self.passages[int(np.argmax(sums))]
        return best.start, best.end

    def has_sentence(self, ids: Ids) -> bool:
        """Whether a sentence of the source, or its beginning up to a punctuation mark, is these tokens."""
        return any(self._is_sentence(first, first + len(ids)) for first in self._find(ids))

    def _find(self, ids: Ids) -> Iterator[int]:
        """The first places where these tokens stand one after the other."""
        width, wanted = self.ids.itemsize, np.ascontiguousarray(ids, self.ids.dtype).tobytes()
        place, count = self._bytes.find(wanted), 0
        while place >= 0 and count < _MOST_COPIES:
            if place % width == 0:
                yield place // width
            count += 1
            place = self._bytes.find(wanted, place + 1)

    def _is_sentence(self, first: int, last: int) -> bool:
        start, end = int(self.starts[first]), int(self.ends[last - 1])
        before, after = self.text[max(start - _BORDER, 0) : start], self.text[end : end + _BORDER]
        # What was cut off is neither the beginning nor the end of the text.
        before = before if start <= _BORDER else f"x{before}"
        after = after if end + _BORDER >= len(self.text) else f"{after}x"
        return bool(_BEGINS.search(before) and _ENDS.match(after))

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


def list_windows(length: int, read: Sequence[Window], room: int) -> list[Window]:
    """Windows of at most `room` tokens for all tokens of a source that are in none of the windows already read. Each
    overlaps with what lies beside it."""
    overlap = min(_OVERLAP, room // 4)
    windows: list[Window] = []
    end_of_read = 0
    for start, end in [*sorted(read), (length, length)]:
        if start > end_of_read:
            windows += _tile(max(end_of_read - overlap, 0), min(start + overlap, length), room, overlap)
        end_of_read = max(end_of_read, end)
    return windows


def _tile(start: int, end: int, room: int, overlap: int) -> Iterator[Window]:
    """As few windows as possible of about equal size, each overlapping with the next."""
    count = max(1, -(-(end - start - overlap) // (room - overlap)))
    size = -(-(end - start + (count - 1) * overlap) // count)
    for number in range(count):
        begin = min(start + number * (size - overlap), max(end - size, start))
        yield begin, min(begin + size, end)


def _covers(window: Window, other: Window) -> bool:
    return window[0] <= other[0] and other[1] <= window[1]


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
        """The words of a sentence that are marked, neighbours as one. In a supported sentence, fewer are."""
        if self.marking is None or self.probabilities[sentence] > self.marking.sentence:
            return []
        threshold = self.marking.sure if supported else self.marking.threshold
        return merge_words(self.text, self.words[sentence], threshold)

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
class _Work:
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


@dataclass(frozen=True, eq=False)
class SupportReader:
    """Holds the sentences of outputs against their sources. Equal texts are tokenized once, equal pairs read once, and
    the result of a pair does not depend on the others."""

    encoder: SupportModel
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
        sources = {s: self._read_source(s) for s in dict.fromkeys(source for source, _ in distinct)}
        outputs = {o: TokenizedText.read(o, self.encoder) for o in dict.fromkeys(output for _, output in distinct)}
        results: dict[tuple[str, str], Support | Failure] = {}
        work: dict[tuple[str, str], list[_Work]] = {}
        places: dict[tuple[str, str], dict[bytes, list[int]]] = {}
        cut: dict[tuple[str, str], list[Piece]] = {}
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
                work[pair] = list(self._split_work(source.ids, [tokens[at[0]] for at in places[pair].values()]))
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
        source_ids, tokens = TokenizedText.read(source, self.encoder).ids, TokenizedText.read(output, self.encoder)
        pieces = self._select_pieces(tokens)
        if not pieces or not (source_ids != self._unknown).any():
            return []
        rows, at = [], 0
        for unit in self._split_work(source_ids, [tokens.ids[piece.first : piece.last] for piece in pieces]):
            self._request(unit)
            [(sequence, spans)] = self._build_sequences(unit)
            own = pieces[at : at + len(spans)]
            rows.append(SupportRow(sequence, spans, [(piece.start, piece.end) for piece in own]))
            at += len(spans)
        return rows

    def _join_words(self, output: TokenizedText, piece: Piece, logits: Numbers) -> list[Word]:
        """The words of a sentence with their probabilities of being wrong."""
        assert self.marking is not None
        calibrated = (self.marking.scale * logits + self.marking.shift).tolist()
        starts, ends = (column[piece.first : piece.last].tolist() for column in (output.starts, output.ends))
        return list(join_tokens(output.text, starts, ends, list(map(sigmoid, calibrated))))

    def _is_copied(self, output: TokenizedText, piece: Piece, source: TokenizedSource) -> bool:
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

    def _select_pieces(self, output: TokenizedText) -> list[Piece]:
        """The sentences of an output of which the model knows at least one token."""
        pieces = output.pieces(min(_MAX_SENTENCE, self._limit // 4))
        return [piece for piece in pieces if (output.ids[piece.first : piece.last] != self._unknown).any()]

    def _read_source(self, text: str) -> TokenizedSource:
        tokens = TokenizedText.read(text, self.encoder)
        return TokenizedSource(text, tokens.ids, tokens.starts, tokens.ends)

    @property
    def _limit(self) -> int:
        return min(self.window or self.settings.window, self.encoder.max_tokens)

    def _split_work(self, source: Ids, sentences: Sequence[Ids]) -> Iterator[_Work]:
        """Neighbouring sentences that fit beside a window of the source, or, if they are few, beside all of it. More
        than about half of the tokens are not theirs even if the source is short: no training has such rows."""
        # Three special tokens.
        room = self._limit - 3
        few = _SENTENCES * _MAX_SENTENCE
        most = max(int(_OUTPUT_SHARE * room), min(room - len(source), room - MIN_ROOM, few))
        limit = self.settings.sentences
        group: list[Ids] = []
        for number, tokens in enumerate(sentences):
            # The last few sentences are not worth a pass of their own.
            closing = len(group) + len(sentences) - number <= limit + limit // 6
            if (len(group) >= limit and not closing) or (group and sum(map(len, group)) + len(tokens) > most):
                yield _Work(source, group, np.full(len(group), -np.inf), list(range(len(group))))
                group = []
            group.append(tokens)
        if group:
            yield _Work(source, group, np.full(len(group), -np.inf), list(range(len(group))))

    def _run(self, work: Sequence[_Work]) -> None:
        """Read windows in rounds, over all outputs at once, until each sentence is supported or its source read. The
        number of windows doubles with each round: a long source does not take a round for each of them."""
        limit = math.log(self.threshold / (1 - self.threshold))
        active = list(work)
        while active:
            for unit in active:
                self._request(unit)
            active = [unit for unit in active if unit.requested]
            self._compute(active)
            for unit in active:
                unit.open = [i for i in unit.open if unit.logits[i] < limit]
            active = [unit for unit in active if unit.open]

    def _request(self, unit: _Work) -> None:
        """Choose the windows of the next round: the best one, then those for the rest of the source; none are left when
        it has been read. If the rest is long, the best window for what is still unsupported comes before it."""
        sentences = np.concatenate([unit.sentences[i] for i in unit.open])
        room = self._limit - 3 - len(sentences)
        if not unit.read:
            unit.requested = [choose_window(unit.source, sentences, room)]
        elif unit.left is None:
            windows = list_windows(len(unit.source), unit.read, room)
            best = choose_window(unit.source, sentences, room)
            if len(windows) > _FEW_WINDOWS and not any(_covers(window, best) for window in unit.read):
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

    def _compute(self, work: Sequence[_Work]) -> None:
        """Read the requested windows, some at a time, and keep the highest logit of each open sentence."""
        rows = ((unit, *row) for unit in work for row in self._build_sequences(unit))
        while built := list(islice(rows, _SEQUENCES)):
            sequences, spans = [row[1] for row in built], [row[2] for row in built]
            if self.marking is None:
                results = self.encoder.score_spans(HEAD, sequences, spans)
            else:
                # A head on the mean of the tokens is the mean of the head on each: one pass serves both heads.
                tokens = self.encoder.score_tokens((HEAD, ERROR_HEAD), sequences)
                results = []
                for (unit, _, own), numbers in zip(built, tokens, strict=True):
                    results.append(np.array([numbers[start:end].mean(0) for start, end in own]))
                    for sentence, (start, end) in zip(unit.open, own, strict=True):
                        errors = np.asarray(numbers[start:end, -1], np.float64)
                        unit.errors[sentence] = np.minimum(unit.errors.get(sentence, errors), errors)
            for (unit, *_), logits in zip(built, results, strict=True):
                column = np.asarray(logits, np.float64).reshape(len(unit.open), -1)[:, 0]
                column = self.settings.scale * column + self.settings.shift
                unit.logits[unit.open] = np.maximum(unit.logits[unit.open], column)

    def _build_sequences(self, unit: _Work) -> Iterator[tuple[tuple[Ids, int], list[tuple[int, int]]]]:
        """The open sentences beside each requested window, with the tokens of each sentence."""
        tokens = [unit.sentences[i] for i in unit.open]
        # The special token that opens a sequence comes first.
        ends = (1 + np.cumsum([len(sentence) for sentence in tokens])).tolist()
        spans = [(end - len(sentence), end) for end, sentence in zip(ends, tokens, strict=True)]
        for start, end in unit.requested:
            yield self.encoder.join(np.concatenate(tokens), unit.source[start:end]), spans
