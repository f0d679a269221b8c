"""The kernels in plain Python and numpy: they define the results, and run if the extension is not compiled."""

from metrist.kernels.reference.encoder import (
    add_and_normalize as add_and_normalize,
)
from metrist.kernels.reference.encoder import (
    apply_linear as apply_linear,
)
from metrist.kernels.reference.encoder import (
    attend as attend,
)
from metrist.kernels.reference.encoder import (
    exponentiate_rows as exponentiate_rows,
)
from metrist.kernels.reference.encoder import (
    gate_by_gelu as gate_by_gelu,
)
from metrist.kernels.reference.encoder import (
    gate_rows as gate_rows,
)
from metrist.kernels.reference.encoder import (
    pack_linear as pack_linear,
)
from metrist.kernels.reference.ranking import (
    best_prefixes as best_prefixes,
)
from metrist.kernels.reference.ranking import (
    beyond_counts as beyond_counts,
)
from metrist.kernels.reference.ranking import (
    gap_histogram as gap_histogram,
)
from metrist.kernels.reference.ranking import (
    gaps_kept as gaps_kept,
)
from metrist.kernels.reference.ranking import (
    pair_counts_grouped as pair_counts_grouped,
)
from metrist.kernels.reference.ranking import (
    rank_comoments_grouped as rank_comoments_grouped,
)
from metrist.kernels.reference.ter import ter_edits as ter_edits
from metrist.kernels.reference.text import (
    characters as characters,
)
from metrist.kernels.reference.text import (
    clipped_matches as clipped_matches,
)
from metrist.kernels.reference.text import (
    join_columns as join_columns,
)
from metrist.kernels.reference.text import (
    json_arrays as json_arrays,
)
from metrist.kernels.reference.text import (
    lcs_lengths as lcs_lengths,
)
from metrist.kernels.reference.text import (
    scan as scan,
)
from metrist.kernels.reference.text import (
    scan_13a as scan_13a,
)
from metrist.kernels.reference.text import (
    scan_chrf_words as scan_chrf_words,
)
from metrist.kernels.reference.text import (
    union_lcs_hits as union_lcs_hits,
)
