"""Base of metrics that hold a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from metrist.errors import format_count
from metrist.language import find_other_language
from metrist.metrics.base import Metric
from metrist.models.devices import Dtype, Options
from metrist.models.weights import SHIPPED, extra_name, find_weights
from metrist.records import Record
from metrist.scores import Scores

#: The part that counts tokens of an output's texts that did not fit the model.
CUT = "cut_tokens"
#: What `model` may say for the English models that ship.
SHORT_NAMES = {"small": "metrist:english-small", "large": "metrist:english-large"}


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

    def remarks(self, scores: Scores) -> list[str]:
        """How many outputs had texts that were cut, if any."""
        cut = scores.parts.get(CUT)
        count = 0 if cut is None else np.count_nonzero(cut > 0)
        if not count or cut is None:
            return []
        return [
            f"{self.label}: {count:,} of {count_scored(scores)} had texts too long for the model; "
            f"{format_count(int(np.nansum(cut)), 'token was', 'tokens were')} left out"
        ]


def count_scored(scores: Scores) -> str:
    """How many outputs were scored, in words: the others were never read by the model."""
    count = int(np.count_nonzero(~np.isnan(scores.values)))
    return format_count(count, "output" if count == len(scores) else "scored output")


def count_above(scores: Scores, part: str, threshold: float) -> int:
    """Number of scores whose part is above the threshold; 0 if there is no such part."""
    values = scores.parts.get(part)
    return 0 if values is None else int(np.count_nonzero(values > threshold))


def warn_of_other_language(label: str, model: str, records: Sequence[Record]) -> list[str]:
    """A warning if a shipped model, which knows English, is to judge texts in another language."""
    if not model.startswith(SHIPPED) or not (language := find_other_language(records)):
        return []
    return [f"{label}: many outputs are in {language}, but {model} knows only English, so that these scores say little"]
