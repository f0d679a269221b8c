"""In how many texts of a file each token occurs, and the weight (inverse document frequency) that follows from it.

The texts come from a file that the user names, not from the records at hand: a run scores its records in shards, and a
weight that depends on the shard would make a score depend on the records beside it.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from metrist.errors import InputError

#: Texts in, each text's token numbers out.
Tokenize = Callable[[Sequence[str]], Iterable[Sequence[int]]]

_OPENERS: Mapping[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open}


@dataclass(frozen=True, slots=True, eq=False)
class DocumentFrequencies:
    """Of `documents` texts, `counts[token]` have the token."""

    documents: int
    counts: Mapping[int, int]

    def idf(self, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """log((documents + 1) / (texts with the token + 1)) of each token: 0 for a token that every text has."""
        distinct, places = np.unique(tokens, return_inverse=True)
        having = np.array([self.counts.get(int(token), 0) for token in distinct], np.float64)
        weights: NDArray[np.float64] = np.log((self.documents + 1) / (having + 1))[places.reshape(tokens.shape)]
        return weights


def document_frequencies(path: str, tokenize: Tokenize) -> DocumentFrequencies:
    """How many of the file's texts have each token."""
    texts = texts_of(path)
    counts: Counter[int] = Counter()
    for ids in tokenize(texts):
        counts.update(set(ids))
    return DocumentFrequencies(len(texts), dict(counts))


def texts_of(path: str) -> list[str]:
    """The file's texts: its lines; or of a record file (.jsonl) each item's references, the outputs where no record has
    references. Blank texts are passed over, white space at both ends is dropped."""
    name = Path(path)
    suffixes = name.suffixes[-2:]
    compressed = suffixes[-1:][0] if suffixes and suffixes[-1] in _OPENERS else ""
    try:
        with _OPENERS.get(compressed, open)(name, "rt", encoding="utf-8-sig") as lines:
            found = list(_of_records(path, lines) if name.name.removesuffix(compressed).endswith(".jsonl") else lines)
    except (OSError, UnicodeDecodeError, EOFError, lzma.LZMAError) as fault:
        raise InputError(f"idf: cannot read the texts in {path}: {fault}") from fault
    texts = [text.strip() for text in found if text.strip()]
    if not texts:
        raise InputError(f"{path} has no texts; idf needs a file with one text a line, or a .jsonl file of records")
    return texts


def _of_records(path: str, lines: TextIO) -> Iterator[str]:
    rows = [_row(path, number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    # The records of several systems repeat an item's references, which would make what is one text look frequent.
    references = dict.fromkeys((str(row.get("item")), text) for row in rows for text in row.get("references") or ())
    if references:
        return (text for _, text in references)
    return (row["output"] for row in rows if isinstance(row.get("output"), str))


def _row(path: str, number: int, line: str) -> Mapping[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as fault:
        raise InputError(f"{path}:{number}: not a JSON object: {fault}") from None
    if not isinstance(row, dict):
        raise InputError(f"{path}:{number}: a record must be a JSON object, got {type(row).__name__}")
    references = row.get("references")
    if references is not None and not (isinstance(references, list) and all(isinstance(r, str) for r in references)):
        raise InputError(f"{path}:{number}: 'references' must be a list of strings, got {references!r:.60}")
    return row


def fingerprint(path: str) -> str:
    """A hash of the file's bytes, for signatures."""
    try:
        stat = Path(path).stat()
        return _fingerprint(path, stat.st_size, stat.st_mtime_ns)
    except OSError as fault:
        raise InputError(f"cannot read {path}: {fault.strerror or fault}") from fault


@lru_cache(maxsize=32)
def _fingerprint(path: str, _size: int, _changed: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:12]
