"""What metrics with a model have in common: how the model is named, what identifies it, and what is said of texts that
were too long for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from metrist.errors import SpecError
from metrist.metrics.base import Metric
from metrist.models.devices import Dtype, Options, dtype_problem
from metrist.scores import Scores

#: The part in which a metric counts the tokens of an output's texts that its model had no room for.
CUT = "cut_tokens"


@dataclass(frozen=True, kw_only=True)
class ModelMetric(Metric):
    """A metric that holds a model. Its numbers do not depend on the device or on how much is computed at once."""

    extra: ClassVar[str | None] = "neural"
    #: Workers would each load the model: a run gives such a metric one process per device.
    resident: ClassVar[bool] = True

    model: str
    revision: str | None = None
    dtype: Dtype = "float32"
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        if fault := dtype_problem(self.dtype):
            raise SpecError(f"{self.name}: {fault}")

    @property
    def options(self) -> Options:
        """What the model is loaded with."""
        return Options(
            model=self.model, revision=self.revision, dtype=self.dtype, trust_remote_code=self.trust_remote_code
        )

    def facts(self) -> Mapping[str, str]:
        """The weights' hash: a name alone does not say which weights it meant that day."""
        from metrist.models.weights import find_weights

        return {"weights": find_weights(self.options).fingerprint}

    def remarks(self, scores: Scores) -> list[str]:
        """How many outputs had texts cut, if any."""
        cut = scores.parts.get(CUT)
        touched = int(np.count_nonzero(cut > 0)) if cut is not None else 0
        if not touched or cut is None:
            return []
        return [
            f"{self.text}: {touched:,} of {len(scores):,} outputs had texts too long for the model; "
            f"{int(np.nansum(cut)):,} tokens were left out"
        ]


# Where a model's tokens lie in the text they were made from.
#
# Tokenizers mark beginnings and continuations of words in their own ways and may change letters; pieces that cannot be
# found (added by the tokenizer, or changed beyond recognition) lie nowhere.


#: How tokenizers write that a piece begins (BPE, SentencePiece) or goes on (WordPiece).
_MARKS = ("Ġ", "▁", "##")
#: A piece is looked for this many characters ahead, beyond white space, so that one piece that is not there does not
#: make all after it be taken from the wrong place.
_AHEAD = 12

Span = tuple[int, int] | None


def find_spans(text: str, pieces: Sequence[str]) -> list[Span]:
    """The start and end of each piece in the text, from left to right; None for a piece that lies nowhere."""
    lowered = _small(text)
    found: list[Span] = []
    place = 0
    for piece in pieces:
        span = _find(lowered, _bare(piece), place)
        found.append(span)
        place = span[1] if span else place
    return found


def _bare(piece: str) -> str:
    for mark in _MARKS:
        # A piece that is nothing but a mark may be that very character.
        if piece.startswith(mark) and len(piece) > len(mark):
            piece = piece[len(mark) :]
    return _small(piece.strip())


def _small(text: str) -> str:
    """Small letters, as many as there were: some letters have no single small one and stay."""
    return "".join(small if len(small := letter.lower()) == 1 else letter for letter in text)


def _find(text: str, piece: str, place: int) -> Span:
    if not piece:
        return None
    while place < len(text) and text[place].isspace():
        place += 1
    start = text.find(piece, place, place + len(piece) + _AHEAD)
    return None if start < 0 else (start, start + len(piece))
