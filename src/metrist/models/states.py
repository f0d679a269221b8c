"""What an encoder says: a vector for every token of a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class States:
    """Vectors of the texts' tokens, text after text: text t has rows `starts[t]:starts[t + 1]`.

    `special` marks tokens that the tokenizer added (CLS, SEP); `cut` counts, per text, tokens left out.
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

    def states(self, texts: Sequence[str], layer: int | None = None) -> States:
        """Each text's vectors after the given layer (None: the last)."""
        ...
