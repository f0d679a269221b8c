"""Asks a likelihood model about many pairs of texts and keeps one number of each: the mean of its tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from metrist.models.protocols import LikelihoodModel, Likelihoods

Numbers = NDArray[np.float64]
Counts = NDArray[np.int64]
TextPair = tuple[str, str]
#: Gives each token of a target its weight, from the target and the numbers of its tokens.
Weigh = Callable[[str, NDArray[np.int64]], Numbers]

#: Pairs, and characters of text, that are asked about at once. The model shares the work of equal conditions within one
#: question, so pairs with the same condition are asked together; a bound is kept because answers hold every token.
MOST_PAIRS = 1 << 15
MOST_TEXT = 1 << 26


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Answers:
    """One entry per pair: the weighted mean log-probability of the target's tokens (NaN for a pair with a failure), and
    the tokens cut from the condition and from the target. `readings` has the tokens' own values where these were
    asked for."""

    values: Numbers
    condition_cut: Counts
    target_cut: Counts
    failures: dict[int, str] = field(default_factory=dict)
    readings: dict[int, tuple[list[str], list[float]]] = field(default_factory=dict)


def ask(
    model: LikelihoodModel,
    pairs: Sequence[TextPair],
    *,
    max_tokens: int | None = None,
    weigh: Weigh | None = None,
    tokens: bool = False,
) -> Answers:
    """The answers to all pairs, in their order. Without `weigh` every token weighs the same."""
    answers = Answers(
        values=np.full(len(pairs), np.nan),
        condition_cut=np.zeros(len(pairs), np.int64),
        target_cut=np.zeros(len(pairs), np.int64),
    )
    for at in _questions(pairs):
        found = model.log_probs([pairs[i] for i in at], max_tokens)
        targets = [pairs[i][1] for i in at]
        _keep(answers, at, found, _means(found, targets, weigh))
        if tokens:
            for n, i in enumerate(at):
                logprobs = [round(float(one), 5) for one in found.of(n)]
                answers.readings[i] = model.pieces(pairs[i][1], max_tokens), logprobs
    return answers


def _questions(pairs: Sequence[TextPair]) -> Iterator[list[int]]:
    """The numbers of the pairs that are asked about at once: those of one condition stand together."""
    together: dict[str, list[int]] = {}
    for i, (condition, _) in enumerate(pairs):
        together.setdefault(condition, []).append(i)
    held: list[int] = []
    text = 0
    for condition, members in together.items():
        text += len(condition)
        for i in members:
            held.append(i)
            text += len(pairs[i][1])
            if len(held) == MOST_PAIRS or text > MOST_TEXT:
                yield held
                held, text = [], 0
    if held:
        yield held


def _means(found: Likelihoods, targets: Sequence[str], weigh: Weigh | None) -> Numbers:
    """Each pair's weighted mean; NaN where there is no token, or none that weighs anything."""
    starts = found.starts
    logprobs = found.logprobs.astype(np.float64)
    if weigh is None:
        return _ratio(_sums(logprobs, starts), np.diff(starts).astype(np.float64))
    spans = [found.tokens[starts[n] : starts[n + 1]] for n in range(len(found))]
    weights = [weigh(target, span) for target, span in zip(targets, spans, strict=True)]
    flat = np.concatenate(weights) if weights else np.empty(0)
    return _ratio(_sums(flat * logprobs, starts), _sums(flat, starts))


def _sums(numbers: Numbers, starts: Counts) -> Numbers:
    sums = np.zeros(len(starts) - 1)
    filled = np.flatnonzero(np.diff(starts))
    if len(filled):
        # An empty stretch would be given its neighbour's first number.
        sums[filled] = np.add.reduceat(numbers, starts[filled])
    return sums


def _ratio(above: Numbers, below: Numbers) -> Numbers:
    ratio: Numbers = np.divide(above, below, out=np.full(len(below), np.nan), where=below > 0)
    return ratio


def _keep(answers: Answers, at: Sequence[int], found: Likelihoods, means: Numbers) -> None:
    answers.condition_cut[at] = found.condition_cut
    answers.target_cut[at] = found.target_cut
    for n in np.flatnonzero(~np.isfinite(means)).tolist():
        nothing = "no token of the text carries any weight"
        odd = "the model holds a token of the text for impossible" if np.isinf(means[n]) else nothing
        answers.failures[at[n]] = found.failures.get(n, odd)
    answers.values[at] = np.where(np.isfinite(means), means, np.nan)
