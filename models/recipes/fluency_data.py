"""Build the rows of the fluency heads: how acceptable is a text, which of two, which words would a corrector touch?

    python fluency_data.py OUT.jsonl.xz [--scale 0.01]      the share of the sentences, for a trial

Rows have `split`, `set` and text, label (1: flawless English, 0: not English) and weight; or better and worse; or text
and spans: the characters that a corrector would touch, none in a good sentence. Sets whose name ends in `*` are in dev
only: no row of their family is trained on. Good sentences get faults (`metrist.data.faults.fluency`).
"""

from __future__ import annotations

import ast
import math
import random
import re
import sysconfig
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from made_pairs import WORDINGS
from packaged_texts import news, task_answers
from sets import JUDGED, RESERVED, JudgedTexts, draw, hash_share, list_sentences, read_arguments, read_rows, write_lines

from metrist.data.faults.fluency import damage
from metrist.data.faults.sentence import Lexicon, build_lexicon

#: Fluency-type categories of the biomedical MQM annotations. Punctuation is mostly typography there, and spelling
#: mostly capitals and spacing, which an uncased vocabulary cannot see.
_BIO = frozenset(
    {"Linguistic_conventions/Grammar", "Style/Non_fluent", "Unintelligible/", "Linguistic_conventions/Register"}
)
_PENALTY = {"neutral": 0.05, "minor": 0.35, "major": 0.9, "critical": 1.5}


def is_dev(key: str, percent: int = 6) -> bool:
    """Decide by a hash of the item, so that all outputs of an item stay on one side."""
    return 100 * hash_share(key) < percent


class Collection:
    """Rows of both splits; texts that overlap with judged sets are left out, equal rows are kept once."""

    def __init__(self, judged: JudgedTexts) -> None:
        self.judged = judged
        self.rows: dict[str, dict[str, Any]] = {}
        self.left_out: Counter[str] = Counter()

    def _add(self, dev: bool, name: str, texts: Sequence[str], row: dict[str, Any]) -> None:
        if not self.judged.free(*texts):
            self.left_out[name] += 1
        elif all(text.strip() for text in texts):
            self.rows.setdefault(
                repr((name, sorted(row), texts)), {"split": "dev" if dev else "train", "set": name, **row}
            )

    def add_text(self, dev: bool, text: str, label: float, weight: float, name: str) -> None:
        self._add(dev, name, [text], {"text": text, "label": round(min(1.0, max(0.0, label)), 3), "weight": weight})

    def add_pair(self, dev: bool, better: str, worse: str, name: str) -> None:
        if better.lower() != worse.lower():
            self._add(dev, name, [better, worse], {"better": better, "worse": worse})

    def add_tags(self, dev: bool, text: str, spans: Sequence[Sequence[int]], name: str) -> None:
        self._add(dev, name, [text], {"text": text, "spans": [list(span) for span in spans]})


def read_judged() -> JudgedTexts:
    """Return judged and reserved texts; the even half of realec-dev is reserved for error analysis."""
    reserved = (row["output"] for row in read_rows("realec-dev") if int(row["item"]) % 2 == 0)
    return JudgedTexts((*JUDGED, *RESERVED), reserved)


# ------------------------------------------------------------------ judgments by people


def add_acceptability(data: Collection) -> None:
    for row in read_rows("cola"):
        data.add_text(is_dev(row["output"], 8), row["output"], row["ratings"]["acceptable"][0], 1.0, "cola")
    for row in read_rows("blimp-pairs"):
        first, second = row["outputs"] if row["ratings"]["preference"][0] == 1 else row["outputs"][::-1]
        data.add_pair(is_dev(row["item"]), first, second, "blimp")


def add_corrections(data: Collection) -> None:
    """Corrected Wikipedia sentences with ratings 0 to 100: labels, and pairs within an item."""
    groups = defaultdict(list)
    for row in read_rows("gmeg-wiki"):
        groups[row["source"]].append((row["output"], row["ratings"]["overall"][0]))
    for source, outputs in groups.items():
        dev = is_dev(source)
        for text, rating in sorted(set(outputs)):
            data.add_text(dev, text, 1 / (1 + math.exp(-(rating - 70) / 9)), 0.5, "gmeg")
        ranked = sorted(set(outputs), key=lambda pair: -pair[1])
        for i, (better, high) in enumerate(ranked):
            for worse, low in ranked[i + 1 :]:
                if high - low >= 8:
                    data.add_pair(dev, better, worse, "gmeg")


