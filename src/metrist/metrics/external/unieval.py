"""UniEval: one trained model that is asked a yes-or-no question per dimension."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from metrist.errors import ModelError
from metrist.metrics.base import check_choice
from metrist.metrics.external.adapted import OneReference
from metrist.records import Need, Record

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
class UniEval(OneReference):
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
