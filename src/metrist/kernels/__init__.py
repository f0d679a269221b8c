"""Fast loops over texts and scores: numbers in, numbers out, no policy.

The kernels are compiled if the extension was built, and plain Python otherwise (`metrist.kernels.reference`), with
equal results. METRIST_KERNELS=python selects the Python version. Texts are any `str`; `outputs` and `references` are
numbers of texts, one of each per pair.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from metrist.kernels.columns import Counts, Floats, Ranked, Stretch
from metrist.kernels.layers import Integers, PackedLinear, Places, Singles
from metrist.kernels.tokens import SEPARATOR, SINGLE, WORD, CharClasses, TextColumn, Tokens, Value, from_lists, relabel


def _choose_kernels() -> ModuleType:
    if os.environ.get("METRIST_KERNELS") == "python":
        return importlib.import_module("metrist.kernels.reference")
    try:
        return importlib.import_module("metrist.kernels.compiled")
    except ImportError:
        return importlib.import_module("metrist.kernels.reference")


if TYPE_CHECKING:
    from metrist.kernels import reference as _kernels
else:
    _kernels = _choose_kernels()

have_compiled: bool = _kernels.__name__ == "metrist.kernels.compiled"

__all__ = [
    "SEPARATOR",
    "SINGLE",
    "WORD",
    "CharClasses",
    "PackedLinear",
    "Ranked",
    "Stretch",
    "Tokens",
    "add_and_normalize",
    "apply_linear",
    "attend",
    "best_prefixes",
    "beyond_counts",
    "characters",
    "clipped_matches",
    "clipped_matches_grouped",
    "from_lists",
    "gap_histogram",
    "gaps_kept",
    "gate_rows",
    "has_encoder",
    "have_compiled",
    "join_columns",
    "json_arrays",
    "lcs_lengths",
    "pack_linear",
    "pair_counts",
    "pair_counts_grouped",
    "rank_comoments_grouped",
    "relabel",
    "scan",
    "scan_13a",
    "scan_chrf_words",
    "ter_edits",
    "union_lcs_hits",
]


def scan(texts: Sequence[str], classes: CharClasses) -> Tokens:
    """Split texts into runs of WORD characters; a SINGLE character is a token alone, SEPARATOR characters end
    tokens."""
    return _kernels.scan(texts, classes)


def scan_13a(texts: Sequence[str]) -> Tokens:
    """Split texts into BLEU's usual words: mteval-v13a as in sacrebleu, including its handling of trailing
    whitespace."""
    return _kernels.scan_13a(texts)


def scan_chrf_words(texts: Sequence[str]) -> Tokens:
    """Split texts into the words of chrF++: at whitespace, with one punctuation mark split off the end or the
    beginning."""
    return _kernels.scan_chrf_words(texts)


def characters(texts: Sequence[str]) -> Tokens:
    """Split texts into characters without whitespace; their ids are code points."""
    return _kernels.characters(texts)


def json_arrays(columns: Sequence[Sequence[Value]]) -> tuple[bytes, NDArray[np.int64]]:
    """Write each row of the columns as a JSON array, as Python does without spaces and ASCII escapes: all of them as
    UTF-8, and where each begins, with the end of the last."""
    return _kernels.json_arrays(columns)


def join_columns(columns: Sequence[TextColumn], rows: int, write: Callable[[memoryview], object]) -> None:
    """Put the rows of the columns one after another and call `write` with one block of them after another, which it
    must not keep. Numbers are written as Python does, NaN as null and infinity as 1e999. On a Neoverse core this takes
    a third of the time of `pyarrow.compute.binary_join_element_wise`, which also wants numbers as texts."""
    _kernels.join_columns(columns, rows, write)


def clipped_matches(
    tokens: Tokens, outputs: NDArray[np.int32], references: NDArray[np.int32], max_order: int
) -> NDArray[np.int64]:
    """Count, for each pair and each order up to `max_order`, the n-grams of the output that are in the reference, each
    at most as often as it occurs there."""
    return _kernels.clipped_matches(tokens, outputs, references, max_order)


def clipped_matches_grouped(
    tokens: Tokens,
    outputs: NDArray[np.int32],
    references: NDArray[np.int32],
    starts: NDArray[np.int64],
    max_order: int,
) -> NDArray[np.int64]:
    """Count the same for outputs with several references: one row per record, whose pairs are
    `starts[r]:starts[r + 1]`. An n-gram counts at most as often as in the reference where it occurs most."""
    return _kernels.clipped_matches_grouped(tokens, outputs, references, starts, max_order)


def lcs_lengths(tokens: Tokens, outputs: NDArray[np.int32], references: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the length of the longest common subsequence of each pair."""
    return _kernels.lcs_lengths(tokens, outputs, references)


def union_lcs_hits(
    tokens: Tokens, line_starts: NDArray[np.int64], outputs: NDArray[np.int32], references: NDArray[np.int32]
) -> NDArray[np.int64]:
    """Count ROUGE-Lsum's hits per pair; `tokens` are lines, and text t is lines `line_starts[t]:line_starts[t + 1]`.

    A token of a reference line is a hit if it is on the longest common subsequence with any of the output's lines, at
    most as often as the token occurs in either text. The choice among several longest ones follows rouge-score.
    """
    return _kernels.union_lcs_hits(tokens, line_starts, outputs, references)


