"""What the shipped preference model may learn from: HEAP, ratings of other sets, and good texts made worse on purpose.

    python preference_pairs.py OUT.jsonl.gz

Only sets with sources whose licence allows weights that ship (or that carry none, which the card says), and none of a
family that judges the model: SummEval, Newsroom (NeR18), Topical-Chat, OpenMEVA-ROC, PandaLM, LLMBar. Sources that
share their words with a judged one are left out (REALSumm and QAGS take articles from where SummEval does).
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from agreement import DATA, rated, rows
from damage import disordered, sentences, ungrammatical, untrue

from metrist import criteria
from metrist.data.build import build_pairs
from metrist.data.good_bad import Fields, GoodBad
from metrist.data.heap import heap_pairs
from metrist.data.judgments import Judgments, read_judgments
from metrist.data.pairs_file import write_good_bad
from metrist.data.rules import Aim, Rules
from metrist.data.shape import Shape
from metrist.data.splits import split_pairs

JUDGED = ("summeval", "newsroom", "topical-chat-usr", "openmeva-roc", "pandalm", "llmbar")
#: Two texts share their words where so large a share of one's runs of so many words stands in the other.
_RUN, _SHARED = 8, 0.05
#: No more of a text than its first and last so many words is kept: a model of 512 tokens reads no more of it.
_ENDS = 260


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratings:
    """A set whose ratings become pairs: which aspects teach which criteria, and what makes a pair clear."""

    file: str
    aspects: dict[str, str]
    margin: float
    cap: int
    within: Literal["item", "all"] = "item"
    labels: tuple[str, str] = ("source", "summary")


_DATA_TO_TEXT = {"informativeness": "informativeness", "naturalness": "naturalness", "quality": "overall"}
_DIALOGUE = {"within": "all", "labels": ("dialogue", "response")}
_MEANING = {"within": "all", "labels": ("meaning", "sentence")}
_OF_DIALOGUES = {
    "Engaging": "engagingness",
    "Relevant": "relevance",
    "Semantically appropriate": "coherence",
    "Correct": "correctness",
    "Understandable": "understandability",
    "Fluent": "fluency",
    "Overall": "overall",
    "Specific": "informativeness",
}
_OF_OPINIONS = {
    "fl": "fluency",
    "co": "coherence",
    "re": "relevance",
    "fa": "consistency",
    "ac": "coverage",
    "sp": "informativeness",
}
_FACT = {"fact": "consistency"}
_SIMPLE = ("source", "simplification")
RATED = (
    Ratings(file="fed", aspects=_OF_DIALOGUES, margin=0.4, cap=6, **_DIALOGUE),
    Ratings(file="grade", aspects={"coherence": "coherence"}, margin=0.8, cap=7, **_DIALOGUE),
    Ratings(file="realsumm", aspects={"litepyramid_recall": "coverage"}, margin=0.12, cap=36),
    Ratings(file="qags-cnn", aspects=_FACT, margin=0.3, cap=10, within="all"),
    Ratings(file="qags-xsum", aspects=_FACT, margin=0.3, cap=10, within="all"),
    Ratings(file="rank19", aspects=_FACT, margin=0.5, cap=4),
    Ratings(file="bagel", aspects=_DATA_TO_TEXT, margin=1.5, cap=5, **_MEANING),
    Ratings(file="sfres", aspects=_DATA_TO_TEXT, margin=1.5, cap=2, **_MEANING),
    Ratings(file="sfhot", aspects=_DATA_TO_TEXT, margin=1.5, cap=2, **_MEANING),
    Ratings(file="summeval-op", aspects=_OF_OPINIONS, margin=0.6, cap=16, labels=("reviews", "summary")),
    Ratings(file="simpeval_past", aspects={"overall": "overall"}, margin=12, cap=30, labels=_SIMPLE),
)
TRANSLATIONS = ("wmt19-darr.lt-en", "wmt19-darr.gu-en", "wmt19-darr.kk-en")
_EACH_TRANSLATION = 3_000


def all_pairs(rng: random.Random) -> list[GoodBad]:
    """Every pair with its side and an instruction: HEAP on its honest split, all else mostly for training."""
    known = Known()
    other = [*rated_pairs(known), *translation_pairs(rng), *made_pairs(known, rng)]
    heap = split_pairs(heap_pairs(DATA / "heap-pairs.jsonl.xz")).pairs
    return [asked(brief(pair), rng) for pair in (*heap, *split_pairs(other, (0.94, 0.05, 0.01)).pairs)]


class Known:
    """The judged sets' sources, by their runs of words."""

    def __init__(self) -> None:
        self._runs = {run for name in JUDGED for row in rows(name) for run in _runs(row.get("source") or "")}

    def is_judged(self, source: str) -> bool:
        own = _runs(source)
        return len(own & self._runs) > _SHARED * len(own)


