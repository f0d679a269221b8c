"""Interfaces of likelihood models, text models, encoders and reward models, and the results they return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from metrist.models.reward_layout import RewardInput, Rewards, RewardSettings


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Likelihoods:
    """Natural log-probabilities of the targets' tokens, concatenated: pair p has `starts[p]:starts[p + 1]`.

    `condition_cut` and `target_cut` count the tokens of each pair that exceeded the model's limit. A pair that could
    not be scored has no tokens, and a reason in `failures`.
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
        """Return one pair's log-probabilities."""
        return self.logprobs[self.starts[pair] : self.starts[pair + 1]]


class _Model(Protocol):
    @property
    def facts(self) -> Mapping[str, str]:
        """What its numbers depend on, for signatures and caches: hashes of weights and tokenizer, dtype."""


class LikelihoodModel(_Model, Protocol):
    """Scores targets given conditioning texts. Equal pairs are scored once, equal conditions encoded once."""

    def log_probs(self, pairs: Sequence[tuple[str, str]], max_tokens: int | None = None) -> Likelihoods:
        """Return the tokens of each (condition, target) pair's target with their log-probabilities, in order. Texts are
        cut at `max_tokens` (None: at the model's limit), and the cut tokens are counted."""

    def windows(self, text: str, max_tokens: int | None = None) -> list[str]:
        """Split a text into overlapping windows that fit into a condition; return the text itself if it fits."""

    def pieces(self, target: str, max_tokens: int | None = None) -> list[str]:
        """Return the target's tokens as readable text, as many as `log_probs` returns."""


class TextModel(_Model, Protocol):
    """Scores texts without a condition, as causal models can."""

    def running(self, texts: Sequence[str], max_tokens: int | None = None) -> Likelihoods:
        """Return all tokens of each text with their log-probabilities. A text longer than the model's context, or than
        `max_tokens`, is read in windows, each with part of the preceding text as its condition."""

    def in_windows(self, text: str, max_tokens: int | None = None) -> int:
        """Return in how many windows a text is read."""

    def spelled(self, tokens: Sequence[int]) -> list[str]:
        """Return each token as readable text."""


#: What to do with a text longer than the model's limit: read it in overlapping windows, or truncate it.
Long = Literal["windows", "truncate"]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class States:
    """Vectors of the texts' tokens, concatenated: text t has rows `starts[t]:starts[t + 1]`.

    `special` marks the tokens that open and close a text (CLS, SEP; T5's end token is neither); `cut` counts the
    truncated tokens of each text.
    """

    vectors: NDArray[np.float32]
    tokens: NDArray[np.int64]
    special: NDArray[np.bool_]
    starts: NDArray[np.int64]
    cut: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts) - 1


class EncoderModel(_Model, Protocol):
    """Turns texts into vectors. Equal texts are encoded once."""

    @property
    def layers(self) -> int:
        """The number of layers; layer 0 is the embeddings."""

    @property
    def limit(self) -> int:
        """The largest number of tokens at once, special tokens included."""

    @property
    def word_start(self) -> str:
        """What to put before a text so that its first word is tokenized as elsewhere: a space for RoBERTa and GPT-2,
        nothing for most."""

    def states(self, texts: Sequence[str], layer: int | None = None, long: Long = "windows") -> States:
        """Return each text's vectors after a layer (None: the last)."""

    def token_ids(self, texts: Sequence[str], long: Long = "windows") -> list[list[int]]:
        """Return each text's tokens, as in `states`."""

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """Return tokens as text. A piece that continues a word starts with ##, whatever the tokenizer."""


class RewardScorer(_Model, Protocol):
    """A model trained on preferences."""

    @property
    def settings(self) -> RewardSettings: ...

    def rewards(self, inputs: Sequence[RewardInput]) -> Rewards:
        """Return one reward per input, in order; the rest of the batch changes it only by rounding."""
