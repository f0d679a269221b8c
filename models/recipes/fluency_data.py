"""Build the training and development data of the fluency head.

    python fluency_data.py OUT.json.xz --news news.json --tasks tasks.jsonl

Writes {"train": {...}, "dev": {...}}, each with
    texts: [text, label, weight, set]     label 1 is flawless English, 0 is not English
    pairs: [better, worse, set]
    tags:  [text, [[start, end], ...], set]   characters that a corrector would touch; [] for a good sentence
Sets whose name ends in `*` are in dev only: no row of their family is trained on.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import lzma
import math
import os
import random
import re
import sysconfig
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from metrist.data.faults.fluency import damage
from metrist.data.faults.sentence import Lexicon, build_lexicon

DATA = Path(os.environ.get("METRIST_TEST_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")
Row = dict[str, Any]
_SENTENCE = re.compile(r"(?<=[.!?])[\"'”’]?\s+(?=[\"'“‘]?[A-Z0-9])")
#: Fluency-type categories of the biomedical MQM annotations. Punctuation is mostly typography there, and spelling
#: mostly capitals and spacing, which an uncased vocabulary cannot see.
_BIO = frozenset(
    {"Linguistic_conventions/Grammar", "Style/Non_fluent", "Unintelligible/", "Linguistic_conventions/Register"}
)
_PENALTY = {"neutral": 0.05, "minor": 0.35, "major": 0.9, "critical": 1.5}
_TERMS = (
    """
