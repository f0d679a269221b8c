"""The lengths of outputs, references and sources: in characters, and in other units where a column names them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from metrist.evaluate.meta.dataset import LENGTHS
from metrist.metrics.lexical.tokenizers import tokenise

_Counts = NDArray[Any]
#: References of short answers have fewer words on average. The reliability study does not say where it divides them.
SHORT_BELOW = 5


def _count_words(texts: pa.ChunkedArray) -> _Counts:
    """Count as `len(text.split(' '))` does, with which the BARTScore paper cut references into classes."""
    counts: _Counts = pc.add(pc.count_substring(texts, " "), 1).to_numpy()
    return counts


def _count_tokens(texts: pa.ChunkedArray) -> _Counts:
    counts = tokenise([text or "" for text in texts.to_pylist()], "unicode").lengths
    return np.where(texts.is_valid().to_numpy(), counts, np.nan)


def _count_pattern(pattern: str, texts: pa.ChunkedArray) -> _Counts:
    """Count matches outside of blocks of code, where a line such as `# total` is no header."""
    prose = pc.replace_substring_regex(texts, r"(?s)```.*?```", "")
    counts: _Counts = pc.count_substring_regex(prose, pattern).to_numpy()
    return counts


_COUNTERS: Mapping[str, Callable[[pa.ChunkedArray], _Counts]] = {
    "": lambda texts: pc.utf8_length(texts).to_numpy(),
    ":words": _count_words,
    ":tokens": _count_tokens,
    ":headers": partial(_count_pattern, r"(?m)^ {0,3}#{1,6}[ \t]"),
    ":list_items": partial(_count_pattern, r"(?m)^[ \t]*(?:[-*+]|[0-9]{1,3}[.)])[ \t]"),
    ":bold": partial(_count_pattern, r"\*\*[^*\n]+\*\*|__[^_\n]+__"),
}


def length_columns(units: Sequence[str]) -> list[str]:
    """The columns of lengths in characters and in these units."""
    return [f"{name}{suffix}" for suffix in _suffixes(units) for name in LENGTHS]


def _suffixes(units: Sequence[str]) -> list[str]:
    return ["", *(f":{unit}" for unit in units)]


def measure_lengths(
    records: pa.Table, originals: Mapping[int, Sequence[Any]], units: Sequence[str] = ()
) -> dict[str, _Counts]:
    """The lengths of the texts of records, of several references their mean; `originals` are the texts that Arrow
    cannot hold, by their row: what is written for those has as many words and tokens."""
    counts = pc.fill_null(pc.list_value_length(records["references"]), 0).to_numpy()
    ends = np.cumsum(counts)
    references = pc.list_flatten(records["references"])
    lengths: dict[str, _Counts] = {}
    for suffix in _suffixes(units):
        count = _COUNTERS[suffix]
        sums = np.concatenate([[0], np.cumsum(count(references), dtype=np.int64)])
        total = sums[ends] - sums[ends - counts]
        mean = np.divide(total, counts, out=np.full(len(counts), np.nan), where=counts > 0)
        own = (count(records["output"]), mean, count(records["source"]))
        lengths |= {f"{name}{suffix}": values for name, values in zip(LENGTHS, own, strict=True)}
    if originals:
        lengths = {name: values.astype(np.float64) for name, values in lengths.items()}
    for row, (_, _, output, source, *_, references) in originals.items():
        mean = sum(map(len, references)) / len(references) if references else np.nan
        for name, length in zip(LENGTHS, (len(output), mean, np.nan if source is None else len(source)), strict=True):
            lengths[name][row] = length
    return lengths
