"""Turn the groups of translation_data.py into arrays, so that a training starts within seconds.

    python translation_pack.py BASE GROUPS.json.xz PACK

BASE is written by translation_pieces.py. PACK gets `pack.npz.xz`, which translation_train.py reads: the tokens of all
texts one after the other, and groups that name texts by number. What a training would otherwise do at each step is
done here once: tags are placed, outputs are compared with references (chrF), segments that follow each other in a
document are joined to paragraphs, and faults are made whose places are known.
"""

from __future__ import annotations

import argparse
import io
import json
import lzma
import math
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from metrist.metrics.base import Shard
from metrist.metrics.lexical.chrf import Chrf
from metrist.records import Record

Ids = NDArray[np.int32]
Tags = NDArray[np.int8]
Word = tuple[Ids, Tags]
UNKNOWN = 3
#: The most tokens of a text; longer ones are cut.
MAX_SIDE = 200
#: Tokens of a paragraph's source: with output and reference it still fits into a sequence.
MAX_PARAGRAPH = 150
PARTS = ("train", "hard", "dev")
#: Outputs with a lower standard score are not damaged: what is added would hardly make them worse.
LEAST_VALUE = -0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", type=Path)
    parser.add_argument("groups", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--most", type=int, help="groups per data set and part, for a trial")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with lzma.open(arguments.groups, "rt", encoding="utf-8") as file:
        data = json.load(file)
    groups = list(enumerate(data["groups"]))
    if arguments.most:
        counts: dict[tuple[str, str], int] = defaultdict(int)
        chosen = []
        for number, group in groups:
            counts[group["name"], group["part"]] += 1
            if counts[group["name"], group["part"]] <= arguments.most:
                chosen.append((number, group))
        groups = chosen
    packer = Packer(data["texts"], Tokenizer.from_file(str(arguments.base / "tokenizer.json")))
    packer.add_groups(groups)
    packer.join_groups()
    arrays: Any = packer.finish()
    check(arrays)
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 1 << 27, "lc": 0, "lp": 2, "pb": 2}]
    target = arguments.out / "pack.npz.xz"
    target.write_bytes(lzma.compress(stream.getvalue(), format=lzma.FORMAT_XZ, filters=filters))
    for name, array in arrays.items():
        print(name, array.shape, array.dtype)
    print(f"{stream.tell():,} bytes, {target.stat().st_size:,} compressed")


