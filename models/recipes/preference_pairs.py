"""Build the pairs of preference-small, and those of the preference head of the English encoders.

    python preference_pairs.py small OUT.jsonl.gz [--written WRITTEN.jsonl.gz]
    python preference_pairs.py english OUT.jsonl.gz [--written WRITTEN.jsonl.gz]

Pairs are those of people (HEAP, ratings, choices), made ones (`made_pairs.py`, `task_pairs.py`) and, for `english`,
attributes asked both ways. OUT is a file for `metrist train preference`; `split` is train or dev. WRITTEN are texts of
a language model (`write_texts.py`); the shipped models had them. No text shares runs of words with a set that the model
is judged on, chosen on, or that is reserved; preference-small learned from QAGS and Rank19, as its card says. Within
each group of kinds the longer output is the better one about as often as the shorter one.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import sets as data
from attribute_pairs import attribute_pairs, style_pairs, word_instruction
from good_texts import TRANSLATIONS, Talk, Written, articles, lines, passages, split_heap, split_turns, stories, talks
from made_pairs import Pair, line_pairs, pair, passage_pairs, reply_pairs, story_pairs, summary_pairs, written_pairs
from packaged_texts import rated_news, service_dialogues, task_answers
from task_pairs import Tasks, demand_pairs, exact_pairs, task_pairs

from metrist import criteria
from metrist.data.pairs import GoodBad, write_good_bad

#: The share of a training set's items that choose between trainings, and of items that are for development.
HELD_OUT, _DEV = {"realsumm": 0.25, "qa-feedback-pairs": 0.2, "blanc": 0.25}, 0.03
#: Texts keep this many words at each end; rows of a kind; the longest of HEAP's codes; the certainty of a clear pair.
_ENDS, _MOST, _CODE, _CLEAR = 260, 4_500, 4, 0.8
_MOST_OF = {"task neighbour": 26_000, "reply other": 6_000, "reply same topic": 6_000, "HSO": 2_000}
#: The share of a group's pairs in which the longer output may be the better one, or the worse one.
_LONGER = 0.6


# ---- Pairs of people


class Rated(NamedTuple):
    """Aspects with their criteria, the label of the source, a single rater's margin of a clear pair (several raters
    need none), and the pairs of a source."""

    file: str
    aspects: dict[str, tuple[str, ...]]
    field: str
    margin: float
    each: int


_QUALITY = {"informativeness": ("informativeness",), "naturalness": ("naturalness",), "quality": ("overall",)}
_NEWS = {"overall": ("overall",), "fluent": ("fluency",), "understandable": ("understandability",)}
_FACT = {"fact": ("consistency",)}
RATED = (
    Rated("grade", {"coherence": ("coherence", "reply fit", "reply fit", "overall", "relevance")}, "dialogue", 0, 12),
    Rated("realsumm", {"litepyramid_recall": ("coverage", "relevance", "informativeness")}, "source", 0.15, 40),
    Rated("bagel", _QUALITY, "meaning", 1, 6),
    Rated("sfres", _QUALITY, "meaning", 1, 6),
    Rated("sfhot", _QUALITY, "meaning", 1, 6),
    Rated("simpeval_past", {"overall": ("overall",)}, "source", 0, 24),
    Rated("gmeg-wiki", {"overall": ("fluency", "grammaticality")}, "source", 20, 2),
    Rated("blanc", {**_NEWS, "informative": ("informativeness",)}, "source", 0, 12),
)
#: Sets whose outputs people found supported or not: pairs of a source, and the criterion.
_SUPPORTED = {
    "begin": (8, "knowledge"), "faithdial-audit": (8, "knowledge"), "q2-wow": (8, "knowledge"),
    "dialfact-small": (8, "knowledge"), "alexa-factual-dialogs": (8, "knowledge"), "bump": (4, "consistency"),
    "summedits": (12, "consistency"), "esnli": (1, "consistency"),
}  # fmt: skip
#: Part of an error's category in bio-mqm, and its criterion.
_FLAWS = {"Grammar": "grammaticality", "Non_fluent": "fluency", "Unintelligible": "understandability"}


def read_rated(name: str) -> list[data.Row]:
    return rated_news() if name == "blanc" else data.read_rows(name)


def is_held_out(name: str, row: data.Row) -> bool:
    return data.hash_share(f"{name}:{row['item']}") < HELD_OUT.get(name, 0)


def rated_pairs(sets: Iterable[Rated], rng: random.Random) -> Iterator[Pair]:
    """Yield two outputs for the same source of which raters rated one higher, beyond their noise."""
    for rated in sets:
        groups = defaultdict(list)
        for row in read_rated(rated.file):
            if row.get("source") and row["output"] and not is_held_out(rated.file, row):
                groups[row["source"]].append(row)
        for source, group in groups.items():
            for aspect, names in rated.aspects.items():
                judged = [row for row in group if row["ratings"].get(aspect)]
                for first, second in data.draw(list(combinations(judged, 2)), rated.each, rng):
                    certainty = compare_ratings(first["ratings"][aspect], second["ratings"][aspect], rated.margin)
                    better, worse = (first, second) if certainty > 0.5 else (second, first)
                    if max(certainty, 1 - certainty) >= _CLEAR:
                        context = ((rated.field, split_turns(source)),)
                        certainty = max(certainty, 1 - certainty)
                        yield pair(
                            f"human {rated.file}", names, context, better["output"], worse["output"], rng, certainty
                        )


def compare_ratings(first: Sequence[float | None], second: Sequence[float | None], margin: float) -> float:
    """Return the probability that other raters would rate the first higher; of single ratings, by a margin."""
    own, other = ([float(value) for value in values if value is not None] for values in (first, second))
    if not own or not other:
        return 0.5
    difference = sum(own) / len(own) - sum(other) / len(other)
    if min(len(own), len(other)) < 3:
        return 0.5 if abs(difference) < margin or not difference else (0.85 if difference > 0 else 0.15)
    spread = 0.0
    for values in (own, other):
        mean = sum(values) / len(values)
        spread += max(0.05, sum((value - mean) ** 2 for value in values) / (len(values) - 1)) / len(values)
    return 0.5 * (1 + math.erf(difference / math.sqrt(2 * spread)))


def chosen_pairs(rng: random.Random) -> Iterator[Pair]:
    """Yield the choices of people: answers with sources, harmless replies, translations, minimal pairs."""
    for name, names, certainty in (
        ("qa-feedback-pairs", ("overall", "helpfulness"), 0.85),
        ("hh-harmless-test", ("harmlessness",), 0.8),
        ("blimp-pairs", ("grammaticality", "fluency"), 0.97),
    ):
        for row in data.draw(data.read_rows(name), 4_000, rng):
            choice = row["ratings"]["preference"][0]
            if choice in (1, 2) and not is_held_out(name, row):
                good, bad = row["outputs"] if choice == 1 else row["outputs"][::-1]
                fields = (("source", row.get("source")), ("question", row.get("instruction")))
                yield pair(f"human {name}", names, tuple((f, t) for f, t in fields if t), good, bad, rng, certainty)
    for name in TRANSLATIONS:
        for row in data.draw(data.read_rows(name), 3_000, rng):
            names = ("correctness", "correctness", "consistency", "overall", "fluency")
            context = (("reference", row["references"][0]),)
            yield pair("human translation", names, context, *row["outputs"][:2], rng, 0.85)


def supported_pairs(rng: random.Random) -> Iterator[Pair]:
    """Yield two outputs with the same source, of which people found one supported and the other not."""
    for name, (each, criterion) in _SUPPORTED.items():
        groups: dict[tuple[str, str], list[tuple[float, str]]] = defaultdict(list)
        for row in data.read_rows(name):
            # Topical-Chat is judged; two of these sets have some of its dialogues.
            if "topical" not in str(row["item"]):
                rating = data.mean_rating(row, "factual" if name.startswith("alexa") else "consistent")
                groups[row["source"], row.get("context") or ""].append((rating, row["output"]))
        for (source, talk), outputs in groups.items():
            context = (("source", source), *((("dialogue", talk),) if talk else ()))
            both = [(high, low) for (a, high) in outputs for (b, low) in outputs if a >= 0.99 and b <= 0.34]
            for high, low in data.draw(both, each, rng):
                yield Pair(f"human {name}", criterion, context, high, low, 0.9)


def flawed_pairs(rng: random.Random) -> Iterator[Pair]:
    """Yield two translations into English of a sentence, of which one has marked errors of language; and any two with
    very different ratings."""
    for name in ("de-en", "es-en", "fr-en", "ru-en", "zh-en"):
        groups = defaultdict(list)
        for row in data.read_rows(f"bio-mqm.{name}"):
            groups[row["item"]].append(row)
        for group in groups.values():
            clean = [row["output"] for row in group if not row.get("errors")]
            for row in group:
                found = {error["category"] for error in row.get("errors", ()) if error.get("severity") != "neutral"}
                names = [name for flaw, name in _FLAWS.items() if any(flaw in category for category in found)]
                if clean and names:
                    yield pair("human bio-mqm", names, (), rng.choice(clean), row["output"], rng, 0.85)
    for name in ("ro-en", "ru-en"):
        rated = [(data.mean_rating(row, "da"), row["output"]) for row in data.read_rows(f"mlqe-pe.{name}")]
        high, low = [text for mean, text in rated if mean >= 80], [text for mean, text in rated if mean <= 40]
        for worse in data.draw(low, 1_000, rng):
            names = ("fluency", "understandability", "naturalness")
            yield pair("human mlqe", names, (), rng.choice(high), worse, rng, 0.85)


def heap_pairs(side: str) -> list[Pair]:
    """Return HEAP's pairs, on its honest split."""
    found = []
    for one in split_heap().side(side):
        found.append(Pair(one.criterion, one.criterion, one.good[:-1], one.good[-1][1], one.bad[-1][1]))
    return found


