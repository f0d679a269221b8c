"""Good English texts out of the sets that the preference model may learn from: lines, passages, stories, articles,
dialogues.

Sources that share their words with a judged set are left out: REALSumm and QAGS take articles from where SummEval does.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from agreement import DATA, rated, rows
from damage import sentences
from preference_leaks import JUDGED, runs

from metrist.data.heap import read_heap_pairs
from metrist.data.splits import Split, split_pairs

TRANSLATIONS = ("wmt19-darr.lt-en", "wmt19-darr.gu-en", "wmt19-darr.kk-en")
_ENCYCLOPEDIA = ("mlqe-pe.en-de", "mlqe-pe.en-zh")
_ABSTRACTS = ("bio-mqm.en-de", "bio-mqm.en-es", "bio-mqm.en-fr", "bio-mqm.en-ru", "bio-mqm.en-zh")
_ARTICLES = ("realsumm", "qags-cnn", "qags-xsum")
#: Two texts share their words where so large a share of one's runs of words stands in the other.
_SHARED = 0.05
#: A reply that people found good has this coherence, of 1 to 5.
_LIKED = 3.8
_TURN = "|||"


class Dialogue(NamedTuple):
    """What people said, turn after turn, and good replies to it."""

    said: tuple[str, ...]
    liked: tuple[str, ...]

    @property
    def text(self) -> str:
        return "\n".join(self.said)


class Known:
    """The judged sets' sources, by their runs of words."""

    def __init__(self) -> None:
        self._runs = {run for name in JUDGED for row in rows(name) for run in runs(row.get("source") or "")}

    def is_judged(self, source: str) -> bool:
        own = runs(source)
        return len(own & self._runs) > _SHARED * len(own)


def lines() -> list[str]:
    """Sentences: what people translated, or wrote in an encyclopedia."""
    found = {row["references"][0] for name in TRANSLATIONS for row in rows(name)}
    found |= {row["source"] for name in _ENCYCLOPEDIA for row in rows(name)}
    return sorted(line for line in found if 6 <= len(line.split()) <= 45)


def abstracts() -> list[list[str]]:
    """Abstracts of medical papers, each as its sentences in their order."""
    found: dict[str, dict[tuple[int, ...], str]] = defaultdict(dict)
    for name in _ABSTRACTS:
        for row in rows(name):
            document, _, place = row["item"].rpartition(":")
            found[f"{name}:{document}"][tuple(map(int, place.split("#")))] = row["source"].strip()
    ordered = ([by_place[at] for at in sorted(by_place)] for _, by_place in sorted(found.items()))
    return [parts for parts in ordered if len(parts) >= 4]


def stories() -> list[str]:
    """Stories of HEAP's training side, each of four sentences or more."""
    pairs = heap_on_its_honest_split().side("train")
    found = {text for pair in pairs for label, text in pair.good if label == "narrative"}
    rewritten = (dict(pair.good) for pair in pairs if pair.criterion == "SRPl")
    found |= {f"{one['story']} {one['original ending']}" for one in rewritten}
    return sorted(story for story in found if len(sentences(story)) >= 4)


def heap_on_its_honest_split() -> Split:
    """HEAP as the study of docs/heap.md splits it, so that figures can stand beside each other."""
    return split_pairs(read_heap_pairs(DATA / "heap-pairs.jsonl.xz"), inside=0)


def articles(known: Known) -> dict[str, str | None]:
    """News articles, with a summary that people wrote where there is one."""
    found: dict[str, str | None] = {}
    for name in _ARTICLES:
        for row in rows(name):
            if not known.is_judged(row["source"]):
                found.setdefault(row["source"], (row.get("references") or [None])[0])
    return found


def dialogues() -> list[Dialogue]:
    """GRADE's: what two people said in turn, with the replies to it that raters found good."""
    found: dict[str, list[str]] = defaultdict(list)
    for row in rows("grade"):
        liked = found[row["source"]]
        if rated(row, "coherence") >= _LIKED:
            liked.append(row["output"])
    return [Dialogue(tuple(source.split(_TURN)), tuple(liked)) for source, liked in found.items()]


def turns(dialogue: str) -> str:
    return dialogue.replace(_TURN, "\n")
