"""What the likelihood model may learn from: good targets for conditions, and worse targets for the same conditions.

Only files whose licence allows weights that ship, none of a judged family, none of the development sets, and none
with articles of CNN/DailyMail (multi-summeval), whose texts the judged sets share. Rows are written as
{"condition", "good", "bad"}, `bad` missing where there is none.
"""

from __future__ import annotations

import json
import lzma
import random
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agreement import held_out, rated, rows

Pair = dict[str, str]
_SENTENCE = re.compile(r"(?<=[.!?])\s+")
_NAME_OR_NUMBER = re.compile(r"\b(?:\d[\d,.]*\d|\d|(?<!^)(?<![.!?] )[A-Z][a-z]+)\b")
#: Points of MQM between two outputs of an item from which people are taken to prefer one.
_CLEARLY = 3.0


def translations(rng: random.Random) -> Iterator[Pair]:
    """English references with good translations, both ways, and with clearly worse ones of the same sentence."""
    by_item: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows("wmt22.zh-en"):
        if not held_out(row["item"]):
            by_item[row["item"]].append(row)
    for group in by_item.values():
        good = [row for row in group if rated(row, "mqm") >= -1]
        bad = [row for row in group if rated(row, "mqm") <= -1 - _CLEARLY]
        for row in rng.sample(good, min(4, len(good))):
            reference = row["references"][0]
            yield {"condition": reference, "good": row["output"]}
            yield {"condition": row["output"], "good": reference}
            if bad:
                yield {"condition": reference, "good": row["output"], "bad": rng.choice(bad)["output"]}


def better_ones(rng: random.Random) -> Iterator[Pair]:
    """Pairs of translations of which people took the first."""
    for name in ("lt-en", "gu-en", "kk-en"):
        data = rows(f"wmt19-darr.{name}")
        for row in rng.sample(data, 4000):
            better, worse = row["outputs"]
            yield {"condition": row["references"][0], "good": better, "bad": worse}


def preferences() -> Iterator[Pair]:
    """Answers to instructions of which people preferred one."""
    for row in rows("pandalm"):
        votes = [vote for vote in row["ratings"]["preference"] if vote]
        if votes and len(set(votes)) == 1:
            first, second = row["outputs"] if votes[0] == 1 else row["outputs"][::-1]
            if all(isinstance(one, str) and one.strip() for one in (first, second)):
                yield {"condition": row["source"], "good": first, "bad": second}


def documents() -> list[list[tuple[str, list[str]]]]:
    """Texts of 6 to 20 sentences in a row, each sentence with good translations of it, or itself where it has none."""
    found: list[list[tuple[str, list[str]]]] = []
    translated: dict[str, list[str]] = defaultdict(list)
    for row in rows("wmt22.zh-en"):
        if not held_out(row["item"]):
            translated.setdefault(row["references"][0], [])
            if rated(row, "mqm") >= -1:
                translated[row["references"][0]].append(row["output"])
    streams = [[(reference, outputs or [reference]) for reference, outputs in translated.items()]]
    for name in ("wmt22.en-de", "wmt22.en-ru", "wmt23.en-de", "wmt-qe23-mqm.en-de", "wmt-qe23-mqm.en-ru"):
        streams.append([(source, [source]) for source in dict.fromkeys(row["source"] for row in rows(name))])
    rng = random.Random(1)
    for stream in streams:
        kept = [(text, outputs) for text, outputs in stream if 5 <= len(text.split()) <= 60]
        start = 0
        while start < len(kept) - 6:
            length = rng.randint(6, 20)
            found.append(kept[start : start + length])
            start += max(2, length // 3)
    return found


def summaries(rng: random.Random) -> Iterator[Pair]:
    """Long texts with two to four of their sentences retold, mostly early ones, and the same spoiled on purpose."""
    all_documents = documents()
    for document in all_documents:
        condition = " ".join(text for text, _ in document)
        for _ in range(5):
            weights = [1 / (place + 1) for place in range(len(document))]
            chosen = sorted(set(rng.choices(range(len(document)), weights, k=rng.randint(2, 4))))
            told = [rng.choice(document[place][1]) for place in chosen]
            elsewhere = rng.choice(rng.choice(all_documents))[0]
            good = " ".join(told)
            bad = rng.choice(SPOILERS)(told, elsewhere, rng)
            yield {"condition": condition, "good": good, **({"bad": bad} if bad != good else {})}


def _stranger(told: list[str], elsewhere: str, rng: random.Random) -> str:
    changed = list(told)
    changed[rng.randrange(len(told))] = elsewhere
    return " ".join(changed)


def _names(told: list[str], elsewhere: str, rng: random.Random) -> str:
    """Some names and numbers replaced by those of another text."""
    others = _NAME_OR_NUMBER.findall(elsewhere) or ["London", "12"]
    text = " ".join(told)
    return _NAME_OR_NUMBER.sub(lambda m: rng.choice(others) if rng.random() < 0.5 else m[0], text)


def _order(told: list[str], _elsewhere: str, rng: random.Random) -> str:
    """Phrases in another order."""
    phrases = re.split(r"(?<=[,;:.])\s+", " ".join(told))
    rng.shuffle(phrases)
    return " ".join(phrases)


def _again(told: list[str], _elsewhere: str, rng: random.Random) -> str:
    """A stretch of words twice or three times."""
    words = " ".join(told).split()
    first = rng.randrange(len(words))
    stretch = words[first : first + rng.randint(2, 12)]
    return " ".join(words[:first] + stretch * rng.randint(2, 3) + words[first + len(stretch) :])


def _gaps(told: list[str], _elsewhere: str, rng: random.Random) -> str:
    """Words left out, and some exchanged with their neighbours."""
    words = [word for word in " ".join(told).split() if rng.random() > 0.15]
    for place in range(len(words) - 1):
        if rng.random() < 0.1:
            words[place], words[place + 1] = words[place + 1], words[place]
    return " ".join(words) or told[0]


def _broken_off(told: list[str], _elsewhere: str, rng: random.Random) -> str:
    """The end missing."""
    words = " ".join(told).split()
    return " ".join(words[: max(3, int(len(words) * rng.uniform(0.4, 0.9)))])


SPOILERS = (_stranger, _names, _order, _again, _gaps, _broken_off)


def write(folder: Path, seed: int = 4) -> dict[str, int]:
    """All pairs, by kind, into the folder; their numbers."""
    rng = random.Random(seed)
    kinds = {
        "translations": [*translations(rng), *better_ones(rng)],
        "preferences": list(preferences()),
        "summaries": list(summaries(rng)),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for kind, found in kinds.items():
        with lzma.open(folder / f"{kind}.jsonl.xz", "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(pair, ensure_ascii=False) + "\n" for pair in found)
    return {kind: len(found) for kind, found in kinds.items()}
