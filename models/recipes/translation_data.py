"""Build the training and development data of translation_quality from human judgments of translations.

    python translation_data.py GROUPS.json.xz

Writes {"texts": [...], "groups": [...]}; a group is a source with its outputs:
    name, language, key, part    data set; language pair; place in it; train, dev or unseen
    source, references           numbers of texts
    outputs: text, value, raw, system, spans
                                 value: rating, standardised per rater and language pair; raw: the MQM score;
                                 spans: [start, end, 1 minor or 2 major] of errors, null where raters marked none or a
                                 place is unknown
    pairs                        [better, worse] outputs where people ranked pairs, value is null then

Sources whose hash falls into the dev share are in no training group, whatever data set they come from; a data set of
UNSEEN is not trained on at all. WMT23 and MLQE-PE et-en are judged: no text of theirs is here.
"""

from __future__ import annotations

import argparse
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
#: Languages that choices between trainings see as new ones.
UNSEEN = ("mlqe-pe.ro-en", "wmt19-darr.lt-en")
DEV_PERCENT = 12
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
#: Raters with fewer outputs share one scale.
LEAST_OF_RATER = 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--unseen", nargs="*", default=list(UNSEEN))
    arguments = parser.parse_args()
    collection = Collection(arguments.unseen)
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
    groups = collection.finish()
    with lzma.open(arguments.out, "wt", encoding="utf-8") as file:
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

    def __init__(self, unseen: Iterable[str]) -> None:
        self.unseen = set(unseen)
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
        if name in self.unseen:
            return "unseen"
        digest = hashlib.md5(source.strip().encode()).hexdigest()
        return "dev" if int(digest, 16) % 100 < DEV_PERCENT else "train"

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
                    "value": round(row["value"], 3),
                    "raw": row["raw"],
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
                        outputs.append({"text": number, "value": None, "raw": None, "system": system, "spans": None})
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
        """Return the groups without training groups whose source is in dev or unseen elsewhere."""
        held_out = {group["source"] for group in self.groups if group["part"] != "train"}
        return [group for group in self.groups if group["part"] != "train" or group["source"] not in held_out]


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


def make_output(row: Row, value: float, raw: float, references: Iterable[str], *, tagged: bool) -> Row:
    return {
        "source": row["source"],
        "output": row["output"],
        "references": list(references),
        "value": value,
        "raw": raw,
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
    items: dict[str, list[Row]] = defaultdict(list)
    for row, raw, value in zip(rows, points, values, strict=True):
        items[row["item"]].append(make_output(row, value, raw, row["references"], tagged=False))
    return items


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


if __name__ == "__main__":
    main()
