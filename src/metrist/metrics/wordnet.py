"""Synonyms from a WordNet `dict` folder, read as its manual pages wndb(5) and morphy(7) describe the files."""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from io import BufferedReader
from pathlib import Path

from metrist.errors import InputError

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