2-(4-isobutylphenyl)propanoic acid|c.2573G>A|HbA1c|pembrolizumab|interleukin-6|CYP2D6|N-acetylcysteine
CRISPR-Cas9|5-hydroxytryptamine|TP53 R175H|0.9% NaCl|tetrahydrofuran|Staphylococcus epidermidis
SNOMED CT 44054006|18 U.S.C. § 1030(a)(2)|section 12(3)(b)|Regulation (EU) 2016/679|Donoghue v Stevenson
estoppel|force majeure|mens rea|amicus curiae|max_batch_size|torch.nn.Linear|getElementById()|utf8mb4|/etc/hosts
--dry-run|HTTP 404|x86_64|O(n log n)|ISO 8601|RFC 2616|0x7ffeefbff|kubectl|NullPointerException|SELECT COUNT(*)
Szczepański|Nguyễn|Wołodźko|Ouagadougou|Thiruvananthapuram|Llanfairpwll|Kuipers-van der Meer|M. Ødegaard
1,204.75 kWh|3.2 × 10^-5|−40 °C|€ 12.4 bn|14:05 UTC|Form 10-K|EBITDA|ISIN DE0007164600|quasi-isomorphism
Hausdorff space|Schrödinger|eigenvalue|Bose-Einstein condensate|ribonucleoprotein|methylphenidate
""".strip()
    .replace("\n", "|")
    .split("|")
)


def read_rows(name: str) -> list[Row]:
    with lzma.open(DATA / f"{name}.jsonl.xz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def is_dev(key: str, percent: int = 6) -> bool:
    """Decide by a hash of the item, so that all outputs of an item stay on one side."""
    return hashlib.md5(key.encode()).digest()[0] * 100 // 256 < percent


def normalise(text: str) -> str:
    return re.sub(r"\W+", " ", text.lower()).strip()


class Collection:
    """Rows of both splits; texts of judged sets are left out, equal rows are kept once."""

    def __init__(self, banned: set[str]) -> None:
        self.banned = banned
        self.splits: dict[str, dict[str, list[list[Any]]]] = {
            split: {"texts": [], "pairs": [], "tags": []} for split in ("train", "dev")
        }
        self.known: set[tuple[str, str, str]] = set()
        self.overlaps: Counter[str] = Counter()

    def _accept(self, kind: str, name: str, *texts: str) -> bool:
        if any(normalise(text) in self.banned for text in texts):
            self.overlaps[name] += 1
            return False
        key = (kind, name, "\0".join(texts))
        if key in self.known or not all(text.strip() for text in texts):
            return False
        self.known.add(key)
        return True

    def add_text(self, dev: bool, text: str, label: float, weight: float, name: str) -> None:
        if self._accept("texts", name, text):
            self.splits["dev" if dev else "train"]["texts"].append(
                [text, round(min(1.0, max(0.0, label)), 3), weight, name]
            )

    def add_pair(self, dev: bool, better: str, worse: str, name: str) -> None:
        if normalise(better) != normalise(worse) and self._accept("pairs", name, better, worse):
            self.splits["dev" if dev else "train"]["pairs"].append([better, worse, name])

    def add_tags(self, dev: bool, text: str, spans: list[list[int]], name: str) -> None:
        if self._accept("tags", name, text):
            self.splits["dev" if dev else "train"]["tags"].append([text, spans, name])


def ban_judged_texts() -> set[str]:
    """Return the normalised texts of the judged and reserved sets, to be compared and never read otherwise."""
    banned = {normalise(row["output"]) for row in read_rows("lau-acceptability")}
    for row in read_rows("realec-dev"):
        if int(row["item"]) % 2 == 0:
            banned.add(normalise(row["output"]))
    for name in ("wmt22.zh-en", "wmt23.en-de"):
        for row in read_rows(name):
            banned.update(normalise(text) for text in (row["source"], row["output"], *row.get("references", ())))
    for name in ("openmeva-roc", "summeval", "newsroom", "topical-chat-usr", "qags-cnn", "qags-xsum", "mlqe-pe.et-en"):
        banned.update(normalise(row["output"]) for row in read_rows(name))
    return banned - {""}


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


def split_sentences(text: str) -> list[str]:
    return [sentence.strip() for part in text.split("\n") for sentence in _SENTENCE.split(part)]


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
                    for sentence in split_sentences(re.sub(r"\s+", " ", paragraph)):
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
                sentences.update(filter(is_sentence, split_sentences(re.sub(r"\s+", " ", paragraph).strip())))
    return sorted(sentences)


def read_good_sentences(news: Path, tasks: Path, rng: random.Random) -> dict[str, list[str]]:
    good: dict[str, list[str]] = {}
    articles = [pair[0] for pair in json.loads(news.read_text(encoding="utf-8"))]
    rng.shuffle(articles)
    good["news"] = [sentence for article in articles for sentence in split_sentences(article) if is_sentence(sentence)]
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
    answers = []
    with tasks.open(encoding="utf-8") as file:
        for line in file:
            answers += [
                message["content"] for message in json.loads(line)["messages"] if message["role"] == "assistant"
            ]
    good["answers"] = [sentence for answer in answers for sentence in split_sentences(answer) if is_sentence(sentence)]
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
    return text[: place.start()] + rng.choice(_TERMS) + text[place.end() :]


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


def add_made(data: Collection, good: dict[str, list[str]], lexicon: Lexicon, rng: random.Random) -> None:
    for name, (faulty, more, weight) in _AMOUNTS.items():
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
            text, label, names = made.text, made.remains, made.names
            spans = [list(span) for span in made.spans]
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


def iterate_counts(split: dict[str, list[list[Any]]]) -> Iterator[str]:
    for kind, rows in split.items():
        yield f"  {kind} {len(rows)}: {dict(Counter(row[-1] for row in rows).most_common())}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--news", type=Path, required=True, help="[[article, summary], ...] as JSON")
    parser.add_argument("--tasks", type=Path, required=True, help="instructlab's train_all_pruned_SDG.jsonl")
    parser.add_argument("--seed", type=int, default=15)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    data = Collection(ban_judged_texts())
    add_acceptability(data)
    add_corrections(data)
    add_learners(data)
    add_translations(data, rng)
    add_biomedical(data)
    add_data_to_text(data)
    good = read_good_sentences(options.news, options.tasks, rng)
    print({name: len(sentences) for name, sentences in good.items()})
    vocabulary = [sentence for sentences in good.values() for sentence in sentences[:60000]]
    add_made(data, good, build_lexicon(vocabulary, foreign_words(rng)), rng)
    for split in data.splits.values():
        for rows in split.values():
            rng.shuffle(rows)
    with lzma.open(options.out, "wt", encoding="utf-8", preset=6) as file:
        json.dump(data.splits, file, ensure_ascii=False)
    print("left out, equal to a judged text:", dict(data.overlaps))
    for name, split in data.splits.items():
        print(name)
        print("\n".join(iterate_counts(split)))


if __name__ == "__main__":
    main()
