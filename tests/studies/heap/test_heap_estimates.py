"""Accuracy, spread and correlation of trainings, by hand and by scipy."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from error_codes import raises_code
from metrist.data.pairs import GoodBad
from metrist.errors import RunError
from metrist.studies.heap.jobs import NO_CONTEXT, CriterionScores, Job, Result
from metrist.studies.heap.results import accuracy, macro_accuracy, spearman


def answers(
    good: Sequence[float], bad: Sequence[float], contexts: Sequence[str] = (), ratings: Sequence[float] | None = None
) -> CriterionScores:
    """Pairs with these scores, each with answers of its own."""
    pairs = []
    for at in range(len(good)):
        story = contexts[at] if contexts else f"the story {at}"
        rated = {} if ratings is None else {"good_rating": ratings[at] + 1, "bad_rating": ratings[at]}
        sides = {side: (("story", story), ("answer", f"{side} {at}")) for side in ("good", "bad")}
        pairs.append(GoodBad(criterion="AG", **sides, **rated))
    return CriterionScores.from_pairs(pairs, np.array(good, float), np.array(bad, float))


def test_a_tie_is_wrong_and_the_spread_is_over_seeds() -> None:
    """By hand: 2 of 4 right (one is a tie), then 3 of 4; sd of .5 and .75 with n - 1."""
    seeds = [answers([1, 2, 3, 4], [0, 2, 2, 9]), answers([1, 2, 3, 4], [0, 1, 2, 9])]
    summary = accuracy(seeds)
    assert seeds[0].ties == 1
    assert (summary.mean, summary.sd, summary.seeds) == (0.625, pytest.approx(0.125 * math.sqrt(2)), 2)
    assert summary.low < 0.625 < summary.high
    assert math.isnan(accuracy(seeds[:1]).sd)


def test_the_interval_resamples_contexts_whole() -> None:
    """Where all pairs of a context agree, there are as many independent pairs as contexts: with 4 of 8 contexts right,
    the interval is that of 8 coin tosses (binomial quantiles), however many pairs each context has."""
    contexts = [f"c{at // 50}" for at in range(400)]
    good = [float(at // 50 % 2) for at in range(400)]
    summary = accuracy([answers(good, [0.5] * 400, contexts)], draws=20_000)
    expected = stats.binom.ppf([0.025, 0.975], 8, 0.5) / 8
    assert (summary.low, summary.high) == pytest.approx(tuple(expected))
    alone = accuracy([answers(good, [0.5] * 400)], draws=20_000)
    expected = stats.binom.ppf([0.025, 0.975], 400, 0.5) / 400
    assert (alone.low, alone.high) == pytest.approx(tuple(expected), abs=0.004)


def all_against_all(quality: NDArray[np.float64], noise: NDArray[np.float64]) -> CriterionScores:
    """Texts without a context: each is paired with every other, and the one of higher quality is the good one."""
    order = np.argsort(-quality)
    met = list(combinations(order.tolist(), 2))
    scores = quality + noise
    pairs = [
        GoodBad(criterion="HSO", good=(("message", f"text {good}"),), bad=(("message", f"text {bad}"),))
        for good, bad in met
    ]
    return CriterionScores.from_pairs(
        pairs, np.array([scores[good] for good, _ in met]), np.array([scores[bad] for _, bad in met])
    )


def test_of_pairs_without_a_context_the_texts_are_resampled() -> None:
    """Oracle: brute force, drawing texts one by one and counting each pair as often as both its texts were drawn."""
    rng = np.random.default_rng(3)
    scores = all_against_all(rng.normal(size=20), rng.normal(size=20))
    summary = accuracy([scores, scores], draws=4_000)
    names = sorted({*scores.good_answer, *scores.bad_answer})
    shares = []
    for _ in range(4_000):
        drawn = Counter(rng.choice(names, len(names)).tolist())
        times = [drawn[good] * drawn[bad] for good, bad in zip(scores.good_answer, scores.bad_answer, strict=True)]
        shares.append(np.average(scores.right, weights=times))
    assert (summary.low, summary.high) == pytest.approx(np.quantile(shares, [0.025, 0.975]), abs=0.01)


def test_the_interval_of_pairs_without_a_context_is_as_wide_as_other_texts_make_it() -> None:
    """Oracle: simulation. The accuracies of 300 test sets of 30 fresh texts each spread by a known width; an interval
    that took 435 pairs of 30 texts for independent would be less than half as wide."""
    rng = np.random.default_rng(0)
    sets = [all_against_all(rng.normal(size=30), rng.normal(size=30)) for _ in range(300)]
    expected = np.diff(np.quantile([scores.accuracy for scores in sets], [0.025, 0.975])).item()
    widths = [(summary := accuracy([scores], draws=400)).high - summary.low for scores in sets[:30]]
    assert np.mean(widths) == pytest.approx(expected, rel=0.2)


def test_a_mean_draws_contexts_and_texts_without_one_together() -> None:
    """By hand: two criteria of which one is always right; the interval of the mean is half that of the other."""
    rng = np.random.default_rng(5)
    texts = all_against_all(rng.normal(size=40), rng.normal(size=40))
    alone = accuracy([texts], draws=4_000)
    both = macro_accuracy({"A": [answers([1] * 200, [0] * 200)], "B": [texts]}, draws=4_000)
    assert both.mean == pytest.approx((1 + alone.mean) / 2)
    assert both.high - both.low == pytest.approx((alone.high - alone.low) / 2, rel=0.1)


def test_the_mean_over_criteria_counts_each_alike_and_its_interval_draws_shared_contexts_together() -> None:
    """By hand: accuracies 1 and 0 with 1 and 3 pairs. Two criteria with the same contexts and the same scores are no
    more certain than one; two with other contexts are."""
    assert macro_accuracy({"A": [answers([1], [0])], "B": [answers([0] * 3, [1] * 3)]}).mean == 0.5
    rng = np.random.default_rng(1)
    good, other = rng.normal(size=200), rng.normal(size=200)
    near, far = answers(good, [0] * 200), answers(other, [0] * 200, [f"other {at}" for at in range(200)])
    single = accuracy([near], draws=4_000)
    twice = macro_accuracy({"A": [near], "B": [near]}, draws=4_000)
    apart = macro_accuracy({"A": [near], "B": [far]}, draws=4_000)
    assert (twice.low, twice.high) == (single.low, single.high)
    assert apart.high - apart.low == pytest.approx((single.high - single.low) / math.sqrt(2), rel=0.15)


def test_criteria_of_other_numbers_of_seeds_have_no_mean() -> None:
    scores = answers([1], [0])
    with raises_code(RunError, "invalid_value"):
        macro_accuracy({"A": [scores], "B": [scores, scores]})
    with raises_code(RunError, "changed"):
        accuracy([scores, answers([1], [0], ["elsewhere"])])


def test_spearman_is_over_distinct_answers_that_have_ratings() -> None:
    """Oracle: scipy, on answers counted once though the first is in two pairs."""
    first, second, third = ((("story", "s"), ("answer", name)) for name in "xyz")
    pairs = [
        GoodBad(criterion="AG", good=first, bad=second, good_rating=3, bad_rating=1),
        GoodBad(criterion="AG", good=first, bad=third, good_rating=3, bad_rating=2),
    ]
    summary = spearman([CriterionScores.from_pairs(pairs, np.array([0.4, 0.4]), np.array([0.5, 0.1]))])
    assert summary is not None
    assert summary.mean == pytest.approx(stats.spearmanr([3, 1, 2], [0.4, 0.5, 0.1]).statistic)
    # The authors append both answers of each pair to one list, so that x is in it twice.
    pooled = spearman([CriterionScores.from_pairs(pairs, np.array([0.4, 0.4]), np.array([0.5, 0.1]))], pooled=True)
    assert pooled is not None
    assert pooled.mean == pytest.approx(stats.spearmanr([3, 1, 3, 2], [0.4, 0.5, 0.4, 0.1]).statistic)
    assert spearman([answers([1, 2], [0, 1])]) is None


def test_an_answer_that_is_rated_in_a_later_pair_counts_as_rated() -> None:
    """Oracle: scipy; the first pair has no ratings, the second rates both of its answers again."""
    first, second, third = ((("story", "s"), ("answer", name)) for name in "xyz")
    pairs = [
        GoodBad(criterion="AG", good=first, bad=second),
        GoodBad(criterion="AG", good=first, bad=third, good_rating=3, bad_rating=2),
        GoodBad(criterion="AG", good=third, bad=second, good_rating=2, bad_rating=1),
    ]
    scores = CriterionScores.from_pairs(pairs, np.array([0.4, 0.4, 0.1]), np.array([0.5, 0.1, 0.5]))
    assert sorted(scores.rated_answers()[0].tolist()) == [1, 2, 3]
    summary = spearman([scores])
    assert summary is not None
    assert summary.mean == pytest.approx(stats.spearmanr([3, 1, 2], [0.4, 0.5, 0.1]).statistic)


def test_pairs_are_grouped_by_the_first_informative_field() -> None:
    def context(*fields: str, bad: str = "b") -> str:
        labelled = tuple(("field", text) for text in fields)
        pair = GoodBad(criterion="DIA", good=(*labelled, ("answer", "a")), bad=(*labelled, ("answer", bad)))
        return CriterionScores.from_pairs([pair], np.zeros(1), np.zeros(1)).context[0]

    assert context("a long story", "why") == context("a long story", "who", bad="c")
    assert context("none", "she goes home") == context("none", "she goes home", bad="c")
    assert context("none", "she goes home") != context("none", "he goes home")
    assert context("short one") == context("short one", bad="c")
    assert context() == context(bad="c") == NO_CONTEXT


def test_results_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    scores = answers([1.25, 2], [0.1, 3], ratings=[1, 2])
    bare = answers([1], [0])
    job = Job(setup="single", split="honest", seed=3, learns=("AG",), judged=("AG",), target="AG")
    result = Result(
        job=job, settings={"x": 1}, scores={"AG": scores, "QA": bare}, sizes={"AG": 20}, training={"tokens": 7}
    )
    result.write(tmp_path / "results.json")
    back = Result.read(tmp_path / "results.json")
    assert (back.job, back.sizes, back.settings, back.training) == (job, {"AG": 20}, {"x": 1}, {"tokens": 7})
    assert back.scores["AG"].to_dict() == scores.to_dict()
    assert back.scores["QA"].to_dict() == bare.to_dict()
    assert np.isnan(back.scores["QA"].good_rating).all()
    assert job.name == "single-AG-seed3-honest"
