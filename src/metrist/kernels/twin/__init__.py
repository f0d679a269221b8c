"""The kernels in plain Python and numpy: what each must compute, and what runs where none were compiled."""

from metrist.kernels.tokens import from_lists
from metrist.kernels.twin.lcs import lcs_lengths, union_lcs_hits
from metrist.kernels.twin.ngrams import clipped_matches, clipped_matches_grouped
from metrist.kernels.twin.pairs import pair_counts_grouped
from metrist.kernels.twin.ranks import rank_comoments_grouped
from metrist.kernels.twin.scanning import characters, scan, scan_13a, scan_chrf_words
from metrist.kernels.twin.ter import ter_edits

__all__ = [
    "characters",
    "clipped_matches",
    "clipped_matches_grouped",
    "from_lists",
    "lcs_lengths",
    "pair_counts_grouped",
    "rank_comoments_grouped",
    "scan",
    "scan_13a",
    "scan_chrf_words",
    "ter_edits",
    "union_lcs_hits",
]
