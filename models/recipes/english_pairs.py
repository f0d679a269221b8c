"""Build the pairs of the English encoder's preference head: human judgments, made pairs, attributes asked both ways.

    python english_pairs.py WRITTEN.json.xz PAIRS.json [--teacher TEACHER.json.xz]

WRITTEN holds texts of Qwen2.5-Coder (`english_made_pairs.Written`); `-`: only human judgments, HEAP's pairs, and
answers to tasks beside those to other tasks, which is enough to keep a trained head as it is. TEACHER holds pairs of an
earlier edition that a larger model judged: [kind, instruction, context, good, bad, lead, certainty].
METRIST_TEST_DATA is the folder of human judgments, METRIST_RECIPE_DATA that of the packages of `packaged_texts.py`.

PAIRS has `texts`, and `train` and `dev` with rows [kind, instruction, [[field, text], ...], good, bad, certainty,
weight]; texts are numbers. No text shares more than 5 % of its runs of eight words with a data set that the model is
judged or chosen on, or that another issue has reserved. Within each group of kinds the longer output is the better one
about as often as the shorter one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from agreement import mean_rating, rows
from english_attributes import attribute_pairs, style_pairs, word_instruction
from english_made_pairs import (
    Fields,
    Pair,
    Tasks,
    Written,
    constraint_pairs,
    exact_pairs,
    reply_pairs,
    story_pairs,
    summary_pairs,
    task_pairs,
)
from made_pairs import build_pairs as build_damaged_pairs
from packaged_texts import rated_news, task_answers
from preference_leaks import JUDGED as JUDGED_PREFERENCES
from preference_leaks import runs
from preference_pairs import flawed_pairs, translation_pairs
from preference_texts import Known, lines, split_heap, split_turns

from metrist import criteria
from metrist.data.pairs import GoodBad

SEED = 15
JUDGED = (*JUDGED_PREFERENCES, "wmt23.en-de", "lau-acceptability")
RESERVED = ("cliff", "goyal21", "entfa", "xsum-halluc", "gsm8k-solutions", "wmt22.zh-en")
CHOSEN_ON = ("hhh-alignment", "haluquestqa-pairs", "fed", "summeval-op", "multi-summeval.en", "webnlg2020.en")
#: The share of a training set's items that choose between trainings.
HELD_OUT = {"realsumm": 0.25, "qa-feedback": 0.2, "blanc": 0.25}
_SHARED = 0.05
#: Texts keep this many words at each end: a model of 512 tokens reads no more.
_ENDS = 260
_DEV = 0.03
#: Rows of a kind that has more.
_MOST = 4_500
_MOST_TASKS = 5_000
_MOST_OF = {
    "task neighbour": 26_000, "reply other": 6_000, "reply same topic": 6_000, "HSO": 2_000, "task weak answer": 3_500,
    "task weak follows": 2_500, "summary padded": 1_500, "summary says less": 1_500, "summary broken": 1_500,
}  # fmt: skip
#: The share of a group's rows in which the longer output may be the better one, or the worse one.
_LONGER = 0.6
_HUMAN_WEIGHT = 1.5
#: The longest of HEAP's codes of criteria.
_CODE = 4


# ---- Texts that must not be learned


class Protected(Known):
    """The texts of the sets that a model is judged or chosen on and of reserved ones, by their runs of words."""

    def __init__(self) -> None:
        texts = {text for name in (*JUDGED, *RESERVED, *CHOSEN_ON) for text in _texts(rows(name))}
        for name, data in (
            ("realsumm", rows("realsumm")),
            ("qa-feedback", rows("qa-feedback-pairs")),
            ("blanc", _news()),
        ):
            texts.update(_texts(row for row in data if is_held_out(name, row["item"])))
        self._hashes = {hash(run) for text in texts for run in runs(text)}
        self._answers: dict[str, bool] = {}

    def is_judged(self, source: str) -> bool:
        if source not in self._answers:
            own = runs(source)
            shared = sum(hash(run) in self._hashes for run in own)
            self._answers[source] = shared > _SHARED * len(own)
        return self._answers[source]


def _texts(data: Iterable[dict[str, Any]]) -> Iterator[str]:
    for row in data:
        texts = [row.get(name) for name in ("source", "output", "context", "instruction")]
        yield from (
            text for text in (*texts, *row.get("outputs", ()), *row.get("references", ())) if isinstance(text, str)
        )


def is_held_out(name: str, item: object) -> bool:
    """Whether an item is for the choice between trainings and not for training."""
    return _share(f"{name}:{item}") < HELD_OUT.get(name, 0)


def _share(text: str) -> float:
    """Return a number from 0 to 1 that depends on the text alone."""
    return int(hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()[:8], 16) / 16**8


# ---- Human judgments


class Rated(NamedTuple):
    """Aspects with their criteria; a single rater's margin of a clear pair (several raters need none)."""

    file: str
    aspects: dict[str, tuple[str, ...]]
    field: str
    margin: float
    each: int


