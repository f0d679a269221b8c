"""The lengths of outputs, references and sources: in characters, and in other units where a column names them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


_PATTERNS = {
    "headers": r"(?m)^ {0,3}#{1,6}[ \t]",
    "list_items": r"(?m)^[ \t]*(?:[-*+]|[0-9]{1,3}[.)])[ \t]",
    "bold": r"\*\*[^*\n]+\*\*|__[^_\n]+__",
}


def length_columns(units: Sequence[str]) -> list[str]:
    """The columns of lengths in characters and in these units."""
    return [f"{name}:{unit}" if unit else name for unit in ("", *units) for name in LENGTHS]


def _count_units(texts: pa.ChunkedArray, unit: str) -> _Counts:
    """Count a unit of texts, characters if it is empty; NaN for a text that is missing."""
    match unit:
        case "":
            counts: _Counts = pc.utf8_length(texts).to_numpy()
        case "words":  # As `len(text.split(' '))`, with which the BARTScore paper cut references into classes.
            counts = pc.add(pc.count_substring(texts, " "), 1).to_numpy()
        case "tokens":
            tokens = tokenise([text or "" for text in texts.to_pylist()], "unicode").lengths
            counts = np.where(texts.is_valid().to_numpy(), tokens, np.nan)
        case _:  # Outside of blocks of code, where a line such as `# total` is no header.
            prose = pc.replace_substring_regex(texts, r"(?s)```.*?```", "")
            counts = pc.count_substring_regex(prose, _PATTERNS[unit]).to_numpy()
    return counts


def measure_lengths(
    records: pa.Table, originals: Mapping[int, Sequence[Any]], units: Sequence[str] = ()
) -> dict[str, _Counts]:
    """The lengths of the texts of records, of several references their mean; `originals` are the texts that Arrow
    cannot hold, by their row: what is written for those has as many words and tokens."""
    counts = pc.fill_null(pc.list_value_length(records["references"]), 0).to_numpy()
    ends = np.cumsum(counts)
    references = pc.list_flatten(records["references"])
    lengths: dict[str, _Counts] = {}
    for unit in ("", *units):
        sums = np.concatenate([[0], np.cumsum(_count_units(references, unit), dtype=np.int64)])
        total = sums[ends] - sums[ends - counts]
        mean = np.divide(total, counts, out=np.full(len(counts), np.nan), where=counts > 0)
        own = (_count_units(records["output"], unit), mean, _count_units(records["source"], unit))
        suffix = f":{unit}" if unit else ""
        lengths |= {f"{name}{suffix}": values for name, values in zip(LENGTHS, own, strict=True)}
    if originals:
        lengths = {name: values.astype(np.float64) for name, values in lengths.items()}
    for row, (_, _, output, source, *_, references) in originals.items():
        mean = sum(map(len, references)) / len(references) if references else np.nan
        for name, length in zip(LENGTHS, (len(output), mean, np.nan if source is None else len(source)), strict=True):
            lengths[name][row] = length
    return lengths
