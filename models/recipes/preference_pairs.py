"""Build the training pairs of the shipped preference model: HEAP, ratings of other data sets, and damaged texts.

    python preference_pairs.py MACHINE.jsonl.gz OUT.jsonl.gz      MACHINE: what machine_texts.py wrote

Uses only data sets whose licence allows shipped weights (or that have none, which the card says), without the families
that the model is tested on (SummEval, Newsroom (NeR18), Topical-Chat, OpenMEVA-ROC, PandaLM, LLMBar) and those that
choose between trainings (`preference_choice.py`).
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

from agreement import DATA, Row, mean_rating, rows
from made_pairs import ALONE, pair
from made_pairs import build_pairs as build_synthetic_pairs
from packaged_texts import rated_news
from preference_texts import TRANSLATIONS, Known, split_heap, split_turns

from metrist import criteria
from metrist.data.build import build_pairs
from metrist.data.judgments import JudgedRecords, read_judgments
from metrist.data.pairs import Fields, GoodBad, Shape, write_good_bad
from metrist.data.rules import Aim, Rules
from metrist.data.splits import split_pairs

#: Texts keep this many words at each end: a model of 512 tokens reads no more.
_ENDS = 260
_MOST = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratings:
    """A data set whose ratings become pairs: its aspects with their criteria, and the margin of a clear pair."""

    file: str
    aspects: dict[str, str]
    margin: float
    cap: int
    within: Literal["item", "all"] = "item"
    labels: tuple[str, str] = ("source", "summary")


_DATA_TO_TEXT = {"informativeness": "informativeness", "naturalness": "naturalness", "quality": "overall"}
_DIALOGUE = {"within": "all", "labels": ("dialogue", "response")}
_MEANING = {"within": "all", "labels": ("meaning", "sentence")}
#: Criteria about how much of a good summary's content an output has.
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
#: Part of an error's category, and its criterion.
_FLAWS = {"Grammar": "grammaticality", "Non_fluent": "fluency", "Unintelligible": "understandability"}
_GRADED = ("mlqe-pe.et-en", "mlqe-pe.ro-en", "mlqe-pe.ru-en")
_CLEAR, _UNCLEAR, _EACH_GRADED = 80, 40, 1_000


def all_pairs(machine: Path, rng: random.Random) -> list[GoodBad]:
    """Build all pairs with splits and instructions: HEAP on its honest split, the rest mostly for training."""
    known = Known()
    other = [
        *rated_pairs(known),
        *news_pairs(known),
        *translation_pairs(rng),
        *flawed_pairs(rng),
        *build_synthetic_pairs(known, machine, rng),
    ]
    other = _at_most(_MOST, other, rng)
    heap = split_heap().pairs
    return [add_instruction(shorten(item), rng) for item in (*heap, *split_pairs(other, (0.94, 0.05, 0.01)).pairs)]


def _at_most(count: int, pairs: Sequence[GoodBad], rng: random.Random) -> list[GoodBad]:
    """Keep at most `count` pairs per criterion, human judgments first."""
    remaining = Counter(dict.fromkeys({item.criterion for item in pairs}, count))
    selected = set()
    for at in sorted(range(len(pairs)), key=lambda at: (not pairs[at].item, rng.random())):
        if remaining[pairs[at].criterion] > 0:
            remaining[pairs[at].criterion] -= 1
            selected.add(at)
    return [item for at, item in enumerate(pairs) if at in selected]


def rated_pairs(known: Known) -> Iterator[GoodBad]:
    for source_set in RATED:
        judged = _without_test_sources(read_judgments([DATA / f"{source_set.file}.jsonl.xz"]), known)
        source, output = source_set.labels
        shape = Shape(context=("source",), labels={"source": source, "output": output})
        rules = Rules(within=source_set.within, margin=source_set.margin, cap=source_set.cap)
        for aspect, criterion in source_set.aspects.items():
            built = build_pairs(judged, [Aim(aspect=aspect, criterion=criterion)], rules, shape)
            print(f"{source_set.file:14} {aspect:26} {criterion:18} {len(built.pairs):6,}", file=sys.stderr)
            for item in built.pairs:
                yield replace(item, item=f"{source_set.file}:{item.item}" if item.item else "", split=None)


def _without_test_sources(judged: JudgedRecords, known: Known) -> JudgedRecords:
    """Remove outputs with a source of the test sets; put each turn of a dialogue on its own line."""
    selected = {
        key: replace(record, source=split_turns(record.source))
        for key, record in judged.records.items()
        if record.source and not known.is_judged(record.source)
    }
    judged.ratings = {
        aspect: {key: values for key, values in by_key.items() if key in selected}
        for aspect, by_key in judged.ratings.items()
    }
    judged.records = selected
    return judged


def news_pairs(known: Known) -> Iterator[GoodBad]:
    """Yield two summaries of an article, one rated clearly higher."""
    for item, group in _by_item(rated_news(known)):
        for aspect, criterion in _OF_NEWS.items():
            ranked = sorted(
                (row for row in group if aspect in row["ratings"]), key=lambda row: mean_rating(row, aspect)
            )
            for worse, better in combinations(ranked, 2):
                if mean_rating(better, aspect) - mean_rating(worse, aspect) >= _NEWS_MARGIN:
                    context = () if criterion in ALONE else (("source", better["source"]),)
                    good, bad = ((*context, ("summary", row["output"])) for row in (better, worse))
                    yield GoodBad(criterion=criterion, good=good, bad=bad, item=f"blanc:{item}")


def translation_pairs(rng: random.Random) -> Iterator[GoodBad]:
    """Yield two translations of which people preferred the first, mostly with the reference: the model reads only
    English."""
    for name in TRANSLATIONS:
        for row in rng.sample(rows(name), _EACH_TRANSLATION):
            better, worse = row["outputs"]
            if better != worse:
                context = ("reference", row["references"][0])
                result = pair(_OF_TRANSLATIONS, context, "translation", better, worse, rng)
                yield replace(result, item=f"{name}:{row['item']}")


def flawed_pairs(rng: random.Random, graded: Sequence[str] = _GRADED) -> Iterator[GoodBad]:
    """Yield translations into English to compare without their source. Medical abstracts: two of the same sentence, one
    with marked language errors and one without. Encyclopedias: any two with very different ratings."""
    for name in _MARKED:
        for item, group in _by_item(rows(name)):
            clean = [row["output"] for row in group if not row.get("errors")]
            for row in group:
                flaws = {error["category"] for error in row.get("errors", ()) if error.get("severity") != "neutral"}
                criteria = [name for flaw, name in _FLAWS.items() if any(flaw in category for category in flaws)]
                if clean and criteria:
                    result = pair(criteria, ("", ""), "text", rng.choice(clean), row["output"], rng)
                    yield replace(result, item=f"{name}:{item}")
    for name in graded:
        rated = [(mean_rating(row, "da"), row) for row in rows(name) if len(row["output"].split()) >= 5]
        high = [row for rating, row in rated if rating >= _CLEAR]
        low = [row for rating, row in rated if rating <= _UNCLEAR]
        for row in rng.sample(low, min(_EACH_GRADED, len(low))):
            better = rng.choice(high)
            result = pair(
                ("fluency", "understandability", "naturalness"), ("", ""), "text", better["output"], row["output"], rng
            )
            yield replace(result, item=f"{name}:{row['item']}")


def _by_item(result: Iterable[Row]) -> Iterable[tuple[str, list[Row]]]:
    groups: dict[str, list[Row]] = {}
    for row in result:
        groups.setdefault(row["item"], []).append(row)
    return groups.items()


def add_instruction(pair: GoodBad, rng: random.Random) -> GoodBad:
    """Add an instruction of the criterion, the first as often as all others together: users phrase it differently."""
    return replace(pair, instruction=rng.choices(criteria.find(pair.criterion).instructions, (2, 1, 1))[0])


def shorten(pair: GoodBad) -> GoodBad:
    return replace(pair, good=_shorten_fields(pair.good), bad=_shorten_fields(pair.bad))


def _shorten_fields(fields: Fields) -> Fields:
    return tuple((label, _keep_ends(text)) for label, text in fields[:-1]) + fields[-1:]


def _keep_ends(text: str) -> str:
    words = text.split(" ")
    return text if len(words) <= 2 * _ENDS else " ".join([*words[:_ENDS], *words[-_ENDS:]])


def _print_counts(pairs: Iterable[GoodBad]) -> None:
    for (criterion, side), count in sorted(Counter((item.criterion, str(item.split)) for item in pairs).items()):
        print(f"{criterion:20} {side:6} {count:7,}", file=sys.stderr)


if __name__ == "__main__":
    result = all_pairs(Path(sys.argv[1]), random.Random(6))
    write_good_bad(Path(sys.argv[2]), result)
    _print_counts(result)
