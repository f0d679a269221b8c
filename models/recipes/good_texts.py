"""Good English texts of the sets: lines, passages, stories, articles, dialogues; and what language models wrote."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from packaged_texts import news
from sets import DATA, JudgedTexts, list_sentences, mean_rating, read_lines, read_rows

from metrist.data.heap import read_heap_pairs
from metrist.data.splits import Split, split_pairs

TRANSLATIONS = ("wmt19-darr.lt-en", "wmt19-darr.gu-en", "wmt19-darr.kk-en")
_ENCYCLOPEDIA = ("mlqe-pe.en-de", "mlqe-pe.en-zh")
_ABSTRACTS = ("bio-mqm.en-de", "bio-mqm.en-es", "bio-mqm.en-fr", "bio-mqm.en-ru", "bio-mqm.en-zh")
#: The lowest mean coherence (1 to 5) of a good reply; what separates the turns of GRADE's dialogues.
_LIKED, _TURN = 3.8, "|||"
_ARTICLE_WORDS = range(120, 900)


class Talk(NamedTuple):
    """A dialogue about a subject; the last turn is a reply that people liked."""

    subject: str
    turns: tuple[str, ...]


class Written:
    """What a language model wrote (`write_texts.py`): by kind and source, at a low and at a high temperature."""

    def __init__(self, path: Path | None) -> None:
        self.by_kind: dict[str, dict[str, tuple[str, str]]] = defaultdict(dict)
        for row in read_lines(path) if path else ():
            self.by_kind[row["kind"]][row["source"]] = (row["low"].strip(), row["high"].strip())


def lines() -> list[str]:
    """Return sentences from translations and encyclopedias."""
    found = {row["references"][0] for name in TRANSLATIONS for row in read_rows(name)}
    found |= {row["source"] for name in _ENCYCLOPEDIA for row in read_rows(name)}
    return sorted(line for line in found if 6 <= len(line.split()) <= 45)


def passages() -> list[list[str]]:
    """Return abstracts of medical papers as lists of sentences."""
    found: dict[str, dict[tuple[int, ...], str]] = defaultdict(dict)
    for name in _ABSTRACTS:
        for row in read_rows(name):
            document, _, place = row["item"].rpartition(":")
            found[f"{name}:{document}"][tuple(map(int, place.split("#")))] = row["source"].strip()
    ordered = ([by_place[at] for at in sorted(by_place)] for _, by_place in sorted(found.items()))
    return [parts for parts in ordered if len(parts) >= 4]


def split_heap() -> Split:
    """Split HEAP as in docs/research/heap.md, so that figures are comparable."""
    return split_pairs(read_heap_pairs(DATA / "heap-pairs.jsonl.xz"), inside=0)


def stories() -> list[list[str]]:
    """Return the sentences of stories in HEAP's training split."""
    pairs = split_heap().side("train")
    found = {text for pair in pairs for label, text in pair.good if label == "narrative"}
    rewritten = (dict(pair.good) for pair in pairs if pair.criterion == "SRPl")
    found |= {f"{fields['story']} {fields['original ending']}" for fields in rewritten}
    return [parts for parts in map(list_sentences, sorted(found)) if len(parts) >= 4]


def articles(judged: JudgedTexts) -> dict[str, str]:
    found = {row["source"]: row["references"][0] for row in read_rows("realsumm") if row.get("references")}
    found |= {article: " ".join(highlights) for article, highlights in news().items()}
    fitting = {article: text for article, text in found.items() if len(article.split()) in _ARTICLE_WORDS}
    return {article: text for article, text in fitting.items() if judged.free(article)}


def talks() -> list[Talk]:
    """Return the dialogues of GRADE, each with a reply that raters found good, or its own last turn."""
    found = []
    for row in read_rows("grade"):
        turns = tuple(row["source"].split(_TURN))
        liked = mean_rating(row, "coherence") >= _LIKED
        found.append(Talk("", (*turns, row["output"]) if liked else turns))
    return [talk for talk in dict.fromkeys(found) if len(talk.turns) >= 2]


def split_turns(dialogue: str) -> str:
    return dialogue.replace(_TURN, "\n")
