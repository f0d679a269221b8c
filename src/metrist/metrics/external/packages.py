"""BLEURT: a trained metric that sets an output beside a reference."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from metrist.errors import ModelError, SpecError
from metrist.metrics.base import check_choice
from metrist.metrics.external.adapter import SingleReferenceMetric
from metrist.records import Need, Record

CHECKPOINTS = "METRIST_BLEURT_CHECKPOINTS"


@dataclass(frozen=True, kw_only=True)
class Bleurt(SingleReferenceMetric):
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


# COMET: trained metrics for translation, with error spans from the XCOMET models.


@dataclass(frozen=True, kw_only=True)
class Comet(SingleReferenceMetric):
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


# UniEval: one trained model that is asked a yes-or-no question per dimension.


FOLDER = "METRIST_UNIEVAL_FOLDER"
OVERALL = "overall"
#: What each question looks at, by task. 'context' is a column of that name among the record's extra ones.
QUESTIONS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "summarization": {
        "coherence": ("source",),
        "consistency": ("source",),
        "fluency": ("source",),
        "relevance": ("source", "references"),
    },
    "dialogue": {
        "naturalness": ("source",),
        "coherence": ("source",),
        "engagingness": ("source", "context"),
        "groundedness": ("source", "context"),
        "understandability": ("source",),
    },
    "data2text": {"naturalness": ("references",), "informativeness": ("references",)},
    "fact": {"consistency": ("source",)},
}


@dataclass(frozen=True, kw_only=True)
class UniEval(SingleReferenceMetric):
    """UniEval (Zhong et al., 2022) by its authors' own code. The value is one dimension or the mean of all; the parts
    are the dimensions."""

    catalog_name: ClassVar[str | None] = "unieval"
    adapter: ClassVar[str] = "unieval"
    install: ClassVar[str] = "torch transformers nltk prettytable sentencepiece"
    programs: ClassVar[tuple[str, ...]] = ("python", "folder")

    task: Literal["summarization", "dialogue", "data2text", "fact"] = "summarization"
    aspect: str = OVERALL
    folder: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "task", QUESTIONS)
        check_choice(self, "aspect", (OVERALL, *QUESTIONS[self.task]))

    @property
    def needs(self) -> tuple[Need, ...]:
        """What the questions asked look at."""
        looked_at = self._looked_at()
        return tuple(need for need in ("source", "references") if need in looked_at)

    def _looked_at(self) -> set[str]:
        return {field for aspect in self._aspects for field in QUESTIONS[self.task][aspect]}

    @property
    def _aspects(self) -> tuple[str, ...]:
        return tuple(QUESTIONS[self.task]) if self.aspect == OVERALL else (self.aspect,)

    def _rows(self, record: Record) -> list[dict[str, Any]]:
        context = record.extra.get("context")
        return [{**row, "context": None if context is None else str(context)} for row in super()._rows(record)]

    def _told(self) -> dict[str, Any]:
        return {
            "folder": self._place(),
            "task": self.task,
            "aspects": list(self._aspects),
            "value": self.aspect,
            "needs_context": "context" in self._looked_at(),
        }

    def _asking(self) -> list[str]:
        return [self._place()]

    def _place(self) -> str:
        place = self.folder or os.environ.get(FOLDER)
        if not place:
            raise ModelError(
                "unieval is no package: git clone https://github.com/maszhongming/UniEval and name the folder: "
                f"{FOLDER}=UniEval"
            )
        return os.path.abspath(place)
