"""Output and reference as paraphrases of each other, under a multilingual translation model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from metrist.metrics.directions import Direction
from metrist.metrics.likelihood import Likelihood


@dataclass(frozen=True, kw_only=True)
class PrismStyle(Likelihood):
    """Prism's score (Thompson and Post, 2020): the mean of both directions between reference and output;
    source->output judges without a reference."""

    model: str = "facebook/m2m100_418M"
    direction: Direction = "f"
    language: str | None = "en"

    extra: ClassVar[str | None] = "neural"
    catalog_name: ClassVar[str | None] = "prism_style"
