"""Scores as whole numbers, against every pair of the scores themselves."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from metrist.stats.ties import TIE, quantise_ties

# Two decimals: gaps such as .3 - .2 and .2 - .1 differ in their last bit.
hundredths = st.lists(st.integers(-30, 30).map(lambda number: number / 100), min_size=2, max_size=12)


@given(scores=hundredths, data=st.data())
def test_numbers_tie_and_are_ordered_exactly_as_the_scores_are(scores, data):
    epsilon = data.draw(st.sampled_from([0.0, *(abs(a - b) for a, b in combinations(scores, 2))]))
    numbers = quantise_ties(np.array(scores), epsilon)
    for (a, x), (b, y) in combinations(zip(scores, numbers, strict=True), 2):
        assert (abs(a - b) <= epsilon) == (abs(x - y) <= TIE)
        assert np.sign(a - b) == np.sign(x - y)


def test_a_score_that_is_missing_stays_missing():
    assert np.isnan(quantise_ties(np.array([np.nan, np.nan]), 0.1)).all()
    numbers = quantise_ties(np.array([0.5, np.nan, 0.1]), 0.1)
    assert np.isnan(numbers).tolist() == [False, True, False]
    assert len(quantise_ties(np.empty(0), 0.1)) == 0


def test_many_steps_stay_exact():
    scores = np.arange(5000) / 7
    assert (np.diff(quantise_ties(scores, 0.0)) > TIE).all()
