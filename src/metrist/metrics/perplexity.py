"""Perplexity: how much a language model is surprised by an output on its own, without source or reference.

An output's row of statistics is (sum of log-probabilities, number of tokens or characters), so a system's perplexity is
that of all its outputs together and not the mean of theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from metrist.errors import SpecError
from metrist.metrics.base import check_choice
from metrist.metrics.neural import CUT, Neural
from metrist.metrics.shard import Shard
from metrist.models.loading import reader
from metrist.models.protocols import Likelihoods, RunningModel
from metrist.scores import Column, Failure, FailureKind, Score, Scores

Normalise = Literal["token", "character"]
_WINDOWS = "windows"
_EMPTY = Failure(FailureKind.missing_input, "the output is empty: it has no tokens to be likely")
_IMPOSSIBLE = "the model holds a token of the output for impossible"


@dataclass(frozen=True, kw_only=True)
class Perplexity(Neural):
    """exp of the mean negative log-probability of an output's tokens under a causal language model."""

    model: str = "openai-community/gpt2"
    normalise: Normalise = "token"
    #: The size of a window; None: the model's context.
    max_tokens: int | None = None

    higher_is_better: ClassVar[bool | None] = False
    bounds: ClassVar[tuple[float, float]] = (1.0, np.inf)
    catalog_name: ClassVar[str | None] = "perplexity"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "normalise", get_args(Normalise))
        if self.max_tokens is not None and self.max_tokens < 4:
            raise SpecError(f"{self.name}: max_tokens must be None or at least 4, got {self.max_tokens}")

    def score(self, shard: Shard) -> Scores:
        texts = [record.output for record in shard.records]
        if not any(map(str.strip, texts)):
            return Scores.of(Score.failed(_EMPTY) for _ in texts)
        model = reader(self.options)
        filled = [text for text in dict.fromkeys(texts) if text.strip()]
        found = model.running(filled, self.max_tokens)
        place = {text: n for n, text in enumerate(filled)}
        by_text = {text: self._score(model, text, found, n, shard.tokens) for text, n in place.items()}
        empty = Score.failed(_EMPTY)
        return Scores.of(by_text.get(text, empty) for text in texts)

    def pool(self, sums: Column) -> Column:
        """The perplexity of all outputs together."""
        sums = np.asarray(sums, dtype=np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            pooled: Column = np.exp(-sums[..., 0] / sums[..., 1])
        return pooled

    def remarks(self, scores: Scores) -> list[str]:
        """How many outputs were longer than the model's context, if any."""
        windows = scores.parts.get(_WINDOWS)
        split = int(np.count_nonzero(windows > 1)) if windows is not None else 0
        said = f"{self.text}: {split:,} of {len(scores):,} outputs were too long for the model and read in windows"
        return [*super().remarks(scores), *([said] if split else [])]

    def _score(self, model: RunningModel, text: str, found: Likelihoods, n: int, tokens: bool) -> Score:
        logprobs = found.of(n).astype(np.float64)
        if n in found.failures:
            return Score.failed(found.failures[n])
        total, count = float(logprobs.sum()), len(logprobs) if self.normalise == "token" else len(text)
        with np.errstate(over="ignore"):
            value = float(np.exp(-total / count))
        if not np.isfinite(value):
            return Score.failed(_IMPOSSIBLE)
        parts = {
            "logprob": total / len(logprobs),
            "tokens": float(len(logprobs)),
            _WINDOWS: float(model.in_windows(text, self.max_tokens)),
            CUT: float(found.target_cut[n]),
        }
        reading = [_reading(model, found, n)] if tokens else None
        return Score(value=value, parts=parts, stats=(total, float(count)), tokens=reading)


def _reading(model: RunningModel, found: Likelihoods, n: int) -> dict[str, Any]:
    tokens = found.tokens[found.starts[n] : found.starts[n + 1]].tolist()
    logprobs = [round(float(one), 5) for one in found.of(n)]
    return {"condition": "nothing", "target": "output", "pieces": model.spelled(tokens), "logprobs": logprobs}