def _runs(text: str) -> set[str]:
    words = "".join(letter if letter.isalnum() else " " for letter in text.lower()).split()
    return {" ".join(words[at : at + _RUN]) for at in range(max(1, len(words) - _RUN + 1))}


def rated_pairs(known: Known) -> Iterator[GoodBad]:
    for told in RATED:
        judged = _unjudged(read_judgments([DATA / f"{told.file}.jsonl.xz"]), known)
        source, output = told.labels
        shape = Shape(context=("source",), labels={"source": source, "output": output})
        rules = Rules(within=told.within, margin=told.margin, cap=told.cap)
        for aspect, criterion in told.aspects.items():
            built = build_pairs(judged, [Aim(aspect=aspect, criterion=criterion)], rules, shape)
            print(f"{told.file:14} {aspect:26} {criterion:18} {len(built.pairs):6,}", file=sys.stderr)
            for pair in built.pairs:
                yield replace(pair, item=f"{told.file}:{pair.item}" if pair.item else "", split=None)


def _unjudged(judged: Judgments, known: Known) -> Judgments:
    """Without outputs whose source judges the model; turns of a dialogue on lines of their own."""
    kept = {
        key: replace(record, source=record.source.replace("|||", "\n"))
        for key, record in judged.records.items()
        if record.source and not known.is_judged(record.source)
    }
    judged.ratings = {
        aspect: {key: said for key, said in by_key.items() if key in kept} for aspect, by_key in judged.ratings.items()
    }
    judged.records = kept
    return judged


def translation_pairs(rng: random.Random) -> Iterator[GoodBad]:
    """Two translations of which people took the first, beside the reference: the model reads English only."""
    for name in TRANSLATIONS:
        for row in rng.sample(rows(name), _EACH_TRANSLATION):
            context = (("reference", row["references"][0]),)
            good, bad = (((*context, ("translation", output))) for output in row["outputs"])
            if row["outputs"][0] != row["outputs"][1]:
                yield GoodBad(criterion="correctness", good=good, bad=bad, item=f"{name}:{row['item']}")


def made_pairs(known: Known, rng: random.Random) -> list[GoodBad]:
    """Good texts beside worse ones made of them: texts of the sets above and of HEAP's training side."""
    lines = sorted({row["references"][0] for name in TRANSLATIONS for row in rows(name)})
    lines = [line for line in lines if 6 <= len(line.split()) <= 45]
    stories = _stories()
    documents = _documents(known)
    pairs = [*_slips(lines, rng), *_stories_spoiled(stories, rng), *_summaries_spoiled(documents, lines, rng)]
    pairs += _replies_spoiled(lines, rng)
    return [pair for pair in pairs if pair.answers[0].split() != pair.answers[1].split()]


def _made(criterion: str, context: Fields, label: str, good: str, bad: str) -> GoodBad:
    return GoodBad(criterion=criterion, good=(*context, (label, good)), bad=(*context, (label, bad)))


def _slips(lines: Sequence[str], rng: random.Random) -> Iterator[GoodBad]:
    vocabulary = [word for line in lines for word in line.split() if word.isalpha()]
    for line in lines:
        criterion = rng.choice(("fluency", "fluency", "grammaticality", "understandability", "naturalness"))
        yield _made(criterion, (), "text", line, ungrammatical(line, vocabulary, rng))


def _stories() -> list[str]:
    pairs = split_pairs(heap_pairs(DATA / "heap-pairs.jsonl.xz")).side("train")
    found = {text for pair in pairs for label, text in pair.good if label == "narrative"}
    rewritten = (dict(pair.good) for pair in pairs if pair.criterion == "SRPl")
    found |= {f"{one['story']} {one['original ending']}" for one in rewritten}
    return sorted(story for story in found if len(sentences(story)) >= 4)


def _stories_spoiled(stories: Sequence[str], rng: random.Random) -> Iterator[GoodBad]:
    strangers = [line for story in stories for line in sentences(story)]
    for story in stories:
        for _ in range(4):
            yield _made(rng.choice(("coherence", "overall")), (), "story", story, disordered(story, strangers, rng))
            first, *rest = sentences(story)
            other = sentences(rng.choice(stories))[1:]
            criterion = rng.choice(("coherence", "relevance", "overall"))
            yield _made(criterion, (("beginning", first),), "story", " ".join(rest), " ".join(other))


