"""What a likelihood model says: the log-probability of every token of a target, given a conditioning text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from metrist.models.reward_layout import RewardInput, RewardSettings


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


class TextModel(Protocol):
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


# What an encoder says: a vector for every token of a text.


#: What becomes of a text that is longer than the model takes at once: read in overlapping windows, or cut off.
Long = Literal["windows", "truncate"]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class States:
    """Vectors of the texts' tokens, text after text: text t has rows `starts[t]:starts[t + 1]`.

    `special` marks the tokens that open and close a text (CLS, SEP; T5's end token is neither); `cut` counts, per
    text, tokens left out.
    """

    vectors: NDArray[np.float32]
    tokens: NDArray[np.int64]
    special: NDArray[np.bool_]
    starts: NDArray[np.int64]
    cut: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts) - 1


class EncoderModel(Protocol):
    """Turns texts into vectors. Equal texts are encoded once."""

    @property
    def facts(self) -> Mapping[str, str]:
        """What its vectors depend on, for signatures and caches."""
        ...

    @property
    def layers(self) -> int:
        """How many layers it has; layer 0 is the embeddings."""
        ...

    @property
    def limit(self) -> int:
        """How many tokens it takes at once, those that open and close a text included."""
        ...

    @property
    def word_start(self) -> str:
        """What to put before a text so that its first word is read as the same word elsewhere: a space for RoBERTa and
        GPT-2, nothing for most."""
        ...

    def states(self, texts: Sequence[str], layer: int | None = None, long: Long = "windows") -> States:
        """Each text's vectors after the given layer (None: the last)."""
        ...

    def token_ids(self, texts: Sequence[str], long: Long = "windows") -> list[list[int]]:
        """Each text's tokens, as `states` has them."""
        ...

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """Tokens as text. A piece that goes on with the word before it starts with ##, whatever the tokenizer."""
        ...


# What every reward model gives, and what it must be able to do, whatever computes it.


class Rewards(NamedTuple):
    """A reward for each answer, how many tokens its row had to leave out, and how many of the answer's tokens the model
    can read: where there are none, the reward says nothing of the answer."""

    values: NDArray[np.float64]
    cut: NDArray[np.int64]
    read: NDArray[np.int64]


class RewardScorer(Protocol):
    """A model that was trained on preferences. `facts` go into signatures."""

    @property
    def settings(self) -> RewardSettings: ...

    @property
    def facts(self) -> Mapping[str, str]: ...

    def rewards(self, judged: Sequence[RewardInput]) -> Rewards:
        """One reward per answer, in the order given, the same within rounding whatever else is judged with it."""
        ...