def pair_counts(
    human: NDArray[np.float64], metric: NDArray[np.float64], weights: NDArray[np.float64], epsilon: float = 0.0
) -> NDArray[np.int64]:
    """Count, for each draw, pairs of outputs that are concordant, discordant, tied by humans only, by the metric only,
    and by both. A draw is a row of `weights` (draws, outputs), which are integers: an output of weight w occurs w
    times. The metric ties two outputs whose values differ by at most `epsilon`."""
    starts = np.array([0, len(human)], np.int64)
    return _kernels.pair_counts_grouped(human, metric, weights, starts, epsilon)[:, 0]


def pair_counts_grouped(
    human: NDArray[np.float64],
    metric: NDArray[np.float64],
    weights: NDArray[np.float64],
    starts: NDArray[np.int64],
    epsilon: float = 0.0,
) -> NDArray[np.int64]:
    """Count the same within groups, (draws, groups, 5); group g is the outputs `starts[g]:starts[g + 1]`."""
    return _kernels.pair_counts_grouped(human, metric, weights, starts, epsilon)


def rank_comoments_grouped(
    human: NDArray[np.float64], metric: NDArray[np.float64], weights: NDArray[np.float64], starts: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return comoments of ranks within groups for each draw, (draws, groups, 5): sums of squares about the mean of
    human ranks, of metric ranks, and of their products (in half ranks: integers, exact up to some 200,000 outputs), and
    the numbers of distinct values drawn of either column."""
    return _kernels.rank_comoments_grouped(human, metric, weights, starts)


def ter_edits(tokens: Tokens, outputs: NDArray[np.int32], references: NDArray[np.int32]) -> NDArray[np.int64]:
    """Count translation edits (insertions, deletions, substitutions, moves) per pair, by sacrebleu's Tercom search."""
    return _kernels.ter_edits(tokens, outputs, references)


def beyond_counts(ranked: Ranked, epsilons: Floats) -> Counts:
    """Count the pairs whose gap is above epsilon, per threshold and group: tied by humans, concordant, and all."""
    return _kernels.beyond_counts(ranked, epsilons)


def gap_histogram(ranked: Ranked, units: Counts, stretch: Stretch, buckets: int) -> Counts:
    """Sum the pairs of a stretch by bucket, in units of their group times both weights: tied by humans, concordant,
    discordant."""
    return _kernels.gap_histogram(ranked, units, stretch, buckets)


def gaps_kept(
    ranked: Ranked, units: Counts, stretch: Stretch, keep: NDArray[np.bool_], room: int
) -> tuple[Floats, Counts] | None:
    """Return the gaps of pairs in the buckets to keep that are not discordant, in no particular order, and their units,
    negative if concordant. Equal gaps may be combined. Return None if there are more than `room`."""
    return _kernels.gaps_kept(ranked, units, stretch, keep, room)


def best_prefixes(gains: Floats, groups: NDArray[np.int32], lasts: Counts, weights: Floats) -> tuple[Floats, Counts]:
    """Return, for each row of group weights, the largest weighted sum of gains from the first up to one of `lasts`, and
    the first of `lasts` that reaches it; 0 and -1 if none is above 0."""
    return _kernels.best_prefixes(gains, groups, lasts, weights)


def has_encoder() -> bool:
    """Whether the layers of text encoders run compiled on this processor."""
    return have_compiled and bool(getattr(_kernels, "has_encoder", False))


def pack_linear(integers: Integers, scales: Singles, bias: Singles | None) -> PackedLinear:
    """Arrange a linear layer for `apply_linear`. The weights are integers from -63 to 63, [outputs, inputs], times a
    scale for each block of inputs, [outputs, blocks]. Outputs and blocks are multiples of 16."""
    return _kernels.pack_linear(integers, scales, bias)


def apply_linear(linear: PackedLinear, rows: Singles, *, gelu: bool = False) -> Singles:
    """Apply a linear layer, and then GELU if asked to. Each block of a row is first rounded to 8 bits with a scale of
    its own, so a row's result does not depend on other rows."""
    return _kernels.apply_linear(linear, rows, gelu=gelu)


def attend(joined: Singles, starts: Places, heads: int, turns: Singles | None) -> Singles:
    """Return self-attention within each text; text t is the rows `starts[t]:starts[t + 1]`, and a row is query, key and
    value of all heads. `turns` has the cosines and sines of a rotary encoding, [positions, width of a head]. Each
    query, key and value is rounded to 8 bits with a scale of its own, and weights to 14 bits. A head is at most 256
    wide."""
    return _kernels.attend(joined, starts, heads, turns)


def add_and_normalize(rows: Singles, more: Singles | None, weight: Singles, bias: Singles, epsilon: float) -> None:
    """Add `more` to the rows and normalize each of them, in place."""
    _kernels.add_and_normalize(rows, more, weight, bias, epsilon)


def gate_rows(joined: Singles) -> Singles:
    """Return up * silu(gate); a row is `up` followed by `gate`."""
    return _kernels.gate_rows(joined)
