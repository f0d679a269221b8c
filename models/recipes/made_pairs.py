"""Pairs without human judgments: a good text beside one that is damaged, or that belongs to something else.

`metrist.data.faults` damages texts. Where two texts can be asked for in two ways, both are, so that the outputs alone
do not tell the better one; the worse text is chosen to be about as long as the better one.
"""

from __future__ import annotations

import math
import random
import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from good_texts import Talk, Written
from scipy import sparse
from sets import draw, list_sentences

from metrist.data.faults import KINDS, Edit, EditableText
from metrist.data.faults.text import apply_edits

Fields = tuple[tuple[str, str], ...]
WORDINGS: Mapping[str, Any] = tomllib.loads(
    (Path(__file__).parent / "english_wordings.toml").read_text(encoding="utf-8")
)


class Pair(NamedTuple):
    """Two outputs for one context. `criterion` names the wordings of the instruction, or is an instruction itself."""

    kind: str
    criterion: str
    context: Fields
    good: str
    bad: str
    certainty: float = 1.0


#: Criteria by what is wrong with a text; those of a text alone show no context.
ALONE = frozenset({"fluency", "grammaticality", "naturalness", "understandability"})
SLIPS = ("fluency", "fluency", "grammaticality", "grammaticality", "understandability", "naturalness")
WORDING = ("fluency", "naturalness", "understandability", "overall", "coherence")
SUBJECT = ("relevance", "overall", "consistency", "coherence")
TRUTH = ("consistency", "consistency", "correctness", "overall")
CONTENT = ("coverage", "relevance", "informativeness", "overall")
LESS = ("coverage", "informativeness")
INTEREST = ("engagingness", "engagingness", "informativeness", "overall")
FITTING = ("reply fit", "reply fit", "overall", "relevance", "coherence")
STORY = ("overall", "overall", "coherence", "story", "story")
#: Kinds of faults that damage a text in one way.
DAMAGES = {
    "slips": ("word_order", "spelling", "agreement", "tense", "punctuation", "repetition"),
    "broken": ("truncation", "omission", "repetition", "word_order", "gibberish"),
    "order": ("shuffle", "shuffle", "unrelated", "repetition"),
    "false": ("entity", "number", "date", "unit", "contradiction"),
}


def worsen(text: str, way: str, rng: random.Random, *, source: str = "", donor: str = "") -> str:
    """Damage a text in one way; return it as it is if nothing fits. Slips come in twos and threes, too."""
    edits: list[Edit] = []
    for _ in range(rng.choice((1, 1, 2, 3)) if way == "slips" else 1):
        taken = tuple((edit.start, edit.end) for edit in edits)
        place = EditableText(output=text, source=source, donor_output=donor, donor_source=donor, taken=taken)
        proposals = (KINDS[kind].propose(place, rng) for kind in rng.sample(DAMAGES[way], len(DAMAGES[way])))
        edits += [edit for edit in [next(filter(None, proposals), None)] if edit]
    return apply_edits(text, edits)


def pair(
    kind: str,
    criteria: Sequence[str],
    context: Fields,
    good: str,
    bad: str,
    rng: random.Random,
    certainty: float = 0.95,
) -> Pair:
    criterion = rng.choice(criteria)
    return Pair(kind, criterion, () if criterion in ALONE else context, good, bad, certainty)


def choose_similar(text: str, others: Sequence[str], rng: random.Random) -> str:
    """Choose the most similar length among a few others, so that length does not identify the better text."""
    return min(draw(others, 8, rng), key=lambda other: (other == text, abs(len(other) - len(text))))


def find_neighbours(texts: Sequence[str], count: int = 16, most: float = 0.9) -> list[list[int]]:
    """Return for each text the most similar others by TF-IDF of words and pairs of words, nearest first, without near
    copies."""
    grams = [_list_grams(text) for text in texts]
    frequency = Counter(gram for own in grams for gram in set(own))
    column = {gram: at for at, gram in enumerate(gram for gram, times in frequency.items() if times > 1)}
    entries = [
        (row, column[gram], (1 + math.log(times)) * math.log(len(texts) / frequency[gram]))
        for row, own in enumerate(grams)
        for gram, times in Counter(own).items()
        if gram in column
    ]
    if not entries:
        return [[] for _ in texts]
    rows, columns, values = zip(*entries, strict=True)
    matrix = sparse.csr_matrix((np.array(values, np.float32), (rows, columns)), shape=(len(texts), len(column)))
    norm = np.sqrt(np.asarray(matrix.multiply(matrix).sum(1)).ravel()) + 1e-6
    matrix = (sparse.diags(1 / norm) @ matrix).tocsr().astype(np.float32)
    result = []
    for start in range(0, len(texts), 1000):
        similar = (matrix[start : start + 1000] @ matrix.T).toarray()
        nearest = np.argpartition(-similar, min(count, len(texts) - 1), axis=1)[:, :count]
        for row, candidates in enumerate(nearest):
            chosen = [int(at) for at in candidates if at != start + row and similar[row, at] < most]
            result.append(sorted(chosen, key=lambda at: -similar[row, at]))
    return result