def _documents(known: Known) -> list[tuple[str, str | None]]:
    found: dict[str, str | None] = {}
    for name in ("realsumm", "qags-cnn", "qags-xsum"):
        for row in rows(name):
            if not known.is_judged(row["source"]):
                found.setdefault(row["source"], (row.get("references") or [None])[0])
    return list(found.items())


def _summaries_spoiled(
    documents: Sequence[tuple[str, str | None]], lines: Sequence[str], rng: random.Random
) -> Iterator[GoodBad]:
    """Sentences of an article, or its reference, beside what is untrue of it, of another article, or ill written."""
    for source, reference in documents:
        for _ in range(8):
            quoted = _quoted(source, rng.choice((1, 2, 3)), rng)
            parts = sentences(reference) if reference and rng.random() < 0.4 else quoted
            good, other = " ".join(parts), rng.choice(documents)[0]
            kind = rng.choice(("untrue", "untrue", "untrue", "mixed", "other", "slips", "order", "short"))
            if kind == "untrue":
                bad = untrue(good, source if rng.random() < 0.6 else other, rng) or good
                criterion = "consistency"
            elif kind == "mixed":
                bad = " ".join([*parts[1:], *_quoted(other, 1, rng)])
                criterion = rng.choice(("consistency", "relevance"))
            elif kind == "other":
                bad = " ".join(_quoted(other, len(parts), rng))
                criterion = rng.choice(("relevance", "consistency", "coverage", "overall"))
            elif kind == "slips":
                bad, criterion = ungrammatical(good, lines[0].split(), rng), rng.choice(("fluency", "overall"))
            elif kind == "order":
                bad, criterion = " ".join(parts[::-1]), "coherence"
            else:
                bad, criterion = parts[0] if parts else good, "coverage"
            if good and bad:
                yield _made(criterion, (("source", source),), "summary", good, bad)


def _quoted(document: str, count: int, rng: random.Random) -> list[str]:
    fit = [line for line in sentences(document)[:25] if 5 <= len(line.split()) <= 45]
    return [fit[at] for at in sorted(rng.sample(range(len(fit)), min(count, len(fit))))]


def _replies_spoiled(lines: Sequence[str], rng: random.Random) -> Iterator[GoodBad]:
    """Replies that people found good beside one to something else, one with slips, and one that says what was said."""
    liked = [row for row in rows("grade") if rated(row, "coherence") > 3.8]
    liked += [row for row in rows("fed") if rated(row, "Overall") >= 3]
    good = [(row["source"].replace("|||", "\n"), row["output"]) for row in liked]
    for source, reply in good:
        context = (("dialogue", source),)
        said = rng.choice([line for line in source.split("\n") if line.strip()])
        yield _made(rng.choice(("relevance", "coherence", "overall")), context, "response", reply, rng.choice(good)[1])
        slips = ungrammatical(reply, lines[0].split(), rng)
        yield _made(rng.choice(("fluency", "naturalness", "understandability")), context, "response", reply, slips)
        yield _made(rng.choice(("engagingness", "overall", "informativeness")), context, "response", reply, said)


def asked(pair: GoodBad, rng: random.Random) -> GoodBad:
    """With one of its criterion's instructions, the first one as often as the others together: users word it anew."""
    return replace(pair, instruction=rng.choices(criteria.find(pair.criterion).instructions, (2, 1, 1))[0])


def brief(pair: GoodBad) -> GoodBad:
    return replace(pair, good=_brief(pair.good), bad=_brief(pair.bad))


def _brief(fields: Fields) -> Fields:
    return tuple((label, _ends(text)) for label, text in fields[:-1]) + fields[-1:]


def _ends(text: str) -> str:
    words = text.split(" ")
    return text if len(words) <= 2 * _ENDS else " ".join([*words[:_ENDS], *words[-_ENDS:]])


def _counts(pairs: Iterable[GoodBad]) -> None:
    for (criterion, side), count in sorted(Counter((pair.criterion, str(pair.split)) for pair in pairs).items()):
        print(f"{criterion:20} {side:6} {count:7,}", file=sys.stderr)


if __name__ == "__main__":
    found = all_pairs(random.Random(6))
    write_good_bad(Path(sys.argv[1]), found)
    _counts(found)
