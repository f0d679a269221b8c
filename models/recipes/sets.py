"""The sets of human judgments, and the texts of theirs that no training may see.

    python models/recipes/sets.py FILE...      count the texts of training files that overlap with judged sets

METRIST_TEST_DATA names the folder of the sets. FILE is what a script here wrote: lines of JSON, compressed or not.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import lzma
import os
import random
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from metrist.data.text_overlap import normalise_text
from metrist.sentences import split_sentences

DATA = Path(os.environ.get("METRIST_TEST_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")
Row = dict[str, Any]

#: Sets that models are judged on: no training data may share text with them.
JUDGED = (
    "summeval", "qags-cnn", "qags-xsum", "qags-cnndm-sentences", "qags-xsum-sentences", "rank19", "newsroom",
    "judgebench-newsroom", "topical-chat-usr", "openmeva-roc", "pandalm", "llmbar", "wmt23.en-de", "mlqe-pe.et-en",
    "lau-acceptability",
)  # fmt: skip
#: Sets that preference-small learned from, as its card says, and is not judged on.
LEARNED_BY_SMALL = ("qags-cnn", "qags-xsum", "qags-cnndm-sentences", "qags-xsum-sentences", "rank19")
#: Sets that are reserved for the judgment of error analyses, and sets that choose between trainings.
RESERVED = ("cliff", "goyal21", "entfa", "xsum-halluc", "gsm8k-solutions", "wmt22.zh-en")
CHOSEN_ON = ("hhh-alignment", "haluquestqa-pairs", "fed", "summeval-op", "multi-summeval.en", "webnlg2020.en")
#: Words of a run, words of the shortest text that counts as one, and the share of runs that two texts may have in
#: common; a single common run does not count in texts with more runs than a sentence has.
_RUN, _SHORTEST, _MOST_SHARED, _SENTENCE_RUNS = 8, 5, 0.05, 30
#: OpenMEVA's placeholders for names.
_NAMES = re.compile(r"\[[A-Z]+\]")


def read_rows(name: str) -> list[Row]:
    return list(read_lines(DATA / f"{name}.jsonl.xz"))


def read_lines(path: Path) -> Iterator[Any]:
    """Yield what each line of a file holds, compressed or not."""
    with open_text(path) as file:
        yield from map(json.loads, file)


def write_lines(path: Path, rows: Iterable[Any]) -> int:
    """Write rows as lines of JSON; return their number."""
    count = 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with open_text(path, "wt") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            count += 1
    return count


def open_text(path: Path, mode: str = "rt") -> Any:
    opener: Any = {".xz": lzma.open, ".gz": gzip.open}.get(path.suffix, open)
    return opener(path, mode, encoding="utf-8")


def read_arguments(doc: str | None, *paths: str, **options: Any) -> argparse.Namespace:
    """Read the command line of a script: positional paths, and options by their defaults, or by a type without one.
    A tuple has the choices of a word that comes before the paths."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in options.items():
        if isinstance(value, tuple):
            parser.add_argument(name, choices=value)
        elif isinstance(value, bool):
            parser.add_argument(f"--{name}", action="store_true")
        else:
            kind, default = (value, None) if isinstance(value, type) else (type(value), value)
            parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=default)
    for name in paths:
        parser.add_argument(name, type=Path)
    return parser.parse_args()


def mean_rating(row: Row, aspect: str) -> float:
    """Return the mean of the raters; NaN without ratings."""
    values = [value for value in row["ratings"].get(aspect) or () if value is not None]
    return float(np.mean(values)) if values else float("nan")


def list_sentences(text: str) -> list[str]:
    return [text[start:end] for start, end in split_sentences(text)]


def draw(values: Sequence[Any], count: int, rng: random.Random) -> list[Any]:
    """Draw some values; all if there are fewer."""
    return rng.sample(values, min(count, len(values)))


def hash_share(text: str) -> float:
    """Return a number from 0 to 1 that depends on the text alone, so that all rows of an item stay on one side."""
    return int(hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()[:8], 16) / 16**8


def list_texts(row: Any) -> Iterator[str]:
    if isinstance(row, str):
        yield row
    elif isinstance(row, dict | list):
        for value in row.values() if isinstance(row, dict) else row:
            yield from list_texts(value)


def list_runs(text: str) -> set[tuple[str, ...]]:
    """Return a text's runs of words, without case and punctuation; a text of a few words is one run."""
    runs = set()
    for part in _NAMES.split(text):
        words = tuple(normalise_text(part).split())
        if len(words) >= _SHORTEST:
            size = min(_RUN, len(words))
            runs |= {words[at : at + size] for at in range(len(words) - size + 1)}
    return runs


class JudgedTexts:
    """Sources, outputs and references of sets, by their runs of words. `extra` are further texts to protect."""

    def __init__(self, names: Iterable[str] = (*JUDGED, *RESERVED), extra: Iterable[str] = ()) -> None:
        owners: dict[tuple[str, ...], list[int]] = defaultdict(list)
        self._sizes: list[int] = []
        self._sets: list[str] = []
        texts = dict.fromkeys(extra, "extra")
        for name in names:
            fields = ("source", "output", "context", "outputs", "references")
            texts |= {text: name for row in read_rows(name) for text in list_texts([row.get(key) for key in fields])}
        for text, name in texts.items():
            runs = list_runs(text)
            for run in runs:
                owners[run].append(len(self._sizes))
            self._sizes.append(len(runs))
            self._sets.append(name)
        self._owners = dict(owners)
        self._known: dict[str, str | None] = {}

    def find(self, text: str) -> str | None:
        """Return the name of a set with a text that shares more than a twentieth of the runs of either."""
        if text not in self._known:
            runs = list_runs(text)
            counts = Counter(number for run in runs for number in self._owners.get(run, ()))
            self._known[text] = next(
                (self._sets[n] for n, count in counts.items() if self._is_shared(n, count, runs)), None
            )
        return self._known[text]

    def _is_shared(self, number: int, count: int, runs: set[tuple[str, ...]]) -> bool:
        size = self._sizes[number]
        return count > _MOST_SHARED * min(len(runs), size) and (count > 1 or size <= _SENTENCE_RUNS)

    def free(self, *texts: str | None) -> bool:
        """Whether no text overlaps with a judged one."""
        return not any(text and self.find(text) for text in texts)


def main() -> None:
    judged = JudgedTexts()
    for path in map(Path, sys.argv[1:]):
        texts = {text for row in read_lines(path) for text in list_texts(row)}
        found = Counter(filter(None, map(judged.find, texts)))
        print(f"{path}: {len(texts):,} texts, {sum(found.values()):,} overlap with judged sets {dict(found)}")


if __name__ == "__main__":
    main()
