"""Synonyms from a WordNet `dict` folder, read as its manual pages wndb(5) and morphy(7) describe the files."""

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
from metrist.metrics.base import Metric, Pairs, Reduce, Shard, check_choice, check_within, pairs_of
from metrist.metrics.lexical import references, tokenizers
from metrist.records import Need
from metrist.scores import Scores

PARTS_OF_SPEECH = ("noun", "verb", "adj", "adv")

# How inflected forms may end, and how the base form ends then.
_DETACHMENTS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "noun": (
        *(("s", ""), ("ses", "s"), ("ves", "f"), ("xes", "x"), ("zes", "z")),
        *(("ches", "ch"), ("shes", "sh"), ("men", "man"), ("ies", "y")),
    ),
    "verb": (
        *(("s", ""), ("ies", "y"), ("es", "e"), ("es", "")),
        *(("ed", "e"), ("ed", ""), ("ing", "e"), ("ing", "")),
    ),
    "adj": (("er", ""), ("est", ""), ("er", "e"), ("est", "e")),
    "adv": (),
}


class WordNet:
    """A folder's words and their synonyms. The index is held in memory, synsets are read when asked for."""

    def __init__(self, folder: Path) -> None:
        self._index = {part: _index(folder / f"index.{part}") for part in PARTS_OF_SPEECH}
        self._exceptions = {part: _exceptions(folder / f"{part}.exc") for part in PARTS_OF_SPEECH}
        self._data = {part: _mapped(folder / f"data.{part}") for part in PARTS_OF_SPEECH}
        self._folder = folder
        self.synonyms = lru_cache(maxsize=1 << 16)(self._synonyms)

    def _synonyms(self, word: str) -> frozenset[str]:
        """The single words that share a synset with the word or with one of its base forms, spelled as in WordNet."""
        lowered = word.lower()
        return frozenset(
            lemma
            for part in PARTS_OF_SPEECH
            for form in self._forms(lowered, part)
            for offset in self._index[part].get(form, ())
            for lemma in self._lemmas(part, offset)
            if "_" not in lemma
        )

    def _forms(self, word: str, part: str) -> list[str]:
        bases = self._exceptions[part].get(word)
        if bases is None:
            bases = [word[: -len(old)] + new for old, new in _DETACHMENTS[part] if word.endswith(old)]
        return list(dict.fromkeys([word, *bases]))

    def _lemmas(self, part: str, offset: int) -> list[str]:
        data = self._data[part]
        line = data[offset : data.find(b"\n", offset)].decode("utf-8", "replace")
        fields = line.partition("|")[0].split()
        if len(fields) < 4 or fields[0] != f"{offset:08d}":
            file = self._folder / f"data.{part}"
            raise InputError(f"{file}: wanted a synset at byte {offset}, found {line[:40]!r}; {_REMEDY}")
        count = int(fields[3], 16)
        # An adjective may carry a marker of where it stands, as in galore(ip).
        return [word.partition("(")[0] for word in fields[4 : 4 + 2 * count : 2]]


_REMEDY = (
    "the setting 'wordnet' must name a whole WordNet dict folder (index.noun, data.noun, noun.exc, ...), "
    "such as /usr/share/wordnet of Debian's package wordnet-base"
)


@cache
def open_wordnet(folder: str) -> WordNet:
    """The WordNet of a folder, opened once per process."""
    return WordNet(Path(folder))


@cache
def fingerprint(folder: str) -> str:
    """A hash of the files that synonyms are read from: equal fingerprints, equal synonyms."""
    digest = hashlib.sha256()
    for part in PARTS_OF_SPEECH:
        for name in (f"index.{part}", f"data.{part}", f"{part}.exc"):
            with _opened(Path(folder) / name) as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:12]


def _opened(file: Path) -> BufferedReader:
    try:
        return file.open("rb")
    except OSError as fault:
        raise InputError(f"cannot read {file}: {fault.strerror}; {_REMEDY}") from None


def _mapped(file: Path) -> mmap.mmap:
    with _opened(file) as opened:
        try:
            return mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError):
            raise InputError(f"cannot read {file}: it is empty or no plain file; {_REMEDY}") from None


