"""METEOR (Lavie and Agarwal, 2007) in the variant of NLTK: words are matched exactly, then by stem, then as synonyms.

Synonyms come from a WordNet `dict` folder, which is read as its manual pages wndb(5) and morphy(7) describe the files.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from io import BufferedReader
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrist.errors import InputError
from metrist.kernels import Tokens
from metrist.metrics.base import Pairs, Reduce, Shard, check_within, pairs_of, reduce_references
from metrist.metrics.lexical import tokenizers
from metrist.metrics.lexical.tokenizers import WordMetric
from metrist.records import Need
from metrist.scores import Scores

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Meteor(WordMetric):
    """A weighted harmonic mean of precision and recall, reduced by a penalty for every break in the word order."""

    tokenizer: str = "unicode"
    wordnet: str | None = None
    alpha: float = 0.9
    beta: float = 3.0
    gamma: float = 0.5
    reduce: Reduce = "native"

    needs: ClassVar[tuple[Need, ...]] = ("references",)
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)
    catalog_name: ClassVar[str | None] = "meteor"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_within(self, "alpha", 0, 1)
        check_within(self, "beta", 0, 100)
        check_within(self, "gamma", 0, 1)

    def facts(self) -> Mapping[str, str]:
        synonyms = {"synonyms": hash_wordnet(self.wordnet)} if self.wordnet is not None else {}
        return {**super().facts(), **synonyms}

    def score(self, shard: Shard) -> Scores:
        pairs, tokens = pairs_of(shard), tokenizers.tokenise_shard(shard, self.tokenizer)
        matches, chunks = self._align_words(shard)
        precision = matches / np.maximum(tokens.lengths[pairs.outputs], 1)
        recall = matches / np.maximum(tokens.lengths[pairs.references], 1)
        f = _divide(precision * recall, self.alpha * precision + (1 - self.alpha) * recall)
        # One by one: the last bit of numpy's vectorised power may depend on the position in the array.
        penalty = self.gamma * np.array([share**self.beta for share in _divide(chunks, matches).tolist()], np.float64)
        rows = np.stack([(1 - penalty) * f, precision, recall, f, penalty], axis=1)
        value, precision, recall, f, penalty = reduce_references(rows, rows[:, 0], pairs.starts, self.reduce).T
        return Scores(values=value, parts={"precision": precision, "recall": recall, "f": f, "penalty": penalty})

    def _align_words(self, shard: Shard) -> tuple[Numbers, Numbers]:
        pairs, exact = pairs_of(shard), tokenizers.tokenise_shard(shard, self.tokenizer)
        stems = tokenizers.stem_shard(shard, self.tokenizer)

        def align() -> tuple[Numbers, Numbers]:
            return _align_pairs(exact, stems, self.wordnet, pairs)

        return shard.once(("meteor alignment", self.tokenizer, self.wordnet), align)


class _WordList(NamedTuple):
    """The words on one side of all pairs: the pair, the position among all words, and the token of each."""

    pairs: Numbers
    positions: Numbers
    tokens: Numbers

    def without(self, positions: Numbers) -> _WordList:
        remaining = ~np.isin(self.positions, positions)
        return _WordList(self.pairs[remaining], self.positions[remaining], self.tokens[remaining])


def _align_pairs(exact: Tokens, stems: Tokens, wordnet: str | None, pairs: Pairs) -> tuple[Numbers, Numbers]:
    """For each pair, the number of matched words and of chunks of unbroken order that they form."""
    output, reference = _list_words(exact, pairs.outputs), _list_words(exact, pairs.references)
    matches: list[tuple[Numbers, Numbers]] = []
    for ids in (exact.ids, stems.ids):
        matches.append(_match_equal(output, reference, ids))
        output, reference = output.without(matches[-1][0]), reference.without(matches[-1][1])
    if wordnet is not None:
        matches.append(_match_synonyms(output, reference, stems, wordnet))
    in_output, in_reference = (np.concatenate(side) for side in zip(*matches, strict=True))
    order = np.argsort(in_output)
    in_output, in_reference = in_output[order], in_reference[order]
    pair = np.repeat(np.arange(len(pairs.outputs)), exact.lengths[pairs.outputs])[in_output]
    unbroken = (np.diff(in_output) == 1) & (np.diff(in_reference) == 1) & (np.diff(pair) == 0)
    matched = np.bincount(pair, minlength=len(pairs.outputs))
    return matched, matched - np.bincount(pair[1:][unbroken], minlength=len(pairs.outputs))


def _list_words(tokens: Tokens, texts: NDArray[np.int32]) -> _WordList:
    lengths = tokens.lengths[texts]
    ends = np.cumsum(lengths)
    positions = np.arange(int(lengths.sum()))
    first = np.repeat(tokens.starts[texts] - (ends - lengths), lengths)
    return _WordList(np.repeat(np.arange(len(texts)), lengths), positions, positions + first)


def _match_equal(output: _WordList, reference: _WordList, ids: NDArray[np.int32]) -> tuple[Numbers, Numbers]:
    """The positions of equal words, matched from the ends of both texts: the last with the last, and so on."""
    width = int(ids.max(initial=0)) + 1
    left, right = _group_words(output, ids, width), _group_words(reference, ids, width)
    _, left_groups, right_groups = np.intersect1d(left.codes, right.codes, assume_unique=True, return_indices=True)
    sizes = np.minimum(left.counts[left_groups], right.counts[right_groups])
    steps = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    in_left = np.repeat(left.ends[left_groups] - sizes, sizes) + steps
    in_right = np.repeat(right.ends[right_groups] - sizes, sizes) + steps
    return output.positions[left.order[in_left]], reference.positions[right.order[in_right]]


class _Groups(NamedTuple):
    """Occurrences of a word in a pair: group g is `order[ends[g] - counts[g]:ends[g]]`, first to last."""

    codes: Numbers
    ends: Numbers
    counts: Numbers
    order: Numbers


def _group_words(words: _WordList, ids: NDArray[np.int32], width: int) -> _Groups:
    codes = words.pairs * width + ids[words.tokens]
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    ends = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], np.ones(min(1, len(ordered)), bool))) + 1
    return _Groups(ordered[ends - 1], ends, np.diff(ends, prepend=0), order)


def _match_synonyms(output: _WordList, reference: _WordList, stems: Tokens, wordnet: str) -> tuple[Numbers, Numbers]:
    """Match the remaining words, from the end: each takes the last free synonym in the reference. As in NLTK, stems are
    looked up and compared."""
    width = len(stems.words)
    numbers = {word: i for i, word in enumerate(stems.words)}
    find_synonyms = open_wordnet(wordnet).synonyms
    synonyms = [[numbers[other] for other in sorted(find_synonyms(word)) if other in numbers] for word in stems.words]
    free: dict[int, list[int]] = {}
    codes = (reference.pairs * width + stems.ids[reference.tokens]).tolist()
    for code, position in zip(codes, reference.positions.tolist(), strict=True):
        free.setdefault(code, []).append(position)
    matches: list[tuple[int, int]] = []
    remaining = np.stack([output.pairs * width, stems.ids[output.tokens], output.positions], axis=1)
    for pair, word, position in remaining[::-1].tolist():
        candidates = [positions for synonym in synonyms[word] if (positions := free.get(pair + synonym))]
        if candidates:
            matches.append((position, max(candidates, key=lambda positions: positions[-1]).pop()))
    columns = np.array(matches, np.int64).reshape(-1, 2)
    return columns[:, 0], columns[:, 1]


def _divide(above: NDArray[np.float64] | Numbers, below: NDArray[np.float64] | Numbers) -> NDArray[np.float64]:
    return np.divide(above, below, out=np.zeros(len(above)), where=below > 0)


# --- WordNet

PARTS_OF_SPEECH = ("noun", "verb", "adj", "adv")

# The endings of inflected forms, and the endings of their base forms.
_DETACHMENTS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "noun": (
        ("s", ""), ("ses", "s"), ("ves", "f"), ("xes", "x"), ("zes", "z"), ("ches", "ch"), ("shes", "sh"),
        ("men", "man"), ("ies", "y"),
    ),
    "verb": (
        ("s", ""), ("ies", "y"), ("es", "e"), ("es", ""), ("ed", "e"), ("ed", ""), ("ing", "e"), ("ing", ""),
    ),
    "adj": (("er", ""), ("est", ""), ("er", "e"), ("est", "e")),
    "adv": (),
}  # fmt: skip


class WordNet:
    """The words of a WordNet folder and their synonyms. The index is in memory; synsets are read on demand."""

    def __init__(self, folder: Path) -> None:
        self._index = {part: _read_index(folder / f"index.{part}") for part in PARTS_OF_SPEECH}
        self._exceptions = {
            part: {fields[0]: fields[1:] for _, fields in _read_lines(folder / f"{part}.exc")}
            for part in PARTS_OF_SPEECH
        }
        self._data: dict[str, mmap.mmap] = {}
        for part in PARTS_OF_SPEECH:
            file = folder / f"data.{part}"
            with _open(file) as stream:
                try:
                    self._data[part] = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
                except (OSError, ValueError):
                    raise InputError(f"cannot read {file}: it is empty or not a regular file; {_REMEDY}") from None
        self._folder = folder
        self.synonyms = lru_cache(maxsize=1 << 16)(self._find_synonyms)

    def _find_synonyms(self, word: str) -> frozenset[str]:
        """The single words that share a synset with the word or with one of its base forms, spelled as in WordNet."""
        lowered = word.lower()
        synonyms: set[str] = set()
        for part in PARTS_OF_SPEECH:
            forms = self._exceptions[part].get(lowered)
            if forms is None:
                forms = [lowered[: -len(old)] + new for old, new in _DETACHMENTS[part] if lowered.endswith(old)]
            for form in (lowered, *forms):
                for offset in self._index[part].get(form, ()):
                    synonyms.update(lemma for lemma in self._read_lemmas(part, offset) if "_" not in lemma)
        return frozenset(synonyms)

    def _read_lemmas(self, part: str, offset: int) -> list[str]:
        data = self._data[part]
        line = data[offset : data.find(b"\n", offset)].decode("utf-8", "replace")
        fields = line.partition("|")[0].split()
        if len(fields) < 4 or fields[0] != f"{offset:08d}":
            file = self._folder / f"data.{part}"
            raise InputError(
                f"{file}: expected a synset at byte {offset}, got {line[:40]!r}; {_REMEDY}", code="invalid_value"
            )
        count = int(fields[3], 16)
        # An adjective may carry a syntactic marker, as in galore(ip).
        return [word.partition("(")[0] for word in fields[4 : 4 + 2 * count : 2]]


_REMEDY = (
    "the setting 'wordnet' must name a complete WordNet dict folder (index.noun, data.noun, noun.exc, ...), "
    "such as /usr/share/wordnet of Debian's package wordnet-base"
)


@cache
def open_wordnet(folder: str) -> WordNet:
    """The WordNet of a folder, opened once per process."""
    return WordNet(Path(folder))


@cache
def hash_wordnet(folder: str) -> str:
    """A hash of the files that synonyms are read from."""
    digest = hashlib.sha256()
    for part in PARTS_OF_SPEECH:
        for name in (f"index.{part}", f"data.{part}", f"{part}.exc"):
            with _open(Path(folder) / name) as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:12]


def _open(file: Path) -> BufferedReader:
    try:
        return file.open("rb")
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}; {_REMEDY}") from None


def _read_lines(file: Path) -> Iterator[tuple[int, list[str]]]:
    with _open(file) as stream:
        for number, line in enumerate(stream, 1):
            if line.strip() and not line.startswith(b" "):  # Lines that start with a space are the licence.
                yield number, line.decode("utf-8", "replace").split()


def _read_index(file: Path) -> dict[str, tuple[int, ...]]:
    """For each lemma the offsets of its synsets: the last fields of its line, as many as the third field says."""
    index = {}
    for number, fields in _read_lines(file):
        try:
            index[fields[0]] = tuple(map(int, fields[-int(fields[2]) :]))
        except (ValueError, IndexError):
            raise InputError(
                f"{file}:{number}: expected a lemma with its synsets; {_REMEDY}", code="invalid_value"
            ) from None
    return index