# ---- Assembly


def list_made(written: Written, judged: data.JudgedTexts, rng: random.Random, scale: float) -> Iterator[Pair]:
    good_lines, own_articles = lines(), articles(judged)
    some = dict(data.draw(sorted(own_articles.items()), round(3_000 * scale), rng))
    told = [data.list_sentences(f"{begin} {low}")[:7] for begin, (low, _) in written.by_kind["story"].items()]
    spoken = [Talk("", turns) for turns in data.draw(service_dialogues(), round(600 * scale), rng)]
    spoken += [Talk("", (*dialogue.split("\n"), low)) for dialogue, (low, _) in written.by_kind["reply"].items()]
    tasks = Tasks(judged, written)
    yield from line_pairs(good_lines, rng, round(9_000 * scale))
    yield from passage_pairs(data.draw(passages(), round(2_000 * scale), rng), rng)
    yield from story_pairs(
        data.draw([*stories(), *[parts for parts in told if len(parts) > 3]], round(9_000 * scale), rng), rng
    )
    yield from summary_pairs({**some, **{a: low for a, (low, _) in written.by_kind["summary"].items() if low}}, rng)
    yield from reply_pairs(data.draw([*talks(), *spoken], round(20_000 * scale), rng), rng)
    yield from written_pairs(written, {"summary": own_articles, "answer": task_answers()}, rng)
    yield from task_pairs(tasks, rng)
    yield from demand_pairs(tasks, rng, round(900 * scale))
    yield from exact_pairs(good_lines, tasks, rng, round(400 * scale))


