"""nltk's WordNet reader on a plain WordNet folder, as the oracle for synonyms."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nltk
from nltk.corpus.reader.wordnet import WordNetCorpusReader
from nltk.data import FileSystemPathPointer


class _Reader(WordNetCorpusReader):
    def map_wn(self, *_version: str) -> dict[str, Any]:
        return {}  # The map between WordNet versions needs files that a plain folder does not have.


@contextmanager
def nltk_reads(folder: Path, workshop: Path) -> Iterator[WordNetCorpusReader]:
    """The folder as nltk reads it, copied into `workshop` with the one file that nltk wants besides."""
    copy = workshop / "wordnet-for-nltk"
    shutil.copytree(folder, copy)
    (copy / "lexnames").write_text("".join(f"{n:02d}\tname{n}\t1\n" for n in range(45)))
    nltk.data.path.append(str(copy))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nltk remarks that other languages are missing.
        reader = _Reader(FileSystemPathPointer(str(copy)), None)
    try:
        yield reader
    finally:
        nltk.data.path.remove(str(copy))
        for file in reader._data_file_map.values():
            file.close()
