"""BLEURT: a trained metric that sets an output beside a reference."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from metrist.metrics.external.adapted import OneReference
from metrist.records import Need

CHECKPOINTS = "METRIST_BLEURT_CHECKPOINTS"


@dataclass(frozen=True, kw_only=True)
class Bleurt(OneReference):
    """BLEURT (Sellam et al., 2020) as google-research/bleurt computes it. A checkpoint is a folder, looked for as it is
    given and then in the folder that METRIST_BLEURT_CHECKPOINTS names."""

    catalog_name: ClassVar[str | None] = "bleurt"
    adapter: ClassVar[str] = "bleurt"
    install: ClassVar[str] = "git+https://github.com/google-research/bleurt.git"
    needs: ClassVar[tuple[Need, ...]] = ("references",)

    checkpoint: str = "BLEURT-20"
    batch_size: int = field(default=16, compare=False)

    def _told(self) -> dict[str, Any]:
        return {"checkpoint": self._checkpoint(), "batch_size": self.batch_size}

    def _checkpoint(self) -> str:
        kept = os.environ.get(CHECKPOINTS)
        if kept and not Path(self.checkpoint).exists():
            return str(Path(kept) / self.checkpoint)
        return self.checkpoint
