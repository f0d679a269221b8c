"""What a likelihood model says: the log-probability of every token of a target, given a conditioning text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Likelihoods:
    """Log-probabilities (natural) of the targets' tokens, pair after pair: pair p has `starts[p]:starts[p + 1]`.

    `condition_cut` and `target_cut` count, per pair, the tokens that the model had no room for. A pair that could not
    be scored has no tokens and a reason in `failures`.
    """

    logprobs: NDArray[np.float32]
    tokens: NDArray[np.int64]
    starts: NDArray[np.int64]
    condition_cut: NDArray[np.int64]
    target_cut: NDArray[np.int64]
    failures: Mapping[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.starts) - 1

    def of(self, pair: int) -> NDArray[np.float32]:
        """One pair's log-probabilities."""
        return self.logprobs[self.starts[pair] : self.starts[pair + 1]]


class LikelihoodModel(Protocol):
    """Scores targets given conditioning texts. Equal pairs are scored once, equal conditions encoded once."""

    @property
    def facts(self) -> Mapping[str, str]:
        """What its numbers depend on, for signatures and caches: weights' hash, tokenizer's hash, dtype."""
        ...

    def log_probs(self, pairs: Sequence[tuple[str, str]], max_tokens: int | None = None) -> Likelihoods:
        """Each (condition, target)'s tokens with their log-probabilities, in the order of the pairs. Texts are cut at
        `max_tokens` (None: at what the model can take), and the cut is counted."""
        ...

    def windows(self, text: str, max_tokens: int | None = None) -> list[str]:
        """The text as overlapping pieces that fit into a condition; the text itself where it fits."""
        ...

    def pieces(self, target: str, max_tokens: int | None = None) -> list[str]:
        """The target's tokens as readable text, as many as `log_probs` gives of them."""
        ...


class RunningModel(Protocol):
    """Reads whole texts, without a condition: what a causal model can do beside scoring targets."""

    @property
    def facts(self) -> Mapping[str, str]:
        """What its numbers depend on, for signatures and caches."""
        ...

    def running(self, texts: Sequence[str], max_tokens: int | None = None) -> Likelihoods:
        """Each text's tokens with their log-probabilities, none of them cut. A text that is longer than the model's
        context, or than `max_tokens`, is read in windows, each with part of the text before it as its condition."""
        ...

    def in_windows(self, text: str, max_tokens: int | None = None) -> int:
        """In how many windows a text is read."""
        ...

    def spelled(self, tokens: Sequence[int]) -> list[str]:
        """Tokens as readable text, each on its own."""
        ...
