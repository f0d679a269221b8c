"""Resamples without pairs of copies."""

from __future__ import annotations

import numpy as np
import pytest

from metrist.meta.measures import acc_eq, measure
from metrist.studies.meta.distinct import distinct


def test_copies_of_an_output_are_no_pair() -> None:
    human, scores = np.array([1.0, 2.0, 3.0]), np.array([2.0, 1.0, 3.0])
    twice = np.array([[2.0, 1.0, 1.0]])
    # Pairs: (1, 2) twice wrong, (1, 3) twice right, (2, 3) right.
    assert distinct(acc_eq()).pool(distinct(acc_eq()).rows(human, scores, twice))[0] == pytest.approx(3 / 5)
    assert distinct(acc_eq()).value(human, scores) == acc_eq().value(human, scores)
    assert distinct(measure("pearson")).value(human, scores) == measure("pearson").value(human, scores)