class Packer:
    """Collects texts, outputs and groups as lists; `finish` gives arrays."""

    def __init__(self, texts: Sequence[str], tokenizer: Tokenizer) -> None:
        self.texts, self.tokenizer = texts, tokenizer
        pieces = [tokenizer.id_to_token(number) or "" for number in range(tokenizer.get_vocab_size())]
        self.starts_word = np.array([piece.startswith("\u2581") for piece in pieces])
        self.has_digit = np.array([any(map(str.isdigit, piece)) for piece in pieces])
        self.digits = np.flatnonzero(self.has_digit & (np.arange(len(pieces)) > UNKNOWN))
        self.rng = random.Random(7)
        self.stored: list[Word] = []
        #: Texts that are several stored ones in a row.
        self.joins: list[list[int]] = []
        self.plain: dict[int, int] = {}
        self.groups: list[dict[str, Any]] = []
        self.names: list[str] = []

    # ---- Texts

    def store(self, ids: Ids, tags: Tags | None = None) -> int:
        tags = np.full(len(ids), -1, np.int8) if tags is None else tags
        self.stored.append((ids[:MAX_SIDE], tags[:MAX_SIDE]))
        return len(self.stored) - 1

    def store_text(self, number: int) -> int:
        """Return the place of a text without tags; equal ones are stored once."""
        if number not in self.plain:
            self.plain[number] = self.store(self.ids[number])
        return self.plain[number]

    def add_groups(self, groups: Sequence[tuple[int, dict[str, Any]]]) -> None:
        used = {
            text
            for _, group in groups
            for text in (group["source"], *group["references"], *(output["text"] for output in group["outputs"]))
        }
        order = sorted(used)
        self.ids: dict[int, Ids] = {}
        offsets: dict[int, Sequence[tuple[int, int]]] = {}
        for begin in range(0, len(order), 10_000):
            block = order[begin : begin + 10_000]
            encodings = self.tokenizer.encode_batch([self.texts[number] for number in block], add_special_tokens=False)
            for number, encoding in zip(block, encodings, strict=True):
                self.ids[number] = np.array(encoding.ids[:MAX_SIDE] or [UNKNOWN], np.int32)
                offsets[number] = encoding.offsets[:MAX_SIDE] or [(0, 0)]
        overlaps = self.compare([group for _, group in groups])
        others: dict[str, list[int]] = defaultdict(list)
        for _, group in groups:
            others[group["name"]].append(group["outputs"][0]["text"])
        for (number, group), own in zip(groups, overlaps, strict=True):
            self.add_group(number, group, own, others[group["name"]], offsets)

    def compare(self, groups: Sequence[dict[str, Any]]) -> list[list[float]]:
        """Return chrF of each output against the references other than itself, 0 to 1, or NaN without any."""
        records: list[Record] = []
        places: list[tuple[int, int]] = []
        results = [[math.nan] * len(group["outputs"]) for group in groups]
        for at, group in enumerate(groups):
            for place, output in enumerate(group["outputs"]):
                references = [self.texts[text] for text in group["references"] if text != output["text"]]
                if references and self.texts[output["text"]].strip():
                    text = self.texts[output["text"]]
                    records.append(Record(item=str(len(records)), system="", output=text, references=tuple(references)))
                    places.append((at, place))
        for (at, place), value in zip(places, Chrf().score(Shard(records)).values.tolist(), strict=True):
            results[at][place] = value / 100
        return results

    def add_group(
        self,
        number: int,
        group: dict[str, Any],
        overlaps: Sequence[float],
        others: Sequence[int],
        offsets: dict[int, Sequence[tuple[int, int]]],
    ) -> None:
        if group["name"] not in self.names:
            self.names.append(group["name"])
        references = list(group["references"])
        outputs = []
        for place, (output, overlap) in enumerate(zip(group["outputs"], overlaps, strict=True)):
            text = output["text"]
            tags = None
            if output["spans"] is not None:
                tags = place_tags(self.texts[text], offsets[text], output["spans"])
            outputs.append(
                {
                    "place": place,
                    "text": self.store_text(text) if tags is None else self.store(self.ids[text], tags),
                    "value": math.nan if output["value"] is None else output["value"],
                    "raw": math.nan if output["raw"] is None else output["raw"],
                    "teacher": math.nan if output["teacher"] is None else output["teacher"],
                    "overlap": overlap,
                    "same": references.index(text) if text in references else -1,
                    "parent": -1,
                    "human": "ref" in output["system"].lower(),
                    "system": output["system"],
                }
            )
            # Damaged outputs follow their parent's text, where they compress best.
        source = self.store_text(group["source"])
        if group["part"] != "dev":
            outputs += self.damage_some(outputs, source, others)
        document, _, position = group["key"].split("|")[0].rpartition(":")
        follows = group["name"].startswith(("wmt22", "bio-mqm", "wmt-qe23-mqm")) and position.isdigit()
        self.groups.append(
            {
                "number": number,
                "set": self.names.index(group["name"]),
                "part": PARTS.index(group["part"]),
                "seen": group["seen"],
                "joined": 0,
                "source": source,
                "references": [self.store_text(text) for text in references],
                "outputs": outputs,
                "pairs": group["pairs"] or [],
                "line": (group["name"], group["part"], document, int(position)) if follows else None,
            }
        )

    # ---- Paragraphs

    def join_groups(self) -> None:
        """Add paragraphs: each group with one to three that follow it in its document."""
        lines: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
        for group in self.groups:
            if group["line"] is not None:
                lines[group["line"][:3]].append(group)
        squashed: dict[int, list[float]] = defaultdict(list)
        for group in self.groups:
            if group["line"] is not None:
                raws = [output["raw"] for output in group["outputs"] if output["parent"] < 0]
                squashed[group["set"]] += [-math.log1p(max(0.0, -raw)) for raw in raws]
        scales = {name: (float(np.mean(own)), max(float(np.std(own)), 0.05)) for name, own in squashed.items()}
        for line in lines.values():
            line.sort(key=lambda group: group["line"][3])
            for start in range(len(line)):
                parts = line[start : start + self.rng.choice((2, 2, 3, 4))]
                if len(parts) > 1 and (joined := self.join(parts, scales[parts[0]["set"]])) is not None:
                    self.groups.append(joined)

    def join(self, parts: Sequence[dict[str, Any]], scale: tuple[float, float]) -> dict[str, Any] | None:
        # Human translations may be one of the references in one part, and another one in the next.
        by_system = [
            {output["system"]: output for output in part["outputs"] if output["parent"] < 0 and not output["human"]}
            for part in parts
        ]
        common = sorted(set.intersection(*map(set, by_system)))
        if len(common) < 3 or sum(len(self.stored[part["source"]][0]) for part in parts) > MAX_PARAGRAPH:
            return None
        outputs = []
        for place, system in enumerate(common):
            own = [outputs_of[system] for outputs_of in by_system]
            raw = sum(output["raw"] for output in own)
            outputs.append(
                {
                    "place": place,
                    "text": self.store_join([output["text"] for output in own]),
                    # Longer texts have more errors.
                    "value": (-math.log1p(max(0.0, -raw)) - scale[0] - 0.6 * math.log(len(parts))) / scale[1],
                    "raw": raw,
                    "teacher": sum(output["teacher"] for output in own) / len(own),
                    "overlap": sum(output["overlap"] for output in own) / len(own),
                    "same": -1,
                    "parent": -1,
                    "human": False,
                    "system": system,
                }
            )
        count = min(len(part["references"]) for part in parts)
        return {
            **parts[0],
            "seen": any(part["seen"] for part in parts),
            "joined": len(parts),
            "source": self.store_join([part["source"] for part in parts]),
            "references": [self.store_join([part["references"][at] for part in parts]) for at in range(count)],
            "outputs": outputs,
            "pairs": [],
            "line": None,
        }

    def store_join(self, texts: list[int]) -> int:
        """Return a negative number for a text that is made when the arrays are read."""
        self.joins.append(texts)
        return -len(self.joins)

    # ---- Faults

    def damage_some(
        self, outputs: Sequence[dict[str, Any]], source: int, others: Sequence[int]
    ) -> list[dict[str, Any]]:
        """Return damaged outputs. Several of one parent get worse and worse."""
        good = [at for at, output in enumerate(outputs) if not output["value"] < LEAST_VALUE]
        alone = len(outputs) == 1
        unrated = alone and math.isnan(outputs[0]["value"])
        if not good or (alone and not unrated and self.rng.random() < 0.4):
            return []
        made = []
        for parent in self.rng.sample(good, min(len(good), 1 if alone else 3)):
            at, (ids, tags) = parent, self.stored[outputs[parent]["text"]]
            clean = np.maximum(tags, 0) if tags.max() >= 0 else np.zeros(len(ids), np.int8)
            count = 3 if unrated else 2 if alone else 1
            for link in range(count):
                # What is another text already does not get worse.
                whole = link == count - 1
                for _ in range(5):
                    other = self.ids[self.rng.choice(others)]
                    result = self.damage(ids, clean, self.stored[source][0], other, whole=whole)
                    if result is not None and not np.array_equal(result[0], ids):
                        break
                else:
                    break
                ids, clean = result
                output = {**outputs[parent], "text": self.store(ids, clean), "parent": at, "same": -1}
                made.append(output | {"value": math.nan, "teacher": math.nan, "overlap": math.nan})
                at = len(outputs) + len(made) - 1
        return made

    def damage(self, ids: Ids, tags: Tags, source: Ids, other: Ids, *, whole: bool) -> tuple[Ids, Tags] | None:
        """Return the text with one to three faults, or a fault of the text as a whole, and tags that tell where; None
        if none was made."""
        rng = self.rng
        chance = rng.random() if whole else 1.0
        if chance < 0.05:  # Another text.
            return other, np.full(len(other), 2, np.int8)
        if chance < 0.08:  # Nothing translated.
            return source, np.full(len(source), 2, np.int8)
        words = self.split_words(ids, tags)
        if len(words) < 4:
            return None
        if chance < 0.14:  # The end is missing: the last word carries the tag.
            del words[max(1, round(len(words) * rng.uniform(0.3, 0.8))) :]
            words[-1] = words[-1][0], np.full(len(words[-1][0]), 2, np.int8)
            return join_words(words)
        if chance < 0.2:  # Something is added at the end.
            more = self.split_words(other, np.full(len(other), 2, np.int8))
            words += more[-max(2, round(len(more) * rng.uniform(0.2, 0.7))) :]
            return join_words(words)
        times = 1 if len(words) < 12 or rng.random() < 0.5 else rng.randint(1, 3)
        count = sum(self.damage_once(words, source, other) for _ in range(times))
        return join_words(words) if count else None

    def damage_once(self, words: list[Word], source: Ids, other: Ids) -> bool:
        rng, kind = self.rng, self.rng.random()
        at = rng.randrange(len(words))
        size = min(rng.choice((1, 1, 1, 2, 3)), len(words) - 1 - at, len(words) // 3) or 1
        if kind < 0.2:  # Words left out: the next one carries the tag.
            if at + size >= len(words):
                return False
            del words[at : at + size]
            words[at] = words[at][0], np.maximum(words[at][1], 2)
        elif kind < 0.3:  # Two words in each other's place.
            place = min(len(words) - 1, at + rng.randint(1, 4))
            if np.array_equal(words[at][0], words[place][0]):
                return False
            words[at], words[place] = tag_word(words[place][0], 1), tag_word(words[at][0], 1)
        elif kind < 0.45 or 0.55 <= kind < 0.85:  # A word of the source, or words of another output.
            foreign = self.split_words(*tag_word(source if kind < 0.45 else other, 2))
            start = rng.randrange(len(foreign))
            new = join_words(foreign[start : start + (1 if kind < 0.45 else size)])
            if np.array_equal(new[0], words[at][0]):
                return False
            added = kind >= 0.45 and rng.random() < 0.2
            words[at : at if added else at + size] = [new]
        elif kind < 0.55:  # Another number.
            places = [place for place, (word, _) in enumerate(words) if self.has_digit[word].any()]
            if not places:
                return False
            place = rng.choice(places)
            new_word = words[place][0].copy()
            new_word[np.flatnonzero(self.has_digit[new_word])[0]] = rng.choice(self.digits)
            words[place] = tag_word(new_word, 2)
        elif kind < 0.93:  # A word twice.
            words.insert(at, tag_word(words[at][0], 1))
        else:  # A word cut short.
            if len(words[at][0]) < 2:
                return False
            words[at] = tag_word(words[at][0][:-1], 1)
        return True

    def split_words(self, ids: Ids, tags: Tags) -> list[Word]:
        """Return the words; in languages without spaces each piece is one."""
        starts = np.flatnonzero(self.starts_word[ids])
        if len(starts) <= len(ids) / 8 + 1:
            starts = np.arange(len(ids))
        bounds = sorted({0, *starts.tolist(), len(ids)})
        return [(ids[start:end], tags[start:end]) for start, end in pairwise(bounds)]

    # ---- Arrays

    def finish(self) -> dict[str, NDArray[Any]]:
        count = len(self.stored)

        def place(text: int) -> int:
            return text if text >= 0 else count - 1 - text

        groups = self.groups
        outputs = [output for group in groups for output in group["outputs"]]

        def column(name: str, kind: Any) -> NDArray[Any]:
            return np.array([output[name] for output in outputs], kind)

        return {
            "names": np.array(self.names),
            "pieces": np.array([len(self.starts_word)], np.int32),
            "tokens": np.concatenate([ids for ids, _ in self.stored]).astype(np.int32),
            "tags": np.concatenate([tags for _, tags in self.stored]),
            "text_starts": starts_of(len(ids) for ids, _ in self.stored),
            "joins": np.array([text for join in self.joins for text in join], np.int32),
            "join_starts": starts_of(map(len, self.joins)),
            "number": np.array([group["number"] for group in groups], np.int32),
            "set": np.array([group["set"] for group in groups], np.int16),
            "part": np.array([group["part"] for group in groups], np.int8),
            "seen": np.array([group["seen"] for group in groups], np.bool_),
            "joined": np.array([group["joined"] for group in groups], np.int8),
            "source": np.array([place(group["source"]) for group in groups], np.int32),
            "references": np.array([place(text) for group in groups for text in group["references"]], np.int32),
            "reference_starts": starts_of(len(group["references"]) for group in groups),
            "pairs": np.array([pair for group in groups for pair in group["pairs"]], np.int16).reshape(-1, 2),
            "pair_starts": starts_of(len(group["pairs"]) for group in groups),
            "output_starts": starts_of(len(group["outputs"]) for group in groups),
            "text": np.array([place(output["text"]) for output in outputs], np.int32),
            "place": column("place", np.int16),
            "same": column("same", np.int8),
            "parent": column("parent", np.int16),
            "human": column("human", np.bool_),
            "value": column("value", np.float32),
            "teacher": column("teacher", np.float32),
            "overlap": column("overlap", np.float32),
        }


def tag_word(ids: Ids, severity: int) -> Word:
    return ids, np.full(len(ids), severity, np.int8)


def join_words(words: Sequence[Word]) -> Word:
    return np.concatenate([ids for ids, _ in words]), np.concatenate([tags for _, tags in words])


def starts_of(lengths: Iterable[int]) -> NDArray[np.int32]:
    return np.cumsum([0, *lengths]).astype(np.int32)


def place_tags(text: str, offsets: Sequence[tuple[int, int]], spans: Sequence[Sequence[int]]) -> Tags:
    tags = np.zeros(len(offsets), np.int8)
    for start, end, severity in spans:
        for token, (first, last) in enumerate(offsets):
            blank = end - start > 1 and not text[max(first, start) : min(last, end)].strip()
            if first < end and start < last and not blank:
                tags[token] = max(tags[token], severity)
    return tags


def check(arrays: dict[str, NDArray[Any]]) -> None:
    """Raise ValueError for a number that names nothing: on a GPU it would stop the training at an unknown place."""

    def within(name: str, limit: int, least: int = 0) -> None:
        array = arrays[name]
        if len(array) and not (array.min() >= least and array.max() < limit):
            raise ValueError(f"{name} has {array.min()} to {array.max()}, expected {least} to {limit - 1}")

    stored, groups = len(arrays["text_starts"]) - 1, len(arrays["source"])
    texts = stored + len(arrays["join_starts"]) - 1
    within("tokens", int(arrays["pieces"][0]))
    within("tags", 3, -1)
    within("joins", stored)
    for name in ("source", "references", "text"):
        within(name, texts)
    lengths = np.diff(arrays["text_starts"])
    if lengths.min() < 1 or lengths.max() > MAX_SIDE:
        raise ValueError(f"texts have {lengths.min()} to {lengths.max()} tokens, expected 1 to {MAX_SIDE}")
    outputs = np.diff(arrays["output_starts"])
    owner = np.repeat(np.arange(groups), outputs)
    at = np.arange(len(owner)) - np.repeat(arrays["output_starts"][:-1], outputs)
    if (arrays["parent"] >= at).any():
        raise ValueError("a damaged output stands before its parent")
    if (arrays["same"] >= np.diff(arrays["reference_starts"])[owner]).any():
        raise ValueError("an output equals a reference that its group does not have")
    if (arrays["pairs"] >= np.repeat(outputs, np.diff(arrays["pair_starts"]))[:, None]).any():
        raise ValueError("a pair names an output that its group does not have")


if __name__ == "__main__":
    main()
