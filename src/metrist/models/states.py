"""What an encoder says: a vector for every token of a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

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
