"""The kernels in plain Python and numpy: they define the results, and run if the extension is not compiled."""

from metrist.kernels.reference.encoder import (
    add_and_normalize,
    apply_linear,
    attend,
    attend_finely,
    exponentiate_rows,
    gate_by_gelu,
    gate_rows,
    pack_linear,
)
from metrist.kernels.reference.ranking import (
    best_prefixes,
    beyond_counts,
    gap_histogram,
    gaps_kept,
    pair_counts_grouped,
    rank_comoments_grouped,
)
from metrist.kernels.reference.ter import ter_edits
from metrist.kernels.reference.text import (
    characters,
    clipped_matches,
    join_columns,
    json_arrays,
    lcs_lengths,
    scan,
    scan_13a,
    scan_chrf_words,
    union_lcs_hits,
)

__all__ = [
    "add_and_normalize",
    "apply_linear",
    "attend",
    "attend_finely",
    "best_prefixes",
    "beyond_counts",
    "characters",
    "clipped_matches",
    "exponentiate_rows",
    "gap_histogram",
    "gaps_kept",
    "gate_by_gelu",
    "gate_rows",
    "join_columns",
    "json_arrays",
    "lcs_lengths",
    "pack_linear",
    "pair_counts_grouped",
    "rank_comoments_grouped",
    "scan",
    "scan_13a",
    "scan_chrf_words",
    "ter_edits",
    "union_lcs_hits",
]
