"""Build the training pairs of the likelihood model: conditions with good targets, and with worse ones if there are any.

The sources are files whose licence allows shipped weights, without test families, development sets, and articles of
CNN/DailyMail (multi-summeval), whose texts the test sets share. Rows are {"condition", "good", "bad"}; `bad` is
optional.
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

from agreement import is_held_out, mean_rating, rows

Pair = dict[str, str]
_SENTENCE = re.compile(r"(?<=[.!?])\s+")
_NAME_OR_NUMBER = re.compile(r"\b(?:\d[\d,.]*\d|\d|(?<!^)(?<![.!?] )[A-Z][a-z]+)\b")
#: The difference in MQM points above which one of two outputs counts as preferred.
_CLEARLY = 3.0


def translations(rng: random.Random) -> Iterator[Pair]:
    """Yield English references with good translations, in both directions, and with clearly worse ones."""
    by_item: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows("wmt22.zh-en"):
        if not is_held_out(row["item"]):
            by_item[row["item"]].append(row)
    for group in by_item.values():
        good = [row for row in group if mean_rating(row, "mqm") >= -1]
        bad = [row for row in group if mean_rating(row, "mqm") <= -1 - _CLEARLY]
        for row in rng.sample(good, min(4, len(good))):
            reference = row["references"][0]
            yield {"condition": reference, "good": row["output"]}
            yield {"condition": row["output"], "good": reference}
            if bad:
                yield {"condition": reference, "good": row["output"], "bad": rng.choice(bad)["output"]}


def ranked_translations(rng: random.Random) -> Iterator[Pair]:
    """Yield pairs of translations of which people preferred the first."""
    for name in ("lt-en", "gu-en", "kk-en"):
        data = rows(f"wmt19-darr.{name}")
        for row in rng.sample(data, 4000):
            better, worse = row["outputs"]
            yield {"condition": row["references"][0], "good": better, "bad": worse}


def preferences() -> Iterator[Pair]:
    """Yield answers to instructions of which people preferred one."""
    for row in rows("pandalm"):
        votes = [vote for vote in row["ratings"]["preference"] if vote]
        if votes and len(set(votes)) == 1:
            first, second = row["outputs"] if votes[0] == 1 else row["outputs"][::-1]
            if all(isinstance(output, str) and output.strip() for output in (first, second)):
                yield {"condition": row["source"], "good": first, "bad": second}


def documents() -> list[list[tuple[str, list[str]]]]:
    """Return texts of 6 to 20 consecutive sentences, each with its good translations, or itself if it has none."""
    result: list[list[tuple[str, list[str]]]] = []
    translated: dict[str, list[str]] = defaultdict(list)
    for row in rows("wmt22.zh-en"):
        if not is_held_out(row["item"]):
            translated.setdefault(row["references"][0], [])
            if mean_rating(row, "mqm") >= -1:
                translated[row["references"][0]].append(row["output"])
    streams = [[(reference, outputs or [reference]) for reference, outputs in translated.items()]]
    for name in ("wmt22.en-de", "wmt22.en-ru", "wmt23.en-de", "wmt-qe23-mqm.en-de", "wmt-qe23-mqm.en-ru"):
        streams.append([(source, [source]) for source in dict.fromkeys(row["source"] for row in rows(name))])
    rng = random.Random(1)
    for stream in streams:
        usable = [(text, outputs) for text, outputs in stream if 5 <= len(text.split()) <= 60]
        start = 0
        while start < len(usable) - 6:
            length = rng.randint(6, 20)
            result.append(usable[start : start + length])
            start += max(2, length // 3)
    return result


def summaries(rng: random.Random) -> Iterator[Pair]:
    """Yield long texts with two to four paraphrased sentences, mostly early ones, and damaged versions of these."""
    all_documents = documents()
    for document in all_documents:
        condition = " ".join(text for text, _ in document)
        for _ in range(5):
            weights = [1 / (place + 1) for place in range(len(document))]
            chosen = sorted(set(rng.choices(range(len(document)), weights, k=rng.randint(2, 4))))
            parts = [rng.choice(document[place][1]) for place in chosen]
            elsewhere = rng.choice(rng.choice(all_documents))[0]
            good = " ".join(parts)
            bad = rng.choice(DAMAGES)(parts, elsewhere, rng)
            yield {"condition": condition, "good": good, **({"bad": bad} if bad != good else {})}


def _insert_foreign_sentence(parts: list[str], elsewhere: str, rng: random.Random) -> str:
    changed = list(parts)
    changed[rng.randrange(len(parts))] = elsewhere
    return " ".join(changed)


def _change_names(parts: list[str], elsewhere: str, rng: random.Random) -> str:
    """Replace some names and numbers by those of another text."""
    others = _NAME_OR_NUMBER.findall(elsewhere) or ["London", "12"]
    text = " ".join(parts)
    return _NAME_OR_NUMBER.sub(lambda m: rng.choice(others) if rng.random() < 0.5 else m[0], text)


def _shuffle_phrases(parts: list[str], _elsewhere: str, rng: random.Random) -> str:
    """Shuffle the phrases."""
    phrases = re.split(r"(?<=[,;:.])\s+", " ".join(parts))
    rng.shuffle(phrases)
    return " ".join(phrases)


def _repeat(parts: list[str], _elsewhere: str, rng: random.Random) -> str:
    """Repeat a run of words two or three times."""
    words = " ".join(parts).split()
    first = rng.randrange(len(words))
    stretch = words[first : first + rng.randint(2, 12)]
    return " ".join(words[:first] + stretch * rng.randint(2, 3) + words[first + len(stretch) :])


def _drop_words(parts: list[str], _elsewhere: str, rng: random.Random) -> str:
    """Drop words and swap some neighbours."""
    words = [word for word in " ".join(parts).split() if rng.random() > 0.15]
    for place in range(len(words) - 1):
        if rng.random() < 0.1:
            words[place], words[place + 1] = words[place + 1], words[place]
    return " ".join(words) or parts[0]


def _cut_end(parts: list[str], _elsewhere: str, rng: random.Random) -> str:
    """Cut off the end."""
    words = " ".join(parts).split()
    return " ".join(words[: max(3, int(len(words) * rng.uniform(0.4, 0.9)))])


DAMAGES = (_insert_foreign_sentence, _change_names, _shuffle_phrases, _repeat, _drop_words, _cut_end)


def write(folder: Path, seed: int = 4) -> dict[str, int]:
    """Write all pairs, by kind; return their numbers."""
    rng = random.Random(seed)
    kinds = {
        "translations": [*translations(rng), *ranked_translations(rng)],
        "preferences": list(preferences()),
        "summaries": list(summaries(rng)),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for kind, pairs in kinds.items():
        with lzma.open(folder / f"{kind}.jsonl.xz", "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(pair, ensure_ascii=False) + "\n" for pair in pairs)
    return {kind: len(pairs) for kind, pairs in kinds.items()}