def _lines(file: Path) -> Iterator[tuple[int, list[str]]]:
    with _opened(file) as opened:
        for number, line in enumerate(opened, 1):
            if line.strip() and not line.startswith(b" "):  # Lines that start with a space are the licence.
                yield number, line.decode("utf-8", "replace").split()


def _index(file: Path) -> dict[str, tuple[int, ...]]:
    """Per lemma the offsets of its synsets, which stand at the end of its line, as many as the third field says."""
    found = {}
    for number, fields in _lines(file):
        try:
            found[fields[0]] = tuple(map(int, fields[-int(fields[2]) :]))
        except (ValueError, IndexError):
            raise InputError(f"{file}:{number}: wanted a lemma with its synsets; {_REMEDY}") from None
    return found


def _exceptions(file: Path) -> dict[str, list[str]]:
    return {fields[0]: fields[1:] for _, fields in _lines(file)}


# METEOR: words of the output aligned with words of a reference, punished when the order is broken. A. Lavie and
# A. Agarwal, 2007, in the form that NLTK made the usual one in Python: exact words, then stems, then WordNet synonyms.


Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Meteor(Metric):
    """A harmonic mean of precision and recall that leans to recall, less a penalty for every break in the order."""

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
        check_choice(self, "tokenizer", tokenizers.TOKENIZERS)
        check_choice(self, "reduce", ("native", "max", "mean"))
        check_within(self, "alpha", 0, 1)
        check_within(self, "beta", 0, 100)
        check_within(self, "gamma", 0, 1)

    def facts(self) -> Mapping[str, str]:
        synonyms = {"synonyms": fingerprint(self.wordnet)} if self.wordnet is not None else {}
        return {**tokenizers.tokenizer_facts(self.tokenizer), **synonyms}

    def score(self, shard: Shard) -> Scores:
        pairs, tokens = pairs_of(shard), tokenizers.tokenise_shard(shard, self.tokenizer)
        matches, chunks = self._alignment(shard)
        precision = matches / np.maximum(tokens.lengths[pairs.outputs], 1)
        recall = matches / np.maximum(tokens.lengths[pairs.references], 1)
        f = _divided(precision * recall, self.alpha * precision + (1 - self.alpha) * recall)
        penalty = self.gamma * _power(_divided(chunks, matches), self.beta)
        rows = np.stack([(1 - penalty) * f, precision, recall, f, penalty], axis=1)
        value, precision, recall, f, penalty = references.reduce_references(
            rows, rows[:, 0], pairs.starts, self.reduce
        ).T
        return Scores(values=value, parts={"precision": precision, "recall": recall, "f": f, "penalty": penalty})

    def _alignment(self, shard: Shard) -> tuple[Numbers, Numbers]:
        pairs, exact = pairs_of(shard), tokenizers.tokenise_shard(shard, self.tokenizer)
        stems = tokenizers.stem_shard(shard, self.tokenizer)

        def aligned() -> tuple[Numbers, Numbers]:
            related = None if self.wordnet is None else _related(stems.words, self.wordnet)
            return _align(exact, stems, related, pairs)

        return shard.once(("meteor alignment", self.tokenizer, self.wordnet), aligned)


class _Words(NamedTuple):
    """Occurrences of words in one side of all pairs: to which pair each belongs, and its place among all of them."""

    pairs: Numbers
    places: Numbers
    tokens: Numbers

    def at(self, chosen: NDArray[np.bool_]) -> _Words:
        return _Words(self.pairs[chosen], self.places[chosen], self.tokens[chosen])


def _align(exact: Tokens, stems: Tokens, related: list[list[int]] | None, pairs: Pairs) -> tuple[Numbers, Numbers]:
    """Per pair: how many words were matched, and into how many chunks of unbroken order they fall."""
    output, reference = _laid_out(exact, pairs.outputs), _laid_out(exact, pairs.references)
    matched: list[tuple[Numbers, Numbers]] = []
    for ids in (exact.ids, stems.ids):
        found = _equal_words(output, reference, ids)
        output, reference = _without(output, found[0]), _without(reference, found[1])
        matched.append(found)
    if related is not None:
        matched.append(_synonyms(output, reference, stems.ids, related))
    of_pair = np.repeat(np.arange(len(pairs.outputs)), exact.lengths[pairs.outputs])
    return _counts(np.concatenate([m[0] for m in matched]), np.concatenate([m[1] for m in matched]), of_pair, pairs)