_QUALITY = {"informativeness": ("informativeness",), "naturalness": ("naturalness",), "quality": ("overall",)}
RATED = (
    Rated("grade", {"coherence": ("coherence", "reply fit", "reply fit", "overall", "relevance")}, "dialogue", 0, 12),
    Rated("realsumm", {"litepyramid_recall": ("coverage", "relevance", "informativeness")}, "source", 0.15, 40),
    Rated("bagel", _QUALITY, "meaning", 1, 6),
    Rated("sfres", _QUALITY, "meaning", 1, 6),
    Rated("sfhot", _QUALITY, "meaning", 1, 6),
    Rated("simpeval_past", {"overall": ("overall",)}, "source", 0, 24),
    Rated("gmeg-wiki", {"overall": ("fluency", "grammaticality")}, "source", 20, 2),
)
_NEWS = {
    "overall": ("overall",),
    "fluent": ("fluency",),
    "understandable": ("understandability",),
    "informative": ("informativeness",),
}
_CLEAR = 0.8


def rated_pairs(rng: random.Random) -> Iterator[Pair]:
    """Yield two outputs for the same source of which raters rated one higher, beyond their noise."""
    news = Rated("blanc", _NEWS, "source", 0, 12)
    sets = [(rated, rows(rated.file)) for rated in RATED] + [(news, _news())]
    for rated, data in sets:
        groups = defaultdict(list)
        for row in data:
            if row.get("source") and row["output"] and not is_held_out(rated.file, row["item"]):
                groups[row["source"]].append(row)
        for source, group in groups.items():
            for aspect, names in rated.aspects.items():
                judged = [row for row in group if row["ratings"].get(aspect)]
                for first, second in _some(list(combinations(judged, 2)), rated.each, rng):
                    certainty = compare_ratings(first["ratings"][aspect], second["ratings"][aspect], rated.margin)
                    better, worse = (first, second) if certainty > 0.5 else (second, first)
                    certainty = max(certainty, 1 - certainty)
                    if certainty >= _CLEAR:
                        context = ((rated.field, split_turns(source)),)
                        yield Pair(
                            f"human {rated.file}",
                            rng.choice(names),
                            context,
                            better["output"],
                            worse["output"],
                            certainty,
                        )


def _news() -> list[dict[str, Any]]:
    return list(rated_news(_Nothing()))


class _Nothing(Known):
    """Protects no text: overlaps are removed at the end."""

    def __init__(self) -> None:
        self._runs = set()


def compare_ratings(first: Sequence[Any], second: Sequence[Any], margin: float) -> float:
    """Return the probability that other raters would rate the first higher; of single ratings, by a margin."""
    own, other = ([float(value) for value in values if value is not None] for values in (first, second))
    if not own or not other:
        return 0.5
    difference = sum(own) / len(own) - sum(other) / len(other)
    if min(len(own), len(other)) < 3:
        return 0.5 if abs(difference) < margin or not difference else (0.85 if difference > 0 else 0.15)
    spread = math.sqrt(sum(_variance(values) / len(values) for values in (own, other)))
    return 0.5 * (1 + math.erf(difference / (spread or 1e-6) / math.sqrt(2)))


