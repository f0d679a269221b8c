"""COMET: trained metrics for translation, with error spans from the XCOMET models."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from metrist.errors import SpecError
from metrist.metrics.external.adapted import OneReference
from metrist.records import Need


@dataclass(frozen=True, kw_only=True)
class Comet(OneReference):
    """A COMET model (Rei et al., 2020, 2022) as unbabel-comet computes it. `needs=['source']` for models that do
    without references."""

    catalog_name: ClassVar[str | None] = "comet"
    adapter: ClassVar[str] = "comet"
    #: Without pkg_resources, which later setuptools lack, its imports fail.
    install: ClassVar[str] = "unbabel-comet 'setuptools<81'"

    model: str = "Unbabel/wmt22-comet-da"
    needs: tuple[Need, ...] = ("source", "references")
    batch_size: int = field(default=16, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not {"source"} <= {*self.needs} <= {"source", "references"}:
            raise SpecError(f"comet: needs must be ['source', 'references'] or ['source'], got {list(self.needs)}")

    def _checkpoint(self) -> str:
        return self.model

    def _told(self) -> dict[str, Any]:
        return {"model": self.model, "batch_size": self.batch_size}
