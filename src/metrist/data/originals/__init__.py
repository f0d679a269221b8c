"""The data sets that HEAP was made of, read from the files that their own authors published.

    originals.read("CHASM", "counter_conan.json", "counter_sbic.json")    all criteria of a data set
    originals.read("CNG", "human_evaluation.csv")                         one criterion, by its code

Pairs are made as HEAP's authors made them, in their order; each module says how.
"""

from __future__ import annotations

from metrist.data.originals.registry import Original, data_sets, read

__all__ = ["Original", "data_sets", "read"]