def add_learners(data: Collection) -> None:
    """Essays of learners; only odd item numbers, the even half is reserved."""
    for row in read_rows("realec-dev"):
        if int(row["item"]) % 2 == 0:
            continue
        spans = merge_spans(
            [error["start"], error["end"]] for error in row.get("errors") or [] if error["start"] is not None
        )
        words = len(row["output"].split())
        dev = is_dev("realec" + row["item"], 20)
        label = 0.92 if not spans else max(0.05, 0.5 - 2.0 * len(spans) / max(words, 8))
        data.add_text(dev, row["output"], label, 1.0, "realec")
        data.add_tags(dev, row["output"], spans, "realec")


def merge_spans(spans: Iterable[list[int]]) -> list[list[int]]:
    merged: list[list[int]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        elif end > start:
            merged.append([start, end])
    return merged


def add_translations(data: Collection, rng: random.Random) -> None:
    for pair in ("ro-en", "ru-en"):  # et-en is judged by translation_quality
        rows = read_rows(f"mlqe-pe.{pair}")
        means = np.array([np.mean(row["ratings"]["da"]) for row in rows])
        places = means.argsort().argsort() / len(means)
        for row, mean, place in zip(rows, means, places, strict=True):
            dev = is_dev(row["source"], 5)
            data.add_text(dev, row["output"], 0.5 * mean / 100 + 0.48 * place, 0.5, "mlqe")
    for pair in ("gu-en", "kk-en", "lt-en"):
        rows = read_rows(f"wmt19-darr.{pair}")
        rng.shuffle(rows)
        used: Counter[str] = Counter()
        for row in rows:
            dev, (better, worse), reference = is_dev(row["source"], 5), row["outputs"], row["references"][0]
            if used[row["source"]] < 1:  # mostly about meaning, which a reader of the output alone cannot see
                data.add_pair(dev, better, worse, "wmt19")
                used[row["source"]] += 1
            for output in (better, worse):
                if used["ref" + row["source"]] < 6:
                    data.add_pair(dev, reference, output, "wmt19-reference")
                    used["ref" + row["source"]] += 1
            data.add_text(dev, reference, 0.93, 0.5, "wmt19-reference")


def add_biomedical(data: Collection) -> None:
    for pair in ("de-en", "es-en", "fr-en", "ru-en", "zh-en"):
        groups = defaultdict(list)
        for row in read_rows(f"bio-mqm.{pair}"):
            errors = [error for error in row.get("errors") or [] if error["category"] in _BIO]
            penalty = sum(_PENALTY.get(error["severity"], 0.35) for error in errors)
            penalty += sum(1.0 for error in errors if error["category"] == "Unintelligible/")
            dev = is_dev(row["item"].split(":")[0], 5)
            others = sum(1 for error in row.get("errors") or [] if error["category"] not in _BIO)
            data.add_text(dev, row["output"], 0.94 * math.exp(-penalty), 0.4 if not others else 0.25, "bio-mqm")
            groups[row["item"]].append((row["output"], penalty))
            if all(error["start"] is not None for error in errors) and (errors or not others):
                spans = merge_spans([error["start"], error["end"]] for error in errors)
                if sum(end - start for start, end in spans) < 0.6 * len(row["output"]) and (
                    spans or len(groups) % 3 == 0
                ):
                    data.add_tags(dev, row["output"], spans, "bio-mqm")
        for item, outputs in groups.items():
            ranked = sorted(set(outputs), key=lambda pair: pair[1])
            if len(ranked) > 1 and ranked[-1][1] - ranked[0][1] >= 0.6:
                data.add_pair(is_dev(item.split(":")[0], 5), ranked[0][0], ranked[-1][0], "bio-mqm")


def add_data_to_text(data: Collection) -> None:
    for name in ("sfhot", "sfres", "bagel"):
        for row in read_rows(name):
            label = (row["ratings"]["naturalness"][0] - 1) / 5
            data.add_text(is_dev(row["source"]), row["output"], 0.05 + 0.9 * label, 0.4, name)
    for row in read_rows("webnlg2020.en"):  # dev only
        data.add_text(True, row["output"], float(np.mean(row["ratings"]["Fluency"])) / 100, 1.0, "webnlg2020*")
    for row in read_rows("summeval-op"):
        data.add_text(True, row["output"], (float(np.mean(row["ratings"]["fl"])) - 1) / 4, 1.0, "summeval-op*")


# ------------------------------------------------------------------ good English and made faults


def is_sentence(text: str) -> bool:
    words = text.split()
    return (
        4 <= len(words) <= 45
        and text[0].isupper()
        and text[-1] in ".?!"
        and text.count('"') % 2 == 0
        and text.count("(") == text.count(")")
        and "..." not in text
        and "  " not in text
        and not re.search(
            r"https?:|[{}<>|\\]|\b[A-Z]{3,} [A-Z]{3,} [A-Z]{3,}|[^\x00-\x7f–—‘’“”éèüöäñçáíóú°€£§×−^ØńłźễH-z]", text
        )
        and sum(character.isalpha() for character in text) > 0.6 * len(text)
    )


def read_docstrings(rng: random.Random) -> list[str]:
    """Sentences of the docstrings of the standard library and numpy: identifiers in good prose."""
    root = Path(sysconfig.get_paths()["stdlib"])
    packages = Path(sysconfig.get_paths()["purelib"])
    paths = [
        *root.glob("*.py"),
        *root.glob("[a-s]*/*.py"),
        *packages.glob("numpy/**/*.py"),
        *packages.glob("scipy/[is]*/*.py"),
    ]
    sentences: set[str] = set()
    for path in sorted(paths):
        if "test" in str(path):
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError, ValueError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
                for paragraph in (ast.get_docstring(node) or "").split("\n\n"):
                    for sentence in list_sentences(re.sub(r"\s+", " ", paragraph)):
                        if is_sentence(sentence) and not re.search(r">>>|::|---| : ", sentence):
                            sentences.add(sentence.replace("``", "`"))
    chosen = sorted(sentences)
    rng.shuffle(chosen)
    return chosen


def read_licences() -> list[str]:
    """Sentences of licence texts in installed packages: legal English."""
    sentences: set[str] = set()
    for path in sorted(Path(sysconfig.get_paths()["purelib"]).glob("*.dist-info/**/*")):
        if re.match(r"(LICEN|COPYING|NOTICE)", path.name) and path.is_file() and path.stat().st_size < 200_000:
            for paragraph in re.split(r"\n\s*\n", path.read_text(encoding="utf-8", errors="ignore")):
                sentences.update(filter(is_sentence, list_sentences(re.sub(r"\s+", " ", paragraph).strip())))
    return sorted(sentences)


def read_good_sentences(rng: random.Random) -> dict[str, list[str]]:
    good: dict[str, list[str]] = {}
    articles = draw(sorted(news()), len(news()), rng)
    good["news"] = [sentence for article in articles for sentence in list_sentences(article) if is_sentence(sentence)]
    good["wiki"] = [row["source"] for name in ("en-de", "en-zh") for row in read_rows(f"mlqe-pe.{name}")]
    good["biomedical"] = [
        row["source"] for name in ("de", "es", "fr", "ru", "zh") for row in read_rows(f"bio-mqm.en-{name}")
    ]
    good["wmt"] = [
        row["source"]
        for name in ("en-de", "en-ru")
        for row in read_rows(f"wmt-qe23-mqm.{name}")
        if not row["item"].startswith(("2022", "generalMT2022"))
    ]
    good["answers"] = [sentence for answer in task_answers().values() for sentence in list_sentences(answer)]
    good["documentation"] = read_docstrings(rng)
    good["legal"] = read_licences()
    for name, sentences in good.items():
        unique = [sentence for sentence in dict.fromkeys(sentences) if is_sentence(sentence)]
        rng.shuffle(unique)
        good[name] = unique
    return good


def put_term(text: str, rng: random.Random) -> str:
    """Put a domain word in the place of a name or number, so that odd words alone are no fault."""
    places = list(re.finditer(r"(?<=[a-z] )(?:[A-Z][a-z]+(?: [A-Z][a-z]+)*|\d[\d,.]*\d)(?=[ ,.])", text))
    if not places:
        return text
    place = rng.choice(places)
    return text[: place.start()] + rng.choice(WORDINGS["made"]["terms"]) + text[place.end() :]


#: set -> (sentences that get faults, further good sentences, weight of the good ones)
_AMOUNTS = {
    "news": (24000, 8000, 0.8),
    "wiki": (11000, 3000, 0.8),
    "biomedical": (1700, 400, 0.8),
    "wmt": (3000, 800, 0.8),
    "answers": (8000, 3000, 0.8),
    "documentation": (3500, 2000, 0.6),
    "legal": (900, 600, 0.6),
}


def add_made(data: Collection, good: dict[str, list[str]], lexicon: Lexicon, rng: random.Random, scale: float) -> None:
    for name, (most, further, weight) in _AMOUNTS.items():
        faulty, more = round(most * scale), round(further * scale)
        sentences = good[name][: faulty + more]
        for i, original in enumerate(sentences):
            dev = is_dev(original, 3)
            sentence = put_term(original, rng) if rng.random() < 0.12 else original
            if sentence.endswith(".") and rng.random() < 0.1:  # a heading or list item ends without a stop
                sentence = sentence[:-1].rstrip()
            if i >= faulty or i % 3 == 0:
                data.add_text(dev, sentence, 0.96, weight, f"good-{name}")
                data.add_tags(dev, sentence, [], f"good-{name}")
            if i >= faulty:
                continue
            count = rng.choice((1, 1, 1, 1, 2, 2, 3))
            made = damage(sentence, count, rng, lexicon)
            if made is None:
                continue
            text, spans, label, names = made
            kind = f"made-{name}" if not dev else f"made-{names[0] if count == 1 else 'several'}"
            data.add_tags(dev, text, spans, kind)
            if i % 3 != 1:
                data.add_text(dev, text, label, 0.5, kind)
            if i % 2:
                data.add_pair(dev, sentence, text, kind)
            if count == 1 and i % 6 == 0:
                worse = damage(text, rng.choice((1, 2)), rng, lexicon)
                if worse is not None:
                    data.add_pair(dev, text, worse[0], "made-more")


def foreign_words(rng: random.Random) -> list[str]:
    """Words in Latin letters of other languages, from sources and outputs of translation sets."""
    words: Counter[str] = Counter()
    english = {word.lower() for row in read_rows("mlqe-pe.en-zh") for word in re.findall(r"[A-Za-z]+", row["source"])}
    for name, key in (
        ("mlqe-pe.ro-en", "source"),
        ("mlqe-pe.en-de", "output"),
        ("bio-mqm.en-es", "output"),
        ("bio-mqm.en-fr", "output"),
    ):
        for row in read_rows(name):
            words.update(re.findall(r"\b[^\W\d_]{4,}\b", row[key]))
    chosen = sorted(word for word, count in words.items() if count > 1 and word.lower() not in english)
    rng.shuffle(chosen)
    return chosen[:4000]


def main() -> None:
    arguments = read_arguments(__doc__, "out", scale=1.0)
    rng = random.Random(15)
    data = Collection(read_judged())
    good = read_good_sentences(rng)
    vocabulary = [sentence for sentences in good.values() for sentence in sentences[:60000]]
    add_made(data, good, build_lexicon(vocabulary, foreign_words(rng)), rng, arguments.scale)
    made = len(data.rows)
    add_acceptability(data)
    add_corrections(data)
    add_learners(data)
    add_translations(data, rng)
    add_biomedical(data)
    add_data_to_text(data)
    rows = list(data.rows.values())
    rows = rows[:made] + draw(rows[made:], round(arguments.scale * (len(rows) - made)), rng)
    rng.shuffle(rows)
    write_lines(arguments.out, rows)
    counts = Counter(row["set"] for row in rows)
    print(f"{len(rows):,} rows {dict(counts.most_common())}; overlap with judged sets: {dict(data.left_out)}")


if __name__ == "__main__":
    main()
