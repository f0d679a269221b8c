"""What is resampled where outputs are grouped by a column such as the document."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from metrist.evaluate.meta.judged import Codes, Judged, Labels

#: With fewer groups than this, resampling them says less than resampling the items within them.
_ENOUGH = 30


def with_whole_groups(judged: Judged, group: str, outputs: Codes) -> Judged:
    """The data with the groups for items, where every item lies within one group and there are many of them.

    An item drawn twice would meet its own copies within its group, as no item of other data would: of groups with two
    or three items each, most resamples would then be unlike the data. Whole groups have no such copies.
    """
    column = judged.columns.get(group)
    if column is None:
        return judged
    codes, items = column.codes[outputs], judged.items.codes[outputs]
    groups, of_items = len(np.unique(codes)), len(np.unique(items))
    nested = len(np.unique(np.stack([items, codes]), axis=1).T) == of_items
    if (codes < 0).any() or not nested or not _ENOUGH <= groups < of_items:
        return judged
    note = f"Items lie whole within {group}: its {groups:,} values are what is resampled."
    # Outputs outside the evaluation may have no group; they are never drawn.
    return replace(judged, items=Labels(codes=column.codes, names=column.names), notes=(note, *judged.notes))
