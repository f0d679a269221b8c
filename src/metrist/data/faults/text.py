"""Texts that get faults, edits of them, and the English words that faults exchange."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache, lru_cache
from importlib import resources
from typing import Any

from metrist.sentences import split_sentences

Span = tuple[int, int]
WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """Characters `start` to `end` of the original output replaced by `text`, with what is wrong about it. `evidence` is
    the place in the source that shows the fault."""

    kind: str
    start: int
    end: int
    text: str
    explanation: str
    evidence: Span | None = None


@dataclass(frozen=True)
class EditableText:
    """An output that is to be changed, with what is around it. `donor` is another record, whose sentences and names do
    not belong here; `taken` are the places of earlier edits."""

    output: str
    source: str = ""
    donor_output: str = ""
    donor_source: str = ""
    taken: tuple[Span, ...] = ()

    def is_free(self, start: int, end: int) -> bool:
        """Whether no other edit touches this place."""
        return all(end < first or start > last for first, last in self.taken)

    @property
    def sentences(self) -> tuple[Span, ...]:
        return split_text(self.output)

    @property
    def words(self) -> tuple[re.Match[str], ...]:
        return _find_words(self.output)

    def find(self, pattern: re.Pattern[str]) -> list[re.Match[str]]:
        """The free places that match."""
        return [match for match in pattern.finditer(self.output) if self.is_free(*match.span())]

    def find_words(self, letters: int) -> list[re.Match[str]]:
        """The free words of at least so many letters."""
        return [match for match in self.words if len(match[0]) >= letters and self.is_free(*match.span())]

    def find_evidence(self, at: int, word: str = "") -> Span | None:
        """The sentence of the source that shares most words with the output's sentence at a place. It has the given
        word if any sentence has it."""
        start, end = next((span for span in self.sentences if span[0] <= at < span[1]), (0, len(self.output)))
        return self.find_passage(self.output[start:end], word)

    def find_passage(self, statement: str, word: str = "") -> Span | None:
        words = {word.lower() for word in WORD.findall(statement) if len(word) > 3}
        has_word = re.compile(rf"(?<!\w){re.escape(word)}(?!\w)")
        best, most = None, (False, 0.0)
        for (start, end), known in _index_sentences(self.source):
            rank = bool(word and has_word.search(self.source, start, end)), len(words & known) / (len(known) + 5) ** 0.5
            if rank > most:
                best, most = (start, end), rank
        return best

    def change(
        self, place: re.Match[str] | Span, new: str, explanation: str = "", evidence: Span | None = None
    ) -> Edit:
        """An edit of a place, whose kind is still to be named."""
        start, end = place if isinstance(place, tuple) else place.span()
        return Edit(kind="", start=start, end=end, text=new, explanation=explanation, evidence=evidence)


# Several faults are put into one text, and several outputs share a source.
@lru_cache(maxsize=64)
def split_text(text: str) -> tuple[Span, ...]:
    return tuple(split_sentences(text))


@lru_cache(maxsize=64)
def _find_words(text: str) -> tuple[re.Match[str], ...]:
    return tuple(WORD.finditer(text))


@lru_cache(maxsize=64)
def _index_sentences(source: str) -> tuple[tuple[Span, frozenset[str]], ...]:
    """The sentences of a source with their words of more than three letters."""
    return tuple(
        ((start, end), frozenset(word.lower() for word in WORD.findall(source[start:end]) if len(word) > 3))
        for start, end in split_sentences(source)
    )


# ---- Lists of words


@cache
def read_lists() -> Mapping[str, Any]:
    text = (resources.files("metrist.data") / "english_words.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@cache
def list_exchanges(name: str) -> Mapping[str, tuple[str, ...]]:
    """What each word or phrase of a list may be exchanged for."""
    table: dict[str, list[str]] = {}
    rows = read_lists()[name]
    for row in [rows] if isinstance(rows, str) else rows:
        if " -> " in row:
            before, after = row.split(" -> ")
            table.setdefault(before, []).append(after)
            continue
        group = row.split()
        for word in group:
            table.setdefault(word, []).extend(other for other in group if other != word)
    return {word: tuple(others) for word, others in table.items()}


@cache
def find_pattern(name: str) -> re.Pattern[str]:
    phrases = sorted(list_exchanges(name), key=len, reverse=True)
    return re.compile(rf"(?<![\w'’])(?:{'|'.join(map(re.escape, phrases))})(?![\w'’])", re.IGNORECASE)


def match_case(new: str, old: str) -> str:
    if len(old) > 1 and old.isupper():
        return new.upper()
    return new[:1].upper() + new[1:] if old[:1].isupper() else new


def quote(text: str, limit: int = 80) -> str:
    text = " ".join(text.split())
    return f"“{text if len(text) <= limit else text[: limit - 1] + '…'}”"


# ---- Edits of a text


def apply_edits(text: str, edits: Iterable[Edit]) -> str:
    """Apply edits that do not overlap."""
    pieces, end = [], 0
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end)):
        pieces += [text[end : edit.start], edit.text]
        end = edit.end
    return "".join([*pieces, text[end:]])


_PART = re.compile(r"\w+(?:['’-]\w+)*|[^\w\s]")


def find_changes(original: str, changed: str) -> tuple[Span, ...]:
    """Return the characters of the words that are new in a changed text. Where words were only left out, the word that
    follows the gap stands for them."""
    old = [(match.start(), match.end(), match[0]) for match in _PART.finditer(original)]
    new = [(match.start(), match.end(), match[0]) for match in _PART.finditer(changed)]
    spans = []
    matcher = SequenceMatcher(None, [word.lower() for _, _, word in old], [word.lower() for _, _, word in new], False)
    for operation, _, _, first, last in matcher.get_opcodes():
        if operation == "equal":
            continue
        parts = new[first : first + 1] if operation == "delete" else new[first:last]
        words = [place for place in parts if place[2][0].isalnum()] or parts
        if words:
            spans.append((words[0][0], words[-1][1]))
    return tuple(spans)
