"""What a token weighs in a comparison of texts: the same as all others, or by how few texts of a file have it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from metrist.errors import SpecError
from metrist.metrics.document_frequencies import DocumentFrequencies, document_frequencies, fingerprint
from metrist.metrics.embedding import Embedding
from metrist.models import loading
from metrist.models.devices import Options
from metrist.models.protocols import Long, States


@dataclass(frozen=True, kw_only=True)
class Weighted(Embedding):
    """A metric on vectors whose tokens weigh by inverse document frequency when `idf` names a file of texts."""

    #: False is None: bert-score's users write it so.
    idf: str | bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.idf is True:
            raise SpecError(
                f"{self.name}: idf must name a file of texts, such as all references of the test set, one a line "
                f"(idf='references.txt') or as records (idf='records.jsonl'); weights made from the records that "
                f"happen to be scored together would change from run to run"
            )
        object.__setattr__(self, "idf", self.idf or None)

    def facts(self) -> Mapping[str, str]:
        """A hash of the file that weights come from, beside what all metrics on vectors depend on."""
        return {**super().facts(), **({"idf": fingerprint(self.idf)} if isinstance(self.idf, str) else {})}

    def weights(self, states: States) -> NDArray[np.float64]:
        """Each token's weight; those that open and close a text weigh nothing."""
        if not isinstance(self.idf, str):
            return (~states.special).astype(np.float64)
        start = self.encoder().word_start
        found = _frequencies(self.idf, fingerprint(self.idf), self.options, self.long, start)
        return found.idf(states.tokens)


@lru_cache(maxsize=8)
def _frequencies(path: str, _hash: str, options: Options, long: Long, start: str) -> DocumentFrequencies:
    encoder = loading.encoder(options)
    return document_frequencies(path, lambda texts: encoder.token_ids([start + text for text in texts], long))