def _list_grams(text: str) -> list[str]:
    words = re.findall(r"\w+", text.lower())
    return words + [f"{first} {second}" for first, second in pairwise(words)]


# ---- Lines and passages


def line_pairs(lines: Sequence[str], rng: random.Random, count: int = 9_000) -> Iterator[Pair]:
    for line in draw(lines, count, rng):
        way = "broken" if rng.random() < 0.25 else "slips"
        yield pair(f"line {way}", SLIPS, (), line, worsen(line, way, rng), rng, 0.97)


def passage_pairs(passages: Sequence[Sequence[str]], rng: random.Random, times: int = 5) -> Iterator[Pair]:
    strangers = [line for passage in passages for line in passage]
    for passage in passages:
        for _ in range(times):
            at = rng.randrange(max(1, len(passage) - 3))
            text = " ".join(passage[at : at + rng.randint(3, 5)])
            if rng.random() < 0.6:
                worse = worsen(text, "order", rng, donor=rng.choice(strangers))
                yield pair("passage order", ("coherence",), (), text, worse, rng)
            else:
                yield pair("passage broken", WORDING, (), text, worsen(text, "broken", rng), rng, 0.97)


# ---- Stories


def story_pairs(stories: Sequence[Sequence[str]], rng: random.Random, times: int = 4) -> Iterator[Pair]:
    """Prefer a story after its own beginning to others', and to versions with stray, repeated or broken sentences."""
    neighbours = find_neighbours([" ".join(parts) for parts in stories])
    for at, parts in enumerate(stories):
        rest, context = list(parts[1:]), (("beginning", parts[0]),)
        near = stories[rng.choice(neighbours[at][:3])] if neighbours[at] else rng.choice(stories)
        if near is parts:
            continue
        text = " ".join(rest)
        yield pair("story other", (*STORY, "relevance"), context, text, " ".join(near[1:]), rng)
        for _ in range(times):
            worse, place, draws = list(rest), rng.randrange(len(rest)), rng.random()
            if draws < 0.15:
                rng.shuffle(worse)
                yield pair("story shuffled", STORY, context, text, " ".join(worse), rng, 0.85)
            elif draws < 0.4:
                worse[place : place + rng.randint(0, 1)] = [rng.choice(near)]
                yield pair("story stray sentence", STORY, context, text, " ".join(worse), rng)
            elif draws < 0.52:
                worse[place : place + rng.randint(0, 1)] = [rng.choice(worse)]
                yield pair("story repeats", STORY, context, text, " ".join(worse), rng)
            elif draws < 0.66:
                yield pair("story broken", (*WORDING, "story"), context, text, worsen(text, "broken", rng), rng)
            elif draws < 0.8:
                yield pair(
                    "story false", STORY, context, text, worsen(text, "false", rng, donor=" ".join(near)), rng, 0.8
                )
            elif draws < 0.88:
                yield pair("story slips", WORDING, context, text, worsen(text, "slips", rng), rng, 0.9)
            else:
                yield pair("story ending", STORY, context, text, " ".join([*rest[:-1], near[-1]]), rng)


# ---- Summaries


