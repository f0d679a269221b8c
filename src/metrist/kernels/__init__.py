"""Fast loops over texts and scores: numbers in, numbers out, no policy.

The kernels are compiled if the extension was built, and plain Python otherwise (`metrist.kernels.reference`), with
equal results. METRIST_KERNELS=python selects the Python version. Texts are any `str`; `outputs` and `references` are
numbers of texts, one of each per pair.
"""

from __future__ import annotations

import importlib
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from metrist.kernels import reference as _kernels
from metrist.kernels.columns import Ranked, Stretch
from metrist.kernels.layers import PackedLinear
from metrist.kernels.tokens import SEPARATOR, SINGLE, WORD, CharClasses, Tokens, from_lists, relabel

if not TYPE_CHECKING and os.environ.get("METRIST_KERNELS") != "python":
    with suppress(ImportError):
        _kernels = importlib.import_module("metrist.kernels.compiled")

have_compiled: bool = _kernels.__name__ == "metrist.kernels.compiled"

# The docstrings are in `metrist.kernels.reference`.
scan = _kernels.scan
scan_13a = _kernels.scan_13a
scan_chrf_words = _kernels.scan_chrf_words
characters = _kernels.characters
json_arrays = _kernels.json_arrays
join_columns = _kernels.join_columns
clipped_matches = _kernels.clipped_matches
lcs_lengths = _kernels.lcs_lengths
union_lcs_hits = _kernels.union_lcs_hits
pair_counts_grouped = _kernels.pair_counts_grouped
rank_comoments_grouped = _kernels.rank_comoments_grouped
ter_edits = _kernels.ter_edits
beyond_counts = _kernels.beyond_counts
gap_histogram = _kernels.gap_histogram
gaps_kept = _kernels.gaps_kept
best_prefixes = _kernels.best_prefixes
pack_linear = _kernels.pack_linear
apply_linear = _kernels.apply_linear
attend = _kernels.attend
attend_finely = _kernels.attend_finely
add_and_normalize = _kernels.add_and_normalize
gate_rows = _kernels.gate_rows
gate_by_gelu = _kernels.gate_by_gelu
exponentiate_rows = _kernels.exponentiate_rows

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
    "attend_finely",
    "best_prefixes",
    "beyond_counts",
    "characters",
    "clipped_matches",
    "exponentiate_rows",
    "from_lists",
    "gap_histogram",
    "gaps_kept",
    "gate_by_gelu",
    "gate_rows",
    "has_encoder",
    "have_compiled",
    "join_columns",
    "json_arrays",
    "lcs_lengths",
    "pack_linear",
    "pair_counts_grouped",
    "rank_comoments_grouped",
    "relabel",
    "scan",
    "scan_13a",
    "scan_chrf_words",
    "ter_edits",
    "union_lcs_hits",
]


def has_encoder() -> bool:
    """Whether the layers of text encoders run compiled on this processor."""
    return have_compiled and bool(getattr(_kernels, "has_encoder", False))