def _laid_out(tokens: Tokens, texts: NDArray[np.int32]) -> _Words:
    lengths = tokens.lengths[texts]
    ends = np.cumsum(lengths)
    places = np.arange(int(lengths.sum()))
    first = np.repeat(tokens.starts[texts] - (ends - lengths), lengths)
    return _Words(np.repeat(np.arange(len(texts)), lengths), places, places + first)


def _equal_words(output: _Words, reference: _Words, ids: NDArray[np.int32]) -> tuple[Numbers, Numbers]:
    """The places of equal words, matched from the ends of both texts: the last with the last, and so on."""
    width = int(ids.max(initial=0)) + 1
    ours, theirs = _grouped(output, ids, width), _grouped(reference, ids, width)
    _, at_ours, at_theirs = np.intersect1d(ours.codes, theirs.codes, assume_unique=True, return_indices=True)
    sizes = np.minimum(ours.counts[at_ours], theirs.counts[at_theirs])
    steps = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    mine = np.repeat(ours.ends[at_ours] - sizes, sizes) + steps
    other = np.repeat(theirs.ends[at_theirs] - sizes, sizes) + steps
    return output.places[ours.order[mine]], reference.places[theirs.order[other]]


class _Groups(NamedTuple):
    """Occurrences of one word in one pair, grouped: `order[ends[g] - counts[g]:ends[g]]`, first to last."""

    codes: Numbers
    ends: Numbers
    counts: Numbers
    order: Numbers


def _grouped(words: _Words, ids: NDArray[np.int32], width: int) -> _Groups:
    codes = words.pairs * width + ids[words.tokens]
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    ends = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], np.ones(min(1, len(ordered)), bool))) + 1
    return _Groups(ordered[ends - 1], ends, np.diff(ends, prepend=0), order)


def _without(words: _Words, places: Numbers) -> _Words:
    return words.at(~np.isin(words.places, places))


def _synonyms(
    output: _Words, reference: _Words, ids: NDArray[np.int32], related: list[list[int]]
) -> tuple[Numbers, Numbers]:
    """What is left, from the end: each word takes the last free synonym in the reference."""
    width = len(related)
    free: dict[int, list[int]] = {}
    codes = (reference.pairs * width + ids[reference.tokens]).tolist()
    for code, place in zip(codes, reference.places.tolist(), strict=True):
        free.setdefault(code, []).append(place)
    matched: list[tuple[int, int]] = []
    left = np.stack([output.pairs * width, ids[output.tokens], output.places], axis=1)
    for pair, word, place in left[::-1].tolist():
        candidates = [found for other in related[word] if (found := free.get(pair + other))]
        if candidates:
            matched.append((place, max(candidates, key=lambda places: places[-1]).pop()))
    both = np.array(matched, np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def _related(words: list[str], folder: str) -> list[list[int]]:
    """Per word the numbers of its synonyms among the words. NLTK looks stems up and compares stems, so this does."""
    number = {word: i for i, word in enumerate(words)}
    synonyms = open_wordnet(folder).synonyms
    return [[number[other] for other in sorted(synonyms(word)) if other in number] for word in words]


def _counts(ours: Numbers, theirs: Numbers, of_pair: Numbers, pairs: Pairs) -> tuple[Numbers, Numbers]:
    order = np.argsort(ours)
    ours, theirs = ours[order], theirs[order]
    at = of_pair[ours]
    unbroken = (np.diff(ours) == 1) & (np.diff(theirs) == 1) & (np.diff(at) == 0)
    matches = np.bincount(at, minlength=len(pairs.outputs))
    return matches, matches - np.bincount(at[1:][unbroken], minlength=len(pairs.outputs))


def _divided(above: NDArray[np.float64] | Numbers, below: NDArray[np.float64] | Numbers) -> NDArray[np.float64]:
    return np.divide(above, below, out=np.zeros(len(above)), where=below > 0)


def _power(base: NDArray[np.float64], exponent: float) -> NDArray[np.float64]:
    # One by one: numpy's vectorised power may differ in the last bit by a number's place in the array.
    return np.array([x**exponent for x in base.tolist()], np.float64)