def summary_pairs(summaries: Mapping[str, str], rng: random.Random) -> Iterator[Pair]:
    """Prefer a summary to that of a neighbour, to damaged ones, to late sentences of the article and to less of it."""
    articles = sorted(summaries)
    neighbours = find_neighbours([" ".join(article.split()[:150]) for article in articles], 8)
    for at, article in enumerate(articles):
        context, summary = (("source", article),), summaries[article]
        parts, own = list_sentences(summary), list_sentences(article)[:25]
        near = [articles[place] for place in neighbours[at][:4]]
        other = rng.choice(near) if near else rng.choice(articles)
        if other == article:
            continue
        # The same two summaries under both articles.
        criterion = (rng.choice(SUBJECT),)
        yield pair("summary neighbour", criterion, context, summary, summaries[other], rng, 1.0)
        yield pair("summary neighbour", criterion, (("source", other),), summaries[other], summary, rng, 1.0)
        donor = article if rng.random() < 0.6 else other
        yield pair("summary false", TRUTH, context, summary, worsen(summary, "false", rng, source=donor), rng, 0.9)
        yield pair("summary broken", WORDING, context, summary, worsen(summary, "broken", rng), rng, 0.97)
        if len(parts) > 1:
            stray = list_sentences(summaries[other])
            padded = " ".join([*parts, rng.choice(parts), *stray[:1]])
            yield pair("summary padded", ("coherence", "overall", "relevance"), context, summary, padded, rng, 0.9)
            again = " ".join([*parts[:1] * rng.choice((2, 3)), *stray[:2]])
            yield pair("summary says less", LESS, context, summary, again, rng)
            yield pair("summary stray", TRUTH, context, summary, " ".join([*parts[:-1], *stray[:1]]), rng)
        if len(own) > 8:
            late = " ".join(own[at] for at in sorted(rng.sample(range(len(own) // 2, len(own)), min(3, len(own) // 3))))
            yield pair("summary late", CONTENT, context, summary, late, rng, 0.85)
            first = " ".join(own[:3])
            worse = worsen(first, "order", rng, donor=" ".join(list_sentences(other)[:5]))
            yield pair("summary order", ("coherence",), context, first, worse, rng)


# ---- Replies


def reply_pairs(talks: Sequence[Talk], rng: random.Random, each: int = 3) -> Iterator[Pair]:
    """Prefer the turn that follows in a conversation to turns of others, to dull, repeated and damaged ones."""
    by_subject = defaultdict(list)
    for talk in talks:
        by_subject[talk.subject].append(talk)
    # A greeting begins a conversation: it would mark the reply of another one.
    later = [turn for talk in talks for turn in talk.turns[2:] or talk.turns[-1:]]
    for talk in talks:
        turns = talk.turns
        others = draw(by_subject[talk.subject], 9, rng) if talk.subject else []
        same = [turn for other in others if other is not talk for turn in other.turns[2:]]
        places = range(min(2, len(turns) - 1), len(turns))
        for at in draw(places, each, rng):
            context, reply = (("dialogue", "\n".join(turns[max(0, at - 6) : at])),), turns[at]
            yield pair("reply other", FITTING, context, reply, choose_similar(reply, later, rng), rng, 0.97)
            if same:
                yield pair("reply same topic", FITTING, context, reply, choose_similar(reply, same, rng), rng, 0.85)
            way = rng.choice(("repeats", "dull", "dull and long", "slips", "broken", "mixed"))
            if way == "repeats":
                yield pair("reply repeats", INTEREST, context, reply, rng.choice(turns[max(0, at - 2) : at]), rng)
            elif way in ("slips", "broken"):
                yield pair(f"reply {way}", WORDING[:4], context, reply, worsen(reply, way, rng), rng, 0.97)
            elif way == "mixed" and same:
                mixed = " ".join([*list_sentences(reply)[:1], choose_similar(reply, same, rng)])
                yield pair("reply mixed", ("reply fit", "coherence", "overall"), context, reply, mixed, rng, 0.85)
            elif len(reply.split()) > 7:
                dull = WORDINGS["made"]["dull" if way == "dull" else "dull_and_long"]
                yield pair("reply dull", INTEREST, context, reply, rng.choice(dull), rng, 0.9)


# ---- What a language model wrote


def written_pairs(written: Written, better: Mapping[str, Mapping[str, str]], rng: random.Random) -> Iterator[Pair]:
    """Prefer its texts at a low temperature to those at a high one and to those for other prompts, and the texts of
    people or of a larger model in `better` to both."""
    fields = {"story": "beginning", "summary": "source", "reply": "dialogue", "answer": "instruction"}
    for kind, field in fields.items():
        lows = [low for low, _ in written.by_kind[kind].values()]
        for source, (low, high) in written.by_kind[kind].items():
            context = ((field, source),)
            if min(len(low.split()), len(high.split())) < 3:
                continue
            yield pair(f"{kind} temperature", (*WORDING, "overall"), context, low, high, rng, 0.9)
            yield pair(f"{kind} for another", SUBJECT, context, low, choose_similar(low, lows, rng), rng)
            if source in better.get(kind, {}):
                criteria = ("helpfulness", "correctness", "overall", "naturalness")
                yield pair(f"{kind} by people", criteria, context, better[kind][source], low, rng, 0.8)
