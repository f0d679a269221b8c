"""What metrics with a model have in common: how the model is named, what identifies it, and what is said of texts that
were too long for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from metrist.errors import SpecError
from metrist.metrics.base import Metric
from metrist.models.devices import Dtype, Options, dtype_fault
from metrist.scores import Scores

#: The part in which a metric counts the tokens of an output's texts that its model had no room for.
CUT = "cut_tokens"


@dataclass(frozen=True, kw_only=True)
class Neural(Metric):
    """A metric that holds a model. Its numbers do not depend on the device or on how much is computed at once."""

    extra: ClassVar[str | None] = "neural"
    #: Workers would each load the model: a run gives such a metric one process per device.
    resident: ClassVar[bool] = True

    model: str
    revision: str | None = None
    dtype: Dtype = "float32"
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        if fault := dtype_fault(self.dtype):
            raise SpecError(f"{self.name}: {fault}")

    @property
    def options(self) -> Options:
        """What the model is loaded with."""
        return Options(
            model=self.model, revision=self.revision, dtype=self.dtype, trust_remote_code=self.trust_remote_code
        )

    def facts(self) -> Mapping[str, str]:
        """The weights' hash: a name alone does not say which weights it meant that day."""
        from metrist.models.weights import find

        return {"weights": find(self.options).fingerprint}

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