def build(model: str, written: Written, rng: random.Random, scale: float) -> dict[str, list[Pair]]:
    if model == "small":
        names = [name for name in data.JUDGED if name not in data.LEARNED_BY_SMALL]
        sets = [*RATED, Rated("qags-cnn", _FACT, "source", 0, 10), Rated("qags-xsum", _FACT, "source", 0, 10)]
        sets.append(Rated("rank19", _FACT, "source", 0.5, 4))
    else:
        names, sets = [*data.JUDGED, *data.RESERVED, *data.CHOSEN_ON], list(RATED)
    held_out = [row for name in HELD_OUT for row in read_rated(name) if is_held_out(name, row)]
    judged = data.JudgedTexts(names, data.list_texts([[row["source"], row.get("output")] for row in held_out]))
    human = [*rated_pairs(sets, rng), *chosen_pairs(rng), *supported_pairs(rng), *flawed_pairs(rng)]
    result = {
        side: data.draw(heap, round(scale * len(heap)), rng) for side in ("train", "dev") for heap in [heap_pairs(side)]
    }
    for one in (*data.draw(human, round(scale * len(human)), rng), *list_made(written, judged, rng, scale)):
        is_dev = data.hash_share(str(one.context) if one.context else min(one.good, one.bad)) < _DEV
        result["dev" if is_dev else "train"].append(one)
    for side, pairs in result.items():
        pairs = balance_length(limit_kinds(remove_unusable(map(shorten, pairs), judged), rng), rng)
        if model == "english":
            usable = [one for one in pairs if len(one.kind) > _CODE]
            each = round((1_100 if side == "train" else 30) * scale) or 1
            pairs += [*attribute_pairs(usable, rng, each), *style_pairs(usable, rng, each)]
        result[side] = pairs
    return result


