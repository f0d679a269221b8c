"""Read good English texts from preference-small's training sets: lines, passages, stories, articles, dialogues.

Sources that overlap with a set that preference-small is judged on are excluded: REALSumm and QAGS, which it learned
from, use articles of the same corpus as SummEval. Recipes of other models pass a `Known` that also protects QAGS and
Rank19, such as `english_pairs.Protected`.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from agreement import DATA, mean_rating, rows
from damage import split_sentences
from preference_leaks import JUDGED, LEARNED_BY_SMALL, runs

from metrist.data.heap import read_heap_pairs
from metrist.data.splits import Split, split_pairs

TRANSLATIONS = ("wmt19-darr.lt-en", "wmt19-darr.gu-en", "wmt19-darr.kk-en")
_ENCYCLOPEDIA = ("mlqe-pe.en-de", "mlqe-pe.en-zh")
_ABSTRACTS = ("bio-mqm.en-de", "bio-mqm.en-es", "bio-mqm.en-fr", "bio-mqm.en-ru", "bio-mqm.en-zh")
_ARTICLES = ("realsumm", "qags-cnn", "qags-xsum")
#: Two texts overlap if this share of the runs of words of one occurs in the other.
_SHARED = 0.05
#: The lowest mean coherence (1 to 5) of a good reply.
_LIKED = 3.8
_TURN = "|||"


class Dialogue(NamedTuple):
    """The turns of a dialogue, and good replies to it."""

    turns: tuple[str, ...]
    liked: tuple[str, ...]

    @property
    def text(self) -> str:
        return "\n".join(self.turns)


class Known:
    """The sources of the sets that preference-small is judged on, by their runs of words."""

    def __init__(self) -> None:
        names = [name for name in JUDGED if name not in LEARNED_BY_SMALL]
        self._runs = {run for name in names for row in rows(name) for run in runs(row.get("source") or "")}

    def is_judged(self, source: str) -> bool:
        own = runs(source)
        return len(own & self._runs) > _SHARED * len(own)


def lines() -> list[str]:
    """Return sentences from translations and encyclopedias."""
    result = {row["references"][0] for name in TRANSLATIONS for row in rows(name)}
    result |= {row["source"] for name in _ENCYCLOPEDIA for row in rows(name)}
    return sorted(line for line in result if 6 <= len(line.split()) <= 45)


def abstracts() -> list[list[str]]:
    """Return abstracts of medical papers as lists of sentences."""
    result: dict[str, dict[tuple[int, ...], str]] = defaultdict(dict)
    for name in _ABSTRACTS:
        for row in rows(name):
            document, _, place = row["item"].rpartition(":")
            result[f"{name}:{document}"][tuple(map(int, place.split("#")))] = row["source"].strip()
    ordered = ([by_place[at] for at in sorted(by_place)] for _, by_place in sorted(result.items()))
    return [parts for parts in ordered if len(parts) >= 4]


def stories() -> list[str]:
    """Return stories of HEAP's training split with at least four sentences."""
    pairs = split_heap().side("train")
    result = {text for pair in pairs for label, text in pair.good if label == "narrative"}
    rewritten = (dict(pair.good) for pair in pairs if pair.criterion == "SRPl")
    result |= {f"{fields['story']} {fields['original ending']}" for fields in rewritten}
    return sorted(story for story in result if len(split_sentences(story)) >= 4)


def split_heap() -> Split:
    """Split HEAP as in docs/research/heap.md, so that figures are comparable."""
    return split_pairs(read_heap_pairs(DATA / "heap-pairs.jsonl.xz"), inside=0)


def articles(known: Known) -> dict[str, str | None]:
    """Return news articles, with a human summary if there is one."""
    result: dict[str, str | None] = {}
    for name in _ARTICLES:
        for row in rows(name):
            if not known.is_judged(row["source"]):
                result.setdefault(row["source"], (row.get("references") or [None])[0])
    return result


def dialogues() -> list[Dialogue]:
    """Return the dialogues of GRADE with the replies that raters found good."""
    result: dict[str, list[str]] = defaultdict(list)
    for row in rows("grade"):
        liked = result[row["source"]]
        if mean_rating(row, "coherence") >= _LIKED:
            liked.append(row["output"])
    return [Dialogue(tuple(source.split(_TURN)), tuple(liked)) for source, liked in result.items()]


def split_turns(dialogue: str) -> str:
    return dialogue.replace(_TURN, "\n")