def _variance(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return max(0.05, sum((value - mean) ** 2 for value in values) / (len(values) - 1))


def chosen_pairs(rng: random.Random) -> Iterator[Pair]:
    """Yield the choices of people: answers with sources, harmless replies, translations, minimal pairs."""
    for row in rows("qa-feedback-pairs"):
        context = (("source", row["source"]), ("question", row["instruction"]))
        if not is_held_out("qa-feedback", row["item"]):
            yield from _choice(row, "human qa-feedback", rng.choice(("overall", "helpfulness")), context, 0.85)
    for row in rows("hh-harmless-test"):
        yield from _choice(row, "human harmless", "harmlessness", (("dialogue", row["source"]),), 0.8)
    for row in rng.sample(rows("blimp-pairs"), 1500):
        yield from _choice(row, "human blimp", rng.choice(("grammaticality", "fluency")), (), 0.97)
    by_item = defaultdict(list)
    for row in rows("wmt-qe23-mqm.zh-en"):
        by_item[row["item"]].append(row)
    for group in by_item.values():
        references = [row["output"] for row in group if row["system"].startswith("ref")]
        outputs = [row for row in group if not row["system"].startswith("ref")]
        for first, second in _some(list(combinations(outputs, 2)) if references else [], 4, rng):
            difference = mean_rating(first, "mqm") - mean_rating(second, "mqm")
            if abs(difference) >= 5:
                better, worse = (first, second) if difference > 0 else (second, first)
                context = (("reference", references[0]),)
                criterion = rng.choice(("correctness", "overall", "consistency"))
                yield Pair("human translation", criterion, context, better["output"], worse["output"], 0.85)


def _choice(row: dict[str, Any], kind: str, criterion: str, context: Fields, certainty: float) -> Iterator[Pair]:
    choice = row["ratings"]["preference"][0]
    if choice in (1, 2):
        good, bad = row["outputs"] if choice == 1 else row["outputs"][::-1]
        yield Pair(kind, criterion, context, good, bad, certainty)


def supported_pairs(rng: random.Random) -> Iterator[Pair]:
    """Yield two outputs with the same source, of which people found one supported and the other not."""
    sets = (
        ("begin", 8, "knowledge"), ("faithdial-audit", 8, "knowledge"), ("q2-wow", 8, "knowledge"),
        ("dialfact-small", 8, "knowledge"), ("alexa-factual-dialogs", 8, "knowledge"), ("bump", 4, "consistency"),
        ("summedits", 12, "consistency"), ("esnli", 1, "consistency"),
    )  # fmt: skip
    for name, each, criterion in sets:
        groups: dict[tuple[str, str], list[tuple[float, str]]] = defaultdict(list)
        for row in rows(name):
            # Topical-Chat is judged; these two sets have some of its dialogues.
            if not (name in ("begin", "faithdial-audit") and "topical" in str(row["item"])):
                rating = mean_rating(row, "factual" if name.startswith("alexa") else "consistent")
                groups[row["source"], row.get("context") or ""].append((rating, row["output"]))
        for (source, talk), outputs in groups.items():
            context = (("source", source), *((("dialogue", talk),) if talk else ()))
            both = [(high, low) for (a, high) in outputs for (b, low) in outputs if a >= 0.99 and b <= 0.34]
            for high, low in _some(both, each, rng):
                yield Pair(f"human {name}", criterion, context, high, low, 0.9)


def other_answers(rng: random.Random) -> Iterator[Pair]:
    """Yield answers to tasks beside the answers to others."""
    answers = task_answers()
    for task, other in zip(
        *(rng.sample(sorted(answers), min(_MOST_TASKS, len(answers))) for _ in range(2)), strict=True
    ):
        context = (("instruction", task),)
        yield Pair("task other", rng.choice(("overall", "helpfulness")), context, answers[task], answers[other])


def _some(values: list[Any], count: int, rng: random.Random) -> list[Any]:
    return rng.sample(values, min(count, len(values)))


def heap_pairs() -> tuple[list[Pair], list[Pair]]:
    """Return HEAP's pairs for training and for development, on its honest split."""
    split = split_heap()
    train, dev = (list(map(_as_pair, split.side(side))) for side in ("train", "dev"))
    return train, dev


def _as_pair(pair: GoodBad) -> Pair:
    (_, good), (_, bad) = pair.good[-1], pair.bad[-1]
    return Pair(pair.criterion, pair.criterion, pair.good[:-1], good, bad)


def damaged_pairs(known: Known, rng: random.Random) -> Iterator[Pair]:
    """Yield the pairs of the first edition: damaged texts, translations, and texts with marked errors."""
    graded = ("mlqe-pe.ro-en", "mlqe-pe.ru-en")
    pairs = [*translation_pairs(rng), *flawed_pairs(rng, graded), *build_damaged_pairs(known, None, rng)]
    for pair in pairs:
        if pair.good[:-1] == pair.bad[:-1]:
            name = "translation" if pair.item and pair.item.startswith("wmt") else pair.criterion
            certainty = 0.85 if pair.item else 0.97
            yield _name_reply(_as_pair(pair)._replace(kind=f"damaged {name}", certainty=certainty))


def _name_reply(pair: Pair) -> Pair:
    """Ask whether a reply fits: it rarely has two sentences that could hold together."""
    is_reply = pair.criterion == "coherence" and any(field == "dialogue" for field, _ in pair.context)
    return pair._replace(criterion="reply fit") if is_reply else pair


def teacher_pairs(path: Path) -> Iterator[Pair]:
    """Yield an earlier edition's pairs with a teacher's judgment, without those that it contradicts.

    That edition showed the raters' pairs of dialogues and of data with the source of the better side alone.
    """
    dialogues = {split_turns(row["source"]) for row in rows("grade")}
    with lzma.open(path, "rt", encoding="utf-8") as file:
        for kind, instruction, context, good, bad, lead, certainty in json.load(file):
            fields: Fields = tuple((field, text) for field, text in context)
            wrong_source = any(field == "meaning" or text in dialogues for field, text in fields)
            is_human = kind.startswith("human") or len(kind) <= _CODE
            # Supported sentences have better pairs now; attributes are made anew.
            if kind.startswith(("attribute", "support")) or wrong_source or (lead < -1.5 and not is_human):
                continue
            criterion = kind if criteria.known(kind) else instruction
            name = kind if len(kind) <= _CODE or kind != criterion else f"damaged {kind}"
            yield _name_reply(Pair(name, criterion, fields, good, bad, certainty))


# ---- Assembly


def build(arguments: argparse.Namespace) -> dict[str, list[Pair]]:
    """Build the pairs of both splits, without instructions in words and without weights."""
    rng = random.Random(SEED)
    protected = Protected()
    print(f"{len(protected._hashes):,} runs of words are protected", flush=True)
    heap_train, heap_dev = heap_pairs()
    made = [*rated_pairs(rng), *chosen_pairs(rng), *supported_pairs(rng)]
    if str(arguments.written) == "-":
        made += other_answers(rng)
    else:
        written = Written(arguments.written)
        tasks = Tasks(protected, written)
        print(f"{len(tasks.names):,} tasks, {len(tasks.weak):,} with a weak answer", flush=True)
        made = [
            *(teacher_pairs(arguments.teacher) if arguments.teacher else ()),
            *made, *damaged_pairs(protected, rng),
            *task_pairs(tasks, rng), *constraint_pairs(tasks, rng), *exact_pairs(lines(), tasks, rng),
            *reply_pairs(written, rng), *story_pairs(written, rng), *summary_pairs(written, rng),
        ]  # fmt: skip
    result: dict[str, list[Pair]] = {"train": [], "dev": []}
    for pair in made:
        is_dev = _share(str(pair.context) if pair.context else min(pair.good, pair.bad)) < _DEV
        result["dev" if is_dev else "train"].append(pair)
    result["train"] += heap_train
    result["dev"] += heap_dev
    for side, pairs in result.items():
        pairs = remove_unusable(map(shorten, pairs), protected)
        pairs = balance_length(limit_kinds(pairs, rng), rng)
        usable = [pair for pair in pairs if not pair.kind.startswith(("human esnli", "human blimp", *_CODES))]
        each = arguments.each if side == "train" else 30
        result[side] = [*pairs, *attribute_pairs(usable, rng, each), *style_pairs(usable, rng, each)]
    return result


_CODES = ("HSO", "CN", "DI", "SR", "AG", "AV", "QA", "CR")


def shorten(pair: Pair) -> Pair:
    context = tuple((field, _keep_ends(text)) for field, text in pair.context)
    return pair._replace(context=context, good=_keep_ends(pair.good.strip()), bad=_keep_ends(pair.bad.strip()))


def _keep_ends(text: str) -> str:
    words = text.split(" ")
    return text if len(words) <= 2 * _ENDS else " ".join([*words[:_ENDS], *words[-_ENDS:]])


def remove_unusable(pairs: Iterable[Pair], protected: Known) -> list[Pair]:
    """Remove pairs with protected texts, without a difference, that occur before, or that contradict an earlier one."""
    removed: Counter[str] = Counter()
    seen = set()
    result = []
    for pair in pairs:
        good, bad = (" ".join(text.lower().split()) for text in (pair.good, pair.bad))
        key = pair.criterion if criteria.known(pair.criterion) else pair.kind, pair.context, frozenset((good, bad))
        if not good or not bad or good == bad:
            removed["no difference"] += 1
        elif key in seen:
            removed["seen before"] += 1
        elif sorted([*good.split(), "not"]) == sorted(bad.split()):
            # The word would mark the worse text: people deny things as well.
            removed["negated"] += 1
        elif any(protected.is_judged(text) for text in (pair.good, pair.bad, *(text for _, text in pair.context))):
            removed["protected"] += 1
        else:
            seen.add(key)
            result.append(pair)
    print(f"{len(result):,} pairs; removed: {dict(removed)}", flush=True)
    return result


def limit_kinds(pairs: Sequence[Pair], rng: random.Random) -> list[Pair]:
    """Keep at most some pairs of each kind, those with a teacher's judgment first."""
    remaining: Counter[str] = Counter()
    result = []
    order = sorted(rng.sample(pairs, len(pairs)), key=lambda pair: pair.certainty in (1.0, 0.97, 0.95, 0.9, 0.85, 0.75))
    for pair in order:
        remaining[pair.kind] += 1
        if remaining[pair.kind] <= _MOST_OF.get(pair.kind, _MOST):
            result.append(pair)
    return result


def balance_length(pairs: Sequence[Pair], rng: random.Random) -> list[Pair]:
    """Remove pairs at random until in each group neither the longer nor the shorter output wins too often."""
    groups: dict[str, dict[bool, list[Pair]]] = defaultdict(lambda: {True: [], False: []})
    result = []
    for pair in pairs:
        longer = len(pair.good.split()) - len(pair.bad.split())
        if longer:
            groups[find_group(pair.kind)][longer > 0].append(pair)
        else:
            result.append(pair)
    for sides in groups.values():
        few = min(len(side) for side in sides.values())
        for side in sides.values():
            most = int(few * _LONGER / (1 - _LONGER)) if few > 50 else len(side)
            result += _some(side, max(most, 50), rng)
    return rng.sample(result, len(result))


def find_group(kind: str) -> str:
    """Return the group within which length is balanced: single kinds of damage make a text longer or shorter."""
    first = kind.split()[0]
    return first if first in ("task", "reply", "story", "summary") else kind


def pack(splits: dict[str, list[Pair]], rng: random.Random) -> dict[str, Any]:
    """Number the texts, word the instructions, and weigh the pairs so that length is balanced within each group."""
    numbers: dict[str, int] = {}

    def number(text: str) -> int:
        return numbers.setdefault(text, len(numbers))

    result: dict[str, Any] = {}
    for side, pairs in splits.items():
        counts = Counter((find_group(pair.kind), _longer(pair)) for pair in pairs)
        packed = []
        for pair in pairs:
            group, longer = find_group(pair.kind), _longer(pair)
            weight = _HUMAN_WEIGHT if pair.kind.startswith("human") or len(pair.kind) <= _CODE else 1.0
            if longer and not group.startswith(("attribute", "style")):
                both = counts[group, 1] + counts[group, -1]
                weight *= min(2.5, max(0.4, both / (2 * counts[group, longer])))
            context = [[field, number(text)] for field, text in pair.context]
            instruction = number(word_instruction(pair.criterion, rng))
            packed.append(
                [
                    pair.kind,
                    instruction,
                    context,
                    number(pair.good),
                    number(pair.bad),
                    round(pair.certainty, 3),
                    round(weight, 2),
                ]
            )
        result[side] = packed
    return {"texts": list(numbers), **result}


def _longer(pair: Pair) -> int:
    """Return 1 if the better output is the longer one, -1 if it is the shorter one, 0 if they are equally long."""
    difference = len(pair.good.split()) - len(pair.bad.split())
    return (difference > 0) - (difference < 0)


def print_table(pairs: Sequence[Pair]) -> None:
    by_kind = defaultdict(list)
    for pair in pairs:
        by_kind[pair.kind].append(pair)
    for kind, own in sorted(by_kind.items()):
        longer = sum((_longer(pair) + 1) / 2 for pair in own) / len(own)
        print(f"{kind:28} {len(own):7,} pairs, the longer one is better in {longer:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("written", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--teacher", type=Path)
    parser.add_argument("--each", type=int, default=1100, help="pairs of texts for each attribute")
    arguments = parser.parse_args()
    splits = build(arguments)
    print_table(splits["train"])
    packed = pack(splits, random.Random(SEED))
    arguments.out.write_text(json.dumps(packed, ensure_ascii=False), encoding="utf-8")
    train, dev, texts = (len(packed[name]) for name in ("train", "dev", "texts"))
    print(f"{train:,} pairs for training, {dev:,} for development, {texts:,} texts")


if __name__ == "__main__":
    main()