def shorten(one: Pair) -> Pair:
    def keep_ends(text: str) -> str:
        words = text.strip().split(" ")
        return " ".join(words if len(words) <= 2 * _ENDS else [*words[:_ENDS], *words[-_ENDS:]])

    context = tuple((field, keep_ends(text)) for field, text in one.context)
    return one._replace(context=context, good=keep_ends(one.good), bad=keep_ends(one.bad))


def remove_unusable(pairs: Iterable[Pair], judged: data.JudgedTexts) -> list[Pair]:
    """Remove pairs with judged texts, without a difference, that occur before, or that contradict an earlier one."""
    removed: Counter[str] = Counter()
    seen = set()
    result = []
    for one in pairs:
        good, bad = (" ".join(text.lower().split()) for text in (one.good, one.bad))
        key = one.criterion if criteria.known(one.criterion) else one.kind, one.context, frozenset((good, bad))
        if not good or not bad or good == bad:
            removed["no difference"] += 1
        elif key in seen:
            removed["seen before"] += 1
        elif not judged.free(one.good, one.bad, *(text for _, text in one.context)):
            removed["judged"] += 1
        else:
            seen.add(key)
            result.append(one)
    print(f"{len(result):,} pairs; removed: {dict(removed)}", flush=True)
    return result


def limit_kinds(pairs: Sequence[Pair], rng: random.Random) -> list[Pair]:
    counts: Counter[str] = Counter()
    result = []
    for one in rng.sample(pairs, len(pairs)):
        counts[one.kind] += 1
        if counts[one.kind] <= _MOST_OF.get(one.kind, _MOST):
            result.append(one)
    return result


def balance_length(pairs: Sequence[Pair], rng: random.Random) -> list[Pair]:
    """Remove pairs at random until in each group neither the longer nor the shorter output wins too often. A group is a
    kind, or all kinds of tasks, replies, stories or summaries: single kinds of damage make a text longer or shorter."""
    groups: dict[str, dict[bool, list[Pair]]] = defaultdict(lambda: {True: [], False: []})
    result = []
    for one in pairs:
        first = one.kind.split()[0]
        longer = len(one.good.split()) - len(one.bad.split())
        if longer:
            groups[first if first in ("task", "reply", "story", "summary") else one.kind][longer > 0].append(one)
        else:
            result.append(one)
    for sides in groups.values():
        few = min(len(side) for side in sides.values())
        for side in sides.values():
            most = int(few * _LONGER / (1 - _LONGER)) if few > 50 else len(side)
            result += data.draw(side, max(most, 50), rng)
    return rng.sample(result, len(result))


def as_good_bad(one: Pair, split: str, rng: random.Random) -> GoodBad:
    """Write a pair as `metrist train preference` reads it, with its instruction in words."""
    label = next((name for name in ("story", "summary", "reply", "answer") if one.kind.startswith(name)), "output")
    good, bad = ((*one.context, (label, text)) for text in (one.good, one.bad))
    known = criteria.known(one.criterion)
    instruction = word_instruction(one.criterion, rng)
    criterion = one.criterion if known else one.kind
    return GoodBad(
        criterion=criterion, good=good, bad=bad, instruction=instruction, split=split, certainty=round(one.certainty, 3)
    )


def main() -> None:
    arguments = data.read_arguments(__doc__, "out", model=("small", "english"), written=Path, scale=1.0)
    rng = random.Random(15)
    splits = build(arguments.model, Written(arguments.written), rng, arguments.scale)
    pairs = [as_good_bad(one, side, rng) for side, own in splits.items() for one in own]
    write_good_bad(arguments.out, pairs)
    counts = Counter(one.kind for one in splits["train"])
    print(f"{len(pairs):,} pairs, for training {dict(counts.most_common())}")


if __name__ == "__main__":
    main()
