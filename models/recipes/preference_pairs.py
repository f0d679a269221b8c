"""What the shipped preference model may learn from: HEAP, ratings of other sets, and good texts made worse on purpose.

    python preference_pairs.py MACHINE.jsonl.gz OUT.jsonl.gz      MACHINE: what machine_texts.py wrote

Only sets with sources whose licence allows weights that ship (or that carry none, which the card says), and none of a
family that judges the model: SummEval, Newsroom (NeR18), Topical-Chat, OpenMEVA-ROC, PandaLM, LLMBar; nor of those by
which trainings are chosen (`preference_choice.py`).
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Literal

from agreement import DATA, Row, rated, rows
from made_pairs import ALONE, made_pairs, pair
from packaged_texts import rated_news
from preference_texts import TRANSLATIONS, Known, heap_on_its_honest_split, turns

from metrist import criteria
from metrist.data.build import build_pairs
from metrist.data.judgments import Judgments, read_judgments
from metrist.data.pairs import Fields, GoodBad, Shape, write_good_bad
from metrist.data.rules import Aim, Rules
from metrist.data.splits import split_pairs

#: No more of a text than its first and last so many words is kept: a model of 512 tokens reads no more of it.
_ENDS = 260
_MOST = 10_000


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
#: How much of what a good summary says an output says.
_OF_CONTENT = ("coverage", "relevance", "informativeness")
_FACT = {"fact": "consistency"}
_SIMPLE = ("source", "simplification")
RATED = (
    Ratings(file="grade", aspects={"coherence": "coherence"}, margin=0.8, cap=7, **_DIALOGUE),
    *(Ratings(file="realsumm", aspects={"litepyramid_recall": name}, margin=0.15, cap=24) for name in _OF_CONTENT),
    Ratings(file="qags-cnn", aspects=_FACT, margin=0.3, cap=10, within="all"),
    Ratings(file="qags-xsum", aspects=_FACT, margin=0.3, cap=10, within="all"),
    Ratings(file="rank19", aspects=_FACT, margin=0.5, cap=4),
    Ratings(file="bagel", aspects=_DATA_TO_TEXT, margin=1.5, cap=5, **_MEANING),
    Ratings(file="sfres", aspects=_DATA_TO_TEXT, margin=1.5, cap=2, **_MEANING),
    Ratings(file="sfhot", aspects=_DATA_TO_TEXT, margin=1.5, cap=2, **_MEANING),
    Ratings(file="simpeval_past", aspects={"overall": "overall"}, margin=12, cap=30, labels=_SIMPLE),
)
_OF_NEWS = {
    "overall": "overall",
    "fluent": "fluency",
    "understandable": "understandability",
    "informative": "informativeness",
}
_NEWS_MARGIN = 0.4
_EACH_TRANSLATION = 3_000
_OF_TRANSLATIONS = ("correctness", "correctness", "consistency", "overall", "fluency")
_MARKED = ("bio-mqm.de-en", "bio-mqm.es-en", "bio-mqm.fr-en", "bio-mqm.ru-en", "bio-mqm.zh-en")
#: Part of an error's category, and what it is an error of.
_FLAWS = {"Grammar": "grammaticality", "Non_fluent": "fluency", "Unintelligible": "understandability"}
_GRADED = ("mlqe-pe.et-en", "mlqe-pe.ro-en", "mlqe-pe.ru-en")
_CLEAR, _UNCLEAR, _EACH_GRADED = 80, 40, 1_000


def all_pairs(machine: Path, rng: random.Random) -> list[GoodBad]:
    """Every pair with its side and an instruction: HEAP on its honest split, all else mostly for training."""
    known = Known()
    other = [
        *rated_pairs(known),
        *news_pairs(known),
        *translation_pairs(rng),
        *flawed_pairs(rng),
        *made_pairs(known, machine, rng),
    ]
    other = _at_most(_MOST, other, rng)
    heap = heap_on_its_honest_split().pairs
    return [asked(brief(one), rng) for one in (*heap, *split_pairs(other, (0.94, 0.05, 0.01)).pairs)]


def _at_most(count: int, pairs: Sequence[GoodBad], rng: random.Random) -> list[GoodBad]:
    """No more than so many of each criterion, those that people judged side by side first."""
    left = Counter(dict.fromkeys({one.criterion for one in pairs}, count))
    kept = set()
    for at in sorted(range(len(pairs)), key=lambda at: (not pairs[at].item, rng.random())):
        if left[pairs[at].criterion] > 0:
            left[pairs[at].criterion] -= 1
            kept.add(at)
    return [one for at, one in enumerate(pairs) if at in kept]


def rated_pairs(known: Known) -> Iterator[GoodBad]:
    for told in RATED:
        judged = _unjudged(read_judgments([DATA / f"{told.file}.jsonl.xz"]), known)
        source, output = told.labels
        shape = Shape(context=("source",), labels={"source": source, "output": output})
        rules = Rules(within=told.within, margin=told.margin, cap=told.cap)
        for aspect, criterion in told.aspects.items():
            built = build_pairs(judged, [Aim(aspect=aspect, criterion=criterion)], rules, shape)
            print(f"{told.file:14} {aspect:26} {criterion:18} {len(built.pairs):6,}", file=sys.stderr)
            for one in built.pairs:
                yield replace(one, item=f"{told.file}:{one.item}" if one.item else "", split=None)


def _unjudged(judged: Judgments, known: Known) -> Judgments:
    """Without outputs whose source judges the model; turns of a dialogue on lines of their own."""
    kept = {
        key: replace(record, source=turns(record.source))
        for key, record in judged.records.items()
        if record.source and not known.is_judged(record.source)
    }
    judged.ratings = {
        aspect: {key: said for key, said in by_key.items() if key in kept} for aspect, by_key in judged.ratings.items()
    }
    judged.records = kept
    return judged


def news_pairs(known: Known) -> Iterator[GoodBad]:
    """Two summaries of an article, of which people rated one clearly higher."""
    for item, group in _by_item(rated_news(known)):
        for aspect, criterion in _OF_NEWS.items():
            ranked = sorted((row for row in group if aspect in row["ratings"]), key=lambda row: rated(row, aspect))
            for worse, better in combinations(ranked, 2):
                if rated(better, aspect) - rated(worse, aspect) >= _NEWS_MARGIN:
                    context = () if criterion in ALONE else (("source", better["source"]),)
                    good, bad = ((*context, ("summary", row["output"])) for row in (better, worse))
                    yield GoodBad(criterion=criterion, good=good, bad=bad, item=f"blanc:{item}")


def translation_pairs(rng: random.Random) -> Iterator[GoodBad]:
    """Two translations of which people took the first: mostly beside the reference, the model reads English only."""
    for name in TRANSLATIONS:
        for row in rng.sample(rows(name), _EACH_TRANSLATION):
            better, worse = row["outputs"]
            if better != worse:
                context = ("reference", row["references"][0])
                found = pair(_OF_TRANSLATIONS, context, "translation", better, worse, rng)
                yield replace(found, item=f"{name}:{row['item']}")


def flawed_pairs(rng: random.Random) -> Iterator[GoodBad]:
    """Translations into English by what they look like without their source. Medical abstracts: two of one sentence,
    of which one has marked flaws of language and the other none. Encyclopedias: any two, far apart in their ratings."""
    for name in _MARKED:
        for item, group in _by_item(rows(name)):
            clean = [row["output"] for row in group if not row.get("errors")]
            for row in group:
                flaws = {error["category"] for error in row.get("errors", ()) if error.get("severity") != "neutral"}
                criteria = [criterion for flaw, criterion in _FLAWS.items() if any(flaw in one for one in flaws)]
                if clean and criteria:
                    found = pair(criteria, ("", ""), "text", rng.choice(clean), row["output"], rng)
                    yield replace(found, item=f"{name}:{item}")
    for name in _GRADED:
        graded = [(rated(row, "da"), row) for row in rows(name) if len(row["output"].split()) >= 5]
        high = [row for rating, row in graded if rating >= _CLEAR]
        low = [row for rating, row in graded if rating <= _UNCLEAR]
        for row in rng.sample(low, min(_EACH_GRADED, len(low))):
            better = rng.choice(high)
            found = pair(
                ("fluency", "understandability", "naturalness"), ("", ""), "text", better["output"], row["output"], rng
            )
            yield replace(found, item=f"{name}:{row['item']}")


def _by_item(found: Iterable[Row]) -> Iterable[tuple[str, list[Row]]]:
    groups: dict[str, list[Row]] = {}
    for row in found:
        groups.setdefault(row["item"], []).append(row)
    return groups.items()


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
    for (criterion, side), count in sorted(Counter((one.criterion, str(one.split)) for one in pairs).items()):
        print(f"{criterion:20} {side:6} {count:7,}", file=sys.stderr)


if __name__ == "__main__":
    found = all_pairs(Path(sys.argv[1]), random.Random(6))
    write_good_bad(Path(sys.argv[2]), found)
    _counts(found)
